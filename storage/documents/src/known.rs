//! Short ids of records, and the files that have them: two files whose records are numbered from 0 on have documents with the same ids, of which
//! only the last one is stored.

use std::collections::HashMap;

use super::json::MIN_ID_BYTES;

/// Ids of one file, and of all, that are remembered: those of numbered records begin alike.
const MOST_OF_FILE: usize = 1_000;
const MOST: usize = 100_000;
/// Ids that are named, and the characters of a file's name.
const MOST_NAMED: usize = 3;
const MAX_NAME_CHARS: usize = 80;

/// What is remembered of the files that one reader has read.
#[derive(Debug, Default)]
pub struct KnownIds {
    /// The file of each id, by its place among `files`.
    ids: HashMap<String, usize>,
    files: Vec<String>,
    /// The file that is being read, and how many of its ids are remembered.
    file: String,
    kept: usize,
    /// Ids of it that another file has, too: the first ones, and their number; and which file that is.
    shared: Vec<String>,
    count: usize,
    other: usize,
}

impl KnownIds {
    /// A file is read from here on.
    pub fn begin(&mut self, file: String) {
        self.file = file;
        self.shared.clear();
        (self.kept, self.count) = (0, 0);
    }

    /// Takes the id of one of its documents.
    pub fn take(&mut self, id: &str) {
        if id.len() >= MIN_ID_BYTES {
            return;
        }
        match self.ids.get(id).copied() {
            Some(other) if self.files.get(other) != Some(&self.file) => {
                if self.shared.len() < MOST_NAMED {
                    self.shared.push(format!("`{id}`"));
                }
                self.count += 1;
                self.other = other;
            }
            None if self.kept < MOST_OF_FILE && self.ids.len() < MOST => {
                if self.files.last() != Some(&self.file) {
                    self.files.push(self.file.clone());
                }
                self.ids.insert(id.to_owned(), self.files.len() - 1);
                self.kept += 1;
            }
            _ => {}
        }
    }

    /// What is to be said of the file that was read, where its documents took the place of others.
    pub fn told(&self) -> Option<String> {
        let other = self.files.get(self.other).filter(|_| self.count > 0)?;
        // The end of a path says most.
        let cut = other.chars().count().saturating_sub(MAX_NAME_CHARS);
        let mark = if cut > 0 { "…" } else { "" };
        let name: String = other.chars().skip(cut).collect();
        let (count, ids) = (self.count, self.shared.join(", "));
        Some(format!(
            "{count} of its records replace those of {mark}{name} with the same ids ({ids}): name a field that tells them apart (--id-field), or \
             ingest them into another collection"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(known: &mut KnownIds, file: &str, ids: &[&str]) -> Option<String> {
        known.begin(file.to_owned());
        ids.iter().for_each(|id| known.take(id));
        known.told()
    }

    #[test]
    fn files_that_share_short_ids_are_told() {
        let mut known = KnownIds::default();
        assert_eq!(told(&mut known, "train.jsonl", &["0", "1", "1", "2"]), None, "in one file");
        let why = told(&mut known, "test.jsonl", &["0", "1", "7"]).unwrap();
        assert!(
            why.starts_with("2 of its records") && why.contains("train.jsonl") && why.contains("`0`, `1`"),
            "{why}"
        );
        let deep = format!("/{}a.jsonl", "folder/".repeat(100));
        assert_eq!(told(&mut known, &deep, &["fifteen letters", "sixteen"]), None);
        let why = told(&mut known, "other.jsonl", &["0", "fifteen letters", "sixteen"]).unwrap();
        assert!(why.starts_with("3 of its records"), "{why}");
        assert!(why.chars().count() < crate::MAX_REASON_CHARS, "{why}");
        assert_eq!(told(&mut known, "train.jsonl", &["0", "1"]), None, "the same file again");
        let long = "a-long-id-of-a-record";
        assert_eq!(told(&mut known, "a.jsonl", &[long]).or_else(|| told(&mut known, "b.jsonl", &[long])), None);
    }

    #[test]
    fn no_more_is_remembered_than_tells() {
        let mut known = KnownIds::default();
        let ids: Vec<String> = (0..2 * MOST_OF_FILE).map(|id| id.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(told(&mut known, "a.jsonl", &ids), None);
        assert_eq!(known.ids.len(), MOST_OF_FILE);
        assert!(told(&mut known, "b.jsonl", &ids).is_some());
        assert!(known.ids.len() <= 2 * MOST_OF_FILE);
    }
}
