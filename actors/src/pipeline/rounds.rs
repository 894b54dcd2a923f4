//! Retrieval in rounds (RAGCache, section 8; ITER-RETGEN): what the model would say so far is what is searched for next.
//!
//! ```text
//! question -search-> P1 P2 -answer begins: "The founder of … is Mira"-> search -> P3 -> … -> the answer, over P1 P2 P3
//! ```
//!
//! Passages of earlier rounds stay where they are and new ones come after them, so that each round's prompt begins with the last one's and
//! finds its KV.

use std::sync::Arc;

use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::env::Stopwatch;
use tokio::time::Instant;

use super::{Passage, Pipeline, inline};
use crate::error::{Error, ErrorKind, Result};
use crate::eviction::Keep;
use crate::question::{Context, Input, MAX_ROUNDS, Question};
use crate::report::{Citation, PartialAnswer, RoundReport};
use crate::retrieval::Search;
use crate::stream::{TextBuilder, deadline_error, remaining};

/// Tokens beside a new passage's own, at the most: its number and separators.
const AROUND_A_PASSAGE: usize = 16;

/// What was found, and how.
pub(super) struct Gathered {
    /// In prompt order.
    pub passages: Vec<Passage>,
    /// Empty where there was one round.
    pub rounds: Vec<RoundReport>,
    /// What all searches took.
    pub search_ms: f64,
}

/// A beginning of an answer.
struct Begun {
    text: String,
    prompt_tokens: usize,
    account: PartialAnswer,
}

impl Pipeline {
    /// Passages in prompt order: inline documents first, then what each round's search found, best first.
    pub(super) async fn gather(&self, question: &Arc<Question>, found_in: u64, deadline: Instant) -> Result<Gathered> {
        let mut gathered = Gathered { passages: Vec::new(), rounds: Vec::new(), search_ms: 0.0 };
        let Input::Chat { messages, context: Some(context) } = &question.input else { return Ok(gathered) };
        gathered.passages = inline(context, self.assembler.passages(question, deadline).await?);
        let asked = messages.last().map(|message| message.content.clone()).unwrap_or_default();
        let rounds = rounds_of(context)?;
        let (mut query, mut begun) = (asked.clone(), None::<Begun>);
        for round in 1..=rounds {
            let searching = Stopwatch::start();
            let found = self.search(question, context, query.clone(), deadline).await?;
            let search_ms = searching.elapsed_ms();
            gathered.search_ms += search_ms;
            let room = begun.as_ref().map(|begun| self.room_for_more(question, begun.prompt_tokens));
            let added = add(&mut gathered.passages, found, room);
            let partial = begun.map(|begun| begun.account);
            if rounds > 1 {
                gathered.rounds.push(RoundReport { query, passages: added, search_ms, partial });
            }
            if round == rounds || (round > 1 && added == 0) {
                break;
            }
            let so_far = self.begin(question, context, &gathered.passages, found_in, deadline).await?;
            // What the question says still counts: a beginning may have wandered off.
            query = format!("{asked} {}", so_far.text.trim());
            begun = Some(so_far);
        }
        Ok(gathered)
    }

    async fn search(
        &self,
        question: &Question,
        context: &Context,
        query: String,
        deadline: Instant,
    ) -> Result<Vec<Passage>> {
        let Some(collection) = &context.collection else { return Ok(Vec::new()) };
        let top_k = context.top_k.unwrap_or(self.settings.top_k);
        if top_k > 1000 {
            return Err(Error::new(ErrorKind::InvalidInput, format!("top_k {top_k} must be at most 1000")));
        }
        let search = Search { collection: collection.clone(), query, top_k, caller: question.caller };
        let hits = self.retriever.ask(search, remaining(deadline)?).await?;
        let passage = |hit: ragstone_storage::corpus::Hit| Passage {
            citation: Citation {
                number: 0,
                document_id: hit.passage.document_id,
                title: hit.passage.title,
                source: hit.passage.source,
                text: hit.passage.text,
                score: Some(hit.score),
            },
            tokens: hit.passage.token_ids,
        };
        Ok(hits.into_iter().map(passage).collect())
    }

