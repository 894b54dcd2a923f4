//! The commands: with a running service and without, and how the service starts and stops.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cache::settle;
use crate::harness::{Folder, Ran, Service, WORLD, get, signal};

fn corpus(folder: &Folder) -> String {
    for (title, text) in WORLD {
        folder.write(&format!("corpus/{title}.md"), format!("# {title}\n\n{text}\n"));
    }
    folder.path().join("corpus").to_str().unwrap().to_owned()
}

const QUESTION: &[&str] = &["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "8"];

fn ask_json(folder: &Folder) -> Value {
    folder.json(&[QUESTION, &["--json"]].concat())
}

#[test]
fn who_does_not_read_standard_error_changes_nothing() {
    let folder = Folder::new();
    let ended = |command: &mut std::process::Command| command.output().unwrap().status.code();
    let ask = ["ask", "Who?", "--collection", "none"];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = ended(folder.ragstone(&ask).stderr(writer));
    assert!(unread.is_some_and(|code| code != 101), "{unread:?}");
    assert_eq!(unread, ended(&mut folder.ragstone(&ask)));
}

#[tokio::test]
async fn commands_do_the_same_with_a_service_and_without() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    let ingest = ["ingest", &corpus, "--collection", "world", "--json"];
    assert_eq!(folder.json(&ingest)["documents_added"], WORLD.len());
    let again = folder.json(&ingest);
    assert_eq!((&again["documents_unchanged"], &again["passages_added"]), (&json!(WORLD.len()), &json!(0)));
    let alone = ask_json(&folder);
    assert_eq!(alone["citations"][0]["title"], "Calbet Works");

    let service = folder.serve(&[]).await;
    assert_eq!(folder.json(&ingest)["documents_unchanged"], WORLD.len());
    let served = ask_json(&folder);
    assert_eq!(served["answer"], alone["answer"]);
    assert_eq!(served["citations"], alone["citations"]);
    // The service answered: its counters moved.
    assert!(service.get("/v1/cache/status").await.1["store"]["host"]["entries"].as_u64().unwrap() > 0);
    assert_eq!(folder.json(&["cache", "status", "--json"])["model"]["id"], "ragstone-demo");
    let text = folder.run(QUESTION).succeeded().stdout;
    for words in ["Sources", "[1] Calbet Works", "Reuse report", "exact", "first token"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    folder.run(&[QUESTION, &["--model", "other/model"]].concat()).failed_with(&["`ragstone-demo`", "`other/model`"]);
    assert_eq!(service.stop(), 0);
    assert!(!folder.data().join("service.json").exists());

    folder.run(&["documents", "delete", "--collection", "world", "nothing"]).failed_with(&["nothing"]);
    folder.run(&["collections", "delete", "world", "--yes"]).succeeded();
    assert_eq!(folder.json(&["collections", "list", "--json"]), json!([]));
    folder.run(QUESTION).failed_with(&["world"]);
}

#[tokio::test]
async fn a_prompt_is_explained() {
    let folder = Folder::new();
    let corpus = corpus(&folder);
    folder.run(&["ingest", &corpus, "--collection", "world"]).succeeded();
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    let explain = ["explain", "What does Calbet Works make?", "--collection", "world"];
    let cold = folder.json(&[&explain[..], &["--json"]].concat());
    assert!(segments(&cold).iter().all(|segment| segment["source"] == "compute"), "{cold}");
    settle(&service).await;
    let warm = folder.json(&[&explain[..], &["--json"]].concat());
    let report = &warm["report"];
    let (question, stored) = segments(&warm).split_last().unwrap();
    assert_eq!((&question["kind"], &question["why"]), (&json!("question"), &json!("ends_the_prompt")));
    assert!(stored.iter().all(|segment| segment["tier"] == "device" && segment["why"] == "in_place"), "{report}");
    assert!(stored.iter().all(|segment| segment["tiers"] == json!(["device", "host", "disk"])), "{report}");
    assert!(report["predicted"]["total_ms"].as_f64().unwrap() > 0.0);
    // Without the device it would come from host memory.
    assert_eq!(report["without"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["without"][0]["tier"], "device");
    let text = folder.run(&explain).succeeded().stdout;
    for words in ["passage Calbet Works", "device (host, disk)", "instead ms", "predicted", "without device"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    // The last plans are the owner's to see.
    let (status, _) = service.get("/v1/cache/plans").await;
    assert_eq!(status, 403, "they name tenants");
    assert_eq!(service.stop(), 0);
}

fn segments(explained: &Value) -> &[Value] {
    explained["report"]["segments"].as_array().unwrap()
}

#[tokio::test]
async fn what_a_killed_service_left_behind_does_not_matter() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let address = service.address.clone();
    service.kill();
    assert!(folder.data().join("service.json").exists());
    assert_eq!(folder.json(&["cache", "status", "--json"])["model"]["id"], "ragstone-demo");
    // Even if somebody else listens there now.
    folder.write("data/service.json", json!({ "pid": 1, "address": address, "token": "t" }).to_string());
    folder.run(&["collections", "list"]).succeeded();
}

#[tokio::test]
async fn a_port_or_folder_in_use_is_one_clear_message() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = folder.run(&["serve", "--listen", &address]).failed_with(&[&address, "another program listens there"]);
    assert_eq!((ran.code, ran.stderr.trim().lines().count()), (Some(1), 1), "{ran:?}");
    folder.run(&["serve", "--listen", "nonsense"]).failed_with(&["nonsense", "ADDR:PORT"]);
    let service = folder.serve(&[]).await;
    folder.run(&["serve", "--listen", "127.0.0.1:0"]).failed_with(&["already runs", &service.address]);
}

/// A command that looks leaves nothing behind where nothing was.
#[test]
fn commands_that_need_data_say_that_there_is_none_and_create_nothing() {
    let folder = Folder::new();
    let place = folder.data().display().to_string();
    let export = folder.path().join("export").display().to_string();
    for arguments in [
        &["cache", "status"][..],
        &["cache", "list", "--json"],
        &["cache", "verify"],
        &["cache", "export", &export],
        &["cache", "import", &export, "--dry-run"],
        &["cache", "warm", "--list"],
        &["cache", "warm"],
        &["cache", "evict", "--all"],
        &["cache", "invalidate", "--document", "d"],
        &["cache", "gc"],
        &["collections", "list"],
        &["collections", "delete", "c", "--yes"],
        &["documents", "list"],
        &["ask", "What?"],
    ] {
        if arguments.contains(&"import") {
            std::fs::create_dir(&export).unwrap();
        }
        folder.run(arguments).failed_with(&["there is no data folder", &place, "ragstone ingest"]);
        assert!(!folder.data().exists(), "{arguments:?}");
    }
    for verb in ["status", "up", "verify"] {
        let text = folder.run(&["migrate", verb]).succeeded().stdout;
        assert!(text.contains(&place), "{text}");
    }
    assert_eq!(folder.json(&["migrate", "up", "--json"])["taken"], json!([]));
    assert!(!folder.data().exists());
    // Nor in somebody's folder of other things.
    folder.write("data/letter.txt", "Dear Elka");
    folder.run(&["cache", "status"]).failed_with(&["no ragstone data in", &place]);
    assert_eq!(std::fs::read_dir(folder.data()).unwrap().count(), 1);
}

#[tokio::test]
async fn settings_that_a_running_service_would_ignore_are_refused() {
    let folder = Folder::new();
    let service = folder.serve_with(&["--set", "disk_bytes=2GB"], &[("RAGSTONE_HOST_BYTES", "64MiB")]).await;
    let (_, status) = service.get("/v1/cache/status").await;
    let capacities = [&status["store"]["host"]["capacity_bytes"], &status["store"]["disk"]["capacity_bytes"]];
    assert_eq!(capacities, [&json!(64 << 20), &json!(2_000_000_000)]);
    let ignored = ["cache", "status", "--set", "host_bytes=1GiB", "--threads", "1", "--set", "log=info"];
    let ran =
        folder.run(&ignored).failed_with(&["--threads, --set host_bytes would have no effect", "stop the service"]);
    assert!(!ran.stderr.contains("log"), "that is the command's own: {ran:?}");
    folder.run(&["cache", "status", "--set", "log=info"]).succeeded();
    folder.run(&["cache", "status", "--set", "host_bytes=1GiBs"]).failed_with(&["host_bytes", "KiB", "powers of 1000"]);
    assert_eq!(service.stop(), 0);
    folder.run(&["cache", "status", "--set", "host_bytes=1GiB", "--threads", "1"]).succeeded();
}

/// What an operator reads by default: three plain lines, and no library's.
#[tokio::test]
async fn the_service_says_when_questions_are_answered_and_where_its_page_is() {
    let folder = Folder::new();
    let mut command = folder.serve_command(&[]);
    let mut serving = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let listening = next();
    let address = listening.strip_prefix("listening on ").unwrap();
    assert!(next().starts_with("loading the model"));
    let ready = next();
    assert!(ready.starts_with("ready: ragstone-demo answers") && ready.contains(&format!("at {address} (")), "{ready}");
    assert_eq!(get(&format!("{address}/readyz")).await.0, 200);
    assert!(signal("TERM", serving.id()));
    let ended = serving.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && told.contains("stopping"), "{told}");
    for word in ["WARN", "lance", "loading model="] {
        assert!(!told.contains(word), "{told}");
    }
}

