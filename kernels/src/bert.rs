//! The encoder of "BERT: Pre-training of Deep Bidirectional Transformers" and of RoBERTa and XLM-RoBERTa, which differ from it in where
//! positions begin, on the crate's own matrix products.

mod attend;
mod kernels;
mod text;

use rayon::prelude::*;
use serde::Deserialize;

use crate::aligned::SharedMut;
use crate::error::{Error, Result};
use crate::linear::{Activations, Format, Input, Linear, Output, Precision, Weights};
use crate::simd::{self, Path, Paths};
use crate::weights::{Checkpoint, Tensor};
use attend::AttendBf16;
use kernels::{AddNorm, Attend, Gelu};
pub(crate) use text::{Role, TextEncoder, TextModelFolder};

/// Values that one thread takes at a time between the matrix products.
const VALUES_PER_TASK: usize = 1 << 15;

/// What `config.json` must say of a BERT; everything else in it is for training.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Config {
    #[serde(default, rename = "model_type")]
    family: Family,
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: String,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
    /// RoBERTa's positions begin behind it.
    #[serde(default)]
    pad_token_id: Option<usize>,
    #[serde(default)]
    position_embedding_type: Option<String>,
    /// Names of what a classification head tells apart.
    #[serde(default)]
    id2label: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Whose positions, names of tensors and classification head a model has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Family {
    #[default]
    Bert,
    #[serde(alias = "xlm-roberta")]
    Roberta,
}

impl Family {
    /// The values of `model_type` that there are.
    pub(crate) const NAMES: &[&str] = &["bert", "roberta", "xlm-roberta"];

    /// What the body's tensors are named after where a head stands on top of it.
    fn prefix(self) -> &'static str {
        match self {
            Self::Bert => "bert.",
            Self::Roberta => "roberta.",
        }
    }
}

impl Config {
    /// Whether such a model can be like this; `path` is where it stands.
    ///
    /// # Errors
    /// `InvalidModel` if not, naming the key; `UnsupportedModel` for another activation than GELU, or other positions than absolute ones.
    pub(crate) fn check(&self, path: &std::path::Path) -> Result<()> {
        let unsupported = |what: String| {
            let message =
                format!("{}: models of this kind with {what} are not supported; take another", path.display());
            Err(Error::unsupported(message))
        };
        if self.hidden_act != "gelu" {
            return unsupported(format!("activation `{}`, other than `gelu`,", self.hidden_act));
        }
        if let Some(kind) = self.position_embedding_type.as_ref().filter(|kind| *kind != "absolute") {
            return unsupported(format!("`{kind}` positions"));
        }
        let invalid = |what: String| {
            let message = format!("{}: {what}, so it describes no BERT; fetch the folder again", path.display());
            Err(Error::invalid_model(message))
        };
        // Tensors' shapes must agree later; these bounds keep the products of sizes far below 2^63.
        for (key, value, range) in [
            ("vocab_size", self.vocab_size, 1..=1 << 24),
            ("hidden_size", self.hidden_size, 1..=1 << 16),
            ("num_hidden_layers", self.num_hidden_layers, 1..=1 << 12),
            ("num_attention_heads", self.num_attention_heads, 1..=1 << 12),
            ("intermediate_size", self.intermediate_size, 1..=1 << 20),
            ("max_position_embeddings", self.max_position_embeddings, 1..=1 << 24),
            ("type_vocab_size", self.type_vocab_size, 1..=1 << 16),
            ("pad_token_id", self.pad_token_id.unwrap_or(0), 0..=1 << 24),
        ] {
            if !range.contains(&value) {
                return invalid(format!("`{key}` is {value}, outside {}..={}", range.start(), range.end()));
            }
        }
        // The shortest text is two special tokens.
        if self.max_tokens() < 2 {
            return invalid(format!("`max_position_embeddings` is {}, too few", self.max_position_embeddings));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return invalid("`hidden_size` is not a multiple of `num_attention_heads`".to_owned());
        }
        if !(0.0..=1.0).contains(&self.layer_norm_eps) {
            return invalid("`layer_norm_eps` is not a small positive number".to_owned());
        }
        Ok(())
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// What a classification head tells apart; `None` where that is not said.
    pub(crate) fn labels(&self) -> Option<usize> {
        self.id2label.as_ref().map(serde_json::Map::len)
    }

    /// Tokens of the longest text that there are positions for.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position())
    }

    /// The position of a text's first token.
    fn first_position(&self) -> usize {
        match self.family {
            Family::Bert => 0,
            Family::Roberta => self.pad_token_id.unwrap_or(1) + 1,
        }
    }
}

/// What embeddings are computed in: bf16 where these kernels multiply it faster than f32. Vectors of both are compared with each other
/// (docs/decisions/0119-embeddings-in-bf16.md).
pub(crate) fn fastest(kernels: &Paths) -> Precision {
    if kernels.compute_bf16() { Precision::Bf16 } else { Precision::F32 }
}

