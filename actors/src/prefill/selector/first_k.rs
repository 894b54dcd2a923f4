//! EPIC's LegoLink ("EPIC: Efficient Position-Independent Caching for Serving Large Language Models", section 4): the first tokens of
//! every passage, which took the attention that the prompt's own beginning has.

use super::{Candidates, Look, TokenSelector};

/// As many of each passage, as far as it goes.
pub(super) struct FirstK;

impl TokenSelector for FirstK {
    fn looks_at(&self) -> Look {
        Look::Nothing
    }

    fn choose(&self, candidates: &Candidates<'_>, budget: usize) -> Vec<usize> {
        let places = places(candidates);
        // The greatest k whose tokens the budget pays for; what is left of it goes to the passages that come first.
        let longest = places.iter().max().map_or(0, |place| place + 1);
        let mut at = vec![0_usize; longest];
        places.iter().for_each(|place| at[*place] += 1);
        let (mut k, mut taken) = (0, 0);
        while k < longest && taken + at[k] <= budget {
            taken += at[k];
            k += 1;
        }
        let mut spare = budget.min(places.len()) - taken;
        let mut chosen = Vec::with_capacity(budget.min(places.len()));
        for (index, place) in places.iter().enumerate() {
            if *place < k || (*place == k && spare > 0) {
                spare -= usize::from(*place == k);
                chosen.push(index);
            }
        }
        chosen
    }
}

/// How many tokens of its passage stand before each candidate.
fn places(candidates: &Candidates<'_>) -> Vec<usize> {
    let place = |slot: &u32| {
        let passage = candidates.passages.partition_point(|passage| passage.end <= *slot);
        candidates.passages.get(passage).map_or(0, |passage| slot.saturating_sub(passage.start) as usize)
    };
    candidates.slots.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_passage_gives_as_many_as_far_as_it_goes() {
        let passages = [10..13, 20..28, 30..34];
        let slots: Vec<u32> = passages.iter().cloned().flatten().collect();
        let candidates = Candidates { slots: &slots, scores: &[], passages: &passages, seed: 0 };
        let choose =
            |budget| FirstK.choose(&candidates, budget).into_iter().map(|index| slots[index]).collect::<Vec<_>>();
        assert_eq!(choose(0), [0; 0]);
        assert_eq!(choose(1), [10]);
        assert_eq!(choose(3), [10, 20, 30]);
        assert_eq!(choose(5), [10, 11, 20, 21, 30], "what is left goes to those that come first");
        assert_eq!(choose(12), [10, 11, 12, 20, 21, 22, 23, 24, 30, 31, 32, 33], "short ones are used up");
        assert_eq!(choose(15), slots);
        assert_eq!(choose(99), slots);
    }
}
