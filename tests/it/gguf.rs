//! A GGUF file in the place of a model's folder, in every command that takes a model. The file is the embedded model, written anew.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Folder, WORLD};

pub const F32: u32 = 0;
pub const BF16: u32 = 30;
pub const Q8_0: u32 = 8;

/// Names of a layer's tensors, in the folder and in the file.
const LAYER_NAMES: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

fn list(key: &str, kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    let value = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat();
    pair(key, 9, &value)
}

/// 32 values a block with a power of two as their scale, which f16 can state.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let block = |block: &[f32]| {
        let most = block.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        let exponent = ((most / 127.0).log2().ceil() as i32).max(-14);
        let scale = ((exponent + 15) as u16) << 10;
        let rounded = block.iter().map(|value| (value / 2f32.powi(exponent)).round() as i8 as u8);
        scale.to_le_bytes().into_iter().chain(rounded).collect::<Vec<u8>>()
    };
    values.chunks_exact(32).flat_map(block).collect()
}

/// The name in the file, and the heads whose rows are reordered.
fn target(name: &str, config: &Value) -> (String, Option<usize>) {
    let heads = |key: &str| config[key].as_u64().map(|heads| heads as usize);
    match name {
        "model.embed_tokens.weight" => ("token_embd.weight".into(), None),
        "model.norm.weight" => ("output_norm.weight".into(), None),
        _ => {
            let (layer, part) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
            let part = part.strip_suffix(".weight").unwrap();
            let (_, ggml) = LAYER_NAMES.iter().find(|(hf, _)| *hf == part).unwrap();
            let reordered = match *ggml {
                "attn_q" => heads("num_attention_heads"),
                "attn_k" => heads("num_key_value_heads"),
                _ => None,
            };
            (format!("blk.{layer}.{ggml}.weight"), reordered)
        }
    }
}

/// Rotary pairs beside each other, as llama.cpp's converter writes them.
fn llama_order(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (columns, head) = (values.len() / rows, rows / heads);
    let row = |at: usize| {
        let (first, within) = (at / head * head, at % head);
        first + within / 2 + within % 2 * (head / 2)
    };
    (0..rows).flat_map(|at| &values[row(at) * columns..][..columns]).copied().collect()
}

/// The model of a folder as one file, its matrices as `kind`.
fn convert(model: &Path, to: &Path, kind: u32) {
    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(model.join(name)).unwrap()).unwrap() };
    let config = read("config.json");
    let bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let (mut places, mut written) = (Vec::new(), Vec::new());
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let numbers = |key: &str| -> Vec<usize> {
            tensor[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
        };
        let (shape, range) = (numbers("shape"), numbers("data_offsets"));
        assert_eq!(tensor["dtype"], "BF16");
        let pairs = data[range[0]..range[1]].as_chunks::<2>().0;
        let mut values: Vec<f32> =
            pairs.iter().map(|pair| f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16)).collect();
        let (name, heads) = target(name, &config);
        if let Some(heads) = heads {
            values = llama_order(&values, shape[0], heads);
        }
        let kind = if shape.len() == 1 { F32 } else { kind };
        places.extend([text(&name), (shape.len() as u32).to_le_bytes().to_vec()].concat());
        shape.iter().rev().for_each(|dim| places.extend((*dim as u64).to_le_bytes()));
        places.extend(kind.to_le_bytes());
        places.extend((written.len() as u64).to_le_bytes());
        match kind {
            F32 => values.iter().for_each(|value| written.extend(value.to_le_bytes())),
            BF16 => values.iter().for_each(|value| written.extend(((value.to_bits() >> 16) as u16).to_le_bytes())),
            _ => written.extend(q8_0(&values)),
        }
        written.resize(written.len().next_multiple_of(32), 0);
    }
    let tensors = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__").count() as u64;
    let pairs = metadata(&config, &read("tokenizer.json"));
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([tensors.to_le_bytes(), (pairs.len() as u64).to_le_bytes()].concat());
    file.extend([pairs.concat(), places].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(written);
    std::fs::write(to, file).unwrap();
}

