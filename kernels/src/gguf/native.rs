//! Rows of quantized blocks as panels take them: the file's integers and scales, not their products.
//!
//! All keep their values but Q2_K: Q5_0, Q5_1 and Q5_K in 6 bits for 5, Q3_K in 4 bits for 3. Q2_K has a least value for each 16 weights, which no
//! product here knows: it is rounded to 8 bits with a scale for each 32.

use candle_core::quantized::GgmlDType;

use super::blocks::BlockType;
use crate::linear::{Bits, GroupRow, GroupedRows, Grouping, ROUNDED, Scales};

/// Elements of a block of the types without `K`, and of a group of those with it.
const GROUP: usize = 32;
/// Groups of a block of the types with `K`.
const SUPER: usize = 8;

/// How a matrix of the type that files call `dtype` is kept where its blocks are; nothing of what is no block.
pub(crate) fn grouping(dtype: &str) -> Option<Grouping> {
    let kind = BlockType::named(dtype).filter(|kind| kind.is_quantized())?;
    Some(kind.grouping().unwrap_or(ROUNDED))
}

impl BlockType {
    /// The rows of `bytes`, of `width` elements each; row i is row `from(i)` of the bytes. Nothing where no elements share a scale.
    pub(super) fn grouped<'a>(
        self,
        bytes: &'a [u8],
        width: usize,
        from: impl Fn(usize) -> usize + Sync + 'a,
    ) -> Option<GroupedRows<'a>> {
        if !self.is_quantized() {
            return None;
        }
        let grouping = self.grouping();
        let row_bytes = width / self.elements() * self.bytes();
        let fill = move |output: usize, row: &mut GroupRow| {
            let bytes = &bytes[from(output) * row_bytes..][..row_bytes];
            match grouping {
                Some(_) => {
                    bytes.chunks_exact(self.bytes()).enumerate().for_each(|(at, block)| self.take(block, at, row))
                }
                None => {
                    let mut values = vec![0.0; width];
                    self.row(bytes, &mut values);
                    row.round_to_eight(&values);
                }
            }
        };
        Some(GroupedRows { grouping: grouping.unwrap_or(ROUNDED), fill: Box::new(fill) })
    }

    /// What keeps all values, if that is known.
    fn grouping(self) -> Option<Grouping> {
        let (bits, scales) = match self.0 {
            GgmlDType::Q4_0 => (Bits::Four, Scales::Symmetric),
            GgmlDType::Q4_1 => (Bits::Four, Scales::Min),
            GgmlDType::Q4K => (Bits::Four, Scales::Nested),
            GgmlDType::Q5_0 => (Bits::Six, Scales::Symmetric),
            GgmlDType::Q5_1 => (Bits::Six, Scales::Min),
            GgmlDType::Q5K => (Bits::Six, Scales::Nested),
            GgmlDType::Q3K => (Bits::Four, Scales::Pair),
            GgmlDType::Q6K => (Bits::Six, Scales::Pair),
            GgmlDType::Q8_0 => (Bits::Eight, Scales::Symmetric),
            _ => return None,
        };
        Some(Grouping { bits, scales })
    }

    /// Writes block `at` of a row. The layouts are those of llama.cpp's `ggml-common.h`.
    fn take(self, block: &[u8], at: usize, row: &mut GroupRow) {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        match self.0 {
            GgmlDType::Q4K => take_nested(block, 16, None, at, row),
            GgmlDType::Q5K => take_nested(block, 48, Some(16), at, row),
            GgmlDType::Q3K => take_three(block, at, row),
            GgmlDType::Q6K => take_six(block, at, row),
            kind => {
                row.scales[at] = half(0);
                let quants = &mut row.quants[at * GROUP..][..GROUP];
                match kind {
                    GgmlDType::Q8_0 => {
                        quants.iter_mut().zip(&block[2..]).for_each(|(quant, byte)| *quant = byte ^ 0x80)
                    }
                    GgmlDType::Q4_0 => halves(&block[2..], quants),
                    GgmlDType::Q4_1 => {
                        row.mins[at] = half(2);
                        halves(&block[4..], quants);
                    }
                    GgmlDType::Q5_0 => {
                        halves(&block[6..], quants);
                        fifth_bits(&block[2..6], quants);
                        // The file takes 16 from each, and products 32.
                        quants.iter_mut().for_each(|quant| *quant += 32 - 16);
                    }
                    GgmlDType::Q5_1 => {
                        row.mins[at] = half(2);
                        halves(&block[8..], quants);
                        fifth_bits(&block[4..8], quants);
                    }
                    _ => unreachable!("{kind:?} has no grouping"),
                }
            }
        }
    }
}

