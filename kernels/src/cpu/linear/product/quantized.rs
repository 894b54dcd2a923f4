//! Products of bytes: exact integers within a group, which are then scaled and summed in f32.

use std::ops::Range;

use super::{FEW_ROWS, MAX_ROWS, STEP_BLOCK, Task};
use crate::linear::panels::{PANEL, QUANT_GROUP};
use crate::simd::{Vector, amx, row_tiles};

/// Words of a group of 8-bit values.
const GROUP_WORDS: usize = QUANT_GROUP / 4;

/// A panel of 8-bit weights, and the scales of the rows that it is multiplied with.
pub(super) struct Bytes {
    pub(super) words: *const u32,
    /// `[groups][64]`
    pub(super) corrections: *const i32,
    /// `[rows][groups]`
    pub(super) scales: *const f32,
    pub(super) groups: usize,
}

impl Task<'_> {
    /// As [`Task::blocks`] for 8 bits: exact integers within a group, whose sum is then scaled and added in f32.
    ///
    /// # Safety
    /// As [`Task::blocks`].
    #[inline(always)]
    pub(super) unsafe fn quantized<V: Vector, const ROWS: usize, const VECS: usize>(
        &self,
        bytes: &Bytes,
        sums: &mut [f32],
    ) {
        let (rows, x_stride) = (self.rows.len(), self.x.stride());
        let x = self.x.words[self.rows.start * x_stride..].as_ptr();
        let block = if rows <= FEW_ROWS { bytes.groups } else { STEP_BLOCK / GROUP_WORDS };
        // Whole blocks of rows go by tiles, where there are any, and the others by vectors: integers are exact either way.
        let by_tiles = if self.has_tiles { rows - rows % amx::ROWS } else { 0 };
        for first in (0..bytes.groups).step_by(block) {
            if by_tiles > 0 {
                // SAFETY: the caller's promise; there are as many rows and groups.
                unsafe { self.quantized_tiles::<V>(bytes, first..bytes.groups.min(first + block), by_tiles, sums) };
            }
            for (row, height) in row_tiles(rows - by_tiles, ROWS).map(|(row, height)| (by_tiles + row, height)) {
                for column in (0..PANEL).step_by(VECS * V::LANES) {
                    for group in first..bytes.groups.min(first + block) {
                        // SAFETY: the caller's promise; the tile lies within rows, panel and group.
                        unsafe {
                            let tile = QuantizedTile {
                                x: x.add(row * x_stride + group * GROUP_WORDS),
                                x_stride,
                                weights: bytes.words.add(group * GROUP_WORDS * PANEL + column),
                                corrections: bytes.corrections.add(group * PANEL + column),
                                scales: bytes.scales.add(row * bytes.groups + group),
                                groups: bytes.groups,
                                sums: sums.as_mut_ptr().add(row * PANEL + column),
                            };
                            match height {
                                1 => tile.fill::<V, 1, VECS>(),
                                2 => tile.fill::<V, 2, VECS>(),
                                3 => tile.fill::<V, 3, VECS>(),
                                4 => tile.fill::<V, 4, VECS>(),
                                5 => tile.fill::<V, 5, VECS>(),
                                _ => tile.fill::<V, MAX_ROWS, VECS>(),
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Task<'_> {
    /// Some groups of the first `rows` rows, by the processor's tiles.
    ///
    /// # Safety
    /// As [`Task::blocks`]; tiles must be available, and `rows` a multiple of theirs.
    #[inline(always)]
    unsafe fn quantized_tiles<V: Vector>(&self, bytes: &Bytes, groups: Range<usize>, rows: usize, sums: &mut [f32]) {
        let x_stride = self.x.stride();
        let x = self.x.words[self.rows.start * x_stride..].as_ptr();
        let mut totals = [0_i32; amx::ROWS * PANEL];
        // SAFETY: the caller's promise; a group is whole tiles of k.
        unsafe {
            let tiles = amx::Tiles::configure();
            for first in (0..rows).step_by(amx::ROWS) {
                for group in groups.clone() {
                    let product = amx::ByteProduct {
                        x: x.add(first * x_stride + group * GROUP_WORDS),
                        x_stride,
                        weights: bytes.words.add(group * GROUP_WORDS * PANEL),
                        depth: GROUP_WORDS,
                        start: bytes.corrections.add(group * PANEL),
                        sums: totals.as_mut_ptr(),
                    };
                    product.store(&tiles);
                    for (row, totals) in totals.chunks_exact(PANEL).enumerate() {
                        let scale = V::splat(*bytes.scales.add((first + row) * bytes.groups + group));
                        let sums = sums[(first + row) * PANEL..].as_mut_ptr();
                        for start in (0..PANEL).step_by(V::LANES) {
                            let total = V::from_integers(V::load_words(totals.as_ptr().add(start).cast()));
                            let sum = sums.add(start);
                            total.mul_add(scale, V::load(sum)).store(sum);
                        }
                    }
                }
            }
        }
    }
}

/// A tile of sums, and the group that flows into it.
struct QuantizedTile {
    x: *const u32,
    x_stride: usize,
    weights: *const u32,
    corrections: *const i32,
    /// Rows are `groups` apart.
    scales: *const f32,
    groups: usize,
    /// Rows are [`PANEL`] apart.
    sums: *mut f32,
}

impl QuantizedTile {
    /// # Safety
    /// The machine must have the instruction set of `V`; pointers must be good for `ROWS` rows and a group.
    #[inline(always)]
    unsafe fn fill<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat_word(0); VECS];
            for (vec, column) in columns.iter_mut().enumerate() {
                *column = V::load_words(self.corrections.add(vec * V::LANES).cast());
            }
            let mut totals = [columns; ROWS];
            for word in 0..GROUP_WORDS {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_words(self.weights.add(word * PANEL + vec * V::LANES));
                }
                for (row, totals) in totals.iter_mut().enumerate() {
                    let x = V::splat_word(*self.x.add(row * self.x_stride + word));
                    for (total, column) in totals.iter_mut().zip(&columns) {
                        *total = V::dot_bytes(*total, x, *column);
                    }
                }
            }
            for (row, totals) in totals.iter().enumerate() {
                let scale = V::splat(*self.scales.add(row * self.groups));
                for (vec, total) in totals.iter().enumerate() {
                    let sum = self.sums.add(row * PANEL + vec * V::LANES);
                    V::from_integers(*total).mul_add(scale, V::load(sum)).store(sum);
                }
            }
        }
    }
}
