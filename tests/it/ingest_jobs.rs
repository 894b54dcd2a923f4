//! Ingests that do not come to their end: stopped, interrupted, or cancelled because somebody deleted what they would bring back.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Ran, Service, signal};

/// More than two commits.
pub const FILES: usize = 100;
/// So that it is not done before somebody ends it.
pub const SLOW: (&str, &str) = ("RAGSTONE_FAILPOINTS", "ingest.after_commit=delay:2000");
pub const KILLED: (&str, &str) = ("RAGSTONE_FAILPOINTS", "ingest.after_commit=kill");

pub fn corpus(folder: &Folder) -> String {
    for number in 0..FILES {
        folder.write(
            &format!("corpus/{number:03}.txt"),
            format!("Lantern {number} burns with a flame of colour {number}."),
        );
    }
    folder.path().join("corpus").to_str().unwrap().to_owned()
}

/// An ingest into `collection` that was killed after its first commit, and goes on at the next start.
pub fn unfinished(folder: &Folder, collection: &str, fail: (&str, &str)) -> String {
    let corpus = corpus(folder);
    let mut command = folder.ragstone(&["ingest", &corpus, "--collection", collection]);
    let output = command.env(fail.0, fail.1).output().unwrap();
    assert_eq!(output.status.code(), None, "not killed: {output:?}");
    corpus
}

fn doctor(folder: &Folder) -> Vec<Value> {
    let ran = folder.run(&["doctor", "--json", "--set", "listen=127.0.0.1:0"]);
    let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let findings = said["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["what"] == "ingests").cloned().collect()
}

/// Waits until no ingest runs or waits; those that are unfinished all the same.
pub async fn at_rest(service: &Service) -> Value {
    let begun = Stopwatch::start();
    loop {
        let (_, status) = service.get("/v1/cache/status").await;
        if !status["jobs"].as_array().unwrap().iter().any(|jobs| jobs["kind"] == "ingest") {
            return status["ingests"].clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn collections(service: &Service) -> Vec<(String, u64)> {
    let (_, listed) = service.get("/v1/collections").await;
    let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["documents"].as_u64().unwrap());
    listed["data"].as_array().unwrap().iter().map(row).collect()
}

/// Waits until a file system shows that the first batch of a new collection is being committed: it has its vectors.
pub fn wait_for_commit(data: &Path, collection: &str) {
    let rows = data.join(format!("corpus/passages-{collection}.lance/data"));
    let begun = Stopwatch::start();
    while std::fs::read_dir(&rows).map_or(0, Iterator::count) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", rows.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_deleted_collection_does_not_come_back_through_its_ingest() {
    let folder = Folder::new();
    let corpus = unfinished(&folder, "c", KILLED);
    let found = doctor(&folder);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["state"], "warning");
    let told = found[0]["found"].as_str().unwrap();
    assert!(told.contains("`c` has 1 unfinished ingest") && told.contains(&corpus), "{told}");
    let advice = found[0]["advice"].as_str().unwrap();
    assert!(advice.contains("ragstone serve") && advice.contains("ragstone collections delete c"), "{advice}");

    let delete = ["collections", "delete", "c"];
    let said = folder.json(&[&delete[..], &["--dry-run", "--json"]].concat());
    assert_eq!((&said["jobs_cancelled"], &said["dry_run"]), (&json!(1), &json!(true)), "{said}");
    assert_eq!(doctor(&folder), found, "a dry run changes nothing");
    let ran = folder.run(&[&delete[..], &["--yes"]].concat()).succeeded();
    assert!(ran.stdout.contains("1 unfinished ingest was cancelled"), "{ran:?}");
    assert!(doctor(&folder).is_empty());

    let service = folder.serve(&[]).await;
    assert_eq!(at_rest(&service).await, json!([]));
    assert!(collections(&service).await.is_empty());
    // Whoever wants it anew gets it.
    let again = folder.json(&["ingest", &corpus, "--collection", "c", "--json"]);
    assert_eq!(again["documents_added"], FILES);
}

#[tokio::test]
async fn a_removal_that_is_killed_takes_the_ingest_along() {
    for point in ["removal.forgot_ingests", "removal.journaled", "removal.left_corpus"] {
        let folder = Folder::new();
        unfinished(&folder, "c", KILLED);
        let mut command = folder.ragstone(&["collections", "delete", "c", "--yes"]);
        let output = command.env("RAGSTONE_FAILPOINTS", format!("{point}=kill")).output().unwrap();
        assert_eq!(output.status.code(), None, "{point}: not killed: {output:?}");
        let service = folder.serve(&[]).await;
        assert_eq!(at_rest(&service).await, json!([]), "{point}");
        assert!(collections(&service).await.is_empty(), "{point}");
    }
}

/// Killed before its first file, an ingest has no collection yet that could be deleted.
#[tokio::test]
async fn an_ingest_without_a_collection_is_cancelled_by_its_name() {
    let folder = Folder::new();
    unfinished(&folder, "c", ("RAGSTONE_FAILPOINTS", "ingest.begin=kill"));
    let said = folder.json(&["collections", "delete", "c", "--yes", "--json"]);
    assert_eq!((&said["jobs_cancelled"], &said["passages_removed"]), (&json!(1), &json!(0)), "{said}");
    folder.run(&["collections", "delete", "c", "--yes"]).failed_with(&["there is no collection `c`"]);
}

#[tokio::test]
async fn a_collection_that_is_deleted_while_it_is_ingested_stays_deleted() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&[], &[SLOW]).await;
    let mut ingest = folder.ragstone(&["ingest", &corpus, "--collection", "c"]);
    let ingest = ingest.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_commit(&folder.data(), "c");
    let deleted = reqwest::Client::new().delete(service.url("/v1/collections/c"));
    let deleted = deleted.header("x-ragstone-token", folder.token()).send().await.unwrap();
    let deleted: Value = deleted.json().await.unwrap();
    assert_eq!((&deleted["deleted"], &deleted["jobs_cancelled"]), (&json!(true), &json!(1)), "{deleted}");
    let ended = Ran::of(ingest.wait_with_output().unwrap());
    ended.failed_with(&["was cancelled", "deleted meanwhile"]);
    assert_eq!(at_rest(&service).await, json!([]));
    assert!(collections(&service).await.is_empty());
    assert_eq!(service.stop(), 0);
    let service = folder.serve(&[]).await;
    assert_eq!(at_rest(&service).await, json!([]));
    assert!(collections(&service).await.is_empty());
}

