//! Kills of a process that writes: reopening gives whole entries only, and all that were reported as written.
//!
//! The test binary runs itself as the writer: with a folder in the environment, [`writer`] is not a test but the child.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::tests::{assert_right, open_at, put};
use super::*;
use crate::entry::tests::{MODEL, entry_of_width};
use ragstone_env::FAILPOINTS_VARIABLE;

const FOLDER_VARIABLE: &str = "RAGSTONE_TEST_WRITER_FOLDER";
const FIRST_VARIABLE: &str = "RAGSTONE_TEST_WRITER_FIRST";
const CAPACITY_VARIABLE: &str = "RAGSTONE_TEST_WRITER_DISK_BYTES";
const ENTRIES: u32 = 40;
const PLENTY: u64 = 1 << 30;

fn tokens_of(id: u32) -> Vec<u32> {
    vec![id; 16]
}

fn key_of(id: u32) -> KvKey {
    KvKey::derive(&MODEL, "", None, &tokens_of(id))
}

/// About 400 KB: several pages of the log, a blob each.
fn entry_of(id: u32) -> Entry {
    entry_of_width(None, &tokens_of(id), 1024)
}

/// The child: writes entries and says so, removes every seventh, until it is killed or done.
#[test]
fn writer() {
    let Ok(folder) = std::env::var(FOLDER_VARIABLE) else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let first = number(FIRST_VARIABLE) as u32;
    let env = Env::from_environment().unwrap();
    let store = open_at(Path::new(&folder), env, PLENTY, number(CAPACITY_VARIABLE)).unwrap();
    for id in first..first + ENTRIES {
        put(&store, Tier::Host, entry_of(id));
        put(&store, Tier::Disk, entry_of(id));
        println!("\nwritten {id}");
        if id % 7 == 6 {
            let removed = store.id(&key_of(id - 3), &tokens_of(id - 3));
            store.late_miss(&removed, Tier::Disk, ErrorKind::NotFound);
            println!("\nremoved {}", id - 3);
        }
        if id % 10 == 9 {
            store.flush().unwrap();
        }
    }
}

fn start_writer(folder: &Path, first: u32, disk_bytes: u64, failpoints: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::kill_tests::writer", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder)
        .env(FIRST_VARIABLE, first.to_string())
        .env(CAPACITY_VARIABLE, disk_bytes.to_string())
        .env(FAILPOINTS_VARIABLE, failpoints)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child reported, in order: `(id, still there)`. Kills it after `kill_after` reports.
fn watch(mut child: Child, kill_after: usize) -> (Vec<(u32, bool)>, ExitStatus) {
    let mut reports = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let Ok(line) = line else { break };
        let report = line.split_once(' ').and_then(|(verb, id)| match verb {
            "written" => Some((id.parse().ok()?, true)),
            "removed" => Some((id.parse().ok()?, false)),
            _ => None,
        });
        reports.extend(report);
        if reports.len() == kill_after {
            child.kill().unwrap(); // SIGKILL; reports in the pipe are still read
        }
    }
    (reports, child.wait().unwrap())
}

/// Every entry found is whole, and what is on disk is what was reported, but for the one step that was under way.
fn check(folder: &Path, first: u32, reports: &[(u32, bool)], disk_bytes: u64, case: &str) {
    let store = open_at(folder, Env::seeded(0, 0), 0, disk_bytes).unwrap();
    let mut surprises = 0;
    for id in first..first + ENTRIES {
        let reported = reports.iter().rev().find(|(reported, _)| *reported == id).map(|(_, there)| *there);
        let there = match store.open_entry(&key_of(id), &tokens_of(id)) {
            None => false,
            Some(reader) => {
                assert_right(&reader);
                true
            }
        };
        surprises += usize::from(there != reported.unwrap_or(false));
    }
    assert!(surprises <= 1, "{case}: {surprises} entries are not as reported: {reports:?}");
    assert_eq!(store.status().disk.corrupt, 0, "{case}");
}

#[test]
fn killed_at_failpoints() {
    for point in [
        "disk.before_write",
        "disk.before_write@6",
        "disk.after_write@6",
        "disk.delete@2",
        "disk.flush",
        "disk.flush@2",
    ] {
        let dir = TempDir::new().unwrap();
        let (name, nth) = point.split_once('@').unwrap_or((point, "1"));
        let child = start_writer(dir.path(), 0, PLENTY, &format!("{name}=kill@{nth}"));
        let (reports, status) = watch(child, usize::MAX);
        assert!(!status.success(), "{point}: was not killed; {reports:?}");
        check(dir.path(), 0, &reports, PLENTY, point);
    }
}

#[test]
fn killed_at_any_moment_again_and_again() {
    let dir = TempDir::new().unwrap();
    let random = Env::seeded(42, 0);
    let mut first = 0;
    for round in 0..6 {
        let kill_after = 1 + (random.random_u64() % 40) as usize;
        let child = start_writer(dir.path(), first, PLENTY, "");
        let (reports, status) = watch(child, kill_after);
        assert!(!status.success() || reports.len() >= ENTRIES as usize, "round {round}: {reports:?}");
        check(dir.path(), first, &reports, PLENTY, &format!("round {round}, killed after {kill_after}"));
        first += ENTRIES;
    }
}

/// With evictions in every batch: nothing is half there, and the bound holds at the next start.
#[test]
fn killed_while_evicting() {
    let dir = TempDir::new().unwrap();
    let bytes = entry_of(0).header().total_bytes();
    for round in 0..3 {
        let child = start_writer(dir.path(), round * ENTRIES, bytes * 5, "");
        let (_, status) = watch(child, 12 + 5 * round as usize);
        assert!(!status.success(), "round {round}");
        let store = open_at(dir.path(), Env::seeded(0, 0), 0, bytes * 5).unwrap();
        let found = (0..(round + 1) * ENTRIES).filter_map(|id| store.open_entry(&key_of(id), &tokens_of(id)));
        let found = found.inspect(assert_right).count() as u64;
        let status = store.status();
        assert_eq!((status.disk.entries, status.disk.bytes), (found, found * bytes));
        assert!(found <= 5 && status.disk.corrupt == 0, "{status:?}");
    }
}

#[test]
fn an_undisturbed_writer_ends_well() {
    let dir = TempDir::new().unwrap();
    let (reports, status) = watch(start_writer(dir.path(), 0, PLENTY, ""), usize::MAX);
    assert!(status.success());
    check(dir.path(), 0, &reports, PLENTY, "no kill");
}
