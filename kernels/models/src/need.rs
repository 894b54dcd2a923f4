//! What a model takes of disk and memory: of one that is here from its files, of one that is not from the hub's list, its `config.json`
//! and the heads of its weights, by range requests.

use std::io::Write;
use std::path::Path;

use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::WeightFormat;
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::gguf::Gguf;
use ragstone_kernels::model::{LoadOptions, kv_layout, weight_format, weights_in_memory};
use ragstone_kernels::weights::{HEAD_BYTES, MOST_HEAD_BYTES, TensorShape, head_length, main_dtype, shapes_of_head};
use serde::Serialize;
use serde_json::Value;

use super::kind::{Kind, describe};
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Plan;
use crate::machine;

/// The ways to keep weights that are compared.
const FORMATS: [WeightFormat; 4] = [WeightFormat::Stored, WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4];
/// What is read of a GGUF file at first, and at most: vocabularies of 250,000 tokens take some 10 MB.
const GGUF_HEAD_BYTES: u64 = 2 << 20;
const MOST_GGUF_HEAD_BYTES: u64 = 128 << 20;
/// Of a `config.json`, which becomes values of many times its size; the longest ones name some ten thousand classes.
const MOST_CONFIG_BYTES: usize = 4 << 20;
/// What the configuration may read of the tensors that the file begins with: factors of rotary frequencies.
const GGUF_FACTOR_BYTES: u64 = 4096;

/// What is known of a model before it is loaded.
pub struct Facts {
    kind: Kind,
    architecture: Option<String>,
    tensors: Vec<TensorShape>,
    /// Of a language model that this version runs.
    config: Option<ModelConfig>,
    /// Why this version does not run it.
    problem: Option<String>,
}

/// What a model takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Need {
    pub kind: Kind,
    pub architecture: Option<String>,
    /// Why this version does not run it; null: it does.
    pub problem: Option<String>,
    /// The longest context in tokens; null where it is no language model.
    pub context: Option<usize>,
    /// Number of weights.
    pub parameters: u64,
    /// The element type of most of them.
    pub dtype: String,
    /// By the way in which they are kept.
    pub weights: Vec<Memory>,
    /// Of a language model.
    pub kv: Option<Kv>,
    /// Bytes of memory that are available now; null where the system does not tell.
    pub available_bytes: Option<u64>,
}

/// What weights take in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// As `--weights` names it.
    pub format: &'static str,
    pub bytes: u64,
    /// With the KV pool of `device_bytes`; null where the system does not tell what it has.
    pub fits: Option<bool>,
    /// Whether the settings, or without one the model, choose it.
    pub chosen: bool,
}

/// What keys and values take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kv {
    pub dtype: &'static str,
    pub bytes_per_token: usize,
    /// Bytes of the pool of running sequences, `device_bytes`.
    pub pool_bytes: u64,
}

impl Facts {
    /// Of a folder or a GGUF file.
    ///
    /// # Errors
    /// `Incompatible` for files that are damaged, or missing.
    pub fn of_path(path: &Path) -> Result<Self> {
        if Gguf::is_one(path) {
            return Ok(Self::of_gguf(&Gguf::open(path)?));
        }
        let tensors = ModelFiles::open(path)?.shapes()?;
        let file = path.join("config.json");
        let text = std::fs::read(&file).map_err(|error| Error::io("cannot read", &file, error))?;
        Self::of_folder(&text, tensors, |name| path.join(name).is_file())
    }

    /// Of what is on the hub; nothing is kept.
    ///
    /// # Errors
    /// As requests to the hub; for heads of files that cannot be read.
    pub async fn of_plan(plan: &Plan) -> Result<Self> {
        if let Some(name) = plan.gguf() {
            return Self::of_remote_gguf(plan, name).await;
        }
        let config = plan.read("config.json").await?;
        let (mut tensors, mut bytes) = (Vec::new(), 0);
        for file in plan.weights() {
            let named = |error: Error| Error::new(error.kind(), format!("{} of {}: {error}", file.name, plan.id));
            let first = plan.read_part(&file.name, 0, HEAD_BYTES).await?;
            let length = head_length(&first).map_err(named)?;
            // All of them are in memory together; those of the largest models have a tenth of this.
            bytes += length;
            if bytes > MOST_HEAD_BYTES {
                let message = format!(
                    "the heads of the weights of {} have more than {MOST_HEAD_BYTES} bytes together; take another model",
                    plan.id
                );
                return Err(Error::new(ErrorKind::Incompatible, message));
            }
            let head = plan.read_part(&file.name, HEAD_BYTES, length).await?;
            tensors.extend(shapes_of_head(&head).map_err(named)?);
        }
        Self::of_folder(&config, tensors, |name| plan.has(name))
    }

