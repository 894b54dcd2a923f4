//! Journals of warm-ups and removals: written before the work begins, taken out when it is done, so that the next start
//! finishes what a kill cut off.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::records::Kept;
use super::{Catalog, read_json, to_json};
use crate::key::{Fingerprint, SegmentDigest};
use crate::{Error, Result};

/// The number of the last warm-up, u64 big-endian, among the settings.
const LAST_WARM_JOB: &str = "warm.last_job";

/// Entries of a collection or document that are computed before anybody asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WarmJob {
    /// Ascending in the order of adding.
    pub id: u64,
    /// The model whose entries they are; another one leaves the job alone.
    pub fingerprint: Fingerprint,
    /// What is computed.
    #[serde(flatten)]
    pub subject: WarmSubject,
    /// For whom. The default tenant is the empty name.
    pub tenants: Vec<String>,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// How far it is.
    pub progress: WarmProgress,
}

/// What a warm-up computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum WarmSubject {
    /// Passages, each behind what questions begin with.
    Passages {
        /// Whose.
        collection: String,
        /// Only this document's.
        document: Option<String>,
    },
    /// Modules of a schema that the tenant keeps, each apart (Prompt Cache).
    Modules {
        /// Its name.
        schema: String,
        /// Only these, and what they contain; none: all.
        modules: Vec<String>,
        /// Of which text of it; filled in when the job is journaled, and it ends where the schema has another.
        #[serde(default)]
        version: String,
    },
}

/// How far a warm-up is. What it counts is on disk, as far as the disk tier took it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WarmProgress {
    /// Passages are done in the order of their ids; this is the last one. Empty before the first, and for modules, of which each run looks
    /// at all.
    pub last_passage: String,
    /// Distinct passages that are done, or texts of modules: what stands before and behind a parameter counts apart.
    pub passages_done: u64,
    /// Distinct passages when the job was last begun.
    pub passages_total: u64,
    /// Entries that were computed and stored.
    pub entries_computed: u64,
    /// Entries that were there.
    pub entries_skipped: u64,
    /// Entries that failed to be computed; the reason is in the log.
    pub entries_failed: u64,
    /// Entries that the disk declined, because computing them again is faster than loading them: they are in host memory, until
    /// something else needs the room.
    #[serde(default)]
    pub entries_declined: u64,
    /// Entries that did not reach the disk, or left it at once, in the run that was the last: they stay to be done.
    #[serde(default)]
    pub entries_lost: u64,
}

/// Something that is on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalRow {
    /// Ascending in the order of adding.
    pub id: u64,
    /// What it is.
    pub removal: Removal,
}

/// Whose KV goes with a text that leaves the corpus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Everybody's, unless a document of any collection has the passage.
    #[default]
    Everyone,
    /// Everybody's, but each tenant keeps what a document has that it may read.
    Each {
        /// The tenant who hears of its own alone; `None`: somebody who looks after all of them.
        asks: Option<String>,
    },
}

/// What is on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// A document is to leave the corpus.
    Document {
        collection: String,
        document: String,
        #[serde(default)]
        reach: Reach,
    },
    /// A collection is to leave the corpus.
    Collection {
        collection: String,
        #[serde(default)]
        reach: Reach,
    },
    /// Passages that a document had, or is about to have no more: unless another document has them, their KV is to
    /// leave the store, whoever's it is.
    Passages(Vec<LeavingPassage>),
    /// The same, by [`Reach::Each`].
    PassagesOfEach { asks: Option<String>, passages: Vec<LeavingPassage> },
}

impl Removal {
    /// Passages whose KV is to leave.
    pub fn of(reach: &Reach, passages: Vec<LeavingPassage>) -> Self {
        match reach {
            Reach::Everyone => Self::Passages(passages),
            Reach::Each { asks } => Self::PassagesOfEach { asks: asks.clone(), passages },
        }
    }
}

/// A row of passages whose KV is to leave the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// Whose KV.
    pub reach: Reach,
    /// Of what.
    pub passages: Vec<LeavingPassage>,
}

/// A passage that leaves the corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavingPassage {
    /// The passage's id: a hash of its content.
    pub id: String,
    /// Its segments, one for each model that may have entries of it.
    pub segments: Vec<SegmentDigest>,
}

