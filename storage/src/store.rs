//! The KV store: host memory in front of disk in front of object storage, behind one handle that any thread may use.
//!
//! A cache of derived data: a miss is always legal, a wrong byte never. Token ids are compared on every hit, and every
//! frame is verified each time it leaves a tier.
//!
//! - A fresh entry goes into host memory at once and is written behind to the slower tiers ([`KvStore::keep`]), so that each
//!   copy is made once, and leaving a faster tier costs nothing (RAGCache's swap-out-only-once).
//! - A look-up asks the tiers in turn, object storage for all segments at once (`find.rs`).
//! - An entry that is being read from a slower tier is read once, whoever asks, and is then in host memory (`reader.rs`).
//! - Each tier evicts by its own policy, told once a request which entries it used ([`record_use`](crate::prompt::record_use)).

mod admin;
mod find;
mod invalidate;
mod listing;
mod reader;
mod tiers;
mod tombstones;
mod transfer;
mod uploads;
mod uses;
mod worth;
mod write_behind;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, atomic::Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::admin::{DamagedEntry, VerifyReport};
pub use self::find::{Found, ObjectsFound, Wanted};
pub use self::invalidate::{Invalidated, Withdrawn};
pub use self::listing::EntryInfo;
use self::reader::Flights;
pub use self::reader::{EntryReader, LayerFrame};
use self::tiers::{TierPins, Tiers};
pub use self::transfer::{Copied, CopyPlan};
use self::uploads::Uploads;
use self::uses::Uses;
pub use self::worth::AdmissionRule;
pub(crate) use self::worth::loads_faster;
pub use self::write_behind::WriteBehindStatus;
use self::write_behind::{Job, WriteBehind};
use crate::catalog::Catalog;
use crate::cost::Costs;
use crate::entry::{Entry, EntryShape};
use crate::key::{Fingerprint, KvKey};
use crate::policy::shares::Terms;
use crate::tier::device::DeviceTier;
use crate::tier::disk::{DiskTier, Recovery, Remembered};
use crate::tier::host::HostTier;
use crate::tier::{EntryTier, Put, SharedTier, Tier, TierStatus};
pub use crate::tree::TierOptions;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::damage::Damage;

/// Bytes that may wait to be written to the disk, and as many to object storage.
const WRITE_BEHIND_BYTES: u64 = 256 << 20;

/// What the store is made of. A capacity of zero switches a tier off.
#[derive(Clone)]
pub struct StoreOptions {
    /// Entries in host memory.
    pub host: TierOptions,
    /// Entries on disk. RocksDB's files take more, by what was evicted and not collected yet, and by its log: up to a
    /// third and 350 MiB, as measured.
    pub disk: TierOptions,
    /// Object storage, where there is one.
    pub object: Option<Arc<dyn SharedTier>>,
    /// What the model's entries look like: others are damaged, wherever they are found. `None`: not compared.
    pub shape: Option<EntryShape>,
    /// What the disk and object storage take.
    pub admission: AdmissionRule,
    /// What this machine takes for prefills and reads; the store's reads correct them.
    pub costs: Costs,
}

/// The tiers behind one handle. Cheap to clone; clones share the store. `Send + Sync`.
///
/// Calls that look up, read, write or remove BLOCK on the disk or on object storage; no lock is held meanwhile.
#[derive(Clone)]
pub struct KvStore(Arc<Inner>);

struct Inner {
    fingerprint: Fingerprint,
    tiers: Arc<Tiers>,
    uses: Uses,
    flights: Flights,
    to_disk: WriteBehind,
    to_object: Option<WriteBehind>,
    /// What could not be uploaded, where there is a bucket.
    uploads: Option<Uploads>,
    find: Mutex<find::State>,
    /// What an operator pinned.
    pins: Mutex<HashMap<KvKey, TierPins>>,
    /// Held while pins change, in the catalog and here.
    pin_changes: Mutex<()>,
    /// The engine's, once there is one.
    device: OnceLock<DeviceTier>,
}

