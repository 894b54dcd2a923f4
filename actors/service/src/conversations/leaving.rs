//! Which files leave.

use std::collections::{BTreeMap, VecDeque};

use ragstone_storage::record_files::RecordFile;

/// How much stays, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub most_bytes: u64,
    pub most_age_ms: u64,
}

/// Those that have not changed for too long; then, where the rest is too large, the oldest of the tenant that has most, until a sixteenth of the room is
/// free: to look for them takes a while, and is not to be done for each that comes. Their places in `files`.
/// What was written after `now`, as a clock was set back, is new.
pub(super) fn leaving(files: &[&RecordFile], bounds: Bounds, now_unix_ms: u64) -> Vec<usize> {
    let is_old = |file: &RecordFile| now_unix_ms.saturating_sub(file.written_unix_ms) > bounds.most_age_ms;
    let (mut gone, mut rest): (Vec<usize>, Vec<usize>) = (0..files.len()).partition(|&index| is_old(files[index]));
    rest.sort_by_key(|&index| (files[index].written_unix_ms, &files[index].name));
    let mut tenants: BTreeMap<&str, (u64, VecDeque<usize>)> = BTreeMap::new();
    for index in rest {
        let (bytes, queue) = tenants.entry(files[index].tenant()).or_default();
        *bytes += files[index].bytes;
        queue.push_back(index);
    }
    let mut total: u64 = tenants.values().map(|(bytes, _)| bytes).sum();
    let most = if total > bounds.most_bytes { bounds.most_bytes - bounds.most_bytes / 16 } else { total };
    while total > most {
        let Some((bytes, queue)) = tenants.values_mut().max_by_key(|(bytes, _)| *bytes) else { break };
        let Some(index) = queue.pop_front() else { break };
        *bytes -= files[index].bytes;
        total -= files[index].bytes;
        gone.push(index);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tenant: &str, number: u64, bytes: u64) -> RecordFile {
        RecordFile { name: format!("{tenant}-{number}.json"), bytes, written_unix_ms: number }
    }

    fn left(files: &[RecordFile], most_bytes: u64, most_age_ms: u64, now: u64) -> Vec<String> {
        let all: Vec<&RecordFile> = files.iter().collect();
        let gone = leaving(&all, Bounds { most_bytes, most_age_ms }, now);
        let stays = |(index, file): (usize, &RecordFile)| (!gone.contains(&index)).then(|| file.name.clone());
        files.iter().enumerate().filter_map(stays).collect()
    }

    #[test]
    fn the_old_leave_and_then_the_oldest_of_whoever_has_most() {
        let mut files: Vec<RecordFile> = (1..=8).map(|number| file("greedy", number, 100)).collect();
        files.extend([file("modest", 1, 100), file("modest", 2, 100)]);
        assert_eq!(left(&files, 10_000, 100, 50).len(), 10);
        assert_eq!(
            left(&files, 540, 100, 50),
            ["greedy-6.json", "greedy-7.json", "greedy-8.json", "modest-1.json", "modest-2.json"]
        );
        assert_eq!(left(&files, 1000, 100, 50).len(), 10, "there is room for all");
        assert_eq!(left(&files, 10_000, 5, 10), ["greedy-5.json", "greedy-6.json", "greedy-7.json", "greedy-8.json"]);
        assert_eq!(left(&files, 10_000, 5, 0).len(), 10, "a clock that was set back makes nothing old");
        assert!(left(&files, 0, 100, 50).is_empty());
    }
}
