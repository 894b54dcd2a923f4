//! An entry: the KV states of one segment of tokens, computed after one parent, as one frame a layer.
//!
//! The entry row describes an entry and makes it visible on disk; it is written after the frames:
//!
//! ```text
//! offset  bytes  field                                        all integers little-endian
//!      0      4  magic "RSKE"
//!      4      2  format version, 1
//!      6      1  dtype: 1 = f32, 2 = f16, 3 = bf16
//!      7      1  1 if there is a parent, else 0
//!      8     32  KvKey
//!     40     32  model fingerprint
//!     72     32  KvKey of the parent, zeros if there is none
//!    104      4  layers
//!    108      4  kv_dim
//!    112      4  salt length s in bytes
//!    116      4  token count n
//!    120      8  time to compute, microseconds
//!    128      8  created, milliseconds since 1970
//!    136      s  salt, UTF-8
//!      …     4n  token ids
//!      …      8  XXH3-64 (seed 0) of every byte before it
//! ```

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::pool::KvLayout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::frame::{
    self, CHECKSUM_BYTES, Content, FORMAT_VERSION, Frame, FrameShape, dtype_code, dtype_of_code, u64_at,
};
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"RSKE";
const FIXED_BYTES: usize = 136;

/// The address of an entry in a tier. The segment follows from the tokens that the key was derived from; the object tier
/// has it in its names, so that all entries of a passage can be found without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// The key.
    pub key: KvKey,
    /// The segment that it is an entry of.
    pub segment: SegmentDigest,
}

/// What is known of an entry without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntrySummary {
    /// Its key.
    pub key: KvKey,
    /// What stood before when it was computed.
    pub parent: Option<KvKey>,
    /// The passage that it is an entry of, whatever stood before.
    pub segment: SegmentDigest,
    /// The model that computed it.
    pub fingerprint: Fingerprint,
    /// The tenant it belongs to.
    pub tenant: Arc<str>,
    /// Its tokens.
    pub tokens: u32,
    /// Its frames.
    pub layers: u32,
    /// Frames and row.
    pub bytes: u64,
    /// What computing it took, in microseconds.
    pub compute_us: u64,
    /// When it was computed, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

impl EntrySummary {
    /// Its address.
    pub fn id(&self) -> EntryId {
        EntryId { key: self.key, segment: self.segment }
    }

    /// What computing it took, in microseconds a token.
    pub fn cost_per_token(&self) -> f64 {
        self.compute_us as f64 / f64::from(self.tokens.max(1))
    }
}

/// Everything about an entry but its K and V. Immutable; [`EntryHeader::key`] is derived from the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryHeader {
    /// Derived from fingerprint, salt, parent and tokens.
    pub key: KvKey,
    /// What stood before when this was computed; `None`: nothing.
    pub parent: Option<KvKey>,
    /// The model that computed it.
    pub fingerprint: Fingerprint,
    /// The tenant it belongs to.
    pub salt: Arc<str>,
    /// Token ids; compared on every hit.
    pub tokens: Arc<[u32]>,
    /// Frames.
    pub layers: u32,
    /// Columns of K and V: `kv_heads * head_dim`.
    pub kv_dim: u32,
    /// Element type of K and V.
    pub dtype: KvDtype,
    /// What computing it took, in microseconds: the worth of keeping it.
    pub compute_us: u64,
    /// When it was computed, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// What one needs to know to start an entry; the key follows from it.
#[derive(Debug, Clone)]
pub struct NewEntry {
    /// The model that computes it.
    pub fingerprint: Fingerprint,
    /// The tenant.
    pub salt: Arc<str>,
    /// What stands before; must be what really stood before the tokens when they were computed.
    pub parent: Option<KvKey>,
    /// Token ids, at least one.
    pub tokens: Arc<[u32]>,
    /// Layers of the model, at least one.
    pub layers: u32,
    /// `kv_heads * head_dim`, at least one.
    pub kv_dim: u32,
    /// Element type of K and V.
    pub dtype: KvDtype,
}

