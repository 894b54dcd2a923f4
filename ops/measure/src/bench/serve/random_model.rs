//! A language model of random weights, and an embedding model beside it, as folders that a service loads like any others.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use ragstone_kernels::config::ModelConfig;
use serde_json::{Map, Value, json};

use crate::bench::Shape;
use crate::error::{Error, Result};

/// The smallest embedding model that can be loaded, but for its vocabulary.
const EMBEDDER: &str = r#"{"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 128, "hidden_act": "gelu", "max_position_embeddings": 256,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12}"#;

/// Values that are made up; longer tensors repeat them. A prime, so that no two rows of a matrix are the same.
const NOISE_VALUES: usize = (1 << 19) - 1;

/// The word of a token id. Words stand for one token each, so that a text has as many tokens as words.
pub fn word(id: u32) -> String {
    format!("w{id}")
}

/// Writes a language model into a new folder in `parent`. BLOCKS, for a second a gigabyte.
pub fn write_model(parent: &Path, shape: Shape, seed: u64) -> Result<PathBuf> {
    let folder = create(parent, "random-model")?;
    let config = shape.config()?;
    let vocabulary: Map<String, Value> = (0..config.vocab_size as u32).map(|id| (word(id), json!(id))).collect();
    write(&folder.join("config.json"), shape.json().as_bytes())?;
    write(&folder.join("tokenizer.json"), tokenizer(vocabulary, &word(0), Value::Null).to_string().as_bytes())?;
    write_tensors(&folder.join("model.safetensors"), &language_model(&config), seed)?;
    Ok(folder)
}

/// Writes an embedding model into a new folder in `parent`. It tells the first `words` words apart; any other is unknown to it.
pub fn write_embedder(parent: &Path, seed: u64, words: usize) -> Result<PathBuf> {
    let folder = create(parent, "random-embedder")?;
    let special = ["[UNK]", "[CLS]", "[SEP]"].map(str::to_owned).into_iter();
    let vocabulary: Map<String, Value> =
        special.chain((0..words as u32).map(word)).enumerate().map(|(id, token)| (token, json!(id))).collect();
    let size = vocabulary.len();
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let around = json!({
        "type": "TemplateProcessing",
        "single": [special("[CLS]"), text("A"), special("[SEP]")],
        "pair": [special("[CLS]"), text("A"), special("[SEP]"), text("B"), special("[SEP]")],
        "special_tokens": {
            "[CLS]": { "id": "[CLS]", "ids": [1], "tokens": ["[CLS]"] },
            "[SEP]": { "id": "[SEP]", "ids": [2], "tokens": ["[SEP]"] },
        },
    });
    let mut config: Value = serde_json::from_str(EMBEDDER).map_err(|error| Error::internal(error.to_string()))?;
    config["vocab_size"] = json!(size);
    write(&folder.join("config.json"), config.to_string().as_bytes())?;
    write(&folder.join("tokenizer.json"), tokenizer(vocabulary, "[UNK]", around).to_string().as_bytes())?;
    write_tensors(&folder.join("model.safetensors"), &embedding_model(size), seed)?;
    Ok(folder)
}

fn create(parent: &Path, name: &str) -> Result<PathBuf> {
    let folder = parent.join(name);
    std::fs::create_dir(&folder).map_err(|error| Error::io("cannot create", &folder, error))?;
    Ok(folder)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|error| Error::io("cannot write", path, error))
}

fn tokenizer(vocabulary: Map<String, Value>, unknown: &str, around: Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": around, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": unknown },
    })
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Values,
}

#[derive(Clone, Copy)]
enum Values {
    Ones,
    /// Noise of this standard deviation.
    Noise(f32),
}

impl Tensor {
    fn new(name: impl Into<String>, shape: &[usize], values: Values) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), values }
    }

    /// A matrix that leaves the size of its inputs as it is.
    fn matrix(name: impl Into<String>, outputs: usize, inputs: usize) -> Self {
        Self::new(name, &[outputs, inputs], Values::Noise(1.0 / (inputs as f32).sqrt()))
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of a Qwen2. Sizes are such that logits are a few units.
fn language_model(config: &ModelConfig) -> Vec<Tensor> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (query, kv) = (config.query_dim(), config.kv_dim());
    let bias = Values::Noise(0.1);
    let mut tensors = vec![
        Tensor::new("model.embed_tokens.weight", &[config.vocab_size, hidden], Values::Noise(1.0)),
        Tensor::new("model.norm.weight", &[hidden], Values::Noise(2.0 / (hidden as f32).sqrt())),
    ];
    if !config.tie_embeddings {
        tensors.push(Tensor::matrix("lm_head.weight", config.vocab_size, hidden));
    }
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        tensors.extend([
            Tensor::new(name("input_layernorm.weight"), &[hidden], Values::Ones),
            Tensor::matrix(name("self_attn.q_proj.weight"), query, hidden),
            Tensor::new(name("self_attn.q_proj.bias"), &[query], bias),
            Tensor::matrix(name("self_attn.k_proj.weight"), kv, hidden),
            Tensor::new(name("self_attn.k_proj.bias"), &[kv], bias),
            Tensor::matrix(name("self_attn.v_proj.weight"), kv, hidden),
            Tensor::new(name("self_attn.v_proj.bias"), &[kv], bias),
            Tensor::matrix(name("self_attn.o_proj.weight"), hidden, query),
            Tensor::new(name("post_attention_layernorm.weight"), &[hidden], Values::Ones),
            Tensor::matrix(name("mlp.gate_proj.weight"), inner, hidden),
            Tensor::matrix(name("mlp.up_proj.weight"), inner, hidden),
            Tensor::matrix(name("mlp.down_proj.weight"), hidden, inner),
        ]);
    }
    tensors
}