/// The weights.
pub(crate) struct Bert {
    /// `[vocabulary, hidden]`.
    words: Vec<f32>,
    /// `[positions, hidden]`, from that of a text's first token.
    positions: Vec<f32>,
    /// `[token types, hidden]`.
    types: Vec<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    hidden: usize,
    heads: usize,
    /// What products read, those of attention, too.
    format: Format,
}

/// A text, or a pair of texts, in tokens.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) ids: Vec<u32>,
    /// Token types, as many: 1 where the second of a pair stands, for models that tell them apart so.
    pub(crate) types: Vec<u32>,
}

struct Layer {
    /// Query, key and value one after the other: `[3 * hidden, hidden]`.
    qkv: Linear,
    attention_output: Linear,
    attention_norm: Norm,
    intermediate: Linear,
    output: Linear,
    output_norm: Norm,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    epsilon: f32,
}

impl Bert {
    /// Computes in `precision`, of which there are f32, the reference, and bf16.
    ///
    /// # Errors
    /// `InvalidModel` for tensors that are missing or do not fit `config`, which was checked.
    pub(crate) fn load(checkpoint: &Checkpoint, config: &Config, precision: Precision) -> Result<Self> {
        let loader = Loader::new(checkpoint, config, precision);
        let hidden = config.hidden_size;
        let positions =
            loader.values("embeddings.position_embeddings.weight", &[config.max_position_embeddings, hidden])?;
        Ok(Self {
            words: loader.values("embeddings.word_embeddings.weight", &[config.vocab_size, hidden])?,
            positions: positions[config.first_position() * hidden..].to_vec(),
            types: loader.values("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, hidden])?,
            norm: loader.norm("embeddings.LayerNorm")?,
            layers: (0..config.num_hidden_layers)
                .map(|layer| loader.layer(layer, config.intermediate_size))
                .collect::<Result<_>>()?,
            hidden,
            heads: config.num_attention_heads,
            format: if precision == Precision::F32 { Format::F32 } else { Format::Bf16 },
        })
    }

    /// Each text's last hidden states, `[tokens, hidden]`, one text behind the other. Ids, types and lengths must be within what there are
    /// embeddings for.
    ///
    /// All texts are the rows of one matrix, without padding; only attention looks at them one at a time.
    pub(crate) fn forward(&self, texts: &[Sequence]) -> Vec<f32> {
        let rows = texts.iter().map(|text| text.ids.len()).sum::<usize>();
        let mut hidden = self.embed(texts, rows);
        let mut qkv = vec![0.0; rows * 3 * self.hidden];
        let mut attended = vec![0.0; rows * self.hidden];
        let mut change = vec![0.0; rows * self.hidden];
        let (mut rounded, mut inner) = (Activations::default(), Inner::default());
        for layer in &self.layers {
            layer.qkv.forward(self.input(&hidden, rows, &mut rounded), Output::Store(&mut qkv));
            self.attend(texts, &qkv, &mut attended);
            layer.attention_output.forward(self.input(&attended, rows, &mut rounded), Output::Store(&mut change));
            layer.attention_norm.add_norm(&mut hidden, &change);
            let inner = layer.inner(self.input(&hidden, rows, &mut rounded), rows, &mut inner);
            layer.output.forward(inner, Output::Store(&mut change));
            layer.output_norm.add_norm(&mut hidden, &change);
        }
        hidden
    }

    /// Rows as products read them.
    fn input<'a>(&self, values: &'a [f32], rows: usize, rounded: &'a mut Activations) -> Input<'a> {
        if self.format == Format::F32 {
            return Input::f32(values, rows);
        }
        rounded.encode(self.format, values, rows);
        Input::from(&*rounded)
    }

    fn embed(&self, texts: &[Sequence], rows: usize) -> Vec<f32> {
        let mut words = Vec::with_capacity(rows * self.hidden);
        let mut places = Vec::with_capacity(rows * self.hidden);
        for text in texts {
            for id in &text.ids {
                words.extend_from_slice(&self.words[*id as usize * self.hidden..][..self.hidden]);
            }
            for (position, kind) in self.positions.chunks_exact(self.hidden).zip(&text.types) {
                let kind = &self.types[*kind as usize * self.hidden..][..self.hidden];
                places.extend(position.iter().zip(kind).map(|(position, kind)| position + kind));
            }
        }
        self.norm.add_norm(&mut words, &places);
        words
    }

    /// `out = softmax(q k^T / sqrt(head_dim)) v`, a text and a head at a time.
    fn attend(&self, texts: &[Sequence], qkv: &[f32], out: &mut [f32]) {
        let starts = texts.iter().scan(0, |next, text| {
            let start = *next;
            *next += text.ids.len();
            Some(start..*next)
        });
        let tasks: Vec<_> = starts.flat_map(|rows| (0..self.heads).map(move |head| (rows.clone(), head))).collect();
        // Tasks write disjoint places: each has its own rows or its own columns.
        let out = SharedMut::new(out);
        tasks.into_par_iter().for_each(|(rows, head)| {
            let (hidden, head_dim) = (self.hidden, self.hidden / self.heads);
            match self.format {
                Format::F32 => simd::dispatch(Path::best(), Attend { qkv, rows, head, head_dim, hidden, out }),
                _ => simd::dispatch(Path::best(), AttendBf16 { qkv, rows, head, head_dim, hidden, out }),
            }
        });
    }
}

/// Rows between the two products of a feed-forward part, whose memory is kept from one layer to the next.
#[derive(Default)]
struct Inner {
    wide: Vec<f32>,
    rounded: Activations,
}

impl Layer {
    /// `gelu(x W^T + b)`, as the next product reads it.
    fn inner<'a>(&self, x: Input<'_>, rows: usize, inner: &'a mut Inner) -> Input<'a> {
        let Inner { wide, rounded } = inner;
        if self.intermediate.format() == Format::F32 {
            wide.resize(rows * self.intermediate.out_features(), 0.0);
            self.intermediate.forward(x, Output::Store(wide));
            wide.par_chunks_mut(VALUES_PER_TASK).for_each(|values| simd::dispatch(Path::best(), Gelu(values)));
            return Input::f32(wide, rows);
        }
        self.intermediate.forward_gelu(x, rounded);
        Input::from(&*rounded)
    }
}

impl Norm {
    /// `rows = norm(rows + change)`.
    fn add_norm(&self, rows: &mut [f32], change: &[f32]) {
        let chunk = (VALUES_PER_TASK / self.weight.len()).max(1) * self.weight.len();
        let Self { weight, bias, epsilon } = self;
        rows.par_chunks_mut(chunk).zip(change.par_chunks(chunk)).for_each(|(rows, change)| {
            simd::dispatch(Path::best(), AddNorm { rows, change, weight, bias, epsilon: *epsilon });
        });
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
    hidden: usize,
    epsilon: f32,
    precision: Precision,
}

impl<'a> Loader<'a> {
    fn new(checkpoint: &'a Checkpoint, config: &Config, precision: Precision) -> Self {
        let prefix = config.family.prefix();
        // Checkpoints saved with a head on top carry the name of the body.
        let is_named = checkpoint.contains(&format!("{prefix}embeddings.word_embeddings.weight"));
        let prefix = if is_named { prefix } else { "" };
        Self { checkpoint, prefix, hidden: config.hidden_size, epsilon: config.layer_norm_eps as f32, precision }
    }

