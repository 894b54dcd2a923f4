//! Evictions on demand: what leaves which tier, in which order.

use std::collections::{BTreeMap, HashMap, HashSet};

use ragstone_storage::key::KvKey;
use ragstone_storage::store::EntryInfo;
use ragstone_storage::tier::{EntryId, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EntryFilter, EntryMatcher};
use crate::admission::blocking::blocking;
use crate::error::Result;
use crate::ragstone::Ragstone;
use crate::report::events::Happened;

/// What an eviction did, or in a dry run would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Evicted {
    /// Entries that left a tier, each counted once.
    pub entries: u64,
    /// Their copies: each entry as often as there were tiers that it left.
    pub copies: u64,
    /// Bytes of the copies.
    pub bytes: u64,
    /// The same by tier, fastest first.
    pub tiers: Vec<LeftTier>,
    /// Entries that were meant and stay: they are pinned, or a pinned one was computed after them.
    pub pinned: u64,
    /// Whether nothing was changed.
    pub dry_run: bool,
}

/// What left one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftTier {
    /// Which.
    pub tier: Tier,
    /// Copies of entries.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Ragstone {
    /// Takes entries out of the tiers; they are computed again when they are needed. What was computed after them leaves the same tier,
    /// too; what is pinned stays, with everything that it was computed after. Await it on a multi-thread runtime.
    ///
    /// # Errors
    /// As [`EntryFilter::look_up`], and as the tiers say.
    pub async fn evict(&self, filter: &EntryFilter, dry_run: bool) -> Result<Evicted> {
        let (matcher, ragstone) = (filter.look_up(self).await?, self.clone());
        let told = blocking(move || evicted(&ragstone, &matcher, dry_run)).await?;
        if !dry_run && told.copies > 0 {
            self.feed()
                .publish(|| Happened::Evictions(told.tiers.iter().map(|left| (left.tier, left.copies)).collect()));
        }
        Ok(told)
    }
}

/// What leaves, and what could not.
#[derive(Debug, Default, PartialEq, Eq)]
struct Eviction {
    /// Entries of a tier before those that they stand behind.
    steps: Vec<(Tier, EntryId, u64)>,
    /// Entries that fit and stay, because they are pinned, or a pinned one stands behind them.
    pinned: u64,
}

fn evicted(ragstone: &Ragstone, matcher: &EntryMatcher, dry_run: bool) -> Result<Evicted> {
    let mut all = Vec::new();
    ragstone.store().entries(&matcher.listed(), &mut |entry| all.push(entry))?;
    // Also what stands before a pinned entry where one between them is in no tier.
    let kept = ragstone.store().kept(all.iter().map(|entry| entry.summary.key));
    all.iter_mut().for_each(|entry| entry.pinned |= kept.contains(&entry.summary.key));
    let Eviction { steps, pinned } = plan(&all, |entry| matcher.matches(entry), &matcher.tiers());
    let mut removed = Removed::default();
    for (tier, id, bytes) in &steps {
        // Children of the same tier went before it, so that it is one copy.
        if dry_run || ragstone.store().evict(id, *tier)? > 0 {
            removed.count(*tier, id.key, *bytes);
        }
    }
    Ok(removed.told(pinned, dry_run))
}

/// What left. An entry has a copy in every tier that it is in.
#[derive(Debug, Default)]
struct Removed {
    keys: HashSet<KvKey>,
    /// Copies and their bytes.
    tiers: BTreeMap<Tier, (u64, u64)>,
}

impl Removed {
    fn count(&mut self, tier: Tier, key: KvKey, bytes: u64) {
        self.keys.insert(key);
        let (copies, sum) = self.tiers.entry(tier).or_default();
        *copies += 1;
        *sum += bytes;
    }

    fn told(&self, pinned: u64, dry_run: bool) -> Evicted {
        let tier =
            |(tier, (copies, bytes)): (&Tier, &(u64, u64))| LeftTier { tier: *tier, copies: *copies, bytes: *bytes };
        let sum = |of: fn(&(u64, u64)) -> u64| self.tiers.values().map(of).sum::<u64>();
        Evicted {
            entries: self.keys.len() as u64,
            copies: sum(|tier| tier.0),
            bytes: sum(|tier| tier.1),
            tiers: self.tiers.iter().map(tier).collect(),
            pinned,
            dry_run,
        }
    }
}

