//! Object storage: entries in a bucket that any number of nodes share without knowing of each other.
//!
//! One object is one entry (`object/names.rs` draws names, `object/layout.rs` and `object/sealed.rs` bytes): a header with the entry
//! row and the place of every frame, then the frames. Entries are immutable and their names follow from their content, so nodes need no coordination:
//! an object is created or it is there already; it is whole or it is not there; whatever it holds is verified by whoever
//! reads it.
//!
//! ```text
//! put      encode (codec.rs), seal (sealed.rs) -> create-only PUT; an error that left the object there counts as stored
//! open     one ranged GET of the first 64 KiB: the header, and the whole object if it is small
//! frame    ranged GETs of about 4 MiB, the next ones while the last is used (reader.rs)
//! collect  TTL, size bound, damage, what stands behind what was deleted (collect.rs); nothing young, so that writers elsewhere are safe
//! ```
//! Every operation passes `client.rs`: a bounded number at once, a deadline, a breaker (`breaker.rs`) that answers
//! `Unavailable` at once while the bucket is dead, and counts. Clouds' requests are retried with jitter below that.
//! The bucket is a cache's last tier: an entry may be gone at any time, and then it is computed again.
//! With keys, whoever can write to the bucket and has none of them can make entries be missed, and no more.

mod breaker;
mod client;
mod codec;
mod collect;
mod keys;
mod layout;
mod listing;
mod measure;
mod names;
mod options;
mod q8;
mod reader;
mod requests;
mod reseal;
mod seal;
mod sealed;
mod shared;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;

pub use self::breaker::BreakerOptions;
pub use self::client::ObjectCounts;
use self::client::{Client, Operation};
pub use self::codec::Codec;
pub use self::collect::{CollectOptions, Collected};
pub use self::keys::KeySources;
#[cfg(test)]
pub(crate) use self::keys::key_files;
pub use self::measure::LoadTimes;
use self::names::{Name, Names, Space};
pub use self::options::{ConnectionOptions, ObjectOptions, connect};
pub(crate) use self::reader::SPAN_BYTES;
use self::requests::{FIRST_READ_BYTES, Opened, create, delete, read_first};
use self::seal::Seal;
pub use self::shared::Beside;
use crate::entry::{Entry, EntryHeader};
use crate::key::{Fingerprint, KvKey};
use crate::tier::{EntryId, EntrySummary, EntryTier, Put, Tier, TierEntry, TierUsage};
use crate::{Error, ErrorKind, Result};
use ragstone_env::{Env, Stopwatch};

/// No single request may write more (S3's bound).
const MOST_OBJECT_BYTES: u64 = 5 << 30;
/// Names whose deletion failed that are remembered, and so not found by this node.
const MOST_HIDDEN: usize = 1 << 16;
/// Entries that are known; beyond, all are forgotten and learnt again.
const MOST_KNOWN: usize = 1 << 20;
/// Deleted entries that are known; beyond, all are forgotten.
const MOST_DELETED: usize = 1 << 18;

/// Entries in a bucket, for one model. Cheap to share; calls BLOCK, on any thread, and no lock is held meanwhile.
pub struct ObjectTier {
    client: Arc<Client>,
    names: Arc<Names>,
    fingerprint: Fingerprint,
    codec: Codec,
    /// How what is written is sealed, where there is a key.
    seal: Seal,
    capacity_bytes: u64,
    /// Entries whose deletion failed: this node does not find them any more.
    hidden: Mutex<HashSet<Name>>,
    /// Entries that this node wrote, or whose header it read for the collector; what is known of one never changes.
    known: Mutex<HashMap<Name, Known>>,
    /// Entries that were to leave with their texts, since when: the collector takes what stands behind them.
    deleted: Mutex<HashMap<KvKey, Stopwatch>>,
    /// Of each name space.
    seen: Mutex<[Seen; Space::ALL.len()]>,
    evicted: AtomicU64,
    refused: AtomicU64,
}

/// What this node last saw of the bucket, and did to it since.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    entries: u64,
    bytes: u64,
}

/// What the collector and the counts want to know of an entry.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// A sealed object's name does not say it.
    key: KvKey,
    parent: Option<KvKey>,
    /// Frames and row.
    bytes: u64,
}

impl std::fmt::Debug for ObjectTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectTier({}, {:?})", self.client.bucket.store, self.codec)
    }
}

