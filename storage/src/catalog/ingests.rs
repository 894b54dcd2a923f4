//! The journal of ingests: what is to be done, and what each start of it works on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::records::Kept;
use super::{Catalog, read_json, to_json};
use crate::{Error, Result};

/// Documents that are being ingested. Survives a kill, so that the next start goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngestJob {
    /// Ascending in the order of adding.
    pub id: u64,
    /// Where the documents go.
    pub collection: String,
    /// What the user named.
    pub paths: Vec<PathBuf>,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The most files that one start got done, in the order in which the paths are walked.
    pub done: u64,
    /// How often it was begun since it last got further. Zero in rows of versions that did not count.
    #[serde(default)]
    pub starts: u32,
    /// Files that were begun and not finished. Begun and still here after a start: it may be they that ended the process.
    #[serde(default)]
    pub attempts: Vec<FileAttempt>,
    /// How.
    #[serde(flatten)]
    pub options: IngestOptions,
}

/// How files are ingested, as their user asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngestOptions {
    /// Whether documents of files that are gone are removed in the end.
    pub prune: bool,
    /// What is noted with every document, beside what its file says of itself.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Which fields of records are their documents' text, title and id, as readers of files have it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
    /// Of what is fetched: pages at most, and links from the page that was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

/// A file that an ingest began to work on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttempt {
    /// Its path, as text that tells apart all names.
    pub path: String,
    /// How often it was begun since it last got further.
    pub count: u32,
    /// The most of its documents that one attempt got into the corpus.
    #[serde(default)]
    pub documents: u64,
}

impl Catalog {
    /// Adds an ingest job to the journal; durable on return.
    ///
    /// # Errors
    /// `InvalidInput` if a path is not UTF-8; else as sled says.
    pub fn add_job(&self, collection: &str, paths: &[PathBuf], prune: bool, now_unix_ms: u64) -> Result<IngestJob> {
        self.add_job_with(collection, paths, IngestOptions { prune, ..IngestOptions::default() }, now_unix_ms)
    }

    /// As [`add_job`](Self::add_job), with all options.
    ///
    /// # Errors
    /// As [`add_job`](Self::add_job)'s.
    pub fn add_job_with(
        &self,
        collection: &str,
        paths: &[PathBuf],
        options: IngestOptions,
        now_unix_ms: u64,
    ) -> Result<IngestJob> {
        let id = self.fresh_id()?;
        let (collection, paths) = (collection.to_owned(), paths.to_vec());
        let created_unix_ms = now_unix_ms;
        let (done, starts, attempts) = (0, 0, Vec::new());
        let job = IngestJob { id, collection, paths, created_unix_ms, done, starts, attempts, options };
        self.put(Kept::Jobs, &id.to_be_bytes(), to_json(&job)?)?;
        Ok(job)
    }

    /// Jobs that were added and not finished, the oldest first.
    ///
    /// # Errors
    /// As sled says.
    pub fn unfinished_jobs(&self) -> Result<Vec<IngestJob>> {
        Ok(self.jobs.read())
    }

    /// A job as it was last written; `None` if it is finished.
    ///
    /// # Errors
    /// As sled says.
    pub fn job(&self, id: u64) -> Result<Option<IngestJob>> {
        Ok(self.jobs.get(id.to_be_bytes()).and_then(|value| read_json(&value)))
    }

    /// Notes how far a job is and what it works on; durable on return. One that was taken out meanwhile does not come back.
    ///
    /// # Errors
    /// `NotFound` if it is finished; else as sled says.
    pub fn update_job(&self, job: &IngestJob) -> Result<()> {
        let (id, row) = (job.id.to_be_bytes(), to_json(job)?);
        let mut records = self.changing();
        if !self.jobs.contains_key(id) {
            return Err(Error::not_found(format!("ingest job {} is not in the journal", job.id)));
        }
        self.write(&mut records, Kept::Jobs, vec![(id.to_vec(), Some(row))], true)
    }

    /// Takes a job that is done out of the journal; durable on return. Finishing twice is fine.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_job(&self, id: u64) -> Result<()> {
        self.remove(Kept::Jobs, &id.to_be_bytes()).map(drop)
    }
}
