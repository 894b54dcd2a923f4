//! What a search found, put in order by who reads question and passage together: a cross-encoder, or the language model itself, which is
//! asked after each passage whether it helps and says yes or no ("Document Ranking with a Pretrained Sequence-to-Sequence Model",
//! section 3; Qwen3-Reranker scores the same way).
//!
//! The passage stands before the question, so that its KV is the one that an answer has for its first passage. What is in no
//! tier yet is computed once, and is there for the answer.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use ragstone_corpus::Hit;
use ragstone_env::Stopwatch;
use ragstone_kernels::sampling::{Sampled, SamplingParams};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::segment::SegmentKind;
use tokio::time::timeout_at;
use tracing::Instrument;

use super::{Asking, Passage, Pipeline, Prefilled};
use crate::admission::deadline::{deadline_after, deadline_error};
use crate::admission::tenant::check_tenant;
use crate::admission::turns::ComputeTime;
use crate::answer::reranking::{Rerank, Reranked, titled};
use crate::engine::Decoded;
use crate::error::{Error, ErrorKind, Result};
use crate::question::prompt::Task;
use crate::question::{Context, Input, MAX_CANDIDATES, Question, Reuse, RootCut};
use crate::report::RerankedBy;
use crate::report::citation::Citation;
use crate::report::{RerankReport, Ttft};
use crate::retrieval::beginning;

/// Prompts of one question that are judged together.
const JUDGED_AT_ONCE: usize = 8;

/// What a model may begin its verdict with.
const YES: &[&str] = &["yes", "Yes", "YES", " yes", " Yes", " YES"];
const NO: &[&str] = &["no", "No", "NO", " no", " No", " NO"];

/// The tokens that a verdict begins with: those of yes, then those of no.
#[derive(Debug, Clone)]
pub(crate) struct Verdicts {
    ids: Vec<u32>,
    yes: usize,
}

impl Verdicts {
    /// # Errors
    /// `Incompatible` where the vocabulary does not tell the two words apart.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let firsts = |words: &[&str]| {
            let mut ids = Vec::new();
            for word in words {
                ids.extend(tokenizer.encode_text(word)?.first());
            }
            ids.sort_unstable();
            ids.dedup();
            Ok::<Vec<u32>, Error>(ids)
        };
        let (yes, no) = (firsts(YES)?, firsts(NO)?);
        // A space that is a token of its own says nothing.
        let apart = |ids: &[u32], others: &[u32]| ids.iter().copied().filter(|id| !others.contains(id)).collect();
        let (yes, no): (Vec<u32>, Vec<u32>) = (apart(&yes, &no), apart(&no, &yes));
        if yes.is_empty() || no.is_empty() {
            let message = "the model's vocabulary does not tell yes from no, so it cannot rerank; name a cross-encoder with --reranker";
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        Ok(Self { yes: yes.len(), ids: [yes, no].concat() })
    }

    /// The logarithm of the odds of yes, from the tokens' log-probabilities.
    fn log_odds(&self, sampled: &Sampled) -> f32 {
        let sum = |of: &[(u32, f32)]| of.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum::<f64>();
        let (yes, no) = sampled.top.split_at(self.yes.min(sampled.top.len()));
        let odds = (sum(yes).ln() - sum(no).ln()) as f32;
        // Neither was possible at all: nothing is known.
        if odds.is_nan() { 0.0 } else { odds }
    }
}

/// What became of one prompt.
struct Judged {
    log_odds: f32,
    prompt_tokens: u32,
    cached_tokens: u32,
}

impl Pipeline {
    /// How many passages a search finds for `context` that are then put in order; `None`: the search's own order counts, as it does where
    /// more are wanted than are put in order and the question does not ask for that.
    pub(super) fn candidates(&self, context: &Context) -> Option<usize> {
        let candidates = context.rerank.unwrap_or(self.settings.rerank);
        let wanted = candidates.max(context.top_k.unwrap_or(self.manner.passages));
        (candidates > 0 && wanted <= MAX_CANDIDATES).then_some(wanted)
    }

