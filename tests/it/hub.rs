//! Models from the hub, against a small hub of our own: download, cache, offline use, names that are not there, and a hub that lies.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, Ran};
use crate::hub_server::{Body, COMMIT, Repo, files, tiny};

/// `ragstone fetch --model somebody/…` with a cache inside the folder.
async fn fetch(folder: &Folder, endpoint: &str, model: &'static str, offline: bool) -> Ran {
    let mut command = folder.ragstone(&["fetch", "--json", "--model", model]);
    command
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", folder.path().join("a/b/c/d/hf"))
        .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" });
    tokio::task::spawn_blocking(move || Ran::of(command.output().unwrap())).await.unwrap()
}

#[tokio::test]
async fn a_model_comes_from_the_hub_once_and_then_from_its_cache() {
    let folder = Folder::new();
    let repo = tiny(&folder);
    let weights = repo.files["model.safetensors"].clone();
    let endpoint = repo.serve();
    fetch(&folder, &endpoint, "somebody/tiny", true).await.failed_with(&["somebody/tiny", "switched off"]);
    fetch(&folder, &endpoint, "somebody/else", false).await.failed_with(&["somebody/else", "check the name"]);
    let fetched = fetch(&folder, &endpoint, "somebody/tiny", false).await.succeeded();
    let first: Value = serde_json::from_str(&fetched.stdout).unwrap();
    let path = Path::new(first["model"].as_str().unwrap());
    assert!(path.ends_with(format!("models--somebody--tiny/snapshots/{COMMIT}")), "{first}");
    assert_eq!(std::fs::read(path.join("model.safetensors")).unwrap(), weights);
    let again = fetch(&folder, &endpoint, "somebody/tiny", true).await.succeeded();
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap(), first);
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_named() {
    let folder = Folder::new();
    let ran = fetch(&folder, "http://127.0.0.1:1", "somebody/tiny", false).await;
    ran.failed_with(&["http://127.0.0.1:1", "cannot be reached"]);
}

/// Nothing that the hub says becomes a path outside of its cache, or a file in it.
#[tokio::test]
async fn answers_that_would_leave_the_cache_are_refused() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    let above = folder.path().join("a/x");
    for etag in ["../../../../../../x", "../x", above.to_str().unwrap(), "", "..", "a/b", "x.lock"] {
        let endpoint = Repo { etag: Some(etag.into()), ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["ETag", "nothing of it was used"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{etag}");
    }
    for commit in ["../../../x", "/tmp/x", "", "main", "..", &"a".repeat(1000)] {
        let endpoint = Repo { commit: commit.into(), ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["commit", "nothing of it was used"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{commit}");
    }
    // Names that nobody wants are no trouble; those of an index are.
    let also = ["../../../../x.safetensors", "/tmp/x.safetensors", "a\0b.safetensors"].map(str::to_owned).to_vec();
    let mut names_all = honest.clone();
    names_all.also = also.clone();
    for name in also {
        let mut repo = names_all.clone();
        let index = json!({ "weight_map": { "a": name } }).to_string().into_bytes();
        repo.files.insert("model.safetensors.index.json".into(), index);
        fetch(&folder, &repo.serve(), "somebody/tiny", false).await.failed_with(&["model.safetensors.index.json"]);
    }
    let outside: Vec<String> =
        files(folder.path()).into_iter().filter(|path| !path.contains("/hf/hub/models--")).collect();
    assert_eq!(outside, [""; 0]);
    fetch(&folder, &names_all.serve(), "somebody/tiny", false).await.succeeded();
    fetch(&folder, "http://127.0.0.1:1", "somebody/tiny@../../x", false).await.failed_with(&["no model folder"]);
}

#[tokio::test]
async fn a_repository_of_a_million_files_is_refused() {
    let folder = Folder::new();
    let mut repo = tiny(&folder);
    repo.also = (0..1_000_000).map(|number| format!("file-{number}.safetensors")).collect();
    fetch(&folder, &repo.serve(), "somebody/tiny", false).await.failed_with(&["more files than"]);
    assert_eq!(files(folder.path()), BTreeSet::new());
}

#[tokio::test]
async fn no_more_is_taken_than_was_promised_and_nothing_that_its_hash_does_not_fit() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    for (body, words) in [(Body::Endless, "promised"), (Body::Changed, "SHA-256")] {
        let endpoint = Repo { body, ..honest.clone() }.serve();
        fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&[words, "config.json"]);
        assert_eq!(files(folder.path()), BTreeSet::new(), "{words}");
    }
}

#[tokio::test]
async fn a_download_that_broke_off_goes_on_where_it_was() {
    let folder = Folder::new();
    let honest = tiny(&folder);
    let endpoint = Repo { body: Body::Broken(100), ..honest.clone() }.serve();
    fetch(&folder, &endpoint, "somebody/tiny", false).await.failed_with(&["config.json", "run again to continue"]);
    fetch(&folder, &honest.clone().serve(), "somebody/tiny", false).await.succeeded();
    let ranges = honest.ranges.lock().unwrap().clone();
    let of_config: Vec<&str> =
        ranges.iter().filter(|(name, _)| name == "config.json").map(|(_, range)| range.as_str()).collect();
    assert_eq!(of_config, ["bytes=0-0", "bytes=0-", "bytes=0-0", "bytes=100-"]);
}
