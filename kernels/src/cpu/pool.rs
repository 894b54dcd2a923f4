//! The device tier's memory: keys and values in blocks of 16 tokens ("Efficient Memory Management for Large Language
//! Model Serving with PagedAttention", section 4). Which blocks belong to whom is decided elsewhere.

mod tile;
mod writing;

use std::ops::Range;

pub use self::writing::Part;
use self::writing::Writing;
use crate::aligned::{Aligned, SharedMut};
use crate::backend::Slots;
use crate::dtype::{KvDtype, bf16_bits, f16_bits};
use crate::error::{Error, Result};
use crate::numa::Shares;
use crate::rope::Rope;
use crate::simd::Path;

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;

/// A block of a pool, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct BlockId(pub u32);

/// The shape of a model's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KvLayout {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What K and V are rounded to, in the pool and wherever they are stored.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Values of one token's K (or V) in one layer: `kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one token's K and V over all layers, as stored outside the pool.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_dim() * self.dtype.size_in_bytes()
    }

    /// Bytes of a block in the pool.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers * self.block_len() * self.dtype.size_in_bytes()
    }

    /// Values of one layer's K (or V) in a block.
    fn block_len(&self) -> usize {
        self.kv_heads * self.head_len()
    }

    /// Cells of one head's K (or V) in a block.
    pub(crate) fn head_len(&self) -> usize {
        self.row_len() * BLOCK_TOKENS
    }

    /// `head_dim`, rounded up so that every V row starts on a cache line.
    pub(crate) fn row_len(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }
}

/// Rows of K or V, `[tokens, kv_heads * head_dim]`, row-major: just computed, or as they come from a store.
#[derive(Debug, Clone, Copy)]
pub enum KvData<'a> {
    /// Values that are already rounded to the layout's dtype.
    F32(&'a [f32]),
    /// Little-endian bytes.
    Bytes(KvDtype, &'a [u8]),
}

impl KvData<'_> {
    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bytes(dtype, bytes) => bytes.len() / dtype.size_in_bytes(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes values `from..from + out.len()` to `out`.
    ///
    /// # Errors
    /// `InvalidInput` if there are not as many.
    pub(crate) fn read(&self, from: usize, out: &mut [f32]) -> Result<()> {
        let end = from + out.len();
        match self {
            Self::F32(values) if end <= values.len() => out.copy_from_slice(&values[from..end]),
            Self::Bytes(dtype, bytes) if end * dtype.size_in_bytes() <= bytes.len() => {
                let size = dtype.size_in_bytes();
                dtype.decode(&bytes[from * size..end * size], out)?;
            }
            _ => {
                return Err(Error::invalid_input(format!("{} KV values where at least {end} are needed", self.len())));
            }
        }
        Ok(())
    }
}

/// Checks what a write to a pool of `pool_blocks` blocks names.
///
/// # Errors
/// `InvalidInput` if lengths differ, or a layer, a block or a slot does not exist.
pub(crate) fn check_slots(layout: &KvLayout, pool_blocks: usize, layer: usize, to: Slots<'_>) -> Result<()> {
    let Slots { blocks, slots, positions } = to;
    let problem = if layer >= layout.layers {
        format!("layer {layer} of {}", layout.layers)
    } else if slots.len() != positions.len() {
        format!("{} slots and {} positions", slots.len(), positions.len())
    } else if let Some(block) = blocks.iter().find(|block| block.0 as usize >= pool_blocks) {
        format!("block {} of {pool_blocks}", block.0)
    } else if let Some(slot) = slots.iter().find(|slot| **slot as usize >= blocks.len() * BLOCK_TOKENS) {
        format!("slot {slot} of {}", blocks.len() * BLOCK_TOKENS)
    } else {
        return Ok(());
    };
    Err(Error::invalid_input(format!("a KV write names {problem}")))
}

/// The arena of blocks. One layer's part of a block is, for every KV head, in the layout's dtype,
///
/// ```text
/// F32, F16   K: [head_dim][16]         rotated to its token's position; transposed, so that 16 scores are one vector
///            V: [16][row]              rows padded to a multiple of 16 values
/// Bf16       K: [head_dim / 2][16][2]  the same in pairs of elements, for dot products of pairs
///            V: [8][row][2]            in pairs of tokens
/// ```
///
/// A layer's arena is `[node][block][heads of that node]`, where heads are shared out among NUMA nodes, else `[block][heads]`. Memory is
/// touched when it is first written.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    blocks: usize,
    /// The KV heads of each NUMA node.
    heads: Shares,
    /// By layer.
    keys: Vec<Arena>,
    values: Vec<Arena>,
}

