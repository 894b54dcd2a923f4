//! Sends an answer: whole, or as server-sent events. A caller that goes away cancels its request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use ragstone_actors::{Answer, AnswerStream, Citation, Event, Finish, Question, TokenEvent};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use super::error::body;
use super::identity::Visitor;
use super::responses::stream::ResponseStream;
use super::shape::{Shape, usage};
use super::tools::{CallReader, Said, Tools};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{InFlight, State};
use crate::telemetry::trace;

/// A question and how its answer is wanted.
pub struct Asked {
    pub question: Question,
    pub shape: Shape,
    /// Answers that are returned, where they are whole.
    pub choices: usize,
    pub stream: bool,
    pub include_usage: bool,
    /// What it may call.
    pub tools: Option<Tools>,
    /// Where the answer is to be a response and not a chat's.
    pub response: Option<ResponseStream>,
}

/// Asks, and answers when the first token is there: what fails before it has its own status.
pub async fn respond(state: &State, request: &HttpRequest, asked: Asked) -> Answered {
    let (ragstone, visitor) = (state.opened()?.ragstone.clone(), Visitor::of(request)?);
    let (question, shape) = (asked.question, asked.shape);
    // Refused at once, or one of as many questions as there are places, and no longer than the context.
    if let Some(in_flight) = InFlight::of(request) {
        in_flight.release();
    }
    let is_search = question.sampling.beams.is_some();
    tracing::debug!(id = shape.id(), "question");
    let (most, temperature) = (question.sampling.max_tokens, question.sampling.temperature);
    trace::describe_question(shape.operation(), shape.model(), most, temperature);
    let answers = state.on_runtime(async move { ragstone.answers(question).await }).await??;
    answers.first().iter().for_each(|answer| trace::describe_prompt(answer.report()));
    let reader = || asked.tools.as_ref().map(|tools| tools.reader(state.env.random_u64()));
    if !asked.stream {
        let whole = try_join_all(answers.into_iter().map(AnswerStream::collect)).await?;
        visitor.check_still()?;
        trace::describe_answers(whole.iter().map(|answer| &answer.finish));
        // A search has its answers in order.
        let best =
            if is_search { whole[..asked.choices.min(whole.len())].to_vec() } else { best(&whole, asked.choices) };
        let said: Vec<Option<Vec<Said>>> = best.iter().map(|answer| Some(read_whole(reader()?, answer))).collect();
        let json = match asked.response {
            Some(response) => whole_response(response, &best, &said),
            None => {
                let mut json = shape.answers(&best, &said);
                json["usage"] = usage(whole.iter().map(|answer| &answer.finish));
                json
            }
        };
        return Ok(HttpResponse::Ok().json(json));
    }
    let readers = answers.iter().map(|_| reader()).collect();
    let mut events = Events::new(answers, shape, asked.include_usage, readers, asked.response);
    events.reader = Some((visitor, state.env.random_u64()));
    let (sender, received) = mpsc::channel(SENT_AHEAD);
    let finished = Arc::new(AtomicBool::new(false));
    state.spawn(events.pump(sender, finished.clone(), state.write_timeout));
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(sent(received, finished, InFlight::of(request))))
}

/// The `count` answers whose tokens are the likeliest in the mean, best first: OpenAI's `best_of`. All of them as they are where no more
/// are there. An answer without a token says nothing, and is the last.
fn best(answers: &[Answer], count: usize) -> Vec<Answer> {
    if answers.len() <= count {
        return answers.to_vec();
    }
    let likelihood = |answer: &Answer| {
        let sum: f64 = answer.tokens.iter().map(|token| f64::from(token.logprob)).sum();
        if answer.tokens.is_empty() { f64::NEG_INFINITY } else { sum / answer.tokens.len() as f64 }
    };
    let mut ranked: Vec<&Answer> = answers.iter().collect();
    ranked.sort_by(|a, b| likelihood(b).total_cmp(&likelihood(a)));
    ranked.into_iter().take(count).cloned().collect()
}

/// What a whole answer says.
fn read_whole(mut reader: CallReader, answer: &Answer) -> Vec<Said> {
    let mut said = reader.read(Some(&answer.text));
    said.extend(reader.read(None));
    said
}

