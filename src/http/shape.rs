//! OpenAI's JSON for answers: whole ones and the chunks of a stream.

use ragstone_actors::{Answer, Citation, Finish, FinishReason, TokenEvent};
use ragstone_storage::env::Env;
use serde_json::{Map, Value, json};

use super::tools::Said;

/// Which endpoint's JSON, and what its every object repeats.
#[derive(Debug, Clone)]
pub struct Shape {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// Alternatives beside each token; `None` where no log-probabilities were asked for.
    logprobs: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Completion,
}

impl Shape {
    /// For `/v1/chat/completions`.
    pub fn chat(env: &Env, model: &str, logprobs: Option<u8>) -> Self {
        Self::new(Kind::Chat, "chatcmpl", env, model, logprobs)
    }

    /// For `/v1/completions`.
    pub fn completion(env: &Env, model: &str, logprobs: Option<u8>) -> Self {
        Self::new(Kind::Completion, "cmpl", env, model, logprobs)
    }

    fn new(kind: Kind, prefix: &str, env: &Env, model: &str, logprobs: Option<u8>) -> Self {
        let id = format!("{prefix}-{:016x}{:016x}", env.random_u64(), env.random_u64());
        Self { kind, id, created: env.now_unix_ms() / 1000, model: model.to_owned(), logprobs }
    }

    /// What is done, in OpenTelemetry's words.
    pub fn operation(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat",
            Kind::Completion => "text_completion",
        }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The request's id, for logs.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether a token without text is still worth a chunk.
    pub fn wants_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    fn object(&self, streaming: bool, choices: Value) -> Value {
        let object = match (self.kind, streaming) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": null, "choices": choices,
        })
    }

    /// All answers to a question, whole. Each has what it said where that was read for calls.
    pub fn answers(&self, answers: &[Answer], said: &[Option<Vec<Said>>]) -> Value {
        let said = said.iter().map(Option::as_deref).chain(std::iter::repeat(None));
        let choices = answers.iter().zip(said).enumerate();
        let choices = choices.map(|(index, (answer, said))| self.choice(index, answer, said)).collect();
        let mut whole = self.object(false, choices);
        if let Some(first) = answers.first() {
            whole["usage"] = usage(answers.iter().map(|answer| &answer.finish));
            whole["ragstone"] = extension(&first.citations, &first.finish);
        }
        whole
    }

    fn choice(&self, index: usize, answer: &Answer, said: Option<&[Said]>) -> Value {
        let logprobs = self.logprobs(&answer.tokens, 0);
        let reason = answer.finish.reason.name();
        match self.kind {
            Kind::Chat if said.is_some_and(|said| said.iter().any(Said::is_call)) => json!({
                "index": index, "finish_reason": called(reason), "logprobs": logprobs,
                "message": called_message(said.unwrap_or_default()),
            }),
            Kind::Chat => json!({
                "index": index, "finish_reason": reason, "logprobs": logprobs,
                "message": { "role": "assistant", "content": answer.text, "refusal": null },
            }),
            Kind::Completion => {
                json!({ "index": index, "finish_reason": reason, "logprobs": logprobs, "text": answer.text })
            }
        }
    }

    /// The chunk that opens a choice of a chat's stream; plain completions have none.
    pub fn opening(&self, index: usize) -> Option<Value> {
        (self.kind == Kind::Chat)
            .then(|| self.chunk(index, json!({ "role": "assistant", "content": "" }), "", Value::Null, None))
    }

    /// A piece of text, with its token where it has one; `offset` counts the characters before it.
    pub fn piece(&self, index: usize, text: &str, token: Option<&TokenEvent>, offset: usize) -> Value {
        let logprobs = match token {
            Some(token) => self.logprobs(std::slice::from_ref(token), offset),
            None => Value::Null,
        };
        self.chunk(index, json!({ "content": text }), text, logprobs, None)
    }

    /// The chunks of a call: its name, then its arguments.
    pub fn call(&self, index: usize, at: usize, id: &str, name: &str, arguments: &str) -> [Value; 2] {
        let begin = json!({ "index": at, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        let goes_on = json!({ "index": at, "function": { "arguments": arguments } });
        [begin, goes_on].map(|call| self.chunk(index, json!({ "tool_calls": [call] }), "", Value::Null, None))
    }

    /// The chunk that ends a choice, with citations and the reuse report.
    pub fn ending(&self, index: usize, citations: &[Citation], finish: &Finish, has_called: bool) -> Value {
        let mut chunk = self.chunk(index, json!({}), "", Value::Null, Some(finish.reason));
        if has_called {
            chunk["choices"][0]["finish_reason"] = called(finish.reason.name()).into();
        }
        chunk["ragstone"] = extension(citations, finish);
        chunk
    }

    /// The chunk of `stream_options.include_usage`.
    pub fn usage_chunk(&self, finishes: &[Finish]) -> Value {
        let mut chunk = self.object(true, json!([]));
        chunk["usage"] = usage(finishes);
        chunk
    }

    fn chunk(&self, index: usize, delta: Value, text: &str, logprobs: Value, end: Option<FinishReason>) -> Value {
        let end = end.map(FinishReason::name);
        let choice = match self.kind {
            Kind::Chat => json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end }),
            Kind::Completion => json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": end }),
        };
        self.object(true, json!([choice]))
    }

    fn logprobs(&self, tokens: &[TokenEvent], offset: usize) -> Value {
        match (self.logprobs, self.kind) {
            (None, _) => Value::Null,
            (Some(_), Kind::Chat) => {
                let content: Vec<Value> = tokens.iter().map(chat_logprob).collect();
                json!({ "content": content, "refusal": null })
            }
            (Some(count), Kind::Completion) => completion_logprobs(tokens, offset, count),
        }
    }
}

