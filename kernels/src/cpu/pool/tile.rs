//! Sixteen tokens that fill a block of pairs, placed together: their rows are rotated and rounded as rows, and then transposed in the cache, in
//! vectors where rows are as long as these. The same bits as token by token.

use super::{BLOCK_TOKENS, KvData, KvLayout};
use crate::Result;
use crate::aligned::{Aligned, SharedMut};
use crate::dtype::{KvDtype, bf16_bits};
use crate::rope::Rope;
use crate::simd::{self, Kernel, Path, Vector};

/// The most lanes that a vector has.
const MOST_LANES: usize = 16;

/// Whether the next sixteen slots are those of one block, in order.
pub(super) fn fills_a_block(slots: &[u32]) -> bool {
    let Some((first, _)) = slots.split_first().filter(|_| slots.len() >= BLOCK_TOKENS) else { return false };
    first.is_multiple_of(BLOCK_TOKENS as u32)
        && (*first..).zip(&slots[..BLOCK_TOKENS]).all(|(wanted, slot)| wanted == *slot)
}

/// Places heads of sixteen tokens.
pub(super) struct Tile<'a> {
    layout: KvLayout,
    rope: &'a Rope,
    path: Path,
    row: Vec<f32>,
    /// `[16][2][pairs]`, of positions whose angles are not kept beside each other.
    angles: Vec<f32>,
    /// `[16][head_dim]`
    bits: Aligned<u16>,
    /// Whether what is written goes past the caches.
    streams: bool,
}

/// Where sixteen rows of one head are: in bytes, each `stride` behind the one before.
#[derive(Clone, Copy)]
struct Stored<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Tile<'a> {
    pub fn new(layout: KvLayout, rope: &'a Rope, path: Path, streams: bool) -> Self {
        Self {
            layout,
            rope,
            path,
            row: vec![0.0; layout.head_dim],
            angles: Vec::new(),
            bits: Aligned::zeros(layout.head_dim * BLOCK_TOKENS),
            streams,
        }
    }

    /// Writes one head's K of sixteen tokens from `token` on, rotated to their positions, as `[head_dim / 2][16][2]`.
    ///
    /// # Errors
    /// `InvalidInput` if there are not as many tokens.
    ///
    /// # Safety
    /// `head_dim * 16` cells from `start` on must exist, and nobody else may use them meanwhile.
    pub unsafe fn place_keys(
        &mut self,
        k: KvData<'_>,
        (token, head): (usize, usize),
        positions: &[u32],
        (cells, start): (SharedMut<u16>, usize),
    ) -> Result<()> {
        let (head_dim, len) = (self.layout.head_dim, self.rope.angles_len());
        let positions = &positions[..BLOCK_TOKENS];
        let in_turn = positions.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        let kept = in_turn.then(|| self.rope.kept_angles(positions[0], BLOCK_TOKENS)).flatten();
        if kept.is_none() {
            self.angles.resize(BLOCK_TOKENS * len, 0.0);
            for (lane, position) in positions.iter().enumerate() {
                self.rope.copy_angles(*position, &mut self.angles[lane * len..(lane + 1) * len]);
            }
        }
        let angles = kept.unwrap_or(&self.angles);
        let stored = stored(k, self.layout, token, head);
        if let Some(stored) = stored.filter(|_| len == head_dim) {
            let (cells, streams) = ((cells, start), self.streams);
            let turned = &mut false;
            let bits = &mut self.bits;
            simd::dispatch(self.path, TurnBlock { stored, angles, head_dim, bits, cells, streams, turned });
            if *turned {
                return Ok(());
            }
        }
        for lane in 0..BLOCK_TOKENS {
            let stored = stored.map(|stored| stored.row(lane, head_dim));
            if stored.is_none() {
                k.read((token + lane) * self.layout.kv_dim() + head * head_dim, &mut self.row)?;
            }
            let (angles, bits) = (&angles[lane * len..(lane + 1) * len], &mut self.bits[lane * head_dim..][..head_dim]);
            simd::dispatch(self.path, Turn { stored, row: &mut self.row, angles, bits });
        }
        for (lane, row) in self.bits.chunks_exact(head_dim).enumerate() {
            for (pair, bits) in row.chunks_exact(2).enumerate() {
                // SAFETY: the caller's promise; a pair of elements needs no more than their alignment.
                unsafe {
                    let cell = cells.at(start + (pair * BLOCK_TOKENS + lane) * 2).cast::<[u16; 2]>();
                    cell.write([bits[0], bits[1]]);
                }
            }
        }
        Ok(())
    }

    /// Writes one head's V of sixteen tokens from `token` on as `[8][row][2]`.
    ///
    /// # Errors
    /// As [`Tile::place_keys`].
    ///
    /// # Safety
    /// As [`Tile::place_keys`], of a row's length.
    pub unsafe fn place_values(
        &mut self,
        v: KvData<'_>,
        (token, head): (usize, usize),
        (cells, start): (SharedMut<u16>, usize),
    ) -> Result<()> {
        let (head_dim, row_len) = (self.layout.head_dim, self.layout.row_len());
        if let Some(stored) = stored(v, self.layout, token, head) {
            // What is stored is rounded already.
            let (cells, streams) = ((cells, start), self.streams);
            simd::dispatch(self.path, ZipRows { stored, head_dim, row_len, cells, streams });
            return Ok(());
        }
        for lane in 0..BLOCK_TOKENS {
            v.read((token + lane) * self.layout.kv_dim() + head * head_dim, &mut self.row)?;
            for (dim, value) in self.row.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { cells.at(start + (lane / 2 * row_len + dim) * 2 + lane % 2).write(bf16_bits(*value)) };
            }
        }
        Ok(())
    }
}

