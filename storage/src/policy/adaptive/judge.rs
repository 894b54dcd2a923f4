//! Who is followed.

use super::EXPERTS;

/// Standard deviations that a challenger's lead has to exceed to be no chance.
const SURE: f64 = 3.5;
/// The share of what a challenger holds and the tier does not that its lead has to exceed: what a change may cost.
const MOVE_SHARE: f64 = 0.25;

/// What the experts would have saved, beside who is followed.
///
/// For each expert it is counted how far it is ahead of the leader since they were last level: what its cache hit and
/// the leader's missed, less the other way round, request by request, and never below nothing (Page's cumulative sum,
/// 1954). So merits that were lost again count for nothing, and no window has to be chosen.
#[derive(Debug, Default)]
pub(super) struct Judge {
    leader: usize,
    /// In the running request.
    difference: [f64; EXPERTS],
    ahead: [f64; EXPERTS],
    /// Sum of the squares of the differences that `ahead` is the sum of.
    variance: [f64; EXPERTS],
}

impl Judge {
    pub fn leader(&self) -> usize {
        self.leader
    }

    /// The running request used an entry worth `value`; the experts of the set `hits` would have had it.
    pub fn hear(&mut self, value: u64, hits: u8) {
        let hit = |expert: usize| f64::from(hits >> expert & 1);
        for (expert, difference) in self.difference.iter_mut().enumerate() {
            // Exact up to 2^53 bytes times microseconds.
            *difference += value as f64 * (hit(expert) - hit(self.leader));
        }
    }

    /// At a request's end: changes the leader if somebody is far enough ahead. `missing` is the value of what each expert
    /// holds and the tier does not.
    ///
    /// Far enough is, first, further than chance would have it: two experts that are as good as each other change places
    /// seldom. And, second, by more than a part of `missing`: following another means to compute again what it holds, at
    /// most all of that once, so that what changes cost is bounded by what was lost before them.
    pub fn end_request(&mut self, missing: &[u64; EXPERTS]) {
        let mut best = (0.0, self.leader);
        for (expert, missing) in missing.iter().enumerate() {
            let difference = std::mem::take(&mut self.difference[expert]);
            self.ahead[expert] += difference;
            self.variance[expert] += difference * difference;
            if self.ahead[expert] <= 0.0 {
                (self.ahead[expert], self.variance[expert]) = (0.0, 0.0);
                continue;
            }
            let chance = SURE * self.variance[expert].sqrt();
            let lead = self.ahead[expert] - chance.max(MOVE_SHARE * *missing as f64);
            if lead > best.0 {
                best = (lead, expert);
            }
        }
        if best.1 != self.leader {
            *self = Self { leader: best.1, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_HIT: u8 = 0b111;

    fn requests(judge: &mut Judge, count: usize, hits: u8, missing: u64) {
        for _ in 0..count {
            judge.hear(10, hits);
            judge.end_request(&[missing; EXPERTS]);
        }
    }

    #[test]
    fn who_is_better_is_followed_once_that_is_no_chance() {
        let mut judge = Judge::default();
        // n requests make 10 n ahead, and 3.5 standard deviations are 35 √n: more than 12 are wanted.
        requests(&mut judge, 12, 0b010, 0);
        assert_eq!(judge.leader(), 0);
        requests(&mut judge, 1, 0b010, 0);
        assert_eq!(judge.leader(), 1);
        // The other way round it takes as long; what all have tells nothing.
        requests(&mut judge, 1000, ALL_HIT, 0);
        requests(&mut judge, 12, 0b100, 0);
        assert_eq!(judge.leader(), 1);
        requests(&mut judge, 1, 0b100, 0);
        assert_eq!(judge.leader(), 2);
    }

    #[test]
    fn who_is_level_again_begins_anew() {
        let mut judge = Judge::default();
        for _ in 0..100 {
            requests(&mut judge, 12, 0b010, 0);
            requests(&mut judge, 12, 0b001, 0);
        }
        assert_eq!(judge.leader(), 0);
    }

    #[test]
    fn a_change_has_to_earn_what_it_may_cost() {
        let mut judge = Judge::default();
        // A quarter of 4000 is earned after 100 requests.
        requests(&mut judge, 100, 0b010, 4000);
        assert_eq!(judge.leader(), 0);
        requests(&mut judge, 1, 0b010, 4000);
        assert_eq!(judge.leader(), 1);
    }
}
