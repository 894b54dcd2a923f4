//! Which files and jobs are worth another try. Pure: what is decided here is written to the journal before the work begins,
//! so that a start sees what an earlier one did not survive.
//!
//! Files are begun in groups, which costs one write a group. After a start that did not survive its group, each of those
//! files is begun alone: the innocent get done, and the one that ends the process is known by its second attempt.

use ragstone_storage::catalog::{FileAttempt, IngestJob};

/// A file that was begun so often, and never got further, is left out.
const MAX_ATTEMPTS: u32 = 2;
/// Files that are begun together.
pub const GROUP_FILES: usize = 32;

/// What the journal has against a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Fresh,
    /// It was being worked on when the process ended.
    Suspect,
    /// Twice.
    Condemned,
}

/// A job that runs, as the journal is to have it.
#[derive(Debug)]
pub struct Record {
    job: IngestJob,
    /// Files that are being worked on, and how many of their documents this start got into the corpus.
    group: Vec<Begun>,
    /// Files that this start got done.
    done: u64,
}

#[derive(Debug)]
struct Begun {
    path: String,
    documents: u64,
}

impl Record {
    /// A start begins. To be written before anything else is done.
    pub fn begin(mut job: IngestJob) -> Self {
        job.starts = job.starts.saturating_add(1);
        Self { job, group: Vec::new(), done: 0 }
    }

    /// What to write.
    pub fn job(&self) -> &IngestJob {
        &self.job
    }

    /// How a file stands.
    pub fn standing(&self, path: &str) -> Standing {
        match self.job.attempts.iter().find(|attempt| attempt.path == path).map(|attempt| attempt.count) {
            None | Some(0) => Standing::Fresh,
            Some(count) if count < MAX_ATTEMPTS => Standing::Suspect,
            Some(_) => Standing::Condemned,
        }
    }

    /// Whether a file of this standing may join a group of these. A suspect is alone.
    pub fn may_join(standing: Standing, group: &[Standing]) -> bool {
        match standing {
            Standing::Fresh => group.len() < GROUP_FILES && !group.contains(&Standing::Suspect),
            Standing::Suspect => group.is_empty(),
            Standing::Condemned => false,
        }
    }

    /// Files are about to be worked on. To be written before they are.
    pub fn begin_files(&mut self, paths: Vec<String>) {
        for path in &paths {
            match self.job.attempts.iter_mut().find(|attempt| attempt.path == *path) {
                Some(attempt) => attempt.count = attempt.count.saturating_add(1),
                None => self.job.attempts.push(FileAttempt { path: path.clone(), count: 1, documents: 0 }),
            }
        }
        self.group = paths.into_iter().map(|path| Begun { path, documents: 0 }).collect();
    }

    /// `documents` more of a file are in the corpus. Only more than ever before count: those before them are there already
    /// when a start comes by again.
    pub fn committed(&mut self, path: &str, documents: u64) {
        let Some(begun) = self.group.iter_mut().find(|begun| begun.path == path) else { return };
        begun.documents += documents;
        let attempt = self.job.attempts.iter_mut().find(|attempt| attempt.path == path);
        if let Some(attempt) = attempt.filter(|attempt| attempt.documents < begun.documents) {
            (attempt.documents, attempt.count) = (begun.documents, 1);
            self.job.starts = 0;
        }
    }

    /// A file is done: its documents are in the corpus, or it has none that can be read.
    pub fn finished(&mut self, path: &str) {
        self.group.retain(|begun| begun.path != path);
        self.job.attempts.retain(|attempt| attempt.path != path);
        self.done += 1;
        if self.done > self.job.done {
            (self.job.done, self.job.starts) = (self.done, 0);
        }
    }

    /// The start ends before the job does, and not because of it.
    pub fn end_in_order(mut self) -> IngestJob {
        for begun in &self.group {
            let attempt = self.job.attempts.iter_mut().find(|attempt| attempt.path == begun.path);
            if let Some(attempt) = attempt {
                attempt.count = attempt.count.saturating_sub(1);
            }
        }
        self.job.attempts.retain(|attempt| attempt.count > 0);
        self.job.starts = self.job.starts.saturating_sub(1);
        self.job
    }
}

