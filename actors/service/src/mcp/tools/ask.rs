//! `ask`

use futures::StreamExt;
use ragstone_actors::{Answered, GroundingState, MinSimilarity, OnNothingFound};
use ragstone_corpus::Filter;
use rmcp::model::CallToolResult;
use serde::{Deserialize, Serialize};

use super::{
    MAX_ANSWER_TOKENS, MAX_PASSAGES, MAX_QUERY_CHARACTERS, Passage, check_number, check_text, collection, looked_into,
    result,
};
use crate::api::chat::{
    AnswerExtension, ChatChunk, ChatRequest, Extension, FinishedBy, GenerationRequest, PromptTokens, StreamOptions,
    Unsaid, Usage,
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
    #[serde(default)]
    min_similarity: Option<MinSimilarity>,
    #[serde(default)]
    on_nothing_found: Option<OnNothingFound>,
    #[serde(default)]
    filter: Option<Filter>,
}

impl Arguments {
    pub fn checked(self) -> Result<Self> {
        check_text("question", &self.question, MAX_QUERY_CHARACTERS)?;
        check_number("top_k", self.top_k, MAX_PASSAGES)?;
        check_number("max_tokens", self.max_tokens, MAX_ANSWER_TOKENS)?;
        Ok(Self { collection: collection(self.collection)?, ..self })
    }

    fn request(&self, collection: &str) -> Request {
        let extension = Extension {
            collection: Some(collection.to_owned()),
            top_k: self.top_k.map(|count| count as usize),
            min_similarity: self.min_similarity,
            on_nothing_found: self.on_nothing_found,
            filter: self.filter.clone(),
            sampling: Unsaid::Model,
            ..Extension::default()
        };
        let generation = GenerationRequest {
            ragstone: Some(extension),
            max_tokens: self.max_tokens.map(|count| count as usize),
            stream: Some(true),
            stream_options: Some(StreamOptions { include_usage: Some(true) }),
            ..GenerationRequest::default()
        };
        Request::post(&["v1", "chat", "completions"], ChatRequest::ask(&self.question, generation))
    }
}

/// What came of the answer's chunks.
#[derive(Default)]
struct Answer {
    text: String,
    model: String,
    finish_reason: Option<FinishedBy>,
    extension: Option<AnswerExtension>,
    usage: Usage,
    /// Chunks with text; about as many as tokens.
    pieces: u64,
}

/// What a program gets.
#[derive(Serialize)]
struct Told {
    answer: String,
    finish_reason: FinishedBy,
    model: String,
    citations: Vec<Passage>,
    grounding: Option<GroundingState>,
    /// No passage is about the question, and what was done: `said`, `without_passages`, `as_usual`.
    nothing_found: Option<Answered>,
    prompt_tokens: u32,
    cached_tokens: u32,
    blended_tokens: u32,
    completion_tokens: u32,
    first_token_ms: Option<f64>,
}

impl Answer {
    /// Takes a chunk; its text, if it has some.
    fn take(&mut self, chunk: ChatChunk) -> Option<String> {
        let piece = chunk.choices.into_iter().next().unwrap_or_default();
        if piece.finish_reason.is_some() {
            (self.finish_reason, self.model, self.extension) = (piece.finish_reason, chunk.model, chunk.ragstone);
        }
        self.usage = chunk.usage.unwrap_or(self.usage);
        // Tokens carry the space before them.
        let text = piece.delta.content.unwrap_or_default();
        let text = if self.text.is_empty() { text.trim_start().to_owned() } else { text };
        if text.is_empty() {
            return None;
        }
        self.text.push_str(&text);
        self.pieces += 1;
        Some(text)
    }

