//! A language model on a GPU.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, ThreadId};

use super::attention::Tables;
use super::launch::Heads;
use super::parallel::{GpuList, OnRanks, Ranks};
use super::rope::Angles;
use super::session::{Buffer, Queued, Session};
use super::trial::Trial;
use super::weights::{DeviceWeights, Matrix, check_supported};
use ragstone_kernels::backend::Backend;
use ragstone_kernels::config::{ModelConfig, WeightDtype};
use ragstone_kernels::dtype::{ComputeDtype, KvDtype, WeightFormat};
use ragstone_kernels::error::{Error, ErrorKind, Result};
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::model::{Arithmetic, LoadOptions, Parts, kv_dtype, load_parts, random_parts, slopes};
use ragstone_kernels::pool::KvLayout;
use ragstone_kernels::rope::Rope;

/// Bytes of weights that are done, and in all.
type Progress<'a> = Option<&'a (dyn Fn(u64, u64) + Sync)>;
/// Packs the weights, as often as a GPU is lost.
type Pack = dyn Fn(&OnRanks, Progress<'_>) -> Result<Parts<Vec<Matrix>>> + Send + Sync;

/// A language model on a GPU, or on several that share it: what [`Model`](ragstone_kernels::model::Model) is on the CPU. Weights are kept in f32, bf16 or
/// 8 bits. Products of bf16 weights have bf16 factors and f32 sums, and those of 8 bits too; so has attention over a pool of bf16, and over one
/// of f16 with f16 factors.
pub struct CudaModel {
    pub(super) config: ModelConfig,
    pub(super) kv_dtype: KvDtype,
    arithmetic: Arithmetic,
    gpus: GpuList,
    pack: Box<Pack>,
    /// Nothing while a GPU is gone.
    loaded: RwLock<Option<Arc<Ranks>>>,
    failures: Mutex<Failures>,
    replays: AtomicBool,
}

/// What went wrong in operations that give no error themselves.
#[derive(Debug, Default)]
struct Failures {
    /// Why the GPU is lost: for everybody, until it is in use again.
    lost: Option<String>,
    /// The first failure of each thread that has not asked yet: the pass of one must not hear of another's, and miss its own.
    of_threads: HashMap<ThreadId, (ErrorKind, String)>,
}

/// The model in the memory of a session, or a rank's share of it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) session: Arc<Session>,
    pub(super) weights: DeviceWeights,
    /// Its own.
    pub(super) heads: Heads,
    rope: Angles,
    /// Of layers with a window, where it is another one.
    local_rope: Option<Angles>,
    /// Of layers that turn nothing.
    no_rope: Angles,
    /// ALiBi's, one a head from its own first one on.
    pub(super) slopes: Option<Buffer>,
    /// Of the rows that looked last: those of a pass are the same in each layer.
    pub(super) tables: Mutex<Option<Arc<Tables>>>,
}

