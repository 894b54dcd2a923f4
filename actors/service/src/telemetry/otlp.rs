//! Traces and metrics to an OpenTelemetry collector, by OTLP over HTTP (`http/protobuf`).
//!
//! Spans go through the OpenTelemetry SDK, in batches and on a thread of their own. Metrics are what `/metrics` shows, sent now and
//! then: one set of names and figures, however they are read. The variables of OpenTelemetry's specification count
//! (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_…`, `OTEL_EXPORTER_OTLP_…`); what
//! `otlp_endpoint` says is stronger.

mod client;
mod endpoints;
mod metrics;

use std::future::Future;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use prost::Message;
use ragstone_env::Env;
use reqwest::header::HeaderMap;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use self::client::Client;
use self::endpoints::{Endpoint, Endpoints};
use super::samples::Samples;
use crate::error::{Error, Result};

/// How long the last spans may take to leave when the service stops.
const GRACE: Duration = Duration::from_secs(5);

/// What exports.
pub struct Otlp {
    /// Where metrics are wanted.
    metrics: Option<Metrics>,
    /// Where traces are wanted.
    provider: Option<SdkTracerProvider>,
}

struct Metrics {
    endpoint: Endpoint,
    headers: HeaderMap,
    interval: Duration,
    client: Client,
    resource: Resource,
    env: Env,
    /// From then on counters count, in milliseconds since 1970.
    started_unix_ms: u64,
}

impl Otlp {
    /// As the setting `otlp_endpoint` and OpenTelemetry's variables say; `None` where neither names a collector. Needs a runtime, which
    /// sends from then on.
    ///
    /// # Errors
    /// `InvalidInput` for an address, a protocol or a number that cannot be used.
    pub fn of(setting: Option<&str>, env: Env) -> Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(Endpoints { traces, metrics: endpoint_of_metrics, metrics_headers, interval }) =
            Endpoints::of(setting, &variable)?
        else {
            return Ok(None);
        };
        let resource = resource(&variable)?;
        let provider = traces.map(|endpoint| provider(endpoint, &resource)).transpose()?;
        let metrics = |endpoint: Endpoint| {
            let (headers, started_unix_ms) = (metrics_headers, env.now_unix_ms());
            let client = Client::new("metrics", endpoint.timeout)?;
            Ok::<_, Error>(Metrics { endpoint, headers, interval, client, resource, env, started_unix_ms })
        };
        Ok(Some(Self { metrics: endpoint_of_metrics.map(metrics).transpose()?, provider }))
    }

    /// What turns spans into OpenTelemetry's, where traces are wanted.
    pub fn layer<S: tracing::Subscriber + for<'a> LookupSpan<'a>>(&self) -> Option<OpenTelemetryLayer<S, SdkTracer>> {
        let tracer = self.provider.as_ref()?.tracer("ragstone");
        // Where a span is in the sources, and on which thread, says nothing to whoever operates a service.
        let layer = tracing_opentelemetry::layer().with_location(false).with_threads(false).with_target(false);
        Some(layer.with_tracked_inactivity(false).with_context_activation(false).with_tracer(tracer))
    }

    /// Sends what `exposition` gives (Prometheus's text) every `OTEL_METRIC_EXPORT_INTERVAL`, for as long as it is polled; returns where
    /// metrics are not wanted.
    pub async fn send_metrics<F: Future<Output = String>>(&self, exposition: impl Fn() -> F) {
        let Some(metrics) = &self.metrics else { return };
        let mut often = tokio::time::interval(metrics.interval);
        often.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first tick is at once, when there is nothing to tell.
        often.tick().await;
        loop {
            often.tick().await;
            metrics.send(&exposition().await).await;
        }
    }

    /// Sends an exposition while the service stops, which a collector that hangs must not hold up.
    pub async fn send_last_metrics(&self, exposition: &str) {
        let Some(metrics) = &self.metrics else { return };
        if tokio::time::timeout(GRACE, metrics.send(exposition)).await.is_err() {
            tracing::warn!("the last metrics were not sent: the collector does not answer");
        }
    }

    /// Sends the spans that wait.
    pub async fn close(&self) {
        let Some(provider) = self.provider.clone() else { return };
        let shut = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(GRACE));
        if let Ok(Err(error)) = shut.await {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

impl Metrics {
    /// Sends an exposition. What fails is logged.
    async fn send(&self, exposition: &str) {
        let samples = match Samples::read(exposition) {
            Ok(samples) => samples,
            Err(error) => return tracing::error!(%error, "metrics were not sent"),
        };
        let times = metrics::Times { started_unix_ms: self.started_unix_ms, now_unix_ms: self.env.now_unix_ms() };
        let request = metrics::request(&samples, times, &self.resource);
        self.client.post(self.endpoint.url.as_str(), &self.headers, request.encode_to_vec().into()).await;
    }
}

fn provider(endpoint: Endpoint, resource: &Resource) -> Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new("traces", endpoint.timeout)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.url)
        .with_timeout(endpoint.timeout)
        .build()
        // It shows the address, which may have a password in it.
        .map_err(|_| {
            Error::invalid_input("traces cannot be sent to that address: see `otlp_endpoint` and OTEL_EXPORTER_OTLP_…")
        })?;
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.clone()).build())
}

/// Who sends: the service's name and version, and what tells this process from others.
fn resource(variable: &dyn Fn(&str) -> Option<String>) -> Result<Resource> {
    let given = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let names = |key: &str| given.split(',').any(|pair| pair.split('=').next().is_some_and(|name| name.trim() == key));
    let mut builder = Resource::builder();
    if variable("OTEL_SERVICE_NAME").is_none_or(|name| name.is_empty()) && !names("service.name") {
        builder = builder.with_service_name("ragstone");
    }
    if !names("service.version") {
        builder = builder.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    if !names("service.instance.id") {
        let mut id = [0; 8];
        getrandom::fill(&mut id)
            .map_err(|error| Error::internal(format!("no randomness for the process's name: {error}")))?;
        builder = builder.with_attribute(KeyValue::new("service.instance.id", hex::encode(id)));
    }
    Ok(builder.build())
}
