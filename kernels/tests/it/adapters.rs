//! Adapters change logits as PEFT has it, and as weights that they were merged into do; what does not fit is refused in a sentence.

use std::fs;
use std::path::{Path, PathBuf};

use ragstone_kernels::adapter::Adapter;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::error::ErrorKind;
use ragstone_kernels::model::{LoadOptions, Model};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::fixtures::{copy, floats, folder, integers};
use crate::forward::{Sequence, counted};

const TOLERANCE: f32 = 1e-4;
const NAMES: [&str; 7] = ["all", "bf16", "factors", "norms", "one_layer", "plain", "some"];

fn adapter_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapters").join(name)
}

fn base_of(name: &str) -> String {
    fs::read_to_string(adapter_folder(name).join("base")).unwrap().trim().to_owned()
}

fn options(adapter: Option<&Adapter>) -> LoadOptions<'_> {
    let (kv_dtype, compute) = (Some(KvDtype::F32), Some(ComputeDtype::F32));
    LoadOptions { kv_dtype, compute, adapter, ..LoadOptions::default() }
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    Sequence::new(model, tokens.len()).append(tokens, &counted(tokens.len())).into_vec()
}

fn difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    differences.map(|d| if d.is_nan() { f32::INFINITY } else { d }).fold(0.0, f32::max)
}

struct Expected {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    logits_base: Vec<f32>,
}