/// What all entries of a model have in common. A checksum says that an entry is what somebody wrote; this, that it is one
/// which this model can have computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    /// Frames.
    pub layers: u32,
    /// Columns of K and V: `kv_heads * head_dim`.
    pub kv_dim: u32,
    /// Element type of K and V.
    pub dtype: KvDtype,
}

/// A whole entry: one encoded frame a layer. Held in [`Arc`]s; a held one is pinned in the host tier.
#[derive(Clone)]
pub struct Entry {
    header: Arc<EntryHeader>,
    frames: Vec<Bytes>,
}

/// Takes the layers of an entry in ascending order, as a prefill produces them.
pub struct EntryBuilder {
    header: EntryHeader,
    frames: Vec<Bytes>,
}

impl EntryShape {
    /// The shape that a model's KV has; `None` for one of 2^32 layers or columns, which no entry can hold.
    pub fn of(layout: &KvLayout) -> Option<Self> {
        let (layers, kv_dim) = (u32::try_from(layout.layers).ok()?, u32::try_from(layout.kv_dim()).ok()?);
        Some(Self { layers, kv_dim, dtype: layout.dtype })
    }

    /// Whether an entry is of this shape.
    ///
    /// # Errors
    /// `Corrupt` if not: under this model's name it can only be a forgery or a fault.
    pub fn check(&self, header: &EntryHeader) -> Result<()> {
        let EntryHeader { key, layers, kv_dim, dtype, .. } = header;
        if *self == (Self { layers: *layers, kv_dim: *kv_dim, dtype: *dtype }) {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "entry {key} has {layers} layers of width {kv_dim} in {}, the model's have {} of width {} in {}; it will be recomputed",
            dtype.name(),
            self.layers,
            self.kv_dim,
            self.dtype.name()
        )))
    }
}

impl EntryHeader {
    /// The shape of each of the entry's frames.
    pub fn frame_shape(&self) -> FrameShape {
        let content = if self.fingerprint == Fingerprint::OPAQUE { Content::Opaque } else { Content::Numbers };
        // Builders and rows hold the token count below 2^32.
        FrameShape { tokens: self.tokens.len() as u32, kv_dim: self.kv_dim, dtype: self.dtype, content }
    }

    /// Bytes of all frames together.
    pub fn frames_bytes(&self) -> u64 {
        self.frame_shape().frame_bytes().unwrap_or(u64::MAX).saturating_mul(u64::from(self.layers))
    }

    /// Bytes that the entry takes in a tier: its frames and its row.
    pub fn total_bytes(&self) -> u64 {
        let row = FIXED_BYTES + self.salt.len() + 4 * self.tokens.len() + CHECKSUM_BYTES;
        self.frames_bytes().saturating_add(row as u64)
    }

    /// The digest of the segment that this is an entry of.
    pub fn segment(&self) -> SegmentDigest {
        SegmentDigest::of(&self.fingerprint, &self.tokens)
    }

    /// Its address.
    pub fn id(&self) -> EntryId {
        EntryId { key: self.key, segment: self.segment() }
    }

    /// What can be said of it without its tokens.
    pub fn summary(&self) -> EntrySummary {
        EntrySummary {
            key: self.key,
            parent: self.parent,
            segment: self.segment(),
            fingerprint: self.fingerprint,
            tenant: self.salt.clone(),
            tokens: self.tokens.len() as u32,
            layers: self.layers,
            bytes: self.total_bytes(),
            compute_us: self.compute_us,
            created_unix_ms: self.created_unix_ms,
        }
    }

