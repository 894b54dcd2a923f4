//! Attention of some query rows, and the heads that share a KV head, over all key tiles.

mod amx;
mod gather;
mod softmax;
mod weights;

use super::format::{DotBf16, KvFormat, Wide, WideBf16};
use super::{AttentionOptions, SequenceView, Span, sees};
use crate::aligned::SharedMut;
use crate::dtype::ComputeDtype;
use crate::matrix::Matrix;
use crate::pool::{Arena, BLOCK_TOKENS, Head, KvPool};
use crate::scratch::Scratch;
use crate::simd::amx::ROWS as TILE_ROWS;
use crate::simd::{Kernel, Vector, row_tiles};
use gather::Gather;

pub(super) use weights::WeightTile;

/// Slots of a key tile: the scores of four blocks are four vectors of 512 bits.
pub(super) const KEY_TILE: usize = 64;
/// The most queries that are held in registers together.
const MAX_ROWS: usize = 6;
/// Lanes of the longest vector.
const LANES: usize = 16;
/// Vectors of keys that are scored together: with more, compilers run out of registers.
const SCORE_VECS: usize = 2;
/// Where the running maximum starts: so low that any score's weight against it is zero, yet finite, so that
/// differences are numbers while nothing has been seen.
const NOTHING_SEEN: f32 = -1e30;

/// Some query rows of a sequence with the query heads of one KV head.
#[derive(Clone, Copy)]
pub(super) struct RowTile<'a> {
    pub(super) pool: &'a KvPool,
    pub(super) layer: usize,
    /// The KV head.
    pub(super) head: usize,
    /// Where its cells are.
    pub(super) place: Head,
    /// Query heads of a KV head.
    pub(super) shared_heads: usize,
    pub(super) q: &'a Matrix,
    pub(super) first_row: usize,
    /// One a row.
    pub(super) positions: &'a [u32],
    pub(super) sequence: SequenceView<'a>,
    pub(super) spans: &'a [Span],
    pub(super) options: AttentionOptions<'a>,
    /// Whether products of bf16 are made by the processor's own tiles.
    pub(super) has_tiles: bool,
    pub(super) out: SharedMut,
    /// Outputs of a row.
    pub(super) out_len: usize,
}

/// The state of the online softmax. A query here is a (row, head) pair: `row * shared_heads + head`. There are places for
/// whole tiles of queries; what those behind the last one hold is nobody's.
struct State<'a> {
    /// `[queries][head_dim]`, scaled; pairs of bf16 where the format wants them.
    q: &'a mut [f32],
    /// `[queries][row_len]`: values weighted so far.
    sums: &'a mut [f32],
    /// The greatest score so far.
    greatest: &'a mut [f32],
    /// `[queries][LANES]`: the sums of weights so far, by lane.
    weights: &'a mut [f32],
    /// `[rows][KEY_TILE]`: infinity where the row sees the key, minus infinity elsewhere.
    mask: &'a mut [f32],
    /// What sums and weights shrink by because of a greater maximum, by query.
    decay: &'a mut [f32],
    /// `[queries][KEY_TILE]`: scores, then weights; pairs of bf16 where the format wants them, in the first half of a
    /// query's place.
    scores: &'a mut [f32],
    /// The values of a key tile, as the processor's tiles.
    packed: &'a mut [f32],
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

impl<C> KeyTile<C> {
    /// The same, of pairs of bf16: what the cells of paired formats are.
    fn as_pairs(&self) -> KeyTile<u32> {
        KeyTile {
            keys: self.keys.map(<*const C>::cast),
            values: self.values.map(<*const C>::cast),
            slots: self.slots,
            masked: self.masked,
        }
    }
}

/// One layer's cells of one KV head, by block.
#[derive(Clone, Copy)]
struct HeadCells<C> {
    keys: *const C,
    values: *const C,
    /// How many cells of u16 (or f32) make one of these.
    per_cell: usize,
}

/// What is computed of a row tile, once the format of keys and values is known.
trait Work {
    /// # Safety
    /// The machine must have the instruction set of `V`; `cells` must be the layer's, of the format.
    unsafe fn run_in<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(&self, cells: HeadCells<F::Cell>);
}

impl Kernel for RowTile<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.run_work::<V, ROWS, VECS>(&self) }
    }
}

