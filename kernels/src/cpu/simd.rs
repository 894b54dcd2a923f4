//! Vectors of f32 behind one trait, so that a kernel is written once and compiled for each instruction set.
//!
//! A kernel implements [`Kernel`]; [`dispatch`] compiles its body under the target features of a [`Path`] and runs
//! it. Everything a kernel calls with a vector is `#[inline(always)]`, so that the intrinsics end up inside the
//! function that carries the features; a call that stayed behind would be compiled without them, and be slow.

pub(crate) mod amx;
mod choice;
mod exp;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub use choice::{Paths, Work};

use crate::error::{Error, Result};
pub(crate) use exp::{exp, exp_coarse};

/// An instruction set that the kernels are compiled for. The bits of a result depend on the path, and on nothing
/// else: not on the batch, not on the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Matrix products of bf16 in tiles (AMX-BF16), everything else as [`Path::Avx512Bf16`].
    Amx,
    /// 512-bit vectors with dot products of bf16 pairs and of bytes (AVX-512 BF16 and VNNI).
    Avx512Bf16,
    /// As [`Path::Avx512`] and of the same bits, with dot products of bytes (AVX-512 VNNI).
    Avx512Vnni,
    /// 512-bit vectors with fused multiply-add (AVX-512 F and BW).
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// What every machine has; multiply and add are rounded apart.
    Portable,
}

impl Path {
    const ALL: [Self; 6] = [Self::Amx, Self::Avx512Bf16, Self::Avx512Vnni, Self::Avx512, Self::Avx2, Self::Portable];

    /// The paths that this machine can run, fastest first. Asked of the machine once.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Path>> = OnceLock::new();
        AVAILABLE.get_or_init(|| Self::ALL.into_iter().filter(|path| path.detect()).collect())
    }

    fn detect(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
            match self {
                Self::Amx => bf16 && amx::is_available(),
                Self::Avx512Bf16 => bf16,
                Self::Avx512Vnni => vnni,
                Self::Avx512 => avx512,
                Self::Avx2 => avx2,
                Self::Portable => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// The path of everything that is not measured: this machine's first, or the one that was [forced](Path::force).
    pub fn best() -> Self {
        Self::of(Work::Elementwise)
    }

    /// The path of a kind of work, of [those in use](Paths::in_use).
    pub fn of(work: Work) -> Self {
        Paths::in_use().of(work)
    }

    /// Makes every later computation of this process take this path.
    ///
    /// # Errors
    /// `InvalidInput` if this machine cannot run it, or another path was chosen already.
    pub fn force(self) -> Result<()> {
        Paths::all(self).choose()
    }

    /// A short name, for flags, logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Avx512Vnni => "avx512vnni",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// The path of that [`name`](Path::name).
    ///
    /// # Errors
    /// `InvalidInput` for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid_input(format!("\"{name}\" is not a kernel path; take one of {names}"))
        })
    }

    /// Whether it has instructions for products of bf16.
    pub fn has_bf16_products(self) -> bool {
        matches!(self, Self::Amx | Self::Avx512Bf16)
    }
}

