//! All settings in one list, each with its source.

use figment::Figment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::table;

/// What stands for a value that may be a secret, as it does for a bucket's options.
const HIDDEN: &str = "…";

/// A setting, as `/v1/settings` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// As `--set` takes it: `prompt.system`.
    pub key: String,
    /// What it is, in whole sentences without marks.
    pub about: String,
    /// Its flag, where it has one.
    pub flag: Option<String>,
    /// Its environment variable.
    pub variable: String,
    /// Sizes in bytes. Null: none.
    pub value: Value,
    pub default: Value,
    /// What the default is called where the value itself says too little; null: nothing more.
    pub default_text: Option<String>,
    /// The flag, variable or file that it comes from; null: nothing gave it.
    pub source: Option<String>,
}

/// The settings of one struct, with their sources.
pub fn of<T: Serialize>(given: &T, usual: &T, sources: &Figment, prefix: &str) -> Vec<Setting> {
    let (mut values, mut defaults) = (Map::new(), Map::new());
    flatten("", serde_json::to_value(given).unwrap_or_default(), &mut values);
    flatten("", serde_json::to_value(usual).unwrap_or_default(), &mut defaults);
    let setting = |(key, value): (String, Value)| {
        let definition = table::definition(&key);
        Setting {
            about: definition.map_or_else(String::new, |definition| table::plain(definition.about)),
            flag: definition.filter(|definition| definition.is_flag).map(|_| table::flag(&key)),
            variable: variable(&key, prefix),
            source: source(&key, sources, prefix),
            default: defaults.get(&key).cloned().unwrap_or_default(),
            default_text: definition.and_then(|definition| definition.default).map(table::plain),
            value: shown(&key, value),
            key,
        }
    };
    values.into_iter().map(setting).collect()
}

/// The environment variable of a setting.
pub fn variable(key: &str, prefix: &str) -> String {
    format!("{prefix}{}", key.to_uppercase().replace('.', "__"))
}

fn flatten(prefix: &str, value: Value, into: &mut Map<String, Value>) {
    match value {
        // One that is empty is a setting without a value.
        Value::Object(map) if map.is_empty() => {
            into.insert(prefix.to_owned(), Value::Null);
        }
        Value::Object(map) => {
            for (key, value) in map {
                let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&key, value, into);
            }
        }
        value => {
            into.insert(prefix.to_owned(), value);
        }
    }
}

fn shown(key: &str, value: Value) -> Value {
    // A URL may name a user with a password.
    let is_secret = matches!(key, "object_url" | "corpus_url" | "otlp_endpoint")
        && value.as_str().is_some_and(|url| url.contains(['@', '?']));
    if is_secret { HIDDEN.into() } else { value }
}

fn source(key: &str, sources: &Figment, prefix: &str) -> Option<String> {
    let metadata = sources.find_metadata(key)?;
    Some(match &metadata.source {
        Some(figment::Source::File(path)) => path.display().to_string(),
        _ if metadata.name.starts_with("--set") => "--set".to_owned(),
        _ if metadata.name.contains("environment") => variable(key, prefix),
        _ => table::flag(key),
    })
}
