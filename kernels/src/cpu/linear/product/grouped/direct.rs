//! A row by a packed block.

use super::scales::{Min, Nested, Pair, ScalePointers, ScalesOf, Steps, Symmetric};
use super::{BLOCK_WORDS, Task};
use crate::linear::activations::half_sums;
use crate::linear::groups::{Bits, GROUP, GROUPS, Grouping, HALF, HALVES, Scales};
use crate::linear::panels::PANEL;
use crate::simd::Vector;

/// Words of a group's inputs in 8 bits.
const GROUP_WORDS: usize = GROUP / 4;
/// Words of half of them.
const HALF_WORDS: usize = HALF / 4;

/// The row of a task by a block.
pub(super) struct Direct<'a> {
    pub(super) task: &'a Task<'a>,
    /// Of the block in the panel.
    pub(super) index: usize,
    pub(super) grouping: Grouping,
    pub(super) block: &'a [u32],
    /// The row's values that the block takes, as signed bytes.
    pub(super) x: &'a [u32; BLOCK_WORDS],
}

impl Direct<'_> {
    /// Adds the products to the sums `[64]`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn multiply<V: Vector, const VECS: usize>(&self, sums: &mut [f32]) {
        let grouping = self.grouping;
        // SAFETY: the caller's promise.
        unsafe {
            match (grouping.bits, grouping.scales) {
                (Bits::Four, Scales::Symmetric) => self.fill::<V, Symmetric, 4, VECS>(sums),
                (Bits::Six, Scales::Symmetric) => self.fill::<V, Symmetric, 6, VECS>(sums),
                (Bits::Eight, Scales::Symmetric) => self.fill::<V, Symmetric, 8, VECS>(sums),
                (Bits::Four, Scales::Min) => self.fill::<V, Min, 4, VECS>(sums),
                (Bits::Six, Scales::Min) => self.fill::<V, Min, 6, VECS>(sums),
                (Bits::Four, Scales::Nested) => self.fill::<V, Nested, 4, VECS>(sums),
                (Bits::Six, Scales::Nested) => self.fill::<V, Nested, 6, VECS>(sums),
                (Bits::Four, Scales::Pair) => self.fill::<V, Pair, 4, VECS>(sums),
                (Bits::Six, Scales::Pair) => self.fill::<V, Pair, 6, VECS>(sums),
                (Bits::Four, Scales::Steps) => self.fill::<V, Steps, 4, VECS>(sums),
                _ => unreachable!("nothing is kept as {grouping:?}"),
            }
        }
    }

    /// # Safety
    /// As [`Direct::multiply`], and the block must have the bits and scales that are said.
    #[inline(always)]
    unsafe fn fill<V: Vector, S: ScalesOf, const BITS: u32, const VECS: usize>(&self, sums: &mut [f32]) {
        // SAFETY: the caller's promise; vectors divide a panel.
        unsafe {
            if !S::IS_WHOLE {
                return self.add_groups::<V, S, BITS, VECS>(sums);
            }
            let mut inner = Line([0.0; PANEL]);
            self.add_groups::<V, S, BITS, VECS>(&mut inner.0);
            let x = &self.task.x;
            let scale = x.scales[self.task.rows.start * x.format.scales(x.width) + self.index];
            let from = ScalePointers { outer: self.block.as_ptr(), group: self.block.as_ptr() };
            for column in (0..PANEL).step_by(V::LANES) {
                let inner = V::load(inner.0[column..].as_ptr()).mul(S::outer(from, column));
                let sum = sums[column..].as_mut_ptr();
                inner.mul_add(V::splat(scale), V::load(sum)).store(sum);
            }
        }
    }

    /// Adds the scaled products of all groups to `sums`; of whole blocks without the scale of the row.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn add_groups<V: Vector, S: ScalesOf, const BITS: u32, const VECS: usize>(&self, sums: &mut [f32]) {
        let x = &self.task.x;
        let (halves, scales) = (half_sums(x.width), x.format.scales(x.width));
        let (half_sums, _) = x.sums[self.task.rows.start * halves + self.index * HALVES..][..HALVES].as_chunks::<2>();
        // Of whole blocks neither is used.
        let scaled = if S::IS_WHOLE { 0 } else { self.task.rows.start * scales + self.index * GROUPS };
        let (scales, group_sums) = (&x.scales[scaled..], &x.group_sums[scaled..]);
        let (groups, _) = self.x.as_chunks::<GROUP_WORDS>();
        // Sums are held in registers if there are enough for all outputs. If not, all outputs still take a group before the next one, so that
        // memory is read nearly in order: by whole blocks AVX2 took twice as long.
        let is_held = VECS * V::LANES == PANEL;
        // SAFETY: the caller's promise; vectors divide a panel, and groups are within the block.
        unsafe {
            let outer = self.block.as_ptr();
            let mut held = [V::splat(0.0); VECS];
            if is_held {
                load(sums, &mut held);
            }
            for (group, (x, half_sums)) in groups.iter().zip(half_sums).enumerate() {
                let quants = outer.add(self.grouping.group_at(group));
                let from = ScalePointers { outer, group: quants.add(self.grouping.quant_words()) };
                let [scale, x_sum] = if S::IS_WHOLE {
                    [1.0, (half_sums[0] + half_sums[1]) as f32]
                } else {
                    [scales[group], group_sums[group]]
                };
                for column in (0..PANEL).step_by(VECS * V::LANES) {
                    let of = Group { quants, from, x, half_sums, scale, x_sum, column };
                    if is_held {
                        of.add_to::<V, S, BITS, VECS>(&mut held);
                    } else {
                        load(&sums[column..], &mut held);
                        of.add_to::<V, S, BITS, VECS>(&mut held);
                        store(&held, &mut sums[column..]);
                    }
                }
            }
            if is_held {
                store(&held, sums);
            }
        }
    }
}

