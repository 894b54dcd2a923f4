//! An answer as it is generated: token ids become text, stop strings end it.

mod cite;
mod repeat;

use std::sync::Arc;

use ragstone_kernels::sampling::Sampled;
use ragstone_kernels::tokenizer::{StreamDecoder, Tokenizer};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::Span;
use tracing::field::Empty;

use self::cite::CiteFilter;
use self::repeat::RepeatFilter;
use crate::admission::deadline::deadline_error;
use crate::admission::metering::Meter;
use crate::admission::turns::Place;
use crate::engine::{Decoded, DraftCounts};
use crate::error::{Error, ErrorKind, Result};
use crate::report::citation::Citation;
use crate::report::grounding::{self, Grounding};
use crate::report::nothing_found::{Answered, NothingFound};
use crate::report::read_prompt::ReadPrompt;
use crate::report::{Alternative, Answer, Drafts, Event, Finish, FinishReason, ReuseReport, TokenEvent, Usage};
use crate::upstream::Heard;

/// An answer whose prompt is prefilled. Dropping it cancels the request.
pub struct AnswerStream {
    /// The passages in the prompt.
    pub citations: Vec<Citation>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    report: ReuseReport,
    coming: Coming,
    drafts: Arc<DraftCounts>,
    text: TextBuilder,
    tokenizer: Arc<Tokenizer>,
    completion_tokens: u32,
    /// The answer so far, where it is held against passages.
    said: String,
    /// Cites them in the text, where that was asked for.
    cites: Option<CiteFilter>,
    prompt: Option<Arc<ReadPrompt>>,
    end_token: Option<TokenEvent>,
    deadline: Instant,
    /// What is still to be given out before the stream goes on.
    ready: std::collections::VecDeque<Event>,
    ended: bool,
    /// From the first token to the last one that was taken.
    span: Span,
    /// All answers to a question have one.
    _admission: Arc<Place>,
    meter: Arc<Meter>,
}

/// Where an answer comes from.
pub(crate) enum Coming {
    /// The engine of this process.
    Here(mpsc::Receiver<Decoded>),
    /// One elsewhere.
    Elsewhere(mpsc::Receiver<Result<Heard>>),
}

/// What the pipeline knows when the prompt is prefilled.
pub(crate) struct Opened {
    pub citations: Vec<Citation>,
    pub prompt_tokens: u32,
    pub report: ReuseReport,
    pub coming: Coming,
    pub drafts: Arc<DraftCounts>,
    /// The prompt, where it may be wanted back.
    pub prompt: Option<Arc<ReadPrompt>>,
    /// What stands before what the model says.
    pub note: Option<String>,
    pub stop: Vec<String>,
    /// Whether the answer ends where it goes round in circles.
    pub ends_at_repeat: bool,
    /// Whether sentences end with the numbers of the passages that they stand on.
    pub cites: bool,
    /// Whether control tokens show in the text.
    pub show_control: bool,
    pub deadline: Instant,
    pub admission: Arc<Place>,
    pub meter: Arc<Meter>,
}

impl Drop for AnswerStream {
    /// However it ends, its tokens were generated: those, too, that wait for somebody who has gone.
    fn drop(&mut self) {
        if let Coming::Here(tokens) = &mut self.coming
            && !self.ended
        {
            self.completion_tokens += unread(tokens);
        }
        self.meter.answer(u64::from(self.completion_tokens));
    }
}

/// Tokens that were generated and nobody took. No more come.
fn unread(tokens: &mut mpsc::Receiver<Decoded>) -> u32 {
    tokens.close();
    let left = std::iter::from_fn(|| tokens.try_recv().ok());
    left.filter(|decoded| matches!(decoded, Decoded::Token(_))).count() as u32
}