/// Sixteen rows of bf16 as they are stored; `None` for other types, and for rows that are not there.
fn stored<'a>(data: KvData<'a>, layout: KvLayout, token: usize, head: usize) -> Option<Stored<'a>> {
    let KvData::Bytes(KvDtype::Bf16, bytes) = data else { return None };
    let (first, stride) = (2 * (token * layout.kv_dim() + head * layout.head_dim), 2 * layout.kv_dim());
    let bytes = bytes.get(first..first + (BLOCK_TOKENS - 1) * stride + 2 * layout.head_dim)?;
    Some(Stored { bytes, stride })
}

impl<'a> Stored<'a> {
    fn row(self, lane: usize, head_dim: usize) -> &'a [u8] {
        &self.bytes[lane * self.stride..][..2 * head_dim]
    }
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

/// Sixteen rows that are turned whole, to their place. Elements stay in pairs, as words: those of even numbers are turned beside those of odd ones.
struct TurnBlock<'a> {
    stored: Stored<'a>,
    /// `[16][2][head_dim / 2]`
    angles: &'a [f32],
    head_dim: usize,
    bits: &'a mut [u16],
    /// Good for `head_dim * 16` from the second on; nobody else uses them.
    cells: (SharedMut<u16>, usize),
    streams: bool,
    /// Whether it was done: half a head has to be pairs of whole vectors.
    turned: &'a mut bool,
}

impl Kernel for TurnBlock<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let half = self.head_dim / 2;
        if !half.is_multiple_of(2 * V::LANES) || cfg!(target_endian = "big") {
            return;
        }
        debug_assert!(self.bits.len() == 2 * half * BLOCK_TOKENS && self.angles.len() == 2 * half * BLOCK_TOKENS);
        let tile = self.bits.as_mut_ptr().cast::<u32>();
        // SAFETY: rows, angles and tile are as long as the head says, the cells as well; `dispatch` checked the machine.
        unsafe {
            for lane in 0..BLOCK_TOKENS {
                let row = self.stored.row(lane, self.head_dim).as_ptr().cast::<u32>();
                let (cos, to) = (self.angles.as_ptr().add(lane * 2 * half), tile.add(lane * half));
                turn_row::<V>(row, cos, half, to);
            }
            transpose::<V>(tile, half, self.cells.0.at(self.cells.1).cast::<u32>(), self.streams);
        }
        *self.turned = true;
    }
}

