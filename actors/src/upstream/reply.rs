//! What an engine answers, read from its server-sent events. Pure.
//!
//! Thoughts and calls of tools come as fields of their own; they are written into the text as models write them (`<think>`, `<tool_call>`),
//! where what reads our own models' answers finds them, so that every protocol of the service has them.

mod calls;

use std::collections::VecDeque;

use serde_json::Value;

use self::calls::Calls;
use super::request::Endpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::report::{Alternative, FinishReason, TokenEvent};

/// Bytes of one event: a call's arguments may be long, and come in pieces.
const MOST_EVENT_BYTES: usize = 4 << 20;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// More of its text.
    Text(String),
    /// A token with its log-probability, where those were asked for.
    Token(TokenEvent),
    /// What it took; comes before the end, and from some engines not at all.
    Usage(UpstreamUsage),
    /// Why it ended, and which of the request's stop texts ended it, where the engine says so; the last part.
    End(FinishReason, Option<String>),
}

/// What an engine says an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Of the prompt's, those that were in its cache; `None`: it does not say.
    pub cached_tokens: Option<u32>,
}

/// The answer so far.
pub(super) struct Reply {
    endpoint: Endpoint,
    /// Bytes of a line that has not ended.
    line: Vec<u8>,
    ready: VecDeque<Heard>,
    calls: Calls,
    is_thinking: bool,
    finish: Option<FinishReason>,
    /// Texts that the request has end its answer, and the one that did.
    stops: Vec<String>,
    stop: Option<String>,
    has_ended: bool,
}

