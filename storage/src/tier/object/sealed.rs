//! Bytes of sealed objects: what nobody can have written, or changed, who has none of the keys.
//!
//! ```text
//! offset  bytes  field                                        all integers little-endian
//!      0      4  magic "RSKS"
//!      4      2  format version, 1
//!      6      1  codec, as in layout.rs
//!      7      1  seal: 1 = authenticated, 2 = encrypted, too
//!      8      4  layers L
//!     12      4  length of the entry row r as it stands here
//!     16      8  length of the object
//!     24     32  salt, random, of this object alone
//!     56     32  tag of every byte before it: lengths are believed before anything is reserved for them
//!     88      r  the entry row, as in entry.rs; with seal 2 its ciphertext, and 16 bytes of the cipher's tag
//!      …    40L  for each layer: length of its frame u64 | its tag [32]; with seal 2 the cipher's [16], and zeros
//!      …     32  tag of every byte before it
//!      …      …  the frames, in the order of layers, nothing between or after them; with seal 2 their ciphertexts
//! ```
//! `seal.rs` says by which keys. The header's tag binds name, model, tokens, codec, and each frame's place, length and tag; a frame is
//! opened by its own tag when it leaves the tier, so that no other has to be there. Nodes of the version before look for none of these names.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::Codec;
use super::layout::{Layout, MOST_HEADER_BYTES, Promise, check_size};
use super::names::{Name, Names, Space};
use super::seal::{FrameSeal, ObjectSeal, SALT_BYTES, Salt, Seal, TAG_BYTES, Tag};
use crate::entry::EntryHeader;
use crate::frame::u64_at;
use crate::key::KvKey;
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"RSKS";
const VERSION: u16 = 1;
const SALT_AT: usize = 24;
const LENGTHS_END: usize = SALT_AT + SALT_BYTES;
/// What has to be read to know how long the header is.
pub(super) const FIXED_BYTES: usize = LENGTHS_END + TAG_BYTES;
const PLACE_BYTES: usize = 8 + TAG_BYTES;

/// The pieces of an object, in order: its header and the frames. `frames` are as the codec writes them, `name` the one that it will have.
///
/// # Errors
/// `InvalidInput` if the entry is too large for an object, or the name is not under a key of `names`.
pub(super) fn encode(
    header: &EntryHeader,
    codec: Codec,
    frames: Vec<Bytes>,
    (names, name): (&Names, &Name),
    (kind, salt): (Seal, &Salt),
) -> Result<Vec<Bytes>> {
    let key = names.key_of(name.room).ok_or_else(|| Error::invalid_input(format!("{name}: there is no such key")))?;
    let seal = ObjectSeal::new(key, name, salt, kind);
    let row = seal.close_row(&header.encode())?;
    let header_bytes = (FIXED_BYTES + row.len() + PLACE_BYTES * header.layers as usize + TAG_BYTES) as u64;
    check_size(header, header_bytes)?;
    let object_bytes = header_bytes + frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
    let mut out = BytesMut::with_capacity(header_bytes as usize);
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u8(codec.code());
    out.put_u8(kind.code());
    out.put_u32_le(header.layers);
    out.put_u32_le(row.len() as u32);
    out.put_u64_le(object_bytes);
    out.put_slice(salt);
    let tag = seal.head_tag(&out);
    out.put_slice(&tag);
    out.put_slice(&row);
    let mut pieces = vec![Bytes::new()];
    for (layer, frame) in (0..).zip(frames) {
        let (frame, tag) = seal.close_frame(layer, frame)?;
        out.put_u64_le(frame.len() as u64);
        out.put_slice(&tag);
        pieces.push(frame);
    }
    let tag = seal.head_tag(&out);
    out.put_slice(&tag);
    pieces[0] = out.freeze();
    Ok(pieces)
}