    fn layer(&self, layer: usize, inner: usize) -> Result<Layer> {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let square = [self.hidden, self.hidden];
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for part in ["query", "key", "value"] {
            let name = name(&format!("attention.self.{part}"));
            weights.append(&mut self.values(&format!("{name}.weight"), &square)?);
            biases.append(&mut self.values(&format!("{name}.bias"), &[self.hidden])?);
        }
        Ok(Layer {
            qkv: linear([3 * self.hidden, self.hidden], Weights::F32(&weights), &biases, self.precision),
            attention_output: self.linear(&name("attention.output.dense"), square)?,
            attention_norm: self.norm(&name("attention.output.LayerNorm"))?,
            intermediate: self.linear(&name("intermediate.dense"), [inner, self.hidden])?,
            output: self.linear(&name("output.dense"), [self.hidden, inner])?,
            output_norm: self.norm(&name("output.LayerNorm"))?,
        })
    }

    fn linear(&self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        let bias = self.values(&format!("{name}.bias"), &shape[..1])?;
        Ok(match self.checkpoint.tensor(&format!("{}{name}.weight", self.prefix), &shape)? {
            Tensor::F32(values) => linear(shape, Weights::F32(&values), &bias, self.precision),
            Tensor::Bf16(bits) => linear(shape, Weights::Bf16(&bits), &bias, self.precision),
        })
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        // Checkpoints converted from TensorFlow have kept its names.
        let (weight, bias) = match self.checkpoint.contains(&format!("{}{name}.gamma", self.prefix)) {
            true => ("gamma", "beta"),
            false => ("weight", "bias"),
        };
        Ok(Norm {
            weight: self.values(&format!("{name}.{weight}"), &[self.hidden])?,
            bias: self.values(&format!("{name}.{bias}"), &[self.hidden])?,
            epsilon: self.epsilon,
        })
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.checkpoint.tensor_f32(&format!("{}{name}", self.prefix), shape)
    }
}

/// Loads products that stand on top of a body. They are few: in f32.
pub(crate) struct HeadLoader<'a>(Loader<'a>);

impl<'a> HeadLoader<'a> {
    pub(crate) fn new(folder: &'a TextModelFolder) -> Self {
        Self(Loader::new(&folder.checkpoint, &folder.config, Precision::F32))
    }

    /// One that is named after the body, `[outputs, inputs]`.
    ///
    /// # Errors
    /// `InvalidModel` where its tensors are missing or of another shape.
    pub(crate) fn of_body(&self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        self.0.linear(name, shape)
    }

    /// One that has its own name.
    ///
    /// # Errors
    /// As [`of_body`](Self::of_body).
    pub(crate) fn of_head(&self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        Loader { prefix: "", ..self.0 }.linear(name, shape)
    }
}

fn linear([outputs, inputs]: [usize; 2], weights: Weights<'_>, bias: &[f32], precision: Precision) -> Linear {
    Linear::new(outputs, inputs, weights, Some(bias), precision)
}
