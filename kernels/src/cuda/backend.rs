//! A GPU as a [`Backend`].
//!
//! Operations are queued and return at once; those that give something to the host wait for it. What an operation without a result gives after
//! one failed is empty, and [`Backend::check`] says why.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::launch::{self, Turn};
use super::layer::{Hidden, Steps};
use super::model::{CudaModel, Loaded};
use super::rows::CudaRows;
use super::session::{Buffer, Launch, Session};
use crate::backend::{Backend, KvBytes, RowGroup, Slots, StepPart, Stepped, StoredKv, check_tokens};
use crate::config::ModelConfig;
use crate::deviation::Compared;
use crate::error::{Error, ErrorKind, Result};
use crate::matrix::Matrix;
use crate::pool::{BLOCK_TOKENS, BlockId, KvLayout, check_slots};

/// Fresh K and V in device memory, in the pool's type, `[count, kv_dim]` each.
#[derive(Debug)]
pub struct CudaKv {
    buffers: Option<[Buffer; 2]>,
    count: usize,
}

/// Blocks in device memory: of each layer K, then V, `[blocks][kv_heads][16][head_dim]`.
#[derive(Debug)]
pub struct CudaPool {
    buffer: Option<Buffer>,
    blocks: usize,
    layout: KvLayout,
}

impl CudaPool {
    /// Bytes of one layer's K (or V) in a block.
    fn part_bytes(&self) -> usize {
        BLOCK_TOKENS * self.layout.kv_dim() * self.layout.dtype.size_in_bytes()
    }

    /// Bytes from one part to the next.
    fn stride(&self) -> u64 {
        (self.blocks * self.part_bytes()) as u64
    }

    fn parts(&self) -> u32 {
        2 * self.layout.layers as u32
    }

    /// Where it begins; 0 where it has no memory.
    pub(super) fn start(&self) -> u64 {
        self.buffer.as_ref().map_or(0, Buffer::pointer)
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    /// Where a layer's K and V begin.
    pub(super) fn layer(&self, layer: usize) -> (u64, u64) {
        let k = self.start() + 2 * layer as u64 * self.stride();
        (k, k + self.stride())
    }

    /// Where a block begins in the first part.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such block.
    fn block(&self, block: BlockId) -> Result<u64> {
        if block.0 as usize >= self.blocks {
            return Err(Error::invalid_input(format!("block {} of {}", block.0, self.blocks)));
        }
        Ok(self.start() + (block.0 as usize * self.part_bytes()) as u64)
    }
}

impl Loaded {
    /// Memory that was made in this session.
    ///
    /// # Errors
    /// `DeviceLost` for what went with an earlier one.
    pub(super) fn own<'a>(&self, buffer: Option<&'a Buffer>) -> Result<&'a Buffer> {
        buffer
            .filter(|buffer| Arc::ptr_eq(buffer.session(), &self.session))
            .ok_or_else(|| Error::new(ErrorKind::DeviceLost, "what lay in the GPU's memory is gone"))
    }

    fn own_kv<'a>(&self, kv: &'a CudaKv) -> Result<&'a [Buffer; 2]> {
        let buffers = kv.buffers.as_ref();
        self.own(buffers.map(|buffers| &buffers[0]))?;
        buffers.ok_or_else(|| Error::new(ErrorKind::DeviceLost, "what lay in the GPU's memory is gone"))
    }

    /// Rows of a buffer in another one. `width` in bytes.
    fn gather(&self, from: u64, rows: &[usize], width: usize, to: u64) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
        let there = self.session.upload(&rows)?;
        let launch = launch::gather_rows(to, from, there.pointer(), rows.len() as u32, width as u32);
        self.session.launch(&launch)
    }
}

impl CudaModel {
    pub(super) fn steps<'a>(&'a self, on: &'a Loaded) -> Steps<'a> {
        Steps { on, config: &self.config, heads: self.heads(), kv: self.kv_dtype.into() }
    }

    fn row_bytes(&self) -> usize {
        4 * self.config.hidden_size
    }

    pub(super) fn kv_bytes(&self) -> usize {
        self.config.kv_dim() * self.kv_dtype.size_in_bytes()
    }

