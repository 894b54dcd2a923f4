//! The head of a safetensors file by itself: what its tensors are is known before their values are here.
//!
//! ```text
//! length of the rest of the head u64, little-endian     JSON: {"name": {"dtype": "BF16", "shape": [2, 3], …}, "__metadata__": {…}}
//! ```

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::TensorShape;
use crate::error::{Error, Result};

/// Bytes of the length that a file begins with.
pub const HEAD_BYTES: u64 = 8;
/// The longest head that is read, as in the safetensors library.
pub const MOST_HEAD_BYTES: u64 = 100_000_000;
/// Tensors of a file, and dimensions of a tensor, more than any model has.
const MOST_TENSORS: usize = 1 << 20;
const MOST_DIMENSIONS: usize = 8;
/// The entry of a head that is no tensor: texts by whatever names.
const METADATA: &str = "__metadata__";
/// Of a tensor's name in an error.
const NAME_CHARS: usize = 100;

/// What a head says. It is read straight into this, so that it takes no more memory than its own text, whatever else it has: as values of any kind,
/// a hundred megabytes of zeros would take seven gigabytes.
struct Head(BTreeMap<String, Entry>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    #[serde(deserialize_with = "shape")]
    shape: Vec<usize>,
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(Tensors)
    }
}

struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by their names")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Head, M::Error> {
        let mut tensors = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry = map.next_value::<Entry>().map_err(|error| {
                let name: String = name.chars().take(NAME_CHARS).collect();
                M::Error::custom(format_args!("tensor {name:?}: {error}"))
            })?;
            tensors.insert(name, entry);
            if tensors.len() > MOST_TENSORS {
                return Err(M::Error::custom(format_args!("it names more than {MOST_TENSORS} tensors")));
            }
        }
        Ok(Head(tensors))
    }
}

fn shape<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<usize>, D::Error> {
    from.deserialize_seq(Dimensions)
}

struct Dimensions;

impl<'de> Visitor<'de> for Dimensions {
    type Value = Vec<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the dimensions of a tensor")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> std::result::Result<Vec<usize>, S::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = seq.next_element()? {
            if shape.len() == MOST_DIMENSIONS {
                return Err(S::Error::custom(format_args!("it has more than {MOST_DIMENSIONS} dimensions")));
            }
            shape.push(dimension);
        }
        Ok(shape)
    }
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
    let Head(tensors) = serde_json::from_slice(json)
        .map_err(|error| Error::invalid_model(format!("its safetensors head cannot be read ({error})")))?;
    let shape = |(name, Entry { dtype, shape })| TensorShape { name, dtype, shape };
    Ok(tensors.into_iter().map(shape).collect())
}

/// The element type that most elements of matrices have, such as `BF16` or `Q4_K`; empty where there are no matrices.
pub fn main_dtype(tensors: &[TensorShape]) -> String {
    let mut elements: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() > 1) {
        let sum = elements.entry(&tensor.dtype).or_default();
        *sum = sum.saturating_add(tensor.elements());
    }
    elements.into_iter().max_by_key(|(_, elements)| *elements).map_or_else(String::new, |(name, _)| name.to_owned())
}
