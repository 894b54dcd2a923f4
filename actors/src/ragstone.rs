//! The running program: models, store, corpus and workers of one data folder.

pub mod entries;
pub(crate) mod loaded_model;
mod opening;
mod parts;
mod reading;
pub mod status;
mod tiers;
mod verifying;

use std::sync::Arc;
use std::time::Duration;

use ragstone_corpus::{Corpus, UpToDate};
use ragstone_env::Env;
use ragstone_env::damage::Damage;
use ragstone_kernels::cross_encoder::CrossEncoder;
use ragstone_kernels::generation::GenerationDefaults;
use ragstone_kernels::memory::{self, Work};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::catalog::Catalog;
use ragstone_storage::store::KvStore;
use ragstone_storage::tier::object::ObjectTier;
use tokio::runtime::Handle;

use self::opening::{corpus, corpus_options, create, models, store_options};
use self::parts::Parts;
use crate::admission::api_keys::ApiKeys;
use crate::admission::blocking::blocking;
use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_after;
use crate::admission::jobs::Jobs;
use crate::admission::quotas::Quotas;
use crate::admission::turns::Turns;
use crate::answer::blend::Known;
use crate::answer::pipeline::Pipeline;
use crate::answer::reranking::{Rerank, Reranked};
use crate::answer::stream::AnswerStream;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::models::embedding::{Embedded, Embedder};
use crate::models::encoder::ModelEncoder;
use crate::models::folders::{Folders, Progress};
use crate::models::{costs, kernel_choice};
use crate::question::{Question, primer};
use crate::ragstone::status::{ModelStatus, Status};
use crate::report::events::Feed;
use crate::report::plans::PlanRecord;
use crate::settings::Settings;
use crate::upkeep::calibration::{self, Calibrator};
use crate::upkeep::ingests::Ingests;
use crate::upkeep::library::Library;
use crate::upkeep::nodes::Joined;
use crate::upkeep::renewal::{self, Renewer};
use crate::upkeep::schemas::Schemas;
use crate::upkeep::warm::Warmer;
use crate::upstream::Upstream;

/// How long background work may take to end.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// The running program. Clones share it.
#[derive(Clone)]
pub struct Ragstone {
    inner: Arc<Inner>,
}

struct Inner {
    pipeline: Arc<Pipeline>,
    engine: Engine,
    model: ModelStatus,
    generation: GenerationDefaults,
    /// What its costs are kept by.
    costs_name: String,
    object: Option<Arc<ObjectTier>>,
    corpus: Corpus,
    catalog: Arc<Catalog>,
    embedder: Embedder,
    library: Library,
    warmer: Warmer,
    renewer: Renewer,
    calibrator: Calibrator,
    schemas: Schemas,
    api_keys: ApiKeys,
    jobs: Jobs,
    processors: Turns,
    /// Whether it knows what other nodes removed; `None`: there are none.
    up_to_date: Option<UpToDate>,
}

