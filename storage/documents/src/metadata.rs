//! What files say about themselves: author, date, keywords. Bounded, because it stands beside each of a document's passages.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::body::one_line;

/// Entries of one file; others are left out.
const MAX_ENTRIES: usize = 32;
const MAX_KEY_BYTES: usize = 64;
/// Longer values are cut.
const MAX_VALUE_BYTES: usize = 512;

/// Of YAML: its parser takes the square of the time for what nests.
const MAX_YAML_BYTES: usize = 16 << 10;

/// Names and what they are, as text.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FileMetadata(BTreeMap<String, String>);

impl FileMetadata {
    /// Keeps the first value of a name. What is empty or too much is left out.
    pub fn add(&mut self, key: &str, value: &str) {
        let (key, value) = (one_line(key), one_line(&value.replace('\0', "")));
        if key.is_empty() || key.len() > MAX_KEY_BYTES || value.is_empty() || self.0.len() >= MAX_ENTRIES {
            return;
        }
        let end = value.floor_char_boundary(MAX_VALUE_BYTES);
        self.0.entry(key).or_insert_with(|| value[..end].trim_end().to_owned());
    }

    /// As [`add`](Self::add), of what a file may have.
    pub fn add_some(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(key, value);
        }
    }

    /// As documents have it.
    pub fn into_json(self) -> Map<String, Value> {
        self.0.into_iter().map(|(key, value)| (key, Value::String(value))).collect()
    }

    /// The entries of YAML that stands before a text; lists with commas, objects by `name.field`. What is no YAML, or too long, has none.
    pub fn add_yaml(&mut self, yaml: &str) {
        if yaml.len() > MAX_YAML_BYTES {
            return;
        }
        if let Ok(serde_yaml_ng::Value::Mapping(fields)) = serde_yaml_ng::from_str(yaml) {
            for (key, value) in &fields {
                self.add_value(&scalar(key).unwrap_or_default(), value);
            }
        }
    }

    fn add_value(&mut self, key: &str, value: &serde_yaml_ng::Value) {
        use serde_yaml_ng::Value;
        match value {
            Value::Sequence(items) => {
                let items: Vec<String> = items.iter().filter_map(scalar).collect();
                self.add(key, &items.join(", "));
            }
            // No name is that long, so that this ends.
            Value::Mapping(fields) if key.len() < MAX_KEY_BYTES => {
                for (field, value) in fields {
                    self.add_value(&format!("{key}.{}", scalar(field).unwrap_or_default()), value);
                }
            }
            Value::Tagged(tagged) => self.add_value(key, &tagged.value),
            other => self.add_some(key, scalar(other).as_deref()),
        }
    }

    /// One of them.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

fn scalar(value: &serde_yaml_ng::Value) -> Option<String> {
    use serde_yaml_ng::Value;
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(is.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str) -> Vec<(String, String)> {
        let mut metadata = FileMetadata::default();
        metadata.add_yaml(yaml);
        metadata.0.into_iter().collect()
    }

    #[test]
    fn yaml_is_flat_text() {
        let found =
            of("title: The Works\nyear: 1906\ntags: [iron, mill]\nauthor:\n  name: Ada\n  mail: null\ndraft: true\n");
        let expected = [
            ("author.name", "Ada"),
            ("draft", "true"),
            ("tags", "iron, mill"),
            ("title", "The Works"),
            ("year", "1906"),
        ];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(of("- a\n- b").is_empty() && of("a: [").is_empty() && of("").is_empty());
    }

    #[test]
    fn there_is_an_end_to_it() {
        let many: String = (0..100).map(|number| format!("k{number}: v\n")).collect();
        assert_eq!(of(&many).len(), MAX_ENTRIES);
        let long = of(&format!("k: \"{}\"\n{}: x\n", "ä".repeat(400), "y".repeat(100)));
        assert_eq!((long.len(), long[0].1.len()), (1, MAX_VALUE_BYTES));
        // Lists of lists of lists, told by reference.
        let bomb: String =
            (1..30).map(|level| format!("a{level}: &a{level} [{}]\n", format!("*a{},", level - 1).repeat(9))).collect();
        assert!(of(&format!("a0: &a0 [x]\n{bomb}")).len() <= MAX_ENTRIES);
    }
}
