//! The evictable members of one class at one cost, by age.

use std::collections::BTreeSet;

use super::reuse::{AGES, ages, interval};
use crate::policy::Id;

/// Up to so many members are looked at one by one.
const FEW: usize = 8;

/// Members by the request of their last use, and by the order of uses within it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    members: BTreeSet<(u64, u64, Id)>,
    /// The least as of a request; unknown if somebody left or came since.
    least: Option<(u64, Least)>,
}

/// Who promises least of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Least {
    pub rate: f64,
    pub tick: u64,
    pub id: Id,
}

impl Queue {
    pub fn put(&mut self, last_use: u64, tick: u64, id: Id) {
        self.members.insert((last_use, tick, id));
        self.least = None;
    }

    pub fn remove(&mut self, last_use: u64, tick: u64, id: Id) {
        if self.members.remove(&(last_use, tick, id)) && self.least.is_some_and(|(_, least)| least.id == id) {
            self.least = None;
        }
    }

    /// The member whose age promises least at request `now`, the one used longest ago among equals; `rates` by interval.
    pub fn least(&mut self, now: u64, rates: &[f64; AGES]) -> Option<Least> {
        if let Some((then, least)) = self.least
            && then == now
        {
            return Some(least);
        }
        let least = self.search(now, rates)?;
        self.least = Some((now, least));
        Some(least)
    }

    fn search(&self, now: u64, rates: &[f64; AGES]) -> Option<Least> {
        let age = |last_use: u64| interval(now.saturating_sub(last_use));
        let (&(oldest, ..), &(youngest, ..)) = (self.members.first()?, self.members.last()?);
        if self.members.len() <= FEW {
            let all = self.members.iter().map(|&(last_use, tick, id)| Least { rate: rates[age(last_use)], tick, id });
            return all.min_by(|a, b| a.rate.total_cmp(&b.rate));
        }
        // From the interval of the least rate to that of the next, the older first, until one has a member.
        let mut tried = [false; AGES];
        loop {
            let intervals = (age(youngest)..=age(oldest)).rev().filter(|at| !tried[*at]);
            let at = intervals.min_by(|a, b| rates[*a].total_cmp(&rates[*b]))?;
            tried[at] = true;
            let (least_age, most_age) = ages(at);
            let range =
                (now.saturating_sub(most_age), 0, Id(0))..=(now.saturating_sub(least_age), u64::MAX, Id(u32::MAX));
            if let Some(&(_, tick, id)) = self.members.range(range).next() {
                return Some(Least { rate: rates[at], tick, id });
            }
        }
    }
}