/// What the store holds and did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StoreStatus {
    /// Host memory.
    pub host: TierStatus,
    /// RocksDB.
    pub disk: TierStatus,
    /// Object storage; `None` where there is none.
    pub object: Option<TierStatus>,
    /// Size of RocksDB's table and blob files.
    pub disk_file_bytes: u64,
    /// Entries that were found and then could not be read.
    pub late_misses: u64,
    /// Keys found with other token ids: a collision, or a bug. Never a hit.
    pub token_mismatches: u64,
    /// Entries copied to host memory after they were read from a slower tier.
    pub promoted: u64,
    /// Reads of a layer that waited for, or found, another request's read of it.
    pub shared_reads: u64,
    /// Look-ups that only 8-bit objects answered; their entries are blended.
    #[serde(default)]
    pub lossy_hits: u64,
    /// Fresh entries that were not filed because their passage was invalidated meanwhile.
    pub invalidated_in_flight: u64,
    /// On their way to the disk.
    pub to_disk: WriteBehindStatus,
    /// On their way to object storage.
    pub to_object: WriteBehindStatus,
}

/// What a tenant may hold, and is guaranteed, in the tiers of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantTerms {
    /// In host memory.
    pub host: Terms,
    /// On disk.
    pub disk: Terms,
}

/// Bytes of a tenant's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantBytes {
    /// In host memory.
    pub host: u64,
    /// On disk.
    pub disk: u64,
}

/// What became of an entry on its way to the disk; to host memory, where there is no disk tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    /// It is there.
    Stored,
    /// Computing it again is faster than loading it would be, so that it is in host memory only ([`AdmissionRule::Cost`]).
    Declined,
    /// It is not there: the queue was full, the write failed, it had no room beside what is pinned, it was evicted already, or
    /// its passage was invalidated meanwhile.
    Lost,
}

impl KvStore {
    /// Opens or creates the store of one model in `dir` (`DATA/kv`). BLOCKS.
    ///
    /// # Errors
    /// `Unavailable` if another process holds the folder. Where the disk tier cannot be opened for another reason (the disk is full, or a
    /// right is missing), the store goes on without: it holds derived data only. [`damage`](Self::damage) tells.
    pub fn open(
        dir: &Path,
        options: StoreOptions,
        fingerprint: Fingerprint,
        env: Env,
        catalog: Arc<Catalog>,
    ) -> Result<Self> {
        let uses = Uses::read(catalog);
        let remembered = Remembered { last_uses: uses.all(), pins: uses.catalog.pins()? };
        let disk = match DiskTier::open(dir, options.disk, env.clone(), &remembered) {
            Err(error) if !DiskTier::is_in_use(&error) => {
                tracing::error!(%error, "the KV on disk cannot be opened; starting without");
                DiskTier::without_disk(dir, options.disk.policy, env.clone(), &error)?
            }
            opened => opened?,
        };
        if disk.is_on_disk() {
            uses.forget_all_but(|key| disk.contains(key));
        }
        let host = HostTier::new(options.host);
        if let Some(object) = &options.object {
            object.report_reads(&options.costs);
            invalidate::hide_removals(&**object, &uses.catalog)?;
        }
        let rule = (options.admission, options.costs);
        let known = uses.catalog.clone();
        let tiers = Arc::new(Tiers::new(env, host, disk, options.object, options.shape, rule, known));
        let pins = remembered.pins.into_iter().map(|key| (key, tiers.pin(&key))).collect();
        let writer = |tier: Tier| {
            let tiers = Arc::clone(&tiers);
            move |job: &Job| drop(tiers.write(tier, &job.entry, job.planned_in))
        };
        let to_disk = WriteBehind::start("kv-to-disk", 1, WRITE_BEHIND_BYTES, writer(Tier::Disk))?;
        let uploading = tiers.object.is_some().then(|| uploads::start(&tiers, &uses.catalog, fingerprint));
        let (to_object, uploads) = uploading.transpose()?.unzip();
        Ok(Self(Arc::new(Inner {
            fingerprint,
            tiers,
            uses,
            flights: Flights::default(),
            to_disk,
            to_object,
            uploads,
            find: Mutex::default(),
            pins: Mutex::new(pins),
            pin_changes: Mutex::default(),
            device: OnceLock::new(),
        })))
    }

