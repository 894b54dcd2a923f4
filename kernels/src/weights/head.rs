//! The head of a safetensors file by itself: what its tensors are is known before their values are here.
//!
//! ```text
//! length of the rest of the head u64, little-endian     JSON: {"name": {"dtype": "BF16", "shape": [2, 3], …}, "__metadata__": {…}}
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use super::TensorShape;
use crate::error::{Error, Result};

/// Bytes of the length that a file begins with.
pub const HEAD_BYTES: u64 = 8;
/// The longest head that is read, as in the safetensors library.
pub const MOST_HEAD_BYTES: u64 = 100_000_000;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
}

/// How long the JSON is that follows the first [`HEAD_BYTES`] of a file.
///
/// # Errors
/// `InvalidModel` where no such file begins like this.
pub fn head_length(first: &[u8]) -> Result<u64> {
    let first: Option<&[u8; HEAD_BYTES as usize]> = first.first_chunk();
    match first.map(|first| u64::from_le_bytes(*first)) {
        Some(length) if (2..=MOST_HEAD_BYTES).contains(&length) => Ok(length),
        _ => Err(Error::invalid_model("it does not begin as a safetensors file does")),
    }
}

/// The tensors that such a JSON names, in the order of their names.
///
/// # Errors
/// `InvalidModel` where it is no such JSON.
pub fn shapes_of_head(json: &[u8]) -> Result<Vec<TensorShape>> {
    let broken = |why: String| Error::invalid_model(format!("its safetensors head cannot be read ({why})"));
    let mut all: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|error| broken(error.to_string()))?;
    all.remove("__metadata__");
    all.into_iter()
        .map(|(name, value)| {
            let entry: Entry =
                serde_json::from_value(value).map_err(|error| broken(format!("tensor {name}: {error}")))?;
            Ok(TensorShape { name, dtype: entry.dtype, shape: entry.shape })
        })
        .collect()
}

/// The element type that most elements of matrices have, such as `BF16` or `Q4_K`; empty where there are no matrices.
pub fn main_dtype(tensors: &[TensorShape]) -> String {
    let mut elements: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
        *elements.entry(&tensor.dtype).or_default() += tensor.elements();
    }
    elements.into_iter().max_by_key(|(_, elements)| *elements).map_or_else(String::new, |(name, _)| name.to_owned())
}
