//! The matrix product of some rows with some panels: for each panel its sums `[rows][64]`, over blocks of K, in tiles
//! that are held in registers; then on to where the outputs go.

mod element;
mod grouped;
mod quantized;
mod sink;

use std::ops::Range;

use super::activations::{Format, Input};
use super::panels::{PANEL, Panels, QUANT_GROUP, Values, bf16_words, q8_words};
use crate::scratch::Scratch;
use crate::simd::{Kernel, Vector, amx, row_tiles};
use element::{DotBf16, Element, WideBf16, WideF32};
use quantized::Bytes;

pub(super) use sink::Sink;

/// Steps of k (words, or f32) that all rows take before the next ones: a panel's block of 64 kB stays in the L2 cache
/// while the rows go by.
const STEP_BLOCK: usize = 256;
/// Rows up to which K is not cut: the weights are then read once, as one stream.
const FEW_ROWS: usize = 12;
/// Steps of k that weights are fetched ahead where every row takes them at once.
const FETCH_AHEAD: usize = 32;
/// Words of a cache line.
const LINE_WORDS: usize = 16;
/// The most rows of a tile in registers.
const MAX_ROWS: usize = 6;

/// Some rows of x times some panels.
pub(super) struct Task<'a> {
    pub(super) panels: &'a Panels,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) x: Input<'a>,
    pub(super) rows: Range<usize>,
    pub(super) group: Range<usize>,
    /// Whether products of bf16, and of bytes with weights of 8 bits, are made by [`amx`].
    pub(super) has_tiles: bool,
    pub(super) sink: Sink,
}

impl Kernel for Task<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let rows = self.rows.len();
        // Tiles read and write whole blocks of rows.
        let sums = rows.next_multiple_of(amx::ROWS) * PANEL;
        let mut memory = Scratch::take(sums + self.unpacked_len());
        let (sums, unpacked) = memory.split_at_mut(sums);
        for panel in self.group.clone() {
            // SAFETY: the caller's promise about the machine; the sums hold all rows.
            unsafe {
                self.start(panel, sums);
                self.multiply::<V, ROWS, VECS>(panel, sums, unpacked);
                self.finish::<V>(panel, sums);
            }
        }
    }
}

