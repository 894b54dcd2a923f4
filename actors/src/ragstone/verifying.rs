//! When the corpus is compared with its checksums: a file that is damaged between two comparisons is served as it stands, but for its words.

use std::sync::Arc;

use ragstone_corpus::{CorpusCheck, Pace};

use super::Ragstone;

impl Ragstone {
    /// Compares the corpus with its checksums in the background, now and whenever `verify_interval_s` has passed, and builds indexes anew
    /// that are damaged, until the service stops.
    pub fn verify_in_background(&self) {
        let (me, stopping) = (Arc::downgrade(&self.inner), self.inner.jobs.stopping().clone());
        let interval = self.inner.pipeline.settings.verify_interval();
        let work = async move {
            while let Some(corpus) = me.upgrade().map(|inner| inner.corpus.clone()) {
                match stopping.run_until_cancelled(corpus.verify(Pace::Slow, &mut |_| true)).await {
                    Some(Ok(CorpusCheck { files, bytes, damaged, .. })) => {
                        let damaged = damaged.len();
                        tracing::info!(files, bytes, damaged, "the corpus was compared with its checksums");
                    }
                    Some(Err(error)) => tracing::warn!(%error, "the corpus could not be compared with its checksums"),
                    None => return,
                }
                drop(corpus);
                let Some(interval) = interval else { return };
                if stopping.run_until_cancelled(tokio::time::sleep(interval)).await.is_none() {
                    return;
                }
            }
        };
        drop(self.inner.pipeline.runtime.spawn(work));
    }
}
