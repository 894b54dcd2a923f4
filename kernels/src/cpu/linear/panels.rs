//! Packed weights.

use std::borrow::Cow;

use super::Precision;
use super::groups::{Bits, GROUP, GROUPS, GroupRow, Grouping, OWN, Scales};
use crate::aligned::Aligned;
use crate::numa::Shares;
use crate::simd::amx;

/// Output features of a panel: four vectors of 512 bits, or four tiles.
pub(super) const PANEL: usize = 64;
/// Input features whose activations share a scale in 8-bit products.
pub(super) const QUANT_GROUP: usize = 128;
/// Columns of gate and of up that alternate in a fused layer.
pub(crate) const GATE_COLUMNS: usize = 16;

/// The weights of a linear layer in panels of [`PANEL`] output features; within a panel, k is the slow index, so that a
/// kernel reads one stream. The last panel is padded with zeros, as is k where it comes in steps.
///
/// ```text
/// F32   k: w[64p..64p+64][k]                                            f32
/// Bf16  k, k + 1: pairs, the lower k in the low half                    u32, k padded to whole tiles of 32
/// Q8    k .. k + 4: quads of signed bytes, the lowest k lowest          u32, k padded to whole groups of 128
/// Groups  128 inputs after each other, see [`Grouping::block_words`]
/// ```
#[derive(Debug)]
pub(super) struct Panels {
    in_features: usize,
    out_features: usize,
    /// The panels of each NUMA node.
    shares: Shares,
    pub(super) values: Values,
}

/// The element type of packed weights.
#[derive(Debug)]
pub(super) enum Values {
    F32(Aligned<f32>),
    Bf16(Aligned<u32>),
    Q8 {
        words: Aligned<u32>,
        /// `[panels][groups][64]`: minus 128 times the group's sum of weights, which takes back the 128 that makes
        /// activations unsigned.
        corrections: Aligned<i32>,
        /// `[panels][64]`: what a weight's unit is worth, by output feature.
        scales: Aligned<f32>,
    },
    Groups {
        grouping: Grouping,
        /// `[panels][blocks]`, each block as [`Grouping::block_words`] draws it.
        blocks: Aligned<u32>,
        /// `[panels][64]`: what a whole output is multiplied with, where there is such a factor.
        units: Option<Aligned<f32>>,
    },
}

impl Grouping {
    /// Words of the quants of a group of 32 inputs to a panel's outputs.
    pub(super) const fn quant_words(self) -> usize {
        match self.bits {
            Bits::Four => GROUP / 8 * PANEL,
            Bits::Six => GROUP / 16 * 3 * PANEL,
            Bits::Eight => GROUP / 4 * PANEL,
        }
    }

    /// Words of a group: its quants, and what they are scaled with.
    const fn group_words(self) -> usize {
        self.quant_words()
            + match self.scales {
                Scales::Symmetric | Scales::Nested | Scales::Pair | Scales::Steps => PANEL / 2,
                Scales::Min => PANEL,
            }
    }

    /// Words of what all groups of a block are scaled with.
    pub(super) const fn outer_words(self) -> usize {
        match self.scales {
            Scales::Symmetric | Scales::Min => 0,
            Scales::Nested => PANEL,
            Scales::Pair | Scales::Steps => PANEL / 2,
        }
    }

    /// Words of a block: the quants of 128 inputs to a panel's outputs and all that they are scaled with, in the order in which a row meets
    /// them: it is multiplied with one stream. With o the output, the outer scales, then for each of four groups of 32 inputs:
    ///
    /// ```text
    /// 4 bits     [4][o 64]  u32: k .. k + 4 in the low halves of its bytes, k + 4 .. k + 8 in the high ones
    /// 6 bits     [2] by 16 inputs: [2][o 64] u32 as of 4 bits; [o 64] u32: bits 4 and 5 of k .. k + 4 in the lowest two of its bytes, of the
    ///            next four inputs in the two above, and so on
    /// 8 bits     [8][o 64]  u32: k .. k + 4
    /// Symmetric  scale f16 [o 64]
    /// Min        scale f16 [o 64], min f16 [o 64]
    /// Nested     scale u8 [o 64], min u8 [o 64]; outer: scale f16 [o 64], min f16 [o 64]
    /// Pair       scale + 128 u8 [o 64] of the first 16 inputs, of the others u8 [o 64]; outer: scale f16 [o 64]
    /// Steps      scale u8 [o 64], min + 128 u8 [o 64]; outer: scale f16 [o 64]
    /// ```
    pub(super) const fn block_words(self) -> usize {
        self.outer_words() + GROUPS * self.group_words()
    }

