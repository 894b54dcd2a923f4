//! Vectors of f32 behind one trait, so that a kernel is written once and compiled for each instruction set.
//!
//! A kernel implements [`Kernel`]; [`dispatch`] compiles its body under the target features of a [`Path`] and runs
//! it. Everything a kernel calls with a vector is `#[inline(always)]`, so that the intrinsics end up inside the
//! function that carries the features; a call that stayed behind would be compiled without them, and be slow.

mod exp;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

pub(crate) use exp::exp;

/// An instruction set that the kernels are compiled for. The bits of a result depend on the path, and on nothing
/// else: not on the batch, not on the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// What every machine has; multiply and add are rounded apart.
    Portable,
}

impl Path {
    /// The paths that this machine can run, fastest first.
    pub fn available() -> Vec<Self> {
        let mut paths = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                paths.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                paths.push(Self::Avx2);
            }
        }
        paths.push(Self::Portable);
        paths
    }

    /// The fastest path of this machine; asked once.
    pub fn best() -> Self {
        static BEST: OnceLock<Path> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// A short name, for logs and for the model's identity.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }
}

/// A vector of [`LANES`](Vector::LANES) f32.
///
/// # Safety
/// All methods are unsafe: the machine must have the vector's instruction set, and pointers must be good for
/// `LANES` values. Pointers to bf16 must be aligned to the vector, others need no alignment.
pub(crate) trait Vector: Copy {
    const LANES: usize;
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
    /// The sum of the lanes, in a fixed order.
    unsafe fn sum_lanes(self) -> f32;
    /// The greatest lane.
    unsafe fn max_lane(self) -> f32;
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
/// If this machine does not have `path` (only tests name a path other than [`Path::best`]).
pub(crate) fn dispatch(path: Path, kernel: impl Kernel) {
    match path {
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => {
            assert!(is_x86_feature_detected!("avx512f"), "this machine has no AVX-512");
            // SAFETY: the features were just asked for.
            unsafe { run_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => {
            assert!(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"), "this machine has no AVX2");
            // SAFETY: the features were just asked for.
            unsafe { run_avx2(kernel) }
        }
        // SAFETY: the portable vectors need nothing.
        _ => unsafe { kernel.run::<portable::Portable, 4, 2>() },
    }
}

/// 24 of the 32 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn run_avx512(kernel: impl Kernel) {
    // SAFETY: this function carries the features that the vectors need.
    unsafe { kernel.run::<x86::Avx512, 6, 4>() }
}

/// 12 of the 16 registers hold the tile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
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

#[cfg(test)]
mod tests;
