use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

const KEY: KvKey = KvKey([0xAB; 32]);
const SHAPE: FrameShape = FrameShape { tokens: 2, kv_dim: 3, dtype: KvDtype::F16, content: Content::Numbers };

fn sample(key: &KvKey, layer: u32) -> Bytes {
    let k: Vec<u8> = (0..12).collect();
    let v: Vec<u8> = (100..112).collect();
    encode(key, layer, &SHAPE, &k, &v).unwrap()
}

fn assert_corrupt(bytes: Vec<u8>, what: &str) {
    let error = decode(&Bytes::from(bytes), &KEY, 5, &SHAPE).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_format_1() {
    let golden = concat!(
        "52534b46",                                                         // magic
        "0100",                                                             // version
        "02",                                                               // f16
        "00",                                                               //
        "abababababababababababababababababababababababababababababababab", // key
        "05000000",                                                         // layer
        "02000000",                                                         // tokens
        "03000000",                                                         // kv_dim
        "00000000",                                                         //
        "0c00000000000000",                                                 // length of K
        "0c00000000000000",                                                 // length of V
        "000102030405060708090a0b",                                         // K
        "6465666768696a6b6c6d6e6f",                                         // V
        "50743372e6d60986",                                                 // XXH3-64
    );
    assert_eq!(hex(&sample(&KEY, 5)), golden);
}

#[test]
fn round_trip_shares_memory() {
    let bytes = sample(&KEY, 5);
    let frame = decode(&bytes, &KEY, 5, &SHAPE).unwrap();
    assert_eq!(&frame.k[..], (0..12).collect::<Vec<u8>>());
    assert_eq!(&frame.v[..], (100..112).collect::<Vec<u8>>());
    assert_eq!(frame.k.as_ptr(), bytes[HEADER_BYTES..].as_ptr(), "no copy");
}

#[test]
fn every_flipped_bit_is_corrupt() {
    let good = sample(&KEY, 5);
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1 << bit;
            assert_corrupt(bytes, &format!("bit {bit} of byte {at}"));
        }
    }
}

#[test]
fn every_truncation_and_extension_is_corrupt() {
    let good = sample(&KEY, 5);
    for length in 0..good.len() {
        assert_corrupt(good[..length].to_vec(), &format!("cut to {length}"));
        assert_corrupt(good[length + 1..].to_vec(), &format!("first {} bytes gone", length + 1));
    }
    for more in [1, 8, 4096] {
        let mut bytes = good.to_vec();
        bytes.resize(good.len() + more, 0);
        assert_corrupt(bytes, "longer");
    }
}

#[test]
fn a_valid_frame_in_another_place_is_corrupt() {
    assert_corrupt(sample(&KEY, 6).to_vec(), "another layer");
    assert_corrupt(sample(&KvKey([1; 32]), 5).to_vec(), "another entry");
    let transposed = FrameShape { tokens: 3, kv_dim: 2, dtype: KvDtype::F16, content: Content::Numbers };
    assert_corrupt(encode(&KEY, 5, &transposed, &[0; 12], &[0; 12]).unwrap().to_vec(), "another shape, same length");
    let other = FrameShape { dtype: KvDtype::Bf16, ..SHAPE };
    assert_corrupt(encode(&KEY, 5, &other, &[0; 12], &[0; 12]).unwrap().to_vec(), "another dtype of that size");
}

/// A frame that a later version wrote with a valid checksum, and one with set reserved bytes.
#[test]
fn every_header_field_is_compared_even_under_a_valid_checksum() {
    let good = sample(&KEY, 5);
    for at in 0..HEADER_BYTES {
        let mut bytes = good.to_vec();
        bytes[at] ^= 0x10;
        let end = bytes.len() - CHECKSUM_BYTES;
        let checksum = XxHash3_64::oneshot(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        assert_corrupt(bytes, &format!("header byte {at} under a valid checksum"));
    }
}

#[test]
fn a_value_that_is_not_finite_is_corrupt_under_a_valid_checksum() {
    for (dtype, bad) in [(KvDtype::F32, f32::NAN), (KvDtype::F32, f32::INFINITY), (KvDtype::Bf16, f32::NEG_INFINITY)] {
        let shape = FrameShape { dtype, ..SHAPE };
        for at in 0..6 {
            let mut values = [1.5; 6];
            let good = dtype.encode(&values);
            values[at] = bad;
            let bad = dtype.encode(&values);
            for (k, v, is_good) in [(&good, &good, true), (&bad, &good, false), (&good, &bad, false)] {
                let read = decode(&encode(&KEY, 5, &shape, k, v).unwrap(), &KEY, 5, &shape);
                assert_eq!(read.is_ok(), is_good, "{bad:?} at {at}");
            }
        }
    }
}

#[test]
fn lengths_must_follow_from_the_shape() {
    for (k, v) in [(11, 12), (12, 13), (0, 0), (24, 24)] {
        let error = encode(&KEY, 0, &SHAPE, &vec![0; k], &vec![0; v]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let huge = FrameShape { tokens: u32::MAX, kv_dim: u32::MAX, dtype: KvDtype::F32, content: Content::Numbers };
    assert_eq!(huge.frame_bytes(), None);
    assert!(encode(&KEY, 0, &huge, &[], &[]).is_err());
    assert!(decode(&sample(&KEY, 0), &KEY, 0, &huge).is_err());
}

proptest! {
    #[test]
    fn any_shape_round_trips_and_any_damage_is_seen(
        tokens in 0u32..9, kv_dim in 0u32..9, dtype in 0u8..3, layer: u32, seed: u8, at: prop::sample::Index, flip in 1u8..
    ) {
        let dtype = dtype_of_code(dtype + 1).unwrap();
        let shape = FrameShape { tokens, kv_dim, dtype, content: Content::Numbers };
        let side = shape.side_bytes().unwrap() as usize;
        // A bit of every exponent is left out: what is not finite is no frame.
        let k: Vec<u8> = (0..side).map(|i| ((i as u8).wrapping_mul(31) ^ seed) & 0xBF).collect();
        let v: Vec<u8> = k.iter().rev().copied().collect();
        let bytes = encode(&KEY, layer, &shape, &k, &v).unwrap();
        let frame = decode(&bytes, &KEY, layer, &shape).unwrap();
        prop_assert_eq!(&frame.k[..], &k[..]);
        prop_assert_eq!(&frame.v[..], &v[..]);
        let mut damaged = bytes.to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= flip;
        prop_assert!(decode(&Bytes::from(damaged), &KEY, layer, &shape).is_err());
    }
}

#[test]
fn opaque_bytes_may_be_any_and_are_never_taken_for_numbers() {
    let opaque = FrameShape { content: Content::Opaque, ..SHAPE };
    let (k, v) = ([0xFF; 12], [0x7C; 12]); // no number, as f16
    let bytes = encode(&KEY, 5, &opaque, &k, &v).unwrap();
    let frame = decode(&bytes, &KEY, 5, &opaque).unwrap();
    assert_eq!((&frame.k[..], &frame.v[..]), (&k[..], &v[..]));
    assert_corrupt(bytes.to_vec(), "as numbers");
    let numbers = sample(&KEY, 5);
    assert_eq!(decode(&numbers, &KEY, 5, &opaque).unwrap_err().kind(), ErrorKind::Corrupt);
    for at in 0..bytes.len() {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1;
        assert!(decode(&flipped.into(), &KEY, 5, &opaque).is_err(), "byte {at}");
    }
}
