//! Where settings come from, each the text that somebody wrote: a file, variables, flags.

use std::path::{Path, PathBuf};

use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::{Flags, Surface, table};
use crate::error::{Error, Result};

/// Variables that begin with `RAGSTONE_` and are no settings: the path of the file itself, and what tests use.
const NO_SETTINGS: &[&str] = &["config", "failpoints"];
/// Others, of checks of ours, begin with these.
const OF_CHECKS: &[&str] = &["test_", "fuzz_", "vllm"];

/// What Kubernetes puts into every container beside a Service named `ragstone`: `RAGSTONE_PORT`, `RAGSTONE_SERVICE_HOST`, ….
fn is_service_link(key: &str) -> bool {
    key == "port" || key.starts_with("port_") || key.starts_with("service_")
}

/// Whether a variable, in small letters and without its prefix, is somebody else's.
fn is_others(key: &str) -> bool {
    is_service_link(key) || OF_CHECKS.iter().any(|check| key.starts_with(check))
}

/// Which struct takes a key: serde cannot flatten two and still refuse unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Surface,
    /// All others.
    Settings,
}

/// One half of the keys from all sources, the strongest last.
pub fn all(file: Option<&File>, prefix: &str, flags: &Flags, half: Half) -> Result<Figment> {
    let mut figment = Figment::new();
    if let Some(data) = file {
        figment = figment.merge(Halved { data, half });
    }
    figment = figment.merge(Halved { data: Variables { prefix }, half });
    for assignment in &flags.set {
        figment = figment.merge(Halved { data: Assignment::parse(assignment)?, half });
    }
    Ok(figment.merge(Halved { data: Serialized::defaults(flags), half }))
}

/// Refuses what is no text: figment would take another folder than the one that is named so.
///
/// # Errors
/// `InvalidInput`; it names the variable or the flag.
pub fn check_texts(prefix: &str, flags: &Flags) -> Result<()> {
    let given = std::env::vars_os().filter(|(_, value)| value.to_str().is_none());
    let ours = given.filter_map(|(name, _)| Some(name.to_str()?.to_owned())).find(|name| name.starts_with(prefix));
    let flag = flags.data.as_ref().filter(|data| data.to_str().is_none()).map(|_| "--data".to_owned());
    match flag.or(ours) {
        Some(what) => Err(Error::invalid_input(format!("{what}: its value is not valid UTF-8; rename that folder"))),
        None => Ok(()),
    }
}

/// A source with only the keys of one half.
struct Halved<P> {
    data: P,
    half: Half,
}

impl<P: Provider> Provider for Halved<P> {
    fn metadata(&self) -> Metadata {
        self.data.metadata()
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let own = surface_keys();
        let mut data = self.data.data()?;
        for dict in data.values_mut() {
            dict.retain(|key, _| own.contains(key) == (self.half == Half::Surface));
        }
        Ok(data)
    }
}

pub fn surface_keys() -> Vec<String> {
    match serde_json::to_value(Surface::default()) {
        Ok(serde_json::Value::Object(map)) => map.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// The file of `--config`, read once: a pipe (`<(sops -d secrets.toml)`) can be read no second time, and figment takes a missing file for an
/// empty one.
pub struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// # Errors
    /// As the file system says; `InvalidInput` for what is no text.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::io("cannot read the configuration", path, error))?;
        Ok(Self { path: path.to_owned(), text })
    }
}

impl Provider for &File {
    fn metadata(&self) -> Metadata {
        Metadata::from("TOML file", &*self.path)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Toml::string(&self.text).data()
    }
}

/// `RAGSTONE_KEY=VALUE`
struct Variables<'a> {
    prefix: &'a str,
}

impl Variables<'_> {
    fn read(&self) -> Env {
        let named = Env::prefixed(self.prefix).ignore(NO_SETTINGS);
        named.filter(|key| !is_others(&key.as_str().to_ascii_lowercase())).split("__")
    }
}

