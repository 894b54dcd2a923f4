//! Reading one entry layer by layer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use ragstone_kernels::dtype::KvDtype;

use super::tiers::count;
use super::write_behind::Job;
use super::{Found, KvStore};
use crate::Result;
use crate::entry::{Entry, EntryHeader};
use crate::frame;
use crate::key::KvKey;
use crate::tier::{EntryId, Precision, Put, Tier, TierEntry};
use ragstone_env::lock::locked;

/// Reads one entry layer by layer, in any order, from any thread; pins it meanwhile. Once every layer of an entry of a
/// slower tier was read and verified, by whomever, the entry is in host memory.
pub struct EntryReader {
    store: KvStore,
    flight: Arc<Flight>,
}

/// One entry that is being read, shared by all its readers: each layer leaves its tier once.
pub(super) struct Flight {
    header: Arc<EntryHeader>,
    tier: Tier,
    entry: Arc<dyn TierEntry>,
    planned_in: u64,
    /// Verified frames, until the entry is promoted; none where it will not be.
    layers: Vec<Mutex<Option<Bytes>>>,
    missing: AtomicU32,
    /// Whether a reader wants it in a faster tier though others leave for it.
    makes_room: AtomicBool,
}

/// What is being read just now.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<(KvKey, Tier), Weak<Flight>>>);

/// One verified layer of an entry.
#[derive(Clone)]
pub struct LayerFrame {
    /// Keys before rotary embedding, row-major `[tokens, kv_dim]`, little-endian.
    pub k: Bytes,
    /// Values, row-major `[tokens, kv_dim]`, little-endian.
    pub v: Bytes,
    /// Element type of both.
    pub dtype: KvDtype,
    /// Where it came from.
    pub tier: Tier,
    /// Bytes of the whole frame.
    pub bytes: u64,
    /// Time to read and verify it.
    pub elapsed: Duration,
}

impl std::fmt::Debug for LayerFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayerFrame({}, {} bytes from {} in {:?})", self.dtype.name(), self.bytes, self.tier, self.elapsed)
    }
}

impl EntryReader {
    /// `makes_room`: others may leave a faster tier for it.
    pub(super) fn new(store: KvStore, found: &Found, makes_room: bool) -> Self {
        let flight = store.0.flights.join(found, store.0.tiers.host.capacity_bytes());
        flight.makes_room.fetch_or(makes_room, Ordering::AcqRel);
        Self { store, flight }
    }

    /// For a reader whose use of the entry may come to nothing: it stays in the tiers that it is in.
    pub(super) fn alone(store: KvStore, found: &Found) -> Self {
        let flight = Arc::new(Flight::new(found, false));
        Self { store, flight }
    }

    /// What the entry is.
    pub fn header(&self) -> &Arc<EntryHeader> {
        &self.flight.header
    }

    /// Its address.
    pub fn id(&self) -> EntryId {
        self.flight.header.id()
    }

    /// Where the layers come from.
    pub fn tier(&self) -> Tier {
        self.flight.tier
    }

    /// Whether what is read is what was computed.
    pub fn precision(&self) -> Precision {
        if self.flight.entry.is_exact() { Precision::Exact } else { Precision::Lossy }
    }

    /// Layers from this one on are about to be read: what takes a round trip is begun. Does not block.
    pub fn begin(&self, layer: u32) {
        // Another reader may have it, or be reading it.
        let first = self.flight.layers.get(layer as usize).map(Mutex::try_lock);
        if first.is_none_or(|slot| slot.is_ok_and(|slot| slot.is_none())) {
            self.flight.entry.begin(layer);
        }
    }

    /// Whether the entry moves to a faster tier once every layer was read.
    pub fn is_promoted(&self) -> bool {
        !self.flight.layers.is_empty()
    }

