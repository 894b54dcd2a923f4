//! The events of a response, and the response itself, which is what its last event carries.

use futures::future::BoxFuture;
use ragstone_actors::{Citation, Finish, FinishReason};
use ragstone_env::Env;
use serde_json::{Value, json};

use super::Requested;
use super::kept::Keeping;
use crate::error::{Error, Result};
use crate::http::body::value_bytes;
use crate::http::error::body;
use crate::http::reply::{Prompted, Reply};
use crate::http::shape;
use crate::http::tools::Said;

/// An item whose text comes in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Message,
    Reasoning,
}

impl Open {
    /// What its ids begin with, what its parts and their events are called.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Message => ("msg", "output_text"),
            Self::Reasoning => ("rs", "reasoning_text"),
        }
    }

    fn part(self, text: &str) -> Value {
        match self {
            Self::Message => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            Self::Reasoning => json!({ "type": "reasoning_text", "text": text }),
        }
    }

    /// The item; without a text, as it begins.
    fn item(self, id: &str, status: &str, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.map(|text| self.part(text)).into_iter().collect();
        match self {
            Self::Message => {
                json!({ "type": "message", "id": id, "role": "assistant", "status": status, "content": content })
            }
            Self::Reasoning => {
                json!({ "type": "reasoning", "id": id, "status": status, "summary": [], "content": content })
            }
        }
    }
}

/// A response as it grows.
#[derive(Debug)]
pub struct ResponseStream {
    response: Value,
    /// Events so far.
    sequence: u64,
    /// The kind and the text of the open item.
    open: Option<(Open, String)>,
    /// How it is kept.
    keeping: Option<Keeping>,
    /// What it repeats of its request, and keeps of it, takes of memory.
    held_bytes: usize,
}

impl ResponseStream {
    /// An empty response of this model.
    pub fn new(id: String, env: &Env, model: &str, requested: Requested) -> Self {
        let mut response = json!({
            "id": id, "object": "response",
            "created_at": env.now_unix_ms() / 1000, "status": "in_progress", "error": null,
            "incomplete_details": null, "model": model, "output": [], "previous_response_id": null, "store": false,
            "usage": null, "metadata": {}, "background": false, "truncation": "disabled",
        });
        let repeated: usize = requested.echo.values().map(value_bytes).sum();
        let held_bytes = repeated + requested.keeping.as_ref().map_or(0, Keeping::held_bytes);
        for (name, value) in requested.echo {
            response[name] = value;
        }
        for (name, default) in [("parallel_tool_calls", json!(true)), ("tool_choice", json!("auto"))] {
            if response[name].is_null() {
                response[name] = default;
            }
        }
        Self { response, sequence: 0, open: None, keeping: requested.keeping, held_bytes }
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Value {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        fields
    }

    /// Where the next item stands.
    fn at(&self) -> usize {
        self.response["output"].as_array().map_or(0, Vec::len)
    }

    fn item_id(&self, kind: &str) -> String {
        let id = self.response["id"].as_str().unwrap_or_default();
        format!("{kind}_{}_{}", id.trim_start_matches("resp_"), self.at())
    }

    fn keep(&mut self, item: Value) {
        if let Some(output) = self.response["output"].as_array_mut() {
            output.push(item);
        }
    }

    fn text(&mut self, kind: Open, text: &str) -> Vec<Value> {
        let mut events =
            if self.open.as_ref().is_some_and(|(open, _)| *open != kind) { self.close() } else { Vec::new() };
        let (prefix, name) = kind.names();
        let (id, at) = (self.item_id(prefix), self.at());
        if self.open.is_none() {
            let item = kind.item(&id, "in_progress", None);
            events.push(self.event("response.output_item.added", json!({ "output_index": at, "item": item })));
            let part = json!({ "item_id": id, "output_index": at, "content_index": 0, "part": kind.part("") });
            events.push(self.event("response.content_part.added", part));
        }
        self.open.get_or_insert_with(|| (kind, String::new())).1.push_str(text);
        let mut delta = json!({ "item_id": id, "output_index": at, "content_index": 0, "delta": text });
        if kind == Open::Message {
            delta["logprobs"] = json!([]);
        }
        events.push(self.event(&format!("response.{name}.delta"), delta));
        events
    }

    fn close(&mut self) -> Vec<Value> {
        let Some((kind, text)) = self.open.take() else { return Vec::new() };
        let (prefix, name) = kind.names();
        let (id, at) = (self.item_id(prefix), self.at());
        let item = kind.item(&id, "completed", Some(&text));
        let place =
            |name: &str, value: Value| json!({ "item_id": id, "output_index": at, "content_index": 0, name: value });
        let mut done = place("text", text.as_str().into());
        if kind == Open::Message {
            done["logprobs"] = json!([]);
        }
        let events = vec![
            self.event(&format!("response.{name}.done"), done),
            self.event("response.content_part.done", place("part", kind.part(&text))),
            self.event("response.output_item.done", json!({ "output_index": at, "item": item })),
        ];
        self.keep(item);
        events
    }

    fn call(&mut self, call_id: &str, name: &str, arguments: &str) -> Vec<Value> {
        let mut events = self.close();
        let (id, at) = (self.item_id("fc"), self.at());
        let item = |status: &str, arguments: &str| {
            json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments,
                "status": status,
            })
        };
        let place = |key: &str| json!({ "item_id": id, "output_index": at, "name": name, key: arguments });
        let begin = json!({ "output_index": at, "item": item("in_progress", "") });
        events.push(self.event("response.output_item.added", begin));
        events.push(self.event("response.function_call_arguments.delta", place("delta")));
        events.push(self.event("response.function_call_arguments.done", place("arguments")));
        let done = item("completed", arguments);
        events.push(self.event("response.output_item.done", json!({ "output_index": at, "item": done })));
        self.keep(done);
        events
    }
}

