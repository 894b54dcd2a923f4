//! Attention of some query rows, and the heads that share a KV head, over all key tiles.

use super::{SequenceView, Span};
use crate::aligned::{Aligned, SharedMut};
use crate::matrix::Matrix;
use crate::pool::{BLOCK_TOKENS, KvPool};
use crate::simd::{Kernel, Vector, add_products, exp};

/// Slots of a key tile: the scores of four blocks are four vectors of 512 bits.
pub(super) const KEY_TILE: usize = 64;
/// The most queries that are held in registers together.
const MAX_ROWS: usize = 6;
/// Where the running maximum starts: so low that any score's weight against it is zero, yet finite, so that
/// differences are numbers while nothing has been seen.
const NOTHING_SEEN: f32 = -1e30;

/// Some query rows of a sequence with the query heads of one KV head.
pub(super) struct RowTile<'a> {
    pub(super) pool: &'a KvPool,
    pub(super) layer: usize,
    /// The KV head.
    pub(super) head: usize,
    /// Query heads of a KV head.
    pub(super) shared_heads: usize,
    pub(super) q: &'a Matrix,
    pub(super) first_row: usize,
    /// One a row.
    pub(super) positions: &'a [u32],
    pub(super) sequence: SequenceView<'a>,
    pub(super) spans: &'a [Span],
    pub(super) window: Option<u32>,
    pub(super) scale: f32,
    pub(super) out: SharedMut,
    pub(super) out_len: usize,
}

/// The state of the online softmax. A query here is a (row, head) pair: `row * shared_heads + head`.
struct State {
    /// `[queries][head_dim]`, scaled.
    q: Aligned<f32>,
    /// `[queries][row_len]`: values weighted so far.
    sums: Aligned<f32>,
    /// The greatest score so far.
    greatest: Vec<f32>,
    /// The sum of weights so far.
    weights: Vec<f32>,
    /// `[rows][KEY_TILE]`: infinity where the row sees the key, minus infinity elsewhere.
    mask: Aligned<f32>,
    /// `[MAX_ROWS][KEY_TILE]`: scores, then weights.
    scores: Aligned<f32>,
}

/// A tile of keys as the row tile sees it.
struct KeyTile<'a> {
    /// K of the tile's blocks, `[head_dim][16]`. Blocks that the sequence does not have repeat the last one.
    keys: [&'a [f32]; KEY_TILE / BLOCK_TOKENS],
    /// V of the tile's blocks, `[16][row_len]`, as above.
    values: [&'a [f32]; KEY_TILE / BLOCK_TOKENS],
    /// Slots from the tile's first to the last that some row sees. What lies behind has no weight, and may hold what
    /// another sequence left.
    slots: usize,
    /// Whether some row does not see some key.
    masked: bool,
}

impl Kernel for RowTile<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let mut state = self.start();
        let queries = self.positions.len() * self.shared_heads;
        let tiles = queries.div_ceil(ROWS);
        for tile in 0..self.spans.len() {
            let Some(keys) = self.key_tile(tile, &mut state.mask) else { continue };
            for rows in 0..tiles {
                let first = rows * queries / tiles;
                // SAFETY: the caller's promise about the machine; `first` and the height stay below `queries`.
                unsafe {
                    match (rows + 1) * queries / tiles - first {
                        1 => self.step::<V, 1, VECS>(&mut state, &keys, first),
                        2 => self.step::<V, 2, VECS>(&mut state, &keys, first),
                        3 => self.step::<V, 3, VECS>(&mut state, &keys, first),
                        4 => self.step::<V, 4, VECS>(&mut state, &keys, first),
                        5 => self.step::<V, 5, VECS>(&mut state, &keys, first),
                        _ => self.step::<V, MAX_ROWS, VECS>(&mut state, &keys, first),
                    }
                }
            }
        }
        self.finish(&state);
    }
}

impl<'a> RowTile<'a> {
    fn head_dim(&self) -> usize {
        self.pool.layout().head_dim
    }

    fn row_len(&self) -> usize {
        self.pool.layout().row_len()
    }

    fn start(&self) -> State {
        let queries = self.positions.len() * self.shared_heads;
        let (head_dim, group) = (self.head_dim(), self.shared_heads * self.head_dim());
        let mut q = Aligned::zeros(queries * head_dim);
        for (row, q) in q.chunks_exact_mut(group).enumerate() {
            let from = &self.q.row(self.first_row + row)[self.head * group..][..group];
            q.iter_mut().zip(from).for_each(|(q, from)| *q = from * self.scale);
        }
        State {
            q,
            sums: Aligned::zeros(queries * self.row_len()),
            greatest: vec![NOTHING_SEEN; queries],
            weights: vec![0.0; queries],
            mask: Aligned::zeros(self.positions.len() * KEY_TILE),
            scores: Aligned::zeros(MAX_ROWS * KEY_TILE),
        }
    }