impl Work for RowTile<'_> {
    #[inline(always)]
    unsafe fn run_in<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(&self, cells: HeadCells<F::Cell>) {
        let rows = self.positions.len();
        let queries = rows * self.shared_heads;
        // SAFETY: the caller's promise.
        let tiles = unsafe { self.tiles(F::IS_PAIRED) };
        let places = queries.next_multiple_of(TILE_ROWS);
        let lengths = [
            places * self.head_dim().next_multiple_of(LANES),
            places * self.row_len(),
            places,
            places * LANES,
            rows * KEY_TILE,
            places,
            places * KEY_TILE,
            if tiles.is_some() { self.packed_len() } else { 0 },
        ];
        let mut memory = Scratch::take(lengths.iter().sum());
        let mut rest = &mut memory[..];
        let [q, sums, greatest, weights, mask, decay, scores, packed] =
            lengths.map(|length| rest.split_off_mut(..length).expect("as long as all of them"));
        let mut state = State { q, sums, greatest, weights, mask, decay, scores, packed };
        // SAFETY: the caller's promise; `first` and the height stay below `queries`.
        unsafe {
            self.start::<V, F>(&mut state);
            for tile in 0..self.spans.len() {
                let Some(keys) = self.key_tile(tile, cells, state.mask) else { continue };
                if let Some(tiles) = &tiles {
                    let keys = keys.as_pairs();
                    self.score_by_tiles(tiles, &mut state, &keys.keys, queries);
                    self.weigh::<V>(&mut state, tile, keys.masked, F::IS_PAIRED);
                    self.gather_by_tiles::<V>(tiles, &mut state, &keys, queries);
                    continue;
                }
                // Each step over all queries before the next one: within a step they do not wait for each other.
                self.score_all::<V, F, ROWS>(&mut state, &keys, queries);
                self.weigh::<V>(&mut state, tile, keys.masked, F::IS_PAIRED);
                self.gather_all::<V, F, ROWS, VECS>(&mut state, &keys, queries);
            }
            self.finish::<V>(&state, queries);
        }
    }
}

