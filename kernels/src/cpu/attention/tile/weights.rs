//! Softmax weights as such, summed up over heads.

use super::{HeadCells, KEY_TILE, LANES, RowTile, State, TILE_ROWS, Work};
use crate::attention::format::KvFormat;
use crate::scratch::Scratch;
use crate::simd::{Kernel, Vector, exp};

/// Some query rows of a sequence with every head in turn: adds the mean over heads of their weights to the outputs, a slot
/// each. The tile's own head does not count.
pub(in crate::cpu::attention) struct WeightTile<'a>(pub(in crate::cpu::attention) RowTile<'a>);

/// A key tile that some row sees.
struct SeenTile<'a> {
    tile: usize,
    /// `[queries][KEY_TILE]`, against the greatest score of this tile and those before it.
    weights: &'a [f32],
    /// That score by query; then what the weights are multiplied with.
    factors: &'a mut [f32],
}

impl Kernel for WeightTile<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.run_work::<V, ROWS, VECS>(&self) }
    }
}

impl Work for WeightTile<'_> {
    #[inline(always)]
    unsafe fn run_in<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(&self, cells: HeadCells<F::Cell>) {
        for head in 0..self.0.pool.layout().kv_heads {
            let place = self.0.pool.head(head);
            // SAFETY: the caller's promise.
            unsafe { RowTile { head, place, ..self.0 }.add_weights::<V, F, ROWS>(cells) }
        }
    }
}

impl RowTile<'_> {
    /// The online softmax of attention, which keeps every tile's weights instead of gathering values by them. They stay f32.
    ///
    /// # Safety
    /// As [`Work::run_in`].
    #[inline(always)]
    unsafe fn add_weights<V: Vector, F: KvFormat, const ROWS: usize>(&self, cells: HeadCells<F::Cell>) {
        let rows = self.positions.len();
        let queries = rows * self.shared_heads;
        let places = queries.next_multiple_of(TILE_ROWS);
        // SAFETY: the caller's promise.
        let tiles = unsafe { self.tiles(F::IS_PAIRED) };
        let lengths = [
            places * self.head_dim().next_multiple_of(LANES),
            places,
            places * LANES,
            rows * KEY_TILE,
            places,
            self.spans.len() * places * KEY_TILE,
            self.spans.len() * places,
        ];
        let mut memory = Scratch::take(lengths.iter().sum());
        let mut rest = &mut memory[..];
        let mut take = |length| rest.split_off_mut(..length).expect("as long as all of them");
        let [q, greatest, weights, mask, decay, mut scores, mut factors] = lengths.map(&mut take);
        let mut state = State { q, sums: &mut [], greatest, weights, mask, decay, scores: &mut [], packed: &mut [] };
        let mut seen = Vec::with_capacity(self.spans.len());
        // SAFETY: the caller's promise; `first` and the height stay below `queries`.
        unsafe {
            self.start::<V, F>(&mut state);
            for tile in 0..self.spans.len() {
                let Some(keys) = self.key_tile(tile, cells, state.mask) else { continue };
                state.scores = scores.split_off_mut(..places * KEY_TILE).expect("a place for every tile");
                match &tiles {
                    Some(tiles) => self.score_by_tiles(tiles, &mut state, &keys.as_pairs().keys, queries),
                    None => self.score_all::<V, F, ROWS>(&mut state, &keys, queries),
                }
                self.weigh::<V>(&mut state, tile, keys.masked, false);
                let factors = factors.split_off_mut(..places).expect("a place for every tile");
                factors.copy_from_slice(state.greatest);
                let weights: &mut [f32] = std::mem::take(&mut state.scores);
                seen.push(SeenTile { tile, weights, factors });
            }
            self.normalize::<V>(&mut state, &mut seen, queries);
            seen.iter().for_each(|seen| self.add_tile::<V>(seen));
        }
    }

    /// Turns the greatest scores into what weights are multiplied with: they shrink by later maxima, and sum up to a head's
    /// share of the mean.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn normalize<V: Vector>(&self, state: &mut State<'_>, seen: &mut [SeenTile<'_>], queries: usize) {
        let heads = (self.shared_heads * self.pool.layout().kv_heads) as f32;
        let shares = &mut *state.decay;
        for (share, weights) in shares.iter_mut().zip(state.weights.chunks_exact(LANES)).take(queries) {
            // SAFETY: no vector is longer than the weights' lanes.
            let total = unsafe { V::load(weights.as_ptr()).sum_lanes() };
            *share = if total == 0.0 { 0.0 } else { 1.0 / (total * heads) };
        }
        for seen in seen {
            let places = seen.factors.chunks_exact_mut(V::LANES).zip(state.greatest.chunks_exact(V::LANES));
            for ((factors, greatest), shares) in places.zip(shares.chunks_exact(V::LANES)) {
                // SAFETY: the caller's promise; all are as long as a vector.
                unsafe {
                    let difference = V::load(factors.as_ptr()).sub(V::load(greatest.as_ptr()));
                    exp(difference).mul(V::load(shares.as_ptr())).store(factors.as_mut_ptr());
                }
            }
        }
    }

    /// Adds a tile's weights to the outputs, heads in ascending order.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn add_tile<V: Vector>(&self, seen: &SeenTile<'_>) {
        let first = seen.tile * KEY_TILE;
        let len = KEY_TILE.min(self.out_len - first);
        let by_row = seen.weights.chunks_exact(self.shared_heads * KEY_TILE);
        let rows = by_row.zip(seen.factors.chunks_exact(self.shared_heads)).take(self.positions.len());
        for (row, (weights, factors)) in rows.enumerate() {
            let mut sums = [0.0; KEY_TILE];
            for slot in (0..KEY_TILE).step_by(V::LANES) {
                // SAFETY: the caller's promise; vectors divide a key tile.
                unsafe {
                    let mut sum = V::splat(0.0);
                    for (weights, factor) in weights.chunks_exact(KEY_TILE).zip(factors) {
                        sum = V::load(weights.as_ptr().add(slot)).mul_add(V::splat(*factor), sum);
                    }
                    sum.store(sums.as_mut_ptr().add(slot));
                }
            }
            let start = (self.first_row + row) * self.out_len + first;
            // SAFETY: inside the outputs, as a tile's slots are; this tile alone writes these rows.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(start), len) };
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}
