//! Starts on a disk whose calls fail: one call, or some in a row, of every kind in its turn. A start may be refused; no document that was
//! acknowledged is lost, and no key.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ragstone_env::{Env, Stopwatch};
use serde_json::Value;

use crate::harness::{Folder, WORLD};

/// How many starts there are, unless `RAGSTONE_TEST_STARTS` says otherwise (`ops/starts`).
const STARTS: u64 = 15;
/// A start that hangs is one that is refused: nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a disk answers: EIO, ENOSPC, EMFILE, EACCES, ESTALE, ENOENT.
const ERRORS: [i32; 6] = [5, 28, 24, 13, 116, 2];
/// Calls in a row that fail.
const WIDTHS: [u64; 3] = [1, 4, 64];

/// Compiles what has calls fail; `None` where this machine has no compiler.
pub fn compiled(folder: &Folder) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fail_calls.c");
    let library = folder.path().join("fail_calls.so");
    let compiled =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "fail_calls.c does not compile");
            Some(library)
        }
        Err(_) => None,
    }
}

/// A command that opens everything; whether it succeeded, `None` where it hung.
fn start(folder: &Folder, library: &Path, variables: &[(&str, String)]) -> Option<bool> {
    let mut command = folder.ragstone(&["collections", "list", "--json"]);
    command.env("LD_PRELOAD", library).env("FAIL_BELOW", folder.data()).envs(variables.iter().cloned());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Stopwatch::start();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.code().is_some(), "it ended by a signal: {status}");
            return Some(status.success());
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The titles of all documents, and the names of the keys, by a start whose calls do not fail.
fn stored(folder: &Folder) -> (BTreeSet<String>, BTreeSet<String>) {
    let names = |list: &Value, of: &str| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|row| row[of].as_str().unwrap().to_owned()).collect()
    };
    let documents = ["a", "b"].into_iter().flat_map(|collection| {
        names(&folder.json(&["documents", "list", "--collection", collection, "--json"]), "title")
    });
    (documents.collect(), names(&folder.json(&["keys", "list", "--json"]), "name"))
}

#[tokio::test]
async fn no_start_on_a_failing_disk_loses_a_document_or_a_key() {
    let folder = Folder::new();
    let Some(library) = compiled(&folder) else {
        println!("there is no C compiler: starts on a failing disk are not tried");
        return;
    };
    let service = folder.serve(&[]).await;
    service.add("a", &WORLD[..2]).await;
    service.add("b", &WORLD[2..]).await;
    service.stop();
    folder.run(&["keys", "add", "reader", "--role", "read"]).succeeded();
    let before = stored(&folder);
    assert_eq!((before.0.len(), before.1.len()), (WORLD.len(), 1), "{before:?}");
    let counted = folder.path().join("counted");
    assert_eq!(start(&folder, &library, &[("FAIL_COUNTED", counted.display().to_string())]), Some(true));
    let calls: u64 = std::fs::read_to_string(&counted).unwrap().trim().parse().unwrap();
    assert!(calls > 100, "{calls} calls");
    let starts = std::env::var("RAGSTONE_TEST_STARTS").map_or(STARTS, |starts| starts.parse().unwrap());
    let seed = std::env::var("RAGSTONE_TEST_SEED").map_or(53, |seed| seed.parse().unwrap());
    let random = Env::seeded(seed, 0);
    let mut ended = [0, 0, 0];
    for number in 0..starts {
        // Spread over the whole start, and nowhere twice at the same call.
        let at = 1 + number * calls / starts + random.random_u64() % (calls / starts).max(1);
        let (width, error) =
            (WIDTHS[number as usize % WIDTHS.len()], ERRORS[random.random_u64() as usize % ERRORS.len()]);
        let variables =
            [("FAIL_AT", at.to_string()), ("FAIL_CALLS", width.to_string()), ("FAIL_ERRNO", error.to_string())];
        let case = format!("start {number}: {width} calls from {at} of {calls} failed with {error}");
        ended[match start(&folder, &library, &variables) {
            Some(true) => 0,
            Some(false) => 1,
            None => {
                println!("{case}: it hung");
                2
            }
        }] += 1;
        assert_eq!(stored(&folder), before, "{case}");
    }
    println!(
        "{starts} starts, seed {seed}, {calls} calls each: {} came up, {} were refused, {} hung",
        ended[0], ended[1], ended[2]
    );
    // Nobody starts a service again that hangs.
    assert_eq!(ended[2], 0);
}
