//! Iterative retrieval (RAGCache, section 9; ITER-RETGEN, Shao et al., 2023): what the model begins to answer is searched for next.
//!
//! Passages of earlier rounds stay where they are and new ones come behind them, so that each round's prompt begins with all of the last
//! one's but its question: what that computed is on the device.

use std::collections::HashSet;
use std::sync::Arc;

use ragstone_env::Stopwatch;
use ragstone_kernels::sampling::SamplingParams;
use tracing::Instrument;

use super::search::add;
use super::{Asking, Found, Passage, Pipeline, Prefilled, Reached};
use crate::admission::deadline::remaining;
use crate::admission::turns::Place;
use crate::answer::stream::{AnswerStream, Coming, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::question::follow_up::searched;
use crate::question::{Context, Input, Question};
use crate::report::nothing_found::{Answered, NothingFound};
use crate::report::{Event, RerankReport, RoundReport, Ttft};

/// What the model says between two searches, where nothing else is asked for.
const ROUND_TOKENS: usize = 32;

/// Searches that ended, the last of which is to be answered.
pub(super) struct Searched {
    passages: Vec<Passage>,
    /// The first so many stand where they stood in an earlier round's prompt.
    standing: usize,
    /// Of the rounds whose answers were begun.
    rounds: Vec<RoundReport>,
    /// What their prompts took.
    earlier: Ttft,
    /// The last search: what it searched for, what of that was new, and when it began.
    query: String,
    new: Vec<usize>,
    started: Stopwatch,
    retrieve_ms: f64,
    rerank: Option<RerankReport>,
    words_only: bool,
    /// Of the first search.
    nothing_found: Option<NothingFound>,
}

impl Pipeline {
    /// Searches round by round, and answers each but the last one's question as far as it takes to search again. `None` where one round is
    /// asked for. A round that finds nothing new is the last, and so is one to which the model has nothing to say.
    pub(super) async fn search_rounds(&self, asking: &Asking, admission: &Arc<Place>) -> Result<Option<Searched>> {
        let Input::Chat { messages, context: Some(context), .. } = &asking.question.input else { return Ok(None) };
        let wanted = context.rounds.unwrap_or(1);
        if wanted < 2 {
            return Ok(None);
        }
        let mut searched = Searched {
            passages: self.given(asking).await?,
            standing: 0,
            rounds: Vec::new(),
            earlier: Ttft::default(),
            query: searched(messages),
            new: Vec::new(),
            started: Stopwatch::start(),
            retrieve_ms: 0.0,
            rerank: None,
            words_only: false,
            nothing_found: None,
        };
        let asked = asking.in_round(context);
        for round in 1..=wanted {
            self.search_round((asking, context, round), &mut searched).await?;
            // What there is nothing about is not searched for again.
            if searched.nothing_found.is_some_and(|nothing| nothing.answered != Answered::AsUsual) {
                break;
            }
            if round == wanted || (round > 1 && searched.new.is_empty()) {
                break;
            }
            let said = self.begin_answer(&asked, &mut searched, admission).await?;
            if said.is_empty() {
                break;
            }
            (searched.query, searched.started) = (said, Stopwatch::start());
        }
        Ok(Some(searched))
    }

    /// The answer over what all rounds found.
    pub(super) async fn answer_rounds(&self, asking: &Asking, searched: Searched) -> Result<Reached> {
        let Searched { mut passages, standing, mut rounds, query, new, started, .. } = searched;
        let Searched { retrieve_ms, rerank, words_only, nothing_found, earlier, .. } = searched;
        if nothing_found.is_some_and(|nothing| nothing.answered == Answered::Said) {
            return Ok(Reached::Nothing { nothing_found, retrieve_ms, words_only });
        }
        let prefilled = self.prefill(asking, (&passages, standing), None).await?;
        if let Some(arranged) = &prefilled.arranged {
            arranged.put_in_order(&mut passages);
        }
        rounds.push(report(query, new, &prefilled, started.elapsed_ms()));
        metrics::counter!("ragstone_retrieval_rounds_total").increment(rounds.len() as u64);
        Ok(Reached::Prompt(Box::new(Found {
            passages,
            prefilled,
            retrieve_ms,
            rerank,
            words_only,
            nothing_found,
            speculation: None,
            rounds,
            earlier,
        })))
    }

    /// One search; what it finds anew goes behind the passages that there are.
    async fn search_round(
        &self,
        (asking, context, round): (&Asking, &Context, usize),
        searched: &mut Searched,
    ) -> Result<()> {
        let started = Stopwatch::start();
        let search = self.search_of(asking, context, searched.query.clone());
        let found = self.retriever.ask(search, remaining(asking.deadline)?);
        let mut found = found.instrument(tracing::info_span!("retrieve")).await?;
        searched.words_only |= found.words_only;
        searched.retrieve_ms += started.elapsed_ms();
        if round == 1 {
            searched.nothing_found = self.nothing_found(asking, context, &found, searched.passages.len());
            if searched.nothing_found.is_some_and(|nothing| nothing.answered != Answered::AsUsual) {
                found.hits.clear();
            }
        }
        let hits = found.hits;
        let (mut hits, report) = self.rerank(asking, context, &searched.query, self.usable(hits)).await?;
        searched.rerank = RerankReport::sum(searched.rerank, report);
        // A text under another title says nothing new either.
        let known: HashSet<&str> = searched.passages.iter().map(|passage| &*passage.citation.text).collect();
        hits.retain(|hit| !known.contains(&*hit.passage.text));
        let before = searched.passages.len();
        searched.standing = before;
        add(&mut searched.passages, hits, self.manner.is_best_last);
        searched.new = (before + 1..=searched.passages.len()).collect();
        Ok(())
    }

    /// Lets the model answer for a sentence, and reports the round, unless it is the last as nothing is said.
    async fn begin_answer(&self, asked: &Asking, searched: &mut Searched, admission: &Arc<Place>) -> Result<String> {
        let mut prefilled = self.prefill(asked, (&searched.passages, searched.standing), None).await?;
        if let Some(arranged) = &prefilled.arranged {
            arranged.put_in_order(&mut searched.passages);
        }
        let report_of_prompt = self.account(asked, &mut prefilled, Ttft::default());
        searched.earlier.add_prompt(&report_of_prompt.ttft);
        let output = prefilled.sequence.outputs.pop();
        let (tokens, drafts) = output.ok_or_else(|| Error::new(ErrorKind::Internal, "a round has no answer"))?;
        let opened = Opened {
            prompt_tokens: prefilled.prompt_tokens as u32,
            drafts,
            stop: asked.question.sampling.stop.clone(),
            ..asked.opened(Coming::Here(tokens), report_of_prompt, admission)
        };
        let said = sentence(AnswerStream::new(opened, self.assembler.tokenizer().clone())).await?;
        if said.is_empty() {
            // Nothing more is searched for: the round is told with the answer over what it found.
            return Ok(said);
        }
        let (query, new) = (std::mem::take(&mut searched.query), std::mem::take(&mut searched.new));
        searched.rounds.push(report(query, new, &prefilled, searched.started.elapsed_ms()));
        Ok(said)
    }
}

impl Asking {
    /// The same question, to be answered as far as it takes to search again: in words, whatever form the answer is to have.
    fn in_round(&self, context: &Context) -> Self {
        let max_tokens = context.round_tokens.unwrap_or(ROUND_TOKENS);
        let sampling = self.question.sampling.clone();
        let sampling = SamplingParams {
            max_tokens,
            min_tokens: 0,
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            grammar: None,
            beams: None,
            ..sampling
        };
        let question = Question { sampling, answers: 1, explain: false, ..(*self.question).clone() };
        Self { question: Arc::new(question), constraint: None, is_round: true, ..self.clone() }
    }
}

fn report(query: String, passages: Vec<usize>, prefilled: &Prefilled, ms: f64) -> RoundReport {
    let cached_tokens = prefilled.sequence.prefill.account.exact;
    RoundReport { query, passages, prompt_tokens: prefilled.prompt_tokens as u32, cached_tokens, ms }
}

/// What an answer says up to the end of its first sentence.
async fn sentence(mut answer: AnswerStream) -> Result<String> {
    let mut text = String::new();
    while let Some(event) = answer.next().await {
        match event? {
            Event::Token(token) => text.push_str(&token.text),
            Event::Tail(tail) => text.push_str(&tail),
            Event::Finished(_) => break,
        }
        if let Some(end) = sentence_end(&text) {
            text.truncate(end);
            break;
        }
    }
    Ok(text.trim().to_owned())
}

/// Where the first sentence of a text ends that goes on: behind a full stop with a space behind it, or at the end of a line.
fn sentence_end(text: &str) -> Option<usize> {
    let begin = text.len() - text.trim_start().len();
    let characters = text[begin..].char_indices().zip(text[begin..].chars().skip(1));
    characters.into_iter().find_map(|((at, this), next)| match this {
        '.' | '!' | '?' if next.is_whitespace() => Some(begin + at + this.len_utf8()),
        '\n' => Some(begin + at),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::sentence_end;

    #[test]
    fn a_sentence_ends_where_the_next_begins() {
        for (text, expected) in [
            ("", None),
            (" The lute", None),
            (" The lute.", None),
            (" The lute. It", Some(" The lute.")),
            ("3.5 boats", None),
            ("\n\nNine?\n", Some("\n\nNine?")),
            ("one\ntwo", Some("one")),
            ("é! ", Some("é!")),
        ] {
            assert_eq!(sentence_end(text).map(|end| &text[..end]), expected, "{text:?}");
        }
    }
}
