//! Which collections there are: one whose folder is gone, as after a restore that was cut short, is missed and told of.

use super::Catalog;
use super::records::Kept;
use crate::Result;

/// Before the rows of these, among the settings.
const PREFIX: &str = "collection.";

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

impl Catalog {
    /// Notes that there is a collection; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_collection(&self, name: &str) -> Result<()> {
        if self.settings.contains_key(key(name)) {
            return Ok(());
        }
        self.put(Kept::Settings, key(name).as_bytes(), Vec::new())
    }

    /// Notes that a collection is about to go; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn forget_collection(&self, name: &str) -> Result<()> {
        self.remove(Kept::Settings, key(name).as_bytes()).map(drop)
    }

    /// Those that were noted, in the order of their names.
    ///
    /// # Errors
    /// As sled says.
    pub fn noted_collections(&self) -> Result<Vec<String>> {
        let name = |key: &[u8]| String::from_utf8(key[PREFIX.len()..].into()).ok();
        Ok(self.settings.with_prefix(PREFIX).iter().filter_map(|(key, _)| name(key)).collect())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::open;

    #[test]
    fn collections_are_noted_until_they_are_forgotten() {
        let dir = TempDir::new().unwrap();
        {
            let catalog = open(&dir);
            catalog.set_setting("collections", "none").unwrap();
            ["b", "acme/a.b", "b", "c"].iter().for_each(|name| catalog.note_collection(name).unwrap());
        }
        let catalog = open(&dir);
        assert_eq!(catalog.noted_collections().unwrap(), ["acme/a.b", "b", "c"]);
        catalog.forget_collection("b").unwrap();
        catalog.forget_collection("b").unwrap();
        assert_eq!(catalog.noted_collections().unwrap(), ["acme/a.b", "c"]);
    }
}
