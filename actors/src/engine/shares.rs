//! What callers, and the tenants of each, were given: whoever was given least goes first.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use super::Job;
use crate::admission::caller::Caller;

/// Whose a prompt is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Party {
    caller: Caller,
    tenant: Arc<str>,
}

impl Party {
    pub(super) fn caller(&self) -> Caller {
        self.caller
    }

    pub(super) fn of(job: &Job) -> Self {
        Self { caller: job.caller, tenant: job.tenant.clone() }
    }
}

/// Rows that each was given.
#[derive(Default)]
pub(super) struct Shares {
    callers: Ledger<Caller, ()>,
    parties: Ledger<Party, Caller>,
}

/// Who is there, numbered, and what they were given, by number.
#[derive(Debug, Default, Clone)]
pub(super) struct Served {
    pub callers: Vec<u64>,
    pub tenants: Vec<u64>,
}

/// A prompt's caller and tenant, as numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub caller: usize,
    /// Tenants of two callers have two numbers.
    pub tenant: usize,
}

/// Numbers whoever is there.
#[derive(Default)]
pub(super) struct Present {
    callers: Vec<Here<Caller>>,
    parties: Vec<Here<Party>>,
}

/// One who is there.
struct Here<K> {
    key: K,
    /// Whether a prompt of theirs would take rows now, for an answer.
    wants: bool,
}

impl Present {
    pub(super) fn number(&mut self, party: &Party) -> Owner {
        Owner { caller: number(&mut self.callers, &party.caller), tenant: number(&mut self.parties, party) }
    }

    /// A prompt of theirs would take rows now, for an answer.
    pub(super) fn wants(&mut self, Owner { caller, tenant }: Owner) {
        if let (Some(caller), Some(party)) = (self.callers.get_mut(caller), self.parties.get_mut(tenant)) {
            (caller.wants, party.wants) = (true, true);
        }
    }
}

fn number<K: PartialEq + Clone>(known: &mut Vec<Here<K>>, key: &K) -> usize {
    known.iter().position(|other| other.key == *key).unwrap_or_else(|| {
        known.push(Here { key: key.clone(), wants: false });
        known.len() - 1
    })
}

impl Shares {
    /// What each of those who are `present` was given.
    pub(super) fn of(&mut self, present: &Present) -> Served {
        Served {
            callers: self.callers.of(&present.callers, |_| ()),
            tenants: self.parties.of(&present.parties, |party| party.caller),
        }
    }

    pub(super) fn add(&mut self, party: &Party, rows: u64) {
        self.callers.add(&(), &party.caller, rows);
        self.parties.add(&party.caller, party, rows);
    }
}

/// Rows that one who was away may be given before it is compared with those who were there: a short question does not wait for its part of
/// everybody's long ones. As many as two steps have.
const BURST_ROWS: u64 = 1024;
/// So many such rows may be under way in a group; what its members are given otherwise lets more of them. Else many who come once each had all.
const MOST_BURST_ROWS: u64 = 4 * BURST_ROWS;
/// Who was here lately is remembered so far.
const MOST_LEFT: usize = 1 << 12;

/// What the members of groups were given: start-time fair queueing, with bursts. A group's clock stands where the one stands that wants rows and
/// was given least. One that comes stands up to [`BURST_ROWS`] behind it, and no further: nobody saves up more. Who leaves is remembered, so that
/// nobody goes first again for coming back.
struct Ledger<K, G> {
    here: HashMap<K, Member>,
    /// Of those who were here, and stand further than who comes anew.
    left: HashMap<K, u64>,
    groups: HashMap<G, Group>,
}

/// One who is here.
#[derive(Debug, Clone, Copy)]
struct Member {
    given: u64,
    /// What is left of its burst.
    burst: u64,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    clock: u64,
    /// Rows of bursts that are not given away.
    bursts: u64,
}

impl Default for Group {
    fn default() -> Self {
        Self { clock: 0, bursts: MOST_BURST_ROWS }
    }
}

impl Group {
    fn give_back(&mut self, rows: u64) {
        self.bursts = self.bursts.saturating_add(rows).min(MOST_BURST_ROWS);
    }

    /// Where one begins that comes, and stood there when it left.
    fn begin(&mut self, left: Option<u64>) -> Member {
        let given = self.clock.saturating_sub(BURST_ROWS.min(self.bursts)).max(left.unwrap_or(0));
        let burst = self.clock.saturating_sub(given);
        self.bursts -= burst;
        Member { given, burst }
    }
}

impl<K, G> Default for Ledger<K, G> {
    fn default() -> Self {
        Self { here: HashMap::new(), left: HashMap::new(), groups: HashMap::new() }
    }
}

impl<K: Eq + Hash + Clone, G: Eq + Hash> Ledger<K, G> {
    fn of(&mut self, present: &[Here<K>], group: impl Fn(&K) -> G) -> Vec<u64> {
        if present.is_empty() {
            *self = Self::default();
            return Vec::new();
        }
        self.wind(present, &group);
        let there: HashSet<&K> = present.iter().map(|here| &here.key).collect();
        for (key, own) in self.here.extract_if(|key, _| !there.contains(key)) {
            if let Some(group) = self.groups.get_mut(&group(&key)) {
                group.give_back(own.burst);
            }
            self.left.insert(key, own.given);
        }
        let clock = |key: &K| self.groups.get(&group(key)).map_or(0, |group| group.clock);
        self.left.retain(|key, own| *own > clock(key).saturating_sub(BURST_ROWS));
        if self.left.len() > MOST_LEFT {
            self.left.clear();
        }
        for Here { key, wants } in present {
            let group = self.groups.entry(group(key)).or_default();
            match self.here.get_mut(key) {
                Some(_) if *wants => {}
                // One that decodes, or waits for what is loaded.
                Some(own) => own.given = group.clock.saturating_sub(BURST_ROWS).max(own.given),
                None => {
                    self.here.insert(key.clone(), group.begin(self.left.remove(key)));
                }
            }
        }
        let in_use: HashSet<G> = self.here.keys().chain(self.left.keys()).map(&group).collect();
        self.groups.retain(|group, _| in_use.contains(group));
        present.iter().map(|here| self.here.get(&here.key).map_or(0, |own| own.given)).collect()
    }

