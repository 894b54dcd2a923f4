//! Log lines and metrics. Log lines go to standard error, so that standard output stays data.

mod metrics;

use std::io::Write;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::{LogFormat, Surface};
use crate::error::{Error, Result};

/// Quiet the libraries that log every step of a query plan.
const LIBRARIES: &str = "lance=warn,lance::index::vector::builder=error,lancedb=warn,datafusion=warn,tantivy=warn,sled=warn,actix_server=warn,hyper=warn,object_store=warn,rmcp=error";

/// Starts logging; `default_level` is that of ragstone's own lines where the configuration has none.
pub fn init_logging(surface: &Surface, default_level: &str) -> Result<()> {
    let directives = match (&surface.log, std::env::var("RUST_LOG")) {
        (Some(own), _) => own.clone(),
        (None, Ok(rust)) if !rust.is_empty() => rust,
        _ => format!("{default_level},{LIBRARIES}"),
    };
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        Error::invalid_input(format!(
            "log filter `{directives}`: {error}; write it like info or ragstone_actors=debug,warn"
        ))
    })?;
    let steps = if surface.log_steps { FmtSpan::CLOSE } else { FmtSpan::NONE };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogWriter).with_span_events(steps);
    match surface.log_format {
        LogFormat::Text => {
            let color = std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(color).with_target(false).init();
        }
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

/// Standard error, beside the progress bars.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        crate::progress::beside_bars(|| std::io::stderr().write(line))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// The process's metrics recorder, installed by the first call.
pub fn recorder() -> Result<PrometheusHandle> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let handle = install_recorder()?;
    Ok(RECORDER.get_or_init(|| handle).clone())
}

/// Sorts what histograms collected into their buckets, now and then, for as long as it is polled. Otherwise samples would pile up
/// where nobody looks at the metrics.
pub async fn metrics_upkeep(metrics: PrometheusHandle) {
    let mut often = tokio::time::interval(std::time::Duration::from_secs(5));
    loop {
        often.tick().await;
        metrics.run_upkeep();
    }
}

fn install_recorder() -> Result<PrometheusHandle> {
    let seconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
    let failed = |error: metrics_exporter_prometheus::BuildError| Error::internal(format!("metrics: {error}"));
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &seconds)
        .map_err(failed)?
        .install_recorder()
        .map_err(failed)?;
    metrics::register();
    Ok(handle)
}
