//! A row or two by a packed block.

use super::{BLOCK_WORDS, ScalesOf, Task};
use crate::linear::groups::{GROUP, GROUPS};
use crate::linear::panels::{PANEL, QUANT_GROUP};
use crate::simd::Vector;

/// Words of a group's inputs in 8 bits.
const GROUP_WORDS: usize = GROUP / 4;
/// What takes the 128 from four bytes of an activation that was added to them: they are signed then.
const SIGNS: u32 = 0x8080_8080;

/// All rows of a task by some outputs of a block.
pub(super) struct Direct<'a> {
    pub(super) task: &'a Task<'a>,
    /// Of the block in the panel.
    pub(super) index: usize,
    pub(super) block: &'a [u32],
    /// Where its scales begin.
    pub(super) quant_words: usize,
    /// The first output.
    pub(super) column: usize,
}

impl Direct<'_> {
    /// Adds the products to the sums `[rows][64]`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the task must have `ROWS` rows, and the block the bits and scales that are said.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Vector, S: ScalesOf, const EIGHT: bool, const ROWS: usize, const VECS: usize>(
        &self,
        sums: &mut [f32],
    ) {
        let x = &self.task.x;
        let (blocks, first) = (self.task.panels.in_features().div_ceil(QUANT_GROUP), self.task.rows.start);
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.block.as_ptr().add(self.quant_words);
            let mut inner = [[V::splat(0.0); VECS]; ROWS];
            for group in 0..GROUPS {
                let group_sum =
                    |row: usize| *x.sums.get_unchecked(((first + row) * blocks + self.index) * GROUPS + group);
                let mut totals = [[V::splat_word(0); VECS]; ROWS];
                if S::MIDDLE != 0 {
                    for (row, totals) in totals.iter_mut().enumerate() {
                        *totals = [V::splat_word((-S::MIDDLE * group_sum(row)) as u32); VECS];
                    }
                }
                self.dots::<V, EIGHT, ROWS, VECS>(group, &mut totals);
                for vec in 0..VECS {
                    let column = self.column + vec * V::LANES;
                    let (scale, min): (V, V) = (S::scale(scales, group, column), S::min(scales, group, column));
                    for (row, (inner, totals)) in inner.iter_mut().zip(&totals).enumerate() {
                        inner[vec] = V::from_integers(totals[vec]).mul_add(scale, inner[vec]);
                        if S::HAS_MIN {
                            inner[vec] = V::splat(group_sum(row) as f32).mul_add(min, inner[vec]);
                        }
                    }
                }
            }
            for (row, inner) in inner.iter().enumerate() {
                let scale = V::splat(*x.scales.get_unchecked((first + row) * blocks + self.index));
                for (vec, inner) in inner.iter().enumerate() {
                    let column = self.column + vec * V::LANES;
                    let inner = if S::IS_WHOLE { inner.mul(S::outer(scales, column)) } else { *inner };
                    let sum = sums.as_mut_ptr().add(row * PANEL + column);
                    inner.mul_add(scale, V::load(sum)).store(sum);
                }
            }
        }
    }

    /// Adds the integer products of a group.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const EIGHT: bool, const ROWS: usize, const VECS: usize>(
        &self,
        group: usize,
        totals: &mut [[V::Words; VECS]; ROWS],
    ) {
        let (x, stride) = (&self.task.x, self.task.x.stride());
        // SAFETY: the caller's promise.
        unsafe {
            let x =
                x.words.as_ptr().add(self.task.rows.start * stride + self.index * BLOCK_WORDS + group * GROUP_WORDS);
            let quants = self.block.as_ptr().add(self.column);
            if EIGHT {
                for word in 0..GROUP_WORDS {
                    let line = quants.add((group * GROUP_WORDS + word) * PANEL);
                    for vec in 0..VECS {
                        let quants = V::load_words(line.add(vec * V::LANES));
                        for (row, totals) in totals.iter_mut().enumerate() {
                            let x = V::splat_word(*x.add(row * stride + word) ^ SIGNS);
                            totals[vec] = V::dot_bytes(totals[vec], quants, x);
                        }
                    }
                }
                return;
            }
            for pair in 0..GROUP_WORDS / 2 {
                let line = quants.add((group * GROUP_WORDS / 2 + pair) * PANEL);
                for vec in 0..VECS {
                    let [low, high] = V::nibbles(V::load_words(line.add(vec * V::LANES)));
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let x = x.add(row * stride + 2 * pair);
                        totals[vec] = V::dot_bytes(totals[vec], low, V::splat_word(*x ^ SIGNS));
                        totals[vec] = V::dot_bytes(totals[vec], high, V::splat_word(*x.add(1) ^ SIGNS));
                    }
                }
            }
        }
    }
}
