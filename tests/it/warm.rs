//! `ragstone cache warm`: computes ahead, skips what is there, goes on after a kill, can be cancelled.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::cache::{cache, list, settle};
use crate::harness::{Folder, Service};

/// More than two notes of the journal.
const DOCUMENTS: u64 = 40;

async fn filled(service: &Service) {
    let texts: Vec<(String, String)> = (0..DOCUMENTS)
        .map(|number| (format!("Lantern {number}"), format!("Lantern {number} burns with a flame of colour {number}.")))
        .collect();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(title, text)| (title.as_str(), text.as_str())).collect();
    service.add("c", &texts).await;
}

const WARM: &[&str] = &["warm", "--collection", "c"];

fn numbers(value: &Value, names: [&str; 2]) -> (u64, u64) {
    (value[names[0]].as_u64().unwrap(), value[names[1]].as_u64().unwrap())
}

fn computed_and_skipped(value: &Value) -> (u64, u64) {
    numbers(value, ["entries_computed", "entries_skipped"])
}

#[tokio::test]
async fn what_did_not_reach_the_disk_is_said_and_made_up_for() {
    let folder = Folder::new();
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "disk.before_write=error:full@20")]).await;
    filled(&service).await;
    let command = [&["cache"], WARM].concat();
    // The second time everything is in host memory, and on disk no more than before.
    for _ in 0..2 {
        folder.run(&command).failed_with(&["did not reach the disk", "run it again"]);
        assert_eq!(cache(&folder, &["warm", "--list"]).as_array().unwrap().len(), 1, "it stays in the journal");
    }
    assert_eq!(service.stop(), 0);
    let service = folder.serve(&[]).await;
    assert_eq!(cache(&folder, WARM)["passages_done"], DOCUMENTS);
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]));
    settle(&service).await;
    assert_eq!(list(&folder, &["--collection", "c", "--tier", "disk"]).len() as u64, DOCUMENTS);
}

/// With the default admission, what loads slower than it computes is not kept on disk: that is counted apart and said with what
/// changes it, and the job is over.
#[tokio::test]
async fn what_the_disk_declines_is_counted_apart() {
    let folder = Folder::new();
    let slow = [("RAGSTONE_FAILPOINTS", "disk.read_frame=delay:40")];
    let arguments = ["--set", "host_bytes=0", "--set", "device_cache=false"];
    let service = folder.serve_with(&arguments, &slow).await;
    service.add("world", crate::harness::WORLD).await;
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 2,
        "ragstone": { "collection": "world", "top_k": 4, "reuse": "exact" },
    });
    // The first answer computes, the second one loads and is timed.
    for _ in 0..2 {
        service.ask("/v1/chat/completions", &body).await;
        settle(&service).await;
    }
    filled(&service).await;
    let done = cache(&folder, WARM);
    let declined = done["entries_declined"].as_u64().unwrap();
    assert!(declined > 0, "{done}");
    assert_eq!(computed_and_skipped(&done).0 + declined, DOCUMENTS, "{done}");
    assert_eq!((&done["entries_lost"], &done["passages_done"]), (&json!(0), &json!(DOCUMENTS)));
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]), "nothing else can come of it");
    let text = folder.run(&[&["cache"], WARM].concat()).succeeded().stdout;
    assert!(text.contains("not kept on disk") && text.contains("kv_admission=always"), "{text}");
    assert_eq!(service.stop(), 0);

    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    let done = cache(&folder, WARM);
    let (computed, skipped) = computed_and_skipped(&done);
    assert_eq!((&done["entries_declined"], computed + skipped), (&json!(0), DOCUMENTS), "{done}");
    assert!(computed > 0, "{done}");
    settle(&service).await;
    assert_eq!(list(&folder, &["--collection", "c", "--tier", "disk"]).len() as u64, DOCUMENTS);
}

/// A disk too small for a batch: what has no room is not done, and the job says so and stays.
#[tokio::test]
async fn what_has_no_room_on_the_disk_stays_to_be_done() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "disk_bytes=200KiB"]).await;
    filled(&service).await;
    folder.run(&[&["cache"], WARM].concat()).failed_with(&["did not reach the disk", "disk_bytes", "run it again"]);
    let jobs = cache(&folder, &["warm", "--list"]);
    assert!(jobs[0]["progress"]["entries_lost"].as_u64().unwrap() > 0, "{jobs}");
    assert!(jobs[0]["progress"]["passages_done"].as_u64().unwrap() < DOCUMENTS, "{jobs}");
    assert_eq!(service.stop(), 0);
}

