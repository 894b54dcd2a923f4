//! Collections that were built with another embedding model are embedded again, as jobs in the background.
//!
//! What is to be done stands in the collections themselves, which name the model that they were built with; how far it is, in the table
//! that is to take the place of the older one. So a job needs no row in the journal, and the next start goes on with it. What has to be
//! remembered is that somebody cancelled one: that stands in the catalog.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ragstone_corpus::{BuiltWith, Corpus, PassageEncoder, RenewalProgress};
use ragstone_kernels::embedding::{Prompts, SentenceEncoder};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::catalog::{Catalog, EmbedderRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::admission::blocking::blocking;
use crate::admission::jobs::{JobKind, Jobs};
use crate::error::{Error, ErrorKind, Result};
use crate::models::encoder::ModelEncoder;
use crate::question::prompt::PromptFormat;

/// Embeds collections again. Clones share it. Await its futures on a multi-thread runtime.
#[derive(Clone)]
pub struct Renewer(Arc<Inner>);

struct Inner {
    corpus: Corpus,
    catalog: Arc<Catalog>,
    jobs: Jobs,
    /// By collection.
    runs: Mutex<BTreeMap<String, Run>>,
}

/// A job of this process.
#[derive(Clone, Default)]
struct Run {
    /// Tells it from earlier ones.
    number: u64,
    progress: RenewalProgress,
    /// It has its turn.
    is_begun: bool,
    cancel: CancellationToken,
    ended: Option<Ended>,
}

#[derive(Clone)]
enum Ended {
    Done,
    Failed(String),
}

/// Where a collection stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenewalStatus {
    /// Its name.
    pub collection: String,
    /// What is done about it.
    pub state: RenewalState,
    /// The identity of the embedding model in use.
    pub embedder: String,
    /// Of the one that the collection was built with.
    pub built_with: String,
    /// That one cannot be loaded: words alone are searched, and nothing can be added.
    pub words_only: bool,
    /// Passages that are embedded again.
    pub passages_done: usize,
    /// Of so many.
    pub passages_total: usize,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What is done about a collection's embedding model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RenewalState {
    /// It is the one in use.
    Current,
    /// It is another, and nothing is done: nobody began, or somebody cancelled.
    Stale,
    /// A job waits for its turn.
    Waiting,
    /// A job embeds.
    Running,
    /// A job failed; the next start, or whoever begins it, tries again.
    Failed,
}

impl Renewer {
    pub(crate) fn new(corpus: Corpus, catalog: Arc<Catalog>, jobs: Jobs) -> Self {
        Self(Arc::new(Inner { corpus, catalog, jobs, runs: Mutex::default() }))
    }

    /// Begins what was not cancelled, in the background.
    ///
    /// # Errors
    /// As the catalog says.
    pub async fn resume(&self) -> Result<()> {
        for BuiltWith { collection, embedder: built_with, words_only } in self.0.corpus.stale().await {
            let (catalog, identity, name) = (self.0.catalog.clone(), self.0.corpus.embedding(), collection.clone());
            if blocking(move || catalog.is_renewal_cancelled(&name, &identity)).await? {
                continue;
            }
            tracing::info!(
                collection,
                built_with,
                words_only,
                "embedding a collection again, for the embedding model in use"
            );
            self.start(&collection);
        }
        Ok(())
    }

