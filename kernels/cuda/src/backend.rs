//! A GPU as a [`Backend`].
//!
//! Operations are queued and return at once; those that give something to the host wait for it. What an operation without a result gives after
//! one failed is empty, and [`Backend::check`] says why.

mod stored;

use std::ops::Range;
use std::sync::Arc;

use self::stored::distinct_runs;
use super::launch;
use super::layer::Hidden;
use super::model::{CudaModel, Loaded};
use super::parallel::{AllSteps, Piece, Ranks, joined};
use super::pool::{Arena, ArenaShape, CudaPool};
use super::rows::CudaRows;
use super::session::{Buffer, Session};
use ragstone_kernels::backend::{Backend, KvBytes, RowGroup, Slots, StepPart, Stepped, StoredKv, check_tokens};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::error::{Error, Result};
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::pool::{BlockId, KvLayout, check_slots};

/// Fresh K and V in device memory, in the pool's type, `[count, kv_dim]` each: on every rank those of its heads.
#[derive(Debug)]
pub struct CudaKv {
    buffers: Option<Vec<[Buffer; 2]>>,
    count: usize,
}

impl Loaded {
    /// Rows in the order given. `width` in bytes.
    pub(super) fn gather(&self, from: u64, rows: &[usize], width: usize, to: u64) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
        let there = self.session.upload(&rows)?;
        self.session.launch(&launch::gather_rows(to, from, there.pointer(), rows.len() as u32, width as u32))
    }

    /// Bytes of a row of K (or V), of its heads.
    fn kv_bytes(&self, model: &CudaModel) -> usize {
        self.heads.kv_dim() * model.kv_dtype.size_in_bytes()
    }
}

impl Ranks {
    fn own_kv<'a>(&self, kv: &'a CudaKv) -> Result<&'a [[Buffer; 2]]> {
        self.own(kv.buffers.as_deref(), |[k, _]| k)
    }

    pub(super) fn own_pool<'a>(&self, pool: &'a CudaPool) -> Result<&'a [Arena]> {
        self.own(pool.arenas.as_deref(), |arena| &arena.buffer)
    }
}

impl CudaModel {
    pub(super) fn steps<'a>(&'a self, on: &'a Ranks) -> AllSteps<'a> {
        AllSteps::new(on, &self.config, self.kv_dtype.into())
    }

    fn row_bytes(&self) -> usize {
        4 * self.config.hidden_size
    }

    /// Bytes of a row of K (or V), of all heads.
    pub(super) fn kv_bytes(&self) -> usize {
        self.config.kv_dim() * self.kv_dtype.size_in_bytes()
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
        let mut pool = CudaPool { arenas: None, blocks, layout: self.kv_layout() };
        if blocks == 0 {
            return pool;
        }
        self.recover();
        pool.arenas = self.attempt(|on| {
            on.each.iter().for_each(|rank| rank.session.try_recording_again());
            let arena = |rank: &Loaded| {
                let layout = KvLayout { kv_heads: rank.heads.kv_heads as usize, ..pool.layout };
                let shape = ArenaShape { blocks, layout };
                Ok(Arena::new(rank.session.zeros(shape.bytes())?, shape))
            };
            on.each.iter().map(arena).collect()
        });
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
        let buffers = self.attempt(|on| {
            let steps = self.steps(on);
            let parts = parts.iter().map(|(from, rows)| Ok((from.hidden(&steps)?, *rows)));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let on_rank = |(rank, loaded): (usize, &Loaded)| {
                let out = loaded.session.allocate(count * self.row_bytes())?;
                let mut to = out.pointer();
                for (from, rows) in &parts {
                    loaded.gather(from[rank].start, rows, self.row_bytes(), to)?;
                    to += (rows.len() * self.row_bytes()) as u64;
                }
                Ok(out)
            };
            on.each.iter().enumerate().map(on_rank).collect()
        });
        CudaRows::of_memory(buffers, count)
    }

    fn project(&self, layer: usize, rows: &CudaRows) -> CudaKv {
        let buffers = self.attempt(|on| {
            let steps = self.steps(on);
            steps.project(layer, &rows.hidden(&steps)?)
        });
        CudaKv { buffers, count: rows.count() }
    }

