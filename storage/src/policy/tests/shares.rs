//! Who gives, against a reference that looks at every entry.

use proptest::prelude::*;

use crate::policy::shares::{Giver, Holding, Terms, can_make_room, giver};

/// An entry of a tier without parents: its party, its bytes, and when it was used.
type Entry = (usize, u64, u64);

/// The slow way: everything follows from the list of entries.
#[derive(Debug, Clone)]
struct Reference {
    terms: Vec<Terms>,
    entries: Vec<Entry>,
}

impl Reference {
    fn held(&self, party: usize) -> u64 {
        self.entries.iter().filter(|entry| entry.0 == party).map(|entry| entry.1).sum()
    }

    fn next(&self, party: usize) -> Option<Entry> {
        self.entries.iter().filter(|entry| entry.0 == party).min_by_key(|entry| entry.2).copied()
    }

    fn holdings(&self) -> Vec<Holding> {
        let holding = |(party, terms): (usize, &Terms)| Holding {
            terms: *terms,
            bytes: self.held(party),
            evictable_bytes: self.held(party),
            next_bytes: self.next(party).map(|entry| entry.1),
        };
        self.terms.iter().enumerate().map(holding).collect()
    }

    /// Whether one that leaves for `arriving` leaves its party what it is guaranteed.
    fn may_leave(&self, entry: Entry, arriving: usize) -> bool {
        let (party, bytes, _) = entry;
        party == arriving || self.held(party) - bytes >= self.terms[party].share_bytes
    }

    /// Who gives by the words: the least recently used, as the policy here has it, if it may leave; else the one furthest above its share,
    /// of those whose next may leave.
    fn next_to_leave(&self, arriving: usize) -> Option<Entry> {
        let chosen = self.entries.iter().min_by_key(|entry| entry.2).copied()?;
        if self.may_leave(chosen, arriving) {
            return Some(chosen);
        }
        let mut best: Option<(u64, Entry)> = None;
        for party in 0..self.terms.len() {
            let above = self.held(party).saturating_sub(self.terms[party].share_bytes);
            let Some(next) = self.next(party).filter(|next| self.may_leave(*next, arriving)) else { continue };
            if best.is_none_or(|(most, _)| above > most) {
                best = Some((above, next));
            }
        }
        best.map(|(_, entry)| entry)
    }

    fn leave(&mut self, entry: Entry) {
        self.entries.retain(|other| *other != entry);
    }
}

fn tiers() -> impl Strategy<Value = Reference> {
    let bytes = || prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX)];
    let terms = prop::collection::vec((bytes(), bytes()), 1..5);
    (terms, prop::collection::vec((any::<prop::sample::Index>(), 1u64..12), 0..20)).prop_map(|(terms, entries)| {
        let terms: Vec<Terms> =
            terms.into_iter().map(|(share_bytes, limit_bytes)| Terms { share_bytes, limit_bytes }).collect();
        let entry =
            |(at, (party, bytes)): (usize, (prop::sample::Index, u64))| (party.index(terms.len()), bytes, at as u64);
        let entries = entries.into_iter().enumerate().map(entry).collect();
        Reference { terms, entries }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_one_who_gives_is_the_one_that_the_slow_way_finds(tier in tiers(), arriving in any::<prop::sample::Index>()) {
        let arriving = arriving.index(tier.terms.len());
        let chosen = tier.entries.iter().min_by_key(|entry| entry.2).map(|entry| (entry.0, entry.1));
        let found = match giver(&tier.holdings(), arriving, chosen) {
            Giver::Policy => tier.entries.iter().min_by_key(|entry| entry.2).copied(),
            Giver::Party(party) => tier.next(party),
            Giver::Nobody => None,
        };
        prop_assert_eq!(found, tier.next_to_leave(arriving));
    }

    /// Whatever is promised room gets it, within its limit, and nobody's guaranteed share is touched for it.
    #[test]
    fn room_that_is_promised_is_made_and_no_share_is_touched(
        tier in tiers(), arriving in any::<prop::sample::Index>(), bytes in 1u64..20, capacity in 1u64..150,
    ) {
        let arriving = arriving.index(tier.terms.len());
        let total = |tier: &Reference| tier.entries.iter().map(|entry| entry.1).sum::<u64>();
        let (before, largest) = (tier.clone(), tier.entries.iter().map(|entry| entry.1).max().unwrap_or(0));
        let mut tier = tier;
        let limit = tier.terms[arriving].limit_bytes;
        if can_make_room(&tier.holdings(), arriving, (total(&tier), capacity), bytes, largest) {
            while tier.held(arriving).saturating_add(bytes) > limit {
                let own = tier.next(arriving);
                prop_assert!(own.is_some());
                own.into_iter().for_each(|own| tier.leave(own));
            }
            while total(&tier) + bytes > capacity {
                let leaving = tier.next_to_leave(arriving);
                prop_assert!(leaving.is_some(), "{tier:?}");
                leaving.into_iter().for_each(|leaving| tier.leave(leaving));
            }
            for party in (0..tier.terms.len()).filter(|party| *party != arriving) {
                prop_assert!(tier.held(party) >= before.held(party).min(tier.terms[party].share_bytes));
            }
        } else {
            // It is refused for its limit, its size, or because others have little more than what they are guaranteed.
            let above = |party: usize| before.held(party).saturating_sub(before.terms[party].share_bytes);
            let others = (0..before.terms.len()).filter(|party| *party != arriving);
            let given: u64 = others.map(|party| above(party).saturating_sub(largest)).sum::<u64>() + before.held(arriving);
            prop_assert!(bytes > limit || total(&before) + bytes > capacity + given);
        }
    }
}

#[test]
fn without_terms_the_policys_choice_stands_and_all_may_leave() {
    let holdings = [Holding { bytes: 30, evictable_bytes: 30, ..Holding::default() }; 3];
    assert_eq!(giver(&holdings, 0, Some((2, 30))), Giver::Policy);
    assert_eq!(giver(&holdings, 0, None), Giver::Nobody);
    assert!(can_make_room(&holdings, 0, (90, 90), 90, 30) && !can_make_room(&holdings, 0, (90, 90), 91, 30));
    assert!(can_make_room(&[], 7, (0, 10), 10, 0));
    assert!(!can_make_room(&[], 7, (u64::MAX, 10), u64::MAX, 0), "nothing overflows");
}

#[test]
fn a_limit_of_nothing_keeps_everything_out() {
    let terms = Terms { share_bytes: u64::MAX, limit_bytes: 0 };
    let holding = Holding { terms, bytes: 5, evictable_bytes: 5, next_bytes: Some(5) };
    assert!(!can_make_room(&[holding], 0, (5, 100), 1, 5));
    assert_eq!((holding.surplus(), holding.over_limit(u64::MAX)), (0, u64::MAX));
}
