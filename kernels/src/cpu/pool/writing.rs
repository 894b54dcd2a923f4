//! Writing K and V into a layer's arena: by heads, where a few tokens come, or by parts, each checked and written by one thread while it is in
//! that thread's cache.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ragstone_env::lock::locked;

use super::tile::{Tile, fills_a_block};
use super::{BLOCK_TOKENS, Cells, Head, KvData, KvLayout, KvPool};
use crate::backend::Slots;
use crate::caches;
use crate::crew;
use crate::error::Result;
use crate::numa::Shares;
use crate::rope::Rope;
use crate::scratch::Scratch;
use crate::simd::{self, Path};

/// Tokens below which a second thread costs more than it saves.
const TOKENS_PER_THREAD: usize = 16;

/// K and V of some tokens, and where they go.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub to: Slots<'a>,
    pub k: KvData<'a>,
    pub v: KvData<'a>,
}

/// One layer of a pool that is being written.
pub(super) struct Writing<'a> {
    layout: KvLayout,
    shares: &'a Shares,
    blocks: usize,
    keys: Cells,
    values: Cells,
    rope: &'a Rope,
    path: Path,
}

impl<'a> Writing<'a> {
    pub fn new(pool: &'a mut KvPool, layer: usize, rope: &'a Rope, path: Path) -> Self {
        let (keys, values) = (pool.keys[layer].cells(), pool.values[layer].cells());
        Self { layout: pool.layout, shares: &pool.heads, blocks: pool.blocks, keys, values, rope, path }
    }

    /// Writes a part that was checked, its heads side by side: the heads of a block are apart, whatever slots the tokens name.
    pub fn by_heads(&self, part: &Part<'_>) -> Result<()> {
        // SAFETY: the part was checked, and this task alone writes this head.
        let write = |head: usize| unsafe { self.write(part, head..head + 1, false) };
        if part.to.slots.len() < TOKENS_PER_THREAD {
            return (0..self.layout.kv_heads).try_for_each(write);
        }
        try_for_each(self.layout.kv_heads, write)
    }

    /// Writes some heads of a part, block after block. `streams`: past the caches, where whole blocks allow it.
    ///
    /// # Safety
    /// The part must have passed [`KvPool::check_part`], and nobody else may use these heads of its cells meanwhile.
    unsafe fn write(&self, part: &Part<'_>, heads: Range<usize>, streams: bool) -> Result<()> {
        let Part { to: Slots { blocks, slots, positions }, k, v } = *part;
        let layout = &self.layout;
        // A decode step writes single tokens: it allocates nothing.
        let mut tile = (slots.len() >= BLOCK_TOKENS).then(|| Tile::new(*layout, self.rope, self.path, streams));
        let row = &mut *Scratch::take(layout.head_dim);
        let mut token = 0;
        while token < slots.len() {
            let block = blocks[slots[token] as usize / BLOCK_TOKENS];
            let is_whole = fills_a_block(&slots[token..]);
            for head in heads.clone() {
                let start = Head::of(layout, self.shares, self.blocks, head).start(block);
                if let (Some(tile), Cells::Bf16(keys), Cells::Bf16(values)) = (&mut tile, self.keys, self.values)
                    && is_whole
                {
                    // SAFETY: the block was checked; nobody else uses this head of it.
                    unsafe {
                        tile.place_keys(k, (token, head), &positions[token..], (keys, start))?;
                        tile.place_values(v, (token, head), (values, start))?;
                    }
                } else {
                    let tokens = if is_whole { BLOCK_TOKENS } else { 1 };
                    for token in token..token + tokens {
                        // SAFETY: as above.
                        unsafe { self.write_row(part, token, head, start, row)? };
                    }
                }
            }
            token += if is_whole { BLOCK_TOKENS } else { 1 };
        }
        if streams {
            simd::fence();
        }
        Ok(())
    }

