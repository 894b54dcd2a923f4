//! An answer in a protocol's own form: each protocol beside OpenAI's completions is one [`Reply`], which `answer.rs` drives.

use actix_web::body::BoxBody;
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use bytes::Bytes;
use futures::future::BoxFuture;
use ragstone_actors::{Citation, Finish};
use serde_json::Value;

use super::answer::{comment, event};
use super::error::Refusal;
use super::identity::Visitor;
use super::tools::Said;
use crate::error::{Error, Result};
use crate::http::state::State;

/// What is known of a prompt when its first token is there.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompted {
    pub tokens: u32,
    /// Of those, what was stored bit for bit or on the device already.
    pub cached: u32,
}

/// An answer as it grows. A stream sends what its functions return; a whole answer is what stands at the end.
pub trait Reply: Send {
    /// The first events.
    fn begin(&mut self, prompt: Prompted) -> Vec<Value>;
    /// Events of a piece of the answer, which is not empty.
    fn say(&mut self, said: &Said) -> Vec<Value>;
    /// The last events.
    fn end(&mut self, citations: &[Citation], finish: &Finish) -> Vec<Value>;
    /// Keeps the answer, whose last events these are, for requests that refer to it. Does nothing for most protocols.
    fn keep<'a>(&'a mut self, _events: &'a mut [Value]) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// The event that breaks the stream off.
    fn fail(&mut self, error: &Error) -> Value;
    /// The whole answer, behind its end.
    fn whole(&self) -> Value;
    /// About how many bytes of memory it holds of what its request sent, beside the question.
    fn held_bytes(&self) -> usize {
        0
    }
    /// How events are sent.
    fn wire(&self) -> Wire {
        Wire::NamedEvents
    }
    /// What is sent while there is nothing else to send; `None`: nothing.
    fn heartbeat(&self) -> Option<Bytes> {
        Some(comment())
    }
}

/// How the events of a stream are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events; the last one is `[DONE]`.
    Events,
    /// Server-sent events that say their type twice.
    NamedEvents,
    /// JSON lines.
    Lines,
}

impl Wire {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Events | Self::NamedEvents => "text/event-stream; charset=utf-8",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// An event's bytes.
    pub fn write(self, data: &Value) -> Bytes {
        match self {
            Self::Events => event(data),
            Self::NamedEvents => {
                let kind = data["type"].as_str().unwrap_or_default();
                Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
            }
            Self::Lines => Bytes::from(format!("{data}\n")),
        }
    }
}

/// An error in a protocol's own form. Status and headers are those of every path, and a tenant hears of a fault what it hears elsewhere.
pub fn refused(state: &State, request: &HttpRequest, refusal: Refusal, body: fn(&Error) -> Value) -> HttpResponse {
    let error = match Visitor::of(request) {
        Ok(visitor) => visitor.told(refusal.0, state.env.random_u64()),
        Err(error) => error,
    };
    let written = body(&error).to_string();
    let (head, _) = Refusal(error).error_response().into_parts();
    head.set_body(BoxBody::new(written))
}
