//! HTTP to a collector, on the program's runtime, for the SDK's thread as for ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::runtime::Handle;

use crate::error::{Error, Result};

/// What a collector may say.
const RESPONSE_BYTES: usize = 64 << 10;

/// Clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    runtime: Handle,
    /// What it sends.
    signal: &'static str,
    /// Whether the last request failed: a collector that does not take it is told of once.
    is_failing: Arc<AtomicBool>,
}

impl Client {
    /// Of what is called `signal` in log lines: a collector may take one and not another. Sends on the current runtime, and gives up after
    /// `timeout`.
    ///
    /// # Errors
    /// `Internal` where no client can be made.
    pub fn new(signal: &'static str, timeout: Duration) -> Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(timeout)
            // Elsewhere nobody should learn the headers.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("ragstone/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::internal(format!("no HTTP client for OTLP: {error}")))?;
        Ok(Self { http, runtime: Handle::current(), signal, is_failing: Arc::default() })
    }

    /// Posts what is encoded as protobuf. What fails is logged.
    pub async fn post(&self, url: &str, headers: &HeaderMap, body: Bytes) {
        let request = self.http.post(url).headers(headers.clone()).header(CONTENT_TYPE, "application/x-protobuf");
        // What fails is logged already.
        let _ = self.execute(request.body(body).build()).await;
    }

    async fn execute(&self, request: reqwest::Result<reqwest::Request>) -> reqwest::Result<(u16, HeaderMap, Bytes)> {
        let sent = async {
            let mut response = self.http.execute(request?).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let mut body = BytesMut::new();
            while let Some(part) = response.chunk().await?
                && body.len() + part.len() <= RESPONSE_BYTES
            {
                body.extend_from_slice(&part);
            }
            Ok((status, headers, body.freeze()))
        };
        let answered = sent.await;
        self.log(&answered);
        answered
    }

    fn log(&self, answered: &reqwest::Result<(u16, HeaderMap, Bytes)>) {
        let failure = match answered {
            Ok((200..300, _, _)) => None,
            Ok((status, _, _)) => Some(format!("it answered with {status}")),
            // Its address may have a password in it.
            Err(error) if error.is_timeout() => Some("it did not answer in time".to_owned()),
            Err(error) if error.is_connect() => Some("it cannot be reached".to_owned()),
            Err(_) => Some("the connection broke".to_owned()),
        };
        match (failure, &self.is_failing) {
            (Some(why), is_failing) if !is_failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    signal = self.signal,
                    why,
                    "the OpenTelemetry collector does not take it; what it misses is lost, and it is tried again"
                );
            }
            (None, is_failing) if is_failing.swap(false, Ordering::Relaxed) => {
                tracing::info!(signal = self.signal, "the OpenTelemetry collector takes it again");
            }
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    /// The SDK's thread is not the runtime's: the request is sent there.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.clone();
        let sent = self.runtime.spawn(async move {
            let (parts, body) = request.into_parts();
            let request = client.http.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
            client.execute(request.build()).await
        });
        let (status, headers, body) = sent.await??;
        let mut response = Response::new(body);
        *response.status_mut() = status.try_into()?;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
