//! Bytes of objects that are not sealed; `sealed.rs` has the others.
//!
//! ```text
//! offset  bytes  field                                        all integers little-endian
//!      0      4  magic "RSKO"
//!      4      2  format version, 1
//!      6      1  codec: 0 = frames as they are, 1 = zstd, 2 = 8-bit
//!      7      1  zero
//!      8      4  layers L
//!     12      4  length of the entry row r
//!     16      8  length of the object
//!     24      r  the entry row, as in entry.rs
//!      …    16L  for each layer: offset of its frame in the object u64 | length u64
//!      …      8  XXH3-64 (seed 0) of every byte before it
//!      …      …  the frames, in the order of layers, nothing between or after them
//! ```
//! A frame stands as in frame.rs, or as its codec writes it; each has a checksum of its own.

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use twox_hash::XxHash3_64;

use super::codec::Codec;
use super::names::{Name, Space};
use super::seal::FrameSeal;
use crate::entry::EntryHeader;
use crate::frame::{CHECKSUM_BYTES, u64_at};
use crate::key::KvKey;
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"RSKO";
const VERSION: u16 = 1;
/// What has to be read to know how long the header is.
pub(super) const FIXED_BYTES: usize = 24;
const PLACE_BYTES: usize = 16;
/// No header is longer: two million tokens. It is held before anything of it is known to be true.
pub(super) const MOST_HEADER_BYTES: u64 = 8 << 20;

/// A header that was read and believed.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub header: Arc<EntryHeader>,
    pub codec: Codec,
    /// Where each layer's frame is; one begins where the last ends.
    pub frames: Vec<Range<u64>>,
    /// What opens them, if the object is sealed.
    pub seal: Option<Arc<FrameSeal>>,
}

/// What the first bytes of an object promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    pub header_bytes: u64,
    pub object_bytes: u64,
}

/// Whether an entry with a header of so many bytes can be an object.
///
/// # Errors
/// `InvalidInput` if it is too large for one.
pub(super) fn check_size(header: &EntryHeader, header_bytes: u64) -> Result<()> {
    let shape_bytes = header.frame_shape().frame_bytes();
    if header_bytes > MOST_HEADER_BYTES || shape_bytes.is_none_or(|bytes| bytes > super::codec::MOST_FRAME_BYTES) {
        return Err(Error::invalid_input(format!("entry {} is too large for an object", header.key)));
    }
    Ok(())
}

/// The pieces of an object, in order: its header and the frames, which are as the codec writes them.
///
/// # Errors
/// `InvalidInput` if the entry is too large for an object.
pub(super) fn encode(header: &EntryHeader, codec: Codec, frames: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let row = header.encode();
    let header_bytes = (FIXED_BYTES + row.len() + PLACE_BYTES * header.layers as usize + CHECKSUM_BYTES) as u64;
    check_size(header, header_bytes)?;
    let object_bytes = header_bytes + frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
    let mut out = BytesMut::with_capacity(header_bytes as usize);
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u8(codec.code());
    out.put_u8(0);
    out.put_u32_le(header.layers);
    out.put_u32_le(row.len() as u32);
    out.put_u64_le(object_bytes);
    out.put_slice(&row);
    let mut at = header_bytes;
    for frame in &frames {
        out.put_u64_le(at);
        out.put_u64_le(frame.len() as u64);
        at += frame.len() as u64;
    }
    let checksum = XxHash3_64::oneshot(&out);
    out.put_u64_le(checksum);
    Ok(std::iter::once(out.freeze()).chain(frames).collect())
}

/// What the first bytes of an object of `object_bytes` promise; nothing of it is verified but that it can be true.
///
/// # Errors
/// `Corrupt` if it cannot, or is of another version: those have names of their own.
pub(super) fn promise(start: &[u8], object_bytes: u64, key: &KvKey) -> Result<Promise> {
    let corrupt = |what: &str| Error::corrupt(format!("the object of entry {key}: {what}"));
    if start.len() < FIXED_BYTES {
        return Err(corrupt("too short"));
    }
    let u32_at = |at: usize| u64::from(u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]));
    if start[..4] != MAGIC {
        return Err(corrupt("it is no entry"));
    }
    if start[4..6] != VERSION.to_le_bytes() {
        return Err(corrupt("it is of a format that this version does not know"));
    }
    let header_bytes = FIXED_BYTES as u64 + u32_at(12) + PLACE_BYTES as u64 * u32_at(8) + CHECKSUM_BYTES as u64;
    if header_bytes > object_bytes.min(MOST_HEADER_BYTES) {
        return Err(corrupt("its header would be longer than it is"));
    }
    if u64_at(start, 16) != object_bytes {
        return Err(corrupt(&format!("it has {object_bytes} bytes, {} were written", u64_at(start, 16))));
    }
    Ok(Promise { header_bytes, object_bytes })
}

