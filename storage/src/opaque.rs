//! Opaque blocks: KV that another engine computed, as that engine lays it out, kept as entries like ragstone's own.
//!
//! A block is an entry of one frame. Who computed it stands in the entry's salt, after which tokens in the block's name, which is
//! the engine's own digest of them; both are part of its key, and compared on every hit:
//!
//! ```text
//! fingerprint   Fingerprint::OPAQUE, the same for all: every space shares the store's tiers and bounds
//! salt          the tenant | "/" | the space's digest, in hexadecimal digits
//! parent        none: the name covers what stands before, and the chain is told by `KvStore::record_path`
//! tokens        BLAKE3-derive-key("ragstone 2026 opaque block format 1",
//!                   digest of the space [32] | bytes of a block u64 | the block's name), as 8 little-endian u32
//! layers        1
//! kv_dim        ceil(bytes of a block / 32): K and V together are 8 tokens * kv_dim * 2 sides * 2 bytes; zeros fill the rest
//! ```
//! Frames are marked as opaque ([`Content::Opaque`](crate::frame::Content::Opaque)): any bits may stand there, and the 8-bit codec
//! refuses them.

use std::sync::Arc;

use ragstone_kernels::dtype::KvDtype;

use crate::entry::{Entry, EntryBuilder, EntryHeader, NewEntry};
use crate::key::{Fingerprint, KvKey};
use crate::{Error, Result};

const CONTEXT: &str = "ragstone 2026 opaque block format 1";
const WORDS: usize = 8;
/// Bytes that one more column adds: a 2-byte element in each of 8 rows of K and of V.
const COLUMN_BYTES: u64 = 2 * 2 * WORDS as u64;
/// A larger block is refused: object storage does not believe larger frames.
pub const MOST_BLOCK_BYTES: u64 = (1 << 30) - 256;

/// Blocks of one size that may stand for each other: of one model, layout and kind of machine, for one tenant.
#[derive(Debug, Clone)]
pub struct OpaqueSpace {
    salt: Arc<str>,
    digest: [u8; 32],
    block_bytes: u64,
    kv_dim: u32,
}

/// What a block is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpaqueId {
    /// Its key.
    pub key: KvKey,
    /// Its tokens.
    pub tokens: [u32; WORDS],
}

impl OpaqueSpace {
    /// The space of a tenant. `digest` is of everything that shapes the bytes.
    ///
    /// # Errors
    /// `InvalidInput` for blocks of no bytes, or of more than [`MOST_BLOCK_BYTES`].
    pub fn new(tenant: &str, digest: [u8; 32], block_bytes: u64) -> Result<Self> {
        if block_bytes == 0 || block_bytes > MOST_BLOCK_BYTES {
            return Err(Error::invalid_input(format!(
                "a block of {block_bytes} bytes cannot be stored; 1 to {MOST_BLOCK_BYTES} can"
            )));
        }
        let salt = format!("{tenant}/{}", blake3::Hash::from_bytes(digest)).into();
        // Bounded above: it fits.
        let kv_dim = block_bytes.div_ceil(COLUMN_BYTES) as u32;
        Ok(Self { salt, digest, block_bytes, kv_dim })
    }

    /// The salt of its entries: whose they are in every listing.
    pub fn salt(&self) -> &Arc<str> {
        &self.salt
    }

    /// Bytes of each block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// What the block of a name is found by.
    pub fn id(&self, name: &[u8]) -> OpaqueId {
        let tokens = words(&self.digest, self.block_bytes, name);
        OpaqueId { key: KvKey::derive(&Fingerprint::OPAQUE, &self.salt, None, &tokens), tokens }
    }

    /// The block of `id` as an entry. `compute_us`: what computing it took, 0 if nobody knows: then it is always worth keeping.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are not as many as a block has.
    pub fn entry(&self, id: &OpaqueId, mut bytes: Vec<u8>, compute_us: u64, created_unix_ms: u64) -> Result<Entry> {
        if bytes.len() as u64 != self.block_bytes {
            return Err(Error::invalid_input(format!("a block of {} bytes, not {}", bytes.len(), self.block_bytes)));
        }
        let side = self.kv_dim as usize * COLUMN_BYTES as usize / 2;
        bytes.resize(2 * side, 0);
        let mut builder = EntryBuilder::new(NewEntry {
            fingerprint: Fingerprint::OPAQUE,
            salt: Arc::clone(&self.salt),
            parent: None,
            tokens: id.tokens.into(),
            layers: 1,
            kv_dim: self.kv_dim,
            dtype: KvDtype::F16,
        })?;
        let (k, v) = bytes.split_at(side);
        builder.push_layer(k, v)?;
        builder.finish(compute_us, created_unix_ms)
    }

    /// Whether an entry has the form of this space's blocks.
    ///
    /// # Errors
    /// `Corrupt` if not: under this space's name it can only be a forgery or a fault.
    pub fn check(&self, header: &EntryHeader) -> Result<()> {
        if (header.layers, header.kv_dim, header.dtype) == (1, self.kv_dim, KvDtype::F16) {
            return Ok(());
        }
        let message = format!("entry {} is no block of {} bytes; it will be recomputed", header.key, self.block_bytes);
        Err(Error::corrupt(message))
    }
}

/// The tenant and the digest of a space, out of the salt of its entries.
pub fn parse_salt(salt: &str) -> Option<(&str, [u8; 32])> {
    let (tenant, digits) = salt.rsplit_once('/')?;
    Some((tenant, *blake3::Hash::from_hex(digits).ok()?.as_bytes()))
}

fn words(digest: &[u8; 32], block_bytes: u64, name: &[u8]) -> [u32; WORDS] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(digest).update(&block_bytes.to_le_bytes()).update(name);
    let hash = hasher.finalize();
    let (found, _) = hash.as_bytes().as_chunks::<4>();
    let mut words = [0; WORDS];
    words.iter_mut().zip(found).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
    words
}

#[cfg(test)]
mod tests;
