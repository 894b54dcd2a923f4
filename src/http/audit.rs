//! The audit log: who asked, added, deleted and evicted, a JSON line a request, without texts. A file a day (UTC), the oldest go.
//!
//! ```json
//! {"time":"2026-11-27T20:33:59.120Z","who":"key","key":"reader","tenant":"acme","from":"10.0.0.7","method":"DELETE",
//!  "path":"/v1/collections/{collection}/documents/{document:.+}","names":{"collection":"house","document":"keys.md"},"status":200,"ms":12.4}
//! ```

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use actix_web::dev::ServiceResponse;
use actix_web::http::Method;
use actix_web::{HttpMessage, HttpRequest};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing_appender::rolling::{RollingFileAppender, Rotation};

use super::identity::Visitor;
use super::ollama::lines::rfc3339;
use crate::config::Surface;
use crate::error::{Error, ErrorKind, Result};

/// Longer names are cut.
const MOST_NAME_CHARS: usize = 200;
/// Names of one kind that are written, at the most: of a thousand documents the first.
const MOST_NAMES: usize = 50;

/// Where the audit log is written.
#[derive(Debug)]
pub struct AuditLog(Mutex<RollingFileAppender>);

/// What a handler says of its request, besides the names in its path.
#[derive(Debug, Default)]
struct Said(Map<String, Value>);

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    who: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    method: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    names: Map<String, Value>,
    status: u16,
    ms: f64,
}

impl AuditLog {
    /// As configured; `None` where none is wanted.
    ///
    /// # Errors
    /// `InvalidInput` where its folder cannot be written.
    pub fn of(surface: &Surface) -> Result<Option<Self>> {
        surface.audit_log.as_deref().map(|folder| Self::open(folder, surface.audit_days)).transpose()
    }

    fn open(folder: &Path, days: usize) -> Result<Self> {
        let file = RollingFileAppender::builder()
            .rotation(Rotation::DAILY)
            .filename_prefix("audit")
            .filename_suffix("jsonl")
            .max_log_files(days)
            .build(folder);
        file.map(|file| Self(Mutex::new(file))).map_err(|error| {
            let message = format!("`audit_log`: {} cannot be written: {error}", folder.display());
            Error::new(ErrorKind::InvalidInput, message)
        })
    }

    /// Writes the line of a request that was answered. Reading what the service is and has is not written.
    pub fn note<B>(&self, now_unix_ms: u64, path: &str, ms: f64, response: &ServiceResponse<B>) {
        let request = response.request();
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            return;
        }
        let visitor = Visitor::of(request).ok();
        let (who, key) = match &visitor {
            Some(Visitor::Owner) => ("owner", None),
            Some(Visitor::Key(key)) => ("key", Some(key.record.name.as_str())),
            Some(Visitor::Anyone) => ("anyone", None),
            None => ("refused", None),
        };
        let mut names: Map<String, Value> =
            request.match_info().iter().map(|(name, value)| (name.to_owned(), cut(value).into())).collect();
        if let Some(Said(said)) = request.extensions_mut().remove::<Said>() {
            names.extend(said);
        }
        let line = Line {
            time: rfc3339(now_unix_ms),
            who,
            key,
            tenant: visitor.as_ref().map_or("", Visitor::own_tenant),
            from: request.peer_addr().map(|address| address.ip().to_string()),
            method: request.method().as_str(),
            path,
            names,
            status: response.status().as_u16(),
            ms,
        };
        if let Err(error) = self.write(&line) {
            // What is done is done: it is told at least here.
            tracing::error!(%error, who, path, status = line.status, "the audit log cannot be written");
            metrics::counter!("ragstone_audit_failures_total").increment(1);
        }
    }

    fn write(&self, line: &Line<'_>) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        // One write a line: lines are whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text)
    }
}

/// Has the line of a request say what it is about.
pub fn say(request: &HttpRequest, name: &str, value: impl Into<Value>) {
    let mut extensions = request.extensions_mut();
    if !extensions.contains::<Said>() {
        extensions.insert(Said::default());
    }
    if let Some(Said(said)) = extensions.get_mut::<Said>() {
        said.insert(name.to_owned(), value.into());
    }
}

/// As [`say`], of several.
pub fn say_all<'a>(request: &HttpRequest, name: &str, values: impl ExactSizeIterator<Item = &'a str>) {
    let count = values.len();
    say(request, name, values.take(MOST_NAMES).map(cut).collect::<Vec<_>>());
    if count > MOST_NAMES {
        say(request, "count", count);
    }
}

fn cut(name: &str) -> String {
    name.chars().take(MOST_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let surface = Surface { audit_log: Some(file), ..Surface::default() };
        let error = AuditLog::of(&surface).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("`audit_log`"), "{error}");
        assert!(AuditLog::of(&Surface::default()).unwrap().is_none());
    }
}
