//! The store behind the socket: namespaces of opaque blocks in ragstone's tiers.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ragstone_env::lock::locked;
use ragstone_env::{Env, Error, ErrorKind, Result};
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostProfile, Costs};
use ragstone_storage::entry::Entry;
use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::opaque::{OpaqueId, OpaqueSpace, parse_salt};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::store::{AdmissionRule, EntryReader, Found, KvStore, LayerFrame, StoreOptions, TierOptions};
use ragstone_storage::tier::object::{CollectOptions, ObjectOptions, ObjectTier};
use ragstone_storage::tier::{SharedTier, Tier};

use crate::evictions::{Evictions, Named};
use crate::message::{Key, NamespaceStatus, Stored};
use crate::namespace::Namespace;

/// Namespaces that are counted apart; what comes beyond is served, and counted with none.
const MOST_NAMESPACES: usize = 1024;
/// Blocks of a load that are asked of the bucket ahead of the one that is read.
const AHEAD: usize = 4;
/// How long an eviction waits for blocks that are being written.
const MOST_WRITING: Duration = Duration::from_secs(60);

/// What the store is made of. A capacity of zero switches a tier off.
#[derive(Debug, Clone)]
pub struct BlocksOptions {
    /// Bytes in host memory. The engine has what it used last in memory of its own: this is where blocks wait for the disk.
    pub host_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Who leaves first, in both.
    pub policy: PolicyKind,
    /// The bucket, where there is one.
    pub object: Option<ObjectOptions>,
    /// How long a block stays in the bucket; `None`: until it is full.
    pub object_ttl: Option<Duration>,
}

/// Namespaces of blocks, all in one store. Calls BLOCK on disk and bucket.
pub struct Blocks {
    store: KvStore,
    object: Option<(Arc<ObjectTier>, CollectOptions)>,
    spaces: Mutex<HashMap<Arc<str>, Arc<Counts>>>,
    /// Bytes of blocks that connections keep.
    pinned_bytes: AtomicU64,
    evictions: Evictions,
    env: Env,
}

/// A namespace of one tenant.
#[derive(Clone)]
pub struct Space {
    space: OpaqueSpace,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    description: Option<Namespace>,
    hits: AtomicU64,
    misses: AtomicU64,
    loaded: AtomicU64,
    not_loaded: AtomicU64,
    stored: AtomicU64,
}

/// When a store began: in which epoch of the store, after how many evictions.
#[derive(Clone, Copy)]
struct Begun {
    epoch: u64,
    evictions: u64,
}

/// A block that stays where it is while this lives.
pub struct PinnedBlock {
    found: Found,
    blocks: Arc<Blocks>,
    bytes: u64,
    evictions: u64,
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.blocks.pinned_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Default for BlocksOptions {
    /// 256 MiB of host memory, 10 GiB of disk, what was used longest ago leaves first, no bucket.
    fn default() -> Self {
        Self { host_bytes: 256 << 20, disk_bytes: 10 << 30, policy: PolicyKind::Lru, object: None, object_ttl: None }
    }
}

impl Blocks {
    /// Opens or creates the store in `dir`. BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process has the folder; `InvalidInput` for a bucket that cannot be used.
    pub fn open(dir: &Path, options: &BlocksOptions, env: Env) -> Result<Self> {
        // What stands in KV is what people wrote.
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        created.map_err(|error| Error::io("create the folder", dir, error))?;
        let catalog = Arc::new(Catalog::open(&dir.join("catalog"), &env)?);
        let open = |object: &ObjectOptions| ObjectTier::open(object, Fingerprint::OPAQUE, env.clone()).map(Arc::new);
        let object = options.object.as_ref().map(open).transpose()?;
        let tier = |capacity_bytes| TierOptions { capacity_bytes, policy: options.policy };
        let store = StoreOptions {
            host: tier(options.host_bytes),
            disk: tier(options.disk_bytes),
            object: object.clone().map(|object| object as Arc<dyn SharedTier>),
            shape: None,
            admission: AdmissionRule::Cost,
            costs: Costs::new(CostProfile::assumed()?),
        };
        let store = KvStore::open(&dir.join("kv"), store, Fingerprint::OPAQUE, env.clone(), catalog)?;
        let is_bounded =
            options.object_ttl.is_some() || options.object.as_ref().is_some_and(|object| object.capacity_bytes > 0);
        let collect = CollectOptions { ttl: options.object_ttl, ..CollectOptions::default() };
        let object = object.filter(|object| is_bounded || object.reseals()).map(|object| (object, collect));
        Ok(Self {
            store,
            object,
            spaces: Mutex::default(),
            pinned_bytes: AtomicU64::new(0),
            evictions: Evictions::default(),
            env,
        })
    }

