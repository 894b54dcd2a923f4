//! Requests that arrive when they do, whatever became of those before: an open loop.

use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::Value;
use tokio::task::JoinSet;

use super::clients::{Answer, Clients};
use crate::error::{Error, ErrorKind, Result};

/// What became of a request, and when.
#[derive(Debug, Clone)]
pub enum Fate {
    /// Answered to the last token.
    Answered { answer: Answer, after_ms: f64 },
    /// Told that there is no room or no time for it.
    Refused { after_ms: f64 },
    /// Its connection was closed, or never taken.
    Lost,
}

/// Which endpoint.
#[derive(Debug, Clone, Copy)]
pub enum Endpoint {
    Completions,
    Chat,
}

/// Sends a request and waits for its end.
///
/// # Errors
/// What neither refuses it nor loses it.
pub async fn send(clients: &Clients, endpoint: Endpoint, request: &Value) -> Result<Fate> {
    let clock = Stopwatch::start();
    let answer = match endpoint {
        Endpoint::Completions => clients.complete(request).await,
        Endpoint::Chat => clients.chat(request).await,
    };
    let after_ms = clock.elapsed_ms();
    match answer {
        Ok(answer) => Ok(Fate::Answered { answer, after_ms }),
        Err(error) if matches!(error.kind(), ErrorKind::Overloaded | ErrorKind::DeadlineExceeded) => {
            Ok(Fate::Refused { after_ms })
        }
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Fate::Lost),
        Err(error) => Err(error),
    }
}

/// Requests of which the last one was sent.
#[derive(Debug, Default)]
pub struct Arrived {
    under_way: JoinSet<Result<Fate>>,
    fates: Vec<Fate>,
}

/// Sends all requests, `per_s` of them a second on average with exponentially distributed gaps between them.
///
/// # Errors
/// The first of [`send`].
pub async fn arrive(clients: &Clients, endpoint: Endpoint, requests: Vec<Value>, per_s: f64) -> Result<Arrived> {
    let (clock, mut due_s) = (Stopwatch::start(), 0.0);
    let Arrived { mut under_way, mut fates } = Arrived::default();
    for request in requests {
        // Above zero, so that it has a logarithm.
        let uniform = (clients.below(1 << 52) + 1) as f64 / (1_u64 << 52) as f64;
        due_s += -uniform.ln() / per_s;
        tokio::time::sleep(Duration::from_secs_f64((due_s - clock.elapsed_s()).max(0.0))).await;
        let clients = clients.clone();
        under_way.spawn(async move { send(&clients, endpoint, &request).await });
        while let Some(ended) = under_way.try_join_next() {
            fates.push(ended.map_err(|_| broken_off())??);
        }
    }
    Ok(Arrived { under_way, fates })
}

impl Arrived {
    /// What became of them, not in the order of the requests.
    ///
    /// # Errors
    /// The first of [`send`].
    pub async fn ends(mut self) -> Result<Vec<Fate>> {
        while let Some(ended) = self.under_way.join_next().await {
            self.fates.push(ended.map_err(|_| broken_off())??);
        }
        Ok(self.fates)
    }
}

fn broken_off() -> Error {
    Error::internal("a client of the benchmark broke off")
}