/// Where the cells of a KV head are, in every layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    /// Of block 0.
    first: usize,
    /// From a block's to the next one's.
    stride: usize,
}

impl Head {
    /// Of a pool of `blocks` blocks whose heads are shared out so.
    fn of(layout: &KvLayout, heads: &Shares, blocks: usize, head: usize) -> Self {
        let (own, cells) = (heads.range_of(head), layout.head_len());
        Self { first: (own.start * blocks + head - own.start) * cells, stride: own.len() * cells }
    }

    /// Its first cell in a block.
    pub(crate) fn start(self, block: BlockId) -> usize {
        self.first + block.0 as usize * self.stride
    }
}

/// One layer's K (or V).
#[derive(Debug)]
pub(crate) enum Arena {
    F32(Aligned<f32>),
    F16(Aligned<u16>),
    Bf16(Aligned<u16>),
}

/// An arena that several threads write to.
#[derive(Clone, Copy)]
enum Cells {
    F32(SharedMut<f32>),
    F16(SharedMut<u16>),
    Bf16(SharedMut<u16>),
}

impl Arena {
    /// So many cells of every head.
    fn zeros(dtype: KvDtype, heads: &Shares, cells: usize) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32(heads.zeros(cells)),
            KvDtype::F16 => Self::F16(heads.zeros(cells)),
            KvDtype::Bf16 => Self::Bf16(heads.zeros(cells)),
        }
    }

    fn cells(&mut self) -> Cells {
        match self {
            Self::F32(values) => Cells::F32(SharedMut::new(values)),
            Self::F16(values) => Cells::F16(SharedMut::new(values)),
            Self::Bf16(values) => Cells::Bf16(SharedMut::new(values)),
        }
    }
}

impl Cells {
    /// Writes `row`, rounded, to the cells `start + at(i)`.
    ///
    /// # Safety
    /// The cells must exist, and nobody else may use them meanwhile.
    #[inline]
    unsafe fn scatter(self, start: usize, row: &[f32], at: impl Fn(usize) -> usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(cells) => {
                    row.iter().enumerate().for_each(|(i, value)| cells.at(start + at(i)).write(*value));
                }
                Self::F16(cells) => {
                    let bits = |value: &f32| f16_bits(*value);
                    row.iter().enumerate().for_each(|(i, value)| cells.at(start + at(i)).write(bits(value)));
                }
                Self::Bf16(cells) => {
                    let bits = |value: &f32| bf16_bits(*value);
                    row.iter().enumerate().for_each(|(i, value)| cells.at(start + at(i)).write(bits(value)));
                }
            }
        }
    }
}

