//! Whose blocks they are: everything that shapes their bytes.

use ragstone_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// BLAKE3's derive-key context.
const CONTEXT: &str = "ragstone 2026 kv-serve namespace format 1";
/// Bytes of each field.
const MOST_FIELD_BYTES: usize = 4096;
/// Hexadecimal digits of a digest of weights: 128 bits.
const LEAST_DIGITS: usize = 32;

/// Everything that shapes a block's bytes. Blocks are found only by who says exactly the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// A digest of the weights' content, in hexadecimal digits: never a name or a path, which stay when weights change.
    pub weights: String,
    /// Element type of KV, such as `bfloat16`.
    pub dtype: String,
    /// How a block lies in its row, as the engine names it.
    pub layout: String,
    /// The groups of layers and their shapes, as the engine writes them.
    pub groups: String,
    /// Which part of the model, where ranks store apart; 0 where a row has all of it.
    pub parallel_rank: u32,
    /// How many parts.
    pub parallel_size: u32,
    /// The instruction set, where the layout depends on it; else empty.
    pub isa: String,
    /// Whose blocks; tenants share nothing.
    pub tenant: String,
    /// The engine.
    pub engine: String,
    /// Its version.
    pub engine_version: String,
}

impl Namespace {
    /// Whether it can be one.
    ///
    /// # Errors
    /// `InvalidInput` with the field.
    pub fn check(&self) -> Result<()> {
        for (name, text) in self.texts().into_iter().chain([("tenant", &self.tenant)]) {
            if text.len() > MOST_FIELD_BYTES {
                return Err(Error::invalid_input(format!(
                    "{name}: {} bytes; {MOST_FIELD_BYTES} at the most",
                    text.len()
                )));
            }
        }
        if self.weights.len() < LEAST_DIGITS || !self.weights.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(Error::invalid_input(format!(
                "weights: a digest of their content is wanted, {LEAST_DIGITS} hexadecimal digits or more; names stay when weights change"
            )));
        }
        if self.parallel_rank >= self.parallel_size {
            let message = format!("parallel_rank: {} of {}", self.parallel_rank, self.parallel_size);
            return Err(Error::invalid_input(message));
        }
        Ok(())
    }

    /// The digest of all but the tenant. Lengths stand before texts, so that nothing moves from one field to the next.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        for (_, text) in self.texts() {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        hasher.update(&self.parallel_rank.to_le_bytes()).update(&self.parallel_size.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    fn texts(&self) -> [(&'static str, &String); 7] {
        [
            ("weights", &self.weights),
            ("dtype", &self.dtype),
            ("layout", &self.layout),
            ("groups", &self.groups),
            ("isa", &self.isa),
            ("engine", &self.engine),
            ("engine_version", &self.engine_version),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::tests::namespace;

    #[test]
    fn every_field_but_the_tenant_is_in_the_digest() {
        let base = namespace();
        let json = serde_json::to_value(&base).unwrap();
        let mut digests = HashSet::from([base.digest()]);
        for (field, value) in json.as_object().unwrap() {
            let mut changed = json.clone();
            changed[field] = match value.as_u64() {
                Some(number) => (number + 1).into(),
                None => format!("{}0", value.as_str().unwrap()).into(),
            };
            let changed: Namespace = serde_json::from_value(changed).unwrap();
            assert_eq!(digests.insert(changed.digest()), field != "tenant", "{field}");
        }
        let moved = Namespace { dtype: String::new(), layout: format!("{}{}", base.dtype, base.layout), ..base };
        assert!(digests.insert(moved.digest()));
    }

    #[test]
    fn what_cannot_be_one_is_refused_with_the_field() {
        let base = namespace();
        base.check().unwrap();
        let long = "x".repeat(MOST_FIELD_BYTES + 1);
        for (wrong, field) in [
            (Namespace { weights: "meta-llama/Llama-3.1-8B-Instruct-of-last-week".into(), ..base.clone() }, "weights"),
            (Namespace { weights: "ab".into(), ..base.clone() }, "weights"),
            (Namespace { groups: long.clone(), ..base.clone() }, "groups"),
            (Namespace { tenant: long, ..base.clone() }, "tenant"),
            (Namespace { parallel_rank: 2, ..base.clone() }, "parallel_rank"),
            (Namespace { parallel_size: 0, ..base }, "parallel_rank"),
        ] {
            assert!(wrong.check().unwrap_err().to_string().starts_with(field));
        }
    }
}
