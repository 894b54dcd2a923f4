//! Attention of encoders by products of bf16.

use std::ops::Range;

use crate::aligned::SharedMut;
use crate::scratch::Scratch;
use crate::simd::{Kernel, Vector, add_dots, exp_coarse};

/// As [`Attend`](super::kernels::Attend), with queries, keys, values and weights rounded to bf16 and sums in f32. Outputs are divided by the
/// sum of the weights, which are not.
pub(super) struct AttendBf16<'a> {
    /// `[all rows, 3 * hidden]`: queries, keys, values.
    pub(super) qkv: &'a [f32],
    /// The text's.
    pub(super) rows: Range<usize>,
    pub(super) head: usize,
    pub(super) head_dim: usize,
    pub(super) hidden: usize,
    /// `[all rows, hidden]`.
    pub(super) out: SharedMut,
}

/// A row's parts.
#[derive(Clone, Copy)]
enum Part {
    Query,
    Key,
    Value,
}

impl Kernel for AttendBf16<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let len = self.rows.len();
        // Whole tiles everywhere: what pads them is zero, but for scores, which get no weight. A word is a pair of bf16: of neighbouring
        // elements in queries and keys, of neighbouring tokens in values.
        let (queries, keys) = (len.next_multiple_of(ROWS), len.next_multiple_of(VECS * V::LANES));
        let columns = self.head_dim.next_multiple_of(2 * V::LANES);
        let (pairs, values) = (columns / 2, len.div_ceil(2));
        let sizes = [queries * pairs, pairs * keys, values * columns, ROWS * keys, ROWS * columns];
        let mut memory = Scratch::take(sizes.iter().sum());
        let (q, rest) = memory.split_at_mut(sizes[0]);
        let (k, rest) = rest.split_at_mut(sizes[1]);
        let (v, rest) = rest.split_at_mut(sizes[2]);
        let (scores, out) = rest.split_at_mut(sizes[3]);
        let [q, k, v]: [&mut [u32]; 3] = [q, k, v].map(bytemuck::cast_slice_mut);
        q.fill(0);
        // SAFETY: the caller's promise about the machine; the memory holds all rows, padded to whole vectors.
        unsafe {
            self.pack::<V>(Part::Key, 1.0, pairs, q);
            for (pair, of_keys) in k.chunks_exact_mut(keys).enumerate() {
                let (own, padding) = of_keys.split_at_mut(len);
                own.iter_mut().zip(q.chunks_exact(pairs)).for_each(|(word, key)| *word = key[pair]);
                padding.fill(0);
            }
            self.pack::<V>(Part::Query, 1.0 / (self.head_dim as f32).sqrt(), pairs, q);
            self.pack_values::<V>(columns, v);
        }
        let mut shares = [0.0; ROWS];
        for first in (0..len).step_by(ROWS) {
            // SAFETY: as above; what weights are written to is what scores were read from.
            unsafe {
                dots::<V, ROWS, VECS>((&q[first * pairs..], pairs), pairs, k, scores);
                for (scores, share) in scores.chunks_exact_mut(keys).zip(&mut shares) {
                    *share = 1.0 / weigh::<V>(scores, len);
                }
                dots::<V, ROWS, 2>((bytemuck::cast_slice(scores), keys), values, v, out);
            }
            for (index, (from, share)) in out.chunks_exact(columns).zip(shares).take(len - first).enumerate() {
                let at = (self.rows.start + first + index) * self.hidden + self.head * self.head_dim;
                for (column, value) in from.iter().take(self.head_dim).enumerate() {
                    // SAFETY: the row and the head's columns are inside the output, and no other task has both.
                    unsafe { self.out.at(at + column).write(value * share) }
                }
            }
        }
    }
}

