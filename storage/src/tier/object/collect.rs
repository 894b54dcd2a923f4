//! The collector: what leaves the bucket, and why. Safe beside writers on other nodes: nothing younger than the grace
//! period leaves, and an object is looked at once more just before it is deleted.
//!
//! An entry is found whether or not the bucket has the one before it. That one may never have been there: it computes faster than it loads,
//! or the entry is a module's, which may stand behind what is no entry. So only what is known to stand behind a deleted entry leaves for
//! that, with the next round of the node that deleted it. As another node may have, or this one before its last start, what stands behind a
//! missing entry leaves after a week, whatever the reason, and goes first where room is needed.

mod family;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::family::Family;
use super::client::{Operation, Pending};
use super::names::{Name, Space};
use super::requests::{create, delete};
use super::{Known, ObjectTier, Seen};
use crate::key::KvKey;
use crate::{Error, ErrorKind, Result};

/// Deletions under way at once.
const DELETIONS: usize = 64;
/// How long what stands behind a missing entry stays, where nobody knows that it was deleted.
const UNEXPLAINED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What may leave the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectOptions {
    /// Entries that are older leave. An entry is as young as the youngest behind it. `None`: none leaves for its age.
    pub ttl: Option<Duration>,
    /// The oldest leave until no more bytes are there, of all models together. `None`: the tier's capacity, if it has one.
    pub max_bytes: Option<u64>,
    /// What is younger never leaves: it may be a part of what another node is writing. Must be longer than a chain of entries takes to be
    /// written. Ages are told by the bucket's clock, whatever this machine's says; in a dry run by this machine's.
    pub grace: Duration,
    /// Says what would leave, and deletes nothing.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self { ttl: None, max_bytes: None, grace: Duration::from_secs(3_600), dry_run: false }
    }
}

/// What the collector found, and what left or, in a dry run, would leave. Reasons are counted in objects, each once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Collected {
    /// Objects under the prefix that are entries by their names.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of the objects, those of other models. They leave for age and size only.
    pub other_models: u64,
    /// Objects whose names are not ours, beside the entries: never touched.
    pub foreign: u64,
    /// Entries that cannot be read, whether or not they are old enough to leave.
    pub damaged: u64,
    /// Of the objects, those that are sealed by a key that this node does not have. They leave for age and size only.
    pub other_keys: u64,
    /// Of the objects, those that are not sealed, where this node has a key.
    pub unsealed: u64,
    /// Entries that this collection sealed by the first key, and which another one, or none, had sealed.
    pub resealed: u64,
    /// Left because they could not be read.
    pub left_damaged: u64,
    /// Left because what stood before them was deleted, or, a week after they were written, because it is not there.
    pub left_orphaned: u64,
    /// Left for their age.
    pub left_expired: u64,
    /// Left for the bound on bytes.
    pub left_for_size: u64,
    /// Bytes that left.
    pub freed_bytes: u64,
    /// Objects that were to leave and did not: written anew meanwhile, or their deletion failed.
    pub kept: u64,
}

/// An object as the listing and its header describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    name: Name,
    /// Which its name does not say if it is sealed, and its header does.
    key: KvKey,
    bytes: u64,
    modified_ms: u64,
    content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Behind this parent.
    Behind(Option<KvKey>),
    Damaged,
    /// Another model's, or sealed by another key, or not sealed where that is not accepted: its parents are others' business.
    Foreign,
    /// It vanished between listing and reading.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Damaged,
    Orphaned,
    Expired,
    Size,
}

impl ObjectTier {
    /// Lists the bucket, decides what leaves, and deletes it. Reads the header of each of this model's entries once in the
    /// tier's life, and of those that it wrote itself never. Also tries again what [`EntryTier::remove`](crate::tier::EntryTier::remove) could not delete.
    ///
    /// # Errors
    /// `Unavailable` if listing or reading fails: then nothing was deleted. Deletions that fail are counted.
    pub fn collect(&self, options: &CollectOptions) -> Result<Collected> {
        self.collect_while(options, &|| true)
    }