fn metadata(config: &Value, tokenizer: &Value) -> Vec<Vec<u8>> {
    let integer = |key: &str, stated: &str| pair(key, 4, &(config[stated].as_u64().unwrap() as u32).to_le_bytes());
    let number = |key: &str, stated: &str| pair(key, 6, &(config[stated].as_f64().unwrap() as f32).to_le_bytes());
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![Vec::new(); vocabulary.len()];
    vocabulary.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize] = text(token));
    let kinds: Vec<Vec<u8>> =
        (0..tokens.len()).map(|id| if id < 3 { 3u32 } else { 1 }.to_le_bytes().to_vec()).collect();
    let merge = |merge: &Value| text(&format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    let merges: Vec<Vec<u8>> = tokenizer["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    vec![
        pair("general.architecture", 8, &text("llama")),
        integer("llama.context_length", "max_position_embeddings"),
        integer("llama.embedding_length", "hidden_size"),
        integer("llama.block_count", "num_hidden_layers"),
        integer("llama.feed_forward_length", "intermediate_size"),
        integer("llama.attention.head_count", "num_attention_heads"),
        integer("llama.attention.head_count_kv", "num_key_value_heads"),
        integer("llama.attention.key_length", "head_dim"),
        number("llama.attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        number("llama.rope.freq_base", "rope_theta"),
        pair("tokenizer.ggml.model", 8, &text("gpt2")),
        pair("tokenizer.ggml.pre", 8, &text("gpt-2")),
        list("tokenizer.ggml.tokens", 8, &tokens),
        list("tokenizer.ggml.token_type", 5, &kinds),
        list("tokenizer.ggml.merges", 8, &merges),
        integer("tokenizer.ggml.bos_token_id", "bos_token_id"),
        integer("tokenizer.ggml.eos_token_id", "eos_token_id"),
        pair("tokenizer.ggml.add_bos_token", 7, &[0]),
    ]
}

/// The embedded model as `NAME.gguf`.
pub fn file(folder: &Folder, name: &str, kind: u32) -> PathBuf {
    let printed = folder.json(&["fetch", "--json"]);
    let path = folder.path().join(format!("{name}.gguf"));
    convert(Path::new(printed["model"].as_str().unwrap()), &path, kind);
    path
}

/// The embedded model's folder, with GPT-2's own words.
fn plain_folder(folder: &Folder) -> PathBuf {
    let printed = folder.json(&["fetch", "--json"]);
    let (from, to) = (Path::new(printed["model"].as_str().unwrap()).to_owned(), folder.path().join("plain"));
    std::fs::create_dir(&to).unwrap();
    for file in std::fs::read_dir(&from).unwrap().map(|file| file.unwrap().path()) {
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    let path = to.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["pre_tokenizer"] = tokenizer["pre_tokenizer"]["pretokenizers"][1].take();
    tokenizer["model"]["ignore_merges"] = json!(false);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    to
}

fn ask(folder: &Folder, model: &[&str]) -> Value {
    let question = ["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "8", "--json"];
    folder.json(&[&question, model].concat())
}

#[tokio::test]
async fn a_file_answers_as_its_folder_does_and_never_from_another_file_s_kv() {
    let folder = Folder::new();
    for (title, text) in WORLD {
        folder.write(&format!("corpus/{title}.md"), format!("# {title}\n\n{text}\n"));
    }
    let corpus = folder.path().join("corpus");
    folder.run(&["ingest", corpus.to_str().unwrap(), "--collection", "world"]).succeeded();
    let answer = |report: &Value| report["answer"].as_str().unwrap().to_owned();
    let exact = |report: &Value| report["report"]["tokens"]["exact"].as_u64().unwrap();
    // A file cannot say that words end at line ends, as the embedded model's tokenizer does: the same folder without that.
    let plain = plain_folder(&folder);
    let of_folder = ask(&folder, &["--model", plain.to_str().unwrap()]);

    let files = [("whole", BF16), ("rounded", Q8_0)].map(|(name, kind)| file(&folder, name, kind));
    for file in &files {
        let model = ["--model", file.to_str().unwrap()];
        let first = ask(&folder, &model);
        if file == &files[0] {
            assert_eq!(answer(&first), answer(&of_folder), "the same weights, and the same tokens");
        }
        assert_eq!(exact(&first), 0, "nothing was computed by this file before: {first}");
        assert!(exact(&ask(&folder, &model)) > 0, "its own KV is found again");
    }

    let service = folder.serve(&["--model", files[1].to_str().unwrap()]).await;
    assert_eq!(service.get("/v1/models").await.1["data"][0]["id"], "rounded");
    let body = json!({"messages": [{"role": "user", "content": "What does Calbet Works make?"}], "max_tokens": 8,
                      "temperature": 0, "ragstone": {"collection": "world"}});
    let (status, served) = service.post("/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{served}");
    assert_eq!(service.stop(), 0);
}

/// A service that runs has the model that a command means if the contents are the same, whatever the paths; and what asks nothing of the
/// language model does not look at it.
#[tokio::test]
async fn a_running_service_is_known_by_its_models_content() {
    let folder = Folder::new();
    let [whole, rounded] = [("whole", BF16), ("rounded", Q8_0)].map(|(name, kind)| file(&folder, name, kind));
    let service = folder.serve(&["--model", whole.to_str().unwrap()]).await;
    service.add("world", WORLD).await;
    // Another name, and the name of the served one at another place with other content.
    let copy = folder.write("copies/copy.gguf", std::fs::read(&whole).unwrap());
    let namesake = folder.write("others/whole.gguf", std::fs::read(&rounded).unwrap());
    for model in [&whole, &copy] {
        ask(&folder, &["--model", model.to_str().unwrap()]);
    }
    for model in [&rounded, &namesake] {
        let model = ["--model", model.to_str().unwrap()];
        let question = ["ask", "What does Calbet Works make?", "--collection", "world"];
        folder.run(&[&question[..], &model].concat()).failed_with(&["has model `whole`", "leave --model out"]);
        folder.run(&[&["search", "lanterns", "--collection", "world"][..], &model].concat()).succeeded();
        folder.run(&[&["documents", "list", "--collection", "world"][..], &model].concat()).succeeded();
    }
    assert_eq!(service.stop(), 0);
}

#[test]
fn every_command_takes_a_file() {
    let folder = Folder::new();
    let path = file(&folder, "model", Q8_0);
    let path = path.to_str().unwrap();
    let schema = folder.write("a.xml", "<schema name=\"a\"><module name=\"b\">Boats lie here.</module></schema>");
    folder.run(&["pml", "check", schema.to_str().unwrap(), "--model", path]).succeeded();
    let measured = folder.json(&[
        "bench",
        "model",
        "--model",
        path,
        "--prefill",
        "32",
        "--context",
        "32",
        "--runs",
        "1",
        "--json",
    ]);
    assert_eq!(measured["weights"], "native");
    assert_eq!(folder.json(&["fetch", "--model", path, "--json"])["model"], path);
    let passage = json!({"title": "Calbet Works", "text": "Calbet Works makes candles."});
    let questions = json!([{"question": "What is made by Calbet Works?", "ctxs": [passage], "answers": ["candles"]}]);
    let questions = folder.write("questions.json", questions.to_string());
    let questions = questions.to_str().unwrap();
    let report = folder.json(&["eval", questions, "--model", path, "--mode", "full", "--json"]);
    assert_eq!(report["modes"].as_array().map(Vec::len), Some(1), "{report}");
}

#[test]
fn what_is_no_model_file_is_explained() {
    let folder = Folder::new();
    let ask = |model: &str| folder.run(&["bench", "model", "--model", model, "--prefill", "32", "--runs", "1"]);
    ask("llama3.2:1b").failed_with(&["llama3.2:1b", "Ollama", "GGUF file"]);
    ask("models/gone.gguf").failed_with(&["no file models/gone.gguf"]);
    let notes = folder.write("notes.txt", "a text");
    ask(notes.to_str().unwrap()).failed_with(&["notes.txt is no GGUF file"]);
    let whole = file(&folder, "whole", BF16);
    let bytes = std::fs::read(&whole).unwrap();
    let cut = folder.write("cut.gguf", &bytes[..bytes.len() / 2]);
    ask(cut.to_str().unwrap()).failed_with(&["cut.gguf", "truncated", "fetch it again"]);
}
