//! What rows look at: softmax weights as such, for selectors that choose tokens by them. Plain loops in f32: asked of a few
//! rows (a question's) in a layer or two.

use rayon::prelude::*;

use super::{AttentionOptions, RowGroup, sees};
use crate::matrix::Matrix;
use crate::pool::{BLOCK_TOKENS, KvPool};
use crate::simd::{ExpAll, Path, dispatch};

/// `softmax(q K^T * scale)` in one layer for q `[rows, heads * head_dim]`, rotated: the mean over heads of the weights that
/// each row gives to each slot of the group's sequence, `[rows, slots]`. A row that sees no key has zeros.
///
/// # Panics
/// If shapes do not fit each other.
pub fn attention_weights(
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    group: &RowGroup<'_>,
    options: AttentionOptions,
) -> Matrix {
    let layout = *pool.layout();
    let (head_dim, slots) = (layout.head_dim, group.sequence.key_positions.len());
    let (heads, shared_heads) = (q.cols() / head_dim, q.cols() / layout.kv_dim());
    assert_eq!((q.rows(), q.cols()), (group.positions.len(), heads * head_dim), "a position a row, of whole heads");
    let mut out = Matrix::zeros(q.rows(), slots);
    if out.as_slice().is_empty() {
        return out;
    }
    let blocks = &group.sequence.blocks[..slots.div_ceil(BLOCK_TOKENS)];
    let queries = q.rows() * shared_heads;
    // `[blocks][queries][16]`
    let mut scores = vec![0.0_f32; blocks.len() * queries * BLOCK_TOKENS];
    for kv_head in 0..layout.kv_heads {
        scores.par_chunks_mut(queries * BLOCK_TOKENS).zip(blocks).for_each(|(scores, block)| {
            let keys = pool.keys_of(layer, *block, kv_head);
            for (query, scores) in scores.as_chunks_mut::<BLOCK_TOKENS>().0.iter_mut().enumerate() {
                let (row, head) = (query / shared_heads, kv_head * shared_heads + query % shared_heads);
                let q = &q.row(row)[head * head_dim..][..head_dim];
                *scores = [0.0; BLOCK_TOKENS];
                for (q, keys) in q.iter().zip(keys.as_chunks::<BLOCK_TOKENS>().0) {
                    scores.iter_mut().zip(keys).for_each(|(score, key)| *score += q * options.scale * key);
                }
            }
        });
        let rows = out.as_mut_slice().par_chunks_mut(slots).zip(group.positions).enumerate();
        rows.for_each(|(row, (out, position))| {
            // 0 or minus infinity, which a score stays whatever is added.
            let hidden = |key: &u32| if sees(*position, *key, options.window) { 0.0 } else { f32::NEG_INFINITY };
            let mask: Vec<f32> = group.sequence.key_positions.iter().map(hidden).collect();
            // Whole blocks, as vectors want them; what is beyond the last slot weighs nothing.
            let mut weights = vec![0.0_f32; slots.next_multiple_of(BLOCK_TOKENS)];
            for head in 0..shared_heads {
                let query = row * shared_heads + head;
                let mut greatest = f32::NEG_INFINITY;
                weights.fill(f32::NEG_INFINITY);
                for (block, mask) in mask.chunks(BLOCK_TOKENS).enumerate() {
                    let weights = &mut weights[block * BLOCK_TOKENS..];
                    let scores = &scores[(block * queries + query) * BLOCK_TOKENS..];
                    for ((weight, score), mask) in weights.iter_mut().zip(scores).zip(mask) {
                        *weight = score + mask;
                        greatest = greatest.max(*weight);
                    }
                }
                if greatest == f32::NEG_INFINITY {
                    continue;
                }
                weights.iter_mut().for_each(|weight| *weight -= greatest);
                dispatch(Path::best(), ExpAll(&mut weights));
                let share = 1.0 / (weights.iter().sum::<f32>() * heads as f32);
                out.iter_mut().zip(&weights).for_each(|(out, weight)| *out += weight * share);
            }
        });
    }
    out
}
