//! Linear layers: `out = x W^T + bias`, with the weights packed once into panels.
//!
//! The seam for faster matrix products. What every implementation MUST keep is **row invariance**: each output
//! element is one accumulator that starts from the bias and takes the products over k in ascending order, so that the
//! bits of a row do not depend on which other rows are in the batch, on blocking, or on the number of threads.

mod panels;
mod tile;

use rayon::prelude::*;

use crate::aligned::SharedMut;
use crate::simd::{self, Path};
use panels::{PANEL, Panels};
use tile::Task;

/// Rows that one task takes through all its panels: `ROW_BLOCK` rows of one K block stay in the L2 cache.
const ROW_BLOCK: usize = 192;
/// Products below which a second thread costs more than it saves.
const PRODUCTS_PER_TASK: usize = 1 << 17;

/// A linear layer with packed weights. f32 weights are kept as f32; bf16 weights stay bf16 and are widened on the fly,
/// which loses nothing and halves what a decode step reads.
#[derive(Debug)]
pub struct Linear {
    panels: Panels,
    /// Padded with zeros to whole panels; absent where the layer has none.
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Packs f32 weights `[out_features, in_features]`, row-major, and an optional bias `[out_features]`.
    ///
    /// # Panics
    /// If the lengths do not fit the shape, or `in_features` is zero.
    pub fn from_f32(out_features: usize, in_features: usize, weights: &[f32], bias: Option<&[f32]>) -> Self {
        Self::new(Panels::pack_f32(out_features, in_features, weights), bias)
    }

    /// Packs bf16 weights (the upper halves of f32 bits) `[out_features, in_features]`, row-major, and an optional f32
    /// bias `[out_features]`.
    ///
    /// # Panics
    /// If the lengths do not fit the shape, or `in_features` is zero.
    pub fn from_bf16(out_features: usize, in_features: usize, weights: &[u16], bias: Option<&[f32]>) -> Self {
        Self::new(Panels::pack_bf16(out_features, in_features, weights), bias)
    }

    fn new(panels: Panels, bias: Option<&[f32]>) -> Self {
        let out_features = panels.out_features();
        let bias = bias.map(|bias| {
            assert_eq!(bias.len(), out_features, "a bias has one value an output feature");
            let mut padded = bias.to_vec();
            padded.resize(out_features.next_multiple_of(PANEL), 0.0);
            padded
        });
        Self { panels, bias }
    }

    /// Values of an input row.
    pub fn in_features(&self) -> usize {
        self.panels.in_features()
    }

    /// Values of an output row.
    pub fn out_features(&self) -> usize {
        self.panels.out_features()
    }

    /// Bytes of the packed weights.
    pub fn size_in_bytes(&self) -> usize {
        self.panels.size_in_bytes() + self.bias.as_ref().map_or(0, |bias| bias.len() * 4)
    }

    /// Writes weight row `row`, widened to f32, to `out` `[in_features]`: the embedding of token `row`, where the
    /// output head and the embedding table are the same tensor.
    ///
    /// # Panics
    /// If there is no such row or `out` is of another length.
    pub fn weight_row(&self, row: usize, out: &mut [f32]) {
        self.panels.row(row, out);
    }

    /// `out = x W^T + bias` for x `[rows, in_features]` and out `[rows, out_features]`, both row-major, in f32.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn forward(&self, x: &[f32], rows: usize, out: &mut [f32]) {
        self.forward_on(Path::best(), x, rows, out);
    }

    /// [`Linear::forward`] on a given instruction set.
    pub(crate) fn forward_on(&self, path: Path, x: &[f32], rows: usize, out: &mut [f32]) {
        assert_eq!(x.len(), rows * self.in_features(), "input of {rows} rows");
        assert_eq!(out.len(), rows * self.out_features(), "output of {rows} rows");
        let out = SharedMut::new(out);
        let (row_blocks, panel_groups) = self.split(rows);
        let run = |index: usize| {
            let (row_block, group) = (index / panel_groups, index % panel_groups);
            let panels = self.panels.count();
            simd::dispatch(
                path,
                Task {
                    panels: &self.panels,
                    bias: self.bias.as_deref(),
                    x,
                    rows: row_block * rows / row_blocks..(row_block + 1) * rows / row_blocks,
                    group: group * panels / panel_groups..(group + 1) * panels / panel_groups,
                    // Tasks write disjoint tiles: each has its own rows or its own panels.
                    out,
                },
            );
        };
        match row_blocks * panel_groups {
            0 => {}
            1 => run(0),
            tasks => (0..tasks).into_par_iter().with_max_len(1).for_each(run),
        }
    }

    /// How many blocks of rows by groups of panels the work is cut into. Decides speed only, never bits.
    fn split(&self, rows: usize) -> (usize, usize) {
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let products = rows * self.in_features() * self.out_features();
        let wanted = (4 * rayon::current_num_threads()).min(products.div_ceil(PRODUCTS_PER_TASK));
        let panel_groups = wanted.div_ceil(row_blocks.max(1)).clamp(1, self.panels.count().max(1));
        (row_blocks, panel_groups)
    }
}

#[cfg(test)]
mod tests;
