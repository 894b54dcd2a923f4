//! Decoder-only language models: weights, and the steps of a layer over a paged KV pool. The loop over layers is
//! [`Forward`](crate::forward::Forward)'s. What families differ in is in the [`ModelConfig`] and in which weights there are.

mod elementwise;
mod embedding;
mod feed_forward;
mod load;
mod low_rank;
mod need;
mod parts;
mod random;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::attention::{AttentionOptions, RowGroup, attend, attention_weights};
use crate::config::ModelConfig;
use crate::crew;
use crate::dtype::{ComputeDtype, KvDtype, WeightFormat};
use crate::error::Result;
use crate::files::ModelFiles;
use crate::linear::{Activations, Format, Input, Linear, Output};
use crate::matrix::Matrix;
use crate::pool::{KvLayout, KvPool};
use crate::profile::{self, Profile};
use crate::rope::Rope;
pub use elementwise::Norm;
pub(crate) use elementwise::layer_norm;
use elementwise::rms_norm;
pub use embedding::Embedding;
pub use feed_forward::{Expand, FeedForward, Mixture, Part};
pub use load::LoadOptions;
pub use load::{kv_dtype, load_parts, slopes};
pub use need::{kv_layout, weight_format, weights_in_memory};
pub use parts::{Packer, Parts};
pub use random::random_parts;

/// Rows that go through a layer together. Bounds the scratch memory of a long prefill.
const ROWS_AT_ONCE: usize = 512;
/// Rows that a thread takes at a time of what is not a product.
const ROWS_PER_TASK: usize = 16;

/// The K and V of some tokens in one layer, `[tokens, kv_heads * head_dim]` each: K after its norm, before rotation;
/// both rounded to the layout's dtype.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKv {
    pub k: Matrix,
    pub v: Matrix,
}

/// A language model: weights and the rules to apply them. Shared freely; a pass keeps its state in its own matrices.
pub struct Model {
    config: ModelConfig,
    kv_dtype: KvDtype,
    arithmetic: Arithmetic,
    rope: Rope,
    /// Of layers with a window, where it is another one.
    local_rope: Option<Rope>,
    /// Of layers that turn nothing.
    no_rope: Rope,
    /// ALiBi's, one a head.
    slopes: Option<Vec<f32>>,
    embedding: Embedding,
    /// Learned positions, `[max_positions, hidden]`.
    position_table: Option<Vec<f32>>,
    embedding_norm: Option<Norm>,
    layers: Vec<Layer>,
    /// What an adapter adds, layer by layer; empty without one.
    adapted: Vec<low_rank::Adapted>,
    final_norm: Norm,
    /// `[vocab, hidden]`; the embedding table too, where that is tied.
    head: Linear,
    /// As many as passes ever ran at once.
    scratch: Mutex<Vec<Scratch>>,
    profile: Profile,
}

/// How a model's products are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    pub weights: WeightFormat,
    pub compute: ComputeDtype,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights {}, compute {}", self.weights.identity(), self.compute.name())
    }
}

/// A layer's weights, its matrices as the device keeps them.
pub struct Layer<L = Linear> {
    pub input_norm: Norm,
    pub q: L,
    pub k: L,
    pub v: L,
    pub o: L,
    /// Over each head, `[head_dim]`; or over all, as long as a row.
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub post_norm: Norm,
    /// Of what the attention and the feed-forward part add.
    pub output_norms: Option<[Norm; 2]>,
    pub feed_forward: FeedForward<L>,
}

/// What a layer computes on its way, at most `ROWS_AT_ONCE` rows each. Kept between calls: fresh pages from the system
/// would cost a twentieth of a prefill.
#[derive(Default)]
struct Scratch {
    normed: Activations,
    q: Matrix,
    mixed: Matrix,
    mixed_in: Activations,
    inner: Activations,
    spare: Activations,
    plain: Matrix,
    added: Matrix,
    routed: feed_forward::Routed,
    low: low_rank::Scratch,
}

impl Model {
    /// Loads a Hugging Face folder (`config.json` and its safetensors) or a GGUF file.
    ///
    /// # Errors
    /// `InvalidModel` for a damaged or incomplete model, `UnsupportedModel` for a kind that this version does not
    /// run, [`Error::io`](crate::Error::io)'s when the file system refuses.
    pub fn load(path: &Path, options: LoadOptions<'_>) -> Result<Self> {
        Self::from_files(&ModelFiles::open(path)?, options)
    }