/// Decides. Pure.
fn plan(all: &[EntryInfo], matches: impl Fn(&EntryInfo) -> bool, tiers: &[Tier]) -> Eviction {
    let by_key: HashMap<KvKey, &EntryInfo> = all.iter().map(|entry| (entry.summary.key, entry)).collect();
    let mut behind: HashMap<KvKey, Vec<&EntryInfo>> = HashMap::new();
    for entry in all {
        if let Some(parent) = entry.summary.parent {
            behind.entry(parent).or_default().push(entry);
        }
    }
    let mut kept = HashSet::new();
    for entry in all.iter().filter(|entry| entry.pinned) {
        let mut at = Some(entry.summary.key);
        while let Some(key) = at.filter(|key| kept.insert(*key)) {
            at = by_key.get(&key).and_then(|entry| entry.summary.parent);
        }
    }
    let mut pinned = HashSet::new();
    let mut steps = Vec::new();
    for tier in tiers {
        let (stay, mut open): (Vec<&EntryInfo>, Vec<&EntryInfo>) = all
            .iter()
            .filter(|entry| entry.tiers.contains(tier) && matches(entry))
            .partition(|entry| kept.contains(&entry.summary.key));
        pinned.extend(stay.iter().map(|entry| entry.summary.key));
        let (mut leaving, mut seen) = (Vec::new(), HashSet::new());
        while let Some(entry) = open.pop() {
            if entry.tiers.contains(tier) && seen.insert(entry.summary.key) {
                leaving.push(entry);
                open.extend(behind.get(&entry.summary.key).into_iter().flatten());
            }
        }
        leaving.sort_by_cached_key(|entry| (std::cmp::Reverse(depth(&by_key, entry)), entry.summary.key));
        steps.extend(leaving.into_iter().map(|entry| (*tier, entry.summary.id(), entry.summary.bytes)));
    }
    Eviction { steps, pinned: pinned.len() as u64 }
}

/// How many entries stand before this one.
fn depth(by_key: &HashMap<KvKey, &EntryInfo>, entry: &EntryInfo) -> usize {
    let before = |entry: &&EntryInfo| entry.summary.parent.and_then(|parent| by_key.get(&parent).copied());
    // A prompt has no more segments than this; keys are hashes, so that there is no circle.
    std::iter::successors(Some(entry), before).take(100_000).count()
}

#[cfg(test)]
mod tests {
    use ragstone_storage::key::{Fingerprint, SegmentDigest};
    use ragstone_storage::tier::EntrySummary;

    use super::*;

    fn entry(key: u8, parent: Option<u8>, tiers: &[Tier], pinned: bool) -> EntryInfo {
        let summary = EntrySummary {
            key: KvKey([key; 32]),
            parent: parent.map(|parent| KvKey([parent; 32])),
            segment: SegmentDigest([key; 16]),
            fingerprint: Fingerprint([0; 32]),
            tenant: "".into(),
            tokens: 1,
            layers: 1,
            bytes: 10,
            compute_us: 1,
            created_unix_ms: 1,
        };
        EntryInfo { summary, tiers: tiers.to_vec(), lossy: false, pinned, last_use_unix_ms: 1, uses: 1 }
    }

    fn planned(all: &[EntryInfo], fitting: &[u8], tiers: &[Tier]) -> (Vec<(Tier, u8)>, u64) {
        let Eviction { steps, pinned } = plan(all, |entry| fitting.contains(&entry.summary.key.0[0]), tiers);
        (steps.iter().map(|(tier, id, _)| (*tier, id.key.0[0])).collect(), pinned)
    }

    #[test]
    fn what_stands_behind_leaves_first_and_only_where_it_is() {
        let both = [Tier::Host, Tier::Disk];
        let all = [
            entry(1, None, &both, false),
            entry(2, Some(1), &both, false),
            entry(3, Some(2), &[Tier::Disk], false),
            entry(4, Some(1), &both, false),
        ];
        assert_eq!(planned(&all, &[2], &[Tier::Host]).0, [(Tier::Host, 2)]);
        assert_eq!(planned(&all, &[2], &[Tier::Disk]).0, [(Tier::Disk, 3), (Tier::Disk, 2)]);
        assert_eq!(planned(&all, &[1, 2], &[Tier::Host]).0, [(Tier::Host, 2), (Tier::Host, 4), (Tier::Host, 1)]);
        assert_eq!(planned(&all, &[3], &Tier::ALL).0, [(Tier::Disk, 3)]);
        assert_eq!(planned(&all, &[9], &Tier::ALL), (vec![], 0));
    }

    #[test]
    fn entries_and_their_copies_are_told_apart() {
        let mut removed = Removed::default();
        for (tier, key) in [(Tier::Host, 1), (Tier::Host, 2), (Tier::Disk, 1)] {
            removed.count(tier, KvKey([key; 32]), 10);
        }
        let told = removed.told(4, false);
        let left = |tier, copies, bytes| LeftTier { tier, copies, bytes };
        assert_eq!(told.tiers, [left(Tier::Host, 2, 20), left(Tier::Disk, 1, 10)]);
        assert_eq!((told.entries, told.copies, told.bytes, told.pinned, told.dry_run), (2, 3, 30, 4, false));
    }

    #[test]
    fn pinned_entries_stay_with_all_before_them() {
        let host = [Tier::Host];
        let all = [
            entry(1, None, &host, false),
            entry(2, Some(1), &host, true),
            entry(3, Some(2), &host, false),
            entry(4, Some(1), &host, false),
        ];
        let (steps, pinned) = planned(&all, &[1, 2, 3, 4], &Tier::ALL);
        assert_eq!(steps, [(Tier::Host, 3), (Tier::Host, 4)]);
        assert_eq!(pinned, 2);
    }
}