    /// Where a group begins in its block.
    pub(super) const fn group_at(self, group: usize) -> usize {
        self.outer_words() + group * self.group_words()
    }

    /// What a weight takes in memory, all scales included.
    pub fn bits_per_weight(self) -> f64 {
        (self.block_words() * 32) as f64 / (QUANT_GROUP * PANEL) as f64
    }

    /// Writes a group's quants to their column.
    fn place_quants(self, quants: &[u8], column: usize, words: &mut [u32]) {
        let mut quads = [0; GROUP / 4];
        quads.iter_mut().zip(quants.as_chunks::<4>().0).for_each(|(quad, bytes)| *quad = u32::from_le_bytes(*bytes));
        let (lines, _) = words.as_chunks_mut::<PANEL>();
        match self.bits {
            Bits::Four => {
                for (line, [low, high]) in lines.iter_mut().zip(quads.as_chunks::<2>().0) {
                    line[column] = low | high << 4;
                }
            }
            Bits::Six => {
                for (lines, quads) in lines.as_chunks_mut::<3>().0.iter_mut().zip(quads.as_chunks::<4>().0) {
                    let low = quads.map(|quad| quad & 0x0f0f_0f0f);
                    let high = quads.map(|quad| quad >> 4 & 0x0303_0303);
                    lines[0][column] = low[0] | low[1] << 4;
                    lines[1][column] = low[2] | low[3] << 4;
                    lines[2][column] = high[0] | high[1] << 2 | high[2] << 4 | high[3] << 6;
                }
            }
            Bits::Eight => lines.iter_mut().zip(quads).for_each(|(line, quad)| line[column] = quad),
        }
    }

    /// Writes a row's values of a block to its column.
    fn place(self, row: &GroupRow, index: usize, column: usize, block: &mut [u32]) {
        let halves = |scales: &mut [u32], at: usize, half: u16| {
            let shift = 16 * (at % 2);
            scales[at / 2] = scales[at / 2] & !(0xffff << shift) | u32::from(half) << shift;
        };
        let bytes = |scales: &mut [u32], at: usize, byte: u16| {
            let shift = 8 * (at % 4);
            scales[at / 4] = scales[at / 4] & !(0xff << shift) | u32::from(byte & 0xff) << shift;
        };
        for (group, quants) in row.quants[index * QUANT_GROUP..][..QUANT_GROUP].chunks_exact(GROUP).enumerate() {
            let (words, scales) = block[self.group_at(group)..][..self.group_words()].split_at_mut(self.quant_words());
            self.place_quants(quants, column, words);
            let (scale, min) = (row.scales[index * GROUPS + group], row.mins[index * GROUPS + group]);
            match self.scales {
                Scales::Symmetric => halves(scales, column, scale),
                Scales::Min => {
                    halves(scales, column, scale);
                    halves(scales, PANEL + column, min);
                }
                Scales::Nested | Scales::Pair | Scales::Steps => {
                    bytes(scales, column, scale);
                    bytes(scales, PANEL + column, min);
                }
            }
        }
        for (at, outer) in row.outer[index].iter().enumerate().take(self.outer_words() / (PANEL / 2)) {
            halves(block, at * PANEL + column, *outer);
        }
    }
}

/// Where weight rows come from: row `o`, `[in_features]`, or nothing where an output feature only pads.
pub(super) trait Rows<T>: Fn(usize) -> Option<T> + Sync {}
impl<T, F: Fn(usize) -> Option<T> + Sync> Rows<T> for F {}