    fn of_folder(config: &[u8], tensors: Vec<TensorShape>, has: impl Fn(&str) -> bool) -> Result<Self> {
        if config.len() > MOST_CONFIG_BYTES {
            let message = format!(
                "config.json has {} bytes, and {MOST_CONFIG_BYTES} are the most that are read; take another model",
                config.len()
            );
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        let value: Value = serde_json::from_slice(config).map_err(|error| {
            Error::new(ErrorKind::Incompatible, format!("config.json is no JSON ({error}); fetch it again"))
        })?;
        let described = describe(&value, has);
        let read = match described.kind {
            Kind::LanguageModel => Some(ModelConfig::from_json(&String::from_utf8_lossy(config))),
            Kind::Embedder | Kind::Reranker | Kind::Other => None,
        };
        let (config, problem) = match read {
            Some(Ok(config)) => (Some(config), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None if described.kind == Kind::Other => {
                (None, Some("it is no language model, embedder or reranker".to_owned()))
            }
            None => (None, None),
        };
        Ok(Self { kind: described.kind, architecture: described.architecture, tensors, config, problem })
    }

    fn of_gguf(file: &Gguf) -> Self {
        let (config, problem) = match file.config() {
            Ok(config) => (Some(config), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let architecture = config.as_ref().map(|config| config.architecture.class_name().to_owned());
        Self { kind: Kind::LanguageModel, architecture, tensors: file.shapes(), config, problem }
    }

    /// The head of the file in a file of the whole length that takes no more room than the head: what reads whole files reads it, too.
    async fn of_remote_gguf(plan: &Plan, name: &str) -> Result<Self> {
        let whole = plan.weights().find_map(|file| file.bytes());
        let whole = whole
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("the hub does not say how long {name} is")))?;
        let mut bytes = GGUF_HEAD_BYTES.min(whole);
        loop {
            let head = plan.read_part(name, 0, bytes).await?;
            let opened = tokio::task::spawn_blocking(move || sparse(&head, whole)).await;
            let file = opened.map_err(|error| Error::internal(error.to_string()))??;
            let opened = Gguf::open(file.path());
            let is_all = bytes >= whole.min(MOST_GGUF_HEAD_BYTES);
            match opened {
                Ok(gguf) if is_all || gguf.head_bytes() + GGUF_FACTOR_BYTES <= bytes => {
                    return Ok(Self::of_gguf(&gguf).named(file.path(), name));
                }
                Err(error) if is_all => {
                    let message = error.to_string().replace(&*file.path().display().to_string(), name);
                    return Err(Error::new(ErrorKind::Incompatible, message));
                }
                Ok(_) | Err(_) => bytes = (4 * bytes).min(whole).min(MOST_GGUF_HEAD_BYTES),
            }
        }
    }

    /// With the file's own name in the problem.
    fn named(mut self, path: &Path, name: &str) -> Self {
        self.problem = self.problem.map(|problem| problem.replace(&*path.display().to_string(), name));
        self
    }

    /// Why this version does not run it.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// What it takes on this machine, loaded so, beside a pool of so many bytes of KV.
    pub fn need(&self, options: &LoadOptions, pool: u64) -> Need {
        let available = machine::available_memory();
        let memory = |format: &'static str, bytes: u64, pool: u64, chosen| {
            let fits = available.map(|available| bytes.saturating_add(pool) <= available);
            Memory { format, bytes, fits, chosen }
        };
        let (weights, kv) = match &self.config {
            Some(config) => {
                let chosen = weight_format(config, options);
                let of = |format: WeightFormat| {
                    let options = LoadOptions { weights: Some(format), ..*options };
                    memory(format.name(), weights_in_memory(config, &self.tensors, &options), pool, format == chosen)
                };
                let layout = kv_layout(config, options);
                let kv = Kv { dtype: layout.dtype.name(), bytes_per_token: layout.token_bytes(), pool_bytes: pool };
                (FORMATS.map(of).to_vec(), Some(kv))
            }
            // What only reads is computed in f32; bf16 tables stay what they are.
            None => {
                let bytes = self
                    .tensors
                    .iter()
                    .map(|tensor| tensor.elements().saturating_mul(if tensor.is_bf16() { 2 } else { 4 }));
                (vec![memory("stored", bytes.fold(0, u64::saturating_add), 0, true)], None)
            }
        };
        Need {
            kind: self.kind,
            architecture: self.architecture.clone(),
            problem: self.problem.clone(),
            context: self.config.as_ref().map(|config| config.max_positions),
            parameters: self.tensors.iter().map(TensorShape::elements).fold(0, u64::saturating_add),
            dtype: main_dtype(&self.tensors),
            weights,
            kv,
            available_bytes: available,
        }
    }
}

/// A file of `whole` bytes that begins with `head`; the rest are zeros that take no room.
fn sparse(head: &[u8], whole: u64) -> Result<tempfile::NamedTempFile> {
    let failed = |error: std::io::Error| Error::io("cannot write to", &std::env::temp_dir(), error);
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().map_err(failed)?;
    file.write_all(head).map_err(failed)?;
    file.as_file().set_len(whole).map_err(failed)?;
    Ok(file)
}
