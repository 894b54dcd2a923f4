//! Low-rank adapters ("LoRA: Low-Rank Adaptation of Large Language Models", equation 3) as PEFT saves them: a folder with
//! `adapter_config.json` and `adapter_model.safetensors`. What an adapter adds to a matrix's outputs is `scale * B (A x)`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::folder;
use crate::weights::{Checkpoint, Tensor};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT writes before the model's own name of a matrix.
const PREFIX: &str = "base_model.model.";
/// What `init_lora_weights` begins with where PEFT changes the model's own weights before the training, and whenever it loads the adapter. What it
/// saves converted, so that the adapter fits the unchanged weights, it names otherwise.
const CHANGE_THE_MODEL: [&str; 5] = ["pissa", "olora", "corda", "lora_ga", "loftq"];
/// Greater ranks are no low-rank adapters.
const MOST_RANK: usize = 4096;

/// An opened adapter, of whatever model.
#[derive(Debug)]
pub struct Adapter {
    folder: PathBuf,
    config: Config,
    tensors: Checkpoint,
    /// By the model's name of the matrix (`model.layers.0.self_attn.q_proj`), the rank.
    ranks: BTreeMap<String, usize>,
}

/// What is read of `adapter_config.json`. Lists of modules are not: the tensors say which are there.
#[derive(Debug, Deserialize)]
struct Config {
    peft_type: String,
    r: u32,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    alora_invocation_tokens: Option<serde::de::IgnoredAny>,
    /// A flag, or the name of a way.
    #[serde(default)]
    init_lora_weights: Option<serde_json::Value>,
    #[serde(default)]
    layer_replication: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
}

/// The two factors of what is added to a matrix `[outputs, inputs]`.
pub(crate) struct Pair<'a> {
    pub(crate) rank: usize,
    /// `[rank, inputs]`
    pub(crate) a: Tensor<'a>,
    /// `[outputs, rank]`, times the adapter's scale.
    pub(crate) b: Vec<f32>,
}