impl Reply for ResponseStream {
    fn begin(&mut self, _prompt: Prompted) -> Vec<Value> {
        let response = self.response.clone();
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
        ]
    }

    fn say(&mut self, said: &Said) -> Vec<Value> {
        match said {
            Said::Text(text) => self.text(Open::Message, text),
            Said::Thought(thought) => self.text(Open::Reasoning, thought),
            Said::Call { id, name, arguments, .. } => self.call(id, name, arguments),
        }
    }

    fn end(&mut self, citations: &[Citation], finish: &Finish) -> Vec<Value> {
        let mut events = self.close();
        let is_whole = finish.reason == FinishReason::Stop;
        let (prompt, answer) = (finish.usage.prompt_tokens, finish.usage.completion_tokens);
        let tokens = finish.report.tokens;
        self.response["status"] = if is_whole { "completed" } else { "incomplete" }.into();
        if !is_whole {
            self.response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        self.response["usage"] = json!({
            "input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer,
            "input_tokens_details": { "cached_tokens": tokens.exact, "blended_tokens": tokens.blended },
            "output_tokens_details": { "reasoning_tokens": 0 },
        });
        self.response["ragstone"] = shape::extension(citations, finish);
        let kind = if is_whole { "response.completed" } else { "response.incomplete" };
        let response = self.response.clone();
        events.push(self.event(kind, json!({ "response": response })));
        events
    }

    fn keep<'a>(&'a mut self, events: &'a mut [Value]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(keeping) = &self.keeping else { return Ok(()) };
            if !keeping.keep(&self.response).await? {
                let ends = events.iter_mut().filter_map(|event| event.get_mut("response"));
                ends.chain([&mut self.response]).for_each(|response| response["store"] = false.into());
            }
            Ok(())
        })
    }

    fn fail(&mut self, error: &Error) -> Value {
        let error = body(error).error;
        let fields = json!({ "code": error.code, "message": error.message, "param": error.param });
        self.event("error", fields)
    }

    fn whole(&self) -> Value {
        self.response.clone()
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{ReuseReport, Usage};

    use super::*;
    use crate::api::responses::{Response, ResponseEvent};

    #[test]
    fn events_add_up_to_the_response() {
        let mut stream = ResponseStream::new("resp_1".into(), &Env::seeded(1, 5_000), "m", Requested::default());
        let call = Said::Call { index: 0, id: "c1".into(), name: "look".into(), arguments: "{}".into() };
        let mut events = stream.begin(Prompted::default());
        for said in [Said::Text("a".into()), Said::Text("b".into()), call] {
            events.extend(stream.say(&said));
        }
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2 };
        let mut report = ReuseReport::default();
        (report.tokens.exact, report.tokens.blended) = (2, 1);
        events.extend(stream.end(
            &[],
            &Finish { reason: FinishReason::Length, usage, report, stop: None, grounding: None, end_token: None },
        ));
        let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "incomplete",
        ];
        assert_eq!(kinds, expected.map(|kind| format!("response.{kind}")));
        assert!(events.iter().enumerate().all(|(index, event)| event["sequence_number"] == index));
        let response = &events.last().unwrap()["response"];
        assert_eq!(*response, stream.whole());
        assert_eq!(response["output"][0]["content"][0]["text"], "ab");
        assert_eq!(response["output"][1]["call_id"], "c1");
        assert_eq!(response["usage"]["input_tokens_details"], json!({ "cached_tokens": 2, "blended_tokens": 1 }));
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        let typed: Response = serde_json::from_value(response.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), *response);
        for event in &events {
            let typed: ResponseEvent = serde_json::from_value(event.clone()).unwrap();
            assert_eq!(serde_json::to_value(typed).unwrap(), *event);
        }
    }

    #[test]
    fn what_is_repeated_of_a_request_is_counted() {
        let stream = |echo: Value| {
            let echo = echo.as_object().unwrap().clone();
            ResponseStream::new("resp_1".into(), &Env::seeded(1, 5_000), "m", Requested { echo, keeping: None })
        };
        assert_eq!(stream(json!({})).held_bytes(), 0);
        let held = stream(json!({ "tools": [{ "x": vec![0; 1000] }], "instructions": "i".repeat(500) })).held_bytes();
        assert!(held > 1000 * size_of::<Value>() + 500, "{held}");
    }

    #[test]
    fn thoughts_are_an_item_before_the_message() {
        let mut stream = ResponseStream::new("resp_1".into(), &Env::seeded(1, 5_000), "m", Requested::default());
        let mut events = Vec::new();
        for said in [Said::Thought("Hm".into()), Said::Thought(".".into()), Said::Text("Nine.".into())] {
            events.extend(stream.say(&said));
        }
        events.extend(stream.close());
        let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
        let item = |name: &str, deltas: usize| {
            let begin = ["response.output_item.added".to_owned(), "response.content_part.added".to_owned()];
            let end = [
                format!("response.{name}.done"),
                "response.content_part.done".into(),
                "response.output_item.done".into(),
            ];
            begin.into_iter().chain(vec![format!("response.{name}.delta"); deltas]).chain(end)
        };
        assert_eq!(kinds, item("reasoning_text", 2).chain(item("output_text", 1)).collect::<Vec<_>>());
        let output = stream.whole()["output"].clone();
        assert_eq!((&output[0]["type"], &output[0]["content"][0]["text"]), (&json!("reasoning"), &json!("Hm.")));
        assert_eq!((&output[1]["type"], &output[1]["content"][0]["text"]), (&json!("message"), &json!("Nine.")));
        assert_ne!(output[0]["id"], output[1]["id"]);
    }
}