    /// Key tile `tile`, or nothing if no row sees any of it: then it would add nothing but zeros.
    fn key_tile(&self, tile: usize, mask: &mut [f32]) -> Option<KeyTile<'a>> {
        let (span, window) = (self.spans[tile], self.window.unwrap_or(u32::MAX));
        let first = self.positions.iter().copied().min()?;
        let last = self.positions.iter().copied().max()?;
        if span.least > last || first.saturating_sub(span.greatest) >= window {
            return None;
        }
        let positions = &self.sequence.key_positions[tile * KEY_TILE..];
        let positions = &positions[..positions.len().min(KEY_TILE)];
        let masked = positions.len() < KEY_TILE
            || span.greatest > first
            || last.saturating_sub(span.least) >= window
            || span.greatest == u32::MAX;
        let mut slots = positions.len();
        if masked {
            slots = 0;
            for (row, mask) in self.positions.iter().zip(mask.chunks_exact_mut(KEY_TILE)) {
                mask.fill(f32::NEG_INFINITY);
                for (slot, key) in positions.iter().enumerate() {
                    if key <= row && row - key < window && *key != u32::MAX {
                        mask[slot] = f32::INFINITY;
                        slots = slots.max(slot + 1);
                    }
                }
            }
        }
        if slots == 0 {
            return None;
        }
        let blocks = &self.sequence.blocks[tile * KEY_TILE / BLOCK_TOKENS..];
        let block = |index: usize| blocks[index.min((positions.len() - 1) / BLOCK_TOKENS)];
        Some(KeyTile {
            keys: std::array::from_fn(|index| self.pool.key_block(self.layer, block(index), self.head)),
            values: std::array::from_fn(|index| self.pool.value_block(self.layer, block(index), self.head)),
            slots,
            masked,
        })
    }

    /// Takes `ROWS` queries from `first` on through one key tile.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the state must hold `first + ROWS` queries.
    #[inline(always)]
    unsafe fn step<V: Vector, const ROWS: usize, const VECS: usize>(
        &self,
        state: &mut State,
        keys: &KeyTile<'_>,
        first: usize,
    ) {
        let (head_dim, row_len) = (self.head_dim(), self.row_len());
        let q = state.q[first * head_dim..(first + ROWS) * head_dim].as_ptr();
        let sums = state.sums[first * row_len..(first + ROWS) * row_len].as_mut_ptr();
        // SAFETY: the pointers are good for `ROWS` rows; blocks are as long as their layout says.
        unsafe {
            score::<V, ROWS, VECS>(q, head_dim, keys, &mut state.scores);
            let decay = self.weigh::<V, ROWS>(state, keys.masked, first);
            let mut column = 0;
            while column + VECS * V::LANES <= row_len {
                gather::<V, ROWS, VECS>(sums.add(column), row_len, &decay, keys, column, &state.scores);
                column += VECS * V::LANES;
            }
            while column < row_len {
                gather::<V, ROWS, 1>(sums.add(column), row_len, &decay, keys, column, &state.scores);
                column += V::LANES;
            }
        }
    }

    /// Turns scores into weights against the new maximum. Returns what earlier sums shrink by.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn weigh<V: Vector, const ROWS: usize>(&self, state: &mut State, masked: bool, first: usize) -> [f32; 16] {
        let mut decay = [0.0; 16];
        let mut fresh = [0.0; ROWS];
        // SAFETY: rows of scores and masks are `KEY_TILE` long, which every vector divides, as it does 16.
        unsafe {
            for row in 0..ROWS {
                let scores = state.scores[row * KEY_TILE..(row + 1) * KEY_TILE].as_mut_ptr();
                if masked {
                    let token = (first + row) / self.shared_heads;
                    let mask = state.mask[token * KEY_TILE..(token + 1) * KEY_TILE].as_ptr();
                    for slot in (0..KEY_TILE).step_by(V::LANES) {
                        V::load(scores.add(slot)).min(V::load(mask.add(slot))).store(scores.add(slot));
                    }
                }
                let before = state.greatest[first + row];
                let mut greatest = V::splat(before);
                for slot in (0..KEY_TILE).step_by(V::LANES) {
                    greatest = greatest.max(V::load(scores.add(slot)));
                }
                let greatest = greatest.max_lane();
                let mut sum = V::splat(0.0);
                for slot in (0..KEY_TILE).step_by(V::LANES) {
                    let weight = exp(V::load(scores.add(slot)).sub(V::splat(greatest)));
                    weight.store(scores.add(slot));
                    sum = sum.add(weight);
                }
                state.greatest[first + row] = greatest;
                decay[row] = before - greatest;
                fresh[row] = sum.sum_lanes();
            }
            for lane in (0..decay.len()).step_by(V::LANES) {
                let lanes = decay.as_mut_ptr().add(lane);
                exp(V::load(lanes)).store(lanes);
            }
        }
        for row in 0..ROWS {
            let weights = &mut state.weights[first + row];
            *weights = *weights * decay[row] + fresh[row];
        }
        decay
    }

    fn finish(&self, state: &State) {
        let (head_dim, row_len) = (self.head_dim(), self.row_len());
        for (query, weights) in state.weights.iter().enumerate() {
            let (row, head) = (query / self.shared_heads, query % self.shared_heads);
            let start = (self.first_row + row) * self.out_len + (self.head * self.shared_heads + head) * head_dim;
            // SAFETY: inside the output, whose shape is the queries'; this tile alone writes these rows and heads.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(start), head_dim) };
            let share = if *weights == 0.0 { 0.0 } else { 1.0 / weights };
            let sums = &state.sums[query * row_len..][..head_dim];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * share);
        }
    }
}