    /// Tokens that passages of a further round may have beside what was in the last round's prompt.
    fn room_for_more(&self, question: &Question, prompt_tokens: usize) -> usize {
        let answers = question.sampling.max_tokens.min(self.engine.context() / 4);
        self.engine.context().saturating_sub(prompt_tokens + answers)
    }

    /// The beginning of an answer from what was found so far. Its prompt's KV is kept before this returns, for the next round.
    async fn begin(
        &self,
        question: &Arc<Question>,
        context: &Context,
        passages: &[Passage],
        found_in: u64,
        deadline: Instant,
    ) -> Result<Begun> {
        let begun = Stopwatch::start();
        let segments = self.assemble(question, passages, deadline).await?;
        let prompt_tokens = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>();
        let most = context.round_tokens.unwrap_or(Context::ROUND_TOKENS).min(self.engine.room(prompt_tokens, 1)?);
        let sampling = SamplingParams { max_tokens: most, ..question.sampling.clone() };
        let one = Question { answers: 1, sampling, explain: false, ..Question::clone(question) };
        let mut sequence = self.fuse(&one, &segments, &self.blend(&one), most, found_in, deadline).await?;
        let fresh = std::mem::take(&mut sequence.prefill.fresh);
        if !fresh.is_empty() {
            let planned_in = sequence.prefill.plan.epoch.min(found_in);
            let keep = Keep { tenant: one.tenant.as_str().into(), segments: fresh, planned_in };
            // That it is not kept costs the next round its time, no more.
            if let Err(error) = self.evictor.ask(keep, remaining(deadline)?).await {
                tracing::warn!(%error, "a round's KV was not kept");
            }
        }
        let mut text = TextBuilder::new(self.assembler.tokenizer(), &one.sampling);
        let mut answer = String::new();
        let Some(mut tokens) = sequence.outputs.pop() else {
            return Err(Error::new(ErrorKind::Internal, "no answer began"));
        };
        loop {
            let next = tokio::time::timeout_at(deadline, tokens.recv()).await.map_err(|_| deadline_error())?;
            match next {
                Some(crate::engine::Decoded::Token(sampled)) => {
                    let (more, stopped) = text.push(sampled.id)?;
                    answer.push_str(&more);
                    if stopped {
                        break;
                    }
                }
                Some(crate::engine::Decoded::Failed(error)) => return Err(error),
                Some(crate::engine::Decoded::End(_)) | None => {
                    answer.push_str(&text.finish()?.0);
                    break;
                }
            }
        }
        let account = PartialAnswer { tokens: sequence.prefill.account, ms: begun.elapsed_ms() };
        Ok(Begun { text: answer, prompt_tokens, account })
    }
}

/// How many rounds are wanted.
fn rounds_of(context: &Context) -> Result<usize> {
    let rounds = context.rounds.unwrap_or(1);
    if !(1..=MAX_ROUNDS).contains(&rounds) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{rounds} rounds; ask for 1 to {MAX_ROUNDS}")));
    }
    if rounds > 1 && context.collection.is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, "rounds search a collection; name one"));
    }
    Ok(rounds)
}

/// Adds what is not there yet, best first, as far as there is room for it (in tokens); how many were added.
fn add(passages: &mut Vec<Passage>, found: Vec<Passage>, mut room: Option<usize>) -> usize {
    let before = passages.len();
    for mut passage in found {
        let is_same = |other: &Passage| {
            (&other.citation.document_id, &other.tokens) == (&passage.citation.document_id, &passage.tokens)
        };
        if passages.iter().any(is_same) {
            continue;
        }
        if let Some(room) = &mut room {
            let Some(left) = room.checked_sub(passage.tokens.len() + AROUND_A_PASSAGE) else { continue };
            *room = left;
        }
        passage.citation.number = passages.len() + 1;
        passages.push(passage);
    }
    passages.len() - before
}