impl AttendBf16<'_> {
    /// A vector of a part of the text's row `index`; zero behind its end.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn load<V: Vector>(&self, index: usize, part: Part, column: usize) -> V {
        let at = (3 * (self.rows.start + index) + part as usize) * self.hidden + self.head * self.head_dim;
        let values = &self.qkv[at..][..self.head_dim];
        // SAFETY: the caller's promise; either the values or the padded ones are as many as a vector has.
        unsafe {
            match values.get(column..column + V::LANES) {
                Some(values) => V::load(values.as_ptr()),
                None => {
                    let mut padded = [0.0; 16];
                    let rest = values.get(column..).unwrap_or_default();
                    padded[..rest.len()].copy_from_slice(rest);
                    V::load(padded.as_ptr())
                }
            }
        }
    }

    /// Rounds a part of every row, times `scale`, to its pairs.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; `to` must have `pairs` words a row, in whole vectors of bf16.
    #[inline(always)]
    unsafe fn pack<V: Vector>(&self, part: Part, scale: f32, pairs: usize, to: &mut [u32]) {
        for (index, row) in to.chunks_exact_mut(pairs).take(self.rows.len()).enumerate() {
            let halves = row.as_mut_ptr().cast::<u16>();
            for column in (0..2 * pairs).step_by(V::LANES) {
                // SAFETY: the caller's promise; on a little-endian machine the first of two halves is the low one.
                unsafe {
                    self.load::<V>(index, part, column).mul(V::splat(scale)).store_bf16(halves.add(column));
                }
            }
        }
    }

    /// Rounds the values of every two rows to their pairs.
    ///
    /// # Safety
    /// The machine must have the instruction set of `V`; `to` must have `columns` words for two rows, which vectors divide.
    #[inline(always)]
    unsafe fn pack_values<V: Vector>(&self, columns: usize, to: &mut [u32]) {
        for (pair, words) in to.chunks_exact_mut(columns).enumerate() {
            for column in (0..columns).step_by(V::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let low = self.load::<V>(2 * pair, Part::Value, column);
                    let high = match 2 * pair + 1 < self.rows.len() {
                        true => self.load::<V>(2 * pair + 1, Part::Value, column),
                        false => V::splat(0.0),
                    };
                    V::store_words(V::pair_bf16(low, high), words.as_mut_ptr().add(column));
                }
            }
        }
    }
}

/// `out = x m` for x `[ROWS, depth]`, its rows so many words apart, m `[depth, columns]`, out `[ROWS, columns]`, of pairs of bf16.
///
/// # Safety
/// The machine must have the instruction set of `V`; `columns` must be a multiple of `N` vectors.
#[inline(always)]
unsafe fn dots<V: Vector, const ROWS: usize, const N: usize>(
    (x, x_stride): (&[u32], usize),
    depth: usize,
    m: &[u32],
    out: &mut [f32],
) {
    let columns = out.len() / ROWS;
    assert!(x.len() >= (ROWS - 1) * x_stride + depth && m.len() >= depth * columns);
    for column in (0..columns).step_by(N * V::LANES) {
        // SAFETY: the caller's promise and the lengths just checked.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; ROWS];
            for index in 0..depth {
                let row = m.as_ptr().add(index * columns + column);
                let row: [V::Words; N] = std::array::from_fn(|vec| V::load_words(row.add(vec * V::LANES)));
                add_dots(&mut sums, x.as_ptr().add(index), x_stride, &row);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(out.as_mut_ptr().add(row * columns + column + vec * V::LANES));
                }
            }
        }
    }
}

/// `e^(score - greatest)` of the first `len` scores, in bf16 in the first half of their memory, and their sum; what is behind them has no weight.
///
/// # Safety
/// The machine must have the instruction set of `V`; there must be whole vectors of scores.
#[inline(always)]
unsafe fn weigh<V: Vector>(scores: &mut [f32], len: usize) -> f32 {
    scores[len..].fill(f32::NEG_INFINITY);
    let (from, to) = (scores.as_mut_ptr(), scores.as_mut_ptr().cast::<u16>());
    // SAFETY: the caller's promise; a vector is written at or before what was read.
    unsafe {
        let mut greatest = V::splat(f32::NEG_INFINITY);
        for start in (0..scores.len()).step_by(V::LANES) {
            greatest = greatest.max(V::load(from.add(start)));
        }
        let greatest = V::splat(greatest.max_lane());
        let mut sum = V::splat(0.0);
        for start in (0..scores.len()).step_by(V::LANES) {
            let weight = exp_coarse(V::load(from.add(start)).sub(greatest));
            weight.store_bf16(to.add(start));
            sum = sum.add(weight);
        }
        sum.sum_lanes()
    }
}
