use bytes::Bytes;
use object_store::path::Path;

use super::super::keys::ObjectKeys;
use super::super::names::Room;
use super::*;
use crate::ErrorKind;
use crate::entry::Entry;
use crate::entry::tests::{MODEL, entry_behind};

pub(super) const SALT: Salt = [3; SALT_BYTES];
pub(super) const KINDS: [Seal; 2] = [Seal::Authenticated, Seal::Encrypted];

pub(super) fn names() -> Names {
    Names::new(Path::from("kv"), ObjectKeys::of(&[secret(), [9; 32]]), false)
}

fn secret() -> [u8; 32] {
    std::array::from_fn(|at| at as u8)
}

pub(super) fn name_of(entry: &Entry, codec: Codec) -> Name {
    names().name(names().written(Space::of(codec)), &MODEL, &entry.header().id())
}

pub(super) fn encoded(entry: &Entry, codec: Codec, kind: Seal) -> Vec<Bytes> {
    let frames = codec.encode(entry).unwrap();
    encode(entry.header(), codec, frames, (&names(), &name_of(entry, codec)), (kind, &SALT)).unwrap()
}

pub(super) fn read(bytes: &[u8], name: &Name) -> Result<Layout> {
    let names = names();
    let promise = promise(bytes, bytes.len() as u64, (&names, name))?;
    decode(&bytes[..promise.header_bytes as usize], &promise, (&names, name))
}

/// The frames as the codec wrote them.
fn frames(bytes: &[u8], layout: &Layout) -> Vec<Option<Bytes>> {
    let seal = layout.seal.as_ref().unwrap();
    let piece = |place: &Range<u64>| Bytes::copy_from_slice(&bytes[place.start as usize..place.end as usize]);
    (0..).zip(&layout.frames).map(|(layer, place)| seal.open(layer, piece(place))).collect()
}

fn entry() -> Entry {
    entry_behind(Some(KvKey([9; 32])), &[1, 2, 3])
}

#[test]
fn what_was_sealed_opens() {
    for (codec, kind) in
        [Codec::Plain, Codec::Zstd, Codec::Q8].into_iter().flat_map(|codec| KINDS.map(|kind| (codec, kind)))
    {
        let entry = entry();
        let bytes = encoded(&entry, codec, kind).concat();
        let layout = read(&bytes, &name_of(&entry, codec)).unwrap();
        assert_eq!((&layout.header, layout.codec), (entry.header(), codec));
        let wanted: Vec<_> = codec.encode(&entry).unwrap().into_iter().map(Some).collect();
        assert_eq!(frames(&bytes, &layout), wanted, "{codec:?} {kind:?}");
        let row = entry.header().encode();
        assert_eq!(bytes.windows(row.len()).any(|window| window == row), kind == Seal::Authenticated, "{codec:?}");
    }
}

#[test]
fn every_flipped_byte_and_every_truncation_is_noticed() {
    for kind in KINDS {
        let entry = entry();
        let name = name_of(&entry, Codec::Plain);
        let bytes = encoded(&entry, Codec::Plain, kind).concat();
        let header_bytes = read(&bytes, &name).unwrap().frames[0].start as usize;
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x04;
            match read(&changed, &name) {
                Err(error) => assert!(at < header_bytes && error.kind() == ErrorKind::Corrupt, "{kind:?}: byte {at}"),
                Ok(layout) => {
                    let bad = frames(&changed, &layout).iter().filter(|frame| frame.is_none()).count();
                    assert!(at >= header_bytes && bad == 1, "{kind:?}: byte {at}");
                }
            }
        }
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length], &name).is_err(), "{kind:?}: {length} bytes");
        }
        assert!(read(&[&bytes[..], &[0]].concat(), &name).is_err(), "a byte too many");
    }
}