    /// What writes K and V at `k` and `v` to their slots. Where two tokens name one slot, the last one stays: they are in launches of their own.
    fn placing(
        &self,
        to: (u64, u64),
        runs: &[Range<usize>],
        tables: &[Buffer; 3],
        turn: Turn,
        (k, v): (u64, u64),
    ) -> Vec<Launch> {
        let [blocks, slots, positions] = tables.each_ref().map(Buffer::pointer);
        let launch = |tokens: &Range<usize>| {
            let (first, bytes) = (4 * tokens.start as u64, (tokens.start * self.kv_bytes()) as u64);
            let (element, heads) = (self.kv_dtype.into(), self.heads());
            let lists = (blocks, slots + first, positions + first);
            launch::place(element, to, (k + bytes, v + bytes), lists, turn, tokens.len() as u32, heads)
        };
        runs.iter().map(launch).collect()
    }

    fn tables_of(&self, session: &Arc<Session>, to: Slots<'_>) -> Result<[Buffer; 3]> {
        let blocks: Vec<u32> = to.blocks.iter().map(|block| block.0).collect();
        Ok([session.upload(&blocks)?, session.upload(to.slots)?, session.upload(to.positions)?])
    }

    /// Refuses what is not of the pool's type or not as long as it should be.
    fn check_stored(&self, stored: StoredKv<'_>, tokens: usize) -> Result<()> {
        if stored.dtype != self.kv_dtype {
            let (stored, own) = (stored.dtype.name(), self.kv_dtype.name());
            return Err(Error::invalid_input(format!("stored KV is {stored}, the device's is {own}")));
        }
        for (name, bytes) in [("K", stored.k), ("V", stored.v)] {
            if bytes.len() != tokens * self.kv_bytes() {
                return Err(Error::invalid_input(format!(
                    "{} bytes of {name} for {tokens} tokens of {}; the entry belongs to another model",
                    bytes.len(),
                    self.kv_bytes()
                )));
            }
        }
        Ok(())
    }
}

