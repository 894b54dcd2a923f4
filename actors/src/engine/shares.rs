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

/// Nobody saves up (start-time fair queueing): one that was away, or is there without a prompt, begins where the one of its group stands that wants
/// rows and was given least.
struct Ledger<K>(HashMap<K, u64>);

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Clone> Ledger<K> {
    fn of<G: PartialEq>(&mut self, present: &[Here<K>], group: impl Fn(&K) -> G) -> Vec<u64> {
        let group = &group;
        let of_group = |key: &K| {
            let own = group(key);
            present.iter().filter(move |other| group(&other.key) == own)
        };
        let known = |other: &Here<K>| self.0.get(&other.key).copied();
        let least = |key: &K| of_group(key).filter(|other| other.wants).filter_map(known).min();
        let given = |Here { key, wants }: &Here<K>| match self.0.get(key) {
            Some(own) if *wants => *own,
            Some(own) => least(key).map_or(*own, |least| least.max(*own)),
            None => least(key).or_else(|| of_group(key).filter_map(known).max()).unwrap_or(0),
        };
        let given: Vec<u64> = present.iter().map(given).collect();
        self.0 = present.iter().map(|here| here.key.clone()).zip(given.iter().copied()).collect();
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

    /// Else a caller that comes with long prompts has all rows until it has had as many as one that had long ones for ten minutes.
    #[test]
    fn whoever_only_decodes_saves_nothing_up_for_itself_or_for_newcomers() {
        let party = |number: u8| Party { caller: Caller::of([127, 0, 0, number].into()), tenant: "".into() };
        let mut shares = Shares::default();
        let mut given = |callers: &[(u8, bool, u64)]| {
            let mut present = Present::default();
            for (number, wants, _) in callers {
                let owner = present.number(&party(*number));
                if *wants {
                    present.wants(owner);
                }
            }
            let served = shares.of(&present);
            assert_eq!(served.callers.len(), callers.len());
            for (number, _, rows) in callers {
                shares.add(&party(*number), *rows);
            }
            served.callers
        };
        for _ in 0..1000 {
            // One decodes, one has long prompts.
            given(&[(1, false, 1), (2, true, 500)]);
        }
        let served = given(&[(1, false, 1), (2, true, 500), (3, true, 500)]);
        assert_eq!((served[1], served[2]), (500_000, 500_000), "the newcomer stands where the one with prompts does");
        let served = given(&[(1, true, 500), (2, true, 500)]);
        assert!(served[0] >= 499_000, "and so does the one that decoded, now that it has long ones, too: {served:?}");
    }
}
