//! The evictable members of one class at one cost, by age.

use std::collections::BTreeSet;

use super::reuse::{AGES, ages, interval};
use crate::policy::Id;

/// Up to so many members are looked at one by one.
const FEW: usize = 8;
/// More that came are not compared one by one.
const MOST_CAME: usize = 32;

/// Members by the request of their last use, and by the order of uses within it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    members: BTreeSet<(u64, u64, Id)>,
    /// The least as of a request; unknown if it left since.
    least: Option<(u64, Least)>,
    /// Who came since, and may be less.
    came: Vec<(u64, u64, Id)>,
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
        if self.least.is_some() {
            self.came.push((last_use, tick, id));
        }
        if self.came.len() > MOST_CAME {
            self.forget_least();
        }
    }

    pub fn remove(&mut self, last_use: u64, tick: u64, id: Id) {
        if !self.members.remove(&(last_use, tick, id)) {
            return;
        }
        if self.least.is_some_and(|(_, least)| least.id == id) {
            self.forget_least();
        }
        self.came.retain(|(_, _, other)| *other != id);
    }

    /// The member whose age promises least at request `now`, the one used longest ago among equals; `rates` by interval.
    pub fn least(&mut self, now: u64, rates: &[f64; AGES]) -> Option<Least> {
        let least = match self.least {
            Some((then, mut least)) if then == now => {
                for (last_use, tick, id) in self.came.drain(..) {
                    let rate = rates[interval(now.saturating_sub(last_use))];
                    if rate < least.rate || (rate <= least.rate && (tick, id) < (least.tick, least.id)) {
                        least = Least { rate, tick, id };
                    }
                }
                least
            }
            _ => {
                self.forget_least();
                self.search(now, rates)?
            }
        };
        self.least = Some((now, least));
        Some(least)
    }

    fn forget_least(&mut self) {
        self.least = None;
        self.came.clear();
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
