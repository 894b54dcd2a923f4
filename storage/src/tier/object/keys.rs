//! The keys that entries in a bucket are sealed by: where they are written down, and what is derived from each.
//!
//! ```text
//! secret  = 32 bytes, of which every node of the bucket has the same
//! number  = first 8 bytes of BLAKE3-derive-key("ragstone 2026 object key number, format 1", secret)      stands in names
//! names   = BLAKE3-derive-key("ragstone 2026 object names, format 1", secret)                            see names.rs
//! seals   = BLAKE3-derive-key("ragstone 2026 object seals, format 1", secret)                            see seal.rs
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

const NUMBER_CONTEXT: &str = "ragstone 2026 object key number, format 1";
const NAMES_CONTEXT: &str = "ragstone 2026 object names, format 1";
const SEALS_CONTEXT: &str = "ragstone 2026 object seals, format 1";
const SECRET_BYTES: usize = 32;
/// A look-up asks for an entry under each key; more are a mistake.
const MOST_KEYS: usize = 8;
/// A file that is longer holds something else.
const MOST_FILE_BYTES: u64 = 4096;
const MAKE_ONE: &str = "make one with `openssl rand -hex 32`";

/// Which key an object was sealed by, as its name says it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct KeyNumber(pub u64);

/// What is derived from one secret. Neither is ever shown.
#[derive(Clone)]
pub(super) struct ObjectKey {
    pub number: KeyNumber,
    pub names: [u8; 32],
    pub seals: [u8; 32],
}

/// The keys of a bucket: the first seals what is written, each opens what is read. Empty: nothing is sealed.
#[derive(Clone, Default)]
pub(super) struct ObjectKeys(Arc<[ObjectKey]>);

/// Where the keys of a bucket are written down, in the order of [`ObjectTier`](super::ObjectTier)'s use: `file:PATH` or `env:VARIABLE`.
/// Each holds one key, 32 bytes in hexadecimal digits or base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySources(Vec<KeySource>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum KeySource {
    File(PathBuf),
    Variable(String),
}

impl fmt::Display for KeyNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for KeyNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyNumber({self})")
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({})", self.number)
    }
}

impl fmt::Debug for ObjectKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl KeyNumber {
    /// `None` for what is no number as it is shown: upper-case digits are another name.
    pub fn parse(text: &str) -> Option<Self> {
        let number = u64::from_str_radix(text, 16).ok().map(Self)?;
        (number.to_string() == text).then_some(number)
    }
}

impl ObjectKey {
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let number = blake3::derive_key(NUMBER_CONTEXT, secret);
        let number = number[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self {
            number: KeyNumber(number),
            names: blake3::derive_key(NAMES_CONTEXT, secret),
            seals: blake3::derive_key(SEALS_CONTEXT, secret),
        }
    }
}

impl ObjectKeys {
    #[cfg(test)]
    pub fn of(secrets: &[[u8; SECRET_BYTES]]) -> Self {
        Self(secrets.iter().map(ObjectKey::new).collect())
    }

    pub fn iter(&self) -> std::slice::Iter<'_, ObjectKey> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn first(&self) -> Option<&ObjectKey> {
        self.0.first()
    }

    pub fn get(&self, number: KeyNumber) -> Option<&ObjectKey> {
        self.iter().find(|key| key.number == number)
    }
}

impl KeySources {
    /// Files, for those who have no settings to read.
    pub fn files(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().map(KeySource::File).collect())
    }

    /// Whether no key is named: then nothing is sealed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are named.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether every key is there and is one.
    ///
    /// # Errors
    /// `InvalidInput`, which says what to do.
    pub fn check(&self) -> Result<()> {
        self.read().map(drop)
    }

    /// The keys.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(super) fn read(&self) -> Result<ObjectKeys> {
        if self.0.len() > MOST_KEYS {
            return Err(Error::invalid_input(format!(
                "{} keys of the bucket are too many: name the one that writes first, then those that entries are still sealed by, {MOST_KEYS} at most",
                self.0.len()
            )));
        }
        let mut keys: Vec<ObjectKey> = Vec::with_capacity(self.0.len());
        for source in &self.0 {
            let key = source.read()?;
            if keys.iter().any(|other| other.number == key.number) {
                return Err(Error::invalid_input(format!(
                    "{source} holds a key of the bucket that was named before; name each once"
                )));
            }
            keys.push(key);
        }
        Ok(ObjectKeys(keys.into()))
    }
}

