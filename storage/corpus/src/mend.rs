//! Indexes that cannot be read are built anew: they hold nothing that the rows have not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Corpus;
use super::disk::caught;
use super::table::{Broken, Collection, TEXT_INDEX, Writer};
use crate::Result;

/// How often, since the start. Where that does not help, it is the rows that are damaged.
const MOST_TIMES: usize = 3;

impl Broken {
    /// To be asked before a search, and told to [`Corpus::mend`] if that fails.
    pub fn times_mended(&self) -> usize {
        self.mended.load(Ordering::Acquire)
    }

    fn is_any(&self) -> bool {
        self.words.load(Ordering::Acquire) || self.vectors.load(Ordering::Acquire)
    }

    fn forget(&self) {
        self.words.store(false, Ordering::Release);
        self.vectors.store(false, Ordering::Release);
    }
}

impl Corpus {
    /// Builds the indexes anew that a search could not read; whether searching again may help. `times_before`: as it was when that search
    /// began.
    pub(super) async fn mend(&self, table: &Arc<Collection>, times_before: usize) -> bool {
        if !table.broken.is_any() {
            return table.broken.times_mended() > times_before;
        }
        if times_before >= MOST_TIMES {
            // It did not help: the next search that fails need not wait for the turn to hear so.
            table.broken.forget();
            return false;
        }
        let Some(writer) = table.write().await else { return false };
        if table.broken.times_mended() > times_before {
            return true;
        }
        tracing::warn!(collection = table.name, "an index cannot be read; it is built anew from the rows");
        let built = caught("build its indexes", build(&writer)).await;
        table.broken.mended.fetch_add(1, Ordering::AcqRel);
        match built {
            Ok(()) => {
                tracing::info!(collection = table.name, "the indexes are built anew");
                true
            }
            Err(error) => {
                tracing::error!(collection = table.name, %error, "the indexes could not be built anew: its rows cannot be read either");
                false
            }
        }
    }
}

impl Corpus {
    /// Builds anew the indexes of words that an earlier version made: it cut texts into words in another way. Each collection is searched by its
    /// older one meanwhile, and others write between two collections. How many there were.
    pub async fn renew_word_indexes(&self) -> usize {
        let collections: Vec<Arc<Collection>> = self.inner.collections.lock().await.values().cloned().collect();
        let mut renewed = 0;
        for table in collections {
            if table.has_own_word_indexes().await.unwrap_or(true) {
                continue;
            }
            tracing::info!(
                collection = table.name,
                "the index of its words is of an earlier version, and is built anew"
            );
            let Some(writer) = table.write().await else { continue };
            let built = async {
                if !table.text_indexes().await?.iter().all(|name| name == TEXT_INDEX) {
                    table.create_text_index().await?;
                }
                table.create_term_index().await?;
                writer.sync().await?;
                writer.prune().await
            };
            match caught("build its indexes", built).await {
                Ok(()) => renewed += 1,
                Err(error) => {
                    tracing::warn!(collection = table.name, %error, "its words are searched by the older index")
                }
            }
        }
        renewed
    }
}

async fn build(writer: &Writer<'_>) -> Result<()> {
    let table = writer.collection();
    let (words, vectors) =
        (table.broken.words.swap(false, Ordering::AcqRel), table.broken.vectors.swap(false, Ordering::AcqRel));
    if words {
        table.create_text_index().await?;
        table.create_term_index().await?;
    }
    if vectors && table.has_vector_index().await? {
        table.create_vector_index().await?;
    }
    writer.sync().await
}
