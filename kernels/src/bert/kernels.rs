//! What happens between the matrix products of BERT.

use std::ops::Range;

use crate::activation::gelu_of_erf;
use crate::aligned::{Aligned, SharedMut};
use crate::model::layer_norm;
use crate::simd::{Kernel, Vector, add_products, exp};

/// Layer normalisation ("Layer Normalization", equation 3) of each row of `rows + change`, into `rows`.
pub(super) struct AddNorm<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) change: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) epsilon: f32,
}

impl Kernel for AddNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let len = self.weight.len();
        for (row, change) in self.rows.chunks_exact_mut(len).zip(self.change.chunks_exact(len)) {
            row.iter_mut().zip(change).for_each(|(x, change)| *x += change);
            // SAFETY: the caller's promise about the machine.
            unsafe { layer_norm::<V>(row, self.weight, self.bias, self.epsilon) }
        }
    }
}

/// `x / 2 (1 + erf(x / sqrt 2))` of every value ("Gaussian Error Linear Units", section 2).
pub(super) struct Gelu<'a>(pub(super) &'a mut [f32]);

impl Kernel for Gelu<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let (whole, rest) = self.0.split_at_mut(self.0.len() - self.0.len() % V::LANES);
        // The rest goes through a whole vector too: a value's bits must not depend on where it stands.
        let mut last = [0.0; 16];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: the caller's promise about the machine; chunks are as long as a vector, which is no longer than
        // `last`.
        unsafe {
            for values in whole.chunks_exact_mut(V::LANES) {
                gelu_of_erf(V::load(values.as_ptr())).store(values.as_mut_ptr());
            }
            gelu_of_erf(V::load(last.as_ptr())).store(last.as_mut_ptr());
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The attention of one head over one text, in f32: the reference of what is [faster](super::attend::AttendBf16).
pub(super) struct Attend<'a> {
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

impl Kernel for Attend<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let (len, head_dim) = (self.rows.len(), self.head_dim);
        // Whole tiles everywhere: what pads them is zero, but for scores, which get no weight.
        let queries = len.next_multiple_of(ROWS);
        let keys = len.next_multiple_of(VECS * V::LANES);
        let columns = head_dim.next_multiple_of(2 * V::LANES);
        let mut q = Aligned::<f32>::zeros(queries * head_dim);
        let mut k = Aligned::<f32>::zeros(head_dim * keys);
        let mut v = Aligned::<f32>::zeros(len * columns);
        let scale = 1.0 / (head_dim as f32).sqrt();
        for (index, row) in self.rows.clone().enumerate() {
            let part = |part: usize| &self.qkv[(3 * row + part) * self.hidden + self.head * head_dim..][..head_dim];
            for (q, from) in q[index * head_dim..].iter_mut().zip(part(0)) {
                *q = from * scale;
            }
            for (column, from) in k.chunks_exact_mut(keys).zip(part(1)) {
                column[index] = *from;
            }
            v[index * columns..][..head_dim].copy_from_slice(part(2));
        }
        let mut scores = Aligned::<f32>::zeros(ROWS * keys);
        let mut out = Aligned::<f32>::zeros(ROWS * columns);
        for first in (0..len).step_by(ROWS) {
            // SAFETY: the caller's promise about the machine; all lengths are padded to whole tiles.
            unsafe {
                product::<V, ROWS, VECS>(&q[first * head_dim..], head_dim, head_dim, &k, &mut scores);
                for scores in scores.chunks_exact_mut(keys) {
                    softmax::<V>(scores, len);
                }
                product::<V, ROWS, 2>(&scores, keys, len, &v, &mut out);
            }
            for (index, from) in out.chunks_exact(columns).take(len - first).enumerate() {
                let at = (self.rows.start + first + index) * self.hidden + self.head * head_dim;
                // SAFETY: the row and the head's columns are inside the output, and no other task has both.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.out.at(at), head_dim) }
            }
        }
    }
}

/// `out = x m` for x `[ROWS, inner]`, its rows `x_stride` apart, m `[inner, columns]`, out `[ROWS, columns]`.
///
/// # Safety
/// The machine must have the instruction set of `V`; `columns` must be a multiple of `N` vectors.
#[inline(always)]
unsafe fn product<V: Vector, const ROWS: usize, const N: usize>(
    x: &[f32],
    x_stride: usize,
    inner: usize,
    m: &[f32],
    out: &mut [f32],
) {
    let columns = out.len() / ROWS;
    assert!(x.len() >= (ROWS - 1) * x_stride + inner && m.len() >= inner * columns);
    for column in (0..columns).step_by(N * V::LANES) {
        // SAFETY: the caller's promise and the lengths just checked.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; ROWS];
            for index in 0..inner {
                let row = m.as_ptr().add(index * columns + column);
                let row: [V; N] = std::array::from_fn(|vec| V::load(row.add(vec * V::LANES)));
                add_products(&mut sums, x.as_ptr().add(index), x_stride, &row);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (vec, sum) in sums.iter().enumerate() {
                    sum.store(out.as_mut_ptr().add(row * columns + column + vec * V::LANES));
                }
            }
        }
    }
}