    /// The namespace that a client says hello to.
    ///
    /// # Errors
    /// `InvalidInput` if it cannot be one.
    pub fn space(&self, namespace: &Namespace, block_bytes: u64) -> Result<Space> {
        namespace.check()?;
        let space = OpaqueSpace::new(&namespace.tenant, namespace.digest(), block_bytes)?;
        let mut spaces = locked(&self.spaces);
        let new = || Arc::new(Counts { description: Some(namespace.clone()), ..Counts::default() });
        let counts = match spaces.get(space.salt()) {
            Some(counts) => Arc::clone(counts),
            None if spaces.len() >= MOST_NAMESPACES => new(),
            None => Arc::clone(spaces.entry(Arc::clone(space.salt())).or_insert_with(new)),
        };
        Ok(Space { space, counts })
    }

    /// Which blocks are stored, in whichever tier. BLOCKS; the bucket is asked for all at once.
    pub fn find(&self, space: &Space, keys: &[Key]) -> Vec<Option<Found>> {
        let ids: Vec<OpaqueId> = keys.iter().map(|key| space.space.id(&key.0)).collect();
        let found = self.find_ids(space, &ids);
        let hits = found.iter().flatten().count() as u64;
        space.counts.hits.fetch_add(hits, Ordering::Relaxed);
        space.counts.misses.fetch_add(keys.len() as u64 - hits, Ordering::Relaxed);
        found
    }

    fn find_ids(&self, space: &Space, ids: &[OpaqueId]) -> Vec<Option<Found>> {
        let objects = self.store.find_objects(ids.iter().map(|id| (&id.key, &id.tokens[..])));
        let found = ids.iter().map(|id| {
            let found = self.store.look_up_with(&objects, &id.key, &id.tokens)?;
            let fits = space.space.check(&found.header);
            fits.inspect_err(|error| self.store.late_miss(&found.header.id(), found.tier, error.kind())).ok()?;
            Some(found)
        });
        found.collect()
    }

    /// Begins and ends of evictions so far: to be asked before what is to be pinned is looked up.
    pub fn evictions(&self) -> u64 {
        self.evictions.count()
    }

