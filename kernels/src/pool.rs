//! The device tier's memory: keys and values in blocks of 16 tokens ("Efficient Memory Management for Large Language
//! Model Serving with PagedAttention", section 4). Which blocks belong to whom is decided elsewhere.

use rayon::prelude::*;

use crate::aligned::{Aligned, SharedMut};
use crate::dtype::KvDtype;
use crate::error::{Error, Result};
use crate::rope::Rope;

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;

/// Tokens below which a second thread costs more than it saves.
const TOKENS_PER_THREAD: usize = 16;

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

    /// Bytes of a block in the pool, which holds f32.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers * self.block_len() * 4
    }

    /// Values of one layer's K (or V) in a block.
    fn block_len(&self) -> usize {
        self.kv_heads * self.head_len()
    }

    /// Values of one head's K (or V) in a block.
    fn head_len(&self) -> usize {
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

/// The arena of blocks. One layer's part of a block is, for every KV head,
///
/// ```text
/// K: [head_dim][16]   rotated to its token's position; transposed, so that 16 scores are one vector
/// V: [16][head_dim]   rows padded to whole cache lines
/// ```
///
/// in f32. Memory is touched when it is first written.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    blocks: usize,
    /// By layer.
    keys: Vec<Aligned<f32>>,
    values: Vec<Aligned<f32>>,
}

impl KvPool {
    /// An arena of `blocks` blocks, all zero.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        let arena = || (0..layout.layers).map(|_| Aligned::zeros(blocks * layout.block_len())).collect();
        Self { layout, blocks, keys: arena(), values: arena() }
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
        self.check_write(layer, rope, blocks, slots, positions)?;
        for (name, data) in [("K", k), ("V", v)] {
            if data.len() != slots.len() * self.layout.kv_dim() {
                return Err(Error::invalid_input(format!(
                    "{} values of {name} for {} tokens of {}; the entry belongs to another model",
                    data.len(),
                    slots.len(),
                    self.layout.kv_dim()
                )));
            }
        }
        let layout = self.layout;
        let (keys, values) = (SharedMut::new(&mut self.keys[layer]), SharedMut::new(&mut self.values[layer]));
        // By head: the heads of a block are apart, whatever slots the tokens name.
        let few = slots.len() < TOKENS_PER_THREAD;
        let heads = (0..layout.kv_heads).into_par_iter().with_min_len(if few { layout.kv_heads } else { 1 });
        heads.try_for_each(|head| {
            let mut row = vec![0.0; layout.head_dim];
            for (token, (slot, position)) in slots.iter().zip(positions).enumerate() {
                let (block, lane) = (blocks[*slot as usize / BLOCK_TOKENS], *slot as usize % BLOCK_TOKENS);
                let start = block.0 as usize * layout.block_len() + head * layout.head_len();
                let from = token * layout.kv_dim() + head * layout.head_dim;
                k.read(from, &mut row)?;
                rope.rotate(&mut row, *position);
                for (dim, value) in row.iter().enumerate() {
                    // SAFETY: block and slot were checked; this task alone writes this head.
                    unsafe { keys.at(start + dim * BLOCK_TOKENS + lane).write(*value) };
                }
                v.read(from, &mut row)?;
                // SAFETY: as above; a V row is `row_len` long, at least `head_dim`.
                unsafe {
                    let to = values.at(start + lane * layout.row_len());
                    to.copy_from_nonoverlapping(row.as_ptr(), row.len());
                }
            }
            Ok(())
        })
    }

    fn check_write(
        &self,
        layer: usize,
        rope: &Rope,
        blocks: &[BlockId],
        slots: &[u32],
        positions: &[u32],
    ) -> Result<()> {
        let problem = if layer >= self.layout.layers {
            format!("layer {layer} of {}", self.layout.layers)
        } else if slots.len() != positions.len() {
            format!("{} slots and {} positions", slots.len(), positions.len())
        } else if rope.head_dim() != self.layout.head_dim {
            format!("a rotation of {} and heads of {}", rope.head_dim(), self.layout.head_dim)
        } else if let Some(block) = blocks.iter().find(|block| block.0 as usize >= self.blocks) {
            format!("block {} of {}", block.0, self.blocks)
        } else if let Some(slot) = slots.iter().find(|slot| **slot as usize >= blocks.len() * BLOCK_TOKENS) {
            format!("slot {slot} of {}", blocks.len() * BLOCK_TOKENS)
        } else {
            return Ok(());
        };
        Err(Error::invalid_input(format!("a KV write names {problem}")))
    }

    /// K of one head in one block, `[head_dim][16]`.
    pub(crate) fn key_block(&self, layer: usize, block: BlockId, head: usize) -> &[f32] {
        let start = block.0 as usize * self.layout.block_len() + head * self.layout.head_len();
        &self.keys[layer][start..start + self.layout.head_dim * BLOCK_TOKENS]
    }

    /// V of one head in one block, `[16][row_len]`.
    pub(crate) fn value_block(&self, layer: usize, block: BlockId, head: usize) -> &[f32] {
        let start = block.0 as usize * self.layout.block_len() + head * self.layout.head_len();
        &self.values[layer][start..start + self.layout.head_len()]
    }
}

#[cfg(test)]
mod tests;
