//! An entry of the disk, open for reading.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::DiskTier;
use super::ahead::Ahead;
use super::index::DiskPin;
use crate::Result;
use crate::entry::EntryHeader;
use crate::tier::TierEntry;

/// An entry that stays on disk while this lives.
pub(super) struct OpenEntry {
    tier: DiskTier,
    header: Arc<EntryHeader>,
    _pin: DiskPin,
    ahead: Arc<Ahead>,
    /// Whether layers are read ahead: they are read in their order, and soon.
    reads_ahead: AtomicBool,
}

impl OpenEntry {
    pub fn new(tier: DiskTier, header: Arc<EntryHeader>, pin: DiskPin) -> Self {
        Self { tier, header, _pin: pin, ahead: Arc::default(), reads_ahead: AtomicBool::new(false) }
    }
}

impl TierEntry for OpenEntry {
    fn header(&self) -> &Arc<EntryHeader> {
        &self.header
    }

    fn begin(&self, layer: u32) {
        self.reads_ahead.store(true, Ordering::Relaxed);
        self.ahead.begin(&self.tier, self.header.key, layer);
    }

    fn frame(&self, layer: u32) -> Result<Bytes> {
        if !self.reads_ahead.load(Ordering::Relaxed) {
            return self.tier.frame(&self.header.key, layer);
        }
        let read = self.ahead.take(layer);
        if layer + 1 < self.header.layers {
            self.ahead.begin(&self.tier, self.header.key, layer + 1);
        }
        read.unwrap_or_else(|| self.tier.frame(&self.header.key, layer))
    }
}

impl Drop for OpenEntry {
    /// Nothing reads for it any more, so that the store can be closed.
    fn drop(&mut self) {
        self.ahead.end();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::flush_to_files;
    use super::super::{DiskTier, Remembered};
    use crate::ErrorKind;
    use crate::entry::Entry;
    use crate::entry::tests::{LAYERS, entry_of_width};
    use crate::policy::PolicyKind;
    use crate::tier::EntryTier;
    use crate::tree::TierOptions;
    use ragstone_env::{Env, FailMode};
    use std::sync::Arc;

    fn open(dir: &Path, env: &Env) -> DiskTier {
        let options = TierOptions { capacity_bytes: 1 << 30, policy: PolicyKind::Lru };
        DiskTier::open(dir, options, env.clone(), &Remembered::default()).unwrap()
    }

    /// Frames that go to blob files, and ones that do not.
    fn entries() -> [Arc<Entry>; 2] {
        [(1, 600), (2, 4)].map(|(token, width)| Arc::new(entry_of_width(None, &[token, 7], width)))
    }

    #[test]
    fn what_is_read_ahead_is_what_was_written_and_outlives_the_tier() {
        let dir = tempfile::tempdir().unwrap();
        let tier = open(dir.path(), &Env::seeded(1, 0));
        let entries = entries();
        assert!(entries[0].frames()[0].len() > 4096 && entries[1].frames()[0].len() < 4096);
        for entry in &entries {
            tier.write(entry).unwrap();
        }
        let mut kept = Vec::new();
        for is_in_files in [false, true] {
            if is_in_files {
                flush_to_files(&tier);
            }
            for (entry, begin) in entries.iter().flat_map(|entry| [(entry, None), (entry, Some(0)), (entry, Some(1))]) {
                let held = tier.open(&entry.header().id()).unwrap().unwrap();
                begin.into_iter().for_each(|layer| held.begin(layer));
                // In their order, again, and back.
                for layer in (begin.unwrap_or(0)..LAYERS).chain([0, 0, 1]) {
                    let frame = held.frame(layer).unwrap();
                    assert_eq!(frame, entry.frames()[layer as usize]);
                    kept.push((frame, entry.frames()[layer as usize].clone()));
                }
            }
        }
        drop(tier);
        assert!(kept.iter().all(|(frame, wanted)| frame == wanted));
    }

    #[test]
    fn a_failure_of_reading_ahead_is_that_of_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::seeded(1, 0);
        let tier = open(dir.path(), &env);
        let [entry, _] = entries();
        tier.write(&entry).unwrap();
        let held = tier.open(&entry.header().id()).unwrap().unwrap();
        env.set_fail_point("disk.read_frame", FailMode::Error(ErrorKind::Unavailable), 1);
        held.begin(0);
        assert_eq!(held.frame(0).unwrap_err().kind(), ErrorKind::Unavailable);
        env.set_fail_point("disk.read_frame", FailMode::Off, 1);
        // Read ahead meanwhile, it may have failed; asked for again, it is read again.
        let _ = held.frame(1);
        assert_eq!(held.frame(0).unwrap(), entry.frames()[0]);
    }

    /// Whoever lets go of an entry may close the store and open it anew at once.
    #[test]
    fn nothing_reads_ahead_behind_an_entry_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let entries = entries();
        for round in 0..20 {
            let tier = open(dir.path(), &Env::seeded(round, 0));
            for entry in &entries {
                tier.write(entry).unwrap();
            }
            let held = entries.each_ref().map(|entry| tier.open(&entry.header().id()).unwrap().unwrap());
            held.iter().for_each(|held| held.begin(0));
            if round % 2 == 1 {
                held.iter().for_each(|held| drop(held.frame(0).unwrap()));
            }
        }
    }
}
