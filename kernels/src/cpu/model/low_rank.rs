//! What an adapter adds to a layer's products: `B (A x)`, in f32 over the rows that the layer's own products read rounded.
//!
//! Both factors are linear layers, so a row's bits do not depend on its batch here either.

use std::collections::BTreeSet;

use super::elementwise::Norm;
use super::feed_forward::{Expand, FeedForward, Part};
use super::load::weights;
use super::{Layer, Model, ROWS_PER_TASK};
use crate::activation::Activation;
use crate::adapter::{Adapter, Pair};
use crate::config::{ModelConfig, Qkv, Up};
use crate::crew;
use crate::dtype::bf16_bits;
use crate::error::Result;
use crate::linear::{Activations, Input, Linear, Output, Precision};
use crate::matrix::Matrix;
use crate::weights::Tensor;

/// A product of low rank.
pub(super) struct LowRank {
    a: Linear,
    /// Its columns stand as those of the layer that it is added to: of a gated one, those of gate and up in turn.
    b: Linear,
}

/// What is added in one layer.
#[derive(Default)]
pub(super) struct Adapted {
    pub(super) q: Option<LowRank>,
    pub(super) k: Option<LowRank>,
    pub(super) v: Option<LowRank>,
    pub(super) o: Option<LowRank>,
    /// To what enters the activation: gate and up, or up alone.
    pub(super) expand: Option<LowRank>,
    pub(super) down: Option<LowRank>,
}

/// What low-rank products compute on their way.
#[derive(Default)]
pub(super) struct Scratch {
    /// What enters a layer's products, unrounded.
    normed: Matrix,
    /// `A x`
    low: Matrix,
    /// What enters an activation.
    columns: Matrix,
    /// What leaves it.
    inner: Matrix,
}

impl LowRank {
    fn new(outputs: usize, inputs: usize, pair: Pair<'_>) -> Self {
        let (a, b) = (weights(&pair.a), exact(pair.b));
        Self {
            a: Linear::new(pair.rank, inputs, a, None, Precision::F32),
            b: Linear::new(outputs, pair.rank, weights(&b), None, Precision::F32),
        }
    }

    /// Those of gate and up, `[outputs, inputs]` each, as one: the rows of both A, and in each B zeros for the other one's.
    fn gate_up(outputs: usize, inputs: usize, pairs: [Option<Pair<'_>>; 2], activation: Activation) -> Option<Self> {
        let ranks = pairs.each_ref().map(|pair| pair.as_ref().map_or(0, |pair| pair.rank));
        let rank = ranks[0] + ranks[1];
        if rank == 0 {
            return None;
        }
        let mut a = Vec::with_capacity(rank * inputs);
        let mut padded = [vec![0.0; outputs * rank], vec![0.0; outputs * rank]];
        for (index, pair) in pairs.into_iter().enumerate() {
            let Some(pair) = pair else { continue };
            let first = index * ranks[0];
            for (to, from) in padded[index].chunks_exact_mut(rank).zip(pair.b.chunks_exact(pair.rank)) {
                to[first..first + pair.rank].copy_from_slice(from);
            }
            a.extend(pair.a.into_f32());
        }
        let (a, [gate, up]) = (exact(a), padded.map(exact));
        Some(Self {
            a: Linear::new(rank, inputs, weights(&a), None, Precision::F32),
            b: Linear::gate_up(outputs, rank, [weights(&gate), weights(&up)], None, Precision::F32, activation),
        })
    }

    /// Adds what it makes of rows `x` to `out`, `[rows, outputs]`.
    fn add(&self, x: &[f32], rows: usize, out: &mut [f32], low: &mut Matrix) {
        let low = low.reshape(rows, self.a.out_features());
        self.a.forward(Input::f32(x, rows), Output::Store(low.as_mut_slice()));
        self.b.forward_columns(Input::f32(low.as_slice(), rows), Output::Add(out));
    }

    fn size_in_bytes(&self) -> usize {
        self.a.size_in_bytes() + self.b.size_in_bytes()
    }
}

impl Adapted {
    /// Bytes in memory.
    pub(super) fn size_in_bytes(&self) -> usize {
        let Self { q, k, v, o, expand, down } = self;
        [q, k, v, o, expand, down].into_iter().flatten().map(LowRank::size_in_bytes).sum()
    }
}

/// Looks up what an adapter has for one layer.
struct Lookup<'a> {
    adapter: &'a Adapter,
    config: &'a ModelConfig,
    layer: usize,
    /// The names of all that was looked up.
    taken: &'a mut BTreeSet<String>,
}

impl<'a> Lookup<'a> {
    fn pair(&mut self, part: &str, outputs: usize, inputs: usize) -> Result<Option<Pair<'a>>> {
        let name = format!("{}.{}.{part}", self.config.architecture.tensors().layers, self.layer);
        let pair = self.adapter.pair(&name, outputs, inputs)?;
        self.taken.insert(name);
        Ok(pair)
    }

    fn low_rank(&mut self, part: &str, outputs: usize, inputs: usize) -> Result<Option<LowRank>> {
        Ok(self.pair(part, outputs, inputs)?.map(|pair| LowRank::new(outputs, inputs, pair)))
    }

    fn of(&mut self, layer: &Layer) -> Result<Adapted> {
        let (config, names) = (self.config, self.config.architecture.tensors());
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let mut adapted = Adapted { o: self.low_rank(names.o, hidden, config.query_dim())?, ..Adapted::default() };
        if let Qkv::Apart([q, k, v]) = names.qkv {
            adapted.q = self.low_rank(q, config.query_dim(), hidden)?;
            adapted.k = self.low_rank(k, config.kv_dim(), hidden)?;
            adapted.v = self.low_rank(v, config.kv_dim(), hidden)?;
        }
        let FeedForward::One(_) = layer.feed_forward else { return Ok(adapted) };
        adapted.down = self.low_rank(names.down, hidden, inner)?;
        adapted.expand = match (config.feed_forward.gate(), names.up) {
            (Some(activation), Up::Apart([gate, up])) => {
                let pairs = [self.pair(gate, inner, hidden)?, self.pair(up, inner, hidden)?];
                LowRank::gate_up(inner, hidden, pairs, activation)
            }
            (None, Up::One(up) | Up::Apart([_, up])) => self.low_rank(up, inner, hidden)?,
            // Gate and up in one matrix: that is not looked up, and so refused.
            (Some(_), Up::One(_)) => None,
        };
        Ok(adapted)
    }
}