/// Verifies a whole header that was read under `name`. `bytes` are those that [`promise`] announced.
///
/// # Errors
/// `Corrupt` on any difference from what [`encode`] wrote, or if it is another entry's.
pub(super) fn decode(bytes: &[u8], promise: &Promise, name: &Name) -> Result<Layout> {
    let key = &name.id.key;
    let corrupt = |what: &str| Error::corrupt(format!("the header of the object of entry {key}: {what}"));
    if bytes.len() as u64 != promise.header_bytes {
        return Err(corrupt("another length than it promises"));
    }
    let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    if XxHash3_64::oneshot(body) != u64_at(checksum, 0) {
        return Err(corrupt("the checksum does not match"));
    }
    let codec = Codec::of_code(body[6]).filter(|codec| body[7] == 0 && Space::of(*codec) == name.room.space);
    let codec = codec.ok_or_else(|| corrupt("the codec does not belong here"))?;
    let layers = u32::from_le_bytes([body[8], body[9], body[10], body[11]]);
    let places_at = body.len().checked_sub(PLACE_BYTES.saturating_mul(layers as usize));
    // What was promised may have been read from other bytes.
    let row = places_at.and_then(|places_at| body.get(FIXED_BYTES..places_at));
    let row = row.ok_or_else(|| corrupt("its places would be longer than it is"))?;
    let header = EntryHeader::decode(row, key)?;
    if header.layers != layers || header.fingerprint != name.fingerprint || header.segment() != name.id.segment {
        return Err(corrupt("it belongs to another entry"));
    }
    let mut frames = Vec::with_capacity(layers as usize);
    let mut at = promise.header_bytes;
    for place in body[FIXED_BYTES + row.len()..].chunks_exact(PLACE_BYTES) {
        let (offset, length) = (u64_at(place, 0), u64_at(place, 8));
        let end = offset.checked_add(length).filter(|_| offset == at && codec.can_have(length, &header));
        at = end.ok_or_else(|| corrupt("a frame lies where none can be"))?;
        frames.push(offset..at);
    }
    if at != promise.object_bytes {
        return Err(corrupt("the frames do not fill the object"));
    }
    Ok(Layout { header: Arc::new(header), codec, frames, seal: None })
}

#[cfg(test)]
mod fuzz_tests;

#[cfg(test)]
mod tests {
    use super::super::names::Room;
    use super::*;
    use crate::ErrorKind;
    use crate::entry::Entry;
    use crate::entry::tests::{LAYERS, MODEL, entry_behind};
    use crate::key::{Fingerprint, SegmentDigest};
    use crate::tier::EntryId;

    fn name_of(entry: &Entry, codec: Codec) -> Name {
        Name { room: Room { space: Space::of(codec), key: None }, fingerprint: MODEL, id: entry.header().id() }
    }

    fn encoded(entry: &Entry, codec: Codec) -> Vec<Bytes> {
        encode(entry.header(), codec, codec.encode(entry).unwrap()).unwrap()
    }

    fn read(bytes: &[u8], name: &Name) -> Result<Layout> {
        let promise = promise(bytes, bytes.len() as u64, &name.id.key)?;
        decode(&bytes[..promise.header_bytes as usize], &promise, name)
    }

