//! Sends an answer: whole, or as server-sent events. A caller that goes away cancels its request.

use std::collections::VecDeque;
use std::convert::Infallible;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures::Stream;
use ragstone_actors::{AnswerStream, Event, Finish, Question};
use serde_json::Value;

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
        _in_flight: InFlight::of(request),
    };
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(events.stream()))
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
    /// Keeps a shutdown waiting until the answer is sent.
    _in_flight: Option<InFlight>,
}

impl Events {
    fn stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        futures::stream::unfold(self, |mut events| async move {
            loop {
                if let Some(bytes) = events.ready.pop_front() {
                    return Some((Ok(bytes), events));
                }
                events.advance().await?;
            }
        })
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
