//! A model's weights by part, in the form that its device keeps matrices in.

use super::elementwise::Norm;
use super::feed_forward::Part;
use super::load::slopes;
use super::{Arithmetic, Embedding, Layer, Model};
use crate::activation::Activation;
use crate::config::ModelConfig;
use crate::dtype::KvDtype;
use crate::error::Result;
use crate::linear::{GroupedRows, Linear, Precision, Weights};
use crate::rope::Rope;

/// The weights of a model. Matrices are packed; vectors and tables are as a checkpoint has them.
pub struct Parts<L> {
    pub embedding: Embedding,
    /// Learned positions, `[max_positions, hidden]`.
    pub position_table: Option<Vec<f32>>,
    pub embedding_norm: Option<Norm>,
    pub layers: Vec<Layer<L>>,
    pub final_norm: Norm,
    /// `[vocab, hidden]`; the embedding table too, where that is tied.
    pub head: L,
}

/// Makes a device's matrices of those of a checkpoint, `[outputs, inputs]`, row-major. What `precision` asks for and a device does not have
/// is its own affair: it says so by an error.
pub trait Packer {
    /// A packed matrix, with its bias.
    type Linear;

    /// A matrix and an optional bias `[outputs]`.
    fn linear(
        &self,
        outputs: usize,
        inputs: usize,
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        precision: Precision,
    ) -> Result<Self::Linear>;

    /// Gate and up of a feed-forward part, `[outputs, inputs]` each.
    fn gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        weights: [Weights<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        precision: Precision,
        activation: Activation,
    ) -> Result<Self::Linear>;

    /// A matrix whose rows are in groups already.
    fn grouped(
        &self,
        outputs: usize,
        inputs: usize,
        rows: &GroupedRows<'_>,
        bias: Option<&[f32]>,
    ) -> Result<Self::Linear>;

    /// Gate and up whose rows are in groups already.
    fn grouped_gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        rows: [&GroupedRows<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        activation: Activation,
    ) -> Result<Self::Linear>;

    /// A layer's experts, which were packed one by one, as the device keeps them: so, unless it has another way.
    fn experts(&self, parts: Vec<Part<Self::Linear>>) -> Result<Vec<Part<Self::Linear>>> {
        Ok(parts)
    }
}

/// The CPU's packer: panels in host memory.
pub(super) struct InMemory;

impl Packer for InMemory {
    type Linear = Linear;

    fn linear(
        &self,
        outputs: usize,
        inputs: usize,
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        precision: Precision,
    ) -> Result<Linear> {
        Ok(Linear::new(outputs, inputs, weights, bias, precision))
    }

    fn gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        weights: [Weights<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        precision: Precision,
        activation: Activation,
    ) -> Result<Linear> {
        Ok(Linear::gate_up(outputs, inputs, weights, bias, precision, activation))
    }

    fn grouped(&self, outputs: usize, inputs: usize, rows: &GroupedRows<'_>, bias: Option<&[f32]>) -> Result<Linear> {
        Ok(Linear::grouped(outputs, inputs, rows, bias))
    }

    fn grouped_gate_up(
        &self,
        outputs: usize,
        inputs: usize,
        rows: [&GroupedRows<'_>; 2],
        bias: Option<[&[f32]; 2]>,
        activation: Activation,
    ) -> Result<Linear> {
        Ok(Linear::grouped_gate_up(outputs, inputs, rows, bias, activation))
    }
}

impl Model {
    /// The model of these weights.
    pub(super) fn of_parts(
        config: ModelConfig,
        parts: Parts<Linear>,
        arithmetic: Arithmetic,
        kv_dtype: KvDtype,
    ) -> Self {
        let Parts { embedding, position_table, embedding_norm, layers, final_norm, head } = parts;
        Self {
            arithmetic,
            rope: Rope::new(&config),
            local_rope: config.local_rope.as_ref().map(|rope| Rope::of(rope, &config)),
            no_rope: Rope::none(config.head_dim),
            slopes: slopes(&config),
            kv_dtype,
            embedding,
            position_table,
            embedding_norm,
            layers,
            adapted: Vec::new(),
            final_norm,
            head,
            scratch: Default::default(),
            profile: Default::default(),
            config,
        }
    }
}
