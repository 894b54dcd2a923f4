//! Text that was deleted, and that files may have still: what is to be vacuumed, and since when. Noted before the text is deleted, so
//! that a kill forgets none.

use serde::{Deserialize, Serialize};

use super::records::Kept;
use super::{Catalog, to_json};
use crate::Result;

/// Before the rows of these, among the settings.
const PREFIX: &str = "deleted.";
const KV: &str = "deleted.kv";
const COLLECTION: &str = "deleted.collection.";

/// What may hold deleted text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The files of a collection.
    Collection(String),
    /// The disk tier's.
    Kv,
}

impl Holder {
    fn key(&self) -> String {
        match self {
            Self::Collection(name) => format!("{COLLECTION}{name}"),
            Self::Kv => KV.to_owned(),
        }
    }

    fn of(key: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        let collection = || key.strip_prefix(COLLECTION).map(|name| Self::Collection(name.to_owned()));
        if key == KV { Some(Self::Kv) } else { collection() }
    }
}

/// Deleted text that files may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains {
    /// Where.
    pub holder: Holder,
    /// Since the first deletion, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// How many deletions there were.
    deletions: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Row {
    since_unix_ms: u64,
    deletions: u64,
}

impl Row {
    fn read(row: Option<&[u8]>) -> Option<Self> {
        row.and_then(|row| serde_json::from_slice(row).ok())
    }
}

impl Catalog {
    /// Notes that something is about to be deleted there; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_remains(&self, holder: &Holder, now_unix_ms: u64) -> Result<()> {
        self.change_remains(holder, |row| {
            let row = row.unwrap_or(Row { since_unix_ms: now_unix_ms, deletions: 0 });
            Some(Row { deletions: row.deletions + 1, ..row })
        })
    }

    /// What was noted and is not vacuumed yet, in the order of its names.
    ///
    /// # Errors
    /// As sled says.
    pub fn remains(&self) -> Result<Vec<Remains>> {
        let mut all = Vec::new();
        for (key, value) in self.settings.with_prefix(PREFIX) {
            if let (Some(holder), Some(row)) = (Holder::of(&key), Row::read(Some(&value))) {
                all.push(Remains { holder, since_unix_ms: row.since_unix_ms, deletions: row.deletions });
            }
        }
        Ok(all)
    }

    /// What there was of it when it was `seen` has left the files. What was deleted since stays noted, as if at `begun_unix_ms`, before
    /// which the vacuum had not begun. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_remains(&self, seen: &Remains, begun_unix_ms: u64) -> Result<()> {
        self.change_remains(&seen.holder, |row| {
            let deletions = row?.deletions.saturating_sub(seen.deletions);
            (deletions > 0).then_some(Row { since_unix_ms: begun_unix_ms, deletions })
        })
    }

    fn change_remains(&self, holder: &Holder, change: impl FnOnce(Option<Row>) -> Option<Row>) -> Result<()> {
        let (key, mut records) = (holder.key(), self.changing());
        let known = self.settings.get(&key);
        let changed = change(Row::read(known.as_deref())).map(|row| to_json(&row)).transpose()?;
        if known.is_none() && changed.is_none() {
            return Ok(());
        }
        self.write(&mut records, Kept::Settings, vec![(key.into_bytes(), changed)], true)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::open;
    use super::*;

    #[test]
    fn what_is_deleted_while_a_vacuum_runs_is_due_again() {
        let dir = TempDir::new().unwrap();
        let collection = Holder::Collection("acme/a.b".into());
        {
            let catalog = open(&dir);
            catalog.set_setting("deletedness", "none").unwrap();
            catalog.note_remains(&collection, 5).unwrap();
            catalog.note_remains(&Holder::Kv, 6).unwrap();
            catalog.note_remains(&collection, 7).unwrap();
        }
        let catalog = open(&dir);
        let remains = catalog.remains().unwrap();
        assert_eq!(
            remains.iter().map(|row| (&row.holder, row.since_unix_ms)).collect::<Vec<_>>(),
            [(&collection, 5), (&Holder::Kv, 6)],
            "since the first deletion, also after a restart"
        );
        catalog.note_remains(&collection, 9).unwrap();
        for row in &remains {
            catalog.finish_remains(row, 8).unwrap();
        }
        let left = catalog.remains().unwrap();
        assert_eq!(left.iter().map(|row| (&row.holder, row.since_unix_ms)).collect::<Vec<_>>(), [(&collection, 8)]);
        catalog.finish_remains(&left[0], 10).unwrap();
        catalog.finish_remains(&left[0], 10).unwrap();
        assert_eq!(catalog.remains().unwrap(), []);
    }
}
