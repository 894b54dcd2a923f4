//! What happens to single values and rows between the matrix products.

use rayon::prelude::*;

use crate::simd::{self, Kernel, Path, Vector};

/// Values that one thread takes at a time.
const VALUES_PER_TASK: usize = 1 << 15;

/// Root mean square norm ("Root Mean Square Layer Normalization", equation 4) of each row as long as `weight`, in
/// place: `x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(values: &mut [f32], weight: &[f32], epsilon: f32) {
    let rows = (VALUES_PER_TASK / weight.len()).max(1);
    values.par_chunks_mut(rows * weight.len()).for_each(|rows| {
        for row in rows.chunks_exact_mut(weight.len()) {
            simd::dispatch(Path::best(), RmsNorm { from: None, row, weight, epsilon });
        }
    });
}

/// [`rms_norm`] of one row, `from` to `to`.
pub(super) fn rms_norm_row(from: &[f32], to: &mut [f32], weight: &[f32], epsilon: f32) {
    simd::dispatch(Path::best(), RmsNorm { from: Some(from), row: to, weight, epsilon });
}

struct RmsNorm<'a> {
    /// What is normed; the row itself if not given.
    from: Option<&'a [f32]>,
    row: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        if let Some(from) = self.from {
            self.row.copy_from_slice(from);
        }
        let row = self.row;
        let whole = row.len() - row.len() % (4 * V::LANES);
        // SAFETY: the caller's promise about the machine; `whole` ends inside the row.
        let mut squares = unsafe {
            let mut sums = [V::splat(0.0); 4];
            for start in (0..whole).step_by(4 * V::LANES) {
                for (vec, sum) in sums.iter_mut().enumerate() {
                    let x = V::load(row.as_ptr().add(start + vec * V::LANES));
                    *sum = x.mul_add(x, *sum);
                }
            }
            sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum_lanes()
        };
        squares += row[whole..].iter().map(|x| x * x).sum::<f32>();
        let share = 1.0 / (squares / row.len() as f32 + self.epsilon).sqrt();
        row.iter_mut().zip(self.weight).for_each(|(x, weight)| *x = *x * share * weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize) -> Vec<f32> {
        let mut rng = fastrand::Rng::with_seed(11);
        (0..len).map(|_| rng.f32() * 20.0 - 10.0).collect()
    }

    #[test]
    fn norms_agree_with_f64() {
        for len in [1, 7, 64, 100] {
            let weight = random(len);
            let values = random(3 * len);
            for &path in Path::available() {
                let mut out = values.clone();
                for row in out.chunks_exact_mut(len) {
                    simd::dispatch(path, RmsNorm { from: None, row, weight: &weight, epsilon: 1e-5 });
                }
                for (row, out) in values.chunks(len).zip(out.chunks(len)) {
                    let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
                    for ((x, weight), out) in row.iter().zip(&weight).zip(out) {
                        let exact = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                        assert!((f64::from(*out) - exact).abs() < 1e-5 * exact.abs().max(1.0), "{path:?} {len}");
                    }
                }
            }
        }
    }
}
