//! Products and attention on a GPU in the sizes of models, beside what its data sheet promises.

use ragstone_cuda::Gpu;
use ragstone_cuda::measure::{Case, Measured, peak_operations};
use ragstone_kernels::dtype::KvDtype;
use ragstone_terminal::output;
use serde::Serialize;

use crate::Spread;
use crate::cases::{CaseResult, LinearShape, in_turn, print_results, rows_of, shape};
use crate::error::Result;

/// Prefill, the chosen rows of a blend, and decode: of Qwen2.5-0.5B and of Qwen2.5-7B.
const SHAPES: [LinearShape; 8] = [
    shape(2048, 896, 4864),
    shape(2048, 4864, 896),
    shape(512, 3584, 18_944),
    shape(2048, 3584, 18_944),
    shape(2048, 18_944, 3584),
    shape(77, 3584, 18_944),
    shape(1, 896, 4864),
    shape(1, 3584, 18_944),
];

/// Heads, KV heads and values a head, of the same two.
const HEADS: [[usize; 3]; 2] = [[14, 2, 64], [28, 4, 128]];
/// Rows that look.
const ROWS: [usize; 3] = [2048, 77, 1];
/// Tokens that they look at.
const TOKENS: [usize; 2] = [4096, 16_384];

/// Which cases, and how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// Linear layers.
    pub linear: bool,
    pub attention: bool,
    /// Of linear layers; those of two models if empty.
    pub shapes: Vec<LinearShape>,
    /// That attention looks at; 4,096 and 16,384 if empty.
    pub tokens: Vec<usize>,
    /// Rounds; each measures every case once.
    pub runs: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct GpuReport {
    pub gpu: Gpu,
    pub peak: Peak,
    pub results: Vec<CaseResult>,
}

/// What the GPU could do at most; nothing where its generation is not in the table, or the driver does not tell its clocks.
#[derive(Debug, Clone, Serialize)]
pub struct Peak {
    /// Where the figures come from.
    pub by: &'static str,
    pub bf16_gflops: Option<f64>,
    pub f32_gflops: Option<f64>,
    pub read_gbps: Option<f64>,
}

/// Measures every case on GPU `ordinal` once a round.
///
/// # Errors
/// Where there is no such GPU, or its memory is too small.
pub fn measure(ordinal: usize, options: &Options) -> Result<GpuReport> {
    let measured = Measured::start(ordinal)?;
    let mut cases = cases(&measured, options)?;
    let seconds = in_turn(options.runs, &mut cases, Case::sample)?;
    let gpu = measured.gpu().clone();
    let giga = |dtype| peak_operations(&gpu, dtype).map(|operations| operations / 1e9);
    let bytes = gpu.memory_bytes_per_s as f64;
    let peak = Peak {
        by: "operations a clock of its compute capability, by NVIDIA's data sheets, times multiprocessors and their clock there; memory by clock and width",
        bf16_gflops: giga(KvDtype::Bf16),
        f32_gflops: giga(KvDtype::F32),
        read_gbps: (bytes > 0.0).then_some(bytes / 1e9),
    };
    let results = cases.iter().zip(seconds).map(|(case, seconds)| result(case, seconds, &peak)).collect();
    Ok(GpuReport { gpu, peak, results })
}

fn result(case: &Case, seconds: Spread, peak: &Peak) -> CaseResult {
    let (gflops, gbps) = (seconds.rate(case.operations / 1e9), seconds.rate(case.bytes / 1e9));
    let most = if case.precision == "f32" { peak.f32_gflops } else { peak.bf16_gflops };
    let shares = [most.map(|most| gflops.median / most), peak.read_gbps.map(|most| gbps.median / most)];
    CaseResult {
        kernel: case.kernel,
        path: "cuda",
        precision: case.precision,
        shape: case.shape.clone(),
        seconds,
        gflops,
        gbps,
        of_ceiling: shares.into_iter().flatten().fold(f64::NAN, f64::max),
    }
}

fn cases(measured: &Measured, options: &Options) -> Result<Vec<Case>> {
    let shapes = if options.shapes.is_empty() { &SHAPES[..] } else { &options.shapes };
    let tokens = if options.tokens.is_empty() { &TOKENS[..] } else { &options.tokens };
    let mut cases = Vec::new();
    if options.linear {
        for dtype in [KvDtype::F32, KvDtype::Bf16] {
            for LinearShape { rows, inputs, outputs } in shapes {
                cases.push(measured.product(dtype, [*rows, *inputs, *outputs])?);
            }
        }
        for LinearShape { rows, inputs, outputs } in shapes {
            cases.push(measured.product_q8([*rows, *inputs, *outputs])?);
        }
    }
    if options.attention {
        for heads in HEADS {
            for (rows, tokens) in
                tokens.iter().flat_map(|tokens| rows_of(&ROWS, *tokens).into_iter().map(move |rows| (rows, *tokens)))
            {
                for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
                    cases.push(measured.attention(dtype, heads, rows, tokens)?);
                }
            }
        }
    }
    Ok(cases)
}

/// For people, or as JSON.
///
/// # Errors
/// Where standard output cannot be written.
pub fn print(report: &GpuReport, json: bool) -> Result<()> {
    if json {
        return output::json(report);
    }
    let peak = &report.peak;
    let of = |rate: Option<f64>| rate.map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.0}"));
    output::line(&report.gpu.to_string())?;
    output::line(&format!(
        "at most: {} GFLOP/s f32, {} GFLOP/s bf16, reading {} GB/s ({})\n",
        of(peak.f32_gflops),
        of(peak.bf16_gflops),
        of(peak.read_gbps),
        peak.by
    ))?;
    print_results(&report.results)
}
