//! Scores and weighted values by the processor's own tiles. A block's K is tiles already (`[head_dim / 2][16][2]`: one for
//! each 32 elements); V, whose pairs are tokens', is copied into tiles, as one needs the tokens of two blocks.

use super::{KEY_TILE, KeyTile, RowTile, State};
use crate::pool::BLOCK_TOKENS;
use crate::simd::Vector;
use crate::simd::amx::{ROWS, Strip, Tiles, WORDS};

/// Words of a tile.
const TILE: usize = ROWS * WORDS;
/// Pairs of slots in a key tile.
const PAIRS: usize = KEY_TILE / 2;

impl RowTile<'_> {
    /// Tiles for this thread, where scores and values are made by them.
    ///
    /// # Safety
    /// Tiles must be available where `has_tiles` says so.
    pub(super) unsafe fn tiles(&self, is_paired: bool) -> Option<Tiles> {
        let fits = self.head_dim().is_multiple_of(2 * WORDS);
        // SAFETY: the caller's promise.
        (is_paired && self.has_tiles && fits).then(|| unsafe { Tiles::configure() })
    }

    /// f32 that the values of a key tile take as tiles.
    pub(super) fn packed_len(&self) -> usize {
        PAIRS * self.row_len()
    }

    /// As [`RowTile::score`], of all queries.
    ///
    /// # Safety
    /// The state must hold whole tiles of queries, the keys be those of a block each.
    pub(super) unsafe fn score_by_tiles(
        &self,
        tiles: &Tiles,
        state: &mut State<'_>,
        keys: &[*const u32],
        queries: usize,
    ) {
        let stride = self.head_dim() / 2;
        for (pair, columns) in keys.as_chunks::<2>().0.iter().enumerate() {
            let strip = Strip {
                x: state.q.as_ptr().cast(),
                x_stride: stride,
                columns: *columns,
                depth: stride,
                // SAFETY: inside a row of scores.
                sums: unsafe { state.scores.as_mut_ptr().add(pair * 2 * BLOCK_TOKENS) },
                sums_stride: KEY_TILE,
                rows: queries.next_multiple_of(ROWS),
            };
            // SAFETY: the caller's promise.
            unsafe { strip.store(tiles) };
        }
    }

    /// As [`RowTile::gather`], of all queries.
    ///
    /// # Safety
    /// As [`RowTile::score_by_tiles`], and the machine must have the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn gather_by_tiles<V: Vector>(
        &self,
        tiles: &Tiles,
        state: &mut State<'_>,
        keys: &KeyTile<u32>,
        queries: usize,
    ) {
        let row_len = self.row_len();
        for (sums, decay) in state.sums.chunks_exact_mut(row_len).zip(&*state.decay).take(queries) {
            // Mostly the maximum stays.
            if *decay != 1.0 {
                for start in (0..row_len).step_by(V::LANES) {
                    // SAFETY: vectors divide a row of values.
                    unsafe {
                        let sums = sums.as_mut_ptr().add(start);
                        V::load(sums).mul(V::splat(*decay)).store(sums);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { pack(keys, row_len, state.packed) };
        for column in (0..row_len).step_by(2 * WORDS) {
            let packed = state.packed[column * PAIRS..].as_ptr().cast::<u32>();
            let strip = Strip {
                x: state.scores.as_ptr().cast(),
                x_stride: KEY_TILE,
                // SAFETY: `row_len` is `head_dim`, which 32 divides.
                columns: [packed, unsafe { packed.add(PAIRS * WORDS) }],
                depth: PAIRS,
                // SAFETY: inside a row of sums.
                sums: unsafe { state.sums.as_mut_ptr().add(column) },
                sums_stride: row_len,
                rows: queries.next_multiple_of(ROWS),
            };
            // SAFETY: the caller's promise.
            unsafe { strip.add(tiles) };
        }
    }
}

/// Copies the values of a key tile to `[row / 16][32][16]` pairs. What lies behind the slots that are seen may hold anything,
/// and becomes zero.
///
/// # Safety
/// The values must be blocks' of that row length; `to` must hold them all.
#[inline(always)]
unsafe fn pack(keys: &KeyTile<u32>, row_len: usize, to: &mut [f32]) {
    let to = to[..PAIRS * row_len].as_mut_ptr().cast::<[u32; WORDS]>();
    for pair in 0..PAIRS {
        let (block, row) = (pair / (BLOCK_TOKENS / 2), pair % (BLOCK_TOKENS / 2));
        let mask: u32 = match keys.slots.saturating_sub(2 * pair) {
            0 => 0,
            1 => 0xffff,
            _ => u32::MAX,
        };
        // SAFETY: the caller's promise; the memory starts on a cache line, as rows of values do.
        unsafe {
            let from = keys.values[block].add(row * row_len).cast::<[u32; WORDS]>();
            for column in 0..row_len / WORDS {
                let words = from.add(column).read();
                to.add(column * PAIRS + pair).write(words.map(|word| word & mask));
            }
        }
    }
}

const _: () = assert!(PAIRS * WORDS == 2 * TILE, "a column of values is two tiles");
