//! An engine of somebody else's, which answers in the place of this process's model: vLLM, SGLang, llama.cpp, a hosted model, whatever speaks
//! OpenAI's HTTP. Whoever has a GPU keeps the engine that runs on it; documents, search, citations, tenants and the order of passages
//! are ours (docs/engines.md, docs/decisions/0121).
//!
//! KV is that engine's own: nothing of it is stored here. What it has of a prompt's beginning it says itself, after each answer.

mod options;
pub(crate) mod prefixes;
mod reply;
mod request;
mod served;

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

pub use self::options::UpstreamOptions;
use self::prefixes::Prefixes;
use self::reply::Reply;
pub(crate) use self::reply::{Heard, UpstreamUsage};
pub(crate) use self::request::{Asked, Endpoint, Prompt, body, likely_tokens};
pub(crate) use self::served::Served;
use crate::admission::deadline::deadline_error;
use crate::error::{Error, ErrorKind, Result};

/// A connection must stand within this time: an engine that is not there is told of at once.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes that are read of an error's text, or of the list of models.
const MOST_BYTES: usize = 1 << 20;

/// The engine, and what is known of it.
pub(crate) struct Upstream {
    client: Client,
    /// Its address, with the path that OpenAI's begin with: `http://10.0.0.2:8000/v1`.
    base: String,
    served: Served,
    prefixes: Mutex<Prefixes>,
}

/// An answer on its way. Dropping it ends the connection, by which the engine knows that nobody reads on.
pub(crate) struct Answering {
    bytes: Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    reply: Reply,
    base: String,
    deadline: Instant,
}

impl Upstream {
    /// Asks the engine what it serves. `None`: no engine is set.
    ///
    /// # Errors
    /// `InvalidInput` for a wrong setting; `Unavailable` where the engine does not answer and no model is named; `NotFound` for a model that it
    /// does not have.
    pub async fn connect(options: &UpstreamOptions) -> Result<Option<Self>> {
        let Some(base) = options.base()? else { return Ok(None) };
        let mut headers = HeaderMap::new();
        if let Some(key) = options.secret()? {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value
                .map_err(|_| Error::invalid_input("the key of `engine_key` has characters that no header may have"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder().connect_timeout(CONNECT).default_headers(headers).build();
        let client = client.map_err(|error| Error::new(ErrorKind::Internal, format!("no HTTP client: {error}")))?;
        let served = match list(&client, &base).await {
            Ok(listed) => Served::choose(&listed, options.model.as_deref(), &base)?,
            // It may start later than this: whoever names the model is not kept waiting.
            Err(error) => match &options.model {
                Some(model) if error.kind() == ErrorKind::Unavailable => {
                    tracing::warn!(%error, "questions get 503 until the engine answers; searches work");
                    Served::unknown(model)
                }
                _ => return Err(error),
            },
        };
        tracing::info!(engine = base, model = served.id, make = ?served.make, "answers come from an engine elsewhere");
        Ok(Some(Self { client, base, served, prefixes: Mutex::default() }))
    }

    /// Where it is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// What it serves.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// What a request gets that only the model of this process could answer.
    pub fn not_here(&self) -> Error {
        let message = format!(
            "this needs the model in this process, and the engine at {} answers here (setting `engine`): ask that, or leave `engine` out",
            self.base
        );
        Error::new(ErrorKind::InvalidInput, message)
    }

    /// What it is thought to have of prompts' beginnings.
    pub fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a prompt. Returns when the engine has taken it.
    ///
    /// # Errors
    /// What the engine says is wrong: `InvalidInput`, `ContextLength`, `Overloaded`; `Unavailable` where it does not answer;
    /// `DeadlineExceeded`.
    pub async fn ask(&self, endpoint: Endpoint, body: &Value, deadline: Instant) -> Result<Answering> {
        let url = format!("{}{}", self.base, endpoint.path());
        let sent = timeout_at(deadline, self.client.post(url).json(body).send()).await;
        let response = sent.map_err(|_| deadline_error())?.map_err(|error| unreachable(&self.base, &error))?;
        let response = check(&self.base, response).await?;
        let (bytes, reply) = (Box::pin(response.bytes_stream()), Reply::new(endpoint));
        Ok(Answering { bytes, reply, base: self.base.clone(), deadline })
    }
}

impl Answering {
    /// What comes next; `None` behind the end. An answer that ends without saying why is an error: its connection broke.
    pub async fn next(&mut self) -> Option<Result<Heard>> {
        use futures::StreamExt;
        loop {
            if let Some(heard) = self.reply.next() {
                return Some(Ok(heard));
            }
            if self.reply.has_ended() {
                return None;
            }
            let read = match timeout_at(self.deadline, self.bytes.next()).await {
                Ok(Some(Ok(bytes))) => self.reply.read(&bytes),
                Ok(Some(Err(error))) => Err(broken(&self.base, &error.to_string())),
                Ok(None) => self.reply.close().map_err(|error| broken(&self.base, &error.to_string())),
                Err(_) => Err(deadline_error()),
            };
            if let Err(error) = read {
                self.reply.give_up();
                return Some(Err(error));
            }
        }
    }
}

/// What it says it serves, as it says it.
async fn list(client: &Client, base: &str) -> Result<Value> {
    let asked = client.get(format!("{base}/models")).timeout(2 * CONNECT).send().await;
    let response = check(base, asked.map_err(|error| unreachable(base, &error))?).await?;
    let text = beginning(response).await;
    serde_json::from_str(&text).map_err(|_| {
        let message = format!(
            "{base}/models answers what is no list of models; set `engine` to an engine that speaks OpenAI's HTTP"
        );
        Error::new(ErrorKind::Incompatible, message)
    })
}

/// An error of the engine as one of ours.
async fn check(base: &str, response: Response) -> Result<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    Err(refused(base, status, &reply::error_text(&beginning(response).await)))
}

fn refused(base: &str, status: u16, text: &str) -> Error {
    let is_too_long = ["context length", "context_length", "maximum context", "exceed_context_size", "too many tokens"]
        .iter()
        .any(|words| text.to_lowercase().contains(words));
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

fn unreachable(base: &str, error: &reqwest::Error) -> Error {
    // reqwest's own text repeats the address; what is beneath it says why.
    let mut cause: &dyn std::error::Error = error;
    while let Some(beneath) = cause.source() {
        cause = beneath;
    }
    let message = format!("the engine at {base} does not answer: {cause}; start it, or set `engine` to where it is");
    Error::new(ErrorKind::Unavailable, message)
}

fn broken(base: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the engine at {base} broke its answer off: {cause}; ask again"))
}
