//! What happens to single values and rows between the matrix products.

use rayon::prelude::*;

use crate::simd::{self, Kernel, Path, Vector, exp};

/// Values that one thread takes at a time.
const VALUES_PER_TASK: usize = 1 << 15;

/// Root mean square norm ("Root Mean Square Layer Normalization", equation 4) of each row as long as `weight`, in
/// place: `x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(values: &mut [f32], weight: &[f32], epsilon: f32) {
    let rows = (VALUES_PER_TASK / weight.len()).max(1);
    values
        .par_chunks_mut(rows * weight.len())
        .for_each(|rows| simd::dispatch(Path::best(), RmsNorm { rows, weight, epsilon }));
}

/// `gate = silu(gate) * up`, the gate of "GLU Variants Improve Transformer", equation 6; silu(x) is x / (1 + e^-x).
pub(super) fn silu_times(gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(VALUES_PER_TASK)
        .zip(up.par_chunks(VALUES_PER_TASK))
        .for_each(|(gate, up)| simd::dispatch(Path::best(), SiluTimes { gate, up }));
}

/// `to += from`.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    to.par_chunks_mut(VALUES_PER_TASK)
        .zip(from.par_chunks(VALUES_PER_TASK))
        .for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += from));
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
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
}

struct SiluTimes<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluTimes<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let whole = self.gate.len() - self.gate.len() % V::LANES;
        // SAFETY: the caller's promise about the machine; `whole` ends inside both slices, which are equally long.
        unsafe {
            for start in (0..whole).step_by(V::LANES) {
                let gate = self.gate.as_mut_ptr().add(start);
                silu::<V>(V::load(gate)).mul(V::load(self.up.as_ptr().add(start))).store(gate);
            }
            // The rest goes through a whole vector too: a value's bits must not depend on where it stands.
            let mut rest = [0.0; 16];
            let len = self.gate.len() - whole;
            rest[..len].copy_from_slice(&self.gate[whole..]);
            silu::<V>(V::load(rest.as_ptr())).store(rest.as_mut_ptr());
            for (index, silu) in rest[..len].iter().enumerate() {
                self.gate[whole + index] = silu * self.up[whole + index];
            }
        }
    }
}

/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn silu<V: Vector>(x: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
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
            for path in Path::available() {
                let mut out = values.clone();
                simd::dispatch(path, RmsNorm { rows: &mut out, weight: &weight, epsilon: 1e-5 });
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
    fn silu_agrees_with_f64_and_does_not_depend_on_the_place() {
        let mut gate = random(133);
        gate.extend([-200.0, 200.0, 0.0, -88.5]);
        let up = vec![0.5; gate.len()];
        for path in Path::available() {
            let mut out = gate.clone();
            simd::dispatch(path, SiluTimes { gate: &mut out, up: &up });
            for (index, (x, out)) in gate.iter().zip(&out).enumerate() {
                let exact = f64::from(*x) / (1.0 + (-f64::from(*x)).exp()) * 0.5;
                assert!((f64::from(*out) - exact).abs() < 1e-6 * exact.abs().max(1.0), "{path:?}: {x} -> {out}");
                let mut alone = [*x];
                simd::dispatch(path, SiluTimes { gate: &mut alone, up: &up[index..=index] });
                assert_eq!(alone[0].to_bits(), out.to_bits());
            }
        }
    }
}
