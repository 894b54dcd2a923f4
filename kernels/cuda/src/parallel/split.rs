//! Which rank has what.

use std::borrow::Cow;
use std::ops::Range;

use ragstone_kernels::error::{Error, Result};

/// How a model is shared out. A rank has whole KV heads, with the query heads that read them, and of every other matrix's outputs as large
/// a share as of the heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Split {
    /// The first KV head of each rank, and how many there are.
    bounds: Vec<usize>,
}

impl Split {
    /// Over `ranks` of them, at least one. Where heads do not come out even, later ranks have one more.
    ///
    /// # Errors
    /// `InvalidInput` where there are more ranks than heads.
    pub(crate) fn new(kv_heads: usize, ranks: usize) -> Result<Self> {
        if ranks > kv_heads {
            let are = if kv_heads == 1 { "KV head" } else { "KV heads" };
            return Err(Error::invalid_input(format!(
                "{ranks} GPUs cannot share a model of {kv_heads} {are}, as each takes a whole one; name at most {kv_heads}"
            )));
        }
        Ok(Self { bounds: (0..=ranks).map(|rank| kv_heads * rank / ranks.max(1)).collect() })
    }

    /// The KV heads of a rank.
    pub(crate) fn kv_heads(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// Those of a matrix's outputs that a rank computes. Of a multiple of the KV heads they are those of its heads.
    pub(crate) fn outputs(&self, outputs: usize, rank: usize) -> Range<usize> {
        let kv_heads = self.bounds.last().copied().unwrap_or(1).max(1);
        let bound = |rank: usize| (outputs as u64 * self.bounds[rank] as u64 / kv_heads as u64) as usize;
        bound(rank)..bound(rank + 1)
    }

    /// A rank's columns of rows in host memory, each of `outputs` values of `size` bytes.
    pub(crate) fn columns<'a>(&self, rows: &'a [u8], outputs: usize, size: usize, rank: usize) -> Cow<'a, [u8]> {
        let own = self.outputs(outputs, rank);
        if own.len() == outputs {
            return Cow::Borrowed(rows);
        }
        let mut columns = Vec::with_capacity(rows.len() / outputs * own.len());
        for row in rows.chunks_exact(outputs * size) {
            columns.extend_from_slice(&row[own.start * size..own.end * size]);
        }
        Cow::Owned(columns)
    }
}

/// Rows of which each part has some columns, `widths` bytes a row, put side by side.
pub(crate) fn joined(mut parts: Vec<Vec<u8>>, widths: &[usize], rows: usize) -> Vec<u8> {
    if parts.len() == 1 {
        return parts.swap_remove(0);
    }
    let mut whole = Vec::with_capacity(rows * widths.iter().sum::<usize>());
    for row in 0..rows {
        for (part, width) in parts.iter().zip(widths) {
            whole.extend_from_slice(&part[row * width..][..*width]);
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_has_one_rank_and_every_rank_a_head() {
        for (kv_heads, ranks) in [(1, 1), (2, 2), (8, 3), (7, 4), (8, 8)] {
            let split = Split::new(kv_heads, ranks).unwrap();
            for outputs in [kv_heads * 64, 5, 24, 32_003, 1] {
                let shares: Vec<_> = (0..ranks).map(|rank| split.outputs(outputs, rank)).collect();
                assert_eq!((shares[0].start, shares[ranks - 1].end), (0, outputs));
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start), "{shares:?}");
            }
            for rank in 0..ranks {
                let heads = split.kv_heads(rank);
                assert!(!heads.is_empty() && heads.len() <= kv_heads.div_ceil(ranks));
                assert_eq!(split.outputs(kv_heads * 64, rank), heads.start * 64..heads.end * 64);
            }
        }
        let spread = Split::new(8, 3).unwrap();
        assert_eq!((0..3).map(|rank| spread.kv_heads(rank).len()).collect::<Vec<_>>(), [2, 3, 3]);
        let error = Split::new(2, 3).unwrap_err().to_string();
        assert!(error.contains("name at most 2"), "{error}");
    }

    #[test]
    fn columns_that_are_taken_apart_come_together_again() {
        let split = Split::new(3, 2).unwrap();
        let rows: Vec<u8> = (0..2 * 6 * 2).collect();
        let parts: Vec<_> = (0..2).map(|rank| split.columns(&rows, 6, 2, rank).into_owned()).collect();
        assert_eq!(parts[0], [0, 1, 2, 3, 12, 13, 14, 15]);
        assert_eq!(joined(parts, &[4, 8], 2), rows);
        let alone = Split::new(3, 1).unwrap();
        assert!(matches!(alone.columns(&rows, 6, 2, 0), Cow::Borrowed(whole) if whole == rows));
    }
}
