//! A search and the prefill of what it finds, one beside the other where that gains something: dynamic speculative pipelining
//! (RAGCache, section 5.3).

use std::future::{Future, pending};
use std::pin::{Pin, pin};

use ragstone_corpus::Hit;
use ragstone_env::Stopwatch;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::Instrument;

use super::judging::judge;
use super::{Asking, Found, Passage, Pipeline, Prefilled, Reached};
use crate::admission::deadline::remaining;
use crate::error::Result;
use crate::question::follow_up::searched;
use crate::question::{Context, Input, Question};
use crate::report::Ttft;
use crate::report::citation::Citation;
use crate::report::nothing_found::{Answered, MinSimilarity, NothingFound};
use crate::retrieval::{Retrieved, Search};
use crate::speculation::{Hold, Outcome, Speculation, decide};

/// Longer titles were stored before there was a bound. They stand with each passage.
const MOST_TITLE_BYTES: usize = 8 << 10;

/// The prefill of what a search has found so far.
struct Running<'a> {
    ids: Vec<String>,
    hold: Hold,
    started: Stopwatch,
    work: Pin<Box<dyn Future<Output = Result<Prefilled>> + Send + 'a>>,
}

/// The speculation of one search.
struct Speculating<'a> {
    pipeline: &'a Pipeline,
    asking: &'a Asking,
    /// What stands before the search's passages.
    given: &'a [Passage],
    running: Option<Running<'a>>,
    stages: u32,
    started: u32,
}

impl Pipeline {
    /// Passages in prompt order, inline documents first, then what the search found, best first; and the prompt over them, prefilled.
    pub(super) async fn find_and_prefill(&self, asking: &Asking) -> Result<Reached> {
        let arrived = Stopwatch::start();
        let retrieve = tracing::info_span!("retrieve");
        let mut passages = self.given(asking).instrument(retrieve.clone()).await?;
        let Input::Chat { messages, context: Some(context @ Context { collection: Some(collection), .. }), .. } =
            &asking.question.input
        else {
            let retrieve_ms = arrived.elapsed_ms();
            let free = free(&asking.question, passages.len());
            let prefilled = self.prefill(asking, (&passages, free), None).await?;
            if let Some(arranged) = &prefilled.arranged {
                arranged.put_in_order(&mut passages);
            }
            let (speculation, rounds) = (None, Vec::new());
            return Ok(Reached::Prompt(Box::new(Found {
                passages,
                prefilled,
                retrieve_ms,
                rerank: None,
                words_only: false,
                nothing_found: None,
                speculation,
                rounds,
                earlier: Ttft::default(),
            })));
        };
        let query = searched(messages);
        let speculates = context.speculate.unwrap_or(self.settings.speculate);
        // What is best before the reranker has seen it says little of what will be.
        let is_staged = speculates && self.candidates(context).is_none() && self.times.are_worth_stages(collection);
        let (stages, told) = if is_staged { Some(unbounded_channel()) } else { None }.unzip();
        let given = passages.clone();
        let mut speculating =
            Speculating { pipeline: self, asking, given: &given, running: None, stages: 0, started: 0 };
        let search = Search { stages, ..self.search_of(asking, context, query.clone()) };
        let found = speculating.beside(search, told).instrument(retrieve).await?;
        let retrieve_ms = arrived.elapsed_ms();
        self.times.observe_search(collection, found.search_ms);
        let words_only = found.words_only;
        let nothing_found = self.nothing_found(asking, context, &found, passages.len());
        let mut found = found;
        match nothing_found.map(|nothing| nothing.answered) {
            Some(Answered::Said) => {
                return Ok(Reached::Nothing { nothing_found, retrieve_ms, words_only });
            }
            Some(Answered::WithoutPassages) => found.hits.clear(),
            Some(Answered::AsUsual) | None => {}
        }
        let (hits, rerank) = self.rerank(asking, context, &query, self.usable(found.hits)).await?;
        let ids = ids(&hits);
        add(&mut passages, hits, self.manner.is_best_last);

        let (prefilled, speculation) = speculating.conclude(&ids, &passages).await?;
        if let Some(arranged) = &prefilled.arranged {
            arranged.put_in_order(&mut passages);
        }
        let prefill = &prefilled.sequence.prefill;
        self.times.observe_prefill(prefill.compute_ms + prefill.load_wait_ms);
        let speculation = (speculation.stages > 0).then_some(speculation);
        let (rounds, earlier) = (Vec::new(), Ttft::default());
        let found =
            Found { passages, prefilled, retrieve_ms, rerank, words_only, nothing_found, speculation, rounds, earlier };
        Ok(Reached::Prompt(Box::new(found)))
    }