/// A response has one answer.
fn whole_response(mut response: ResponseStream, answers: &[Answer], said: &[Option<Vec<Said>>]) -> Value {
    for (answer, said) in answers.iter().zip(said) {
        match said {
            Some(said) => said.iter().for_each(|said| drop(response.say(said))),
            None if answer.text.is_empty() => {}
            None => drop(response.say(&Said::Text(answer.text.clone()))),
        }
        response.end(&answer.citations, &answer.finish);
    }
    response.response().clone()
}

/// Events that wait for a client that reads slower than the model writes.
const SENT_AHEAD: usize = 64;

/// What the pump sends. A stream that broke off must not look like one that ended. A shutdown waits until all of it is sent.
fn sent(
    received: mpsc::Receiver<Bytes>,
    finished: Arc<AtomicBool>,
    in_flight: Option<InFlight>,
) -> impl Stream<Item = std::io::Result<Bytes>> {
    futures::stream::unfold(Some((received, finished, in_flight)), |state| async move {
        let (mut received, finished, in_flight) = state?;
        match received.recv().await {
            Some(bytes) => Some((Ok(bytes), Some((received, finished, in_flight)))),
            None if finished.load(Ordering::Relaxed) => None,
            None => Some((Err(std::io::Error::other("the client did not read, or the service stops")), None)),
        }
    })
}

/// One server-sent event.
pub fn event(data: &impl Serialize) -> Bytes {
    // What is sent is written as JSON: maps with text for keys, and no foreign code.
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("data: {data}\n\n"))
}

/// One server-sent event that says its type twice, as responses have it.
fn named_event(data: &Value) -> Bytes {
    let kind = data["type"].as_str().unwrap_or_default();
    Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
}

/// The events of all answers to a question, as they come. Dropping it drops the answers, which cancels the request.
struct Events {
    answers: SelectAll<BoxStream<'static, (usize, Result<Event, Error>)>>,
    citations: Vec<Citation>,
    shape: Shape,
    /// Where the answer is a response and not a chat's.
    response: Option<ResponseStream>,
    include_usage: bool,
    /// Characters of each choice that were sent so far.
    characters: Vec<usize>,
    /// Of each choice, where it may call tools.
    readers: Vec<Option<CallReader>>,
    /// Choices that have ended.
    finished: Vec<Finish>,
    ready: VecDeque<Bytes>,
    /// Who reads it, as a key that is revoked reads no further; and the number of the fault that may break it off.
    reader: Option<(Visitor, u64)>,
}

impl Events {
    fn new(
        answers: Vec<AnswerStream>,
        shape: Shape,
        include_usage: bool,
        readers: Vec<Option<CallReader>>,
        mut response: Option<ResponseStream>,
    ) -> Self {
        let openings = match &mut response {
            Some(response) => response.begin().iter().map(named_event).collect(),
            None => (0..answers.len()).filter_map(|index| Some(event(&shape.opening(index)?))).collect(),
        };
        Self {
            ready: openings,
            response,
            citations: answers.first().map(|answer| answer.citations.clone()).unwrap_or_default(),
            shape,
            include_usage,
            characters: vec![0; answers.len()],
            readers,
            finished: Vec::new(),
            reader: None,
            answers: answers.into_iter().enumerate().map(|(index, answer)| events(index, answer)).collect(),
        }
    }

