//! The language model on the device that was asked for.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ragstone_cuda::{CudaModel, GpuList, Trial, Use, prove};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::model::{Arithmetic, LoadOptions, Model};
use ragstone_kernels::numa;
use ragstone_kernels::pool::KvLayout;
use ragstone_kernels::simd;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Where the language model computes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// On the processor.
    #[default]
    Cpu,
    /// On the first GPU, if there is one that runs the model; else on the processor.
    Auto,
    /// On the GPU of that number, counted from 0, or shared by several.
    Cuda(GpuList),
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda(0.into())),
            _ => {
                let gpus = text.strip_prefix("cuda:").map(str::parse::<GpuList>).transpose();
                let advice = "take cpu, auto, cuda, cuda:1, or cuda:0,1 for one model on two GPUs";
                match gpus {
                    Ok(Some(gpus)) => Ok(Self::Cuda(gpus)),
                    Ok(None) => Err(Error::invalid_input(format!("\"{text}\" is not a device; {advice}"))),
                    Err(error) => Err(Error::invalid_input(format!("\"{text}\" is not a device: {error}; {advice}"))),
                }
            }
        }
    }
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => f.write_str("auto"),
            Self::Cuda(gpus) if gpus.only() == Some(0) => f.write_str("cuda"),
            Self::Cuda(gpus) => write!(f, "cuda:{gpus}"),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

/// Errors of a GPU that leave [`Device::Auto`] the processor.
const IS_FOR_THE_PROCESSOR: [ErrorKind; 3] = [ErrorKind::Unavailable, ErrorKind::Full, ErrorKind::UnsupportedModel];

/// Sees that a GPU's kernels compute what the processor does.
fn prove_gpu(ordinal: usize, proofs: &Path) -> Result<()> {
    let proof = prove(ordinal, Some(proofs))?;
    for (family, problem) in &proof.families {
        metrics::gauge!("ragstone_gpu_kernels", "for" => "all", "family" => family.name())
            .set(f64::from(u8::from(problem.is_none())));
    }
    for why in proof.problems() {
        tracing::error!(why, gpu = ordinal, "kernels differ on this GPU from the processor; it is not used");
    }
    if !proof.is_remembered {
        tracing::info!(gpu = ordinal, seconds = proof.seconds, "this GPU's kernels were held against the processor");
    }
    proof.check()
}

/// Which kernels for one generation are used on a GPU of it.
fn tell(trial: &Trial) {
    for (family, of) in trial.families().into_iter().filter(|(_, of)| **of != Use::None) {
        let is_used = f64::from(u8::from(*of == Use::Used));
        metrics::gauge!("ragstone_gpu_kernels", "for" => "generation", "family" => family).set(is_used);
    }
    for why in trial.problems() {
        tracing::warn!(why, "kernels of this GPU's own are not used; slower ones are, with the same results");
    }
}

/// The model, by the device it is on.
#[derive(Clone)]
pub(crate) enum LanguageModel {
    Cpu(Arc<Model>),
    Cuda(Arc<CudaModel>),
}

impl LanguageModel {
    /// Reads the weights, to where `device` says. A GPU's kernels are proven first, once: `proofs` is the folder that says so. BLOCKS.
    ///
    /// # Errors
    /// As [`Model::load`] and [`CudaModel::load`].
    pub fn load(
        files: &ModelFiles,
        path: &Path,
        device: &Device,
        proofs: &Path,
        options: LoadOptions<'_>,
    ) -> Result<Self> {
        let on_cpu = || Model::from_files(files, options).map(|model| Self::Cpu(Arc::new(model)));
        let on_gpu = |gpus: GpuList| {
            gpus.as_slice().iter().try_for_each(|gpu| prove_gpu(*gpu, proofs))?;
            let model = CudaModel::load(path, gpus, options)?;
            tracing::info!(gpu = model.gpu(), "the model is on a GPU");
            for trial in &model.trials() {
                tell(trial);
            }
            Ok(Self::Cuda(Arc::new(model)))
        };
        match device {
            Device::Cpu => on_cpu(),
            Device::Cuda(gpus) => on_gpu(gpus.clone()),
            Device::Auto => match on_gpu(0.into()) {
                // No GPU, one that is too old or too small, or a kind of model.
                Err(error) if IS_FOR_THE_PROCESSOR.contains(&error.kind()) => {
                    tracing::info!(reason = %error, "the model is on the processor");
                    on_cpu()
                }
                loaded => loaded,
            },
        }
    }

    /// The model's shapes and rules.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Cpu(model) => model.config(),
            Self::Cuda(model) => model.config(),
        }
    }

    /// The shape of its keys and values.
    pub fn kv_layout(&self) -> KvLayout {
        match self {
            Self::Cpu(model) => model.kv_layout(),
            Self::Cuda(model) => model.kv_layout(),
        }
    }

    /// How its products are made.
    pub fn arithmetic(&self) -> Arithmetic {
        match self {
            Self::Cpu(model) => model.arithmetic(),
            Self::Cuda(model) => model.arithmetic(),
        }
    }

    /// What its numbers depend on beside its weights: a GPU sums in another order than a processor, so that neither takes the other's KV.
    pub fn identity(&self) -> String {
        match self {
            Self::Cpu(model) => model.arithmetic().to_string(),
            Self::Cuda(model) => format!("{}, on CUDA", model.arithmetic()),
        }
    }

    /// What its times depend on: the processor's kernels, as many threads, and nodes that these are divided among; or the GPU.
    pub fn machine(&self) -> String {
        match self {
            Self::Cpu(_) => {
                let nodes = numa::global().map(|team| format!(".{}nodes", team.threads().len())).unwrap_or_default();
                format!("{}.{}{nodes}", simd::Paths::in_use(), rayon::current_num_threads())
            }
            Self::Cuda(model) => model.gpu(),
        }
    }

    /// Bytes of a KV block in the memory of a device: of the one that has most, where several share the model.
    pub fn block_bytes_of_a_device(&self) -> usize {
        match self {
            Self::Cpu(model) => model.kv_layout().block_bytes(),
            Self::Cuda(model) => model.block_bytes_of_a_gpu(),
        }
    }

    /// What is free in the memory of a GPU: of the one that has least, where several share the model. Nothing on the processor.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes_of_a_device(&self) -> Result<Option<u64>> {
        match self {
            Self::Cpu(_) => Ok(None),
            Self::Cuda(model) => model.free_bytes_of_a_gpu().map(Some),
        }
    }

    /// Bytes of the weights in the memory of its device, or of its devices together.
    pub fn size_in_bytes(&self) -> usize {
        match self {
            Self::Cpu(model) => model.size_in_bytes(),
            Self::Cuda(model) => model.size_in_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        let gpus = |ordinals: &[usize]| Device::Cuda(GpuList::new(ordinals.to_vec()).unwrap());
        for (text, device) in [
            ("cpu", Device::Cpu),
            ("auto", Device::Auto),
            ("cuda", gpus(&[0])),
            ("cuda:2", gpus(&[2])),
            ("cuda:0,1", gpus(&[0, 1])),
            ("cuda:3,0,1", gpus(&[3, 0, 1])),
        ] {
            assert_eq!((text.parse::<Device>().unwrap(), device.to_string().as_str()), (device, text));
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "CPU", "cuda:0,", "cuda:1,1"] {
            let error = text.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains("take cpu, auto, cuda, cuda:1"), "{error}");
        }
    }
}
