//! Vectors that every machine has: four lanes as an array, which compilers turn into 128-bit registers.

use super::Vector;

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
    unsafe fn sum_lanes(self) -> f32 {
        (self.0[0] + self.0[1]) + (self.0[2] + self.0[3])
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}