    /// Sends the events until the last one, or until the client has gone or has read nothing for `patience`. This runs beside the
    /// response, whose body nobody polls while the client does not read: the answer's place and its deadline must not wait for
    /// that.
    async fn pump(mut self, sender: mpsc::Sender<Bytes>, finished: Arc<AtomicBool>, patience: Duration) {
        loop {
            while let Some(bytes) = self.ready.pop_front() {
                if let Err(error) = sender.send_timeout(bytes, patience).await {
                    let stalled = matches!(error, SendTimeoutError::Timeout(_));
                    tracing::debug!(id = self.shape.id(), stalled, "the client does not take the answer");
                    return;
                }
            }
            let more = tokio::select! {
                more = self.advance() => more,
                () = sender.closed() => return,
            };
            if more.is_none() {
                return finished.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Readies the next events; `None` behind the end.
    async fn advance(&mut self) -> Option<()> {
        let (index, next) = self.answers.next().await?;
        let may_still = self.reader.as_ref().map_or(Ok(()), |(reader, _)| reader.check_still());
        match may_still.and(next) {
            Ok(Event::Token(token)) => {
                self.say(index, Some(&token.text), Some(&token));
            }
            Ok(Event::Tail(text)) => self.say(index, Some(&text), None),
            Ok(Event::Finished(finish)) => self.end(index, *finish),
            Err(error) => {
                tracing::warn!(id = self.shape.id(), %error, "an answer broke off");
                self.answers.clear();
                let error = match &self.reader {
                    Some((reader, fault)) => reader.told(error, *fault),
                    None => error,
                };
                let last = match &mut self.response {
                    Some(response) => named_event(&response.fail(&error)),
                    None => event(&body(&error)),
                };
                self.ready.push_back(last);
            }
        }
        Some(())
    }

    /// Sends what is certain with a piece of text, or, without one, at the end.
    fn say(&mut self, index: usize, piece: Option<&str>, token: Option<&TokenEvent>) {
        let said = match &mut self.readers[index] {
            Some(reader) => reader.read(piece),
            None => piece.map(|text| Said::Text(text.to_owned())).into_iter().collect(),
        };
        if let Some(response) = &mut self.response {
            let said = said.iter().filter(|said| !matches!(said, Said::Text(text) if text.is_empty()));
            self.ready.extend(said.flat_map(|said| response.say(said)).map(|event| named_event(&event)));
            return;
        }
        let (mut text, mut calls) = (String::new(), Vec::new());
        for part in said {
            match part {
                Said::Text(more) => text.push_str(&more),
                Said::Call { index: at, id, name, arguments } => {
                    calls.extend(self.shape.call(index, at, &id, &name, &arguments));
                }
            }
        }
        if !text.is_empty() || (token.is_some() && self.shape.wants_logprobs()) {
            self.piece(index, &text, token);
        }
        self.characters[index] += text.chars().count();
        self.ready.extend(calls.iter().map(event));
    }

    fn piece(&mut self, index: usize, text: &str, token: Option<&TokenEvent>) {
        self.ready.push_back(event(&self.shape.piece(index, text, token, self.characters[index])));
    }

    fn end(&mut self, index: usize, finish: Finish) {
        self.say(index, None, None);
        if let Some(response) = &mut self.response {
            let events = response.end(&self.citations, &finish);
            trace::describe_answers([&finish]);
            self.ready.extend(events.iter().map(named_event));
            self.answers.clear();
            return;
        }
        let has_called = self.readers[index].as_ref().is_some_and(CallReader::has_called);
        self.ready.push_back(event(&self.shape.ending(index, &self.citations, &finish, has_called)));
        self.finished.push(finish);
        if self.finished.len() < self.characters.len() {
            return;
        }
        trace::describe_answers(&self.finished);
        // Their place is free, however long the client takes to read the rest.
        self.answers.clear();
        if self.include_usage {
            self.ready.push_back(event(&self.shape.usage_chunk(&self.finished)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

/// The events of one choice.
fn events(index: usize, answer: AnswerStream) -> BoxStream<'static, (usize, Result<Event, Error>)> {
    let next = move |mut answer: AnswerStream| async move { answer.next().await.map(|event| ((index, event), answer)) };
    futures::stream::unfold(answer, next).boxed()
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{FinishReason, ReuseReport, Usage};

    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |logprob: &f32| TokenEvent { id: 0, text: String::new(), logprob: *logprob, top: Vec::new() };
        let finish = Finish { reason: FinishReason::Length, usage: Usage::default(), report: ReuseReport::default() };
        Answer { text: text.into(), citations: Vec::new(), tokens: logprobs.iter().map(token).collect(), finish }
    }

    #[test]
    fn the_best_are_those_whose_tokens_are_likeliest_in_the_mean() {
        let all =
            [answer("long", &[-0.5; 9]), answer("", &[]), answer("short", &[-1.0]), answer("mixed", &[-0.1, -0.7])];
        let texts = |count| best(&all, count).into_iter().map(|answer| answer.text).collect::<Vec<_>>();
        assert_eq!(texts(1), ["mixed"]);
        assert_eq!(texts(3), ["mixed", "long", "short"]);
        assert_eq!(texts(4), ["long", "", "short", "mixed"], "as they came");
    }
}
