//! What the steps of a layer are made of, each queued on one device; `parallel` puts them together.

use std::ops::Range;

use super::attention::Tables;
use super::launch::hopper;
use super::launch::quantized::{embed_q8, gemm_q8};
use super::launch::{self, Element, Turn};
use super::model::Loaded;
use super::pool::Arena;
use super::session::Buffer;
use super::weights::{DeviceLayer, DeviceNorm, HeadNorm, Matrix};
use ragstone_kernels::config::{FeedForwardKind, ModelConfig};
use ragstone_kernels::error::Result;

/// Rows in device memory, f32 `[count, hidden]`, from a place of a buffer on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hidden {
    pub(super) start: u64,
    pub(super) rows: usize,
}

impl Hidden {
    /// Some of the rows.
    pub(super) fn part(self, rows: &Range<usize>, row_bytes: usize) -> Self {
        Self { start: self.start + (rows.start * row_bytes) as u64, rows: rows.len() }
    }
}

/// A model's rules beside the memory it lies in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) on: &'a Loaded,
    pub(super) config: &'a ModelConfig,
    /// Of K and V.
    pub(super) kv: Element,
}

impl Steps<'_> {
    pub(super) fn layer(&self, layer: usize) -> &DeviceLayer {
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

    pub(super) fn product_to(&self, matrix: &Matrix, x: &Buffer, rows: usize, to: u64, adds: bool) -> Result<()> {
        // Of few outputs, such as a router's, not every rank has one.
        if matrix.outputs == 0 {
            return Ok(());
        }
        let session = &self.on.session;
        let of = matrix.product(x, rows, to);
        session.launch(&match matrix.q8() {
            Some(weights) => gemm_q8((to, of.x, of.bias), weights, of.shape, adds),
            None if session.trial().products.is_used() && matrix.element == Element::Bf16 && of.fits() => {
                of.launch(adds, session.multiprocessors())?
            }
            None => launch::gemm(matrix.element, (to, of.x, of.w, of.bias), of.shape, adds),
        })
    }

    /// Whether one launch multiplies so many rows by all three.
    pub(super) fn products_at_once(&self, matrices: [&Matrix; 3], rows: usize) -> bool {
        let takes = |matrix: &&Matrix| {
            matrix.q8().is_none() && matrix.element == Element::Bf16 && matrix.outputs > 0 && matrix.fits_hopper()
        };
        self.on.session.trial().products.is_used()
            && rows <= hopper::PRODUCTS_ROWS as usize
            && matrices.iter().all(takes)
    }

    /// Adds what `matrix` makes of `x` to `hidden`, normed first where there is a norm, and times the model's factor.
    pub(super) fn add(&self, matrix: &Matrix, x: &Buffer, norm: Option<&DeviceNorm>, hidden: Hidden) -> Result<()> {
        if norm.is_none() && self.config.residual_scale == 1.0 {
            return self.product_to(matrix, x, hidden.rows, hidden.start, true);
        }
        let added = self.product(matrix, x, hidden.rows)?;
        self.add_rows(added, norm, hidden)
    }

    /// Adds rows to `hidden` in the same way.
    pub(super) fn add_rows(&self, mut added: Buffer, norm: Option<&DeviceNorm>, hidden: Hidden) -> Result<()> {
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

    /// Norms each head of values, or whole rows of them, in place.
    pub(super) fn norm_heads(&self, norm: Option<&HeadNorm>, values: u64, rows: usize, width: usize) -> Result<()> {
        let Some(norm) = norm else { return Ok(()) };
        let (heads, len) = ((width / norm.len) as u32, norm.len as u32);
        let epsilon = self.config.norm_eps;
        self.on.session.launch(&launch::head_norm(values, norm.weight.pointer(), epsilon, rows as u32, heads, len))
    }

    /// Queries turned to their positions and scaled, in the pool's type.
    pub(super) fn turned(&self, q: &Buffer, turn: Turn, tables: &Tables) -> Result<Buffer> {
        let (rows, heads) = (tables.rows(), self.on.heads);
        let out = self.values(self.kv, rows, heads.query_dim())?;
        let places = (out.pointer(), q.pointer(), tables.places.row_positions);
        let scale = self.config.attention_scale;
        self.on.session.launch(&launch::rotate(self.kv, places, turn, scale, rows as u32, heads))?;
        Ok(out)
    }

    /// What queries find in the pool, `[rows, query_dim]`, as the factors of a product with `element`.
    pub(super) fn attended(
        &self,
        layer: usize,
        q: &Buffer,
        tables: &Tables,
        arena: &Arena,
        element: Element,
    ) -> Result<Buffer> {
        let heads = self.on.heads;
        let (pool, window) = (arena.layer(layer), self.config.window(layer));
        let context = tables.context(pool, arena.lines(), self.on.slopes.as_ref(), window);
        match self.on.attend(self.kv, q, element, context, tables, heads)? {
            (mixed, of) if of == element => Ok(mixed),
            (mixed, _) => self.factors(mixed, element, tables.rows() * heads.query_dim()),
        }
    }

    /// Values between a feed-forward part's way in, of so many outputs, and its way out.
    pub(super) fn inner_width(&self, outputs: usize) -> usize {
        if self.config.feed_forward.gate().is_some() { outputs / 2 } else { outputs }
    }

    /// What enters a feed-forward part's way out, `[rows, width]`, made of what enters the part.
    pub(super) fn expanded(
        &self,
        matrix: &Matrix,
        x: &Buffer,
        element: Element,
        (rows, width): (usize, usize),
    ) -> Result<Buffer> {
        let session = &self.on.session;
        let is_plain = matrix.q8().is_none() && (matrix.element, element) == (Element::Bf16, Element::Bf16);
        if let Some(activation) =
            self.config.feed_forward.gate().filter(|_| is_plain && session.trial().gated.is_used())
        {
            let inner = self.values(element, rows, width)?;
            let of = matrix.product(x, rows, inner.pointer());
            if of.fits_gated() {
                session.launch(&of.gated(activation, session.multiprocessors())?)?;
                return Ok(inner);
            }
        }
        let up = self.product(matrix, x, rows)?;
        self.activated(&up, element, rows, width)
    }

    /// The same of gates and ups, or ups alone.
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

    /// The embeddings of tokens, rows of this device's table, each at its position.
    pub(super) fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Buffer> {
        if tokens.is_empty() {
            return self.values(Element::F32, 0, self.config.hidden_size);
        }
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
        Ok(out)
    }
}
