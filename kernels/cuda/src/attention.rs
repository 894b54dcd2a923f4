//! Which rows look at which slots, as attention's kernels are told it.

use std::sync::{Arc, PoisonError};

use super::launch::{self, AttentionTile, Context, Element, Heads, SEGMENT, hopper};
use super::model::Loaded;
use super::session::{Buffer, Launch, Session};
use ragstone_kernels::backend::RowGroup;
use ragstone_kernels::error::Result;

/// Blocks of threads for each multiprocessor below which the context is split.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// The tables of some rows, in device memory, and what they were made of.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) host: HostTables,
    pub(super) places: TablePlaces,
    /// Whether tiles are those of [`hopper::attention`].
    is_wide: bool,
    /// What was allocated for them.
    memory: Vec<Buffer>,
}

/// Where tables lie; pointers.
#[derive(Debug, Clone, Copy)]
pub(super) struct TablePlaces {
    pub(super) row_positions: u64,
    pub(super) tiles: u64,
    pub(super) blocks: u64,
    pub(super) key_positions: u64,
}

/// The same in host memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostTables {
    pub(super) row_positions: Vec<u32>,
    pub(super) tiles: Vec<AttentionTile>,
    pub(super) blocks: Vec<u32>,
    pub(super) key_positions: Vec<u32>,
}

