//! The frame: one layer of one entry's keys and values, readable and verifiable on its own.
//!
//! ```text
//! offset  bytes  field                                        all integers little-endian
//!      0      4  magic "RSKF"
//!      4      2  format version, 1
//!      6      1  dtype: 1 = f32, 2 = f16, 3 = bf16
//!      7      1  content: 0 = numbers, 1 = opaque bytes
//!      8     32  KvKey of the entry
//!     40      4  layer
//!     44      4  tokens n
//!     48      4  kv_dim = kv_heads * head_dim
//!     52      4  zero
//!     56      8  length of K in bytes = n * kv_dim * size of dtype
//!     64      8  length of V in bytes, the same
//!     72      …  K, row-major [n, kv_dim], before rotary embedding
//!      …      …  V, row-major [n, kv_dim]
//!      …      8  XXH3-64 (seed 0) of every byte before it
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use ragstone_kernels::dtype::KvDtype;
use twox_hash::XxHash3_64;

use crate::key::KvKey;
use crate::{Error, Result};

/// Version of the frame and entry-row formats; part of every [`Fingerprint`](crate::key::Fingerprint).
pub const FORMAT_VERSION: u16 = 1;

pub(crate) const MAGIC: [u8; 4] = *b"RSKF";
pub(crate) const HEADER_BYTES: usize = 72;
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// What a frame's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Numbers of the frame's dtype, all of them finite.
    Numbers,
    /// Bytes that only their owner understands ([`crate::opaque`]): any bits may stand there, and nothing may be rounded.
    Opaque,
}

/// What K and V of one layer look like: both are row-major `[tokens, kv_dim]` of `dtype`, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameShape {
    /// Rows.
    pub tokens: u32,
    /// Columns: `kv_heads * head_dim`.
    pub kv_dim: u32,
    /// Element type.
    pub dtype: KvDtype,
    /// Whether the elements are numbers.
    pub content: Content,
}

impl FrameShape {
    /// Bytes of K, which are also the bytes of V. `None` if that does not fit into 64 bits.
    pub fn side_bytes(&self) -> Option<u64> {
        let elements = u64::from(self.tokens) * u64::from(self.kv_dim);
        elements.checked_mul(self.dtype.size_in_bytes() as u64)
    }

    /// Bytes of a whole encoded frame. `None` if that does not fit into 64 bits.
    pub fn frame_bytes(&self) -> Option<u64> {
        self.side_bytes()?.checked_mul(2)?.checked_add((HEADER_BYTES + CHECKSUM_BYTES) as u64)
    }
}

/// A verified frame. K and V share the memory of the bytes they were decoded from.
#[derive(Clone)]
pub struct Frame {
    /// Keys before rotary embedding, row-major `[tokens, kv_dim]`.
    pub k: Bytes,
    /// Values, row-major `[tokens, kv_dim]`.
    pub v: Bytes,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame {{ k: {} bytes, v: {} bytes }}", self.k.len(), self.v.len())
    }
}

/// Encodes one layer. `k` and `v` are row-major `[tokens, kv_dim]` in `shape.dtype`, little-endian.
///
/// # Errors
/// `InvalidInput` if a length does not follow from the shape.
pub fn encode(key: &KvKey, layer: u32, shape: &FrameShape, k: &[u8], v: &[u8]) -> Result<Bytes> {
    let side = shape.side_bytes().filter(|&bytes| bytes == k.len() as u64 && bytes == v.len() as u64);
    let (Some(side), Some(frame_bytes)) = (side, shape.frame_bytes()) else {
        return Err(Error::invalid_input(format!(
            "layer {layer} of entry {key}: K has {} bytes and V {}, but {shape:?} wants {:?} each",
            k.len(),
            v.len(),
            shape.side_bytes()
        )));
    };
    let mut out = BytesMut::with_capacity(usize::try_from(frame_bytes).unwrap_or(0));
    out.put_slice(&MAGIC);
    out.put_u16_le(FORMAT_VERSION);
    out.put_u8(dtype_code(shape.dtype));
    out.put_u8(shape.content.code());
    out.put_slice(key.as_bytes());
    out.put_u32_le(layer);
    out.put_u32_le(shape.tokens);
    out.put_u32_le(shape.kv_dim);
    out.put_u32_le(0);
    out.put_u64_le(side);
    out.put_u64_le(side);
    debug_assert_eq!(out.len(), HEADER_BYTES);
    out.put_slice(k);
    out.put_slice(v);
    let checksum = XxHash3_64::oneshot(&out);
    out.put_u64_le(checksum);
    Ok(out.freeze())
}