/// The low halves of 16 bytes, then the high ones.
fn halves(bytes: &[u8], quants: &mut [u8]) {
    let (low, high) = quants.split_at_mut(GROUP / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Adds bit i of 32 to quant i.
fn fifth_bits(bytes: &[u8], quants: &mut [u8]) {
    quants.iter_mut().enumerate().for_each(|(k, quant)| *quant |= (bytes[k / 8] >> (k % 8) & 1) << 4);
}

/// A block of eight groups with scales of 6 bits; its low four bits are at `low`, and the fifth ones, by group in the bits of 32 bytes, at `fifth`.
fn take_nested(block: &[u8], low: usize, fifth: Option<usize>, at: usize, row: &mut GroupRow) {
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    // Two blocks of 128 have the scales of one of 256.
    for outer in row.outer.iter_mut().skip(2 * at).take(2) {
        *outer = [half(0), half(2)];
    }
    let packed = &block[4..16];
    for group in 0..SUPER {
        let (scale, min) = match group {
            0..4 => (packed[group] & 63, packed[group + 4] & 63),
            _ => {
                (packed[group + 4] & 15 | packed[group - 4] >> 6 << 4, packed[group + 4] >> 4 | packed[group] >> 6 << 4)
            }
        };
        (row.scales[at * SUPER + group], row.mins[at * SUPER + group]) = (scale.into(), min.into());
        let bytes = &block[low + group / 2 * GROUP..][..GROUP];
        let quants = &mut row.quants[(at * SUPER + group) * GROUP..][..GROUP];
        for (k, (quant, byte)) in quants.iter_mut().zip(bytes).enumerate() {
            let high = fifth.map_or(0, |fifth| block[fifth + k] >> group & 1);
            *quant = (byte >> (4 * (group % 2)) & 15) | high << 4;
        }
    }
}

/// A block of sixteen scales of six bits, less 32, for quants of three bits, less 4: the lower two of a group are in the bytes from 32 on, two bits
/// in each, and the third ones, by group, in the bits of the first 32 bytes.
fn take_three(block: &[u8], at: usize, row: &mut GroupRow) {
    let packed = &block[96..108];
    let scale = |part: usize| {
        let (low, high) = (packed[part % 8] >> (4 * (part / 8)) & 15, packed[8 + part % 4] >> (2 * (part / 4)) & 3);
        128 - 32 + (low | high << 4)
    };
    put_pairs(at, [block[108], block[109]], scale, row);
    for (group, quants) in row.quants[at * SUPER * GROUP..][..SUPER * GROUP].chunks_exact_mut(GROUP).enumerate() {
        let low = &block[32 + group / 4 * GROUP..][..GROUP];
        for ((quant, low), high) in quants.iter_mut().zip(low).zip(block) {
            // Products take 8 from each.
            *quant = 8 - 4 + (low >> (2 * (group % 4)) & 3 | (high >> group & 1) << 2);
        }
    }
}

/// A block of sixteen scales of signed bytes for quants of six bits, less 32: of a group the lower four are in halves of 32 bytes from 0 on, and
/// the upper two in the bytes from 128 on, two bits in each.
fn take_six(block: &[u8], at: usize, row: &mut GroupRow) {
    put_pairs(at, [block[208], block[209]], |part| block[192 + part] ^ 0x80, row);
    for (group, quants) in row.quants[at * SUPER * GROUP..][..SUPER * GROUP].chunks_exact_mut(GROUP).enumerate() {
        let (half, quarter) = (group / 4, group % 4);
        let low = &block[half * 64 + quarter % 2 * GROUP..][..GROUP];
        let high = &block[128 + half * GROUP..][..GROUP];
        for ((quant, low), high) in quants.iter_mut().zip(low).zip(high) {
            *quant = low >> (quarter / 2 * 4) & 15 | (high >> (2 * quarter) & 3) << 4;
        }
    }
}

/// The scales of a block of eight groups, one for each half of a group, of which 128 are more; `outer` is an f16.
fn put_pairs(at: usize, outer: [u8; 2], scale: impl Fn(usize) -> u8, row: &mut GroupRow) {
    for to in row.outer.iter_mut().skip(2 * at).take(2) {
        to[0] = u16::from_le_bytes(outer);
    }
    for group in 0..SUPER {
        row.scales[at * SUPER + group] = scale(2 * group).into();
        row.mins[at * SUPER + group] = scale(2 * group + 1).into();
    }
}
