//! Objects of any content.

use super::super::names::Room;
use super::*;
use crate::entry::Entry;
use crate::entry::tests::{MODEL, entry_behind};
use crate::fuzz::fuzz;

const CODECS: [Codec; 3] = [Codec::Plain, Codec::Zstd, Codec::Q8];

fn entry() -> Entry {
    entry_behind(Some(KvKey([9; 32])), &[1, 2, 3])
}

fn encoded(codec: Codec) -> Vec<u8> {
    encode(entry().header(), codec, codec.encode(&entry()).unwrap()).unwrap().concat()
}

fn name(codec: Codec) -> Name {
    Name { room: Room { space: Space::of(codec), key: None }, fingerprint: MODEL, id: entry().header().id() }
}

fn seal(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(CHECKSUM_BYTES) {
        let checksum = XxHash3_64::oneshot(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// What is understood has its frames side by side in the object, and each frame is refused or one of the entry's. A header
/// whose sums do not fit is tried again with those that do. `other` is what an object promised that was read before.
fn holds(input: &[u8], other: &Promise) -> bool {
    let key = name(Codec::Plain).id.key;
    let mut bytes = input.to_vec();
    if bytes.len() >= FIXED_BYTES {
        let length = bytes.len() as u64;
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
    }
    drop(promise(input, input.len() as u64, &key));
    let Ok(promise) = promise(&bytes, bytes.len() as u64, &key) else { return false };
    let header = &mut bytes[..promise.header_bytes as usize];
    let row = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
    seal(&mut header[FIXED_BYTES..FIXED_BYTES + row]);
    seal(header);
    let mut understood = false;
    for codec in CODECS {
        let name = name(codec);
        drop(decode(&bytes[..bytes.len().min(other.header_bytes as usize)], other, &name));
        let Ok(layout) = decode(&bytes[..promise.header_bytes as usize], &promise, &name) else { continue };
        understood = true;
        let mut at = promise.header_bytes;
        for (layer, place) in (0..).zip(&layout.frames) {
            assert!(place.start == at && place.end <= bytes.len() as u64);
            at = place.end;
            let stored = Bytes::copy_from_slice(&bytes[place.start as usize..place.end as usize]);
            if let Ok(frame) = layout.codec.decode(&layout.header, layer, stored) {
                drop(crate::frame::decode(&frame, &key, layer, &layout.header.frame_shape()));
            }
        }
        assert_eq!(at, bytes.len() as u64);
    }
    understood
}

#[test]
fn any_object_is_refused_or_holds_together() {
    let seeds: Vec<Vec<u8>> = CODECS.iter().map(|codec| encoded(*codec)).collect();
    let other = promise(&seeds[0], seeds[0].len() as u64, &name(Codec::Plain).id.key).unwrap();
    fuzz("object", &seeds, |input| holds(input, &other));
}

/// A bucket that gives other bytes when it is asked again: more layers than there is room for.
#[test]
fn a_header_that_is_not_the_one_that_was_promised_is_refused() {
    let bytes = encoded(Codec::Plain);
    let name = name(Codec::Plain);
    let promise = promise(&bytes, bytes.len() as u64, &name.id.key).unwrap();
    for layers in [4, 100, u32::MAX] {
        let mut header = bytes[..promise.header_bytes as usize].to_vec();
        header[8..12].copy_from_slice(&layers.to_le_bytes());
        seal(&mut header);
        assert_eq!(decode(&header, &promise, &name).unwrap_err().kind(), crate::ErrorKind::Corrupt, "{layers}");
    }
}
