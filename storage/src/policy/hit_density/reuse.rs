//! When entries are used again, learned by class.

/// Ages are told apart four to an octave, up to 2^18 requests.
pub(in crate::policy) const AGES: usize = 68;
/// What stands before an entry: nothing, an entry used for the first time, or one that was used before.
const PREFIXES: usize = 3;
/// Uses so far: 1, 2 to 3, 4 to 7, and so on, the last from 64.
const USES: usize = 7;

/// Classes of entries.
pub(in crate::policy) const CLASSES: usize = PREFIXES * USES;

/// Requests between two times that a class's rates are computed anew.
const RELEARN_EVERY: u64 = 512;
/// What a count weighs after each of these times: half of it after four, 2048 requests.
const KEPT: f64 = 0.840_896_415_253_714_6;
/// Entries that a class borrows from those of fewer uses, until it has seen as many itself.
const BORROWED: f64 = 20.0;
/// What is assumed before anything was seen: one entry in ten is used again, at an age as likely in one interval as in the other.
/// Worth two entries, so that what is seen soon outweighs it.
const ASSUMED: Counts = Counts { entered: 2.0, used: [0.2 / AGES as f64; AGES] };

/// The class of an entry that was used `uses` times, as the next of one that was used `parent_uses` times (0: of none).
pub(in crate::policy) fn class_of(parent_uses: u64, uses: u32) -> usize {
    // At most 2.
    let prefix = parent_uses.min(PREFIXES as u64 - 1) as usize;
    prefix * USES + (uses.max(1).ilog2() as usize).min(USES - 1)
}

/// Uses to be expected of the members of each class, by the time since their last use.
#[derive(Debug)]
pub(in crate::policy) struct Reuse {
    seen: Vec<Counts>,
    /// The index by age, see [`Counts::rates`].
    rates: Vec<[f64; AGES]>,
    /// The last request whose class was computed.
    learned: u64,
}

/// Of one class.
#[derive(Debug, Clone, Copy)]
struct Counts {
    /// Uses that made an entry a member.
    entered: f64,
    /// Those after which it was used again, by age.
    used: [f64; AGES],
}

impl Default for Reuse {
    fn default() -> Self {
        let nothing = Counts { entered: 0.0, used: [0.0; AGES] };
        Self { seen: vec![nothing; CLASSES], rates: vec![ASSUMED.rates(); CLASSES], learned: 0 }
    }
}

impl Reuse {
    /// An entry came into a class by its use.
    pub fn entered(&mut self, class: usize) {
        self.seen[class].entered += 1.0;
    }

    /// A member of a class was used again, `age` requests after it came.
    pub fn used_again(&mut self, class: usize, age: u64) {
        self.seen[class].used[interval(age)] += 1.0;
    }

    /// Uses per request that keeping a member of a class promises, by the [`interval`] of its age.
    pub fn rates(&self, class: usize) -> &[f64; AGES] {
        &self.rates[class]
    }

    /// Learns from what was counted, one class a request, so that no request waits for all of them.
    pub fn advance(&mut self, request: u64) {
        self.learned = self.learned.max(request.saturating_sub(RELEARN_EVERY));
        while self.learned < request {
            self.learned += 1;
            let class = (self.learned % RELEARN_EVERY) as usize;
            if class < CLASSES {
                let mut counts = self.of_fewer_uses(class % USES).of(BORROWED);
                counts.add(&self.seen[class]);
                self.rates[class] = counts.rates();
                let seen = &mut self.seen[class];
                *seen = seen.of(seen.entered * KEPT);
            }
        }
    }

    /// What is to be expected of entries of a class of uses before any was seen: what those of fewer uses did, whatever
    /// stood before them; they borrowed from those of fewer still, and the first from what is assumed.
    ///
    /// In a cycle every entry climbs the classes in step with all the others, and each class would be new to all of them.
    fn of_fewer_uses(&self, uses: usize) -> Counts {
        let mut counts = ASSUMED;
        for fewer in 0..uses {
            counts = counts.of(BORROWED);
            (0..PREFIXES).for_each(|prefix| counts.add(&self.seen[prefix * USES + fewer]));
        }
        counts
    }
}

