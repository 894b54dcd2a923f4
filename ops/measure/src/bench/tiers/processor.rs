//! KV into a pool in this machine's memory, beside copies of the same bytes into memory of the same size.

use std::sync::Arc;

use ragstone_env::Stopwatch;
use ragstone_kernels::backend::Slots;
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId, KvData, KvPool, Part};
use ragstone_kernels::rope::Rope;
use ragstone_storage::entry::Entry;
use ragstone_storage::frame::{self, Frame};
use rayon::prelude::*;

use super::layout;
use crate::bench::Shape;
use crate::error::{Error, Result};

/// Tokens of the prompts that entries are placed for, where an entry has not more.
const PROMPT_TOKENS: usize = 4096;

/// A pool with room for a prompt, and a buffer as large for plain copies.
pub(super) struct Processor {
    pool: KvPool,
    rope: Rope,
    blocks: Vec<BlockId>,
    slots: Vec<u32>,
    /// Tokens of an entry.
    tokens: usize,
    buffer: Vec<u8>,
}

impl Processor {
    /// For entries of `tokens` tokens.
    pub(super) fn new(shape: Shape, tokens: usize) -> Result<Self> {
        let (layout, rope) = layout(shape)?;
        let prompt = (PROMPT_TOKENS / tokens).max(1) * tokens;
        let blocks = prompt.div_ceil(BLOCK_TOKENS);
        Ok(Self {
            pool: KvPool::new(layout, blocks),
            rope,
            blocks: (0..blocks as u32).map(BlockId).collect(),
            slots: (0..prompt as u32).collect(),
            tokens,
            buffer: vec![0; prompt * layout.token_bytes()],
        })
    }

    /// Entries of a prompt.
    fn per_prompt(&self) -> usize {
        self.slots.len() / self.tokens
    }

    /// Places prompts of entries one behind the other, layer after layer, as a prefill does: each thread verifies its frame and writes it into the
    /// blocks, rotated to its place. Seconds.
    pub(super) fn place(&mut self, entries: &[Arc<Entry>]) -> Result<f64> {
        let (tokens, per_prompt) = (self.tokens, self.per_prompt());
        let Self { pool, rope, blocks, slots, .. } = self;
        let started = Stopwatch::start();
        // On the processor's threads, as a pass: a step that begins outside is handed over and waited for.
        rayon::scope(|_| {
            for prompt in entries.chunks(per_prompt) {
                for layer in 0..pool.layout().layers {
                    // What is not verified yet.
                    let frame = |entry: &Arc<Entry>| {
                        let header = entry.header();
                        frame::unverified(&entry.frames()[layer], &header.key, layer as u32, &header.frame_shape())
                    };
                    let frames = prompt.iter().map(frame).collect::<std::result::Result<Vec<_>, _>>()?;
                    let part = |(index, slots): (usize, _)| {
                        let (dtype, Frame { k, v }) = (prompt[index].header().dtype, &frames[index]);
                        let to = Slots { blocks, slots, positions: slots };
                        Part { to, k: KvData::Bytes(dtype, k), v: KvData::Bytes(dtype, v) }
                    };
                    let parts: Vec<Part<'_>> = (0..prompt.len()).zip(slots.chunks(tokens)).map(part).collect();
                    let verify = |index: usize| prompt[index].layer(layer as u32).is_ok();
                    let refused = pool.write_parts(layer, rope, &parts, &verify)?;
                    if !refused.is_empty() {
                        return Err(Error::internal("a frame was damaged in memory"));
                    }
                }
            }
            Ok(())
        })?;
        Ok(started.elapsed_s())
    }

    /// Copies the same bytes in the same order. Seconds.
    pub(super) fn copy(&mut self, entries: &[Arc<Entry>], by_all_threads: bool) -> f64 {
        let per_prompt = self.per_prompt();
        let started = Stopwatch::start();
        for prompt in entries.chunks(per_prompt) {
            let layers = prompt.first().map_or(0, |entry| entry.frames().len());
            let of_layer = self.buffer.len() / layers.max(1);
            for (layer, room) in self.buffer.chunks_mut(of_layer).take(layers).enumerate() {
                let copy = |(room, entry): (&mut [u8], &Arc<Entry>)| {
                    let frame = &entry.frames()[layer];
                    let bytes = room.len().min(frame.len());
                    room[..bytes].copy_from_slice(&frame[..bytes]);
                };
                let rooms = room.len() / per_prompt;
                match by_all_threads {
                    true => room.par_chunks_mut(rooms).zip(prompt).for_each(copy),
                    false => room.chunks_mut(rooms).zip(prompt).for_each(copy),
                }
            }
            std::hint::black_box(&self.buffer);
        }
        started.elapsed_s()
    }
}
