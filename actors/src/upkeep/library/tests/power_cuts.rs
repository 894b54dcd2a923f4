//! Power cuts: a process changes everything that is ever acknowledged, and the power goes at any moment. Whatever the disk kept of what was not
//! synced, the next start has all that was acknowledged, and nothing that was acknowledged to be gone.
//!
//! The test binary runs itself as that process: with a folder in the environment, [`worker`] is not a test but the child. What it says is in the
//! recording among its other writes, so that every moment knows what was acknowledged by then.

mod check;
pub(super) mod steps;
pub(super) mod world;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ragstone_env::{Env, Stopwatch};
use ragstone_power_cuts::{Disk, Left, Recorder, Recording};
use tempfile::TempDir;

use self::check::{Found, Told};
use self::steps::Worker;

const FOLDER_VARIABLE: &str = "RAGSTONE_TEST_POWER_FOLDER";
/// What the child says in the end.
const DONE: &str = "all steps are done";
const STEPS_VARIABLE: &str = "RAGSTONE_TEST_POWER_STEPS";
/// Set by `ops/power-cuts`.
const CUTS_VARIABLE: &str = "RAGSTONE_TEST_CUTS";
const SEED_VARIABLE: &str = "RAGSTONE_TEST_SEED";
/// Cuts of the test that `ops/test` runs, and steps of its process.
const CUTS: usize = 40;
const STEPS: usize = 60;
/// Steps of each process of the longer run, which makes another one after so many cuts.
const MORE_STEPS: usize = 250;
const CUTS_OF_A_PROCESS: usize = 2_000;

pub(super) fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

/// The child.
#[test]
fn worker() {
    let Ok(folder) = std::env::var(FOLDER_VARIABLE) else { return };
    let (steps, seed) = (number(STEPS_VARIABLE).unwrap(), number(SEED_VARIABLE).unwrap() as u64);
    let runtime = runtime();
    runtime.block_on(async {
        let mut worker = Worker::begin(Path::new(&folder), seed).await;
        for _ in 0..steps {
            worker.step().await;
        }
        worker.end().await;
    });
    println!("\n{DONE}");
    // Threads of the stores may end beside a process, which then aborts now and then. Whoever started this one kills it.
    loop {
        std::thread::park();
    }
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What a process does in so many steps; `None` where this machine cannot record it.
fn recorded(steps: usize, seed: u64) -> Option<Recording> {
    let dir = TempDir::new().unwrap();
    let recorder = Recorder::compile(dir.path()).unwrap()?;
    let (folder, to) = (dir.path().join("disk"), dir.path().join("recording"));
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "upkeep::library::tests::power_cuts::worker", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, &folder)
        .env(STEPS_VARIABLE, steps.to_string())
        .env(SEED_VARIABLE, seed.to_string())
        .stdout(Stdio::piped());
    recorder.watch(&mut command, &folder, &to).unwrap();
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_done = lines.any(|line| line.unwrap() == DONE);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_done, "the process that is recorded failed; seed {seed}");
    let recording = Recording::read(&to).unwrap();
    assert_complete(&recording, &folder);
    Some(recording)
}

/// A replay of all changes is the folder itself: nothing went past the recorder.
fn assert_complete(recording: &Recording, folder: &Path) {
    let mut disk = Disk::default();
    recording.records.iter().for_each(|record| disk.apply(recording, record));
    let replayed = TempDir::new().unwrap();
    disk.cut(recording, Left::All, replayed.path()).unwrap();
    let (real, replayed) = (files(folder), files(replayed.path()));
    // RocksDB writes its log by the C library's own calls; nobody reads it.
    let is_log = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("LOG");
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(name, _)| name.clone()).filter(|name| !is_log(name)).collect()
    };
    assert_eq!(names(&real), names(&replayed));
    for (name, bytes) in real.iter().filter(|(name, _)| !is_log(name)) {
        let same = replayed.iter().any(|(other, replayed)| other == name && replayed == bytes);
        assert!(same, "{} was changed by calls that were not recorded", name.display());
    }
}

/// The files below a folder, by their names there.
pub(super) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).unwrap().to_owned();
                found.push((name, std::fs::read(entry.path()).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A moment at which the power goes, and what the disk keeps.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// After so many changes.
    at: usize,
    left: Left,
}

fn cuts(count: usize, changes: usize, random: &Env) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = (0..count)
        .map(|_| {
            let left = match random.random_u64() % 8 {
                0 | 1 => Left::Nothing,
                2 => Left::All,
                _ => Left::Some(random.random_u64()),
            };
            Cut { at: random.random_u64() as usize % (changes + 1), left }
        })
        .collect();
    cuts.sort_by_key(|cut| cut.at);
    cuts
}

/// Says which cut it was, should it end in a panic.
struct Case(Cut, u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(Cut { at, left }, seed) = self;
            println!("the cut after change {at}, {left:?}; process of seed {seed}");
        }
    }
}

/// Every `of`-th cut, from `first` on.
fn try_cuts(recording: &Recording, cuts: &[Cut], (first, of): (usize, usize), seed: u64) -> Found {
    let (mut disk, mut found, mut done) = (Disk::default(), Found::default(), 0);
    let runtime = runtime();
    for (number, cut) in cuts.iter().enumerate().skip(first).step_by(of) {
        let _case = Case(*cut, seed);
        recording.records[done..cut.at].iter().for_each(|record| disk.apply(recording, record));
        done = cut.at;
        let folder = TempDir::new().unwrap();
        disk.cut(recording, cut.left, folder.path()).unwrap();
        let told = Told::read(&disk.now(recording, steps::TOLD).unwrap_or_default());
        found.add(runtime.block_on(check::check(&folder.path().join(steps::DATA), &told, number)));
    }
    found
}

/// Cuts of one process, on as many threads as there are processors.
fn try_process(count: usize, steps: usize, seed: u64) -> Option<(Found, usize)> {
    let recording = Arc::new(recorded(steps, seed)?);
    let changes = recording.records.len();
    let cuts = Arc::new(cuts(count, changes, &Env::seeded(seed, 0)));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let (recording, cuts) = (recording.clone(), cuts.clone());
            Env::spawn("cuts", move || try_cuts(&recording, &cuts, (thread, threads), seed)).unwrap()
        })
        .collect();
    let mut found = Found::default();
    for thread in threads {
        match thread.join() {
            Ok(of_thread) => found.add(of_thread),
            Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
        }
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0, "what was acknowledged is not there, or what was gone is; see above");
    Some((found, changes))
}

#[test]
fn nothing_acknowledged_is_lost_when_the_power_goes() {
    let (cuts, seed) = (number(CUTS_VARIABLE), number(SEED_VARIABLE).unwrap_or(11) as u64);
    let (mut left, mut sum, begun) = (cuts.unwrap_or(CUTS), Found::default(), Stopwatch::start());
    let steps = if cuts.is_some() { MORE_STEPS } else { STEPS };
    for process in 0.. {
        if left == 0 {
            break;
        }
        let count = left.min(CUTS_OF_A_PROCESS);
        let Some((found, changes)) = try_process(count, steps, seed + process) else {
            println!("there is no C compiler, or this is not Linux: no power cuts are tried");
            return;
        };
        left -= count;
        println!("{count} cuts among {changes} changes, seed {}: {found}; {:.0} s", seed + process, begun.elapsed_s());
        sum.add(found);
    }
    println!("all: {sum}; 0 acknowledged losses");
}
