//! Log lines, metrics, and both of them with traces on their way to a collector. Log lines go to standard error, so that standard
//! output stays data.

mod metrics;
pub mod otlp;
pub mod samples;
pub mod trace;

use std::io::Write;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Filter, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use self::otlp::Otlp;

use crate::config::{LogFormat, Surface};
use crate::error::{Error, Result};

/// The lines of `level` that ragstone's own crates write, and only what fails of libraries: their warnings are for who programs with them.
fn usual(level: &str) -> String {
    format!("error,ragstone={level}")
}

/// Starts logging, and sends spans by `otlp`; `default_level` is that of ragstone's own lines where the configuration has none.
pub fn init(surface: &Surface, default_level: &str, otlp: Option<&Otlp>) -> Result<()> {
    let directives = match (&surface.log, std::env::var("RUST_LOG")) {
        (Some(own), _) => own.clone(),
        (None, Ok(rust)) if !rust.is_empty() => rust,
        _ => usual(default_level),
    };
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        Error::invalid_input(format!(
            "log filter `{directives}`: {error}; write it like info or ragstone_actors=debug,warn"
        ))
    })?;
    match otlp.and_then(Otlp::layer) {
        None => tracing_subscriber::registry().with(filter).with(lines(surface, false)).init(),
        Some(spans) => {
            trace::export();
            tracing_subscriber::registry()
                .with(lines(surface, true).with_filter(filter))
                .with(spans.with_filter(ours()))
                .init();
        }
    }
    Ok(())
}

/// Writes log lines; all spans around a line where the outermost names its trace.
fn lines<S: tracing::Subscriber + for<'a> LookupSpan<'a>>(
    surface: &Surface,
    names_trace: bool,
) -> Box<dyn Layer<S> + Send + Sync> {
    let steps = if surface.log_steps { FmtSpan::CLOSE } else { FmtSpan::NONE };
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_span_events(steps);
    // It would say so with `eprintln!`, which panics where nobody reads standard error any more (`2>&1 | head`).
    let lines = lines.log_internal_errors(false);
    match surface.log_format {
        LogFormat::Text => {
            let color = std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(color).with_target(false).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(names_trace).boxed(),
    }
}

/// Lets our own steps through, whatever is logged: what libraries do would drown them, and sending a span must not make another. Lines
/// are not sent: they name files, and errors quote.
///
/// It is asked each time (`dynamic`): of a filter whose answer is cached, `tracing-subscriber` keeps what it last said on this thread, and a
/// line of the `log` crate that is not written leaves a no there; the next span or line would be lost.
fn ours<S: tracing::Subscriber>() -> impl Filter<S> {
    dynamic_filter_fn(|metadata, _| {
        metadata.is_span() && metadata.target().starts_with("ragstone") && *metadata.level() <= Level::INFO
    })
    .with_max_level_hint(LevelFilter::INFO)
}

/// Standard error, beside the progress bars.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        ragstone_terminal::progress::beside_bars(|| std::io::stderr().write(line))
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

#[cfg(test)]
mod tests {
    use tracing_subscriber::EnvFilter;
    use tracing_subscriber::layer::SubscriberExt;

    /// Names of libraries and their warnings are no operator's business.
    #[test]
    fn lines_of_libraries_are_left_out_unless_they_fail() {
        let filter = EnvFilter::new(super::usual("info"));
        let subscriber = tracing_subscriber::registry().with(filter);
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::enabled!(target: "ragstone::service", tracing::Level::INFO));
            assert!(tracing::enabled!(target: "ragstone_actors::admission::jobs", tracing::Level::INFO));
            assert!(!tracing::enabled!(target: "ragstone_storage", tracing::Level::DEBUG));
            assert!(tracing::enabled!(target: "lance::dataset", tracing::Level::ERROR));
            assert!(!tracing::enabled!(target: "lance::dataset", tracing::Level::WARN));
            assert!(!tracing::enabled!(target: "h2::client", tracing::Level::INFO));
        });
    }
}