    fn gather_kv(&self, kv: &CudaKv, rows: &[usize]) -> CudaKv {
        let buffers = self.attempt(|on| {
            let on_rank = |(both, loaded): (&[Buffer; 2], &Loaded)| {
                let width = loaded.kv_bytes(self);
                let [k, v] = both.each_ref().map(|from| {
                    let to = loaded.session.allocate(rows.len() * width)?;
                    loaded.gather(from.pointer(), rows, width, to.pointer())?;
                    Ok::<_, Error>(to)
                });
                Ok([k?, v?])
            };
            on.own_kv(kv)?.iter().zip(&on.each).map(on_rank).collect()
        });
        CudaKv { buffers, count: rows.len() }
    }

    fn place(&self, pool: &mut CudaPool, layer: usize, to: Slots<'_>, kv: &CudaKv, rows: Range<usize>) -> Result<()> {
        check_slots(&pool.layout, pool.blocks, layer, to)?;
        if rows.len() != to.slots.len() || rows.end > kv.count {
            return Err(Error::invalid_input(format!("rows {rows:?} of {} for {} slots", kv.count, to.slots.len())));
        }
        self.checked(|on| {
            let (arenas, runs) = (on.own_pool(pool)?, distinct_runs(to.slots));
            for ((loaded, arena), both) in on.each.iter().zip(arenas).zip(on.own_kv(kv)?) {
                let first = (rows.start * loaded.kv_bytes(self)) as u64;
                let [k, v] = both.each_ref().map(|buffer| buffer.pointer() + first);
                let tables = self.tables_of(&loaded.session, to)?;
                let (turn, _angles) = loaded.angles(&self.config, layer).turn(&loaded.session, to.positions)?;
                let tables = tables.each_ref().map(Buffer::pointer);
                let placing = self.placing(loaded, arena.layer(layer), &runs, tables, turn, (k, v));
                loaded.session.run(&placing)?;
            }
            Ok(())
        })
    }

    fn place_stored(&self, pool: &mut CudaPool, layer: usize, to: Slots<'_>, stored: StoredKv<'_>) -> Result<()> {
        self.place_all_stored(pool, layer, &[(to, stored)])
    }

    fn place_all_stored(&self, pool: &mut CudaPool, layer: usize, parts: &[(Slots<'_>, StoredKv<'_>)]) -> Result<()> {
        self.place_entries(pool, layer, parts)
    }