impl HostTables {
    /// Of rows in groups that follow each other, at most `tile_rows` of them a tile. Rows are counted from that of the first group.
    pub(super) fn of(groups: &[RowGroup<'_>], tile_rows: usize) -> Self {
        let mut tables = Self::default();
        let first = groups.first().map_or(0, |group| group.rows.start);
        for group in groups {
            let sequence = &group.sequence;
            let (blocks_start, keys_start) = (tables.blocks.len() as u32, tables.key_positions.len() as u32);
            tables.blocks.extend(sequence.blocks.iter().map(|block| block.0));
            tables.key_positions.extend(sequence.key_positions);
            tables.row_positions.extend(group.positions);
            for from in group.rows.clone().step_by(tile_rows) {
                tables.tiles.push(AttentionTile {
                    first_row: (from - first) as u32,
                    rows: group.rows.end.min(from + tile_rows).saturating_sub(from) as u32,
                    blocks_start,
                    keys_start,
                    slots: sequence.key_positions.len() as u32,
                });
            }
        }
        tables
    }

    pub(super) fn most_slots(&self) -> u32 {
        self.tiles.iter().map(|tile| tile.slots).max().unwrap_or(0)
    }
}

/// Rows of a tile: as many as fill a block of threads with the heads that share K and V.
pub(super) fn tile_rows(element: Element, heads: Heads) -> usize {
    (launch::attention_lines(element) / (heads.heads / heads.kv_heads)).max(1) as usize
}

/// Rows of a tile of [`hopper::attention`].
pub(super) fn wide_tile_rows(heads: Heads) -> usize {
    (hopper::ATTENTION_LINES / (heads.heads / heads.kv_heads)).max(1) as usize
}

/// How rows are cut in tiles: how many a tile has, and whether tiles are those of [`hopper::attention`].
pub(super) fn cut(element: Element, heads: Heads, session: &Session) -> (usize, bool) {
    match session.trial().attention.is_used() && hopper::attends(element, heads) {
        true => (wide_tile_rows(heads), true),
        false => (tile_rows(element, heads), false),
    }
}

/// Segments that the context is split in; 0 where it is not. The bits are the same either way. Of wide tiles, whose blocks are a
/// multiprocessor's only one, half as many as multiprocessors are enough: split, every block writes what another reads.
pub(super) fn segments(is_wide: bool, tiles: usize, kv_heads: u32, slots: u32, multiprocessors: u32) -> u32 {
    let enough = if is_wide { multiprocessors / 2 } else { BLOCKS_PER_MULTIPROCESSOR * multiprocessors };
    let is_few = (tiles as u32).saturating_mul(kv_heads) < enough;
    if is_few && slots > SEGMENT { slots.div_ceil(SEGMENT) } else { 0 }
}

impl Loaded {
    /// The tables of some groups for attention with elements of that type: those of the last call, if these are the same.
    pub(super) fn attention_tables(&self, groups: &[RowGroup<'_>], element: Element) -> Result<Arc<Tables>> {
        let (tile_rows, is_wide) = cut(element, self.heads, &self.session);
        self.held_tables(groups, tile_rows, is_wide)
    }

    /// The tables of some groups, in tiles of at most so many rows.
    pub(super) fn tables(&self, groups: &[RowGroup<'_>], tile_rows: usize) -> Result<Arc<Tables>> {
        self.held_tables(groups, tile_rows, false)
    }

    fn held_tables(&self, groups: &[RowGroup<'_>], tile_rows: usize, is_wide: bool) -> Result<Arc<Tables>> {
        let host = HostTables::of(groups, tile_rows);
        let mut last = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = last.as_ref().filter(|tables| tables.is_wide == is_wide && tables.host == host) {
            return Ok(tables.clone());
        }
        let tables = Arc::new(Tables::upload(&self.session, host, is_wide)?);
        *last = Some(tables.clone());
        Ok(tables)
    }

    /// Attention of rows with queries `q`: `[rows, heads * head_dim]`, of f32, or of `wanted` where that can be.
    pub(super) fn attend(
        &self,
        element: Element,
        q: &Buffer,
        wanted: Element,
        context: Context,
        tables: &Tables,
        heads: Heads,
    ) -> Result<(Buffer, Element)> {
        let (session, host) = (&self.session, &tables.host);
        let segments = tables.segments(host.tiles.len(), heads.kv_heads, host.most_slots(), session.multiprocessors());
        let to = if wanted == Element::Bf16 && (tables.is_wide || segments > 0) { wanted } else { Element::F32 };
        let out = session.allocate(tables.rows() * heads.query_dim() * to.size_in_bytes())?;
        let partial = (segments > 0).then(|| session.allocate(tables.partial_bytes(segments, heads))).transpose()?;
        let split = partial.as_ref().map(|partial| (partial.pointer(), segments));
        session.run(&tables.launches(element, ((out.pointer(), to), q.pointer()), split, context, heads)?)?;
        Ok((out, to))
    }
}

impl Tables {
    /// Copies the tables to the device.
    pub(super) fn upload(session: &Arc<Session>, host: HostTables, is_wide: bool) -> Result<Self> {
        let upload = |values: &[u32]| session.upload(values);
        let memory = vec![
            upload(&host.row_positions)?,
            session.upload(&host.tiles)?,
            upload(&host.blocks)?,
            upload(&host.key_positions)?,
        ];
        let at = |index: usize| memory[index].pointer();
        let places = TablePlaces { row_positions: at(0), tiles: at(1), blocks: at(2), key_positions: at(3) };
        Ok(Self { host, places, is_wide, memory })
    }

    /// Tables that lie somewhere, in memory of the caller's.
    pub(super) fn at(places: TablePlaces, host: HostTables, is_wide: bool) -> Self {
        Self { host, places, is_wide, memory: Vec::new() }
    }

    /// Rows that look.
    pub(super) fn rows(&self) -> usize {
        self.host.row_positions.len()
    }

    /// The memory that it lies in.
    pub(super) fn into_buffers(self) -> Vec<Buffer> {
        self.memory
    }

    /// Bytes of what so many segments of the context come to, before they are put together.
    pub(super) fn partial_bytes(&self, segments: u32, heads: Heads) -> usize {
        4 * segments as usize * self.host.row_positions.len() * heads.heads as usize * (heads.head_dim as usize + 2)
    }

    /// As [`segments`].
    pub(super) fn segments(&self, tiles: usize, kv_heads: u32, slots: u32, multiprocessors: u32) -> u32 {
        segments(self.is_wide, tiles, kv_heads, slots, multiprocessors)
    }

    /// What attends with queries at `q`, to `out`: over the context at once, or over segments of it, by way of memory for them. To f32, or to
    /// bf16 where tiles are wide or the context is split.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn launches(
        &self,
        element: Element,
        (out, q): ((u64, Element), u64),
        split: Option<(u64, u32)>,
        context: Context,
        heads: Heads,
    ) -> Result<Vec<Launch>> {
        let (tiles, rows) = (&self.host.tiles, self.host.row_positions.len() as u32);
        let (out, to) = out;
        let attention = |out, partial| match self.is_wide {
            true => hopper::attention(element, (out, to), partial, q, context, tiles, rows, heads),
            false => Ok(launch::attention(element, out, partial, q, context, tiles, rows, heads)),
        };
        let Some(partial) = split else { return Ok(vec![attention(out, (0, 1))?]) };
        let tiles_there = (self.places.tiles, tiles.len() as u32);
        Ok(vec![attention(0, partial)?, launch::attention_combine((out, to), partial.0, tiles_there, rows, heads)])
    }

    /// What attention reads of them, beside K and V, which have so many lines each.
    pub(super) fn context(
        &self,
        (keys, values): (u64, u64),
        pool_lines: u32,
        slopes: Option<&Buffer>,
        window: Option<u32>,
    ) -> Context {
        Context {
            keys,
            values,
            pool_lines,
            row_positions: self.places.row_positions,
            tiles: self.places.tiles,
            blocks: self.places.blocks,
            key_positions: self.places.key_positions,
            slopes: slopes.map_or(0, Buffer::pointer),
            window: window.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_kernels::backend::SequenceView;
    use ragstone_kernels::pool::BlockId;

    #[test]
    fn tiles_cover_each_groups_rows_once() {
        let (blocks, keys) = ([BlockId(7), BlockId(3)], [0, 1, u32::MAX]);
        let positions: Vec<u32> = (10..15).collect();
        let group = |rows: std::ops::Range<usize>| RowGroup {
            positions: &positions[..rows.len()],
            rows,
            sequence: SequenceView { blocks: &blocks, key_positions: &keys },
        };
        let tables = HostTables::of(&[group(4..9), group(9..10)], 2);
        let tiles: Vec<[u32; 5]> = tables
            .tiles
            .iter()
            .map(|tile| [tile.first_row, tile.rows, tile.blocks_start, tile.keys_start, tile.slots])
            .collect();
        assert_eq!(tiles, [[0, 2, 0, 0, 3], [2, 2, 0, 0, 3], [4, 1, 0, 0, 3], [5, 1, 2, 3, 3]]);
        assert_eq!((tables.blocks, tables.row_positions), (vec![7, 3, 7, 3], vec![10, 11, 12, 13, 14, 10]));
    }

    #[test]
    fn only_a_long_context_of_few_rows_is_split() {
        assert_eq!(segments(false, 1, 8, 4096, 132), 8);
        assert_eq!(segments(false, 1, 8, 512, 132), 0);
        assert_eq!(segments(false, 100, 8, 4096, 132), 0);
        assert_eq!(segments(false, usize::MAX, 8, 4096, 132), 0);
        // 512 rows of a chunk fill the multiprocessors, a token does not.
        assert_eq!((segments(true, 29, 4, 16_384, 132), segments(true, 1, 4, 16_384, 132)), (0, 32));
    }
}
