//! What this machine's arithmetic and memory can do, and how much of it each kernel takes: the times behind
//! `ragstone bench kernels`.
//!
//! A [`Case`] is a computation that can be repeated; the caller runs cases in turn, so that a change of the machine's
//! speed meets all of them.

mod ceiling;
mod choice;
mod kernels;

use std::time::{Duration, Instant};

use crate::simd::Path;

pub use ceiling::ceilings;
pub use choice::fastest_paths;
pub use kernels::{Layers, attention, elementwise, linear, weights};

/// A sample is repeated until it takes at least this long, so that a clock's step and a thread's start do not count.
const LEAST_TIME: Duration = Duration::from_millis(50);

/// Something to measure.
pub struct Case {
    /// What is computed, such as `linear`.
    pub kernel: &'static str,
    /// The instruction set.
    pub path: Path,
    /// Element types: of weights and products, or of keys and values.
    pub precision: &'static str,
    /// Sizes, such as `512x896x4864` (rows, inputs, outputs).
    pub shape: String,
    /// Additions and multiplications of one call.
    pub operations: f64,
    /// Bytes that one call reads or writes at least; of products, the weights or the keys and values.
    pub bytes: f64,
    call: Box<dyn FnMut()>,
    /// Calls in a sample.
    repeats: u32,
}

#[expect(
    clippy::disallowed_methods,
    reason = "measuring is all that these times are for; storage's clock is above this crate"
)]
impl Case {
    fn new(
        kernel: &'static str,
        path: Path,
        precision: &'static str,
        shape: String,
        (operations, bytes): (f64, f64),
        call: impl FnMut() + 'static,
    ) -> Self {
        Self { kernel, path, precision, shape, operations, bytes, call: Box::new(call), repeats: 0 }
    }

    /// Seconds of one call, the mean over one sample. The first sample finds out how many calls it takes, and is not
    /// counted.
    pub fn sample(&mut self) -> f64 {
        while self.repeats == 0 {
            let calls = self.calls_within_least_time();
            self.repeats = calls;
        }
        let started = Instant::now();
        (0..self.repeats).for_each(|_| (self.call)());
        started.elapsed().as_secs_f64() / f64::from(self.repeats)
    }

    fn calls_within_least_time(&mut self) -> u32 {
        let started = Instant::now();
        let mut calls = 0;
        while started.elapsed() < LEAST_TIME {
            (self.call)();
            calls += 1;
        }
        calls
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.kernel, self.path.name(), self.precision, self.shape)
    }
}

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.f32() - 0.5).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::KvDtype;
    use crate::linear::{Bits, Grouping, Precision, Scales};

    #[test]
    fn every_case_runs_and_counts_its_work() {
        let mut cases = ceilings(1 << 20);
        let layers = Layers::new(Precision::Bf16, 3, 32, 70);
        let of = |name, bits, scales| Layers::of_blocks(name, Grouping { bits, scales }, 3, 32, 70);
        let blocks = [of("Q4_K", Bits::Four, Scales::Nested), of("Q6_K", Bits::Six, Scales::Pair)];
        for &path in Path::available() {
            cases.extend([&layers, &blocks[0], &blocks[1]].map(|layers| linear(path, layers)));
            cases.push(attention(path, KvDtype::Bf16, 3, 40));
            cases.push(weights(path, KvDtype::Bf16, 3, 40));
        }
        cases.append(&mut elementwise(20));
        for case in &mut cases {
            (case.call)();
            assert!(case.operations + case.bytes > 0.0, "{case:?}");
        }
        cases[0].repeats = 1;
        assert!(cases[0].sample() > 0.0);
    }
}
