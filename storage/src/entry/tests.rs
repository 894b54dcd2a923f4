use super::*;
use crate::ErrorKind;

/// The model of the crate's tests.
pub(crate) const MODEL: Fingerprint = Fingerprint([0x11; 32]);
pub(crate) const LAYERS: u32 = 3;
const KV_DIM: u32 = 4;

/// An entry of `tokens` behind `parent` whose values follow from its key, so that a mix-up is seen.
pub(crate) fn entry_behind(parent: Option<KvKey>, tokens: &[u32]) -> Entry {
    entry_of_width(parent, tokens, KV_DIM)
}

/// The same with rows of `kv_dim` f32 values: a frame has `80 + 8 * tokens * kv_dim` bytes.
pub(crate) fn entry_of_width(parent: Option<KvKey>, tokens: &[u32], kv_dim: u32) -> Entry {
    let new = NewEntry {
        fingerprint: MODEL,
        salt: "".into(),
        parent,
        tokens: tokens.into(),
        layers: LAYERS,
        kv_dim,
        dtype: KvDtype::F32,
    };
    let mut builder = EntryBuilder::new(new).unwrap();
    let key = *builder.key();
    for layer in 0..LAYERS {
        let (k, v) = expected_layer(&key, layer, tokens.len() * kv_dim as usize * 4);
        builder.push_layer(&k, &v).unwrap();
    }
    builder.finish(1_500, 1_000).unwrap()
}

/// What the test entries hold in a layer.
pub(crate) fn expected_layer(key: &KvKey, layer: u32, bytes: usize) -> (Vec<u8>, Vec<u8>) {
    // A bit of each number's exponent is left out: what is not finite is no entry.
    let mask = |i: usize| if i % 2 == 1 { 0xBF } else { 0xFF };
    let byte = |i: usize, side: u8| (key.0[i % 32] ^ (layer as u8) ^ side ^ ((i / 32) as u8)) & mask(i);
    ((0..bytes).map(|i| byte(i, 0)).collect(), (0..bytes).map(|i| byte(i, 0x80)).collect())
}

fn header() -> EntryHeader {
    let parent = KvKey([0x22; 32]);
    let tokens: Arc<[u32]> = [1, 2, 0x01020304].into();
    EntryHeader {
        key: KvKey::derive(&MODEL, "né", Some(&parent), &tokens),
        parent: Some(parent),
        fingerprint: MODEL,
        salt: "né".into(),
        tokens,
        layers: 24,
        kv_dim: 128,
        dtype: KvDtype::Bf16,
        compute_us: 1_234_567,
        created_unix_ms: 1_700_000_000_123,
    }
}

fn assert_corrupt(bytes: &[u8], what: &str) {
    let error = EntryHeader::decode(bytes, &header().key).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
}

fn with_checksum(mut body: Vec<u8>) -> Vec<u8> {
    let checksum = XxHash3_64::oneshot(&body);
    body.extend(checksum.to_le_bytes());
    body
}

#[test]
fn golden_bytes_of_format_1() {
    let hex: String = header().encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = concat!(
        "52534b45",                                                         // magic
        "0100",                                                             // version
        "03",                                                               // bf16
        "01",                                                               // has a parent
        "87a32014b6d4a3a091b11fed327a7c823eec9269da3bbaec088cee8951b76934", // key
        "1111111111111111111111111111111111111111111111111111111111111111", // fingerprint
        "2222222222222222222222222222222222222222222222222222222222222222", // parent
        "18000000",                                                         // layers
        "80000000",                                                         // kv_dim
        "03000000",                                                         // salt length
        "03000000",                                                         // token count
        "87d6120000000000",                                                 // compute_us
        "7b68e5cf8b010000",                                                 // created
        "6ec3a9",                                                           // salt
        "01000000",                                                         // tokens
        "02000000",                                                         //
        "04030201",                                                         //
        "bb59ca31199d2c6a",                                                 // XXH3-64
    );
    assert_eq!(hex, golden);
}

