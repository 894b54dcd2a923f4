//! `ragstone models`: what is here, what a model needs before it is fetched, fetching through every trouble that a hub can make, removing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::gguf;
use crate::harness::{Folder, Ran};
use crate::hub_server::{Body, COMMIT, Refused, Repo, files, sha256, tiny};

/// `ragstone models …` with a cache inside the folder.
fn command(folder: &Folder, endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = folder.ragstone(&[&["models"], arguments].concat());
    command
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", folder.path().join("hf"))
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env("HF_HUB_OFFLINE", "0");
    command
}

async fn models(folder: &Folder, endpoint: &str, arguments: &[&str]) -> Ran {
    let mut command = command(folder, endpoint, arguments);
    tokio::task::spawn_blocking(move || Ran::of(command.output().unwrap())).await.unwrap()
}

async fn said(folder: &Folder, endpoint: &str, arguments: &[&str]) -> Value {
    let ran = models(folder, endpoint, &[arguments, &["--json"]].concat()).await.succeeded();
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// What the cache has, without the data folder's demo model.
fn cached(folder: &Folder) -> BTreeSet<String> {
    files(folder.path()).into_iter().filter(|path| path.contains("/hf/")).collect()
}

/// The demo model as a large repository, whose bytes are elsewhere.
fn large(folder: &Folder) -> Repo {
    Repo { is_large: true, ..tiny(folder) }
}

fn of<'a>(list: &'a Value, id: &str) -> Vec<&'a Value> {
    list.as_array().unwrap().iter().filter(|model| model["id"] == id).collect()
}

#[tokio::test]
async fn a_model_is_fetched_listed_shown_and_removed() {
    let folder = Folder::new();
    let repo = large(&folder);
    let bytes: usize = repo.files.values().map(Vec::len).sum::<usize>() - repo.files["MODEL_CARD.md"].len();
    let endpoint = repo.serve();
    let fetched = said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
    let path = PathBuf::from(fetched[0]["path"].as_str().unwrap());
    assert!(path.ends_with(format!("snapshots/{COMMIT}")) && path.join("model.safetensors").is_file());
    assert_eq!((&fetched[0]["commit"], &fetched[0]["disk"]["missing_bytes"]), (&json!(COMMIT), &json!(0)));
    // A commit is a revision, too, and all of it is here.
    let pinned = format!("somebody/tiny@{COMMIT}");
    assert_eq!(said(&folder, &endpoint, &["fetch", &pinned]).await[0]["path"], fetched[0]["path"]);
    let off = "http://127.0.0.1:1";
    let list = said(&folder, off, &["list"]).await;
    let [here] = of(&list, "somebody/tiny")[..] else { panic!("{list}") };
    let expected = [
        ("commit", json!(COMMIT)),
        ("revisions", json!(["main"])),
        ("kind", json!("language_model")),
        ("whole", json!(true)),
    ];
    for (key, value) in expected.into_iter().chain([("bytes", json!(bytes)), ("in_use", json!(false))]) {
        assert_eq!(here[key], value, "{key} of {here}");
    }
    assert!(
        here["architecture"].as_str().unwrap().ends_with("ForCausalLM") && here["last_used_unix_ms"].is_u64(),
        "{here}"
    );
    assert_eq!(of(&list, "ragstone-demo").len(), 1, "the data folder's own, {list}");
    let text = models(&folder, off, &["list"]).await.succeeded().stdout;
    assert!(text.contains("somebody/tiny") && text.contains("language model"), "{text}");
    let shown = said(&folder, off, &["show", "somebody/tiny"]).await;
    let by_path = said(&folder, off, &["show", path.to_str().unwrap()]).await;
    assert_eq!(shown["need"]["weights"], by_path["need"]["weights"]);
    assert!(shown["calibration"].as_str().unwrap().contains("calibration.json"), "{shown}");
    let dry = said(&folder, off, &["remove", "somebody/tiny", "--dry-run"]).await;
    assert_eq!(dry["bytes"], bytes);
    models(&folder, off, &["remove", "somebody/tiny"]).await.failed_with(&["--yes", "somebody/tiny"]);
    assert!(path.join("config.json").is_file());
    models(&folder, off, &["remove", "somebody/tiny", "--yes"]).await.succeeded();
    assert_eq!(cached(&folder), BTreeSet::new());
    models(&folder, off, &["remove", "somebody/tiny", "--yes"]).await.failed_with(&["not in the hub's cache"]);
    models(&folder, off, &["remove", "ragstone-demo", "--yes"]).await.succeeded();
    assert_eq!(said(&folder, off, &["list"]).await, json!([]));
}

