//! Calibration: how a model's prompts may be blended so that its answers stay those of a full prefill. It needs no labels, as the
//! model is compared with itself.
//!
//! ```text
//! prompts (passages in shuffled orders, a question)
//!   -> full prefill: a short greedy answer and its distributions
//!   -> ways of blending (a primer, a rule, a share): the same answer's distributions over blended KV
//!   -> the cheapest way whose divergence is within a budget (Kullback-Leibler, nats a token), into the catalog
//! ```
//!
//! A model that was not calibrated is not blended unless its owner says so, and one of which no way is certified is not blended at all.

mod deviation;
mod idle;
mod prompts;
mod request;
mod search;
mod trial;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures::Stream;
use ragstone_corpus::{Corpus, Scope};
use ragstone_env::Env;
use ragstone_kernels::background;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_kernels::memory::{self, Work};
use ragstone_storage::catalog::Catalog;
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::segment::Segment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::deviation::{AttentionDeviation, Deviation};
use self::idle::{Seen, idle};
pub use self::prompts::Asked;
pub use self::request::Calibrate;
use self::search::{Grid, frontier, most_trials, search};
use self::trial::{Trials, TryWay, cost};
use crate::admission::blocking::blocking;
use crate::admission::jobs::{JobKind, Jobs};
use crate::admission::turns::Turns;
use crate::answer::blend::{Blend, Calibration, LEAST_PROMPTS, Way};
use crate::answer::pipeline::Pipeline;
use crate::error::{Error, ErrorKind, Result};
use crate::models::language_model::LanguageModel;
use crate::prefill::Rule;
use crate::report::Blending;

/// A file of this name in a model's folder is its calibration, where it is of the same weights.
pub const FILE_NAME: &str = "calibration.json";

/// The rules that are tried unless a calibration names others: what the question looks at, and what deviates. No one of them is the best
/// on every model (docs/primer.md).
pub const RULES: [Rule; 2] = [Rule::TwoStage, Rule::CacheblendV];
/// The shares that are recomputed.
const RATIOS: [f32; 4] = [0.05, 0.15, 0.25, 0.4];
/// Of a frontier, which shows what recomputing more would bring.
const FRONTIER_RATIOS: [f32; 4] = [0.05, 0.15, 0.25, 0.5];
/// Passages of the primer.
const PRIMERS: [usize; 4] = [0, 1, 2, 4];
/// The part of a model's layers behind which its deviation is looked at: early enough to pay, late enough to see anything.
const PART_OF_LAYERS: usize = 4;
/// Of a model with fewer layers every one is tried: where passages meet differs from one to the next.
const SHALLOW: usize = 8;
/// Two tokens whose probabilities a full prefill has so near to each other, in nats, are a tie: rounding decides between them. In bf16 it
/// is two units in the last place of a logit between 16 and 32.
const TIE_BF16: f32 = 0.25;
/// In f32 sums differ by their order.
const TIE_F32: f32 = 0.001;
/// What a calibration tells on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationEvent {
    /// How far it is.
    Progress {
        /// The name of the way that is being tried.
        name: String,
        /// Trials so far: a way on a prompt each.
        trials: usize,
        /// Trials at most; it may end long before.
        most: usize,
    },
    /// The end.
    Finished(Calibration),
}

/// What was found of a model: by this node, or by whoever made its folder or its adapter's; the later of the two. What cannot be read counts as nothing.
pub(crate) fn recall(catalog: &Catalog, name: &str, weights: &str, folder: &Path) -> Result<Option<Calibration>> {
    let kept: Option<Calibration> = catalog.calibration(name)?;
    // What an earlier version refused, no trained model could have passed.
    let kept = kept.filter(|kept| kept.chosen.is_some() || kept.budget > 0.0);
    let beside = beside(weights, folder)
        .filter(|beside| kept.as_ref().is_none_or(|kept| kept.measured_unix_ms < beside.measured_unix_ms));
    Ok(beside.or(kept))
}

