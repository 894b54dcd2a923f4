//! How frames are written into objects: as they are, compressed, or quantised.

use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::q8;
use crate::entry::{Entry, EntryHeader};
use crate::{Error, Result};

/// Quick, and near the best that zstd does on floating-point numbers.
const ZSTD_LEVEL: i32 = 1;
/// A larger frame is not written, and not believed when it is read: what a reader has to hold is bounded.
pub(super) const MOST_FRAME_BYTES: u64 = 1 << 30;

/// How frames are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Codec {
    /// As they are: layers can be used without another pass over them.
    #[default]
    Plain,
    /// Each frame compressed by zstd; what is read is what was written.
    Zstd,
    /// 8 bits an element, about half of bf16. LOSSY: kept under names of its own, never found by
    /// [`EntryTier::open`](crate::tier::EntryTier::open), only as [`Precision::Lossy`](crate::tier::Precision::Lossy).
    Q8,
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "plain" => Ok(Self::Plain),
            "zstd" => Ok(Self::Zstd),
            "q8" => Ok(Self::Q8),
            _ => Err(Error::invalid_input(format!("object codec '{text}' is unknown; use plain, zstd or q8"))),
        }
    }
}

impl Codec {
    /// Whether what is read is what was written.
    pub fn is_exact(self) -> bool {
        self != Self::Q8
    }

    /// For copies that must be exact: this codec if it is, else frames as they are.
    #[must_use]
    pub fn exact(self) -> Self {
        if self.is_exact() { self } else { Self::Plain }
    }

    /// Its number in objects; never reused for another.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Zstd => 1,
            Self::Q8 => 2,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<Self> {
        [Self::Plain, Self::Zstd, Self::Q8].into_iter().find(|codec| codec.code() == code)
    }

    /// Whether a frame of the entry can have this length in an object.
    pub(super) fn can_have(self, length: u64, header: &EntryHeader) -> bool {
        let shape = header.frame_shape();
        let Some(whole) = shape.frame_bytes().filter(|&bytes| bytes <= MOST_FRAME_BYTES) else { return false };
        match self {
            Self::Plain => length == whole,
            Self::Zstd => length > 0 && length <= zstd::zstd_safe::compress_bound(whole as usize) as u64,
            Self::Q8 => q8::frame_bytes(&shape) == Some(length),
        }
    }

    /// Verifies the entry's frames and writes them.
    ///
    /// # Errors
    /// `Corrupt` if one is damaged, `InvalidInput` if it cannot be quantised.
    pub(super) fn encode(self, entry: &Entry) -> Result<Vec<Bytes>> {
        let header = entry.header();
        (0..)
            .zip(entry.frames())
            .map(|(layer, bytes)| {
                let frame = entry.layer(layer)?;
                match self {
                    Self::Plain => Ok(bytes.clone()),
                    Self::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL).map(Bytes::from).map_err(|error| {
                        Error::new(crate::ErrorKind::Internal, format!("compress a frame of {}", header.key))
                            .with_source(error)
                    }),
                    Self::Q8 => q8::encode(&header.key, layer, &header.frame_shape(), &frame),
                }
            })
            .collect()
    }

    /// The encoded frame that an object's bytes stand for.
    ///
    /// # Errors
    /// `Corrupt`; beyond that the frame is verified by [`crate::frame::decode`] only.
    pub(super) fn decode(self, header: &EntryHeader, layer: u32, bytes: Bytes) -> Result<Bytes> {
        match self {
            Self::Plain => Ok(bytes),
            Self::Zstd => decompress(header, layer, &bytes),
            Self::Q8 => q8::decode(&header.key, layer, &header.frame_shape(), &bytes),
        }
    }
}

/// Decompresses what must become one frame: the size is known beforehand, so that damaged bytes cannot ask for more.
fn decompress(header: &EntryHeader, layer: u32, bytes: &[u8]) -> Result<Bytes> {
    let corrupt = |what: String| {
        Error::corrupt(format!("layer {layer} of entry {}, compressed: {what}; it will be recomputed", header.key))
    };
    let wanted = header.frame_shape().frame_bytes().filter(|&bytes| bytes <= MOST_FRAME_BYTES);
    let wanted = wanted.ok_or_else(|| corrupt("no frame is that large".into()))?;
    match zstd::zstd_safe::get_frame_content_size(bytes) {
        Ok(Some(size)) if size == wanted => {}
        _ => return Err(corrupt(format!("it does not hold the {wanted} bytes of a frame"))),
    }
    let whole = zstd::bulk::decompress(bytes, wanted as usize).map_err(|error| corrupt(error.to_string()))?;
    if whole.len() as u64 != wanted {
        return Err(corrupt(format!("{} bytes came out", whole.len())));
    }
    Ok(whole.into())
}