/// A wrong URL never becomes right; a bucket that is away may come back.
#[tokio::test]
async fn the_bucket_is_checked_before_the_service_listens() {
    let folder = Folder::new();
    let serve = |settings: &[&str]| {
        let mut command = folder.serve_command(&[("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command
    };
    for (settings, word) in [
        (&["object_url=bucket"][..], "s3://bucket/prefix"),
        (&["object_url=ftp://bucket"], "scheme"),
        (&["object_url=s3://bucket", "object_options.colour=blue"], "colour"),
    ] {
        let ran = Ran::of(serve(settings).output().unwrap()).failed_with(&["`object_url`", word]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    }
    assert!(!folder.data().exists(), "refused before anything is touched");
    // A server that accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("object_options.endpoint=http://{}", silent.local_addr().unwrap());
    let away = ["object_url=s3://bucket", "object_options.region=r", &endpoint, "object_options.allow_http=true"];
    let log = folder.path().join("log");
    let mut command = serve(&[&away[..], &["object_timeout_ms=300"]].concat());
    command.stderr(std::fs::File::create(&log).unwrap());
    let service = Service::start_unready(command);
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(told.contains("the service starts without it") && told.contains("no answer within 300ms"), "{told}");
    service.wait_until_ready().await;
    service.add("world", WORLD).await;
    assert!(folder.run(QUESTION).succeeded().stdout.contains("Reuse report"));
    assert_eq!(service.stop(), 0);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("hunter2"));
}

#[test]
fn a_verb_s_short_help_is_its_own() {
    let folder = Folder::new();
    let short = folder.run(&["cache", "list", "-h"]).succeeded().stdout;
    assert!(short.contains("--older-than") && !short.contains("--embedder"), "{short}");
    let long = folder.run(&["cache", "list", "--help"]).succeeded().stdout;
    let (own, global) = long.split_once("Global options:").unwrap();
    assert!(own.contains("--older-than") && !own.contains("--set") && global.contains("--set"), "{long}");
    let warm = folder.run(&["cache", "warm", "--help"]).succeeded().stdout;
    assert!(warm.contains("The job is durable"), "{warm}");
    let all = folder.run(&["--help"]).succeeded().stdout;
    assert!(all.contains("GiB") && all.contains("powers of 1000"), "{all}");
}

#[test]
fn completions_and_help_need_no_folder() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(folder.run(&["completions", shell]).succeeded().stdout.contains("ragstone"));
    }
    assert!(folder.run(&["--help"]).succeeded().stdout.contains("ingest"));
    assert_eq!(folder.run(&["frobnicate"]).code, Some(2));
    assert!(!folder.data().exists());
}
