//! Where traces and metrics go, by the setting and by OpenTelemetry's variables. Pure.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::error::{Error, Result};

/// What the variables are, by their names.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where one signal goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    pub url: Url,
    /// For one request.
    pub timeout: Duration,
}

/// Of a collector.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoints {
    /// Where spans go.
    pub traces: Option<Endpoint>,
    /// Where metrics go.
    pub metrics: Option<Endpoint>,
    /// What is sent along with metrics, such as a token. (Those of traces the exporter reads.)
    pub metrics_headers: HeaderMap,
    /// Between two exports of metrics.
    pub interval: Duration,
}

impl Endpoints {
    /// `None`: nothing is exported.
    ///
    /// # Errors
    /// `InvalidInput` for an address or a number that is none, and for what this version cannot do: left alone it would be lost without
    /// a word.
    pub fn of(setting: Option<&str>, variables: Variables<'_>) -> Result<Option<Self>> {
        let variable =
            |name: &str| variables(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let base = match setting {
            Some(url) => Some(("setting `otlp_endpoint`", url.to_owned())),
            None => variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(|url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url)),
        };
        let endpoint = |signal: &str, path: &str| {
            if variable(&format!("OTEL_{signal}_EXPORTER")).is_some_and(|name| name == "none") {
                return Ok(None);
            }
            let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
            let url = match (variable(&own).filter(|_| setting.is_none()), &base) {
                (Some(url), _) => parse(&own, &url)?,
                (None, Some((name, url))) => below(&parse(name, url)?, path),
                (None, None) => return Ok(None),
            };
            check(signal, &variable)?;
            let timeout = milliseconds(&of_signal(signal, "TIMEOUT"), 10_000, &variable)?;
            Ok::<_, Error>(Some(Endpoint { url, timeout }))
        };
        let (traces, metrics) = (endpoint("TRACES", "v1/traces")?, endpoint("METRICS", "v1/metrics")?);
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let headers = first(&of_signal("METRICS", "HEADERS"), &variable);
        let metrics_headers = headers.map_or(Ok(HeaderMap::new()), |(name, value)| read_headers(&name, &value))?;
        let interval = milliseconds(&["OTEL_METRIC_EXPORT_INTERVAL".to_owned()], 60_000, &variable)?;
        Ok(Some(Self { traces, metrics, metrics_headers, interval }))
    }
}

/// The variables that say something of a signal, its own first.
fn of_signal(signal: &str, what: &str) -> [String; 2] {
    [format!("OTEL_EXPORTER_OTLP_{signal}_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")]
}

/// The first that is given, with its name.
fn first(names: &[String], variable: &impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
    names.iter().find_map(|name| Some((name.clone(), variable(name)?)))
}

fn check(signal: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
    let names = |what| of_signal(signal, what).to_vec();
    for (names, only) in [
        (vec![format!("OTEL_{signal}_EXPORTER")], "otlp"),
        (names("PROTOCOL"), "http/protobuf"),
        (names("COMPRESSION"), "none"),
        (names("TEMPORALITY_PREFERENCE"), "cumulative"),
        (names("CERTIFICATE"), ""),
        (names("CLIENT_CERTIFICATE"), ""),
        (names("CLIENT_KEY"), ""),
    ] {
        if let Some((name, value)) = first(&names, variable).filter(|(_, value)| value != only) {
            let can = if only.is_empty() {
                "which ragstone does not use".to_owned()
            } else {
                format!("and ragstone knows `{only}` alone")
            };
            return Err(Error::invalid_input(format!(
                "{name} is `{value}`, {can}: unset it (a collector takes HTTP on port 4318), or set OTEL_SDK_DISABLED=true"
            )));
        }
    }
    Ok(())
}

fn parse(name: &str, url: &str) -> Result<Url> {
    let parsed = Url::parse(url).ok().filter(|parsed| matches!(parsed.scheme(), "http" | "https") && parsed.has_host());
    parsed.ok_or_else(|| Error::invalid_input(format!("{name} is no address; write it like http://127.0.0.1:4318")))
}

fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url
}

