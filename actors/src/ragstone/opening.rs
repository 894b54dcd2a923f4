//! The data folder and the corpus, as the settings say.

use std::path::Path;
use std::sync::Arc;

use ragstone_corpus::{Corpus, CorpusOptions, Earlier};
use ragstone_env::Env;
use ragstone_env::durable::create_folder;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::Costs;
use ragstone_storage::entry::EntryShape;
use ragstone_storage::store::{StoreOptions, TierOptions};
use ragstone_storage::tier::SharedTier;
use ragstone_storage::tier::object::ObjectTier;

use crate::admission::blocking::beside;
use crate::error::{Error, ErrorKind, Result};
use crate::models::encoder::ModelEncoder;
use crate::models::folders::{Folders, Progress};
use crate::ragstone::loaded_model::LoadedModel;
use crate::settings::Settings;
use crate::upkeep::nodes::Joined;

pub(super) fn create(data: &Path) -> Result<()> {
    create_folder(data).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("{}: cannot create the folder: {error}", data.display()))
    })
}

/// The language model and the embedding model, read at the same time. BLOCKS.
pub(super) fn models(
    settings: &Settings,
    folders: &Folders,
    catalog: &Catalog,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<(LoadedModel, Arc<SentenceEncoder>)> {
    let (encoder, loaded) = beside(
        || settings.load_embedder(&folders.embedder),
        || LoadedModel::load(settings, folders, catalog, progress),
    );
    Ok((loaded?, Arc::new(encoder?)))
}

/// The store of a model's KV.
pub(super) fn store_options(
    settings: &Settings,
    loaded: &LoadedModel,
    object: Option<Arc<ObjectTier>>,
    costs: Costs,
) -> StoreOptions {
    StoreOptions {
        host: TierOptions { capacity_bytes: settings.host_bytes, policy: settings.host_policy },
        disk: TierOptions { capacity_bytes: settings.disk_bytes, policy: settings.disk_policy },
        object: object.map(|tier| tier as Arc<dyn SharedTier>),
        shape: EntryShape::of(&loaded.model.kv_layout()),
        admission: settings.kv_admission,
        costs,
    }
}

/// The corpus of the data folder, or the one that nodes share.
pub(super) async fn corpus(
    joined: Option<&Joined>,
    data: &Path,
    passages: ModelEncoder,
    earlier: Earlier<'_>,
    options: CorpusOptions,
) -> Result<Corpus> {
    let passages = Arc::new(passages);
    match joined {
        Some(joined) => Corpus::open_shared(joined.bucket.clone(), passages, earlier, options).await,
        None => Corpus::open_with(&data.join("corpus"), passages, earlier, options).await,
    }
}

pub(super) fn corpus_options(settings: &Settings, env: &Env) -> CorpusOptions {
    CorpusOptions {
        chunk_tokens: settings.chunk_tokens,
        chunk_overlap_tokens: settings.chunk_overlap_tokens,
        vector_index_rows: settings.vector_index_rows,
        index_cache_bytes: settings.index_cache_bytes,
        env: env.clone(),
    }
}
