//! Sixteen tokens that fill a block of pairs, placed together: their rows are rotated and rounded as rows, and then
//! transposed in the cache, so that the loops over them become vectors. The same bits as token by token.

use super::{BLOCK_TOKENS, KvData, KvLayout};
use crate::Result;
use crate::aligned::SharedMut;
use crate::dtype::{KvDtype, bf16_bits};
use crate::rope::Rope;
use crate::simd::{self, Kernel, Path, Vector};

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
    angles: Vec<f32>,
    bits: Vec<u16>,
}

/// One row on its way into the tile.
struct Turn<'a> {
    /// Where it comes from, if it is in bf16 and not in `row` already.
    stored: Option<&'a [u8]>,
    row: &'a mut [f32],
    /// Cosines, then sines, one each a pair that is turned.
    angles: &'a [f32],
    bits: &'a mut [u16],
}

impl Kernel for Turn<'_> {
    /// Plain loops, which the compiler makes vectors of for each path; nothing is fused, so that the bits are those of
    /// [`Rope::rotate`] and of rounding.
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let Self { stored, row, angles, bits } = self;
        if let Some(stored) = stored {
            for (value, stored) in row.iter_mut().zip(stored.chunks_exact(2)) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes([stored[0], stored[1]])) << 16);
            }
        }
        let (cos, sin) = angles.split_at(angles.len() / 2);
        let (first, second) = row.split_at_mut(cos.len());
        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
        bits.iter_mut().zip(row).for_each(|(bits, value)| *bits = bf16_bits(*value));
    }
}

impl Tile {
    pub fn new(layout: KvLayout) -> Self {
        let head_dim = layout.head_dim;
        let zeros = || vec![0.0; head_dim];
        Self { layout, row: zeros(), angles: zeros(), bits: vec![0; head_dim * BLOCK_TOKENS] }
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
        let path = Path::best();
        for (lane, position) in positions[..BLOCK_TOKENS].iter().enumerate() {
            let from = self.from(token + lane, head);
            let stored = self.stored(k, from);
            if stored.is_none() {
                k.read(from, &mut self.row)?;
            }
            let angles = &mut self.angles[..rope.angles_len()];
            rope.copy_angles(*position, angles);
            let bits = &mut self.bits[lane * self.layout.head_dim..][..self.layout.head_dim];
            simd::dispatch(path, Turn { stored, row: &mut self.row, angles, bits });
        }
        Ok(())
    }

    /// Takes one head's V of sixteen tokens from `token` on.
    pub fn take_values(&mut self, v: KvData<'_>, token: usize, head: usize) -> Result<()> {
        for lane in 0..BLOCK_TOKENS {
            let from = self.from(token + lane, head);
            let stored = self.stored(v, from);
            if stored.is_none() {
                v.read(from, &mut self.row)?;
            }
            let bits = &mut self.bits[lane * self.layout.head_dim..][..self.layout.head_dim];
            match stored {
                // What is stored is rounded already.
                Some(stored) => bits
                    .iter_mut()
                    .zip(stored.chunks_exact(2))
                    .for_each(|(bits, stored)| *bits = u16::from_le_bytes([stored[0], stored[1]])),
                None => bits.iter_mut().zip(&self.row).for_each(|(bits, value)| *bits = bf16_bits(*value)),
            }
        }
        Ok(())
    }

    /// One head's row of bf16 as it is stored; `None` for other types, and for a row that is not there.
    fn stored<'a>(&self, data: KvData<'a>, from: usize) -> Option<&'a [u8]> {
        match data {
            KvData::Bytes(KvDtype::Bf16, bytes) => bytes.get(2 * from..2 * (from + self.layout.head_dim)),
            _ => None,
        }
    }

    fn from(&self, token: usize, head: usize) -> usize {
        token * self.layout.kv_dim() + head * self.layout.head_dim
    }

    /// Writes K as `[head_dim / 2][16][2]`.
    ///
    /// # Safety
    /// `head_dim * 16` cells from `start` on must exist, and nobody else may use them meanwhile.
    pub unsafe fn place_keys(&self, cells: SharedMut<u16>, start: usize) {
        for (lane, row) in self.bits.chunks_exact(self.layout.head_dim).enumerate() {
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
        for (pair, rows) in self.bits.chunks_exact(2 * self.layout.head_dim).enumerate() {
            let (even, odd) = rows.split_at(self.layout.head_dim);
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
