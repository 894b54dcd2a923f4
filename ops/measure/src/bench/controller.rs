//! The loading controller against every fixed ratio, from a disk that is made as slow as asked for.
//!
//! A reversed order of passages is blended from a disk whose reads take as long as the speed says. The first prompts at a speed are
//! not measured: the controller learns what reads take from them, as a service does.

use std::time::Duration;

use ragstone_env::{Env, FailMode, Stopwatch};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::sampling::argmax;
use ragstone_storage::prompt::plan::{Choosing, PlanOptions, Ratio, ReuseMode, Why};
use ragstone_storage::store::AdmissionRule;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use tokio::runtime::Handle;

use super::Spread;
use super::ttft::{self, Bench};
use crate::error::{Error, Result};

/// Fixed ratios beside the floor.
const RATIOS: [f32; 4] = [0.25, 0.4, 0.6, 0.8];
/// Ways are measured in strides, so that none has the same one before it each round; prime, unlike the number of ways.
const STRIDE: usize = 11;
/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Prompt, passages, runs, seed, and the floor of the ratio.
    pub prompt: ttft::Options,
    /// What the disk carries, in GB/s, at the most.
    pub speeds: Vec<f64>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub speeds: Vec<SpeedResult>,
    /// How wrong predictions were, of all prompts at all speeds.
    pub predictions: Predictions,
}

/// Errors of predicted times to first token, as shares of what was measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Predictions {
    pub prompts: usize,
    pub error_p50: f64,
    pub error_p95: f64,
}

/// One speed.
#[derive(Debug, Clone, Serialize)]
pub struct SpeedResult {
    /// What the disk carries at the most.
    pub gb_per_s: f64,
    /// The controller first, computing everything, then ratios from the floor on.
    pub ways: Vec<WayResult>,
    /// The controller's time, of the best of the others'.
    pub of_best: f64,
}

/// One way to decide.
#[derive(Debug, Clone, Serialize)]
pub struct WayResult {
    pub way: String,
    pub ttft_ms: Spread,
    /// Share that was recomputed, of the last run.
    pub ratio: f32,
    /// Passages that were computed for want of speed, of the last run.
    pub declined: usize,
    /// Of what was predicted: the error's share of what was measured.
    pub prediction_error: Spread,
    /// What computing was predicted to take, as a multiple of what it took.
    pub compute_predicted: Spread,
    /// What loading was predicted to take, as a multiple of what it took.
    pub load_predicted: Spread,
    /// max(T_load, T_compute) / T_measured.
    pub efficiency: Spread,
}

#[derive(Default)]
struct Samples {
    ttft_ms: Vec<f64>,
    errors: Vec<f64>,
    compute: Vec<f64>,
    load: Vec<f64>,
    efficiencies: Vec<f64>,
    ratio: f32,
    declined: usize,
}

/// Measures every speed.
pub async fn measure(options: Options, load: LoadOptions<'static>) -> Result<Report> {
    let handle = Handle::current();
    let measured = tokio::task::spawn_blocking(move || run(&options, load, handle)).await;
    measured.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))?
}

fn run(options: &Options, load: LoadOptions<'_>, runtime: Handle) -> Result<Report> {
    let model = Model::random(options.prompt.shape.config()?, options.prompt.seed, load);
    let arithmetic = model.arithmetic().to_string();
    let mut bench = Bench::new(options.prompt.clone(), model, &arithmetic, AdmissionRule::Cost, runtime)?;
    bench.fill()?;
    bench.disk.costs().set_prefill(bench.measure_costs()?);
    let choosing = options.prompt.selection.choosing(bench.model.config().layers);
    let ways = ways(options.prompt.ratio, choosing);
    let progress = Progress::new("measuring", Unit::Items);
    let total = (options.speeds.len() * options.prompt.runs * ways.len()) as u64;
    let mut speeds = Vec::with_capacity(options.speeds.len());
    let mut errors = Vec::new();
    for (index, speed) in options.speeds.iter().enumerate() {
        slow_down(bench.disk.env(), &bench, *speed);
        for _ in 0..ttft::LESSONS {
            sample(&mut bench, &PlanOptions::fixed(options.prompt.ratio, ReuseMode::Auto), &mut Samples::default())?;
        }
        let mut samples: Vec<Samples> = ways.iter().map(|_| Samples::default()).collect();
        for round in 0..options.prompt.runs {
            for turn in 0..ways.len() {
                progress.set(((index * options.prompt.runs + round) * ways.len() + turn) as u64, total);
                // Another order each round: what ran before leaves its traces.
                let way = (turn * STRIDE + round) % ways.len();
                sample(&mut bench, &ways[way].1, &mut samples[way])?;
            }
        }
        errors.extend(samples.iter().flat_map(|samples| samples.errors.iter().copied()));
        speeds.push(result(*speed, &ways, samples));
    }
    bench.disk.env().set_fail_point("disk.read_frame", FailMode::Off, 1);
    Ok(Report { speeds, predictions: Predictions::of(errors) })
}

