//! What was opened, put to work: the engine, the workers, and what they share.

use std::sync::Arc;

use ragstone_corpus::Corpus;
use ragstone_env::Env;
use ragstone_kernels::cross_encoder::CrossEncoder;
use ragstone_kernels::embedding::SentenceEncoder;
use ragstone_kernels::pool::KvLayout;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::key::Fingerprint;
use ragstone_storage::store::KvStore;
use ragstone_storage::tier::device::{DeviceOptions, DeviceTier};
use ragstone_storage::tier::object::ObjectTier;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::admission::api_keys::ApiKeys;
use crate::admission::jobs::Jobs;
use crate::admission::quotas::Quotas;
use crate::admission::turns::{Places, Turns, processors};
use crate::answer::assembler::Assembler;
use crate::answer::background::{Background, Workers};
use crate::answer::blend::Known;
use crate::answer::pipeline::Pipeline;
use crate::answer::reranking::CrossReranker;
use crate::answer::runner::Runner;
use crate::engine::{Engine, Prefiller};
use crate::error::Result;
use crate::eviction::Evictor;
use crate::fusion::{Fusor, ReadAhead};
use crate::models::embedding::Embedder;
use crate::models::language_model::LanguageModel;
use crate::question::manner::Manner;
use crate::ragstone::loaded_model::LoadedModel;
use crate::ragstone::status::ModelStatus;
use crate::report::events::Feed;
use crate::report::plans::Plans;
use crate::retrieval::Retriever;
use crate::settings::Settings;
use crate::speculation::Times;
use crate::upkeep::calibration::{self, Calibrator};
use crate::upkeep::collector::Collector;
use crate::upkeep::library::Library;
use crate::upkeep::nodes::Joined;
use crate::upkeep::renewal::Renewer;
use crate::upkeep::schemas::Schemas;
use crate::upkeep::warm::Warmer;
use crate::upstream::Upstream;
use crate::worker::Supervised;

/// Of the engine's queue, the part that prompts may have that ask after passages: a question has one place there, and hundreds of these.
const PARTS_FOR_VERDICTS: usize = 4;

/// Everything that was opened, ready to be put to work.
pub(super) struct Parts {
    pub settings: Settings,
    pub env: Env,
    pub loaded: LoadedModel,
    pub known: Known,
    pub store: KvStore,
    pub object: Option<Arc<ObjectTier>>,
    pub corpus: Corpus,
    pub catalog: Arc<Catalog>,
    pub encoder: Arc<SentenceEncoder>,
    pub reranker: Option<Arc<CrossEncoder>>,
    pub model_id: String,
    pub upstream: Option<Arc<Upstream>>,
    pub runtime: Handle,
}

impl Parts {
    pub fn start(self, joined: Option<Joined>) -> Result<Inner> {
        let Self { settings, env, loaded, known, store, corpus, catalog, encoder, upstream, runtime, .. } = self;
        let (costs_name, model) = (loaded.costs_name(), loaded.model);
        let (layout, device) = (model.kv_layout(), device(&settings, &model)?);
        store.set_device(device.clone());
        let engine = engine(&model, device.clone(), &settings, env.clone())?;
        let (queued, processors) = (settings.max_queued, Turns::at_processors(env.clone()));
        let runner = runner(queued, &store, device, &engine, (&upstream, &runtime));
        let evictor = evictor(queued, &store, layout, &runtime);
        let (background, jobs) = (background(&runner, &evictor, &runtime), Jobs::new(runtime.clone()));
        collect(&settings, self.object.as_ref(), (&env, &jobs, &runtime));
        let own = || model_status(self.model_id, &model, (&loaded.fingerprint, &loaded.files_digest));
        let status = upstream.as_ref().map_or_else(own, |upstream| upstream.status());
        let (prompt, context) = (settings.prompt.clone(), engine.context());
        let assembler = Assembler::start(loaded.tokenizer, loaded.chat, prompt, context, model.config(), env.clone())?;
        let quotas = Quotas::open(catalog.clone(), store.clone(), &env, settings.tenant_quota()?)?;
        let pipeline = Arc::new_cyclic(|me| Pipeline {
            admission: Places::new("admission", queued),
            beginning: Turns::at_questions(queued, begun_at_once(&model, settings.max_batch), env.clone()),
            judging: Turns::new(queued / PARTS_FOR_VERDICTS, env.clone()),
            assembler,
            engine: engine.clone(),
            manner: Manner::of(upstream.is_none().then(|| model.config()), settings.top_k),
            upstream,
            settings,
            known,
            env,
            store,
            retriever: retriever(queued, &corpus, &processors, &runtime),
            reranker: self.reranker.map(|encoder| CrossReranker::new(encoder, processors.clone())),
            runner,
            evictor,
            background,
            recurring: std::sync::Mutex::default(),
            popularity: std::sync::Mutex::default(),
            plans: Plans::default(),
            quotas,
            feed: Feed::default(),
            times: Times::default(),
            runtime: runtime.clone(),
            me: me.clone(),
        });
        pipeline.restore_what_is_lost();
        let library = library(&pipeline, &corpus, &catalog, &jobs);
        let up_to_date = joined.map(|joined| joined.follow(&library, &corpus, &pipeline.env, &jobs, &pipeline.runtime));
        let schemas = Schemas::new(catalog.clone(), pipeline.clone());
        let warmer = Warmer::new(corpus.clone(), catalog.clone(), pipeline.clone(), schemas.clone(), jobs.clone());
        let calibrator = Calibrator::new(calibration::Inner {
            model,
            weights: loaded.weights_digest,
            pipeline: pipeline.clone(),
            corpus: corpus.clone(),
            catalog: catalog.clone(),
            jobs: jobs.clone(),
            runtime,
            processors: processors.clone(),
            aside: CancellationToken::new(),
            quiet: std::sync::Mutex::default(),
        });
        Ok(Inner {
            api_keys: ApiKeys::open(catalog.clone(), pipeline.env.clone())?,
            renewer: Renewer::new(corpus.clone(), catalog.clone(), jobs.clone()),
            schemas,
            pipeline,
            engine,
            model: status,
            generation: loaded.generation,
            costs_name,
            object: self.object,
            corpus,
            catalog,
            embedder: Embedder::new(encoder, queued, processors.clone()),
            library,
            warmer,
            calibrator,
            jobs,
            processors,
            up_to_date,
        })
    }
}