/// Every queue has room for one: answers are refused and asked again, the warm-up waits, and both come to an end.
#[tokio::test]
async fn on_a_busy_service_a_warm_up_waits() {
    let folder = Folder::new();
    let slow = [("RAGSTONE_FAILPOINTS", "engine.prefill=delay:10")];
    let service = folder.serve_with(&["--set", "max_queued=1"], &slow).await;
    filled(&service).await;
    let url = service.url("/v1/chat/completions");
    let asking = (0..3).map(|client| {
        let url = url.clone();
        tokio::spawn(async move {
            let (client_of, mut answered, mut refused) = (reqwest::Client::new(), 0, 0);
            while answered < 15 {
                let question = format!("What colour is the flame of lantern {}?", client * 15 + answered);
                let body = json!({
                    "messages": [{ "role": "user", "content": question }], "max_tokens": 4, "ragstone": { "collection": "c" },
                });
                match client_of.post(&url).json(&body).send().await.unwrap().status().as_u16() {
                    200 => answered += 1,
                    429 | 503 => refused += 1,
                    other => panic!("status {other}"),
                }
            }
            refused
        })
    });
    let asking: Vec<_> = asking.collect();
    let mut command = folder.ragstone(&[&["cache"], WARM, &["--json"]].concat());
    let warmed = tokio::task::spawn_blocking(move || crate::harness::Ran::of(command.output().unwrap())).await.unwrap();
    let done: Value = serde_json::from_str(&warmed.succeeded().stdout).unwrap();
    let (computed, skipped) = computed_and_skipped(&done);
    assert_eq!(computed + skipped + done["entries_declined"].as_u64().unwrap(), DOCUMENTS, "{done}");
    assert_eq!((&done["passages_done"], &done["entries_lost"]), (&json!(DOCUMENTS), &json!(0)), "{done}");
    let mut refused = 0;
    for client in asking {
        refused += client.await.unwrap();
    }
    assert!(refused > 0, "it was busy");
}

#[tokio::test]
async fn a_warmed_collection_is_loaded_and_not_computed() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    filled(&service).await;
    let said = cache(&folder, &[WARM, &["--dry-run"]].concat());
    assert_eq!(numbers(&said, ["entries_missing", "entries_there"]), (DOCUMENTS, 0), "{said}");
    assert!(said["bytes_missing"].as_u64().unwrap() > 0);
    assert_eq!(list(&folder, &[]), [json!(null); 0], "a dry run changes nothing");
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]));

    let done = cache(&folder, WARM);
    assert_eq!(computed_and_skipped(&done), (DOCUMENTS, 0), "{done}");
    assert_eq!(numbers(&done, ["passages_done", "passages_total"]), (DOCUMENTS, DOCUMENTS));
    settle(&service).await;
    let entries = list(&folder, &["--collection", "c", "--tier", "disk"]);
    assert_eq!(entries.len() as u64, DOCUMENTS);
    // What is there is skipped; other tenants share nothing.
    assert_eq!(computed_and_skipped(&cache(&folder, WARM)), (0, DOCUMENTS));
    let tenants = cache(&folder, &[WARM, &["--tenant", "a", "--tenant", "b", "--tenant", "a"]].concat());
    assert_eq!(computed_and_skipped(&tenants), (2 * DOCUMENTS, 0), "{tenants}");

    let body = json!({
        "messages": [{ "role": "user", "content": "What colour is the flame of lantern 7?" }], "temperature": 0,
        "max_tokens": 4, "ragstone": { "collection": "c", "top_k": 5 },
    });
    let report = service.ask("/v1/chat/completions", &body).await["ragstone"]["report"].clone();
    let computed = report["segments"].as_array().unwrap().iter().filter(|segment| segment["source"] == "compute");
    assert_eq!(computed.count(), 1, "the question only: {report}");
}

#[tokio::test]
async fn one_document_is_warmed_and_wrong_names_are_told() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    filled(&service).await;
    let (_, documents) = service.get("/v1/collections/c/documents").await;
    let id = documents["data"][3]["id"].as_str().unwrap();
    let done = cache(&folder, &[WARM, &["--document", id]].concat());
    assert_eq!(computed_and_skipped(&done), (1, 0));
    assert_eq!(list(&folder, &["--collection", "c"]).len(), 1);
    folder.run(&["cache", "warm", "--collection", "nowhere"]).failed_with(&["nowhere"]);
    folder.run(&["cache", "warm", "--collection", "nowhere", "--dry-run"]).failed_with(&["nowhere"]);
    folder.run(&["cache", "warm", "--collection", "c", "--document", "nobody"]).failed_with(&["nobody"]);
    folder.run(&["cache", "warm", "--cancel", "12345"]).failed_with(&["12345", "--list"]);
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]), "what failed is not in the journal");
}