impl Model {
    /// Adds `adapter` to every product that it changes.
    ///
    /// # Errors
    /// `InvalidModel` where its shapes are not the model's, `UnsupportedModel` where it changes what no adapter is computed for.
    pub fn adapt(&mut self, adapter: &Adapter) -> Result<()> {
        let mut taken = BTreeSet::new();
        let layers = self.layers.iter().enumerate();
        let adapted = layers
            .map(|(layer, weights)| Lookup { adapter, config: &self.config, layer, taken: &mut taken }.of(weights));
        let adapted = adapted.collect::<Result<Vec<_>>>()?;
        adapter.check_taken(&taken)?;
        self.adapted = adapted;
        Ok(())
    }

    /// Adds a low-rank product of rows `hidden`, normed by `norm`, to `out`.
    pub(super) fn add_low_rank(
        &self,
        pair: Option<&LowRank>,
        (hidden, norm): (&[f32], &Norm),
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        if let Some(pair) = pair {
            let rows = self.norm_rows(hidden, norm, &mut scratch.normed);
            pair.add(scratch.normed.as_slice(), rows, out, &mut scratch.low);
        }
    }

    /// Adds a low-rank product of `x`, `[rows, inputs]`, to `out`, `[rows, outputs]`.
    pub(super) fn add_low_rank_of(&self, pair: Option<&LowRank>, x: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        if let Some(pair) = pair {
            pair.add(x, x.len() / pair.a.in_features(), out, &mut scratch.low);
        }
    }

    /// Makes `inner` what enters the way out of a layer's feed-forward part; [`Model::add_down`] wants it, too.
    pub(super) fn expand_adapted(
        &self,
        (part, adapted): (&Part, &Adapted),
        (hidden, norm): (&[f32], &Norm),
        input: Input<'_>,
        inner: &mut Activations,
        scratch: &mut Scratch,
    ) {
        let (rows, width) = (hidden.len() / self.config.hidden_size, self.config.intermediate_size);
        let linear = part.expand.linear();
        let columns = scratch.columns.reshape(rows, linear.out_features()).as_mut_slice();
        linear.forward_columns(input, Output::Store(columns));
        if let Some(pair) = &adapted.expand {
            self.norm_rows(hidden, norm, &mut scratch.normed);
            pair.add(scratch.normed.as_slice(), rows, columns, &mut scratch.low);
        }
        let activate = self.plain_activation();
        let plain = scratch.inner.reshape(rows, width).as_mut_slice();
        let tasks = plain.chunks_mut(8 * width).zip(columns.chunks(8 * linear.out_features()));
        crew::for_each_part(tasks, |_, (to, from)| {
            for (to, from) in to.chunks_mut(width).zip(from.chunks(linear.out_features())) {
                match &part.expand {
                    Expand::Gated(linear) => linear.gate_row(from, to),
                    Expand::Plain(_) => activate(from, to),
                }
            }
        });
        inner.encode(part.down.format(), plain, rows);
    }

    /// Adds the low-rank product of the way out, of what [`Model::expand_adapted`] made, to `out`.
    pub(super) fn add_down(&self, adapted: Option<&Adapted>, out: &mut [f32], scratch: &mut Scratch) {
        if let Some(pair) = adapted.and_then(|adapted| adapted.down.as_ref()) {
            pair.add(scratch.inner.as_slice(), scratch.inner.rows(), out, &mut scratch.low);
        }
    }

    /// Norms `hidden`, `[rows, hidden]`, to f32 rows, and says how many.
    fn norm_rows(&self, hidden: &[f32], norm: &Norm, to: &mut Matrix) -> usize {
        let (width, epsilon) = (norm.width(), self.config.norm_eps);
        let rows = hidden.len() / width;
        let task = ROWS_PER_TASK * width;
        let tasks = to.reshape(rows, width).as_mut_slice().chunks_mut(task).zip(hidden.chunks(task));
        crew::for_each_part(tasks, |_, (to, from)| {
            let rows = to.chunks_mut(width).zip(from.chunks(width));
            rows.for_each(|(to, from)| norm.row(from, to, epsilon));
        });
        rows
    }
}

/// A factor whose values are bf16's as such: it takes half of the memory, and its products are the same.
fn exact(values: Vec<f32>) -> Tensor<'static> {
    let bits: Vec<u16> = values.iter().map(|value| bf16_bits(*value)).collect();
    let is_bf16 = bits.iter().zip(&values).all(|(bits, value)| u32::from(*bits) << 16 == value.to_bits());
    if is_bf16 { Tensor::Bf16(bits.into()) } else { Tensor::F32(values.into()) }
}
