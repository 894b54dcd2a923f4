//! One engine: its connection, what runs there, and what it is thought to have cached.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};
use ragstone_env::Env;
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::CONNECT;
use super::prefixes::Prefixes;
use super::reply::{Heard, Reply, error_text};
use super::request::Endpoint;
use crate::admission::deadline::deadline_error;
use crate::error::{Error, ErrorKind, Result};

/// Bytes that are read of an error's text, or of the list of models.
const MOST_BYTES: usize = 1 << 20;
/// How long an engine that did not answer is asked last, in milliseconds.
const DOWN_MS: u64 = 5_000;

/// An engine, and what is known of it.
pub(crate) struct Node {
    client: Client,
    /// Its address, with the path that OpenAI's begin with: `http://10.0.0.2:8000/v1`.
    base: String,
    /// Answers that run there, as far as they are ours.
    running: Arc<AtomicUsize>,
    /// Until when it counts as down, in milliseconds since 1970.
    down_until: AtomicU64,
    prefixes: Mutex<Prefixes>,
}

/// An answer on its way. Dropping it ends the connection, by which the engine knows that nobody reads on.
pub(crate) struct Answering {
    bytes: Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    reply: Reply,
    base: String,
    deadline: Instant,
    _running: Running,
}

/// One answer that runs at an engine.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn at(running: &Arc<AtomicUsize>) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    pub fn new(client: Client, base: String) -> Self {
        let (running, down_until) = (Arc::default(), AtomicU64::new(0));
        Self { client, base, running, down_until, prefixes: Mutex::default() }
    }

    /// Where it is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Answers of ours that run there.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Whether it did not answer a moment ago.
    pub fn is_down(&self, env: &Env) -> bool {
        env.now_unix_ms() < self.down_until.load(Ordering::Relaxed)
    }

    /// It did not answer.
    pub fn mark_down(&self, env: &Env) {
        self.down_until.store(env.now_unix_ms() + DOWN_MS, Ordering::Relaxed);
    }

    /// What it is thought to have of prompts' beginnings.
    pub fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it says it serves, as it says it.
    ///
    /// # Errors
    /// `Unavailable` where it does not answer; `Incompatible` where it answers something else.
    pub async fn list(&self) -> Result<Value> {
        let asked = self.client.get(format!("{}/models", self.base)).timeout(2 * CONNECT).send().await;
        let response = self.check(asked.map_err(|error| self.unreachable(&error))?).await?;
        serde_json::from_str(&beginning(response).await).map_err(|_| {
            let message = format!(
                "{}/models answers what is no list of models; set `engine` to an engine that speaks OpenAI's HTTP",
                self.base
            );
            Error::new(ErrorKind::Incompatible, message)
        })
    }

    /// Sends a prompt. Returns when the engine has taken it.
    ///
    /// # Errors
    /// What the engine says is wrong: `InvalidInput`, `ContextLength`, `Overloaded`; `Unavailable` where it does not answer;
    /// `DeadlineExceeded`.
    pub async fn ask(&self, endpoint: Endpoint, body: &Value, deadline: Instant) -> Result<Answering> {
        let running = Running::at(&self.running);
        let url = format!("{}{}", self.base, endpoint.path());
        let asked = async {
            let sent = self.client.post(url).json(body).send().await;
            self.check(sent.map_err(|error| self.unreachable(&error))?).await
        };
        let response = timeout_at(deadline, asked).await.map_err(|_| deadline_error())??;
        let (bytes, reply) = (Box::pin(response.bytes_stream()), Reply::to(endpoint, body));
        Ok(Answering { bytes, reply, base: self.base.clone(), deadline, _running: running })
    }

    /// An error of the engine as one of ours.
    async fn check(&self, response: Response) -> Result<Response> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        // One that stalls within its error is not waited for: another may answer.
        let said = tokio::time::timeout(2 * CONNECT, beginning(response)).await.unwrap_or_default();
        Err(refused(&self.base, status, &error_text(&said)))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        // reqwest's own text repeats the address; what is beneath it says why.
        let mut cause: &dyn std::error::Error = error;
        while let Some(beneath) = cause.source() {
            cause = beneath;
        }
        let base = &self.base;
        let message =
            format!("the engine at {base} does not answer: {cause}; start it, or set `engine` to where it is");
        Error::new(ErrorKind::Unavailable, message)
    }
}

impl Answering {
    /// What comes next; `None` behind the end. An answer that ends without saying why is an error: its connection broke.
    pub async fn next(&mut self) -> Option<Result<Heard>> {
        loop {
            if let Some(heard) = self.reply.next() {
                return Some(Ok(heard));
            }
            if self.reply.has_ended() {
                return None;
            }
            let read = match timeout_at(self.deadline, self.bytes.next()).await {
                Ok(Some(Ok(bytes))) => self.reply.read(&bytes),
                Ok(Some(Err(error))) => Err(self.broken(&error.to_string())),
                Ok(None) => self.reply.close().map_err(|error| self.broken(&error.to_string())),
                Err(_) => Err(deadline_error()),
            };
            if let Err(error) = read {
                self.reply.give_up();
                return Some(Err(error));
            }
        }
    }

    fn broken(&self, cause: &str) -> Error {
        let message = format!("the engine at {} broke its answer off: {cause}; ask again", self.base);
        Error::new(ErrorKind::Unavailable, message)
    }
}

fn refused(base: &str, status: u16, text: &str) -> Error {
    let lower = text.to_lowercase();
    let of_length = ["context length", "context_length", "maximum context", "exceed_context_size", "too many tokens"];
    let is_too_long = of_length.iter().any(|words| lower.contains(words));
    let (kind, message) = match status {
        400 | 413 | 422 if is_too_long => (ErrorKind::ContextLength, format!("the engine says: {text}")),
        400 | 413 | 422 => (ErrorKind::InvalidInput, format!("the engine refuses this: {text}")),
        401 | 403 => (
            ErrorKind::Unavailable,
            format!("the engine at {base} does not take the key of `engine_key` (status {status}): {text}"),
        ),
        404 => (
            ErrorKind::Unavailable,
            format!(
                "the engine at {base} does not know the path or the model (status 404): {text}; see `engine` and `engine_model`"
            ),
        ),
        429 => (ErrorKind::Overloaded, format!("the engine is full: {text}")),
        _ => (ErrorKind::Unavailable, format!("the engine at {base} answers with status {status}: {text}")),
    };
    Error::new(kind, message)
}

/// As much of a text as is worth reading.
async fn beginning(mut response: Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(more)) = response.chunk().await {
        bytes.extend_from_slice(&more);
        if bytes.len() > MOST_BYTES {
            break;
        }
    }
    bytes.truncate(MOST_BYTES);
    String::from_utf8_lossy(&bytes).into_owned()
}
