//! Removals that concern other nodes on the same corpus: told to them, and heard of them.

use std::collections::HashSet;

use ragstone_corpus::GoneEntry;
use ragstone_storage::catalog::{Holder, LeavingPassage};
use ragstone_storage::key::SegmentDigest;

use super::Library;
use crate::admission::blocking::blocking;
use crate::error::Result;

impl Library {
    /// Tells all nodes that these passages are gone, before this one removes their KV: a kill in between has the journal tell them again. Of
    /// passages that some document still has, the KV is computed again where it is asked for.
    pub(super) async fn tell_nodes<'a>(&self, passages: impl Iterator<Item = &'a LeavingPassage>) -> Result<()> {
        let Some(gone) = self.0.corpus.gone() else { return Ok(()) };
        let segments: HashSet<SegmentDigest> = passages.flat_map(|passage| passage.segments.iter().copied()).collect();
        if segments.is_empty() {
            return Ok(());
        }
        let mut segments: Vec<String> = segments.iter().map(ToString::to_string).collect();
        segments.sort_unstable();
        gone.tell(&GoneEntry { segments }).await
    }

    /// Takes out of every tier that is this node's own what other nodes removed: from then on it does not serve it. Their common bucket is not
    /// waited for ([`remove_everywhere`](Self::remove_everywhere)).
    pub(crate) async fn apply_gone(&self, segments: Vec<SegmentDigest>) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        let (store, catalog) = (self.0.store.clone(), self.0.catalog.clone());
        blocking(move || {
            store.invalidate_here(&segments)?;
            store.flush()?;
            // The vacuum takes it off this node's disk, too.
            catalog.note_remains(&Holder::Kv, store.env().now_unix_ms())
        })
        .await
    }

    /// Takes out of the bucket what other nodes removed: so did they, but this one may have uploaded it after that. And out of this node's own
    /// tiers once more: it may have read it from the bucket since [`apply_gone`](Self::apply_gone).
    pub(crate) async fn remove_everywhere(&self, segments: Vec<SegmentDigest>) -> Result<()> {
        let (store, models) = (self.0.store.clone(), self.fingerprints()?);
        blocking(move || store.invalidate(&segments, &models).map(drop)).await
    }
}

/// The segments of entries of the log. What is none is left out: another version wrote it.
pub(crate) fn segments_in(entries: &[GoneEntry]) -> Vec<SegmentDigest> {
    let names = entries.iter().flat_map(|entry| &entry.segments);
    let mut segments: Vec<SegmentDigest> = names.filter_map(|name| name.parse().ok()).collect();
    segments.sort_unstable_by_key(|segment| segment.0);
    segments.dedup();
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_through_the_log_once_each() {
        let digest = SegmentDigest([7; 16]);
        let entry = |segment: String| GoneEntry { segments: vec![segment] };
        let entries = [entry(digest.to_string()), entry(digest.to_string()), entry("nonsense".into())];
        assert_eq!(segments_in(&entries), [digest]);
    }
}