    /// Has each group's clock stand where the least of those stands who want rows.
    fn wind(&mut self, present: &[Here<K>], group: impl Fn(&K) -> G) {
        let mut least: HashMap<G, u64> = HashMap::new();
        for Here { key, .. } in present.iter().filter(|here| here.wants) {
            if let Some(own) = self.here.get(key) {
                least.entry(group(key)).and_modify(|least| *least = own.given.min(*least)).or_insert(own.given);
            }
        }
        for (group, least) in least {
            let group = self.groups.entry(group).or_default();
            group.clock = group.clock.max(least);
        }
    }

    fn add(&mut self, group: &G, key: &K, rows: u64) {
        let (Some(own), Some(group)) = (self.here.get_mut(key), self.groups.get_mut(group)) else { return };
        let of_burst = rows.min(own.burst);
        own.burst -= of_burst;
        own.given += rows;
        group.give_back(rows - of_burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(number: u8, tenant: &str) -> Party {
        Party { caller: Caller::of([127, 0, 0, number].into()), tenant: tenant.into() }
    }

    /// Who is there, whether each wants rows, and how many it is given; what each had been given before.
    fn step(shares: &mut Shares, callers: &[(u8, bool, u64)]) -> Vec<u64> {
        let mut present = Present::default();
        for (number, wants, _) in callers {
            let owner = present.number(&party(*number, ""));
            if *wants {
                present.wants(owner);
            }
        }
        let served = shares.of(&present).callers;
        callers.iter().for_each(|(number, _, rows)| shares.add(&party(*number, ""), *rows));
        served
    }

    /// Gives `rows` at a time to whoever was given least; how often each was.
    fn share(shares: &mut Shares, callers: &[u8], rows: u64, steps: usize) -> Vec<usize> {
        let mut turns = vec![0; callers.len()];
        for _ in 0..steps {
            let there: Vec<_> = callers.iter().map(|number| (*number, true, 0)).collect();
            let served = step(shares, &there);
            let least = (0..served.len()).min_by_key(|at| served[*at]).unwrap();
            shares.add(&party(callers[least], ""), rows);
            turns[least] += 1;
        }
        turns
    }

    #[test]
    fn tenants_are_compared_with_those_of_their_caller() {
        let (mut shares, mut present) = (Shares::default(), Present::default());
        let [first, second] = [party(1, "a"), party(1, "b")].map(|party| present.number(&party));
        assert_eq!((first.caller, second.caller), (0, 0));
        shares.of(&present);
        shares.add(&party(1, "a"), 30);
        shares.add(&party(1, "b"), 10);
        let other = present.number(&party(2, "a"));
        let served = shares.of(&present);
        assert_eq!((served.callers, served.tenants), (vec![40, 0], vec![30, 10, 0]));
        assert_eq!(other, Owner { caller: 1, tenant: 2 });
        shares.of(&Present::default());
        assert_eq!(shares.of(&present).callers, [0, 0], "all were away");
    }

    /// Else a caller that comes with long prompts has all rows until it has had as many as one that had long ones for ten minutes.
    #[test]
    fn whoever_only_decodes_saves_up_no_more_than_a_burst_for_itself_and_nothing_for_newcomers() {
        let mut shares = Shares::default();
        for _ in 0..1000 {
            // One decodes, one has long prompts.
            step(&mut shares, &[(1, false, 1), (2, true, 500)]);
        }
        let served = step(&mut shares, &[(1, false, 1), (2, true, 500), (3, true, 500)]);
        assert!(served[1] == 500_000 && served[2] + BURST_ROWS + 1000 >= 500_000, "{served:?}");
        let served = step(&mut shares, &[(1, true, 500), (2, true, 500)]);
        assert!(served[0] + BURST_ROWS + 1000 >= 500_000, "{served:?}");
    }

    #[test]
    fn a_newcomer_goes_first_for_a_burst_and_has_its_part_after_it() {
        let mut shares = Shares::default();
        share(&mut shares, &[1], 512, 100);
        let turns = share(&mut shares, &[1, 2], 512, 102);
        assert!((51..=54).contains(&turns[1]), "{turns:?}");
        assert_eq!(share(&mut shares, &[1, 2, 3], 512, 2), [0, 0, 2], "two steps are a burst");
    }

    /// One question after the other, each within a burst; and many that come once each.
    #[test]
    fn coming_and_going_is_worth_no_more_than_staying() {
        for callers in [1, 200] {
            let mut shares = Shares::default();
            share(&mut shares, &[1], 512, 100);
            let mut turns = [0, 0];
            for round in 0..400 {
                let newcomer = 2 + (round % callers) as u8;
                let had = share(&mut shares, &[1, newcomer], 512, 1);
                turns = [turns[0] + had[0], turns[1] + had[1]];
                step(&mut shares, &[(1, true, 0)]);
            }
            assert!(turns[0] >= 190, "{callers}: {turns:?}");
        }
    }
}