impl Ragstone {
    /// Opens the data folder, loads the models and starts the workers. Call it on a multi-thread tokio runtime.
    ///
    /// # Errors
    /// One that says what to do, for every folder that is missing, damaged, in use, or of another model.
    pub async fn open(
        settings: Settings,
        folders: &Folders,
        env: Env,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Self> {
        settings.validate()?;
        settings.check_bucket()?;
        let runtime = Handle::current();
        let folders = folders.clone();
        let joined = Joined::at(&settings, &folders.data, &env).await?;
        let (opened, settings, folders, env) = blocking(move || {
            settings.prepare_compute()?;
            create(&folders.data)?;
            let catalog = Arc::new(Catalog::open(&folders.data.join("catalog"), &env)?);
            kernel_choice::choose(Some(&catalog))?;
            let (loaded, encoder) = models(&settings, &folders, &catalog, &progress)?;
            loaded.note(&catalog, &folders.model_id, env.now_unix_ms())?;
            let name = loaded.fingerprint.to_string();
            let known = calibration::recall(&catalog, &name, &loaded.weights_digest, folders.calibrated())?;
            let can_move = loaded.model.config().positions.can_move();
            let context = loaded.model.config().max_positions;
            let fillers = primer::bundled(&settings.prompt, &loaded.tokenizer, context)?;
            let known = Known::new(&settings, known, can_move, fillers);
            let costs = loaded.costs(&catalog, &env, &progress)?.at(settings.prices);
            let object = settings.object().map(|options| ObjectTier::open(&options, loaded.fingerprint, env.clone()));
            let object = object.transpose()?.map(Arc::new);
            let options = store_options(&settings, &loaded, object.clone(), costs);
            let directory = folders.data.join("kv");
            let store = KvStore::open(&directory, options, loaded.fingerprint, env.clone(), catalog.clone())?;
            renewal::note(&catalog, &encoder, &folders.embedder)?;
            let reranker = folders.reranker.as_deref().map(CrossEncoder::load).transpose()?.map(Arc::new);
            memory::give_back_after(Work::Large);
            Ok(((catalog, loaded, known, store, object, encoder, reranker), settings, folders, env))
        })
        .await?;
        let (catalog, loaded, known, store, object, encoder, reranker) = opened;
        let upstream = Upstream::connect(&settings.upstream()).await?.map(Arc::new);
        let passages = ModelEncoder::new(
            encoder.clone(),
            loaded.tokenizer.clone(),
            &loaded.tokenizer_digest,
            settings.prompt.clone(),
        );
        let measured = passages.measured().clone();
        measured.recall(&catalog, encoder.identity());
        let measuring = (encoder.clone(), Arc::downgrade(&catalog));
        let options = corpus_options(&settings, &env);
        let reader = (&loaded.tokenizer, loaded.tokenizer_digest.as_str(), &settings.prompt);
        let earlier = |identity: &str| renewal::earlier(&catalog, identity, reader);
        let corpus = corpus(joined.as_ref(), &folders.data, passages, &earlier, options).await?;
        let parts = Parts {
            settings,
            env,
            loaded,
            known,
            store,
            object,
            corpus,
            catalog,
            encoder,
            reranker,
            model_id: folders.model_id,
            upstream,
            runtime,
        };
        let inner = parts.start(joined)?;
        if let Err(error) = inner.library.recover().await {
            tracing::error!(%error, "a removal that was cut off is not finished; the next one or the next start tries again");
        }
        inner.calibrator.run_when_idle();
        measured.find_out_later(measuring, inner.jobs.stopping().clone());
        let ragstone = Self { inner: Arc::new(inner) };
        ragstone.watch_tiers();
        Ok(ragstone)
    }

    /// The engine.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The pipeline.
    #[cfg(test)]
    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.inner.pipeline
    }

    /// Turns at the processors.
    pub fn processors(&self) -> &Turns {
        &self.inner.processors
    }

    /// Whether the engine's thread runs.
    pub fn is_alive(&self) -> bool {
        self.inner.engine.is_alive()
    }

    /// Whether it knows what other nodes removed from the corpus. One that does not answers nothing.
    pub fn is_up_to_date(&self) -> bool {
        self.inner.up_to_date.as_ref().is_none_or(UpToDate::is_now)
    }

    /// Whether it will not be up to date before it is started again.
    pub fn is_lost(&self) -> bool {
        self.inner.up_to_date.as_ref().is_some_and(UpToDate::is_lost)
    }

    /// Whether a question would be admitted now: asked before its body is read, so that overload costs little.
    ///
    /// # Errors
    /// `Overloaded`.
    pub fn check_room(&self, caller: Caller) -> Result<()> {
        self.inner.pipeline.check_room(caller)
    }

    /// Answers a question, once. Returns when its first token is there.
    pub async fn answer(&self, question: Question) -> Result<AnswerStream> {
        let mut answers = self.answers(Question { answers: 1, ..question }).await?;
        answers.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a question had no answer"))
    }

    /// Answers a question as often as it wants. Returns when the first tokens are there.
    pub async fn answers(&self, question: Question) -> Result<Vec<AnswerStream>> {
        self.inner.pipeline.answer(question).await
    }

    /// How well documents answer a query.
    ///
    /// # Errors
    /// `InvalidInput` for no documents, empty ones, or more than the bounds; `ContextLength` for one that the language model's context
    /// does not hold; `Overloaded`; `DeadlineExceeded`.
    pub async fn rerank(&self, request: Rerank) -> Result<Reranked> {
        self.inner.pipeline.rerank_documents(request).await
    }

    /// Whether a cross-encoder is configured.
    pub fn has_cross_encoder(&self) -> bool {
        self.inner.pipeline.reranker.is_some()
    }

    /// The corpus. Await its futures on a multi-thread runtime.
    pub fn corpus(&self) -> &Corpus {
        &self.inner.corpus
    }

    /// The corpus and its KV, changed together.
    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// The journal of ingests.
    pub fn ingests(&self) -> &Ingests {
        self.inner.library.ingests()
    }

    /// Computes entries ahead.
    pub fn warmer(&self) -> &Warmer {
        &self.inner.warmer
    }

    /// Embeds collections of another embedding model again.
    pub fn renewer(&self) -> &Renewer {
        &self.inner.renewer
    }

    /// Finds out how the model's prompts may be blended.
    pub fn calibrator(&self) -> &Calibrator {
        &self.inner.calibrator
    }

