//! The language model's files: weights, tokenizer, chat template, and the fingerprint of them all.

use std::sync::Arc;

use ragstone_env::Env;
use ragstone_kernels::adapter::Adapter;
use ragstone_kernels::chat::ChatTemplate;
use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::generation::GenerationDefaults;
use ragstone_kernels::model::LoadOptions;
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::Costs;
use ragstone_storage::fingerprint::{ModelIdentity, Weights, fingerprint, weights_digest as of_files};
use ragstone_storage::key::Fingerprint;

use crate::admission::blocking::beside;
use crate::error::Result;
use crate::models::costs;
use crate::models::folders::{Folders, Progress};
use crate::models::language_model::LanguageModel;
use crate::settings::Settings;

/// What was read from the model's folder or GGUF file.
pub(crate) struct LoadedModel {
    pub model: LanguageModel,
    pub tokenizer: Arc<Tokenizer>,
    pub tokenizer_digest: String,
    pub chat: Option<ChatTemplate>,
    pub generation: GenerationDefaults,
    pub fingerprint: Fingerprint,
    /// Of the content of its weights' files.
    pub files_digest: String,
    /// Of its weights and its adapter alone, and of how they are kept where products round activations to 8 bits.
    pub weights_digest: String,
}

/// What turns texts into tokens, and messages into texts.
struct Words {
    tokenizer: Tokenizer,
    tokenizer_json: Vec<u8>,
    tokenizer_digest: String,
    chat: Option<ChatTemplate>,
}

impl Words {
    fn read(files: &ModelFiles) -> Result<Self> {
        let (tokenizer, tokenizer_json) = files.tokenizer_and_json()?;
        let tokenizer_digest = blake3::hash(&tokenizer_json).to_hex().to_string();
        Ok(Self { tokenizer, tokenizer_json, tokenizer_digest, chat: files.chat_template()? })
    }
}

impl LoadedModel {
    /// Reads the files. BLOCKS, for about a second a gigabyte where the weights' digests are not in the catalog.
    pub fn load(
        settings: &Settings,
        folders: &Folders,
        catalog: &Catalog,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Self> {
        let files = ModelFiles::open(&folders.model)?;
        let loading = |done, total| progress(Progress::Loading { what: "loading the model", done, total });
        let adapter = folders.adapter.as_deref().map(Adapter::open).transpose()?;
        let options = LoadOptions {
            kv_dtype: settings.kv_dtype,
            weights: settings.weights,
            compute: settings.compute,
            adapter: adapter.as_ref(),
            progress: Some(&loading),
        };
        let proofs = folders.data.join("gpus");
        // A vocabulary takes as long to read as weights to pack.
        let (words, model) = beside(
            || Words::read(&files),
            || LanguageModel::load(&files, &folders.model, &settings.device, &proofs, options),
        );
        let (Words { tokenizer, tokenizer_json, tokenizer_digest, chat }, model) = (words?, model?);
        tokenizer.check_fits(model.config())?;
        let weights = files.weight_files()?;
        let adapter = adapter.map(|adapter| adapter.files()).unwrap_or_default();
        // A GGUF file's content says how its weights are quantized: a file of another type is another model.
        let identity = ModelIdentity {
            config: &files.config_json()?,
            tokenizer: &tokenizer_json,
            weights: Weights::Files(&weights),
            adapter: &adapter,
            arithmetic: &model.identity(),
            kv_dtype: model.kv_layout().dtype,
            positional: &model.config().positions.identity(),
        };
        let hashing = |done, total| progress(Progress::Loading { what: "checking the weights", done, total });
        let fingerprint = fingerprint(&identity, Some(catalog), Some(&hashing))?;
        let files_digest = of_files(&weights, Some(catalog))?;
        let mut weights_digest = files_digest.clone();
        if !adapter.is_empty() {
            weights_digest = format!("{weights_digest}.{}", of_files(&adapter, Some(catalog))?);
        }
        if let format @ (WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Native) = model.arithmetic().weights {
            weights_digest = format!("{weights_digest}.{}", format.identity());
        }
        Ok(Self {
            files_digest,
            weights_digest,
            model,
            tokenizer: Arc::new(tokenizer),
            tokenizer_digest,
            chat,
            generation: files.generation_defaults()?,
            fingerprint,
        })
    }

    /// Notes in the catalog that it is in use. Whoever looks for KV that another model has stored is told that it is there.
    ///
    /// # Errors
    /// As the catalog says.
    pub fn note(&self, catalog: &Catalog, name: &str, now_unix_ms: u64) -> Result<()> {
        if let Some(last) = catalog.models()?.first().filter(|last| last.fingerprint != self.fingerprint) {
            tracing::info!(
                before = last.name,
                now = name,
                "another model than last time: KV that was stored before stays, and serves the model that computed it alone"
            );
        }
        catalog.note_model(&self.fingerprint, name, now_unix_ms)
    }

    /// What its prefills cost on this machine, measured now if they never were. BLOCKS, for seconds then.
    pub fn costs(&self, catalog: &Catalog, env: &Env, progress: &dyn Fn(Progress)) -> Result<Costs> {
        let name = self.costs_name();
        match &self.model {
            LanguageModel::Cpu(model) => costs::open(&**model, &name, catalog, env, progress),
            LanguageModel::Cuda(model) => costs::open(&**model, &name, catalog, env, progress),
        }
    }

    /// The name that these are kept by.
    pub fn costs_name(&self) -> String {
        costs::name(&self.fingerprint, &self.model)
    }
}
