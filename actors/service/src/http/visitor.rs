//! Who may speak to the service from a browser. A page of any site can send requests to this machine; the browser tells
//! whose page it is, and what name the page reached us by.
//!
//! - **Host**: a page whose name its owner re-binds to 127.0.0.1 is of "the same origin" to the browser, and reads answers. Its
//!   requests carry that name. Addresses, `localhost` and names without a dot (which no public page has) are let through,
//!   others only when they are allowed.
//! - **Origin**: a page of another site can send, though not read. Only our own pages and allowed ones may, and these may read, too ([`super::cors`]).

use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};

use crate::error::{Error, ErrorKind, Result};

/// Names and origins that the configuration allows.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Allowed {
    /// `hosts` without ports, `origins` as browsers write them; `*` is any.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let lower =
            |texts: &[String]| texts.iter().map(|text| text.trim_end_matches('/').to_ascii_lowercase()).collect();
        Self { hosts: lower(hosts), origins: lower(origins) }
    }

    /// Lets a request through or says why not.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn check(&self, method: &Method, headers: &HeaderMap) -> Result<()> {
        let host = one(headers, &HOST)?.unwrap_or_default().to_ascii_lowercase();
        if !self.knows_host(name_of(&host)) {
            return Err(forbidden(format!(
                "this service does not go by the name `{}`: use its address, or add the name to `allowed_hosts`",
                shown(name_of(&host))
            )));
        }
        let Some(origin) = one(headers, &ORIGIN)?.map(str::to_ascii_lowercase) else { return Ok(()) };
        if !self.knows_origin(&origin, &host) {
            return Err(forbidden(format!(
                "pages of {} may not use this service; add it to `allowed_origins` if they should",
                shown(&origin)
            )));
        }
        // A form can post text across origins without asking first; JSON it cannot.
        let json =
            one(headers, &CONTENT_TYPE)?.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"));
        if method == Method::POST && !json {
            return Err(forbidden("requests from a web page must have content type application/json"));
        }
        Ok(())
    }

    fn knows_host(&self, name: &str) -> bool {
        let is_address = name.parse::<std::net::IpAddr>().is_ok();
        let is_local = !name.contains('.') || name.ends_with(".localhost");
        is_address || is_local || self.hosts.iter().any(|host| host == "*" || host == name)
    }

    fn knows_origin(&self, origin: &str, host: &str) -> bool {
        let own = origin.split_once("://").is_some_and(|(_, authority)| authority == host && !host.is_empty());
        own || self.origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }
}

/// A host without its port and brackets.
fn name_of(host: &str) -> &str {
    let host = host.trim_end_matches('.');
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
        _ if host.starts_with('[') => host,
        _ => host.split_once(':').map_or(host, |(name, _)| name.trim_end_matches('.')),
    }
}

/// The value of a header that must not come twice: two could mean one thing to us and another to a proxy.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>> {
    let mut values = headers.get_all(name);
    let value = values.next();
    if values.next().is_some() {
        return Err(Error::invalid_input(format!("the header {name} came twice")));
    }
    value
        .map(|value| value.to_str().map_err(|_| Error::invalid_input(format!("the header {name} is no text"))))
        .transpose()
}

fn forbidden(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Forbidden, message)
}

/// As much of a stranger's text as a message needs.
fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn check(allowed: &Allowed, method: Method, headers: &[(HeaderName, &str)]) -> Result<()> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        allowed.check(&method, &map)
    }

    #[test]
    fn a_page_that_rebinds_its_name_is_refused() {
        let none = Allowed::default();
        for host in
            ["127.0.0.1:7411", "[::1]:7411", "localhost", "LOCALHOST:1", "ragstone:7411", "a.localhost", "10.0.0.7", ""]
        {
            check(&none, Method::GET, &[(HOST, host)]).unwrap();
        }
        for host in [
            "evil.example",
            "evil.example:7411",
            "127.0.0.1.evil.example",
            "localhost.evil.example.",
            "[::1].evil.example",
        ] {
            assert!(check(&none, Method::GET, &[(HOST, host)]).is_err(), "{host}");
        }
        let some = Allowed::new(&["Kb.Example.org".into()], &[]);
        check(&some, Method::GET, &[(HOST, "kb.example.org:80")]).unwrap();
        check(&some, Method::GET, &[(HOST, "kb.example.org.")]).unwrap();
        assert!(check(&some, Method::GET, &[(HOST, "other.example.org")]).is_err());
        check(&Allowed::new(&["*".into()], &[]), Method::GET, &[(HOST, "evil.example")]).unwrap();
        assert!(check(&none, Method::GET, &[(HOST, "localhost"), (HOST, "evil.example")]).is_err());
    }

    #[test]
    fn pages_of_others_may_not_send() {
        let none = Allowed::default();
        let json = (CONTENT_TYPE, "application/json; charset=utf-8");
        let own = [(HOST, "127.0.0.1:7411"), (ORIGIN, "http://127.0.0.1:7411"), json.clone()];
        check(&none, Method::POST, &own).unwrap();
        assert!(check(&none, Method::POST, &own[..2]).is_err(), "a form of our own page");
        check(&none, Method::GET, &own[..2]).unwrap();
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8080", "127.0.0.1:7411"] {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                assert!(
                    check(&none, method, &[(HOST, "127.0.0.1:7411"), (ORIGIN, origin), json.clone()]).is_err(),
                    "{origin}"
                );
            }
        }
        let some = Allowed::new(&[], &["https://chat.example.org/".into()]);
        check(&some, Method::POST, &[(HOST, "localhost"), (ORIGIN, "https://chat.example.org"), json]).unwrap();
        // A program, not a page.
        check(&none, Method::POST, &[(HOST, "localhost")]).unwrap();
    }
}
