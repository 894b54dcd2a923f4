//! The fastest path for each kind of work, by trying all of this machine's. Takes some ten milliseconds.

use std::time::Instant;

use super::Case;
use super::kernels::{Layers, attention, linear};
use crate::dtype::KvDtype;
use crate::linear::Precision;
use crate::simd::{Path, Paths, Work};

/// Each is tried so many times, all in turn; the least time counts, as other work can only lengthen one.
const ROUNDS: usize = 5;
/// A path takes the place of one that is ranked before it where it takes at most this share of its time: less is noise.
const WINS_BY: f64 = 0.75;
/// And in no shape more than this share: what a prefill gains is not to be paid by every token of an answer.
const LOSES_BY: f64 = 1.05;

/// Rows, inputs and outputs of a product: those of a prefill, and one as a decode has it.
const MANY: [usize; 3] = [32, 512, 512];
const ONE: [usize; 3] = [1, 512, 512];
/// Queries of attention and the tokens that they see: of a prefill, and of a decode.
const QUERIES: [(usize, usize); 2] = [(32, 256), (1, 256)];

/// Measures every path that this machine has. Where there is one beside the portable kernels, those are not tried.
pub fn fastest_paths() -> Paths {
    let ranked = candidates(Path::available());
    let paths = Paths::all(ranked[0]);
    if ranked.len() == 1 {
        return paths;
    }
    Work::MEASURED.into_iter().fold(paths, |paths, work| {
        let mut cases = cases(work, &ranked);
        let times: Vec<Vec<f64>> = least_times(&mut cases);
        paths.with(work, ranked[fastest(&times)])
    })
}

/// Paths worth trying, of those that there are.
fn candidates(available: &[Path]) -> Vec<Path> {
    let fast: Vec<Path> = available.iter().copied().filter(|path| *path != Path::Portable).collect();
    if fast.is_empty() { vec![Path::Portable] } else { fast }
}

/// Of each path, the work in its shapes.
fn cases(work: Work, paths: &[Path]) -> Vec<Vec<Case>> {
    let products = |precision| {
        let shapes = [MANY, ONE].map(|[rows, inputs, outputs]| Layers::once(precision, rows, inputs, outputs));
        paths.iter().map(|path| shapes.iter().map(|layers| linear(*path, layers)).collect()).collect()
    };
    let attention = |dtype| {
        let of = |path: &Path| QUERIES.map(|(rows, tokens)| attention(*path, dtype, rows, tokens)).into();
        paths.iter().map(of).collect()
    };
    match work {
        Work::F32Products => products(Precision::F32),
        Work::Bf16Products => products(Precision::Bf16),
        Work::ByteProducts => products(Precision::Q8),
        Work::F32Attention => attention(KvDtype::F32),
        Work::Bf16Attention => attention(KvDtype::Bf16),
        Work::Elementwise => Vec::new(),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "measuring is all that these times are for; storage's clock is above this crate"
)]
fn least_times(cases: &mut [Vec<Case>]) -> Vec<Vec<f64>> {
    let mut least: Vec<Vec<f64>> = cases.iter().map(|cases| vec![f64::INFINITY; cases.len()]).collect();
    for _ in 0..ROUNDS {
        for (cases, least) in cases.iter_mut().zip(&mut least) {
            for (case, least) in cases.iter_mut().zip(least) {
                let started = Instant::now();
                (case.call)();
                *least = least.min(started.elapsed().as_secs_f64());
            }
        }
    }
    least
}

/// Which of some paths, ranked, is the fastest, by the times of each in several shapes. A shape counts as much as another.
fn fastest(times: &[Vec<f64>]) -> usize {
    let share = |of: &[f64], by: &[f64]| {
        let logs = of.iter().zip(by).map(|(of, by)| (of / by).ln());
        (logs.sum::<f64>() / of.len().max(1) as f64).exp()
    };
    let wins = |next: &[f64], best: &[f64]| {
        share(next, best) <= WINS_BY && next.iter().zip(best).all(|(next, best)| next / best <= LOSES_BY)
    };
    (1..times.len()).fold(0, |best, next| if wins(&times[next], &times[best]) { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_path_must_win_clearly_and_in_the_mean_of_the_shapes() {
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.8, 0.8]]), 0, "noise");
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.5, 0.5]]), 1);
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.1, 1.2]]), 0, "slower for one row");
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.4, 1.2], vec![0.45, 1.0]]), 2, "not slower for any");
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.5, 0.5], vec![0.4, 0.5]]), 1, "no better than the one before it");
        assert_eq!(fastest(&[vec![1.0, 1.0], vec![0.7, 0.7], vec![0.5, 0.5]]), 2);
        assert_eq!(fastest(&[vec![1.0, 1.0]]), 0);
        assert_eq!(fastest(&[vec![1.0, f64::NAN], vec![0.1, 0.1]]), 0, "what cannot be compared wins nothing");
    }

    #[test]
    fn the_portable_kernels_are_tried_where_there_are_no_others() {
        assert_eq!(candidates(&[Path::Avx2, Path::Portable]), [Path::Avx2]);
        assert_eq!(candidates(&[Path::Portable]), [Path::Portable]);
    }

    #[test]
    fn a_machine_runs_what_was_chosen_for_it() {
        let before = Paths::chosen();
        assert!(fastest_paths().can_run());
        assert_eq!(Paths::chosen(), before, "measuring takes nothing into use");
        let tried = candidates(Path::available());
        for work in Work::MEASURED {
            let cases = cases(work, &tried);
            assert_eq!(cases.len(), tried.len(), "{work:?}");
            assert!(cases.iter().zip(&tried).all(|(cases, path)| cases.iter().all(|case| case.path == *path)));
        }
    }
}
