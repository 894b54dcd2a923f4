//! The control: any tokens.

use super::{Candidates, Look, TokenSelector};

/// Drawn from the seed.
pub(super) struct Random;

impl TokenSelector for Random {
    fn looks_at(&self) -> Look {
        Look::Nothing
    }

    fn choose(&self, candidates: &Candidates<'_>, budget: usize) -> Vec<usize> {
        draw(candidates.seed, candidates.slots.iter().copied(), budget)
    }
}

/// The indices of `count` of the slots (all, if there are fewer), ascending. A slot draws the same ticket on every layer; the lowest
/// win.
fn draw(seed: u64, slots: impl Iterator<Item = u32>, count: usize) -> Vec<usize> {
    let mut tickets: Vec<(u64, usize)> =
        slots.enumerate().map(|(index, slot)| (splitmix64(seed ^ splitmix64(u64::from(slot))), index)).collect();
    tickets.sort_unstable();
    tickets.truncate(count);
    let mut chosen: Vec<usize> = tickets.into_iter().map(|(_, index)| index).collect();
    chosen.sort_unstable();
    chosen
}

/// Steele, Lea and Flood's finalizer ("Fast splittable pseudorandom number generators"): one number from another.
pub(crate) fn splitmix64(number: u64) -> u64 {
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
}
