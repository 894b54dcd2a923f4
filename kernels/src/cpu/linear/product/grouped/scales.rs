//! The scales of a packed block, as vectors. Where they stand is drawn at [`Grouping::block_words`](crate::linear::Grouping).

use crate::linear::panels::PANEL;
use crate::simd::Vector;

/// Where scales stand.
#[derive(Clone, Copy)]
pub(super) struct ScalePointers {
    /// Those of a block.
    pub(super) outer: *const u32,
    /// Those of a group, or of half of one.
    pub(super) group: *const u32,
}

impl ScalePointers {
    /// Of half of a group instead, where these are a group's and each half has a byte for each output.
    pub(super) fn of_half(self, half: usize) -> Self {
        Self { group: self.group.wrapping_add(half * PANEL / 4), ..self }
    }
}

/// How quants become weights. `column` is one of a panel.
///
/// # Safety
/// Of all methods: the machine must have the instruction set of `V`, `from` must be good for a block's and a group's scales, and a vector from
/// `column` on must be within the panel.
pub(super) trait ScalesOf {
    /// Whether the [middle](crate::linear::Bits) is taken from each quant, in integers.
    const HAS_MIDDLE: bool = false;
    /// Whether a group has a least value beside its scale.
    const HAS_MIN: bool;
    /// Whether each half of a group has a scale of its own.
    const IS_PAIR: bool = false;
    /// Whether scales and least values are small integers, and weights fit a signed byte before an outer scale multiplies them, so that sums
    /// over the block are exact.
    const IS_WHOLE: bool = false;

    /// What a quant is multiplied with.
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V;

    /// What is added for each input.
    #[inline(always)]
    unsafe fn min<V: Vector>(_: ScalePointers, _: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::splat(0.0) }
    }

    /// What the block is multiplied with.
    #[inline(always)]
    unsafe fn outer<V: Vector>(_: ScalePointers, _: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::splat(1.0) }
    }
}

/// See [`Scales::Symmetric`](crate::linear::groups::Scales::Symmetric).
pub(super) struct Symmetric;

impl ScalesOf for Symmetric {
    const HAS_MIDDLE: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from.group.cast::<u16>().add(column)) }
    }
}

/// See [`Scales::Min`](crate::linear::groups::Scales::Min).
pub(super) struct Min;

impl ScalesOf for Min {
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from.group.cast::<u16>().add(column)) }
    }

    #[inline(always)]
    unsafe fn min<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from.group.cast::<u16>().add(PANEL + column)) }
    }
}

/// See [`Scales::Nested`](crate::linear::groups::Scales::Nested). Products of an f16 and six bits are exact in f32.
pub(super) struct Nested;

impl ScalesOf for Nested {
    const HAS_MIN: bool = true;

    #[inline(always)]
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let outer: V = V::load_f16(from.outer.cast::<u16>().add(column));
            outer.mul(V::load_bytes(from.group.cast::<u8>().add(column)))
        }
    }

    #[inline(always)]
    unsafe fn min<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let outer = V::load_f16(from.outer.cast::<u16>().add(PANEL + column));
            let min = outer.mul(V::load_bytes(from.group.cast::<u8>().add(PANEL + column)));
            V::splat(0.0).sub(min)
        }
    }
}

/// See [`Scales::Pair`](crate::linear::groups::Scales::Pair). Products of an f16 and eight bits are exact in f32.
pub(super) struct Pair;

impl ScalesOf for Pair {
    const HAS_MIDDLE: bool = true;
    const HAS_MIN: bool = false;
    const IS_PAIR: bool = true;

    #[inline(always)]
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let outer: V = V::load_f16(from.outer.cast::<u16>().add(column));
            outer.mul(V::load_bytes(from.group.cast::<u8>().add(column)).sub(V::splat(128.0)))
        }
    }
}

/// See [`Scales::Steps`](crate::linear::groups::Scales::Steps).
pub(super) struct Steps;

impl ScalesOf for Steps {
    const HAS_MIN: bool = true;
    const IS_WHOLE: bool = true;

    #[inline(always)]
    unsafe fn scale<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bytes(from.group.cast::<u8>().add(column)) }
    }

    #[inline(always)]
    unsafe fn min<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bytes(from.group.cast::<u8>().add(PANEL + column)).sub(V::splat(128.0)) }
    }

    #[inline(always)]
    unsafe fn outer<V: Vector>(from: ScalePointers, column: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from.outer.cast::<u16>().add(column)) }
    }
}