    /// As [`collect`](Self::collect), as long as it is `wanted`.
    ///
    /// # Errors
    /// `Cancelled` once it is not wanted any more; what was removed by then is gone.
    pub fn collect_while(&self, options: &CollectOptions, wanted: &dyn Fn() -> bool) -> Result<Collected> {
        let go_on = || match wanted() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Cancelled, "the bucket's collection ended early; the next one goes on")),
        };
        let mut collected = Collected::default();
        if !options.dry_run {
            let hidden: Vec<_> = self.hidden().iter().copied().collect();
            for name in hidden {
                go_on()?;
                self.removed(&name, self.start_removal(name))?;
            }
        }
        if !options.dry_run {
            collected.resealed = self.reseal(&go_on)?;
        }
        let found = self.find(&mut collected, &go_on)?;
        // Who may only read a bucket may ask what would leave.
        let now_ms = if options.dry_run { self.client.bucket.env.now_unix_ms() } else { self.bucket_now_ms()? };
        if !options.dry_run {
            self.remove_old_clocks(options.grace, now_ms)?;
        }
        let capacity_bytes = Some(self.capacity_bytes).filter(|&bytes| bytes > 0);
        let options = CollectOptions { max_bytes: options.max_bytes.or(capacity_bytes), ..*options };
        let deleted: HashMap<KvKey, Duration> =
            self.deleted().iter().map(|(key, since)| (*key, since.elapsed())).collect();
        let leaving = plan(&found, &deleted, &options, now_ms);
        let mut gone = HashSet::new();
        for some in leaving.chunks(DELETIONS) {
            go_on()?;
            let start = |index| (!options.dry_run).then(|| self.start_collecting(&found[index]));
            let started: Vec<_> = some.iter().map(|&(index, why)| (index, why, start(index))).collect();
            for (index, why, deletion) in started {
                if deletion.is_none_or(|deletion| matches!(deletion.wait(), Ok(true))) {
                    collected.count(&found[index], why);
                    gone.insert(index);
                } else {
                    collected.kept += 1;
                }
            }
        }
        if options.dry_run {
            gone.clear();
        }
        self.remember(found.iter().enumerate().filter(|(index, _)| !gone.contains(index)).map(|(_, object)| object));
        if !options.dry_run {
            self.evicted.fetch_add(collected.left_for_size, Ordering::Relaxed);
        }
        if !options.dry_run && collected.kept == 0 {
            // What nodes uploaded behind them that had not heard of it for a grace period was old enough to leave in this round.
            let long = options.grace.saturating_mul(2);
            self.deleted().retain(|key, _| deleted.get(key).is_none_or(|ago| *ago < long));
        }
        Ok(collected)
    }

    /// The time by the bucket's clock, which stamps the objects: that of one that is written now. A clock of this machine that is ahead
    /// would make what another node is writing look old.
    ///
    /// # Errors
    /// `Unavailable` where nothing can be written there: then nothing can be removed either.
    fn bucket_now_ms(&self) -> Result<u64> {
        let env = &self.client.bucket.env;
        if env.is_seeded() {
            return Ok(env.now_unix_ms());
        }
        let (bucket, path) = (self.client.bucket.clone(), self.names.clock(env.random_u64()));
        let operation = Operation { doing: "look at the bucket's clock", failpoint: "object.clock", bytes: 0 };
        self.client.wait(async move {
            let look = async {
                create(&bucket, &path, vec![Bytes::from_static(b"clock")], 5).await?;
                let meta = bucket.head(&path).await;
                delete(&bucket, &path).await?;
                let gone = || Error::new(ErrorKind::Unavailable, "object storage: what was just written is not there");
                Ok(modified_ms(&meta?.ok_or_else(gone)?))
            };
            bucket.operate(operation, look).await
        })
    }

    /// Removes what nodes left that ended while they looked at the bucket's clock.
    fn remove_old_clocks(&self, grace: Duration, now_ms: u64) -> Result<()> {
        let mut listing = self.listing(self.names.clocks());
        while let Some(objects) = listing.next()? {
            let is_old = |object: &&ObjectMeta| {
                let age_ms = now_ms.saturating_sub(modified_ms(object));
                self.names.is_clock(&object.location) && Duration::from_millis(age_ms) >= grace
            };
            let old: Vec<_> = objects.iter().filter(is_old).collect();
            for some in old.chunks(DELETIONS) {
                let started: Vec<_> = some.iter().map(|object| self.start_removing_clock(&object.location)).collect();
                started.into_iter().try_for_each(Pending::wait)?;
            }
        }
        Ok(())
    }

    fn start_removing_clock(&self, path: &Path) -> Pending<()> {
        let (bucket, path) = (self.client.bucket.clone(), path.clone());
        let operation = Operation { doing: "remove what told the time", failpoint: "object.delete", bytes: 0 };
        self.client.start(async move { bucket.operate(operation, delete(&bucket, &path)).await })
    }

    /// What is there now, of this model.
    fn remember<'a>(&self, there: impl Iterator<Item = &'a Found>) {
        let mut seen = [Seen::default(); Space::ALL.len()];
        let mut known = self.known();
        let mut names = HashSet::new();
        for object in there.filter(|object| self.is_ours(&object.name)) {
            let bytes = known.get(&object.name).map_or(object.bytes, |known| known.bytes);
            seen[object.name.room.space as usize].add(bytes);
            names.insert(object.name);
        }
        known.retain(|name, _| names.contains(name));
        *self.seen() = seen;
    }

    fn find(&self, collected: &mut Collected, go_on: &dyn Fn() -> Result<()>) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for folder in Space::ALL.into_iter().flat_map(|space| self.names.folders(space)) {
            let mut listing = self.listing(folder);
            while let Some(objects) = listing.next()? {
                go_on()?;
                for object in &objects {
                    match self.names.parse(&object.location) {
                        Some(name) => found.push(self.listed(name, object)),
                        None => collected.foreign += 1,
                    }
                }
            }
        }
        self.read_parents(&mut found)?;
        found.retain(|object| object.content != Content::Gone);
        collected.objects = found.len() as u64;
        collected.bytes = found.iter().fold(0, |sum: u64, object| sum.saturating_add(object.bytes));
        for object in &found {
            let room = object.name.room;
            collected.unsealed += u64::from(room.key.is_none() && !self.names.is_plain());
            match (self.names.reads(room), room.key) {
                (true, _) => collected.other_models += u64::from(object.content == Content::Foreign),
                (false, Some(_)) => collected.other_keys += 1,
                (false, None) => {}
            }
        }
        collected.damaged = found.iter().filter(|object| object.content == Content::Damaged).count() as u64;
        Ok(found)
    }

    /// An object whose header is known, another model's, or `Gone` until its header was read.
    fn listed(&self, name: Name, object: &ObjectMeta) -> Found {
        let known = self.known().get(&name).copied();
        let content = if self.is_ours(&name) {
            known.map_or(Content::Gone, |known| Content::Behind(known.parent))
        } else {
            Content::Foreign
        };
        let key = known.map_or(name.id.key, |known| known.key);
        Found { name, key, bytes: object.size, modified_ms: modified_ms(object), content }
    }

    fn read_parents(&self, found: &mut [Found]) -> Result<()> {
        let unread: Vec<_> = (0..found.len()).filter(|&index| found[index].content == Content::Gone).collect();
        for some in unread.chunks(DELETIONS) {
            let started: Vec<_> = some.iter().map(|&index| (index, self.start_open(vec![found[index].name]))).collect();
            for (index, pending) in started {
                let opened = pending.map_or(Ok(None), Pending::wait);
                found[index].content = match opened {
                    Ok(Some(opened)) => {
                        let header = &opened.layout.header;
                        let known = Known { key: header.key, parent: header.parent, bytes: header.total_bytes() };
                        self.learn(opened.name, known);
                        found[index].key = header.key;
                        Content::Behind(header.parent)
                    }
                    Ok(None) => Content::Gone,
                    Err(error) if error.kind() == ErrorKind::Corrupt => Content::Damaged,
                    Err(error) => return Err(error),
                };
            }
        }
        Ok(())
    }

    /// Starts deleting an object if it still is the one that was listed; whether it was.
    fn start_collecting(&self, object: &Found) -> Pending<bool> {
        let (bucket, listed) = (self.client.bucket.clone(), *object);
        let path: Path = self.names.object(&object.name);
        let operation = Operation { doing: "collect an entry", failpoint: "object.delete", bytes: 0 };
        self.client.start(async move {
            let deletion = async {
                match bucket.head(&path).await? {
                    Some(meta) if modified_ms(&meta) == listed.modified_ms => {
                        delete(&bucket, &path).await?;
                        Ok(true)
                    }
                    _ => Ok(false),
                }
            };
            bucket.operate(operation, deletion).await
        })
    }
}