/// The corpus with its KV, and the vacuum behind it.
fn library(pipeline: &Pipeline, corpus: &Corpus, catalog: &Arc<Catalog>, jobs: &Jobs) -> Library {
    let with = (pipeline.store.clone(), jobs.clone(), pipeline.quotas.clone());
    let library = Library::new(corpus.clone(), catalog.clone(), with);
    library.start_vacuum(pipeline.settings.vacuum_within(), &pipeline.runtime);
    library
}

/// `device_bytes` is what each device has for blocks; a block's bytes are those on all of them.
fn device(settings: &Settings, model: &LanguageModel) -> Result<DeviceTier> {
    let bytes = match (settings.device_bytes, model.free_bytes_of_a_device()?) {
        (None, Some(free)) => pool_of_a_gpu(free),
        _ => settings.pool_bytes(),
    };
    let options = DeviceOptions {
        blocks: (bytes / model.block_bytes_of_a_device().max(1) as u64).max(1) as usize,
        block_bytes: model.kv_layout().block_bytes(),
        policy: settings.device_policy,
        cache: settings.device_cache,
    };
    DeviceTier::new(options)
}

/// What of a GPU's free memory the pool takes where nobody says: all but a tenth, and at least a gigabyte, which rows and graphs need; of a small one
/// half.
fn pool_of_a_gpu(free: u64) -> u64 {
    free - (free / 10).max(1 << 30).min(free / 2)
}

/// Questions on their way to their first token that callers share, where there are several. Where the engine computes on the processors,
/// searches and prompts wait for it there.
fn begun_at_once(model: &LanguageModel, max_batch: usize) -> usize {
    match model {
        LanguageModel::Cpu(_) => max_batch.min(2 * processors()),
        LanguageModel::Cuda(_) => max_batch,
    }
}

/// The engine on the model's device.
fn engine(model: &LanguageModel, tier: DeviceTier, settings: &Settings, env: Env) -> Result<Engine> {
    match model {
        LanguageModel::Cpu(model) => Engine::start(model.clone(), tier, settings.engine_options(), env),
        LanguageModel::Cuda(model) => Engine::start(model.clone(), tier, settings.engine_options(), env),
    }
}

/// The work that nobody waits for.
fn background(runner: &Runner, evictor: &Supervised<Evictor>, runtime: &Handle) -> Background {
    Background::start(Workers { runner: runner.clone(), evictor: evictor.clone() }, runtime.clone())
}

/// Collects what is to leave the bucket, where there is one.
fn collect(settings: &Settings, object: Option<&Arc<ObjectTier>>, (env, jobs, runtime): (&Env, &Jobs, &Handle)) {
    let collector = Collector::new(settings, object, env.clone());
    collector.into_iter().for_each(|collector| collector.start(jobs.clone(), runtime));
}

/// The worker that searches.
fn retriever(queued: usize, corpus: &Corpus, processors: &Turns, runtime: &Handle) -> Supervised<Retriever> {
    let (corpus, processors, runtime) = (corpus.clone(), processors.clone(), runtime.clone());
    Supervised::start(queued, move || Retriever {
        corpus: corpus.clone(),
        runtime: runtime.clone(),
        processors: processors.clone(),
    })
}

/// The worker that takes fresh KV into the store.
fn evictor(queued: usize, store: &KvStore, layout: KvLayout, runtime: &Handle) -> Supervised<Evictor> {
    let (store, runtime) = (store.clone(), runtime.clone());
    Supervised::start(queued, move || Evictor { store: store.clone(), layout, runtime: runtime.clone() })
}

/// The workers that load and prefill.
fn runner(
    queued: usize,
    store: &KvStore,
    device: DeviceTier,
    engine: &Engine,
    (upstream, runtime): (&Option<Arc<Upstream>>, &Handle),
) -> Runner {
    let (s, r, e) = (store.clone(), runtime.clone(), engine.clone());
    let ahead = ReadAhead::default();
    let fusor = Supervised::start(2 * queued, move || Fusor::new(s.clone(), device.clone(), r.clone(), ahead.clone()));
    let prefiller = Supervised::start(2 * queued, move || Prefiller { engine: e.clone() });
    Runner { fusor, prefiller, store: store.clone(), upstream: upstream.clone() }
}

fn model_status(id: String, model: &LanguageModel, (fingerprint, weights): (&Fingerprint, &str)) -> ModelStatus {
    ModelStatus {
        id,
        architecture: model.config().architecture.class_name().to_owned(),
        context: model.config().max_positions,
        fingerprint: fingerprint.to_string(),
        weights: weights.to_owned(),
        weight_bytes: model.size_in_bytes(),
        kv_bytes_per_token: model.kv_layout().token_bytes(),
    }
}
