//! All settings as they are told to people: in help, in docs/settings.md, by `ragstone settings` and on the page.

use std::fmt::Write;

use ragstone_actors::settings::{Definition, TABLE};
use serde_json::Value;

use super::listing::Setting;

const fn setting(key: &'static str, about: &'static str) -> Definition {
    Definition::new(key, about)
}

/// Those of [`Surface`](super::Surface).
pub const SURFACE: &[Definition] = &[
    setting("data", "The data folder, in which everything is stored.").by_default("the platform's data folder").flag().under("Data and models"),
    setting(
        "model",
        "The language model: a folder, a GGUF file, a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or `demo`, the small one inside this program.",
    )
        .by_default("SmolLM2-135M-Instruct, fetched once; where it cannot be, the demo model (bench: random weights)")
        .flag(),
    setting(
        "adapter",
        "The low-rank adapter that is added to the language model: a folder, as PEFT saves it, `reader` for the default model's own, or `none`. On \
         the processor alone.",
    )
        .by_default("the default model's reader; none for others, and on a GPU")
        .flag(),
    setting(
        "embedder",
        "The embedding model: a folder or a hub id. Where the default one is not on this machine, the data folder's last one is used.",
    )
    .by_default("all-MiniLM-L6-v2, fetched once")
        .flag(),
    setting("reranker", "The cross-encoder that reranks: a folder or a hub id such as cross-encoder/ms-marco-MiniLM-L6-v2.")
        .by_default("the language model does")
        .flag(),
    setting("offline", "Never use the network.").flag(),
    setting("listen", "Address and port where the service listens. Port 0 takes a free one, which is printed.").flag().under("Where it listens, and who may use it"),
    setting("health_listen", "Address and port where health and metrics are answered by a thread of their own.")
        .by_default("a free port of loopback"),
    setting("tls_certificate", "The certificate chain that the service shows, a PEM file: it then speaks TLS. Changed files are taken within seconds.")
        .by_default("none: no TLS"),
    setting("tls_key", "The key of `tls_certificate`, a PEM file.").by_default("none"),
    setting(
        "tls_client_ca",
        "A PEM file of authorities: clients must show a certificate that one of them signed. Commands of the data folder's owner need none.",
    )
    .by_default("none"),
    setting(
        "keys",
        "Whether requests need an API key, `off` or `required`; `ragstone keys add` makes one. With keys, the service may listen beyond this \
         machine, and tenants are kept apart.",
    )
    .flag(),
    setting("metrics_open", "Whether `/metrics` is answered without a key."),
    setting(
        "allow_anyone",
        "Listen beyond loopback although nobody has to log in. Whoever reaches the port can read and change the corpus.",
    )
    .flag(),
    setting(
        "allowed_hosts",
        "Host names with a dot by which clients may call the service, such as `[\"kb.example.org\"]`. `*` allows any.",
    )
    .by_default("none"),
    setting(
        "allowed_origins",
        "Origins whose web pages may use the service, such as `[\"https://chat.example.org\"]`. `*` allows any.",
    )
    .by_default("none"),
    setting("body_bytes", "Most bytes in one request's body.").at_least(1024).under("Bounds on requests, connections and files"),
    setting("bodies_bytes", "Most bytes of all bodies, as what they become once they are read, and of long answers that are not read yet; callers share it."),
    setting("body_timeout_s", "Seconds that a client may take to send a body; each 64 KiB has a second more.").within(1, 3600),
    setting("max_connections", "Connections that may be open at once.").within(2, 1 << 20),
    setting("write_timeout_s", "Seconds that a client may leave an answer unread.").within(1, 3600),
    setting("grace_s", "Seconds that running answers have to end, and jobs to reach their next commit, once the service is told to stop.").within(0, 3600),
    setting(
        "file_seconds",
        "Processor seconds that parsing one file may take in an ingest. By the clock it may take four times as many.",
    )
    .within(1, 86_400),
    setting("audit_log", "A folder: who asked, added, deleted and evicted is written there, a JSON line each, without texts; a file a day (UTC).")
        .by_default("none is written"),
    setting("audit_files", "Files of the audit log that are kept, `ragstone-audit.DATE.jsonl`: one for each day that had something to write.").within(1, 36_500),
    setting(
        "responses_days",
        "Days that answers of `/v1/responses` and conversations stay for clients that go on from them, after they changed last; 0 keeps none.",
    )
    .within(0, 36_500)
    .under("Answers that clients go on from"),
    setting("responses_bytes", "Most bytes of them on disk. Beyond that the oldest of the tenant that has most leave."),
    setting("log", "Which log lines are written, such as info or ragstone_actors=debug,warn.")
        .by_default("info (serve), warn")
        .flag().under("Logs and traces"),
    setting("log_format", "How log lines are written: `text`, or `json` with one object a line.").flag(),
    setting("log_steps", "Also write a line with its times when a step of a request ends."),
    setting(
        "otlp_endpoint",
        "The OpenTelemetry collector that `serve` sends traces and metrics to by OTLP over HTTP, such as http://127.0.0.1:4318.",
    )
    .by_default("as `OTEL_EXPORTER_OTLP_ENDPOINT` says"),
];