impl Counts {
    /// The same as if so many had entered.
    fn of(&self, entered: f64) -> Self {
        let factor = if self.entered > 0.0 { entered / self.entered } else { KEPT };
        Self { entered, used: self.used.map(|used| used * factor) }
    }

    fn add(&mut self, other: &Self) {
        self.entered += other.entered;
        self.used.iter_mut().zip(&other.used).for_each(|(used, more)| *used += more);
    }

    /// The Gittins index of keeping a member of each age: the greatest, over the times to keep it on, of
    /// `uses within that time / requests spent waiting for them`. Members that were not used by an age wait on.
    ///
    /// Uses and waiting summed up over the ages are points of a curve; the index of an age is the steepest line from its
    /// point to a later one. From the last age down, a stack keeps the later points that such a line can end at: O(ages).
    ///
    /// Rounded to 24 bits: what is equal but for the order of additions is equal.
    fn rates(&self) -> [f64; AGES] {
        let mut curve = [(0.0, 0.0); AGES + 1];
        let mut waiting = self.entered;
        for age in 0..AGES {
            // What came before the counts faded may be used after: never fewer than none.
            let left = f64::max(waiting - self.used[age], 0.0);
            let (requests, uses) = curve[age];
            // Waiting on takes time even if nobody is known to wait.
            let passed = f64::midpoint(waiting, left) * (begin(age + 1) - begin(age));
            curve[age + 1] = (requests + passed.max(1e-9), uses + self.used[age]);
            waiting = left;
        }
        let slope = |from: usize, to: usize| (curve[to].1 - curve[from].1) / (curve[to].0 - curve[from].0);
        let mut rates = [0.0; AGES];
        let mut ends = Vec::with_capacity(AGES + 1);
        ends.push(AGES);
        for age in (0..AGES).rev() {
            while let [.., further, nearer] = ends[..]
                && slope(age, nearer) <= slope(nearer, further)
            {
                ends.pop();
            }
            rates[age] = f64::from(ends.last().map_or(0.0, |end| slope(age, *end)) as f32);
            ends.push(age);
        }
        rates
    }
}

/// The interval that an age lies in.
pub(in crate::policy) fn interval(age: u64) -> usize {
    if age < 4 {
        return age as usize;
    }
    let octave = age.ilog2() as usize;
    let quarter = (age >> (octave - 2)) as usize & 3;
    ((octave - 1) * 4 + quarter).min(AGES - 1)
}

/// The first and the last age of an interval.
pub(in crate::policy) fn ages(interval: usize) -> (u64, u64) {
    // Below 2^18.
    let last = if interval + 1 < AGES { begin(interval + 1) as u64 - 1 } else { u64::MAX };
    (begin(interval) as u64, last)
}

