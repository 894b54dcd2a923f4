//! Entry rows of any content.

use super::*;
use crate::fuzz::fuzz;

/// What is decoded encodes to the same bytes. A row whose sum and key do not fit is tried again with those that do.
fn holds(input: &[u8]) -> bool {
    drop(EntryHeader::decode(input, &KvKey([7; 32])));
    let Some(end) = input.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= FIXED_BYTES) else { return false };
    let Some(header) = EntryHeader::parse(&input[..end]) else { return false };
    let key = header.derived_key();
    let mut row = input.to_vec();
    row[8..40].copy_from_slice(key.as_bytes());
    let checksum = XxHash3_64::oneshot(&row[..end]);
    row[end..].copy_from_slice(&checksum.to_le_bytes());
    let header = EntryHeader::decode(&row, &key).expect("sum and key fit");
    assert_eq!(header.encode(), row);
    assert_eq!(header.summary().tokens as usize, header.tokens.len());
    assert!(header.total_bytes() >= row.len() as u64);
    assert!(EntryHeader::decode(&row, &KvKey([7; 32])).is_err(), "another key");
    true
}

#[test]
fn any_row_is_refused_or_is_what_was_written() {
    let parents = [(None, "", 1), (Some(KvKey([9; 32])), "né", 40)];
    let seeds = parents.map(|(parent, salt, tokens)| {
        let (fingerprint, tokens): (_, Arc<[u32]>) = (Fingerprint([3; 32]), (0..tokens).collect());
        let key = KvKey::derive(&fingerprint, salt, parent.as_ref(), &tokens);
        let header = EntryHeader {
            key,
            parent,
            fingerprint,
            salt: salt.into(),
            tokens,
            layers: 24,
            kv_dim: 128,
            dtype: KvDtype::Bf16,
            compute_us: 1_500,
            created_unix_ms: 1_700_000_000_000,
        };
        header.encode().to_vec()
    });
    fuzz("entry row", &seeds, holds);
}
