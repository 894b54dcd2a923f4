//! Entries that the bucket is owed: their upload failed, or there was no room for it in the queue. They are tried again, one first, and the others once
//! that one went through; the longer the bucket is away, the less often.
//!
//! What is owed is noted in the catalog by its name, so that it is tried again after a restart, as far as it is still on this machine then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::WRITE_BEHIND_BYTES;
use super::tiers::Tiers;
use super::write_behind::{Job, WriteBehind};
use crate::catalog::Catalog;
use crate::entry::{Entry, EntryId};
use crate::key::{Fingerprint, KvKey};
use crate::tier::{EntryTier, Put, Tier};
use crate::{Error, ErrorKind, Result};
use ragstone_env::Env;
use ragstone_env::lock::locked;

/// Entries that are uploaded at once.
const AT_ONCE: usize = 4;
/// Entries that are owed; more are not noted, and not uploaded before they are computed again.
const MOST_OWED: usize = 1 << 16;
/// The wait before the first attempt, and the longest one.
const FIRST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What is owed, and the thread that pays. Dropped, it lets an attempt end.
pub(super) struct Uploads {
    owed: Arc<Owed>,
    thread: Option<JoinHandle<()>>,
}

/// What is owed.
pub(super) struct Owed {
    catalog: Arc<Catalog>,
    model: Fingerprint,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// With the epochs in which they were planned.
    entries: HashMap<KvKey, (EntryId, u64)>,
    /// In the order in which they are tried.
    order: VecDeque<KvKey>,
    /// Attempts that failed since one went through.
    failures: u32,
    /// Whether the next attempt is made at once.
    hurries: bool,
    is_closed: bool,
}

/// The queue of uploads, and what becomes of those that fail.
///
/// # Errors
/// As [`Uploads::start`].
pub(super) fn start(tiers: &Arc<Tiers>, catalog: &Arc<Catalog>, model: Fingerprint) -> Result<(WriteBehind, Uploads)> {
    let again = Arc::clone(tiers);
    let pay = move |id: &EntryId, planned_in: u64| again.upload_again(id, planned_in);
    let uploads = Uploads::start(Arc::clone(catalog), model, pay)?;
    let (tiers, owed) = (Arc::clone(tiers), Arc::clone(uploads.owed()));
    let upload = move |job: &Job| match tiers.write(Tier::Object, &job.entry, job.planned_in) {
        Ok(Some(Put::Stored { .. } | Put::AlreadyThere)) => owed.hurry(),
        Ok(_) => {}
        Err(_) => owed.add(job.entry.header().id(), job.planned_in),
    };
    Ok((WriteBehind::start("kv-to-object", AT_ONCE, WRITE_BEHIND_BYTES, upload)?, uploads))
}

impl Uploads {
    /// Takes up what earlier runs noted. `pay` is one attempt: whether nothing is owed any more.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread left; else as the catalog says.
    pub fn start(
        catalog: Arc<Catalog>,
        model: Fingerprint,
        pay: impl Fn(&EntryId, u64) -> bool + Send + 'static,
    ) -> Result<Self> {
        let mut state = State::default();
        for id in catalog.uploads(&model)?.into_iter().take(MOST_OWED) {
            state.add(id, 0);
        }
        // What was noted before the start is tried at once; what fails now waits.
        state.hurries = !state.entries.is_empty();
        let owed = Arc::new(Owed { catalog, model, state: Mutex::new(state), changed: Condvar::new() });
        let shared = Arc::clone(&owed);
        let thread = Env::spawn("kv-upload-again", move || shared.work(&pay))?;
        Ok(Self { owed, thread: Some(thread) })
    }