/// The reason of an answer that calls tools: one that was cut short says that.
fn called(reason: &'static str) -> &'static str {
    if reason == "stop" { "tool_calls" } else { reason }
}

fn called_message(said: &[Said]) -> Value {
    let (mut content, mut calls) = (String::new(), Vec::new());
    for part in said {
        match part {
            Said::Text(text) => content.push_str(text),
            Said::Call { id, name, arguments, .. } => calls.push(json!({
                "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
            })),
        }
    }
    let content = if content.is_empty() { Value::Null } else { content.into() };
    json!({ "role": "assistant", "content": content, "refusal": null, "tool_calls": calls })
}

/// Token counts of all answers to a question, which have one prompt. What OpenAI calls cached is exact; what was blended stands beside it.
pub fn usage<'a>(finishes: impl IntoIterator<Item = &'a Finish>) -> Value {
    let (mut prompt, mut exact, mut blended, mut completion) = (0, 0, 0, 0);
    for Finish { usage, report, .. } in finishes {
        prompt = usage.prompt_tokens;
        (exact, blended) = (report.tokens.exact, report.tokens.blended);
        completion += usage.completion_tokens;
    }
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": exact, "blended_tokens": blended },
    })
}

fn extension(citations: &[Citation], finish: &Finish) -> Value {
    json!({ "citations": citations, "report": finish.report })
}

fn chat_logprob(token: &TokenEvent) -> Value {
    let one = |text: &str, bytes: &[u8], logprob: f32| json!({ "token": text, "logprob": logprob, "bytes": bytes });
    let mut chosen = one(&token.text, token.text.as_bytes(), token.logprob);
    let top = token.top.iter();
    chosen["top_logprobs"] = top.map(|other| one(&name(&other.bytes), &other.bytes, other.logprob)).collect();
    chosen
}

/// What OpenAI calls a token: its text, or its bytes where they are none.
fn name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| escaped(bytes), str::to_owned)
}

/// `bytes:\xe2\x80`
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}"))
}

