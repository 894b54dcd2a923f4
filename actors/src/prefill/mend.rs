//! Late misses: a load fails during a prefill, and the segment is computed on the way, without starting the prompt again.
//!
//! ```text
//! chunk      [embed .. layer l]  waits                      [layer l .. last layer]
//! segment                        [embed .. layer l] joins it
//! ```
//!
//! A prompt's first chunk asks for the layers, so a load always fails before a layer that no row has entered. The chunk waits.
//! Rows of the lost segment, up to the chunk's last row, catch up from the first layer on; later rows are embedded like any
//! others. Rows that catch up see the KV in place. For exact segments it has the bits of a full prefill, so the answer is that
//! of a prompt without the lost segment; blended segments stay approximate.
//!
//! In three cases it is too late, and the prompt is planned again:
//!
//! - A probe is running ahead.
//! - Several chunks go on from one layer, after a choice of tokens or after an earlier catch-up. A row that catches up would see
//!   some of their rows before they were computed.
//! - The choice of tokens is made again on every layer.

use std::collections::BTreeSet;

use ragstone_kernels::backend::Backend;
use ragstone_kernels::forward::{Chunk, Wanted};
use ragstone_storage::prompt::plan::{SegmentPlan, Source, Why};
use ragstone_storage::tier::Tier;

use super::Prefill;
use super::walk::Walk;
use crate::fusion::{FailedLoad, Lost};

/// What failed on the way, and is computed instead.
#[derive(Default)]
pub(super) struct Mending {
    /// Slots that nobody computes yet, ascending.
    slots: BTreeSet<u32>,
    /// The layer before which rows that catch up stop.
    until: Option<usize>,
    /// Several chunks go on from one layer, or the choice is made again on every one.
    pub is_too_late: bool,
    /// The entries that failed.
    pub late_misses: Vec<FailedLoad>,
}

impl Mending {
    /// Whether rows stop before `layer`: there is something to be mended first, or they have caught up.
    pub fn holds_before(&self, layer: usize) -> bool {
        !self.slots.is_empty() || self.until == Some(layer)
    }
}

impl Walk {
    /// Whether what fails now can be computed without starting again.
    pub fn may_mend(&self) -> bool {
        !self.mending.is_too_late && !self.is_probing()
    }

    /// These segments are computed from now on.
    pub fn give_up_segments(&mut self, lost: Vec<Lost>) {
        for Lost { segment, failed } in lost {
            self.mending.late_misses.extend(failed);
            let index = segment;
            let segment = &mut self.plan.segments[index];
            let tokens = segment.range.len() as u32;
            match segment.source {
                Source::Load { tier: Tier::Device, .. }
                | Source::Blend { tier: Tier::Device, .. }
                | Source::Compute => {
                    continue;
                }
                Source::Load { .. } => {
                    self.plan.exact_tokens -= tokens;
                    // What is computed is what was to be loaded, and that is lost.
                    segment.store_as = segment.exact_key;
                    if segment.store_as.is_some() && !segment.range.is_empty() {
                        self.kept.add(index, self.layers);
                    }
                }
                Source::Blend { .. } => {
                    self.plan.blended_tokens -= tokens;
                    self.choice.drop_passage(&segment.range);
                }
            }
            self.plan.computed_tokens += tokens;
            let SegmentPlan { source, why, range, .. } = segment;
            (*source, *why) = (Source::Compute, Why::LateMiss);
            let active = &self.active;
            self.mending.slots.extend(range.clone().filter(|slot| active.binary_search(slot).is_err()));
        }
        self.active.extend(&self.mending.slots);
        self.active.sort_unstable();
    }
}

/// Rows that catch up with a chunk which waits for them.
pub(super) struct CatchUp<B: Backend> {
    /// Their slots, ascending.
    pub rows: Vec<u32>,
    /// How many of them a chunk was made of.
    pub embedded: usize,
    /// The chunk that waits, and those that have come.
    chunks: Vec<Chunk<B>>,
}

impl<B: Backend> CatchUp<B> {
    /// Rows that are still to be embedded, and that wait.
    pub fn rows_left(&self) -> usize {
        self.rows.len() - self.embedded + self.chunks.iter().map(|chunk| chunk.places().len()).sum::<usize>()
    }
}

impl<B: Backend> Prefill<B> {
    /// What failed just now is computed: by rows that catch up with the chunk under way, and by later ones.
    pub(super) fn mend(&mut self) {
        let slots = std::mem::take(&mut self.walk.mending.slots);
        if slots.is_empty() {
            return;
        }
        let last = self.chunk.as_ref().and_then(|chunk| chunk.places().slots.last().copied());
        let rows: Vec<u32> = slots.iter().copied().take_while(|slot| last.is_some_and(|last| *slot < last)).collect();
        // Behind a choice the first layers had them, and they are there already.
        self.rows.extend(slots);
        self.rows.sort_unstable();
        self.rows.dedup();
        self.embedded = self.rows.partition_point(|row| last.is_some_and(|last| *row <= last));
        if !rows.is_empty()
            && let Some(chunk) = self.chunk.take()
        {
            self.walk.mending.until = Some(chunk.layer());
            self.catch_up = Some(CatchUp { rows, embedded: 0, chunks: vec![chunk] });
        }
    }

    /// A chunk of rows that catch up has come to where the others wait. Behind the last one all go on, in chunks that are as long as any.
    pub(super) fn caught_up(&mut self, backend: &B, chunk: Chunk<B>) {
        let Some(mut catch_up) = self.catch_up.take() else { return };
        catch_up.chunks.push(chunk);
        if catch_up.embedded < catch_up.rows.len() {
            self.catch_up = Some(catch_up);
            return;
        }
        self.walk.mending.until = None;
        let chunks = &catch_up.chunks;
        let of = |(index, chunk): (usize, &Chunk<B>)| {
            let slots = chunk.places().slots.clone().into_iter().enumerate();
            slots.map(move |(row, slot)| (slot, index, row)).collect::<Vec<_>>()
        };
        let mut rows: Vec<(u32, usize, usize)> = chunks.iter().enumerate().flat_map(of).collect();
        rows.sort_unstable();
        let all_are_embedded = self.embedded == self.rows.len();
        let mut left = rows.len();
        for rows in rows.chunks(self.chunk_rows.max(1)) {
            let parts = rows.chunk_by(|(_, left, _), (_, right, _)| left == right);
            let parts: Vec<(&Chunk<B>, Vec<usize>)> =
                parts.map(|part| (&chunks[part[0].1], part.iter().map(|(_, _, row)| *row).collect())).collect();
            left -= rows.len();
            let wanted = if left == 0 && all_are_embedded { Wanted::Last } else { Wanted::Nothing };
            self.following.push_back(Chunk::join(backend, &parts, wanted));
        }
        self.chunk = self.following.pop_front();
        self.walk.mending.is_too_late |= !self.following.is_empty();
    }
}
