//! A block taken apart: signed bytes and f32 scales.

use super::BLOCK_WORDS;
use super::scales::{ScalePointers, ScalesOf};
use crate::linear::groups::{Bits, GROUPS, Grouping, HALVES};
use crate::linear::panels::PANEL;
use crate::simd::Vector;

/// Bytes of 128, four times.
const SIGNS: u32 = 0x8080_8080;

/// The parts of a block that was taken apart, from one of its outputs on. Rows of each are [`PANEL`] apart.
pub(super) struct Unpacked {
    /// `[32]`: quads of signed bytes.
    pub(super) bytes: *const u32,
    /// By part of the block that has a scale (the whole, a group, half of one): minus 128 times the sum of the bytes, which takes back the 128
    /// that makes activations unsigned.
    pub(super) corrections: *const u32,
    /// By part.
    pub(super) scales: *const f32,
    /// By group; not of halves.
    pub(super) mins: *const f32,
    /// `[1]`; of whole blocks only.
    pub(super) outer: *const f32,
}

impl Unpacked {
    /// Words of a block. Scales of halves take the place of a group's scale and least value.
    pub(super) const LEN: usize = (BLOCK_WORDS + 2 * HALVES + 1) * PANEL;

    /// The parts of `block`, which is of [`Unpacked::LEN`], from output `column` on.
    pub(super) fn at(block: &[f32], column: usize) -> Self {
        assert!(block.len() == Self::LEN && column < PANEL);
        let part = |rows: usize| block[rows * PANEL + column..].as_ptr();
        Self {
            bytes: part(0).cast(),
            corrections: part(BLOCK_WORDS).cast(),
            scales: part(BLOCK_WORDS + HALVES),
            mins: part(BLOCK_WORDS + HALVES + GROUPS),
            outer: part(BLOCK_WORDS + 2 * HALVES),
        }
    }

    /// Takes a packed block apart.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the block must be of the scales that are said.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Vector, S: ScalesOf>(grouping: Grouping, block: &[u32], to: &mut [f32]) {
        // SAFETY: words and f32 have the same size and alignment, and all bits are values of both.
        let words = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u32>(), to.len()) };
        let (words, _) = words.as_chunks_mut::<PANEL>();
        let (bytes, corrections) = words.split_at_mut(BLOCK_WORDS);
        for group in 0..GROUPS {
            let bytes = &mut bytes[group * BLOCK_WORDS / GROUPS..][..BLOCK_WORDS / GROUPS];
            let (quants, scales) = block[grouping.group_at(group)..].split_at(grouping.quant_words());
            take_apart(grouping.bits, quants, bytes);
            if S::IS_WHOLE {
                whole(bytes, scales);
            } else if S::HAS_MIDDLE {
                let middle = SIGNS - grouping.bits.middle() as u32 * 0x0101_0101;
                // What is added carries from no byte to the next: quants below it are at most twice the middle.
                bytes.as_flattened_mut().iter_mut().for_each(|word| *word = word.wrapping_add(middle) ^ SIGNS);
            }
            if S::IS_PAIR {
                let (low, high) = bytes.split_at(BLOCK_WORDS / HALVES);
                correct(low, &mut corrections[2 * group], false);
                correct(high, &mut corrections[2 * group + 1], false);
            } else {
                correct(bytes, &mut corrections[if S::IS_WHOLE { 0 } else { group }], S::IS_WHOLE && group > 0);
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.as_mut_ptr().add((BLOCK_WORDS + HALVES) * PANEL);
            let from = |group| ScalePointers {
                outer: block.as_ptr(),
                group: block.as_ptr().add(grouping.group_at(group) + grouping.quant_words()),
            };
            for column in (0..PANEL).step_by(V::LANES) {
                let to = to.add(column);
                for group in 0..GROUPS {
                    if S::IS_PAIR {
                        S::scale::<V>(from(group), column).store(to.add(2 * group * PANEL));
                        S::scale::<V>(from(group).of_half(1), column).store(to.add((2 * group + 1) * PANEL));
                    } else {
                        S::scale::<V>(from(group), column).store(to.add(group * PANEL));
                        S::min::<V>(from(group), column).store(to.add((GROUPS + group) * PANEL));
                    }
                }
                if S::IS_WHOLE {
                    S::outer::<V>(from(0), column).store(to.add(HALVES * PANEL));
                }
            }
        }
    }
}

/// A group's quants as bytes.
#[inline(always)]
fn take_apart(bits: Bits, quants: &[u32], bytes: &mut [[u32; PANEL]]) {
    const LOW: u32 = 0x0f0f_0f0f;
    let (quants, _) = quants.as_chunks::<PANEL>();
    match bits {
        Bits::Eight => bytes.copy_from_slice(quants),
        Bits::Six => {
            for ([low, more, high], bytes) in quants.as_chunks::<3>().0.iter().zip(bytes.as_chunks_mut::<4>().0) {
                let high_of = |column: usize, shift: u32| (high[column] >> shift & 0x0303_0303) << 4;
                for column in 0..PANEL {
                    bytes[0][column] = low[column] & LOW | high_of(column, 0);
                    bytes[1][column] = low[column] >> 4 & LOW | high_of(column, 2);
                    bytes[2][column] = more[column] & LOW | high_of(column, 4);
                    bytes[3][column] = more[column] >> 4 & LOW | high_of(column, 6);
                }
            }
        }
        Bits::Four => {
            for (quants, bytes) in quants.iter().zip(bytes.as_chunks_mut::<2>().0) {
                for column in 0..PANEL {
                    bytes[0][column] = quants[column] & LOW;
                    bytes[1][column] = quants[column] >> 4 & LOW;
                }
            }
        }
    }
}

/// `step * quant + least` of a group, with bytes of both: at most a byte.
#[inline(always)]
fn whole(bytes: &mut [[u32; PANEL]], scales: &[u32]) {
    let byte = |at: usize| scales[at / 4] >> (8 * (at % 4)) & 0xff;
    let (mut steps, mut least) = ([0; PANEL], [0; PANEL]);
    for column in 0..PANEL {
        steps[column] = byte(column);
        least[column] = byte(PANEL + column) * 0x0101_0101;
    }
    for bytes in bytes {
        for column in 0..PANEL {
            bytes[column] = (bytes[column] * steps[column] + least[column]) ^ SIGNS;
        }
    }
}

/// Minus 128 times the sum of signed bytes, by output, added to what there is already if so said.
#[inline(always)]
fn correct(bytes: &[[u32; PANEL]], to: &mut [u32; PANEL], is_more: bool) {
    // Two sums of bytes plus 128 in the halves of a word.
    let mut pairs = [0_u32; PANEL];
    for words in bytes {
        for column in 0..PANEL {
            let word = words[column] ^ SIGNS;
            pairs[column] += (word & 0x00ff_00ff) + (word >> 8 & 0x00ff_00ff);
        }
    }
    for column in 0..PANEL {
        let sum = (pairs[column] & 0xffff) + (pairs[column] >> 16);
        let correction = 128 * (512 * bytes.len() as i32 - sum as i32);
        to[column] = correction.wrapping_add(if is_more { to[column] as i32 } else { 0 }) as u32;
    }
}
