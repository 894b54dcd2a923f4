//! What may be kept: bounds of size and depth.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};

/// Bytes of the items that are read for an answer, or of a conversation's: more than models read, and what many requests may have in memory at once.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// Bytes of a file: its items, what an answer repeats of its request, and passages. Each look at one reads all of it.
pub(super) const MOST_RECORD: usize = 8 << 20;
/// Collections that a conversation is answered from.
pub(super) const MOST_COLLECTIONS: usize = 256;

/// The bytes of an item.
pub(super) fn size(item: &Value) -> usize {
    item.to_string().len()
}

/// Refuses more items than are kept.
///
/// # Errors
/// `InvalidInput`.
pub(super) fn check_size<'a>(items: impl Iterator<Item = &'a Value>) -> Result<()> {
    let bytes: usize = items.map(size).sum();
    if bytes > MOST_BYTES {
        let message =
            format!("its items would have {bytes} bytes, and {MOST_BYTES} are the most that are kept; begin another");
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Refuses more collections than one conversation is answered from.
///
/// # Errors
/// `InvalidInput`.
pub(super) fn check_collections(collections: &BTreeSet<String>) -> Result<()> {
    if collections.len() > MOST_COLLECTIONS {
        let message =
            format!("a conversation is answered from at most {MOST_COLLECTIONS} collections; begin another for more");
        return Err(Error::invalid_input(message));
    }
    Ok(())
}

/// Whether a record is small enough, and can be read again: one is nested deeper than its request was, and there is a bound on that.
///
/// # Errors
/// `InvalidInput`.
pub(super) fn check_record(record: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(record).map_err(|error| Error::internal(error.to_string()))?;
    if text.len() > MOST_RECORD {
        let message = format!(
            "all of it would have {} bytes, with what it repeats of its request and its passages, and {MOST_RECORD} are the most that are kept; \
             begin another conversation, or send less or `\"store\": false`",
            text.len()
        );
        return Err(Error::invalid_input(message));
    }
    serde_json::from_slice::<Value>(&text).map(drop).map_err(|error| {
        Error::invalid_input(format!("it is nested too deeply to be kept ({error}); send `\"store\": false`"))
    })
}