    /// The model that this store keeps entries of.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.fingerprint
    }

    /// What this machine takes for prefills and reads.
    pub fn costs(&self) -> &Costs {
        &self.0.tiers.worth.costs
    }

    /// Whether the plan that is made now may decline loads that take longer than computing: not under
    /// [`AdmissionRule::Always`], and now and then not, to see whether that is still so.
    pub fn may_decline(&self) -> bool {
        self.0.tiers.worth.may_decline(self.env())
    }

    /// The clock, randomness and failpoints it was opened with.
    pub fn env(&self) -> &Env {
        &self.0.tiers.env
    }

    /// Tells the store of the device tier that its entries are placed in, so that listing, eviction and invalidation reach
    /// it too. Only the first one counts.
    pub fn set_device(&self, device: DeviceTier) {
        if self.0.device.set(device).is_err() {
            tracing::error!("the store has a device tier already; the second one is not seen by its verbs");
        }
    }

    /// What opening the disk tier found.
    pub fn recovery(&self) -> &Recovery {
        self.0.tiers.disk.recovery()
    }

    /// What befell the disk tier as a whole when it was opened, for people.
    pub fn damage(&self) -> Option<&Damage> {
        self.0.tiers.disk.damage()
    }

    /// The present epoch, for [`keep`](Self::keep): to be asked before the prompt is planned.
    pub fn epoch(&self) -> u64 {
        self.0.tiers.tombstones.epoch()
    }

    /// Files a fresh entry that was planned in the epoch `planned_in`: into host memory now, to the slower tiers behind the
    /// caller's back. A refusal is no error; `false` if its passage was invalidated since, so that it is kept nowhere.
    ///
    /// # Errors
    /// `Incompatible` if another model computed it, `Corrupt` if none like this one can have.
    pub fn keep(&self, entry: Entry, planned_in: u64) -> Result<bool> {
        self.check_model(&entry)?;
        let entry = Arc::new(entry);
        let kept = self.0.tiers.write(Tier::Host, &entry, planned_in)?;
        if kept.is_none() {
            return Ok(false);
        }
        self.0.uses.record(&entry.header().key, self.env());
        if let (Some(queue), Some(uploads)) = (&self.0.to_object, &self.0.uploads)
            && !queue.offer(Job { entry: Arc::clone(&entry), planned_in })
        {
            uploads.owed().add(entry.header().id(), planned_in);
        }
        self.0.to_disk.offer(Job { entry, planned_in });
        Ok(true)
    }

    /// Offers the disk an entry that host memory has and it has not: an earlier write may have been lost.
    pub fn write_again(&self, key: &KvKey) {
        let planned_in = self.epoch();
        if self.0.tiers.disk.contains(key) {
            return;
        }
        if let Some(entry) = self.0.tiers.host.get(key) {
            self.0.to_disk.offer(Job { entry, planned_in });
        }
    }

    /// Writes an entry to one tier and waits for it; `None` if the tier declined it, or its passage was invalidated. BLOCKS.
    ///
    /// # Errors
    /// `Incompatible` if another model computed it, `Corrupt` if none like this one can have; else as the tier says. Counted; nothing is lost.
    pub fn write(&self, tier: Tier, entry: &Arc<Entry>) -> Result<Option<Put>> {
        self.check_model(entry)?;
        self.0.tiers.write(tier, entry, self.epoch())
    }

    fn check_model(&self, entry: &Entry) -> Result<()> {
        let header = entry.header();
        if header.fingerprint == self.0.fingerprint {
            return self.0.tiers.shape.map_or(Ok(()), |shape| shape.check(header));
        }
        let message = format!(
            "entry {} was computed by model {}, but the store was opened for {}",
            header.key, header.fingerprint, self.0.fingerprint
        );
        Err(Error::new(ErrorKind::Incompatible, message))
    }

    /// The fastest tier of this machine that has the key. Memory only: no token ids are compared, nothing is counted.
    pub fn contains(&self, key: &KvKey) -> Option<Tier> {
        let tiers = &self.0.tiers;
        if tiers.host.contains(key) {
            return Some(Tier::Host);
        }
        tiers.disk.contains(key).then_some(Tier::Disk)
    }

    /// As [`contains`](Self::contains), the device among them.
    pub fn contains_placed(&self, key: &KvKey) -> Option<Tier> {
        let is_placed = self.0.device.get().is_some_and(|device| device.contains(key));
        if is_placed { Some(Tier::Device) } else { self.contains(key) }
    }

    /// The tiers that are known to have the key, which was found in `found`.
    pub(crate) fn tiers_of(&self, key: &KvKey, found: Tier) -> Vec<Tier> {
        let tiers = &self.0.tiers;
        let has = |tier: &Tier| match tier {
            _ if *tier == found => true,
            Tier::Host => tiers.host.contains(key),
            Tier::Disk => tiers.disk.contains(key),
            Tier::Device | Tier::Object => false,
        };
        Tier::ALL.into_iter().filter(has).collect()
    }

    /// Agrees with a tenant on what it may hold in the tiers of this machine, from the next entries on that come there.
    /// `None`: on what is agreed with all others.
    pub fn set_terms(&self, tenant: &str, terms: Option<TenantTerms>) {
        self.0.tiers.host.set_terms(tenant, terms.map(|terms| terms.host));
        self.0.tiers.disk.set_terms(tenant, terms.map(|terms| terms.disk));
    }

    /// Agrees with all tenants with whom nothing else was agreed, but for the default one.
    pub fn set_default_terms(&self, terms: TenantTerms) {
        self.0.tiers.host.set_default_terms(terms.host);
        self.0.tiers.disk.set_default_terms(terms.disk);
    }

    /// What a tenant's entries take in the tiers of this machine, counted in the tiers themselves. Memory only.
    pub fn held_by(&self, tenant: &str) -> TenantBytes {
        let tiers = &self.0.tiers;
        TenantBytes { host: tiers.host.held_by(tenant), disk: tiers.disk.held_by(tenant) }
    }

    /// Waits until what was kept has reached the slower tiers, for `limit` at most; whether it has. BLOCKS.
    pub fn drain(&self, limit: Duration) -> bool {
        let is_on_disk = self.0.to_disk.drain(limit);
        let is_uploaded = self.0.to_object.as_ref().is_none_or(|queue| queue.drain(limit));
        is_on_disk && is_uploaded
    }

    /// As [`drain`](Self::drain), for the disk alone. BLOCKS.
    pub fn drain_to_disk(&self, limit: Duration) -> bool {
        self.0.to_disk.drain(limit)
    }

    /// What became of an entry that was kept, once it was drained. Memory only.
    pub fn became_of(&self, key: &KvKey) -> Became {
        let tiers = &self.0.tiers;
        let has_disk = tiers.status(Tier::Disk).capacity_bytes > 0;
        match self.contains(key) {
            Some(Tier::Disk) => Became::Stored,
            Some(_) if !has_disk || tiers.disk.contains(key) => Became::Stored,
            // There is nothing else to ask without a round trip.
            None if !has_disk && tiers.object.is_some() => Became::Stored,
            _ if tiers.disk_declined(key) => Became::Declined,
            _ => Became::Lost,
        }
    }

    /// Syncs RocksDB's log: what is on disk survives a power cut, and what left does not come back. Times of use are handed to the catalog, and
    /// are not waited for. BLOCKS.
    ///
    /// # Errors
    /// As the disk says.
    pub fn flush(&self) -> Result<()> {
        self.0.uses.write();
        self.0.tiers.disk.flush()
    }

    /// What the store holds and did.
    pub fn status(&self) -> StoreStatus {
        let tiers = &self.0.tiers;
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        StoreStatus {
            host: tiers.status(Tier::Host),
            disk: tiers.status(Tier::Disk),
            object: tiers.object.is_some().then(|| tiers.status(Tier::Object)),
            disk_file_bytes: tiers.disk.file_bytes(),
            late_misses: read(&tiers.counts.late_misses),
            token_mismatches: read(&tiers.counts.token_mismatches),
            promoted: read(&tiers.counts.promoted),
            shared_reads: read(&tiers.counts.shared_reads),
            lossy_hits: read(&tiers.counts.lossy_hits),
            invalidated_in_flight: read(&tiers.counts.invalidated_in_flight),
            to_disk: self.0.to_disk.status(),
            to_object: self.0.to_object.as_ref().map(WriteBehind::status).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod bucket_tests;

#[cfg(test)]
mod fault_tests;

#[cfg(test)]
mod forged_tests;
#[cfg(test)]
mod sealed_tests;

#[cfg(test)]
mod invalidate_tests;

#[cfg(test)]
mod kill_tests;

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod random_tests;

#[cfg(test)]
mod tier_tests;