impl Collected {
    fn count(&mut self, object: &Found, why: Why) {
        let reason = match why {
            Why::Damaged => &mut self.left_damaged,
            Why::Orphaned => &mut self.left_orphaned,
            Why::Expired => &mut self.left_expired,
            Why::Size => &mut self.left_for_size,
        };
        *reason += 1;
        self.freed_bytes = self.freed_bytes.saturating_add(object.bytes);
    }
}

/// The clouds tell seconds where a listing tells milliseconds.
fn modified_ms(object: &ObjectMeta) -> u64 {
    u64::try_from(object.last_modified.timestamp()).unwrap_or(0).saturating_mul(1_000)
}

/// Who leaves, and why; indices into `found`. Pure. Children leave before their parents, and what stands behind a missing entry before all
/// others. `deleted`: what left with its text.
fn plan(
    found: &[Found],
    deleted: &HashMap<KvKey, Duration>,
    options: &CollectOptions,
    now_ms: u64,
) -> Vec<(usize, Why)> {
    let family = Family::of(found);
    let age = |ms: u64| Duration::from_millis(now_ms.saturating_sub(ms));
    let mut leaving = Vec::new();
    let mut staying = Vec::new();
    for (index, object) in found.iter().enumerate() {
        let youngest_ms = family.youngest_ms[index];
        if object.content == Content::Damaged {
            // Nobody can read it, so what stands behind it is no reason to stay.
            if age(object.modified_ms) >= options.grace {
                leaving.push((index, Why::Damaged));
                continue;
            }
        } else if age(youngest_ms) >= options.grace {
            let missing = family.missing(found, index);
            if missing.is_some_and(|key| deleted.contains_key(&key) || age(youngest_ms) >= UNEXPLAINED) {
                leaving.push((index, Why::Orphaned));
                continue;
            }
            if options.ttl.is_some_and(|ttl| age(youngest_ms) > ttl) {
                leaving.push((index, Why::Expired));
                continue;
            }
        }
        staying.push(index);
    }
    let Some(max_bytes) = options.max_bytes else { return leaving };
    // A bucket may say of each that it is as large as can be.
    let mut bytes: u128 = staying.iter().map(|&index| u128::from(found[index].bytes)).sum();
    staying.retain(|&index| age(family.youngest_ms[index]) >= options.grace);
    staying.sort_by_cached_key(|&index| {
        let (is_whole, youngest_ms) = (family.missing(found, index).is_none(), family.youngest_ms[index]);
        (is_whole, youngest_ms, std::cmp::Reverse(family.depth(found, index)), found[index].name.id.key)
    });
    for index in staying {
        if bytes <= u128::from(max_bytes) {
            break;
        }
        bytes -= u128::from(found[index].bytes);
        leaving.push((index, Why::Size));
    }
    leaving
}

#[cfg(test)]
mod tests;