/// Softmax of the first `len` scores; the rest become zero.
///
/// # Safety
/// The machine must have the instruction set of `V`; there must be whole vectors of scores.
#[inline(always)]
unsafe fn softmax<V: Vector>(scores: &mut [f32], len: usize) {
    scores[len..].fill(f32::NEG_INFINITY);
    // SAFETY: the caller's promise; chunks are as long as a vector.
    unsafe {
        let mut greatest = V::splat(f32::NEG_INFINITY);
        for scores in scores.chunks_exact(V::LANES) {
            greatest = greatest.max(V::load(scores.as_ptr()));
        }
        let greatest = V::splat(greatest.max_lane());
        let mut sum = V::splat(0.0);
        for scores in scores.chunks_exact_mut(V::LANES) {
            let weight = exp(V::load(scores.as_ptr()).sub(greatest));
            weight.store(scores.as_mut_ptr());
            sum = sum.add(weight);
        }
        let share = V::splat(1.0 / sum.sum_lanes());
        for scores in scores.chunks_exact_mut(V::LANES) {
            V::load(scores.as_ptr()).mul(share).store(scores.as_mut_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bert::attend::AttendBf16;
    use crate::simd::{Path, dispatch};

    fn random(len: usize) -> Vec<f32> {
        let mut rng = fastrand::Rng::with_seed(7);
        (0..len).map(|_| rng.f32() * 4.0 - 2.0).collect()
    }

    #[test]
    fn gelu_agrees_with_the_integral_of_the_density() {
        // Simpson's rule, carried along from -12: the distribution function of the normal distribution.
        let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let step = 1.0 / 1024.0;
        let (mut inputs, mut expected, mut below) = (Vec::new(), Vec::new(), 0.0);
        for index in 0..24 * 1024 + 5 {
            let x = -12.0 + f64::from(index) * step;
            inputs.push(x as f32);
            expected.push(x * below);
            below += step / 6.0 * (density(x) + 4.0 * density(x + step / 2.0) + density(x + step));
        }
        for &path in Path::available() {
            let mut values = inputs.clone();
            dispatch(path, Gelu(&mut values));
            for ((x, gelu), exact) in inputs.iter().zip(&values).zip(&expected) {
                let error = (f64::from(*gelu) - exact).abs();
                assert!(error < 5e-7 * exact.abs().max(1.0), "{path:?}: gelu({x}) = {gelu}, off by {error:e}");
            }
        }
    }

    #[test]
    fn norms_agree_with_f64() {
        for len in [1, 7, 64, 100] {
            let (rows, change, weight, bias) = (random(3 * len), vec![0.25; 3 * len], random(len), random(len));
            for &path in Path::available() {
                let mut out = rows.clone();
                let norm = AddNorm { rows: &mut out, change: &change, weight: &weight, bias: &bias, epsilon: 1e-5 };
                dispatch(path, norm);
                for (row, out) in rows.chunks(len).zip(out.chunks(len)) {
                    let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / len as f64;
                    let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len as f64;
                    for (index, out) in out.iter().enumerate() {
                        let exact = (f64::from(row[index]) - mean) / (variance + 1e-5).sqrt()
                            * f64::from(weight[index])
                            + f64::from(bias[index]);
                        assert!((f64::from(*out) - exact).abs() < 1e-4, "{path:?} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn attention_agrees_with_f64() {
        let (heads, before) = (2, 3);
        for (len, head_dim) in [(1, 8), (5, 32), (67, 32), (130, 20), (64, 64), (9, 33)] {
            let hidden = heads * head_dim;
            let qkv = random((before + len) * 3 * hidden);
            let at = |row: usize, part: usize, column: usize| {
                f64::from(qkv[((before + row) * 3 + part) * hidden + head_dim + column])
            };
            let exact: Vec<Vec<f64>> = (0..len)
                .map(|row| {
                    let score = |key| (0..head_dim).map(|c| at(row, 0, c) * at(key, 1, c)).sum::<f64>();
                    let weights: Vec<f64> = (0..len).map(|key| (score(key) / (head_dim as f64).sqrt()).exp()).collect();
                    let sum = |column| weights.iter().enumerate().map(|(key, w)| w * at(key, 2, column)).sum::<f64>();
                    (0..head_dim).map(|column| sum(column) / weights.iter().sum::<f64>()).collect()
                })
                .collect();
            for (&path, is_bf16) in Path::available().iter().flat_map(|path| [(path, false), (path, true)]) {
                let mut out = vec![9.0; (before + len) * hidden];
                let (shared, rows, head) = (SharedMut::new(&mut out), before..before + len, 1);
                match is_bf16 {
                    false => dispatch(path, Attend { qkv: &qkv, rows, head, head_dim, hidden, out: shared }),
                    true => dispatch(path, AttendBf16 { qkv: &qkv, rows, head, head_dim, hidden, out: shared }),
                }
                // Values of 2 at most, rounded to 1/256 of them; so are weights, whose errors meet in no order.
                let error = if is_bf16 { 0.03 } else { 1e-5 };
                for (row, exact) in exact.iter().enumerate() {
                    for (column, exact) in exact.iter().enumerate() {
                        let ours = f64::from(out[(before + row) * hidden + head_dim + column]);
                        assert!((ours - exact).abs() < error, "{path:?} {len} {head_dim}: {ours} for {exact}");
                    }
                }
                assert!(out.chunks(hidden).all(|row| row[..head_dim].iter().all(|value| *value == 9.0)));
            }
        }
    }
}
