//! Sends an answer: whole, or as server-sent events. A caller that goes away cancels its request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::http::header::{CACHE_CONTROL, ContentType};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use ragstone_actors::{Answer, AnswerStream, Citation, Event, Finish, Question, TokenEvent};
use ragstone_kernels::chat::thoughts::Thinking;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use super::asking::{Asking, Begun, Piece, Pieces, Whole};
use super::body::FREE_BYTES;
use super::error::body;
use super::identity::Visitor;
use super::reader::AnswerReader;
use super::reply::{Prompted, Reply, Wire};
use super::shape::{Group, Shape, usage};
use super::told::{Told, Wish};
use super::tools::{Said, Tools};
use crate::http::error::Answered;
use crate::http::state::{InFlight, State, caller};
use crate::telemetry::trace;

/// A question and how its answer is wanted.
pub struct Asked {
    pub question: Question,
    /// The questions of a request's other prompts, which are asked as this one is.
    pub more: Vec<Question>,
    /// What is to be told of the prompts.
    pub wish: Wish,
    pub shape: Shape,
    /// Answers that are returned, where they are whole.
    pub choices: usize,
    pub stream: bool,
    pub include_usage: bool,
    /// What it may call.
    pub tools: Option<Tools>,
    /// How the model thinks before it answers.
    pub thinking: Option<Thinking>,
    /// Where the answer has another form than OpenAI's completions.
    pub reply: Option<Box<dyn Reply>>,
}

/// Asks, and answers when the first token is there: what fails before it has its own status.
pub async fn respond(state: &State, request: &HttpRequest, asked: Asked) -> Answered {
    let (ragstone, visitor) = (state.opened()?.ragstone.clone(), Visitor::of(request)?);
    let (question, shape) = (asked.question, asked.shape);
    let in_flight = InFlight::of(request);
    if let Some(in_flight) = &in_flight {
        let held = asked.reply.as_ref().map_or(0, |reply| reply.held_bytes());
        hold(state, request, in_flight, held)?;
    }
    tracing::debug!(id = shape.id(), "question");
    let (most, temperature) = (question.sampling.max_tokens, question.sampling.temperature);
    trace::describe_question(shape.operation(), shape.model(), most, temperature);
    let asking = Asking::new(ragstone.clone(), asked.wish, asked.choices);
    let calls = || asked.tools.as_ref().map(|tools| tools.reader(state.env.random_u64()));
    let reader = || AnswerReader::new(asked.thinking, calls());
    if !asked.stream {
        let (is_search, caller, deadline) = (question.sampling.beams.is_some(), question.caller, question.deadline);
        let questions = std::iter::once(question).chain(asked.more).collect();
        let groups = state.on_runtime(asking.whole(questions)).await??;
        visitor.check_still()?;
        trace::describe_answers(groups.iter().flat_map(|group| &group.answers).map(|answer| &answer.finish));
        let whole = Chosen::of(groups, asked.choices, is_search, reader);
        if let (Some(reply), [best, ..], [said, ..]) = (asked.reply, &whole.best[..], &whole.said[..]) {
            let answered = HttpResponse::Ok().json(whole_reply(reply, best, said).await?);
            // What waits to be read is charged by itself.
            in_flight.iter().for_each(InFlight::release);
            return Ok(answered);
        }
        if asked.wish.is_nothing() {
            return Ok(HttpResponse::Ok().json(whole.json(&shape)));
        }
        // A long prompt takes a while to write, which no thread that others' requests pass has.
        let written = move || Ok(whole.json(&shape).to_string());
        let text = ragstone.read(caller, deadline, written).await?;
        return Ok(HttpResponse::Ok().content_type(ContentType::json()).body(text));
    }
    let prompts = 1 + asked.more.len();
    let begin = asking.clone();
    let begun = state.on_runtime(async move { begin.begin(question).await }).await??;
    let readers = (0..prompts * begun.answers.len()).map(|_| reader()).collect();
    let more = asking.more(asked.more, begun.answers.len());
    let wire = asked.reply.as_ref().map_or(Wire::Events, |reply| reply.wire());
    let beat = asked.reply.as_ref().map_or_else(|| Some(comment()), |reply| reply.heartbeat());
    let mut events = Events::new((begun, more), shape, asked.include_usage, readers, asked.reply);
    events.reader = Some((visitor, state.env.random_u64()));
    let (sender, received) = mpsc::channel(SENT_AHEAD);
    let finished = Arc::new(AtomicBool::new(false));
    state.spawn(events.pump(sender, finished.clone(), state.write_timeout));
    let sent = sent(received, finished, in_flight);
    let mut response = HttpResponse::Ok();
    response
        .content_type(wire.content_type())
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"));
    Ok(match beat {
        Some(beat) => response.streaming(beating(sent, beat, HEARTBEAT)),
        None => response.streaming(sent),
    })
}