/// The first age of an interval.
fn begin(interval: usize) -> f64 {
    if interval < 4 {
        return interval as f64;
    }
    let (octave, quarter) = (interval / 4 + 1, interval % 4);
    (4 + quarter) as f64 * 2f64.powi(octave as i32 - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_begin_where_ages_fall_into_them() {
        for index in 0..AGES {
            assert_eq!(interval(begin(index) as u64), index);
            assert_eq!(interval(begin(index + 1) as u64 - 1), index);
        }
        assert_eq!(interval(u64::MAX), AGES - 1);
    }

    /// Half of the members are used again after exactly 4 requests, the others never: by hand.
    #[test]
    fn the_index_is_the_best_rate_over_the_times_to_keep_on() {
        let mut counts = Counts { entered: 100.0, used: [0.0; AGES] };
        counts.used[interval(4)] = 50.0;
        let rates = counts.rates();
        // Fresh: 100 wait for 4 requests, and during the fifth 100 at its begin and 50 at its end: 50 uses in 475.
        assert!((rates[0] - 50.0 / 475.0).abs() < 1e-7);
        // One request before: nearer to the use. At its age: nearer still. Past it: nothing to come.
        assert!((rates[3] - 50.0 / 175.0).abs() < 1e-7);
        assert!((rates[4] - 50.0 / 75.0).abs() < 1e-7);
        assert_eq!(rates[5], 0.0);
    }

    #[test]
    fn the_index_is_the_steepest_of_all_lines() {
        let env = ragstone_env::Env::seeded(7, 0);
        for _ in 0..200 {
            let mut counts = Counts { entered: 0.0, used: [0.0; AGES] };
            counts.used.iter_mut().for_each(|used| *used = (env.random_u64() % 8).saturating_sub(4) as f64);
            counts.entered = counts.used.iter().sum::<f64>() + (env.random_u64() % 50) as f64;
            let rates = counts.rates();
            for (from, index) in rates.into_iter().enumerate() {
                let (mut waiting, mut uses, mut requests, mut best) = (counts.entered, 0.0, 0.0, 0.0);
                counts.used[..from].iter().for_each(|used| waiting -= used);
                for age in from..AGES {
                    uses += counts.used[age];
                    requests += (waiting - counts.used[age] / 2.0) * (begin(age + 1) - begin(age));
                    waiting -= counts.used[age];
                    best = f64::max(best, if requests > 0.0 { uses / requests } else { 0.0 });
                }
                assert!((index - best).abs() <= 1e-6 * best.max(1e-3), "from {from}: {index} for {best}");
            }
        }
    }

    #[test]
    fn classes_are_by_prefix_and_powers_of_two_of_uses() {
        assert_eq!(class_of(0, 1), 0);
        assert_eq!((class_of(0, 2), class_of(0, 3), class_of(0, 4)), (1, 1, 2));
        assert_eq!((class_of(1, 1), class_of(2, 1), class_of(3, 1)), (USES, 2 * USES, 2 * USES));
        assert_eq!((class_of(u64::MAX, 64), class_of(2, u32::MAX)), (CLASSES - 1, CLASSES - 1));
    }

    #[test]
    fn what_is_seen_outweighs_what_is_assumed_and_is_forgotten_again() {
        let mut reuse = Reuse::default();
        let assumed = reuse.rates(0)[1];
        for _ in 0..200 {
            reuse.entered(0);
            reuse.used_again(0, 1);
        }
        reuse.advance(RELEARN_EVERY);
        assert!(reuse.rates(0)[0] > 10.0 * assumed);
        for round in 2..200 {
            reuse.advance(round * RELEARN_EVERY);
        }
        assert!(reuse.rates(0)[1] < 2.0 * assumed);
    }

    /// In a cycle no class but the first would have seen anything by the time that all are in it.
    #[test]
    fn a_class_borrows_from_those_of_fewer_uses_until_it_has_seen_enough_itself() {
        let mut reuse = Reuse::default();
        for _ in 0..200 {
            reuse.entered(0);
            reuse.used_again(0, 100);
        }
        reuse.advance(2 * USES as u64 + RELEARN_EVERY);
        let steepest = |reuse: &Reuse, class: usize| {
            (0..AGES).max_by(|a, b| reuse.rates(class)[*a].total_cmp(&reuse.rates(class)[*b])).unwrap()
        };
        assert_eq!(steepest(&reuse, 1), interval(100), "of the next class");
        assert_eq!(steepest(&reuse, USES + 1), interval(100), "behind another prefix");
        for _ in 0..200 {
            reuse.entered(1);
            reuse.used_again(1, 9);
        }
        reuse.advance(2 * USES as u64 + 2 * RELEARN_EVERY);
        assert_eq!(steepest(&reuse, 1), interval(9), "its own");
    }
}