impl RowTile<'_> {
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn run_work<V: Vector, const ROWS: usize, const VECS: usize>(&self, work: &impl Work) {
        // SAFETY: the caller's promise about the machine; the cells are those of the pool's dtype.
        unsafe {
            match self.pool.arenas(self.layer) {
                (Arena::F32(keys), Arena::F32(values)) => {
                    let cells = HeadCells { keys: keys.as_ptr(), values: values.as_ptr(), per_cell: 1 };
                    work.run_in::<V, Wide<f32>, ROWS, VECS>(cells);
                }
                (Arena::F16(keys), Arena::F16(values)) => {
                    let cells = HeadCells { keys: keys.as_ptr(), values: values.as_ptr(), per_cell: 1 };
                    work.run_in::<V, Wide<u16>, ROWS, VECS>(cells);
                }
                (Arena::Bf16(keys), Arena::Bf16(values)) => {
                    let cells =
                        HeadCells { keys: keys.as_ptr().cast(), values: values.as_ptr().cast::<u32>(), per_cell: 2 };
                    match self.options.compute {
                        ComputeDtype::Bf16 => work.run_in::<V, DotBf16, ROWS, VECS>(cells),
                        ComputeDtype::F32 => work.run_in::<V, WideBf16, ROWS, VECS>(cells),
                    }
                }
                _ => unreachable!("K and V have one dtype"),
            }
        }
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
        state.decay.fill(0.0);
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
                    if sees(*row, *key, self.options.window) {
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
            self.place.start(block) / cells.per_cell
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

    /// [`RowTile::score`] of all queries.
    ///
    /// # Safety
    /// As [`RowTile::score`].
    #[inline(always)]
    unsafe fn score_all<V: Vector, F: KvFormat, const ROWS: usize>(
        &self,
        state: &mut State<'_>,
        keys: &KeyTile<F::Cell>,
        queries: usize,
    ) {
        for (first, height) in row_tiles(queries, ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                match height {
                    1 => self.score::<V, F, 1, SCORE_VECS>(state, keys, first),
                    2 => self.score::<V, F, 2, SCORE_VECS>(state, keys, first),
                    3 => self.score::<V, F, 3, SCORE_VECS>(state, keys, first),
                    4 => self.score::<V, F, 4, SCORE_VECS>(state, keys, first),
                    5 => self.score::<V, F, 5, SCORE_VECS>(state, keys, first),
                    _ => self.score::<V, F, MAX_ROWS, SCORE_VECS>(state, keys, first),
                }
            }
        }
    }

    /// [`RowTile::gather`] of all queries.
    ///
    /// # Safety
    /// As [`RowTile::score`].
    #[inline(always)]
    unsafe fn gather_all<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
        &self,
        state: &mut State<'_>,
        keys: &KeyTile<F::Cell>,
        queries: usize,
    ) {
        for (first, height) in row_tiles(queries, ROWS) {
            // SAFETY: the caller's promise.
            unsafe {
                match height {
                    1 => self.gather::<V, F, 1, VECS>(state, keys, first),
                    2 => self.gather::<V, F, 2, VECS>(state, keys, first),
                    3 => self.gather::<V, F, 3, VECS>(state, keys, first),
                    4 => self.gather::<V, F, 4, VECS>(state, keys, first),
                    5 => self.gather::<V, F, 5, VECS>(state, keys, first),
                    _ => self.gather::<V, F, MAX_ROWS, VECS>(state, keys, first),
                }
            }
        }
    }

    /// Scores of `ROWS` queries from `first` on with all slots of a tile: one sum each over ascending elements.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the state must hold `first + ROWS` queries.
    #[inline(always)]
    unsafe fn score<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
        &self,
        state: &mut State<'_>,
        keys: &KeyTile<F::Cell>,
        first: usize,
    ) {
        let head_dim = self.head_dim();
        let q_len = if F::IS_PAIRED { head_dim / 2 } else { head_dim };
        let q = state.q[first * q_len..(first + ROWS) * q_len].as_ptr();
        let scores = state.scores[first * KEY_TILE..(first + ROWS) * KEY_TILE].as_mut_ptr();
        for slot in (0..KEY_TILE).step_by(VECS * V::LANES) {
            // SAFETY: no vector crosses a block's border; the pointers are good for `ROWS` rows.
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

    /// `sums = sums * decay + weights V` of `ROWS` queries from `first` on, over ascending slots.
    ///
    /// # Safety
    /// As [`RowTile::score`].
    #[inline(always)]
    unsafe fn gather<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
        &self,
        state: &mut State<'_>,
        keys: &KeyTile<F::Cell>,
        first: usize,
    ) {
        let row_len = self.row_len();
        let gather = Gather {
            sums: state.sums[first * row_len..(first + ROWS) * row_len].as_mut_ptr(),
            row_len,
            decay: &state.decay[first..first + ROWS],
            weights: state.scores[first * KEY_TILE..(first + ROWS) * KEY_TILE].as_ptr(),
        };
        // SAFETY: the columns end at `row_len`; blocks are as long as their layout says.
        unsafe {
            let mut column = 0;
            while column + VECS * V::LANES <= row_len {
                gather.columns::<V, F, ROWS, VECS>(keys, column);
                column += VECS * V::LANES;
            }
            while column < row_len {
                gather.columns::<V, F, ROWS, 1>(keys, column);
                column += V::LANES;
            }
        }
    }

    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, state: &State<'_>, queries: usize) {
        let (head_dim, row_len) = (self.head_dim(), self.row_len());
        for (query, weights) in state.weights.chunks_exact(LANES).enumerate().take(queries) {
            let (row, head) = (query / self.shared_heads, query % self.shared_heads);
            let start = (self.first_row + row) * self.out_len + (self.head * self.shared_heads + head) * head_dim;
            // SAFETY: no vector is longer than the weights' lanes.
            let weight = unsafe { V::load(weights.as_ptr()).sum_lanes() };
            // SAFETY: inside the output, whose shape is the queries'; this tile alone writes these rows and heads.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(start), head_dim) };
            if weight == 0.0 {
                // Not zero times the sums: they may hold what unseen slots left.
                out.fill(0.0);
                continue;
            }
            let sums = &state.sums[query * row_len..][..head_dim];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / weight);
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
    let from = values.as_mut_ptr();
    let to = from.cast::<u16>();
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
