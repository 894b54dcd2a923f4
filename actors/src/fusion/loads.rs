//! The layers of a prompt's reused segments, on their way from a thread that may wait for a disk to one that may not.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ragstone_storage::ErrorKind;
use ragstone_storage::plan::BEGUN_TOGETHER;
use ragstone_storage::store::{EntryReader, LayerFrame};
use ragstone_storage::tier::{EntryId, Precision, Tier};

/// How many layers are loaded ahead of the one that computes. One waits in the channel while the next is being read,
/// so that the load of layer `l + 1` hides behind the computation of layer `l`; more would only hold memory.
const LAYERS_AHEAD: usize = 1;

/// The layers of a prompt's reused segments, first layer first.
pub struct LayerLoads(Option<Incoming>);

struct Incoming {
    layers: Receiver<Result<LoadedLayer, FailedLoad>>,
    shared: Arc<Shared>,
}

/// What both ends see.
#[derive(Default)]
struct Shared {
    /// Called when a layer has come, or nothing more will.
    waker: Mutex<Option<Waker>>,
    /// What is being read now.
    reading: Mutex<Option<Reading>>,
}

/// Wakes whoever can go on.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone)]
struct Reading {
    id: EntryId,
    tier: Tier,
    precision: Precision,
}

/// One layer of every reused segment.
pub struct LoadedLayer {
    /// `(index of the segment in the plan, its frame)`.
    pub frames: Vec<(usize, LayerFrame)>,
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
    pub error: ragstone_storage::Error,
}

/// What there is of the next layer.
pub enum Arrived {
    /// It is here, or could not be read.
    Layer(Result<LoadedLayer, FailedLoad>),
    /// Not yet.
    NotYet,
    /// Nothing more will come.
    Nothing,
}

impl LayerLoads {
    /// A plan without loads.
    pub fn none() -> Self {
        Self(None)
    }

    /// Layers that are here, all of them.
    pub(crate) fn ready(layers: Vec<LoadedLayer>) -> Self {
        let (sender, received) = sync_channel(layers.len());
        // There is room for every one.
        layers.into_iter().for_each(|layer| drop(sender.try_send(Ok(layer))));
        Self(Some(Incoming { layers: received, shared: Arc::default() }))
    }

    /// Whether the plan loads nothing.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Calls `waker` whenever a layer has come.
    pub fn wake(&self, waker: Waker) {
        if let Some(incoming) = &self.0 {
            *lock(&incoming.shared.waker) = Some(waker);
        }
    }

    /// The next layer, if it is here. Never waits.
    pub fn poll(&self) -> Arrived {
        match self.0.as_ref().map(|incoming| incoming.layers.try_recv()) {
            Some(Ok(layer)) => Arrived::Layer(layer),
            Some(Err(TryRecvError::Empty)) => Arrived::NotYet,
            Some(Err(TryRecvError::Disconnected)) | None => Arrived::Nothing,
        }
    }

    /// The next layer; waits for it, `patience` at most. For whoever has a thread to spare.
    pub fn wait(&self, patience: Duration) -> Arrived {
        match self.0.as_ref().map(|incoming| incoming.layers.recv_timeout(patience)) {
            Some(Ok(layer)) => Arrived::Layer(layer),
            Some(Err(RecvTimeoutError::Timeout)) => Arrived::NotYet,
            Some(Err(RecvTimeoutError::Disconnected)) | None => Arrived::Nothing,
        }
    }

    /// The failure of what is being read for too long; `None` where nothing is.
    pub fn overdue(&self, after: Duration) -> Option<FailedLoad> {
        let Reading { id, tier, precision } = lock(&self.0.as_ref()?.shared.reading).clone()?;
        let message = format!("a layer did not come from the {tier} tier within {:.1} s", after.as_secs_f64());
        Some(FailedLoad { id, tier, precision, error: ragstone_storage::Error::new(ErrorKind::Unavailable, message) })
    }
}

/// Both ends: what comes, and what reads and sends it, to be run on a thread that may block.
pub(crate) fn layer_loads(readers: Vec<(usize, EntryReader)>) -> (LayerLoads, impl FnOnce() + Send) {
    let (sender, layers) = sync_channel(LAYERS_AHEAD);
    let shared = Arc::new(Shared::default());
    let theirs = shared.clone();
    (LayerLoads(Some(Incoming { layers, shared })), move || {
        load(&readers, sender, &theirs);
        // After the sender is gone: nobody waits for what will not come.
        theirs.wake();
    })
}

/// Reads layer after layer and hands each on; ends early when the receiver is gone or a read fails.
fn load(readers: &[(usize, EntryReader)], sender: SyncSender<Result<LoadedLayer, FailedLoad>>, shared: &Shared) {
    let layers = readers.iter().map(|(_, reader)| reader.header().layers).max().unwrap_or(0);
    // Round trips at the same time, where there are any; not so many that they wait for each other past their deadlines.
    readers.iter().take(BEGUN_TOGETHER).for_each(|(_, reader)| reader.begin());
    for layer in 0..layers {
        let loaded = load_layer(readers, layer, shared);
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
        shared.wake();
    }
}

fn load_layer(readers: &[(usize, EntryReader)], layer: u32, shared: &Shared) -> Result<LoadedLayer, FailedLoad> {
    let mut frames = Vec::with_capacity(readers.len());
    for (index, (segment, reader)) in readers.iter().enumerate() {
        if layer == 0
            && let Some((_, ahead)) = readers.get(index + BEGUN_TOGETHER)
        {
            ahead.begin();
        }
        let reading = Reading { id: reader.id(), tier: reader.tier(), precision: reader.precision() };
        *lock(&shared.reading) = Some(reading.clone());
        let Reading { id, tier, precision } = reading;
        let frame = reader.layer(layer).map_err(|error| FailedLoad { id, tier, precision, error })?;
        frames.push((*segment, frame));
    }
    *lock(&shared.reading) = None;
    Ok(LoadedLayer { frames })
}

impl Shared {
    fn wake(&self) {
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
