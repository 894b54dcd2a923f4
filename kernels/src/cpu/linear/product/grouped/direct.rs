//! A row by a packed block.

use super::scales::{ScalePointers, ScalesOf};
use super::{BLOCK_WORDS, Task};
use crate::linear::groups::{GROUP, GROUPS, Grouping};
use crate::linear::panels::{PANEL, QUANT_GROUP};
use crate::simd::Vector;

/// Words of a group's inputs in 8 bits.
const GROUP_WORDS: usize = GROUP / 4;

/// The row of a task by some outputs of a block.
pub(super) struct Direct<'a> {
    pub(super) task: &'a Task<'a>,
    /// Of the block in the panel.
    pub(super) index: usize,
    pub(super) grouping: Grouping,
    pub(super) block: &'a [u32],
    /// The row's values that the block takes, as signed bytes.
    pub(super) x: &'a [u32; BLOCK_WORDS],
    /// The first output.
    pub(super) column: usize,
}

impl Direct<'_> {
    /// Adds the products to the sums `[64]`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`, and the block the bits and scales that are said.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Vector, S: ScalesOf, const EIGHT: bool, const VECS: usize>(&self, sums: &mut [f32]) {
        let x = &self.task.x;
        let at = self.task.rows.start * self.task.panels.in_features().div_ceil(QUANT_GROUP) + self.index;
        let group_sums = &x.sums[at * GROUPS..][..GROUPS];
        let (groups, _) = self.x.as_chunks::<GROUP_WORDS>();
        // SAFETY: the caller's promise.
        unsafe {
            let outer = self.block.as_ptr();
            let mut from = ScalePointers { outer, group: outer };
            let mut inner = [V::splat(0.0); VECS];
            for (group, (words, group_sum)) in groups.iter().zip(group_sums).enumerate() {
                let quants = outer.add(self.grouping.group_at(group));
                from.group = quants.add(self.grouping.quant_words());
                let first = if S::MIDDLE == 0 { 0 } else { (-S::MIDDLE * group_sum) as u32 };
                let totals = self.dots::<V, EIGHT, VECS>(quants, words, [V::splat_word(first); VECS]);
                for (vec, (inner, total)) in inner.iter_mut().zip(&totals).enumerate() {
                    let column = self.column + vec * V::LANES;
                    *inner = V::from_integers(*total).mul_add(S::scale(from, column), *inner);
                    if S::HAS_MIN {
                        *inner = V::splat(*group_sum as f32).mul_add(S::min(from, column), *inner);
                    }
                }
            }
            let scale = V::splat(x.scales[at]);
            for (vec, inner) in inner.iter().enumerate() {
                let column = self.column + vec * V::LANES;
                let inner = if S::IS_WHOLE { inner.mul(S::outer(from, column)) } else { *inner };
                let sum = sums[column..].as_mut_ptr();
                inner.mul_add(scale, V::load(sum)).store(sum);
            }
        }
    }

    /// The integer products of a group whose quants begin there, added to what there is.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const EIGHT: bool, const VECS: usize>(
        &self,
        quants: *const u32,
        x: &[u32; GROUP_WORDS],
        mut totals: [V::Words; VECS],
    ) -> [V::Words; VECS] {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = quants.add(self.column);
            if EIGHT {
                for (word, x) in x.iter().enumerate() {
                    let line = quants.add(word * PANEL);
                    for (vec, total) in totals.iter_mut().enumerate() {
                        *total = V::dot_bytes(*total, V::load_words(line.add(vec * V::LANES)), V::splat_word(*x));
                    }
                }
                return totals;
            }
            for (pair, [x_low, x_high]) in x.as_chunks::<2>().0.iter().enumerate() {
                let line = quants.add(pair * PANEL);
                for (vec, total) in totals.iter_mut().enumerate() {
                    let [low, high] = V::nibbles(V::load_words(line.add(vec * V::LANES)));
                    *total = V::dot_bytes(*total, low, V::splat_word(*x_low));
                    *total = V::dot_bytes(*total, high, V::splat_word(*x_high));
                }
            }
            totals
        }
    }
}