impl Task<'_> {
    /// The sums begin with the bias, but for those that are in other units.
    fn start(&self, panel: usize, sums: &mut [f32]) {
        match self.bias {
            Some(bias) if self.units().is_none() => {
                let bias = &bias[panel * PANEL..(panel + 1) * PANEL];
                sums.chunks_exact_mut(PANEL).for_each(|row| row.copy_from_slice(bias));
            }
            _ => sums.fill(0.0),
        }
    }

    /// What sums are multiplied with at the end, by output.
    fn units(&self) -> Option<&[f32]> {
        match &self.panels.values {
            Values::Q8 { scales, .. } => Some(scales),
            Values::Groups { units, .. } => units.as_deref(),
            Values::F32(_) | Values::Bf16(_) => None,
        }
    }

    /// Adds all products of a panel to the sums. `unpacked` is memory of [`Task::unpacked_len`].
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the sums must hold all rows, in whole blocks of tiles.
    #[inline(always)]
    unsafe fn multiply<V: Vector, const ROWS: usize, const VECS: usize>(
        &self,
        panel: usize,
        sums: &mut [f32],
        unpacked: &mut [f32],
    ) {
        let inputs = self.panels.in_features();
        // SAFETY: the caller's promise; panels and rows are as long as their formats say.
        unsafe {
            match (&self.panels.values, self.x.format) {
                (Values::F32(values), _) => {
                    self.blocks::<V, WideF32, ROWS, VECS>(values[panel * PANEL * inputs..].as_ptr(), inputs, sums);
                }
                (Values::Bf16(words), Format::F32) => {
                    let words = words[panel * PANEL * bf16_words(inputs)..].as_ptr();
                    self.blocks::<V, WideBf16, ROWS, VECS>(words, inputs, sums);
                }
                (Values::Bf16(words), _) => {
                    let depth = bf16_words(inputs);
                    let words = words[panel * PANEL * depth..].as_ptr();
                    match self.has_tiles {
                        true => self.tiles(words, depth, sums),
                        false => self.blocks::<V, DotBf16, ROWS, VECS>(words, depth, sums),
                    }
                }
                (Values::Q8 { words, corrections, .. }, _) => {
                    let (depth, groups) = (q8_words(inputs), inputs.div_ceil(QUANT_GROUP));
                    let words = words[panel * PANEL * depth..].as_ptr();
                    let corrections = corrections[panel * PANEL * groups..(panel + 1) * PANEL * groups].as_ptr();
                    let scales = self.x.scales[self.rows.start * groups..].as_ptr();
                    let bytes = Bytes { words, corrections, scales, groups };
                    self.quantized::<V, ROWS, VECS>(&bytes, sums);
                }
                (Values::Groups { grouping, blocks, .. }, _) => {
                    let words = inputs.div_ceil(QUANT_GROUP) * grouping.block_words();
                    let blocks = &blocks[panel * words..(panel + 1) * words];
                    self.grouped::<V, ROWS, VECS>(*grouping, blocks, sums, unpacked);
                }
            }
        }
    }

    /// Blocks of K, then tiles of rows, then tiles of columns. `depth` counts k for f32 inputs, else words.
    ///
    /// # Safety
    /// As [`Task::multiply`]; the weights must be good for a panel.
    #[inline(always)]
    unsafe fn blocks<V: Vector, E: Element, const ROWS: usize, const VECS: usize>(
        &self,
        weights: *const E::Weight,
        depth: usize,
        sums: &mut [f32],
    ) {
        let (rows, x_stride) = (self.rows.len(), self.x.stride());
        let x = E::rows(&self.x)[self.rows.start * x_stride..].as_ptr();
        let block = if rows <= FEW_ROWS { depth } else { STEP_BLOCK };
        for step in (0..depth).step_by(block) {
            for (row, height) in row_tiles(rows, ROWS) {
                for column in (0..PANEL).step_by(VECS * V::LANES) {
                    // SAFETY: the caller's promise; the tile lies within rows, panel and block.
                    unsafe {
                        let tile = Tile::<E> {
                            x: x.add(row * x_stride + step),
                            x_stride,
                            weights: weights.add(E::index(step) * PANEL + column),
                            depth: block.min(depth - step),
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

    /// As [`Task::blocks`], by the processor's own tiles.
    ///
    /// # Safety
    /// As [`Task::blocks`], and tiles must be available.
    unsafe fn tiles(&self, words: *const u32, depth: usize, sums: &mut [f32]) {
        let (rows, x_stride) = (self.rows.len(), self.x.stride());
        debug_assert!(self.rows.start.is_multiple_of(amx::ROWS), "tasks begin where tiles do");
        let x = self.x.words[self.rows.start * x_stride..].as_ptr();
        let rows = rows.next_multiple_of(amx::ROWS);
        let (block, ahead) = if rows <= amx::ROWS { (depth, FETCH_AHEAD) } else { (STEP_BLOCK, STEP_BLOCK) };
        for step in (0..depth).step_by(block) {
            let len = block.min(depth - step);
            let product = amx::Product {
                // SAFETY: inside the rows.
                x: unsafe { x.add(step * amx::ROWS) },
                x_stride: amx::ROWS * x_stride,
                // SAFETY: inside the panel.
                panel: unsafe { words.add(step * PANEL) },
                depth: len,
                sums: sums.as_mut_ptr(),
                sums_stride: PANEL,
                rows,
                next: words.wrapping_add((step + ahead.min(len)) * PANEL),
                next_lines: len * PANEL / LINE_WORDS,
            };
            // SAFETY: the rows of activations are allocated in whole tiles, as the sums are.
            unsafe { product.run() };
        }
    }

    /// Takes a panel's sums to where they go.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the sums must hold all rows.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, panel: usize, sums: &mut [f32]) {
        let columns = panel * PANEL..(panel + 1) * PANEL;
        let scales = self.units().map(|units| &units[columns.clone()]);
        let width = PANEL.min(self.panels.out_features() - panel * PANEL);
        for (index, sums) in sums.chunks_exact_mut(PANEL).take(self.rows.len()).enumerate() {
            // SAFETY: the caller's promise; vectors divide a panel, and this task alone has these outputs.
            unsafe {
                if let Some(scales) = scales {
                    for start in (0..PANEL).step_by(V::LANES) {
                        let addend = match self.bias {
                            Some(bias) => V::load(bias[columns.start + start..].as_ptr()),
                            None => V::splat(0.0),
                        };
                        let sum = sums.as_mut_ptr().add(start);
                        V::load(sum).mul_add(V::load(scales.as_ptr().add(start)), addend).store(sum);
                    }
                }
                self.sink.put::<V>(self.rows.start + index, panel, width, sums);
            }
        }
    }
}

/// A tile of sums, and what flows into it.
struct Tile<E: Element> {
    x: *const E::X,
    x_stride: usize,
    weights: *const E::Weight,
    depth: usize,
    /// Rows are [`PANEL`] apart.
    sums: *mut f32,
}

impl<E: Element> Tile<E> {
    /// # Safety
    /// As [`Element::accumulate`], and the sums must be good for `ROWS` rows.
    #[inline(always)]
    unsafe fn fill<V: Vector, const ROWS: usize, const VECS: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat(0.0); VECS]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vec, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(self.sums.add(row * PANEL + vec * V::LANES));
                }
            }
            E::accumulate(&mut sums, self.x, self.x_stride, self.weights, self.depth);
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(self.sums.add(row * PANEL + vec * V::LANES));
                }
            }
        }
    }
}
