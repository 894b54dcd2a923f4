//! The online softmax of a tile of scores.

use super::{KEY_TILE, LANES, RowTile, State};
use crate::simd::{Vector, exp, exp_coarse};

impl RowTile<'_> {
    /// Turns scores into weights against the new maximum, and says what earlier sums shrink by. In passes over all
    /// queries, so that the chains of dependent steps are short and overlap. Weights become bf16 where they are `paired`.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    pub(super) unsafe fn weigh<V: Vector>(&self, state: &mut State<'_>, tile: usize, masked: bool, paired: bool) {
        let (vecs, queries) = (KEY_TILE / V::LANES, self.positions.len() * self.shared_heads);
        if let Some(slopes) = self.options.slopes {
            // SAFETY: the caller's promise.
            unsafe { self.add_biases::<V>(slopes, tile, state.scores) };
        }
        // SAFETY: rows of scores and masks are `KEY_TILE` long, which every vector divides, as it does `LANES`; decays
        // are padded to whole vectors.
        unsafe {
            if masked {
                for (query, scores) in state.scores.chunks_exact_mut(KEY_TILE).enumerate().take(queries) {
                    let mask = state.mask[query / self.shared_heads * KEY_TILE..][..KEY_TILE].as_ptr();
                    for slot in (0..KEY_TILE).step_by(V::LANES) {
                        let scores = scores.as_mut_ptr().add(slot);
                        V::load(scores).min(V::load(mask.add(slot))).store(scores);
                    }
                }
            }
            for (query, scores) in state.scores.chunks_exact(KEY_TILE).enumerate().take(queries) {
                let before = state.greatest[query];
                let mut greatest = V::load(scores.as_ptr());
                for vec in 1..vecs {
                    greatest = greatest.max(V::load(scores.as_ptr().add(vec * V::LANES)));
                }
                state.decay[query] = 0.0;
                // After the first tiles it seldom is.
                if greatest.exceeds(V::splat(before)) {
                    let greatest = V::splat(before).max(greatest).max_lane();
                    state.greatest[query] = greatest;
                    state.decay[query] = before - greatest;
                }
            }
            for lanes in state.decay.chunks_exact_mut(V::LANES) {
                exp(V::load(lanes.as_ptr())).store(lanes.as_mut_ptr());
            }
            for (query, scores) in state.scores.chunks_exact_mut(KEY_TILE).enumerate().take(queries) {
                let greatest = V::splat(state.greatest[query]);
                let scores = scores.as_mut_ptr();
                let mut fresh = V::splat(0.0);
                for slot in (0..KEY_TILE).step_by(V::LANES) {
                    let difference = V::load(scores.add(slot)).sub(greatest);
                    if paired {
                        let weight = exp_coarse(difference);
                        // At or before what was read.
                        weight.store_bf16(scores.cast::<u16>().add(slot));
                        fresh = fresh.add(weight);
                    } else {
                        let weight = exp(difference);
                        weight.store(scores.add(slot));
                        fresh = fresh.add(weight);
                    }
                }
                let weights = state.weights[query * LANES..(query + 1) * LANES].as_mut_ptr();
                V::load(weights).mul_add(V::splat(state.decay[query]), fresh).store(weights);
            }
        }
    }

    /// Takes from every score its head's slope times the distance between key and query, by their true positions.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn add_biases<V: Vector>(&self, slopes: &[f32], tile: usize, scores: &mut [f32]) {
        let keys = self.sequence.key_positions[tile * KEY_TILE..].iter();
        let slopes = &slopes[self.head * self.shared_heads..][..self.shared_heads];
        let by_row = scores.chunks_exact_mut(self.shared_heads * KEY_TILE);
        for (position, scores) in self.positions.iter().zip(by_row) {
            let mut distances = [0.0_f32; KEY_TILE];
            for (distance, key) in distances.iter_mut().zip(keys.clone()) {
                // Keys that the row does not see are masked.
                *distance = position.saturating_sub(*key) as f32;
            }
            for (slope, scores) in slopes.iter().zip(scores.chunks_exact_mut(KEY_TILE)) {
                for slot in (0..KEY_TILE).step_by(V::LANES) {
                    // SAFETY: the caller's promise; vectors divide a key tile.
                    unsafe {
                        let scores = scores.as_mut_ptr().add(slot);
                        let distance = V::load(distances.as_ptr().add(slot));
                        distance.mul_add(V::splat(-slope), V::load(scores)).store(scores);
                    }
                }
            }
        }
    }
}