impl Catalog {
    /// Adds a warm-up to the journal; durable on return. One that wants the same and is not finished is taken up instead.
    ///
    /// # Errors
    /// As sled says.
    pub fn add_warm_job(&self, wanted: WarmJob) -> Result<WarmJob> {
        let same = |job: &WarmJob| {
            (&job.fingerprint, &job.subject, &job.tenants) == (&wanted.fingerprint, &wanted.subject, &wanted.tenants)
        };
        if let Some(job) = self.warm_jobs()?.into_iter().find(same) {
            return Ok(job);
        }
        let mut records = self.changing();
        let job = WarmJob { id: self.fresh_warm_id(), ..wanted };
        let id = job.id.to_be_bytes().to_vec();
        // The next one is synced behind it.
        self.write(&mut records, Kept::Settings, vec![(LAST_WARM_JOB.into(), Some(id.clone()))], false)?;
        self.write(&mut records, Kept::WarmJobs, vec![(id, Some(to_json(&job)?))], true)?;
        Ok(job)
    }

    /// People type these: 1, 2, 3, and not sled's, which leap at every start. None is used twice.
    fn fresh_warm_id(&self) -> u64 {
        let mut id =
            self.settings.get(LAST_WARM_JOB).and_then(|last| last[..].try_into().ok()).map_or(0, u64::from_be_bytes)
                + 1;
        // An earlier version took sled's.
        while self.warm_jobs.contains_key(id.to_be_bytes()) {
            id += 1;
        }
        id
    }

    /// Warm-ups that are not finished, the oldest first.
    ///
    /// # Errors
    /// As sled says.
    pub fn warm_jobs(&self) -> Result<Vec<WarmJob>> {
        Ok(self.warm_jobs.read())
    }

    /// Notes how far a warm-up is; durable on return.
    ///
    /// # Errors
    /// `NotFound` if it was finished or cancelled; else as sled says.
    pub fn update_warm_job(&self, id: u64, progress: &WarmProgress) -> Result<()> {
        let mut records = self.changing();
        let row = self.warm_jobs.get(id.to_be_bytes());
        let job = row.and_then(|value| read_json::<WarmJob>(&value));
        let job = job.ok_or_else(|| Error::not_found(format!("warm-up {id} is not in the journal")))?;
        let job = WarmJob { progress: progress.clone(), ..job };
        self.write(&mut records, Kept::WarmJobs, vec![(id.to_be_bytes().to_vec(), Some(to_json(&job)?))], true)
    }

