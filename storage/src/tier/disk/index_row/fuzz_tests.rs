//! Index rows of any content.

use super::*;
use crate::entry::tests::entry_behind;
use crate::fuzz::fuzz;

const KEY: KvKey = KvKey([7; 32]);

/// What is decoded encodes to the same bytes. A row whose sum does not fit is tried again with the one that does.
fn holds(input: &[u8]) -> bool {
    drop(decode(input, &KEY));
    let Some(end) = input.len().checked_sub(CHECKSUM_BYTES) else { return false };
    let mut row = input.to_vec();
    let sum = checksum(&KEY, &row[..end]);
    row[end..].copy_from_slice(&sum.to_le_bytes());
    let decoded = decode(&row, &KEY);
    if let Ok(summary) = &decoded {
        assert_eq!(encode(summary), row);
    }
    decoded.is_ok()
}

#[test]
fn any_row_is_refused_or_is_what_was_written() {
    let seeds = [None, Some(KvKey([9; 32]))].map(|parent| {
        let summary = entry_behind(parent, &[1, 2, 3]).header().summary();
        encode(&EntrySummary { key: KEY, tenant: "né".into(), ..summary }).to_vec()
    });
    fuzz("index row", &seeds, holds);
}
