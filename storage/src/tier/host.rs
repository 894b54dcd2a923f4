//! Host memory: whole entries, bounded by bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::entry::{Entry, EntryHeader};
use crate::key::KvKey;
use crate::policy::shares::Terms;
use crate::tier::resident::{Pin, Residents, Use};
use crate::tier::{EntryId, EntrySummary, EntryTier, Put, Tier, TierEntry, TierUsage};
use crate::tree::TierOptions;
use crate::{Error, Result};
use ragstone_env::lock::locked;

/// Entries in host memory. No call does I/O.
#[derive(Debug)]
pub struct HostTier {
    state: Arc<Mutex<HostState>>,
}

/// What the tier's lock guards.
#[derive(Debug)]
pub(crate) struct HostState {
    residents: Residents,
    entries: HashMap<KvKey, Arc<Entry>>,
}

/// An entry that stays in host memory while this lives.
struct PinnedHostEntry {
    entry: Arc<Entry>,
    _pin: Pin<HostState>,
}

impl AsMut<Residents> for HostState {
    fn as_mut(&mut self) -> &mut Residents {
        &mut self.residents
    }
}

impl HostTier {
    /// An empty tier.
    pub fn new(options: TierOptions) -> Self {
        let state = HostState { residents: Residents::new(options), entries: HashMap::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Takes an entry. Those that left for it are handed back, so that their memory is freed outside of the lock.
    pub fn insert(&self, entry: Arc<Entry>) -> (Put, Vec<Arc<Entry>>) {
        let summary = entry.header().summary();
        let mut state = locked(&self.state);
        if state.entries.contains_key(&summary.key) {
            return (Put::AlreadyThere, Vec::new());
        }
        let Some(victims) = state.residents.admit(&summary) else { return (Put::Refused, Vec::new()) };
        let left = victims.iter().filter_map(|victim| state.entries.remove(victim)).collect();
        state.entries.insert(summary.key, entry);
        (Put::Stored { bytes: summary.bytes }, left)
    }

    /// The entry itself, not pinned: its memory lives as long as the result.
    pub fn get(&self, key: &KvKey) -> Option<Arc<Entry>> {
        locked(&self.state).entries.get(key).cloned()
    }

    /// What is known of an entry that is held.
    pub fn summary(&self, key: &KvKey) -> Option<EntrySummary> {
        self.get(key).map(|entry| entry.header().summary())
    }

    /// Whether the key is held.
    pub fn contains(&self, key: &KvKey) -> bool {
        locked(&self.state).entries.contains_key(key)
    }

    /// The bound in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        locked(&self.state).residents.usage().capacity_bytes
    }

    /// Agrees with a tenant on what it may hold here, from the next entry on that comes.
    pub fn set_terms(&self, tenant: &str, terms: Option<Terms>) {
        locked(&self.state).residents.set_terms(tenant, terms);
    }

    /// Agrees with all tenants but the default one, with whom nothing else was agreed; memory only.
    pub fn set_default_terms(&self, terms: Terms) {
        locked(&self.state).residents.set_default_terms(terms);
    }

    /// Bytes of a tenant's entries.
    pub fn held_by(&self, tenant: &str) -> u64 {
        locked(&self.state).residents.held_by(tenant)
    }

    /// Counts one request, by the paths that it used.
    pub fn record(&self, uses: &[Use]) {
        locked(&self.state).residents.record(uses);
    }

    /// Keys of entries here that stand behind `key`, the farthest first.
    pub fn behind(&self, key: &KvKey) -> Vec<KvKey> {
        locked(&self.state).residents.behind(key)
    }

    /// Keeps a key in this tier while the result lives, if it is or comes there.
    pub(crate) fn pin(&self, key: &KvKey) -> Pin<HostState> {
        Pin::new(&self.state, &mut locked(&self.state), key)
    }
}

impl EntryTier for HostTier {
    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn put(&self, entry: &Arc<Entry>) -> Result<Put> {
        Ok(self.insert(Arc::clone(entry)).0)
    }

    fn open(&self, id: &EntryId) -> Result<Option<Arc<dyn TierEntry>>> {
        let mut state = locked(&self.state);
        let Some(entry) = state.entries.get(&id.key).cloned() else { return Ok(None) };
        let pin = Pin::new(&self.state, &mut state, &id.key);
        Ok(Some(Arc::new(PinnedHostEntry { entry, _pin: pin })))
    }

    fn remove(&self, id: &EntryId) -> Result<bool> {
        let mut state = locked(&self.state);
        state.residents.remove(&id.key);
        let removed = state.entries.remove(&id.key);
        drop(state);
        Ok(removed.is_some())
    }

    fn list(&self, each: &mut dyn FnMut(EntrySummary)) -> Result<u64> {
        let headers: Vec<Arc<EntryHeader>> =
            locked(&self.state).entries.values().map(|entry| Arc::clone(entry.header())).collect();
        headers.iter().for_each(|header| each(header.summary()));
        Ok(0)
    }

    fn usage(&self) -> TierUsage {
        let state = locked(&self.state);
        let usage = state.residents.usage();
        TierUsage {
            entries: state.entries.len() as u64,
            bytes: usage.bytes,
            capacity_bytes: usage.capacity_bytes,
            evicted: usage.evicted,
            refused: state.residents.refused,
            forged: 0,
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

impl TierEntry for PinnedHostEntry {
    fn header(&self) -> &Arc<EntryHeader> {
        self.entry.header()
    }

    fn frame(&self, layer: u32) -> Result<Bytes> {
        let frame = self.entry.frames().get(layer as usize).cloned();
        frame.ok_or_else(|| Error::not_found(format!("entry {} has no layer {layer}", self.entry.header().key)))
    }
}

#[cfg(test)]
mod tests;