impl ObjectTier {
    /// The tier of a model's entries in the bucket that the options name. Asks nothing of the bucket: a node starts
    /// without it.
    ///
    /// # Errors
    /// `InvalidInput` for a URL or an option that cannot be used; `Unavailable` if no thread can be started.
    pub fn open(options: &ObjectOptions, fingerprint: Fingerprint, env: Env) -> Result<Self> {
        let (store, prefix) = options::connect(options)?;
        Self::over(store, prefix, options, fingerprint, env)
    }

    /// The same over a store that is there already; the options' URL is not used.
    ///
    /// # Errors
    /// `InvalidInput` for keys that cannot be read; `Unavailable` if no thread can be started.
    pub fn over(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        options: &ObjectOptions,
        fingerprint: Fingerprint,
        env: Env,
    ) -> Result<Self> {
        let keys = options.keys.read()?;
        if options.encrypt && keys.is_empty() {
            return Err(Error::invalid_input(
                "entries of the bucket are to be encrypted, and no key is named; name one",
            ));
        }
        Ok(Self {
            client: Arc::new(Client::new(store, options, env)?),
            names: Arc::new(Names::new(prefix, keys, options.accept_unsealed)),
            fingerprint,
            codec: options.codec,
            seal: if options.encrypt { Seal::Encrypted } else { Seal::Authenticated },
            capacity_bytes: options.capacity_bytes,
            hidden: Mutex::default(),
            known: Mutex::default(),
            deleted: Mutex::default(),
            seen: Mutex::default(),
            evicted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// What was asked of the bucket.
    pub fn counts(&self) -> ObjectCounts {
        self.client.bucket.counts()
    }

    /// Whether the bucket is used as usual: false while it is taken for dead.
    pub fn is_up(&self) -> bool {
        self.client.bucket.is_up()
    }

    /// Where this node writes an entry of its model.
    fn name(&self, space: Space, id: &EntryId) -> Name {
        self.names.name(self.names.written(space), &self.fingerprint, id)
    }

    /// Where this node looks for an entry of its model.
    fn names_read(&self, space: Space, id: &EntryId) -> Vec<Name> {
        self.names.read(space).map(|room| self.names.name(room, &self.fingerprint, id)).collect()
    }

    /// Whether an object is of this node's model, as far as its name says.
    fn is_ours(&self, name: &Name) -> bool {
        self.names.reads(name.room) && self.names.fingerprint(name.room, &self.fingerprint) == name.fingerprint
    }

    /// Starts reading the header of the first of these that is there; `None` where this node removed all of them.
    fn start_open(&self, mut asked: Vec<Name>) -> Option<client::Pending<Option<Opened>>> {
        {
            let hidden = self.hidden();
            asked.retain(|name| !hidden.contains(name));
        }
        if asked.is_empty() {
            return None;
        }
        let (bucket, names) = (self.client.bucket.clone(), self.names.clone());
        let operation =
            Operation { doing: "read an entry's header", failpoint: "object.get_header", bytes: FIRST_READ_BYTES };
        Some(self.client.start(async move { bucket.operate(operation, read_first(&bucket, &names, &asked)).await }))
    }

    fn opened(&self, opened: Result<Option<Opened>>) -> Result<Option<Arc<dyn TierEntry>>> {
        Ok(opened?.map(|opened| Arc::new(self.entry(&opened)) as Arc<dyn TierEntry>))
    }

    /// Starts deleting an object; the bytes it had, `None` if it was not there.
    fn start_removal(&self, name: Name) -> client::Pending<Option<u64>> {
        let (bucket, path) = (self.client.bucket.clone(), self.names.object(&name));
        self.client.start(async move {
            let removal = async {
                let Some(meta) = bucket.head(&path).await? else { return Ok(None) };
                delete(&bucket, &path).await?;
                Ok(Some(meta.size))
            };
            bucket.operate(Operation { doing: "remove an entry", failpoint: "object.delete", bytes: 0 }, removal).await
        })
    }

    /// The bytes that left; `None` if it was not there.
    fn removed(&self, name: &Name, removal: client::Pending<Option<u64>>) -> Result<Option<u64>> {
        match removal.wait() {
            Ok(object) => {
                self.hidden().remove(name);
                let known = self.known().get(name).map(|known| known.bytes);
                let bytes = object.map(|bytes| known.unwrap_or(bytes));
                if let Some(bytes) = bytes.filter(|_| self.is_ours(name)) {
                    self.seen()[name.room.space as usize].remove(bytes);
                }
                Ok(bytes)
            }
            Err(error) => {
                self.hide(*name);
                Err(error)
            }
        }
    }

    fn hide(&self, name: Name) {
        let mut hidden = self.hidden();
        if hidden.len() >= MOST_HIDDEN {
            tracing::warn!("more removals failed in object storage than can be remembered; one may be found again");
            let any = hidden.iter().next().copied();
            any.map(|any| hidden.remove(&any));
        }
        hidden.insert(name);
    }

    fn learn(&self, name: Name, known: Known) {
        let mut all = self.known();
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.insert(name, known);
    }

    /// These leave with their texts, whether or not they are in the bucket.
    fn note_deleted(&self, keys: impl Iterator<Item = KvKey>) {
        let mut deleted = self.deleted();
        for key in keys {
            if deleted.len() >= MOST_DELETED {
                deleted.clear();
            }
            deleted.insert(key, self.client.bucket.env.stopwatch());
        }
    }

    fn deleted(&self) -> MutexGuard<'_, HashMap<KvKey, Stopwatch>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hidden(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, [Seen; Space::ALL.len()]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Name, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pieces of an entry's object under a name, out of its frames as the codec writes them.
    fn pieces(&self, header: &EntryHeader, codec: Codec, frames: Vec<Bytes>, name: &Name) -> Result<Vec<Bytes>> {
        match name.room.key {
            None => layout::encode(header, codec, frames),
            Some(_) => sealed::encode(header, codec, frames, (&self.names, name), (self.seal, &seal::random_salt()?)),
        }
    }

    fn refuse(&self) -> Put {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Put::Refused
    }
}

impl Seen {
    fn add(&mut self, bytes: u64) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn remove(&mut self, bytes: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl EntryTier for ObjectTier {
    fn tier(&self) -> Tier {
        Tier::Object
    }

    /// Creates the entry's object. With [`Codec::Q8`] it is lossy: [`SharedTier::open_many`](crate::tier::SharedTier::open_many) finds it as such only.
    fn put(&self, entry: &Arc<Entry>) -> Result<Put> {
        let header = entry.header();
        if header.fingerprint != self.fingerprint {
            return Err(Error::invalid_input(format!("entry {} is another model's", header.key)));
        }
        let space = Space::of(self.codec);
        let name = self.name(space, &header.id());
        let pieces = self.codec.encode(entry).and_then(|frames| self.pieces(header, self.codec, frames, &name));
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(self.refuse()),
            Err(error) => return Err(error),
        };
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if bytes > MOST_OBJECT_BYTES || (self.capacity_bytes > 0 && bytes > self.capacity_bytes) {
            return Ok(self.refuse());
        }
        if self.hidden().contains(&name) {
            // What could not be deleted before may be damaged: it makes room first.
            self.removed(&name, self.start_removal(name))?;
        }
        let (bucket, path) = (self.client.bucket.clone(), self.names.object(&name));
        let operation = Operation { doing: "write an entry", failpoint: "object.before_put", bytes };
        let is_new =
            self.client.wait(async move { bucket.operate(operation, create(&bucket, &path, pieces, bytes)).await })?;
        if !is_new {
            return Ok(Put::AlreadyThere);
        }
        self.client.bucket.count_written(bytes);
        let known = Known { key: header.key, parent: header.parent, bytes: header.total_bytes() };
        self.learn(name, known);
        self.seen()[space as usize].add(known.bytes);
        Ok(Put::Stored { bytes: known.bytes })
    }

    fn open(&self, id: &EntryId) -> Result<Option<Arc<dyn TierEntry>>> {
        let pending = self.start_open(self.names_read(Space::Exact, id));
        self.opened(pending.map_or(Ok(None), client::Pending::wait))
    }

    /// Removes the entry, exact and lossy. If the deletion fails it is this node that does not find it any more.
    fn remove(&self, id: &EntryId) -> Result<bool> {
        Ok(!self.remove_all(&[(self.fingerprint, *id)])?.is_empty())
    }

    /// Lists this model's exact entries; reads the header of each, many at once. Damaged ones are left out, with a warning.
    fn list(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        self.list_space(Space::Exact, each)
    }

    fn usage(&self) -> TierUsage {
        let seen = *self.seen();
        TierUsage {
            entries: seen.iter().map(|seen| seen.entries).sum(),
            bytes: seen.iter().map(|seen| seen.bytes).sum(),
            capacity_bytes: self.capacity_bytes,
            evicted: self.evicted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            forged: self.client.bucket.counts().forged,
        }
    }

    /// Nothing to do: a put that returned is as durable as the bucket makes it.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
