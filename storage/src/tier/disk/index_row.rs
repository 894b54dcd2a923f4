//! The index row: what the disk tier knows of an entry without reading its tokens. Written with the entry, in the column
//! family `index`, so that opening a store reads about 150 bytes an entry (format 2 of the data folder).
//!
//! ```text
//! offset  bytes  field                                        all integers little-endian
//!      0      4  magic "RSKI"
//!      4      2  version, 1
//!      6      1  1 if there is a parent, else 0
//!      7      1  zero
//!      8     16  segment digest
//!     24     32  model fingerprint
//!     56     32  KvKey of the parent, zeros if there is none
//!     88      4  token count
//!     92      4  layers
//!     96      8  bytes of frames and entry row
//!    104      8  time to compute, microseconds
//!    112      8  created, milliseconds since 1970
//!    120      4  tenant length s in bytes
//!    124      s  tenant, UTF-8
//!      …      8  XXH3-64 (seed 0) of the KvKey and every byte before
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use std::hash::Hasher as _;
use twox_hash::XxHash3_64;

use crate::frame::{CHECKSUM_BYTES, u64_at};
use crate::key::{Fingerprint, KvKey, SegmentDigest};
use crate::tier::EntrySummary;
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"RSKI";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 124;

pub(crate) fn encode(summary: &EntrySummary) -> Bytes {
    let tenant = summary.tenant.as_bytes();
    let mut out = BytesMut::with_capacity(FIXED_BYTES + tenant.len() + CHECKSUM_BYTES);
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u8(u8::from(summary.parent.is_some()));
    out.put_u8(0);
    out.put_slice(&summary.segment.0);
    out.put_slice(&summary.fingerprint.0);
    out.put_slice(&summary.parent.map_or([0; 32], |parent| parent.0));
    out.put_u32_le(summary.tokens);
    out.put_u32_le(summary.layers);
    out.put_u64_le(summary.bytes);
    out.put_u64_le(summary.compute_us);
    out.put_u64_le(summary.created_unix_ms);
    // An entry row has it in 32 bits too.
    out.put_u32_le(tenant.len() as u32);
    debug_assert_eq!(out.len(), FIXED_BYTES);
    out.put_slice(tenant);
    let checksum = checksum(&summary.key, &out);
    out.put_u64_le(checksum);
    out.freeze()
}

/// Reads the row that stands under `key`.
///
/// # Errors
/// `Corrupt` on any difference from what [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8], key: &KvKey) -> Result<EntrySummary> {
    let corrupt = || Error::corrupt(format!("the index row of entry {key} is damaged"));
    let body = bytes.len().checked_sub(CHECKSUM_BYTES).map(|end| &bytes[..end]).ok_or_else(corrupt)?;
    if body.len() < FIXED_BYTES || checksum(key, body) != u64_at(bytes, body.len()) {
        return Err(corrupt());
    }
    parse(body, key).ok_or_else(corrupt)
}

fn parse(body: &[u8], key: &KvKey) -> Option<EntrySummary> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?));
    if body[..4] != MAGIC || body[4..6] != VERSION.to_le_bytes() || body[7] != 0 {
        return None;
    }
    let parent = match (body[6], <[u8; 32]>::try_from(&body[56..88]).ok()?) {
        (0, parent) if parent == [0; 32] => None,
        (1, parent) => Some(KvKey(parent)),
        _ => return None,
    };
    if body.len() - FIXED_BYTES != u32_at(120)? as usize {
        return None;
    }
    Some(EntrySummary {
        key: *key,
        parent,
        segment: SegmentDigest(body[8..24].try_into().ok()?),
        fingerprint: Fingerprint(body[24..56].try_into().ok()?),
        tenant: std::str::from_utf8(&body[FIXED_BYTES..]).ok()?.into(),
        tokens: u32_at(88)?,
        layers: u32_at(92)?,
        bytes: u64_at(body, 96),
        compute_us: u64_at(body, 104),
        created_unix_ms: u64_at(body, 112),
    })
}

fn checksum(key: &KvKey, body: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(key.as_bytes());
    hasher.write(body);
    hasher.finish()
}

#[cfg(test)]
mod fuzz_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn summary(parent: Option<KvKey>) -> EntrySummary {
        EntrySummary {
            key: KvKey([7; 32]),
            parent,
            segment: SegmentDigest([9; 16]),
            fingerprint: Fingerprint([0x11; 32]),
            tenant: "né".into(),
            tokens: 3,
            layers: 24,
            bytes: 98_765,
            compute_us: 1_234_567,
            created_unix_ms: 1_700_000_000_123,
        }
    }

    #[test]
    fn golden_bytes_of_version_1() {
        let hex: String = encode(&summary(Some(KvKey([0x22; 32])))).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "52534b49010001000909090909090909090909090909090911111111111111111111111111111111",
            "11111111111111111111111111111111222222222222222222222222222222222222222222222222",
            "222222222222222203000000180000",
            "00cd8101000000000087d61200000000007b68e5cf8b010000030000006ec3a9",
        ]
        .concat();
        assert_eq!(hex[..hex.len() - 16], expected);
    }

    #[test]
    fn rows_are_read_back_and_any_flipped_byte_or_cut_is_corrupt() {
        for parent in [None, Some(KvKey([0x22; 32]))] {
            let summary = summary(parent);
            let row = encode(&summary);
            assert_eq!(decode(&row, &summary.key).unwrap(), summary);
            for at in 0..row.len() {
                let mut damaged = row.to_vec();
                damaged[at] ^= 1;
                assert_eq!(decode(&damaged, &summary.key).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
                assert!(decode(&row[..at], &summary.key).is_err(), "cut at {at}");
            }
            assert!(decode(&row, &KvKey([8; 32])).is_err(), "another entry's");
        }
    }
}
