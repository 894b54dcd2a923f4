//! Commands beside one that has the data folder open itself: they reach the store through it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Ran, signal};
use crate::ingest_jobs::{FILES, SLOW, corpus, wait_for_commit};

/// An ingest that has the folder open itself, and is in the middle of it.
fn local_ingest(folder: &Folder, collection: &str) -> Child {
    local_ingest_with(folder, collection, SLOW.1)
}

fn local_ingest_with(folder: &Folder, collection: &str, failpoints: &str) -> Child {
    let corpus = corpus(folder);
    let mut ingest = folder.ragstone(&["ingest", &corpus, "--collection", collection]);
    let ingest = ingest.env(SLOW.0, failpoints).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_commit(&folder.data(), collection);
    ingest
}

#[test]
fn other_commands_work_beside_a_local_ingest() {
    let folder = Folder::new();
    let ingest = local_ingest(&folder, "c");
    let list = folder.json(&["ingest", "--list", "--json"]);
    assert_eq!((&list[0]["collection"], &list[0]["state"]), (&json!("c"), &json!("running")), "{list}");
    assert_eq!(folder.json(&["collections", "list", "--json"])[0]["name"], "c");
    assert!(!folder.json(&["documents", "list", "--json"]).as_array().unwrap().is_empty());
    let asked = folder.run(&["ask", "What burns?", "--max-tokens", "1"]).succeeded();
    assert!(asked.stdout.contains("Lantern"), "its citations: {asked:?}");
    folder.run(&["cache", "status"]).succeeded();
    // What wants the folder for itself names who has it, and for how long.
    folder.run(&["serve", "--listen", "127.0.0.1:0"]).failed_with(&[
        "in use by `ragstone ingest`",
        "process",
        ", for ",
    ]);
    folder.run(&["page"]).failed_with(&["ragstone serve"]);
    let found = folder.run(&["doctor", "--json", "--set", "listen=127.0.0.1:0"]).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    let service = found["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == "service").unwrap();
    assert!(service["found"].as_str().unwrap().contains("a command has the folder open"), "{service}");
    // It is the owner's alone.
    let address = serde_json::from_slice::<Value>(&std::fs::read(folder.data().join("service.json")).unwrap()).unwrap();
    let address = format!("{}/v1/collections", address["address"].as_str().unwrap());
    let asked = tokio::runtime::Runtime::new().unwrap().block_on(crate::harness::get(&address));
    assert_eq!(asked.0, 403, "{asked:?}");

    let id = list[0]["id"].to_string();
    folder.run(&["ingest", "--cancel", &id]).succeeded();
    Ran::of(ingest.wait_with_output().unwrap()).failed_with(&["the ingest was cancelled"]);
    assert!(!folder.data().join("service.json").exists());
    assert_eq!(folder.json(&["ingest", "--list", "--json"]), json!([]));
}

/// The first one ends while the second waits for its turn in it: that goes on by itself.
#[test]
fn a_second_ingest_waits_in_the_first_and_goes_on_when_that_has_ended() {
    let folder = Folder::new();
    let first = local_ingest(&folder, "c");
    let one = folder.write("one.md", "One lantern.");
    let mut second = folder.ragstone(&["ingest", one.to_str().unwrap(), "--collection", "d"]);
    let second = second.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Stopwatch::start();
    while folder.json(&["ingest", "--list", "--json"]).as_array().unwrap().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
    }
    let first = Ran::of(first.wait_with_output().unwrap()).succeeded();
    assert!(first.stdout.contains(&format!("{FILES} files taken")), "{first:?}");
    let second = Ran::of(second.wait_with_output().unwrap()).succeeded();
    assert!(second.stdout.contains("d: 1 file taken; "), "{second:?}");
    assert_eq!(folder.json(&["documents", "list", "--collection", "d", "--json"]).as_array().unwrap().len(), 1);
    assert!(second.stderr.contains("waiting for the unfinished ingest into c"), "{second:?}");
    assert_eq!(folder.json(&["ingest", "--list", "--json"]), json!([]));
}

