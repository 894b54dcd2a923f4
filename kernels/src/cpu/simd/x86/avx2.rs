//! Vectors of 256 bits.

use std::arch::x86_64::*;

use super::Avx2;
use crate::simd::Vector;

impl Vector for Avx2 {
    const LANES: usize = 8;
    type Words = __m256i;

    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn store_words(words: __m256i, to: *mut u32) {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_storeu_si256(to.cast(), words) }
    }

    #[inline(always)]
    unsafe fn zip_words(a: __m256i, b: __m256i) -> [__m256i; 2] {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            // Of each half of 128 bits.
            let (lower, upper) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            [_mm256_permute2x128_si256::<0x20>(lower, upper), _mm256_permute2x128_si256::<0x31>(lower, upper)]
        }
    }

    #[inline(always)]
    unsafe fn zip_halves(a: __m256i, b: __m256i) -> [__m256i; 2] {
        // SAFETY: the contract of `Vector`, see `x86.rs`.
        unsafe {
            let low = _mm256_blend_epi16::<0xaa>(a, _mm256_slli_epi32::<16>(b));
            let high = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(a), b);
            Self::zip_words(low, high)
        }
    }

    #[inline(always)]
    unsafe fn stream_words(words: __m256i, to: *mut u32) {
        // SAFETY: the contract of `Vector`, see `x86.rs`; the caller aligned it.
        unsafe { _mm256_stream_si256(to.cast(), words) }
    }

    #[inline(always)]
    unsafe fn low_halves(words: __m256i) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_and_si256(words, _mm256_set1_epi32(0xffff)) }
    }

    #[inline(always)]
    unsafe fn dot_bf16(self, a: __m256i, b: __m256i) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let low = |words| Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)));
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let high = |words| Self(_mm256_castsi256_ps(_mm256_and_si256(words, mask)));
            high(a).mul_add(high(b), low(a).mul_add(low(b), self))
        }
    }

    #[inline(always)]
    unsafe fn dot_bytes(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            // Bytes 0 and 2, then 1 and 3, of each word as 16-bit numbers: the instruction on bytes would saturate.
            let even = _mm256_madd_epi16(
                _mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(a), _mm256_srai_epi16::<8>(b));
            _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn split_bf16(pairs: __m256i) -> [Self; 2] {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let high = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            let low = _mm256_slli_epi32::<16>(pairs);
            [Self(_mm256_castsi256_ps(low)), Self(_mm256_castsi256_ps(high))]
        }
    }

    #[inline(always)]
    unsafe fn pair_bf16(low: Self, high: Self) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let round = |values: Self| {
                let bits = _mm256_castps_si256(values.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
            };
            let (low, high) = (round(low), round(high));
            _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(low), high)
        }
    }

    #[inline(always)]
    unsafe fn unzip(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            // Of each half of 128 bits: two of `a`, two of `b`.
            let order = |halves| Self(_mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(halves))));
            [order(_mm256_shuffle_ps::<0x88>(a.0, b.0)), order(_mm256_shuffle_ps::<0xdd>(a.0, b.0))]
        }
    }

    #[inline(always)]
    unsafe fn dot_small_bytes(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            // Two products are less than 2^15.
            let pairs = _mm256_maddubs_epi16(a, b);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn from_integers(words: __m256i) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_cvtepi32_ps(words)) }
    }

    #[inline(always)]
    unsafe fn nibbles(words: __m256i) -> [__m256i; 2] {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            [_mm256_and_si256(words, mask), _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask)]
        }
    }

    #[inline(always)]
    unsafe fn sixes(low: [__m256i; 2], high: __m256i) -> [__m256i; 4] {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let [[a, b], [c, d]] = [Self::nibbles(low[0]), Self::nibbles(low[1])];
            let with = |low, high| _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
            let [of_a, of_b] = [_mm256_slli_epi32::<4>(high), _mm256_slli_epi32::<2>(high)];
            [with(a, of_a), with(b, of_b), with(c, high), with(d, _mm256_srli_epi32::<2>(high))]
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
            let kept = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            // The pack works within halves; the permutation brings them together.
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(kept, kept));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16_low(from: *const u32) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_bf16_high(from: *const u32) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            Self(_mm256_castsi256_ps(_mm256_and_si256(from.cast::<__m256i>().read_volatile(), mask)))
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_fmadd_ps(self.0, factor.0, addend.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { Self(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(probe.0, bound.0), self.0)) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            Self(_mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f80_0000))))
        }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let n = _mm256_cvtps_epi32(_mm256_max_ps(n.0, _mm256_set1_ps(-127.0)));
            let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)));
            Self(_mm256_mul_ps(self.0, _mm256_castsi256_ps(power)))
        }
    }

    #[inline(always)]
    unsafe fn exceeds(self, other: Self) -> bool {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(self.0, other.0)) != 0 }
    }

    #[inline(always)]
    unsafe fn sum_lanes(self) -> f32 {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: the contract of `Vector`, see the module above.
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
}
