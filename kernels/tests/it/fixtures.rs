//! The tiny models under `tests/fixtures/models`, and what transformers computes for them. `ops/fixtures` has the
//! scripts that made them.

use std::fs;
use std::path::{Path, PathBuf};

use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::model::{LoadOptions, Model};
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

/// The folder of one tiny model.
pub fn folder(name: &str) -> PathBuf {
    // The tests of a backend in a folder below use them, too.
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.ends_with("kernels"));
    kernels.expect("the crate's folder").join("tests/fixtures/models").join(name)
}

/// The names of all tiny models.
pub fn names() -> Vec<String> {
    let folders = fs::read_dir(folder("")).unwrap();
    let mut names: Vec<String> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One tiny model with K and V kept as they are computed.
pub fn model(name: &str) -> Model {
    model_in(&folder(name))
}

/// A model folder with K and V kept as they are computed.
pub fn model_in(folder: &Path) -> Model {
    let options = LoadOptions { kv_dtype: Some(KvDtype::F32), compute: Some(ComputeDtype::F32), ..Default::default() };
    Model::load(folder, options).unwrap()
}

/// One tiny model with its weights, products, keys and values in `weights` and bf16.
pub fn rounded(name: &str, weights: WeightFormat) -> Model {
    let options = LoadOptions {
        kv_dtype: Some(KvDtype::Bf16),
        weights: Some(weights),
        compute: Some(ComputeDtype::Bf16),
        ..Default::default()
    };
    Model::load(&folder(name), options).unwrap()
}

/// A copy of one tiny model to damage.
pub fn copy(name: &str) -> TempDir {
    let target = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, target.path().join(path.file_name().unwrap())).unwrap();
    }
    target
}

/// Replaces a part of `config.json`, which must be there.
pub fn edit_config(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    fs::write(&path, text.replace(from, to)).unwrap();
}

/// What transformers computes for a prompt.
pub struct Expected {
    pub tokens: Vec<u32>,
    /// `[tokens, vocab]`, at positions from 0.
    pub logits: Vec<f32>,
    /// `[tokens, vocab]`, the same computed in bf16.
    pub logits_bf16: Vec<f32>,
    /// Positions with a gap, and the logits `[tokens, vocab]` at those.
    pub gap: Option<(Vec<u32>, Vec<f32>)>,
}

impl Expected {
    /// Of one tiny model.
    pub fn of(name: &str) -> Self {
        let bytes = fs::read(folder(name).join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let gap = tensors.tensor("positions").is_ok();
        Self {
            tokens: integers(&tensors, "tokens"),
            logits: floats(&tensors, "logits"),
            logits_bf16: floats(&tensors, "logits_bf16"),
            gap: gap.then(|| (integers(&tensors, "positions"), floats(&tensors, "gap_logits"))),
        }
    }
}

fn words(tensors: &SafeTensors<'_>, name: &str, dtype: Dtype) -> Vec<[u8; 4]> {
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), dtype, "{name}");
    tensor.data().as_chunks().0.to_vec()
}

/// Integers of a fixture.
pub fn integers(tensors: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    words(tensors, name, Dtype::U32).into_iter().map(u32::from_le_bytes).collect()
}

/// Floats of a fixture.
pub fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    words(tensors, name, Dtype::F32).into_iter().map(f32::from_le_bytes).collect()
}