impl KeySource {
    fn read(&self) -> Result<ObjectKey> {
        let bad = |what: String| Error::invalid_input(format!("{self}: {what}"));
        let text = match self {
            Self::Variable(name) => std::env::var(name).map_err(|_| {
                bad(format!("the variable is not set, or is no text; set it to a key of the bucket, or {MAKE_ONE}"))
            })?,
            Self::File(path) => {
                let read = || {
                    let is_long = std::fs::metadata(path)?.len() > MOST_FILE_BYTES;
                    if is_long { Ok(None) } else { std::fs::read_to_string(path).map(Some) }
                };
                let text = read()
                    .map_err(|error| bad(format!("the key of the bucket cannot be read: {error}; {MAKE_ONE}")))?;
                text.ok_or_else(|| bad(format!("the file is too long for a key of the bucket; {MAKE_ONE}")))?
            }
        };
        let secret = parse_secret(&text).map_err(|what| bad(format!("{what}; {MAKE_ONE}")))?;
        Ok(ObjectKey::new(&secret))
    }
}

/// 32 bytes from hexadecimal digits or base64. The error never repeats what was read.
fn parse_secret(text: &str) -> std::result::Result<[u8; SECRET_BYTES], String> {
    let text = text.trim();
    let bytes = match text.len() {
        64 => hex::decode(text).ok(),
        43 | 44 => base64(text),
        length => {
            return Err(format!("a key of the bucket has 64 hexadecimal digits, or 44 of base64; there are {length}"));
        }
    };
    let secret = bytes.and_then(|bytes: Vec<u8>| <[u8; SECRET_BYTES]>::try_from(bytes).ok());
    let secret = secret.ok_or("these are neither hexadecimal digits nor base64 of 32 bytes")?;
    if secret.iter().all(|byte| *byte == secret[0]) {
        return Err("a key of equal bytes is none".to_owned());
    }
    Ok(secret)
}

/// In the usual letters or those of URLs, with padding or without.
fn base64(text: &str) -> Option<Vec<u8>> {
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let text = text.replace('-', "+").replace('_', "/");
    GeneralPurpose::new(&alphabet::STANDARD, lenient).decode(text).ok()
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Variable(name) => write!(f, "env:{name}"),
        }
    }
}

impl FromStr for KeySource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Variable(name.to_owned())),
            // Not what was given: it may be the key itself.
            _ => Err(Error::invalid_input(
                "a key of the bucket is named by file:PATH or env:VARIABLE, where its 32 bytes stand in hexadecimal digits or base64; \
                 it does not stand here itself, where listings and processes would show it",
            )),
        }
    }
}

impl FromStr for KeySources {
    type Err = Error;

    /// Sources, separated by commas.
    fn from_str(text: &str) -> Result<Self> {
        let sources = text.split(',').filter(|source| !source.trim().is_empty());
        sources.map(str::parse).collect::<Result<_>>().map(Self)
    }
}

impl Serialize for KeySources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for KeySources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "wanted are file:PATH and env:VARIABLE, as one text with commas or as a list")]
        enum Given {
            One(String),
            Many(Vec<String>),
        }
        let text = match Given::deserialize(deserializer)? {
            Given::One(text) => return text.parse().map_err(serde::de::Error::custom),
            Given::Many(sources) => sources,
        };
        text.iter().map(|source| source.parse()).collect::<Result<_>>().map(Self).map_err(serde::de::Error::custom)
    }
}

