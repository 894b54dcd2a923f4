//! Vectors of x86: 512 bits (AVX-512F) and 256 bits (AVX2 with FMA).

use std::arch::x86_64::*;

use super::Vector;

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

// SAFETY, for each block of both implementations: whoever calls a method of `Vector` promises that the machine has
// the instruction set and that pointers are good for all lanes; the unaligned forms are used throughout, but for packed
// bf16, which is promised to be aligned.
//
// The high halves of bf16 are read volatile so that they are read again: kept from the low halves, they would push sums
// out of the registers.

impl Vector for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16_low(from: *const u32) -> Self {
        unsafe { Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_bf16_high(from: *const u32) -> Self {
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            Self(_mm512_castsi512_ps(_mm512_and_si512(from.cast::<__m512i>().read_volatile(), mask)))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self {
        unsafe {
            let keep = !_mm512_cmp_ps_mask::<_CMP_LT_OQ>(probe.0, bound.0);
            Self(_mm512_maskz_mov_ps(keep, self.0))
        }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f80_0000))))
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}

impl Vector for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16_low(from: *const u32) -> Self {
        unsafe { Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_bf16_high(from: *const u32) -> Self {
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            Self(_mm256_castsi256_ps(_mm256_and_si256(from.cast::<__m256i>().read_volatile(), mask)))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, factor.0, addend.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self {
        unsafe { Self(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(probe.0, bound.0), self.0)) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            Self(_mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f80_0000))))
        }
    }

    #[inline(always)]
    unsafe fn sum_lanes(self) -> f32 {
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
}