/// Every setting, in the order in which people read of them.
pub fn all() -> impl Iterator<Item = &'static Definition> {
    SURFACE.iter().chain(TABLE)
}

/// A setting, or the one that it is an entry of, such as `object_options` of `object_options.region`.
pub fn definition(key: &str) -> Option<&'static Definition> {
    all().find(|setting| key == setting.key || key.strip_prefix(setting.key).is_some_and(|rest| rest.starts_with('.')))
}

/// The flag of a setting that has one.
pub fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// What help says of a setting's flag. `default` is its value where nothing gives one.
pub fn help(setting: &Definition, default: &Value) -> String {
    let default = match (setting.default, default) {
        (Some(default), _) => plain(default),
        // A switch is off.
        (None, Value::Bool(false) | Value::Null) => return plain(setting.about),
        (None, value) => plain(&shown(setting.key, value)),
    };
    format!("{} [default: {default}]", plain(setting.about))
}

/// Text without the marks of Markdown.
pub fn plain(text: &str) -> String {
    let text = text.replace('`', "");
    // A link is its words.
    match (text.find('['), text.find("]("), text.rfind(')')) {
        (Some(begin), Some(middle), Some(end)) if begin < middle && middle < end => {
            format!("{}{}{}", &text[..begin], &text[begin + 1..middle], &text[end + 1..])
        }
        _ => text,
    }
}

/// The tables of docs/settings.md, as Markdown: one a group.
pub fn markdown(listing: &[Setting]) -> String {
    let mut out = String::new();
    for setting in all() {
        if let Some(heading) = setting.heading {
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}### {heading}\n\n| setting | default | |\n|---|---|---|");
        }
        let value = listing.iter().find(|listed| listed.key == setting.key).map(|listed| &listed.default);
        let default = setting.default.map_or_else(|| shown(setting.key, value.unwrap_or(&Value::Null)), str::to_owned);
        let [default, about] = [&default, setting.about].map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(out, "| `{}` | {default} | {about} |", setting.key);
    }
    out
}

/// A value, as README and the list have it: sizes with their unit.
pub fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Array(list) if list.is_empty() => "none".to_owned(),
        Value::Number(number) if key.ends_with("_bytes") => size(number.as_u64().unwrap_or(0)),
        // As it is written, and not as 4e-7.
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        Value::String(text) => format!("`{}`", text.replace('\n', "\\n")),
        other => other.to_string(),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{Config, Flags};

    /// Neither the table nor the structs can have a setting that the other lacks.
    #[test]
    fn every_setting_is_defined_once_and_every_definition_is_a_setting() {
        let listed: Vec<String> =
            Config::load(None, &Flags::default()).unwrap().listing.into_iter().map(|setting| setting.key).collect();
        let defined: Vec<&str> = all().map(|setting| setting.key).collect();
        let is_in = |listed: &String| definition(listed).is_some_and(|setting| setting.key == listed);
        assert_eq!(listed.iter().filter(|listed| !is_in(listed)).collect::<Vec<_>>(), [""; 0], "not in the table");
        let unknown: Vec<&&str> = defined.iter().filter(|key| !listed.iter().any(|listed| listed == **key)).collect();
        assert_eq!(unknown, [&""; 0], "not in the structs");
        assert_eq!(defined.iter().collect::<BTreeSet<_>>().len(), defined.len(), "twice");
        for setting in all() {
            let text = plain(setting.about);
            let is_sentence = text.starts_with(char::is_uppercase) || setting.about.starts_with('`');
            assert!(is_sentence && text.ends_with('.'), "{}: whole sentences, not {text:?}", setting.key);
            assert!(text.len() < 400 && !text.contains(['`', '\n']), "{}: {text:?}", setting.key);
        }
    }

    #[test]
    fn readme_has_them_in_groups_that_a_reader_can_scan() {
        let groups = all().filter(|setting| setting.heading.is_some()).count();
        assert!(all().next().unwrap().heading.is_some() && groups > 8, "{groups}");
        let text = markdown(&[]);
        let tables: Vec<usize> = text.split("### ").skip(1).map(|table| table.matches("\n| `").count()).collect();
        assert_eq!((tables.len(), tables.iter().sum::<usize>()), (groups, all().count()));
        assert!(tables.iter().all(|rows| (2..=13).contains(rows)), "{tables:?}");
    }

    #[test]
    fn values_are_shown_as_people_write_them() {
        for (key, value, expected) in [
            ("host_bytes", Value::from(512 << 20), "512 MiB"),
            ("host_bytes", Value::from(1_000_000), "1000000"),
            ("prices.object_request", Value::from(4e-7), "0.0000004"),
            ("top_k", Value::from(5), "5"),
            ("speculate", Value::from(true), "true"),
            ("listen", Value::from("a\nb"), "`a\\nb`"),
            ("log", Value::Null, "none"),
        ] {
            assert_eq!(shown(key, &value), expected, "{key}");
        }
        assert_eq!(plain("see `x`, [docs](a.md#b)"), "see x, docs");
    }
}