async fn wait_until_done(folder: &Folder) {
    let begun = Stopwatch::start();
    while cache(folder, &["warm", "--list"]) != json!([]) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the warm-up does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Killed twice, at an entry and between two notes; each start goes on where the journal is.
#[tokio::test]
async fn a_killed_warm_up_goes_on_at_the_next_start() {
    let folder = Folder::new();
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "warm.after_entry=kill@20")]).await;
    filled(&service).await;
    folder.run(&[&["cache"], WARM].concat()).failed_with(&["again"]);
    service.wait();
    // A command of its own opens the folder, sees the job, and leaves it to the next service.
    let jobs = cache(&folder, &["warm", "--list"]);
    assert_eq!((&jobs[0]["state"], &jobs[0]["progress"]["passages_done"]), (&json!("waiting"), &json!(16)), "{jobs}");
    let on_disk = list(&folder, &["--collection", "c"]).len();
    assert!(on_disk >= 16, "what the journal counts is on disk: {on_disk}");

    let service = Service::start_unready(folder.serve_command(&[("RAGSTONE_FAILPOINTS", "warm.before_note=kill")]));
    service.wait();
    let jobs = cache(&folder, &["warm", "--list"]);
    assert_eq!(jobs[0]["progress"]["passages_done"], 16, "{jobs}");
    assert!(list(&folder, &["--collection", "c"]).len() >= 32);

    let service = folder.serve(&[]).await;
    wait_until_done(&folder).await;
    settle(&service).await;
    assert_eq!(list(&folder, &["--collection", "c"]).len() as u64, DOCUMENTS);
    assert_eq!(computed_and_skipped(&cache(&folder, WARM)), (0, DOCUMENTS));
}

/// Begins a warm-up of many entries in a process of its own; returns when it has a number, and Ctrl-C comes then.
fn interrupted(folder: &Folder, tenants: &[&str]) -> String {
    let mut arguments = [&["cache"], WARM].concat();
    tenants.iter().for_each(|tenant| arguments.extend(["--tenant", tenant]));
    let mut command = folder.ragstone(&arguments);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("warm-up ") {
        assert!(lines.read_line(&mut told).unwrap() > 0, "it ended: {told}");
    }
    let sent = Command::new("kill").arg("-INT").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    lines.read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{told}");
    told
}

/// Ctrl-C says what becomes of the job; and that somebody cancels it is nobody's trouble.
#[tokio::test]
async fn an_interrupted_warm_up_says_how_it_goes_on_and_a_cancelled_one_is_no_warning() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    filled(&service).await;
    assert_eq!(service.stop(), 0);
    let tenants: Vec<String> = (0..25).map(|number| format!("tenant {number}")).collect();
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    let told = interrupted(&folder, &tenants);
    assert!(told.contains("warm-up 1 is kept: the same command or the next `ragstone serve` goes on"), "{told}");
    assert!(told.contains("`ragstone cache warm --cancel 1`"), "{told}");

    let log = folder.path().join("log");
    let mut command = folder.serve_command(&[]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let service = Service::start_unready(command);
    service.wait_until_ready().await;
    // Another one, which waits for its turn or has it.
    let told = interrupted(&folder, &["somebody else"]);
    assert!(told.contains("warm-up 2 goes on in the running service") && told.contains("--list"), "{told}");
    cache(&folder, &["warm", "--cancel", "1"]);
    wait_until_done(&folder).await;
    assert_eq!(list(&folder, &["--tenant", "somebody else", "--collection", "c"]).len() as u64, DOCUMENTS);
    assert_eq!(service.stop(), 0);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("the unfinished warm-up was ended") && !log.contains("WARN"), "{log}");
}

#[tokio::test]
async fn a_cancelled_warm_up_does_not_come_back() {
    let folder = Folder::new();
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", "warm.after_note=kill")]).await;
    filled(&service).await;
    folder.run(&[&["cache"], WARM].concat()).failed_with(&["again"]);
    service.wait();
    let jobs = cache(&folder, &["warm", "--list"]);
    let job = jobs[0]["id"].to_string();
    let text = folder.run(&["cache", "status"]).succeeded().stdout;
    let row = format!("{job:>7}  c   waiting  16 of 40 passages\n");
    assert!(text.contains("\nwarm-up  of  state    done\n") && text.ends_with(&row), "{text}");
    assert_eq!(cache(&folder, &["warm", "--cancel", &job])["cancelled"], true);
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]));
    let service = folder.serve(&[]).await;
    assert_eq!(cache(&folder, &["warm", "--list"]), json!([]));
    settle(&service).await;
    assert_eq!(list(&folder, &["--collection", "c"]).len(), 16, "what it computed stays");
}
