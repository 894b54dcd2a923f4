//! A step of running answers: a few rows through all layers at once, as launches that are recorded once for all steps of their class and
//! replayed as a graph (`session/graphs.rs`).
//!
//! What differs from step to step (tokens, positions, slots, block tables) is a table of words at a fixed place:
//!
//! ```text
//! tokens [rows] | positions [rows] | slots [rows] | attention tiles [rows] | blocks … | key positions …
//! ```
//!
//! Kernels find the blocks and key positions of a sequence by what its tiles say, counted from the table's first word. There are as many tiles
//! as rows; those behind the last one have no rows, and do nothing. Slots are counted from the table's first word, too, as if its words
//! were all blocks of one sequence: so the rows of all sequences are placed by one launch.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;

use super::attention::{self, HostTables, TablePlaces, Tables, cut};
use super::launch::{self, AttentionTile, Fresh, SEGMENT};
use super::layer::Hidden;
use super::model::CudaModel;
use super::parallel::{AllSteps, Ranks};
use super::pool::{Arena, CudaPool};
use super::rope::HeldTurn;
use super::rows::CudaRows;
use super::session::{Buffer, Class};
use ragstone_kernels::backend::{RowGroup, SequenceView, StepPart, Stepped};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::error::Result;
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::pool::{BLOCK_TOKENS, KvLayout, check_slots};

/// Rows of a step. Of more the kernels take longer than their launches.
const MOST_ROWS: usize = 128;

/// Rows of one sequence: a token and its draft. More are a prompt.
const MOST_ROWS_EACH: usize = 16;

/// Words of a table, so that a slot counted from its first word is a `u32`.
const MOST_WORDS: usize = 1 << 27;

/// The least room for a table, in bytes; it doubles.
const TABLE_BYTES: usize = 64 << 10;

/// Words of an [`AttentionTile`].
const TILE_WORDS: usize = size_of::<AttentionTile>() / 4;

/// What a step's launches read, as words; see the module.
#[derive(Debug)]
struct StepTable {
    words: Vec<u32>,
    rows: usize,
    positions: Vec<u32>,
    /// Of the sequence that has most.
    slots: u32,
}

