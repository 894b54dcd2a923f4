//! A checkpoint's matrices by their outputs, each rank's share to its GPU. Vectors and learned positions are on every rank.

use std::ops::Range;
use std::sync::Arc;

use super::split::Split;
use crate::session::Session;
use crate::weights::{DeviceWeights, Matrix, OnDevice};
use ragstone_kernels::activation::Activation;
use ragstone_kernels::error::{Error, Result};
use ragstone_kernels::linear::{GroupedRows, Precision, Weights};
use ragstone_kernels::model::{Embedding, Expand, FeedForward, Layer, Mixture, Packer, Part, Parts};

/// Copies each rank's share of matrices to its GPU.
pub(crate) struct OnRanks {
    ranks: Vec<OnDevice>,
    split: Split,
}

impl OnRanks {
    pub(crate) fn new(sessions: &[Arc<Session>], split: Split) -> Self {
        Self { ranks: sessions.iter().cloned().map(OnDevice).collect(), split }
    }

    /// What `pack` makes of each rank's outputs.
    fn each(&self, outputs: usize, pack: impl Fn(&OnDevice, Range<usize>) -> Result<Matrix>) -> Result<Vec<Matrix>> {
        let ranks = self.ranks.iter().enumerate();
        ranks.map(|(rank, on)| pack(on, self.split.outputs(outputs, rank))).collect()
    }

    /// Copies what is not there yet, rank after rank, so that host memory has no second copy of the whole. `vocab` says how many rows
    /// the embedding table has.
    pub(crate) fn finish(&self, mut parts: Parts<Vec<Matrix>>, vocab: usize) -> Result<Vec<DeviceWeights>> {
        let of_rank = |(rank, on): (usize, &OnDevice)| {
            on.finish(self.take(&mut parts, self.split.outputs(vocab, rank), vocab)?)
        };
        self.ranks.iter().enumerate().map(of_rank).collect()
    }

    /// The share of the rank that comes next; `rows` is what it has of the embedding table.
    fn take(&self, parts: &mut Parts<Vec<Matrix>>, rows: Range<usize>, vocab: usize) -> Result<Parts<Matrix>> {
        Ok(Parts {
            embedding: rows_of_table(&mut parts.embedding, rows, vocab),
            position_table: parts.position_table.clone(),
            embedding_norm: parts.embedding_norm.clone(),
            layers: parts.layers.iter_mut().map(take_layer).collect::<Result<_>>()?,
            final_norm: parts.final_norm.clone(),
            head: take(&mut parts.head)?,
        })
    }
}

/// Some rows of an embedding table; a table of which all are taken is moved.
fn rows_of_table(table: &mut Embedding, rows: Range<usize>, vocab: usize) -> Embedding {
    if rows.len() == vocab {
        return std::mem::replace(table, Embedding::Tied);
    }
    let places = |len: usize| len / vocab * rows.start..len / vocab * rows.end;
    match table {
        Embedding::Tied => Embedding::Tied,
        Embedding::F32(values) => Embedding::F32(values[places(values.len())].to_vec()),
        Embedding::Bf16(bits) => Embedding::Bf16(bits[places(bits.len())].to_vec()),
    }
}

/// The share of the rank that comes next.
fn take(of_ranks: &mut Vec<Matrix>) -> Result<Matrix> {
    if of_ranks.is_empty() {
        return Err(Error::internal("a matrix has fewer shares than there are ranks"));
    }
    Ok(of_ranks.remove(0))
}

fn take_part(part: &mut Part<Vec<Matrix>>) -> Result<Part<Matrix>> {
    let expand = match &mut part.expand {
        Expand::Gated(of_ranks) => Expand::Gated(take(of_ranks)?),
        Expand::Plain(of_ranks) => Expand::Plain(take(of_ranks)?),
    };
    Ok(Part { expand, down: take(&mut part.down)? })
}

