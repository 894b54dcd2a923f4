//! Where embedding models were found that collections were built with, so that one that is not configured any more can still be asked; and
//! which collections are to stay with theirs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::records::Kept;
use super::{Catalog, read_json, to_json};
use crate::Result;

/// Before an identity, among the settings.
const EMBEDDER: &str = "embedder.";
/// Before an identity, of how alike unrelated texts are to that model.
const UNRELATED: &str = "unrelated.";
/// Before a collection's full name, among the settings.
const CANCELLED: &str = "renewal.cancelled.";

/// An embedding model that was in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedderRecord {
    /// Its folder.
    pub folder: std::path::PathBuf,
    /// What it was given before a question.
    pub query_prompt: String,
    /// What it was given before a passage.
    pub passage_prompt: String,
}

impl Catalog {
    /// Notes where the embedding model of an identity is; durable on return.
    ///
    /// # Errors
    /// `InvalidInput` if the path is not UTF-8; else as sled says.
    pub fn note_embedder(&self, identity: &str, record: &EmbedderRecord) -> Result<()> {
        let key = format!("{EMBEDDER}{identity}");
        self.put(Kept::Settings, key.as_bytes(), to_json(record)?)
    }

    /// Where the embedding model of an identity was last.
    ///
    /// # Errors
    /// As sled says.
    pub fn embedder(&self, identity: &str) -> Result<Option<EmbedderRecord>> {
        Ok(self.settings.get(format!("{EMBEDDER}{identity}")).and_then(|row| read_json(&row)))
    }

    /// Notes what was measured of the embedding model of an identity; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_unrelated(&self, identity: &str, measured: &Value) -> Result<()> {
        let key = format!("{UNRELATED}{identity}");
        self.put(Kept::Settings, key.as_bytes(), to_json(measured)?)
    }

    /// What was noted by [`note_unrelated`](Self::note_unrelated).
    ///
    /// # Errors
    /// As sled says.
    pub fn unrelated(&self, identity: &str) -> Result<Option<Value>> {
        Ok(self.settings.get(format!("{UNRELATED}{identity}")).and_then(|row| read_json(&row)))
    }

    /// Notes that a collection is not to be embedded again for `identity`, or, with `None`, for whichever; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn cancel_renewal(&self, collection: &str, identity: Option<&str>) -> Result<()> {
        let key = format!("{CANCELLED}{collection}");
        match identity {
            Some(identity) => self.put(Kept::Settings, key.as_bytes(), identity.into()),
            None => self.remove(Kept::Settings, key.as_bytes()).map(drop),
        }
    }

    /// Whether somebody cancelled that a collection is embedded again for `identity`.
    ///
    /// # Errors
    /// As sled says.
    pub fn is_renewal_cancelled(&self, collection: &str, identity: &str) -> Result<bool> {
        let row = self.settings.get(format!("{CANCELLED}{collection}"));
        Ok(row.is_some_and(|row| row == identity.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_env::Env;

    #[test]
    fn what_was_noted_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let record = EmbedderRecord {
            folder: "/models/a".into(),
            query_prompt: "query: ".into(),
            passage_prompt: String::new(),
        };
        {
            let catalog = Catalog::open(folder.path(), &Env::system()).unwrap();
            assert_eq!(catalog.embedder("bert-1").unwrap(), None);
            catalog.note_embedder("bert-1", &record).unwrap();
            catalog.cancel_renewal("acme/notes", Some("bert-2")).unwrap();
            catalog.note_unrelated("bert-1", &serde_json::json!({ "mean": 0.5 })).unwrap();
        }
        let catalog = Catalog::open(folder.path(), &Env::system()).unwrap();
        assert_eq!(catalog.embedder("bert-1").unwrap(), Some(record));
        assert_eq!(catalog.unrelated("bert-1").unwrap(), Some(serde_json::json!({ "mean": 0.5 })));
        assert_eq!(catalog.unrelated("bert-2").unwrap(), None);
        assert!(catalog.is_renewal_cancelled("acme/notes", "bert-2").unwrap());
        assert!(!catalog.is_renewal_cancelled("acme/notes", "bert-3").unwrap());
        assert!(!catalog.is_renewal_cancelled("notes", "bert-2").unwrap());
        catalog.cancel_renewal("acme/notes", None).unwrap();
        assert!(!catalog.is_renewal_cancelled("acme/notes", "bert-2").unwrap());
    }
}
