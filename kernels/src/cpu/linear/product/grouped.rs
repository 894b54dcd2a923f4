//! Products of weights in groups of 32: sums within a group, or half of one, are exact integers, which are scaled (by the weights' scale, then
//! by that of the activations) and summed in f32. Own steps are exact integers over a block of 128.
//!
//! One row reads the packed block, and takes its quants apart in registers. More share a block that is taken apart once, to
//! signed bytes and f32 scales in the second cache. Both make the same integers and round in the same order, so a row's bits do not depend
//! on which of the two it met.

mod direct;
mod scales;
mod unpack;

use std::ops::Range;

use super::{FEW_ROWS, MAX_ROWS, STEP_BLOCK, Task};
use crate::linear::groups::{GROUPS, Grouping, HALVES, Scales};
use crate::linear::panels::{PANEL, QUANT_GROUP, Values};
use crate::simd::{Vector, row_tiles};
use direct::Direct;
use scales::{Min, Nested, Pair, Steps, Symmetric};
use unpack::Unpacked;

/// Rows up to which the packed block is multiplied as it is.
const DIRECT_ROWS: usize = 1;
/// Words of a block's inputs in 8 bits.
const BLOCK_WORDS: usize = QUANT_GROUP / 4;
/// What takes the 128 from four bytes of an activation that was added to them: they are signed then.
const SIGNS: u32 = 0x8080_8080;
/// Blocks that all rows take before the next ones.
const BLOCKS: usize = STEP_BLOCK / BLOCK_WORDS;