/// The calibration in the model's folder, where it is of these weights.
fn beside(weights: &str, folder: &Path) -> Option<Calibration> {
    let path = folder.join(FILE_NAME);
    let bytes = std::fs::read(&path).ok()?;
    match serde_json::from_slice::<Calibration>(&bytes) {
        Ok(calibration) if calibration.weights == weights && calibration.is_sane() => Some(calibration),
        Ok(_) => {
            tracing::warn!(path = %path.display(), "the calibration beside the model is of other weights, or makes no sense; it is not used");
            None
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the calibration beside the model cannot be read; it is not used");
            None
        }
    }
}

/// Calibrates the model in use. Clones share it.
#[derive(Clone)]
pub struct Calibrator(Arc<Inner>);

pub(crate) struct Inner {
    pub model: LanguageModel,
    pub weights: String,
    pub pipeline: Arc<Pipeline>,
    pub corpus: Corpus,
    pub catalog: Arc<Catalog>,
    pub jobs: Jobs,
    pub runtime: Handle,
    /// Turns of searches and embeddings.
    pub processors: Turns,
    /// Tells the calibration that runs by itself that somebody wants one now.
    pub aside: CancellationToken,
    /// What had been asked of the service when it last had nothing to do.
    pub quiet: Mutex<Seen>,
}

fn check_enough(prompts: usize, wanted: usize) -> Result<()> {
    if prompts >= LEAST_PROMPTS.max(wanted / 2) {
        return Ok(());
    }
    let message = format!(
        "only {prompts} of {wanted} prompts have two passages and fit the model's context; give more or shorter passages"
    );
    Err(Error::new(ErrorKind::InvalidInput, message))
}

impl Calibrator {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// What is known of the model in use.
    pub fn calibration(&self) -> Option<Arc<Calibration>> {
        self.0.pipeline.known.calibration()
    }

    /// How its prompts are blended now.
    pub fn blend(&self) -> Blend {
        self.0.pipeline.known.blend()
    }

    /// Calibrates, and blends so from then on. It ends when the stream is dropped.
    pub fn run(&self, wanted: Calibrate) -> impl Stream<Item = Result<CalibrationEvent>> + use<> {
        let me = self.clone();
        let work = move |events: mpsc::Sender<Result<CalibrationEvent>>| async move {
            me.0.pipeline.check_own_model()?;
            // The one that runs by itself would keep the turn until it found a quiet hour.
            me.0.aside.cancel();
            let _turn = me.0.jobs.turn(JobKind::Calibration).await?;
            let (stopping, watched) = (me.0.jobs.stopping().clone(), events.clone());
            let is_wanted = Arc::new(move || !stopping.is_cancelled() && !watched.is_closed());
            me.calibrate(wanted, events, is_wanted, None).await.map(CalibrationEvent::Finished)
        };
        self.0.jobs.stream(JobKind::Calibration, work)
    }

