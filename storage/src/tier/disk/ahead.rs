//! A frame that is read ahead of its use, by a thread of the tier's: the disk works while the frame before is verified.
//!
//! One thread for the tier, and one frame for it to read next: prompts whose entries are read in several lanes keep the disk busy without it, and
//! whoever comes to what the thread has not begun reads it himself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::DiskTier;
use crate::key::KvKey;
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// The tier's thread, once there was something to read ahead; it ends with the tier.
#[derive(Default)]
pub(super) struct Reader(OnceLock<Option<SyncSender<Arc<Ahead>>>>);

/// What is read ahead of one entry that is open.
#[derive(Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Nothing,
    /// A layer that the thread has not come to.
    Waits(DiskTier, KvKey, u32),
    Reading,
    Read(u32, Result<Bytes>),
}

impl Reader {
    /// Hands an entry to the thread; whether it takes another one.
    fn offer(&self, ahead: &Arc<Ahead>) -> bool {
        let start = || {
            let (sender, offered) = sync_channel(1);
            Env::spawn("kv-read-ahead", move || read_all(&offered)).is_ok().then_some(sender)
        };
        let sender = self.0.get_or_init(start);
        sender.as_ref().is_some_and(|sender| sender.try_send(Arc::clone(ahead)).is_ok())
    }
}

fn read_all(offered: &Receiver<Arc<Ahead>>) {
    while let Ok(ahead) = offered.recv() {
        let taken = {
            let mut state = locked(&ahead.state);
            match std::mem::take(&mut *state) {
                State::Waits(tier, key, layer) => {
                    *state = State::Reading;
                    Some((tier, key, layer))
                }
                other => {
                    *state = other;
                    None
                }
            }
        };
        let Some((tier, key, layer)) = taken else { continue };
        // Whoever waits is told of a panic, too.
        let read = catch_unwind(AssertUnwindSafe(|| tier.frame(&key, layer)));
        let panicked = |_| Err(Error::new(ErrorKind::Internal, format!("reading layer {layer} of entry {key} panicked")));
        let frame = read.unwrap_or_else(panicked);
        // Before anybody is told: who closes the store waits for that.
        drop(tier);
        *locked(&ahead.state) = State::Read(layer, frame);
        ahead.changed.notify_all();
    }
}

impl Ahead {
    /// Has a layer read, unless one is being read or the thread has enough to do.
    pub fn begin(self: &Arc<Self>, tier: &DiskTier, key: KvKey, layer: u32) {
        let mut state = locked(&self.state);
        if matches!(*state, State::Nothing) {
            *state = State::Waits(tier.clone(), key, layer);
            drop(state);
            if !tier.0.ahead.offer(self) {
                self.take_back();
            }
        }
    }

    /// A layer, if it was read or is being read; waits for that. What was read of another one is let go of.
    pub fn take(&self, layer: u32) -> Option<Result<Bytes>> {
        self.take_back();
        let is_reading = |state: &mut State| matches!(state, State::Reading);
        let waited = self.changed.wait_while(locked(&self.state), is_reading);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *state) {
            State::Read(read, frame) if read == layer => Some(frame),
            _ => None,
        }
    }

    /// What the thread has not begun is not read ahead.
    fn take_back(&self) {
        let mut state = locked(&self.state);
        if matches!(*state, State::Waits(..)) {
            let taken = std::mem::take(&mut *state);
            drop(state);
            drop(taken);
        }
    }

    /// Ends it: from here on the thread has nothing of the store.
    pub fn end(&self) {
        drop(self.take(u32::MAX));
    }
}
