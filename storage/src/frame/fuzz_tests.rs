//! Frames of any content.

use super::*;
use crate::fuzz::fuzz;

/// What the bytes say that they are, so that they can be right.
fn claimed(bytes: &[u8]) -> Option<(KvKey, u32, FrameShape)> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let key = KvKey(bytes.get(8..40)?.try_into().ok()?);
    let shape = FrameShape {
        tokens: u32_at(44)?,
        kv_dim: u32_at(48)?,
        dtype: dtype_of_code(*bytes.get(6)?)?,
        content: Content::Numbers,
    };
    Some((key, u32_at(40)?, shape))
}

/// What is decoded encodes to the same bytes, and what is encoded decodes to the same values.
fn holds(input: &[u8]) -> bool {
    let Some((key, layer, shape)) = claimed(input) else { return false };
    drop(decode(&Bytes::copy_from_slice(input), &key, layer, &shape));
    let mut sealed = input.to_vec();
    let end = sealed.len() - CHECKSUM_BYTES;
    let checksum = XxHash3_64::oneshot(&sealed[..end]);
    sealed[end..].copy_from_slice(&checksum.to_le_bytes());
    let sealed = Bytes::from(sealed);
    let decoded = decode(&sealed, &key, layer, &shape);
    if let Ok(frame) = &decoded {
        assert_eq!(encode(&key, layer, &shape, &frame.k, &frame.v).expect("of this shape"), sealed);
        assert!(decode(&sealed, &key, layer.wrapping_add(1), &shape).is_err(), "another layer");
    }
    // Small numbers of whatever type.
    let values: Vec<u8> = input.iter().map(|byte| byte & 0x3F).collect();
    let side = &values[..values.len() / 8 * 4];
    let shape =
        FrameShape { tokens: (side.len() / 4) as u32, kv_dim: 1, dtype: KvDtype::F32, content: Content::Numbers };
    let encoded = encode(&key, layer, &shape, side, &values[values.len() - side.len()..]).expect("of this shape");
    let frame = decode(&encoded, &key, layer, &shape).expect("what was written");
    assert_eq!((&frame.k[..], &frame.v[..]), (side, &values[values.len() - side.len()..]));
    decoded.is_ok()
}

#[test]
fn any_frame_is_refused_or_is_what_was_written() {
    let shapes = [(KvDtype::F32, 1, 2), (KvDtype::F16, 3, 4), (KvDtype::Bf16, 5, 1), (KvDtype::Bf16, 0, 8)];
    let seeds = shapes.map(|(dtype, tokens, kv_dim)| {
        let shape = FrameShape { tokens, kv_dim, dtype, content: Content::Numbers };
        let side = vec![0x3C; shape.side_bytes().unwrap() as usize];
        encode(&KvKey([7; 32]), tokens, &shape, &side, &side).unwrap().to_vec()
    });
    fuzz("frame", &seeds, holds);
}
