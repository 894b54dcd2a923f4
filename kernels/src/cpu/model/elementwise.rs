//! What happens to single values and rows between the matrix products.

use crate::activation::gelu;
use crate::crew;
use crate::dtype::KvDtype;
use crate::simd::{self, Kernel, Path, Vector};

/// Values that one thread takes at a time.
const VALUES_PER_TASK: usize = 1 << 15;

/// Root mean square norm ("Root Mean Square Layer Normalization", equation 4) of each row as long as `weight`, in
/// place: `x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(values: &mut [f32], weight: &[f32], epsilon: f32) {
    let rows = (VALUES_PER_TASK / weight.len()).max(1);
    crew::for_each_part(values.chunks_mut(rows * weight.len()), |_, rows| {
        for row in rows.chunks_exact_mut(weight.len()) {
            simd::dispatch(Path::best(), RmsNorm { from: None, row, weight, epsilon });
        }
    });
}

/// Multiplies each value.
pub(super) fn scale(values: &mut [f32], by: f32) {
    crew::for_each_part(values.chunks_mut(VALUES_PER_TASK), |_, values| {
        values.iter_mut().for_each(|value| *value *= by)
    });
}

/// Rounds fresh K and V to the type that they are kept in.
pub(super) fn round(dtype: KvDtype, k: &mut [f32], v: &mut [f32]) {
    let parts = [k, v].into_iter().flat_map(|values| values.chunks_mut(VALUES_PER_TASK));
    match parts.collect::<Vec<_>>() {
        // A decode step's: less than a second thread costs.
        few if few.len() <= 2 => few.into_iter().for_each(|values| dtype.round(values)),
        parts => crew::for_each_part(parts.into_iter(), |_, values| dtype.round(values)),
    }
}

/// A norm of rows, with its weights.
#[derive(Debug, Clone)]
pub enum Norm {
    Rms(Vec<f32>),
    Layer {
        weight: Vec<f32>,
        bias: Vec<f32>,
    },
    /// Rows stay as they are.
    None {
        width: usize,
    },
}

impl Norm {
    /// Elements of a row.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Rms(weight) | Self::Layer { weight, .. } => weight.len(),
            Self::None { width } => *width,
        }
    }

    /// Norms one row, `from` to `to`.
    pub(super) fn row(&self, from: &[f32], to: &mut [f32], epsilon: f32) {
        match self {
            Self::Rms(weight) => {
                simd::dispatch(Path::best(), RmsNorm { from: Some(from), row: to, weight, epsilon });
            }
            Self::Layer { weight, bias } => {
                simd::dispatch(Path::best(), LayerNorm { from, row: to, weight, bias, epsilon });
            }
            Self::None { .. } => to.copy_from_slice(from),
        }
    }
}

/// The GELU of one row, `from` to `to`, as trained models have approximated it.
pub(super) fn gelu_row(from: &[f32], to: &mut [f32]) {
    simd::dispatch(Path::best(), Gelu { from, to });
}

/// The rectified values of one row, `from` to `to`; what is no number stays so.
pub(super) fn relu_row(from: &[f32], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = if *from < 0.0 { 0.0 } else { *from });
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

/// Layer normalisation ("Layer Normalization", equation 3): `(x - mean) / sqrt(variance + epsilon) * weight + bias`.
struct LayerNorm<'a> {
    from: &'a [f32],
    row: &'a mut [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
}

impl Kernel for LayerNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        self.row.copy_from_slice(self.from);
        // SAFETY: the caller's promise about the machine.
        unsafe { layer_norm::<V>(self.row, self.weight, self.bias, self.epsilon) }
    }
}

/// The layer norm of one row, in place.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn layer_norm<V: Vector>(row: &mut [f32], weight: &[f32], bias: &[f32], epsilon: f32) {
    let len = row.len();
    let whole = len - len % V::LANES;
    // SAFETY: the caller's promise; `whole` ends inside the row.
    let sum = unsafe {
        let mut sum = V::splat(0.0);
        for start in (0..whole).step_by(V::LANES) {
            sum = sum.add(V::load(row.as_ptr().add(start)));
        }
        sum.sum_lanes()
    };
    let mean = (sum + row[whole..].iter().sum::<f32>()) / len as f32;
    // From the differences, not from the mean of the squares, which would cancel.
    row.iter_mut().for_each(|x| *x -= mean);
    // SAFETY: as above.
    let squares = unsafe {
        let mut sum = V::splat(0.0);
        for start in (0..whole).step_by(V::LANES) {
            let x = V::load(row.as_ptr().add(start));
            sum = x.mul_add(x, sum);
        }
        sum.sum_lanes()
    };
    let variance = (squares + row[whole..].iter().map(|x| x * x).sum::<f32>()) / len as f32;
    let share = 1.0 / (variance + epsilon).sqrt();
    for ((x, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
        *x = *x * share * weight + bias;
    }
}

/// The GELU of every value, see [`gelu`].
struct Gelu<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Gelu<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let len = self.from.len();
        assert_eq!(len, self.to.len(), "a value for each");
        let whole = len - len % V::LANES;
        // The rest goes through a whole vector too: a value's bits must not depend on where it stands.
        let mut rest = [0.0; 16];
        rest[..len - whole].copy_from_slice(&self.from[whole..]);
        // SAFETY: the caller's promise about the machine; `whole` ends inside both, and no vector is longer than the rest.
        unsafe {
            for start in (0..whole).step_by(V::LANES) {
                gelu(V::load(self.from.as_ptr().add(start))).store(self.to.as_mut_ptr().add(start));
            }
            gelu(V::load(rest.as_ptr())).store(rest.as_mut_ptr());
        }
        self.to[whole..].copy_from_slice(&rest[..len - whole]);
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

    #[test]
    fn layer_norms_agree_with_f64() {
        for len in [1, 7, 64, 100] {
            let (values, weight, bias) = (random(3 * len), random(len), random(len + 1));
            for &path in Path::available() {
                for values in values.chunks(len) {
                    let mut out = vec![0.0; len];
                    let (from, row, bias) = (values, &mut out[..], &bias[..len]);
                    simd::dispatch(path, LayerNorm { from, row, weight: &weight, bias, epsilon: 1e-5 });
                    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / len as f64;
                    let variance = values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len as f64;
                    for (index, out) in out.iter().enumerate() {
                        let share = (f64::from(values[index]) - mean) / (variance + 1e-5).sqrt();
                        let exact = share * f64::from(weight[index]) + f64::from(bias[index]);
                        assert!((f64::from(*out) - exact).abs() < 1e-4, "{path:?} {len}: {out} for {exact}");
                    }
                }
            }
        }
    }

    #[test]
    fn gelus_agree_with_f64_wherever_they_stand() {
        let inputs: Vec<f32> = (0..4001).map(|index| (index - 2000) as f32 / 100.0).chain([0.0, -1e4, 1e4]).collect();
        for &path in Path::available() {
            let mut out = vec![0.0; inputs.len()];
            simd::dispatch(path, Gelu { from: &inputs, to: &mut out });
            for (x, out) in inputs.iter().zip(&out) {
                let exact = f64::from(*x);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (exact + 0.044_715 * exact.powi(3));
                let exact = exact / 2.0 * (1.0 + inner.tanh());
                assert!((f64::from(*out) - exact).abs() < 1e-6 * exact.abs().max(1.0), "{path:?}: gelu({x}) = {out}");
            }
            let mut alone = [0.0];
            simd::dispatch(path, Gelu { from: &inputs[1234..1235], to: &mut alone });
            assert_eq!(alone[0].to_bits(), out[1234].to_bits(), "{path:?}");
        }
    }
}
