//! Time to first token of one prompt, by where its passages' KV comes from.
//!
//! The clock runs from the fused prompt's look-up to its first token, over the production fusor, store, device tier and prefill;
//! no retrieval. The modes alternate within each round, so that a change of the machine's speed meets all of them. Buckets are
//! on loopback, in this process: one as fast as it goes, and one as slow as another region's.

mod result;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use ragstone_actors::eviction::{Evictor, FreshKv};
use ragstone_actors::fusion::{Fuse, Fusor, ReadAhead};
use ragstone_actors::models::costs;
use ragstone_actors::models::language_model::Device;
use ragstone_actors::prefill::{FreshSegment, PrefillError, Prefilled, Prompt, Selection, prefill};
use ragstone_actors::worker::Service;
use ragstone_cuda::CudaModel;
use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::BLOCK_TOKENS;
use ragstone_kernels::sampling::argmax;
use ragstone_storage::cost::PrefillCost;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::{LoadPlan, PlanOptions, ReuseMode};
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::{AdmissionRule, KvStore};
use ragstone_storage::tier::SharedTier;
use ragstone_storage::tier::device::{DeviceOptions, DeviceTier};
use ragstone_storage::tier::object::{ObjectOptions, ObjectTier};
use tokio::runtime::Handle;

pub use self::result::ModeResult;
use ragstone_terminal::progress::{Progress, Unit};

use self::result::Run;
use self::stores::Tiers;
use super::bucket::{Bucket, Pace};
use super::{Shape, Spread};
use crate::error::{Error, Result};

const ROOT_TOKENS: usize = 32;
const QUESTION_TOKENS: usize = 64;
const TENANT: &str = "bench";
/// As the engine cuts a prompt that is alone.
pub const CHUNK_ROWS: usize = 512;
/// Prompts that only teach what reads take.
pub(super) const LESSONS: usize = 3;
/// The slow bucket: 200 ms before each answer, 100 MB/s for all together.
const SLOW: Pace = Pace { latency: Duration::from_millis(200), bytes_per_s: 100e6 };

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the random weights.
    pub shape: Shape,
    /// Length of the prompt: system prompt, passages and question.
    pub prompt_tokens: usize,
    /// Passages of equal length.
    pub passages: usize,
    /// Rounds; each measures every mode once.
    pub runs: usize,
    /// How the blend modes choose what is recomputed.
    pub selection: Selection,
    /// The share that is.
    pub ratio: f32,
    /// Seed of weights and tokens.
    pub seed: u64,
    /// Rows that are computed together at most.
    pub chunk_rows: usize,
    /// The modes that are measured beside `full`, by name; all where there is none.
    pub only: Vec<String>,
}

/// Where a mode's KV lies, and how it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Nothing,
    Exact,
    /// Passages in another order than they were computed in, nothing recomputed.
    Reuse,
    Blend,
}

/// `full` comes first: the others are divided by it.
const MODES: [(&str, Use, Tier); 9] = [
    ("full", Use::Nothing, Tier::Host),
    ("exact_device", Use::Exact, Tier::Device),
    ("exact_host", Use::Exact, Tier::Host),
    ("exact_disk", Use::Exact, Tier::Disk),
    ("reuse_host", Use::Reuse, Tier::Host),
    ("blend_host", Use::Blend, Tier::Host),
    ("blend_disk", Use::Blend, Tier::Disk),
    ("blend_bucket", Use::Blend, Tier::Bucket),
    ("blend_slow_bucket", Use::Blend, Tier::SlowBucket),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// Blocks that an earlier prompt left in the pool.
    Device,
    Host,
    Disk,
    /// [`Bench::buckets`], in this order.
    Bucket,
    SlowBucket,
}