    /// The entry row.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FIXED_BYTES + self.salt.len() + 4 * self.tokens.len() + CHECKSUM_BYTES);
        out.put_slice(&MAGIC);
        out.put_u16_le(FORMAT_VERSION);
        out.put_u8(dtype_code(self.dtype));
        out.put_u8(u8::from(self.parent.is_some()));
        out.put_slice(self.key.as_bytes());
        out.put_slice(&self.fingerprint.0);
        out.put_slice(&self.parent.map_or([0; 32], |parent| parent.0));
        out.put_u32_le(self.layers);
        out.put_u32_le(self.kv_dim);
        out.put_u32_le(self.salt.len() as u32);
        out.put_u32_le(self.tokens.len() as u32);
        out.put_u64_le(self.compute_us);
        out.put_u64_le(self.created_unix_ms);
        debug_assert_eq!(out.len(), FIXED_BYTES);
        out.put_slice(self.salt.as_bytes());
        self.tokens.iter().for_each(|&id| out.put_u32_le(id));
        let checksum = XxHash3_64::oneshot(&out);
        out.put_u64_le(checksum);
        out.freeze()
    }

    /// Reads an entry row that was stored under `key`.
    ///
    /// # Errors
    /// `Corrupt` on any difference from what [`EntryHeader::encode`] wrote, and if the key does not follow from the
    /// content.
    pub fn decode(bytes: &[u8], key: &KvKey) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(format!("the row of entry {key}: {what}; it will be recomputed"));
        if bytes.len() < FIXED_BYTES + CHECKSUM_BYTES {
            return Err(corrupt("too short"));
        }
        let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if XxHash3_64::oneshot(body) != u64_at(checksum, 0) {
            return Err(corrupt("the checksum does not match"));
        }
        let header = Self::parse(body).ok_or_else(|| corrupt("it is malformed or of another version"))?;
        if header.key != *key || header.key != header.derived_key() {
            return Err(corrupt("it belongs to another key"));
        }
        Ok(header)
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let key_at = |at: usize| <[u8; 32]>::try_from(body.get(at..at + 32)?).ok();
        if body[..4] != MAGIC || body[4..6] != FORMAT_VERSION.to_le_bytes() {
            return None;
        }
        let parent = match (body[7], key_at(72)?) {
            (0, parent) if parent == [0; 32] => None,
            (1, parent) => Some(KvKey(parent)),
            _ => return None,
        };
        let salt_end = FIXED_BYTES.checked_add(u32_at(112)? as usize)?;
        let tokens_bytes = (u32_at(116)? as usize).checked_mul(4)?;
        if body.len() != salt_end.checked_add(tokens_bytes)? {
            return None;
        }
        let ids = body[salt_end..].chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]));
        Some(Self {
            key: KvKey(key_at(8)?),
            parent,
            fingerprint: Fingerprint(key_at(40)?),
            salt: std::str::from_utf8(&body[FIXED_BYTES..salt_end]).ok()?.into(),
            tokens: ids.collect(),
            layers: u32_at(104)?,
            kv_dim: u32_at(108)?,
            dtype: dtype_of_code(body[6])?,
            compute_us: u64_at(body, 120),
            created_unix_ms: u64_at(body, 128),
        })
    }

    fn derived_key(&self) -> KvKey {
        KvKey::derive(&self.fingerprint, &self.salt, self.parent.as_ref(), &self.tokens)
    }
}

impl EntryBuilder {
    /// Starts an entry of no layers yet.
    ///
    /// # Errors
    /// `InvalidInput` if it would be empty or too large to address.
    pub fn new(new: NewEntry) -> Result<Self> {
        let key = KvKey::derive(&new.fingerprint, &new.salt, new.parent.as_ref(), &new.tokens);
        let NewEntry { fingerprint, salt, parent, tokens, layers, kv_dim, dtype } = new;
        let addressable = u32::try_from(tokens.len()).is_ok() && u32::try_from(salt.len()).is_ok();
        if tokens.is_empty() || layers == 0 || kv_dim == 0 || !addressable {
            return Err(Error::invalid_input(format!(
                "an entry wants tokens, layers and a KV width; got {} tokens, {layers} layers, width {kv_dim}",
                tokens.len()
            )));
        }
        let header = EntryHeader {
            key,
            parent,
            fingerprint,
            salt,
            tokens,
            layers,
            kv_dim,
            dtype,
            compute_us: 0,
            created_unix_ms: 0,
        };
        Ok(Self { frames: Vec::with_capacity(layers as usize), header })
    }

