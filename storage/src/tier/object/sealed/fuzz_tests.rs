//! Objects of any content: those that nobody sealed, and those that somebody did who has the key and means no good.

use super::tests::{KINDS, encoded, name_of, names};
use super::*;
use crate::entry::tests::entry_behind;
use crate::fuzz::fuzz;

/// Puts tags that fit to what was changed.
fn sealed_again(bytes: &mut [u8], name: &Name) -> Option<()> {
    let length = bytes.len() as u64;
    bytes.get_mut(16..24)?.copy_from_slice(&length.to_le_bytes());
    let seal = seal_of(bytes.get(..FIXED_BYTES)?, &names(), name)?;
    let tag = seal.head_tag(&bytes[..LENGTHS_END]);
    bytes[LENGTHS_END..FIXED_BYTES].copy_from_slice(&tag);
    let promise = promise(bytes, length, (&names(), name)).ok()?;
    let end = promise.header_bytes as usize;
    let tag = seal.head_tag(&bytes[..end - TAG_BYTES]);
    bytes[end - TAG_BYTES..end].copy_from_slice(&tag);
    Some(())
}

/// As it stands it is refused, unless it was sealed so; with tags that fit its frames lie side by side in the object.
fn holds(input: &[u8], whole: &[Vec<u8>], name: &Name) -> bool {
    let names = names();
    let mut understood = false;
    if let Ok(promise) = promise(input, input.len() as u64, (&names, name))
        && decode(&input[..promise.header_bytes as usize], &promise, (&names, name)).is_ok()
    {
        let header = &input[..promise.header_bytes as usize];
        assert!(whole.iter().any(|bytes| bytes.starts_with(header)), "a header that nobody sealed");
        understood = true;
    }
    let mut bytes = input.to_vec();
    if sealed_again(&mut bytes, name).is_none() {
        return understood;
    }
    let Ok(promise) = promise(&bytes, bytes.len() as u64, (&names, name)) else { return understood };
    let Ok(layout) = decode(&bytes[..promise.header_bytes as usize], &promise, (&names, name)) else {
        return understood;
    };
    let mut at = promise.header_bytes;
    for (layer, place) in (0..).zip(&layout.frames) {
        assert!(place.start == at && place.end <= bytes.len() as u64);
        at = place.end;
        let stored = Bytes::copy_from_slice(&bytes[place.start as usize..place.end as usize]);
        if let Some(frame) = layout.seal.as_ref().and_then(|seal| seal.open(layer, stored)) {
            drop(layout.codec.decode(&layout.header, layer, frame));
        }
    }
    assert_eq!(at, bytes.len() as u64);
    true
}

#[test]
fn any_object_is_refused_or_was_sealed() {
    let entry = entry_behind(Some(KvKey([9; 32])), &[1, 2, 3]);
    let name = name_of(&entry, Codec::Plain);
    let seeds: Vec<Vec<u8>> = [Codec::Plain, Codec::Zstd]
        .into_iter()
        .flat_map(|codec| KINDS.map(|kind| encoded(&entry, codec, kind).concat()))
        .collect();
    fuzz("sealed object", &seeds, |input| holds(input, &seeds, &name));
}