    /// Writes one head of one token to a block whose cells of that head begin at `start`.
    ///
    /// # Safety
    /// As [`Writing::write`].
    unsafe fn write_row(
        &self,
        part: &Part<'_>,
        token: usize,
        head: usize,
        start: usize,
        row: &mut [f32],
    ) -> Result<()> {
        let (layout, row_len) = (&self.layout, self.layout.row_len());
        let lane = part.to.slots[token] as usize % BLOCK_TOKENS;
        let is_paired = matches!(self.keys, Cells::Bf16(_));
        let from = token * layout.kv_dim() + head * layout.head_dim;
        part.k.read(from, row)?;
        self.rope.rotate(row, part.to.positions[token]);
        // SAFETY: block and slot were checked; nobody else uses this head of them.
        unsafe {
            match is_paired {
                true => self.keys.scatter(start, row, |dim| dim / 2 * 2 * BLOCK_TOKENS + lane * 2 + dim % 2),
                false => self.keys.scatter(start, row, |dim| dim * BLOCK_TOKENS + lane),
            }
        }
        part.v.read(from, row)?;
        // SAFETY: as above; a V row is `row_len` long, at least `head_dim`.
        unsafe {
            match is_paired {
                true => self.values.scatter(start, row, |dim| lane / 2 * 2 * row_len + dim * 2 + lane % 2),
                false => self.values.scatter(start, row, |dim| lane * row_len + dim),
            }
        }
        Ok(())
    }
}

impl KvPool {
    /// Writes several parts of one layer, each as [`write`](Self::write) does. `check` is asked for each part, by its index, before it is written and
    /// by the thread that then writes it, so that what the check has read is still in that thread's cache. Gives the parts that it refused, ascending:
    /// of those nothing is written.
    ///
    /// # Errors
    /// As [`write`](Self::write); nothing is written then.
    pub fn write_parts(
        &mut self,
        layer: usize,
        rope: &Rope,
        parts: &[Part<'_>],
        check: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Vec<usize>> {
        self.write_parts_on(Path::best(), layer, rope, parts, check, caches::exceeds_l2(self.written(parts)))
    }

    /// Bytes that are written for some parts.
    fn written(&self, parts: &[Part<'_>]) -> usize {
        let tokens: usize = parts.iter().map(|part| part.to.slots.len()).sum();
        tokens * 2 * self.layout.kv_heads * self.layout.row_len() * self.layout.dtype.size_in_bytes()
    }

    pub(super) fn write_parts_on(
        &mut self,
        path: Path,
        layer: usize,
        rope: &Rope,
        parts: &[Part<'_>],
        check: &(dyn Fn(usize) -> bool + Sync),
        streams: bool,
    ) -> Result<Vec<usize>> {
        parts.iter().try_for_each(|part| self.check_part(layer, rope, part))?;
        let heads = 0..self.layout.kv_heads;
        let writing = Writing::new(self, layer, rope, path);
        let refused: Vec<AtomicBool> = parts.iter().map(|_| AtomicBool::new(false)).collect();
        let accepts = |index: usize| {
            let accepts = check(index);
            refused[index].store(!accepts, Ordering::Relaxed);
            accepts
        };
        if parts.len() >= rayon::current_num_threads() && are_apart(parts) {
            try_for_each(parts.len(), |index| {
                if !accepts(index) {
                    return Ok(());
                }
                // SAFETY: the part was checked, and no other one names a cell of it.
                unsafe { writing.write(&parts[index], heads.clone(), streams) }
            })?;
        } else {
            // Too few for all threads, or one over the other: threads share each part's heads.
            crew::for_each(parts.len(), |index| {
                accepts(index);
            });
            let accepted = parts.iter().zip(&refused).filter(|(_, refused)| !refused.load(Ordering::Relaxed));
            accepted.into_iter().try_for_each(|(part, _)| writing.by_heads(part))?;
        }
        let refused = refused.into_iter().enumerate().filter(|(_, refused)| refused.load(Ordering::Relaxed));
        Ok(refused.map(|(index, _)| index).collect())
    }
}

/// Runs all tasks, on the threads that compute the pass; the error of one of them.
fn try_for_each(tasks: usize, run: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failed = Mutex::new(Ok(()));
    crew::for_each(tasks, |task| {
        if let Err(error) = run(task) {
            *locked(&failed) = Err(error);
        }
    });
    std::mem::replace(&mut *locked(&failed), Ok(()))
}

/// Whether no two parts, nor two tokens of one, name the same cell: those of one sequence, in the order of its slots, in blocks that are all others.
fn are_apart(parts: &[Part<'_>]) -> bool {
    let Some(first) = parts.first() else { return true };
    let of_one = parts.iter().all(|part| std::ptr::eq(part.to.blocks, first.to.blocks));
    let mut blocks = first.to.blocks.to_vec();
    blocks.sort_unstable();
    of_one
        && blocks.windows(2).all(|pair| pair[0] != pair[1])
        && parts.iter().flat_map(|part| part.to.slots).is_sorted_by(|one, next| one < next)
}

#[cfg(test)]
mod tests;
