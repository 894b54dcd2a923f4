//! Engines of somebody else's, which answer in the place of this process's model: vLLM, SGLang, llama.cpp, a hosted model, whatever speaks
//! OpenAI's HTTP. Whoever has GPUs keeps the engines that run on them; documents, search, citations, tenants, the order of passages and
//! which engine gets which question are ours (docs/engines.md, docs/decisions/0122).
//!
//! KV is those engines' own: nothing of it is stored here. What one has of a prompt's beginning it says itself, after each answer.

mod choose;
mod node;
mod options;
mod prefixes;
mod reply;
mod request;
mod served;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

pub(crate) use self::choose::{Look, in_order};
pub(crate) use self::node::{Answering, Node};
pub use self::options::UpstreamOptions;
pub(crate) use self::prefixes::Prefixes;
pub(crate) use self::reply::{Heard, UpstreamUsage};
pub(crate) use self::request::{Asked, Prompt, body, likely_tokens};
pub(crate) use self::served::Served;
use crate::error::{Error, ErrorKind, Result};

/// A connection must stand within this time: an engine that is not there is told of at once.
const CONNECT: Duration = Duration::from_secs(5);

/// The engines, and the model that they serve.
pub(crate) struct Upstream {
    nodes: Vec<Node>,
    served: Served,
    /// Questions so far: where nothing else tells engines apart, they take turns.
    turn: AtomicUsize,
}

impl Upstream {
    /// Asks the engines what they serve. `None`: none is set.
    ///
    /// # Errors
    /// `InvalidInput` for a wrong setting; `Unavailable` where no engine answers and no model is named; `NotFound` for a model that one of them
    /// does not have.
    pub async fn connect(options: &UpstreamOptions) -> Result<Option<Self>> {
        let bases = options.bases()?;
        if bases.is_empty() {
            return Ok(None);
        }
        let client = client(options.secret()?.as_deref())?;
        let nodes: Vec<Node> = bases.into_iter().map(|base| Node::new(client.clone(), base)).collect();
        let mut served: Option<Served> = None;
        let mut missing = None;
        for node in &nodes {
            let wanted = options.model.as_deref().or(served.as_ref().map(|served| served.id.as_str()));
            match node.list().await {
                Ok(listed) => {
                    let found = Served::choose(&listed, wanted, node.base())?;
                    served = Some(served.map_or(found.clone(), |served| served.with(&found)));
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        // They may start later than this; whoever names the model is not kept waiting.
        let served = match (served, &options.model, missing) {
            (Some(served), _, missing) => {
                missing.into_iter().for_each(|error| tracing::warn!(%error, "the other engines answer until it does"));
                served
            }
            (None, Some(model), Some(error)) => {
                tracing::warn!(%error, "questions get 503 until an engine answers; searches work");
                Served::unknown(model)
            }
            (None, _, missing) => {
                return Err(missing.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no engine was asked")));
            }
        };
        let upstream = Self { nodes, served, turn: AtomicUsize::new(0) };
        tracing::info!(
            engines = upstream.shown(),
            model = upstream.served.id,
            make = upstream.served.make.name(),
            "answers come from elsewhere"
        );
        Ok(Some(upstream))
    }

    /// The engines.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What they serve.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// Where they are, for people.
    pub fn shown(&self) -> String {
        self.nodes.iter().map(Node::base).collect::<Vec<_>>().join(", ")
    }

    /// Whose turn it is where nothing else tells them apart.
    pub fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// What a request gets that only the model of this process could answer.
    pub fn not_here(&self) -> Error {
        let message = format!(
            "this needs the model in this process, and the engine at {} answers here (setting `engine`): ask that, or leave `engine` out",
            self.shown()
        );
        Error::new(ErrorKind::InvalidInput, message)
    }
}

fn client(key: Option<&str>) -> Result<Client> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        let wrong = |_| Error::invalid_input("the key of `engine_key` has characters that no header may have");
        let mut value = value.map_err(wrong)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let client = Client::builder().connect_timeout(CONNECT).default_headers(headers).build();
    client.map_err(|error| Error::new(ErrorKind::Internal, format!("no HTTP client: {error}")))
}
