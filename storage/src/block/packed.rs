//! The tables of sequences that leave the device for a while: which blocks they have in common, without the blocks.

use std::collections::HashMap;

use ragstone_kernels::pool::BlockId;

use super::table::TableBlock;
use super::{BlockAllocator, BlockTable, SharedBlock};
use crate::Result;

/// The shape of some tables: what is in one block for several of them will be in one block again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedTables {
    /// Distinct blocks.
    blocks: usize,
    /// By table: which of the distinct blocks it has, in the order of its slots, and its tokens.
    tables: Vec<(Vec<usize>, usize)>,
}

impl PackedTables {
    /// The shape of `tables`, and their distinct blocks, each once.
    pub fn of<'a>(tables: impl IntoIterator<Item = &'a BlockTable>) -> (Vec<BlockId>, Self) {
        let mut places: HashMap<BlockId, usize> = HashMap::new();
        let mut distinct = Vec::new();
        let mut pack = |table: &BlockTable| {
            let place = |block: &BlockId| {
                *places.entry(*block).or_insert_with(|| {
                    distinct.push(*block);
                    distinct.len() - 1
                })
            };
            (table.blocks().iter().map(place).collect(), table.tokens())
        };
        let tables = tables.into_iter().map(&mut pack).collect();
        let packed = Self { blocks: distinct.len(), tables };
        (distinct, packed)
    }

    /// Distinct blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }
}

impl BlockAllocator {
    /// Tables of a shape over new blocks, all or nothing, and the distinct blocks in the order they were packed in. The watermark
    /// stays free.
    ///
    /// # Errors
    /// `Full` if too few blocks are free; then nothing has changed.
    pub fn unpack(&self, packed: &PackedTables) -> Result<(Vec<BlockId>, Vec<BlockTable>)> {
        let taken = self.take_for_new(packed.blocks)?;
        let ids = taken.iter().map(super::MutableBlock::id).collect();
        let mut uses = vec![0; packed.blocks];
        packed.tables.iter().flat_map(|(blocks, _)| blocks).for_each(|block| uses[*block] += 1);
        let mut own: Vec<_> = taken.into_iter().map(Some).collect();
        let mut shared: Vec<Option<SharedBlock>> = vec![None; packed.blocks];
        let mut tables = Vec::with_capacity(packed.tables.len());
        for (blocks, tokens) in &packed.tables {
            let mut held = Vec::with_capacity(blocks.len());
            for block in blocks {
                held.extend(match own[*block].take() {
                    Some(alone) if uses[*block] == 1 => Some(TableBlock::Own(alone)),
                    Some(first) => Some(TableBlock::Shared(shared[*block].insert(first.complete().share()).clone())),
                    None => shared[*block].clone().map(TableBlock::Shared),
                });
            }
            tables.push(BlockTable::from_held(self.clone(), held, *tokens));
        }
        Ok((ids, tables))
    }
}