#[tokio::test]
async fn a_deleted_document_does_not_come_back_through_an_ingest_of_its_file() {
    let folder = Folder::new();
    unfinished(&folder, "c", KILLED);
    let listed = folder.json(&["documents", "list", "--collection", "c", "--json"]);
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    let ran = folder.run(&["documents", "delete", &id, "--collection", "c"]).succeeded();
    assert!(ran.stdout.contains("1 unfinished ingest was cancelled: it would have brought this back"), "{ran:?}");
    let service = folder.serve(&[]).await;
    assert_eq!(at_rest(&service).await, json!([]));
    let (status, _) = service.get(&format!("/v1/collections/c/documents/{id}")).await;
    assert_eq!(status, 404);
    assert_eq!(collections(&service).await, [("c".to_owned(), listed.as_array().unwrap().len() as u64 - 1)]);
}

/// At an ordinary stop nothing went wrong, and the next start goes on.
#[tokio::test]
async fn a_service_that_stops_while_it_ingests_says_that_it_goes_on() {
    let folder = Folder::new();
    unfinished(&folder, "c", KILLED);
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = folder.serve_command(&[SLOW]);
    command.stderr(log);
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    let (_, status) = service.get("/v1/cache/status").await;
    assert_eq!((&status["ingests"][0]["collection"], &status["ingests"][0]["paths"]), (&json!("c"), &json!([])));
    assert_eq!(
        status["ingests"][0]["paths"],
        json!([]),
        "whoever reaches the port does not hear which folders there are"
    );
    assert_eq!(doctor(&folder)[0]["state"], "ok");
    assert!(doctor(&folder)[0]["found"].as_str().unwrap().contains("corpus"), "its owner does");
    assert_eq!(service.stop(), 0);
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("the ingest pauses, and goes on at the next start"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
    let service = folder.serve(&[]).await;
    at_rest(&service).await;
    assert_eq!(collections(&service).await, [("c".to_owned(), FILES as u64)]);
}

#[tokio::test]
async fn who_listens_to_an_ingest_hears_how_far_a_stop_let_it_come() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&[], &[SLOW]).await;
    let request = reqwest::Client::new().post(service.url("/v1/collections/c/ingest"));
    let request = request.header("x-ragstone-token", folder.token()).json(&json!({ "paths": [corpus] }));
    let answer = request.send().await.unwrap();
    wait_for_commit(&folder.data(), "c");
    assert!(signal("TERM", service.pid()));
    let text = answer.text().await.unwrap();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    let (done, total) = (&last["stopped"]["files_done"], &last["stopped"]["files_total"]);
    assert!(done.as_u64().is_some_and(|done| (1..FILES as u64).contains(&done)), "{last}");
    assert_eq!(total, FILES);
    service.wait();
    let listed = folder.json(&["documents", "list", "--collection", "c", "--json"]);
    assert_eq!(listed.as_array().unwrap().len() as u64, *done, "each file has one document");
}