/// `name=value,name=value`, with values as in URLs.
fn read_headers(variable: &str, text: &str) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let header = pair.split_once('=').and_then(|(name, value)| {
            let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().parse::<HeaderName>().ok()?, HeaderValue::from_str(&value).ok()?))
        });
        // It may be a secret: it is not shown.
        let (name, mut value) = header.ok_or_else(|| {
            Error::invalid_input(format!(
                "{variable} has a part that is no header; write it like api-key=abc,x-tenant=kb"
            ))
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn milliseconds(names: &[String], default: u64, variable: &impl Fn(&str) -> Option<String>) -> Result<Duration> {
    let Some((name, text)) = first(names, variable) else {
        return Ok(Duration::from_millis(default));
    };
    match text.parse() {
        Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
        _ => Err(Error::invalid_input(format!("{name} is `{text}`; give a number of milliseconds, such as {default}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(setting: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Endpoints>> {
        let find = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        Endpoints::of(setting, &find)
    }

    fn urls(setting: Option<&str>, variables: &[(&str, &str)]) -> [Option<String>; 2] {
        let found = of(setting, variables).unwrap();
        found.map_or([None, None], |found| [found.traces, found.metrics].map(|signal| Some(signal?.url.into())))
    }

    #[test]
    fn nothing_is_sent_where_nobody_says_where() {
        assert_eq!(of(None, &[]).unwrap(), None);
        assert_eq!(of(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap(), None);
        assert_eq!(of(Some("http://c:4318"), &[("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), None);
    }

    #[test]
    fn the_setting_is_stronger_than_the_variables() {
        let both = [Some("http://c:4318/v1/traces".to_owned()), Some("http://c:4318/v1/metrics".to_owned())];
        assert_eq!(urls(Some("http://c:4318"), &[]), both);
        assert_eq!(urls(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/")]), both);
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d/base"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://e/t?k=1"),
        ];
        assert_eq!(urls(Some("http://c:4318"), &variables), both);
        let apart = [Some("https://e/t?k=1".to_owned()), Some("http://d/base/v1/metrics".to_owned())];
        assert_eq!(urls(None, &variables), apart);
        assert_eq!(urls(None, &variables[1..]), [apart[0].clone(), None]);
    }

    #[test]
    fn a_signal_can_be_left_out() {
        let none = [("OTEL_METRICS_EXPORTER", "none")];
        assert_eq!(urls(Some("http://c:4318"), &none), [Some("http://c:4318/v1/traces".to_owned()), None]);
        let none = [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_TRACES_EXPORTER", "none")];
        assert_eq!(of(Some("http://c:4318"), &none).unwrap(), None);
    }

    #[test]
    fn headers_and_times_are_read() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-tenant=kb"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ];
        let found = of(Some("http://c:4318"), &variables).unwrap().unwrap();
        assert_eq!((found.metrics_headers["api-key"].to_str().unwrap(), found.metrics_headers.len()), ("a b", 2));
        assert_eq!(found.interval, Duration::from_secs(5));
        let timeouts = [found.traces, found.metrics].map(|signal| signal.unwrap().timeout.as_millis());
        assert_eq!(timeouts, [250, 500], "its own is stronger");
    }

    #[test]
    fn what_cannot_be_used_is_named_and_secrets_are_not_shown() {
        for (setting, variables, named) in [
            (Some("collector:4318"), &[][..], "otlp_endpoint"),
            (Some("grpc://c:4317"), &[], "otlp_endpoint"),
            (None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "4318")], "OTEL_EXPORTER_OTLP_ENDPOINT"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "OTEL_EXPORTER_OTLP_PROTOCOL"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip")], "METRICS_COMPRESSION"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem")], "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            (
                Some("http://c"),
                &[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")],
                "TEMPORALITY_PREFERENCE",
            ),
            (Some("http://c"), &[("OTEL_TRACES_EXPORTER", "console")], "OTEL_TRACES_EXPORTER"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_HEADERS", "hunter2")], "OTEL_EXPORTER_OTLP_HEADERS"),
            (Some("http://c"), &[("OTEL_METRIC_EXPORT_INTERVAL", "0")], "OTEL_METRIC_EXPORT_INTERVAL"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")], "OTEL_EXPORTER_OTLP_TIMEOUT"),
        ] {
            let error = of(setting, variables).unwrap_err();
            assert!(error.to_string().contains(named) && !error.to_string().contains("hunter2"), "{error}");
        }
    }
}
