//! What was invalidated, for as long as something older may still be on its way.
//!
//! An entry that was planned before its passage was invalidated must not be filed afterwards. Every plan notes the epoch
//! that it was made in; every invalidation begins a new one.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::key::{KvKey, SegmentDigest};
use crate::tier::EntrySummary;
use ragstone_env::lock::locked;

/// Marks beyond which the older half is forgotten; then nothing that was planned before them is filed.
const MOST_MARKS: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Tombstones(Mutex<Marks>);

#[derive(Debug, Default)]
struct Marks {
    epoch: u64,
    /// Marks of epochs up to this one may be forgotten.
    floor: u64,
    segments: HashMap<SegmentDigest, u64>,
    keys: HashMap<KvKey, u64>,
}

impl Tombstones {
    /// The present epoch.
    pub fn epoch(&self) -> u64 {
        locked(&self.0).epoch
    }

    /// Begins an epoch before which nothing of these segments, and nothing behind these keys, may have been planned.
    pub fn bury(&self, segments: &[SegmentDigest], keys: &[KvKey]) {
        let mut marks = locked(&self.0);
        marks.epoch += 1;
        let epoch = marks.epoch;
        marks.segments.extend(segments.iter().map(|segment| (*segment, epoch)));
        marks.keys.extend(keys.iter().map(|key| (*key, epoch)));
        marks.trim();
    }

    /// Whether an entry that was planned in the epoch `planned_in` may not be filed any more. What is refused is marked, so
    /// that what was computed after it is refused too.
    pub fn forbids(&self, entry: &EntrySummary, planned_in: u64) -> bool {
        let mut marks = locked(&self.0);
        let is_later = |mark: Option<&u64>| mark.is_some_and(|mark| *mark > planned_in);
        let forbidden = planned_in < marks.floor
            || is_later(marks.segments.get(&entry.segment))
            || is_later(marks.keys.get(&entry.key))
            || is_later(entry.parent.and_then(|parent| marks.keys.get(&parent)));
        if forbidden {
            let epoch = marks.epoch;
            marks.keys.insert(entry.key, epoch);
            marks.trim();
        }
        forbidden
    }
}

impl Marks {
    fn trim(&mut self) {
        if self.segments.len() + self.keys.len() <= MOST_MARKS {
            return;
        }
        let mut epochs: Vec<u64> = self.segments.values().chain(self.keys.values()).copied().collect();
        let middle = epochs.len() / 2;
        let (_, median, _) = epochs.select_nth_unstable(middle);
        self.floor = *median;
        let floor = self.floor;
        self.segments.retain(|_, mark| *mark > floor);
        self.keys.retain(|_, mark| *mark > floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::entry_behind;

    #[test]
    fn what_was_planned_before_is_refused_with_all_behind_it_and_what_is_planned_after_is_not() {
        let tombstones = Tombstones::default();
        let passage = entry_behind(None, &[1]).header().summary();
        let behind = entry_behind(Some(passage.key), &[2]).header().summary();
        let farther = entry_behind(Some(behind.key), &[3]).header().summary();
        let other = entry_behind(None, &[3]).header().summary();
        let before = tombstones.epoch();
        assert!(!tombstones.forbids(&passage, before));
        tombstones.bury(&[passage.segment], &[]);
        assert!(tombstones.forbids(&passage, before));
        assert!(tombstones.forbids(&behind, before), "its parent was refused");
        assert!(tombstones.forbids(&farther, before));
        assert!(!tombstones.forbids(&other, before));
        let after = tombstones.epoch();
        assert!([&passage, &behind, &farther].iter().all(|entry| !tombstones.forbids(entry, after)));
    }

    #[test]
    fn marks_are_bounded_and_forgetting_them_refuses_more_never_less() {
        let tombstones = Tombstones::default();
        let passage = entry_behind(None, &[1]).header().summary();
        tombstones.bury(&[passage.segment], &[]);
        for mark in 0..MOST_MARKS as u64 {
            let mut digest = [0; 16];
            digest[..8].copy_from_slice(&mark.to_le_bytes());
            tombstones.bury(&[SegmentDigest(digest)], &[]);
        }
        let marks = locked(&tombstones.0);
        assert!(marks.segments.len() <= MOST_MARKS);
        assert!(!marks.segments.contains_key(&passage.segment));
        drop(marks);
        assert!(tombstones.forbids(&passage, 0));
    }
}
