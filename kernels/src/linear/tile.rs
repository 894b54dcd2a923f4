//! The matrix product of some rows with some panels: blocks of K, then panels, then tiles held in registers.

use std::ops::Range;

use super::panels::{PANEL, Panels, Values};
use crate::aligned::SharedMut;
use crate::simd::{Kernel, Vector, add_products};

/// k values that are summed before the accumulators go back to memory (even: bf16 weights come in pairs). A panel's
/// block fits the L2 cache beside the rows it is multiplied with.
const K_BLOCK: usize = 512;
/// Rows up to which K is not cut: the weights are then read once, as one stream.
const FEW_ROWS: usize = 12;

/// Some rows of x times some panels.
pub(super) struct Task<'a> {
    pub(super) panels: &'a Panels,
    pub(super) bias: Option<&'a [f32]>,
    /// `[all rows, in_features]`
    pub(super) x: &'a [f32],
    pub(super) rows: Range<usize>,
    pub(super) group: Range<usize>,
    /// `[all rows, out_features]`
    pub(super) out: SharedMut,
}

/// Where a tile stands, and what flows into it.
struct Place<'a, E> {
    /// The first input of the tile's first row in this block of K.
    x: *const f32,
    x_stride: usize,
    /// The first weight of the tile's first column in this block of K.
    weights: *const E,
    depth: usize,
    /// The tile's first output.
    out: *mut f32,
    out_stride: usize,
    /// Columns that exist; the tile may be wider.
    width: usize,
    start: Start<'a>,
}

/// What the accumulators start from.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    /// At least as wide as the tile.
    Bias(&'a [f32]),
    /// The sum over the blocks of K before this one.
    Partial,
}

impl Kernel for Task<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: the caller's promise about the machine.
        unsafe {
            match &self.panels.values {
                Values::F32(values) => self.multiply::<V, f32, ROWS, VECS>(values),
                Values::Bf16(pairs) => self.multiply::<V, u32, ROWS, VECS>(pairs),
            }
        }
    }
}

impl Task<'_> {
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn multiply<V: Vector, E: Element, const ROWS: usize, const VECS: usize>(&self, weights: &[E]) {
        let (inputs, outputs) = (self.panels.in_features(), self.panels.out_features());
        let rows = self.rows.len();
        let blocks = if rows <= FEW_ROWS { 1 } else { inputs.div_ceil(K_BLOCK) };
        let block = inputs.div_ceil(blocks).next_multiple_of(2);
        let panel_len = E::index(inputs.next_multiple_of(E::PER_WORD)) * PANEL;
        let tiles = rows.div_ceil(ROWS);
        for k in (0..inputs).step_by(block) {
            for panel in self.group.clone() {
                for tile in 0..tiles {
                    let row = self.rows.start + tile * rows / tiles;
                    let height = self.rows.start + (tile + 1) * rows / tiles - row;
                    for column in (0..PANEL.min(outputs - panel * PANEL)).step_by(VECS * V::LANES) {
                        let output = panel * PANEL + column;
                        let place = Place {
                            x: self.x[row * inputs + k..].as_ptr(),
                            x_stride: inputs,
                            weights: weights[panel * panel_len + E::index(k) * PANEL + column..].as_ptr(),
                            depth: block.min(inputs - k),
                            // SAFETY: inside `out`, which is `[rows, outputs]`.
                            out: unsafe { self.out.at(row * outputs + output) },
                            out_stride: outputs,
                            width: outputs - output,
                            start: match self.bias {
                                _ if k > 0 => Start::Partial,
                                Some(bias) => Start::Bias(&bias[output..]),
                                None => Start::Zero,
                            },
                        };
                        // SAFETY: the place was cut from checked slices, and this task alone has these outputs.
                        unsafe { place.fill::<V, VECS>(height) };
                    }
                }
            }
        }
    }
}

impl<E: Element> Place<'_, E> {
    /// Computes a tile of `height` rows, at most 6.
    ///
    /// # Safety
    /// As [`Place::fill_rows`].
    #[inline(always)]
    unsafe fn fill<V: Vector, const VECS: usize>(&self, height: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match height {
                1 => self.fill_rows::<V, 1, VECS>(),
                2 => self.fill_rows::<V, 2, VECS>(),
                3 => self.fill_rows::<V, 3, VECS>(),
                4 => self.fill_rows::<V, 4, VECS>(),
                5 => self.fill_rows::<V, 5, VECS>(),
                _ => self.fill_rows::<V, 6, VECS>(),
            }
        }
    }

    /// # Safety
    /// The machine must have the instruction set of `V`; the pointers must be good for `ROWS` rows, nobody else may use
    /// the outputs meanwhile.
    #[inline(always)]
    unsafe fn fill_rows<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // At a matrix's right border the tile goes through a buffer as wide as itself.
        let mut border = [0.0_f32; 6 * PANEL];
        let inside = self.width >= VECS * V::LANES;
        let (tile, stride) = if inside { (self.out, self.out_stride) } else { (border.as_mut_ptr(), PANEL) };
        // SAFETY: the caller's promise; `border` holds 6 rows of a whole panel.
        unsafe {
            if !inside && matches!(self.start, Start::Partial) {
                for row in 0..ROWS {
                    let from = self.out.add(row * self.out_stride);
                    tile.add(row * stride).copy_from_nonoverlapping(from, self.width);
                }
            }
            let mut sums = [[V::splat(0.0); VECS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vec, sum) in sums.iter_mut().enumerate() {
                    match self.start {
                        Start::Zero => {}
                        Start::Bias(bias) => *sum = V::load(bias.as_ptr().add(vec * V::LANES)),
                        Start::Partial => *sum = V::load(tile.add(row * stride + vec * V::LANES)),
                    }
                }
            }
            E::accumulate(&mut sums, self.x, self.x_stride, self.weights, self.depth);
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(tile.add(row * stride + vec * V::LANES));
                }
            }
            if !inside {
                for row in 0..ROWS {
                    let to = self.out.add(row * self.out_stride);
                    to.copy_from_nonoverlapping(tile.add(row * stride), self.width);
                }
            }
        }
    }
}

/// A word of packed weights.
trait Element: Copy {
    /// k values in a word.
    const PER_WORD: usize;

    /// The word that holds k, which starts one.
    #[inline(always)]
    fn index(k: usize) -> usize {
        k / Self::PER_WORD
    }

    /// `sums[r][c] += x[r][k] * w[c][k]` for k in ascending order below `depth`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; x must be good for `depth` values in each of `ROWS` rows, the
    /// weights for `depth` k values of a panel.
    unsafe fn accumulate<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        x: *const f32,
        x_stride: usize,
        weights: *const Self,
        depth: usize,
    );
}

impl Element for f32 {
    const PER_WORD: usize = 1;

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

impl Element for u32 {
    const PER_WORD: usize = 2;

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
