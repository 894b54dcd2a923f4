//! What prefills take on this machine: measured at the first start with a model, within seconds, and kept in the catalog.

use std::sync::Arc;

use ragstone_env::Env;
use ragstone_kernels::backend::{Backend, Slots, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::forward::{Chunk, Forward, Keep, Next, Outcome, Placed, Places, Rider, Selector, Wanted};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_storage::catalog::Catalog;
use ragstone_storage::cost::{CostGrid, CostProfile, Costs, PrefillCost};
use ragstone_storage::key::Fingerprint;
use ragstone_storage::prompt::plan::LOOKING_TOKENS;

use crate::error::Result;
use crate::models::folders::Progress;
use crate::models::language_model::LanguageModel;

/// Tokens that stand before the measured ones, as far as the context goes.
const CACHED: [u32; 3] = [0, 1024, 4096];
/// Rows that go through the layers together; the last is the longest chunk of the engine.
const NEW: [u32; 4] = [1, 32, 128, 512];
/// Times that each is measured; the fastest counts, as what else ran is not the model's.
const RUNS: usize = 2;
/// Layers of which the weights are read at least where few rows go through: fewer would stay in a cache, as a whole model's do not.
const LEAST_WEIGHTS: usize = 256 << 20;
/// Layers that a long chunk goes through: it computes more than it reads.
const LONG_LAYERS: usize = 2;
/// From so many rows on a chunk is long.
const LONG_ROWS: u32 = 128;
/// Tokens whose stored KV is placed.
const PLACED: usize = 256;

/// Leaves the pass before a layer.
struct StopAt(usize);

impl<B: Backend> Selector<B> for StopAt {
    fn before_layer(&mut self, layer: usize) -> Next {
        if layer < self.0 { Next::Go } else { Next::Stop }
    }
}

/// Looks at what its rows look at in the first layer, and leaves.
struct Looking<'a> {
    env: &'a Env,
    ms: f64,
}

impl<B: Backend> Selector<B> for Looking<'_> {
    fn before_layer(&mut self, layer: usize) -> Next {
        if layer == 0 { Next::Go } else { Next::Stop }
    }

    fn select_by_attention(&mut self, seen: &Placed<'_, B>) -> Keep {
        let started = self.env.stopwatch();
        drop(seen.attention_weights(0..seen.places.len()));
        self.ms = started.elapsed_ms();
        Keep::All
    }
}

/// Opens the costs of a model that are kept by `name`, measured now if they never were. BLOCKS, for seconds then.
pub(crate) fn open<B: Backend>(
    backend: &B,
    name: &str,
    catalog: &Catalog,
    env: &Env,
    progress: &dyn Fn(Progress),
) -> Result<Costs> {
    let layers = backend.config().layers as u32;
    if let Some(kept) = catalog.costs(name)?.filter(|kept| kept.prefill.is_measured && kept.is_sane(layers)) {
        return Ok(Costs::new(kept));
    }
    let prefill = measure(backend, env, &|done, total| progress(Progress::Measuring { done, total }))?;
    let costs = Costs::new(CostProfile { prefill, ..CostProfile::assumed()? });
    keep(&costs, name, catalog)?;
    Ok(costs)
}

/// Writes what was learned since.
pub(crate) fn keep(costs: &Costs, name: &str, catalog: &Catalog) -> Result<()> {
    catalog.note_costs(name, &costs.profile())
}

/// To be raised when kernels take another time: what was measured before is measured again.
const KERNELS: u32 = 2;

/// The name that costs are kept by. They are of a model, and of what computes it (see [`LanguageModel::machine`]).
pub(crate) fn name(fingerprint: &Fingerprint, model: &LanguageModel) -> String {
    format!("{fingerprint}.{}.{KERNELS}", model.machine())
}

/// Measures a model: prefill times by tokens cached and new, and what placing stored KV takes. What is cached is a pool of zeros: how
/// long attention takes does not depend on what it reads. `progress` is told how much of the work is done.
///
/// # Errors
/// As the backend says.
pub fn measure<B: Backend>(backend: &B, env: &Env, progress: &dyn Fn(u64, u64)) -> Result<PrefillCost> {
    let config = backend.config();
    let context = u32::try_from(config.max_positions).unwrap_or(u32::MAX);
    let fitting = |points: &[u32], most: u32| -> Vec<u32> { points.iter().copied().filter(|at| *at <= most).collect() };
    let new = fitting(&NEW, context.max(1));
    let longest = new.last().copied().unwrap_or(1);
    let cached = fitting(&CACHED, context.saturating_sub(longest));
    let tokens = (cached.last().copied().unwrap_or(0) + longest) as usize;
    let mut bench = Bench::new(backend, env, tokens);
    let total = (cached.len() * new.len() * RUNS) as u64;
    let mut time_us = vec![vec![f64::INFINITY; new.len()]; cached.len()];
    // The first pass allocates what later ones use again.
    bench.layer_us(0, longest.min(LONG_ROWS), 1)?;
    let mut head_us = f64::INFINITY;
    for run in 0..RUNS {
        head_us = head_us.min(bench.head_us()?);
        for (row, &cached_tokens) in cached.iter().enumerate() {
            for (column, &rows) in new.iter().enumerate() {
                progress(((run * cached.len() + row) * new.len() + column) as u64, total);
                let layers = if rows >= LONG_ROWS { LONG_LAYERS } else { layers_beyond_caches(config) };
                let us = bench.layer_us(cached_tokens, rows, layers.clamp(1, config.layers))?;
                time_us[row][column] = us.min(time_us[row][column]);
            }
        }
    }
    progress(total, total);
    if time_us.iter().flatten().all(|time| *time <= 0.0) {
        // A clock that stands still, as tests have it.
        return Ok(PrefillCost { layers: config.layers as u32, ..PrefillCost::assumed()? });
    }
    for time in time_us.iter_mut().flatten() {
        // Less than clocks tell.
        *time = (*time * config.layers as f64 + head_us).max(0.1);
    }
    let layout = backend.kv_layout();
    let grid = CostGrid::new("measured at the first start", layout.token_bytes() as u64, cached, new, time_us)?;
    let place_us_per_byte = bench.place_us_per_byte()?;
    let look_us_per_weight = bench.look_us_per_weight()?;
    Ok(PrefillCost {
        grid: Arc::new(grid),
        layers: config.layers as u32,
        place_us_per_byte,
        look_us_per_weight,
        scale: 1.0,
        is_measured: true,
    })
}

