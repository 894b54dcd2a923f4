//! The audit log: who asked, added, deleted and evicted, a JSON line a request, without texts. A file a day (UTC), the oldest go. Nobody waits for
//! the disk, which is told of each line at once: a power cut may take the lines of its last moments.
//!
//! ```json
//! {"time":"2026-11-27T20:33:59.120Z","who":"key","key":"reader","tenant":"acme","from":"10.0.0.7","method":"DELETE",
//!  "path":"/v1/collections/{collection}/documents/{document:.+}","names":{"collection":"house","document":"keys.md"},"status":200,"ms":12.4}
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use actix_web::{HttpMessage, HttpRequest, web};
use ragstone_env::durable::sync_folder;
use ragstone_env::{Env, Stopwatch};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing_appender::rolling::{RollingFileAppender, Rotation};

use super::identity::Visitor;
use super::ollama::lines::rfc3339;
use super::state::State;
use crate::config::Surface;
use crate::conversations::told_id;
use crate::error::{Error, ErrorKind, Result};

/// What the names of its files begin and end with, around the day: all that are called so in its folder are its own, and the oldest of them go.
const PREFIX: &str = "ragstone-audit";
const SUFFIX: &str = "jsonl";
/// Longer names are cut.
const MOST_NAME_CHARS: usize = 200;
/// Names of one kind that are written, at the most: of a thousand documents the first.
const MOST_NAMES: usize = 50;

/// Where the audit log is written.
#[derive(Debug)]
pub struct AuditLog {
    file: Mutex<RollingFileAppender>,
    /// Wakes the thread that syncs it, which ends with this.
    written: SyncSender<()>,
}

/// What is known of a request besides its head, filled in on its way.
#[derive(Debug, Default)]
struct Known {
    visitor: Option<Visitor>,
    names: Map<String, Value>,
}

/// Stands among a request's extensions.
#[derive(Debug, Clone, Default)]
struct Handle(Rc<RefCell<Known>>);

/// A request under way. Its line is written when its answer begins, or when it is dropped: a client that leaves may have had its way.
pub struct Watched {
    state: web::Data<State>,
    known: Handle,
    method: Method,
    path: String,
    from: Option<String>,
    begun: Stopwatch,
    status: Option<u16>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    who: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    names: &'a Map<String, Value>,
    status: u16,
    ms: f64,
}

impl AuditLog {
    /// As configured; `None` where none is wanted.
    ///
    /// # Errors
    /// `InvalidInput` where its folder cannot be written.
    pub fn of(surface: &Surface) -> Result<Option<Self>> {
        surface.audit_log.as_deref().map(|folder| Self::open(folder, surface.audit_files)).transpose()
    }

    fn open(folder: &Path, files: usize) -> Result<Self> {
        let refused = |error: String| {
            let message = format!("`audit_log`: {} cannot be written: {error}", folder.display());
            Error::new(ErrorKind::InvalidInput, message)
        };
        create(folder).map_err(|error| refused(error.to_string()))?;
        let file = RollingFileAppender::builder()
            .rotation(Rotation::DAILY)
            .filename_prefix(PREFIX)
            .filename_suffix(SUFFIX)
            .build(folder);
        let file = Mutex::new(file.map_err(|error| refused(error.to_string()))?);
        let (written, wakes) = sync_channel(1);
        let (folder, clock, mut looked) = (folder.to_owned(), Env::system(), String::new());
        let mut remove = move |folder: &Path| {
            let today = day(clock.now_unix_ms());
            // There is a file more once a day.
            if today == looked {
                return;
            }
            if let Err(error) = remove_old(folder, files, &today) {
                tracing::error!(%error, folder = %folder.display(), "old files of the audit log are not removed; remove them by hand");
            }
            looked = today;
        };
        remove(&folder);
        Env::spawn("audit-sync", move || {
            for () in wakes {
                if let Err(error) = sync_newest(&folder) {
                    tracing::error!(%error, "the audit log is written, but the disk does not say that it has it");
                }
                remove(&folder);
            }
        })?;
        Ok(Self { file, written })
    }

    fn write(&self, line: &Line<'_>) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        // One write a line: lines are whole.
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text)?;
        // One that is awake already looks again.
        let _ = self.written.try_send(());
        Ok(())
    }
}

/// Waits for the disk on the newest file, and on its name.
fn sync_newest(folder: &Path) -> std::io::Result<()> {
    let mut newest = None;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with(PREFIX) && newest.as_ref().is_none_or(|other| name > *other) {
            newest = Some(name);
        }
    }
    if let Some(name) = newest {
        File::open(folder.join(name))?.sync_all()?;
        sync_folder(folder)?;
    }
    Ok(())
}

