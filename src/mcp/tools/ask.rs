//! `ask`

use futures::StreamExt;
use rmcp::model::CallToolResult;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    MAX_ANSWER_TOKENS, MAX_PASSAGES, MAX_QUERY_CHARACTERS, check_number, check_text, collection, heading, passage,
    result,
};
use crate::client::routes::{Request, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp::Progress;

/// What an answer may come to where nobody says: progress counts towards it.
const USUAL_TOKENS: u64 = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    question: String,
    #[serde(default)]
    collection: Option<String>,
    #[serde(default)]
    top_k: Option<u64>,
    #[serde(default)]
    max_tokens: Option<u64>,
}

impl Arguments {
    pub fn checked(self) -> Result<Self> {
        check_text("question", &self.question, MAX_QUERY_CHARACTERS)?;
        check_number("top_k", self.top_k, MAX_PASSAGES)?;
        check_number("max_tokens", self.max_tokens, MAX_ANSWER_TOKENS)?;
        Ok(Self { collection: Some(collection(self.collection)?), ..self })
    }

    fn request(&self) -> Request {
        let mut body = json!({
            "messages": [{ "role": "user", "content": self.question }],
            "temperature": 0, "stream": true, "stream_options": { "include_usage": true },
            "ragstone": { "collection": self.collection, "top_k": self.top_k },
        });
        if let Some(count) = self.max_tokens {
            body["max_tokens"] = count.into();
        }
        Request::post(&["v1", "chat", "completions"], body)
    }
}

/// What came of the answer's chunks.
#[derive(Default)]
struct Answer {
    text: String,
    model: Value,
    finish_reason: Value,
    extension: Value,
    usage: Value,
    /// Chunks with text; about as many as tokens.
    pieces: u64,
}

impl Answer {
    /// Takes a chunk; its text, if it has some.
    fn take(&mut self, mut chunk: Value) -> Option<String> {
        let choice = &chunk["choices"][0];
        // Tokens carry the space before them.
        let text = choice["delta"]["content"].as_str();
        let text = text.map(|text| if self.text.is_empty() { text.trim_start() } else { text }).map(str::to_owned);
        if !choice["finish_reason"].is_null() {
            self.finish_reason = choice["finish_reason"].clone();
            self.model = chunk["model"].clone();
            self.extension = chunk["ragstone"].take();
        }
        if !chunk["usage"].is_null() {
            self.usage = chunk["usage"].take();
        }
        let text = text.filter(|text| !text.is_empty())?;
        self.text.push_str(&text);
        self.pieces += 1;
        Some(text)
    }

    fn into_result(self, collection: &str) -> Result<CallToolResult> {
        if self.finish_reason.is_null() {
            return Err(Error::new(ErrorKind::Unavailable, "the answer broke off; ask again"));
        }
        let cited = self.extension["citations"].as_array().into_iter().flatten().enumerate();
        let citations: Vec<Value> =
            cited.map(|(index, citation)| passage(collection, index + 1, citation, &citation["score"])).collect();
        let mut text = self.text.trim().to_owned();
        if !citations.is_empty() {
            text.push_str("\n\nSources:");
            for (index, citation) in citations.iter().enumerate() {
                text.push_str(&format!("\n{}", heading(index + 1, citation)));
            }
        }
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let details = &self.usage["prompt_tokens_details"];
        let structured = json!({
            "answer": self.text.trim(), "finish_reason": self.finish_reason, "model": self.model, "citations": citations,
            "prompt_tokens": count(&self.usage["prompt_tokens"]), "cached_tokens": count(&details["cached_tokens"]),
            "blended_tokens": count(&details["blended_tokens"]), "completion_tokens": count(&self.usage["completion_tokens"]),
            "first_token_ms": self.extension["report"]["ttft"]["total_ms"],
        });
        Ok(result(text, structured))
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments, progress: Option<Progress>) -> Result<CallToolResult> {
    let mut chunks = std::pin::pin!(routes.send(arguments.request()).await?.events().await?);
    let mut answer = Answer::default();
    let total = arguments.max_tokens.unwrap_or(USUAL_TOKENS);
    while let Some(chunk) = chunks.next().await.transpose()? {
        if let (Some(text), Some(progress)) = (answer.take(chunk), &progress) {
            progress.tell(answer.pieces, total.max(answer.pieces), &text).await;
        }
    }
    answer.into_result(&arguments.collection.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_put_together_and_one_that_broke_off_is_none() {
        let mut answer = Answer::default();
        assert_eq!(answer.take(json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] })), None);
        assert_eq!(answer.take(json!({ "choices": [{ "delta": { "content": " Cop" } }] })).unwrap(), "Cop");
        assert_eq!(answer.take(json!({ "choices": [{ "delta": { "content": "per " } }] })).unwrap(), "per ");
        let broken = Answer { text: answer.text.clone(), ..Answer::default() };
        assert_eq!(broken.into_result("notes").unwrap_err().kind(), ErrorKind::Unavailable);
        answer.take(json!({
            "choices": [{ "delta": {}, "finish_reason": "stop" }], "model": "m",
            "ragstone": {
                "citations": [{ "number": 1, "document_id": "roof/1", "title": "Roof", "source": null, "text": "slate", "score": 0.5 }],
                "report": { "ttft": { "total_ms": 1.5 } },
            },
        }));
        answer.take(json!({ "choices": [], "usage": {
            "prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 3, "blended_tokens": 4 },
        } }));
        let result = answer.into_result("notes").unwrap();
        let structured = result.structured_content.unwrap();
        assert_eq!((&structured["answer"], &structured["finish_reason"]), (&json!("Copper"), &json!("stop")));
        assert_eq!((&structured["cached_tokens"], &structured["blended_tokens"]), (&json!(3), &json!(4)));
        assert_eq!(structured["citations"][0]["uri"], "ragstone://notes/roof%2F1");
        assert_eq!(structured["first_token_ms"], 1.5);
        let text = serde_json::to_string(&result.content).unwrap();
        assert!(text.contains("Copper\\n\\nSources:\\n[1] Roof (document `roof/1`)"), "{text}");
    }
}