/// All of it is whole, sealed by this very key, and in another place than it was sealed for.
#[test]
fn what_is_sealed_for_another_place_does_not_open() {
    for kind in KINDS {
        let (entry, other) = (entry(), entry_behind(None, &[1, 3]));
        let name = name_of(&entry, Codec::Plain);
        let bytes = encoded(&entry, Codec::Plain, kind).concat();
        assert!(read(&encoded(&other, Codec::Plain, kind).concat(), &name).is_err(), "another entry");
        let second = names().keys().iter().nth(1).unwrap().number;
        let room = |space, key| names().name(Room { space, key: Some(key) }, &MODEL, &entry.header().id());
        assert!(read(&bytes, &room(Space::Exact, second)).is_err(), "another key's name");
        assert!(read(&bytes, &room(Space::Lossy, name.room.key.unwrap())).is_err(), "among the lossy ones");
        let under = |name: &Name, salt| {
            encode(entry.header(), Codec::Plain, Codec::Plain.encode(&entry).unwrap(), (&names(), name), (kind, salt))
        };
        let again = under(&name, &[4; SALT_BYTES]).unwrap().concat();
        let layout = read(&again, &name).unwrap();
        let start = layout.frames[0].start as usize;
        let spliced = [&again[..start], &bytes[start..]].concat();
        if kind == Seal::Encrypted {
            assert!(
                frames(&spliced, &read(&spliced, &name).unwrap()).iter().all(Option::is_none),
                "frames of another sealing"
            );
        }
        // Layers that change their places, which are as long as each other.
        let (first, second) = (layout.frames[0].clone(), layout.frames[1].clone());
        let piece = |place: &Range<u64>| &again[place.start as usize..place.end as usize];
        let swapped = [&again[..start], piece(&second), piece(&first), &again[second.end as usize..]].concat();
        let opened = frames(&swapped, &read(&swapped, &name).unwrap());
        assert_eq!(opened.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
        // Plain and encrypted ones are sealed by other keys, too.
        let mut downgraded = bytes.clone();
        downgraded[7] = 3 - downgraded[7];
        assert!(read(&downgraded, &name).is_err());
    }
}

/// What an entry says of another key, and a lossy codec: only somebody with the key can have written that.
#[test]
fn a_fault_of_somebody_with_the_key_is_noticed() {
    let (entry, other) = (entry(), entry_behind(None, &[1, 3]));
    let name = name_of(&entry, Codec::Plain);
    let sealed = |header: &EntryHeader, codec: Codec, frames| {
        let bytes = encode(header, codec, frames, (&names(), &name), (Seal::Authenticated, &SALT)).unwrap().concat();
        read(&bytes, &name).unwrap_err().kind()
    };
    let whole = Codec::Plain.encode(&entry).unwrap();
    assert_eq!(sealed(other.header(), Codec::Plain, Codec::Plain.encode(&other).unwrap()), ErrorKind::Corrupt);
    assert_eq!(sealed(entry.header(), Codec::Q8, Codec::Q8.encode(&entry).unwrap()), ErrorKind::Corrupt);
    assert_eq!(sealed(entry.header(), Codec::Plain, whole[..2].to_vec()), ErrorKind::Corrupt);
    let short = vec![whole[0].clone(), whole[1].slice(1..), whole[2].clone()];
    assert_eq!(sealed(entry.header(), Codec::Plain, short), ErrorKind::Corrupt);
}

/// Lengths are believed only of who has the key, before anything is reserved.
#[test]
fn a_header_cannot_ask_for_more_than_was_sealed() {
    let entry = entry();
    let name = name_of(&entry, Codec::Plain);
    let bytes = encoded(&entry, Codec::Plain, Seal::Authenticated).concat();
    for at in [8, 12, 16] {
        let mut changed = bytes.clone();
        changed[at..at + 4].fill(0xFF);
        assert_eq!(promise(&changed, bytes.len() as u64, (&names(), &name)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(promise(&bytes, u64::MAX, (&names(), &name)).is_err(), "a bucket that says another length");
}

/// Written from the drawings by ops/fixtures/sealed_object.py, with other implementations of the primitives.
#[test]
fn golden_bytes() {
    let entry = entry_behind(None, &[1, 2]);
    let digest = |kind| {
        let bytes = encoded(&entry, Codec::Plain, kind).concat();
        (bytes.len(), blake3::hash(&bytes).to_hex()[..32].to_owned())
    };
    assert_eq!(
        names().object(&name_of(&entry, Codec::Plain)).as_ref(),
        "kv/s1/67433ede89ab8637/d0b297b2170b48a3d17493d8a6c3a92dfea15f178ed000f9e9cce7f45ccf4707/\
         a1103f2064468eb4b91b5fcd11531413/060d45cd51818515f9c5907ad7be07fa92c12e9ed3a8a846653872de6f25d832"
    );
    assert_eq!(digest(Seal::Authenticated), (824, "7fddaef3837c2c3d1ddf6e85fbd7218a".to_owned()));
    assert_eq!(digest(Seal::Encrypted), (840, "8e776150fbc1808ef94c2075642b0b10".to_owned()));
}