/// The tensors of [`EMBEDDER`].
fn embedding_model(words: usize) -> Vec<Tensor> {
    let (hidden, inner) = (64, 128);
    let mut tensors: Vec<Tensor> = [("word", words), ("position", 256), ("token_type", 2)]
        .map(|(table, rows)| Tensor::matrix(format!("embeddings.{table}_embeddings.weight"), rows, hidden))
        .into();
    let linear = |name: &str, outputs: usize, inputs: usize| {
        let bias = Tensor::new(format!("encoder.layer.0.{name}.bias"), &[outputs], Values::Noise(0.1));
        [Tensor::matrix(format!("encoder.layer.0.{name}.weight"), outputs, inputs), bias]
    };
    for part in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
        tensors.extend(linear(part, hidden, hidden));
    }
    tensors.extend(linear("intermediate.dense", inner, hidden));
    tensors.extend(linear("output.dense", hidden, inner));
    for norm in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"] {
        tensors.push(Tensor::new(format!("{norm}.LayerNorm.weight"), &[hidden], Values::Ones));
        tensors.push(Tensor::new(format!("{norm}.LayerNorm.bias"), &[hidden], Values::Noise(0.1)));
    }
    tensors
}

/// A safetensors file, in bf16: the length of the header (u64), the header (JSON), the values one after the other.
fn write_tensors(path: &Path, tensors: &[Tensor], seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Uniform, of standard deviation 1.
    let noise: Vec<f32> = (0..NOISE_VALUES).map(|_| (2.0 * random.f32() - 1.0) * 3.0_f32.sqrt()).collect();
    let mut at = 0;
    let header = tensors.iter().map(|tensor| {
        let begin = at;
        at += 2 * tensor.len();
        (tensor.name.clone(), json!({ "dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, at] }))
    });
    let mut header = Value::Object(header.collect()).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut write = || {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for tensor in tensors {
            let begin = random.usize(..NOISE_VALUES);
            let drawn = noise[begin..].iter().chain(&noise[..begin]).take(tensor.len());
            let bytes: Vec<u8> = match tensor.values {
                Values::Ones => drawn.flat_map(|_| bf16(1.0)).collect(),
                Values::Noise(deviation) => drawn.flat_map(|value| bf16(value * deviation)).collect(),
            };
            let mut left = 2 * tensor.len();
            while left > 0 {
                let piece = left.min(bytes.len());
                file.write_all(&bytes[..piece])?;
                left -= piece;
            }
        }
        file.flush()
    };
    write().map_err(|error: std::io::Error| Error::io("cannot write", path, error))
}

/// The upper half of an f32's bits.
fn bf16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use ragstone_kernels::embedding::SentenceEncoder;
    use ragstone_kernels::model::{LoadOptions, Model};
    use ragstone_kernels::tokenizer::Tokenizer;

    use super::*;

    #[test]
    fn what_is_written_can_be_loaded_and_a_word_is_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let folder = write_model(dir.path(), Shape::Tiny, 1).unwrap();
        let options = LoadOptions { kv_dtype: None, weights: None, compute: None, adapter: None, progress: None };
        let model = Model::load(&folder, options).unwrap();
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        tokenizer.check_fits(model.config()).unwrap();
        assert_eq!(tokenizer.encode_text("w7 w511 what").unwrap(), [7, 511, 0]);
        let mut stream = tokenizer.stream(false);
        assert_eq!([7, 7, 3].map(|id| stream.push(id).unwrap()), ["w7", " w7", " w3"]);
        let encoder = SentenceEncoder::load(&write_embedder(dir.path(), 1, 9).unwrap()).unwrap();
        assert!(encoder.encode(&["any text"]).unwrap()[0].iter().all(|value| value.is_finite()));
    }
}