    /// Schemas that are kept by name.
    pub fn schemas(&self) -> &Schemas {
        &self.inner.schemas
    }

    /// API keys.
    pub fn api_keys(&self) -> &ApiKeys {
        &self.inner.api_keys
    }

    /// What tenants may use.
    pub fn quotas(&self) -> &Quotas {
        &self.inner.pipeline.quotas
    }

    /// The room of durable jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    /// The store. Its calls may block.
    pub fn store(&self) -> &KvStore {
        &self.inner.pipeline.store
    }

    /// The bucket that nodes share, where there is one. Its calls block.
    pub fn object(&self) -> Option<&Arc<ObjectTier>> {
        self.inner.object.as_ref()
    }

    /// The catalog: settings, jobs.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.inner.catalog
    }

    /// The language model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.inner.pipeline.assembler.tokenizer()
    }

    /// What the service was opened with.
    pub fn settings(&self) -> &Settings {
        &self.inner.pipeline.settings
    }

    /// Sentence embeddings, one unit vector a text, within `deadline`.
    pub async fn embed(&self, texts: Vec<String>, caller: Caller, deadline: Duration) -> Result<Embedded> {
        self.inner.embedder.embed(texts, caller, deadline).await
    }

    /// Reads what came with a request, on the threads that make prompts and in the caller's turn: never on one that others' requests pass.
    ///
    /// # Errors
    /// What `read` says; `DeadlineExceeded`.
    pub async fn read<T: Send + 'static>(
        &self,
        caller: Caller,
        deadline: Duration,
        read: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.inner.pipeline.assembler.read(caller, deadline_after(deadline), read).await
    }

    /// Elements of a sentence embedding.
    pub fn embedding_dimension(&self) -> usize {
        self.inner.embedder.encoder().dimension()
    }

    /// Tokens of `text` in the embedding model's vocabulary.
    pub fn count_embedding_tokens(&self, text: &str) -> Result<usize> {
        self.inner.embedder.encoder().token_count(text)
    }

    /// The language model.
    pub fn model(&self) -> &ModelStatus {
        &self.inner.model
    }

    /// How the language model's makers say that its answers are chosen.
    pub fn generation_defaults(&self) -> GenerationDefaults {
        self.inner.generation
    }

    /// A snapshot.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let pipeline = &inner.pipeline;
        let workers = vec![
            pipeline.retriever.status(),
            pipeline.runner.fusor.status(),
            pipeline.runner.prefiller.status(),
            pipeline.evictor.status(),
        ];
        Status {
            model: inner.model.clone(),
            blend: inner.calibrator.blend(),
            store: pipeline.store.status(),
            device: inner.engine.status(),
            corpus: inner.corpus.counters(),
            workers,
            admitted: pipeline.admission.taken(),
            background: pipeline.background.pending(),
            jobs: inner.jobs.status(),
        }
    }

    /// What is known to be damaged: what the start found, and what was read since. Memory only.
    pub fn damages(&self) -> Vec<Damage> {
        let (catalog, store) = (&self.inner.catalog, &self.inner.pipeline.store);
        let found = [catalog.damage().cloned(), catalog.trouble(), store.damage().cloned()];
        found.into_iter().flatten().chain(self.inner.corpus.damages()).collect()
    }

    /// The last prompts' plans, a tenant's or everybody's; the latest first.
    pub fn plans(&self, tenant: Option<&str>) -> Vec<PlanRecord> {
        self.inner.pipeline.plans.last(tenant)
    }

    /// What happens, for those who watch.
    pub fn feed(&self) -> &Feed {
        &self.inner.pipeline.feed
    }

    /// Waits until fresh KV is filed in every tier and queued passages are computed.
    pub async fn settle(&self) {
        self.inner.pipeline.background.settle().await;
        let store = self.inner.pipeline.store.clone();
        let drained = tokio::task::spawn_blocking(move || store.drain(SETTLE_LIMIT)).await;
        if !matches!(drained, Ok(true)) {
            tracing::warn!("fresh KV is still on its way to the slower tiers");
        }
    }

    /// Finishes background work, for ten seconds at most, and makes everything durable.
    pub async fn close(&self) -> Result<()> {
        self.inner.jobs.stop();
        if tokio::time::timeout(SETTLE_LIMIT, self.settle()).await.is_err() {
            tracing::warn!("background work was cut short; it is done again when it is needed");
        }
        let (store, catalog) = (self.inner.pipeline.store.clone(), self.inner.catalog.clone());
        let name = self.inner.costs_name.clone();
        blocking(move || {
            store.flush()?;
            costs::keep(store.costs(), &name, &catalog)?;
            catalog.flush()
        })
        .await
    }
}