impl Provider for Variables<'_> {
    fn metadata(&self) -> Metadata {
        self.read().metadata()
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let mut data = self.read().data()?;
        // figment takes the blanks at their ends away.
        for (name, text) in std::env::vars_os() {
            let (Some(name), Some(text)) = (name.to_str(), text.to_str()) else { continue };
            let Some(key) = name.strip_prefix(self.prefix).map(|key| key.to_lowercase().replace("__", ".")) else {
                continue;
            };
            if is_text(&key, text) {
                data.values_mut().for_each(|dict| replace(dict, &key, text));
            }
        }
        Ok(data)
    }
}

/// Writes a text where a source has that key.
fn replace(dict: &mut Dict, key: &str, text: &str) {
    match (dict.get_mut(key), key.split_once('.')) {
        (Some(value), _) => *value = Value::from(text),
        (None, Some((outer, inner))) => {
            if let Some(Value::Dict(_, dict)) = dict.get_mut(outer) {
                replace(dict, inner, text);
            }
        }
        (None, None) => {}
    }
}

/// `--set KEY=VALUE`
struct Assignment {
    key: String,
    value: Value,
}

impl Assignment {
    fn parse(text: &str) -> Result<Self> {
        let (key, text) = text
            .split_once('=')
            .filter(|(key, _)| !key.trim().is_empty())
            .ok_or_else(|| Error::invalid_input(format!("--set {text}: write it as KEY=VALUE, such as top_k=3")))?;
        let key = key.trim().to_owned();
        Ok(Self { value: value(&key, text), key })
    }
}

impl Provider for Assignment {
    fn metadata(&self) -> Metadata {
        Metadata::named(format!("--set {}", self.key))
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let dict = figment::util::nest(&self.key, self.value.clone()).into_dict().unwrap_or_default();
        Ok(Map::from([(Profile::Default, dict)]))
    }
}

/// Whether a setting is a text that stays as it was written, with the blanks at its ends (`query: `), though it may look like a number. Of one in
/// quotes is taken what stands between them.
fn is_text(key: &str, text: &str) -> bool {
    let is_text = table::definition(key).is_some_and(|setting| setting.is_text) || key.starts_with("object_options.");
    is_text && !text.trim_start().starts_with('"')
}

fn value(key: &str, text: &str) -> Value {
    if is_text(key, text) {
        return Value::from(text);
    }
    match text.parse::<Value>() {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_sets_is_no_setting() {
        for key in ["PORT", "PORT_7411_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_HTTP", "service_host"] {
            assert!(is_service_link(&key.to_ascii_lowercase()), "{key}");
        }
        for key in ["TOP_K", "LISTEN", "PORTS", "HOST_BYTES"] {
            assert!(!is_service_link(&key.to_ascii_lowercase()), "{key}");
        }
    }

    #[test]
    fn what_checks_of_ours_use_is_no_setting() {
        for key in ["test_seed", "fuzz_seconds", "vllm_model"] {
            assert!(is_others(key), "{key}");
        }
        assert!(!is_others("top_k"));
    }

    #[test]
    fn variables_keep_their_blanks_where_a_text_is_wanted() {
        let mut dict = figment::util::nest("object_options.access_key_id", Value::from(123)).into_dict().unwrap();
        dict.insert("embed_query_prompt".into(), Value::from("query:"));
        for (key, text) in
            [("object_options.access_key_id", "0123"), ("embed_query_prompt", "query: "), ("top_k.x", "1 ")]
        {
            assert_eq!(is_text(key, text), key != "top_k.x");
            replace(&mut dict, key, text);
        }
        assert_eq!(dict["embed_query_prompt"].as_str(), Some("query: "));
        let options = dict["object_options"].as_dict().unwrap();
        assert_eq!((options["access_key_id"].as_str(), dict.len()), (Some("0123"), 2));
        assert!(!is_text("object_options", "{region=\"a\"}") && !is_text("prompt.system", " \"quoted\""));
    }
}
