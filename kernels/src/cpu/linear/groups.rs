//! Weights in groups of 32 inputs. A group has quants of 4, 6 or 8 bits, and one scale or two.
//!
//! [`Scales::Steps`] is our own form. The other forms are made for GGUF's blocks and hold their values exactly. Quants are
//! unsigned, so that a product takes them as they are; [`Scales`] turns them into weights.

use half::f16;

use super::activations::Format;
use super::panels::{PANEL, QUANT_GROUP};
use crate::simd::{self, Kernel, Path, Vector};

/// Inputs of a group.
pub(super) const GROUP: usize = 32;
/// Groups of a block of 128 inputs, which have scales in common in some forms.
pub(super) const GROUPS: usize = QUANT_GROUP / GROUP;
/// Inputs of half a group, which may have a scale of its own.
pub(super) const HALF: usize = GROUP / 2;
/// Halves of all groups of a block.
pub(super) const HALVES: usize = QUANT_GROUP / HALF;

/// How wide the quants of groups are, and what they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    pub bits: Bits,
    pub scales: Scales,
}

/// The width of a quant. Products know 8 bits with [`Scales::Symmetric`] only, and [`Scales::Steps`] with 4 bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    Four,
    Six,
    Eight,
}

/// What a quant `q` stands for, and what a group's scales take in memory beside its quants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// `scale * (q - middle)`, the middle 8, 32 or 128; f16: half a bit a weight. GGUF's Q4_0 and Q8_0, and Q5_0 in 6 bits.
    Symmetric,
    /// `scale * q + min`, both f16: a bit a weight. GGUF's Q4_1, and Q5_1 in 6 bits. Quants below 128.
    Min,
    /// `outer * scale * q - outer_min * min`: bytes, and by 128 inputs two f16: 3/4 of a bit. GGUF's Q4_K (which has 6 bits for each byte,
    /// and f16 by 256 inputs: 1/2), and Q5_K in 6 bits. Quants below 128.
    Nested,
    /// `outer * scale * (q - middle)`: a signed byte for each half of a group, to which 128 are added; by 128 inputs an f16: 5/8 of a bit.
    /// GGUF's Q6_K (which has its f16 by 256 inputs: 9/16), and Q3_K in 4 bits.
    Pair,
    /// `unit * outer * (scale * q + min)`: an unsigned and a signed byte, by 128 inputs an f16, by output an f32: 5/8 of a bit. What is in
    /// brackets fits a signed byte, so many rows take it as weights of 8 bits, with exact sums over 128 inputs. Ours, of 4 bits only.
    Steps,
}

/// Own weights of 4 bits.
pub(super) const OWN: Grouping = Grouping { bits: Bits::Four, scales: Scales::Steps };
/// What takes the place of weights whose own form the products do not have: a tenth of the error that 4 bits have.
pub(crate) const ROUNDED: Grouping = Grouping { bits: Bits::Eight, scales: Scales::Symmetric };

impl Bits {
    /// The quant that is zero where groups are symmetric.
    pub(super) const fn middle(self) -> i32 {
        match self {
            Self::Four => 8,
            Self::Six => 32,
            Self::Eight => 128,
        }
    }
}

/// One output's weights in groups, on the way into a panel. Which of the lists mean what is [`Scales`]' matter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupRow {
    /// By input, padded to whole blocks.
    pub quants: Vec<u8>,
    /// By group: the bits of an f16, or a byte.
    pub scales: Vec<u16>,
    /// By group; of [`Scales::Pair`] the scale of the second half.
    pub mins: Vec<u16>,
    /// By block of 128 inputs, the bits of f16: of scales and of mins.
    pub outer: Vec<[u16; 2]>,
    /// What the whole row is multiplied with.
    pub unit: f32,
}

impl GroupRow {
    /// Of zeros.
    pub(super) fn new(in_features: usize) -> Self {
        let blocks = in_features.div_ceil(QUANT_GROUP);
        Self {
            quants: vec![0; blocks * QUANT_GROUP],
            scales: vec![0; blocks * GROUPS],
            mins: vec![0; blocks * GROUPS],
            outer: vec![[0; 2]; blocks],
            unit: 1.0,
        }
    }

    /// Rounds weights to 8 bits with an f16 scale a group ([`Scales::Symmetric`]): its greatest magnitude / 127. A weight that is not finite makes
    /// the scale NaN, so that a damaged file shows.
    pub fn round_to_eight(&mut self, weights: &[f32]) {
        simd::dispatch(Path::best(), RoundToEight { weights, row: self });
    }