impl Panels {
    pub(super) fn pack_f32<'a>(out_features: usize, in_features: usize, rows: impl Rows<Cow<'a, [f32]>>) -> Self {
        let shares = shares(out_features, PANEL * in_features);
        let mut packed = shares.zeros::<f32>(PANEL * in_features);
        shares.fill(packed.chunks_mut(PANEL * in_features), |panel, packed| {
            interleave(panel, out_features, &rows, |column, row| {
                for (k, weight) in row.iter().enumerate() {
                    packed[k * PANEL + column] = *weight;
                }
            });
        });
        Self { in_features, out_features, shares, values: Values::F32(packed) }
    }

    pub(super) fn pack_bf16<'a>(out_features: usize, in_features: usize, rows: impl Rows<Cow<'a, [u16]>>) -> Self {
        let pairs = bf16_words(in_features);
        let shares = shares(out_features, PANEL * pairs);
        let mut packed = shares.zeros::<u32>(PANEL * pairs);
        shares.fill(packed.chunks_mut(PANEL * pairs), |panel, packed| {
            // Sixteen columns at a time: a whole line of each row of the panel is written before the next one.
            for first in (0..PANEL).step_by(16) {
                let columns: [Option<Cow<'_, [u16]>>; 16] = std::array::from_fn(|column| {
                    let output = panel * PANEL + first + column;
                    if output < out_features { rows(output) } else { None }
                });
                for (pair, line) in packed.chunks_exact_mut(PANEL).take(in_features.div_ceil(2)).enumerate() {
                    for (word, row) in line[first..first + 16].iter_mut().zip(&columns) {
                        let Some(row) = row else { continue };
                        let high = row.get(2 * pair + 1).copied().unwrap_or(0);
                        *word = u32::from(high) << 16 | u32::from(row[2 * pair]);
                    }
                }
            }
        });
        Self { in_features, out_features, shares, values: Values::Bf16(packed) }
    }

    /// [`round_to_q8`] of each row.
    pub(super) fn pack_q8<'a>(out_features: usize, in_features: usize, rows: impl Rows<Cow<'a, [f32]>>) -> Self {
        let (words, groups) = (q8_words(in_features), in_features.div_ceil(QUANT_GROUP));
        let shares = shares(out_features, PANEL * words);
        let mut packed = shares.zeros::<u32>(PANEL * words);
        let mut corrections = shares.zeros::<i32>(PANEL * groups);
        let mut scales = shares.zeros::<f32>(PANEL);
        let parts = packed.chunks_mut(PANEL * words).zip(corrections.chunks_mut(PANEL * groups));
        shares.fill(parts.zip(scales.chunks_mut(PANEL)), |panel, ((packed, corrections), scales)| {
            interleave(panel, out_features, &rows, |column, row| {
                scales[column] = round_to_q8(&row, |k, byte| {
                    packed[k / 4 * PANEL + column] |= u32::from(byte as u8) << (8 * (k % 4));
                    corrections[k / QUANT_GROUP * PANEL + column] -= 128 * i32::from(byte);
                });
            });
        });
        Self { in_features, out_features, shares, values: Values::Q8 { words: packed, corrections, scales } }
    }

    /// `fill` writes an output's row, or says that there is none.
    pub(super) fn pack_groups(
        out_features: usize,
        in_features: usize,
        grouping: Grouping,
        fill: impl Fn(usize, &mut GroupRow) -> bool + Sync,
    ) -> Self {
        let (words, blocks) = (grouping.block_words(), in_features.div_ceil(QUANT_GROUP));
        let shares = shares(out_features, blocks * words);
        let mut packed = shares.zeros::<u32>(blocks * words);
        let mut units = shares.zeros::<f32>(PANEL);
        shares.fill(packed.chunks_mut(blocks * words).zip(units.chunks_mut(PANEL)), |panel, (packed, units)| {
            let mut row = GroupRow::new(in_features);
            let columns = PANEL.min(out_features - panel * PANEL);
            for (column, unit) in units.iter_mut().enumerate().take(columns) {
                if fill(panel * PANEL + column, &mut row) {
                    *unit = row.unit;
                    let blocks = packed.chunks_exact_mut(words).enumerate();
                    blocks.for_each(|(index, block)| grouping.place(&row, index, column, block));
                }
            }
        });
        let units = (grouping.scales == Scales::Steps).then_some(units);
        Self { in_features, out_features, shares, values: Values::Groups { grouping, blocks: packed, units } }
    }

    pub(super) fn in_features(&self) -> usize {
        self.in_features
    }

    pub(super) fn out_features(&self) -> usize {
        self.out_features
    }

    /// The panels of each NUMA node.
    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The number of panels.
    pub(super) fn count(&self) -> usize {
        self.out_features.div_ceil(PANEL)
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        4 * match &self.values {
            Values::F32(values) => values.len(),
            Values::Bf16(pairs) => pairs.len(),
            Values::Q8 { words, corrections, scales } => words.len() + corrections.len() + scales.len(),
            Values::Groups { blocks, units, .. } => blocks.len() + units.as_ref().map_or(0, |units| units.len()),
        }
    }

    /// Weight row `row`, widened, to `out` `[in_features]`.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "weight row {row} of {}", self.out_features);
        assert_eq!(out.len(), self.in_features, "a weight row's length");
        let (panel, column) = (row / PANEL, row % PANEL);
        match &self.values {
            Values::F32(values) => {
                let panel = &values[panel * PANEL * self.in_features..];
                for (k, out) in out.iter_mut().enumerate() {
                    *out = panel[k * PANEL + column];
                }
            }
            Values::Bf16(pairs) => {
                let panel = &pairs[panel * PANEL * bf16_words(self.in_features)..];
                for (pair, out) in out.chunks_mut(2).enumerate() {
                    let bits = panel[pair * PANEL + column];
                    out[0] = f32::from_bits(bits << 16);
                    if let Some(out) = out.get_mut(1) {
                        *out = f32::from_bits(bits & 0xffff_0000);
                    }
                }
            }
            Values::Q8 { words, scales, .. } => {
                let scale = scales[row];
                let panel = &words[panel * PANEL * q8_words(self.in_features)..];
                for (quad, out) in out.chunks_mut(4).enumerate() {
                    let bytes = panel[quad * PANEL + column].to_le_bytes();
                    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = f32::from(byte as i8) * scale);
                }
            }
            Values::Groups { grouping, blocks, units } => {
                let words = grouping.block_words();
                let panel = &blocks[panel * self.in_features.div_ceil(QUANT_GROUP) * words..];
                let unit = units.as_ref().map_or(1.0, |units| units[row]);
                for (block, out) in panel.chunks_exact(words).zip(out.chunks_mut(QUANT_GROUP)) {
                    grouping.weights(block, column, unit, out);
                }
            }
        }
    }
}

