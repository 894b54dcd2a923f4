//! Rows of a tree, in memory as well: they are read from there, whatever becomes of sled. And rows as JSON.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sled::Tree;

use super::records::Row;
use super::sled_error;
use crate::{Error, Result};

type Memory = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree that is small, and asked often.
#[derive(Debug)]
pub(super) struct Rows {
    memory: RwLock<Memory>,
    pub sled: Tree,
}

impl Rows {
    /// Those of a tree, once they are [read](Self::load).
    pub fn new(sled: Tree) -> Self {
        Self { memory: RwLock::default(), sled }
    }

    /// Reads all of them.
    pub fn load(&self) -> Result<()> {
        let rows = self.sled.iter().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())));
        *self.writing() = rows.collect::<sled::Result<Memory>>().map_err(sled_error)?;
        Ok(())
    }

    fn reading(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.reading().get(key.as_ref()).cloned()
    }

    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> bool {
        self.reading().contains_key(key.as_ref())
    }

    pub fn is_empty(&self) -> bool {
        self.reading().is_empty()
    }

    pub fn last_key(&self) -> Option<Vec<u8>> {
        self.reading().keys().next_back().cloned()
    }

    /// In the order of their keys.
    pub fn all(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.with_prefix([])
    }

    /// Those whose keys begin so, in their order.
    pub fn with_prefix(&self, prefix: impl AsRef<[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let prefix = prefix.as_ref();
        let from = self.reading();
        let rows = from.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix));
        rows.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// All that are ours.
    pub fn read<T: DeserializeOwned>(&self) -> Vec<T> {
        self.reading().values().filter_map(|value| read_json(value)).collect()
    }

    /// Changes rows in memory alone.
    pub fn change(&self, rows: &[Row]) {
        let mut memory = self.writing();
        for (key, value) in rows {
            match value {
                Some(value) => drop(memory.insert(key.clone(), value.clone())),
                None => drop(memory.remove(key)),
            }
        }
    }

    /// Changes rows in sled alone.
    pub fn change_sled(&self, rows: &[Row]) -> Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in rows {
            match value {
                Some(value) => batch.insert(&key[..], &value[..]),
                None => batch.remove(&key[..]),
            }
        }
        self.sled.apply_batch(batch).map_err(sled_error)
    }

    /// One row that has no second copy.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> Result<()> {
        let row = [(key.as_ref().to_vec(), Some(value.into()))];
        self.change(&row);
        self.change_sled(&row)
    }
}

pub(super) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let unwritable = |error| Error::invalid_input("a path is not valid UTF-8; rename it").with_source(error);
    serde_json::to_vec(value).map_err(unwritable)
}

/// A row that is not ours counts as none.
pub(super) fn read_json<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value)
        .inspect_err(|error| tracing::warn!(%error, "skipping a catalog row that cannot be read"))
        .ok()
}

pub(super) fn read_all<T: DeserializeOwned>(tree: &Tree) -> Result<Vec<T>> {
    let mut read = Vec::new();
    for row in tree {
        let (_, value) = row.map_err(sled_error)?;
        read.extend(read_json(&value));
    }
    Ok(read)
}
