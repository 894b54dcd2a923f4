//! Look-up: from the fastest tier to the slowest, and what follows if a hit turns out not to be one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::KvStore;
use super::reader::EntryReader;
use super::tiers::count;
use crate::entry::EntryHeader;
use crate::key::{KvKey, SegmentDigest};
use crate::tier::{EntryId, EntryTier, Precision, Tier, TierEntry, Use};
use crate::{Error, ErrorKind};
use ragstone_env::Stopwatch;
use ragstone_env::lock::locked;

/// How long an entry of object storage that could not be read is left alone.
const AVOIDED: Duration = Duration::from_secs(30);
/// Entries that are left alone, at the most.
const MOST_AVOIDED: usize = 1024;

/// A hit; its token ids were compared.
#[derive(Clone)]
pub struct Found {
    /// What the entry is.
    pub header: Arc<EntryHeader>,
    /// The fastest tier that has it.
    pub tier: Tier,
    /// Open, and pinned there while this lives. [`KvStore::late_miss`] removes it all the same.
    pub entry: Arc<dyn TierEntry>,
    /// The store's epoch before any tier was asked for it: reading it brings nothing back that is invalidated afterwards.
    pub(super) found_in: u64,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({} in {})", self.header.key, self.tier)
    }
}

/// What object storage has of a prompt's entries.
pub struct ObjectsFound {
    exact: HashMap<KvKey, Arc<dyn TierEntry>>,
    lossy: HashMap<KvKey, Arc<dyn TierEntry>>,
    /// The store's epoch before it was asked; the greatest where nothing was.
    found_in: u64,
}

impl Default for ObjectsFound {
    fn default() -> Self {
        Self { exact: HashMap::new(), lossy: HashMap::new(), found_in: u64::MAX }
    }
}

impl ObjectsFound {
    /// What was found in two goes.
    pub(crate) fn extend(&mut self, more: Self) {
        self.exact.extend(more.exact);
        self.lossy.extend(more.lossy);
        self.found_in = self.found_in.min(more.found_in);
    }

    /// Whether object storage has the key's entry bit for bit.
    pub fn contains(&self, key: &KvKey) -> bool {
        self.exact.contains_key(key)
    }
}

/// An entry that object storage is asked for where no faster tier has it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its key.
    pub key: &'a KvKey,
    /// Its token ids.
    pub tokens: &'a [u32],
    /// What of it is of use: with [`Precision::Lossy`], what is only close to it, too.
    pub precision: Precision,
}

#[derive(Default)]
pub(super) struct State {
    /// Entries of object storage that could not be read lately, and until when they are left alone.
    avoided: HashMap<KvKey, Stopwatch>,
}

impl KvStore {
    /// The address of the entry of `tokens` under `key`.
    pub fn id(&self, key: &KvKey, tokens: &[u32]) -> EntryId {
        EntryId { key: *key, segment: SegmentDigest::of(self.fingerprint(), tokens) }
    }

    /// Finds and pins an entry, compares its token ids, and counts a hit or a miss in every tier asked. BLOCKS if the
    /// entry is not in host memory. What cannot be read is a miss, and what is damaged is removed.
    pub fn look_up(&self, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        self.look_up_with(&self.find_objects([(key, tokens)]), key, tokens)
    }

    /// As [`look_up`](Self::look_up), with what [`find_objects`](Self::find_objects) found in place of asking object storage.
    pub fn look_up_with(&self, objects: &ObjectsFound, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        let found = self.find(objects, key, tokens);
        let tiers = &self.0.tiers;
        let asked = [Tier::Host, Tier::Disk, Tier::Object].into_iter().filter(|tier| tiers.get(*tier).is_some());
        for tier in asked {
            if found.as_ref().is_some_and(|found| found.tier == tier) {
                count(&tiers.counts.of(tier).hits);
                break;
            }
            // What object storage has in 8 bits is counted when it is used, or is not: see `look_up_lossy`.
            if tier != Tier::Object || !objects.lossy.contains_key(key) {
                count(&tiers.counts.of(tier).misses);
            }
        }
        found
    }

    /// Finds an entry and opens it for reading; `None` if it is gone. Counts neither hit nor miss. BLOCKS like
    /// [`look_up`](Self::look_up).
    pub fn open_entry(&self, key: &KvKey, tokens: &[u32]) -> Option<EntryReader> {
        let found = self.find(&self.find_objects([(key, tokens)]), key, tokens);
        found.map(|found| self.open_found(&found))
    }

