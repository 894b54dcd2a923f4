//! Rows of quantized blocks as panels take them: the file's integers and scales, not their products.
//!
//! Q4_0, Q4_1, Q8_0, Q4_K, and in 8 bits for 5 Q5_0, Q5_1, Q5_K, keep their values. Q2_K, Q3_K and Q6_K have scales for 16 weights, which no
//! product here knows: they are rounded to 8 bits with a scale for each 32.

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
            GgmlDType::Q5_0 | GgmlDType::Q8_0 => (Bits::Eight, Scales::Symmetric),
            GgmlDType::Q5_1 => (Bits::Eight, Scales::Min),
            GgmlDType::Q5K => (Bits::Eight, Scales::Nested),
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
                        // Less 16, and 128 as all quants of 8 bits.
                        quants.iter_mut().for_each(|quant| *quant += 128 - 16);
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