impl KvPool {
    /// An arena of `blocks` blocks, all zero.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        let heads = Shares::of_heads(layout.kv_heads, blocks * layout.block_len() * layout.dtype.size_in_bytes());
        let arena = || (0..layout.layers).map(|_| Arena::zeros(layout.dtype, &heads, blocks * layout.head_len()));
        let (keys, values) = (arena().collect(), arena().collect());
        Self { layout, blocks, heads, keys, values }
    }

    /// The shape of what is kept.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Writes the K and V of some tokens of one layer. Token i goes to slot `slots[i]` of a sequence whose slot s is
    /// in block `blocks[s / 16]`; its K, which comes unrotated, is rotated to `positions[i]`. Where two tokens name one
    /// slot, the last one stays.
    ///
    /// # Errors
    /// `InvalidInput` if lengths differ, or a layer, a block or a slot does not exist; nothing is written then.
    #[allow(clippy::too_many_arguments)]
    pub fn write(
        &mut self,
        layer: usize,
        rope: &Rope,
        blocks: &[BlockId],
        slots: &[u32],
        positions: &[u32],
        k: KvData<'_>,
        v: KvData<'_>,
    ) -> Result<()> {
        self.write_on(Path::best(), layer, rope, Slots { blocks, slots, positions }, k, v)
    }

    fn write_on(
        &mut self,
        path: Path,
        layer: usize,
        rope: &Rope,
        to: Slots<'_>,
        k: KvData<'_>,
        v: KvData<'_>,
    ) -> Result<()> {
        let part = Part { to, k, v };
        self.check_part(layer, rope, &part)?;
        let writing = Writing::new(self, layer, rope, path);
        writing.by_heads(&part)
    }

    fn check_part(&self, layer: usize, rope: &Rope, part: &Part<'_>) -> Result<()> {
        if rope.head_dim() != self.layout.head_dim {
            let message = format!("a rotation of {} and heads of {}", rope.head_dim(), self.layout.head_dim);
            return Err(Error::invalid_input(message));
        }
        check_slots(&self.layout, self.blocks, layer, part.to)?;
        let tokens = part.to.slots.len();
        for (name, data) in [("K", part.k), ("V", part.v)] {
            if data.len() != tokens * self.layout.kv_dim() {
                return Err(Error::invalid_input(format!(
                    "{} values of {name} for {tokens} tokens of {}; the entry belongs to another model",
                    data.len(),
                    self.layout.kv_dim()
                )));
            }
        }
        Ok(())
    }

    /// Copies a block, every layer of it, bit for bit: before a sequence writes to what it shares with others.
    ///
    /// # Errors
    /// `InvalidInput` if a block does not exist; nothing is written then.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        if let Some(block) = [from, to].iter().find(|block| block.0 as usize >= self.blocks) {
            return Err(Error::invalid_input(format!("a copy names block {} of {}", block.0, self.blocks)));
        }
        let (from, to) = (self.cells_of(from)?, self.cells_of(to)?);
        for arena in self.keys.iter_mut().chain(&mut self.values) {
            for (from, to) in from.iter().zip(&to) {
                match arena {
                    Arena::F32(values) => values.copy_within(from.clone(), to.start),
                    Arena::F16(values) | Arena::Bf16(values) => values.copy_within(from.clone(), to.start),
                }
            }
        }
        Ok(())
    }

    /// A block's cells, every layer of it, as they are in memory: K of each layer, then V of each.
    ///
    /// # Errors
    /// `InvalidInput` if the block does not exist.
    pub fn read_block(&self, block: BlockId) -> Result<Vec<u8>> {
        let cells = self.cells_of(block)?;
        let mut bytes = Vec::with_capacity(self.layout.block_bytes());
        for arena in self.keys.iter().chain(&self.values) {
            for cells in &cells {
                bytes.extend_from_slice(match arena {
                    Arena::F32(values) => bytemuck::cast_slice(&values[cells.clone()]),
                    Arena::F16(values) | Arena::Bf16(values) => bytemuck::cast_slice(&values[cells.clone()]),
                });
            }
        }
        Ok(bytes)
    }

    /// Puts back what [`read_block`](Self::read_block) gave, into the same block or another of a pool of this layout.
    ///
    /// # Errors
    /// `InvalidInput` if the block does not exist, or the bytes are not a block's; nothing is written then.
    pub fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<()> {
        let cells = self.cells_of(block)?;
        let wanted = self.layout.block_bytes();
        if bytes.len() != wanted {
            return Err(Error::invalid_input(format!("{} bytes of a block of {wanted}", bytes.len())));
        }
        let mut rest = bytes;
        for arena in self.keys.iter_mut().chain(&mut self.values) {
            for cells in &cells {
                let to: &mut [u8] = match arena {
                    Arena::F32(values) => bytemuck::cast_slice_mut(&mut values[cells.clone()]),
                    Arena::F16(values) | Arena::Bf16(values) => bytemuck::cast_slice_mut(&mut values[cells.clone()]),
                };
                let part;
                (part, rest) = rest.split_at(to.len());
                to.copy_from_slice(part);
            }
        }
        Ok(())
    }

    /// A block's cells in a layer's K (or V), in the order of heads: a range for each NUMA node.
    fn cells_of(&self, block: BlockId) -> Result<Vec<Range<usize>>> {
        if block.0 as usize >= self.blocks {
            return Err(Error::invalid_input(format!("block {} of {}", block.0, self.blocks)));
        }
        let cells = |heads: Range<usize>| {
            let start = self.head(heads.start).start(block);
            start..start + heads.len() * self.layout.head_len()
        };
        Ok(self.heads.ranges().map(cells).collect())
    }

    /// The KV heads of each NUMA node.
    pub(crate) fn heads(&self) -> &Shares {
        &self.heads
    }

    /// Where a KV head's cells are.
    pub(crate) fn head(&self, head: usize) -> Head {
        Head::of(&self.layout, &self.heads, self.blocks, head)
    }

    /// One layer's K and V.
    pub(crate) fn arenas(&self, layer: usize) -> (&Arena, &Arena) {
        (&self.keys[layer], &self.values[layer])
    }
}

#[cfg(test)]
mod tests;
