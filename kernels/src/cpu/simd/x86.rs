//! Vectors of x86: 512 bits (AVX-512F) and 256 bits (AVX2 with FMA).

mod avx2;

use std::arch::x86_64::*;

use super::Vector;

/// Sixteen lanes; whether the machine multiplies pairs of bf16 itself, and quads of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool, const BYTES: bool>(__m512);

/// Eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

// The contract that each block of both implementations stands on: whoever calls a method of `Vector` promises that the
// machine has the instruction set and that pointers are good for all lanes. The unaligned forms are used throughout, but for
// packed bf16, which is promised to be aligned.
//
// The high halves of bf16 are read volatile so that they are read again: kept from the low halves, they would push sums
// out of the registers.

impl<const BF16: bool, const BYTES: bool> Vector for Avx512<BF16, BYTES> {
    const LANES: usize = 16;
    type Words = __m512i;

    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn store_words(words: __m512i, to: *mut u32) {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_storeu_si512(to.cast(), words) }
    }

    #[inline(always)]
    unsafe fn zip_words(a: __m512i, b: __m512i) -> [__m512i; 2] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
            [_mm512_permutex2var_epi32(a, lower, b), _mm512_permutex2var_epi32(a, upper, b)]
        }
    }

    #[inline(always)]
    unsafe fn zip_halves(a: __m512i, b: __m512i) -> [__m512i; 2] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let low = _mm512_mask_blend_epi16(0xaaaa_aaaa, a, _mm512_slli_epi32::<16>(b));
            let high = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(a), b);
            Self::zip_words(low, high)
        }
    }

    #[inline(always)]
    unsafe fn stream_words(words: __m512i, to: *mut u32) {
        // SAFETY: the contract of `Vector`, see above; the caller aligned it.
        unsafe { _mm512_stream_si512(to.cast(), words) }
    }

    #[inline(always)]
    unsafe fn low_halves(words: __m512i) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_and_si512(words, _mm512_set1_epi32(0xffff)) }
    }

    #[inline(always)]
    unsafe fn dot_bf16(self, a: __m512i, b: __m512i) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            if BF16 {
                // SAFETY: 512 bits either way; the type only says what they stand for.
                let pairs = |words: __m512i| std::mem::transmute::<__m512i, __m512bh>(words);
                return Self(_mm512_dpbf16_ps(self.0, pairs(a), pairs(b)));
            }
            let low = |words| Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)));
            let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let high = |words| Self(_mm512_castsi512_ps(_mm512_and_si512(words, mask)));
            high(a).mul_add(high(b), low(a).mul_add(low(b), self))
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            if BYTES {
                return _mm512_dpbusd_epi32(sum, a, b);
            }
            // Bytes 0 and 2, then 1 and 3, of each word as 16-bit numbers.
            let even = _mm512_madd_epi16(
                _mm512_and_si512(a, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b)),
            );
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(a), _mm512_srai_epi16::<8>(b));
            _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn split_bf16(pairs: __m512i) -> [Self; 2] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            let low = _mm512_slli_epi32::<16>(pairs);
            [Self(_mm512_castsi512_ps(low)), Self(_mm512_castsi512_ps(high))]
        }
    }

    #[inline(always)]
    unsafe fn pair_bf16(low: Self, high: Self) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let round = |values: Self| {
                let bits = _mm512_castps_si512(values.0);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd)
            };
            let (low, high) = (round(low), round(high));
            _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(low), high)
        }
    }

    #[inline(always)]
    unsafe fn unzip(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            [Self(_mm512_permutex2var_ps(a.0, even, b.0)), Self(_mm512_permutex2var_ps(a.0, odd, b.0))]
        }
    }

    #[inline(always)]
    unsafe fn dot_small_bytes(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            if BYTES {
                return _mm512_dpbusd_epi32(sum, a, b);
            }
            // Two products are less than 2^15.
            let pairs = _mm512_maddubs_epi16(a, b);
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn from_integers(words: __m512i) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_cvtepi32_ps(words)) }
    }

    #[inline(always)]
    unsafe fn nibbles(words: __m512i) -> [__m512i; 2] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            [_mm512_and_si512(words, mask), _mm512_and_si512(_mm512_srli_epi32::<4>(words), mask)]
        }
    }

    #[inline(always)]
    unsafe fn sixes(low: [__m512i; 2], high: __m512i) -> [__m512i; 4] {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let [[a, b], [c, d]] = [Self::nibbles(low[0]), Self::nibbles(low[1])];
            let with = |low, high| _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
            let [of_a, of_b] = [_mm512_slli_epi32::<4>(high), _mm512_slli_epi32::<2>(high)];
            [with(a, of_a), with(b, of_b), with(c, high), with(d, _mm512_srli_epi32::<2>(high))]
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            if BF16 {
                to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(self.0));
                return;
            }
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let kept = _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(kept));
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16_low(from: *const u32) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_bf16_high(from: *const u32) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            Self(_mm512_castsi512_ps(_mm512_and_si512(from.cast::<__m512i>().read_volatile(), mask)))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(probe.0, bound.0);
            Self(_mm512_maskz_mov_ps(keep, self.0))
        }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f80_0000))))
        }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { Self(_mm512_scalef_ps(self.0, n.0)) }
    }

    #[inline(always)]
    unsafe fn exceeds(self, other: Self) -> bool {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(self.0, other.0) != 0 }
    }

    #[inline(always)]
    unsafe fn sum_lanes(self) -> f32 {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: the contract of `Vector`, see above.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
