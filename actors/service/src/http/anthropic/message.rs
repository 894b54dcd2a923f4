//! A message as Anthropic's API has it, and the events of its stream.

use bytes::Bytes;
use ragstone_actors::{Citation, Finish, FinishReason};
use ragstone_env::Env;
use serde_json::{Value, json};

use super::error_body;
use crate::error::Error;
use crate::http::reply::{Prompted, Reply};
use crate::http::shape;
use crate::http::tools::Said;

/// What a call's id begins with.
pub const CALL: &str = "toolu_";

/// A message as it grows.
#[derive(Debug)]
pub struct Message {
    message: Value,
    blocks: Vec<Value>,
    /// The text of the last block, while it is open.
    open: Option<String>,
    has_called: bool,
    goes_on: bool,
}

impl Message {
    /// An empty one of this model; `goes_on`: with what the client began to say for it, so that a space before it counts.
    pub fn new(env: &Env, model: &str, goes_on: bool) -> Self {
        let id = format!("msg_{:016x}{:016x}", env.random_u64(), env.random_u64());
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": usage(Prompted::default(), 0),
        });
        Self { message, blocks: Vec::new(), open: None, has_called: false, goes_on }
    }

    fn text(&mut self, text: &str) -> Vec<Value> {
        let (at, mut events) = (self.blocks.len(), Vec::new());
        // Tokens carry the space before them.
        let goes_on = self.open.is_some() || (self.goes_on && at == 0);
        let text = if goes_on { text } else { text.trim_start() };
        if text.is_empty() {
            return events;
        }
        if self.open.is_none() {
            let block = json!({ "type": "text", "text": "" });
            events.push(json!({ "type": "content_block_start", "index": at, "content_block": block }));
        }
        self.open.get_or_insert_default().push_str(text);
        let delta = json!({ "type": "text_delta", "text": text });
        events.push(json!({ "type": "content_block_delta", "index": at, "delta": delta }));
        events
    }

    fn close(&mut self) -> Vec<Value> {
        let Some(text) = self.open.take() else { return Vec::new() };
        let event = json!({ "type": "content_block_stop", "index": self.blocks.len() });
        self.blocks.push(json!({ "type": "text", "text": text }));
        vec![event]
    }

    fn call(&mut self, id: &str, name: &str, arguments: &str) -> Vec<Value> {
        let mut events = self.close();
        self.has_called = true;
        let (at, id) = (self.blocks.len(), format!("{CALL}{id}"));
        let block = |input: Value| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
        let delta = json!({ "type": "input_json_delta", "partial_json": arguments });
        events.extend([
            json!({ "type": "content_block_start", "index": at, "content_block": block(json!({})) }),
            json!({ "type": "content_block_delta", "index": at, "delta": delta }),
            json!({ "type": "content_block_stop", "index": at }),
        ]);
        let input = serde_json::from_str(arguments).ok().filter(Value::is_object);
        self.blocks.push(block(input.unwrap_or_else(|| json!({}))));
        events
    }

    fn stop_reason(&self, finish: &Finish) -> &'static str {
        match finish.reason {
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if self.has_called => "tool_use",
            FinishReason::Stop if finish.stop.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
        }
    }
}

impl Reply for Message {
    fn begin(&mut self, prompt: Prompted) -> Vec<Value> {
        self.message["usage"] = usage(prompt, 0);
        vec![json!({ "type": "message_start", "message": self.message }), json!({ "type": "ping" })]
    }

    fn say(&mut self, said: &Said) -> Vec<Value> {
        match said {
            Said::Text(text) => self.text(text),
            // Thoughts are sent back signed there, and nobody signs these.
            Said::Thought(_) => Vec::new(),
            Said::Call { id, name, arguments, .. } => self.call(id, name, arguments),
        }
    }

    fn end(&mut self, citations: &[Citation], finish: &Finish) -> Vec<Value> {
        let mut events = self.close();
        let prompt = Prompted { tokens: finish.usage.prompt_tokens, cached: finish.report.tokens.exact };
        let delta = json!({ "stop_reason": self.stop_reason(finish), "stop_sequence": finish.stop });
        self.message["stop_reason"] = delta["stop_reason"].clone();
        self.message["stop_sequence"] = delta["stop_sequence"].clone();
        self.message["usage"] = usage(prompt, finish.usage.completion_tokens);
        self.message["ragstone"] = shape::extension(citations, finish);
        events.push(json!({
            "type": "message_delta", "delta": delta, "usage": self.message["usage"], "ragstone": self.message["ragstone"],
        }));
        events.push(json!({ "type": "message_stop" }));
        events
    }

    fn fail(&mut self, error: &Error) -> Value {
        error_body(error)
    }

    fn heartbeat(&self) -> Option<Bytes> {
        Some(self.wire().write(&json!({ "type": "ping" })))
    }

    fn whole(&self) -> Value {
        let mut message = self.message.clone();
        message["content"] = self.blocks.clone().into();
        message
    }
}

/// Token counts: what was stored is counted apart.
fn usage(Prompted { tokens, cached }: Prompted, said: u32) -> Value {
    json!({
        "input_tokens": tokens.saturating_sub(cached), "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": said,
    })
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{ReuseReport, Usage};

    use super::*;

    fn finish(reason: FinishReason, stop: Option<&str>) -> Finish {
        let mut report = ReuseReport::default();
        report.tokens.exact = 4;
        let usage = Usage { prompt_tokens: 10, completion_tokens: 3 };
        Finish { reason, usage, report, stop: stop.map(str::to_owned), grounding: None, end_token: None }
    }

    #[test]
    fn events_add_up_to_the_message() {
        let mut message = Message::new(&Env::seeded(1, 5), "m", false);
        let call = Said::Call { index: 0, id: "abc".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() };
        let mut events = message.begin(Prompted { tokens: 10, cached: 4 });
        for said in [Said::Text(" Hel".into()), Said::Text("lo ".into()), call] {
            events.extend(message.say(&said));
        }
        events.extend(message.end(&[], &finish(FinishReason::Stop, None)));
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        assert_eq!(
            kinds,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
        );
        assert_eq!(events[0]["message"]["usage"]["input_tokens"], 6);
        assert_eq!(events[9]["usage"]["output_tokens"], 3);
        let whole = message.whole();
        assert_eq!(
            whole["content"],
            json!([{ "type": "text", "text": "Hello " }, { "type": "tool_use", "id": "toolu_abc", "name": "f", "input": { "a": 1 } }])
        );
        assert_eq!(
            (&whole["stop_reason"], &whole["usage"]["cache_read_input_tokens"]),
            (&json!("tool_use"), &json!(4))
        );
    }

    #[test]
    fn a_ping_is_sent_while_there_is_nothing_to_say() {
        let message = Message::new(&Env::seeded(1, 5), "m", false);
        assert_eq!(message.heartbeat().unwrap(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    #[test]
    fn the_reason_says_what_ended_it() {
        let ended = |finish: &Finish| {
            let mut message = Message::new(&Env::seeded(1, 5), "m", false);
            message.say(&Said::Text("a".into()));
            message.end(&[], finish);
            let whole = message.whole();
            (whole["stop_reason"].as_str().unwrap_or_default().to_owned(), whole["stop_sequence"].clone())
        };
        assert_eq!(ended(&finish(FinishReason::Stop, None)), ("end_turn".into(), Value::Null));
        assert_eq!(ended(&finish(FinishReason::Stop, Some("END"))), ("stop_sequence".into(), json!("END")));
        assert_eq!(ended(&finish(FinishReason::Length, None)), ("max_tokens".into(), Value::Null));
    }
}
