//! Ids of responses and conversations, which are what protects these where there are no keys.

use crate::error::{Error, Result};

/// A new id of a kind of thing, such as `resp`: whoever knows it may use it, so nobody may guess it.
///
/// # Errors
/// `Internal` where the system has no randomness. Not the environment's, which may be replayed.
pub fn secret_id(kind: &str) -> Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Error::internal(format!("no randomness for an id: {error}")))?;
    Ok(format!("{kind}_{}", hex::encode(random)))
}
