//! The steps of a layer over all ranks. Each rank computes its heads and its outputs of rows that lie whole on every one of them.

use std::sync::Arc;

use super::ranks::{Piece, Ranks, Slice};
use crate::attention::Tables;
use crate::launch::{self, Element, hopper};
use crate::layer::{Hidden, Steps};
use crate::pool::Arena;
use crate::rope::HeldTurn;
use crate::session::Buffer;
use crate::weights::{DeviceFeedForward, DeviceLayer, HeadNorm, Matrix};
use ragstone_kernels::backend::{RowGroup, SequenceView};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::error::Result;
use ragstone_kernels::pool::BlockId;

/// Rows that go through a layer together. Bounds the scratch memory of a long prefill.
const ROWS_AT_ONCE: usize = 2048;

/// Which of the norms of what a layer adds.
pub(super) const OF_ATTENTION: usize = 0;
pub(super) const OF_FEED_FORWARD: usize = 1;

/// A model's rules beside the ranks it lies on.
pub(crate) struct AllSteps<'a> {
    pub(crate) on: &'a Ranks,
    pub(crate) config: &'a ModelConfig,
    /// Of each rank.
    pub(crate) steps: Vec<Steps<'a>>,
    /// Of K and V.
    kv: Element,
}

/// How many rows there are; the same on every rank.
pub(super) fn count(hidden: &[Hidden]) -> usize {
    hidden.first().map_or(0, |hidden| hidden.rows)
}

fn pointers(buffers: &[Buffer]) -> Vec<u64> {
    buffers.iter().map(Buffer::pointer).collect()
}

impl<'a> AllSteps<'a> {
    pub(crate) fn new(on: &'a Ranks, config: &'a ModelConfig, kv: Element) -> Self {
        Self { on, config, steps: on.each.iter().map(|on| Steps { on, config, kv }).collect(), kv }
    }