impl StepTable {
    /// Of rows that may be computed as a step: few, still tokens, each with a slot of its own.
    fn of(parts: &[StepPart<'_, CudaRows>], layout: &KvLayout, pool_blocks: usize, tile_rows: usize) -> Option<Self> {
        let rows = parts.iter().map(|part| part.rows.count()).sum::<usize>();
        if rows == 0 || rows > MOST_ROWS || parts.iter().any(|part| part.rows.count() > MOST_ROWS_EACH) {
            return None;
        }
        let (mut tokens, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let (mut groups, mut written) = (Vec::new(), HashSet::new());
        let blocks_at = (3 + TILE_WORDS) * rows;
        let mut first_block = blocks_at;
        for StepPart { rows, to, key_positions } in parts {
            let (ids, at) = rows.tokens()?;
            check_slots(layout, pool_blocks, 0, *to).ok()?;
            if at != to.positions {
                return None;
            }
            for slot in to.slots {
                let place = (to.blocks[*slot as usize / BLOCK_TOKENS], *slot as usize % BLOCK_TOKENS);
                if !written.insert(place) {
                    return None;
                }
                slots.push((first_block * BLOCK_TOKENS) as u32 + slot);
            }
            let sequence = SequenceView { blocks: to.blocks, key_positions };
            groups.push(RowGroup { rows: tokens.len()..tokens.len() + ids.len(), positions: at, sequence });
            tokens.extend(ids);
            positions.extend(at);
            first_block += to.blocks.len();
            if first_block + key_positions.len() > MOST_WORDS {
                return None;
            }
        }
        let host = HostTables::of(&groups, tile_rows);
        let keys_at = blocks_at + host.blocks.len();
        let mut words = [&tokens[..], &positions, &slots].concat();
        for tile in &host.tiles {
            let (blocks, keys) = (tile.blocks_start + blocks_at as u32, tile.keys_start + keys_at as u32);
            words.extend([tile.first_row, tile.rows, blocks, keys, tile.slots]);
        }
        words.resize(blocks_at, 0);
        words.extend(&host.blocks);
        words.extend(&host.key_positions);
        (words.len() <= MOST_WORDS).then(|| Self { words, rows, positions, slots: host.most_slots() })
    }
}

impl CudaModel {
    /// A step as a graph, or the launches of one; `None` where the rows are no step, several GPUs share the model, or something went wrong.
    pub(super) fn replay_step(
        &self,
        parts: &[StepPart<'_, CudaRows>],
        pool: &CudaPool,
        wants_kv: bool,
    ) -> Option<Stepped> {
        if !self.replays_graphs() {
            return None;
        }
        // What goes wrong here is met again by the operations one by one, which tell it.
        self.checked(|on| self.replay(on, parts, pool, wants_kv)).ok()?
    }

    fn replay(
        &self,
        on: &Ranks,
        parts: &[StepPart<'_, CudaRows>],
        pool: &CudaPool,
        wants_kv: bool,
    ) -> Result<Option<Stepped>> {
        let ([rank], [arena]) = (&on.each[..], on.own_pool(pool)?) else { return Ok(None) };
        let (tile_rows, is_wide) = cut(self.kv_dtype.into(), rank.heads, &rank.session);
        let table = StepTable::of(parts, &pool.layout, pool.blocks, tile_rows);
        let Some(table) = table else { return Ok(None) };
        let (steps, session) = (self.steps(on), &rank.session);
        let turns = (0..self.config.layers).map(|layer| steps.turns(layer, &table.positions));
        let turns: Vec<HeldTurn> = turns.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let multiprocessors = session.multiprocessors();
        let segments = attention::segments(is_wide, table.rows, rank.heads.kv_heads, table.slots, multiprocessors);
        let class = Class {
            pool: (arena.buffer.pointer(), pool.blocks),
            rows: table.rows,
            segments: if segments == 0 { 0 } else { segments.next_power_of_two() },
            table_bytes: (4 * table.words.len()).next_power_of_two().max(TABLE_BYTES),
            angles: turns.iter().map(|(turn, _)| turn.angles).collect(),
        };
        let (logits_bytes, kv_bytes) = (logits_bytes(&self.config, table.rows), table.rows * self.kv_bytes());
        let bytes = logits_bytes + if wants_kv { 2 * self.config.layers * kv_bytes } else { 0 };
        if !session.may_replay(&class) {
            return Ok(None);
        }
        // First, as it may take the memory of graphs.
        let out = session.allocate(bytes)?;
        if !session.has_recorded(&class) {
            session.record(&class, || all_layers(&steps, &class, &turns, arena))?;
        }
        if !session.replay(&class, &table.words, (&out, bytes))? {
            return Ok(None);
        }
        let all = session.download(out.pointer(), bytes)?;
        let (logits, kv) = all.split_at(logits_bytes);
        let logits = Matrix::from_vec(table.rows, self.config.vocab_size, bytemuck::pod_collect_to_vec(logits));
        let kv = kv.chunks_exact(2 * kv_bytes).map(|kv| [kv[..kv_bytes].to_vec(), kv[kv_bytes..].to_vec()]);
        Ok(Some(Stepped { logits, kv: kv.collect() }))
    }
}

fn logits_bytes(config: &ModelConfig, rows: usize) -> usize {
    4 * rows * config.vocab_size
}

/// Every launch of a step on a single GPU, over the greatest tables of its class. `turns` are the layers'. Gives where the table is to be, and what
/// comes out: logits, then K and V of each layer.
fn all_layers(all: &AllSteps<'_>, class: &Class, turns: &[HeldTurn], arena: &Arena) -> Result<[Buffer; 2]> {
    let (steps, rows) = (&all.steps[0], class.rows);
    let (session, heads) = (&steps.on.session, steps.on.heads);
    let kv_bytes = rows * heads.kv_dim() * steps.kv.size_in_bytes();
    let logits_bytes = logits_bytes(all.config, rows);
    let table = session.allocate(class.table_bytes)?;
    let out = session.allocate(logits_bytes + 2 * turns.len() * kv_bytes)?;
    let word = |at: usize| table.pointer() + 4 * at as u64;
    let [tokens, positions, slots, tiles] = [0, rows, 2 * rows, 3 * rows].map(word);
    let start = table.pointer();
    let places = TablePlaces { row_positions: positions, tiles, blocks: start, key_positions: start };
    // A tile with one row: the grid is that of any, as rows beyond one are added only while they fit a block of threads.
    let tile = AttentionTile { rows: 1, slots: class.segments * SEGMENT, ..AttentionTile::default() };
    let (row_positions, tiles) = (vec![0; rows], vec![tile; rows]);
    let host = HostTables { row_positions, tiles, ..HostTables::default() };
    let (_, is_wide) = cut(steps.kv, heads, session);
    let tables = [Arc::new(Tables::at(places, host, is_wide))];
    let embedded = all.normed_embeddings(vec![steps.embed_from(tokens, positions, rows)?], rows)?;
    let hidden: Vec<Hidden> = embedded.iter().map(|rank| Hidden { start: rank.pointer(), rows }).collect();
    for (layer, turn) in turns.iter().enumerate() {
        let k = out.pointer() + (logits_bytes + 2 * layer * kv_bytes) as u64;
        let v = k + kv_bytes as u64;
        let fresh = all.fresh(layer, hidden[0])?;
        let q = steps.values(steps.kv, rows, heads.query_dim())?;
        let from = fresh.each_ref().map(Buffer::pointer);
        let (scale, lists) = (all.config.attention_scale, (start, slots, positions));
        let fresh = Fresh { from, to: [q.pointer(), k, v], pool: arena.layer(layer), scale };
        session.launch(&launch::place_fresh(steps.kv, fresh, lists, turn.0, rows as u32, heads))?;
        all.attend_with(layer, slice::from_ref(&q), &hidden, &tables, slice::from_ref(arena))?;
        all.feed_forward(layer, &hidden)?;
    }
    hidden.iter().try_for_each(|hidden| steps.logits_to(*hidden, out.pointer()))?;
    Ok([table, out])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_kernels::backend::Slots;
    use ragstone_kernels::dtype::KvDtype;
    use ragstone_kernels::pool::BlockId;

    const LAYOUT: KvLayout = KvLayout { layers: 1, kv_heads: 1, head_dim: 8, dtype: KvDtype::F32 };

    fn part<'a>(
        rows: &'a CudaRows,
        blocks: &'a [BlockId],
        slots: &'a [u32],
        keys: &'a [u32],
    ) -> StepPart<'a, CudaRows> {
        let (_, positions) = rows.tokens().unwrap();
        StepPart { rows, to: Slots { blocks, slots, positions }, key_positions: keys }
    }

    #[test]
    fn a_table_has_all_that_differs_and_its_places_count_from_its_start() {
        let (one, two) = (CudaRows::of_tokens(&[5], &[17]), CudaRows::of_tokens(&[6, 7], &[2, 3]));
        let (blocks, other) = ([BlockId(4), BlockId(9)], [BlockId(1)]);
        let keys: Vec<u32> = (0..18).collect();
        let parts = [part(&one, &blocks, &[17], &keys), part(&two, &other, &[2, 3], &keys[..4])];
        let table = StepTable::of(&parts, &LAYOUT, 10, 8).unwrap();
        assert_eq!((table.rows, table.slots, &table.positions[..]), (3, 18, &[17, 2, 3][..]));
        // Three lists and three tiles of three rows, then blocks from word 24 and key positions from word 27 on.
        let (first, second) = (24 * 16 + 17, 26 * 16 + 2);
        let expected = [
            [5, 6, 7],
            [17, 2, 3],
            [first, second, second + 1],
            [0, 1, 24],
            [27, 18, 1],
            [2, 26, 45],
            [4, 0, 0],
            [0, 0, 0],
            [4, 9, 1],
        ];
        assert_eq!(table.words[..27], expected.concat());
        assert_eq!(table.words[27..], [&keys[..], &keys[..4]].concat());
    }

    #[test]
    fn what_is_no_step_goes_operation_by_operation() {
        let is_step = |parts: &[StepPart<'_, CudaRows>]| StepTable::of(parts, &LAYOUT, 10, 8).is_some();
        let keys: Vec<u32> = (0..32).collect();
        let (one, blocks) = (CudaRows::of_tokens(&[5], &[3]), [BlockId(4), BlockId(9)]);
        assert!(is_step(&[part(&one, &blocks, &[3], &keys)]));
        assert!(!is_step(&[]));
        assert!(!is_step(&[part(&one, &blocks, &[3, 4], &keys)]), "more slots than rows");
        assert!(!is_step(&[part(&one, &blocks, &[32], &keys)]), "no such slot");
        assert!(!is_step(&[part(&one, &[BlockId(10)], &[3], &keys)]), "no such block");
        let moved = [StepPart {
            to: Slots { blocks: &blocks, slots: &[3], positions: &[4] },
            ..part(&one, &blocks, &[3], &keys)
        }];
        assert!(!is_step(&moved), "placed elsewhere than embedded");
        let two = [part(&one, &blocks, &[3], &keys), part(&one, &blocks, &[3], &keys)];
        assert!(!is_step(&two), "two rows of one slot: their order would be that of threads");
        let prompt: Vec<u32> = (0..17).collect();
        assert!(!is_step(&[part(&CudaRows::of_tokens(&prompt, &prompt), &blocks, &prompt, &keys)]), "a prompt");
        let places: Vec<[BlockId; 1]> = (0..129).map(|block| [BlockId(block)]).collect();
        let many: Vec<_> = places.iter().map(|blocks| part(&one, blocks, &[3], &keys)).collect();
        let is_step = |parts: &[StepPart<'_, CudaRows>]| StepTable::of(parts, &LAYOUT, 129, 8).is_some();
        assert!(is_step(&many[..128]) && !is_step(&many), "many rows");
        let later = CudaRows::of_memory(None, 1);
        assert!(!is_step(&[StepPart { rows: &later, ..part(&one, &blocks, &[3], &keys) }]), "rows of a later layer");
    }
}