#[test]
fn an_ingest_that_is_interrupted_keeps_what_it_says_and_goes_on_from_there() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let mut ingest = folder.ragstone(&["ingest", &corpus, "--collection", "c"]);
    ingest.env(SLOW.0, SLOW.1).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ingest = ingest.spawn().unwrap();
    wait_for_commit(&folder.data(), "c");
    assert!(signal("INT", ingest.id()));
    let ended = Ran::of(ingest.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let told = ended.stderr.lines().find_map(|line| line.strip_prefix("ragstone: interrupted; ")).unwrap();
    let (stored, rest) = told.split_once(" of ").unwrap();
    let stored: usize = stored.parse().unwrap();
    assert!(rest.starts_with("100 files are stored; the same command"), "{told}");
    assert!((1..FILES).contains(&stored), "{told}");
    let listed = folder.json(&["documents", "list", "--collection", "c", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), stored);
    let again = folder.json(&["ingest", &corpus, "--collection", "c", "--json"]);
    assert_eq!(again["documents_unchanged"], stored, "{again}");
    assert_eq!(again["documents_added"], FILES - stored, "{again}");
    assert!(doctor(&folder).is_empty());
}

#[test]
fn every_file_counts_once_and_what_was_not_taken_is_named() {
    let folder = Folder::new();
    for (name, text) in [
        ("roof.md", "We take slate."),
        ("blank.txt", " \n"),
        ("none.jsonl", ""),
        ("some.jsonl", "{\"text\": \"fine\"}\n{\"text\": "),
        ("broken.pdf", "no PDF"),
    ] {
        folder.write(&format!("notes/{name}"), text);
    }
    let notes = folder.path().join("notes");
    let ingest = ["ingest", notes.to_str().unwrap(), "--collection", "c"];
    let ran = folder.run(&ingest).succeeded();
    for words in ["4 of 5 files were not taken whole", "blank.txt: it has no text", "some.jsonl"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    assert!(
        ran.stdout.starts_with("c: 1 of 5 files taken, 1 in part, 2 without text, 1 not read; 2 documents"),
        "{ran:?}"
    );
    let ran = folder.run(&[&ingest[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let counts = ["files", "files_skipped", "files_partly", "files_empty"].map(|name| report[name].as_u64().unwrap());
    assert_eq!(counts, [5, 1, 1, 2], "{report}");
    let mut kinds: Vec<&str> =
        report["skipped"].as_array().unwrap().iter().map(|file| file["kind"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["empty", "empty", "partly", "unread"]);
    // Empty files are named, and nothing is wrong with them.
    for name in ["some.jsonl", "broken.pdf"] {
        std::fs::remove_file(notes.join(name)).unwrap();
    }
    let ran = folder.run(&ingest).succeeded();
    assert!(ran.stderr.contains("2 of 3 files were not taken whole") && ran.stderr.contains("none.jsonl"), "{ran:?}");
}

#[tokio::test]
async fn an_upload_without_text_says_so() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for (name, text) in [("empty.txt", ""), ("blank.md", " \n\n"), ("none.jsonl", "")] {
        let (status, answer) = service.put(&format!("/v1/collections/c/files/{name}"), text.as_bytes()).await;
        assert_eq!(status, 200, "{answer}");
        assert!(answer["not_read"].as_str().is_some_and(|why| why.contains("no text")), "{name}: {answer}");
        assert_eq!(answer["documents_added"], 0);
    }
    assert!(collections(&service).await.is_empty());
    let (_, answer) = service.put("/v1/collections/c/files/roof.txt", b"We take slate.").await;
    assert_eq!((&answer["documents_added"], answer.get("not_read")), (&json!(1), None), "{answer}");
}

/// A service that goes on with a large ingest into `big`, and a file of its own.
async fn busy(folder: &Folder) -> (Service, String) {
    unfinished(folder, "big", KILLED);
    let one = folder.write("one.md", "One lantern.");
    let mut command = folder.serve_command(&[SLOW]);
    command.stderr(Stdio::null());
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    (service, one.to_str().unwrap().to_owned())
}

/// A small ingest beside another collection's large one says what it waits for.
#[tokio::test]
async fn whoever_waits_for_another_ingest_hears_which_and_how_far_it_is() {
    let folder = Folder::new();
    let (_service, one) = busy(&folder).await;
    let mut small = folder.ragstone(&["ingest", &one, "--collection", "small"]);
    let mut small = small.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(small.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = said.skip_while(|line| !line.contains("waiting for the unfinished ingest into big"));
    let waiting = said.next().expect("it says so");
    assert!(waiting.contains("ragstone ingest --cancel"), "{waiting}");
    let list = folder.json(&["ingest", "--list", "--json"]);
    let big = list.as_array().unwrap().iter().find(|one| one["collection"] == "big").unwrap();
    folder.run(&["ingest", "--cancel", &big["id"].to_string()]).succeeded();
    said.for_each(drop);
    let ran = Ran::of(small.wait_with_output().unwrap()).succeeded();
    assert!(ran.stdout.contains("small: 1 file taken"), "{ran:?}");
}

/// One file with many records: the list says how far it is within it, and not only that it is the first of one.
#[tokio::test]
async fn within_one_large_file_an_ingest_tells_how_far_it_is() {
    let folder = Folder::new();
    let records: String =
        (0..FILES).map(|number| format!("{{\"text\": \"Lantern {number} burns with a flame.\"}}\n")).collect();
    let file = folder.write("records.jsonl", &records);
    let service = folder.serve_with(&[], &[SLOW]).await;
    let mut ingest = folder.ragstone(&["ingest", file.to_str().unwrap(), "--collection", "c"]);
    let ingest = ingest.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (begun, mut last) = (Stopwatch::start(), 0);
    let told = loop {
        let (_, listed) = service.get("/v1/ingests").await;
        let progress = listed["data"][0]["progress"].clone();
        let bytes = progress["bytes_done"].as_u64().unwrap_or(0);
        assert!(bytes >= last, "it goes back: {listed}");
        last = bytes;
        // Two commits: the second one tells how long the rest takes.
        if progress["passages"].as_u64().is_some_and(|passages| passages >= 64) && progress["left_s"].is_u64() {
            break listed["data"][0].clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{listed}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&told["files_done"], &told["files_total"]), (&json!(0), &json!(1)), "{told}");
    let (done, total) = (&told["progress"]["bytes_done"], &told["progress"]["bytes_total"]);
    assert_eq!(*total, records.len(), "{told}");
    let share = done.as_u64().unwrap() as f64 / records.len() as f64;
    assert!((0.5..=0.98).contains(&share), "{told}");
    let ran = Ran::of(ingest.wait_with_output().unwrap()).succeeded();
    assert!(ran.stderr.contains(" %, "), "the command line says it, too: {ran:?}");
}

/// What follows a folder does not bring back what somebody deletes.
#[tokio::test]
async fn a_deleted_collection_ends_who_waits_to_ingest_into_it() {
    let folder = Folder::new();
    let (_service, one) = busy(&folder).await;
    let mut watching = folder.ragstone(&["ingest", &one, "--collection", "small", "--watch"]);
    let watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Stopwatch::start();
    while folder.run(&["collections", "delete", "small", "--dry-run"]).code != Some(0) {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not begin");
    }
    folder.run(&["collections", "delete", "small", "--yes"]).succeeded();
    Ran::of(watching.wait_with_output().unwrap()).failed_with(&["was cancelled", "deleted meanwhile"]);
}
