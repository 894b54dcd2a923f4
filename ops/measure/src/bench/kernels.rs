//! Each kernel by itself, beside what the machine could do at most.

pub use ragstone_bench::cases::{CaseResult, LinearShape as Shape};
use ragstone_bench::cases::{rows_of, shape};
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::linear::{Bits, Grouping, Precision, Scales};
use ragstone_kernels::measure::{self, Case, Layers};
use ragstone_kernels::simd::{Path, Work};
use ragstone_storage::prompt::plan::LOOKING_TOKENS;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;

use super::{Machine, Spread};
use crate::error::Result;

/// Prefill, the selected rows of a blend, and decode: of Qwen2.5-0.5B and of the size that others measure.
pub const SHAPES: [Shape; 7] = [
    shape(512, 896, 4864),
    shape(512, 4864, 896),
    shape(512, 1024, 2816),
    shape(2048, 2048, 5632),
    shape(77, 896, 4864),
    shape(1, 2048, 5632),
    shape(1, 896, 151_936),
];

/// Forms of GGUF's blocks.
const BLOCKS: [(&str, Bits, Scales); 4] = [
    ("Q8_0", Bits::Eight, Scales::Symmetric),
    ("Q4_0", Bits::Four, Scales::Symmetric),
    ("Q4_K", Bits::Four, Scales::Nested),
    ("Q6_K", Bits::Six, Scales::Pair),
];

/// Tokens that attention looks at.
const TOKENS: [usize; 1] = [4096];

/// What is read to find out how fast: more than any cache holds.
const READ_BYTES: usize = 1 << 30;

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    Linear,
    /// Linear layers of blocks as GGUF files have them.
    Blocks,
    Attention,
    Elementwise,
}

/// Which cases, and how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// All if empty.
    pub only: Vec<Group>,
    /// Of linear layers; [`SHAPES`] if empty.
    pub shapes: Vec<Shape>,
    /// That attention looks at; [`TOKENS`] if empty.
    pub tokens: Vec<usize>,
    /// Every path of the machine, not only those in use.
    pub all_paths: bool,
    pub runs: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub ceilings: Ceilings,
    pub results: Vec<CaseResult>,
}

/// What all threads reach together: arithmetic without memory traffic, and reading without arithmetic.
#[derive(Debug, Clone, Serialize)]
pub struct Ceilings {
    pub f32_gflops: Spread,
    pub bf16_gflops: Spread,
    pub int8_gops: Spread,
    pub read_gbps: Spread,
}

/// The ceiling of reading, among [`measure::ceilings`].
const READING: usize = 3;

/// That of a case's arithmetic.
fn arithmetic(precision: &str) -> usize {
    match precision {
        "bf16" => 1,
        "q8" | "q4" => 2,
        precision if BLOCKS.iter().any(|(name, ..)| *name == precision) => 2,
        _ => 0,
    }
}

/// Measures every case once a round, and its ceilings just before it: what else a machine does changes from second to second.
pub fn measure(options: &Options) -> Result<Report> {
    let (mut ceilings, mut cases) = (measure::ceilings(READ_BYTES), cases(options));
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.runs * cases.len()) as u64;
    let mut limits = vec![Vec::new(); ceilings.len()];
    let mut samples = vec![Vec::new(); cases.len()];
    for round in 0..options.runs {
        for (index, case) in cases.iter_mut().enumerate() {
            progress.set((round * samples.len() + index) as u64, total);
            let mut limit = |index: usize| {
                let ceiling: &mut Case = &mut ceilings[index];
                let rate = ceiling.operations.max(ceiling.bytes) / ceiling.sample();
                limits[index].push(rate / 1e9);
                rate
            };
            let (operations, bytes) = (limit(arithmetic(case.precision)), limit(READING));
            let seconds = case.sample();
            let of_ceiling = (case.operations / seconds / operations).max(case.bytes / seconds / bytes);
            samples[index].push((seconds, of_ceiling));
        }
    }
    let [f32_gflops, bf16_gflops, int8_gops, read_gbps] = [0, 1, 2, READING].map(|index| {
        if limits[index].is_empty() {
            // No case has such numbers.
            let ceiling: &mut Case = &mut ceilings[index];
            limits[index].push(ceiling.operations / ceiling.sample() / 1e9);
        }
        Spread::of(limits[index].iter().copied())
    });
    let results = cases.iter().zip(&samples).map(|(case, samples)| {
        let seconds = Spread::of(samples.iter().map(|(seconds, _)| *seconds));
        CaseResult {
            kernel: case.kernel,
            path: case.path.name(),
            precision: case.precision,
            shape: case.shape.clone(),
            seconds,
            gflops: seconds.rate(case.operations / 1e9),
            gbps: seconds.rate(case.bytes / 1e9),
            of_ceiling: Spread::of(samples.iter().map(|(_, share)| *share)).median,
        }
    });
    let results = results.collect();
    let ceilings = Ceilings { f32_gflops, bf16_gflops, int8_gops, read_gbps };
    Ok(Report { machine: Machine::here(), ceilings, results })
}

fn cases(options: &Options) -> Vec<Case> {
    let wanted = |group| options.only.is_empty() || options.only.contains(&group);
    let paths_of = |work: Work| if options.all_paths { Path::available().to_vec() } else { vec![Path::of(work)] };
    let shapes = if options.shapes.is_empty() { &SHAPES[..] } else { &options.shapes };
    let tokens = if options.tokens.is_empty() { &TOKENS[..] } else { &options.tokens };
    let mut cases = Vec::new();
    if wanted(Group::Linear) {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8, Precision::Q4] {
            for shape in shapes {
                let layers = Layers::new(precision, shape.rows, shape.inputs, shape.outputs);
                let work = match precision {
                    Precision::F32 => Work::F32Products,
                    Precision::Bf16 => Work::Bf16Products,
                    Precision::Q8 | Precision::Q4 => Work::ByteProducts,
                };
                cases.extend(paths_of(work).into_iter().map(|path| measure::linear(path, &layers)));
            }
        }
    }
    if wanted(Group::Blocks) {
        for (name, bits, scales) in BLOCKS {
            for shape in shapes {
                let grouping = Grouping { bits, scales };
                let layers = Layers::of_blocks(name, grouping, shape.rows, shape.inputs, shape.outputs);
                cases.extend(paths_of(Work::ByteProducts).into_iter().map(|path| measure::linear(path, &layers)));
            }
        }
    }
    if wanted(Group::Attention) {
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
            let work = if dtype == KvDtype::Bf16 { Work::Bf16Attention } else { Work::F32Attention };
            for path in paths_of(work) {
                for &tokens in tokens {
                    let rows = rows_of(&[512, 77, 1], tokens);
                    cases.extend(rows.into_iter().map(|rows| measure::attention(path, dtype, rows, tokens)));
                    cases.push(measure::weights(path, dtype, (LOOKING_TOKENS as usize).min(tokens), tokens));
                }
            }
        }
    }
    if wanted(Group::Elementwise) {
        cases.extend(measure::elementwise(4096));
    }
    cases
}