impl Reply {
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            line: Vec::new(),
            ready: VecDeque::new(),
            calls: Calls::default(),
            is_thinking: false,
            finish: None,
            stops: Vec::new(),
            stop: None,
            has_ended: false,
        }
    }

    /// To a request of this body.
    pub fn to(endpoint: Endpoint, body: &Value) -> Self {
        let texts = |value: &Value| value.as_str().map(str::to_owned);
        let stops = match &body["stop"] {
            Value::Array(stops) => stops.iter().filter_map(texts).collect(),
            stop => texts(stop).into_iter().collect(),
        };
        Self { stops, ..Self::new(endpoint) }
    }

    /// The next part that is certain.
    pub fn next(&mut self) -> Option<Heard> {
        self.ready.pop_front()
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Nothing comes any more.
    pub fn give_up(&mut self) {
        self.ready.clear();
        self.has_ended = true;
    }

    /// Takes bytes as they come, cut anywhere.
    ///
    /// # Errors
    /// An error that the engine reports, and what is no event.
    pub fn read(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.line(&line)?;
            } else if self.line.len() == MOST_EVENT_BYTES {
                return Err(bad(&format!("an event has more than {MOST_EVENT_BYTES} bytes")));
            } else {
                self.line.push(*byte);
            }
        }
        Ok(())
    }

    /// The connection has ended. Some engines end it behind the last choice, without `[DONE]`.
    ///
    /// # Errors
    /// Where the answer had not ended.
    pub fn close(&mut self) -> Result<()> {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.line(&line)?;
        }
        if self.has_ended {
            return Ok(());
        }
        if self.finish.is_none() {
            return Err(bad("the connection ended before the answer did"));
        }
        self.end();
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        // Comments keep a connection alive; other fields say nothing here.
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data.is_empty() || self.has_ended {
            return Ok(());
        }
        if data == b"[DONE]" {
            if self.finish.is_none() {
                return Err(bad("the answer ended without saying why"));
            }
            self.end();
            return Ok(());
        }
        let event: Value =
            serde_json::from_slice(data).map_err(|error| bad(&format!("an event is no JSON ({error})")))?;
        self.event(&event)
    }

    fn event(&mut self, event: &Value) -> Result<()> {
        if !event["error"].is_null() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the engine failed while it answered: {}", error_text(&event.to_string())),
            ));
        }
        let choice = &event["choices"][0];
        match self.endpoint {
            Endpoint::Chat => self.delta(&choice["delta"], &choice["logprobs"])?,
            Endpoint::Completions => self.text(choice["text"].as_str().unwrap_or_default()),
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            // vLLM and SGLang end so whom they let down: paused, shut down or scaled away. What was said is cut anywhere.
            if matches!(reason, "abort" | "error" | "cancelled") {
                return Err(bad(&format!("the engine broke the answer off (`{reason}`)")));
            }
            // `stop`, `tool_calls`, `content_filter`, and what engines add: the model said what it said.
            self.finish = Some(if reason == "length" { FinishReason::Length } else { FinishReason::Stop });
            // vLLM's name and SGLang's; a number is a token.
            let stop = choice["stop_reason"].as_str().or_else(|| choice["matched_stop"].as_str());
            self.stop = stop.filter(|stop| self.stops.iter().any(|asked| asked == stop)).map(str::to_owned);
        }
        if event["usage"].is_object() {
            let usage = usage(&event["usage"]);
            self.ready.retain(|heard| !matches!(heard, Heard::Usage(_)));
            self.ready.push_back(Heard::Usage(usage));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, logprobs: &Value) -> Result<()> {
        let thought = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str()).unwrap_or_default();
        if !thought.is_empty() {
            if !self.is_thinking {
                self.is_thinking = true;
                self.say("<think>");
            }
            self.say(thought);
        }
        let text = delta["content"].as_str().unwrap_or_default();
        match logprobs["content"].as_array() {
            Some(tokens) if !tokens.is_empty() => self.tokens(text, tokens),
            _ => self.text(text),
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.calls.add(call)?;
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.end_thought();
            self.say(text);
        }
    }

    fn end_thought(&mut self) {
        if std::mem::take(&mut self.is_thinking) {
            self.say("</think>");
        }
    }

    fn say(&mut self, text: &str) {
        self.ready.push_back(Heard::Text(text.to_owned()));
    }

    /// Tokens with log-probabilities: their texts are the delta's, but where one ends within a character.
    fn tokens(&mut self, text: &str, tokens: &[Value]) {
        // Those of a thought come without a text.
        if !text.is_empty() {
            self.end_thought();
        }
        let texts: Vec<&str> = tokens.iter().map(|token| token["token"].as_str().unwrap_or_default()).collect();
        let is_whole = texts.concat() == text;
        let last = tokens.len() - 1;
        for (index, token) in tokens.iter().enumerate() {
            let own = match (is_whole, index == last) {
                (true, _) => texts[index],
                (false, true) => text,
                (false, false) => "",
            };
            let top = token["top_logprobs"].as_array().into_iter().flatten().map(|other| Alternative {
                id: 0,
                bytes: bytes(other),
                logprob: logprob(other),
            });
            let event = TokenEvent { id: 0, text: own.to_owned(), logprob: logprob(token), top: top.collect() };
            self.ready.push_back(Heard::Token(event));
        }
    }

    fn end(&mut self) {
        self.end_thought();
        for call in std::mem::take(&mut self.calls).written() {
            self.say(&format!("<tool_call>\n{call}\n</tool_call>"));
        }
        // What it took comes behind what it said.
        let usage =
            self.ready.iter().position(|heard| matches!(heard, Heard::Usage(_))).and_then(|at| self.ready.remove(at));
        self.ready.extend(usage);
        self.ready.push_back(Heard::End(self.finish.unwrap_or(FinishReason::Stop), self.stop.take()));
        self.has_ended = true;
    }
}

fn usage(usage: &Value) -> UpstreamUsage {
    let count = |value: &Value| value.as_u64().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    // DeepSeek's name for it is another.
    let cached =
        count(&usage["prompt_tokens_details"]["cached_tokens"]).or_else(|| count(&usage["prompt_cache_hit_tokens"]));
    let prompt_tokens = count(&usage["prompt_tokens"]).unwrap_or(0);
    UpstreamUsage {
        prompt_tokens,
        completion_tokens: count(&usage["completion_tokens"]).unwrap_or(0),
        cached_tokens: cached.map(|cached| cached.min(prompt_tokens)),
    }
}

fn bytes(token: &Value) -> Vec<u8> {
    match token["bytes"].as_array() {
        Some(bytes) => bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        None => token["token"].as_str().unwrap_or_default().into(),
    }
}

fn logprob(token: &Value) -> f32 {
    token["logprob"].as_f64().unwrap_or(0.0) as f32
}

