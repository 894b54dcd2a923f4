//! The layers of a prompt's reused segments, on their way from threads that may wait for a medium to one that may not.
//!
//! Entries are read in lanes, a thread each: what one tier has never waits for another tier, and a disk reads several entries at
//! a time. Each lane hands on layer after layer, and a layer is there once every lane's part of it is.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use ragstone_env::Stopwatch;
use ragstone_env::lock::locked;
use ragstone_storage::prompt::plan::{BEGUN_TOGETHER, lanes};
use ragstone_storage::store::{EntryReader, LayerFrame};
use ragstone_storage::tier::{EntryId, Precision, Tier};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many layers are loaded ahead of the one that computes where [`ReadAhead`] has no room: one waits in the channel while the
/// next is being read, so that the load of layer `l + 1` hides behind the computation of layer `l`. Such a prompt has one lane: it
/// holds its thread for as long as it waits in the queue, and there are not so many of them.
const LAYERS_AHEAD: usize = 1;

/// What is read ahead of its use, of all prompts together.
const MOST_AHEAD_MIB: usize = 256;

/// Memory for what is read ahead: all of a prompt's layers while it waits in the queue, and while its first layers, which compute
/// most, take their time. Clones share it.
#[derive(Clone)]
pub struct ReadAhead(Arc<Semaphore>);

impl Default for ReadAhead {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_AHEAD_MIB)))
    }
}

impl ReadAhead {
    /// Room that nobody has.
    #[cfg(test)]
    pub(crate) fn free_mib(&self) -> usize {
        self.0.available_permits()
    }

    /// Room for so many bytes, until the permit is dropped.
    fn reserve(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let mib = u32::try_from(bytes.div_ceil(1 << 20)).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(mib).ok()
    }
}

/// An entry that a prompt wants.
pub(crate) struct WantedEntry {
    /// Index of its segment in the plan.
    pub segment: usize,
    pub reader: EntryReader,
    /// The first layer that is of use.
    pub from: u32,
}

/// The layers of a prompt's reused segments, first layer first.
pub struct LayerLoads {
    lanes: Vec<Incoming>,
    waker: Shared<Waker>,
    /// The memory of what waits in the lanes: whoever has the last layer drops it. `None` where that is a layer at the most.
    _ahead: Option<OwnedSemaphorePermit>,
}

/// A lane, from the side of who waits.
struct Incoming {
    parts: Receiver<LoadedLayer>,
    reading: Shared<Reading>,
    /// Segments that it reads.
    segments: Vec<usize>,
    /// Its part of the next layer, where that has come before the others'.
    part: Option<LoadedLayer>,
}

/// What both ends of a lane see.
type Shared<T> = Arc<Mutex<Option<T>>>;

/// Wakes whoever can go on: called when a lane's part of a layer has come, or nothing more will.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What is being read now.
#[derive(Clone)]
struct Reading {
    segment: usize,
    id: EntryId,
    tier: Tier,
    precision: Precision,
}

/// One layer of every reused segment of which it is of use.
#[derive(Default)]
pub struct LoadedLayer {
    /// `(index of the segment in the plan, its frame)`, in the order of the prompt.
    pub frames: Vec<(usize, LayerFrame)>,
    /// Segments of which neither this layer nor a later one will come.
    pub lost: Vec<Lost>,
    /// What was read, by tier and lane: lanes read at the same time, each at its own pace.
    pub reads: BTreeMap<(Tier, usize), Read>,
}

/// Bytes that were read, and for how long.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Read {
    pub bytes: u64,
    pub elapsed: Duration,
}

/// A segment whose load failed, or was given up.
#[derive(Debug)]
pub struct Lost {
    /// Its index in the plan.
    pub segment: usize,
    /// The late miss; `None` where its load stood behind one that hung.
    pub failed: Option<FailedLoad>,
}

/// A load that failed after look-up had found it: a late miss.
#[derive(Debug)]
pub struct FailedLoad {
    /// The entry that could not be read.
    pub id: EntryId,
    /// Where it was found.
    pub tier: Tier,
    /// How close it was to what was computed.
    pub precision: Precision,
    /// Why.
    pub error: Error,
}

/// What there is of the next layer.
pub enum Arrived {
    /// It is here.
    Layer(LoadedLayer),
    /// Not yet.
    NotYet,
    /// Nothing more will come.
    Nothing,
}