    /// Calibrates once there is nothing else to do, if the model never was; in the background, and whenever something is asked it
    /// stands aside.
    pub(crate) fn run_when_idle(&self) {
        let settings = &self.0.pipeline.settings;
        if self.0.pipeline.upstream.is_some() {
            return;
        }
        if self.blend().blending != Blending::NotCalibrated || !settings.calibrate_when_idle {
            return;
        }
        // Whoever waits does not keep the store open.
        let (jobs, inner) = (self.0.jobs.clone(), Arc::downgrade(&self.0));
        let work = async move {
            idle(&jobs, &inner).await?;
            let Some(me) = inner.upgrade().map(Self) else { return Err(gone()) };
            let _turn = jobs.turn(JobKind::Calibration).await?;
            if me.calibration().is_some() {
                return Ok::<_, Error>(());
            }
            tracing::info!("calibrating the model, as it is new and there is nothing to do");
            let (stopping, theirs) = (jobs.stopping().clone(), me.clone());
            let is_wanted =
                Arc::new(move || !stopping.is_cancelled() && !theirs.0.aside.is_cancelled() && theirs.is_idle());
            let (events, _) = mpsc::channel(1);
            let found = me.calibrate(Calibrate::default(), events, is_wanted, Some(me.0.runtime.clone())).await?;
            let chosen = found.chosen.map_or_else(|| "none is good enough".to_owned(), |way| way.name());
            tracing::info!(chosen, budget = found.budget, "the model is calibrated");
            Ok(())
        };
        let job = self.0.jobs.run(JobKind::Calibration, work);
        self.0.runtime.spawn(async move {
            match job.await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Cancelled => {}
                Err(error) => {
                    tracing::error!(%error, "the model could not be calibrated; `ragstone calibrate` tries again")
                }
            }
        });
    }

    fn check_can_move(&self) -> Result<()> {
        if self.0.pipeline.known.can_move() {
            return Ok(());
        }
        let message = "this model's keys and values have their positions in them and cannot be moved, so that its prompts are never \
                       blended: there is nothing to calibrate";
        Err(Error::new(ErrorKind::InvalidInput, message))
    }

    /// With `patient`, a trial that something else interrupted is made again when there is nothing else to do.
    async fn calibrate(
        &self,
        wanted: Calibrate,
        events: mpsc::Sender<Result<CalibrationEvent>>,
        is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
        patient: Option<Handle>,
    ) -> Result<Calibration> {
        wanted.check()?;
        self.check_can_move()?;
        let Inner { model, pipeline, catalog, .. } = &*self.0;
        let (passages, asked) = self.asked(&wanted).await?;
        let context = pipeline.engine.context().saturating_sub(wanted.tokens);
        // As many passages as a question has, unless somebody says which.
        let most = if wanted.questions.is_empty() { pipeline.manner.passages.max(2) } else { usize::MAX };
        let prompts = prompts::prompts(pipeline, &asked, (wanted.prompts, most), context).await?;
        let count = prompts.len();
        check_enough(count, wanted.prompts)?;
        let fillers = pipeline.known.fillers().clone();
        let all = self.ways(&wanted, fillers.segments().len())?;
        let end_tokens = pipeline.assembler.tokenizer().eos_ids().to_vec();
        let answers = (end_tokens, wanted.tokens);
        let is_exact = model.arithmetic().compute == ComputeDtype::F32 && model.kv_layout().dtype == KvDtype::F32;
        let tie = if is_exact { TIE_F32 } else { TIE_BF16 };
        let env = pipeline.env.clone();
        let mut try_way = trial(model, env, (prompts, fillers), answers, is_wanted, tie);
        let (me, tried, budget) = (self.clone(), all.clone(), wanted.budget);
        let most = if wanted.frontier { all.len() * count } else { most_trials(all.len(), count) };
        // What nobody asked for takes one processor, and of a GPU what is free.
        let leaves_processors = patient.is_some() && matches!(model, LanguageModel::Cpu(_));
        let found = blocking(move || {
            let mut made = 0;
            let mut trial = |_: usize, way: &Way, prompt: usize| {
                // Whoever does not keep up misses a step.
                drop(events.try_send(Ok(CalibrationEvent::Progress { name: way.name(), trials: made, most })));
                made += 1;
                loop {
                    let tried = match leaves_processors {
                        true => background::run_on_one(|| try_way(way, prompt)),
                        false => try_way(way, prompt),
                    };
                    match (&tried, &patient) {
                        (Err(error), Some(runtime)) if error.kind() == ErrorKind::Cancelled => {
                            runtime.block_on(idle(&me.0.jobs, &Arc::downgrade(&me.0)))?;
                        }
                        _ => return tried,
                    }
                }
            };
            match wanted.frontier {
                true => frontier(&tried, count, &mut trial),
                false => search(&tried, count, budget, &mut trial),
            }
        })
        .await;
        memory::give_back_after(Work::Large);
        let found = found?;
        let calibration = Calibration {
            weights: self.0.weights.clone(),
            measured_unix_ms: pipeline.env.now_unix_ms(),
            passages,
            prompts: count,
            tokens: wanted.tokens,
            budget: wanted.budget,
            chosen: found.chosen,
            ways: all.len(),
            evidence: found.evidence,
        };
        if wanted.frontier {
            return Ok(calibration);
        }
        let (catalog, found) = (catalog.clone(), calibration.clone());
        let name = pipeline.store.fingerprint().to_string();
        blocking(move || catalog.note_calibration(&name, &found)).await?;
        pipeline.known.learn(&pipeline.settings, calibration.clone());
        Ok(calibration)
    }

    /// The ways that are tried, by what they cost on this machine; a primer has `most` passages at the most.
    fn ways(&self, wanted: &Calibrate, most: usize) -> Result<Vec<Way>> {
        let (costs, layers) = (self.0.pipeline.store.costs().model(), self.0.model.config().layers);
        let failed = Mutex::new(None);
        let costs_of = |selection, ratio| {
            cost(&costs, layers, selection, ratio).unwrap_or_else(|error| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                f64::INFINITY
            })
        };
        let all = grid(layers, wanted, most).ways(costs_of);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(all),
        }
    }

    /// The questions, and whose passages they are over.
    async fn asked(&self, wanted: &Calibrate) -> Result<(String, Vec<prompts::Prompt>)> {
        if !wanted.questions.is_empty() {
            return Ok(("questions".to_owned(), prompts::given(&wanted.questions)));
        }
        let Some(collection) = &wanted.collection else {
            return Ok(("bundled".to_owned(), prompts::given(&prompts::bundled()?)));
        };
        let corpus = &self.0.corpus;
        let mut ids = corpus.passage_ids(Scope { collection: Some(collection), document: None }).await?;
        // Evenly from all of it.
        let step = (ids.len() / (4 * wanted.prompts)).max(1);
        ids = ids.into_iter().step_by(step).collect();
        let mut passages = Vec::new();
        for batch in ids.chunks(1024) {
            for passage in corpus.passages_of(collection, batch).await? {
                let text = self.0.pipeline.assembler.tokenizer().decode(&passage.token_ids)?;
                passages.push((passage.token_ids.clone(), text));
            }
        }
        if passages.len() < 2 {
            let message =
                format!("collection `{collection}` has {} passages; two at least are blended", passages.len());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok((format!("collection {collection}"), prompts::about(&passages, wanted.prompts)))
    }
}

