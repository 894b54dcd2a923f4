//! The thread that reads a job's files, a few documents ahead of the embedding.

use ragstone_documents::{Document, FoundFile, RecordFields, Unread};
use ragstone_env::Env;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::attempts::GROUP_FILES;
use crate::error::{Error, ErrorKind, Result};

/// Documents that wait to be taken. Each may be as large as a file may.
const DOCUMENTS_AHEAD: usize = 2;

/// What came of a file that was asked for.
#[derive(Debug)]
pub enum Step {
    /// One of its documents.
    Document(Box<Document>),
    /// All came.
    Done,
    /// None will; why, for people.
    Skipped(String),
}

/// One thread for a whole job: the process that parses files lives no longer than the thread that started it.
pub struct Reading {
    wanted: mpsc::Sender<FoundFile>,
    steps: mpsc::Receiver<Result<Step>>,
}

impl Reading {
    /// Starts the thread, which reads records as `fields` says. It ends when this is dropped, or `stopping` is cancelled.
    pub fn start(env: Env, file_seconds: u64, fields: RecordFields, stopping: CancellationToken) -> Self {
        let (wanted, mut files) = mpsc::channel::<FoundFile>(GROUP_FILES);
        let (steps, received) = mpsc::channel(DOCUMENTS_AHEAD);
        tokio::task::spawn_blocking(move || {
            #[cfg(unix)]
            let parser = ragstone_documents::Process::new(file_seconds, stopping);
            #[cfg(not(unix))]
            let parser = ragstone_documents::Here;
            let mut reader = ragstone_documents::Reader::new(parser).with_fields(fields);
            while let Some(file) = files.blocking_recv() {
                let read = env.fail_point(&fail_point(&file)).map_err(Unread::Failed);
                let read = read.and_then(|()| {
                    reader.read(&file, &mut |document| {
                        steps.blocking_send(Ok(Step::Document(Box::new(document)))).is_ok()
                    })
                });
                let (step, is_over) = match read {
                    Ok(()) => (Ok(Step::Done), false),
                    Err(Unread::Skipped(why)) => (Ok(Step::Skipped(why)), false),
                    Err(Unread::Stopped) => (Err(stopped()), true),
                    Err(Unread::Failed(error)) => (Err(error), true),
                };
                if steps.blocking_send(step).is_err() || is_over {
                    return;
                }
            }
        });
        Self { wanted, steps: received }
    }

    /// Asks for a file of a group; its steps come after those of the files asked for before.
    pub async fn want(&self, file: FoundFile) -> Result<()> {
        self.wanted.send(file).await.map_err(|_| broken_off())
    }

    /// The next step of the files that were asked for.
    pub async fn next(&mut self) -> Result<Step> {
        self.steps.recv().await.unwrap_or_else(|| Err(broken_off()))
    }
}

/// Of one file, so that a test can choose the one that ends the process.
fn fail_point(file: &FoundFile) -> String {
    let name = file.path.file_name().unwrap_or_default();
    format!("ingest.read:{}", ragstone_documents::shown(name.as_ref()))
}

/// The end of a job that goes on at the next start.
pub fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "the service stops; the ingest goes on when it starts again")
}

fn broken_off() -> Error {
    Error::internal("the reading of files broke off; run the ingest again, it goes on where it was")
}