    /// Whether a search found nothing about the question, and what is then done; `given` passages came with it.
    pub(super) fn nothing_found(
        &self,
        asking: &Asking,
        context: &Context,
        found: &Retrieved,
        given: usize,
    ) -> Option<NothingFound> {
        let settings = (self.min_similarity(context), self.settings.on_nothing_found);
        let nothing = judge((&asking.question, context), found, settings, given)?;
        metrics::counter!("ragstone_nothing_found_total", "answered" => nothing.answered.name()).increment(1);
        Some(nothing)
    }

    fn min_similarity(&self, context: &Context) -> MinSimilarity {
        context.min_similarity.unwrap_or(self.settings.min_similarity)
    }

    /// What a search found, without passages that would take the place of all others in any prompt: a question that finds one is answered
    /// from the rest.
    pub(super) fn usable(&self, mut hits: Vec<Hit>) -> Vec<Hit> {
        let most_tokens = self.assembler.context() / 2;
        hits.retain(|Hit { passage, .. }| {
            let is_usable = passage.token_ids.len() <= most_tokens && passage.title.len() <= MOST_TITLE_BYTES;
            if !is_usable {
                let (tokens, title_bytes) = (passage.token_ids.len(), passage.title.len());
                // Every question that finds it comes by here, more than once.
                tracing::debug!(
                    document = passage.document_id,
                    tokens,
                    title_bytes,
                    "a passage is too long for a prompt and left out"
                );
            }
            is_usable
        });
        hits
    }

    /// A search without stages.
    pub(super) fn search_of(&self, asking: &Asking, context: &Context, query: String) -> Search {
        Search {
            collection: context.collection.clone().unwrap_or_default(),
            query,
            top_k: self.candidates(context).or(context.top_k).unwrap_or(self.manner.passages),
            filter: context.filter.clone(),
            min_similarity: self.min_similarity(context).least(),
            caller: asking.question.caller,
            stages: None,
        }
    }
}

