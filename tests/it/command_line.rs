//! The commands: with a running service and without, and how the service starts and stops.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::harness::{Folder, WORLD};

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
    folder.run(&["collections", "delete", "world"]).succeeded();
    assert_eq!(folder.json(&["collections", "list", "--json"]), json!([]));
    folder.run(QUESTION).failed_with(&["world"]);
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
