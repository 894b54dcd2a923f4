//! What is known of entries beside the tiers: when they were used last, and which of them an operator pinned.

use std::collections::HashMap;

use super::records::Kept;
use super::{Catalog, sled_error};
use crate::Result;
use crate::key::KvKey;

/// When an entry was used last, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastUse {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Requests that used it.
    pub uses: u32,
}

impl LastUse {
    fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.unix_ms.to_be_bytes());
        bytes[8..].copy_from_slice(&self.uses.to_be_bytes());
        bytes
    }

    /// `None` for what is neither this nor the form before uses were counted, which was 8 bytes long.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let unix_ms = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
        let uses = match &bytes[8..] {
            [] => 1,
            uses => u32::from_be_bytes(uses.try_into().ok()?),
        };
        Some(Self { unix_ms, uses })
    }
}

impl Catalog {
    /// Last uses of entries.
    ///
    /// # Errors
    /// As sled says.
    pub fn last_uses(&self) -> Result<HashMap<KvKey, LastUse>> {
        let mut last_uses = HashMap::new();
        for row in &self.accesses {
            let (key, value) = row.map_err(sled_error)?;
            if let (Ok(key), Some(used)) = (key[..].try_into(), LastUse::from_bytes(&value)) {
                last_uses.insert(KvKey(key), used);
            }
        }
        Ok(last_uses)
    }

    /// Notes last uses of entries. They only order evictions after a restart, so they are not synced.
    ///
    /// # Errors
    /// As sled says.
    pub fn note_last_uses(&self, last_uses: &HashMap<KvKey, LastUse>) -> Result<()> {
        let mut batch = sled::Batch::default();
        last_uses.iter().for_each(|(key, used)| batch.insert(key.as_bytes(), &used.to_bytes()));
        self.accesses.apply_batch(batch).map_err(sled_error)
    }

    /// Forgets entries that are gone.
    ///
    /// # Errors
    /// As sled says.
    pub fn forget_last_uses(&self, keys: &[KvKey]) -> Result<()> {
        let mut batch = sled::Batch::default();
        keys.iter().for_each(|key| batch.remove(key.as_bytes()));
        self.accesses.apply_batch(batch).map_err(sled_error)
    }

    /// The entries that an operator pinned.
    ///
    /// # Errors
    /// As sled says.
    pub fn pins(&self) -> Result<Vec<KvKey>> {
        Ok(self.pins.all().iter().filter_map(|(key, _)| key[..].try_into().ok().map(KvKey)).collect())
    }

    /// Pins an entry, or no longer; durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn set_pinned(&self, key: &KvKey, pinned: bool) -> Result<()> {
        if pinned {
            self.put(Kept::Pins, key.as_bytes(), Vec::new())
        } else {
            self.remove(Kept::Pins, key.as_bytes()).map(drop)
        }
    }
}