/// K and V of what may be the whole frame of `layer` of the entry `key` in `shape`, as they stand there: only its length was looked at. Whoever uses
/// them calls [`decode`] first, on the thread that does.
///
/// # Errors
/// `Corrupt` if there is a byte too few or too many.
pub fn unverified(bytes: &Bytes, key: &KvKey, layer: u32, shape: &FrameShape) -> Result<Frame> {
    // The whole length is known beforehand, so that nothing read from the frame decides how far to read.
    if Some(bytes.len() as u64) != shape.frame_bytes() {
        let what = format!("the frame has {} bytes, wanted {:?}", bytes.len(), shape.frame_bytes());
        return Err(corrupt(key, layer, &what));
    }
    let end = bytes.len() - CHECKSUM_BYTES;
    let middle = HEADER_BYTES + (end - HEADER_BYTES) / 2;
    Ok(Frame { k: bytes.slice(HEADER_BYTES..middle), v: bytes.slice(middle..end) })
}

fn corrupt(key: &KvKey, layer: u32, what: &str) -> Error {
    Error::corrupt(format!("layer {layer} of entry {key}: {what}; it will be recomputed"))
}

/// Verifies that `bytes` are the whole frame of `layer` of the entry `key` in `shape`, and gives its K and V without
/// copying.
///
/// # Errors
/// `Corrupt` on any difference: a flipped byte, a byte too few or too many, another key, layer, shape or version; and, where
/// they are numbers, on a value that is not finite.
pub fn decode(bytes: &Bytes, key: &KvKey, layer: u32, shape: &FrameShape) -> Result<Frame> {
    let frame = unverified(bytes, key, layer, shape)?;
    let corrupt = |what: &str| corrupt(key, layer, what);
    let end = bytes.len() - CHECKSUM_BYTES;
    if XxHash3_64::oneshot(&bytes[..end]) != u64_at(bytes, end) {
        return Err(corrupt("the checksum does not match"));
    }
    let side = (end - HEADER_BYTES) / 2;
    let stands_as_wanted = bytes[..4] == MAGIC
        && bytes[4..6] == FORMAT_VERSION.to_le_bytes()
        && bytes[6] == dtype_code(shape.dtype)
        && bytes[7] == shape.content.code()
        && bytes[8..40] == *key.as_bytes()
        && bytes[40..44] == layer.to_le_bytes()
        && bytes[44..48] == shape.tokens.to_le_bytes()
        && bytes[48..52] == shape.kv_dim.to_le_bytes()
        && bytes[52..56] == [0; 4]
        && u64_at(bytes, 56) == side as u64
        && u64_at(bytes, 64) == side as u64;
    if !stands_as_wanted {
        return Err(corrupt("the header names another key, layer, shape or version"));
    }
    // A sum says nothing of who wrote it: one number that is none spreads to every answer that is computed after it.
    if shape.content == Content::Numbers && !shape.dtype.all_finite(&bytes[HEADER_BYTES..end]) {
        return Err(corrupt("it holds a value that is not finite"));
    }
    Ok(frame)
}

impl Content {
    /// Its number on disk; never reused for another.
    fn code(self) -> u8 {
        match self {
            Self::Numbers => 0,
            Self::Opaque => 1,
        }
    }
}

/// The dtype's number on disk; never reused for another type.
pub(crate) fn dtype_code(dtype: KvDtype) -> u8 {
    match dtype {
        KvDtype::F32 => 1,
        KvDtype::F16 => 2,
        KvDtype::Bf16 => 3,
    }
}

pub(crate) fn dtype_of_code(code: u8) -> Option<KvDtype> {
    match code {
        1 => Some(KvDtype::F32),
        2 => Some(KvDtype::F16),
        3 => Some(KvDtype::Bf16),
        _ => None,
    }
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
