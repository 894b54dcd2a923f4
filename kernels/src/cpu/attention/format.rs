//! How keys and values of each element type are multiplied.

use crate::pool::BLOCK_TOKENS;
use crate::simd::{Vector, add_dots, add_products};

/// Keys and values of a pool, and what queries and softmax weights are next to them.
pub(super) trait KvFormat {
    /// A cell of the pool.
    type Cell: Copy;
    /// Whether queries and weights are pairs of bf16; else they are f32.
    const IS_PAIRED: bool;

    /// `sums[r][c] += q[r] . k[c]` for ascending elements; queries are `head_dim` f32 apart (half of that in pairs).
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; `q` must be good for `ROWS` queries, each of `keys` for a
    /// block's K from some slot on.
    unsafe fn add_scores<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        q: *const f32,
        keys: &[*const Self::Cell; VECS],
        head_dim: usize,
    );

    /// `totals[r] += weights[r] v` over the first `slots` of a block, ascending; the weights of two rows are `stride` f32
    /// (or pairs) apart.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; `weights` must be good for `ROWS` rows, `values` for a block's
    /// V from some column on.
    unsafe fn add_values<V: Vector, const ROWS: usize, const VECS: usize>(
        totals: &mut [[V; VECS]; ROWS],
        weights: *const f32,
        stride: usize,
        values: *const Self::Cell,
        row_len: usize,
        slots: usize,
    );
}

/// Cells that stand alone, widened to f32.
pub(super) trait Single: Copy {
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

impl Single for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
}

impl Single for u16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u16) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(from) }
    }
}

/// f32 (cells of f32) or f16 (cells of u16), computed in f32.
pub(super) struct Wide<C>(std::marker::PhantomData<C>);

impl<C: Single> KvFormat for Wide<C> {
    type Cell = C;
    const IS_PAIRED: bool = false;

    #[inline(always)]
    unsafe fn add_scores<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        q: *const f32,
        keys: &[*const C; VECS],
        head_dim: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for dim in 0..head_dim {
                for (column, from) in columns.iter_mut().zip(keys) {
                    *column = C::load(from.add(dim * BLOCK_TOKENS));
                }
                add_products(sums, q.add(dim), head_dim, &columns);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values<V: Vector, const ROWS: usize, const VECS: usize>(
        totals: &mut [[V; VECS]; ROWS],
        weights: *const f32,
        stride: usize,
        values: *const C,
        row_len: usize,
        slots: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for slot in 0..slots {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = C::load(values.add(slot * row_len + vec * V::LANES));
                }
                add_products(totals, weights.add(slot), stride, &columns);
            }
        }
    }
}

/// bf16 in pairs, widened to f32.
pub(super) struct WideBf16;

impl KvFormat for WideBf16 {
    type Cell = u32;
    const IS_PAIRED: bool = false;

    #[inline(always)]
    unsafe fn add_scores<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        q: *const f32,
        keys: &[*const u32; VECS],
        head_dim: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for pair in 0..head_dim / 2 {
                for (column, from) in columns.iter_mut().zip(keys) {
                    *column = V::load_bf16_low(from.add(pair * BLOCK_TOKENS));
                }
                add_products(sums, q.add(2 * pair), head_dim, &columns);
                for (column, from) in columns.iter_mut().zip(keys) {
                    *column = V::load_bf16_high(from.add(pair * BLOCK_TOKENS));
                }
                add_products(sums, q.add(2 * pair + 1), head_dim, &columns);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values<V: Vector, const ROWS: usize, const VECS: usize>(
        totals: &mut [[V; VECS]; ROWS],
        weights: *const f32,
        stride: usize,
        values: *const u32,
        row_len: usize,
        slots: usize,
    ) {
        // SAFETY: the caller's promise. The high half of a last, odd slot is not read: it may hold anything.
        unsafe {
            let mut columns = [V::splat(0.0); VECS];
            for slot in 0..slots {
                let pairs = values.add(slot / 2 * row_len);
                for (vec, column) in columns.iter_mut().enumerate() {
                    let pairs = pairs.add(vec * V::LANES);
                    *column = if slot % 2 == 0 { V::load_bf16_low(pairs) } else { V::load_bf16_high(pairs) };
                }
                add_products(totals, weights.add(slot), stride, &columns);
            }
        }
    }
}

/// bf16 in pairs, queries and weights too.
pub(super) struct DotBf16;

impl KvFormat for DotBf16 {
    type Cell = u32;
    const IS_PAIRED: bool = true;

    #[inline(always)]
    unsafe fn add_scores<V: Vector, const ROWS: usize, const VECS: usize>(
        sums: &mut [[V; VECS]; ROWS],
        q: *const f32,
        keys: &[*const u32; VECS],
        head_dim: usize,
    ) {
        let q = q.cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat_word(0); VECS];
            for pair in 0..head_dim / 2 {
                for (column, from) in columns.iter_mut().zip(keys) {
                    *column = V::load_words(from.add(pair * BLOCK_TOKENS));
                }
                add_dots(sums, q.add(pair), head_dim / 2, &columns);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values<V: Vector, const ROWS: usize, const VECS: usize>(
        totals: &mut [[V; VECS]; ROWS],
        weights: *const f32,
        stride: usize,
        values: *const u32,
        row_len: usize,
        slots: usize,
    ) {
        let weights = weights.cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [V::splat_word(0); VECS];
            for pair in 0..slots / 2 {
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::load_words(values.add(pair * row_len + vec * V::LANES));
                }
                add_dots(totals, weights.add(pair), stride, &columns);
            }
            if slots % 2 == 1 {
                // The high half of a last, odd slot may hold anything, and zero times that need not be zero.
                for (vec, column) in columns.iter_mut().enumerate() {
                    *column = V::low_halves(V::load_words(values.add(slots / 2 * row_len + vec * V::LANES)));
                }
                add_dots(totals, weights.add(slots / 2), stride, &columns);
            }
        }
    }
}