impl AnswerStream {
    pub(crate) fn new(opened: Opened, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            cites: (opened.cites && !opened.citations.is_empty()).then(|| CiteFilter::new(&opened.citations)),
            citations: opened.citations,
            prompt_tokens: opened.prompt_tokens,
            report: opened.report,
            coming: opened.coming,
            drafts: opened.drafts,
            text: TextBuilder {
                decoder: tokenizer.stream(opened.show_control),
                stop: StopFilter::new(opened.stop),
                repeat: opened.ends_at_repeat.then(RepeatFilter::default),
            },
            tokenizer,
            completion_tokens: 0,
            said: String::new(),
            prompt: opened.prompt,
            end_token: None,
            deadline: opened.deadline,
            ready: opened.note.map(Event::Tail).into_iter().collect(),
            ended: false,
            span: tracing::info_span!("decode", tokens = Empty, finish = Empty),
            _admission: opened.admission,
            meter: opened.meter,
        }
    }

    /// An answer that no model gives. Its stream has the text, and the end.
    pub(crate) fn said(opened: Opened, text: String, tokenizer: Arc<Tokenizer>) -> Self {
        let mut stream = Self::new(opened, tokenizer);
        stream.ready.push_back(Event::Tail(text));
        stream.finish(FinishReason::Stop);
        stream
    }

    /// What was reused and where the time to the first token went.
    pub fn report(&self) -> &ReuseReport {
        &self.report
    }

    /// The prompt as the model read it; `None` where it was neither given as token ids nor asked after.
    pub fn prompt(&self) -> Option<&Arc<ReadPrompt>> {
        self.prompt.as_ref()
    }

    /// The next event; `None` behind the last one.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            let taken = match &mut self.coming {
                Coming::Here(tokens) => match timeout_at(self.deadline, tokens.recv()).await {
                    Ok(item) => self.decoded(item),
                    Err(_) => Err(deadline_error()),
                },
                Coming::Elsewhere(parts) => match timeout_at(self.deadline, parts.recv()).await {
                    Ok(part) => self.heard(part),
                    Err(_) => Err(deadline_error()),
                },
            };
            if let Err(error) = taken {
                return Some(self.fail(error));
            }
        }
    }

    /// Waits for the whole answer.
    pub async fn collect(mut self) -> Result<Answer> {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        while let Some(event) = self.next().await {
            match event? {
                Event::Token(token) => {
                    text.push_str(&token.text);
                    tokens.push(token);
                }
                Event::Tail(tail) => text.push_str(&tail),
                Event::Finished(finish) => {
                    let citations = std::mem::take(&mut self.citations);
                    return Ok(Answer { text, citations, tokens, finish: *finish });
                }
            }
        }
        Err(Error::new(ErrorKind::Internal, "an answer ended without its last event"))
    }

    fn decoded(&mut self, item: Option<Decoded>) -> Result<()> {
        match item {
            Some(Decoded::Token(sampled)) => self.take(&sampled),
            Some(Decoded::EndToken(sampled)) => {
                let name = self.tokenizer.token(sampled.id).unwrap_or_default();
                self.end_token = Some(self.told(&sampled, name));
                Ok(())
            }
            Some(Decoded::End(reason)) => self.end(reason),
            Some(Decoded::Failed(error)) => Err(error),
            None => Err(gone()),
        }
    }

    /// What an engine elsewhere says: it has its own tokens, and counts them at the end.
    fn heard(&mut self, part: Option<Result<Heard>>) -> Result<()> {
        match part.ok_or_else(gone)?? {
            Heard::Text(text) => {
                self.completion_tokens += 1;
                let text = self.note(text);
                self.ready.push_back(Event::Tail(text));
            }
            Heard::Token(token) => {
                self.completion_tokens += 1;
                let text = self.note(token.text);
                self.ready.push_back(Event::Token(TokenEvent { text, ..token }));
            }
            Heard::Usage(usage) => {
                (self.prompt_tokens, self.completion_tokens) = (usage.prompt_tokens, usage.completion_tokens);
                self.meter.prompt(u64::from(usage.prompt_tokens));
                self.report = std::mem::take(&mut self.report).with_usage(usage);
            }
            Heard::End(reason, stop) => {
                self.text.stop.met = stop;
                self.finish(reason);
            }
        }
        Ok(())
    }

    fn take(&mut self, sampled: &Sampled) -> Result<()> {
        self.completion_tokens += 1;
        let (text, stopped) = self.text.push(sampled.id)?;
        let text = self.note(text);
        self.ready.push_back(Event::Token(self.told(sampled, text)));
        if stopped {
            self.finish(FinishReason::Stop);
        }
        Ok(())
    }

    /// Notes what the model says; what is told of it now.
    fn note(&mut self, text: String) -> String {
        if !self.citations.is_empty() {
            self.said.push_str(&text);
        }
        match &mut self.cites {
            Some(cites) => cites.push(&text),
            None => text,
        }
    }

    /// A token as it is told, with the text that it completes.
    fn told(&self, sampled: &Sampled, text: String) -> TokenEvent {
        let top = Alternative::all(&sampled.top, &self.tokenizer);
        TokenEvent { id: sampled.id, text, logprob: sampled.logprob, top }
    }

    fn end(&mut self, reason: FinishReason) -> Result<()> {
        let (tail, stopped) = self.text.finish()?;
        let tail = self.note(tail);
        if !tail.is_empty() {
            self.ready.push_back(Event::Tail(tail));
        }
        self.finish(if stopped { FinishReason::Stop } else { reason });
        Ok(())
    }

    fn finish(&mut self, reason: FinishReason) {
        self.span.record("finish", reason.name());
        self.end_decoding();
        let held = self.cites.take().map(CiteFilter::finish).filter(|held| !held.is_empty());
        self.ready.extend(held.map(Event::Tail));
        let usage = Usage { prompt_tokens: self.prompt_tokens, completion_tokens: self.completion_tokens };
        metrics::counter!("ragstone_generated_tokens_total").increment(u64::from(self.completion_tokens));
        self.report.drafts = Drafts::of(self.drafts.get());
        let (report, end_token) = (self.report.clone(), self.end_token.take());
        let stop = self.text.stop.met.take();
        let grounding = match &report.nothing_found {
            Some(NothingFound { answered: Answered::Said, .. }) => Some(Grounding::not_in_passages()),
            _ => grounding::of(&self.said, &self.citations),
        };
        self.ready.push_back(Event::Finished(Box::new(Finish { reason, usage, report, stop, grounding, end_token })));
    }

    fn fail(&mut self, error: Error) -> Result<Event> {
        self.span.record("finish", "failed");
        self.end_decoding();
        Err(error)
    }

    fn end_decoding(&mut self) {
        self.ended = true;
        match &mut self.coming {
            Coming::Here(tokens) => tokens.close(),
            Coming::Elsewhere(parts) => parts.close(),
        }
        // Ends here, whenever this is dropped.
        self.span.record("tokens", i64::from(self.completion_tokens));
        self.span = Span::none();
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Cancelled, "the service stopped while it was answering")
}

