//! What callers, and the tenants of each, were given: whoever was given least goes first.

use std::collections::HashMap;
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

/// Rows that each was given, of those who are there.
#[derive(Default)]
pub(super) struct Shares {
    callers: Ledger<Caller>,
    parties: Ledger<Party>,
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
    callers: Vec<Caller>,
    parties: Vec<Party>,
}

impl Present {
    pub(super) fn number(&mut self, party: &Party) -> Owner {
        Owner { caller: number(&mut self.callers, &party.caller), tenant: number(&mut self.parties, party) }
    }
}

fn number<K: PartialEq + Clone>(known: &mut Vec<K>, key: &K) -> usize {
    known.iter().position(|other| other == key).unwrap_or_else(|| {
        known.push(key.clone());
        known.len() - 1
    })
}

impl Shares {
    /// What each of those who are `present` was given; others are forgotten.
    pub(super) fn of(&mut self, present: &Present) -> Served {
        Served {
            callers: self.callers.of(&present.callers, |_| ()),
            tenants: self.parties.of(&present.parties, |party| party.caller),
        }
    }

    pub(super) fn add(&mut self, party: &Party, rows: u64) {
        self.callers.add(&party.caller, rows);
        self.parties.add(party, rows);
    }
}

/// One that was away begins where the one of its group that was served least stands now: nobody saves up.
struct Ledger<K>(HashMap<K, u64>);

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone> Ledger<K> {
    fn of<G: PartialEq>(&mut self, present: &[K], group: impl Fn(&K) -> G) -> Vec<u64> {
        let least = |of: &K| {
            let group_of = group(of);
            let others = present.iter().filter(|key| group(key) == group_of);
            others.filter_map(|key| self.0.get(key).copied()).min().unwrap_or(0)
        };
        let given: Vec<u64> =
            present.iter().map(|key| self.0.get(key).copied().unwrap_or_else(|| least(key))).collect();
        self.0 = present.iter().cloned().zip(given.iter().copied()).collect();
        given
    }

    fn add(&mut self, key: &K, rows: u64) {
        if let Some(given) = self.0.get_mut(key) {
            *given += rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_away_begins_where_the_least_served_stands() {
        let party =
            |number: u8, tenant: &str| Party { caller: Caller::of([127, 0, 0, number].into()), tenant: tenant.into() };
        let (mut shares, mut present) = (Shares::default(), Present::default());
        let [first, second] = [party(1, "a"), party(1, "b")].map(|party| present.number(&party));
        assert_eq!((first.caller, second.caller), (0, 0));
        shares.of(&present);
        shares.add(&party(1, "a"), 30);
        shares.add(&party(1, "b"), 10);
        let other = present.number(&party(2, "a"));
        let served = shares.of(&present);
        assert_eq!(served.callers, [40, 40]);
        assert_eq!(
            served.tenants,
            [30, 10, 0],
            "a tenant of another caller is another tenant, and compared with none of these"
        );
        assert_eq!(other, Owner { caller: 1, tenant: 2 });
        shares.of(&Present::default());
        assert_eq!(shares.of(&present).callers, [0, 0], "all were away");
    }
}
