//! Sends an answer: whole, or as server-sent events. A caller that goes away cancels its request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::Stream;
use ragstone_actors::{AnswerStream, Event, Finish, Question};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use super::error::body;
use super::shape::Shape;
use crate::error::Result;
use crate::service::{InFlight, State};

/// A question and how its answer is wanted.
pub struct Asked {
    pub question: Question,
    pub shape: Shape,
    pub stream: bool,
    pub include_usage: bool,
}

/// Asks, and answers when the first token is there: what fails before it has its own status.
pub async fn respond(state: &State, request: &HttpRequest, asked: Asked) -> Result<HttpResponse> {
    let ragstone = state.opened()?.ragstone.clone();
    let (question, shape) = (asked.question, asked.shape);
    tracing::debug!(id = shape.id(), "question");
    let answer = state.on_runtime(async move { ragstone.answer(question).await }).await??;
    if !asked.stream {
        return Ok(HttpResponse::Ok().json(shape.answer(&answer.collect().await?)));
    }
    let events = Events {
        ready: shape.opening().iter().map(event).collect(),
        answer: Some(answer),
        shape,
        include_usage: asked.include_usage,
        characters: 0,
    };
    let (sender, received) = mpsc::channel(SENT_AHEAD);
    let finished = Arc::new(AtomicBool::new(false));
    state.spawn(events.pump(sender, finished.clone(), state.write_timeout));
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(sent(received, finished, InFlight::of(request))))
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
pub fn event(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// The events of one answer. Dropping it drops the answer, which cancels the request.
struct Events {
    answer: Option<AnswerStream>,
    shape: Shape,
    include_usage: bool,
    /// Characters sent so far.
    characters: usize,
    ready: VecDeque<Bytes>,
}

impl Events {
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
        let answer = self.answer.as_mut()?;
        match answer.next().await {
            Some(Ok(Event::Token(token))) => {
                if !token.text.is_empty() || self.shape.wants_logprobs() {
                    self.ready.push_back(event(&self.shape.piece(&token.text, Some(&token), self.characters)));
                }
                self.characters += token.text.chars().count();
            }
            Some(Ok(Event::Tail(text))) => {
                self.ready.push_back(event(&self.shape.piece(&text, None, self.characters)));
                self.characters += text.chars().count();
            }
            Some(Ok(Event::Finished(finish))) => self.end(&finish),
            Some(Err(error)) => {
                let error = crate::error::Error::from(error);
                tracing::warn!(id = self.shape.id(), %error, "an answer broke off");
                self.answer = None;
                self.ready.push_back(event(&body(&error)));
            }
            None => self.answer = None,
        }
        Some(())
    }

    fn end(&mut self, finish: &Finish) {
        let citations = self.answer.take().map(|answer| answer.citations).unwrap_or_default();
        self.ready.push_back(event(&self.shape.ending(&citations, finish)));
        if self.include_usage {
            self.ready.push_back(event(&self.shape.usage_chunk(finish)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}
