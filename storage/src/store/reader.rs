//! Reading one entry layer by layer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ragstone_kernels::dtype::KvDtype;

use super::{Found, KvStore, Ordering, Pinned};
use crate::Result;
use crate::entry::{Entry, EntryHeader};
use crate::frame;
use crate::tier::Tier;
use crate::tier::disk::DiskPin;
use crate::tier::host::HostOutcome;

/// Reads one entry layer by layer, in any order, from any thread; pins it meanwhile. Once every layer of an entry on
/// disk was read and verified, the entry is copied to host memory.
pub struct EntryReader {
    store: KvStore,
    header: Arc<EntryHeader>,
    source: Source,
}

enum Source {
    Host(Arc<Entry>),
    Disk { _pin: DiskPin, verified: Mutex<Verified> },
}

/// The frames of a disk entry that were verified so far.
enum Verified {
    Collecting {
        frames: Vec<Option<Bytes>>,
        missing: u32,
    },
    /// Promoted already, or too large for host memory.
    Done,
}

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
    pub(super) fn new(store: KvStore, found: &Found) -> Self {
        let header = found.header.clone();
        let source = match &found.pin.0 {
            Pinned::Host(entry) => Source::Host(entry.clone()),
            Pinned::Disk(pin) => {
                let promotable = header.total_bytes() <= store.0.host.capacity_bytes();
                let verified = if promotable {
                    Verified::Collecting { frames: vec![None; header.layers as usize], missing: header.layers }
                } else {
                    Verified::Done
                };
                Source::Disk { _pin: pin.clone(), verified: Mutex::new(verified) }
            }
        };
        Self { store, header, source }
    }

    /// What the entry is.
    pub fn header(&self) -> &Arc<EntryHeader> {
        &self.header
    }

    /// Where the layers come from.
    pub fn tier(&self) -> Tier {
        match self.source {
            Source::Host(_) => Tier::Host,
            Source::Disk { .. } => Tier::Disk,
        }
    }

    /// Reads and verifies one layer; no copy if it is in host memory. BLOCKS if it is on disk.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` if the bytes are damaged or gone, `Unavailable` if the disk fails: each a late miss, so
    /// call [`KvStore::late_miss`] and recompute the segment.
    pub fn layer(&self, layer: u32) -> Result<LayerFrame> {
        let started = Instant::now();
        let read = match &self.source {
            Source::Host(entry) => entry.layer(layer),
            Source::Disk { verified, .. } => self.disk_layer(layer, verified),
        };
        let frame = read.inspect_err(|error| self.store.0.count_failed_read(self.tier(), error))?;
        Ok(LayerFrame {
            k: frame.k,
            v: frame.v,
            dtype: self.header.dtype,
            tier: self.tier(),
            bytes: self.header.frame_shape().frame_bytes().unwrap_or(u64::MAX),
            elapsed: started.elapsed(),
        })
    }

    fn disk_layer(&self, layer: u32, verified: &Mutex<Verified>) -> Result<frame::Frame> {
        let key = &self.header.key;
        let bytes = self.store.0.disk.frame(key, layer)?;
        let frame = frame::decode(&bytes, key, layer, &self.header.frame_shape())?;
        let whole = verified.lock().unwrap_or_else(PoisonError::into_inner).add(layer, bytes);
        if let Some(frames) = whole {
            self.promote(frames);
        }
        Ok(frame)
    }

    fn promote(&self, frames: Vec<Bytes>) {
        let entry = Entry::from_verified_frames(self.header.clone(), frames);
        let (outcome, _evicted) = self.store.0.host.insert(Arc::new(entry));
        if outcome == HostOutcome::Stored {
            self.store.0.counts.promoted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Verified {
    /// Takes a verified frame; gives all of them when this was the last.
    fn add(&mut self, layer: u32, bytes: Bytes) -> Option<Vec<Bytes>> {
        let Self::Collecting { frames, missing } = self else { return None };
        let slot = frames.get_mut(layer as usize)?;
        if slot.is_none() {
            *slot = Some(bytes);
            *missing -= 1;
        }
        if *missing > 0 {
            return None;
        }
        let whole = std::mem::take(frames);
        *self = Self::Done;
        Some(whole.into_iter().flatten().collect())
    }
}
