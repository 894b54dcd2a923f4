//! Who an entry is: a content address over the model, the tenant, what stood before, and the token ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// BLAKE3's derive-key context: separates these hashes from every other use of BLAKE3, and format 1 from later ones.
const KEY_CONTEXT: &str = "ragstone 2026 KvKey format 1";
const SEGMENT_CONTEXT: &str = "ragstone 2026 SegmentDigest format 1";

/// Identity of everything that shapes KV values: weights, config, tokenizer, compute and KV dtype, positional
/// encoding, layout version. Made by [`crate::fingerprint::fingerprint`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// In the place of a model's: the entry's bytes are opaque to ragstone, and who computed them stands in its tokens
    /// ([`crate::opaque`]). No model's fingerprint, a BLAKE3 digest, is this text.
    pub const OPAQUE: Self = Self(*b"ragstone opaque blocks, format 1");
}

/// The address of an entry: the same on every machine and in every process.
///
/// ```text
/// KvKey = BLAKE3-derive-key("ragstone 2026 KvKey format 1",
///     fingerprint [32] | salt length u32 | salt UTF-8 | 0            | token count u32 | token ids u32 …   no parent
///     fingerprint [32] | salt length u32 | salt UTF-8 | 1 parent[32] | token count u32 | token ids u32 …   behind parent
/// )                                                                             integers little-endian
/// ```
/// Lengths stand before what varies, so that no two inputs give the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvKey(pub [u8; 32]);

/// Which segment an entry is of, whatever stood before it and whoever the tenant is: every entry of one passage shares it.
/// The first half of a BLAKE3 over fingerprint and token ids: for finding entries, never for trusting them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentDigest(pub [u8; 16]);

impl SegmentDigest {
    /// The digest of a segment's tokens, for one model.
    pub fn of(fingerprint: &Fingerprint, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(SEGMENT_CONTEXT);
        hasher.update(&fingerprint.0);
        update_with_tokens(&mut hasher, tokens);
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(half)
    }
}

impl KvKey {
    /// The key of `tokens` computed after `parent` (`None`: at the start of the prompt) for the tenant `salt`.
    pub fn derive(fingerprint: &Fingerprint, salt: &str, parent: Option<&KvKey>, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
        hasher.update(&fingerprint.0);
        hasher.update(&length_prefix(salt.len()));
        hasher.update(salt.as_bytes());
        match parent {
            None => hasher.update(&[0]),
            Some(parent) => hasher.update(&[1]).update(&parent.0),
        };
        hasher.update(&length_prefix(tokens.len()));
        update_with_tokens(&mut hasher, tokens);
        Self(*hasher.finalize().as_bytes())
    }

    /// The raw bytes, as they stand in RocksDB keys.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn update_with_tokens(hasher: &mut blake3::Hasher, tokens: &[u32]) {
    for ids in tokens.chunks(1024) {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
}

/// Salts and segments are far below 4 GiB; saturating keeps the function total.
fn length_prefix(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn parse_hex<const N: usize>(what: &str, text: &str) -> Result<[u8; N]> {
    let malformed =
        || Error::invalid_input(format!("'{text}' is not a {what}: {} hexadecimal digits are wanted", 2 * N));
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| malformed())?;
    }
    Ok(bytes)
}

/// Hex text forms (display, parse, serde) of the names.
macro_rules! hex_text {
    ($name:ident, $what:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                parse_hex($what, text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let digits = 2 * std::mem::size_of::<Self>();
                schemars::json_schema!({ "type": "string", "pattern": format!("^[0-9a-f]{{{digits}}}$") })
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_text!(Fingerprint, "model fingerprint");
hex_text!(KvKey, "KV key");
hex_text!(SegmentDigest, "segment digest");

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const FINGERPRINT: Fingerprint = Fingerprint([7; 32]);

    /// Computed by another implementation of BLAKE3 from the drawing at [`KvKey`].
    #[test]
    fn golden_keys_of_format_1() {
        let key = KvKey::derive(&FINGERPRINT, "", None, &[1, 2, 3]);
        assert_eq!(key.to_string(), "c969aa4562de9f8c5f9d74ce5ee65e20c1815bf599569f07ef1c43e373e10530");
        let key = KvKey::derive(&FINGERPRINT, "tenant", Some(&KvKey([0xAB; 32])), &[1, u32::MAX]);
        assert_eq!(key.to_string(), "1e334c1dc7325689976d9b354a93c530d486f9ba59eea34006f1a12f2a81dd19");
    }

    #[test]
    fn everything_that_shapes_kv_is_in_the_key() {
        let base = KvKey::derive(&FINGERPRINT, "", None, &[1, 2, 3]);
        let parent = KvKey([0; 32]);
        let others = [
            KvKey::derive(&Fingerprint([8; 32]), "", None, &[1, 2, 3]),
            KvKey::derive(&FINGERPRINT, "tenant", None, &[1, 2, 3]),
            KvKey::derive(&FINGERPRINT, "", Some(&parent), &[1, 2, 3]),
            KvKey::derive(&FINGERPRINT, "", Some(&base), &[1, 2, 3]),
            KvKey::derive(&FINGERPRINT, "", None, &[1, 2]),
            KvKey::derive(&FINGERPRINT, "", None, &[1, 2, 3, 0]),
            KvKey::derive(&FINGERPRINT, "", None, &[1, 3, 2]),
            KvKey::derive(&FINGERPRINT, "", None, &[]),
        ];
        let distinct: HashSet<_> = others.iter().chain([&base]).collect();
        assert_eq!(distinct.len(), others.len() + 1);
    }

    /// Bytes may not move between fields: salt into tokens, parent into tokens.
    #[test]
    fn lengths_stand_before_what_varies() {
        let a = KvKey::derive(&FINGERPRINT, "abcd", None, &[]);
        let b = KvKey::derive(&FINGERPRINT, "", None, &[u32::from_le_bytes(*b"abcd")]);
        assert_ne!(a, b);
        let parent = KvKey([1; 32]);
        let c = KvKey::derive(&FINGERPRINT, "", Some(&parent), &[5]);
        let d = KvKey::derive(&FINGERPRINT, "", None, &[0x0101_0101; 9]);
        assert_ne!(c, d);
    }

    #[test]
    fn text_forms() {
        let key = KvKey::derive(&FINGERPRINT, "s", None, &[9]);
        assert_eq!(key.to_string().parse::<KvKey>().unwrap(), key);
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<KvKey>(&json).unwrap(), key);
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"+f".repeat(32)] {
            assert!(bad.parse::<KvKey>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn chunked_hashing_equals_one_pass(tokens in prop::collection::vec(any::<u32>(), 0..3000)) {
            let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
            hasher.update(&FINGERPRINT.0).update(&0u32.to_le_bytes()).update(&[0]);
            hasher.update(&(tokens.len() as u32).to_le_bytes());
            for id in &tokens { hasher.update(&id.to_le_bytes()); }
            prop_assert_eq!(KvKey(*hasher.finalize().as_bytes()), KvKey::derive(&FINGERPRINT, "", None, &tokens));
        }
    }
}