impl Adapter {
    /// Opens the folder.
    ///
    /// # Errors
    /// `InvalidModel` for a damaged or incomplete folder, `UnsupportedModel` for a kind of adapter that this version does not compute with.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let text = folder::read_text(&path, folder::CONFIG_BYTES).map_err(|error| {
            let message = format!(
                "cannot read {}: {error}; an adapter is a folder with {CONFIG} and {WEIGHTS}, as PEFT saves it",
                path.display()
            );
            Error::invalid_model(message).with_source(error)
        })?;
        let config: Config = serde_json::from_str(&text).map_err(|error| {
            Error::invalid_model(format!("{}: {error}; save the adapter again", path.display())).with_source(error)
        })?;
        config.check(&path)?;
        let tensors = Checkpoint::of_file(folder.join(WEIGHTS))?;
        let mut adapter = Self { folder: folder.to_owned(), config, tensors, ranks: BTreeMap::new() };
        adapter.ranks = adapter.find_pairs()?;
        Ok(adapter)
    }

    /// Its files, in name order: what a fingerprint hashes.
    pub fn files(&self) -> Vec<PathBuf> {
        [CONFIG, WEIGHTS].map(|name| self.folder.join(name)).to_vec()
    }

    /// The factors for a matrix of the model, where the adapter changes it.
    pub(crate) fn pair(&self, name: &str, outputs: usize, inputs: usize) -> Result<Option<Pair<'_>>> {
        let Some(rank) = self.ranks.get(name).copied() else { return Ok(None) };
        let [a, b] = ["A", "B"].map(|factor| format!("{PREFIX}{name}.lora_{factor}.weight"));
        for (tensor, wanted) in [(&a, [rank, inputs]), (&b, [outputs, rank])] {
            let found = self.tensors.shape(tensor).unwrap_or_default();
            if found != wanted {
                return Err(Error::invalid_model(format!(
                    "{} does not fit the model: {tensor} has shape {found:?}, and {wanted:?} is asked for; take an adapter that was trained on \
                     this model",
                    self.folder.display()
                )));
            }
        }
        let scale = self.config.scale(rank);
        let b = self.tensors.tensor_f32(&b, &[outputs, rank])?.into_iter().map(|value| value * scale).collect();
        Ok(Some(Pair { rank, a: self.tensors.tensor(&a, &[rank, inputs])?, b }))
    }

    /// Refuses an adapter that changes something else than `taken`: its answers would be another model's.
    pub(crate) fn check_taken(&self, taken: &BTreeSet<String>) -> Result<()> {
        match self.ranks.keys().find(|name| !taken.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!(
                "{} changes {name}, which is no matrix of this model that adapters are computed for (the projections of attention and feed-forward \
                 parts); take another adapter, or merge it into the model with PEFT's merge_and_unload",
                self.folder.display()
            ))),
        }
    }

    /// The rank of each pair of tensors; nothing else may be there.
    fn find_pairs(&self) -> Result<BTreeMap<String, usize>> {
        let mut ranks = BTreeMap::new();
        let mut seconds = BTreeSet::new();
        let path = self.folder.join(WEIGHTS);
        for tensor in self.tensors.shapes() {
            let name = tensor.name.strip_prefix(PREFIX);
            let first = name.and_then(|name| name.strip_suffix(".lora_A.weight"));
            let second = name.and_then(|name| name.strip_suffix(".lora_B.weight"));
            match (first, second, tensor.shape.as_slice()) {
                (Some(name), _, [rank, _]) if (1..=MOST_RANK).contains(rank) => {
                    ranks.insert(name.to_owned(), *rank);
                }
                (_, Some(name), [_, _]) => {
                    seconds.insert(name.to_owned());
                }
                _ => {
                    return Err(Error::unsupported(format!(
                        "{} has a tensor {} {:?}, and only low-rank pairs of matrices are supported; merge the adapter into the model with PEFT's \
                         merge_and_unload",
                        path.display(),
                        tensor.name,
                        tensor.shape
                    )));
                }
            }
        }
        let alone = ranks
            .keys()
            .find(|name| !seconds.contains(*name))
            .or(seconds.iter().find(|name| !ranks.contains_key(*name)));
        match alone {
            Some(name) => Err(Error::invalid_model(format!(
                "{} has one factor of {name} alone; save the adapter again",
                path.display()
            ))),
            None if ranks.is_empty() => {
                Err(Error::invalid_model(format!("{} holds no low-rank pair; save the adapter again", path.display())))
            }
            None => Ok(ranks),
        }
    }
}

impl Config {
    fn check(&self, path: &Path) -> Result<()> {
        let wrong = if self.peft_type != "LORA" {
            Some(format!("is of the kind {}", self.peft_type))
        } else if self.use_dora {
            Some("sets use_dora".to_owned())
        } else if self.bias.as_deref().is_some_and(|bias| bias != "none") {
            Some("trains biases".to_owned())
        } else if self.alora_invocation_tokens.is_some() {
            Some("sets alora_invocation_tokens".to_owned())
        } else if let Some(way) = self.changes_the_model() {
            Some(format!("was trained on weights that init_lora_weights ({way:?}) had changed"))
        } else if self.layer_replication.is_some() {
            Some("sets layer_replication".to_owned())
        } else if !self.alpha_pattern.is_empty() {
            Some("sets alpha_pattern".to_owned())
        } else if !self.lora_alpha.is_finite() || self.r == 0 {
            return Err(Error::invalid_model(format!(
                "{} has no usable r and lora_alpha; save the adapter again",
                path.display()
            )));
        } else {
            None
        };
        match wrong {
            None => Ok(()),
            Some(wrong) => Err(Error::unsupported(format!(
                "the adapter of {} {wrong}, which is not supported; merge it into the model with PEFT's merge_and_unload",
                path.display()
            ))),
        }
    }

    /// The way in which the model's own weights were changed before the training, where they were.
    fn changes_the_model(&self) -> Option<&str> {
        let way = self.init_lora_weights.as_ref()?.as_str()?;
        let name = way.to_ascii_lowercase();
        CHANGE_THE_MODEL.iter().any(|begin| name.starts_with(*begin)).then_some(way)
    }

    /// What a product of this rank is multiplied by.
    fn scale(&self, rank: usize) -> f32 {
        let over = rank as f64;
        (self.lora_alpha / if self.use_rslora { over.sqrt() } else { over }) as f32
    }
}