    /// The key that the entry will have.
    pub fn key(&self) -> &KvKey {
        &self.header.key
    }

    /// Appends the next layer. `k` (before rotary embedding) and `v` are row-major `[tokens, kv_dim]`, little-endian.
    ///
    /// # Errors
    /// `InvalidInput` on a wrong length or a layer too many.
    pub fn push_layer(&mut self, k: &[u8], v: &[u8]) -> Result<()> {
        let layer = self.frames.len() as u32;
        if layer >= self.header.layers {
            return Err(Error::invalid_input(format!("entry {} has {layer} layers already", self.header.key)));
        }
        self.frames.push(frame::encode(&self.header.key, layer, &self.header.frame_shape(), k, v)?);
        Ok(())
    }

    /// The whole entry. `compute_us`: what it took; `created_unix_ms`: [`ragstone_env::Env::now_unix_ms`].
    ///
    /// # Errors
    /// `InvalidInput` if layers are missing.
    pub fn finish(self, compute_us: u64, created_unix_ms: u64) -> Result<Entry> {
        if self.frames.len() != self.header.layers as usize {
            let EntryHeader { key, layers, .. } = self.header;
            return Err(Error::invalid_input(format!("entry {key} has {} of {layers} layers", self.frames.len())));
        }
        let header = EntryHeader { compute_us, created_unix_ms, ..self.header };
        Ok(Entry { header: Arc::new(header), frames: self.frames })
    }
}

impl Entry {
    /// An entry from frames that came from elsewhere; every one is verified.
    ///
    /// # Errors
    /// `Corrupt` if a frame is missing, damaged or another entry's, or the key does not follow from the header.
    pub fn from_frames(header: Arc<EntryHeader>, frames: Vec<Bytes>) -> Result<Self> {
        if header.key != header.derived_key() || frames.len() != header.layers as usize {
            return Err(Error::corrupt(format!("entry {}: header and frames do not belong together", header.key)));
        }
        let entry = Self { header, frames };
        (0..entry.header.layers).try_for_each(|layer| entry.layer(layer).map(drop))?;
        Ok(entry)
    }

    /// From frames that were verified one by one just now.
    pub(crate) fn from_verified_frames(header: Arc<EntryHeader>, frames: Vec<Bytes>) -> Self {
        debug_assert_eq!(frames.len(), header.layers as usize);
        Self { header, frames }
    }

    /// What the entry is.
    pub fn header(&self) -> &Arc<EntryHeader> {
        &self.header
    }

    /// The encoded frames, in the order of layers.
    pub fn frames(&self) -> &[Bytes] {
        &self.frames
    }

    /// Verifies one layer's checksum and gives its K and V without copying.
    ///
    /// # Errors
    /// `Corrupt` if the bytes changed; `NotFound` if there is no such layer.
    pub fn layer(&self, layer: u32) -> Result<Frame> {
        let key = &self.header.key;
        let bytes = self.frames.get(layer as usize);
        let bytes = bytes.ok_or_else(|| Error::not_found(format!("entry {key} has no layer {layer}")))?;
        frame::decode(bytes, key, layer, &self.header.frame_shape())
    }
}

// Megabytes of K and V have no place in a log line.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({}, {} frames)", self.header.key, self.frames.len())
    }
}

impl std::fmt::Debug for EntryBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EntryBuilder({}, {} of {} frames)", self.header.key, self.frames.len(), self.header.layers)
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
pub(crate) mod tests;
