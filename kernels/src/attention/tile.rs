//! Attention of some query rows, and the heads that share a KV head, over all key tiles.

use super::format::{DotBf16, KvFormat, Wide, WideBf16};
use super::{AttentionOptions, SequenceView, Span};
use crate::aligned::SharedMut;
use crate::dtype::ComputeDtype;
use crate::matrix::Matrix;
use crate::pool::{Arena, BLOCK_TOKENS, KvPool};
use crate::scratch::Scratch;
use crate::simd::{Kernel, Vector, exp};

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
    pub(super) options: AttentionOptions,
    pub(super) out: SharedMut,
    pub(super) out_len: usize,
}

/// The state of the online softmax. A query here is a (row, head) pair: `row * shared_heads + head`.
struct State<'a> {
    /// `[queries][head_dim]`, scaled; pairs of bf16 where the format wants them.
    q: &'a mut [f32],
    /// `[queries][row_len]`: values weighted so far.
    sums: &'a mut [f32],
    /// The greatest score so far.
    greatest: &'a mut [f32],
    /// The sum of weights so far.
    weights: &'a mut [f32],
    /// `[rows][KEY_TILE]`: infinity where the row sees the key, minus infinity elsewhere.
    mask: &'a mut [f32],
    /// `[MAX_ROWS][KEY_TILE]`: scores, then weights; pairs of bf16 where the format wants them.
    scores: &'a mut [f32],
}

/// A tile of keys as the row tile sees it.
struct KeyTile<C> {
    /// K of the tile's blocks. Blocks that the sequence does not have repeat the last one.
    keys: [*const C; KEY_TILE / BLOCK_TOKENS],
    /// V of the tile's blocks, as above.
    values: [*const C; KEY_TILE / BLOCK_TOKENS],
    /// Slots from the tile's first to the last that some row sees. What lies behind has no weight, and may hold what
    /// another sequence left.
    slots: usize,
    /// Whether some row does not see some key.
    masked: bool,
}

/// One layer's cells of one KV head, by block.
#[derive(Clone, Copy)]
struct HeadCells<C> {
    keys: *const C,
    values: *const C,
    /// How many cells of u16 (or f32) make one of these.
    per_cell: usize,
}

impl Kernel for RowTile<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: the caller's promise about the machine; the cells are those of the pool's dtype.
        unsafe {
            match self.pool.arenas(self.layer) {
                (Arena::F32(keys), Arena::F32(values)) => {
                    let cells = HeadCells { keys: keys.as_ptr(), values: values.as_ptr(), per_cell: 1 };
                    self.run_in::<V, Wide<f32>, ROWS, VECS>(cells);
                }
                (Arena::F16(keys), Arena::F16(values)) => {
                    let cells = HeadCells { keys: keys.as_ptr(), values: values.as_ptr(), per_cell: 1 };
                    self.run_in::<V, Wide<u16>, ROWS, VECS>(cells);
                }
                (Arena::Bf16(keys), Arena::Bf16(values)) => {
                    let cells =
                        HeadCells { keys: keys.as_ptr().cast(), values: values.as_ptr().cast::<u32>(), per_cell: 2 };
                    match self.options.compute {
                        ComputeDtype::Bf16 => self.run_in::<V, DotBf16, ROWS, VECS>(cells),
                        ComputeDtype::F32 => self.run_in::<V, WideBf16, ROWS, VECS>(cells),
                    }
                }
                _ => unreachable!("K and V have one dtype"),
            }
        }
    }
}