    /// The best of what a search found, best first, as many as `context` wants: as the reranker has it where that is asked for. A hit's
    /// score is then the reranker's.
    pub(super) async fn rerank(
        &self,
        asking: &Asking,
        context: &Context,
        query: &str,
        mut hits: Vec<Hit>,
    ) -> Result<(Vec<Hit>, Option<RerankReport>)> {
        if self.candidates(context).is_none() || hits.is_empty() {
            return Ok((hits, None));
        }
        // As the search does: it is read once for each passage.
        let query = beginning(query);
        let started = Stopwatch::start();
        let scoring = async {
            match &self.reranker {
                Some(reranker) => {
                    let texts = hits.iter().map(|hit| titled(&hit.passage.title, &hit.passage.text)).collect();
                    reranker.scores(query, texts, asking.question.caller, asking.deadline).await
                }
                None => {
                    let passages = hits.iter().map(|hit| hit.passage.token_ids.clone()).collect();
                    self.judge(asking, query, passages).await
                }
            }
        };
        let reranked = scoring.instrument(tracing::info_span!("rerank", candidates = hits.len() as i64)).await?;
        let ms = started.elapsed_ms();
        record(&reranked, ms);
        if reranked.by == RerankedBy::CrossEncoder {
            asking.meter.reading(u64::from(reranked.prompt_tokens));
        }
        for (index, hit) in hits.iter_mut().enumerate() {
            hit.score = reranked.relevance(index);
        }
        let report = RerankReport {
            by: reranked.by,
            candidates: hits.len() as u32,
            prompt_tokens: reranked.prompt_tokens,
            cached_tokens: reranked.cached_tokens,
            ms,
        };
        let mut left: Vec<Option<Hit>> = hits.into_iter().map(Some).collect();
        let best = reranked.order().into_iter().filter_map(|index| left[index].take());
        let wanted = context.top_k.unwrap_or(self.manner.passages);
        Ok((best.take(wanted).collect(), Some(report)))
    }