    /// Opens what [`look_up`](Self::look_up) found; no second look-up.
    pub fn open_found(&self, found: &Found) -> EntryReader {
        EntryReader::new(self.clone(), found, true)
    }

    /// As [`open_found`](Self::open_found); once it was read, it moves to a faster tier only where there is free room.
    pub fn open_sparing(&self, found: &Found) -> EntryReader {
        EntryReader::new(self.clone(), found, false)
    }

    /// As [`open_found`](Self::open_found); it does not move to a faster tier.
    pub fn open_in_place(&self, found: &Found) -> EntryReader {
        EntryReader::alone(self.clone(), found)
    }

    /// Asks object storage for the entries that no faster tier has, all at once. Empty where there is none. BLOCKS.
    pub fn find_objects<'a>(&self, wanted: impl IntoIterator<Item = (&'a KvKey, &'a [u32])>) -> ObjectsFound {
        let exact = |(key, tokens)| Wanted { key, tokens, precision: Precision::Exact };
        self.find_wanted(wanted.into_iter().map(exact))
    }

    /// As [`find_objects`](Self::find_objects), lossy entries among them where they are of use, and kept here at all.
    pub fn find_wanted<'a>(&self, wanted: impl IntoIterator<Item = Wanted<'a>>) -> ObjectsFound {
        let Some(object) = &self.0.tiers.object else { return ObjectsFound::default() };
        let (keeps_lossy, found_in) = (object.keeps_lossy(), self.epoch());
        let mut asked = Vec::new();
        for Wanted { key, tokens, precision } in wanted {
            let is_avoided = locked(&self.0.find).avoided.get(key).is_some_and(is_avoided_since);
            if is_avoided || self.contains(key).is_some() {
                continue;
            }
            let id = self.id(key, tokens);
            asked.push((id, Precision::Exact));
            if precision == Precision::Lossy && keeps_lossy {
                asked.push((id, Precision::Lossy));
            }
        }
        let mut found = ObjectsFound { found_in, ..ObjectsFound::default() };
        if asked.is_empty() {
            return found;
        }
        for ((id, precision), opened) in asked.iter().zip(object.open_many(&asked)) {
            let into = if *precision == Precision::Exact { &mut found.exact } else { &mut found.lossy };
            match self.0.tiers.fitting(opened) {
                Ok(Some(entry)) => drop(into.insert(id.key, entry)),
                Ok(None) => {}
                Err(error) => self.note_unreadable(id, Tier::Object, *precision, &error),
            }
        }
        found
    }

    /// Finds what object storage has of an entry in 8 bits, where nothing has it exactly: for blending only. Its token ids are
    /// compared, and a hit is counted.
    pub fn look_up_lossy(&self, objects: &ObjectsFound, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        let (tier, entry) = (Tier::Object, Arc::clone(objects.lossy.get(key)?));
        let found = self.checked((tier, entry), objects.found_in, key, tokens)?;
        let counts = &self.0.tiers.counts;
        count(&counts.of(Tier::Object).hits);
        count(&counts.lossy_hits);
        Some(found)
    }

    fn find(&self, objects: &ObjectsFound, key: &KvKey, tokens: &[u32]) -> Option<Found> {
        let id = EntryId { key: *key, segment: SegmentDigest([0; 16]) };
        let found_in = objects.found_in.min(self.epoch());
        let local = self.find_in(Tier::Host, &id).or_else(|| self.find_in(Tier::Disk, &id));
        let opened = local.or_else(|| Some((Tier::Object, Arc::clone(objects.exact.get(key)?))))?;
        self.checked(opened, found_in, key, tokens)
    }

    fn checked(
        &self,
        (tier, entry): (Tier, Arc<dyn TierEntry>),
        found_in: u64,
        key: &KvKey,
        tokens: &[u32],
    ) -> Option<Found> {
        let header = Arc::clone(entry.header());
        if *header.tokens != *tokens || header.key != *key {
            count(&self.0.tiers.counts.token_mismatches);
            tracing::error!(%key, "an entry has other token ids than its key was asked for; not used");
            return None;
        }
        Some(Found { header, tier, entry, found_in })
    }

    /// In a tier of this machine, which goes by the key alone.
    fn find_in(&self, tier: Tier, id: &EntryId) -> Option<(Tier, Arc<dyn TierEntry>)> {
        let opened = self.0.tiers.get(tier)?.open(id);
        match self.0.tiers.fitting(opened) {
            Ok(entry) => entry.map(|entry| (tier, entry)),
            Err(error) => {
                self.note_unreadable(id, tier, Precision::Exact, &error);
                None
            }
        }
    }

    fn note_unreadable(&self, id: &EntryId, tier: Tier, precision: Precision, error: &Error) {
        self.0.tiers.count_failed_read(tier, error);
        let is_damaged = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound);
        if tier != Tier::Object && is_damaged {
            self.late_miss(id, tier, error.kind());
        } else if tier == Tier::Object {
            self.remove_bad_object(id, precision, error.kind());
        }
    }

    /// Counts an entry that was found and then could not be read from `tier`, and sees to it that it is not found there
    /// again, pinned or not: call it when [`EntryReader::layer`] failed. BLOCKS.
    ///
    /// A damaged entry is removed; on disk, a copy of what is left goes into quarantine. An object that only could not be
    /// reached is left alone for half a minute: other nodes may be able to read it.
    ///
    /// For what is exact; of a reader that may not be, call [`late_miss_of`](Self::late_miss_of).
    pub fn late_miss(&self, id: &EntryId, tier: Tier, kind: ErrorKind) {
        self.late_miss_of(id, tier, Precision::Exact, kind);
    }

    /// As [`late_miss`](Self::late_miss), for an entry that was found in this precision: the bucket may have it in the other
    /// one, too, and that stays.
    pub fn late_miss_of(&self, id: &EntryId, tier: Tier, precision: Precision, kind: ErrorKind) {
        let tiers = &self.0.tiers;
        count(&tiers.counts.late_misses);
        let removed = match (tier, kind) {
            (Tier::Object, kind) => return self.remove_bad_object(id, precision, kind),
            (Tier::Disk, ErrorKind::Corrupt) => tiers.disk.quarantine(&id.key),
            (Tier::Disk, _) => tiers.disk.delete_entry(&id.key),
            (Tier::Host | Tier::Device, _) => tiers.host.remove(id),
        };
        if let Err(error) = removed {
            count(&tiers.counts.of(tier).failed);
            tracing::warn!(key = %id.key, %tier, %error, "a bad entry is hidden, but could not be deleted yet");
        }
    }

    fn remove_bad_object(&self, id: &EntryId, precision: Precision, kind: ErrorKind) {
        if kind == ErrorKind::Corrupt
            && let Some(object) = &self.0.tiers.object
        {
            match object.remove_as(id, precision) {
                Ok(_) => return,
                Err(error) => tracing::warn!(key = %id.key, %error, "a damaged object could not be removed"),
            }
        }
        let avoided = &mut locked(&self.0.find).avoided;
        if avoided.len() >= MOST_AVOIDED {
            avoided.retain(|_, since| is_avoided_since(since));
        }
        if avoided.len() >= MOST_AVOIDED {
            // So many that the tier's breaker is open; this one must be hidden from the plan that is made next.
            avoided.clear();
        }
        avoided.insert(id.key, self.env().stopwatch());
    }

    /// Tells every tier's policy what a prompt used, and counts what was declined to load. Memory only.
    pub(crate) fn record(&self, uses: &[Use], declined: impl Iterator<Item = Tier>) {
        declined.for_each(|tier| count(&self.0.tiers.counts.of(tier).declined));
        for used in uses {
            used.path[..used.cached].iter().for_each(|key| self.0.uses.record(key, self.env()));
        }
        self.0.tiers.record(uses);
    }

    /// As [`record_use`](crate::prompt::record_use) tells of a prompt, for one path of keys, each after the one before it, the first `cached` of which
    /// had their bytes; computing the others took `cost_per_token` microseconds a token. To be called before what was computed
    /// is kept: the knowledge trees learn from it what stands before what. Memory only.
    pub fn record_path(&self, path: Vec<KvKey>, cached: usize, cost_per_token: f64) {
        let cached = cached.min(path.len());
        self.record(&[Use { path, cached, cost_per_token }], std::iter::empty());
    }

    /// Writes times of use to the catalog, once there are many that it does not know. BLOCKS for a moment.
    pub fn write_uses(&self) {
        self.0.uses.write_if_many();
    }
}

/// Whether an object that failed then is still left alone, however the wall clock was set since.
fn is_avoided_since(since: &Stopwatch) -> bool {
    since.elapsed() < AVOIDED
}