/// A vector of [`LANES`](Vector::LANES) f32.
///
/// # Safety
/// All methods are unsafe: the machine must have the vector's instruction set, and pointers must be good for
/// `LANES` values. Pointers to bf16 must be aligned to the vector, others need no alignment.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    /// `LANES` words of 32 bits: pairs of bf16, quads of bytes, or integers.
    type Words: Copy;
    unsafe fn load_words(from: *const u32) -> Self::Words;
    unsafe fn splat_word(word: u32) -> Self::Words;
    unsafe fn store_words(words: Self::Words, to: *mut u32);
    /// Words of both in turn: the first of `a`, the first of `b`, the second of `a`; then those of the upper halves.
    unsafe fn zip_words(a: Self::Words, b: Self::Words) -> [Self::Words; 2];
    /// The 16-bit halves of both in turn: the low half of the first word of `a`, that of `b`, their high halves; then those of the upper words.
    unsafe fn zip_halves(a: Self::Words, b: Self::Words) -> [Self::Words; 2];
    /// As [`Vector::store_words`], past the caches where the path can: for what nobody reads soon. `to` must be aligned to the vector. Whoever tells
    /// another thread of it calls [`fence`] first.
    unsafe fn stream_words(words: Self::Words, to: *mut u32);
    /// The low half of each word, the high half zero.
    unsafe fn low_halves(words: Self::Words) -> Self::Words;
    /// `self + a.low * b.low + a.high * b.high` by lane, for words that are pairs of bf16.
    unsafe fn dot_bf16(self, a: Self::Words, b: Self::Words) -> Self;
    /// `sum +` the sum of four products by lane, for words that are quads of bytes, unsigned in `a` and signed in `b`;
    /// exact while it fits 32 bits.
    unsafe fn dot_bytes(sum: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words;
    /// The low and the high halves of words that are pairs of bf16, widened.
    unsafe fn split_bf16(pairs: Self::Words) -> [Self; 2];
    /// The nearest bf16 of both, ties to even, as the low and the high halves of words. A NaN stays one if its low half is zero.
    unsafe fn pair_bf16(low: Self, high: Self) -> Self::Words;
    /// The lanes of even numbers of `a` and then of `b`, and those of odd ones.
    unsafe fn unzip(a: Self, b: Self) -> [Self; 2];
    /// [`Vector::dot_bytes`] of bytes in `a` that are below 128.
    #[inline(always)]
    unsafe fn dot_small_bytes(sum: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words {
        // SAFETY: the caller's promise.
        unsafe { Self::dot_bytes(sum, a, b) }
    }
    /// The nearest f32 of words that are signed integers.
    unsafe fn from_integers(words: Self::Words) -> Self;
    /// The low halves of all bytes, and the high ones.
    unsafe fn nibbles(words: Self::Words) -> [Self::Words; 2];
    /// Four quads of numbers of six bits: their low halves as [`Vector::nibbles`] has them, the first two quads in the first word; of their upper
    /// two bits those of the first quad are the lowest of each byte of `high`.
    unsafe fn sixes(low: [Self::Words; 2], high: Self::Words) -> [Self::Words; 4];
    /// `LANES` unsigned bytes as numbers.
    unsafe fn load_bytes(from: *const u8) -> Self;
    /// `LANES` values of f16, widened.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// The nearest bf16, ties to even; a NaN stays one, and what is no normal number may become zero.
    unsafe fn store_bf16(self, to: *mut u16);
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The low halves of `LANES` pairs of bf16, widened.
    unsafe fn load_bf16_low(from: *const u32) -> Self;
    /// The high halves of `LANES` pairs of bf16, widened.
    unsafe fn load_bf16_high(from: *const u32) -> Self;
    /// `self * factor + addend`; rounded once where the path has it.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// The greater by lane; `other` where the two do not compare (so NaN in `other` stays).
    unsafe fn max(self, other: Self) -> Self;
    /// The lesser by lane; `other` where the two do not compare.
    unsafe fn min(self, other: Self) -> Self;
    /// `self`, but zero in the lanes where `probe < bound`.
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self;
    /// 2^n by lane, where `self` is `1.5 * 2^23 + n` and n is an integer in -126..=127.
    unsafe fn power_of_two(self) -> Self;
    /// `self * 2^n` by lane for an integer n <= 127; zero where n is far below -127.
    unsafe fn times_power_of_two(self, n: Self) -> Self;
    /// Whether some lane is greater than the one of `other`, or does not compare.
    unsafe fn exceeds(self, other: Self) -> bool;
    /// The sum of the lanes, in a fixed order.
    unsafe fn sum_lanes(self) -> f32;
    /// The greatest lane.
    unsafe fn max_lane(self) -> f32;
}

/// What was [streamed](Vector::stream_words) is seen by whoever sees what this thread writes next.
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has the instruction.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// A computation written over [`Vector`].
pub(crate) trait Kernel {
    /// Runs it with vectors `V`; the path's registers hold tiles of `ROWS` rows by `VECS` vectors.
    ///
    /// Implementations MUST be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self);
}

/// Runs `kernel` compiled for `path`.
///
/// # Panics
/// If this machine does not have `path` (only tests and benchmarks name a path other than [`Path::best`]).
pub(crate) fn dispatch(path: Path, kernel: impl Kernel) {
    assert!(Path::available().contains(&path), "this machine cannot run the {} kernels", path.name());
    match path {
        #[cfg(target_arch = "x86_64")]
        Path::Amx | Path::Avx512Bf16 => {
            // SAFETY: the machine has the path, which implies the features of the function.
            unsafe { run_avx512bf16(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx512Vnni => {
            // SAFETY: the machine has the path, which implies the features of the function.
            unsafe { run_avx512vnni(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => {
            // SAFETY: the machine has the path, which implies the features of the function.
            unsafe { run_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => {
            // SAFETY: the machine has the path, which implies the features of the function.
            unsafe { run_avx2(kernel) }
        }
        _ => {
            // SAFETY: plain arrays need no instruction set.
            unsafe { kernel.run::<portable::Portable, 4, 2>() }
        }
    }
}

/// 24 of the 32 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512bf16(kernel: impl Kernel) {
    // SAFETY: this function carries the features that the vectors need.
    unsafe { kernel.run::<x86::Avx512<true, true>, 6, 4>() }
}

/// 24 of the 32 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512vnni(kernel: impl Kernel) {
    // SAFETY: this function carries the features that the vectors need.
    unsafe { kernel.run::<x86::Avx512<false, true>, 6, 4>() }
}

/// 24 of the 32 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
unsafe fn run_avx512(kernel: impl Kernel) {
    // SAFETY: this function carries the features that the vectors need.
    unsafe { kernel.run::<x86::Avx512<false, false>, 6, 4>() }
}

/// 12 of the 16 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2(kernel: impl Kernel) {
    // SAFETY: this function carries the features that the vectors need.
    unsafe { kernel.run::<x86::Avx2, 6, 2>() }
}

/// `sums[r] += x[r] * columns`, where x[r] is `x_stride` behind x[r - 1]: the step of every product of matrices here.
///
/// # Safety
/// The machine must have the instruction set of `V`; x must be good for one value in each of `ROWS` rows.
#[inline(always)]
pub(crate) unsafe fn add_products<V: Vector, const ROWS: usize, const VECS: usize>(
    sums: &mut [[V; VECS]; ROWS],
    x: *const f32,
    x_stride: usize,
    columns: &[V; VECS],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let x = V::splat(*x.add(row * x_stride));
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = x.mul_add(*column, *sum);
            }
        }
    }
}

/// `sums[r] += x[r] . columns`, the dot product of a pair of bf16 in each lane; x as in [`add_products`].
///
/// # Safety
/// As [`add_products`].
#[inline(always)]
pub(crate) unsafe fn add_dots<V: Vector, const ROWS: usize, const VECS: usize>(
    sums: &mut [[V; VECS]; ROWS],
    x: *const u32,
    x_stride: usize,
    columns: &[V::Words; VECS],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let x = V::splat_word(*x.add(row * x_stride));
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = sum.dot_bf16(x, *column);
            }
        }
    }
}

/// Tiles of at most `height` rows, as even as can be: (first row, rows).
pub(crate) fn row_tiles(rows: usize, height: usize) -> impl Iterator<Item = (usize, usize)> {
    let tiles = rows.div_ceil(height);
    (0..tiles).map(move |tile| {
        let first = tile * rows / tiles;
        (first, (tile + 1) * rows / tiles - first)
    })
}

#[cfg(test)]
mod tests;