/// The ways that are tried in a model of `layers`, with a primer of `most` passages at the most.
fn grid(layers: usize, wanted: &Calibrate, most: usize) -> Grid {
    let ratios = if wanted.frontier { FRONTIER_RATIOS } else { RATIOS };
    let layer = layers / PART_OF_LAYERS;
    Grid {
        rules: wanted.selectors.clone(),
        layers: if layers < SHALLOW { (0..layers).collect() } else { vec![layer] },
        ratios: ratios.to_vec(),
        primers: PRIMERS.into_iter().filter(|primer| *primer <= most).collect(),
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the service stops; a calibration begins anew at its next start")
}

impl Way {
    /// As it is named in reports: "cacheblend @2 15 %, primer 2".
    pub fn name(&self) -> String {
        let share = format!("{:.0} %", self.ratio * 100.0);
        let how =
            if self.ratio > 0.0 { format!("{} {share}", self.selection.name()) } else { "plain reuse".to_owned() };
        if self.primer > 0 { format!("{how}, primer {}", self.primer) } else { how }
    }
}

/// What tries a way of blending on a prompt, on the model's device.
fn trial(
    model: &LanguageModel,
    env: Env,
    prompts: (Vec<Vec<Segment>>, Primer),
    answers: (Vec<u32>, usize),
    is_wanted: Arc<dyn Fn() -> bool + Send + Sync>,
    tie: f32,
) -> TryWay {
    match model {
        LanguageModel::Cpu(model) => Trials::new(model.clone(), env, prompts, answers, is_wanted, tie).into_trial(),
        LanguageModel::Cuda(model) => Trials::new(model.clone(), env, prompts, answers, is_wanted, tie).into_trial(),
    }
}

#[cfg(test)]
mod tests;
