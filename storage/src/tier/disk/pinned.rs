//! Values of RocksDB where RocksDB has put them, not copied once more.

use bytes::Bytes;
use rocksdb::DBPinnableSlice;

use super::DiskTier;
use super::rocks::MIN_BLOB_BYTES;

/// A value, and what it must not outlive. Fields are dropped in their order.
struct Pinned {
    value: DBPinnableSlice<'static>,
    _tier: DiskTier,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// The bytes of a value that the tier's database gave. As long as they live, it is open.
pub(super) fn bytes(tier: &DiskTier, value: DBPinnableSlice<'_>) -> Bytes {
    // A small one stands in a block of RocksDB's cache, which must not be kept for it.
    if (value.len() as u64) < MIN_BLOB_BYTES {
        return Bytes::copy_from_slice(&value);
    }
    // SAFETY: the lifetime is that of the database, which `_tier` keeps where it is, and open, until the value was dropped. The type holds nothing
    // else of that lifetime.
    let value = unsafe { std::mem::transmute::<DBPinnableSlice<'_>, DBPinnableSlice<'static>>(value) };
    Bytes::from_owner(Pinned { value, _tier: tier.clone() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::flush_to_files;
    use super::super::{DiskTier, Remembered};
    use crate::entry::Entry;
    use crate::entry::tests::{LAYERS, entry_of_width};
    use crate::policy::PolicyKind;
    use crate::tier::EntryTier;
    use crate::tree::TierOptions;
    use ragstone_env::Env;

    /// Frames that go to blob files, and ones that do not; before RocksDB's files have them, and after.
    #[test]
    fn what_was_read_is_what_was_written_and_outlives_the_tier() {
        let dir = tempfile::tempdir().unwrap();
        let options = TierOptions { capacity_bytes: 1 << 30, policy: PolicyKind::Lru };
        let open = || DiskTier::open(dir.path(), options, Env::seeded(1, 0), &Remembered::default()).unwrap();
        let tier = open();
        let entries: [Arc<Entry>; 2] =
            [(1, 600), (2, 4)].map(|(token, width)| Arc::new(entry_of_width(None, &[token, 7], width)));
        assert!(entries[0].frames()[0].len() > 4096 && entries[1].frames()[0].len() < 4096);
        for entry in &entries {
            tier.write(entry).unwrap();
        }
        let mut kept = Vec::new();
        for is_in_files in [false, true] {
            if is_in_files {
                flush_to_files(&tier);
            }
            for entry in &entries {
                let held = tier.open(&entry.header().id()).unwrap().unwrap();
                kept.extend(
                    (0..LAYERS).map(|layer| (held.frame(layer).unwrap(), entry.frames()[layer as usize].clone())),
                );
            }
        }
        entries.iter().for_each(|entry| assert!(tier.remove(&entry.header().id()).unwrap()));
        flush_to_files(&tier);
        tier.compact().unwrap();
        drop(tier);
        assert!(kept.iter().all(|(frame, wanted)| frame == wanted));
        // The folder is free once nobody has bytes of it.
        drop(kept);
        drop(open());
    }
}