impl<'a> Speculating<'a> {
    /// Waits for the search, and prefills what it has found so far meanwhile.
    async fn beside(&mut self, search: Search, mut told: Option<UnboundedReceiver<Vec<Hit>>>) -> Result<Retrieved> {
        let limit = remaining(self.asking.deadline)?;
        let mut searching = pin!(self.pipeline.retriever.ask(search, limit));
        loop {
            let stage = async {
                match &mut told {
                    Some(told) => told.recv().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                found = &mut searching => return found,
                Some(hits) = stage => self.stage(hits),
                () = advance(&mut self.running) => {}
            }
        }
    }

    /// The end of a stage but the last.
    fn stage(&mut self, hits: Vec<Hit>) {
        self.stages += 1;
        let hits = self.pipeline.usable(hits);
        let ids = ids(&hits);
        let running = self.running.as_ref().map(|running| &running.ids[..]);
        let decision = decide(running, &ids, self.pipeline.engine.load());
        if decision.cancels {
            self.running = None;
        }
        if decision.starts {
            let mut passages = self.given.to_vec();
            add(&mut passages, hits, self.pipeline.manner.is_best_last);
            let (pipeline, asking, free, hold) =
                (self.pipeline, self.asking, free(&self.asking.question, self.given.len()), Hold::default());
            let held = hold.clone();
            let work = Box::pin(async move { pipeline.prefill(asking, (&passages, free), Some(held)).await });
            self.running = Some(Running { ids, hold, started: Stopwatch::start(), work });
            self.started += 1;
        }
    }

    /// The search has ended with `passages`, whose ids are `ids`: what runs goes on, or begins anew.
    async fn conclude(self, ids: &[String], passages: &[Passage]) -> Result<(Prefilled, Speculation)> {
        let Self { pipeline, asking, given, running, stages, started } = self;
        let told = |outcome, hidden_ms| Speculation { outcome, stages, started, hidden_ms };
        // What is dropped here ends after the step that the engine makes.
        let Some(running) = running.filter(|running| running.ids == ids) else {
            let outcome = if started > 0 { Outcome::Cancelled } else { Outcome::NotStarted };
            return Ok((
                pipeline.prefill(asking, (passages, free(&asking.question, given.len())), None).await?,
                told(outcome, 0.0),
            ));
        };
        let ran_ms = running.started.elapsed_ms();
        pipeline.engine.release(&running.hold);
        let prefilled = running.work.await?;
        pipeline.count_passages(&asking.question, &prefilled.segments);
        let hidden_ms = hidden_ms(ran_ms, &prefilled);
        Ok((prefilled, told(Outcome::Confirmed, hidden_ms)))
    }
}

/// The first passage that may change places, where so many came with the question: those stand as they came, unless it says otherwise.
pub(super) fn free(question: &Question, given: usize) -> usize {
    match &question.input {
        Input::Chat { context: Some(Context { arrange: Some(true), .. }), .. } => 0,
        _ => given,
    }
}

/// Without passages whose titles are longer than any may be.
pub(super) fn short_titles(mut hits: Vec<Hit>) -> Vec<Hit> {
    hits.retain(|hit| hit.passage.title.len() <= MOST_TITLE_BYTES);
    hits
}

/// How long a prefill ran beside its search that it began `ran_ms` before the search's end: not in the queue, nor when it was done.
fn hidden_ms(ran_ms: f64, prefilled: &Prefilled) -> f64 {
    let (sequence, prefill) = (&prefilled.sequence, &prefilled.sequence.prefill);
    let working_ms =
        prefilled.assemble_ms + sequence.look_up_ms + sequence.plan_ms + prefill.compute_ms + prefill.load_wait_ms;
    (ran_ms - prefill.queue_ms).clamp(0.0, working_ms)
}

/// Takes a prefill on until it fails: it does not end otherwise before it is released. What failed is tried again in the open.
async fn advance(running: &mut Option<Running<'_>>) {
    match running {
        Some(speculative) => {
            if let Err(error) = (&mut speculative.work).await {
                tracing::debug!(%error, "a speculative prefill ended");
            }
            *running = None;
        }
        None => pending().await,
    }
}

/// What tells passages apart: names of their titles and texts, in the order of the prompt.
fn ids(hits: &[Hit]) -> Vec<String> {
    hits.iter().map(|hit| hit.passage.id.clone()).collect()
}

/// Puts what a search found, best first, behind the passages that there are; the best one last, where the model reads that best. Numbers
/// say how good each is, all the same.
pub(super) fn add(passages: &mut Vec<Passage>, hits: Vec<Hit>, is_best_last: bool) {
    let first = passages.len() + 1;
    let mut numbered: Vec<(usize, Hit)> = (first..).zip(hits).collect();
    if is_best_last {
        numbered.reverse();
    }
    for (number, hit) in numbered {
        let changed = hit.passage.metadata.text("changed");
        let citation = Citation {
            number,
            similarity: hit.similarity,
            changed,
            document_id: hit.passage.document_id,
            title: hit.passage.title,
            source: hit.passage.source,
            page: hit.passage.page,
            text: hit.passage.text,
            score: Some(hit.score),
            also_in: hit.also_in,
        };
        passages.push(Passage { citation, tokens: hit.passage.token_ids });
    }
}

#[cfg(test)]
mod tests;
