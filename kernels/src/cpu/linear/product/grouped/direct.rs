//! A row by a packed block.

use super::scales::{Min, Nested, Pair, ScalePointers, ScalesOf, Steps, Symmetric};
use super::{BLOCK_WORDS, Task};
use crate::linear::groups::{Bits, GROUP, Grouping, HALF, HALVES, Scales};
use crate::linear::panels::{PANEL, QUANT_GROUP};
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
        let x = &self.task.x;
        let at = self.task.rows.start * self.task.panels.in_features().div_ceil(QUANT_GROUP) + self.index;
        let (half_sums, _) = x.sums[at * HALVES..][..HALVES].as_chunks::<2>();
        let (groups, _) = self.x.as_chunks::<GROUP_WORDS>();
        // Sums are held in registers if there are enough for all outputs. If not, all outputs still take a group before the next one, so that
        // memory is read nearly in order: by whole blocks AVX2 took twice as long.
        let is_held = VECS * V::LANES == PANEL;
        let mut kept = Line([0.0; PANEL]);
        // SAFETY: the caller's promise; vectors divide a panel, and groups are within the block.
        unsafe {
            let outer = self.block.as_ptr();
            let mut inner = [V::splat(0.0); VECS];
            for (group, (x, half_sums)) in groups.iter().zip(half_sums).enumerate() {
                let quants = outer.add(self.grouping.group_at(group));
                let from = ScalePointers { outer, group: quants.add(self.grouping.quant_words()) };
                for column in (0..PANEL).step_by(VECS * V::LANES) {
                    if !is_held {
                        kept.load(column, &mut inner);
                    }
                    Group { quants, from, x, half_sums, column }.add_to::<V, S, BITS, VECS>(&mut inner);
                    if !is_held {
                        kept.store(column, &inner);
                    }
                }
            }
            if is_held {
                kept.store(0, &inner);
            }
            let (scale, from) = (V::splat(x.scales[at]), ScalePointers { outer, group: outer });
            for column in (0..PANEL).step_by(V::LANES) {
                let inner = V::load(kept.0[column..].as_ptr());
                let inner = if S::HAS_OUTER { inner.mul(S::outer(from, column)) } else { inner };
                let sum = sums[column..].as_mut_ptr();
                inner.mul_add(scale, V::load(sum)).store(sum);
            }
        }
    }
}

/// A value for each output.
#[repr(align(64))]
struct Line([f32; PANEL]);

impl Line {
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn load<V: Vector, const VECS: usize>(&self, column: usize, to: &mut [V; VECS]) {
        let from = self.0[column..][..VECS * V::LANES].as_ptr();
        for (vec, to) in to.iter_mut().enumerate() {
            // SAFETY: the caller's promise; as many values are there.
            *to = unsafe { V::load(from.add(vec * V::LANES)) };
        }
    }

    /// # Safety
    /// As [`Line::load`].
    #[inline(always)]
    unsafe fn store<V: Vector, const VECS: usize>(&mut self, column: usize, from: &[V; VECS]) {
        let to = self.0[column..][..VECS * V::LANES].as_mut_ptr();
        for (vec, from) in from.iter().enumerate() {
            // SAFETY: as above.
            unsafe { from.store(to.add(vec * V::LANES)) };
        }
    }
}

/// A group of a block, of some outputs from `column` on.
struct Group<'a> {
    quants: *const u32,
    from: ScalePointers,
    x: &'a [u32; GROUP_WORDS],
    /// The sums of the two halves of x.
    half_sums: &'a [i32; 2],
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
            if S::IS_PAIR {
                let first = self.half_sums.map(|sum| (-middle * sum) as u32);
                let totals = self.dots::<V, BITS, VECS>(0, [V::splat_word(first[0]); VECS]);
                self.scale::<V, S, VECS>(self.from, &totals, inner);
                let totals = self.dots::<V, BITS, VECS>(1, [V::splat_word(first[1]); VECS]);
                self.scale::<V, S, VECS>(self.from.of_half(1), &totals, inner);
            } else {
                let first = V::splat_word((-middle * self.x_sum()) as u32);
                let totals = self.dots::<V, BITS, VECS>(0, [first; VECS]);
                let totals = self.dots::<V, BITS, VECS>(1, totals);
                self.scale::<V, S, VECS>(self.from, &totals, inner);
            }
        }
    }

    /// The sum of x.
    #[inline(always)]
    fn x_sum(&self) -> i32 {
        self.half_sums[0] + self.half_sums[1]
    }

    /// Adds integers to `inner`, scaled, and least values.
    ///
    /// # Safety
    /// As [`Direct::fill`].
    #[inline(always)]
    unsafe fn scale<V: Vector, S: ScalesOf, const VECS: usize>(
        &self,
        from: ScalePointers,
        totals: &[V::Words; VECS],
        inner: &mut [V; VECS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            for (vec, (inner, total)) in inner.iter_mut().zip(totals).enumerate() {
                let column = self.column + vec * V::LANES;
                *inner = V::from_integers(*total).mul_add(S::scale(from, column), *inner);
                if S::HAS_MIN {
                    *inner = V::splat(self.x_sum() as f32).mul_add(S::min(from, column), *inner);
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
