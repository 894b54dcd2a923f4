//! What rows look at: softmax weights as such, for selectors that choose tokens by them. Asked of a few rows (a question's).

use super::tile::{KEY_TILE, RowTile, WeightTile};
use super::{AttentionOptions, RowGroup, check_group, check_slopes, path_for, spans};
use crate::aligned::SharedMut;
use crate::crew;
use crate::matrix::Matrix;
use crate::pool::KvPool;
use crate::simd::{self, Path, row_tiles};

/// Pairs of (query row, head of a KV head) that share a key tile while it is in the L1 cache.
const QUERIES_PER_TILE: usize = 64;
/// Weights that a thread holds at once, about: of a long sequence it takes fewer rows. 2 MB.
const WEIGHTS_AT_ONCE: usize = 1 << 19;

/// `softmax(q K^T * scale)` in one layer for q `[rows, heads * head_dim]`, rotated: the mean over heads of the weights that
/// each row gives to each slot of the group's sequence, `[rows, slots]`. A row that sees no key has zeros. Scores are those of
/// [`attend`](super::attend) (of a pool of bf16, of queries rounded to bf16 where `compute` says so); weights are f32.
///
/// # Panics
/// If shapes do not fit each other.
pub fn attention_weights(
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    group: &RowGroup<'_>,
    options: AttentionOptions<'_>,
) -> Matrix {
    let path = path_for(pool, options);
    attention_weights_with(path, path == Path::Amx, pool, layer, q, group, options)
}

/// [`attention_weights`] on a given instruction set; `has_tiles` as in [`attend_with`](super::attend_with).
pub(crate) fn attention_weights_with(
    path: Path,
    has_tiles: bool,
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    group: &RowGroup<'_>,
    options: AttentionOptions<'_>,
) -> Matrix {
    let layout = pool.layout();
    assert!(layer < layout.layers, "layer {layer} of {}", layout.layers);
    assert!(q.cols() > 0 && q.cols().is_multiple_of(layout.kv_dim()), "queries of {} values", q.cols());
    assert_eq!(q.rows(), group.rows.len(), "the group's rows are all queries");
    check_group(pool, group);
    check_slopes(pool, q, options);
    let (slots, shared_heads) = (group.sequence.key_positions.len(), q.cols() / layout.kv_dim());
    let mut out = Matrix::zeros(q.rows(), slots);
    if out.as_slice().is_empty() {
        return out;
    }
    let spans = spans(group.sequence.key_positions);
    let a_row = shared_heads * spans.len() * KEY_TILE;
    let most = (WEIGHTS_AT_ONCE / a_row).min(QUERIES_PER_TILE / shared_heads).max(1);
    let rows_at_once = q.rows().div_ceil(rayon::current_num_threads()).min(most);
    // Tiles write disjoint rows.
    let shared = SharedMut::new(out.as_mut_slice());
    let tiles = row_tiles(q.rows(), rows_at_once).map(|(first_row, rows)| {
        WeightTile(RowTile {
            pool,
            layer,
            head: 0,
            place: pool.head(0),
            shared_heads,
            q,
            first_row,
            positions: &group.positions[first_row..first_row + rows],
            sequence: group.sequence,
            spans: &spans,
            options,
            has_tiles,
            out: shared,
            out_len: slots,
        })
    });
    let tiles: Vec<_> = tiles.collect();
    crew::for_each_part(tiles.into_iter(), |_, tile| simd::dispatch(path, tile));
    out
}