impl RowTile<'_> {
    /// # Safety
    /// The machine must have the instruction set of `V`; `cells` must be the layer's, of the format.
    #[inline(always)]
    unsafe fn run_in<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(&self, cells: HeadCells<F::Cell>) {
        let rows = self.positions.len();
        let queries = rows * self.shared_heads;
        let q_len = queries * self.head_dim();
        let lines = |len: usize| len.next_multiple_of(16);
        let lengths = [
            lines(q_len),
            queries * self.row_len(),
            lines(queries),
            lines(queries),
            rows * KEY_TILE,
            MAX_ROWS * KEY_TILE,
        ];
        let mut memory = Scratch::take(lengths.iter().sum());
        let (q, memory) = memory.split_at_mut(lengths[0]);
        let (sums, memory) = memory.split_at_mut(lengths[1]);
        let (greatest, memory) = memory.split_at_mut(lengths[2]);
        let (weights, memory) = memory.split_at_mut(lengths[3]);
        let (mask, scores) = memory.split_at_mut(lengths[4]);
        let mut state = State { q, sums, greatest, weights, mask, scores };
        // SAFETY: the caller's promise; `first` and the height stay below `queries`.
        unsafe {
            self.start::<V, F>(&mut state);
            let tiles = queries.div_ceil(ROWS);
            for tile in 0..self.spans.len() {
                let Some(keys) = self.key_tile(tile, cells, state.mask) else { continue };
                for rows in 0..tiles {
                    let first = rows * queries / tiles;
                    match (rows + 1) * queries / tiles - first {
                        1 => self.step::<V, F, 1, VECS>(&mut state, &keys, first),
                        2 => self.step::<V, F, 2, VECS>(&mut state, &keys, first),
                        3 => self.step::<V, F, 3, VECS>(&mut state, &keys, first),
                        4 => self.step::<V, F, 4, VECS>(&mut state, &keys, first),
                        5 => self.step::<V, F, 5, VECS>(&mut state, &keys, first),
                        _ => self.step::<V, F, MAX_ROWS, VECS>(&mut state, &keys, first),
                    }
                }
            }
        }
        self.finish(&state, queries);
    }

    fn head_dim(&self) -> usize {
        self.pool.layout().head_dim
    }

    fn row_len(&self) -> usize {
        self.pool.layout().row_len()
    }

    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn start<V: Vector, F: KvFormat>(&self, state: &mut State<'_>) {
        let (head_dim, group) = (self.head_dim(), self.shared_heads * self.head_dim());
        for (row, q) in state.q.chunks_exact_mut(group).take(self.positions.len()).enumerate() {
            let from = &self.q.row(self.first_row + row)[self.head * group..][..group];
            q.iter_mut().zip(from).for_each(|(q, from)| *q = from * self.options.scale);
        }
        let queries = self.positions.len() * self.shared_heads;
        if F::IS_PAIRED {
            // SAFETY: the caller's promise; a query's pairs fill half of its place, and never overtake what is read.
            unsafe { pair_in_place::<V>(&mut state.q[..queries * head_dim]) };
        }
        state.sums.fill(0.0);
        state.greatest.fill(NOTHING_SEEN);
        state.weights.fill(0.0);
    }

    /// Key tile `tile`, or nothing if no row sees any of it: then it would add nothing but zeros.
    fn key_tile<C>(&self, tile: usize, cells: HeadCells<C>, mask: &mut [f32]) -> Option<KeyTile<C>> {
        let (span, window) = (self.spans[tile], self.options.window.unwrap_or(u32::MAX));
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
        let start = |index: usize| {
            let block = blocks[index.min((positions.len() - 1) / BLOCK_TOKENS)];
            self.pool.layout().start(block, self.head) / cells.per_cell
        };
        Some(KeyTile {
            // SAFETY: the blocks were checked to be the pool's.
            keys: std::array::from_fn(|index| unsafe { cells.keys.add(start(index)) }),
            // SAFETY: as above.
            values: std::array::from_fn(|index| unsafe { cells.values.add(start(index)) }),
            slots,
            masked,
        })
    }

    /// Takes `ROWS` queries from `first` on through one key tile.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the state must hold `first + ROWS` queries.
    #[inline(always)]
    unsafe fn step<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
        &self,
        state: &mut State<'_>,
        keys: &KeyTile<F::Cell>,
        first: usize,
    ) {
        let (head_dim, row_len) = (self.head_dim(), self.row_len());
        let q_len = if F::IS_PAIRED { head_dim / 2 } else { head_dim };
        let q = state.q[first * q_len..(first + ROWS) * q_len].as_ptr();
        let sums = state.sums[first * row_len..(first + ROWS) * row_len].as_mut_ptr();
        // SAFETY: the pointers are good for `ROWS` rows; blocks are as long as their layout says.
        unsafe {
            score::<V, F, ROWS, VECS>(q, head_dim, keys, state.scores);
            let decay = self.weigh::<V, ROWS>(state, keys.masked, first);
            if F::IS_PAIRED {
                pair_in_place::<V>(&mut state.scores[..ROWS * KEY_TILE]);
            }
            let mut column = 0;
            while column + VECS * V::LANES <= row_len {
                gather::<V, F, ROWS, VECS>(sums.add(column), row_len, &decay, keys, column, state.scores);
                column += VECS * V::LANES;
            }
            while column < row_len {
                gather::<V, F, ROWS, 1>(sums.add(column), row_len, &decay, keys, column, state.scores);
                column += V::LANES;
            }
        }
    }

    /// Turns scores into weights against the new maximum. Returns what earlier sums shrink by.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn weigh<V: Vector, const ROWS: usize>(&self, state: &mut State<'_>, masked: bool, first: usize) -> [f32; 16] {
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

    fn finish(&self, state: &State<'_>, queries: usize) {
        let (head_dim, row_len) = (self.head_dim(), self.row_len());
        for (query, weights) in state.weights.iter().enumerate().take(queries) {
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

/// Rounds f32 to bf16 and moves them together, into the first half of their memory.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn pair_in_place<V: Vector>(values: &mut [f32]) {
    let whole = values.len() - values.len() % V::LANES;
    let (from, to) = (values.as_mut_ptr(), values.as_mut_ptr().cast::<u16>());
    // SAFETY: the caller's promise; each vector is read before its half is written, at or before where it was.
    unsafe {
        for start in (0..whole).step_by(V::LANES) {
            V::load(from.add(start)).store_bf16(to.add(start));
        }
        // The rest goes through a whole vector too: a value's bits must not depend on where it stands.
        let (mut rest, mut halves) = ([0.0_f32; 16], [0_u16; 16]);
        let len = values.len() - whole;
        rest.as_mut_ptr().copy_from_nonoverlapping(from.add(whole), len);
        V::load(rest.as_ptr()).store_bf16(halves.as_mut_ptr());
        to.add(whole).copy_from_nonoverlapping(halves.as_ptr(), len);
    }
}

/// Scores of `ROWS` queries with all slots of a tile: one sum each over ascending elements.
///
/// # Safety
/// The machine must have the instruction set of `V`; `q` must be good for `ROWS` queries.
#[inline(always)]
unsafe fn score<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
    q: *const f32,
    head_dim: usize,
    keys: &KeyTile<F::Cell>,
    scores: &mut [f32],
) {
    let scores = scores[..ROWS * KEY_TILE].as_mut_ptr();
    for slot in (0..KEY_TILE).step_by(VECS * V::LANES) {
        // SAFETY: no vector crosses a block's border.
        unsafe {
            let mut from = [std::ptr::null(); VECS];
            for (vec, from) in from.iter_mut().enumerate() {
                let slot = slot + vec * V::LANES;
                *from = keys.keys[slot / BLOCK_TOKENS].add(slot % BLOCK_TOKENS);
            }
            let mut sums = [[V::splat(0.0); VECS]; ROWS];
            F::add_scores(&mut sums, q, &from, head_dim);
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
unsafe fn gather<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
    sums: *mut f32,
    row_len: usize,
    decay: &[f32; 16],
    keys: &KeyTile<F::Cell>,
    column: usize,
    weights: &[f32],
) {
    let weights = weights[..ROWS * KEY_TILE].as_ptr();
    // SAFETY: the columns end at `row_len`; a block's weights are as many as its tokens, or half of that in pairs.
    unsafe {
        let mut totals = [[V::splat(0.0); VECS]; ROWS];
        for (row, totals) in totals.iter_mut().enumerate() {
            for (vec, total) in totals.iter_mut().enumerate() {
                *total = V::load(sums.add(row * row_len + vec * V::LANES)).mul(V::splat(decay[row]));
            }
        }
        for first in (0..keys.slots).step_by(BLOCK_TOKENS) {
            let values = keys.values[first / BLOCK_TOKENS].add(column);
            let slots = BLOCK_TOKENS.min(keys.slots - first);
            let weights = weights.add(if F::IS_PAIRED { first / 2 } else { first });
            F::add_values(&mut totals, weights, KEY_TILE, values, row_len, slots);
        }
        for (row, totals) in totals.iter().enumerate() {
            for (vec, total) in totals.iter().enumerate() {
                total.store(sums.add(row * row_len + vec * V::LANES));
            }
        }
    }
}