/// Removes all but the last `files` of the days up to this one, by the days in their names. The library that writes them could, but removes
/// one too many at a start, today's where only one is kept, and goes by when a file was made here, which says nothing in a folder that was
/// copied. Files of later days, from when a clock was wrong, stay: beside them today's would be the oldest.
fn remove_old(folder: &Path, files: usize, today: &str) -> std::io::Result<()> {
    let mut days = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(day) = entry.file_name().to_str().and_then(day_of).filter(|day| *day <= today)
            && entry.file_type()?.is_file()
        {
            days.push(day.to_owned());
        }
    }
    days.sort_unstable();
    let old = days.len().saturating_sub(files);
    for day in days.iter().take(old) {
        match std::fs::remove_file(folder.join(format!("{PREFIX}.{day}.{SUFFIX}"))) {
            // Another process with this log was faster.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// `2026-11-27`, UTC, as the names of files have it.
fn day(unix_ms: u64) -> String {
    rfc3339(unix_ms).chars().take(10).collect()
}

/// The day of a file of the log; `None` for what is none.
fn day_of(name: &str) -> Option<&str> {
    let day = name.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_suffix(SUFFIX)?.strip_suffix('.')?;
    let is_right = |(at, byte): (usize, u8)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() };
    (day.len() == 10 && day.bytes().enumerate().all(is_right)).then_some(day)
}

/// The line of a client that left before its answer began, as web servers have it.
const LEFT: u16 = 499;

impl Watched {
    /// Watches a request that is not a mere reading; `None` where that is not wanted. `path` is as the router has it.
    pub fn begin(state: &web::Data<State>, request: &ServiceRequest, path: &str) -> Option<Self> {
        state.audit.as_ref()?;
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            return None;
        }
        let known = Handle::default();
        request.extensions_mut().insert(known.clone());
        Some(Self {
            state: state.clone(),
            known,
            method: request.method().clone(),
            path: path.to_owned(),
            from: request.peer_addr().map(|address| address.ip().to_string()),
            begun: Stopwatch::start(),
            status: None,
        })
    }

    /// It is answered with this status.
    pub fn answered(mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(audit) = &self.state.audit else { return };
        let known = self.known.0.borrow();
        let status = self.status.unwrap_or(LEFT);
        let (who, key) = match &known.visitor {
            Some(Visitor::Owner) => ("owner", None),
            Some(Visitor::Key(key)) => ("key", Some(key.record.name.as_str())),
            Some(Visitor::Anyone) => ("anyone", None),
            None if matches!(status, 401 | 403) => ("refused", None),
            None => ("unknown", None),
        };
        let line = Line {
            time: rfc3339(self.state.env.now_unix_ms()),
            who,
            key,
            tenant: known.visitor.as_ref().map_or("", Visitor::own_tenant),
            from: self.from.as_deref(),
            method: self.method.as_str(),
            path: &self.path,
            names: &known.names,
            status,
            ms: self.begun.elapsed_ms(),
        };
        if let Err(error) = audit.write(&line) {
            // What is done is done: it is told at least here.
            tracing::error!(%error, who, path = self.path, status, "the audit log cannot be written");
            metrics::counter!("ragstone_audit_failures_total").increment(1);
        }
    }
}

/// Notes who sent a request, and the names in its path.
pub fn note(request: &ServiceRequest, visitor: Option<&Visitor>) {
    if let Some(Handle(known)) = request.extensions().get::<Handle>() {
        let mut known = known.borrow_mut();
        known.visitor = visitor.cloned();
        known
            .names
            .extend(request.match_info().iter().map(|(name, value)| (name.to_owned(), named(name, value).into())));
    }
}

/// What stands in a path as `name`. Without keys it is the ids of responses and conversations that protect these, and that of an item has its
/// response's in it.
fn named(name: &str, value: &str) -> String {
    match name {
        "response" | "conversation" | "item" => told_id(value),
        _ => cut(value),
    }
}

/// Has the line of a request say what it is about.
pub fn say(request: &HttpRequest, name: &str, value: impl Into<Value>) {
    if let Some(Handle(known)) = request.extensions().get::<Handle>() {
        known.borrow_mut().names.insert(name.to_owned(), cut_all(value.into()));
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

/// Cuts every name of a value. What handlers say has few of them, as deep as a filter is.
fn cut_all(value: Value) -> Value {
    match value {
        Value::String(name) => cut(&name).into(),
        Value::Array(values) => values.into_iter().take(MOST_NAMES).map(cut_all).collect(),
        Value::Object(fields) => {
            fields.into_iter().take(MOST_NAMES).map(|(name, value)| (cut(&name), cut_all(value))).collect()
        }
        other => other,
    }
}

/// Makes a folder that is there for its user alone; one that is there stays as it is.
fn create(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
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

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_start_keeps_todays_file_and_as_many_as_it_should() {
        let folder = tempfile::tempdir().unwrap();
        // The latest day is made first: what counts is its name.
        for day in ["2020-01-03", "2020-01-02", "2020-01-01"] {
            std::fs::write(folder.path().join(format!("ragstone-audit.{day}.jsonl")), "{}\n").unwrap();
        }
        let open = |files| {
            let surface =
                Surface { audit_log: Some(folder.path().to_owned()), audit_files: files, ..Surface::default() };
            AuditLog::of(&surface).unwrap().unwrap()
        };
        open(2).file.lock().unwrap().write_all(b"{}\n").unwrap();
        let left = names(folder.path());
        assert!(left.len() == 2 && left[0].contains("2020-01-03"), "{left:?}");
        for _ in 0..2 {
            drop(open(1));
            let kept = names(folder.path());
            assert!(kept.contains(&left[1]) && !kept.contains(&left[0]), "{kept:?}");
            assert_eq!(std::fs::read(folder.path().join(&left[1])).unwrap(), b"{}\n");
        }
    }

    #[test]
    fn files_of_later_days_and_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let all = [
            "ragstone-audit.2026-01-01.jsonl",
            "ragstone-audit.2026-01-02.jsonl",
            "ragstone-audit.2026-01-02.jsonl.gz",
            "ragstone-audit.2027-01-01.jsonl",
            "ragstone-audit.old.jsonl",
        ];
        all.iter().for_each(|name| std::fs::write(folder.path().join(name), "").unwrap());
        remove_old(folder.path(), 2, "2026-01-02").unwrap();
        assert_eq!(names(folder.path()), all);
        remove_old(folder.path(), 1, "2026-01-02").unwrap();
        assert_eq!(names(folder.path()), all[1..]);
        // Of a day that had nothing to write yet, the last one is kept.
        remove_old(folder.path(), 1, "2026-01-03").unwrap();
        assert_eq!(names(folder.path()), all[1..]);
    }
}
