//! What is known of an embedding model's similarities: how alike unrelated texts are to it. Of the default model it comes with ragstone; of
//! another one it is measured once, in the background, and kept in the catalog. Until then nobody says that nothing was found.

use std::sync::{Arc, OnceLock, Weak};

use ragstone_corpus::Unrelated;
use ragstone_kernels::background;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_storage::catalog::Catalog;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorKind, Result};

/// Of one embedding model. Empty as long as nothing is known.
#[derive(Default)]
pub(crate) struct Measured(OnceLock<Option<Arc<Unrelated>>>);

/// As the catalog has it.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The hash of the questions that it was measured with.
    questions: String,
    /// `None`: the model tells nothing.
    unrelated: Option<Unrelated>,
}

impl Measured {
    /// What comes with ragstone.
    pub fn known(identity: &str) -> Self {
        let measured = Self::default();
        if let Some(unrelated) = Unrelated::known(identity) {
            let _ = measured.0.set(Some(Arc::new(unrelated)));
        }
        measured
    }

    pub fn get(&self) -> Option<Arc<Unrelated>> {
        self.0.get().cloned().flatten()
    }

    /// Takes what the catalog has. It may be gone without harm: it is measured again.
    pub fn recall(&self, catalog: &Catalog, identity: &str) {
        if self.0.get().is_some() {
            return;
        }
        let row = catalog.unrelated(identity).unwrap_or_else(|error| {
            tracing::warn!(%error, "what was measured of the embedding model cannot be read; it is measured again");
            None
        });
        let record = row.and_then(|row| serde_json::from_value::<Record>(row).ok());
        if let Some(record) = record.filter(|record| record.questions == Unrelated::questions()) {
            let _ = self.0.set(record.unrelated.map(Arc::new));
        }
    }

    /// Measures the model in the background where nothing is known of it, and keeps that; ends early where `stopping` is cancelled. Call it on a
    /// tokio runtime.
    pub fn find_out_later(
        self: Arc<Self>,
        (encoder, catalog): (Arc<SentenceEncoder>, Weak<Catalog>),
        stopping: CancellationToken,
    ) {
        if self.0.get().is_some() {
            return;
        }
        drop(tokio::task::spawn_blocking(move || match self.find_out(&encoder, &catalog, &stopping) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Cancelled => {}
            Err(error) => {
                tracing::warn!(%error, "the embedding model could not be measured: nobody says that nothing was found")
            }
        }));
    }

    fn find_out(&self, encoder: &SentenceEncoder, catalog: &Weak<Catalog>, stopping: &CancellationToken) -> Result<()> {
        let embed = |question: &str| {
            if stopping.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the service stops"));
            }
            // Nobody asked for it: it leaves processors to whoever comes.
            background::run_on_one(|| encoder.encode_query(question))
        };
        let unrelated = Unrelated::measure(&embed)?;
        let record = Record { questions: Unrelated::questions(), unrelated };
        let row = serde_json::to_value(&record)
            .map_err(|error| Error::new(ErrorKind::Internal, "what was measured cannot be kept").with_source(error))?;
        // Whoever measures does not keep the store open.
        if let Some(catalog) = catalog.upgrade() {
            catalog.note_unrelated(encoder.identity(), &row)?;
        }
        match &record.unrelated {
            Some(unrelated) => tracing::info!(
                mean = unrelated.mean,
                deviation = unrelated.deviation,
                "the embedding model was measured"
            ),
            None => tracing::info!(
                "the embedding model gives all texts the same similarity: nobody can tell that nothing was found"
            ),
        }
        let _ = self.0.set(record.unrelated.map(Arc::new));
        Ok(())
    }
}
