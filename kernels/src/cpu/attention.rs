//! Attention of scattered query rows over paged keys and values, masked by true position.
//!
//! A query at position p sees a key at position k iff k <= p (and p - k < window, where the layer has one), whatever
//! the order of slots in memory. Scores are soft-maxed online ("Online normalizer calculation for softmax",
//! algorithm 3) over tiles of [`KEY_TILE`] slots from slot 0 on, each (query, head) on its own, so that the bits of a
//! row depend neither on the batch nor on tiles that it cannot see.

mod format;
mod tile;
mod weights;

pub use crate::backend::{RowGroup, SequenceView};
pub use weights::attention_weights;
pub(crate) use weights::attention_weights_with;

use crate::aligned::SharedMut;
use crate::dtype::{ComputeDtype, KvDtype};
use crate::matrix::Matrix;
use crate::pool::{BLOCK_TOKENS, KvPool};
use crate::simd::{self, Path, Work};
use tile::{KEY_TILE, RowTile};

/// Pairs of (query row, head) that share a tile of keys while it is in the L1 cache.
const QUERIES_PER_TILE: usize = 112;

/// The least and the greatest position of a key tile.
#[derive(Debug, Clone, Copy)]
struct Span {
    least: u32,
    greatest: u32,
}

/// What attention is asked for beside rows and sequences.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Positions that a query sees, itself included; all before it if not given.
    pub window: Option<u32>,
    /// What scores are multiplied with.
    pub scale: f32,
    /// [`ComputeDtype::Bf16`] rounds scaled queries and softmax weights to bf16 where the pool holds bf16; other pools
    /// are computed in f32.
    pub compute: ComputeDtype,
    /// One a query head: what a scaled score shrinks by for each position that its key is before its query (ALiBi). Nothing if not given.
    pub slopes: Option<&'a [f32]>,
}

/// `out = softmax(q K^T * scale) V` in one layer, for q `[rows, heads * head_dim]`, rotated, and out of the same
/// shape, in f32; groups in ascending order of rows. Query head h reads KV head `h / (heads / kv_heads)`. Rows in no
/// group stay as they are; a row that sees no key becomes zero. Values must be finite: one that is not also reaches rows
/// that do not see it, as zero times it.
///
/// # Panics
/// If shapes do not fit, or a group's rows, positions, blocks and filled slots do not fit each other.
pub fn attend(
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    groups: &[RowGroup<'_>],
    options: AttentionOptions<'_>,
    out: &mut Matrix,
) {
    attend_on(path_for(pool, options), pool, layer, q, groups, options, out);
}

/// What computes attention over `pool`.
fn path_for(pool: &KvPool, options: AttentionOptions<'_>) -> Path {
    let is_bf16 = pool.layout().dtype == KvDtype::Bf16 && options.compute == ComputeDtype::Bf16;
    Path::of(if is_bf16 { Work::Bf16Attention } else { Work::F32Attention })
}

/// [`attend`] on a given instruction set.
pub(crate) fn attend_on(
    path: Path,
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    groups: &[RowGroup<'_>],
    options: AttentionOptions<'_>,
    out: &mut Matrix,
) {
    attend_with(path, path == Path::Amx, pool, layer, q, groups, options, out);
}

/// `has_tiles` says whether products of bf16 are made by [`amx`](crate::simd::amx).
#[expect(clippy::too_many_arguments, reason = "attend, and what only tests choose")]
fn attend_with(
    path: Path,
    has_tiles: bool,
    pool: &KvPool,
    layer: usize,
    q: &Matrix,
    groups: &[RowGroup<'_>],
    options: AttentionOptions<'_>,
    out: &mut Matrix,
) {
    let layout = *pool.layout();
    check(pool, layer, q, groups, out);
    let shared_heads = q.cols() / layout.kv_dim();
    check_slopes(pool, q, options);
    let tokens = (QUERIES_PER_TILE / shared_heads).clamp(8, 64);
    let spans: Vec<Vec<Span>> = groups.iter().map(|group| spans(group.sequence.key_positions)).collect();
    let (mut tiles, mut row_blocks) = (Vec::new(), 0);
    let (out_len, out) = (out.cols(), SharedMut::new(out.as_mut_slice()));
    // Node by node, so that the tiles of a node's heads follow each other.
    for heads in pool.heads().ranges() {
        row_blocks = 0;
        for (group, spans) in groups.iter().zip(&spans) {
            for first in (0..group.rows.len()).step_by(tokens) {
                let rows = first..group.rows.len().min(first + tokens);
                row_blocks += 1;
                tiles.extend(heads.clone().map(|head| RowTile {
                    pool,
                    layer,
                    head,
                    place: pool.head(head),
                    shared_heads,
                    q,
                    first_row: group.rows.start + first,
                    positions: &group.positions[rows.clone()],
                    sequence: group.sequence,
                    spans,
                    options,
                    has_tiles,
                    // Tiles write disjoint places: each has its own rows or its own heads.
                    out,
                    out_len,
                }));
            }
        }
    }
    match tiles.len() {
        1 => simd::dispatch(path, tiles.remove(0)),
        _ => pool.heads().run_tasks(tiles, row_blocks, |tile| simd::dispatch(path, tile)),
    }
}

fn check(pool: &KvPool, layer: usize, q: &Matrix, groups: &[RowGroup<'_>], out: &Matrix) {
    let layout = pool.layout();
    assert!(layer < layout.layers, "layer {layer} of {}", layout.layers);
    assert!(q.cols() > 0 && q.cols().is_multiple_of(layout.kv_dim()), "queries of {} values", q.cols());
    assert_eq!((q.rows(), q.cols()), (out.rows(), out.cols()), "queries and outputs");
    let mut last = 0;
    for group in groups {
        assert!(last <= group.rows.start && group.rows.end <= q.rows(), "groups in ascending order, apart");
        last = group.rows.end.max(last);
        check_group(pool, group);
    }
}

fn check_slopes(pool: &KvPool, q: &Matrix, options: AttentionOptions<'_>) {
    let heads = q.cols() / pool.layout().head_dim;
    assert!(options.slopes.is_none_or(|slopes| slopes.len() == heads), "a slope for each of {heads} heads");
}

fn check_group(pool: &KvPool, group: &RowGroup<'_>) {
    assert_eq!(group.positions.len(), group.rows.len(), "one position a row");
    let sequence = &group.sequence;
    assert!(sequence.key_positions.len() <= sequence.blocks.len() * BLOCK_TOKENS, "a block for every slot");
    assert!(sequence.blocks.iter().all(|block| (block.0 as usize) < pool.blocks()), "a block of this pool");
}

/// Whether a query at position `row` sees the key at position `key`.
#[inline(always)]
fn sees(row: u32, key: u32, window: Option<u32>) -> bool {
    key != u32::MAX && key <= row && window.is_none_or(|window| row - key < window)
}

fn spans(key_positions: &[u32]) -> Vec<Span> {
    let span = |tile: &[u32]| {
        let ends = |(least, greatest): (u32, u32), position: &u32| (least.min(*position), greatest.max(*position));
        let (least, greatest) = tile.iter().fold((u32::MAX, 0), ends);
        Span { least, greatest }
    };
    key_positions.chunks(KEY_TILE).map(span).collect()
}

#[cfg(test)]
mod tests;