/// Scores of `ROWS` queries with all slots of a tile: one sum each over ascending elements.
///
/// # Safety
/// The machine must have the instruction set of `V`; `q` must be good for `ROWS` rows of `head_dim`.
#[inline(always)]
unsafe fn score<V: Vector, const ROWS: usize, const VECS: usize>(
    q: *const f32,
    head_dim: usize,
    keys: &KeyTile<'_>,
    scores: &mut [f32],
) {
    let scores = scores[..ROWS * KEY_TILE].as_mut_ptr();
    for slot in (0..KEY_TILE).step_by(VECS * V::LANES) {
        // SAFETY: a key block is `[head_dim][16]`, and no vector crosses a block's border.
        unsafe {
            let mut from = [std::ptr::null(); VECS];
            for (vec, from) in from.iter_mut().enumerate() {
                let slot = slot + vec * V::LANES;
                *from = keys.keys[slot / BLOCK_TOKENS].as_ptr().add(slot % BLOCK_TOKENS);
            }
            let mut sums = [[V::splat(0.0); VECS]; ROWS];
            let mut columns = [V::splat(0.0); VECS];
            for dim in 0..head_dim {
                for (column, from) in columns.iter_mut().zip(from) {
                    *column = V::load(from.add(dim * BLOCK_TOKENS));
                }
                add_products(&mut sums, q.add(dim), head_dim, &columns);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(scores.add(row * KEY_TILE + slot + vec * V::LANES));
                }
            }
        }
    }
}

/// `sums = sums * decay + weights V` for `VECS` vectors of elements from `column` on, over ascending slots.
///
/// # Safety
/// The machine must have the instruction set of `V`; `sums` must be good for `ROWS` rows, `row_len` apart.
#[inline(always)]
unsafe fn gather<V: Vector, const ROWS: usize, const VECS: usize>(
    sums: *mut f32,
    row_len: usize,
    decay: &[f32; 16],
    keys: &KeyTile<'_>,
    column: usize,
    weights: &[f32],
) {
    let weights = weights[..ROWS * KEY_TILE].as_ptr();
    // SAFETY: a value block is `[16][row_len]`, and the columns end at `row_len`.
    unsafe {
        let mut totals = [[V::splat(0.0); VECS]; ROWS];
        for (row, totals) in totals.iter_mut().enumerate() {
            for (vec, total) in totals.iter_mut().enumerate() {
                *total = V::load(sums.add(row * row_len + vec * V::LANES)).mul(V::splat(decay[row]));
            }
        }
        let mut columns = [V::splat(0.0); VECS];
        for first in (0..keys.slots).step_by(BLOCK_TOKENS) {
            let values = keys.values[first / BLOCK_TOKENS].as_ptr().add(column);
            for slot in 0..BLOCK_TOKENS.min(keys.slots - first) {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load(values.add(slot * row_len + vec * V::LANES));
                }
                add_products(&mut totals, weights.add(first + slot), KEY_TILE, &columns);
            }
        }
        for (row, totals) in totals.iter().enumerate() {
            for (vec, total) in totals.iter().enumerate() {
                total.store(sums.add(row * row_len + vec * V::LANES));
            }
        }
    }
}
