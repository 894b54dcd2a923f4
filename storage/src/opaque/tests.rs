use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::tier::object::{Codec, ObjectOptions, ObjectTier};
use crate::tier::{EntryTier, Put};
use ragstone_env::Env;

fn space(tenant: &str, digest: u8, block_bytes: u64) -> OpaqueSpace {
    OpaqueSpace::new(tenant, [digest; 32], block_bytes).unwrap()
}

/// Computed by another implementation of BLAKE3 from the drawing of the module.
#[test]
fn golden_key_of_format_1() {
    let id = space("t", 1, 4096).id(b"block");
    assert_eq!(id.key.to_string(), "db51059f0c79af978c02cf0eee6cf39a2f74abc9a07351e5f0ca621d6c8a0f8c");
}

#[test]
fn whatever_differs_gives_another_key() {
    let ids = [
        space("", 1, 64).id(b"a"),
        space("", 1, 64).id(b"b"),
        space("", 1, 65).id(b"a"),
        space("", 2, 64).id(b"a"),
        space("t", 1, 64).id(b"a"),
    ];
    let keys: HashSet<_> = ids.iter().map(|id| id.key).collect();
    assert_eq!(keys.len(), ids.len());
    // Only the tenant is apart from the tokens.
    let tokens: HashSet<_> = ids.iter().map(|id| id.tokens).collect();
    assert_eq!(tokens.len(), ids.len() - 1);
}

#[test]
fn a_salt_says_whose_space_it_is() {
    for tenant in ["", "a", "a/b", "é/"] {
        let space = space(tenant, 7, 64);
        assert_eq!(parse_salt(space.salt()), Some((tenant, [7; 32])));
    }
    for salt in ["", "tenant", "tenant/", "tenant/0707", &format!("t{}", "07".repeat(32))] {
        assert_eq!(parse_salt(salt), None, "{salt}");
    }
}

#[test]
fn sizes_that_no_block_has_are_refused() {
    for bytes in [0, MOST_BLOCK_BYTES + 1, u64::MAX] {
        assert!(OpaqueSpace::new("", [0; 32], bytes).is_err(), "{bytes}");
    }
    let space = space("", 1, 100);
    assert!(space.entry(&space.id(b"a"), vec![0; 99], 0, 0).is_err());
}

#[test]
fn an_entry_of_another_form_is_no_block() {
    let (one, other) = (space("", 1, 64), space("", 1, 128));
    let entry = one.entry(&one.id(b"a"), vec![7; 64], 0, 0).unwrap();
    one.check(entry.header()).unwrap();
    assert_eq!(other.check(entry.header()).unwrap_err().kind(), crate::ErrorKind::Corrupt);
}

#[test]
fn opaque_blocks_are_never_rounded() {
    let object = ObjectOptions { codec: Codec::Q8, ..ObjectOptions::new("memory://opaque-q8") };
    let tier = ObjectTier::open(&object, Fingerprint::OPAQUE, Env::seeded(1, 0)).unwrap();
    let space = space("", 1, 64);
    let entry = Arc::new(space.entry(&space.id(b"a"), vec![0; 64], 0, 0).unwrap());
    assert_eq!(tier.put(&entry).unwrap(), Put::Refused);
}

proptest! {
    #[test]
    fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let space = space("", 3, bytes.len() as u64);
        let entry = space.entry(&space.id(b"a"), bytes.clone(), 5, 6).unwrap();
        let row = EntryHeader::decode(&entry.header().encode(), &entry.header().key).unwrap();
        let again = Entry::from_frames(Arc::new(row), entry.frames().to_vec()).unwrap();
        let frame = again.layer(0).unwrap();
        let mut back = [&frame.k[..], &frame.v[..]].concat();
        prop_assert!(back[bytes.len()..].iter().all(|byte| *byte == 0));
        back.truncate(bytes.len());
        prop_assert_eq!(back, bytes);
    }
}