/// What an error's body says: the message of OpenAI's form, or its beginning.
pub(super) fn error_text(body: &str) -> String {
    const MOST: usize = 1000;
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let said = [&parsed["error"]["message"], &parsed["message"], &parsed["detail"], &parsed["error"]];
    let text = said.iter().find_map(|value| value.as_str()).unwrap_or(body).trim();
    let text: String = text.chars().filter(|c| !c.is_control() || *c == '\n').take(MOST).collect();
    if text.is_empty() { "it does not say why".to_owned() } else { text }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Everything that is heard of events, cut into pieces of `size` bytes.
    fn hear(endpoint: Endpoint, events: &[&str], size: usize) -> Result<Vec<Heard>> {
        let mut reply = Reply::new(endpoint);
        let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        for piece in text.as_bytes().chunks(size) {
            reply.read(piece)?;
        }
        reply.close()?;
        let mut heard = Vec::new();
        while let Some(part) = reply.next() {
            heard.push(part);
        }
        Ok(heard)
    }

    fn text(heard: &[Heard]) -> String {
        let one = |part: &Heard| match part {
            Heard::Text(text) => text.clone(),
            Heard::Token(token) => token.text.clone(),
            _ => String::new(),
        };
        heard.iter().map(one).collect()
    }

    #[test]
    fn an_answer_is_the_same_however_its_bytes_are_cut() {
        let events = [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Zürich, "},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"1848"},"finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}}"#,
            "[DONE]",
        ];
        let usage = UpstreamUsage { prompt_tokens: 100, completion_tokens: 3, cached_tokens: Some(64) };
        for size in [1, 7, 4096] {
            let heard = hear(Endpoint::Chat, &events, size).unwrap();
            assert_eq!(text(&heard), "Zürich, 1848");
            assert_eq!(heard[heard.len() - 2..], [Heard::Usage(usage), Heard::End(FinishReason::Length, None)]);
        }
        let plain = [r#"{"choices":[{"text":"a b","finish_reason":"stop"}]}"#, "[DONE]"];
        let heard = hear(Endpoint::Completions, &plain, 5).unwrap();
        assert_eq!(
            heard,
            [Heard::Text("a b".into()), Heard::End(FinishReason::Stop, None)],
            "an engine may keep to itself what it took"
        );
    }

    #[test]
    fn thoughts_and_calls_are_in_the_text_as_models_write_them() {
        let events = [
            r#"{"choices":[{"delta":{"reasoning_content":"Hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"m."}}]}"#,
            r#"{"choices":[{"delta":{"content":"Look:"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"find","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"q\": \"a"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"b\"}"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"name":"now","arguments":""}}]},"finish_reason":"tool_calls"}]}"#,
            "[DONE]",
        ];
        let heard = hear(Endpoint::Chat, &events, 11).unwrap();
        let expected = "<think>Hmm.</think>Look:<tool_call>\n{\"name\":\"find\",\"arguments\":{\"q\":\"ab\"}}\n</tool_call>\
                        <tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>";
        assert_eq!(text(&heard), expected);
        assert_eq!(heard.last(), Some(&Heard::End(FinishReason::Stop, None)));
    }

    /// An agent would have run it.
    #[test]
    fn a_call_that_was_cut_off_is_none() {
        for (arguments, is_call) in [
            (r#"{"paths": ["/tmp/a"#, false),
            ("[1]", false),
            (r#"{"a":1}}"#, false),
            (r#"{"a":1},"name":"other"}"#, false),
            (" ", true),
            (r#"{"a":1}"#, true),
        ] {
            let function = json!({ "name": "delete", "arguments": arguments });
            let delta = json!({ "tool_calls": [{ "index": 0, "function": function }] });
            let event = json!({ "choices": [{ "delta": delta, "finish_reason": "length" }] }).to_string();
            let heard = hear(Endpoint::Chat, &[&event, "[DONE]"], 9).unwrap();
            let said = text(&heard);
            let call: Value = serde_json::from_str(
                said.strip_prefix("<tool_call>").and_then(|said| said.strip_suffix("</tool_call>")).unwrap(),
            )
            .unwrap();
            assert_eq!((&call["name"], call["arguments"].is_object()), (&json!("delete"), is_call), "{said}");
            assert_eq!(heard.last(), Some(&Heard::End(FinishReason::Length, None)));
        }
    }

    #[test]
    fn an_answer_that_the_engine_broke_off_is_an_error() {
        for reason in ["abort", "error"] {
            let event = format!(r#"{{"choices":[{{"delta":{{"content":"Half of"}},"finish_reason":"{reason}"}}]}}"#);
            let error = hear(Endpoint::Chat, &[&event, "[DONE]"], 64).unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_stop_text_that_the_engine_names_is_told() {
        for (said, stop) in [
            (r#""stop_reason":"</answer>""#, Some("</answer>")),
            (r#""matched_stop":"</answer>""#, Some("</answer>")),
            (r#""stop_reason":151645"#, None),
            (r#""stop_reason":null"#, None),
        ] {
            let event = format!(r#"{{"choices":[{{"delta":{{"content":"a"}},"finish_reason":"stop",{said}}}]}}"#);
            for asked in [json!({ "stop": "</answer>" }), json!({ "stop": ["x", "</answer>"] }), json!({})] {
                let mut reply = Reply::to(Endpoint::Chat, &asked);
                reply.read(format!("data: {event}\n\ndata: [DONE]\n\n").as_bytes()).unwrap();
                let stop = stop.filter(|_| !asked["stop"].is_null()).map(str::to_owned);
                assert_eq!(std::iter::from_fn(|| reply.next()).last(), Some(Heard::End(FinishReason::Stop, stop)));
            }
        }
    }

    /// vLLM tells the probabilities of a thought's tokens, too.
    #[test]
    fn a_thought_with_log_probabilities_is_one_thought() {
        let token = |token: &str| format!(r#""logprobs":{{"content":[{{"token":"{token}","logprob":-0.5}}]}}"#);
        let thought =
            |text: &str| format!(r#"{{"choices":[{{"delta":{{"reasoning_content":"{text}"}},{}}}]}}"#, token(text));
        let answer =
            format!(r#"{{"choices":[{{"delta":{{"content":"Nine"}},{},"finish_reason":"stop"}}]}}"#, token("Nine"));
        for size in [1, 4096] {
            let heard = hear(Endpoint::Chat, &[&thought("Hm"), &thought("m."), &answer], size).unwrap();
            assert_eq!(text(&heard), "<think>Hmm.</think>Nine");
            assert_eq!(heard.iter().filter(|part| matches!(part, Heard::Token(_))).count(), 3);
        }
    }

    #[test]
    fn log_probabilities_come_with_their_tokens() {
        let events = [
            r#"{"choices":[{"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"x","logprob":-1.5,"bytes":[120]}]},{"token":"b","logprob":-0.25,"bytes":[98],"top_logprobs":[]}]},"finish_reason":"stop"}]}"#,
        ];
        let heard = hear(Endpoint::Chat, &events, 4096).unwrap();
        assert_eq!(text(&heard), "ab");
        let Heard::Token(first) = &heard[0] else { panic!("{heard:?}") };
        assert_eq!((first.logprob, first.top.len(), &*first.top[0].bytes), (-0.5, 1, &b"x"[..]));
    }

    #[test]
    fn what_breaks_off_fails_or_is_no_event_is_an_error() {
        let begun = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
        for (events, word) in [
            (vec![begun], "before the answer did"),
            (vec![begun, "[DONE]"], "without saying why"),
            (vec![begun, r#"{"error":{"message":"out of memory","code":500}}"#], "out of memory"),
            (vec![begun, "{"], "no JSON"),
            (vec![r#"{"choices":[{"delta":{"tool_calls":[{"index":99999,"function":{}}]}}]}"#], "calls"),
        ] {
            let error = hear(Endpoint::Chat, &events, 3).unwrap_err();
            assert!(error.to_string().contains(word), "{events:?}: {error}");
        }
        let mut reply = Reply::new(Endpoint::Chat);
        assert!(reply.read(&vec![b'x'; MOST_EVENT_BYTES + 1]).is_err());
        // Foreign fields, comments and carriage returns are none of our business.
        let mut reply = Reply::new(Endpoint::Chat);
        reply.read(b": ping\r\nevent: x\r\nid: 3\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\r\n").unwrap();
        reply.read(b"data: [DONE]\r\n\r\n").unwrap();
        assert_eq!(reply.next(), Some(Heard::Text("a".into())));
    }

    #[test]
    fn an_error_says_what_its_body_says() {
        for (body, said) in [
            (r#"{"error":{"message":"too long","type":"x"}}"#, "too long"),
            (r#"{"object":"error","message":"no"}"#, "no"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"{"error":"model not found"}"#, "model not found"),
            ("<html>\u{7}502", "<html>502"),
            ("", "it does not say why"),
        ] {
            assert_eq!(error_text(body), said);
        }
    }
}
