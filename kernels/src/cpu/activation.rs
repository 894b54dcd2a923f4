//! Activation functions of feed-forward parts, by lane.

use crate::simd::{Vector, exp};

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`: the GELU as trained models have approximated it.
    Gelu,
}

impl Activation {
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    pub(crate) unsafe fn of<V: Vector>(self, x: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Silu => silu(x),
                Self::Gelu => gelu(x),
            }
        }
    }
}

/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn silu<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

/// "Gaussian Error Linear Units", section 2. As `(1 + tanh u) / 2` is `1 / (1 + e^(-2u))`, nothing cancels.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn gelu<V: Vector>(x: V) -> V {
    // -2 sqrt(2 / pi)
    const FACTOR: f32 = -1.595_769;
    // SAFETY: the caller's promise.
    unsafe {
        let inner = x.mul(x).mul_add(V::splat(0.044_715), V::splat(1.0));
        x.div(V::splat(1.0).add(exp(x.mul(V::splat(FACTOR)).mul(inner))))
    }
}

/// `x / 2 (1 + erf(x / sqrt 2))` ("Gaussian Error Linear Units", section 2), which encoders were trained with.
///
/// With the complementary error function of "Handbook of Mathematical Functions", 7.1.26, which is off by 1.5e-7 at
/// most: `erfc(z) = p(t) e^(-z^2)` with `t = 1 / (1 + 0.3275911 z)`, for z >= 0. By symmetry the GELU is
/// `max(x, 0) - |x| / 2 erfc(|x| / sqrt 2)` for either sign, where nothing cancels.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn gelu_of_erf<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = V::splat(0.0);
        let size = zero.sub(x).max(x);
        let z = size.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = V::splat(1.0).div(z.mul_add(V::splat(0.327_591_1), V::splat(1.0)));
        let mut sum = V::splat(1.061_405_4);
        sum = sum.mul_add(t, V::splat(-1.453_152));
        sum = sum.mul_add(t, V::splat(1.421_413_8));
        sum = sum.mul_add(t, V::splat(-0.284_496_74));
        sum = sum.mul_add(t, V::splat(0.254_829_6));
        let erfc = sum.mul(t).mul(exp(zero.sub(z.mul(z))));
        zero.max(x).sub(size.mul(V::splat(0.5)).mul(erfc))
    }
}