/// Lets go of what a request's body was charged: the question is refused at once, or one of as many as there are places, and no longer than the
/// context. What its answer repeats of it has no such bound, and stays charged.
fn hold(state: &State, request: &HttpRequest, in_flight: &InFlight, held: usize) -> crate::error::Result<()> {
    in_flight.release();
    if held > FREE_BYTES {
        in_flight.charge(state.bodies.charge(caller(request), held)?);
    }
    Ok(())
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

/// Whole answers, and what they say.
struct Chosen {
    groups: Vec<Whole>,
    /// By prompt, those that are returned.
    best: Vec<Vec<Answer>>,
    /// What each of them says, where it may think or call tools.
    said: Vec<Vec<Option<Vec<Said>>>>,
}

impl Chosen {
    /// Of each prompt `count` answers; a search has its own in order.
    fn of(groups: Vec<Whole>, count: usize, is_search: bool, reader: impl Fn() -> Option<AnswerReader>) -> Self {
        let choose = |Whole { answers, .. }: &Whole| match is_search {
            true => answers[..count.min(answers.len())].to_vec(),
            false => best(answers, count),
        };
        let best: Vec<Vec<Answer>> = groups.iter().map(choose).collect();
        let read = |answer: &Answer| reader().map(|reader| read_whole(reader, answer));
        let said = best.iter().map(|answers| answers.iter().map(read).collect()).collect();
        Self { groups, best, said }
    }

    /// In OpenAI's form.
    fn json(&self, shape: &Shape) -> Value {
        let parts = self.groups.iter().zip(self.best.iter().zip(&self.said));
        let groups: Vec<Group<'_>> =
            parts.map(|(whole, (answers, said))| Group { answers, said, told: &whole.told }).collect();
        let mut json = shape.answers(&groups);
        // Those that were not chosen count, too.
        json["usage"] = usage(self.groups.iter().map(|group| group.answers.iter().map(|answer| &answer.finish)));
        json
    }
}

/// What a whole answer says.
fn read_whole(mut reader: AnswerReader, answer: &Answer) -> Vec<Said> {
    let mut said = reader.read(Some(&answer.text));
    said.extend(reader.read(None));
    said
}

/// One answer, in another form.
async fn whole_reply(
    mut reply: Box<dyn Reply>,
    answers: &[Answer],
    said: &[Option<Vec<Said>>],
) -> crate::error::Result<Value> {
    for (answer, said) in answers.iter().zip(said) {
        match said {
            Some(said) => said.iter().for_each(|said| drop(reply.say(said))),
            None if answer.text.is_empty() => {}
            None => drop(reply.say(&Said::Text(answer.text.clone()))),
        }
        reply.end(&answer.citations, &answer.finish);
    }
    reply.keep(&mut []).await?;
    Ok(reply.whole())
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

/// How often a stream shows that it lives while there is nothing to send: a model thinks, or writes a call, for minutes. Proxies give one up
/// after thirty seconds or a minute.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// A comment, which clients pass over.
pub fn comment() -> Bytes {
    Bytes::from_static(b": \n\n")
}

/// What is `sent`, and a `beat` each time that nothing was for so long.
pub fn beating<E>(
    sent: impl Stream<Item = Result<Bytes, E>>,
    beat: Bytes,
    every: Duration,
) -> impl Stream<Item = Result<Bytes, E>> {
    futures::stream::unfold((Box::pin(sent), beat), move |(mut sent, beat)| async move {
        let next = match tokio::time::timeout(every, sent.next()).await {
            Ok(next) => next?,
            Err(_) => Ok(beat.clone()),
        };
        Some((next, (sent, beat)))
    })
}

/// One server-sent event.
pub fn event(data: &impl Serialize) -> Bytes {
    // What is sent is written as JSON: maps with text for keys, and no foreign code.
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("data: {data}\n\n"))
}

/// The events of all answers to a question, as they come. Dropping it drops the answers, which cancels the request.
struct Events {
    answers: Pieces,
    /// Answers to each prompt.
    per_prompt: usize,
    citations: Vec<Citation>,
    shape: Shape,
    /// Where the answer has another form than OpenAI's completions.
    reply: Option<Box<dyn Reply>>,
    wire: Wire,
    include_usage: bool,
    /// Characters of each choice that were sent so far.
    characters: Vec<usize>,
    /// Of each choice, where it may think or call tools.
    readers: Vec<Option<AnswerReader>>,
    /// Choices that have ended, by prompt.
    finished: Vec<Vec<Finish>>,
    ready: VecDeque<Bytes>,
    /// Who reads it, as a key that is revoked reads no further; and the number of the fault that may break it off.
    reader: Option<(Visitor, u64)>,
}

impl Events {
    /// Of the first prompt's answers, and of those to `more`; each choice has its reader.
    fn new(
        (begun, more): (Begun, Pieces),
        shape: Shape,
        include_usage: bool,
        readers: Vec<Option<AnswerReader>>,
        mut reply: Option<Box<dyn Reply>>,
    ) -> Self {
        let (choices, per_prompt) = (readers.len(), begun.answers.len());
        let wire = reply.as_ref().map_or(Wire::Events, |reply| reply.wire());
        let prompted =
            |answer: &AnswerStream| Prompted { tokens: answer.prompt_tokens, cached: answer.report().tokens.exact };
        let prompt = begun.answers.first().map(prompted).unwrap_or_default();
        let openings = match &mut reply {
            Some(reply) => reply.begin(prompt).iter().map(|event| wire.write(event)).collect(),
            None => (0..choices).filter_map(|index| Some(event(&shape.opening(index)?))).collect(),
        };
        Self {
            ready: openings,
            reply,
            wire,
            citations: begun.answers.first().map(|answer| answer.citations.clone()).unwrap_or_default(),
            shape,
            include_usage,
            characters: vec![0; choices],
            readers,
            finished: vec![Vec::new(); choices.div_ceil(per_prompt.max(1))],
            reader: None,
            answers: futures::stream::select(begun.pieces(0), more).boxed(),
            per_prompt,
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
            Ok(Piece::Echo(told)) => self.repeat(index, &told),
            Ok(Piece::Event(Event::Token(token))) => {
                self.say(index, Some(&token.text), Some(&token));
            }
            Ok(Piece::Event(Event::Tail(text))) => self.say(index, Some(&text), None),
            Ok(Piece::Event(Event::Finished(finish))) => self.end(index, *finish).await,
            Err(error) => {
                tracing::warn!(id = self.shape.id(), %error, "an answer broke off");
                self.drop_answers();
                let error = match &self.reader {
                    Some((reader, fault)) => reader.told(error, *fault),
                    None => error,
                };
                let last = match &mut self.reply {
                    Some(reply) => self.wire.write(&reply.fail(&error)),
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
        if let Some(reply) = &mut self.reply {
            let (wire, said) =
                (self.wire, said.iter().filter(|said| !matches!(said, Said::Text(text) if text.is_empty())));
            self.ready.extend(said.flat_map(|said| reply.say(said)).map(|event| wire.write(&event)));
            return;
        }
        let (mut text, mut calls) = (String::new(), Vec::new());
        for part in said {
            match part {
                Said::Thought(thought) => self.ready.push_back(event(&self.shape.thought(index, &thought))),
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

    /// Sends a prompt before the answer to it.
    fn repeat(&mut self, index: usize, told: &Told) {
        self.ready.push_back(event(&self.shape.echo(index, told)));
        self.characters[index] = told.characters;
    }

    /// Their places are free, however long the client takes to read the rest.
    fn drop_answers(&mut self) {
        self.answers = futures::stream::empty().boxed();
    }

    fn piece(&mut self, index: usize, text: &str, token: Option<&TokenEvent>) {
        self.ready.push_back(event(&self.shape.piece(index, text, token, self.characters[index])));
    }

    async fn end(&mut self, index: usize, finish: Finish) {
        self.say(index, None, None);
        if let Some(reply) = &mut self.reply {
            let (wire, mut events) = (self.wire, reply.end(&self.citations, &finish));
            trace::describe_answers([&finish]);
            // Its place is free before the disk has written.
            self.answers = futures::stream::empty().boxed();
            if let Err(error) = reply.keep(&mut events).await {
                let error = match &self.reader {
                    Some((reader, fault)) => reader.told(error, *fault),
                    None => error,
                };
                events = vec![reply.fail(&error)];
            }
            self.ready.extend(events.iter().map(|event| wire.write(event)));
            return;
        }
        let has_called = self.readers[index].as_ref().is_some_and(AnswerReader::has_called);
        let (citations, characters) = (&self.citations, self.characters[index]);
        self.ready.push_back(event(&self.shape.ending(index, citations, &finish, has_called, characters)));
        self.finished[index / self.per_prompt.max(1)].push(finish);
        if self.finished.iter().map(Vec::len).sum::<usize>() < self.characters.len() {
            return;
        }
        trace::describe_answers(self.finished.iter().flatten());
        self.drop_answers();
        if self.include_usage {
            self.ready.push_back(event(&self.shape.usage_chunk(&self.finished)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{FinishReason, ReuseReport, Usage};

    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |logprob: &f32| TokenEvent { id: 0, text: String::new(), logprob: *logprob, top: Vec::new() };
        let (usage, report) = (Usage::default(), ReuseReport::default());
        let finish =
            Finish { reason: FinishReason::Length, usage, report, stop: None, grounding: None, end_token: None };
        Answer { text: text.into(), citations: Vec::new(), tokens: logprobs.iter().map(token).collect(), finish }
    }

    #[tokio::test]
    async fn a_stream_beats_while_nothing_is_sent_and_ends_with_what_is() {
        let (sender, received) = mpsc::channel(1);
        let finished = Arc::new(AtomicBool::new(false));
        let every = Duration::from_millis(1);
        let mut beating = Box::pin(beating(sent(received, finished.clone(), None), comment(), every));
        let (first, second) = (Bytes::from_static(b"data: 1\n\n"), Bytes::from_static(b"data: 2\n\n"));
        sender.send(first.clone()).await.unwrap();
        assert_eq!(beating.next().await.unwrap().unwrap(), first);
        for _ in 0..2 {
            assert_eq!(beating.next().await.unwrap().unwrap(), ": \n\n");
        }
        sender.send(second.clone()).await.unwrap();
        assert_eq!(beating.next().await.unwrap().unwrap(), second);
        finished.store(true, Ordering::Relaxed);
        drop(sender);
        assert!(beating.next().await.is_none());
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
