//! The choice of tokens to recompute ("CacheBlend: Fast Large Language Model Serving for RAG with Cached Knowledge
//! Fusion", section 4.3), and the variants of it that `ragstone eval` measures.

use ragstone_kernels::deviation::{Compared, select_highest};
use ragstone_storage::plan::LoadPlan;

/// The first layer whose fresh K and V can differ from stored ones: those of the layer before it come from the
/// embeddings alone.
pub const FIRST_SELECTION_LAYER: usize = 1;

/// The layer that chooses unless settings say otherwise. K and V of layer 1 show only what layer 0 attended to, which can be
/// as little as the few tokens before; where passages first meet in layer 1, layer 2 is the first to show it
/// (docs/results.md, Answers). The paper chooses on layer 1, for one layer less of full computation.
pub const DEFAULT_SELECTION_LAYER: usize = 2;

/// Under [`Schedule::Gradual`] the first choice keeps this much more than the ratio, and the last this much less.
const GRADUAL_SLOPE: f32 = 0.5;

/// How the tokens of blended passages that are recomputed are chosen. How many is the ratio's alone. The default is what
/// serves; the rest is there to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Which tokens.
    pub by: By,
    /// On which layers.
    pub schedule: Schedule,
    /// The first layer that chooses, at least [`FIRST_SELECTION_LAYER`]; those before it compute every token. A model without
    /// this layer chooses on its last.
    pub layer: usize,
}

impl Default for Selection {
    fn default() -> Self {
        Self { by: By::default(), schedule: Schedule::default(), layer: DEFAULT_SELECTION_LAYER }
    }
}

/// Which of the tokens are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Those whose fresh K, V, or both deviate most from the stored ones.
    Deviation(Compared),
    /// Any, drawn from this seed: the control that says what choosing by deviation is worth.
    Random(u64),
}

impl Default for By {
    fn default() -> Self {
        Self::Deviation(Compared::Both)
    }
}

/// On which layers tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// Once, on the first layer that may.
    #[default]
    OneShot,
    /// On that layer and every one behind it, each time from those that are left: more than the ratio at first, less in the end,
    /// and the ratio on average (section 4.3's gradual filtering).
    Gradual,
}

impl Schedule {
    /// The share of the blended tokens that `layer` computes, of `layers`, if `first` is the first that chooses; `None` where
    /// nothing is chosen on this layer.
    fn share(self, ratio: f32, first: usize, layer: usize, layers: usize) -> Option<f32> {
        match self {
            Self::OneShot => (layer == first).then_some(ratio),
            Self::Gradual if layer < first => None,
            Self::Gradual => {
                let slope = GRADUAL_SLOPE.min(1.0 / ratio - 1.0);
                let last = (layers - 1 - first).max(1) as f32;
                Some(ratio * (1.0 + slope * (1.0 - 2.0 * (layer - first) as f32 / last)))
            }
        }
    }
}

impl Selection {
    /// The first layer of `layers` that chooses.
    pub(super) fn first_layer(self, layers: usize) -> usize {
        self.layer.clamp(FIRST_SELECTION_LAYER, layers.saturating_sub(1).max(FIRST_SELECTION_LAYER))
    }
}

/// Rows of blended passages that a layer has computed, and how far each deviates from what is stored.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Ascending.
    slots: Vec<u32>,
    deviations: Vec<f32>,
}

impl Candidates {
    pub(super) fn extend(&mut self, slots: &[u32], deviations: &[f32]) {
        self.slots.extend_from_slice(slots);
        self.deviations.extend_from_slice(deviations);
    }

    /// Goes on with those of the next chunk.
    pub(super) fn append(&mut self, more: Self) {
        self.extend(&more.slots, &more.deviations);
    }
}

impl Selection {
    /// What is compared; `None` where nothing is.
    pub(super) fn compares(self) -> Option<Compared> {
        match self.by {
            By::Deviation(compared) => Some(compared),
            By::Random(_) => None,
        }
    }

