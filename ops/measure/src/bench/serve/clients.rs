//! Clients of the measured service: they send prompts that nobody sent before, and write down when each token came.

use std::time::Duration;

use futures::StreamExt;
use ragstone_env::{Env, Stopwatch};
use ragstone_service::client::Client;
use serde_json::{Value, json};

use super::random_model::word;
use crate::error::{Error, Result};

/// How long the service may take to become idle between two measurements; then the next begins all the same.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clients. Clones share their randomness, so no two prompts are the same.
#[derive(Debug, Clone)]
pub struct Clients {
    client: Client,
    vocabulary: usize,
    random: Env,
}

/// An answer as its client saw it.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// From the request to the first token.
    pub first_ms: f64,
    /// Between tokens.
    pub gaps_ms: Vec<f64>,
    pub tokens: u64,
    pub prompt_tokens: u64,
    /// Of the prompt, those whose KV was there.
    pub cached_tokens: u64,
}

impl Clients {
    pub fn new(client: Client, vocabulary: usize, seed: u64) -> Self {
        Self { client, vocabulary, random: Env::seeded(seed, 0) }
    }

    /// Random token ids.
    pub fn tokens(&self, count: usize) -> Vec<u32> {
        // Vocabularies are far below 2^32.
        (0..count).map(|_| self.below(self.vocabulary) as u32).collect()
    }

    /// A text of so many random tokens.
    pub fn text(&self, tokens: usize) -> String {
        self.tokens(tokens).into_iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: usize) -> usize {
        (self.random.random_u64() % bound.max(1) as u64) as usize
    }

    /// The request for a streamed answer of exactly `answer` tokens to a random prompt.
    pub fn completion(&self, prompt: usize, answer: usize) -> Value {
        streamed(json!({ "prompt": self.tokens(prompt) }), answer)
    }

    /// Sends a completion and waits for its last token.
    pub async fn complete(&self, request: &Value) -> Result<Answer> {
        self.stream(&["v1", "completions"], request, || {}).await
    }

    /// Sends a chat and waits for its last token.
    pub async fn chat(&self, request: &Value) -> Result<Answer> {
        self.stream(&["v1", "chat", "completions"], request, || {}).await
    }

    /// As [`complete`](Self::complete); `seen` is called at every token.
    pub async fn complete_seen(&self, request: &Value, seen: impl FnMut()) -> Result<Answer> {
        self.stream(&["v1", "completions"], request, seen).await
    }

    /// Sends a request and reads the stream of its answer.
    async fn stream(&self, path: &[&str], request: &Value, mut seen: impl FnMut()) -> Result<Answer> {
        let clock = Stopwatch::start();
        let mut events = std::pin::pin!(self.client.events(path, request).await?);
        let (mut answer, mut last_ms) = (Answer::default(), None);
        while let Some(event) = events.next().await {
            let event: Value = event?;
            if has_text(&event["choices"][0]) {
                let now_ms = clock.elapsed_ms();
                match last_ms.replace(now_ms) {
                    None => answer.first_ms = now_ms,
                    Some(last_ms) => answer.gaps_ms.push(now_ms - last_ms),
                }
                seen();
            }
            let usage = &event["usage"];
            if let Some(tokens) = usage["completion_tokens"].as_u64() {
                answer.tokens = tokens;
                answer.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
                let count = |name: &str| usage["prompt_tokens_details"][name].as_u64().unwrap_or(0);
                answer.cached_tokens = count("cached_tokens") + count("blended_tokens");
            }
        }
        match last_ms {
            Some(_) => Ok(answer),
            None => Err(Error::internal("the service answered without a token")),
        }
    }

    /// Sends a request and waits for its whole answer.
    pub async fn post(&self, path: &[&str], request: &Value) -> Result<Value> {
        self.client.post(path, request).await
    }

    /// What the service tells of itself.
    pub async fn status(&self) -> Result<Value> {
        self.client.get(&["v1", "cache", "status"]).await
    }

    /// Sends a prompt of random tokens and waits for the one token of its answer.
    pub async fn prefill(&self, prompt: usize) -> Result<()> {
        let request = json!({ "prompt": self.tokens(prompt), "max_tokens": 1, "temperature": 0, "ignore_eos": true });
        self.client.post::<Value>(&["v1", "completions"], &request).await?;
        Ok(())
    }

    /// The sum of a gauge's values in the service's metrics; `None` where there is no such gauge.
    pub fn gauge(metrics: &str, name: &str) -> Option<f64> {
        let values = metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_whole_name = rest.starts_with([' ', '{']);
            is_whole_name.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// The service's metrics, in Prometheus's text format.
    pub async fn metrics(&self) -> Result<String> {
        self.client.text(&["metrics"]).await
    }

    /// Waits until no sequence holds blocks, and until nothing is computed or written in the background: what one measurement
    /// left behind must not meet the next one.
    pub async fn settle(&self) -> Result<()> {
        let waiting = Stopwatch::start();
        while waiting.elapsed() < PATIENCE {
            let status = self.status().await?;
            let device = &status["device"];
            let blocks = |of: &str| device[of].as_u64().unwrap_or(0);
            let is_idle = blocks("free_blocks") + blocks("cached_blocks") >= blocks("blocks")
                && status["background"] == 0
                && status["store"]["to_disk"]["entries"] == 0;
            if is_idle {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tracing::warn!("the service does not become idle; the next figures are of a busy one");
        Ok(())
    }
}

/// Completes a request: streamed, the likeliest tokens, exactly `answer` of them.
pub fn streamed(mut request: Value, answer: usize) -> Value {
    request["stream"] = json!(true);
    request["stream_options"] = json!({ "include_usage": true });
    request["max_tokens"] = json!(answer);
    request["temperature"] = json!(0);
    request["ignore_eos"] = json!(true);
    request
}

/// Whether a chunk brings text: of a completion, or of a chat.
fn has_text(choice: &Value) -> bool {
    let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
    text.is_some_and(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_read() {
        let metrics = "# TYPE held gauge\nheld 3\nheld_more 9\nby{tier=\"host\"} 1.5\nby{tier=\"disk\"} 2\n";
        assert_eq!(Clients::gauge(metrics, "held"), Some(3.0));
        assert_eq!(Clients::gauge(metrics, "by"), Some(3.5));
        assert_eq!(Clients::gauge(metrics, "none"), None);
    }

    #[test]
    fn chunks_with_text_count() {
        assert!(has_text(&json!({ "text": "a" })) && has_text(&json!({ "delta": { "content": "a" } })));
        assert!(!has_text(&json!({ "text": "", "finish_reason": "length" })));
        assert!(!has_text(&json!({ "delta": { "role": "assistant", "content": "" } })) && !has_text(&Value::Null));
    }
}