impl CudaModel {
    /// Loads a Hugging Face folder or a GGUF file into the memory of the GPUs of those numbers.
    ///
    /// # Errors
    /// As [`Model::load`](ragstone_kernels::model::Model::load); `UnsupportedModel` for what this backend does not run, `Unavailable` where there is no GPU,
    /// `Full` where its memory is too small, `InvalidInput` for more GPUs than the model has KV heads.
    pub fn load(path: &Path, gpus: impl Into<GpuList>, options: LoadOptions<'_>) -> Result<Self> {
        if options.adapter.is_some() {
            return Err(Error::unsupported("adapters are not computed on GPUs; take --device cpu, or --adapter none"));
        }
        let config = ModelFiles::open(path)?.config()?;
        let arithmetic = arithmetic(&config, &options);
        let (read, path) = (config.clone(), path.to_owned());
        let (kv_dtype, weights, compute) = (options.kv_dtype, options.weights, options.compute);
        let pack = move |packer: &OnRanks, progress: Progress<'_>| {
            let options = LoadOptions { kv_dtype, weights, compute, adapter: None, progress };
            ModelFiles::open(&path)?.with_tensors(|tensors| load_parts(&read, tensors, packer, arithmetic, options))
        };
        Self::start(config, gpus.into(), arithmetic, options, Box::new(pack))
    }

    /// A model of random weights: those of [`Model::random`](ragstone_kernels::model::Model::random) of the same seed.
    ///
    /// # Errors
    /// As [`CudaModel::load`].
    pub fn random(config: ModelConfig, seed: u64, gpus: impl Into<GpuList>, options: LoadOptions<'_>) -> Result<Self> {
        let arithmetic = arithmetic(&config, &options);
        let made = config.clone();
        let (kv_dtype, weights, compute) = (options.kv_dtype, options.weights, options.compute);
        let pack = move |packer: &OnRanks, progress: Progress<'_>| {
            let options = LoadOptions { kv_dtype, weights, compute, adapter: None, progress };
            random_parts(&made, seed, packer, arithmetic, options)
        };
        Self::start(config, gpus.into(), arithmetic, options, Box::new(pack))
    }

    fn start(
        config: ModelConfig,
        gpus: GpuList,
        arithmetic: Arithmetic,
        options: LoadOptions<'_>,
        pack: Box<Pack>,
    ) -> Result<Self> {
        check_supported(&config)?;
        let loaded = load(&config, &gpus, &pack, options.progress)?;
        let kv_dtype = kv_dtype(&config, &options);
        let (loaded, failures) = (RwLock::new(Some(Arc::new(loaded))), Mutex::default());
        let replays = AtomicBool::new(true);
        Ok(Self { config, kv_dtype, arithmetic, gpus, pack, loaded, failures, replays })
    }

    /// How its products are made: with the weights themselves, what its numbers depend on.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The GPU's name, or how many there are of which; nothing while one is gone.
    pub fn gpu(&self) -> String {
        let Ok(loaded) = self.loaded() else { return String::new() };
        let mut names: Vec<&str> = loaded.each.iter().map(|rank| rank.session.gpu().name.as_str()).collect();
        names.dedup();
        let count = loaded.len();
        if count == 1 { names.concat() } else { format!("{count} x {}", names.join(" + ")) }
    }

    /// Which kernels for the GPU's own capability are used, by GPU; nothing while one is gone.
    pub fn trials(&self) -> Vec<Trial> {
        let each = |loaded: Arc<Ranks>| loaded.each.iter().map(|rank| rank.session.trial().clone()).collect();
        self.loaded().map_or_else(|_| Vec::new(), each)
    }

    /// Whether steps of few rows are replayed as graphs, as they are from the start on a single GPU, or computed operation by operation:
    /// slower, with the same bits. To measure and to compare.
    pub fn replay_graphs(&self, replays: bool) {
        self.replays.store(replays, Ordering::Relaxed);
    }

    /// Whether they are replayed. Of several GPUs they are not: a graph is of one device.
    pub fn replays_graphs(&self) -> bool {
        self.gpus.only().is_some() && self.replays.load(Ordering::Relaxed)
    }

    /// What the drivers of all its GPUs were given to do since these were taken into use.
    pub fn queued(&self) -> Queued {
        let of_all = |loaded: Arc<Ranks>| loaded.each.iter().map(|rank| rank.session.queued()).sum();
        self.loaded().map_or_else(|_| Queued::default(), of_all)
    }

    /// Bytes of the weights in the memory of its GPUs, all of them together; 0 while one is gone.
    pub fn size_in_bytes(&self) -> usize {
        self.loaded().map_or(0, |loaded| loaded.each.iter().map(|rank| rank.weights.size_in_bytes()).sum())
    }

    /// What is free in the memory of its GPUs: of the one that has least.
    ///
    /// # Errors
    /// The driver's; `DeviceLost` while a GPU is gone.
    pub fn free_bytes_of_a_gpu(&self) -> Result<u64> {
        let free = |rank: &Loaded| rank.session.free_memory().map(|bytes| bytes as u64);
        self.loaded()?.each.iter().map(free).try_fold(u64::MAX, |least, free| free.map(|free| least.min(free)))
    }

    /// Bytes of a block of the pool in the memory of the GPU that has most of it.
    pub fn block_bytes_of_a_gpu(&self) -> usize {
        let kv_heads = self.config.kv_heads.div_ceil(self.gpus.as_slice().len());
        KvLayout { kv_heads, ..self.kv_layout() }.block_bytes()
    }

    /// What the model lies on.
    ///
    /// # Errors
    /// `DeviceLost` while a GPU is gone, and what went wrong on this thread since it asked last.
    fn loaded(&self) -> Result<Arc<Ranks>> {
        self.failures().of_this_thread()?;
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| Error::new(ErrorKind::DeviceLost, "the GPU is gone"))
    }

    /// What an operation that gives no error itself makes; `None` where it, or one before it on this thread, failed. Its thread is told by
    /// [`CudaModel::take_failure`], also if somebody else has taken the GPU into use again by then.
    pub(super) fn attempt<R>(&self, doing: impl FnOnce(&Ranks) -> Result<R>) -> Option<R> {
        let told_later = |error: &Error| {
            let failure = || (error.kind(), error.to_string());
            self.failures().of_threads.entry(thread::current().id()).or_insert_with(failure);
        };
        self.checked(doing).inspect_err(told_later).ok()
    }

    /// What an operation makes that gives its error; a loss is remembered.
    pub(super) fn checked<R>(&self, doing: impl FnOnce(&Ranks) -> Result<R>) -> Result<R> {
        let loaded = self.loaded()?;
        // Memory of a session that is over is gone as well, but for its owner alone.
        let is_loss = |error: &Error| error.kind() == ErrorKind::DeviceLost && loaded.is_lost();
        doing(&loaded).inspect_err(|error| {
            if is_loss(error) {
                self.failures().lost.get_or_insert_with(|| error.to_string());
            }
        })
    }

    /// What went wrong on this thread. It is forgotten, unless the GPU is lost: that stays until a new pool is asked for.
    pub(super) fn take_failure(&self) -> Result<()> {
        let mut failures = self.failures();
        let failed = failures.of_this_thread();
        failures.of_threads.remove(&thread::current().id());
        failed
    }

    /// Begins anew: forgets what went wrong on this thread, and takes a lost GPU into use again, with the weights. Reads them for as long as
    /// it takes: nothing else can be done meanwhile.
    pub(super) fn recover(&self) {
        self.failures().of_threads.remove(&thread::current().id());
        if self.failures().lost.is_none() {
            return;
        }
        let mut place = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        // The old one first: its context has to go before the GPU is of use again.
        *place = None;
        match load(&self.config, &self.gpus, &self.pack, None) {
            Ok(loaded) => {
                *place = Some(Arc::new(loaded));
                self.failures().lost = None;
            }
            Err(error) => self.failures().lost = Some(error.to_string()),
        }
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn of_this_thread(&self) -> Result<()> {
        if let Some(message) = &self.lost {
            return Err(Error::new(ErrorKind::DeviceLost, message.clone()));
        }
        match self.of_threads.get(&thread::current().id()) {
            Some((kind, message)) => Err(Error::new(*kind, message.clone())),
            None => Ok(()),
        }
    }
}