impl Alternative {
    /// Tokens with their log-probabilities, as they are told.
    pub(crate) fn all(top: &[(u32, f32)], tokenizer: &Tokenizer) -> Vec<Self> {
        top.iter().map(|(id, logprob)| Self { id: *id, bytes: tokenizer.token_bytes(*id), logprob: *logprob }).collect()
    }
}

struct TextBuilder {
    decoder: StreamDecoder,
    stop: StopFilter,
    repeat: Option<RepeatFilter>,
}

impl TextBuilder {
    fn push(&mut self, id: u32) -> Result<(String, bool)> {
        let text = self.decoder.push(id)?;
        let (text, stopped) = self.stop.push(&text);
        let Some(repeat) = &mut self.repeat else { return Ok((text, stopped)) };
        let (mut text, mut ended) = repeat.push(&text);
        if stopped && !ended {
            text.push_str(&repeat.finish().0);
            ended = true;
        }
        Ok((text, ended))
    }

    fn finish(&mut self) -> Result<(String, bool)> {
        let rest = self.decoder.finish()?;
        let (mut text, stopped) = self.stop.push(&rest);
        if !stopped {
            text.push_str(&std::mem::take(&mut self.stop.held));
        }
        let Some(repeat) = &mut self.repeat else { return Ok((text, stopped)) };
        let (mut text, mut ended) = repeat.push(&text);
        if !ended {
            let (rest, repeats) = repeat.finish();
            text.push_str(&rest);
            ended = repeats;
        }
        Ok((text, stopped || ended))
    }
}

/// Finds stop strings that may be spread over tokens: text that could be the start of one is held back.
struct StopFilter {
    stop: Vec<String>,
    held: String,
    /// The one that was met.
    met: Option<String>,
}

impl StopFilter {
    fn new(stop: Vec<String>) -> Self {
        Self { stop: stop.into_iter().filter(|text| !text.is_empty()).collect(), held: String::new(), met: None }
    }

    /// The text that is certain now, and whether a stop string ended it.
    fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.stop.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.met = Some(stop.clone());
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stop.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }
}

/// Length of the longest end of `text` that `stop` starts with.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|length| stop.is_char_boundary(*length) && text.ends_with(&stop[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use ragstone_kernels::sampling::Sampled;
    use tokio::sync::mpsc;

    use super::{Decoded, FinishReason, StopFilter, unread};

    #[test]
    fn tokens_that_nobody_took_are_counted_and_no_more_come() {
        let token = || Decoded::Token(Sampled { id: 1, logprob: 0.0, top: Vec::new() });
        let (sender, mut tokens) = mpsc::channel(8);
        (0..4).for_each(|_| sender.try_send(token()).unwrap());
        assert!(tokens.try_recv().is_ok(), "one was told");
        sender.try_send(Decoded::End(FinishReason::Stop)).unwrap();
        assert_eq!(unread(&mut tokens), 3);
        assert!(sender.try_send(token()).is_err());
    }

    /// Feeds pieces; the released text and whether a stop string was met.
    fn feed(stop: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut filter = StopFilter::new(stop.iter().map(|text| (*text).to_owned()).collect());
        let mut released = Vec::new();
        for piece in pieces {
            let (text, stopped) = filter.push(piece);
            released.push(text);
            if stopped {
                return (released, true);
            }
        }
        released.push(filter.held);
        (released, false)
    }

    #[test]
    fn a_stop_string_over_several_tokens_is_cut_out_whole() {
        assert_eq!(feed(&["\n\nQ:"], &["a", "\n", "\nQ", ": b"]), (["a", "", "", ""].map(String::from).into(), true));
    }

    #[test]
    fn a_beginning_that_does_not_go_on_is_released() {
        assert_eq!(feed(&["STOP"], &["xS", "TO", "y"]), (["x", "", "STOy", ""].map(String::from).into(), false));
    }

    #[test]
    fn the_earliest_of_several_wins_and_unfinished_text_is_kept() {
        assert_eq!(feed(&["cd", "b"], &["abcd"]), (vec!["a".into()], true));
        assert_eq!(feed(&["né"], &["n", "ö"]), (["", "nö", ""].map(String::from).into(), false));
    }
}
