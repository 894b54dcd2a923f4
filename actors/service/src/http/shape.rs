//! OpenAI's JSON for answers: whole ones and the chunks of a stream.

use ragstone_actors::{Answer, Citation, Finish, FinishReason, TokenEvent};
use ragstone_env::Env;
use serde_json::{Value, json};

use super::logprobs::{self, Lists};
use super::told::Told;
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

/// The answers to one prompt, whole. Each has what it said where that was read for calls.
pub struct Group<'a> {
    pub answers: &'a [Answer],
    pub said: &'a [Option<Vec<Said>>],
    pub told: &'a Told,
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

    /// All answers to a request's prompts, whole: those to one prompt stand together.
    pub fn answers(&self, groups: &[Group<'_>]) -> Value {
        let mut choices = Vec::new();
        for Group { answers, said, told } in groups {
            let said = said.iter().map(Option::as_deref).chain(std::iter::repeat(None));
            for (answer, said) in answers.iter().zip(said) {
                choices.push(self.choice(choices.len(), answer, said, told));
            }
        }
        let mut whole = self.object(false, choices.into());
        if let Some((group, first)) = groups.first().and_then(|group| Some((group, group.answers.first()?))) {
            whole["usage"] = usage(groups.iter().map(|group| group.answers.iter().map(|answer| &answer.finish)));
            whole["ragstone"] = extension(&first.citations, &first.finish);
            if let (Kind::Chat, Some(logprobs)) = (self.kind, &group.told.prompt_logprobs) {
                whole["prompt_logprobs"] = logprobs.clone();
            }
        }
        whole
    }

    fn choice(&self, index: usize, answer: &Answer, said: Option<&[Said]>, told: &Told) -> Value {
        let reason = answer.finish.reason.name();
        match self.kind {
            Kind::Chat if said.is_some_and(|said| said.iter().any(Said::is_part)) => {
                let said = said.unwrap_or_default();
                let reason = if said.iter().any(Said::is_call) { called(reason) } else { reason };
                json!({
                    "index": index, "finish_reason": reason, "logprobs": self.logprobs(&answer.tokens, 0),
                    "message": message_of(said),
                })
            }
            Kind::Chat => json!({
                "index": index, "finish_reason": reason, "logprobs": self.logprobs(&answer.tokens, 0),
                "message": { "role": "assistant", "content": text_of(said, answer), "refusal": null },
            }),
            Kind::Completion => {
                let text = format!("{}{}", told.echo.as_deref().unwrap_or_default(), answer.text);
                let logprobs = self.behind_prompt(told, answer);
                let mut choice = json!({ "index": index, "finish_reason": reason, "logprobs": logprobs, "text": text });
                if let Some(logprobs) = &told.prompt_logprobs {
                    choice["prompt_logprobs"] = logprobs.clone();
                }
                choice
            }
        }
    }

    /// A plain completion's log-probabilities, with those of its prompt where that is repeated. Then they have the token that ended it, too:
    /// clients count on one element for each token that was generated.
    fn behind_prompt(&self, told: &Told, answer: &Answer) -> Value {
        let Some(count) = self.logprobs else { return Value::Null };
        let mut lists = told.lists.clone().unwrap_or_default();
        lists.add(&answer.tokens, told.characters);
        if let (Some(_), Some(end)) = (&told.lists, &answer.finish.end_token) {
            lists.add(std::slice::from_ref(end), told.characters + answer.text.chars().count());
        }
        lists.json(count)
    }

    /// The chunk that repeats the prompt before a choice of a plain completion.
    pub fn echo(&self, index: usize, told: &Told) -> Value {
        let logprobs = match (self.logprobs, &told.lists) {
            (Some(count), Some(lists)) => lists.clone().json(count),
            _ => Value::Null,
        };
        self.chunk(index, Value::Null, told.echo.as_deref().unwrap_or_default(), logprobs, None)
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

    /// A piece of what was thought, under the name that DeepSeek, vLLM and llama.cpp have for it.
    pub fn thought(&self, index: usize, thought: &str) -> Value {
        self.chunk(index, json!({ "reasoning_content": thought }), "", Value::Null, None)
    }

    /// The chunks of a call: its name, then its arguments.
    pub fn call(&self, index: usize, at: usize, id: &str, name: &str, arguments: &str) -> [Value; 2] {
        let begin = json!({ "index": at, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        let goes_on = json!({ "index": at, "function": { "arguments": arguments } });
        [begin, goes_on].map(|call| self.chunk(index, json!({ "tool_calls": [call] }), "", Value::Null, None))
    }

    /// The chunk that ends a choice, with citations and the reuse report. Behind a prompt's log-probabilities it has those of the token that
    /// ended it; `offset` counts the characters before that.
    pub fn ending(
        &self,
        index: usize,
        citations: &[Citation],
        finish: &Finish,
        has_called: bool,
        offset: usize,
    ) -> Value {
        let logprobs = match &finish.end_token {
            Some(end) => self.logprobs(std::slice::from_ref(end), offset),
            None => Value::Null,
        };
        let mut chunk = self.chunk(index, json!({}), "", logprobs, Some(finish.reason));
        if has_called {
            chunk["choices"][0]["finish_reason"] = called(finish.reason.name()).into();
        }
        chunk["ragstone"] = extension(citations, finish);
        chunk
    }

    /// The chunk of `stream_options.include_usage`; the finishes of the answers to one prompt stand together.
    pub fn usage_chunk(&self, finishes: &[Vec<Finish>]) -> Value {
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
            (Some(_), Kind::Chat) => logprobs::of_chat(tokens),
            (Some(count), Kind::Completion) => Lists::of_answer(tokens, offset).json(count),
        }
    }
}

/// The reason of an answer that calls tools: one that was cut short says that.
fn called(reason: &'static str) -> &'static str {
    if reason == "stop" { "tool_calls" } else { reason }
}

/// What an answer says, without the marks of a thought in which nothing was thought.
fn text_of(said: Option<&[Said]>, answer: &Answer) -> String {
    let Some(said) = said else { return answer.text.clone() };
    said.iter().filter_map(|part| if let Said::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// A message that has parts beside its text.
fn message_of(said: &[Said]) -> Value {
    let (mut content, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for part in said {
        match part {
            Said::Text(text) => content.push_str(text),
            Said::Thought(thought) => thoughts.push_str(thought),
            Said::Call { id, name, arguments, .. } => calls.push(json!({
                "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
            })),
        }
    }
    let content = if content.is_empty() { Value::Null } else { content.into() };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// Token counts of all answers; those to one prompt stand together, and it counts once. What OpenAI calls cached is exact; what was blended
/// stands beside it.
pub fn usage<'a, G: IntoIterator<Item = &'a Finish>>(groups: impl IntoIterator<Item = G>) -> Value {
    let (mut prompt, mut exact, mut blended, mut completion) = (0, 0, 0, 0);
    for group in groups {
        for (at, Finish { usage, report, .. }) in group.into_iter().enumerate() {
            if at == 0 {
                prompt += usage.prompt_tokens;
                exact += report.tokens.exact;
                blended += report.tokens.blended;
            }
            completion += usage.completion_tokens;
        }
    }
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": exact, "blended_tokens": blended },
    })
}

/// `"ragstone"` of an answer.
pub fn extension(citations: &[Citation], finish: &Finish) -> Value {
    let mut extension = json!({ "citations": citations, "report": finish.report });
    if let Some(grounding) = &finish.grounding {
        extension["grounding"] = json!(grounding);
    }
    extension
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

    fn finish() -> Finish {
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2 };
        let mut report = ReuseReport::default();
        (report.tokens.exact, report.tokens.blended, report.tokens.computed) = (2, 3, 1);
        Finish { reason: FinishReason::Length, usage, report, stop: None, grounding: None, end_token: None }
    }

    #[test]
    fn a_whole_chat_answer() {
        let shape = Shape::chat(&Env::seeded(1, 5_000), "m", Some(2));
        let answer =
            Answer {
                text: "aé".into(), citations: Vec::new(), tokens: vec![token("a"), token("é")], finish: finish()
            };
        let json = shape.answers(&[group(&[answer.clone(), answer], &Told::default())]);
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

    fn group<'a>(answers: &'a [Answer], told: &'a Told) -> Group<'a> {
        Group { answers, said: &[], told }
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
        let told = Told {
            echo: Some("é".into()),
            characters: 1,
            lists: Some(Lists::of_answer(&[token("é")], 0)),
            prompt_logprobs: Some(json!([null, { "1": { "logprob": -0.5, "rank": 1, "decoded_token": "a" } }])),
        };
        for logprobs in [None, Some(1)] {
            let (chat, text) = (Shape::chat(&env, "m", logprobs), Shape::completion(&env, "m", logprobs));
            round_trip::<ChatCompletion>(&chat.answers(&[group(std::slice::from_ref(&answer), &told)]));
            let called = [Some(vec![call.clone()])];
            let calling = Group { said: &called, ..group(std::slice::from_ref(&answer), &told) };
            round_trip::<ChatCompletion>(&chat.answers(&[calling]));
            round_trip::<TextCompletion>(&text.answers(&[group(std::slice::from_ref(&answer), &told)]));
            round_trip::<ChatChunk>(&chat.opening(0).unwrap());
            round_trip::<ChatChunk>(&chat.piece(0, "a", Some(&token("a")), 0));
            chat.call(0, 0, "c", "f", "{}").iter().for_each(round_trip::<ChatChunk>);
            round_trip::<ChatChunk>(&chat.ending(0, &citations, &finish(), true, 0));
            round_trip::<ChatChunk>(&chat.usage_chunk(&[vec![finish()]]));
            round_trip::<TextChunk>(&text.echo(0, &told));
            round_trip::<TextChunk>(&text.piece(0, "a", Some(&token("a")), 0));
            round_trip::<TextChunk>(&text.ending(0, &citations, &finish(), false, 0));
            round_trip::<TextChunk>(&text.usage_chunk(&[vec![finish()]]));
        }
    }

    /// The prompt's text and tokens stand in front of each choice, and what ended it behind; each prompt counts once.
    #[test]
    fn prompts_are_repeated_before_their_own_answers() {
        let shape = Shape::completion(&Env::seeded(1, 0), "m", Some(2));
        let told = |text: &str| Told {
            echo: Some(text.into()),
            characters: text.chars().count(),
            lists: Some(Lists::of_answer(&[token(text)], 0)),
            prompt_logprobs: None,
        };
        let end = Finish { reason: FinishReason::Stop, end_token: Some(token("</s>")), ..finish() };
        let answer = Answer { text: "a".into(), citations: Vec::new(), tokens: vec![token("a")], finish: end.clone() };
        let (answers, told) = ([answer.clone(), answer], [told("é"), told("bc")]);
        let json = shape.answers(&[group(&answers, &told[0]), group(&answers, &told[1])]);
        let of = |field: &dyn Fn(&Value) -> Value| -> Vec<Value> {
            json["choices"].as_array().unwrap().iter().map(field).collect()
        };
        assert_eq!(of(&|choice| choice["index"].clone()), [0, 1, 2, 3]);
        assert_eq!(of(&|choice| choice["text"].clone()), ["éa", "éa", "bca", "bca"]);
        assert_eq!(json["choices"][3]["logprobs"]["tokens"], json!(["bc", "a", "</s>"]));
        assert_eq!(json["choices"][3]["logprobs"]["text_offset"], json!([0, 2, 3]));
        assert_eq!(json["usage"]["total_tokens"], 2 * 3 + 4 * 2);
        let chunk = shape.echo(2, &told[1]);
        assert_eq!((&chunk["choices"][0]["index"], &chunk["choices"][0]["text"]), (&json!(2), &json!("bc")));
        let chunk = shape.ending(2, &[], &end, false, 3);
        assert_eq!(chunk["choices"][0]["logprobs"]["tokens"], json!(["</s>"]));
        assert_eq!(chunk["choices"][0]["logprobs"]["text_offset"], json!([3]));
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
        assert_eq!(shape.ending(0, &[], &finish(), false, 0)["choices"][0]["finish_reason"], "length");
        assert_eq!(shape.usage_chunk(&[vec![finish()]])["choices"], json!([]));
    }
}
