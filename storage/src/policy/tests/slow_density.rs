//! Hit density from its definition: every event kept, counts and indices computed from them by scanning, each candidate looked at.

use std::collections::BTreeMap;

use super::super::{Access, Id, Policy, PolicyKind};

/// Requests between two times that a class learns, and what its counts weigh after each.
const PERIOD: u64 = 512;
const KEPT: f64 = 0.840_896_415_253_714_6;
const INTERVALS: usize = 68;
const PREFIXES: u64 = 3;
const USES: u32 = 7;

#[derive(Debug, Default)]
pub struct SlowHitDensity {
    entries: BTreeMap<Id, Entry>,
    /// Class, request, and the age at which it ended if it is the end of a stay in the class.
    events: Vec<((u64, u32), u64, Option<u64>)>,
    now: u64,
    ticks: u64,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    is_resident: bool,
    is_evictable: bool,
    uses: u32,
    class: (u64, u32),
    costs: Vec<f64>,
    last_use: u64,
    tick: u64,
}

/// The first age of each interval and the one after the last: 0 to 3, then four to an octave.
fn bounds() -> Vec<u64> {
    let octaves = (2u32..).flat_map(|octave| (4..8u64).map(move |quarter| quarter << (octave - 2)));
    (0..4).chain(octaves).take(INTERVALS + 1).collect()
}

fn interval(age: u64) -> usize {
    (bounds().iter().filter(|first| **first <= age).count() - 1).min(INTERVALS - 1)
}

impl SlowHitDensity {
    /// The times at which a class learned, before `now` or at it.
    fn lessons(class: (u64, u32), now: u64) -> impl DoubleEndedIterator<Item = u64> {
        let number = class.0 * u64::from(USES) + u64::from(class.1);
        (0..=now / PERIOD).map(move |period| period * PERIOD + number).filter(move |at| *at > 0 && *at <= now)
    }

    /// What a class had seen before request `at`, faded: who entered, and who was used again by interval.
    fn seen(&self, class: (u64, u32), at: u64) -> (f64, Vec<f64>) {
        let (mut entered, mut used) = (0.0, vec![0.0; INTERVALS]);
        for (_, then, age) in self.events.iter().filter(|(of, then, _)| *of == class && *then < at) {
            let fades = Self::lessons(class, at - 1).filter(|lesson| lesson > then).count();
            let weight = KEPT.powi(fades as i32);
            match age {
                None => entered += weight,
                Some(age) => used[interval(*age)] += weight,
            }
        }
        (entered, used)
    }

    fn rate(&self, class: (u64, u32), age: u64) -> f64 {
        let assumed = (2.0, vec![0.2 / INTERVALS as f64; INTERVALS]);
        let Some(lesson) = Self::lessons(class, self.now).next_back() else { return index(&assumed, interval(age)) };
        let mut counts = assumed;
        for fewer in 0..=class.1 {
            let factor = 20.0 / counts.0;
            counts.1.iter_mut().for_each(|used| *used *= factor);
            counts.0 = 20.0;
            // Its own last, those of fewer uses whatever stood before them.
            for prefix in (0..PREFIXES).filter(|prefix| fewer < class.1 || *prefix == class.0) {
                let (entered, used) = self.seen((prefix, fewer), lesson);
                counts.0 += entered;
                counts.1.iter_mut().zip(used).for_each(|(sum, more)| *sum += more);
            }
        }
        index(&counts, interval(age))
    }
}

/// The greatest rate of uses, over all times to keep a member on that has come to interval `from`.
fn index((entered, used): &(f64, Vec<f64>), from: usize) -> f64 {
    let bounds = bounds();
    let (mut waiting, mut uses, mut requests, mut best) = (*entered, 0.0, 0.0, 0.0);
    for (at, used) in used.iter().enumerate() {
        let left = f64::max(waiting - used, 0.0);
        if at >= from {
            uses += used;
            requests += f64::max((waiting + left) / 2.0 * (bounds[at + 1] - bounds[at]) as f64, 1e-9);
            best = f64::max(best, uses / requests);
        }
        waiting = left;
    }
    f64::from(best as f32)
}

impl Policy for SlowHitDensity {
    fn kind(&self) -> PolicyKind {
        PolicyKind::HitDensity
    }

    fn access(&mut self, id: Id, access: Access) {
        self.ticks += 1;
        self.now = access.request;
        let mut entry = self.entries.remove(&id).unwrap_or_default();
        if entry.uses > 0 && access.past_uses == 0 {
            self.events.push((entry.class, self.now, Some(self.now - entry.last_use)));
        }
        entry.uses += access.past_uses.max(1);
        let uses_class = (0..USES).rev().find(|class| entry.uses >= 1 << class).unwrap();
        entry.class = (access.parent_uses.min(PREFIXES - 1), uses_class);
        self.events.push((entry.class, self.now, None));
        if !access.is_cached {
            entry.costs.push(access.cost_per_token);
        }
        (entry.last_use, entry.tick) = (self.now, self.ticks);
        self.entries.insert(id, entry);
    }

    fn insert(&mut self, id: Id, _: u64) {
        self.entries.entry(id).or_default().is_resident = true;
    }

    fn set_evictable(&mut self, id: Id, is_evictable: bool) {
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.is_resident) {
            entry.is_evictable = is_evictable;
        }
    }

    fn victim(&mut self) -> Option<Id> {
        let density = |entry: &Entry| {
            let mean = entry.costs.iter().fold(0.0, |sum, cost| sum + cost) / entry.costs.len().max(1) as f64;
            // Costs count in half powers of two, from 1 on.
            let level = (2.0 * mean.max(1.0).log2()).floor().min(63.0);
            self.rate(entry.class, self.now - entry.last_use) * (level / 2.0).exp2()
        };
        let candidates = self.entries.iter().filter(|(_, entry)| entry.is_evictable);
        let by_density = candidates.map(|(id, entry)| (density(entry), entry.tick, *id));
        by_density.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, _, id)| id)
    }

    fn evict(&mut self, id: Id) {
        self.remove(id);
    }

    fn remove(&mut self, id: Id) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.is_resident, entry.is_evictable) = (false, false);
        }
    }

    fn forget(&mut self, id: Id) {
        self.entries.remove(&id);
    }
}