/// A mode: how it is called, and what it does.
type Mode = (&'static str, Use, Tier);

impl Options {
    /// `full`, and those that are wanted.
    ///
    /// # Errors
    /// `InvalidInput` for a mode that there is not.
    fn modes(&self) -> Result<Vec<Mode>> {
        if let Some(unknown) = self.only.iter().find(|wanted| !MODES.iter().any(|(name, ..)| name == wanted)) {
            let names: Vec<&str> = MODES.iter().map(|(name, ..)| *name).collect();
            return Err(Error::invalid_input(format!("--only {unknown}: there are {}", names.join(", "))));
        }
        let is_wanted =
            |name: &str| name == "full" || self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(MODES.into_iter().filter(|(name, ..)| is_wanted(name)).collect())
    }
}

/// A prompt that was computed.
pub(super) struct Answered {
    pub done: Prefilled,
    /// As it was made, before anything was loaded.
    pub plan: LoadPlan,
    /// Time that finding and planning it took, in milliseconds.
    pub look_up_ms: f64,
}

/// Measures every mode. With the least model it needs about 3.5 GiB of memory and 300 MiB in the system's temporary folder.
pub async fn measure(options: Options, device: Device, load: LoadOptions<'static>) -> Result<Vec<ModeResult>> {
    options.modes()?;
    let (fast, slow) = (Bucket::start(None)?, Bucket::start(Some(SLOW))?);
    let buckets = [fast.options(), slow.options()];
    let handle = Handle::current();
    let work = move || {
        let (config, seed) = (options.shape.config()?, options.seed);
        let progress = Progress::new("building a random model", Unit::Nothing);
        progress.tick();
        match device {
            Device::Cuda(gpus) => {
                let model = CudaModel::random(config, seed, gpus, load)?;
                drop(progress);
                let identity = model.arithmetic().to_string();
                every_mode(Bench::new(options, model, &identity, AdmissionRule::Always, handle)?, &buckets)
            }
            _ => {
                let model = Model::random(config, seed, load);
                drop(progress);
                let identity = model.arithmetic().to_string();
                every_mode(Bench::new(options, model, &identity, AdmissionRule::Always, handle)?, &buckets)
            }
        }
    };
    let measured = tokio::task::spawn_blocking(work).await;
    fast.stop().await;
    slow.stop().await;
    measured.map_err(|error| Error::internal(format!("the benchmark failed: {error}")))?
}

fn every_mode<B: Backend>(mut bench: Bench<B>, buckets: &[ObjectOptions]) -> Result<Vec<ModeResult>> {
    bench.open_buckets(buckets)?;
    bench.run()
}

/// A model, a store, and a prompt whose passages are in it.
pub(super) struct Bench<B: Backend> {
    options: Options,
    pub model: B,
    /// How its products are made.
    arithmetic: String,
    pool: B::Pool,
    device: DeviceTier,
    host: KvStore,
    /// A host tier without room: every run reads the disk.
    pub disk: KvStore,
    /// Object storage alone, a store each.
    buckets: Vec<KvStore>,
    root: Segment,
    passages: Vec<Segment>,
    question: Segment,
    runtime: Handle,
    folder: tempfile::TempDir,
}

impl<B: Backend> Bench<B> {
    /// Of a model of the options' shape and seed, whose products are made as `arithmetic` says. `admission` is the disk's alone.
    pub fn new(
        options: Options,
        model: B,
        arithmetic: &str,
        admission: AdmissionRule,
        runtime: Handle,
    ) -> Result<Self> {
        let passage_tokens =
            options.prompt_tokens.saturating_sub(ROOT_TOKENS + QUESTION_TOKENS) / options.passages.max(1);
        if options.passages == 0 || options.runs == 0 || passage_tokens == 0 {
            return Err(Error::invalid_input(format!(
                "a prompt of {} tokens has no room for {} passages beside {ROOT_TOKENS} tokens of system prompt and \
                 {QUESTION_TOKENS} of question; raise --tokens, or take fewer --passages",
                options.prompt_tokens, options.passages
            )));
        }
        let vocabulary = model.config().vocab_size as u32;
        let question_tokens = options.prompt_tokens - ROOT_TOKENS - options.passages * passage_tokens;
        // What a prompt left on the device, and another prompt beside it.
        let blocks = 3 * options.prompt_tokens.div_ceil(BLOCK_TOKENS);
        let block_bytes = model.kv_layout().block_bytes();
        let device = DeviceOptions { blocks, block_bytes, policy: PolicyKind::HitDensity, cache: true };
        let (pool, device) = (model.new_pool(blocks), DeviceTier::new(device)?);
        let folder = tempfile::tempdir().map_err(|error| Error::io("create", &std::env::temp_dir(), error))?;
        let env = Env::system_with_seed(options.seed);
        let of = stores::Of { shape: options.shape, seed: options.seed, arithmetic, layout: model.kv_layout() };
        let open = |name: &str, tiers| stores::open(&folder.path().join(name), tiers, &of, &env);
        let host = Tiers { host_bytes: 4 << 30, disk_bytes: 4 << 30, object: None, admission: AdmissionRule::Always };
        let disk = Tiers { host_bytes: 0, admission, ..host.clone() };
        let (host, disk) = (open("host", host)?, open("disk", disk)?);
        let segment = |kind, length: usize| {
            let tokens: Vec<u32> = (0..length).map(|_| (env.random_u64() % u64::from(vocabulary)) as u32).collect();
            Segment { kind, tokens: tokens.into(), place: None }
        };
        let root = segment(SegmentKind::SystemPrompt, ROOT_TOKENS);
        let passages = (0..options.passages).map(|_| segment(SegmentKind::Passage, passage_tokens)).collect();
        let question = segment(SegmentKind::Question, question_tokens);
        let (buckets, arithmetic) = (Vec::new(), arithmetic.to_owned());
        Ok(Self {
            options,
            model,
            arithmetic,
            pool,
            device,
            host,
            disk,
            buckets,
            root,
            passages,
            question,
            runtime,
            folder,
        })
    }

    /// Adds stores that have nothing but a bucket.
    fn open_buckets(&mut self, buckets: &[ObjectOptions]) -> Result<()> {
        for (index, bucket) in buckets.iter().enumerate() {
            let object: Arc<dyn SharedTier> =
                Arc::new(ObjectTier::open(bucket, *self.host.fingerprint(), self.host.env().clone())?);
            let tiers = Tiers { host_bytes: 0, disk_bytes: 0, object: Some(object), admission: AdmissionRule::Always };
            let folder = self.folder.path().join(format!("bucket-{index}"));
            let Options { shape, seed, .. } = self.options;
            let of = stores::Of { shape, seed, arithmetic: &self.arithmetic, layout: self.model.kv_layout() };
            self.buckets.push(stores::open(&folder, tiers, &of, self.host.env())?);
        }
        Ok(())
    }

    /// What this machine takes for prefills.
    pub fn measure_costs(&self) -> Result<PrefillCost> {
        let progress = Progress::new("measuring this machine", Unit::Items);
        costs::measure(&self.model, self.host.env(), &|done, total| progress.set(done, total))
    }

    fn run(mut self) -> Result<Vec<ModeResult>> {
        let modes = self.options.modes()?;
        self.fill()?;
        let prefill = self.measure_costs()?;
        for store in [&self.host, &self.disk].into_iter().chain(&self.buckets) {
            store.costs().set_prefill(prefill.clone());
        }
        let progress = Progress::new("learning what reads take", Unit::Nothing);
        progress.tick();
        let tiers = [Tier::Disk, Tier::Bucket, Tier::SlowBucket].into_iter();
        for tier in tiers.filter(|tier| modes.iter().any(|(_, _, of)| of == tier)) {
            for _ in 0..LESSONS {
                self.measure_one(Use::Blend, tier)?;
            }
        }
        let progress = Progress::new("measuring", Unit::Items);
        let mut runs: Vec<Vec<Run>> = modes.iter().map(|_| Vec::new()).collect();
        let total = (self.options.runs * modes.len()) as u64;
        for round in 0..self.options.runs {
            for (index, (_, using, tier)) in modes.iter().enumerate() {
                progress.set((round * modes.len() + index) as u64, total);
                let run = self.measure_one(*using, *tier)?;
                runs[index].push(run);
            }
        }
        let full = Spread::of(runs[0].iter().map(|run| run.ttft_ms)).median;
        let tokens = self.options.prompt_tokens;
        let results = modes.iter().zip(runs).map(|((mode, ..), runs)| ModeResult::of(mode, tokens, &runs, full));
        Ok(results.collect())
    }

    /// Computes every entry once: the chain in its first order, and each passage after the system prompt.
    pub fn fill(&mut self) -> Result<()> {
        let progress = Progress::new("computing the passages' KV", Unit::Items);
        let total = self.passages.len() as u64 + 1;
        self.keep(&self.prompt(false))?;
        let exact = PlanOptions::fixed(0.0, ReuseMode::ExactOnly);
        self.prefill(&self.host.clone(), &self.prompt(false), exact, true)?;
        for (done, passage) in self.passages.clone().into_iter().enumerate() {
            progress.set(done as u64 + 1, total);
            self.keep(&[self.root.clone(), passage])?;
        }
        Ok(())
    }

    fn keep(&mut self, segments: &[Segment]) -> Result<()> {
        let exact = PlanOptions::fixed(0.0, ReuseMode::ExactOnly);
        let (host, disk) = (self.host.clone(), self.disk.clone());
        let fresh = self.prefill(&host, segments, exact, false)?.done.fresh;
        // Buckets are filled with what the host tier is: computing it for each would take minutes.
        self.buckets.iter().try_for_each(|bucket| self.file(bucket, fresh.clone()))?;
        self.file(&host, fresh)?;
        let fresh = self.prefill(&disk, segments, exact, false)?.done.fresh;
        self.file(&disk, fresh)
    }

    fn file(&self, store: &KvStore, segments: Vec<FreshSegment>) -> Result<()> {
        let (layout, runtime) = (self.model.kv_layout(), self.runtime.clone());
        let evictor = Arc::new(Evictor { store: store.clone(), layout, runtime });
        let keep = FreshKv { tenant: TENANT.into(), segments, planned_in: store.epoch() };
        self.runtime.block_on(evictor.handle(keep))?;
        if store.drain(Duration::from_secs(60)) {
            Ok(())
        } else {
            Err(Error::internal("the entries were not written within a minute"))
        }
    }

    /// The prompt, its passages in the order they were computed in or in the reverse one.
    pub fn prompt(&self, reversed: bool) -> Vec<Segment> {
        let mut passages = self.passages.clone();
        if reversed {
            passages.reverse();
        }
        [vec![self.root.clone()], passages, vec![self.question.clone()]].concat()
    }

    fn measure_one(&mut self, using: Use, tier: Tier) -> Result<Run> {
        let (reuse, ratio) = match using {
            Use::Nothing => (ReuseMode::Off, 0.0),
            Use::Exact => (ReuseMode::ExactOnly, 0.0),
            Use::Reuse => (ReuseMode::Auto, 0.0),
            Use::Blend => (ReuseMode::Auto, self.options.ratio),
        };
        let segments = self.prompt(matches!(using, Use::Reuse | Use::Blend));
        let store = match tier {
            Tier::Host | Tier::Device => &self.host,
            Tier::Disk => &self.disk,
            Tier::Bucket => &self.buckets[0],
            Tier::SlowBucket => &self.buckets[1],
        };
        let store = store.clone();
        let started = Stopwatch::start();
        let choosing = self.options.selection.choosing(self.model.config().layers);
        let options = PlanOptions { choosing, ..PlanOptions::fixed(ratio, reuse) };
        let Answered { done, plan, look_up_ms } = self.prefill(&store, &segments, options, tier == Tier::Device)?;
        let first = argmax(&done.logits);
        let ttft_ms = started.elapsed_ms();
        first.ok_or_else(|| Error::internal("the model's logits are not numbers"))?;
        if let Some(prediction) = plan.prediction.filter(|_| using == Use::Blend) {
            store.costs().observe_prefill(&prediction, done.computing_ms);
        }
        Ok(Run {
            ttft_ms,
            load_wait_ms: done.load_wait_ms,
            loaded_bytes: done.loads.iter().map(|load| load.bytes).sum(),
            computed_tokens: done.account.computed + done.account.recomputed,
            look_up_ms,
            // Tiers are read at the same time.
            load_ms: done.loads.iter().map(|load| load.ms).fold(0.0, f64::max),
            compute_ms: done.computing_ms,
            predicted_ms: plan.prediction.map_or(f64::NAN, |prediction| prediction.total_ms),
        })
    }

    /// With `on_device` takes what is on the device, and leaves what is not there yet, as the engine does.
    pub fn prefill(
        &mut self,
        store: &KvStore,
        segments: &[Segment],
        options: PlanOptions,
        on_device: bool,
    ) -> Result<Answered> {
        let started = Stopwatch::start();
        let segments: Arc<[Segment]> = segments.into();
        let tokens: Arc<[u32]> = segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
        let (store, device, runtime) = (store.clone(), self.device.clone(), self.runtime.clone());
        let fusor = Arc::new(Fusor::new(store, device, runtime, ReadAhead::default()));
        let (tenant, primer, (explain, speculative)) = (TENANT.into(), Primer::none(), (false, false));
        let fuse = Fuse { segments, tenant, primer, options, on_device, explain, speculative };
        let fused = self.runtime.block_on(fusor.handle(fuse))?;
        let look_up_ms = started.elapsed_ms();
        let prefix = fused.plan.device_tokens() as usize;
        let begun = self.device.begin(fused.device.as_ref(), prefix, tokens.len(), true);
        let (mut table, copy) = begun.map_err(|why| Error::internal(format!("the pool is too small: {why:?}")))?;
        if let Some(copy) = copy {
            self.model.copy_block(&mut self.pool, copy.from(), copy.to())?;
        }
        let prompt = Prompt {
            tokens: tokens.clone(),
            plan: fused.plan.clone(),
            loads: fused.loads,
            selection: self.options.selection,
            env: self.host.env().clone(),
            files_answer: false,
            is_wanted: Arc::new(|| true),
            scores: None,
        };
        let done =
            prefill(&self.model, &mut self.pool, prompt, table.blocks(), self.options.chunk_rows).map_err(|error| {
                match error {
                    PrefillError::Failed(error) => error,
                    PrefillError::LateMiss(failed) | PrefillError::Overdue(Some(failed)) => {
                        Error::internal(format!("an entry could not be loaded: {}", failed.error))
                    }
                    PrefillError::Overdue(None) => Error::internal("no entry was loaded in time"),
                    PrefillError::DeviceMiss | PrefillError::Interrupted(_) => {
                        Error::internal("the device lost what it had")
                    }
                }
            })?;
        if let Some(seen) = &fused.device {
            let path = fused.plan.kept_segments(&tokens);
            drop(self.device.keep(seen, &path, &mut table, 1.0));
        }
        Ok(Answered { done, plan: fused.plan, look_up_ms })
    }

    /// Bytes of one layer of a passage.
    pub fn frame_bytes(&self) -> usize {
        let layout = self.model.kv_layout();
        let tokens = self.passages.first().map_or(0, |passage| passage.tokens.len());
        layout.token_bytes() / layout.layers * tokens
    }
}
