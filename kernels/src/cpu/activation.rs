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
