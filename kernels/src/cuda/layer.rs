//! The steps of a layer, each queued on the device.

use super::attention::{Tables, tile_rows};
use super::backend::CudaPool;
use super::launch::quantized::{embed_q8, gemm_q8};
use super::launch::{self, Element, Heads, Turn};
use super::model::{CudaModel, Loaded};
use super::session::Buffer;
use super::weights::{DeviceFeedForward, DeviceLayer, DeviceNorm, HeadNorm, Matrix};
use crate::backend::RowGroup;
use crate::config::{FeedForwardKind, ModelConfig};
use crate::error::{Error, Result};

/// Rows that go through a layer together. Bounds the scratch memory of a long prefill.
const ROWS_AT_ONCE: usize = 2048;

/// Rows in device memory, f32 `[count, hidden]`, from a place of a buffer on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hidden {
    pub(super) start: u64,
    pub(super) rows: usize,
}

impl CudaModel {
    pub(super) fn heads(&self) -> Heads {
        let config = &self.config;
        Heads { heads: config.heads as u32, kv_heads: config.kv_heads as u32, head_dim: config.head_dim as u32 }
    }
}

/// A model's rules beside the memory it lies in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) on: &'a Loaded,
    pub(super) config: &'a ModelConfig,
    pub(super) heads: Heads,
    /// Of K and V.
    pub(super) kv: Element,
}