fn completion_logprobs(tokens: &[TokenEvent], mut offset: usize, count: u8) -> Value {
    let (mut texts, mut logprobs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        texts.push(token.text.as_str());
        logprobs.push(token.logprob);
        // Two ids may stand for one text; the likelier one, which comes first, has it for its name.
        let mut top = Map::new();
        for other in &token.top {
            let names = [name(&other.bytes), escaped(&other.bytes), format!("token_id:{}", other.id)];
            if let Some(free) = names.into_iter().find(|name| !top.contains_key(name)) {
                top.insert(free, json!(other.logprob));
            }
        }
        tops.push(Value::Object(top));
        offsets.push(offset);
        offset += token.text.chars().count();
    }
    let tops = if count == 0 { Value::Null } else { Value::Array(tops) };
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{Alternative, ReuseReport, Usage};

    use super::*;
    use crate::api::chat::{ChatChunk, ChatCompletion, TextChunk, TextCompletion};

    fn token(text: &str) -> TokenEvent {
        let other = |id, bytes: &[u8], logprob| Alternative { id, bytes: bytes.to_vec(), logprob };
        TokenEvent {
            id: 1,
            text: text.into(),
            logprob: -0.5,
            top: vec![other(1, text.as_bytes(), -0.5), other(2, b"b", -1.5)],
        }
    }

    #[test]
    fn tokens_of_one_text_keep_apart() {
        let other = |id, bytes: &[u8]| Alternative { id, bytes: bytes.to_vec(), logprob: -(id as f32) };
        let top = vec![other(1, b"a"), other(2, b"a"), other(3, b"a"), other(4, b"\xe2\x80"), other(5, b"\xe2")];
        let token = TokenEvent { id: 1, text: "a".into(), logprob: -1.0, top };
        let json = completion_logprobs(std::slice::from_ref(&token), 0, 5);
        let expected = json!({
            "a": -1.0, "bytes:\\x61": -2.0, "token_id:3": -3.0, "bytes:\\xe2\\x80": -4.0, "bytes:\\xe2": -5.0
        });
        assert_eq!(json["top_logprobs"][0], expected);
        assert_eq!(
            chat_logprob(&token)["top_logprobs"][4],
            json!({ "token": "bytes:\\xe2", "logprob": -5.0, "bytes": [0xE2] })
        );
    }

    fn finish() -> Finish {
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2 };
        let mut report = ReuseReport::default();
        (report.tokens.exact, report.tokens.blended, report.tokens.computed) = (2, 3, 1);
        Finish { reason: FinishReason::Length, usage, report }
    }

    #[test]
    fn a_whole_chat_answer() {
        let shape = Shape::chat(&Env::seeded(1, 5_000), "m", Some(2));
        let answer =
            Answer {
                text: "aé".into(), citations: Vec::new(), tokens: vec![token("a"), token("é")], finish: finish()
            };
        let json = shape.answers(&[answer.clone(), answer], &[]);
        assert_eq!((&json["object"], &json["created"]), (&json!("chat.completion"), &json!(5)));
        let choice = &json["choices"][0];
        assert_eq!(choice["message"]["content"], "aé");
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(choice["logprobs"]["content"][1]["bytes"], json!([0xC3, 0xA9]));
        assert_eq!(choice["logprobs"]["content"][0]["top_logprobs"][1]["token"], "b");
        assert_eq!(json["choices"][1]["index"], 1);
        assert_eq!(json["usage"]["total_tokens"], 7, "one prompt, two answers");
        assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
        assert_eq!(json["usage"]["prompt_tokens_details"]["blended_tokens"], 3);
        assert_eq!(json["ragstone"]["report"]["tokens"]["exact"], 2);
    }

    fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(json: &Value) {
        let typed: T = serde_json::from_value(json.clone()).unwrap_or_else(|error| panic!("{error}: {json}"));
        assert_eq!(serde_json::to_value(typed).unwrap(), *json);
    }

    #[test]
    fn what_is_written_is_what_is_described() {
        let citation = Citation { number: 1, title: "T".into(), score: Some(0.5), ..Citation::default() };
        let answer = Answer { text: "a".into(), citations: vec![citation], tokens: vec![token("a")], finish: finish() };
        let call = Said::Call { index: 0, id: "c".into(), name: "f".into(), arguments: "{}".into() };
        let (env, citations) = (Env::seeded(1, 5_000), answer.citations.clone());
        for logprobs in [None, Some(1)] {
            let (chat, text) = (Shape::chat(&env, "m", logprobs), Shape::completion(&env, "m", logprobs));
            round_trip::<ChatCompletion>(&chat.answers(std::slice::from_ref(&answer), &[]));
            round_trip::<ChatCompletion>(&chat.answers(std::slice::from_ref(&answer), &[Some(vec![call.clone()])]));
            round_trip::<TextCompletion>(&text.answers(std::slice::from_ref(&answer), &[]));
            round_trip::<ChatChunk>(&chat.opening(0).unwrap());
            round_trip::<ChatChunk>(&chat.piece(0, "a", Some(&token("a")), 0));
            chat.call(0, 0, "c", "f", "{}").iter().for_each(round_trip::<ChatChunk>);
            round_trip::<ChatChunk>(&chat.ending(0, &citations, &finish(), true));
            round_trip::<ChatChunk>(&chat.usage_chunk(&[finish()]));
            round_trip::<TextChunk>(&text.piece(0, "a", Some(&token("a")), 0));
            round_trip::<TextChunk>(&text.ending(0, &citations, &finish(), false));
            round_trip::<TextChunk>(&text.usage_chunk(&[finish()]));
        }
    }

    #[test]
    fn chunks_of_a_completion() {
        let shape = Shape::completion(&Env::seeded(1, 0), "m", Some(2));
        assert!(shape.opening(0).is_none());
        let chunk = shape.piece(1, "é", Some(&token("é")), 4);
        assert_eq!((&chunk["object"], &chunk["choices"][0]["text"]), (&json!("text_completion"), &json!("é")));
        assert_eq!(chunk["choices"][0]["index"], 1);
        assert_eq!(chunk["choices"][0]["logprobs"]["text_offset"], json!([4]));
        assert_eq!(chunk["choices"][0]["logprobs"]["top_logprobs"][0]["b"], json!(-1.5));
        assert_eq!(shape.ending(0, &[], &finish(), false)["choices"][0]["finish_reason"], "length");
        assert_eq!(shape.usage_chunk(&[finish()])["choices"], json!([]));
    }
}
