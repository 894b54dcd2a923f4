//! Products of weights in groups of 32: sums within a group, or half of one, are exact integers, which are scaled and summed in f32.
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
        let (stride, blocks) = (self.x.stride(), self.panels.in_features().div_ceil(QUANT_GROUP));
        for (row, height) in row_tiles(self.rows.len(), ROWS) {
            let first = self.rows.start + row;
            for column in (0..PANEL).step_by(VECS * V::LANES) {
                for (unpacked, index) in unpacked.chunks_exact(Unpacked::LEN).zip(range.clone()) {
                    let tile = Tile::<HAS_MIN, PARTS> {
                        x: self.x.words[first * stride + index * BLOCK_WORDS..].as_ptr(),
                        stride,
                        scales: self.x.scales[first * blocks + index..].as_ptr(),
                        half_sums: self.x.sums[(first * blocks + index) * HALVES..].as_ptr(),
                        blocks,
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

/// A tile of sums, and the block that flows into it. `PARTS` of the block are scaled apart: all of it is one, or its groups, or their halves; of
/// all but groups an outer scale comes last.
struct Tile<const HAS_MIN: bool, const PARTS: usize> {
    x: *const u32,
    /// Words between two rows of x.
    stride: usize,
    /// Rows are `blocks` apart.
    scales: *const f32,
    /// Rows are eight times `blocks` apart.
    half_sums: *const i32,
    blocks: usize,
    weights: Unpacked,
    /// Rows are [`PANEL`] apart.
    sums: *mut f32,
}

impl<const HAS_MIN: bool, const PARTS: usize> Tile<HAS_MIN, PARTS> {
    /// # Safety
    /// The machine must have the instruction set of `V`; pointers must be good for `ROWS` rows and a block.
    #[inline(always)]
    unsafe fn fill<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise. Arrays are walked by reference throughout: by value they would go through memory.
        unsafe {
            if PARTS == 1 {
                let totals = self.dots::<V, ROWS, VECS>(0, BLOCK_WORDS);
                for (row, totals) in totals.iter().enumerate() {
                    let scale = V::splat(*self.scales.add(row * self.blocks));
                    for (vec, total) in totals.iter().enumerate() {
                        let inner = V::from_integers(*total).mul(V::load(self.weights.outer.add(vec * V::LANES)));
                        let sum = self.sums.add(row * PANEL + vec * V::LANES);
                        inner.mul_add(scale, V::load(sum)).store(sum);
                    }
                }
                return;
            }
            let inner = self.parts::<V, ROWS, VECS>();
            for (row, inner) in inner.iter().enumerate() {
                let scale = V::splat(*self.scales.add(row * self.blocks));
                for (vec, inner) in inner.iter().enumerate() {
                    let inner = match PARTS {
                        GROUPS => *inner,
                        _ => inner.mul(V::load(self.weights.outer.add(vec * V::LANES))),
                    };
                    let sum = self.sums.add(row * PANEL + vec * V::LANES);
                    inner.mul_add(scale, V::load(sum)).store(sum);
                }
            }
        }
    }

    /// The sum of the parts, each scaled.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn parts<V: Vector, const ROWS: usize, const VECS: usize>(&self) -> [[V; VECS]; ROWS] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut inner = [[V::splat(0.0); VECS]; ROWS];
            for part in 0..PARTS {
                let totals = self.dots::<V, ROWS, VECS>(part, BLOCK_WORDS / PARTS);
                for (row, (inner, totals)) in inner.iter_mut().zip(&totals).enumerate() {
                    let x = match HAS_MIN {
                        true => self.group_sum(row, part) as f32,
                        false => 0.0,
                    };
                    for (vec, (inner, total)) in inner.iter_mut().zip(totals).enumerate() {
                        let at = part * PANEL + vec * V::LANES;
                        *inner = V::from_integers(*total).mul_add(V::load(self.weights.scales.add(at)), *inner);
                        if HAS_MIN {
                            *inner = V::splat(x).mul_add(V::load(self.weights.mins.add(at)), *inner);
                        }
                    }
                }
            }
            inner
        }
    }

    /// The sum of a row's inputs of a group.
    ///
    /// # Safety
    /// As [`Tile::fill`].
    #[inline(always)]
    unsafe fn group_sum(&self, row: usize, group: usize) -> i32 {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = self.half_sums.add(row * self.blocks * HALVES + 2 * group);
            *halves + *halves.add(1)
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
