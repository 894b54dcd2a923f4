//! Collections that nobody changes any more get the form that searches like best.
//!
//! While somebody writes, upkeep ([`table`](super::table)) does as much as is in proportion to what is written. A search then opens many small files, and compares
//! vectors that are in no index: a third of its time, of 100,000 passages. Once nobody writes, the rest is done.

use std::sync::Arc;
use std::time::Duration;

use super::Corpus;
use super::disk::caught;
use super::naming::unknown;
use super::table::Collection;
use crate::Result;
use ragstone_env::lock::locked;
use ragstone_env::{Env, Stopwatch};

/// Nobody has written for so long: whoever adds documents one after the other does not wait for their files to be merged each time.
const QUIET: Duration = Duration::from_secs(60);

/// What was seen of a collection's commits.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// How many, and since when.
    seen: Option<(u64, Stopwatch)>,
    compacted: Option<u64>,
}

impl Quiet {
    /// Whether nobody has written for [`QUIET`], as far as looks show, and what was written is not compacted yet.
    fn look(&mut self, commits: u64, env: &Env) -> bool {
        match &self.seen {
            Some((seen, since)) if *seen == commits => since.elapsed() >= QUIET && self.compacted != Some(commits),
            _ => {
                self.seen = Some((commits, env.stopwatch()));
                false
            }
        }
    }
}

impl Corpus {
    /// Collections that nobody has changed for a minute, as far as earlier calls show, and that were not [compacted](Self::compact) since. None of object storage, where other
    /// nodes write.
    pub async fn uncompacted(&self) -> Vec<String> {
        let collections: Vec<Arc<Collection>> = self.inner.collections.lock().await.values().cloned().collect();
        let (mut uncompacted, env) = (Vec::new(), &self.inner.options.env);
        for table in collections {
            if table.shared().is_none() && locked(&table.quiet).look(table.commits(), env) {
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
    fn only_what_nobody_writes_for_a_while_is_quiet_and_once() {
        let (env, mut quiet) = (Env::seeded(1, 5_000), Quiet::default());
        assert!(!quiet.look(0, &env), "nothing is known yet");
        env.advance(QUIET / 2);
        assert!(!quiet.look(0, &env), "not for long");
        env.advance(QUIET / 2);
        assert!(quiet.look(0, &env) && quiet.look(0, &env), "as long as nobody compacts it");
        quiet.compacted = Some(0);
        assert!(!quiet.look(0, &env));
        assert!(!quiet.look(2, &env), "somebody wrote");
        env.advance(QUIET);
        assert!(!quiet.look(4, &env), "and again");
        env.advance(QUIET);
        assert!(quiet.look(4, &env));
    }
}
