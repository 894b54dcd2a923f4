//! What a start is given, and how far it is.

use std::path::{Path, PathBuf};

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Folders {
    /// The data folder; created where it is missing.
    pub data: PathBuf,
    /// The language model's folder, or its GGUF file.
    pub model: PathBuf,
    /// The folder of the adapter that is added to it.
    pub adapter: Option<PathBuf>,
    /// The name that clients know the model by.
    pub model_id: String,
    /// The embedding model's folder.
    pub embedder: PathBuf,
    /// The cross-encoder's folder; `None`: the language model reranks.
    pub reranker: Option<PathBuf>,
}

impl Folders {
    /// Where a calibration may stand: what was found of a model without its adapter does not hold with it.
    pub(crate) fn calibrated(&self) -> &Path {
        self.adapter.as_ref().unwrap_or(&self.model)
    }
}

/// How far the start is.
#[derive(Debug, Clone, Copy)]
pub enum Progress {
    /// `done` of `total` bytes of `what`.
    Loading {
        /// In words, for a progress bar.
        what: &'static str,
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// This machine is measured, once for each model.
    Measuring {
        /// Measurements done.
        done: u64,
        /// Measurements in all.
        total: u64,
    },
}
