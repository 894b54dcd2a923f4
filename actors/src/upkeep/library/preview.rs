//! What a removal would take along, without removing anything.

use std::collections::{HashMap, HashSet};

use ragstone_corpus::Scope;
use ragstone_storage::key::KvKey;
use ragstone_storage::tier::Tier;

use super::{Library, Removed, Withdrawn};
use crate::admission::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};

/// What is held of one entry.
struct StoredEntry {
    key: KvKey,
    copies: u64,
    bytes: u64,
}

impl Library {
    /// What would go at most if a document, or without one a whole collection, were removed: entries of its passages, and those that were
    /// computed after them. Passages that another document has, too, are counted here and would stay. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection or document.
    pub async fn preview_removal(&self, collection: &str, document: Option<&str>) -> Result<Removed> {
        let scope = Scope { collection: Some(collection), document };
        let mut passages_removed = 0;
        let mut each = |some: Vec<ragstone_corpus::PassageTokens>| {
            passages_removed += some.len();
            Ok(())
        };
        let jobs_cancelled = self.0.ingests.count(collection).await?;
        match self.0.corpus.scan(scope, &mut each).await {
            // Its first documents are still to come.
            Err(error) if error.kind() == ErrorKind::NotFound && jobs_cancelled > 0 => {
                return Ok(Removed { jobs_cancelled, ..Removed::default() });
            }
            scanned => scanned?,
        }
        if let (0, Some(document)) = (passages_removed, document) {
            let message = format!("there is no document `{document}` in collection `{collection}`");
            return Err(Error::of_field(ErrorKind::NotFound, "document", message));
        }
        let (segments, store): (HashSet<_>, _) = (self.segments(scope).await?, self.0.store.clone());
        let kv = blocking(move || {
            let (mut after, mut leaving) = (HashMap::<KvKey, Vec<StoredEntry>>::new(), Vec::new());
            store.entries(&Tier::ALL, &mut |entry| {
                let stored = entry.tiers.iter().filter(|tier| **tier != Tier::Device).count() as u64;
                let bytes = stored * entry.summary.bytes;
                let held = StoredEntry { key: entry.summary.key, copies: entry.tiers.len() as u64, bytes };
                match entry.summary.parent {
                    _ if segments.contains(&entry.summary.segment) => leaving.push(held),
                    Some(parent) => after.entry(parent).or_default().push(held),
                    None => {}
                }
            })?;
            let mut kv = Withdrawn::default();
            while let Some(StoredEntry { key, copies, bytes }) = leaving.pop() {
                kv.add(Withdrawn { entries_removed: 1, copies_removed: copies, bytes_removed: bytes, pending: false });
                leaving.extend(after.remove(&key).unwrap_or_default());
            }
            Ok(kv)
        })
        .await?;
        Ok(Removed { passages_removed, jobs_cancelled, kv })
    }
}