impl Task<'_> {
    /// The f32 that [`Task::grouped`] needs for blocks that are taken apart, or for the row.
    pub(super) fn unpacked_len(&self) -> usize {
        match self.panels.values {
            Values::Groups { .. } if self.rows.len() > DIRECT_ROWS => self.blocks_at_once() * Unpacked::LEN,
            // The row's words, of signed bytes.
            Values::Groups { .. } => self.x.stride(),
            _ => 0,
        }
    }

    fn blocks_at_once(&self) -> usize {
        let all = self.panels.in_features().div_ceil(QUANT_GROUP);
        if self.rows.len() <= FEW_ROWS { all } else { all.min(BLOCKS) }
    }

    /// As [`Task::quantized`] for a panel in groups. `unpacked` is of [`Task::unpacked_len`].
    ///
    /// # Safety
    /// As [`Task::blocks`].
    #[inline(always)]
    pub(super) unsafe fn grouped<V: Vector, const ROWS: usize, const VECS: usize>(
        &self,
        grouping: Grouping,
        blocks: &[u32],
        sums: &mut [f32],
        unpacked: &mut [f32],
    ) {
        let words = grouping.block_words();
        if self.rows.len() <= DIRECT_ROWS {
            let stride = self.x.stride();
            let row = &self.x.words[self.rows.start * stride..][..stride];
            // SAFETY: words and f32 have the same size and alignment, and all bits are values of both.
            let x = unsafe { std::slice::from_raw_parts_mut(unpacked.as_mut_ptr().cast::<u32>(), unpacked.len()) };
            x.iter_mut().zip(row).for_each(|(x, word)| *x = word ^ SIGNS);
            for (index, (block, x)) in blocks.chunks_exact(words).zip(x.as_chunks().0).enumerate() {
                let direct = Direct { task: self, index, grouping, block, x };
                // SAFETY: the caller's promise.
                unsafe { direct.multiply::<V, VECS>(sums) };
            }
            return;
        }
        let at_once = self.blocks_at_once();
        for (chunk, blocks) in blocks.chunks(at_once * words).enumerate() {
            let first = chunk * at_once;
            let range = first..first + blocks.len() / words;
            // SAFETY: the caller's promise. What has sums of groups holds two sums of each output in registers.
            unsafe {
                for (block, to) in blocks.chunks_exact(words).zip(unpacked.chunks_exact_mut(Unpacked::LEN)) {
                    unpack::<V>(grouping, block, to);
                }
                match grouping.scales {
                    Scales::Symmetric => self.tiles_of::<V, false, GROUPS, ROWS, 2>(range, unpacked, sums),
                    Scales::Min | Scales::Nested => self.tiles_of::<V, true, GROUPS, ROWS, 2>(range, unpacked, sums),
                    Scales::Pair => self.tiles_of::<V, false, HALVES, ROWS, 2>(range, unpacked, sums),
                    Scales::Steps => self.tiles_of::<V, false, 1, ROWS, VECS>(range, unpacked, sums),
                }
            }
        }
    }

    /// All rows by some blocks that are taken apart.
    ///
    /// # Safety
    /// As [`Task::grouped`].
    #[inline(always)]
    unsafe fn tiles_of<V: Vector, const HAS_MIN: bool, const PARTS: usize, const ROWS: usize, const VECS: usize>(
        &self,
        range: Range<usize>,
        unpacked: &[f32],
        sums: &mut [f32],
    ) {
        let (stride, inputs) = (self.x.stride(), self.panels.in_features());
        let scales = self.x.format.scales(inputs);
        let scales_of_block = scales / inputs.div_ceil(QUANT_GROUP);
        for (row, height) in row_tiles(self.rows.len(), ROWS) {
            let first = self.rows.start + row;
            for column in (0..PANEL).step_by(VECS * V::LANES) {
                for (unpacked, index) in unpacked.chunks_exact(Unpacked::LEN).zip(range.clone()) {
                    let at = first * scales + index * scales_of_block;
                    let tile = Tile::<HAS_MIN, PARTS> {
                        x: self.x.words[first * stride + index * BLOCK_WORDS..].as_ptr(),
                        stride,
                        scales: self.x.scales[at..].as_ptr(),
                        group_sums: self.x.group_sums[at..].as_ptr(),
                        scales_stride: scales,
                        weights: Unpacked::at(unpacked, column),
                        sums: sums[row * PANEL + column..].as_mut_ptr(),
                    };
                    // SAFETY: the caller's promise; the tile lies within rows, panel and block.
                    unsafe {
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

/// Takes a packed block apart.
///
/// # Safety
/// As [`Task::grouped`].
#[inline(always)]
unsafe fn unpack<V: Vector>(grouping: Grouping, block: &[u32], to: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match grouping.scales {
            Scales::Symmetric => Unpacked::fill::<V, Symmetric>(grouping, block, to),
            Scales::Min => Unpacked::fill::<V, Min>(grouping, block, to),
            Scales::Nested => Unpacked::fill::<V, Nested>(grouping, block, to),
            Scales::Pair => Unpacked::fill::<V, Pair>(grouping, block, to),
            Scales::Steps => Unpacked::fill::<V, Steps>(grouping, block, to),
        }
    }
}

/// A tile of sums, and the block that flows into it. `PARTS` of the block are scaled apart: all of it is one, or its groups, or their halves.
struct Tile<const HAS_MIN: bool, const PARTS: usize> {
    x: *const u32,
    /// Words between two rows of x.
    stride: usize,
    /// One, or one for each group. Rows are `scales_stride` apart.
    scales: *const f32,
    /// As `scales`.
    group_sums: *const f32,
    scales_stride: usize,
    weights: Unpacked,
    /// Rows are [`PANEL`] apart.
    sums: *mut f32,
}

// Arrays are walked by reference throughout: by value they would go through memory.
impl<const HAS_MIN: bool, const PARTS: usize> Tile<HAS_MIN, PARTS> {
    /// # Safety
    /// The machine must have the instruction set of `V`; pointers must be good for `ROWS` rows and a block.
    #[inline(always)]
    unsafe fn fill<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match PARTS {
                1 => self.add_block::<V, ROWS, VECS>(),
                GROUPS => self.add_groups::<V, ROWS, VECS>(),
                _ => (0..GROUPS).for_each(|group| self.add_halves::<V, ROWS, VECS>(group)),
            }
        }
    }

    /// Adds the block as one part.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn add_block<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let totals = self.dots::<V, ROWS, VECS>(0, BLOCK_WORDS);
            for (row, totals) in totals.iter().enumerate() {
                let scale = V::splat(*self.scales.add(row * self.scales_stride));
                for (vec, total) in totals.iter().enumerate() {
                    let inner = V::from_integers(*total).mul(V::load(self.weights.outer.add(vec * V::LANES)));
                    let sum = self.sums.add(row * PANEL + vec * V::LANES);
                    inner.mul_add(scale, V::load(sum)).store(sum);
                }
            }
        }
    }

    /// Adds the groups one after the other, to sums that are held in registers meanwhile.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn add_groups<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); VECS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vec, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(self.sums.add(row * PANEL + vec * V::LANES));
                }
            }
            for group in 0..GROUPS {
                let totals = self.dots::<V, ROWS, VECS>(group, BLOCK_WORDS / GROUPS);
                for (row, (sums, totals)) in sums.iter_mut().zip(&totals).enumerate() {
                    let x = row * self.scales_stride + group;
                    let (scale, x_sum) = (V::splat(*self.scales.add(x)), V::splat(*self.group_sums.add(x)));
                    for (vec, (sum, total)) in sums.iter_mut().zip(totals).enumerate() {
                        let at = group * PANEL + vec * V::LANES;
                        let scaled = V::from_integers(*total).mul(V::load(self.weights.scales.add(at)));
                        *sum = scaled.mul_add(scale, *sum);
                        if HAS_MIN {
                            *sum = x_sum.mul_add(V::load(self.weights.mins.add(at)), *sum);
                        }
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(self.sums.add(row * PANEL + vec * V::LANES));
                }
            }
        }
    }

    /// Adds a group whose halves have scales of their own. Registers hold what both come to, and not the sums.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn add_halves<V: Vector, const ROWS: usize, const VECS: usize>(&self, group: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut scaled = [[V::splat(0.0); VECS]; ROWS];
            for half in 0..2 {
                let totals = self.dots::<V, ROWS, VECS>(2 * group + half, BLOCK_WORDS / HALVES);
                for (scaled, totals) in scaled.iter_mut().zip(&totals) {
                    for (vec, (scaled, total)) in scaled.iter_mut().zip(totals).enumerate() {
                        let of_weights = V::load(self.weights.scales.add((2 * group + half) * PANEL + vec * V::LANES));
                        let total = V::from_integers(*total);
                        *scaled = if half == 0 { total.mul(of_weights) } else { total.mul_add(of_weights, *scaled) };
                    }
                }
            }
            for (row, scaled) in scaled.iter().enumerate() {
                let scale = V::splat(*self.scales.add(row * self.scales_stride + group));
                for (vec, scaled) in scaled.iter().enumerate() {
                    let sum = self.sums.add(row * PANEL + vec * V::LANES);
                    scaled.mul_add(scale, V::load(sum)).store(sum);
                }
            }
        }
    }

    /// The integer sums of `words` words, from the part `part` of that length on.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const ROWS: usize, const VECS: usize>(
        &self,
        part: usize,
        words: usize,
    ) -> [[V::Words; VECS]; ROWS] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat_word(0); VECS];
            for (vec, column) in columns.iter_mut().enumerate() {
                *column = V::load_words(self.weights.corrections.add(part * PANEL + vec * V::LANES));
            }
            let mut totals = [columns; ROWS];
            for word in part * words..(part + 1) * words {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_words(self.weights.bytes.add(word * PANEL + vec * V::LANES));
                }
                for (row, totals) in totals.iter_mut().enumerate() {
                    let x = V::splat_word(*self.x.add(row * self.stride + word));
                    for (total, column) in totals.iter_mut().zip(&columns) {
                        *total = V::dot_bytes(*total, x, *column);
                    }
                }
            }
            totals
        }
    }
}
