//! Ingests that are not finished: who sees them, how far they are, and how one is ended by its number.

use std::process::{Child, Stdio};
use std::time::Duration;

use ragstone_env::Stopwatch;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Folder, Ran, Service};
use crate::ingest_jobs::{FILES, KILLED, SLOW, at_rest, collections, corpus, unfinished, wait_for_commit};
use crate::keys::{As, new_key, send};

/// Documents that are committed together.
const BATCH: u64 = 32;

fn ingest(folder: &Folder, paths: &str, collection: &str) -> Child {
    let mut ingest = folder.ragstone(&["ingest", paths, "--collection", collection]);
    ingest.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn listed(folder: &Folder) -> Vec<Value> {
    folder.json(&["ingest", "--list", "--json"]).as_array().unwrap().clone()
}

/// The ingests into `collection`, once there is one in that state.
async fn in_state(folder: &Folder, collection: &str, state: &str) -> Value {
    let begun = Stopwatch::start();
    loop {
        let list = listed(folder);
        if let Some(found) = list.iter().find(|one| one["collection"] == collection && one["state"] == state) {
            return found.clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{list:?}");
    }
}

async fn documents(service: &Service, collection: &str) -> u64 {
    collections(service).await.into_iter().find(|(name, _)| name == collection).map_or(0, |(_, documents)| documents)
}

#[tokio::test]
async fn an_ingest_is_seen_while_it_runs_and_is_ended_by_its_number() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&[], &[SLOW]).await;
    let first = ingest(&folder, &corpus, "c");
    wait_for_commit(&folder.data(), "c");
    let second = ingest(&folder, &corpus, "d");
    let waiting = in_state(&folder, "d", "waiting").await;
    assert_eq!((&waiting["files_done"], &waiting["files_total"]), (&json!(0), &Value::Null));
    let running = in_state(&folder, "c", "running").await;
    assert_eq!((&running["files_total"], &running["paths"]), (&json!(FILES), &json!([corpus])), "{running}");
    assert!(running["created_unix_ms"].as_u64().is_some_and(|at| at > 0), "{running}");
    let shown = folder.run(&["ingest", "--list"]).succeeded().stdout;
    assert!(shown.contains("of 100 files") && shown.contains("waiting") && shown.contains(&corpus), "{shown}");
    let status = folder.run(&["cache", "status"]).succeeded().stdout;
    assert!(status.contains("of 100 files"), "{status}");
    // Whoever reaches the port sees that there is one, and neither which folders there are nor ends it.
    let (_, open) = service.get("/v1/ingests").await;
    assert!(open["data"].as_array().unwrap().iter().all(|one| one["paths"] == json!([])), "{open}");
    let id = running["id"].to_string();
    let path = format!("/v1/ingests/{id}");
    assert_eq!(send(&service, Method::DELETE, &path, As::Nobody, &Value::Null).await.0, 403);

    // One that waits, then the one that runs.
    let said = folder.run(&["ingest", "--cancel", &waiting["id"].to_string()]).succeeded().stdout;
    assert!(said.contains("cancelled ingest") && said.contains("what it stored is kept"), "{said}");
    Ran::of(second.wait_with_output().unwrap())
        .failed_with(&["the ingest was cancelled before any file was stored", "the same command begins it again"]);
    let before = documents(&service, "c").await;
    assert_eq!(folder.json(&["ingest", "--cancel", &id, "--json"])["cancelled"], true);
    folder.run(&["ingest", "--cancel", &id]).failed_with(&["no unfinished ingest", "ragstone ingest --list"]);
    let ended = Ran::of(first.wait_with_output().unwrap());
    let ended = ended.failed_with(&["the ingest was cancelled", "of 100 files are stored", "the same command goes on"]);
    assert_eq!(at_rest(&service).await, json!([]));
    let kept = documents(&service, "c").await;
    assert!(ended.stderr.contains(&format!("; {kept} of 100 files")), "{kept} {ended:?}");
    assert!(kept > 0 && kept < FILES as u64 && kept <= before + BATCH, "{before} {kept}");
    assert_eq!(folder.run(&["ingest", "--list"]).succeeded().stdout, "no ingest is unfinished\n");
    assert_eq!(service.stop(), 0);

    let service = folder.serve(&[]).await;
    assert_eq!(at_rest(&service).await, json!([]));
    assert_eq!(collections(&service).await, [("c".to_owned(), kept)]);
    let again = folder.json(&["ingest", &corpus, "--collection", "c", "--json"]);
    assert_eq!((&again["documents_unchanged"], &again["documents_added"]), (&json!(kept), &json!(FILES as u64 - kept)));
}

#[tokio::test]
async fn a_kill_before_or_after_the_journal_is_a_kill_before_or_after_the_cancellation() {
    for (point, is_cancelled) in [("ingest.cancelling", false), ("ingest.cancelled", true)] {
        // Of a folder that nobody has open,
        let folder = Folder::new();
        unfinished(&folder, "c", KILLED);
        let [one] = &listed(&folder)[..] else { panic!("one") };
        assert_eq!((&one["state"], &one["files_total"]), (&json!("interrupted"), &Value::Null), "{one}");
        let id = one["id"].to_string();
        let mut cancel = folder.ragstone(&["ingest", "--cancel", &id]);
        let output = cancel.env("RAGSTONE_FAILPOINTS", format!("{point}=kill")).output().unwrap();
        assert_eq!(output.status.code(), None, "{point}: not killed: {output:?}");
        assert_eq!(listed(&folder).is_empty(), is_cancelled, "{point}");
        // and of one that runs.
        let folder = Folder::new();
        let corpus = corpus(&folder);
        let failpoints = format!("{};{point}=kill", SLOW.1);
        let service = folder.serve_with(&[], &[(SLOW.0, &failpoints)]).await;
        let ingest = ingest(&folder, &corpus, "c");
        wait_for_commit(&folder.data(), "c");
        let id = in_state(&folder, "c", "running").await["id"].to_string();
        folder.run(&["ingest", "--cancel", &id]).failed_with(&["went away"]);
        service.wait();
        Ran::of(ingest.wait_with_output().unwrap()).failed_with(&["went away"]);
        let service = folder.serve(&[]).await;
        assert_eq!(at_rest(&service).await, json!([]), "{point}");
        let stored = documents(&service, "c").await;
        assert_eq!(stored == FILES as u64, !is_cancelled, "{point}: {stored}");
    }
}