impl LoadedLayer {
    /// Adds what a lane has read of a segment.
    pub(crate) fn push(&mut self, lane: usize, segment: usize, frame: LayerFrame) {
        let read = self.reads.entry((frame.tier, lane)).or_default();
        read.bytes += frame.bytes;
        read.elapsed += frame.elapsed;
        self.frames.push((segment, frame));
    }

    /// Takes another lane's part.
    fn join(&mut self, other: Self) {
        self.frames.extend(other.frames);
        // Lanes have them as they were dealt out; who compares them goes through the prompt.
        self.frames.sort_by_key(|(segment, _)| *segment);
        self.lost.extend(other.lost);
        self.reads.extend(other.reads);
    }
}

impl LayerLoads {
    /// A plan without loads.
    pub fn none() -> Self {
        Self { lanes: Vec::new(), waker: Shared::default(), _ahead: None }
    }

    /// Layers that are here, all of them.
    pub(crate) fn ready(layers: Vec<LoadedLayer>) -> Self {
        let (sender, parts) = sync_channel(layers.len());
        // There is room for every one.
        layers.into_iter().for_each(|layer| drop(sender.try_send(layer)));
        let lane = Incoming { parts, reading: Shared::default(), segments: Vec::new(), part: None };
        Self { lanes: vec![lane], ..Self::none() }
    }

    /// Whether the plan loads nothing.
    pub fn is_none(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Calls `waker` whenever a part of a layer has come.
    pub fn wake(&self, waker: Waker) {
        *locked(&self.waker) = Some(waker);
    }

    /// The next layer, if it is here. Never waits.
    pub fn poll(&mut self) -> Arrived {
        let mut is_here = true;
        for lane in self.lanes.iter_mut().filter(|lane| lane.part.is_none()) {
            match lane.parts.try_recv() {
                Ok(part) => lane.part = Some(part),
                Err(TryRecvError::Empty) => is_here = false,
                Err(TryRecvError::Disconnected) => return Arrived::Nothing,
            }
        }
        if is_here { self.take() } else { Arrived::NotYet }
    }

    /// The next layer; waits for it, `patience` at most. For whoever has a thread to spare.
    pub fn wait(&mut self, patience: Duration) -> Arrived {
        let started = Stopwatch::start();
        for lane in self.lanes.iter_mut().filter(|lane| lane.part.is_none()) {
            match lane.parts.recv_timeout(patience.saturating_sub(started.elapsed())) {
                Ok(part) => lane.part = Some(part),
                Err(RecvTimeoutError::Timeout) => return Arrived::NotYet,
                Err(RecvTimeoutError::Disconnected) => return Arrived::Nothing,
            }
        }
        self.take()
    }

    /// The next layer as far as it is here; what else was to come of the lanes that are late is lost.
    pub fn give_up(&mut self, after: Duration) -> LoadedLayer {
        let mut layer = LoadedLayer::default();
        for mut lane in std::mem::take(&mut self.lanes) {
            match lane.part.take().or_else(|| lane.parts.try_recv().ok()) {
                Some(part) => {
                    layer.join(part);
                    self.lanes.push(lane);
                }
                None => layer.lost.extend(lane.lost(after)),
            }
        }
        layer
    }

    /// All lanes have their part.
    fn take(&mut self) -> Arrived {
        if self.lanes.is_empty() {
            return Arrived::Nothing;
        }
        let mut layer = LoadedLayer::default();
        self.lanes.iter_mut().filter_map(|lane| lane.part.take()).for_each(|part| layer.join(part));
        Arrived::Layer(layer)
    }
}

impl Incoming {
    /// What it was to read, and did not within that time.
    fn lost(&self, after: Duration) -> impl Iterator<Item = Lost> {
        let reading = locked(&self.reading).clone();
        self.segments.iter().map(move |&segment| {
            let failed = reading.as_ref().filter(|reading| reading.segment == segment).map(|reading| {
                let Reading { id, tier, precision, .. } = reading.clone();
                let message = format!("a layer did not come from the {tier} tier within {:.1} s", after.as_secs_f64());
                let error = Error::new(ErrorKind::Unavailable, message);
                FailedLoad { id, tier, precision, error }
            });
            Lost { segment, failed }
        })
    }
}

/// A lane, from the side of who reads.
struct Lane {
    number: usize,
    entries: Vec<WantedEntry>,
    /// `None` once nothing more will come.
    sender: Option<SyncSender<LoadedLayer>>,
    reading: Shared<Reading>,
    waker: Shared<Waker>,
}

/// Both ends: what comes, and what reads and sends it, each to be run on a thread that may block. A model of so many `layers`.
pub(crate) fn layer_loads(
    wanted: Vec<WantedEntry>,
    layers: u32,
    ahead: &ReadAhead,
) -> (LayerLoads, Vec<impl FnOnce() + Send + use<>>) {
    let size = |wanted: &WantedEntry| (wanted.reader.tier(), wanted.reader.header().total_bytes());
    let sizes: Vec<(Tier, u64)> = wanted.iter().map(size).collect();
    // What host memory has takes no more of it.
    let read = sizes.iter().filter(|(tier, _)| *tier != Tier::Host);
    let ahead = ahead.reserve(read.map(|(_, bytes)| bytes).sum());
    let waker = Shared::default();
    let (lanes, parts_ahead) = match ahead {
        Some(_) => (lanes(&sizes), layers as usize),
        None => (vec![(0..wanted.len()).collect()], LAYERS_AHEAD),
    };
    let mut wanted: Vec<Option<WantedEntry>> = wanted.into_iter().map(Some).collect();
    let (mut incoming, mut work) = (Vec::with_capacity(lanes.len()), Vec::with_capacity(lanes.len()));
    for (number, indices) in lanes.into_iter().enumerate() {
        let entries: Vec<WantedEntry> = indices.into_iter().filter_map(|index| wanted[index].take()).collect();
        let (sender, parts) = sync_channel(parts_ahead);
        let (reading, waker) = (Shared::default(), Arc::clone(&waker));
        let segments = entries.iter().map(|entry| entry.segment).collect();
        incoming.push(Incoming { parts, reading: Arc::clone(&reading), segments, part: None });
        let mut lane = Lane { number, entries, sender: Some(sender), reading, waker };
        work.push(move || {
            if lane.load(layers) {
                lane.finish();
            }
        });
    }
    (LayerLoads { lanes: incoming, waker, _ahead: ahead }, work)
}

impl Lane {
    /// Reads layer after layer and hands each on. `false`: nobody waits for them any more.
    fn load(&mut self, layers: u32) -> bool {
        // Round trips at the same time, where there are any; not so many that they wait for each other past their deadlines.
        self.entries.iter().take(BEGUN_TOGETHER).for_each(|entry| entry.reader.begin(entry.from));
        (0..layers).all(|layer| {
            let part = self.read(layer);
            let is_wanted = self.sender.as_ref().is_some_and(|sender| sender.send(part).is_ok());
            self.wake();
            is_wanted
        })
    }