/// What the first bytes of an object of `object_bytes` promise, which whoever has a key of `names` wrote under `name`.
///
/// # Errors
/// `Corrupt` if nobody with such a key did, or it is of another version: those have names of their own.
pub(super) fn promise(start: &[u8], object_bytes: u64, (names, name): (&Names, &Name)) -> Result<Promise> {
    let corrupt = |what: &str| Error::corrupt(format!("the object of {name}: {what}; it will be recomputed"));
    let Some(fixed) = start.get(..FIXED_BYTES) else { return Err(corrupt("too short")) };
    if fixed[..4] != MAGIC || fixed[4..6] != VERSION.to_le_bytes() {
        return Err(corrupt("it is no sealed entry that this version knows"));
    }
    let seal = seal_of(fixed, names, name).ok_or_else(|| corrupt("it is sealed in no way that this version knows"))?;
    if !seal.fits_head(&fixed[..LENGTHS_END], &fixed[LENGTHS_END..]) {
        return Err(corrupt("it was not sealed by this key under this name, or changed since"));
    }
    let lengths = u64::from(u32_at(fixed, 12)) + PLACE_BYTES as u64 * u64::from(u32_at(fixed, 8));
    let header_bytes = (FIXED_BYTES + TAG_BYTES) as u64 + lengths;
    if header_bytes > object_bytes.min(MOST_HEADER_BYTES) {
        return Err(corrupt("its header would be longer than it is"));
    }
    if u64_at(fixed, 16) != object_bytes {
        return Err(corrupt(&format!("it has {object_bytes} bytes, {} were sealed", u64_at(fixed, 16))));
    }
    Ok(Promise { header_bytes, object_bytes })
}

/// Opens a whole header that was read under `name`. `bytes` are those that [`promise`] announced.
///
/// # Errors
/// `Corrupt` on any difference from what [`encode`] wrote under this name.
pub(super) fn decode(bytes: &[u8], promise: &Promise, (names, name): (&Names, &Name)) -> Result<Layout> {
    let corrupt = |what: &str| Error::corrupt(format!("the header of {name}: {what}; it will be recomputed"));
    if bytes.len() as u64 != promise.header_bytes || bytes.len() < FIXED_BYTES + TAG_BYTES {
        return Err(corrupt("another length than it promises"));
    }
    let seal = seal_of(bytes, names, name).ok_or_else(|| corrupt("it is sealed in no way that this version knows"))?;
    let (body, tag) = bytes.split_at(bytes.len() - TAG_BYTES);
    if !seal.fits_head(body, tag) {
        return Err(corrupt("it was not sealed by this key under this name, or changed since"));
    }
    // From here on, whoever has the key wrote it: what is wrong now is a fault of theirs.
    let codec = Codec::of_code(body[6]).filter(|codec| Space::of(*codec) == name.room.space);
    let codec = codec.ok_or_else(|| corrupt("the codec does not belong here"))?;
    let layers = u32_at(body, 8);
    let places_at = FIXED_BYTES.checked_add(u32_at(body, 12) as usize).filter(|at| *at <= body.len());
    let (row, places) =
        places_at.map(|at| (&body[FIXED_BYTES..at], &body[at..])).ok_or_else(|| corrupt("no room for its row"))?;
    if places.len() as u64 != PLACE_BYTES as u64 * u64::from(layers) {
        return Err(corrupt("it has other places than layers"));
    }
    let row = seal.open_row(row).ok_or_else(|| corrupt("its row does not open"))?;
    let key = row.get(8..40).and_then(|key| <[u8; 32]>::try_from(key).ok()).map(KvKey);
    let header = EntryHeader::decode(&row, &key.ok_or_else(|| corrupt("its row is too short"))?)?;
    if header.layers != layers || !names.is_of(name, &header) {
        return Err(corrupt("it belongs to another entry"));
    }
    let (frames, tags) =
        places_of(places, promise, codec, &header).ok_or_else(|| corrupt("its frames do not fill it"))?;
    Ok(Layout { header: Arc::new(header), codec, frames, seal: Some(Arc::new(FrameSeal { seal, tags })) })
}

fn places_of(
    places: &[u8],
    promise: &Promise,
    codec: Codec,
    header: &EntryHeader,
) -> Option<(Vec<Range<u64>>, Vec<Tag>)> {
    let (mut frames, mut tags, mut at) = (Vec::new(), Vec::new(), promise.header_bytes);
    for place in places.chunks_exact(PLACE_BYTES) {
        let length = u64_at(place, 0);
        let end = at.checked_add(length).filter(|_| codec.can_have(length, header))?;
        frames.push(at..end);
        tags.push(place[8..].try_into().ok()?);
        at = end;
    }
    (at == promise.object_bytes).then_some((frames, tags))
}

/// What a header says that it is sealed by; `start` has its fixed part.
fn seal_of(start: &[u8], names: &Names, name: &Name) -> Option<ObjectSeal> {
    let salt = start.get(SALT_AT..LENGTHS_END)?.try_into().ok()?;
    Some(ObjectSeal::new(names.key_of(name.room)?, name, &salt, Seal::of_code(*start.get(7)?)?))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
