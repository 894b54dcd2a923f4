//! How a step of K is read and multiplied.

use crate::linear::activations::Input;
use crate::linear::panels::PANEL;
use crate::simd::{Vector, add_dots, add_products};

/// How a step of K is read and multiplied.
pub(super) trait Element {
    /// A step of x: one value, or a word.
    type X: Copy;
    /// What the panel holds.
    type Weight: Copy;

    /// The row of the panel that holds `step`.
    fn index(step: usize) -> usize;

    fn rows<'a>(x: &Input<'a>) -> &'a [Self::X];

    /// `sums[r][c] += x[r] * w[c]` over `depth` steps, in ascending order.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; x must be good for `depth` steps in each of `ROWS` rows, the
    /// weights for `depth` steps of a panel.
    unsafe fn accumulate<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        x: *const Self::X,
        x_stride: usize,
        weights: *const Self::Weight,
        depth: usize,
    );
}

/// f32 by f32.
pub(super) struct WideF32;

impl Element for WideF32 {
    type X = f32;
    type Weight = f32;

    fn index(step: usize) -> usize {
        step
    }

    fn rows<'a>(x: &Input<'a>) -> &'a [f32] {
        x.values
    }

    #[inline(always)]
    unsafe fn accumulate<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: *const f32,
        depth: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for k in 0..depth {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load(weights.add(k * PANEL + vec * V::LANES));
                }
                add_products(sums, x.add(k), x_stride, &columns);
            }
        }
    }
}

/// f32 by bf16 that is widened on the fly. Blocks begin at even k.
pub(super) struct WideBf16;

impl Element for WideBf16 {
    type X = f32;
    type Weight = u32;

    fn index(step: usize) -> usize {
        step / 2
    }

    fn rows<'a>(x: &Input<'a>) -> &'a [f32] {
        x.values
    }

    #[inline(always)]
    unsafe fn accumulate<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: *const u32,
        depth: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for pair in 0..depth / 2 {
                let pairs = weights.add(pair * PANEL);
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_bf16_low(pairs.add(vec * V::LANES));
                }
                add_products(sums, x.add(2 * pair), x_stride, &columns);
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_bf16_high(pairs.add(vec * V::LANES));
                }
                add_products(sums, x.add(2 * pair + 1), x_stride, &columns);
            }
            if depth % 2 == 1 {
                let pairs = weights.add(depth / 2 * PANEL);
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_bf16_low(pairs.add(vec * V::LANES));
                }
                add_products(sums, x.add(depth - 1), x_stride, &columns);
            }
        }
    }
}

/// Pairs of bf16.
pub(super) struct DotBf16;

impl Element for DotBf16 {
    type X = u32;
    type Weight = u32;

    fn index(step: usize) -> usize {
        step
    }

    fn rows<'a>(x: &Input<'a>) -> &'a [u32] {
        x.words
    }

    #[inline(always)]
    unsafe fn accumulate<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        x: *const u32,
        x_stride: usize,
        weights: *const u32,
        depth: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat_word(0); VECS];
            for pair in 0..depth {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_words(weights.add(pair * PANEL + vec * V::LANES));
                }
                add_dots(sums, x.add(pair), x_stride, &columns);
            }
        }
    }
}