    /// Begins with a collection, also where that was cancelled; one that is under way, or needs nothing, is left alone.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn begin(&self, collection: &str) -> Result<RenewalStatus> {
        let status = self.status(collection).await?;
        if !matches!(status.state, RenewalState::Stale | RenewalState::Failed) {
            return Ok(status);
        }
        let (catalog, name) = (self.0.catalog.clone(), collection.to_owned());
        blocking(move || catalog.cancel_renewal(&name, None)).await?;
        self.start(collection);
        self.status(collection).await
    }

    /// Ends a job for good, until somebody begins it again, and removes what it did; the collection stays as it was built.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn cancel(&self, collection: &str) -> Result<RenewalStatus> {
        let status = self.status(collection).await?;
        if status.state == RenewalState::Current {
            return Ok(status);
        }
        let (catalog, name, identity) = (self.0.catalog.clone(), collection.to_owned(), self.0.corpus.embedding());
        blocking(move || catalog.cancel_renewal(&name, Some(&identity))).await?;
        let running = self.runs().get(collection).filter(|run| run.ended.is_none()).cloned();
        match running {
            // It removes what it did when it hears of it.
            Some(run) => run.cancel.cancel(),
            None => match self.0.corpus.abandon_renewal(collection).await {
                // A run that was cancelled before is at it; the cancellation holds.
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tracing::info!(collection, %error, "what was begun is not removed here");
                }
                abandoned => abandoned?,
            },
        }
        self.status(collection).await
    }

    /// Where a collection stands.
    ///
    /// # Errors
    /// `NotFound` for an unknown collection.
    pub async fn status(&self, collection: &str) -> Result<RenewalStatus> {
        let embedder = self.0.corpus.embedding();
        let BuiltWith { embedder: built_with, words_only, .. } = self.0.corpus.built_with(collection).await?;
        let run = self.runs().get(collection).cloned();
        let run = run.filter(|run| !run.cancel.is_cancelled());
        let (state, error) = match run.as_ref().map(|run| (&run.ended, run.is_begun)) {
            _ if built_with == embedder => (RenewalState::Current, None),
            None | Some((Some(Ended::Done), _)) => (RenewalState::Stale, None),
            Some((Some(Ended::Failed(why)), _)) => (RenewalState::Failed, Some(why.clone())),
            Some((None, true)) => (RenewalState::Running, None),
            Some((None, false)) => (RenewalState::Waiting, None),
        };
        let progress = run.map(|run| run.progress).unwrap_or_default();
        Ok(RenewalStatus {
            collection: collection.to_owned(),
            state,
            embedder,
            built_with,
            words_only,
            passages_done: progress.passages_done,
            passages_total: progress.passages_total,
            error,
        })
    }

    fn start(&self, collection: &str) {
        let run = {
            let mut runs = self.runs();
            let last = runs.get(collection);
            if last.is_some_and(|run| run.ended.is_none() && !run.cancel.is_cancelled()) {
                return;
            }
            let run = Run { number: last.map_or(0, |last| last.number + 1), ..Run::default() };
            runs.insert(collection.to_owned(), run.clone());
            run
        };
        let (renewer, collection) = (self.clone(), collection.to_owned());
        let work = async move {
            let done = renewer.turn(&collection, &run).await;
            let ended = match &done {
                Ok(progress) => {
                    let passages = progress.passages_done;
                    tracing::info!(collection, passages, "the collection is embedded again");
                    Ended::Done
                }
                Err(error) => {
                    match error.kind() {
                        ErrorKind::Cancelled => {
                            tracing::info!(collection, %error, "the collection is not embedded again")
                        }
                        _ => tracing::warn!(collection, %error, "embedding the collection again ended early"),
                    }
                    Ended::Failed(error.to_string())
                }
            };
            renewer.note(&collection, &run, |run| run.ended = Some(ended));
            done.map(drop)
        };
        drop(self.0.jobs.run(JobKind::Renewal, work));
    }

    async fn turn(&self, collection: &str, run: &Run) -> Result<RenewalProgress> {
        let cancel = &run.cancel;
        let Some(turn) = cancel.run_until_cancelled(self.0.jobs.turn(JobKind::Renewal)).await else {
            // An earlier start may have begun.
            self.0.corpus.abandon_renewal(collection).await?;
            return Err(Error::new(ErrorKind::Cancelled, "it was cancelled"));
        };
        let _turn = turn?;
        self.note(collection, run, |run| run.is_begun = true);
        let stopping = self.0.jobs.stopping();
        let progress = |progress: RenewalProgress| {
            self.note(collection, run, |run| run.progress = progress);
            let why = match (cancel.is_cancelled(), stopping.is_cancelled()) {
                (true, _) => "it was cancelled",
                (_, true) => "the service stops; it goes on when it starts again",
                _ => return Ok(()),
            };
            Err(Error::new(ErrorKind::Cancelled, why))
        };
        let renewed = self.0.corpus.renew(collection, &progress).await;
        let gone = renewed.as_ref().err().is_some_and(|error| error.kind() == ErrorKind::NotFound);
        if cancel.is_cancelled() || gone {
            self.0.corpus.abandon_renewal(collection).await?;
        }
        renewed
    }

    /// Changes what is told of a run, unless another has taken its place.
    fn note(&self, collection: &str, of: &Run, change: impl FnOnce(&mut Run)) {
        let mut runs = self.runs();
        if let Some(run) = runs.get_mut(collection).filter(|run| run.number == of.number) {
            change(run);
        }
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Run>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes where the embedding model in use is.
pub(crate) fn note(catalog: &Catalog, encoder: &SentenceEncoder, folder: &std::path::Path) -> Result<()> {
    let Prompts { query, passage } = encoder.prompts().clone();
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let record = EmbedderRecord { folder, query_prompt: query, passage_prompt: passage };
    catalog.note_embedder(encoder.identity(), &record)
}

/// The embedding model of an identity that was in use here, where its folder still has it.
pub(crate) fn earlier(
    catalog: &Catalog,
    identity: &str,
    (tokenizer, digest, format): (&Arc<Tokenizer>, &str, &PromptFormat),
) -> Option<Arc<dyn PassageEncoder>> {
    let load = || -> Result<Option<SentenceEncoder>> {
        let Some(record) = catalog.embedder(identity)? else { return Ok(None) };
        let prompts = Prompts { query: record.query_prompt, passage: record.passage_prompt };
        Ok(Some(SentenceEncoder::load(&record.folder)?.with_prompts(prompts)?))
    };
    let encoder = match load() {
        Ok(Some(encoder)) if encoder.identity() == identity => encoder,
        Ok(_) => {
            tracing::warn!(identity, "an earlier embedding model is not there any more; words alone are searched");
            return None;
        }
        Err(error) => {
            tracing::warn!(identity, %error, "an earlier embedding model cannot be loaded; words alone are searched");
            return None;
        }
    };
    let encoder = ModelEncoder::new(Arc::new(encoder), tokenizer.clone(), digest, format.clone());
    encoder.measured().recall(catalog, identity);
    Some(Arc::new(encoder))
}