/// Turns `half` words, pairs of bf16. Nothing is fused, as in [`Rope::rotate`].
///
/// # Safety
/// `row` and `to` must be good for `half` words, `cos` for twice as many cosines and then sines; `half` must be whole pairs of vectors.
#[inline(always)]
unsafe fn turn_row<V: Vector>(row: *const u32, cos: *const f32, half: usize, to: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let sin = cos.add(half);
        for word in (0..half / 2).step_by(V::LANES) {
            let a = V::split_bf16(V::load_words(row.add(word)));
            let b = V::split_bf16(V::load_words(row.add(word + half / 2)));
            let (cos, sin) = (cos.add(2 * word), sin.add(2 * word));
            let cos = V::unzip(V::load(cos), V::load(cos.add(V::LANES)));
            let sin = V::unzip(V::load(sin), V::load(sin.add(V::LANES)));
            let first = |i: usize| a[i].mul(cos[i]).sub(b[i].mul(sin[i]));
            let second = |i: usize| b[i].mul(cos[i]).add(a[i].mul(sin[i]));
            V::store_words(V::pair_bf16(first(0), first(1)), to.add(word));
            V::store_words(V::pair_bf16(second(0), second(1)), to.add(word + half / 2));
        }
    }
}

/// Words `[16][columns]` as `[columns][16]`. Pairing row i with row i + n / 2 word by word, as often as 2 goes into n, transposes n rows of n.
///
/// # Safety
/// Both must be good for as many words, and `columns` whole vectors; where it `streams`, `to` must start on a cache line.
#[inline(always)]
unsafe fn transpose<V: Vector>(from: *const u32, columns: usize, to: *mut u32, streams: bool) {
    for column in (0..columns).step_by(V::LANES) {
        // Lines of the result are finished before others are begun: one that is streamed in halves must not wait for its second one.
        for first in (0..BLOCK_TOKENS).step_by(V::LANES) {
            // SAFETY: the caller's promise.
            unsafe {
                let mut rows = [V::splat_word(0); MOST_LANES];
                for (i, words) in rows.iter_mut().take(V::LANES).enumerate() {
                    *words = V::load_words(from.add((first + i) * columns + column));
                }
                for _ in 0..V::LANES.ilog2() {
                    let old = rows;
                    for i in 0..V::LANES / 2 {
                        [rows[2 * i], rows[2 * i + 1]] = V::zip_words(old[i], old[i + V::LANES / 2]);
                    }
                }
                for (i, words) in rows.into_iter().take(V::LANES).enumerate() {
                    put::<V>(words, to.add((column + i) * BLOCK_TOKENS + first), streams);
                }
            }
        }
    }
}

/// Stores a vector.
///
/// # Safety
/// As [`Vector::store_words`], or [`Vector::stream_words`] where it `streams`.
#[inline(always)]
unsafe fn put<V: Vector>(words: V::Words, to: *mut u32, streams: bool) {
    // SAFETY: the caller's promise.
    unsafe { if streams { V::stream_words(words, to) } else { V::store_words(words, to) } }
}

/// Sixteen rows, each two of them in pairs, to their place.
struct ZipRows<'a> {
    stored: Stored<'a>,
    head_dim: usize,
    row_len: usize,
    /// Good for `row_len * 16` from the second on; nobody else uses them.
    cells: (SharedMut<u16>, usize),
    streams: bool,
}

impl Kernel for ZipRows<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // What is whole vectors; what is left of a row, element by element.
        let whole = self.head_dim / (2 * V::LANES) * 2 * V::LANES;
        for pair in 0..BLOCK_TOKENS / 2 {
            let [even, odd] = [2 * pair, 2 * pair + 1].map(|lane| self.stored.row(lane, self.head_dim));
            // SAFETY: the struct's promise. Cells are two bytes each, so that pairs of them need no more alignment; rows of them are whole
            // cache lines, as a head's cells are.
            let to = unsafe { self.cells.0.at(self.cells.1 + pair * self.row_len * 2) };
            for dim in (0..whole).step_by(2 * V::LANES) {
                // SAFETY: both rows have that many elements, two bytes each, and the cells are as many pairs.
                unsafe {
                    let [even, odd] = [even, odd].map(|row| V::load_words(row.as_ptr().add(2 * dim).cast()));
                    let [first, second] = V::zip_halves(even, odd);
                    let to = to.add(2 * dim).cast::<u32>();
                    put::<V>(first, to, self.streams);
                    put::<V>(second, to.add(V::LANES), self.streams);
                }
            }
            let [even, odd] = [even, odd].map(|row| &row.as_chunks::<2>().0[whole..]);
            for (dim, (even, odd)) in (whole..).zip(even.iter().zip(odd)) {
                // SAFETY: as above.
                unsafe { to.add(2 * dim).cast::<[u16; 2]>().write([*even, *odd].map(u16::from_le_bytes)) };
            }
        }
    }
}