    /// Takes a warm-up that is done or cancelled out of the journal; whether it was there. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_warm_job(&self, id: u64) -> Result<bool> {
        self.remove(Kept::WarmJobs, &id.to_be_bytes())
    }

    /// Adds a removal to the journal; its id. Durable on return.
    ///
    /// # Errors
    /// As sled says.
    pub fn add_removal(&self, removal: Removal) -> Result<u64> {
        let id = self.fresh_id()?;
        self.put(Kept::Removals, &id.to_be_bytes(), to_json(&RemovalRow { id, removal })?)?;
        Ok(id)
    }

    /// Removals that are not finished, the oldest first.
    ///
    /// # Errors
    /// As sled says.
    pub fn removals(&self) -> Result<Vec<RemovalRow>> {
        Ok(self.removals.read())
    }

    /// Those of the rows `ids` that are about passages and still there, rows of one reach together.
    ///
    /// # Errors
    /// As sled says.
    pub fn leaving_passages(&self, ids: &[u64]) -> Result<Vec<Leaving>> {
        let mut all: Vec<Leaving> = Vec::new();
        for id in ids {
            let row = self.removals.get(id.to_be_bytes());
            let (reach, mut passages) = match row.and_then(|row| read_json::<RemovalRow>(&row)).map(|row| row.removal) {
                Some(Removal::Passages(passages)) => (Reach::Everyone, passages),
                Some(Removal::PassagesOfEach { asks, passages }) => (Reach::Each { asks }, passages),
                _ => continue,
            };
            match all.iter_mut().find(|leaving| leaving.reach == reach) {
                Some(leaving) => leaving.passages.append(&mut passages),
                None => all.push(Leaving { reach, passages }),
            }
        }
        Ok(all)
    }

    /// Takes removals that are done out of the journal; durable on return. Finishing twice is fine.
    ///
    /// # Errors
    /// As sled says.
    pub fn finish_removals(&self, ids: &[u64]) -> Result<()> {
        let rows = ids.iter().map(|id| (id.to_be_bytes().to_vec(), None)).collect();
        self.write(&mut self.changing(), Kept::Removals, rows, true)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::ErrorKind;
    use ragstone_env::Env;

    fn open(dir: &TempDir) -> Catalog {
        Catalog::open(&dir.path().join("catalog"), &Env::seeded(0, 0)).unwrap()
    }

    fn wanted(collection: &str) -> WarmJob {
        WarmJob {
            id: 0,
            fingerprint: Fingerprint([1; 32]),
            subject: WarmSubject::Passages { collection: collection.to_owned(), document: None },
            tenants: vec![String::new()],
            created_unix_ms: 5,
            progress: WarmProgress::default(),
        }
    }

    #[test]
    fn jobs_say_what_they_compute_and_those_of_earlier_builds_are_read() {
        let passages = wanted("law");
        let modules = WarmJob {
            subject: WarmSubject::Modules {
                schema: "trip".into(),
                modules: vec!["boats".into()],
                version: "5f0c".into(),
            },
            ..wanted("law")
        };
        for job in [&passages, &modules] {
            let row = serde_json::to_value(job).unwrap();
            assert_eq!(&serde_json::from_value::<WarmJob>(row).unwrap(), job);
        }
        let row = serde_json::to_value(&passages).unwrap();
        assert_eq!((&row["collection"], &row["document"]), (&"law".into(), &serde_json::Value::Null));
        assert_eq!(serde_json::to_value(&modules).unwrap()["schema"], "trip");
    }

    #[test]
    fn warm_ups_are_resumed_where_they_were() {
        let dir = TempDir::new().unwrap();
        let progress = WarmProgress { last_passage: "0f".into(), passages_done: 3, ..WarmProgress::default() };
        let job = {
            let catalog = open(&dir);
            let job = catalog.add_warm_job(wanted("law")).unwrap();
            catalog.update_warm_job(job.id, &progress).unwrap();
            job
        };
        let catalog = open(&dir);
        let resumed = WarmJob { progress, ..job.clone() };
        assert_eq!(catalog.warm_jobs().unwrap(), std::slice::from_ref(&resumed));
        assert_eq!(catalog.add_warm_job(wanted("law")).unwrap(), resumed, "the same again is the same job");
        let other = catalog.add_warm_job(wanted("news")).unwrap();
        assert_eq!((job.id, other.id), (1, 2), "short, and none twice");
        assert!(catalog.finish_warm_job(job.id).unwrap());
        assert!(!catalog.finish_warm_job(job.id).unwrap());
        let error = catalog.update_warm_job(job.id, &WarmProgress::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(catalog.warm_jobs().unwrap(), [other]);
    }

    #[test]
    fn removals_survive_until_they_are_finished() {
        let dir = TempDir::new().unwrap();
        let document = Removal::Document { collection: "c".into(), document: "it's".into(), reach: Reach::Everyone };
        let passages =
            Removal::Passages(vec![LeavingPassage { id: "0f".into(), segments: vec![SegmentDigest([7; 16])] }]);
        let (first, second) = {
            let catalog = open(&dir);
            (catalog.add_removal(document.clone()).unwrap(), catalog.add_removal(passages.clone()).unwrap())
        };
        let catalog = open(&dir);
        let rows = [RemovalRow { id: first, removal: document }, RemovalRow { id: second, removal: passages }];
        assert_eq!(catalog.removals().unwrap(), rows);
        assert_eq!(catalog.leaving_passages(&[first, second, second + 1]).unwrap().len(), 1);
        catalog.finish_removals(&[second]).unwrap();
        assert_eq!(catalog.removals().unwrap(), rows[..1]);
        catalog.finish_removals(&[first, second]).unwrap();
        assert_eq!(catalog.removals().unwrap(), []);
    }

    #[test]
    fn rows_of_one_reach_are_told_together_and_those_of_earlier_versions_reach_everyone() {
        let dir = TempDir::new().unwrap();
        let catalog = open(&dir);
        let passage = |id: &str| LeavingPassage { id: id.into(), segments: vec![SegmentDigest([7; 16])] };
        let acme = Reach::Each { asks: Some("acme".into()) };
        let mut ids = Vec::new();
        for (reach, id) in [(&Reach::Everyone, "a"), (&acme, "b"), (&Reach::Everyone, "c"), (&acme, "d")] {
            ids.push(catalog.add_removal(Removal::of(reach, vec![passage(id)])).unwrap());
        }
        let of = |reach: &Reach, ids: [&str; 2]| Leaving { reach: reach.clone(), passages: ids.map(passage).to_vec() };
        let expected = [of(&Reach::Everyone, ["a", "c"]), of(&acme, ["b", "d"])];
        assert_eq!(catalog.leaving_passages(&ids).unwrap(), expected);
        let earlier = r#"{"document": {"collection": "c", "document": "d"}}"#;
        let earlier: Removal = serde_json::from_str(earlier).unwrap();
        let reach = Reach::Everyone;
        assert_eq!(earlier, Removal::Document { collection: "c".into(), document: "d".into(), reach });
    }
}