impl Steps<'_> {
    fn layer(&self, layer: usize) -> &DeviceLayer {
        &self.on.weights.layers[layer]
    }

    pub(super) fn values(&self, element: Element, rows: usize, width: usize) -> Result<Buffer> {
        self.on.session.allocate(rows * width * element.size_in_bytes())
    }

    /// Rows normed, as `element`.
    pub(super) fn norm(&self, norm: &DeviceNorm, rows: Hidden, element: Element) -> Result<Buffer> {
        let out = self.values(element, rows.rows, self.config.hidden_size)?;
        self.norm_to(norm, rows, element, out.pointer())?;
        Ok(out)
    }

    pub(super) fn norm_to(&self, norm: &DeviceNorm, rows: Hidden, element: Element, to: u64) -> Result<()> {
        let (epsilon, width) = (self.config.norm_eps, self.config.hidden_size as u32);
        let count = rows.rows as u32;
        self.on.session.launch(&match norm {
            DeviceNorm::Rms(weight) => {
                launch::rms_norm(element, to, rows.start, weight.pointer(), epsilon, count, width)
            }
            DeviceNorm::Layer { weight, bias } => {
                let weights = (weight.pointer(), bias.pointer());
                launch::layer_norm(element, to, rows.start, weights, epsilon, (count, width))
            }
            DeviceNorm::None => launch::convert(element, to, rows.start, u64::from(count) * u64::from(width)),
        })
    }

    /// `x w^T + bias` in f32, `[rows, outputs]`.
    pub(super) fn product(&self, matrix: &Matrix, x: &Buffer, rows: usize) -> Result<Buffer> {
        let out = self.values(Element::F32, rows, matrix.outputs)?;
        self.product_to(matrix, x, rows, out.pointer(), false)?;
        Ok(out)
    }

    fn product_to(&self, matrix: &Matrix, x: &Buffer, rows: usize, to: u64, adds: bool) -> Result<()> {
        let bias = matrix.bias.as_ref().map_or(0, Buffer::pointer);
        let shape = (rows as u32, matrix.outputs as u32, matrix.inputs as u32);
        self.on.session.launch(&match matrix.q8() {
            Some(weights) => gemm_q8((to, x.pointer(), bias), weights, shape, adds),
            None => launch::gemm(matrix.element, (to, x.pointer(), matrix.weights.pointer(), bias), shape, adds),
        })
    }

    /// Adds what `matrix` makes of `x` to `hidden`, normed first where there is a norm, and times the model's factor.
    fn add(&self, matrix: &Matrix, x: &Buffer, norm: Option<&DeviceNorm>, hidden: Hidden) -> Result<()> {
        if norm.is_none() && self.config.residual_scale == 1.0 {
            return self.product_to(matrix, x, hidden.rows, hidden.start, true);
        }
        let added = self.product(matrix, x, hidden.rows)?;
        self.add_rows(added, norm, hidden)
    }

    /// Adds rows to `hidden` in the same way.
    fn add_rows(&self, mut added: Buffer, norm: Option<&DeviceNorm>, hidden: Hidden) -> Result<()> {
        if let Some(norm) = norm {
            added = self.norm(norm, Hidden { start: added.pointer(), rows: hidden.rows }, Element::F32)?;
        }
        let count = (hidden.rows * self.config.hidden_size) as u64;
        let scale = self.config.residual_scale;
        self.on.session.launch(&launch::add_scaled(hidden.start, added.pointer(), scale, count))
    }

    /// f32 values as the factors of a product with `element`.
    pub(super) fn factors(&self, values: Buffer, element: Element, count: usize) -> Result<Buffer> {
        if element == Element::F32 {
            return Ok(values);
        }
        let out = self.on.session.allocate(count * element.size_in_bytes())?;
        self.on.session.launch(&launch::convert(element, out.pointer(), values.pointer(), count as u64))?;
        Ok(out)
    }

    fn norm_heads(&self, norm: Option<&HeadNorm>, values: u64, rows: usize, width: usize) -> Result<()> {
        let Some(norm) = norm else { return Ok(()) };
        let (heads, len) = ((width / norm.len) as u32, norm.len as u32);
        let epsilon = self.config.norm_eps;
        self.on.session.launch(&launch::head_norm(values, norm.weight.pointer(), epsilon, rows as u32, heads, len))
    }

    /// K and V of rows that enter a layer, in the pool's type.
    pub(super) fn project(&self, layer: usize, rows: Hidden) -> Result<[Buffer; 2]> {
        let values = || self.values(self.kv, rows.rows, self.config.kv_dim());
        let out = [values()?, values()?];
        self.project_to(layer, rows, out.each_ref().map(Buffer::pointer))?;
        Ok(out)
    }

    /// The same, to where there is room for it.
    pub(super) fn project_to(&self, layer: usize, rows: Hidden, [k, v]: [u64; 2]) -> Result<()> {
        let weights = self.layer(layer);
        let x = self.norm(&weights.input_norm, rows, weights.k.element)?;
        self.project_part((&weights.k, weights.k_norm.as_ref()), &x, rows.rows, k)?;
        self.project_part((&weights.v, None), &x, rows.rows, v)
    }

    fn project_part(
        &self,
        (matrix, norm): (&Matrix, Option<&HeadNorm>),
        x: &Buffer,
        rows: usize,
        to: u64,
    ) -> Result<()> {
        let dim = self.config.kv_dim();
        if self.kv == Element::F32 {
            self.product_to(matrix, x, rows, to, false)?;
            return self.norm_heads(norm, to, rows, dim);
        }
        let values = self.product(matrix, x, rows)?;
        self.norm_heads(norm, values.pointer(), rows, dim)?;
        self.on.session.launch(&launch::convert(self.kv, to, values.pointer(), (rows * dim) as u64))
    }

    /// Queries of rows that enter a layer: turned to their positions, scaled, in the pool's type.
    pub(super) fn queries(&self, layer: usize, rows: Hidden, turn: Turn, positions: u64) -> Result<Buffer> {
        let (weights, dim) = (self.layer(layer), self.config.query_dim());
        let x = self.norm(&weights.input_norm, rows, weights.q.element)?;
        let q = self.product(&weights.q, &x, rows.rows)?;
        self.norm_heads(weights.q_norm.as_ref(), q.pointer(), rows.rows, dim)?;
        let out = self.values(self.kv, rows.rows, dim)?;
        let places = (out.pointer(), q.pointer(), positions);
        let scale = self.config.attention_scale;
        self.on.session.launch(&launch::rotate(self.kv, places, turn, scale, rows.rows as u32, self.heads))?;
        Ok(out)
    }

    /// Takes rows from a layer's entry to its exit.
    pub(super) fn finish(&self, layer: usize, hidden: Hidden, groups: &[RowGroup<'_>], pool: &CudaPool) -> Result<()> {
        for first in (0..hidden.rows).step_by(ROWS_AT_ONCE) {
            let rows = first..hidden.rows.min(first + ROWS_AT_ONCE);
            let groups: Vec<_> = groups.iter().filter_map(|group| group.clip(&rows)).collect();
            let start = hidden.start + (first * self.config.hidden_size * 4) as u64;
            let hidden = Hidden { start, rows: rows.len() };
            self.attention(layer, hidden, &groups, pool)?;
            self.feed_forward(layer, hidden)?;
        }
        Ok(())
    }

    fn attention(&self, layer: usize, hidden: Hidden, groups: &[RowGroup<'_>], pool: &CudaPool) -> Result<()> {
        let tables = self.on.tables(groups, tile_rows(self.kv, self.heads))?;
        let positions: Vec<u32> = groups.iter().flat_map(|group| group.positions).copied().collect();
        let (turn, _angles) = self.on.angles(self.config, layer).turn(&self.on.session, &positions)?;
        self.attend(layer, hidden, &tables, turn, pool.layer(layer))
    }

    /// Attention over a layer of the pool, K and V, and what it adds to the rows.
    pub(super) fn attend(
        &self,
        layer: usize,
        hidden: Hidden,
        tables: &Tables,
        turn: Turn,
        kv: (u64, u64),
    ) -> Result<()> {
        let weights = self.layer(layer);
        let q = self.queries(layer, hidden, turn, tables.places.row_positions)?;
        let context = tables.context(kv, self.on.slopes.as_ref(), self.config.window(layer));
        let mixed = self.values(Element::F32, hidden.rows, self.config.query_dim())?;
        self.on.attend(self.kv, (&mixed, &q), context, tables, self.heads)?;
        let mixed = self.factors(mixed, weights.o.element, hidden.rows * self.config.query_dim())?;
        let norm = weights.output_norms.as_ref().map(|norms| &norms[0]);
        self.add(&weights.o, &mixed, norm, hidden)
    }

    pub(super) fn feed_forward(&self, layer: usize, hidden: Hidden) -> Result<()> {
        let weights = self.layer(layer);
        let norm = weights.output_norms.as_ref().map(|norms| &norms[1]);
        match &weights.feed_forward {
            DeviceFeedForward::One(part) => {
                let x = self.norm(&weights.post_norm, hidden, part.up.element)?;
                let up = self.product(&part.up, &x, hidden.rows)?;
                let inner = self.activated(&up, part.down.element, hidden.rows, self.config.intermediate_size)?;
                self.add(&part.down, &inner, norm, hidden)
            }
            DeviceFeedForward::Experts { router, all } => {
                let rule = self.config.experts_of(layer);
                let rule = rule.ok_or_else(|| Error::internal("a layer has experts that its model has not"))?;
                let sum = self.mix(rule, (router, all), &weights.post_norm, hidden)?;
                self.add_rows(sum, norm, hidden)
            }
        }
    }

    /// What enters a feed-forward part's way out, `[rows, width]`: of gates and ups, or ups alone.
    pub(super) fn activated(&self, up: &Buffer, element: Element, rows: usize, width: usize) -> Result<Buffer> {
        let inner = self.values(element, rows, width)?;
        let (to, from) = (inner.pointer(), up.pointer());
        self.on.session.launch(&match self.config.feed_forward.gate() {
            Some(activation) => launch::gated(activation, element, to, from, rows as u32, width as u32),
            None => {
                let is_relu = self.config.feed_forward == FeedForwardKind::PlainRelu;
                launch::activate(is_relu, element, to, from, (rows * width) as u64)
            }
        })?;
        Ok(inner)
    }

    /// Logits of rows that left the last layer, f32 `[rows, vocab]`.
    pub(super) fn logits(&self, hidden: Hidden) -> Result<Buffer> {
        let logits = self.values(Element::F32, hidden.rows, self.on.weights.head.outputs)?;
        self.logits_to(hidden, logits.pointer())?;
        Ok(logits)
    }

    /// The same, to where there is room for it.
    pub(super) fn logits_to(&self, hidden: Hidden, to: u64) -> Result<()> {
        let head = &self.on.weights.head;
        let x = self.norm(&self.on.weights.final_norm, hidden, head.element)?;
        self.product_to(head, &x, hidden.rows, to, false)?;
        if self.config.logits_scale != 1.0 {
            let count = (hidden.rows * head.outputs) as u64;
            self.on.session.launch(&launch::scale_values(to, self.config.logits_scale, count))?;
        }
        Ok(())
    }

    /// The rows that enter the first layer, each token at its position.
    pub(super) fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Buffer> {
        let (tokens_there, positions_there) = (self.on.session.upload(tokens)?, self.on.session.upload(positions)?);
        self.embed_from(tokens_there.pointer(), positions_there.pointer(), tokens.len())
    }

    /// The same of so many tokens and positions in device memory.
    pub(super) fn embed_from(&self, tokens: u64, positions: u64, rows: usize) -> Result<Buffer> {
        let (session, weights, hidden) = (&self.on.session, &self.on.weights, self.config.hidden_size);
        let out = self.values(Element::F32, rows, hidden)?;
        let learned = weights.position_table.as_ref().map_or(0, Buffer::pointer);
        let places = (positions, learned, self.config.positions_skipped as u32);
        let (scale, shape) = (self.config.embedding_scale, (rows as u32, hidden as u32));
        let plain = |table: &Buffer, element| {
            launch::embed(element, (out.pointer(), table.pointer(), tokens), places, scale, shape)
        };
        session.launch(&match (&weights.embedding, weights.head.q8()) {
            (Some((table, element)), _) => plain(table, *element),
            (None, Some(table)) => embed_q8((out.pointer(), table, tokens), places, scale, shape),
            (None, None) => plain(&weights.head.weights, weights.head.element),
        })?;
        match &weights.embedding_norm {
            Some(norm) => self.norm(norm, Hidden { start: out.pointer(), rows }, Element::F32),
            None => Ok(out),
        }
    }
}
