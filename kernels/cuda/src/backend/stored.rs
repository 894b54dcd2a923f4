//! Stored KV on its way to the pool.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use super::{CudaPool, Ranks};
use crate::launch::{self, Turn};
use crate::model::{CudaModel, Loaded};
use crate::session::Launch;
use ragstone_kernels::backend::{Slots, StoredKv};
use ragstone_kernels::error::Result;
use ragstone_kernels::pool::check_slots;

impl CudaModel {
    /// What writes K and V at `k` and `v` to their slots. Where two tokens name one slot, the last one stays: they are in launches of their own.
    pub(super) fn placing(
        &self,
        on: &Loaded,
        to: (u64, u64),
        runs: &[Range<usize>],
        [blocks, slots, positions]: [u64; 3],
        turn: Turn,
        (k, v): (u64, u64),
    ) -> Vec<Launch> {
        let launch = |tokens: &Range<usize>| {
            let (first, bytes) = (4 * tokens.start as u64, (tokens.start * on.kv_bytes(self)) as u64);
            let lists = (blocks, slots + first, positions + first);
            let count = tokens.len() as u32;
            launch::place(self.kv_dtype.into(), to, (k + bytes, v + bytes), lists, turn, count, on.heads)
        };
        runs.iter().map(launch).collect()
    }

    /// A rank's columns of stored K or V.
    pub(super) fn share<'a>(&self, on: &Ranks, rows: &'a [u8], rank: usize) -> Cow<'a, [u8]> {
        on.split.columns(rows, self.config.kv_dim(), self.kv_dtype.size_in_bytes(), rank)
    }

    /// One copy to the device for all of them: each entry's tables, K and V.
    pub(super) fn place_entries(
        &self,
        pool: &mut CudaPool,
        layer: usize,
        parts: &[(Slots<'_>, StoredKv<'_>)],
    ) -> Result<()> {
        for (to, stored) in parts {
            check_slots(&pool.layout, pool.blocks, layer, *to)?;
            self.check_stored(*stored, to.slots.len())?;
        }
        let parts: Vec<_> = parts.iter().filter(|(to, _)| !to.slots.is_empty()).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let tables: Vec<Vec<u32>> = parts.iter().map(|(to, _)| words_of(*to)).collect();
        self.checked(|on| {
            for (rank, (loaded, arena)) in on.each.iter().zip(on.own_pool(pool)?).enumerate() {
                let angles = loaded.angles(&self.config, layer);
                let mut turns = Vec::with_capacity(parts.len());
                let mut pieces: Vec<Cow<'_, [u8]>> = Vec::with_capacity(3 * parts.len());
                for ((to, stored), words) in parts.iter().zip(&tables) {
                    turns.push(angles.turn(&loaded.session, to.positions)?);
                    pieces.push(bytemuck::cast_slice(words).into());
                    pieces.extend([stored.k, stored.v].map(|rows| self.share(on, rows, rank)));
                }
                let bytes: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
                let placing = |at: &[u64]| {
                    let each = parts.iter().zip(&turns).zip(at.chunks_exact(3));
                    let launches = each.flat_map(|(((to, _), (turn, _)), at)| {
                        let slots = at[0] + 4 * to.blocks.len() as u64;
                        let tables = [at[0], slots, slots + 4 * to.slots.len() as u64];
                        self.placing(
                            loaded,
                            arena.layer(layer),
                            &distinct_runs(to.slots),
                            tables,
                            *turn,
                            (at[1], at[2]),
                        )
                    });
                    launches.collect()
                };
                loaded.session.load(&bytes, placing)?;
            }
            Ok(())
        })
    }
}

/// Blocks, slots and positions, one behind the other.
fn words_of(to: Slots<'_>) -> Vec<u32> {
    to.blocks.iter().map(|block| block.0).chain(to.slots.iter().copied()).chain(to.positions.iter().copied()).collect()
}

/// Runs of tokens that name no slot twice, in order.
pub(super) fn distinct_runs(slots: &[u32]) -> Vec<Range<usize>> {
    // As they nearly always are.
    if slots.is_sorted_by(|a, b| a < b) {
        return if slots.is_empty() { Vec::new() } else { std::iter::once(0..slots.len()).collect() };
    }
    let (mut runs, mut first, mut seen) = (Vec::new(), 0, HashSet::new());
    for (index, slot) in slots.iter().enumerate() {
        if !seen.insert(*slot) {
            runs.push(first..index);
            first = index;
            seen = HashSet::from([*slot]);
        }
    }
    if first < slots.len() {
        runs.push(first..slots.len());
    }
    runs
}