/// Runs of tokens that name no slot twice, in order.
fn distinct_runs(slots: &[u32]) -> Vec<Range<usize>> {
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

impl Backend for CudaModel {
    type Rows = CudaRows;
    type Kv = CudaKv;
    type Pool = CudaPool;

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn kv_layout(&self) -> KvLayout {
        let config = &self.config;
        KvLayout { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim, dtype: self.kv_dtype }
    }

    fn new_pool(&self, blocks: usize) -> CudaPool {
        let mut pool = CudaPool { buffer: None, blocks, layout: self.kv_layout() };
        if blocks == 0 {
            return pool;
        }
        self.recover();
        let bytes = pool.stride() as usize * pool.parts() as usize;
        // Of graphs over the pool before this one, nothing is of use any more.
        pool.buffer = self.attempt(|on| on.session.forget_graphs().and_then(|()| on.session.zeros(bytes)));
        pool
    }

    fn check(&self) -> Result<()> {
        self.take_failure()
    }

    fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<CudaRows> {
        check_tokens(&self.config, tokens, positions)?;
        // A GPU that is known to be gone is told now, other failures once somebody wants the rows.
        self.checked(|_| Ok(()))?;
        Ok(CudaRows::of_tokens(tokens, positions))
    }

    fn gather(&self, parts: &[(&CudaRows, &[usize])]) -> CudaRows {
        if let Some(rows) = CudaRows::pick(parts) {
            return rows;
        }
        let count = parts.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        let buffer = self.attempt(|on| {
            let out = on.session.allocate(count * self.row_bytes())?;
            let mut to = out.pointer();
            for (from, rows) in parts {
                on.gather(from.hidden(self.steps(on))?.start, rows, self.row_bytes(), to)?;
                to += (rows.len() * self.row_bytes()) as u64;
            }
            Ok(out)
        });
        CudaRows::of_memory(buffer, count)
    }

    fn project(&self, layer: usize, rows: &CudaRows) -> CudaKv {
        let buffers = self.attempt(|on| {
            let steps = self.steps(on);
            steps.project(layer, rows.hidden(steps)?)
        });
        CudaKv { buffers, count: rows.count() }
    }

    fn gather_kv(&self, kv: &CudaKv, rows: &[usize]) -> CudaKv {
        let buffers = self.attempt(|on| {
            let [k, v] = on.own_kv(kv)?.each_ref().map(|from| {
                let to = on.session.allocate(rows.len() * self.kv_bytes())?;
                on.gather(from.pointer(), rows, self.kv_bytes(), to.pointer())?;
                Ok::<_, Error>(to)
            });
            Ok([k?, v?])
        });
        CudaKv { buffers, count: rows.len() }
    }

    fn place(&self, pool: &mut CudaPool, layer: usize, to: Slots<'_>, kv: &CudaKv, rows: Range<usize>) -> Result<()> {
        check_slots(&pool.layout, pool.blocks, layer, to)?;
        if rows.len() != to.slots.len() || rows.end > kv.count {
            return Err(Error::invalid_input(format!("rows {rows:?} of {} for {} slots", kv.count, to.slots.len())));
        }
        self.checked(|on| {
            on.own(pool.buffer.as_ref())?;
            let first = (rows.start * self.kv_bytes()) as u64;
            let [k, v] = on.own_kv(kv)?.each_ref().map(|buffer| buffer.pointer() + first);
            let tables = self.tables_of(&on.session, to)?;
            let (turn, _angles) = on.angles(&self.config, layer).turn(&on.session, to.positions)?;
            on.session.run(&self.placing(pool.layer(layer), &distinct_runs(to.slots), &tables, turn, (k, v)))
        })
    }

    fn place_stored(&self, pool: &mut CudaPool, layer: usize, to: Slots<'_>, stored: StoredKv<'_>) -> Result<()> {
        check_slots(&pool.layout, pool.blocks, layer, to)?;
        self.check_stored(stored, to.slots.len())?;
        if to.slots.is_empty() {
            return Ok(());
        }
        self.checked(|on| {
            on.own(pool.buffer.as_ref())?;
            let tables = self.tables_of(&on.session, to)?;
            let (turn, _angles) = on.angles(&self.config, layer).turn(&on.session, to.positions)?;
            let (place, runs) = (pool.layer(layer), distinct_runs(to.slots));
            on.session.load([stored.k, stored.v], |[k, v]| self.placing(place, &runs, &tables, turn, (k, v)))
        })
    }

    fn finish(&self, layer: usize, rows: &mut CudaRows, groups: &[RowGroup<'_>], pool: &CudaPool) {
        self.attempt(|on| {
            on.own(pool.buffer.as_ref())?;
            let steps = self.steps(on);
            steps.finish(layer, rows.hidden_to_change(steps)?, groups, pool)
        });
    }

    fn step(&self, parts: &[StepPart<'_, CudaRows>], pool: &mut CudaPool, wants_kv: bool) -> Option<Stepped> {
        self.replay_step(parts, pool, wants_kv)
    }

    fn attention_weights(&self, layer: usize, rows: &CudaRows, group: &RowGroup<'_>, pool: &CudaPool) -> Matrix {
        let (count, slots) = (group.rows.len(), group.sequence.key_positions.len());
        if count == 0 || slots == 0 {
            return Matrix::zeros(count, slots);
        }
        let weights = self.attempt(|on| {
            on.own(pool.buffer.as_ref())?;
            let first = (group.rows.start * self.row_bytes()) as u64;
            let steps = self.steps(on);
            let hidden = Hidden { start: rows.hidden(steps)?.start + first, rows: count };
            let tables = on.tables(std::slice::from_ref(group), count)?;
            let (turn, _angles) = on.angles(&self.config, layer).turn(&on.session, group.positions)?;
            let q = steps.queries(layer, hidden, turn, tables.places.row_positions)?;
            let context = tables.context(pool.layer(layer), on.slopes.as_ref(), self.config.window(layer));
            let out = on.session.allocate(4 * count * slots)?;
            let shape = (count as u32, slots as u32);
            let (to, q) = (out.pointer(), q.pointer());
            on.session.launch(&launch::attention_weights(steps.kv, to, q, context, shape, steps.heads))?;
            on.session.download(out.pointer(), 4 * count * slots)
        });
        let values = weights.map_or_else(|| vec![0.0; count * slots], |bytes| bytemuck::pod_collect_to_vec(&bytes));
        Matrix::from_vec(count, slots, values)
    }

    fn logits(&self, rows: &CudaRows) -> Matrix {
        let (count, vocab) = (rows.count(), self.config.vocab_size);
        let logits = self.attempt(|on| {
            let steps = self.steps(on);
            let logits = steps.logits(rows.hidden(steps)?)?;
            on.session.download(logits.pointer(), 4 * count * vocab)
        });
        let values = logits.map_or_else(|| vec![0.0; count * vocab], |bytes| bytemuck::pod_collect_to_vec(&bytes));
        Matrix::from_vec(count, vocab, values)
    }

    fn deviation(
        &self,
        fresh: &CudaKv,
        stored: StoredKv<'_>,
        pairs: &[(usize, usize)],
        compared: Compared,
    ) -> Result<Vec<f32>> {
        let tokens = stored.k.len().max(stored.v.len()) / self.kv_bytes();
        if let Some((row, token)) = pairs.iter().find(|(row, token)| *row >= fresh.count || *token >= tokens) {
            return Err(Error::invalid_input(format!(
                "rows {row} and {token} beside fresh KV of {} rows and {tokens} reused ones",
                fresh.count
            )));
        }
        self.check_stored(stored, tokens)?;
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let flat: Vec<u32> = pairs.iter().flat_map(|(row, token)| [*row as u32, *token as u32]).collect();
        let compared = match compared {
            Compared::Keys => 1,
            Compared::Values => 2,
            Compared::Both => 3,
        };
        let bytes = self.checked(|on| {
            let [k, v] = on.own_kv(fresh)?.each_ref().map(Buffer::pointer);
            let (there, out) = (on.session.upload(&flat)?, on.session.allocate(4 * pairs.len())?);
            let (dim, pairs_there) = (self.config.kv_dim() as u32, (there.pointer(), pairs.len() as u32));
            on.session.load([stored.k, stored.v], |[stored_k, stored_v]| {
                let element = self.kv_dtype.into();
                let stored = (stored_k, stored_v);
                vec![launch::deviation(element, out.pointer(), (k, v), stored, pairs_there, dim, compared)]
            })?;
            on.session.download(out.pointer(), 4 * pairs.len())
        })?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn export(&self, kv: &CudaKv, rows: Range<usize>) -> KvBytes {
        let (first, bytes) = ((rows.start * self.kv_bytes()) as u64, rows.len() * self.kv_bytes());
        let parts = self.attempt(|on| {
            let [k, v] = on.own_kv(kv)?.each_ref().map(|from| on.session.download(from.pointer() + first, bytes));
            Ok((k?, v?))
        });
        // What did not come is not to be stored either.
        let Some((k, v)) = parts else { return KvBytes { k: vec![0; bytes], v: vec![0; bytes], is_finite: false } };
        let is_finite = self.kv_dtype.all_finite(&k) && self.kv_dtype.all_finite(&v);
        KvBytes { k, v, is_finite }
    }

    fn copy_block(&self, pool: &mut CudaPool, from: BlockId, to: BlockId) -> Result<()> {
        let (from, to) = (pool.block(from)?, pool.block(to)?);
        self.checked(|on| {
            on.own(pool.buffer.as_ref())?;
            let (stride, bytes) = (pool.stride(), pool.part_bytes() as u64);
            on.session.launch(&launch::copy_parts((to, stride), (from, stride), pool.parts(), bytes))
        })
    }

    fn read_block(&self, pool: &CudaPool, block: BlockId) -> Result<Vec<u8>> {
        let from = pool.block(block)?;
        self.checked(|on| {
            on.own(pool.buffer.as_ref())?;
            let (part, bytes) = (pool.part_bytes() as u64, pool.part_bytes() * pool.parts() as usize);
            let packed = on.session.allocate(bytes)?;
            let launch = launch::copy_parts((packed.pointer(), part), (from, pool.stride()), pool.parts(), part);
            on.session.launch(&launch)?;
            on.session.download(packed.pointer(), bytes)
        })
    }

    fn write_block(&self, pool: &mut CudaPool, block: BlockId, bytes: &[u8]) -> Result<()> {
        let to = pool.block(block)?;
        let wanted = pool.part_bytes() * pool.parts() as usize;
        if bytes.len() != wanted {
            return Err(Error::invalid_input(format!("{} bytes of a block of {wanted}", bytes.len())));
        }
        self.checked(|on| {
            on.own(pool.buffer.as_ref())?;
            let part = pool.part_bytes() as u64;
            let packed = on.session.upload(bytes)?;
            on.session.launch(&launch::copy_parts((to, pool.stride()), (packed.pointer(), part), pool.parts(), part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::distinct_runs;

    #[test]
    fn a_slot_that_is_named_again_begins_a_new_run() {
        assert!(distinct_runs(&[]).is_empty());
        assert_eq!(distinct_runs(&[3, 1, 2]), vec![0..3; 1]);
        assert_eq!(distinct_runs(&[3, 1, 3, 3, 1]), [0..2, 2..3, 3..5]);
    }
}