#[tokio::test]
async fn a_key_sees_and_ends_what_goes_into_its_tenants_collections() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&["--keys", "required"], &[SLOW]).await;
    let owner = folder.token();
    let key = async |name: &str, role: &str, tenant: &str| {
        new_key(&service, &owner, json!({ "name": name, "role": role, "tenant": tenant })).await
    };
    let reader = key("reader", "read", "acme").await;
    let writer = key("writer", "write", "acme").await;
    let stranger = key("stranger", "write", "blue").await;
    let admin = key("admin", "admin", "blue").await;
    let ingest = ingest(&folder, &corpus, "acme/notes");
    let id = in_state(&folder, "acme/notes", "running").await["id"].clone();
    let list = async |key: &str| {
        let (status, text) = send(&service, Method::GET, "/v1/ingests", As::Key(key), &Value::Null).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["data"].as_array().unwrap().clone()
    };
    let own = list(&reader).await;
    assert_eq!((&own[0]["id"], &own[0]["collection"], &own[0]["paths"]), (&id, &json!("notes"), &json!([])));
    assert!(list(&stranger).await.is_empty());
    assert_eq!(list(&admin).await[0]["paths"], json!([corpus]));
    let path = format!("/v1/ingests/{id}");
    for (key, expected) in [(&reader, 403), (&stranger, 404), (&writer, 200)] {
        let (status, text) = send(&service, Method::DELETE, &path, As::Key(key), &Value::Null).await;
        assert_eq!(status, expected, "{text}");
    }
    Ran::of(ingest.wait_with_output().unwrap()).failed_with(&["the ingest was cancelled"]);
    assert!(list(&admin).await.is_empty());
}

#[tokio::test]
async fn one_that_failed_says_why_and_goes_on_at_the_next_start() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "ingest.after_commit=error:full@1")]).await;
    folder.run(&["ingest", &corpus, "--collection", "c"]).failed_with(&["ingest.after_commit"]);
    let [failed] = &listed(&folder)[..] else { panic!("one") };
    assert_eq!((&failed["state"], &failed["files_total"]), (&json!("failed"), &Value::Null), "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("ingest.after_commit"), "{failed}");
    let shown = folder.run(&["ingest", "--list"]).succeeded().stdout;
    assert!(shown.contains("failed: ") && shown.contains("ingest.after_commit"), "{shown}");
    let (_, open) = service.get("/v1/ingests").await;
    assert_eq!(open["data"][0]["error"], Value::Null, "it may name folders");
    assert_eq!(service.stop(), 0);
    let service = folder.serve(&[]).await;
    assert_eq!(at_rest(&service).await, json!([]));
    assert_eq!(documents(&service, "c").await, FILES as u64);
}

/// What is stored already is told apart from what is embedded, which takes far longer.
#[tokio::test]
async fn progress_tells_new_files_from_those_that_are_stored() {
    const STORED: usize = 40;
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let later = folder.path().join("later");
    std::fs::create_dir(&later).unwrap();
    let names: Vec<String> = (STORED..FILES).map(|number| format!("{number:03}.txt")).collect();
    let of = |place: &std::path::Path, name: &String| place.join(name);
    let place = std::path::PathBuf::from(&corpus);
    let sizes: Vec<u64> = names.iter().map(|name| of(&place, name).metadata().unwrap().len()).collect();
    names.iter().for_each(|name| std::fs::rename(of(&place, name), of(&later, name)).unwrap());
    let service = folder.serve(&[]).await;
    folder.run(&["ingest", &corpus, "--collection", "c"]).succeeded();
    names.iter().for_each(|name| std::fs::rename(of(&later, name), of(&place, name)).unwrap());
    let request = reqwest::Client::new().post(service.url("/v1/collections/c/ingest"));
    let request = request.header("x-ragstone-token", folder.token()).json(&json!({ "paths": [corpus] }));
    let text = request.send().await.unwrap().text().await.unwrap();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let news: Vec<&Value> = events.iter().filter_map(|event| event.get("progress")).map(|told| &told["new"]).collect();
    let (files, bytes) = (names.len() as u64, sizes.iter().sum::<u64>());
    assert!(!news.is_empty(), "{events:?}");
    let counts = |new: &Value, name: &str| new[name].as_u64().unwrap();
    for new in &news {
        assert_eq!((counts(new, "files_total"), counts(new, "bytes_total")), (files, bytes), "{events:?}");
        assert!(counts(new, "files_done") <= files && counts(new, "bytes_done") <= bytes, "{new}");
    }
    // Fewer than may wait to be read, so that none was left out.
    let last = news.last().unwrap();
    assert_eq!((counts(last, "files_done"), counts(last, "bytes_done")), (files, bytes));
    let finished = &events.last().unwrap()["finished"];
    assert_eq!((&finished["documents_unchanged"], &finished["documents_added"]), (&json!(STORED), &json!(files)));
}
