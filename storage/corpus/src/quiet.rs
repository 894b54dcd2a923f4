//! Collections that nobody changes any more get the form that searches like best.
//!
//! While somebody writes, upkeep ([`table`](super::table)) does as much as is in proportion to what is written. A search then opens many small files, and compares
//! vectors that are in no index: a third of its time, of 100,000 passages. Once nobody writes, the rest is done.

use std::sync::Arc;

use super::Corpus;
use super::disk::caught;
use super::naming::unknown;
use super::table::Collection;
use crate::Result;
use ragstone_env::lock::locked;

/// What was seen of a collection's commits.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    seen: Option<u64>,
    compacted: Option<u64>,
}

impl Quiet {
    /// Whether nobody has written since the last look, and what was written is not compacted yet.
    fn look(&mut self, commits: u64) -> bool {
        let is_quiet = self.seen.replace(commits) == Some(commits);
        is_quiet && self.compacted != Some(commits)
    }
}

impl Corpus {
    /// Collections that nobody has changed since the last call, and that were not [compacted](Self::compact) since. None of object storage, where other
    /// nodes write.
    pub async fn uncompacted(&self) -> Vec<String> {
        let collections: Vec<Arc<Collection>> = self.inner.collections.lock().await.values().cloned().collect();
        let mut uncompacted = Vec::new();
        for table in collections {
            if table.shared().is_none() && locked(&table.quiet).look(table.commits()) {
                uncompacted.push(table.name.clone());
            }
        }
        uncompacted
    }

    /// Merges a collection's small files, and adds to its indexes what they lack. It is searched meanwhile; who writes waits for it. Costs as much as the
    /// files that are merged, and does nothing where there are few.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection; as the disk says. Then it is tried again after the next change.
    pub async fn compact(&self, name: &str) -> Result<()> {
        let table = self.find(name).await?;
        let writer = table.write().await.ok_or_else(|| unknown(name))?;
        locked(&table.quiet).compacted = Some(table.commits());
        caught("merge its files", writer.compact(self.inner.options.vector_index_rows)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_the_same_at_two_looks_is_quiet_and_once() {
        let mut quiet = Quiet::default();
        assert!(!quiet.look(0), "nothing is known yet");
        assert!(quiet.look(0) && quiet.look(0), "as long as nobody compacts it");
        quiet.compacted = Some(0);
        assert!(!quiet.look(0));
        assert!(!quiet.look(2), "somebody wrote");
        assert!(!quiet.look(4));
        assert!(quiet.look(4));
    }
}
