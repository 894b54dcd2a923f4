//! Vectors that every machine has: four lanes as an array, which compilers turn into 128-bit registers.

use super::Vector;
use crate::dtype::bf16_bits;

/// Four lanes.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn map(self, apply: impl Fn(f32) -> f32) -> Self {
        Self([apply(self.0[0]), apply(self.0[1]), apply(self.0[2]), apply(self.0[3])])
    }

    #[inline(always)]
    fn zip(self, other: Self, apply: impl Fn(f32, f32) -> f32) -> Self {
        let (a, b) = (self.0, other.0);
        Self([apply(a[0], b[0]), apply(a[1], b[1]), apply(a[2], b[2]), apply(a[3], b[3])])
    }
}

impl Vector for Portable {
    const LANES: usize = 4;
    type Words = [u32; 4];

    #[inline(always)]
    unsafe fn load_words(from: *const u32) -> [u32; 4] {
        // SAFETY: the caller's pointer is good for four words.
        unsafe { from.cast::<[u32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> [u32; 4] {
        [word; 4]
    }

    #[inline(always)]
    unsafe fn store_words(words: [u32; 4], to: *mut u32) {
        // SAFETY: the caller's pointer is good for four words.
        unsafe { to.cast::<[u32; 4]>().write_unaligned(words) }
    }

    #[inline(always)]
    unsafe fn zip_words(a: [u32; 4], b: [u32; 4]) -> [[u32; 4]; 2] {
        [[a[0], b[0], a[1], b[1]], [a[2], b[2], a[3], b[3]]]
    }

    #[inline(always)]
    unsafe fn zip_halves(a: [u32; 4], b: [u32; 4]) -> [[u32; 4]; 2] {
        let pair = |i: usize| [a[i] & 0xffff | b[i] << 16, a[i] >> 16 | b[i] & 0xffff_0000];
        let [first, second, third, fourth] = [pair(0), pair(1), pair(2), pair(3)];
        [[first[0], first[1], second[0], second[1]], [third[0], third[1], fourth[0], fourth[1]]]
    }

    #[inline(always)]
    unsafe fn stream_words(words: [u32; 4], to: *mut u32) {
        // SAFETY: the caller's pointer is good for four words.
        unsafe { Self::store_words(words, to) }
    }

    #[inline(always)]
    unsafe fn low_halves(words: [u32; 4]) -> [u32; 4] {
        words.map(|word| word & 0xffff)
    }

    #[inline(always)]
    unsafe fn dot_bf16(self, a: [u32; 4], b: [u32; 4]) -> Self {
        let low = |words: [u32; 4]| Self(words.map(|word| f32::from_bits(word << 16)));
        let high = |words: [u32; 4]| Self(words.map(|word| f32::from_bits(word & 0xffff_0000)));
        // SAFETY: these vectors need nothing.
        unsafe { high(a).mul_add(high(b), low(a).mul_add(low(b), self)) }
    }

    #[inline(always)]
    unsafe fn dot_bytes(mut sum: [u32; 4], a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            for (a, b) in a.to_le_bytes().into_iter().zip(b.to_le_bytes()) {
                *sum = sum.wrapping_add((i32::from(a) * i32::from(b as i8)) as u32);
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn split_bf16(pairs: [u32; 4]) -> [Self; 2] {
        [Self(pairs.map(|pair| f32::from_bits(pair << 16))), Self(pairs.map(|pair| f32::from_bits(pair & 0xffff_0000)))]
    }

    #[inline(always)]
    unsafe fn pair_bf16(low: Self, high: Self) -> [u32; 4] {
        let pair = |lane: usize| u32::from(bf16_bits(low.0[lane])) | u32::from(bf16_bits(high.0[lane])) << 16;
        [pair(0), pair(1), pair(2), pair(3)]
    }

    #[inline(always)]
    unsafe fn unzip(a: Self, b: Self) -> [Self; 2] {
        let (a, b) = (a.0, b.0);
        [Self([a[0], a[2], b[0], b[2]]), Self([a[1], a[3], b[1], b[3]])]
    }

    #[inline(always)]
    unsafe fn from_integers(words: [u32; 4]) -> Self {
        Self(words.map(|word| word as i32 as f32))
    }

    #[inline(always)]
    unsafe fn nibbles(words: [u32; 4]) -> [[u32; 4]; 2] {
        [words.map(|word| word & 0x0f0f_0f0f), words.map(|word| word >> 4 & 0x0f0f_0f0f)]
    }

    #[inline(always)]
    unsafe fn sixes(low: [[u32; 4]; 2], high: [u32; 4]) -> [[u32; 4]; 4] {
        let quad = |at: usize| {
            let (low, shift) = (low[at / 2], 4 * (at % 2));
            std::array::from_fn(|lane| low[lane] >> shift & 0x0f0f_0f0f | (high[lane] >> (2 * at) & 0x0303_0303) << 4)
        };
        [quad(0), quad(1), quad(2), quad(3)]
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is good for four bytes.
        Self(unsafe { from.cast::<[u8; 4]>().read_unaligned() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's pointer is good for four values.
        let bits = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Self(bits.map(|bits| half::f16::from_bits(bits).to_f32_const()))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's pointer is good for four values.
        unsafe { to.cast::<[u16; 4]>().write_unaligned(self.0.map(bf16_bits)) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's pointer is good for four values.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's pointer is good for four values.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16_low(from: *const u32) -> Self {
        // SAFETY: the caller's pointer is good for four values.
        let pairs = unsafe { from.cast::<[u32; 4]>().read_unaligned() };
        Self(pairs.map(|pair| f32::from_bits(pair << 16)))
    }

    #[inline(always)]
    unsafe fn load_bf16_high(from: *const u32) -> Self {
        // SAFETY: the caller's pointer is good for four values.
        let pairs = unsafe { from.cast::<[u32; 4]>().read_unaligned() };
        Self(pairs.map(|pair| f32::from_bits(pair & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // Not `f32::mul_add`: without the instruction that is a call into the C library for every lane.
        self.zip(factor, |a, b| a * b).zip(addend, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn zero_where_less(self, probe: Self, bound: Self) -> Self {
        let less = probe.zip(bound, |a, b| if a < b { 1.0 } else { 0.0 });
        self.zip(less, |value, less| if less == 1.0 { 0.0 } else { value })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        self.map(|shifted| f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000)))
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        let power = |n: f32| f32::from_bits(((n.max(-127.0) as i32 + 127) as u32) << 23);
        self.zip(n, |value, n| value * power(n))
    }

    #[inline(always)]
    unsafe fn exceeds(self, other: Self) -> bool {
        self.0.into_iter().zip(other.0).any(|(a, b)| a > b || a.is_nan() || b.is_nan())
    }

    #[inline(always)]
    unsafe fn sum_lanes(self) -> f32 {
        (self.0[0] + self.0[1]) + (self.0[2] + self.0[3])
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}