    /// From the drawing at the top; the checksum is that of a header written by Python with the packages blake3 and xxhash.
    #[test]
    fn golden_bytes() {
        let entry = entry_behind(None, &[1, 2]);
        let pieces = encoded(&entry, Codec::Plain);
        let header = &pieces[0];
        let row = entry.header().encode();
        let frame_bytes = 80 + 8 * 2 * 4;
        let header_bytes = 24 + row.len() as u64 + 16 * u64::from(LAYERS) + 8;
        let mut drawn = b"RSKO\x01\x00\x00\x00\x03\x00\x00\x00".to_vec();
        drawn.extend((row.len() as u32).to_le_bytes());
        drawn.extend((header_bytes + 3 * frame_bytes).to_le_bytes());
        drawn.extend(&row);
        for layer in 0..3 {
            drawn.extend((header_bytes + layer * frame_bytes).to_le_bytes());
            drawn.extend(frame_bytes.to_le_bytes());
        }
        assert_eq!(header[..header.len() - 8], drawn);
        assert_eq!(u64_at(header, header.len() - 8), 0x18C5_408C_B744_A819);
        assert_eq!(header.len(), 232);
        assert_eq!(&pieces[1..], entry.frames());
    }

    #[test]
    fn every_flipped_byte_of_a_header_and_every_truncation_is_noticed() {
        for codec in [Codec::Plain, Codec::Zstd, Codec::Q8] {
            let entry = entry_behind(Some(KvKey([9; 32])), &[1, 2, 3]);
            let name = name_of(&entry, codec);
            let bytes = encoded(&entry, codec).concat();
            let layout = read(&bytes, &name).unwrap();
            assert_eq!((&layout.header, layout.codec), (entry.header(), codec));
            assert_eq!(layout.frames.last().unwrap().end, bytes.len() as u64);
            for at in 0..layout.frames[0].start as usize {
                for mask in [0x01, 0x80] {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= mask;
                    assert!(read(&damaged, &name).is_err(), "{codec:?}: byte {at}");
                }
            }
            for length in 0..bytes.len() {
                assert!(read(&bytes[..length], &name).is_err(), "{codec:?}: {length} bytes");
            }
            assert!(read(&[&bytes[..], &[0]].concat(), &name).is_err(), "a byte too many");
        }
    }

    /// Headers whose checksum is right and whose content is not.
    #[test]
    fn what_checks_and_lies_is_noticed() {
        let entry = entry_behind(None, &[1, 2]);
        let other = entry_behind(None, &[1, 3]);
        let name = name_of(&entry, Codec::Plain);
        let bytes = encoded(&entry, Codec::Plain).concat();
        let header_bytes = read(&bytes, &name).unwrap().frames[0].start as usize;
        let places_at = header_bytes - 8 - 16 * LAYERS as usize;
        let changed = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            let checksum = XxHash3_64::oneshot(&bytes[..header_bytes - 8]);
            bytes[header_bytes - 8..header_bytes].copy_from_slice(&checksum.to_le_bytes());
            read(&bytes, &name)
        };
        assert!(changed(&|_| {}).is_ok());
        assert!(changed(&|bytes| bytes[6] = 2).is_err(), "a lossy object among the exact ones");
        assert!(changed(&|bytes| bytes[6] = 7).is_err(), "an unknown codec");
        assert!(changed(&|bytes| bytes[7] = 1).is_err());
        assert_eq!(changed(&|bytes| bytes[4] = 2).unwrap_err().kind(), ErrorKind::Corrupt, "a newer version");
        assert!(changed(&|bytes| bytes[places_at] ^= 1).is_err(), "frames that overlap");
        assert!(changed(&|bytes| bytes[places_at + 8] ^= 1).is_err(), "a frame of another length");
        assert!(changed(&|bytes| bytes[places_at + 8..places_at + 16].fill(0xFF)).is_err(), "an end beyond 64 bits");
        let of_other = encoded(&other, Codec::Plain).concat();
        assert!(read(&of_other, &name).is_err(), "another entry under the name");
        for wrong in [
            Name { fingerprint: Fingerprint([3; 32]), ..name },
            Name { id: EntryId { segment: SegmentDigest([0; 16]), ..name.id }, ..name },
            Name { room: Room { space: Space::Lossy, key: None }, ..name },
        ] {
            assert!(read(&bytes, &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_header_cannot_ask_for_more_than_the_object_holds() {
        let entry = entry_behind(None, &[1, 2]);
        let bytes = encoded(&entry, Codec::Plain).concat();
        for at in [8, 12] {
            let mut damaged = bytes.clone();
            damaged[at..at + 4].fill(0xFF);
            let refused = promise(&damaged, bytes.len() as u64, &entry.header().key);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
