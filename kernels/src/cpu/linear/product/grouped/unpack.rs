//! A block taken apart: signed bytes and f32 scales.

use super::BLOCK_WORDS;
use super::scales::{ScalePointers, ScalesOf};
use crate::linear::groups::{GROUPS, Grouping};
use crate::linear::panels::PANEL;
use crate::simd::Vector;

/// Bytes of 128, four times.
const SIGNS: u32 = 0x8080_8080;

/// The parts of a block that was taken apart, from one of its outputs on. Rows of each are [`PANEL`] apart.
pub(super) struct Unpacked {
    /// `[32]`: quads of signed bytes.
    pub(super) bytes: *const u32,
    /// `[4]`, or of sums over the whole block one: minus 128 times the sum of the bytes, which takes back the 128 that makes activations unsigned.
    pub(super) corrections: *const u32,
    /// `[4]`: by group.
    pub(super) scales: *const f32,
    /// `[4]`
    pub(super) mins: *const f32,
    /// `[1]`
    pub(super) outer: *const f32,
}

impl Unpacked {
    /// Words of a block.
    pub(super) const LEN: usize = (BLOCK_WORDS + 3 * GROUPS + 1) * PANEL;

    /// The parts of `block`, which is of [`Unpacked::LEN`], from output `column` on.
    pub(super) fn at(block: &[f32], column: usize) -> Self {
        assert!(block.len() == Self::LEN && column < PANEL);
        let part = |rows: usize| block[rows * PANEL + column..].as_ptr();
        Self {
            bytes: part(0).cast(),
            corrections: part(BLOCK_WORDS).cast(),
            scales: part(BLOCK_WORDS + GROUPS),
            mins: part(BLOCK_WORDS + 2 * GROUPS),
            outer: part(BLOCK_WORDS + 3 * GROUPS),
        }
    }

    /// Takes a packed block apart.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the block must be of the bits and scales that are said.
    #[inline(always)]
    pub(super) unsafe fn fill<V: Vector, S: ScalesOf, const EIGHT: bool>(
        grouping: Grouping,
        block: &[u32],
        to: &mut [f32],
    ) {
        // SAFETY: words and f32 have the same size and alignment, and all bits are values of both.
        let words = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u32>(), to.len()) };
        let (words, _) = words.as_chunks_mut::<PANEL>();
        let (bytes, rest) = words.split_at_mut(BLOCK_WORDS);
        for group in 0..GROUPS {
            let bytes = &mut bytes[group * BLOCK_WORDS / GROUPS..][..BLOCK_WORDS / GROUPS];
            let (quants, scales) = block[grouping.group_at(group)..].split_at(grouping.quant_words());
            let (quants, _) = quants.as_chunks::<PANEL>();
            match EIGHT {
                true => bytes.copy_from_slice(quants),
                false => {
                    for (quants, bytes) in quants.iter().zip(bytes.as_chunks_mut::<2>().0) {
                        for column in 0..PANEL {
                            bytes[0][column] = quants[column] & 0x0f0f_0f0f;
                            bytes[1][column] = quants[column] >> 4 & 0x0f0f_0f0f;
                        }
                    }
                }
            }
            if S::IS_WHOLE {
                whole(bytes, scales);
            } else if S::MIDDLE != 0 {
                let middle = SIGNS - S::MIDDLE as u32 * 0x0101_0101;
                // What is added carries from no byte to the next: quants below it are at most twice the middle.
                bytes.as_flattened_mut().iter_mut().for_each(|word| *word = word.wrapping_add(middle) ^ SIGNS);
            }
            correct(bytes, &mut rest[if S::IS_WHOLE { 0 } else { group }], S::IS_WHOLE && group > 0);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.as_mut_ptr().add((BLOCK_WORDS + GROUPS) * PANEL);
            let from = |group| ScalePointers {
                outer: block.as_ptr(),
                group: block.as_ptr().add(grouping.group_at(group) + grouping.quant_words()),
            };
            for column in (0..PANEL).step_by(V::LANES) {
                for group in 0..GROUPS {
                    S::scale::<V>(from(group), column).store(to.add(group * PANEL + column));
                    S::min::<V>(from(group), column).store(to.add((GROUPS + group) * PANEL + column));
                }
                S::outer::<V>(from(0), column).store(to.add(2 * GROUPS * PANEL + column));
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