/// As many layers as have more weights than caches hold.
fn layers_beyond_caches(config: &ModelConfig) -> usize {
    let weights = 4 * config.hidden_size * config.hidden_size + 3 * config.hidden_size * config.inner_features();
    LEAST_WEIGHTS.div_ceil((2 * weights).max(1))
}

struct Bench<'a, B: Backend> {
    backend: &'a B,
    env: &'a Env,
    pool: B::Pool,
    blocks: Vec<BlockId>,
    key_positions: Vec<u32>,
}

impl<'a, B: Backend> Bench<'a, B> {
    fn new(backend: &'a B, env: &'a Env, tokens: usize) -> Self {
        let count = tokens.max(PLACED).div_ceil(BLOCK_TOKENS);
        let blocks = (0..count as u32).map(BlockId).collect();
        let key_positions = (0..(count * BLOCK_TOKENS) as u32).collect();
        Self { backend, env, pool: backend.new_pool(count), blocks, key_positions }
    }

    /// What a layer takes for rows behind `cached` tokens, the mean of the first `layers`.
    fn layer_us(&mut self, cached: u32, rows: u32, layers: usize) -> Result<f64> {
        let slots = cached..cached + rows;
        let places = Places::of(slots.clone(), &self.key_positions);
        // Different ones: rows of one token would all go through the same experts.
        let vocabulary = self.backend.config().vocab_size as u32;
        let tokens: Vec<u32> = (0..rows).map(|row| row.wrapping_mul(7919) % vocabulary).collect();
        let chunk = Chunk::embed(self.backend, &tokens, places, Wanted::Nothing)?;
        let mut stop = StopAt(layers);
        let key_positions = &self.key_positions[..slots.end as usize];
        let rider = Rider { chunk, blocks: &self.blocks, key_positions, selector: Some(&mut stop) };
        let started = self.env.stopwatch();
        let passed = Forward::new(self.backend, &mut self.pool).pass(vec![rider]);
        let us = started.elapsed_ms() * 1e3;
        for outcome in passed.outcomes {
            if let Outcome::Failed(error) = outcome {
                return Err(error);
            }
        }
        Ok(us / layers as f64)
    }

    /// What the last row's logits take.
    fn head_us(&self) -> Result<f64> {
        let rows = self.backend.embed(&[0], &[0])?;
        let started = self.env.stopwatch();
        let logits = self.backend.logits(&rows);
        let us = started.elapsed_ms() * 1e3;
        drop(logits);
        Ok(us)
    }

    /// What looking at an attention weight takes.
    fn look_us_per_weight(&mut self) -> Result<f64> {
        let rows = LOOKING_TOKENS.min(self.key_positions.len() as u32 / 2).max(1);
        let first = self.key_positions.len() as u32 - rows;
        let mut fastest = f64::INFINITY;
        for _ in 0..RUNS {
            let places = Places::of(first..first + rows, &self.key_positions);
            let chunk = Chunk::embed(self.backend, &vec![0; rows as usize], places, Wanted::Nothing)?;
            let mut looking = Looking { env: self.env, ms: f64::INFINITY };
            let (blocks, key_positions) = (&self.blocks[..], &self.key_positions[..]);
            let rider = Rider { chunk, blocks, key_positions, selector: Some(&mut looking) };
            Forward::new(self.backend, &mut self.pool).pass(vec![rider]);
            fastest = fastest.min(looking.ms);
        }
        let weights = f64::from(rows) * self.key_positions.len() as f64;
        Ok(if fastest.is_finite() { fastest * 1e3 / weights } else { 0.0 })
    }

    /// What placing a byte of stored KV takes.
    fn place_us_per_byte(&mut self) -> Result<f64> {
        let layout = self.backend.kv_layout();
        let bytes = vec![0; PLACED * layout.kv_dim() * layout.dtype.size_in_bytes()];
        let slots = &self.key_positions[..PLACED];
        let mut fastest = f64::INFINITY;
        for _ in 0..RUNS {
            let stored = StoredKv { dtype: layout.dtype, k: &bytes, v: &bytes };
            let to = Slots { blocks: &self.blocks, slots, positions: slots };
            let started = self.env.stopwatch();
            self.backend.place_stored(&mut self.pool, 0, to, stored)?;
            fastest = fastest.min(started.elapsed_ms() * 1e3);
        }
        Ok(fastest / (2 * bytes.len()).max(1) as f64)
    }
}