#[test]
fn rows_round_trip() {
    let with_parent = header();
    let row = with_parent.encode();
    assert_eq!(EntryHeader::decode(&row, &with_parent.key).unwrap(), with_parent);
    let alone = entry_behind(None, &[7]);
    let row = alone.header().encode();
    assert_eq!(EntryHeader::decode(&row, &alone.header().key).unwrap(), **alone.header());
    assert_eq!(
        alone.header().total_bytes(),
        row.len() as u64 + alone.frames().iter().map(|f| f.len() as u64).sum::<u64>()
    );
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_row_is_corrupt() {
    let good = header().encode();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1 << bit;
            assert_corrupt(&bytes, &format!("bit {bit} of byte {at}"));
        }
        assert_corrupt(&good[..at], &format!("cut to {at}"));
        assert_corrupt(&good[at + 1..], &format!("first {} bytes gone", at + 1));
    }
    let mut longer = good.to_vec();
    longer.push(0);
    assert_corrupt(&longer, "longer");
}

/// Under a valid checksum: what a bug or another version would write.
#[test]
fn a_row_whose_key_does_not_follow_from_it_is_corrupt() {
    let good = header().encode();
    let body = &good[..good.len() - CHECKSUM_BYTES];
    let not_in_key = 104..112; // layers and kv_dim follow from the fingerprint
    let costs = 120..136;
    for at in (0..body.len()).filter(|at| *at != 6 && !not_in_key.contains(at) && !costs.contains(at)) {
        let mut bytes = body.to_vec();
        bytes[at] ^= 0x04;
        assert_corrupt(&with_checksum(bytes), &format!("byte {at}"));
    }
    for lengths in [[0xFF; 8], [0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F]] {
        let mut bytes = body.to_vec();
        bytes[112..120].copy_from_slice(&lengths);
        assert_corrupt(&with_checksum(bytes), "absurd lengths");
    }
    let other = entry_behind(None, &[7]).header().encode();
    assert_corrupt(&other, "another entry's row");
}

#[test]
fn layers_come_out_as_they_went_in() {
    let entry = entry_behind(None, &[1, 2]);
    for layer in 0..LAYERS {
        let (k, v) = expected_layer(&entry.header().key, layer, 32);
        let frame = entry.layer(layer).unwrap();
        assert_eq!((&frame.k[..], &frame.v[..]), (&k[..], &v[..]));
    }
    assert_eq!(entry.layer(LAYERS).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn swapped_layers_and_swapped_entries_are_corrupt() {
    let (a, b) = (entry_behind(None, &[1, 2]), entry_behind(None, &[3, 4]));
    let whole = Entry::from_frames(a.header().clone(), a.frames().to_vec()).unwrap();
    assert_eq!(whole.frames(), a.frames());
    let mut swapped = a.frames().to_vec();
    swapped.swap(0, 2);
    let mut foreign = a.frames().to_vec();
    foreign[1] = b.frames()[1].clone();
    let missing = a.frames()[..2].to_vec();
    for frames in [swapped, foreign, missing, b.frames().to_vec()] {
        assert_eq!(Entry::from_frames(a.header().clone(), frames).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let forged = EntryHeader { key: b.header().key, ..(**a.header()).clone() };
    assert_eq!(Entry::from_frames(Arc::new(forged), b.frames().to_vec()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn builders_take_whole_entries_only() {
    let new = |tokens: &[u32], layers, kv_dim| {
        let (salt, tokens) = ("".into(), tokens.into());
        EntryBuilder::new(NewEntry {
            fingerprint: MODEL,
            salt,
            parent: None,
            tokens,
            layers,
            kv_dim,
            dtype: KvDtype::F16,
        })
    };
    for empty in [new(&[], 1, 1), new(&[1], 0, 1), new(&[1], 1, 0)] {
        assert_eq!(empty.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let mut builder = new(&[1], 2, 1).unwrap();
    assert!(builder.push_layer(&[0; 2], &[0; 3]).is_err(), "wrong length");
    builder.push_layer(&[0; 2], &[0; 2]).unwrap();
    assert_eq!(builder.finish(0, 0).unwrap_err().kind(), ErrorKind::InvalidInput, "a layer is missing");
    let mut builder = new(&[1], 1, 1).unwrap();
    builder.push_layer(&[0; 2], &[0; 2]).unwrap();
    assert!(builder.push_layer(&[0; 2], &[0; 2]).is_err(), "a layer too many");
}