    /// Whether every layer behind the first that chooses does so, too.
    pub(super) fn is_gradual(self) -> bool {
        self.schedule == Schedule::Gradual
    }

    /// Of the slots `active`, which `layer` has computed so far, those that go on, ascending: everything that is not blended, and of
    /// the blended tokens the share that the ratio and the schedule give, counted over all blended passages together.
    pub(super) fn choose(
        self,
        plan: &LoadPlan,
        (layer, layers): (usize, usize),
        active: &[u32],
        candidates: &Candidates,
    ) -> Vec<u32> {
        let first = self.first_layer(layers);
        let Some(share) = self.schedule.share(plan.ratio, first, layer, layers) else { return active.to_vec() };
        let budget = (share * plan.blended_tokens as f32).ceil() as usize;
        let slots = &candidates.slots;
        let chosen = match self.by {
            By::Deviation(_) => select_highest(&candidates.deviations, budget),
            By::Random(seed) => draw(seed, slots.iter().copied(), budget),
        };
        let mut goes_on = vec![false; slots.len()];
        chosen.into_iter().for_each(|index| goes_on[index] = true);
        let is_kept = |slot: &u32| slots.binary_search(slot).map_or(true, |index| goes_on[index]);
        active.iter().copied().filter(is_kept).collect()
    }
}

/// The indices of `count` of the positions (all, if there are fewer), ascending. A position draws the same ticket on every
/// layer; the lowest win.
fn draw(seed: u64, positions: impl Iterator<Item = u32>, count: usize) -> Vec<usize> {
    let mut tickets: Vec<(u64, usize)> =
        positions.enumerate().map(|(index, row)| (splitmix64(seed ^ splitmix64(u64::from(row))), index)).collect();
    tickets.sort_unstable();
    tickets.truncate(count);
    let mut chosen: Vec<usize> = tickets.into_iter().map(|(_, index)| index).collect();
    chosen.sort_unstable();
    chosen
}

/// Steele, Lea and Flood's finalizer ("Fast splittable pseudorandom number generators"): one number from another.
fn splitmix64(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_choice_is_even() {
        let choose = |seed, count| draw(seed, 100..140, count);
        let mut times = [0; 40];
        for seed in 0..4000 {
            let chosen = choose(seed, 6);
            assert_eq!(chosen.len(), 6);
            assert!(chosen.is_sorted_by(|a, b| a < b), "ascending, each once: {chosen:?}");
            chosen.into_iter().for_each(|index| times[index] += 1);
        }
        // 600 each, standard deviation 22.6.
        assert!(times.iter().all(|times| (480..720).contains(times)), "{times:?}");
        assert_eq!(choose(3, 50), (0..40).collect::<Vec<_>>());
        // More of the same draw: a greater ratio keeps what a smaller one chose.
        assert!(choose(5, 6).iter().all(|index| choose(5, 12).contains(index)));
        assert_eq!((choose(5, 6), choose(5, 6) == choose(6, 6)), (choose(5, 6), false));
    }

    #[test]
    fn gradual_shares_fall_and_have_the_ratio_as_their_mean() {
        for (ratio, layers) in [(0.15_f32, 5_usize), (0.5, 24), (0.9, 5), (0.3, 3), (0.2, 2)] {
            let shares: Vec<f32> =
                (1..layers).map(|layer| Schedule::Gradual.share(ratio, 1, layer, layers).unwrap()).collect();
            assert!(shares.is_sorted_by(|a, b| a >= b) && shares[0] <= 1.0, "{shares:?}");
            if layers > 2 {
                let mean = shares.iter().sum::<f32>() / shares.len() as f32;
                assert!((mean - ratio).abs() < 1e-5 && shares[0] > *shares.last().unwrap(), "{ratio}: {shares:?}");
            }
        }
        assert_eq!(Schedule::Gradual.share(0.15, 1, 0, 5), None);
        assert_eq!(
            (0..3).map(|layer| Schedule::OneShot.share(0.15, 1, layer, 3)).collect::<Vec<_>>(),
            [None, Some(0.15), None]
        );
    }
}