/// The panels of each NUMA node, where a panel is so many values of four bytes.
fn shares(out_features: usize, panel: usize) -> Shares {
    let panels = out_features.div_ceil(PANEL);
    Shares::of(panels, 4 * panels * panel)
}

/// Rounds an output's weights to 8 bits with a scale of their own: the greatest magnitude / 127. `place` gets each input's; the scale comes back.
pub fn round_to_q8(row: &[f32], mut place: impl FnMut(usize, i8)) -> f32 {
    let greatest = row.iter().fold(0.0_f32, |greatest, weight| greatest.max(weight.abs()));
    let inverse = 127.0 / greatest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    row.iter().enumerate().for_each(|(k, weight)| place(k, (weight * inverse).round_ties_even() as i8));
    // A weight that is not finite makes the scale NaN, so that a damaged file shows.
    greatest / 127.0 + row.iter().map(|weight| 0.0 * weight).sum::<f32>()
}

/// Words of a column of bf16 pairs.
pub(super) fn bf16_words(in_features: usize) -> usize {
    in_features.div_ceil(2).next_multiple_of(amx::WORDS)
}

/// Words of a column of byte quads.
pub(super) fn q8_words(in_features: usize) -> usize {
    in_features.next_multiple_of(QUANT_GROUP) / 4
}

/// [`Panels::size_in_bytes`] of weights `[out_features, in_features]`, before they are packed. f32 weights are meant by
/// [`Precision::F32`]: bf16 weights are packed as by [`Precision::Bf16`] whatever is computed with them.
pub(crate) fn packed_bytes(out_features: usize, in_features: usize, precision: Precision) -> u64 {
    let columns = out_features.div_ceil(PANEL) * PANEL;
    let words = match precision {
        Precision::Q4 => return grouped_bytes(out_features, in_features, OWN),
        Precision::Q8 => q8_words(in_features) + in_features.div_ceil(QUANT_GROUP) + 1,
        Precision::Bf16 => bf16_words(in_features),
        Precision::F32 => in_features,
    };
    4 * columns as u64 * words as u64
}

/// [`packed_bytes`] of weights in groups.
pub(crate) fn grouped_bytes(out_features: usize, in_features: usize, grouping: Grouping) -> u64 {
    let panels = out_features.div_ceil(PANEL);
    let units = if grouping.scales == Scales::Steps { PANEL } else { 0 };
    4 * panels as u64 * (in_features.div_ceil(QUANT_GROUP) * grouping.block_words() + units) as u64
}

/// Calls `place` with each column of a panel and the weight row that belongs there.
fn interleave<T>(panel: usize, out_features: usize, rows: &impl Rows<T>, mut place: impl FnMut(usize, T)) {
    for column in 0..PANEL.min(out_features - panel * PANEL) {
        if let Some(row) = rows(panel * PANEL + column) {
            place(column, row);
        }
    }
}
