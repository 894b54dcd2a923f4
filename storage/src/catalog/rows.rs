//! Rows as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sled::Tree;

use super::sled_error;
use crate::{Error, Result};

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
    read_rows(tree.iter())
}

pub(super) fn read_rows<T: DeserializeOwned>(rows: sled::Iter) -> Result<Vec<T>> {
    let mut read = Vec::new();
    for row in rows {
        let (_, value) = row.map_err(sled_error)?;
        read.extend(read_json(&value));
    }
    Ok(read)
}
