//! KV deviation and the choice of tokens to recompute ("CacheBlend: Fast Large Language Model Serving for RAG with
//! Cached Knowledge Fusion", section 4.3).

use crate::error::{Error, Result};
use crate::model::LayerKv;
use crate::pool::KvData;

/// How far each token's reused K and V are from the fresh ones in one layer: the sum of squared differences over both,
/// K compared before rotation, so that a passage's place does not count. `k` and `v` are `[tokens, kv_dim]` for the
/// tokens of `fresh`, in the same order; the result is one value a token, 0 where nothing changed.
///
/// # Errors
/// `InvalidInput` if the shapes differ.
pub fn kv_deviation(fresh: &LayerKv, k: KvData<'_>, v: KvData<'_>) -> Result<Vec<f32>> {
    let (tokens, kv_dim) = (fresh.k.rows(), fresh.k.cols());
    if k.len() != tokens * kv_dim || v.len() != tokens * kv_dim {
        return Err(Error::invalid_input(format!(
            "reused KV of {} and {} values beside fresh KV [{tokens}, {kv_dim}]",
            k.len(),
            v.len()
        )));
    }
    let mut row = vec![0.0; kv_dim];
    (0..tokens)
        .map(|token| {
            let mut deviation = 0.0;
            for (fresh, reused) in [(fresh.k.row(token), k), (fresh.v.row(token), v)] {
                reused.read(token * kv_dim, &mut row)?;
                deviation += row.iter().zip(fresh).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
            }
            Ok(deviation)
        })
        .collect()
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
    fn deviation_counts_k_and_v() {
        let fresh = LayerKv {
            k: Matrix::from_vec(3, 2, vec![1.0, 2.0, 0.0, 0.0, 5.0, 5.0]),
            v: Matrix::from_vec(3, 2, vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0]),
        };
        let k = [1.0, 2.0, 3.0, 0.0, 5.0, 5.0];
        let v = KvDtype::F16.encode(&[0.0, 0.0, 1.0, 3.0, 2.0, 2.5]);
        let v = KvData::Bytes(KvDtype::F16, &v);
        assert_eq!(kv_deviation(&fresh, KvData::F32(&k), v).unwrap(), [0.0, 13.0, 0.25]);
        assert!(kv_deviation(&fresh, KvData::F32(&k[..4]), v).is_err());
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