    /// What is owed.
    pub fn owed(&self) -> &Arc<Owed> {
        &self.owed
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        locked(&self.owed.state).is_closed = true;
        self.owed.changed.notify_all();
        // A panic was reported where it happened.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Owed {
    /// Notes an entry that was not uploaded.
    pub fn add(&self, id: EntryId, planned_in: u64) {
        let mut state = locked(&self.state);
        if state.entries.len() >= MOST_OWED && !state.entries.contains_key(&id.key) {
            return;
        }
        if state.add(id, planned_in) {
            drop(state);
            self.changed.notify_all();
            if let Err(error) = self.catalog.add_upload(&self.model, &id) {
                tracing::warn!(key = %id.key, %error, "an upload to be tried again is not noted for after a restart");
            }
        }
    }

    /// The bucket took an entry: it takes others, too.
    pub fn hurry(&self) {
        let mut state = locked(&self.state);
        if !state.entries.is_empty() {
            (state.hurries, state.failures) = (true, 0);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits until nothing is owed, for `limit` at most; whether it came to that.
    #[cfg(test)]
    pub fn drain(&self, limit: Duration) -> bool {
        let is_owed = |state: &mut State| !state.entries.is_empty();
        let waited = self.changed.wait_timeout_while(locked(&self.state), limit, is_owed);
        waited.unwrap_or_else(PoisonError::into_inner).0.entries.is_empty()
    }

    fn work(&self, pay: &impl Fn(&EntryId, u64) -> bool) {
        loop {
            let has_nothing = |state: &mut State| state.entries.is_empty() && !state.is_closed;
            let state = self.changed.wait_while(locked(&self.state), has_nothing);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            let wait = wait_after(state.failures);
            let has_time = |state: &mut State| !state.hurries && !state.is_closed;
            let waited = self.changed.wait_timeout_while(state, wait, has_time);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.hurries = false;
            drop(state);
            while let Some((id, planned_in)) = self.next() {
                if !self.attempt(&id, planned_in, pay) {
                    break;
                }
            }
            if locked(&self.state).is_closed {
                return;
            }
        }
    }

    /// The next one that is tried.
    fn next(&self) -> Option<(EntryId, u64)> {
        let state = locked(&self.state);
        let next = state.order.front().and_then(|key| state.entries.get(key)).copied();
        next.filter(|_| !state.is_closed)
    }

    /// Tries one, and forgets it or has it tried after the others; whether it is no longer owed.
    fn attempt(&self, id: &EntryId, planned_in: u64, pay: &impl Fn(&EntryId, u64) -> bool) -> bool {
        let is_paid = pay(id, planned_in);
        if is_paid && let Err(error) = self.catalog.finish_upload(&self.model, id) {
            tracing::warn!(key = %id.key, %error, "an upload is tried once more after a restart");
        }
        let mut state = locked(&self.state);
        // It stands first: nobody else takes any out, and what comes goes behind.
        state.order.pop_front();
        if is_paid {
            state.failures = 0;
            state.entries.remove(&id.key);
            if state.entries.is_empty() {
                tracing::info!("all entries that object storage was owed are there or gone");
            }
        } else {
            state.failures = state.failures.saturating_add(1);
            state.order.push_back(id.key);
        }
        drop(state);
        self.changed.notify_all();
        is_paid
    }
}

impl State {
    /// Whether it was not owed before.
    fn add(&mut self, id: EntryId, planned_in: u64) -> bool {
        let is_new = self.entries.insert(id.key, (id, planned_in)).is_none();
        if is_new {
            self.order.push_back(id.key);
        }
        is_new
    }
}

/// How long the bucket is left alone after so many failures. Pure.
fn wait_after(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LONGEST_WAIT)
}

impl Tiers {
    /// Uploads an entry that host memory or disk has; whether the bucket has it now, or is not to have it.
    pub fn upload_again(&self, id: &EntryId, planned_in: u64) -> bool {
        let entry = match self.host.get(&id.key) {
            Some(entry) => Ok(Some(entry)),
            None => self.read_whole(id),
        };
        match entry {
            Ok(Some(entry)) => self.write(Tier::Object, &entry, planned_in).is_ok(),
            // It left this machine meanwhile.
            Ok(None) => true,
            Err(error) => {
                tracing::warn!(key = %id.key, %error, "an entry that object storage was to have cannot be read");
                error.kind() != ErrorKind::Unavailable
            }
        }
    }

    /// An entry of the disk, every layer of it verified.
    fn read_whole(&self, id: &EntryId) -> Result<Option<Arc<Entry>>> {
        let Some(open) = self.fitting(self.disk.open(id))? else { return Ok(None) };
        let header = open.header();
        let frame = |layer| {
            let bytes = open.frame(layer)?;
            crate::frame::decode(&bytes, &header.key, layer, &header.frame_shape())?;
            Ok::<_, Error>(bytes)
        };
        let frames = (0..header.layers).map(frame).collect::<Result<Vec<_>>>()?;
        Ok(Some(Arc::new(Entry::from_verified_frames(Arc::clone(header), frames))))
    }
}

#[cfg(test)]
mod tests;