    /// What `doing` makes on each rank.
    pub(crate) fn each<R>(&self, mut doing: impl FnMut(usize, &Steps<'_>) -> Result<R>) -> Result<Vec<R>> {
        self.steps.iter().enumerate().map(|(rank, steps)| doing(rank, steps)).collect()
    }

    /// K and V of rows that enter a layer, in the pool's type: of each rank's heads.
    pub(crate) fn project(&self, layer: usize, hidden: &[Hidden]) -> Result<Vec<[Buffer; 2]>> {
        let out = self.each(|_, steps| {
            let values = || steps.values(self.kv, count(hidden), steps.on.heads.kv_dim());
            Ok([values()?, values()?])
        })?;
        let to: Vec<[u64; 2]> = out.iter().map(|both| both.each_ref().map(Buffer::pointer)).collect();
        self.project_to(layer, hidden, &to)?;
        Ok(out)
    }

    /// The same, to where each rank has room for it.
    fn project_to(&self, layer: usize, hidden: &[Hidden], to: &[[u64; 2]]) -> Result<()> {
        let x = self.each(|rank, steps| {
            let weights = steps.layer(layer);
            steps.norm(&weights.input_norm, hidden[rank], weights.k.element)
        })?;
        let to_part = |part: usize| -> Vec<u64> { to.iter().map(|both| both[part]).collect() };
        let x = (&x[..], count(hidden));
        self.project_part(layer, x, |weights| (&weights.k, weights.k_norm.as_ref()), &to_part(0))?;
        self.project_part(layer, x, |weights| (&weights.v, None), &to_part(1))
    }

    fn project_part(
        &self,
        layer: usize,
        x: (&[Buffer], usize),
        of: impl Fn(&DeviceLayer) -> (&Matrix, Option<&HeadNorm>),
        to: &[u64],
    ) -> Result<()> {
        if self.kv == Element::F32 {
            return self.product_of_heads(layer, x, of, to);
        }
        let values = self.each(|_, steps| steps.values(Element::F32, x.1, steps.on.heads.kv_dim()))?;
        self.product_of_heads(layer, x, of, &pointers(&values))?;
        for ((steps, values), to) in self.steps.iter().zip(&values).zip(to) {
            let count = (x.1 * steps.on.heads.kv_dim()) as u64;
            steps.on.session.launch(&launch::convert(self.kv, *to, values.pointer(), count))?;
        }
        Ok(())
    }

    /// Each rank's outputs of a matrix for so many rows, f32, its heads normed. A norm of whole rows needs all of them: each rank norms whole
    /// rows, and keeps its own part.
    fn product_of_heads(
        &self,
        layer: usize,
        (x, rows): (&[Buffer], usize),
        of: impl Fn(&DeviceLayer) -> (&Matrix, Option<&HeadNorm>),
        to: &[u64],
    ) -> Result<()> {
        let is_of_rows =
            |steps: &Steps<'_>| of(steps.layer(layer)).1.is_some_and(|norm| norm.len > self.config.head_dim);
        if self.on.len() == 1 || !self.steps.iter().any(is_of_rows) {
            self.each(|rank, steps| {
                let (matrix, norm) = of(steps.layer(layer));
                steps.product_to(matrix, &x[rank], rows, to[rank], false)?;
                steps.norm_heads(norm, to[rank], rows, matrix.outputs)
            })?;
            return Ok(());
        }
        let width = Element::F32.size_in_bytes();
        let slices = self.each(|rank, steps| {
            let matrix = of(steps.layer(layer)).0;
            Ok(Slice { buffer: steps.product(matrix, &x[rank], rows)?, width: matrix.outputs * width })
        })?;
        let whole = self.on.all_gather(slices, rows)?;
        self.each(|rank, steps| {
            let norm = of(steps.layer(layer)).1;
            let outputs = norm.map_or(0, |norm| norm.len);
            steps.norm_heads(norm, whole[rank].pointer(), rows, outputs)?;
            let own = self.on.split.outputs(outputs, rank);
            let (from, own_bytes) = (whole[rank].pointer() + (own.start * width) as u64, own.len() * width);
            steps.on.session.copy_rows((to[rank], own_bytes), (from, outputs * width), rows, own_bytes)
        })?;
        Ok(())
    }

    /// Queries of rows that enter a layer: of each rank's heads, turned to their positions, scaled, in the pool's type.
    fn queries(
        &self,
        layer: usize,
        hidden: &[Hidden],
        turns: &[HeldTurn],
        tables: &[Arc<Tables>],
    ) -> Result<Vec<Buffer>> {
        let x = self.each(|rank, steps| {
            let weights = steps.layer(layer);
            steps.norm(&weights.input_norm, hidden[rank], weights.q.element)
        })?;
        let q = self.each(|_, steps| steps.values(Element::F32, count(hidden), steps.on.heads.query_dim()))?;
        let (x, to) = ((&x[..], count(hidden)), pointers(&q));
        self.product_of_heads(layer, x, |weights| (&weights.q, weights.q_norm.as_ref()), &to)?;
        self.each(|rank, steps| steps.turned(&q[rank], turns[rank].0, &tables[rank]))
    }

    /// What turns a layer's K and Q to positions, on each rank.
    pub(crate) fn turns(&self, layer: usize, positions: &[u32]) -> Result<Vec<HeldTurn>> {
        self.each(|_, steps| steps.on.angles(self.config, layer).turn(&steps.on.session, positions))
    }

    /// Takes rows from a layer's entry to its exit.
    pub(crate) fn finish(
        &self,
        layer: usize,
        hidden: &[Hidden],
        groups: &[RowGroup<'_>],
        pool: &[Arena],
    ) -> Result<()> {
        for first in (0..count(hidden)).step_by(ROWS_AT_ONCE) {
            let rows = first..count(hidden).min(first + ROWS_AT_ONCE);
            let groups: Vec<_> = groups.iter().filter_map(|group| group.clip(&rows)).collect();
            let row_bytes = self.config.hidden_size * Element::F32.size_in_bytes();
            let hidden: Vec<Hidden> = hidden.iter().map(|all| all.part(&rows, row_bytes)).collect();
            self.attention(layer, &hidden, &groups, pool)?;
            self.feed_forward(layer, &hidden)?;
        }
        Ok(())
    }

    fn attention(&self, layer: usize, hidden: &[Hidden], groups: &[RowGroup<'_>], pool: &[Arena]) -> Result<()> {
        let tables = self.each(|_, steps| steps.on.attention_tables(groups, steps.kv))?;
        let positions: Vec<u32> = groups.iter().flat_map(|group| group.positions).copied().collect();
        self.attend(layer, hidden, (&tables, &self.turns(layer, &positions)?), pool)
    }

    /// Q, K and V of a step's rows on a single rank, f32, heads normed.
    pub(crate) fn fresh(&self, layer: usize, hidden: Hidden) -> Result<[Buffer; 3]> {
        let (steps, count) = (&self.steps[0], hidden.rows);
        let weights = steps.layer(layer);
        let matrices = [&weights.q, &weights.k, &weights.v];
        let out = matrices.map(|matrix| steps.values(Element::F32, count, matrix.outputs));
        let [q, k, v] = out;
        let out = [q?, k?, v?];
        let x = steps.norm(&weights.input_norm, hidden, weights.q.element)?;
        if steps.products_at_once(matrices, count) {
            let product = |which: usize| matrices[which].product(&x, count, out[which].pointer());
            let session = &steps.on.session;
            session.launch(&hopper::products([0, 1, 2].map(product), session.multiprocessors())?)?;
        } else {
            let mut each = matrices.into_iter().zip(&out);
            each.try_for_each(|(matrix, to)| steps.product_to(matrix, &x, count, to.pointer(), false))?;
        }
        steps.norm_heads(weights.q_norm.as_ref(), out[0].pointer(), count, weights.q.outputs)?;
        steps.norm_heads(weights.k_norm.as_ref(), out[1].pointer(), count, weights.k.outputs)?;
        Ok(out)
    }

    /// Attention over a layer of the pool, and what it adds to the rows.
    fn attend(
        &self,
        layer: usize,
        hidden: &[Hidden],
        (tables, turns): (&[Arc<Tables>], &[HeldTurn]),
        pool: &[Arena],
    ) -> Result<()> {
        let q = self.queries(layer, hidden, turns, tables)?;
        self.attend_with(layer, &q, hidden, tables, pool)
    }

    /// The same, of queries that are turned.
    pub(crate) fn attend_with(
        &self,
        layer: usize,
        q: &[Buffer],
        hidden: &[Hidden],
        tables: &[Arc<Tables>],
        pool: &[Arena],
    ) -> Result<()> {
        let mixed = self.each(|rank, steps| {
            let element = steps.layer(layer).o.element;
            let buffer = steps.attended(layer, &q[rank], &tables[rank], &pool[rank], element)?;
            Ok(Slice { buffer, width: steps.on.heads.query_dim() * element.size_in_bytes() })
        })?;
        let mixed = self.on.all_gather(mixed, count(hidden))?;
        self.add(layer, |weights| &weights.o, &mixed, OF_ATTENTION, hidden)
    }

    pub(crate) fn feed_forward(&self, layer: usize, hidden: &[Hidden]) -> Result<()> {
        let is_mixture =
            |steps: &Steps<'_>| matches!(steps.layer(layer).feed_forward, DeviceFeedForward::Experts { .. });
        if self.steps.iter().any(is_mixture) {
            return self.mixture(layer, hidden);
        }
        let rows = count(hidden);
        let inner = self.each(|rank, steps| {
            let (weights, part) = (steps.layer(layer), steps.layer(layer).feed_forward.part());
            let x = steps.norm(&weights.post_norm, hidden[rank], part.up.element)?;
            let width = steps.inner_width(part.up.outputs);
            let buffer = steps.expanded(&part.up, &x, part.down.element, (rows, width))?;
            Ok(Slice { buffer, width: width * part.down.element.size_in_bytes() })
        })?;
        let inner = self.on.all_gather(inner, rows)?;
        self.add(layer, |weights| &weights.feed_forward.part().down, &inner, OF_FEED_FORWARD, hidden)
    }

    /// Adds what a matrix makes of `x` to the rows. A single rank's product does it on its way.
    fn add(
        &self,
        layer: usize,
        matrix: impl Fn(&DeviceLayer) -> &Matrix,
        x: &[Buffer],
        norm: usize,
        hidden: &[Hidden],
    ) -> Result<()> {
        if let ([steps], [x], [hidden]) = (&self.steps[..], x, hidden) {
            let weights = steps.layer(layer);
            let norm = weights.output_norms.as_ref().map(|norms| &norms[norm]);
            return steps.add(matrix(weights), x, norm, *hidden);
        }
        let added = self.each(|rank, steps| {
            let matrix = matrix(steps.layer(layer));
            let buffer = steps.product(matrix, &x[rank], count(hidden))?;
            Ok(Slice { buffer, width: matrix.outputs * Element::F32.size_in_bytes() })
        })?;
        self.add_rows(layer, added, norm, hidden)
    }

    /// Adds what each rank has a slice of.
    pub(super) fn add_rows(&self, layer: usize, added: Vec<Slice>, norm: usize, hidden: &[Hidden]) -> Result<()> {
        let added = self.on.all_gather(added, count(hidden))?;
        for ((added, steps), hidden) in added.into_iter().zip(&self.steps).zip(hidden) {
            let norm = steps.layer(layer).output_norms.as_ref().map(|norms| &norms[norm]);
            steps.add_rows(added, norm, *hidden)?;
        }
        Ok(())
    }

    /// Each rank's share of the logits of rows that left the last layer, f32 `[rows, outputs]`, with its outputs.
    pub(crate) fn logits(&self, hidden: &[Hidden]) -> Result<Vec<(Buffer, usize)>> {
        self.each(|rank, steps| Ok((steps.logits(hidden[rank])?, steps.on.weights.head.outputs)))
    }

    /// The rows that enter the first layer, each token at its position.
    pub(crate) fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Vec<Buffer>> {
        let rows = match &self.steps[..] {
            [steps] => vec![steps.embed(tokens, positions)?],
            _ => self.embed_apart(tokens, positions)?,
        };
        self.normed_embeddings(rows, tokens.len())
    }

    /// Embeddings as they enter the first layer.
    pub(crate) fn normed_embeddings(&self, rows: Vec<Buffer>, count: usize) -> Result<Vec<Buffer>> {
        let normed = |(rows, steps): (Buffer, &Steps<'_>)| match &steps.on.weights.embedding_norm {
            Some(norm) => steps.norm(norm, Hidden { start: rows.pointer(), rows: count }, Element::F32),
            None => Ok(rows),
        };
        rows.into_iter().zip(&self.steps).map(normed).collect()
    }

    /// Each rank has the embeddings of its share of the vocabulary. Everybody gets all, and puts them into the order of the tokens.
    fn embed_apart(&self, tokens: &[u32], positions: &[u32]) -> Result<Vec<Buffer>> {
        let row_bytes = self.config.hidden_size * Element::F32.size_in_bytes();
        let (mut places, mut before) = (vec![0; tokens.len()], 0);
        let slices = self.each(|rank, steps| {
            let own = self.on.split.outputs(self.config.vocab_size, rank);
            let is_own = |index: &usize| own.contains(&(tokens[*index] as usize));
            let indices: Vec<usize> = (0..tokens.len()).filter(is_own).collect();
            indices.iter().zip(before..).for_each(|(index, place)| places[*index] = place);
            before += indices.len();
            let own_tokens: Vec<u32> = indices.iter().map(|index| tokens[*index] - own.start as u32).collect();
            let own_positions: Vec<u32> = indices.iter().map(|index| positions[*index]).collect();
            Ok(Slice { buffer: steps.embed(&own_tokens, &own_positions)?, width: indices.len() * row_bytes })
        })?;
        let gathered = self.on.all_gather(slices, 1)?;
        let ordered = |(from, steps): (&Buffer, &Steps<'_>)| {
            let rows = steps.values(Element::F32, tokens.len(), self.config.hidden_size)?;
            steps.on.gather(from.pointer(), &places, row_bytes, rows.pointer())?;
            Ok(rows)
        };
        gathered.iter().zip(&self.steps).map(ordered).collect()
    }

    /// What the rows of `group` look at, f32 `[rows, slots]`, on the first rank. The mean over heads is one sum, in the order of heads: so
    /// queries and keys of all heads come to that rank.
    pub(crate) fn attention_weights(
        &self,
        layer: usize,
        hidden: &[Hidden],
        group: &RowGroup<'_>,
        pool: &[Arena],
    ) -> Result<Buffer> {
        let (rows, slots, groups) = (count(hidden), group.sequence.key_positions.len(), std::slice::from_ref(group));
        let tables = self.each(|_, steps| steps.on.tables(groups, rows))?;
        let q = self.queries(layer, hidden, &self.turns(layer, group.positions)?, &tables)?;
        let (steps, shape) = (&self.steps[0], (rows as u32, slots as u32));
        let size = steps.kv.size_in_bytes();
        let mut heads = steps.on.heads;
        (heads.heads, heads.kv_heads) = (self.config.heads as u32, self.config.kv_heads as u32);
        let piece =
            |(q, steps): (&Buffer, &Steps<'_>)| Piece { start: q.pointer(), width: steps.on.heads.query_dim() * size };
        let pieces: Vec<Piece> = q.iter().zip(&self.steps).map(piece).collect();
        let (q_there, _q) = self.on.gather_to_first(&pieces, rows)?;
        let keys = self.keys(layer, group.sequence, pool)?;
        let (keys_there, tables) = match &keys {
            // Gathered, they lie in the sequence's order.
            Some(keys) => {
                let blocks: Vec<BlockId> = (0..group.sequence.blocks.len() as u32).map(BlockId).collect();
                let sequence = SequenceView { blocks: &blocks, ..group.sequence };
                let group = RowGroup { sequence, ..group.clone() };
                (keys.pointer(), steps.on.tables(std::slice::from_ref(&group), rows)?)
            }
            None => (pool[0].layer(layer).0, tables[0].clone()),
        };
        let window = self.config.window(layer);
        let context = tables.context((keys_there, 0), pool[0].lines(), steps.on.slopes.as_ref(), window);
        let out = steps.values(Element::F32, rows, slots)?;
        let launch = launch::attention_weights(steps.kv, out.pointer(), q_there, context, shape, heads);
        steps.on.session.launch(&launch)?;
        Ok(out)
    }

    /// A layer's K of all heads in the order of a sequence's blocks, on the first rank; nothing where it has all heads anyway.
    fn keys(&self, layer: usize, sequence: SequenceView<'_>, pool: &[Arena]) -> Result<Option<Buffer>> {
        if self.on.len() == 1 {
            return Ok(None);
        }
        let blocks: Vec<usize> = sequence.blocks.iter().map(|block| block.0 as usize).collect();
        let slices = self.each(|rank, steps| {
            let width = pool[rank].part_bytes();
            let buffer = steps.on.session.allocate(blocks.len() * width)?;
            steps.on.gather(pool[rank].layer(layer).0, &blocks, width, buffer.pointer())?;
            Ok(Slice { buffer, width })
        })?;
        let piece = |slice: &Slice| Piece { start: slice.buffer.pointer(), width: slice.width };
        let pieces: Vec<Piece> = slices.iter().map(piece).collect();
        Ok(self.on.gather_to_first(&pieces, blocks.len())?.1)
    }
}
