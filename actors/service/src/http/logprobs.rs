//! Log-probabilities as OpenAI's two endpoints and vLLM write them.

use ragstone_actors::{Alternative, ReadPrompt, ReadToken, TokenEvent};
use serde_json::{Map, Value, json};

use crate::error::Result;

/// What a token that is impossible has, as JSON knows no infinity; vLLM writes the same.
const LEAST: f32 = -9999.0;

/// Those of a plain completion: lists with an element for each token.
#[derive(Debug, Clone, Default)]
pub struct Lists {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Lists {
    /// Of a prompt, with `count` alternatives a token. `sent` is its text, where it was sent as one: what the tokenizer puts in front is
    /// not in that.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    pub fn of_prompt(prompt: &ReadPrompt, count: u8, sent: Option<&str>) -> Result<Self> {
        let (mut lists, mut offset) = (Self::default(), 0);
        for token in prompt.tokens() {
            let ReadToken { id, bytes, text, score } = token?;
            let is_added = lists.tokens.is_empty() && sent.is_some_and(|sent| !sent.starts_with(&text));
            let own = name(&bytes);
            let (logprob, top) = match &score {
                Some(score) => {
                    let top = &score.top[..score.top.len().min(usize::from(count))];
                    let mut named = named(top);
                    if top.iter().all(|other| other.id != id) {
                        // As OpenAI and vLLM have it, beside the likeliest.
                        insert(&mut named, id, &bytes, score.logprob);
                    }
                    (written(score.logprob), Value::Object(named))
                }
                None => (Value::Null, Value::Null),
            };
            lists.push(own, logprob, top, offset);
            offset += if is_added { 0 } else { text.chars().count() };
        }
        Ok(lists)
    }

    /// Of generated tokens, which begin `offset` characters behind the text's beginning.
    pub fn of_answer(tokens: &[TokenEvent], offset: usize) -> Self {
        let mut lists = Self::default();
        lists.add(tokens, offset);
        lists
    }

    /// Adds generated tokens.
    pub fn add(&mut self, tokens: &[TokenEvent], mut offset: usize) {
        for token in tokens {
            self.push(token.text.clone(), written(token.logprob), Value::Object(named(&token.top)), offset);
            offset += token.text.chars().count();
        }
    }

    fn push(&mut self, token: String, logprob: Value, top: Value, offset: usize) {
        self.tokens.push(token);
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
    }

    /// As JSON; `count` alternatives were asked for.
    pub fn json(self, count: u8) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = self;
        let tops = if count == 0 { Value::Null } else { Value::Array(top_logprobs) };
        json!({ "tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": tops, "text_offset": text_offset })
    }
}

/// Those of a chat.
pub fn of_chat(tokens: &[TokenEvent]) -> Value {
    let content: Vec<Value> = tokens.iter().map(chat_token).collect();
    json!({ "content": content, "refusal": null })
}

fn chat_token(token: &TokenEvent) -> Value {
    let one = |text: &str, bytes: &[u8], logprob: f32| json!({ "token": text, "logprob": logprob, "bytes": bytes });
    let mut chosen = one(&token.text, token.text.as_bytes(), token.logprob);
    let top = token.top.iter();
    chosen["top_logprobs"] = top.map(|other| one(&name(&other.bytes), &other.bytes, other.logprob)).collect();
    chosen
}

/// vLLM's `prompt_logprobs`: null for the first token; for each other one its own and the `count` likeliest, by id.
///
/// # Errors
/// Where the tokenizer fails.
pub fn of_prompt(prompt: &ReadPrompt, count: u8) -> Result<Value> {
    let one = |bytes: &[u8], logprob: f32, rank: usize| json!({ "logprob": written(logprob), "rank": rank, "decoded_token": String::from_utf8_lossy(bytes) });
    let described = |token: Result<ReadToken>| {
        let ReadToken { id, bytes, score, .. } = token?;
        let Some(score) = score else { return Ok(Value::Null) };
        let likeliest = score.top.iter().take(usize::from(count)).enumerate();
        let mut all: Map<String, Value> =
            likeliest.map(|(at, other)| (other.id.to_string(), one(&other.bytes, other.logprob, at + 1))).collect();
        all.entry(id.to_string()).or_insert_with(|| one(&bytes, score.logprob, score.rank as usize));
        Ok(Value::Object(all))
    };
    prompt.tokens().map(described).collect()
}

fn written(logprob: f32) -> Value {
    json!(logprob.max(LEAST))
}

/// Alternatives by their names. Two ids may stand for one text; the likelier one, which comes first, has it for its name.
fn named(top: &[Alternative]) -> Map<String, Value> {
    let mut named = Map::new();
    top.iter().for_each(|other| insert(&mut named, other.id, &other.bytes, other.logprob));
    named
}

fn insert(named: &mut Map<String, Value>, id: u32, bytes: &[u8], logprob: f32) {
    let names = [name(bytes), escaped(bytes), format!("token_id:{id}")];
    if let Some(free) = names.into_iter().find(|name| !named.contains_key(name)) {
        named.insert(free, written(logprob));
    }
}

/// What OpenAI calls a token: its text, or its bytes where they are none.
fn name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| escaped(bytes), str::to_owned)
}

/// `bytes:\xe2\x80`
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_one_text_keep_apart() {
        let other = |id, bytes: &[u8]| Alternative { id, bytes: bytes.to_vec(), logprob: -(id as f32) };
        let top = vec![other(1, b"a"), other(2, b"a"), other(3, b"a"), other(4, b"\xe2\x80"), other(5, b"\xe2")];
        let token = TokenEvent { id: 1, text: "a".into(), logprob: -1.0, top };
        let json = Lists::of_answer(std::slice::from_ref(&token), 0).json(5);
        let expected = json!({
            "a": -1.0, "bytes:\\x61": -2.0, "token_id:3": -3.0, "bytes:\\xe2\\x80": -4.0, "bytes:\\xe2": -5.0
        });
        assert_eq!(json["top_logprobs"][0], expected);
        assert_eq!(
            of_chat(&[token])["content"][0]["top_logprobs"][4],
            json!({ "token": "bytes:\\xe2", "logprob": -5.0, "bytes": [0xE2] })
        );
    }

    #[test]
    fn what_is_impossible_is_a_number_all_the_same() {
        let token = TokenEvent { id: 1, text: "a".into(), logprob: f32::NEG_INFINITY, top: Vec::new() };
        assert_eq!(Lists::of_answer(&[token], 0).json(0)["token_logprobs"], json!([-9999.0]));
    }
}