fn take_layer(layer: &mut Layer<Vec<Matrix>>) -> Result<Layer<Matrix>> {
    let feed_forward = match &mut layer.feed_forward {
        FeedForward::One(part) => FeedForward::One(take_part(part)?),
        FeedForward::Experts(Mixture { router, parts }) => {
            let parts = parts.iter_mut().map(take_part).collect::<Result<_>>()?;
            FeedForward::Experts(Mixture { router: take(router)?, parts })
        }
    };
    Ok(Layer {
        input_norm: layer.input_norm.clone(),
        q: take(&mut layer.q)?,
        k: take(&mut layer.k)?,
        v: take(&mut layer.v)?,
        o: take(&mut layer.o)?,
        q_norm: layer.q_norm.clone(),
        k_norm: layer.k_norm.clone(),
        post_norm: layer.post_norm.clone(),
        output_norms: layer.output_norms.clone(),
        feed_forward,
    })
}

/// Some rows of a matrix of so many columns.
fn rows_of<'a>(weights: Weights<'a>, inputs: usize, rows: &Range<usize>) -> Weights<'a> {
    let places = rows.start * inputs..rows.end * inputs;
    match weights {
        Weights::F32(values) => Weights::F32(&values[places]),
        Weights::Bf16(bits) => Weights::Bf16(&bits[places]),
    }
}

fn grouped_rows<'a>(all: &'a GroupedRows<'_>, first: usize) -> GroupedRows<'a> {
    GroupedRows { grouping: all.grouping, fill: Box::new(move |output, row| (all.fill)(first + output, row)) }
}

impl Packer for OnRanks {
    type Linear = Vec<Matrix>;

    fn linear(
        &self,
        outputs: usize,
        inputs: usize,
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        precision: Precision,
    ) -> Result<Vec<Matrix>> {
        self.each(outputs, |on, rows| {
            let own = rows_of(weights, inputs, &rows);
            on.linear(rows.len(), inputs, own, bias.map(|bias| &bias[rows.clone()]), precision)
        })
    }

    fn gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        weights: [Weights<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        precision: Precision,
        activation: Activation,
    ) -> Result<Vec<Matrix>> {
        self.each(outputs, |on, rows| {
            let own = weights.map(|weights| rows_of(weights, inputs, &rows));
            let bias = bias.map(|both| both.map(|bias| &bias[rows.clone()]));
            on.gate_up(rows.len(), inputs, own, bias, precision, activation)
        })
    }

    fn grouped(
        &self,
        outputs: usize,
        inputs: usize,
        rows: &GroupedRows<'_>,
        bias: Option<&[f32]>,
    ) -> Result<Vec<Matrix>> {
        self.each(outputs, |on, own| {
            let bias = bias.map(|bias| &bias[own.clone()]);
            on.grouped(own.len(), inputs, &grouped_rows(rows, own.start), bias)
        })
    }

    fn grouped_gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        rows: [&GroupedRows<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        activation: Activation,
    ) -> Result<Vec<Matrix>> {
        self.each(outputs, |on, own| {
            let bias = bias.map(|both| both.map(|bias| &bias[own.clone()]));
            let both = rows.map(|rows| grouped_rows(rows, own.start));
            on.grouped_gate_up(own.len(), inputs, [&both[0], &both[1]], bias, activation)
        })
    }

    fn experts(&self, mut parts: Vec<Part<Vec<Matrix>>>) -> Result<Vec<Part<Vec<Matrix>>>> {
        let mut together: Vec<Part<Vec<Matrix>>> = Vec::new();
        for on in &self.ranks {
            let own = parts.iter_mut().map(take_part).collect::<Result<_>>()?;
            for (index, part) in on.experts(own)?.into_iter().enumerate() {
                match together.get_mut(index) {
                    Some(of_ranks) => put(of_ranks, part),
                    None => together.push(begun(part)),
                }
            }
        }
        Ok(together)
    }
}

/// A part of which the first rank's share is there.
fn begun(part: Part<Matrix>) -> Part<Vec<Matrix>> {
    let expand = match part.expand {
        Expand::Gated(own) => Expand::Gated(vec![own]),
        Expand::Plain(own) => Expand::Plain(vec![own]),
    };
    Part { expand, down: vec![part.down] }
}

/// Adds the share of the rank that comes next.
fn put(of_ranks: &mut Part<Vec<Matrix>>, part: Part<Matrix>) {
    let (Expand::Gated(own) | Expand::Plain(own)) = part.expand;
    let (Expand::Gated(all) | Expand::Plain(all)) = &mut of_ranks.expand;
    all.push(own);
    of_ranks.down.push(part.down);
}
