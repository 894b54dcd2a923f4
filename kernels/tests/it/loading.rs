//! What a damaged or foreign model folder is answered with.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::fixtures::{copy, edit_config, folder, names};
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::model::{LoadOptions, Model, kv_layout, weights_in_memory};

fn refusal(folder: &Path) -> (ErrorKind, String) {
    match Model::load(folder, LoadOptions::default()) {
        Ok(_) => panic!("the folder should be refused"),
        Err(error) => (error.kind(), error.to_string()),
    }
}

#[test]
fn an_unknown_architecture_is_unsupported() {
    let folder = copy("llama_mha");
    edit_config(folder.path(), "LlamaForCausalLM", "FalconForCausalLM");
    let (kind, text) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::UnsupportedModel);
    assert!(text.contains("FalconForCausalLM") && text.contains("Qwen2ForCausalLM"), "{text}");
}

#[test]
fn another_model_s_configuration_names_the_tensor() {
    let folder = copy("llama_mha");
    edit_config(folder.path(), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    let (kind, text) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(text.contains("model.layers.2.") && text.contains("missing"), "{text}");

    let folder = copy("llama_mha");
    edit_config(folder.path(), "\"intermediate_size\": 24", "\"intermediate_size\": 32");
    let (kind, text) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(text.contains("mlp") && text.contains("[24, 32]") && text.contains("[32, 32]"), "{text}");
}

#[test]
fn a_truncated_file_is_to_be_fetched_again() {
    let folder = copy("llama_mha");
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1000]).unwrap();
    let (kind, text) = refusal(folder.path());
    assert_eq!(kind, ErrorKind::InvalidModel);
    assert!(text.contains("truncated: fetch it again"), "{text}");
}

/// What a model will take is told from the heads of its files; what it takes once it is loaded is the truth.
#[test]
fn memory_is_known_before_the_weights_are() {
    let formats =
        [None, Some(WeightFormat::F32), Some(WeightFormat::Bf16), Some(WeightFormat::Q8), Some(WeightFormat::Q4)];
    let gguf = ["llama_bf16", "llama_f16", "llama_gqa_tied", "mixed", "qwen3"];
    let gguf = gguf.map(|name| folder("../gguf").join(format!("{name}.gguf")));
    let folders = names().into_iter().map(|name| (folder(&name), &formats[..]));
    for (path, formats) in folders.chain(gguf.map(|path| (path, &formats[..]))) {
        let files = ModelFiles::open(&path).unwrap();
        for weights in formats {
            for compute in [ComputeDtype::F32, ComputeDtype::Bf16] {
                let options = LoadOptions { weights: *weights, compute: Some(compute), ..Default::default() };
                let model = Model::from_files(&files, options).unwrap();
                let config = files.config().unwrap();
                let (told, is) =
                    (weights_in_memory(&config, &files.shapes().unwrap(), &options), model.size_in_bytes());
                // Layer norms' biases count, and of tensors that are split each part is padded to 64 outputs; tiny models have more of
                // both than real ones.
                let name = path.file_name().unwrap().to_string_lossy();
                let least = if name.starts_with("phi3") || name.starts_with("gpt2") { 0.6 } else { 0.75 };
                let off = told as f64 / is as f64;
                assert!((least..1.15).contains(&off), "{} {weights:?} {compute:?}: {told} for {is}", path.display());
                assert_eq!(kv_layout(&config, &options), model.kv_layout());
            }
        }
    }
}

#[test]
fn keys_and_values_follow_the_weights_or_the_wish() {
    let dtype = |name: &str, kv_dtype| {
        let options = LoadOptions { kv_dtype, ..Default::default() };
        Model::load(&folder(name), options).unwrap().kv_layout().dtype
    };
    assert_eq!(dtype("llama_mha", None), KvDtype::F32);
    assert_eq!(dtype("llama_f16", None), KvDtype::F16);
    assert_eq!(dtype("llama_bf16", None), KvDtype::Bf16);
    assert_eq!(dtype("llama_mha", Some(KvDtype::Bf16)), KvDtype::Bf16);
}

#[test]
fn loading_tells_how_far_it_is() {
    for name in names() {
        let seen = Mutex::new(Vec::new());
        let progress = |done, total| seen.lock().unwrap().push((done, total));
        Model::load(&folder(&name), LoadOptions { progress: Some(&progress), ..Default::default() }).unwrap();
        let seen = seen.into_inner().unwrap();
        let (done, total) = *seen.last().unwrap();
        assert!(seen.iter().all(|(done, all)| done <= all && *all == total), "{name}: {seen:?}");
        assert_eq!(done, total, "{name}");
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let model = crate::fixtures::model("llama_mha");
    assert_eq!(model.embed(&[3, 64], &[0, 1]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn random_weights_need_no_folder() {
    let config = ModelConfig::from_folder(&folder("qwen2")).unwrap();
    let model = Model::random(config.clone(), 5, LoadOptions::default());
    assert_eq!(*model.config(), config);
}