    fn read(&mut self, layer: u32) -> LoadedLayer {
        let mut part = LoadedLayer::default();
        let mut lost = Vec::new();
        for (index, WantedEntry { segment, reader, from }) in self.entries.iter().enumerate() {
            if layer < *from {
                continue;
            }
            if layer == *from
                && let Some(ahead) = self.entries.get(index + BEGUN_TOGETHER)
            {
                ahead.reader.begin(ahead.from);
            }
            let reading =
                Reading { segment: *segment, id: reader.id(), tier: reader.tier(), precision: reader.precision() };
            *locked(&self.reading) = Some(reading.clone());
            match reader.layer(layer) {
                Ok(frame) => part.push(self.number, *segment, frame),
                Err(error) => {
                    let Reading { id, tier, precision, .. } = reading;
                    lost.push(index);
                    part.lost.push(Lost { segment: *segment, failed: Some(FailedLoad { id, tier, precision, error }) });
                }
            }
        }
        *locked(&self.reading) = None;
        lost.into_iter().rev().for_each(|index| drop(self.entries.remove(index)));
        part
    }

    /// Every layer that was of use was read: the others are, too, where the entry then moves to a faster tier.
    fn finish(&self) {
        for WantedEntry { reader, from, .. } in self.entries.iter().filter(|entry| entry.reader.is_promoted()) {
            // The prompt does without them: whoever needs them will see what is wrong.
            let _ = (0..*from).try_for_each(|layer| reader.layer(layer).map(drop));
        }
    }

    fn wake(&self) {
        let waker = locked(&self.waker).clone();
        if let Some(waker) = waker {
            waker();
        }
    }
}

impl Drop for Lane {
    /// Nobody waits for what will not come.
    fn drop(&mut self) {
        self.sender = None;
        self.wake();
    }
}
