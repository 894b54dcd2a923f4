//! Which collections there are: one whose folder is gone, as after a restore that was cut short, is missed and told of.

use super::{Catalog, sled_error};
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
        if self.settings.contains_key(key(name)).map_err(sled_error)? {
            return Ok(());
        }
        self.settings.insert(key(name), &[]).map_err(sled_error)?;
        self.flush()
    }

    /// Notes that a collection is about to go; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn forget_collection(&self, name: &str) -> Result<()> {
        match self.settings.remove(key(name)).map_err(sled_error)? {
            Some(_) => self.flush(),
            None => Ok(()),
        }
    }

    /// Those that were noted, in the order of their names.
    ///
    /// # Errors
    /// As sled says.
    pub fn noted_collections(&self) -> Result<Vec<String>> {
        let name =
            |key: &[u8]| key.strip_prefix(PREFIX.as_bytes()).and_then(|name| String::from_utf8(name.into()).ok());
        let keys = self.settings.scan_prefix(PREFIX).keys();
        keys.filter_map(|key| key.map(|key| name(&key)).map_err(sled_error).transpose()).collect()
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
