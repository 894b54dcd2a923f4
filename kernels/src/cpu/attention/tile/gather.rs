//! Values weighted and summed up.

use super::{KEY_TILE, KeyTile};
use crate::attention::format::KvFormat;
use crate::pool::BLOCK_TOKENS;
use crate::simd::Vector;

/// The weighted values of some queries.
pub(super) struct Gather<'a> {
    /// Rows are `row_len` apart.
    pub(super) sums: *mut f32,
    pub(super) row_len: usize,
    /// By row.
    pub(super) decay: &'a [f32],
    /// Rows are [`KEY_TILE`] apart.
    pub(super) weights: *const f32,
}

impl Gather<'_> {
    /// `VECS` vectors of elements from `column` on.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; the pointers must be good for `ROWS` rows.
    #[inline(always)]
    pub(super) unsafe fn columns<V: Vector, F: KvFormat, const ROWS: usize, const VECS: usize>(
        &self,
        keys: &KeyTile<F::Cell>,
        column: usize,
    ) {
        // SAFETY: the caller's promise; a block's weights are as many as its tokens, or half of that in pairs.
        unsafe {
            let sums = self.sums.add(column);
            let mut totals = [[V::splat(0.0); VECS]; ROWS];
            for (row, totals) in totals.iter_mut().enumerate() {
                for (vec, total) in totals.iter_mut().enumerate() {
                    let before = V::load(sums.add(row * self.row_len + vec * V::LANES));
                    *total = before.mul(V::splat(self.decay[row]));
                }
            }
            for first in (0..keys.slots).step_by(BLOCK_TOKENS) {
                let values = keys.values[first / BLOCK_TOKENS].add(column);
                let slots = BLOCK_TOKENS.min(keys.slots - first);
                let weights = self.weights.add(if F::IS_PAIRED { first / 2 } else { first });
                F::add_values(&mut totals, weights, KEY_TILE, values, self.row_len, slots);
            }
            for (row, totals) in totals.iter().enumerate() {
                for (vec, total) in totals.iter().enumerate() {
                    total.store(sums.add(row * self.row_len + vec * V::LANES));
                }
            }
        }
    }
}