/// The ingest ends in the middle of a warm-up that another command began through it.
#[test]
fn a_warm_up_goes_on_when_the_command_that_it_was_begun_in_ends() {
    let folder = Folder::new();
    let slow = format!("{};warm.after_entry=delay:1000", SLOW.1);
    let ingest = local_ingest_with(&folder, "c", &slow);
    let id = folder.json(&["ingest", "--list", "--json"])[0]["id"].to_string();
    let begun = Stopwatch::start();
    while folder.json(&["collections", "list", "--json"]).as_array().unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is committed");
    }
    let mut warm = folder.ragstone(&["cache", "warm", "--collection", "c", "--json"]);
    // It goes on by itself, with the same model.
    let mut warm = warm.env("RAGSTONE_MODEL", "demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(warm.stderr.take().unwrap()).lines().map(Result::unwrap);
    let begun = said.next().expect("it says its number");
    assert!(begun.contains("warm-up ") && begun.contains(" of c"), "{begun}");
    folder.run(&["ingest", "--cancel", &id]).succeeded();
    Ran::of(ingest.wait_with_output().unwrap()).failed_with(&["the ingest was cancelled"]);
    assert!(said.any(|line| line.contains("has ended; going on without it")));
    said.for_each(drop);
    let ended = Ran::of(warm.wait_with_output().unwrap()).succeeded();
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(done["passages_done"].as_u64().is_some_and(|done| done > 1), "{done}");
    assert_eq!(done["passages_done"], done["passages_total"], "{done}");
    assert_eq!(folder.json(&["cache", "warm", "--list", "--json"]), json!([]));
}

/// Its first ingest is at its last commit when somebody ends it: that is done, and nothing is watched any more.
#[test]
fn a_watch_that_is_ended_at_its_last_commit_ends() {
    let folder = Folder::new();
    let one = folder.write("one.md", "One lantern.");
    let mut watching = folder.ragstone(&["ingest", one.to_str().unwrap(), "--collection", "c", "--watch"]);
    watching.env(SLOW.0, SLOW.1).stdout(Stdio::piped()).stderr(Stdio::piped());
    let watching = watching.spawn().unwrap();
    wait_for_commit(&folder.data(), "c");
    assert!(signal("INT", watching.id()));
    let ended = Ran::of(watching.wait_with_output().unwrap()).succeeded();
    assert!(ended.stdout.contains("c: 1 file taken"), "{ended:?}");
}

/// A command that has the folder open, and ends as soon as it is asked for anything.
struct Ending(Mutex<Option<File>>);

async fn answer(ending: web::Data<Ending>, request: HttpRequest) -> HttpResponse {
    let mut lock = ending.0.lock().unwrap();
    match (request.path(), lock.is_some()) {
        ("/healthz", true) => HttpResponse::Ok().json(json!({ "status": "ok", "pid": std::process::id() })),
        ("/readyz", true) => HttpResponse::Ok().json(json!({ "status": "ready" })),
        _ => {
            *lock = None;
            let error = json!({ "message": "the service is stopping", "type": "server_error", "param": null, "code": "unavailable" });
            HttpResponse::ServiceUnavailable().json(json!({ "error": error }))
        }
    }
}

/// Has such a command hold a folder.
fn hold(folder: &Folder) {
    let lock = File::options().write(true).open(folder.data().join("lock")).unwrap();
    lock.lock().unwrap();
    let ending = web::Data::new(Ending(Mutex::new(Some(lock))));
    let server = HttpServer::new(move || App::new().app_data(ending.clone()).default_service(web::to(answer)));
    let server = server.workers(1).bind("127.0.0.1:0").unwrap();
    let record = json!({ "pid": std::process::id(), "address": format!("http://{}", server.addrs()[0]), "token": "t", "passes": true });
    std::fs::write(folder.data().join("service.json"), record.to_string()).unwrap();
    tokio::spawn(server.run());
}

/// What was not seen in part begins again; else its user is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_begins_again_when_the_one_that_it_works_through_ends() {
    let folder = Folder::new();
    let one = folder.write("one.md", "One lantern.");
    folder.run(&["ingest", one.to_str().unwrap(), "--collection", "c"]).succeeded();
    hold(&folder);
    let listed = tokio::task::block_in_place(|| folder.json(&["collections", "list", "--json"]));
    assert_eq!(listed[0]["name"], "c", "{listed}");
    hold(&folder);
    let asked = tokio::task::block_in_place(|| folder.run(&["ask", "What burns?"]));
    asked.failed_with(&["has ended meanwhile", "run this one again", "the service is stopping"]);
}