    /// [`Model::load`] of files that are open already.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_files(files: &ModelFiles, options: LoadOptions<'_>) -> Result<Self> {
        let config = files.config()?;
        files.with_tensors(|tensors| load::load(config, tensors, options))
    }

    /// A model of shape `config` with random weights of a scale that keeps activations and logits in their usual range:
    /// for measurements and tests. The same seed gives the same weights on every machine. bf16 weights if the
    /// config says so, else f32.
    pub fn random(config: ModelConfig, seed: u64, options: LoadOptions<'_>) -> Self {
        random::random(config, seed, options)
    }

    /// The model's shapes and rules.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The shape of its keys and values.
    pub fn kv_layout(&self) -> KvLayout {
        KvLayout {
            layers: self.config.layers,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
            dtype: self.kv_dtype,
        }
    }

    /// How its products are made: with the weights themselves, what its numbers depend on.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The rotation of a layer's queries and keys; one that leaves them as they are, where positions are known otherwise.
    pub fn rope(&self, layer: usize) -> &Rope {
        match &self.local_rope {
            _ if self.config.unrotated.contains(&layer) => &self.no_rope,
            Some(local) if self.config.window(layer).is_some() => local,
            _ => &self.rope,
        }
    }

    /// Where the time of its passes goes.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// An arena for `blocks` blocks of its keys and values.
    pub fn new_pool(&self, blocks: usize) -> KvPool {
        KvPool::new(self.kv_layout(), blocks)
    }

    /// Bytes of the weights in memory.
    pub fn size_in_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|l| {
            let linears = [&l.q, &l.k, &l.v, &l.o];
            linears.iter().map(|linear| linear.size_in_bytes()).sum::<usize>() + l.feed_forward.size_in_bytes()
        });
        let positions = self.position_table.as_ref().map_or(0, |table| table.len() * 4);
        let adapted: usize = self.adapted.iter().map(low_rank::Adapted::size_in_bytes).sum();
        layers.sum::<usize>() + adapted + self.head.size_in_bytes() + self.embedding.size_in_bytes() + positions
    }

    /// K and V of the tokens whose hidden states enter `layer`, `[tokens, hidden]`.
    ///
    /// # Panics
    /// If there is no such layer or the hidden states are of another width.
    pub(crate) fn project_kv(&self, layer: usize, hidden: &Matrix) -> LayerKv {
        self.check(layer, hidden);
        let (weights, dim, adapted) = (&self.layers[layer], self.config.kv_dim(), self.adapted.get(layer));
        let mut kv = LayerKv { k: Matrix::zeros(hidden.rows(), dim), v: Matrix::zeros(hidden.rows(), dim) };
        self.with_scratch(|scratch| {
            for rows in batches(hidden.rows()) {
                let normed = &mut scratch.normed;
                self.norm(part(hidden, &rows), &weights.input_norm, weights.k.format(), normed);
                let (k, entering) = (part_mut(&mut kv.k, &rows), (part(hidden, &rows), &weights.input_norm));
                self.profile.time(profile::Part::Project, || {
                    weights.k.forward(&*normed, Output::Store(k));
                    self.add_low_rank(adapted.and_then(|pairs| pairs.k.as_ref()), entering, k, &mut scratch.low);
                });
                if let Some(norm) = &weights.k_norm {
                    self.profile.time(profile::Part::Norm, || rms_norm(k, norm, self.config.norm_eps));
                }
                // A file may have the two in different types.
                if weights.v.format() != weights.k.format() {
                    self.norm(part(hidden, &rows), &weights.input_norm, weights.v.format(), normed);
                }
                let v = part_mut(&mut kv.v, &rows);
                self.profile.time(profile::Part::Project, || {
                    weights.v.forward(&*normed, Output::Store(v));
                    self.add_low_rank(adapted.and_then(|pairs| pairs.v.as_ref()), entering, v, &mut scratch.low);
                    elementwise::round(self.kv_dtype, k, v);
                });
            }
        });
        kv
    }

    /// Takes hidden states `[rows, hidden]` from a layer's entry to its exit: attention over what `pool` holds of each
    /// group's sequence in this layer, the output projection, and the feed-forward part.
    ///
    /// # Panics
    /// If shapes do not fit, see [`attend`]; every row must be in one group.
    pub(crate) fn finish_layer(&self, layer: usize, hidden: &mut Matrix, groups: &[RowGroup<'_>], pool: &KvPool) {
        self.check(layer, hidden);
        let end = groups.iter().fold(0, |next, group| {
            assert_eq!(group.rows.start, next, "groups follow each other");
            group.rows.end
        });
        assert_eq!(end, hidden.rows(), "every row is in one group");
        self.with_scratch(|scratch| {
            for rows in batches(hidden.rows()) {
                let groups: Vec<_> = groups.iter().filter_map(|group| group.clip(&rows)).collect();
                let hidden = part_mut(hidden, &rows);
                self.attention(layer, hidden, &groups, pool, scratch);
                self.feed_forward(layer, hidden, scratch);
            }
        });
    }

    /// The weights that the rows of `group`, of the hidden states `[rows, hidden]` that enter `layer`, give to the slots of
    /// its sequence: the mean over heads, `[rows, slots]`.
    ///
    /// # Panics
    /// If shapes do not fit, see [`attend`].
    pub(crate) fn attention_weights(
        &self,
        layer: usize,
        hidden: &Matrix,
        group: &RowGroup<'_>,
        pool: &KvPool,
    ) -> Matrix {
        self.check(layer, hidden);
        let mut out = Matrix::default();
        self.with_scratch(|scratch| {
            let hidden = part(hidden, &group.rows);
            let group = RowGroup { rows: 0..group.rows.len(), ..group.clone() };
            self.queries(layer, hidden, std::slice::from_ref(&group), scratch);
            out = attention_weights(pool, layer, &scratch.q, &group, self.attention_options(layer));
        });
        out
    }

    /// Logits `[rows, vocab]` of hidden states `[rows, hidden]` that left the last layer.
    ///
    /// # Panics
    /// If the hidden states are of another width.
    pub(crate) fn project_logits(&self, hidden: &Matrix) -> Matrix {
        assert_eq!(hidden.cols(), self.config.hidden_size, "hidden states of another model");
        let mut out = Matrix::zeros(hidden.rows(), self.config.vocab_size);
        self.with_scratch(|scratch| {
            self.norm(hidden.as_slice(), &self.final_norm, self.head.format(), &mut scratch.normed);
            let logits = Output::Store(out.as_mut_slice());
            self.profile.time(profile::Part::Logits, || self.head.forward(&scratch.normed, logits));
        });
        if self.config.logits_scale != 1.0 {
            elementwise::scale(out.as_mut_slice(), self.config.logits_scale);
        }
        out
    }

    /// Adds a layer's attention to `hidden`, `[rows, hidden]`.
    fn attention(
        &self,
        layer: usize,
        hidden: &mut [f32],
        groups: &[RowGroup<'_>],
        pool: &KvPool,
        scratch: &mut Scratch,
    ) {
        let weights = &self.layers[layer];
        self.queries(layer, hidden, groups, scratch);
        let rows = scratch.q.rows();
        let mixed = scratch.mixed.reshape(rows, self.config.query_dim());
        let options = self.attention_options(layer);
        self.profile.time(profile::Part::Attend, || attend(pool, layer, &scratch.q, groups, options, mixed));
        let input = match weights.o.format() {
            Format::F32 => Input::f32(mixed.as_slice(), rows),
            format => {
                self.profile.time(profile::Part::Norm, || scratch.mixed_in.encode(format, mixed.as_slice(), rows));
                Input::from(&scratch.mixed_in)
            }
        };
        let norm = weights.output_norms.as_ref().map(|norms| &norms[0]);
        let pair = self.adapted.get(layer).and_then(|pairs| pairs.o.as_ref());
        let (added, low, mixed) = (&mut scratch.added, &mut scratch.low, &*mixed);
        let more = |out: &mut [f32]| self.add_low_rank_of(pair, mixed.as_slice(), out, low);
        self.profile.time(profile::Part::Output, || self.add(&weights.o, input, more, norm, hidden, added));
    }

    /// Adds what `linear` makes of `input`, and what `more` adds to that, to `hidden`, as [`Model::add_rows`] does.
    fn add<'a>(
        &self,
        linear: &Linear,
        input: impl Into<Input<'a>>,
        more: impl FnOnce(&mut [f32]),
        norm: Option<&Norm>,
        hidden: &mut [f32],
        added: &mut Matrix,
    ) {
        if norm.is_none() && self.config.residual_scale == 1.0 {
            linear.forward(input, Output::Add(hidden));
            return more(hidden);
        }
        let width = self.config.hidden_size;
        let added = added.reshape(hidden.len() / width, 2 * width);
        let (from, spare) = added.as_mut_slice().split_at_mut(hidden.len());
        linear.forward(input, Output::Store(from));
        more(from);
        self.add_rows(from, spare, norm, hidden);
    }

    /// Adds `from` to `hidden`, `[rows, hidden]` each, normed first where there is a norm, and times the model's factor. `spare` is as long.
    fn add_rows(&self, from: &[f32], spare: &mut [f32], norm: Option<&Norm>, hidden: &mut [f32]) {
        let (width, scale) = (self.config.hidden_size, self.config.residual_scale);
        let add_row = |from: &[f32], spare: &mut [f32], hidden: &mut [f32]| {
            let added = match norm {
                Some(norm) => {
                    norm.row(from, spare, self.config.norm_eps);
                    spare
                }
                None => from,
            };
            hidden.iter_mut().zip(added).for_each(|(hidden, added)| *hidden += scale * *added);
        };
        let task = ROWS_PER_TASK * width;
        let tasks = from.chunks(task).zip(spare.chunks_mut(task)).zip(hidden.chunks_mut(task));
        crew::for_each_part(tasks, |_, ((from, spare), hidden)| {
            let rows = from.chunks(width).zip(spare.chunks_mut(width)).zip(hidden.chunks_mut(width));
            rows.for_each(|((from, spare), hidden)| add_row(from, spare, hidden));
        });
    }

    fn attention_options(&self, layer: usize) -> AttentionOptions<'_> {
        AttentionOptions {
            window: self.config.window(layer),
            scale: self.config.attention_scale,
            compute: self.arithmetic.compute,
            slopes: self.slopes.as_deref(),
        }
    }

    /// Q of the rows `hidden`, each rotated to its position, in the scratch memory.
    fn queries(&self, layer: usize, hidden: &[f32], groups: &[RowGroup<'_>], scratch: &mut Scratch) {
        let (weights, config) = (&self.layers[layer], &self.config);
        let rows = hidden.len() / config.hidden_size;
        self.norm(hidden, &weights.input_norm, weights.q.format(), &mut scratch.normed);
        let q = scratch.q.reshape(rows, config.query_dim());
        let pair = self.adapted.get(layer).and_then(|pairs| pairs.q.as_ref());
        self.profile.time(profile::Part::Project, || {
            weights.q.forward(&scratch.normed, Output::Store(q.as_mut_slice()));
            self.add_low_rank(pair, (hidden, &weights.input_norm), q.as_mut_slice(), &mut scratch.low);
        });
        if let Some(norm) = &weights.q_norm {
            self.profile.time(profile::Part::Norm, || rms_norm(q.as_mut_slice(), norm, config.norm_eps));
        }
        let rope = self.rope(layer);
        self.profile.time(profile::Part::Place, || {
            for group in groups {
                let rows = part_mut(q, &group.rows).chunks_mut(2 * ROWS_PER_TASK * config.query_dim());
                let tasks = rows.zip(group.positions.chunks(2 * ROWS_PER_TASK));
                crew::for_each_part(tasks, |_, (rows, positions)| {
                    let rows = rows.chunks_mut(config.query_dim()).zip(positions);
                    rows.for_each(|(row, position)| rope.rotate_row(row, *position));
                });
            }
        });
    }

    fn norm(&self, from: &[f32], norm: &Norm, format: Format, to: &mut Activations) {
        let (width, epsilon) = (norm.width(), self.config.norm_eps);
        self.profile.time(profile::Part::Norm, || {
            to.fill(format, from.len() / width, width, |row, out| {
                norm.row(&from[row * width..(row + 1) * width], out, epsilon);
            });
        });
    }

    /// Runs `work` with a crew: that of the pass, if there is one.
    fn with_scratch(&self, work: impl FnOnce(&mut Scratch) + Send) {
        let spare = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = spare().pop().unwrap_or_default();
        crew::pass(|| work(&mut scratch));
        spare().push(scratch);
    }

    fn check(&self, layer: usize, hidden: &Matrix) {
        assert!(layer < self.layers.len(), "layer {layer} of {}", self.layers.len());
        assert_eq!(hidden.cols(), self.config.hidden_size, "hidden states of another model");
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("kv_dtype", &self.kv_dtype).finish_non_exhaustive()
    }
}

fn batches(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(ROWS_AT_ONCE).map(move |first| first..rows.min(first + ROWS_AT_ONCE))
}

fn part<'a>(matrix: &'a Matrix, rows: &Range<usize>) -> &'a [f32] {
    &matrix.as_slice()[rows.start * matrix.cols()..rows.end * matrix.cols()]
}

fn part_mut<'a>(matrix: &'a mut Matrix, rows: &Range<usize>) -> &'a mut [f32] {
    let cols = matrix.cols();
    &mut matrix.as_mut_slice()[rows.start * cols..rows.end * cols]
}

#[cfg(test)]
mod tests;
