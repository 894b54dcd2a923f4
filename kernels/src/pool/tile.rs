//! Sixteen tokens that fill a block of pairs, placed together: their rows are rotated and rounded as rows, and then
//! transposed in the cache, so that the loops over them become vectors. The same bits as token by token.

use super::{BLOCK_TOKENS, KvData, KvLayout};
use crate::Result;
use crate::aligned::SharedMut;
use crate::dtype::bf16_bits;
use crate::rope::Rope;

/// Whether the next sixteen slots are those of one block, in order.
pub(super) fn fills_a_block(slots: &[u32]) -> bool {
    let Some((first, _)) = slots.split_first().filter(|_| slots.len() >= BLOCK_TOKENS) else { return false };
    first.is_multiple_of(BLOCK_TOKENS as u32)
        && (*first..).zip(&slots[..BLOCK_TOKENS]).all(|(wanted, slot)| wanted == *slot)
}

/// One head's rows of sixteen tokens.
pub(super) struct Tile {
    layout: KvLayout,
    row: Vec<f32>,
    bits: Vec<u16>,
}

impl Tile {
    pub fn new(layout: KvLayout) -> Self {
        Self { layout, row: vec![0.0; layout.head_dim], bits: vec![0; layout.head_dim * BLOCK_TOKENS] }
    }

    /// Takes one head's K of sixteen tokens from `token` on, rotated to their positions.
    pub fn take_keys(
        &mut self,
        k: KvData<'_>,
        token: usize,
        head: usize,
        rope: &Rope,
        positions: &[u32],
    ) -> Result<()> {
        for (lane, position) in positions[..BLOCK_TOKENS].iter().enumerate() {
            k.read(self.from(token + lane, head), &mut self.row)?;
            rope.rotate(&mut self.row, *position);
            self.round(lane);
        }
        Ok(())
    }

    /// Takes one head's V of sixteen tokens from `token` on.
    pub fn take_values(&mut self, v: KvData<'_>, token: usize, head: usize) -> Result<()> {
        for lane in 0..BLOCK_TOKENS {
            v.read(self.from(token + lane, head), &mut self.row)?;
            self.round(lane);
        }
        Ok(())
    }

    fn from(&self, token: usize, head: usize) -> usize {
        token * self.layout.kv_dim() + head * self.layout.head_dim
    }

    fn round(&mut self, lane: usize) {
        let bits = &mut self.bits[lane * self.row.len()..][..self.row.len()];
        bits.iter_mut().zip(&self.row).for_each(|(bits, value)| *bits = bf16_bits(*value));
    }

    /// Writes K as `[head_dim / 2][16][2]`.
    ///
    /// # Safety
    /// `head_dim * 16` cells from `start` on must exist, and nobody else may use them meanwhile.
    pub unsafe fn place_keys(&self, cells: SharedMut<u16>, start: usize) {
        for (lane, row) in self.bits.chunks_exact(self.row.len()).enumerate() {
            for (pair, bits) in row.chunks_exact(2).enumerate() {
                // SAFETY: the caller's promise; a pair of elements needs no more than their alignment.
                unsafe {
                    let cell = cells.at(start + (pair * BLOCK_TOKENS + lane) * 2).cast::<[u16; 2]>();
                    cell.write([bits[0], bits[1]]);
                }
            }
        }
    }

    /// Writes V as `[8][row][2]`.
    ///
    /// # Safety
    /// `row_len * 16` cells from `start` on must exist, and nobody else may use them meanwhile.
    pub unsafe fn place_values(&self, cells: SharedMut<u16>, start: usize) {
        let row_len = self.layout.row_len();
        for (pair, rows) in self.bits.chunks_exact(2 * self.row.len()).enumerate() {
            let (even, odd) = rows.split_at(self.row.len());
            for (dim, (even, odd)) in even.iter().zip(odd).enumerate() {
                // SAFETY: as above.
                unsafe {
                    let cell = cells.at(start + (pair * row_len + dim) * 2).cast::<[u16; 2]>();
                    cell.write([*even, *odd]);
                }
            }
        }
    }
}