#[cfg(test)]
mod tests {
    use ragstone_actors::upkeep::ingests::is_parked;
    use ragstone_storage::catalog::IngestOptions;

    use super::*;

    fn job() -> IngestJob {
        let (collection, paths) = ("c".to_owned(), Vec::new());
        IngestJob {
            id: 1,
            collection,
            paths,
            created_unix_ms: 0,
            done: 0,
            starts: 0,
            attempts: Vec::new(),
            options: IngestOptions::default(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Starts the job until it is done or parked, on `files` of which `poison` end the process; the files left out, and the
    /// number of starts.
    fn run(files: &[String], poison: &[&str]) -> (Vec<String>, usize, bool) {
        let mut written = job();
        for start in 1..100 {
            if is_parked(&written) {
                return (Vec::new(), start - 1, true);
            }
            let mut record = Record::begin(written.clone());
            written = record.job().clone();
            let (mut left_out, mut waiting, mut dead) = (Vec::new(), files.to_vec(), false);
            while !waiting.is_empty() && !dead {
                let (mut group, mut standings) = (Vec::new(), Vec::new());
                while let Some(next) = waiting.first() {
                    match record.standing(next) {
                        Standing::Condemned => left_out.push(waiting.remove(0)),
                        standing if Record::may_join(standing, &standings) => {
                            group.push(waiting.remove(0));
                            standings.push(standing);
                        }
                        _ => break,
                    }
                }
                record.begin_files(group.clone());
                written = record.job().clone();
                dead = group.iter().any(|file| poison.contains(&file.as_str()));
                // A death takes along what the group did.
                group.iter().filter(|_| !dead).for_each(|file| {
                    record.committed(file, 1);
                    record.finished(file);
                });
            }
            if !dead {
                return (left_out, start, false);
            }
        }
        panic!("it never ends");
    }

    #[test]
    fn what_ends_the_process_twice_is_left_out_and_nothing_else() {
        let files: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
        assert_eq!(run(&files, &[]), (vec![], 1, false));
        assert_eq!(run(&files, &["040"]), (names(&["040"]), 3, false));
        assert_eq!(run(&files, &["000"]), (names(&["000"]), 3, false));
        // Three in one group, neighbours at the beginning: one start for the group, one for each.
        assert_eq!(run(&files, &["000", "001", "002"]), (names(&["000", "001", "002"]), 5, false));
        assert_eq!(run(&files, &["007", "050", "099"]).0, names(&["007", "050", "099"]));
    }

    #[test]
    fn a_job_that_gets_nowhere_is_parked() {
        let files: Vec<String> = (0..20).map(|number| format!("{number:03}")).collect();
        let poison: Vec<&str> = files.iter().map(String::as_str).collect();
        assert_eq!(run(&files, &poison), (vec![], 5, true));
        // Before it has found its files, too.
        let mut written = job();
        for _ in 0..5 {
            assert!(!is_parked(&written));
            written = Record::begin(written).job().clone();
        }
        assert!(is_parked(&written));
    }

    #[test]
    fn a_large_file_that_gets_further_each_time_goes_on() {
        let mut written = job();
        for start in 1..10 {
            let mut record = Record::begin(written);
            assert_ne!(record.standing("big"), Standing::Condemned, "start {start}");
            record.begin_files(names(&["big"]));
            (0..start).for_each(|_| record.committed("big", 32));
            written = record.job().clone();
            assert!(!is_parked(&written));
        }
        // And one that always ends at the same document does not.
        for _ in 0..2 {
            let mut record = Record::begin(written);
            record.begin_files(names(&["big"]));
            (0..9).for_each(|_| record.committed("big", 32));
            written = record.job().clone();
        }
        assert_eq!(Record::begin(written).standing("big"), Standing::Condemned);
    }

    #[test]
    fn a_stop_in_order_is_held_against_nobody() {
        let mut record = Record::begin(job());
        record.begin_files(names(&["a", "b"]));
        record.finished("a");
        let ended = record.end_in_order();
        assert_eq!((ended.attempts.len(), ended.starts, ended.done), (0, 0, 1));
    }
}