/// Its weights are not touched: the list, the configuration, and the head of the weights' file say everything.
#[tokio::test]
async fn what_a_model_needs_is_said_before_it_is_fetched() {
    let folder = Folder::new();
    let repo = large(&folder);
    let weights = repo.files["model.safetensors"].len();
    let endpoint = repo.clone().serve();
    let dry = said(&folder, &endpoint, &["fetch", "somebody/tiny", "--dry-run"]).await;
    assert_eq!(cached(&folder), BTreeSet::new());
    let read: usize = repo.ranges_of("model.safetensors").iter().map(|range| length(range)).sum();
    assert!(read > 8 && read < weights / 20, "{read} bytes of {weights}");
    let [dry, shown] = [&dry[0], &said(&folder, &endpoint, &["show", "somebody/tiny"]).await];
    assert_eq!(dry["need"]["weights"], shown["need"]["weights"]);
    assert_eq!(dry["disk"]["bytes"], dry["disk"]["missing_bytes"]);
    assert!(dry["disk"]["bytes"].as_u64().unwrap() > weights as u64);
    let need = &dry["need"];
    let parameters = need["parameters"].as_u64().unwrap();
    assert!((weights as u64 / 4..=weights as u64 / 2).contains(&parameters), "{parameters} in {weights} bytes");
    let of_format = |name: &str| {
        let all = need["weights"].as_array().unwrap();
        all.iter().find(|memory| memory["format"] == name).unwrap()["bytes"].as_u64().unwrap()
    };
    assert!(of_format("q8") < of_format("bf16") && of_format("bf16") <= of_format("stored"), "{need}");
    let text = models(&folder, &endpoint, &["fetch", "somebody/tiny", "--dry-run"]).await.succeeded().stdout;
    for word in ["--weights q8", "KV", "to fetch", "bytes a token", "tokens"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    // What does not fit is said before it is fetched, and what would.
    let ran =
        models(&folder, &endpoint, &["fetch", "somebody/tiny", "--set", "device_bytes=1000TiB"]).await.succeeded();
    assert!(!cfg!(target_os = "linux") || ran.stderr.contains("does not fit"), "{ran:?}");
    assert_eq!(
        said(&folder, "http://127.0.0.1:1", &["show", "somebody/tiny"]).await["need"]["weights"],
        need["weights"]
    );
}

/// Bytes of a closed range.
fn length(range: &str) -> usize {
    let (begin, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    end.parse::<usize>().unwrap() + 1 - begin.parse::<usize>().unwrap()
}

#[tokio::test]
async fn a_gguf_file_is_chosen_by_its_quantization_and_runs() {
    let folder = Folder::new();
    // The embedded model; of the one in f32 the head is less than what is read at once.
    let kinds = [("tiny-bf16", gguf::BF16), ("tiny-q8_0", gguf::Q8_0), ("tiny-f32", gguf::F32)];
    let written =
        kinds.map(|(name, kind)| (format!("{name}.gguf"), std::fs::read(gguf::file(&folder, name, kind)).unwrap()));
    let repo = Repo::with(written.into());
    let whole = repo.files["tiny-f32.gguf"].clone();
    assert!(whole.len() > 3 << 20);
    let repo = Repo { is_large: true, ..repo };
    let endpoint = repo.clone().serve();
    models(&folder, &endpoint, &["fetch", "somebody/tiny"]).await.failed_with(&["--quant", "bf16, f32, q8_0"]);
    models(&folder, &endpoint, &["fetch", "somebody/tiny", "--quant", "q4_k_m"]).await.failed_with(&["q4_k_m", "q8_0"]);
    let dry = said(&folder, &endpoint, &["fetch", "somebody/tiny", "--quant", "F32", "--dry-run"]).await;
    assert_eq!(cached(&folder), BTreeSet::new());
    assert_eq!(repo.ranges_of("tiny-f32.gguf"), ["bytes=0-2097151"]);
    let fetched = said(&folder, &endpoint, &["fetch", "somebody/tiny", "--quant", "F32"]).await;
    let path = fetched[0]["path"].as_str().unwrap();
    assert_eq!(std::fs::read(path).unwrap(), whole);
    assert_eq!(
        (&dry[0]["need"]["weights"], &fetched[0]["file"]),
        (&fetched[0]["need"]["weights"], &json!("tiny-f32.gguf"))
    );
    said(&folder, &endpoint, &["fetch", "somebody/tiny", "--file", "tiny-q8_0.gguf"]).await;
    let before = said(&folder, &endpoint, &["list"]).await;
    let found: Vec<&str> = of(&before, "somebody/tiny").iter().map(|model| model["file"].as_str().unwrap()).collect();
    assert_eq!(found, ["tiny-f32.gguf", "tiny-q8_0.gguf"]);
    assert_eq!(of(&before, "somebody/tiny")[0]["dtype"], "F32");
    assert_eq!(said(&folder, &endpoint, &["list"]).await, before, "a look is no use");
    assert_eq!(said(&folder, &endpoint, &["show", path]).await["need"]["weights"], dry[0]["need"]["weights"]);
    // A start reads it by the path that was printed.
    let mut doctor = folder.ragstone(&["doctor", "--json", "--model", path, "--set", "listen=127.0.0.1:0"]);
    let findings = Ran::of(tokio::task::spawn_blocking(move || doctor.output().unwrap()).await.unwrap()).stdout;
    assert!(findings.contains("LlamaForCausalLM"), "{findings}");
    // For a folder it is no substitute, and the message says what to do.
    let mut fetch = folder.ragstone(&["fetch", "--model", "somebody/tiny"]);
    fetch.env("HF_ENDPOINT", &endpoint).env("HF_HOME", folder.path().join("hf")).env("HF_HUB_OFFLINE", "0");
    Ran::of(tokio::task::spawn_blocking(move || fetch.output().unwrap()).await.unwrap())
        .failed_with(&["ragstone models fetch somebody/tiny --quant"]);
}

#[tokio::test]
async fn names_that_are_none_get_what_to_give_instead() {
    let folder = Folder::new();
    let off = "http://127.0.0.1:1";
    for verb in ["fetch", "show", "remove"] {
        models(&folder, off, &[verb, "llama3.2:1b"]).await.failed_with(&["Ollama", "OWNER/NAME"]);
        let instead = "`ragstone models fetch owner/model --quant Q4_K_M`";
        models(&folder, off, &[verb, "hf.co/owner/model:Q4_K_M"]).await.failed_with(&[instead]);
        models(&folder, off, &[verb, "llama"]).await.failed_with(&["no model folder llama"]);
    }
    models(&folder, off, &["fetch", "a/b", "--offline"]).await.failed_with(&["a/b", "switched off"]);
    models(&folder, off, &["fetch", "a/b"]).await.failed_with(&[off, "cannot be reached"]);
}

/// Killed in the middle, it goes on with the byte that it lacks, of the same bytes; nothing is fetched twice.
#[tokio::test]
async fn a_fetch_that_was_killed_goes_on_where_it_was() {
    const SENT: usize = 1 << 20;
    let folder = Folder::new();
    let honest = large(&folder);
    let endpoint = Repo { body: Body::Stalled(SENT), ..honest.clone() }.serve();
    let mut child = command(&folder, &endpoint, &["fetch", "somebody/tiny"]).spawn().unwrap();
    let hash = sha256(&honest.files["model.safetensors"]);
    let part = folder.path().join(format!("hf/hub/models--somebody--tiny/blobs/{hash}.incomplete"));
    let begun = Stopwatch::start();
    while part.metadata().map_or(0, |found| found.len()) < SENT as u64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the first part does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It is being fetched: nobody removes it, and it is told to be a part.
    models(&folder, &endpoint, &["remove", "somebody/tiny", "--yes"])
        .await
        .failed_with(&["another process is fetching"]);
    models(&folder, &endpoint, &["fetch", "somebody/tiny"]).await.failed_with(&["another process is fetching"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let list = said(&folder, &endpoint, &["list"]).await;
    assert!(of(&list, "somebody/tiny").iter().any(|model| model["whole"] == false && model["bytes"] == SENT), "{list}");
    honest.ranges.lock().unwrap().clear();
    let endpoint = honest.clone().serve();
    let dry = said(&folder, &endpoint, &["fetch", "somebody/tiny", "--dry-run"]).await;
    let weights = honest.files["model.safetensors"].len();
    assert_eq!(dry[0]["disk"]["missing_bytes"], weights - SENT);
    let fetched = said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
    let path = Path::new(fetched[0]["path"].as_str().unwrap()).join("model.safetensors");
    assert_eq!(sha256(&std::fs::read(path).unwrap()), hash);
    let taken: Vec<String> =
        honest.ranges_of("model.safetensors").into_iter().filter(|range| range.ends_with('-')).collect();
    assert_eq!(taken, [format!("bytes={SENT}-")]);
    // Of the place that the bytes come from, by its own name for them.
    assert_eq!(*honest.conditions.lock().unwrap(), [format!("\"multipart-{weights}\"")]);
    assert!(!part.exists());
}

#[tokio::test]
async fn every_refusal_of_a_hub_is_one_clear_error() {
    let folder = Folder::new();
    let honest = large(&folder);
    let cases: [(u16, &str, &str, &[&str]); 8] = [
        (401, "", "", &["status 401", "hf auth login"]),
        (403, "", "", &["status 403", "accept its terms", "/somebody/tiny"]),
        (404, "", "", &["the hub has no", "check the name"]),
        (404, "", "RevisionNotFound", &["no revision v2"]),
        (429, "17", "", &["429", "try again in 17 s"]),
        (429, "Wed, 25 Nov 2026 07:28:00 GMT", "", &["try again after Wed, 25 Nov 2026 07:28:00 GMT"]),
        (429, "", "", &["429", "in some minutes"]),
        (503, "", "", &["status 503", "cannot be reached"]),
    ];
    for (status, retry_after, code, words) in cases {
        for is_of_files in [false, true] {
            let refused = Some(Refused { status, retry_after, code, is_of_files });
            let endpoint = Repo { refused, ..honest.clone() }.serve();
            // A file that the description names was there a moment ago.
            let is_gone = status == 404 && code.is_empty() && is_of_files;
            let words = if is_gone { &["though it lists it"][..] } else { words };
            let ran = models(&folder, &endpoint, &["fetch", "somebody/tiny@v2"]).await.failed_with(words);
            assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        }
    }
    assert_eq!(cached(&folder), BTreeSet::new());
}

#[tokio::test]
async fn a_hub_that_contradicts_itself_is_not_believed() {
    let folder = Folder::new();
    let honest = large(&folder);
    let weights = &honest.files["model.safetensors"];
    let described = |size: u64, hash: String| BTreeMap::from([("model.safetensors".to_owned(), (size, hash))]);
    let size = weights.len() as u64;
    let cases: [(Repo, &[&str]); 6] = [
        (Repo { described: described(size - 1, sha256(weights)), ..honest.clone() }, &["promises", "description"]),
        (Repo { described: described(size, sha256(b"other")), ..honest.clone() }, &["SHA-256", "description"]),
        (Repo { body: Body::Changed, ..honest.clone() }, &["SHA-256", "nothing of it is used"]),
        (Repo { body: Body::Renamed, ..honest.clone() }, &["it was changed meanwhile"]),
        (Repo { body: Body::Endless, ..honest.clone() }, &["more than the", "promised"]),
        (Repo { commit: "f".repeat(40), ..honest.clone() }, &["is about commit ffff"]),
    ];
    for (repo, words) in cases {
        let endpoint = repo.serve();
        let ran = models(&folder, &endpoint, &["fetch", &format!("somebody/tiny@{COMMIT}")]).await.failed_with(words);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        let whole = cached(&folder).into_iter().find(|path| path.ends_with("model.safetensors"));
        assert_eq!(whole, None, "{words:?}");
    }
    for name in ["../../x-q8_0.gguf", "/tmp/x-q8_0.gguf", ".x-q8_0.gguf"] {
        let repo = Repo { also: vec![name.to_owned()], ..Repo::with(BTreeMap::new()) };
        models(&folder, &repo.serve(), &["fetch", "somebody/tiny"])
            .await
            .failed_with(&["names the file", "nothing of it was used"]);
    }
    // An honest one finds nothing in the way.
    said(&folder, &honest.serve(), &["fetch", &format!("somebody/tiny@{COMMIT}")]).await;
}

/// What the first part is of is not what the rest is of: the place has other bytes by now.
#[tokio::test]
async fn a_part_is_not_gone_on_with_where_the_bytes_are_others() {
    let folder = Folder::new();
    let honest = large(&folder);
    let endpoint = Repo { body: Body::Broken(1000), is_large: true, ..honest.clone() }.serve();
    models(&folder, &endpoint, &["fetch", "somebody/tiny"]).await.failed_with(&["broke off", "run again to continue"]);
    let part = cached(&folder).into_iter().find(|path| path.ends_with(".incomplete")).unwrap();
    // Somebody's disk has changed what was there.
    let whole = std::fs::read(&part).unwrap();
    std::fs::write(&part, vec![b'x'; whole.len()]).unwrap();
    let endpoint = honest.serve();
    models(&folder, &endpoint, &["fetch", "somebody/tiny"]).await.failed_with(&["SHA-256"]);
    said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
}

#[tokio::test]
async fn what_the_disk_has_no_room_for_and_what_cannot_run_is_not_begun() {
    let folder = Folder::new();
    let mut repo = large(&folder);
    // The head of a shard that is said to be larger than any disk.
    let head = &repo.files["model.safetensors"][..];
    let length = 8 + u64::from_le_bytes(*head.first_chunk().unwrap()) as usize;
    let head = head[..length].to_vec();
    let first = "model-00001-of-00002.safetensors".to_owned();
    repo.files.insert(
        "model.safetensors.index.json".into(),
        json!({ "weight_map": { "a": first } }).to_string().into_bytes(),
    );
    repo.files.remove("model.safetensors");
    repo.files.insert(first.clone(), head.clone());
    repo.described.insert(first, (1 << 60, sha256(&head)));
    models(&folder, &repo.clone().serve(), &["fetch", "somebody/tiny"]).await.failed_with(&["MiB are free", "HF_HOME"]);
    assert_eq!(cached(&folder), BTreeSet::new());
    let mut repo = large(&folder);
    let config = json!({ "architectures": ["MambaForCausalLM"], "model_type": "mamba" });
    repo.files.insert("config.json".into(), config.to_string().into_bytes());
    let endpoint = repo.serve();
    models(&folder, &endpoint, &["fetch", "somebody/tiny"])
        .await
        .failed_with(&["MambaForCausalLM", "nothing was fetched"]);
    assert_eq!(cached(&folder), BTreeSet::new());
    let shown = said(&folder, &endpoint, &["show", "somebody/tiny"]).await;
    assert!(shown["need"]["problem"].as_str().unwrap().contains("MambaForCausalLM"), "{shown}");
}

#[tokio::test]
async fn what_is_read_before_a_fetch_is_bounded() {
    let folder = Folder::new();
    let mut repo = large(&folder);
    repo.files.insert("config.json".into(), format!("[{}0]", "0,".repeat(3 << 20)).into_bytes());
    models(&folder, &repo.serve(), &["show", "somebody/tiny"]).await.failed_with(&["config.json has 6291459 bytes"]);
    // The heads of all shards, together.
    let mut repo = large(&folder);
    let shards = [1, 2].map(|shard| format!("model-0000{shard}-of-00002.safetensors"));
    let index = json!({ "weight_map": { "a": shards[0], "b": shards[1] } });
    repo.files.insert("model.safetensors.index.json".into(), index.to_string().into_bytes());
    let weights = repo.files.remove("model.safetensors").unwrap();
    repo.files.insert(shards[0].clone(), weights);
    // As much as one head may have by itself; none of it is asked for.
    repo.files.insert(shards[1].clone(), [&100_000_000_u64.to_le_bytes()[..], &[b' '; 100]].concat());
    let endpoint = repo.serve();
    for verb in ["show", "fetch"] {
        models(&folder, &endpoint, &[verb, "somebody/tiny"]).await.failed_with(&["heads of the weights", "together"]);
    }
    assert_eq!(cached(&folder), BTreeSet::new());
}

#[tokio::test]
async fn a_revision_is_removed_without_what_others_need() {
    let folder = Folder::new();
    let first = large(&folder);
    said(&folder, &first.clone().serve(), &["fetch", "somebody/tiny"]).await;
    let mut second = Repo { commit: "a".repeat(40), ..first };
    second.files.insert("generation_config.json".into(), b"{\"max_length\": 77}".to_vec());
    let endpoint = second.serve();
    let moved = said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
    let list = said(&folder, &endpoint, &["list"]).await;
    let revisions: Vec<&Value> = of(&list, "somebody/tiny").iter().map(|model| &model["revisions"]).collect();
    assert_eq!(revisions, [&json!([]), &json!(["main"])], "the branch has moved");
    let removed = said(&folder, &endpoint, &["remove", &format!("somebody/tiny@{COMMIT}"), "--yes"]).await;
    assert!(removed["bytes"].as_u64().unwrap() < 1000, "the weights are the other's, too: {removed}");
    let path = Path::new(moved[0]["path"].as_str().unwrap());
    assert!(path.join("model.safetensors").metadata().unwrap().len() > 1 << 20);
    said(&folder, "http://127.0.0.1:1", &["show", "somebody/tiny"]).await;
    models(&folder, &endpoint, &["remove", "somebody/tiny@v3", "--yes"])
        .await
        .failed_with(&["somebody/tiny@v3", "not in"]);
    said(&folder, &endpoint, &["remove", "somebody/tiny@main", "--yes"]).await;
    assert_eq!(cached(&folder), BTreeSet::new());
}

/// The blobs of another commit are on a disk that is not there now, so that no file of it can be read.
#[tokio::test]
async fn a_revision_is_removed_without_a_commit_that_cannot_be_read() {
    let folder = Folder::new();
    let endpoint = large(&folder).serve();
    let fetched = said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
    let other = Path::new(fetched[0]["path"].as_str().unwrap()).with_file_name("a".repeat(40));
    std::fs::create_dir(&other).unwrap();
    std::os::unix::fs::symlink("/not-mounted/model.safetensors", other.join("model.safetensors")).unwrap();
    said(&folder, &endpoint, &["remove", &format!("somebody/tiny@{COMMIT}"), "--yes"]).await;
    assert!(other.join("model.safetensors").is_symlink() && !other.with_file_name(COMMIT).exists());
    // Whoever names the repository means all of it.
    said(&folder, &endpoint, &["remove", "somebody/tiny", "--yes"]).await;
    assert!(!other.exists());
}

#[tokio::test]
async fn what_the_service_uses_is_not_removed() {
    let folder = Folder::new();
    let endpoint = large(&folder).serve();
    said(&folder, &endpoint, &["fetch", "somebody/tiny"]).await;
    let home = folder.path().join("hf");
    let variables = [("HF_HOME", home.to_str().unwrap()), ("HF_HUB_OFFLINE", "1"), ("RAGSTONE_MODEL", "somebody/tiny")];
    let service = folder.serve_with(&[], &variables).await;
    let list = said(&folder, &endpoint, &["list"]).await;
    assert_eq!(of(&list, "somebody/tiny")[0]["in_use"], true, "{list}");
    assert_eq!(of(&list, "ragstone-demo")[0]["in_use"], false, "{list}");
    let pid = service.pid().to_string();
    models(&folder, &endpoint, &["remove", "somebody/tiny", "--yes"]).await.failed_with(&[&pid, "stop it"]);
    let shown = said(&folder, &endpoint, &["show", "somebody/tiny"]).await;
    assert_eq!((&shown["calibration"], &shown["in_use"]), (&json!("yes"), &json!(true)), "{shown}");
    service.kill();
    models(&folder, &endpoint, &["remove", "somebody/tiny", "--yes"]).await.succeeded();
}