    /// Reads and verifies one layer; no copy if it is in host memory. BLOCKS if it is not.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` if the bytes are damaged or gone, `Unavailable` if the medium fails: each a late miss, so
    /// call [`KvStore::late_miss_of`] and recompute the segment.
    pub fn layer(&self, layer: u32) -> Result<LayerFrame> {
        let started = self.store.env().stopwatch();
        let flight = &self.flight;
        let read = match flight.layers.get(layer as usize) {
            None => self.read(layer).map(|(_, frame)| frame),
            Some(slot) => self.read_once(layer, slot),
        };
        let frame = read.inspect_err(|error| self.store.0.tiers.count_failed_read(flight.tier, error))?;
        Ok(LayerFrame {
            k: frame.k,
            v: frame.v,
            dtype: flight.header.dtype,
            tier: flight.tier,
            bytes: flight.header.frame_shape().frame_bytes().unwrap_or(u64::MAX),
            elapsed: started.elapsed(),
        })
    }

    /// Reads a layer, unless another reader has: who comes second waits for the first.
    fn read_once(&self, layer: u32, slot: &Mutex<Option<Bytes>>) -> Result<frame::Frame> {
        let mut slot = locked(slot);
        if let Some(bytes) = &*slot {
            count(&self.store.0.tiers.counts.shared_reads);
            return self.decode(layer, bytes);
        }
        let (bytes, frame) = self.read(layer)?;
        *slot = Some(bytes);
        drop(slot);
        if self.flight.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.promote();
        }
        Ok(frame)
    }

    fn read(&self, layer: u32) -> Result<(Bytes, frame::Frame)> {
        let started = self.store.env().stopwatch();
        let reading = self.store.0.tiers.reading(self.flight.tier);
        let bytes = self.flight.entry.frame(layer)?;
        let frame = self.decode(layer, &bytes)?;
        // Requests to object storage report themselves: a frame of it may have come with another.
        if self.flight.tier != Tier::Object {
            self.store.costs().observe_read(self.flight.tier, bytes.len() as u64, reading.in_flight, started.elapsed());
        }
        Ok((bytes, frame))
    }

    fn decode(&self, layer: u32, bytes: &Bytes) -> Result<frame::Frame> {
        let header = &self.flight.header;
        frame::decode(bytes, &header.key, layer, &header.frame_shape())
    }

    /// Every layer was read and verified: the entry goes to host memory, and from object storage to the disk as well.
    fn promote(&self) {
        let Flight { header, layers, planned_in, tier, makes_room, .. } = &*self.flight;
        let frames: Option<Vec<Bytes>> = layers.iter().map(|slot| locked(slot).clone()).collect();
        let Some(frames) = frames else { return };
        let entry = Arc::new(Entry::from_verified_frames(Arc::clone(header), frames));
        let inner = &self.store.0;
        let makes_room = makes_room.load(Ordering::Acquire);
        let may_enter = |tier| makes_room || inner.tiers.has_room(tier, header.total_bytes());
        if may_enter(Tier::Host)
            && let Ok(Some(Put::Stored { .. })) = inner.tiers.write(Tier::Host, &entry, *planned_in)
        {
            count(&inner.tiers.counts.promoted);
        }
        if *tier == Tier::Object && may_enter(Tier::Disk) {
            inner.to_disk.offer(Job { entry, planned_in: *planned_in });
        }
    }
}

impl Flight {
    fn new(found: &Found, is_collected: bool) -> Self {
        let layers = found.header.layers;
        Self {
            header: Arc::clone(&found.header),
            tier: found.tier,
            entry: Arc::clone(&found.entry),
            // Not that of its opening: what is invalidated between the two must not come back.
            planned_in: found.found_in,
            layers: if is_collected { (0..layers).map(|_| Mutex::default()).collect() } else { Vec::new() },
            missing: AtomicU32::new(layers),
            makes_room: AtomicBool::new(false),
        }
    }
}

impl Flights {
    /// The flight of an entry, begun if there is none.
    fn join(&self, found: &Found, host_bytes: u64) -> Arc<Flight> {
        // Nothing is collected of what is in host memory already, or has no room there, or is not what was computed: each
        // reader reads that for itself, and an exact flight never carries a lossy frame.
        let is_collected =
            found.tier != Tier::Host && found.entry.is_exact() && found.header.total_bytes() <= host_bytes;
        let mut flights = locked(&self.0);
        let name = (found.header.key, found.tier);
        if let Some(flight) = flights.get(&name).filter(|_| is_collected).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::new(Flight::new(found, is_collected));
        if is_collected {
            flights.retain(|_, flight| flight.strong_count() > 0);
            flights.insert(name, Arc::downgrade(&flight));
        }
        flight
    }
}