    /// Rounds weights to 4 bits ([`Scales::Steps`]). Within a block of 128 a weight is first worth as many units as in 8 bits; a group is then
    /// the sixteen steps from a least value on that come closest to that, in least squares.
    pub fn round_to_four(&mut self, weights: &[f32]) {
        simd::dispatch(Path::best(), RoundToFour { weights, row: self });
    }
}

/// See [`GroupRow::round_to_eight`]. A kernel only for the instructions: the bits are the same on every path.
struct RoundToEight<'a> {
    weights: &'a [f32],
    row: &'a mut GroupRow,
}

impl Kernel for RoundToEight<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { weights, row } = self;
        for (group, weights) in weights.chunks(GROUP).enumerate() {
            let scale = f16::from_f32(greatest(weights) / 127.0 + not_finite(weights));
            row.scales[group] = scale.to_bits();
            let inverse = inverse(scale.to_f32());
            let quants = &mut row.quants[group * GROUP..][..weights.len()];
            quants.iter_mut().zip(weights).for_each(|(quant, weight)| {
                *quant = ((weight * inverse).round_ties_even().clamp(-127.0, 127.0) as i32 + 128) as u8;
            });
        }
    }
}

/// See [`GroupRow::round_to_four`]. A kernel only for the instructions: the bits are the same on every path.
struct RoundToFour<'a> {
    weights: &'a [f32],
    row: &'a mut GroupRow,
}

impl Kernel for RoundToFour<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { weights, row } = self;
        let most = greatest(weights);
        row.unit = most / 127.0 + not_finite(weights);
        for (block, weights) in weights.chunks(QUANT_GROUP).enumerate() {
            let share = above(greatest(weights) / most);
            row.outer[block][0] = share.to_bits();
            let inverse = inverse(share.to_f32() * row.unit);
            for (group, weights) in weights.chunks(GROUP).enumerate() {
                // What is missing of the last group counts as its first weight.
                let mut units = [weights[0] * inverse; GROUP];
                units.iter_mut().zip(weights).for_each(|(unit, weight)| *unit = weight * inverse);
                let fit = Steps::fit(&units);
                let group = block * GROUPS + group;
                row.scales[group] = fit.step as u16;
                row.mins[group] = (fit.least + 128.0) as u16;
                let mut quants = [0; GROUP];
                quants.iter_mut().zip(units).for_each(|(quant, unit)| *quant = fit.quant(unit) as u8);
                row.quants[group * GROUP..][..GROUP].copy_from_slice(&quants);
            }
        }
    }
}

#[inline(always)]
fn greatest(weights: &[f32]) -> f32 {
    let mut greatest = [0.0_f32; 16];
    let (whole, rest) = weights.as_chunks::<16>();
    for weights in whole {
        greatest.iter_mut().zip(weights).for_each(|(greatest, weight)| *greatest = greatest.max(weight.abs()));
    }
    rest.iter()
        .fold(0.0_f32, |greatest, weight| greatest.max(weight.abs()))
        .max(greatest.into_iter().fold(0.0, f32::max))
}

/// Zero of numbers, NaN of all else.
#[inline(always)]
fn not_finite(weights: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let (whole, rest) = weights.as_chunks::<16>();
    whole.iter().for_each(|weights| sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += 0.0 * weight));
    rest.iter().map(|weight| 0.0 * weight).sum::<f32>() + sums.into_iter().sum::<f32>()
}

/// Zero of what has no finite one.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The least f16 that is not less; zero of what is not a number.
fn above(value: f32) -> f16 {
    let near = f16::from_f32(if value.is_nan() { 0.0 } else { value });
    if near.to_f32() < value { f16::from_bits(near.to_bits() + 1) } else { near }
}

/// Sixteen values `least + step * q`, integers in the range of a signed byte.
#[derive(Clone, Copy)]
struct Steps {
    step: f32,
    least: f32,
    inverse: f32,
}

impl Steps {
    /// The greatest step: fifteen of it are the range of a byte.
    const MOST: f32 = 17.0;

    #[inline(always)]
    fn new(step: f32, least: f32) -> Self {
        Self { step, least: least.round_ties_even().clamp(-128.0, 127.0 - 15.0 * step), inverse: 1.0 / step }
    }

    #[inline(always)]
    fn quant(self, value: f32) -> f32 {
        ((value - self.least) * self.inverse).round_ties_even().clamp(0.0, 15.0)
    }

    /// The sum of squares of what is lost.
    #[inline(always)]
    fn error(self, values: &[f32; GROUP]) -> f32 {
        let mut sums = [0.0; 16];
        for values in values.as_chunks::<16>().0 {
            for (sum, value) in sums.iter_mut().zip(values) {
                let lost = self.least + self.step * self.quant(*value) - value;
                *sum += lost * lost;
            }
        }
        sums.into_iter().sum()
    }