/// A value for each output.
#[repr(align(64))]
struct Line([f32; PANEL]);

/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn load<V: Vector, const VECS: usize>(from: &[f32], to: &mut [V; VECS]) {
    let from = from[..VECS * V::LANES].as_ptr();
    for (vec, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise; as many values are there.
        *to = unsafe { V::load(from.add(vec * V::LANES)) };
    }
}

/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn store<V: Vector, const VECS: usize>(from: &[V; VECS], to: &mut [f32]) {
    let to = to[..VECS * V::LANES].as_mut_ptr();
    for (vec, from) in from.iter().enumerate() {
        // SAFETY: as above.
        unsafe { from.store(to.add(vec * V::LANES)) };
    }
}

/// A group of a block, of some outputs from `column` on.
struct Group<'a> {
    quants: *const u32,
    from: ScalePointers,
    x: &'a [u32; GROUP_WORDS],
    /// The sums of the two halves of x.
    half_sums: &'a [i32; 2],
    /// What x is multiplied with; one where that comes later.
    scale: f32,
    /// The sum of x, scaled.
    x_sum: f32,
    column: usize,
}

impl Group<'_> {
    /// Adds the scaled products to `inner`.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn add_to<V: Vector, S: ScalesOf, const BITS: u32, const VECS: usize>(&self, inner: &mut [V; VECS]) {
        let middle = if S::HAS_MIDDLE { 1 << (BITS - 1) } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            let scale = V::splat(self.scale);
            if S::IS_PAIR {
                let first = self.half_sums.map(|sum| V::splat_word((-middle * sum) as u32));
                let totals = first.map(|first| [first; VECS]);
                let low = self.dots::<V, BITS, VECS>(0, totals[0]);
                let high = self.dots::<V, BITS, VECS>(1, totals[1]);
                for (vec, (inner, (low, high))) in inner.iter_mut().zip(low.iter().zip(&high)).enumerate() {
                    let column = self.column + vec * V::LANES;
                    let scaled = V::from_integers(*low).mul(S::scale(self.from, column));
                    let scaled = V::from_integers(*high).mul_add(S::scale(self.from.of_half(1), column), scaled);
                    *inner = scaled.mul_add(scale, *inner);
                }
                return;
            }
            let first = V::splat_word((-middle * (self.half_sums[0] + self.half_sums[1])) as u32);
            let totals = self.dots::<V, BITS, VECS>(0, [first; VECS]);
            let totals = self.dots::<V, BITS, VECS>(1, totals);
            for (vec, (inner, total)) in inner.iter_mut().zip(&totals).enumerate() {
                let column = self.column + vec * V::LANES;
                let (total, of_weights) = (V::from_integers(*total), S::scale(self.from, column));
                *inner = match S::IS_WHOLE {
                    true => total.mul_add(of_weights, *inner),
                    false => total.mul(of_weights).mul_add(scale, *inner),
                };
                if S::HAS_MIN {
                    *inner = V::splat(self.x_sum).mul_add(S::min(self.from, column), *inner);
                }
            }
        }
    }

    /// The integer products of one of the halves, added to what there is.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn dots<V: Vector, const BITS: u32, const VECS: usize>(
        &self,
        half: usize,
        mut totals: [V::Words; VECS],
    ) -> [V::Words; VECS] {
        let (x, _) = self.x.as_chunks::<HALF_WORDS>();
        let x = &x[half];
        // SAFETY: the caller's promise.
        unsafe {
            match BITS {
                8 => {
                    for (word, x) in x.iter().enumerate() {
                        for (vec, total) in totals.iter_mut().enumerate() {
                            let quants = self.line::<V>(HALF_WORDS * half + word, vec);
                            *total = V::dot_bytes(*total, quants, V::splat_word(*x));
                        }
                    }
                }
                6 => {
                    for (vec, total) in totals.iter_mut().enumerate() {
                        let low = [self.line::<V>(3 * half, vec), self.line::<V>(3 * half + 1, vec)];
                        let quads = V::sixes(low, self.line::<V>(3 * half + 2, vec));
                        for (quants, x) in quads.iter().zip(x) {
                            *total = V::dot_small_bytes(*total, *quants, V::splat_word(*x));
                        }
                    }
                }
                _ => {
                    for (pair, [x_low, x_high]) in x.as_chunks::<2>().0.iter().enumerate() {
                        for (vec, total) in totals.iter_mut().enumerate() {
                            let [low, high] = V::nibbles(self.line::<V>(HALF_WORDS / 2 * half + pair, vec));
                            *total = V::dot_small_bytes(*total, low, V::splat_word(*x_low));
                            *total = V::dot_small_bytes(*total, high, V::splat_word(*x_high));
                        }
                    }
                }
            }
            totals
        }
    }

    /// A vector of a line of quants.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn line<V: Vector>(&self, line: usize, vec: usize) -> V::Words {
        // SAFETY: the caller's promise.
        unsafe { V::load_words(self.quants.add(line * PANEL + self.column + vec * V::LANES)) }
    }
}