/// Brings the model to its GPUs.
fn load(config: &ModelConfig, gpus: &GpuList, pack: &Pack, progress: Progress<'_>) -> Result<Ranks> {
    Ranks::start(config, gpus, |sessions, split| {
        let packer = OnRanks::new(sessions, split.clone());
        let weights = packer.finish(pack(&packer, progress)?, config.vocab_size)?;
        let of_rank = |(rank, (session, weights)): (usize, (&Arc<Session>, DeviceWeights))| {
            Loaded::new(config, session.clone(), weights, split.kv_heads(rank))
        };
        sessions.iter().zip(weights).enumerate().map(of_rank).collect()
    })
}

impl Loaded {
    fn new(
        config: &ModelConfig,
        session: Arc<Session>,
        weights: DeviceWeights,
        kv_heads: Range<usize>,
    ) -> Result<Self> {
        let group = config.heads / config.kv_heads;
        let slopes = slopes(config).map(|slopes| session.upload(&slopes[kv_heads.start * group..])).transpose()?;
        session.finish()?;
        let heads = Heads {
            heads: (kv_heads.len() * group) as u32,
            kv_heads: kv_heads.len() as u32,
            head_dim: config.head_dim as u32,
        };
        Ok(Self {
            session,
            weights,
            heads,
            rope: Angles::new(Rope::new(config)),
            local_rope: config.local_rope.as_ref().map(|rope| Angles::new(Rope::of(rope, config))),
            no_rope: Angles::new(Rope::none(config.head_dim)),
            slopes,
            tables: Mutex::default(),
        })
    }

    /// The rotation of a layer.
    pub(super) fn angles(&self, config: &ModelConfig, layer: usize) -> &Angles {
        match &self.local_rope {
            _ if config.unrotated.contains(&layer) => &self.no_rope,
            Some(local) if config.window(layer).is_some() => local,
            _ => &self.rope,
        }
    }
}

impl fmt::Debug for CudaModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaModel").field("config", &self.config).field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

/// Weights as the checkpoint has them, those of quantized files in bf16; products in bf16 where weights are.
fn arithmetic(config: &ModelConfig, options: &LoadOptions<'_>) -> Arithmetic {
    let weights = match options.weights.unwrap_or(WeightFormat::Stored) {
        WeightFormat::Stored if config.torch_dtype == WeightDtype::Quantized => WeightFormat::Bf16,
        weights => weights,
    };
    let is_bf16 = match weights {
        WeightFormat::Stored => config.torch_dtype == WeightDtype::Bf16,
        WeightFormat::F32 => false,
        WeightFormat::Bf16 | WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Native => true,
    };
    let compute = options.compute.unwrap_or(if is_bf16 { ComputeDtype::Bf16 } else { ComputeDtype::F32 });
    Arithmetic { weights, compute }
}