    /// Keeps what was found after so many evictions, as long as pins take no more than half of the larger tier: what is stored needs the rest.
    pub fn pin(self: &Arc<Self>, space: &Space, found: Found, evictions: u64) -> Option<PinnedBlock> {
        let status = self.store.status();
        let most = status.host.capacity_bytes.max(status.disk.capacity_bytes) / 2;
        let bytes = space.space.block_bytes();
        if self.pinned_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > most {
            self.pinned_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(PinnedBlock { found, blocks: Arc::clone(self), bytes, evictions })
    }

    /// Reads blocks one after the other and hands each to `place`, which says whether it went well. Those in `pinned` are not looked up again. For
    /// each key whether it was loaded; it ends early once `wanted` says no. BLOCKS.
    pub fn load(
        &self,
        space: &Space,
        keys: &[Key],
        pinned: Vec<Option<PinnedBlock>>,
        wanted: &dyn Fn() -> bool,
        place: &mut dyn FnMut(usize, &LayerFrame) -> bool,
    ) -> Vec<bool> {
        let ids: Vec<OpaqueId> = keys.iter().map(|key| space.space.id(&key.0)).collect();
        let evictions = self.evictions();
        let open = |pin: &PinnedBlock| (pin.evictions == evictions).then(|| self.store.open_found(&pin.found));
        let mut readers: Vec<Option<EntryReader>> = pinned.iter().map(|pin| open(pin.as_ref()?)).collect();
        readers.resize_with(ids.len(), || None);
        let missing: Vec<usize> = (0..ids.len()).filter(|at| readers[*at].is_none()).collect();
        let found = self.find_ids(space, &missing.iter().map(|at| ids[*at]).collect::<Vec<_>>());
        for (at, found) in missing.into_iter().zip(found) {
            readers[at] = found.map(|found| self.store.open_found(&found));
        }
        let mut loaded = vec![false; keys.len()];
        for at in 0..keys.len() {
            if !wanted() {
                break;
            }
            readers[at..].iter().take(AHEAD).flatten().for_each(|reader| reader.begin(0));
            let Some(reader) = readers[at].take() else { continue };
            match reader.layer(0) {
                Ok(frame) => loaded[at] = place(at, &frame),
                Err(error) => {
                    self.store.late_miss_of(&reader.id(), reader.tier(), reader.precision(), error.kind());
                }
            }
        }
        let count = loaded.iter().filter(|loaded| **loaded).count();
        space.counts.loaded.fetch_add(count as u64, Ordering::Relaxed);
        space.counts.not_loaded.fetch_add((keys.len() - count) as u64, Ordering::Relaxed);
        let all: Vec<(KvKey, bool)> = ids.iter().map(|id| id.key).zip(loaded.iter().copied()).collect();
        // Behind a gap nothing is said of what stands before a block.
        for path in all.split(|(_, loaded)| !loaded).filter(|path| !path.is_empty()) {
            self.store.record_path(path.iter().map(|(key, _)| *key).collect(), path.len(), 0.0);
        }
        loaded
    }

    /// Stores what `read` gives of each block that is not there yet; `None` where there is nothing to store. `after` is the block before the
    /// first one. BLOCKS.
    pub fn store(
        &self,
        space: &Space,
        after: Option<&Key>,
        keys: &[Key],
        compute_us: u64,
        read: &mut dyn FnMut(usize) -> Option<Vec<u8>>,
    ) -> Vec<Stored> {
        let begun = Begun { epoch: self.store.epoch(), evictions: self.evictions() };
        let ids: Vec<OpaqueId> = keys.iter().map(|key| space.space.id(&key.0)).collect();
        let present: Vec<bool> = ids.iter().map(|id| self.store.contains(&id.key).is_some()).collect();
        // Before they are kept: so the trees know what stands before what, and a chain is evicted from its end.
        let path = after.map(|key| space.space.id(&key.0).key).into_iter().chain(ids.iter().map(|id| id.key));
        let cached = usize::from(after.is_some()) + present.iter().take_while(|present| **present).count();
        self.store.record_path(path.collect(), cached, compute_us as f64);
        let mut store_one = |at: usize, id: &OpaqueId| {
            if present[at] {
                // An earlier write may have been lost.
                self.store.write_again(&id.key);
                return Stored::Present;
            }
            let Some(bytes) = read(at) else { return Stored::Refused };
            let entry = space.space.entry(id, bytes, compute_us, self.env.now_unix_ms());
            match entry.and_then(|entry| self.keep(space, entry, begun)) {
                Ok(true) => Stored::Accepted,
                Ok(false) => Stored::Refused,
                Err(error) => {
                    tracing::warn!(%error, "a block was not stored");
                    Stored::Refused
                }
            }
        };
        let stored: Vec<Stored> = ids.iter().enumerate().map(|(at, id)| store_one(at, id)).collect();
        let new = stored.iter().filter(|stored| **stored == Stored::Accepted).count() as u64;
        space.counts.stored.fetch_add(new, Ordering::Relaxed);
        stored
    }

    /// Keeps a block, unless its namespace was evicted since its job began; whether it is kept.
    fn keep(&self, space: &Space, entry: Entry, begun: Begun) -> Result<bool> {
        let (salt, segment) = (space.space.salt(), entry.header().segment());
        if self.evictions.covers(salt, begun.evictions) || !self.store.keep(entry, begun.epoch)? {
            return Ok(false);
        }
        self.env.fail_point("kv_serve.kept")?;
        // Who evicts marks first, and lists and removes then: one of the two sees the other.
        let is_evicted = self.evictions.covers(salt, begun.evictions);
        if is_evicted {
            self.store.invalidate_of(Some(&BTreeSet::from([salt.to_string()])), &[segment], &[])?;
        }
        Ok(!is_evicted)
    }

    /// Each namespace that has blocks on this machine, or was said hello to.
    ///
    /// # Errors
    /// As the disk says.
    pub fn namespaces(&self) -> Result<Vec<NamespaceStatus>> {
        let mut found: HashMap<Arc<str>, NamespaceStatus> = HashMap::new();
        for (salt, counts) in locked(&self.spaces).iter() {
            found.insert(Arc::clone(salt), counts.status());
        }
        for tier in [Tier::Host, Tier::Disk] {
            self.store.entries(&[tier], &mut |entry| {
                let status = found.entry(Arc::clone(&entry.summary.tenant)).or_default();
                let bytes = if tier == Tier::Host { &mut status.host_bytes } else { &mut status.disk_bytes };
                *bytes += entry.summary.bytes;
            })?;
        }
        self.store.entries(&[Tier::Host, Tier::Disk], &mut |entry| {
            found.entry(Arc::clone(&entry.summary.tenant)).or_default().blocks += 1;
        })?;
        let mut named: Vec<NamespaceStatus> = Vec::with_capacity(found.len());
        for (salt, mut status) in found {
            let Some((tenant, digest)) = parse_salt(&salt) else { continue };
            (status.tenant, status.namespace) = (tenant.to_owned(), hex::encode(digest));
            named.push(status);
        }
        named.sort_by(|a, b| (&a.namespace, &a.tenant).cmp(&(&b.namespace, &b.tenant)));
        Ok(named)
    }

    /// Removes the blocks of a namespace from every tier, the bucket among them; what is being stored just now is not stored. `digits` are the first of
    /// its digest's. Gives blocks and the bytes of their copies. BLOCKS; with a bucket it reads the head of each of its objects.
    ///
    /// # Errors
    /// `NotFound` if the digits are no namespace's, or several's; else as a tier says: then some blocks are left.
    pub fn evict(&self, digits: &str, tenant: Option<&str>) -> Result<(u64, u64)> {
        let named = Named { digits: digits.to_owned(), tenant: tenant.map(ToOwned::to_owned) };
        // Who names several is refused before jobs of all of them are.
        self.check_one(&named)?;
        // Before anything is listed: what jobs keep from now on, and began to store before, they take out again.
        self.evictions.begin(named.clone());
        let gone = self.remove(&named);
        // What was pinned while that went on is looked up anew, too.
        self.evictions.end();
        gone
    }

    /// That no two namespaces are named which are known on this machine, as each is that something is stored into.
    fn check_one(&self, named: &Named) -> Result<()> {
        let mut spaces: BTreeSet<_> = locked(&self.spaces).keys().filter_map(|salt| named.digest_of(salt)).collect();
        self.store.entries(&[Tier::Host, Tier::Disk], &mut |entry| {
            spaces.extend(named.digest_of(&entry.summary.tenant));
        })?;
        if spaces.len() > 1 { Err(named.unclear("more than one namespace")) } else { Ok(()) }
    }

    fn remove(&self, named: &Named) -> Result<(u64, u64)> {
        // What was stored and is on its way to disk or bucket may be in no tier yet.
        let is_written = self.store.drain(MOST_WRITING);
        let mut segments = Vec::new();
        let mut spaces = BTreeSet::new();
        let mut salts = BTreeSet::new();
        let is_complete = self.store.entries(&[Tier::Host, Tier::Disk, Tier::Object], &mut |entry| {
            if let Some(digest) = named.digest_of(&entry.summary.tenant) {
                spaces.insert(digest);
                salts.insert(entry.summary.tenant.to_string());
                segments.push(entry.summary.segment);
            }
        })?;
        for salt in locked(&self.spaces).keys() {
            spaces.extend(named.digest_of(salt));
        }
        if spaces.len() != 1 {
            return Err(named.unclear(if spaces.is_empty() { "no namespace" } else { "more than one namespace" }));
        }
        let gone =
            if segments.is_empty() { None } else { Some(self.store.invalidate_of(Some(&salts), &segments, &[])?) };
        if !is_written {
            let message = "blocks are still on their way to the disk or the bucket, and some may be left; evict again";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if !is_complete {
            let message = "the bucket did not answer: what only it has is left; evict again when it is back";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(gone.map_or((0, 0), |gone| (gone.entries, gone.bytes)))
    }

    /// Bytes of blocks that connections keep.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    /// The store, for its counters and verbs.
    pub fn inner(&self) -> &KvStore {
        &self.store
    }

    /// What is to be done now and then: times of use go to the catalog. BLOCKS for a moment.
    pub fn keep_up(&self) {
        self.store.write_uses();
    }

    /// Removes from the bucket what is too old or too much, where it is bounded, and seals anew what a key that is on its way out sealed. BLOCKS, for minutes where the bucket is large.
    pub fn collect(&self, wanted: &dyn Fn() -> bool) {
        let Some((object, options)) = &self.object else { return };
        if let Err(error) = object.collect_while(options, wanted) {
            tracing::warn!(%error, "the bucket was not collected");
        }
    }

    /// Waits until what was stored has reached disk and bucket, for `limit` at most, and syncs; whether it has. BLOCKS.
    pub fn flush(&self, limit: Duration) -> bool {
        let is_written = self.store.drain(limit);
        if let Err(error) = self.store.flush() {
            tracing::warn!(%error, "the disk was not synced; after a power cut its newest blocks may be missing");
        }
        is_written
    }
}

impl Space {
    /// Its digest.
    pub fn digest(&self) -> String {
        parse_salt(self.space.salt()).map(|(_, digest)| hex::encode(digest)).unwrap_or_default()
    }
}

impl Counts {
    fn status(&self) -> NamespaceStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NamespaceStatus {
            description: self.description.clone(),
            hits: read(&self.hits),
            misses: read(&self.misses),
            loaded: read(&self.loaded),
            not_loaded: read(&self.not_loaded),
            stored: read(&self.stored),
            ..NamespaceStatus::default()
        }
    }
}