    fn into_result(self, collection: &str) -> Result<CallToolResult> {
        let Some(finish_reason) = self.finish_reason else {
            return Err(Error::new(ErrorKind::Unavailable, "the answer broke off; ask again"));
        };
        let first_token_ms = self.extension.as_ref().map(|extension| extension.report.ttft.total_ms);
        let AnswerExtension { citations: mut cited, grounding, report } = self.extension.unwrap_or_default();
        let nothing_found = report.nothing_found;
        cited.sort_by_key(|citation| citation.number);
        let citations: Vec<Passage> =
            cited.into_iter().map(|citation| Passage::of_citation(collection, citation.number, citation)).collect();
        let mut text = self.text.trim().to_owned();
        if !citations.is_empty() {
            text.push_str("\n\nSources:");
            citations.iter().for_each(|citation| text.push_str(&format!("\n{}", citation.heading())));
            grounding.iter().for_each(|grounding| text.push_str(&format!("\n{}", grounding.in_words())));
        }
        nothing_found.iter().for_each(|nothing| text.push_str(&format!("\n\n({})", nothing.in_words())));
        let Usage { prompt_tokens, completion_tokens, prompt_tokens_details, .. } = self.usage;
        let PromptTokens { cached_tokens, blended_tokens } = prompt_tokens_details;
        let told = Told {
            answer: self.text.trim().to_owned(),
            finish_reason,
            model: self.model,
            citations,
            grounding: grounding.map(|grounding| grounding.state),
            nothing_found: nothing_found.map(|nothing| nothing.answered),
            prompt_tokens,
            cached_tokens,
            blended_tokens,
            completion_tokens,
            first_token_ms,
        };
        Ok(result(text, told))
    }
}

pub async fn run(routes: &dyn Routes, arguments: Arguments, progress: Option<Progress>) -> Result<CallToolResult> {
    let collection = looked_into(routes, arguments.collection.clone()).await?;
    let mut chunks = std::pin::pin!(routes.send(arguments.request(&collection)).await?.events().await?);
    let mut answer = Answer::default();
    let total = arguments.max_tokens.unwrap_or(USUAL_TOKENS);
    while let Some(chunk) = chunks.next().await.transpose()? {
        if let (Some(text), Some(progress)) = (answer.take(chunk), &progress) {
            progress.tell(answer.pieces, total.max(answer.pieces), &text).await;
        }
    }
    answer.into_result(&collection)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn chunk(value: Value) -> ChatChunk {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_answer_is_put_together_and_one_that_broke_off_is_none() {
        let mut answer = Answer::default();
        assert_eq!(
            answer.take(chunk(json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }))),
            None
        );
        assert_eq!(answer.take(chunk(json!({ "choices": [{ "delta": { "content": " Cop" } }] }))).unwrap(), "Cop");
        assert_eq!(answer.take(chunk(json!({ "choices": [{ "delta": { "content": "per " } }] }))).unwrap(), "per ");
        let broken = Answer { text: answer.text.clone(), ..Answer::default() };
        assert_eq!(broken.into_result("notes").unwrap_err().kind(), ErrorKind::Unavailable);
        answer.take(chunk(json!({
            "choices": [{ "delta": {}, "finish_reason": "stop" }], "model": "m",
            "ragstone": {
                "citations": [{ "number": 1, "document_id": "roof/1", "title": "Roof", "source": null, "text": "slate", "score": 0.5 }],
                "grounding": { "state": "supported", "passages": [1] },
                "report": { "ttft": { "total_ms": 1.5 } },
            },
        })));
        answer.take(chunk(json!({ "choices": [], "usage": {
            "prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 3, "blended_tokens": 4 },
        } })));
        let result = answer.into_result("notes").unwrap();
        let structured = result.structured_content.unwrap();
        assert_eq!((&structured["answer"], &structured["finish_reason"]), (&json!("Copper"), &json!("stop")));
        assert_eq!((&structured["cached_tokens"], &structured["blended_tokens"]), (&json!(3), &json!(4)));
        assert_eq!(structured["citations"][0]["uri"], "ragstone://notes/roof%2F1");
        assert_eq!(structured["first_token_ms"], 1.5);
        assert_eq!(structured["grounding"], "supported");
        let text = serde_json::to_string(&result.content).unwrap();
        assert!(
            text.contains("Copper\\n\\nSources:\\n[1] Roof (document `roof/1`)") && text.contains("are in [1]."),
            "{text}"
        );
    }
}
