//! The element types of GGUF tensors, and quantized blocks to f32 or bf16. candle's arithmetic, row by row over all threads.

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
};
use candle_core::quantized::{GgmlDType, GgmlType};
use half::f16;
use rayon::prelude::*;

use crate::dtype::bf16_bits;

/// Elements that one thread unpacks at a time, at least.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// How a tensor's elements are written: numbers, or blocks of integers with a scale or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockType(pub(super) GgmlDType);

/// What the file calls each type that is read, by its number.
const READ: [(u32, &str, GgmlDType); 13] = [
    (0, "F32", GgmlDType::F32),
    (1, "F16", GgmlDType::F16),
    (30, "BF16", GgmlDType::BF16),
    (2, "Q4_0", GgmlDType::Q4_0),
    (3, "Q4_1", GgmlDType::Q4_1),
    (6, "Q5_0", GgmlDType::Q5_0),
    (7, "Q5_1", GgmlDType::Q5_1),
    (8, "Q8_0", GgmlDType::Q8_0),
    (10, "Q2_K", GgmlDType::Q2K),
    (11, "Q3_K", GgmlDType::Q3K),
    (12, "Q4_K", GgmlDType::Q4K),
    (13, "Q5_K", GgmlDType::Q5K),
    (14, "Q6_K", GgmlDType::Q6K),
];

/// Names of types that files have, but that are not read.
const NOT_READ: [(u32, &str); 14] = [
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl BlockType {
    pub const F32: Self = Self(GgmlDType::F32);
    pub const F16: Self = Self(GgmlDType::F16);
    pub const BF16: Self = Self(GgmlDType::BF16);

    /// The type of that number; its name where it is not read.
    pub fn of(number: u32) -> Result<Self, String> {
        let found = READ.iter().find(|(read, _, _)| *read == number);
        found.map(|(_, _, kind)| Self(*kind)).ok_or_else(|| {
            let name = NOT_READ.iter().find(|(other, _)| *other == number);
            name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
        })
    }

    /// The type that files call so, of those that are read.
    pub fn named(name: &str) -> Option<Self> {
        READ.iter().find(|(_, read, _)| *read == name).map(|(_, _, kind)| Self(*kind))
    }

    /// The names of all types that are read, for messages.
    pub fn names() -> String {
        let names = READ.map(|(_, name, _)| name);
        format!("{} or {}", names[..names.len() - 1].join(", "), names[names.len() - 1])
    }

    /// What the file calls it.
    pub fn name(self) -> &'static str {
        READ.iter().find(|(_, _, kind)| *kind == self.0).map_or("", |(_, name, _)| name)
    }

    /// Elements of a block; one where each stands alone.
    pub fn elements(self) -> usize {
        self.0.block_size()
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.0.type_size()
    }

    /// Whether elements share a scale.
    pub fn is_quantized(self) -> bool {
        self.elements() > 1
    }

    /// The values of `bytes` in rows of `row` elements; row i of the result is row `from(i)` of the bytes.
    pub fn to_f32(self, bytes: &[u8], row: usize, from: impl Fn(usize) -> usize + Sync) -> Vec<f32> {
        let row_bytes = row / self.elements() * self.bytes();
        let mut out = vec![0.0; bytes.len() / row_bytes * row];
        let rows = out.par_chunks_mut(row).with_min_len(ELEMENTS_PER_TASK / row);
        rows.enumerate().for_each(|(at, out)| self.row(&bytes[from(at) * row_bytes..][..row_bytes], out));
        out
    }

    /// [`BlockType::to_f32`], rounded to bf16. No more than a row a thread is in f32 at a time.
    pub fn to_bf16(self, bytes: &[u8], row: usize, from: impl Fn(usize) -> usize + Sync) -> Vec<u16> {
        let row_bytes = row / self.elements() * self.bytes();
        let mut out = vec![0; bytes.len() / row_bytes * row];
        let rows = out.par_chunks_mut(row).with_min_len(ELEMENTS_PER_TASK / row);
        rows.enumerate().for_each_init(
            || vec![0.0; row],
            |values, (at, out)| {
                self.row(&bytes[from(at) * row_bytes..][..row_bytes], values);
                out.iter_mut().zip(&*values).for_each(|(out, value)| *out = bf16_bits(*value));
            },
        );
        out
    }

    /// A row's values.
    pub(super) fn row(self, bytes: &[u8], out: &mut [f32]) {
        match self.0 {
            GgmlDType::F32 => {
                let (values, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(values).for_each(|(out, value)| *out = f32::from_le_bytes(*value));
            }
            GgmlDType::F16 => {
                let (values, _) = bytes.as_chunks::<2>();
                out.iter_mut().zip(values).for_each(|(out, value)| *out = f16::from_le_bytes(*value).to_f32());
            }
            GgmlDType::BF16 => {
                let (values, _) = bytes.as_chunks::<2>();
                let widen = |value: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(value)) << 16);
                out.iter_mut().zip(values).for_each(|(out, value)| *out = widen(*value));
            }
            GgmlDType::Q4_0 => blocks::<BlockQ4_0>(bytes, out),
            GgmlDType::Q4_1 => blocks::<BlockQ4_1>(bytes, out),
            GgmlDType::Q5_0 => blocks::<BlockQ5_0>(bytes, out),
            GgmlDType::Q5_1 => blocks::<BlockQ5_1>(bytes, out),
            GgmlDType::Q8_0 => blocks::<BlockQ8_0>(bytes, out),
            GgmlDType::Q2K => blocks::<BlockQ2K>(bytes, out),
            GgmlDType::Q3K => blocks::<BlockQ3K>(bytes, out),
            GgmlDType::Q4K => blocks::<BlockQ4K>(bytes, out),
            GgmlDType::Q5K => blocks::<BlockQ5K>(bytes, out),
            GgmlDType::Q6K => blocks::<BlockQ6K>(bytes, out),
            // `READ` names neither: they are what activations are rounded to.
            GgmlDType::Q8_1 | GgmlDType::Q8K => unreachable!("{:?} is not read from a file", self.0),
        }
    }
}

/// Blocks of llama.cpp's own layout: plain bytes and f16s in declared order, without padding, for which every bit pattern is valid.
///
/// # Safety
/// Only for such types.
unsafe trait PlainBlock: GgmlType {}
// SAFETY: each is `repr(C)`, of `u8`, `i8` and `f16` alone, and candle asserts its size.
unsafe impl PlainBlock for BlockQ4_0 {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ4_1 {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ5_0 {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ5_1 {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ8_0 {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ2K {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ3K {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ4K {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ5K {}
// SAFETY: as above.
unsafe impl PlainBlock for BlockQ6K {}

fn blocks<T: PlainBlock>(bytes: &[u8], out: &mut [f32]) {
    // SAFETY: `PlainBlock` types take any bit pattern, and `align_to` only hands out aligned elements.
    let (before, blocks, after) = unsafe { bytes.align_to::<T>() };
    // The mapping begins at a page, tensors at a multiple of 8 bytes, and every block has an even number of them.
    assert!(before.is_empty() && after.is_empty(), "blocks lie at even addresses");
    T::to_float(blocks, out);
}