/// Files with a key each for tests, gone with the process's temporary folder; the same byte, the same key.
#[cfg(test)]
pub(crate) fn key_files(secrets: &[u8]) -> KeySources {
    let dir = tempfile::TempDir::new().unwrap().keep();
    let file = |secret: &u8| {
        let path = dir.join(secret.to_string());
        std::fs::write(&path, format!("{secret:02x}{}", "5a".repeat(31))).unwrap();
        path
    };
    KeySources::files(secrets.iter().map(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn secret() -> [u8; 32] {
        std::array::from_fn(|at| at as u8)
    }

    #[test]
    fn a_key_is_read_from_digits_and_letters() {
        for text in [HEX, BASE64, &BASE64[..43], &format!(" {HEX}\n"), &format!("{BASE64}\r\n")] {
            assert_eq!(parse_secret(text), Ok(secret()), "{text}");
        }
        let other: String = [0xFB_u8; 32].iter().map(|byte| format!("{byte:02x}")).collect();
        let url = parse_secret(&other.replacen("fb", "fc", 1)).unwrap();
        assert_eq!(parse_secret("_Pv7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s").unwrap(), url);
        assert_eq!(parse_secret("/Pv7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/s=").unwrap(), url);
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_repeated() {
        let zeros = "0".repeat(64);
        let padded = format!("{}=", &BASE64[..42]);
        let loose = format!("{}9=", &BASE64[..42]);
        let bad = [
            "",
            "hunter2",
            &HEX[..62],
            &HEX.replace('1', "g"),
            &HEX.replace("1F", "é"),
            &zeros,
            &padded,
            &loose,
            &"!".repeat(44),
        ];
        for text in bad {
            let why = parse_secret(text).expect_err(text);
            assert!(text.is_empty() || !why.contains(text), "{why}");
        }
    }

    #[test]
    fn sources_are_files_and_variables() {
        let dir = tempfile::TempDir::new().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, HEX).unwrap();
        std::fs::write(&new, "e".repeat(63) + "f").unwrap();
        let named = format!("file:{}, file:{}", new.display(), old.display());
        let sources: KeySources = named.parse().unwrap();
        let keys = sources.read().unwrap();
        assert_eq!((keys.iter().len(), sources.len()), (2, 2));
        assert_eq!(keys.iter().nth(1).unwrap().number, ObjectKey::new(&secret()).number);
        assert_eq!(serde_json::from_value::<KeySources>(serde_json::to_value(&sources).unwrap()).unwrap(), sources);
        assert_eq!(serde_json::from_value::<KeySources>(named.into()).unwrap(), sources);
        assert_eq!("".parse::<KeySources>().unwrap(), KeySources::default());

        let refused =
            |text: &str| text.parse::<KeySources>().and_then(|sources| sources.check()).unwrap_err().to_string();
        assert!(refused(HEX).contains("file:PATH") && !refused(HEX).contains(HEX));
        assert!(refused("env:RAGSTONE_TEST_NO_SUCH_KEY").contains("openssl rand -hex 32"));
        assert!(refused(&format!("file:{}", dir.path().join("none").display())).contains("openssl rand"));
        assert!(refused(&format!("file:{0},file:{0}", old.display())).contains("once"));
        std::fs::write(&new, "x".repeat(5000)).unwrap();
        assert!(refused(&format!("file:{}", new.display())).contains("too long"));
        let many = vec![format!("file:{}", old.display()); 9].join(",");
        assert!(refused(&many).contains("too many"));
    }

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let keys = ObjectKeys::of(&[secret()]);
        let text = format!("{:?} {:?}", keys.first().unwrap(), keys.first().unwrap().number);
        assert!(!text.to_lowercase().contains("0102"), "{text}");
    }

    /// From the drawing at the top, by Python's package blake3: these names are in buckets.
    #[test]
    fn golden_numbers() {
        let key = ObjectKey::new(&secret());
        assert_eq!(key.number.to_string(), "67433ede89ab8637");
        assert_eq!(KeyNumber::parse(&key.number.to_string()), Some(key.number));
        assert_eq!(KeyNumber::parse(&key.number.to_string().to_uppercase()), None);
        assert_eq!(KeyNumber::parse("12"), None);
    }
}
