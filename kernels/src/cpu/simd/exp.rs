//! The exponential function by lane.

use super::Vector;

/// Below this e^x is no normal number: the result is zero, exactly, so that a masked score has no weight at all.
const LOWEST: f32 = -87.3;
/// So low that the power of two is zero.
const LOWEST_COARSE: f32 = -150.0;
/// Above this e^x overflows: the argument is clamped.
const HIGHEST: f32 = 88.0;
/// Adding it to a number of magnitude under 2^22 leaves that number, rounded to an integer, in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// e^x by lane, to about 1e-7 relative: x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor polynomial of
/// degree 7 (the first term left out is under 6e-9).
///
/// `exp(0)` is 1 and `exp(-inf)` is 0, both exactly; x is clamped to 88 from above.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let lowest = V::splat(LOWEST);
        let clamped = V::splat(HIGHEST).min(lowest.max(x));
        let rounder = V::splat(ROUNDER);
        let shifted = clamped.mul_add(V::splat(std::f32::consts::LOG2_E), rounder);
        let n = shifted.sub(rounder);
        let r = n.mul_add(V::splat(-LN_2_HIGH), clamped);
        let r = n.mul_add(V::splat(-LN_2_LOW), r);
        let terms = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        polynomial(r, terms).mul(shifted.power_of_two()).zero_where_less(x, lowest)
    }
}

/// e^x for x <= 0 to 6e-5 relative, by the polynomial of degree 4: for what is rounded to bf16 next, which is thirty times
/// coarser. As exact as [`exp`] at 0 and at -inf.
///
/// # Safety
/// As [`exp`].
#[inline(always)]
pub(crate) unsafe fn exp_coarse<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let rounder = V::splat(ROUNDER);
        // A number that is not one stays so.
        let x = V::splat(LOWEST_COARSE).max(x);
        let n = x.mul_add(V::splat(std::f32::consts::LOG2_E), rounder).sub(rounder);
        let r = n.mul_add(V::splat(-std::f32::consts::LN_2), x);
        polynomial(r, [1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]).times_power_of_two(n)
    }
}

/// # Safety
/// As [`exp`].
#[inline(always)]
unsafe fn polynomial<V: Vector, const TERMS: usize>(x: V, coefficients: [f32; TERMS]) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = V::splat(coefficients[0]);
        for coefficient in &coefficients[1..] {
            sum = sum.mul_add(x, V::splat(*coefficient));
        }
        sum
    }
}
