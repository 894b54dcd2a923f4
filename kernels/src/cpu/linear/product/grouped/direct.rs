//! A row by a packed block.

use super::scales::{ScalePointers, ScalesOf};
use super::{BLOCK_WORDS, Task};
use crate::linear::groups::{GROUP, HALF, HALVES, Grouping};
use crate::linear::panels::{PANEL, QUANT_GROUP};
use crate::simd::Vector;

/// Words of a group's inputs in 8 bits.
const GROUP_WORDS: usize = GROUP / 4;
/// Words of half of them.
const HALF_WORDS: usize = HALF / 4;

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
    pub(super) unsafe fn fill<V: Vector, S: ScalesOf, const BITS: u32, const VECS: usize>(&self, sums: &mut [f32]) {
        let x = &self.task.x;
        let at = self.task.rows.start * self.task.panels.in_features().div_ceil(QUANT_GROUP) + self.index;
        let (half_sums, _) = x.sums[at * HALVES..][..HALVES].as_chunks::<2>();
        let (groups, _) = self.x.as_chunks::<GROUP_WORDS>();
        let middle = if S::HAS_MIDDLE { 1 << (BITS - 1) } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            let outer = self.block.as_ptr();
            let mut from = ScalePointers { outer, group: outer };
            let mut inner = [V::splat(0.0); VECS];
            for (group, (words, half_sums)) in groups.iter().zip(half_sums).enumerate() {
                let quants = outer.add(self.grouping.group_at(group));
                from.group = quants.add(self.grouping.quant_words());
                let [low, high] = halves(words);
                if S::IS_PAIR {
                    let first = half_sums.map(|sum| (-middle * sum) as u32);
                    let totals = self.dots::<V, BITS, VECS>(quants, 0, low, [V::splat_word(first[0]); VECS]);
                    self.scale::<V, S, VECS>(from, &totals, half_sums[0], &mut inner);
                    let totals = self.dots::<V, BITS, VECS>(quants, 1, high, [V::splat_word(first[1]); VECS]);
                    self.scale::<V, S, VECS>(from.of_half(1), &totals, half_sums[1], &mut inner);
                } else {
                    let sum = half_sums[0] + half_sums[1];
                    let first = V::splat_word((-middle * sum) as u32);
                    let totals = self.dots::<V, BITS, VECS>(quants, 0, low, [first; VECS]);
                    let totals = self.dots::<V, BITS, VECS>(quants, 1, high, totals);
                    self.scale::<V, S, VECS>(from, &totals, sum, &mut inner);
                }
            }
            let scale = V::splat(x.scales[at]);
            for (vec, inner) in inner.iter().enumerate() {
                let column = self.column + vec * V::LANES;
                let inner = if S::HAS_OUTER { inner.mul(S::outer(from, column)) } else { *inner };
                let sum = sums[column..].as_mut_ptr();
                inner.mul_add(scale, V::load(sum)).store(sum);
            }
        }
    }

    /// Adds integers to `inner`, scaled. `x_sum` is the sum of the inputs that they are of.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn scale<V: Vector, S: ScalesOf, const VECS: usize>(
        &self,
        from: ScalePointers,
        totals: &[V::Words; VECS],
        x_sum: i32,
        inner: &mut [V; VECS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            for (vec, (inner, total)) in inner.iter_mut().zip(totals).enumerate() {
                let column = self.column + vec * V::LANES;
                *inner = V::from_integers(*total).mul_add(S::scale(from, column), *inner);
                if S::HAS_MIN {
                    *inner = V::splat(x_sum as f32).mul_add(S::min(from, column), *inner);
                }
            }
        }
    }

    /// The integer products of half of a group whose quants begin there, added to what there is.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const BITS: u32, const VECS: usize>(
        &self,
        quants: *const u32,
        half: usize,
        x: &[u32; HALF_WORDS],
        mut totals: [V::Words; VECS],
    ) -> [V::Words; VECS] {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = quants.add(self.column);
            match BITS {
                8 => {
                    for (word, x) in x.iter().enumerate() {
                        for (vec, total) in totals.iter_mut().enumerate() {
                            let quants = line::<V>(quants, HALF_WORDS * half + word, vec);
                            *total = V::dot_bytes(*total, quants, V::splat_word(*x));
                        }
                    }
                }
                6 => {
                    for (vec, total) in totals.iter_mut().enumerate() {
                        let low = [line::<V>(quants, 3 * half, vec), line::<V>(quants, 3 * half + 1, vec)];
                        let quads = V::sixes(low, line::<V>(quants, 3 * half + 2, vec));
                        for (quants, x) in quads.iter().zip(x) {
                            *total = V::dot_bytes(*total, *quants, V::splat_word(*x));
                        }
                    }
                }
                _ => {
                    for (pair, [x_low, x_high]) in x.as_chunks::<2>().0.iter().enumerate() {
                        for (vec, total) in totals.iter_mut().enumerate() {
                            let [low, high] = V::nibbles(line::<V>(quants, HALF_WORDS / 2 * half + pair, vec));
                            *total = V::dot_bytes(*total, low, V::splat_word(*x_low));
                            *total = V::dot_bytes(*total, high, V::splat_word(*x_high));
                        }
                    }
                }
            }
            totals
        }
    }
}

/// Of a line of a panel's outputs the vector `vec`.
///
/// # Safety
/// The machine must have the instruction set of `V`, and the line must be there.
#[inline(always)]
unsafe fn line<V: Vector>(from: *const u32, line: usize, vec: usize) -> V::Words {
    // SAFETY: the caller's promise.
    unsafe { V::load_words(from.add(line * PANEL + vec * V::LANES)) }
}

/// The two halves of a group's words.
#[inline(always)]
fn halves(words: &[u32; GROUP_WORDS]) -> [&[u32; HALF_WORDS]; 2] {
    let (halves, _) = words.as_chunks::<HALF_WORDS>();
    [&halves[0], &halves[1]]
}
