//! KV deviation and the choice of tokens to recompute ("CacheBlend: Fast Large Language Model Serving for RAG with
//! Cached Knowledge Fusion", section 4.3).

use crate::error::{Error, Result};
use crate::model::LayerKv;
use crate::pool::KvData;

/// What of a token's KV is compared. The paper compares both; K or V alone are there to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compared {
    /// K and V.
    #[default]
    Both,
    /// K alone.
    Keys,
    /// V alone.
    Values,
}

/// How far each token's reused K and V are from the fresh ones in one layer: the sum of squared differences over what is
/// `compared`, K before rotation, so that a passage's place does not count. `k` and `v` are `[tokens, kv_dim]`; `pairs` are
/// the rows of `fresh` and of `k` and `v` that hold the same token. One value a pair, 0 where nothing changed.
///
/// # Errors
/// `InvalidInput` if a pair names a row that is not there.
pub fn kv_deviation(
    fresh: &LayerKv,
    k: KvData<'_>,
    v: KvData<'_>,
    pairs: impl IntoIterator<Item = (usize, usize)>,
    compared: Compared,
) -> Result<Vec<f32>> {
    let (rows, kv_dim) = (fresh.k.rows(), fresh.k.cols());
    let both = [(&fresh.k, k), (&fresh.v, v)];
    let sides = match compared {
        Compared::Both => &both[..],
        Compared::Keys => &both[..1],
        Compared::Values => &both[1..],
    };
    let mut reused = vec![0.0; kv_dim];
    let deviation = |(row, token): (usize, usize)| {
        let mut deviation = 0.0;
        for (fresh, stored) in sides {
            if row >= rows || (token + 1) * kv_dim > stored.len() {
                return Err(Error::invalid_input(format!(
                    "rows {row} and {token} beside fresh KV [{rows}, {kv_dim}] and {} reused values",
                    stored.len()
                )));
            }
            stored.read(token * kv_dim, &mut reused)?;
            deviation += reused.iter().zip(fresh.row(row)).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
        }
        Ok(deviation)
    };
    pairs.into_iter().map(deviation).collect()
}

/// The indices of the `count` highest deviations (all, if there are fewer), ascending; of equal ones the lower index.
pub fn select_highest(deviations: &[f32], count: usize) -> Vec<usize> {
    let count = count.min(deviations.len());
    let mut order: Vec<usize> = (0..deviations.len()).collect();
    let higher_first = |a: &usize, b: &usize| deviations[*b].total_cmp(&deviations[*a]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count, higher_first);
        order.truncate(count);
    }
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::KvDtype;
    use crate::matrix::Matrix;

    #[test]
    fn deviation_counts_what_is_compared() {
        let fresh = LayerKv {
            k: Matrix::from_vec(3, 2, vec![1.0, 2.0, 0.0, 0.0, 5.0, 5.0]),
            v: Matrix::from_vec(3, 2, vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0]),
        };
        let k = [1.0, 2.0, 3.0, 0.0, 5.0, 5.0];
        let v = KvDtype::F16.encode(&[0.0, 0.0, 1.0, 3.0, 2.0, 2.5]);
        let v = KvData::Bytes(KvDtype::F16, &v);
        let all = (0..3).map(|token| (token, token));
        let of = |compared| kv_deviation(&fresh, KvData::F32(&k), v, all.clone(), compared).unwrap();
        assert_eq!(of(Compared::Both), [0.0, 13.0, 0.25]);
        assert_eq!((of(Compared::Keys), of(Compared::Values)), (vec![0.0, 9.0, 0.0], vec![0.0, 4.0, 0.25]));
        let crossed = kv_deviation(&fresh, KvData::F32(&k), v, [(1, 0)], Compared::Both).unwrap();
        assert_eq!(crossed, [7.0], "the fresh row 1 against the stored row 0");
        for pairs in [[(0, 2)], [(3, 0)]] {
            assert!(kv_deviation(&fresh, KvData::F32(&k[..4]), v, pairs, Compared::Both).is_err());
        }
    }

    #[test]
    fn the_highest_are_selected_ties_to_the_lower_index() {
        let deviations = [1.0, 5.0, 3.0, 5.0, 3.0, 3.0];
        assert_eq!(select_highest(&deviations, 0), Vec::<usize>::new());
        assert_eq!(select_highest(&deviations, 1), [1]);
        assert_eq!(select_highest(&deviations, 3), [1, 2, 3]);
        assert_eq!(select_highest(&deviations, 4), [1, 2, 3, 4]);
        assert_eq!(select_highest(&deviations, 9), [0, 1, 2, 3, 4, 5]);
    }
}