    /// The least value that is best for the quants that `values` have now.
    #[inline(always)]
    fn mean_least(self, values: &[f32; GROUP]) -> f32 {
        let mut sums = [0.0; 16];
        for values in values.as_chunks::<16>().0 {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value - self.step * self.quant(*value);
            }
        }
        sums.into_iter().sum::<f32>() / GROUP as f32
    }

    /// Those nearest to `values`, which are in -127..=127: of a few steps around the one that spans them, from the least value that is best for
    /// what they round to.
    #[inline(always)]
    fn fit(values: &[f32; GROUP]) -> Self {
        let low = values.iter().fold(f32::MAX, |low, value| low.min(*value));
        let high = values.iter().fold(f32::MIN, |high, value| high.max(*value));
        let spanning = ((high - low) / 15.0).ceil().clamp(1.0, Self::MOST);
        let mut best = (f32::MAX, Self::new(spanning, low));
        for step in [spanning, spanning - 1.0, spanning - 2.0] {
            if step < 1.0 {
                continue;
            }
            let centred = Self::new(step, (low + high - 15.0 * step) / 2.0);
            for steps in [centred, Self::new(step, centred.mean_least(values))] {
                let error = steps.error(values);
                if error < best.0 {
                    best = (error, steps);
                }
            }
        }
        best.1
    }
}

/// Writes a row, by its output. What pads the row stays as it is.
pub type FillRow<'a> = Box<dyn Fn(usize, &mut GroupRow) + Sync + 'a>;

/// Rows that are in groups already.
pub struct GroupedRows<'a> {
    pub grouping: Grouping,
    pub fill: FillRow<'a>,
}

impl<'a> GroupedRows<'a> {
    /// Of weights `[out_features, in_features]` that are rounded to 8 bits, with a scale for each group.
    pub fn rounded(weights: &'a [f32], in_features: usize) -> Self {
        let fill = move |output: usize, row: &mut GroupRow| {
            row.round_to_eight(&weights[output * in_features..][..in_features])
        };
        Self { grouping: ROUNDED, fill: Box::new(fill) }
    }
}

impl std::fmt::Debug for GroupedRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupedRows").field("grouping", &self.grouping).finish_non_exhaustive()
    }
}

impl Grouping {
    /// What products take: activations with a scale for each group that has one of its own. A block of own steps is summed exactly, and has one
    /// for all of it.
    pub(super) fn format(self) -> Format {
        match self.scales {
            Scales::Steps => Format::Q8,
            Scales::Symmetric | Scales::Min | Scales::Nested | Scales::Pair => Format::Q8By32,
        }
    }

    /// The weights of a packed block's column, times `unit`: at most 128.
    pub(super) fn weights(self, block: &[u32], column: usize, unit: f32, out: &mut [f32]) {
        let half = |from: &[u32], at: usize| f16::from_bits((from[at / 2] >> (16 * (at % 2))) as u16).to_f32();
        let byte = |from: &[u32], at: usize| f32::from((from[at / 4] >> (8 * (at % 4))) as u8);
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let (words, scales) = block[self.group_at(group)..].split_at(self.quant_words());
            for (k, out) in out.iter_mut().enumerate() {
                let quant = match self.bits {
                    Bits::Four => words[k / 8 * PANEL + column] >> (8 * (k % 4) + k % 8 / 4 * 4) & 15,
                    Bits::Six => {
                        let (low, high) = (k / HALF * 3 + k % HALF / 8, k / HALF * 3 + 2);
                        let low = words[low * PANEL + column] >> (8 * (k % 4) + k % 8 / 4 * 4) & 15;
                        let high = words[high * PANEL + column] >> (8 * (k % 4) + k % HALF / 4 * 2) & 3;
                        low | high << 4
                    }
                    Bits::Eight => words[k / 4 * PANEL + column] >> (8 * (k % 4)) & 255,
                };
                let quant = quant as f32;
                let centred = quant - self.bits.middle() as f32;
                let min = PANEL + column;
                *out = match self.scales {
                    Scales::Symmetric => half(scales, column) * centred,
                    Scales::Min => half(scales, column) * quant + half(scales, min),
                    Scales::Nested => {
                        half(block, column) * byte(scales, column) * quant - half(block, min) * byte(scales, min)
                    }
                    Scales::Pair => half(block, column) * (byte(scales, k / HALF * PANEL + column) - 128.0) * centred,
                    Scales::Steps => {
                        unit * half(block, column) * (byte(scales, column) * quant + (byte(scales, min) - 128.0))
                    }
                };
            }
        }
    }
}