    /// How well documents that came with a request answer its query.
    pub(crate) async fn rerank_documents(&self, request: Rerank) -> Result<Reranked> {
        request.check()?;
        check_tenant(&request.tenant)?;
        let _place = self.admission.take(request.caller)?;
        let started = Stopwatch::start();
        let deadline = deadline_after(request.deadline);
        let Rerank { query, documents, by, reuse, tenant, caller, deadline: within } = request;
        let reranked = match (by, &self.reranker) {
            (None | Some(RerankedBy::CrossEncoder), Some(reranker)) => {
                let texts = documents.iter().map(|document| titled(&document.title, &document.text)).collect();
                let reranked = reranker.scores(&query, texts, caller, deadline).await?;
                self.meter(caller).reading(u64::from(reranked.prompt_tokens));
                reranked
            }
            (Some(RerankedBy::CrossEncoder), None) => {
                let message =
                    "no cross-encoder is configured; name one with --reranker, or leave it to the language model";
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            (None | Some(RerankedBy::Model), _) => {
                // Before the documents are read, as of passages before they are searched for.
                let found_in = self.store.epoch();
                let passages = self.assembler.documents(documents, caller, deadline).await?;
                let question = Question {
                    input: Input::Chat { messages: Vec::new(), tools: Vec::new(), thinks: None, context: None },
                    sampling: SamplingParams::default(),
                    answers: 1,
                    reuse,
                    ends_at_repeat: false,
                    cites: false,
                    drafts: None,
                    selection: None,
                    explain: false,
                    root: RootCut::Whole,
                    said: None,
                    tenant,
                    caller,
                    deadline: within,
                };
                let (question, constraint, meter) = (Arc::new(question), None, self.meter(caller));
                let (task, computed) = (Task::Judge, ComputeTime::default());
                let asking =
                    Asking { question, found_in, deadline, constraint, task, meter, computed, is_round: false };
                self.judge(&asking, &query, passages).await?
            }
        };
        record(&reranked, started.elapsed_ms());
        Ok(reranked)
    }

    /// Asks the model after each passage alone whether it helps to answer `query`, in the conversation's own system prompt, so that
    /// the passages' KV is that of its answer. The error of one is everybody's.
    async fn judge(&self, asking: &Asking, query: &str, passages: Vec<Arc<[u32]>>) -> Result<Reranked> {
        let verdicts = Verdicts::of(self.assembler.tokenizer())?;
        let asked = asking.judging(query, &verdicts);
        let judging = stream::iter(passages).enumerate().map(|(index, passage)| {
            let (asked, verdicts) = (&asked, &verdicts);
            async move { self.judge_one(asked, verdicts, passage).await.map_err(|error| of_document(index, error)) }
        });
        let judged: Vec<Judged> = judging.buffered(JUDGED_AT_ONCE).try_collect().await?;
        Ok(Reranked {
            by: RerankedBy::Model,
            logits: judged.iter().map(|judged| judged.log_odds).collect(),
            prompt_tokens: judged.iter().map(|judged| judged.prompt_tokens).sum(),
            cached_tokens: judged.iter().map(|judged| judged.cached_tokens).sum(),
        })
    }

    async fn judge_one(&self, asked: &Asking, verdicts: &Verdicts, passage: Arc<[u32]>) -> Result<Judged> {
        let passage = Passage { citation: Citation::default(), tokens: passage };
        // A question has one place, and many of these: among all callers they have a part of the engine's queue, and share it as callers do.
        let turn = timeout_at(asked.deadline, self.judging.take(asked.question.caller)).await;
        let _turn = turn.map_err(|_| deadline_error())?;
        let mut prefilled = self.prefill(asked, (&[passage], 1), None).await?;
        asked.meter.reading(prefilled.prompt_tokens as u64);
        let output = prefilled.sequence.outputs.pop();
        let (mut tokens, _) = output.ok_or_else(|| Error::new(ErrorKind::Internal, "a verdict has no answer"))?;
        let first = timeout_at(asked.deadline, tokens.recv()).await.map_err(|_| deadline_error())?;
        let log_odds = match first {
            Some(Decoded::Token(sampled)) => verdicts.log_odds(&sampled),
            Some(Decoded::Failed(error)) => return Err(error),
            Some(Decoded::EndToken(_) | Decoded::End(_)) | None => {
                return Err(Error::new(ErrorKind::Cancelled, "the service stopped while it was reranking"));
            }
        };
        keep_what_recurs(&mut prefilled);
        let report = self.account(asked, &mut prefilled, Ttft::default());
        Ok(Judged { log_odds, prompt_tokens: prefilled.prompt_tokens as u32, cached_tokens: report.tokens.exact })
    }
}

impl Asking {
    /// Whether a passage helps to answer `query`: what is generated is one token, and what counts is how likely it could have been `verdicts`.
    fn judging(&self, query: &str, verdicts: &Verdicts) -> Self {
        let (messages, tools) = match &self.question.input {
            Input::Chat { messages, tools, .. } => (&messages[..], &tools[..]),
            _ => (&[][..], &[][..]),
        };
        let system = messages.iter().take_while(|message| message.role == "system").cloned();
        let messages = system.chain([ragstone_kernels::chat::ChatMessage::new("user", query)]).collect();
        let sampling = SamplingParams {
            max_tokens: 1,
            // One that ends it at once says what it would have said, too.
            ignore_eos: true,
            logprob_token_ids: verdicts.ids.clone(),
            ..SamplingParams::default()
        };
        // Right after the root a passage's entry is exact; nothing is to be blended.
        let reuse = if self.question.reuse == Reuse::Off { Reuse::Off } else { Reuse::Exact };
        let question = Question {
            input: Input::Chat { messages, tools: tools.to_vec(), thinks: None, context: Some(Context::default()) },
            sampling,
            answers: 1,
            reuse,
            ends_at_repeat: false,
            cites: false,
            drafts: Some(0),
            selection: None,
            explain: false,
            ..(*self.question).clone()
        };
        Self { question: Arc::new(question), constraint: None, task: Task::Judge, ..self.clone() }
    }
}

/// The root and the passage stand in other prompts; what was asked after them does not.
fn keep_what_recurs(prefilled: &mut Prefilled) {
    let recurring: Vec<_> = prefilled.segments.iter().filter(|segment| segment.kind != SegmentKind::Text).collect();
    let fresh = &mut prefilled.sequence.prefill.fresh;
    fresh.retain(|fresh| recurring.iter().any(|segment| segment.tokens == fresh.tokens));
}

/// A passage that does not fit is named, not the prompt that nobody wrote.
fn of_document(index: usize, error: Error) -> Error {
    match error.kind() {
        ErrorKind::ContextLength => Error::new(ErrorKind::ContextLength, format!("document {index}: {error}")),
        _ => error,
    }
}

fn record(reranked: &Reranked, ms: f64) {
    let by = reranked.by.name();
    metrics::counter!("ragstone_reranked_passages_total", "by" => by).increment(reranked.logits.len() as u64);
    metrics::histogram!("ragstone_rerank_seconds", "by" => by).record(ms / 1e3);
}

#[cfg(test)]
mod tests;
