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