impl Predictions {
    /// By the nearest rank.
    fn of(mut errors: Vec<f64>) -> Self {
        errors.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (errors.len() * percent).div_ceil(100);
            errors.get(rank.wrapping_sub(1)).copied().unwrap_or(f64::NAN)
        };
        Self { prompts: errors.len(), error_p50: at(50), error_p95: at(95) }
    }
}

/// The controller, computing everything, and fixed ratios.
fn ways(floor: f32, choosing: Choosing) -> Vec<(String, PlanOptions)> {
    let with = |ratio, declines| PlanOptions { ratio, choosing, reuse: ReuseMode::Auto, declines };
    let mut ways = vec![
        ("controller".to_owned(), with(Ratio::AtLeast(floor), true)),
        ("compute".to_owned(), PlanOptions { reuse: ReuseMode::Off, ..with(Ratio::Fixed(floor), false) }),
    ];
    let ratios = [floor].into_iter().chain(RATIOS.into_iter().filter(|ratio| *ratio > floor));
    ways.extend(ratios.map(|ratio| (format!("{ratio:.2}"), with(Ratio::Fixed(ratio), false))));
    ways
}

/// Makes reads take as long as a disk of that speed would, which carries one after the other.
fn slow_down(env: &Env, bench: &Bench<Model>, gb_per_s: f64) {
    let delay = bench.frame_bytes() as f64 / (gb_per_s * 1e9);
    env.set_fail_point("disk.read_frame", FailMode::Line(Duration::from_secs_f64(delay)), 1);
}

fn sample(bench: &mut Bench<Model>, options: &PlanOptions, samples: &mut Samples) -> Result<()> {
    let (store, segments) = (bench.disk.clone(), bench.prompt(true));
    let started = Stopwatch::start();
    let ttft::Answered { done, plan, .. } = bench.prefill(&store, &segments, *options, false)?;
    argmax(&done.logits).ok_or_else(|| Error::internal("the model's logits are not numbers"))?;
    let ttft_ms = started.elapsed_ms();
    // Tiers are read at the same time.
    let load_ms = done.loads.iter().map(|load| load.ms).fold(0.0, f64::max);
    if let Some(prediction) = plan.prediction {
        samples.compute.push(prediction.compute_ms / done.computing_ms);
        samples.load.push(prediction.load_ms / load_ms);
        samples.errors.push((prediction.total_ms - ttft_ms).abs() / ttft_ms);
        store.costs().observe_prefill(&prediction, done.computing_ms);
    }
    samples.ttft_ms.push(ttft_ms);
    samples.efficiencies.push(load_ms.max(done.computing_ms) / ttft_ms);
    samples.ratio = plan.ratio;
    samples.declined = plan.segments.iter().filter(|segment| segment.why == Why::SlowToLoad).count();
    Ok(())
}

fn result(gb_per_s: f64, ways: &[(String, PlanOptions)], samples: Vec<Samples>) -> SpeedResult {
    let way = |((way, _), samples): (&(String, PlanOptions), Samples)| WayResult {
        way: way.clone(),
        ttft_ms: Spread::of(samples.ttft_ms),
        ratio: samples.ratio,
        declined: samples.declined,
        prediction_error: Spread::of(samples.errors),
        compute_predicted: Spread::of(samples.compute),
        load_predicted: Spread::of(samples.load),
        efficiency: Spread::of(samples.efficiencies),
    };
    let ways: Vec<WayResult> = ways.iter().zip(samples).map(way).collect();
    let best = ways[1..].iter().map(|way| way.ttft_ms.median).fold(f64::INFINITY, f64::min);
    SpeedResult { gb_per_s, of_best: ways[0].ttft_ms.median / best, ways }
}
