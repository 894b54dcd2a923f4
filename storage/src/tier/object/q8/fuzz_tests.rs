//! Quantised frames of any content and shape.

use super::*;
use crate::fuzz::fuzz;

const KEY: KvKey = KvKey([5; 32]);

/// Refused, or a frame of the shape. The first three bytes are the shape; the sum is made to fit.
fn holds(input: &[u8]) -> bool {
    let [tokens, kv_dim, dtype, stored @ ..] = input else { return false };
    let dtype = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16][usize::from(dtype % 3)];
    let shape = FrameShape { tokens: u32::from(*tokens), kv_dim: u32::from(*kv_dim), dtype, content: Content::Numbers };
    drop(decode(&KEY, 3, &shape, stored));
    let Some(end) = stored.len().checked_sub(CHECKSUM_BYTES) else { return false };
    let mut sealed = stored.to_vec();
    let sum = checksum(&KEY, 3, &sealed[..end]);
    sealed[end..].copy_from_slice(&sum.to_le_bytes());
    let decoded = decode(&KEY, 3, &shape, &sealed);
    if let Ok(frame) = &decoded {
        assert_eq!(Some(frame.len() as u64), shape.frame_bytes());
        assert_eq!(Some(sealed.len() as u64), frame_bytes(&shape));
    }
    decoded.is_ok()
}

#[test]
fn any_quantised_frame_is_refused_or_of_its_shape() {
    let seeds = [(1, 1, KvDtype::F32, 0), (2, 65, KvDtype::F16, 1), (3, 8, KvDtype::Bf16, 2)];
    let seeds = seeds.map(|(tokens, kv_dim, dtype, code)| {
        let shape = FrameShape { tokens, kv_dim, dtype, content: Content::Numbers };
        let side: Bytes = vec![0x3C; shape.side_bytes().unwrap() as usize].into();
        let small = encode(&KEY, 3, &shape, &Frame { k: side.clone(), v: side }).unwrap();
        [&[tokens as u8, kv_dim as u8, code], &small[..]].concat()
    });
    fuzz("quantised frame", &seeds, holds);
}

#[test]
fn a_frame_without_columns_is_refused() {
    let shape = FrameShape { tokens: 0, kv_dim: 0, dtype: KvDtype::F32, content: Content::Numbers };
    let sum = checksum(&KEY, 0, &[]).to_le_bytes();
    assert_eq!(decode(&KEY, 0, &shape, &sum).unwrap_err().kind(), crate::ErrorKind::Corrupt);
}