impl Expected {
    fn of(name: &str) -> Self {
        let bytes = fs::read(adapter_folder(name).join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        Self {
            tokens: integers(&tensors, "tokens"),
            logits: floats(&tensors, "logits"),
            logits_base: floats(&tensors, "logits_base"),
        }
    }
}

#[test]
fn logits_are_those_of_peft() {
    for name in NAMES {
        let (expected, adapter) = (Expected::of(name), Adapter::open(&adapter_folder(name)).unwrap());
        let model = Model::load(&folder(&base_of(name)), options(Some(&adapter))).unwrap();
        let found = logits(&model, &expected.tokens);
        assert!(difference(&expected.logits, &expected.logits_base) > 1.0, "{name}: the adapter must matter");
        assert!(difference(&found, &expected.logits) < TOLERANCE, "{name}: {}", difference(&found, &expected.logits));
        let without = Model::load(&folder(&base_of(name)), options(None)).unwrap();
        assert!(model.size_in_bytes() > without.size_in_bytes(), "{name}");
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_its_batch() {
    let ways = [
        (WeightFormat::Stored, ComputeDtype::F32),
        (WeightFormat::Bf16, ComputeDtype::Bf16),
        (WeightFormat::Q8, ComputeDtype::Bf16),
        (WeightFormat::Q4, ComputeDtype::F32),
    ];
    for name in NAMES {
        let (expected, adapter) = (Expected::of(name), Adapter::open(&adapter_folder(name)).unwrap());
        for (weights, compute) in ways {
            let options = LoadOptions { weights: Some(weights), compute: Some(compute), ..options(Some(&adapter)) };
            let model = Model::load(&folder(&base_of(name)), options).unwrap();
            let whole = logits(&model, &expected.tokens);
            let mut sequence = Sequence::new(&model, expected.tokens.len());
            let positions = counted(expected.tokens.len());
            let parts = [0..1, 1..8, 8..9, 9..expected.tokens.len()];
            let pieces: Vec<f32> = parts
                .into_iter()
                .flat_map(|rows| sequence.append(&expected.tokens[rows.clone()], &positions[rows]).into_vec())
                .collect();
            assert!(pieces == whole, "{name} with weights {weights:?}");
        }
    }
}

/// The slow reference: `W + scale * B A`, in f64, as a model of its own.
#[test]
fn logits_are_those_of_merged_weights() {
    for (name, scale) in [("all", 1.5), ("factors", 2.0), ("norms", 2.0)] {
        let (expected, adapter) = (Expected::of(name), Adapter::open(&adapter_folder(name)).unwrap());
        let merged = merged(name, scale);
        let reference = logits(&Model::load(merged.path(), options(None)).unwrap(), &expected.tokens);
        let found = logits(&Model::load(&folder(&base_of(name)), options(Some(&adapter))).unwrap(), &expected.tokens);
        // Two ways that round, not one beside the exact one; logits go up to 30.
        let difference = difference(&found, &reference);
        assert!(difference < 3.0 * TOLERANCE, "{name}: {difference}");
    }
}

/// `scale` of rank 4; that of others follows.
fn merged(name: &str, scale: f64) -> TempDir {
    let target = copy(&base_of(name));
    let path = target.path().join("model.safetensors");
    let (base, low) =
        (fs::read(&path).unwrap(), fs::read(adapter_folder(name).join("adapter_model.safetensors")).unwrap());
    let (base, low) = (SafeTensors::deserialize(&base).unwrap(), SafeTensors::deserialize(&low).unwrap());
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = base
        .tensors()
        .into_iter()
        .map(|(tensor, view)| {
            let mut values = floats(&base, &tensor);
            let pair = tensor.strip_suffix(".weight").unwrap_or(&tensor);
            let factor = |factor: &str| format!("base_model.model.{pair}.lora_{factor}.weight");
            if let Ok(a) = low.tensor(&factor("A")) {
                let (rank, inputs) = (a.shape()[0], a.shape()[1]);
                let (a, b) = (floats(&low, &factor("A")), floats(&low, &factor("B")));
                for (at, value) in values.iter_mut().enumerate() {
                    let (output, input) = (at / inputs, at % inputs);
                    let products =
                        (0..rank).map(|r| f64::from(b[output * rank + r]) * f64::from(a[r * inputs + input]));
                    *value = (f64::from(*value) + scale * 4.0 / rank as f64 * products.sum::<f64>()) as f32;
                }
            }
            (tensor, view.shape().to_vec(), values.into_iter().flat_map(f32::to_le_bytes).collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    target
}

#[test]
fn what_does_not_fit_is_refused_in_a_sentence() {
    let refused = |adapter: &str, base: &str, kind: ErrorKind, words: &str| {
        let adapter = Adapter::open(&adapter_folder(adapter)).unwrap();
        let error = Model::load(&folder(base), options(Some(&adapter))).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(words), "{base}: {error}");
    };
    refused("all", "llama_mha", ErrorKind::InvalidModel, "take an adapter that was trained on this model");
    refused("all", "mixtral", ErrorKind::UnsupportedModel, "changes model.layers.0.mlp.down_proj");
    refused("all", "phi3_partial", ErrorKind::UnsupportedModel, "which is no matrix of this model");
    refused("plain", "llama_gqa_tied", ErrorKind::UnsupportedModel, "changes model.decoder.layers.0.fc1");
}

#[test]
fn folders_that_are_damaged_or_of_another_kind_are_refused_in_a_sentence() {
    let opened = |change: &dyn Fn(&Path)| {
        let target = tempfile::tempdir().unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(adapter_folder("all").join(file), target.path().join(file)).unwrap();
        }
        change(target.path());
        Adapter::open(target.path()).map(drop)
    };
    opened(&|_| ()).unwrap();
    let edited = |from: &'static str, to: &'static str| {
        opened(&|folder| {
            let path = folder.join("adapter_config.json");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{from} in {text}");
            fs::write(&path, text.replace(from, to)).unwrap();
        })
    };
    for (from, to, words) in [
        ("\"use_dora\": false", "\"use_dora\": true", "sets use_dora"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "of the kind IA3"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "trains biases"),
        ("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": 3}", "sets alpha_pattern"),
        ("\"alora_invocation_tokens\": null", "\"alora_invocation_tokens\": [1]", "sets alora_invocation_tokens"),
        ("\"layer_replication\": null", "\"layer_replication\": [[0, 2], [1, 2]]", "sets layer_replication"),
        ("\"r\": 4", "\"r\": 0", "no usable r"),
        ("\"r\": 4", "\"r\": -4", "save the adapter again"),
    ] {
        let error = edited(from, to).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // PEFT changes the weights that these were trained on whenever it loads them.
    for way in ["pissa", "pissa_niter_16", "OLoRA", "corda", "lora_ga", "loftq"] {
        let change = |folder: &Path| {
            let path = folder.join("adapter_config.json");
            let text = fs::read_to_string(&path).unwrap();
            let from = "\"init_lora_weights\": true";
            assert!(text.contains(from), "{text}");
            fs::write(&path, text.replace(from, &format!("\"init_lora_weights\": {way:?}"))).unwrap();
        };
        let error = opened(&change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnsupportedModel);
        assert!(error.to_string().contains(way) && error.to_string().contains("merge_and_unload"), "{error}");
    }
    for way in ["false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""] {
        let change = |folder: &Path| {
            let path = folder.join("adapter_config.json");
            let text = fs::read_to_string(&path).unwrap();
            let to = format!("\"init_lora_weights\": {way}");
            fs::write(&path, text.replace("\"init_lora_weights\": true", &to)).unwrap();
        };
        opened(&change).unwrap();
    }
    let missing =
        opened(&|folder| fs::remove_file(folder.join("adapter_config.json")).unwrap()).unwrap_err().to_string();
    assert!(missing.contains("as PEFT saves it"), "{missing}");
    let weights =
        |bytes: Vec<u8>| opened(&|folder| fs::write(folder.join("adapter_model.safetensors"), &bytes).unwrap());
    assert!(weights(vec![7; 40]).is_err());
    let tensors = |names: &[(&str, [usize; 2])]| {
        let zeros = vec![0; 1024];
        let views = names.iter().map(|(name, shape)| {
            (*name, TensorView::new(Dtype::F32, shape.to_vec(), &zeros[..4 * shape[0] * shape[1]]).unwrap())
        });
        weights(safetensors::serialize(views, None).unwrap()).unwrap_err().to_string()
    };
    for (names, words) in [
        (vec![], "holds no low-rank pair"),
        (vec![("base_model.model.x.lora_A.weight", [2, 4])], "one factor of x alone"),
        (vec![("base_model.model.x.lora_B.weight", [4, 2])], "one factor of x alone"),
        (vec![("base_model.model.x.lora_A.weight", [0, 4])], "only low-rank pairs"),
        (vec![("base_model.model.x.lora_embedding_A", [2, 4])], "only low-rank pairs"),
        (vec![("x.lora_A.weight", [2, 4])], "only low-rank pairs"),
    ] {
        let error = tensors(&names);
        assert!(error.contains(words), "{error}");
    }
}