    fn finish(&self, layer: usize, rows: &mut CudaRows, groups: &[RowGroup<'_>], pool: &CudaPool) {
        self.attempt(|on| {
            let (steps, pool) = (self.steps(on), on.own_pool(pool)?);
            steps.finish(layer, &rows.hidden_to_change(&steps)?, groups, pool)
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
            let steps = self.steps(on);
            let hidden = rows.hidden(&steps)?.into_iter().map(|all| all.part(&group.rows, self.row_bytes()));
            let hidden: Vec<Hidden> = hidden.collect();
            let weights = steps.attention_weights(layer, &hidden, group, on.own_pool(pool)?)?;
            let weights = on.each[0].session.download(weights.pointer(), 4 * count * slots)?;
            on.check()?;
            Ok(weights)
        });
        let values = weights.map_or_else(|| vec![0.0; count * slots], |bytes| bytemuck::pod_collect_to_vec(&bytes));
        Matrix::from_vec(count, slots, values)
    }

    fn logits(&self, rows: &CudaRows) -> Matrix {
        let (count, vocab) = (rows.count(), self.config.vocab_size);
        let logits = self.attempt(|on| {
            let steps = self.steps(on);
            let shares = steps.logits(&rows.hidden(&steps)?)?;
            let widths: Vec<usize> = shares.iter().map(|(_, outputs)| 4 * outputs).collect();
            let download = |((share, _), (loaded, width)): (&(Buffer, usize), (&Loaded, &usize))| {
                loaded.session.download(share.pointer(), count * width)
            };
            let parts = shares.iter().zip(on.each.iter().zip(&widths)).map(download).collect::<Result<Vec<_>>>()?;
            Ok(joined(parts, &widths, count))
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
            // A sum over all heads is one sum, in their order: on the first rank.
            let own = on.own_kv(fresh)?;
            let whole = [0, 1].map(|part| {
                let piece = |(both, loaded): (&[Buffer; 2], &Loaded)| Piece {
                    start: both[part].pointer(),
                    width: loaded.kv_bytes(self),
                };
                let pieces: Vec<Piece> = own.iter().zip(&on.each).map(piece).collect();
                on.gather_to_first(&pieces, fresh.count)
            });
            let [(k, _k), (v, _v)] = {
                let [k, v] = whole;
                [k?, v?]
            };
            let session = &on.each[0].session;
            let (there, out) = (session.upload(&flat)?, session.allocate(4 * pairs.len())?);
            let (dim, pairs_there) = (self.config.kv_dim() as u32, (there.pointer(), pairs.len() as u32));
            session.load(&[stored.k, stored.v], |at| {
                let (element, stored) = (self.kv_dtype.into(), (at[0], at[1]));
                vec![launch::deviation(element, out.pointer(), (k, v), stored, pairs_there, dim, compared)]
            })?;
            let bytes = session.download(out.pointer(), 4 * pairs.len())?;
            on.check()?;
            Ok(bytes)
        })?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn export(&self, kv: &CudaKv, rows: Range<usize>) -> KvBytes {
        let parts = self.attempt(|on| {
            let (own, count) = (on.own_kv(kv)?, rows.len());
            let widths: Vec<usize> = on.each.iter().map(|loaded| loaded.kv_bytes(self)).collect();
            let whole = [0, 1].map(|part| {
                let download = |((both, loaded), width): ((&[Buffer; 2], &Loaded), &usize)| {
                    let from = both[part].pointer() + (rows.start * width) as u64;
                    loaded.session.download(from, count * width)
                };
                let parts = own.iter().zip(&on.each).zip(&widths).map(download).collect::<Result<Vec<_>>>()?;
                Ok::<_, Error>(joined(parts, &widths, count))
            });
            let [k, v] = whole;
            Ok((k?, v?))
        });
        // What did not come is not to be stored either.
        let Some((k, v)) = parts else {
            let nothing = vec![0; rows.len() * self.kv_bytes()];
            return KvBytes { k: nothing.clone(), v: nothing, is_finite: false };
        };
        let is_finite = self.kv_dtype.all_finite(&k) && self.kv_dtype.all_finite(&v);
        KvBytes { k, v, is_finite }
    }

    fn copy_block(&self, pool: &mut CudaPool, from: BlockId, to: BlockId) -> Result<()> {
        pool.check_block(from)?;
        pool.check_block(to)?;
        self.checked(|on| {
            for (loaded, arena) in on.each.iter().zip(on.own_pool(pool)?) {
                let (stride, bytes) = (arena.stride(), arena.part_bytes() as u64);
                let (from, to) = ((arena.block(from), stride), (arena.block(to), stride));
                loaded.session.launch(&launch::copy_parts(to, from, arena.parts(), bytes))?;
            }
            Ok(())
        })
    }

    /// Of each rank its own part, one behind the other.
    fn read_block(&self, pool: &CudaPool, block: BlockId) -> Result<Vec<u8>> {
        pool.check_block(block)?;
        self.checked(|on| {
            let mut whole = Vec::with_capacity(pool.block_bytes());
            for (loaded, arena) in on.each.iter().zip(on.own_pool(pool)?) {
                let (part, bytes) = (arena.part_bytes() as u64, arena.block_bytes());
                let packed = loaded.session.allocate(bytes)?;
                let (to, from) = ((packed.pointer(), part), (arena.block(block), arena.stride()));
                loaded.session.launch(&launch::copy_parts(to, from, arena.parts(), part))?;
                whole.extend(loaded.session.download(packed.pointer(), bytes)?);
            }
            Ok(whole)
        })
    }

    fn write_block(&self, pool: &mut CudaPool, block: BlockId, bytes: &[u8]) -> Result<()> {
        pool.check_block(block)?;
        let wanted = pool.block_bytes();
        if bytes.len() != wanted {
            return Err(Error::invalid_input(format!("{} bytes of a block of {wanted}", bytes.len())));
        }
        self.checked(|on| {
            let mut rest = bytes;
            for (loaded, arena) in on.each.iter().zip(on.own_pool(pool)?) {
                let (own, behind) = rest.split_at(arena.block_bytes());
                let part = arena.part_bytes() as u64;
                let packed = loaded.session.upload(own)?;
                let (to, from) = ((arena.block(block), arena.stride()), (packed.pointer(), part));
                loaded.session.launch(&launch::copy_parts(to, from, arena.parts(), part))?;
                rest = behind;
            }
            Ok(())
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
