//! `ragstone cache list`, `evict`, `pin`, `unpin`: what they do, that a dry run does nothing, and what is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};

const CHAT: &str = "/v1/chat/completions";

/// Asks over a collection; the titles of what the answer cites.
pub async fn cited(service: &Service, collection: &str, question: &str, tenant: &str) -> BTreeSet<String> {
    let body = json!({
        "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "collection": collection, "top_k": 4, "tenant": tenant },
    });
    let answer = service.ask(CHAT, &body).await;
    let titles = answer["ragstone"]["citations"].as_array().unwrap().iter();
    titles.map(|citation| citation["title"].as_str().unwrap().to_owned()).collect()
}

/// Waits until nothing is computed or written any more behind the answers.
pub async fn settle(service: &Service) {
    let begun = Stopwatch::start();
    loop {
        let (_, status) = service.get("/v1/cache/status").await;
        let waiting =
            [&status["background"], &status["store"]["to_disk"]["entries"], &status["store"]["to_object"]["entries"]];
        if waiting.iter().all(|waiting| **waiting == 0) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `ragstone cache VERB … --json`
pub fn cache(folder: &Folder, arguments: &[&str]) -> Value {
    folder.json(&[&["cache"], arguments, &["--json"]].concat())
}

/// Every entry that a filter lets pass.
pub fn list(folder: &Folder, filter: &[&str]) -> Vec<Value> {
    let listed = cache(folder, &[&["list", "--limit", "10000"], filter].concat());
    assert_eq!(listed["entries"], listed["data"].as_array().unwrap().len());
    listed["data"].as_array().unwrap().clone()
}

/// The id of the document of this title.
pub async fn document(service: &Service, collection: &str, title: &str) -> String {
    let (_, documents) = service.get(&format!("/v1/collections/{collection}/documents")).await;
    let found = documents["data"].as_array().unwrap().iter().find(|document| document["title"] == title);
    found.unwrap_or_else(|| panic!("no {title} in {documents}"))["id"].as_str().unwrap().to_owned()
}

fn has(entry: &Value, tier: &str) -> bool {
    entry["tiers"].as_array().unwrap().contains(&json!(tier))
}

fn keys(entries: &[Value]) -> BTreeSet<String> {
    entries.iter().map(|entry| entry["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn entries_are_listed_by_what_they_are_of() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    service.add("other", &WORLD[1..2]).await;
    cited(&service, "world", "What does Calbet Works make?", "").await;
    cited(&service, "world", "What does Calbet Works make?", "guest").await;
    settle(&service).await;
    let all = list(&folder, &[]);
    assert!(all.iter().all(|entry| has(entry, "host") && has(entry, "disk")), "{all:?}");
    // The system prompt's entries are of no collection.
    let world = list(&folder, &["--collection", "world"]);
    assert!(!world.is_empty() && world.len() < all.len());
    let (own, guests) = (list(&folder, &["--tenant", ""]), list(&folder, &["--tenant", "guest"]));
    assert_eq!((own.len() + guests.len(), own.len()), (all.len(), guests.len()));
    let id = document(&service, "world", WORLD[1].0).await;
    let of_document = list(&folder, &["--document", &id]);
    assert!(!of_document.is_empty());
    // The same content in another collection: the same entries.
    assert_eq!(keys(&of_document), keys(&list(&folder, &["--collection", "other"])));
    let segments: BTreeSet<&str> = of_document.iter().map(|entry| entry["segment"].as_str().unwrap()).collect();
    assert_eq!(segments.len(), 1, "one passage");
    assert_eq!(list(&folder, &["--of-model", "ragstone-demo"]).len(), all.len());
    assert_eq!(list(&folder, &["--younger-than", "1h"]).len(), all.len());
    assert_eq!(list(&folder, &["--older-than", "1h"]).len(), 0);
    let text = folder.run(&["cache", "list", "--limit", "1"]).succeeded().stdout;
    assert!(text.contains(&format!("{} entries", all.len())) && text.contains("1 is shown"), "{text}");
}

/// Each entry says what it is of, whatever the filter, with a service and without.
#[tokio::test]
async fn entries_say_what_they_are_of() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    service.add("zoo", &WORLD[1..2]).await;
    cited(&service, "world", "What does Calbet Works make?", "").await;
    // Text that comes with a request is in no collection.
    let body = json!({
        "messages": [{ "role": "user", "content": "What is it?" }], "temperature": 0, "max_tokens": 2,
        "ragstone": { "documents": [{ "title": "Note", "text": "A note that nobody ingested." }] },
    });
    service.ask(CHAT, &body).await;
    // And so is a system prompt of the caller's own.
    let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hello" }]);
    service.ask(CHAT, &json!({ "messages": messages, "temperature": 0, "max_tokens": 2 })).await;
    settle(&service).await;
    let id = document(&service, "world", WORLD[1].0).await;
    let shared = json!({
        "kind": "passage", "collection": "world", "document": id, "ordinal": 0, "title": WORLD[1].0, "also_in": 1,
    });
    let of = |entries: &[Value]| -> Vec<Value> { entries.iter().map(|entry| entry["of"].clone()).collect() };
    let all = of(&list(&folder, &[]));
    let kinds: BTreeSet<&str> = all.iter().map(|of| of["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["other_passage", "passage", "prompt_start", "system_prompt"]), "{all:?}");
    assert!(all.contains(&shared), "{all:?}");
    let of_document = of(&list(&folder, &["--document", &id]));
    assert!(!of_document.is_empty() && of_document.iter().all(|of| *of == shared), "{of_document:?}");
    let in_zoo = &of(&list(&folder, &["--collection", "zoo"]))[0];
    assert_eq!((&in_zoo["collection"], &in_zoo["also_in"]), (&json!("zoo"), &json!(0)));
    assert_eq!(service.stop(), 0);
    let mut alone = of(&list(&folder, &[]));
    alone.retain(|of| *of == shared);
    assert!(!alone.is_empty());
    let text = folder.run(&["cache", "list"]).succeeded().stdout;
    let line = format!("{}, passage 1 (document {id} of world, and 1 other place)", WORLD[1].0);
    assert!(text.contains(&line) && text.contains("  system prompt\n"), "{text}");
}

#[tokio::test]
async fn entries_are_evicted_by_tier_and_by_filter_and_pinned_ones_stay() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let before = cited(&service, "world", "What does Calbet Works make?", "").await;
    settle(&service).await;
    let all = list(&folder, &[]);
    // A dry run says what would happen, and nothing does.
    let host = ["evict", "--tier", "host", "--collection", "world"];
    let said = cache(&folder, &[&host[..], &["--dry-run"]].concat());
    assert!(said["entries"].as_u64().unwrap() > 0 && said["tiers"][0]["tier"] == "host", "{said}");
    assert_eq!(list(&folder, &[]), all);
    assert_eq!(said["entries"], said["copies"], "in one tier each: {said}");
    let done = cache(&folder, &host);
    assert_eq!((&done["entries"], &done["tiers"]), (&said["entries"], &said["tiers"]));
    assert!(list(&folder, &["--collection", "world"]).iter().all(|entry| !has(entry, "host") && has(entry, "disk")));

    let id = document(&service, "world", WORLD[0].0).await;
    let pin = ["pin", "--document", &id];
    let said = cache(&folder, &[&pin[..], &["--dry-run"]].concat());
    assert!(said["changed"].as_u64().unwrap() > 0, "{said}");
    assert!(list(&folder, &[]).iter().all(|entry| entry["pinned"] == false));
    assert_eq!(cache(&folder, &pin)["changed"], said["changed"]);
    assert_eq!(cache(&folder, &pin)["changed"], 0, "once is enough");
    assert_eq!(service.stop(), 0);
    // A pin outlives the process.
    let service = folder.serve(&[]).await;
    let pinned = keys(&list(&folder, &["--document", &id]));
    let copies =
        |entries: &[Value]| entries.iter().map(|entry| entry["tiers"].as_array().unwrap().len()).sum::<usize>();
    let (entries, held) = (list(&folder, &[]).len(), copies(&list(&folder, &[])));
    let done = cache(&folder, &["evict", "--all"]);
    let stay = list(&folder, &[]);
    assert_eq!(
        (&done["entries"], &done["copies"]),
        (&json!(entries - stay.len()), &json!(held - copies(&stay))),
        "{done}"
    );
    let left = keys(&list(&folder, &[]));
    assert_eq!(done["pinned"], left.len(), "what stands before a pinned entry stays, too: {done}");
    assert!(pinned.is_subset(&left), "{pinned:?} {left:?}");
    assert!(left.len() < all.len());
    assert_eq!(cache(&folder, &["unpin", "--all", "--dry-run"])["changed"], pinned.len());
    assert_eq!(cache(&folder, &["unpin", "--all"])["changed"], pinned.len());
    assert!(list(&folder, &[]).iter().all(|entry| entry["pinned"] == false));
    cache(&folder, &["evict", "--all"]);
    assert_eq!(list(&folder, &[]).len(), 0);
    // KV is derived: the documents are there, and the answers.
    assert_eq!(cited(&service, "world", "What does Calbet Works make?", "").await, before);
}

#[tokio::test]
async fn what_is_not_clear_is_refused_with_advice() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", &WORLD[..1]).await;
    folder.run(&["cache", "evict"]).failed_with(&["say which entries"]);
    folder.run(&["cache", "pin", "--collection", "nowhere"]).failed_with(&["nowhere"]);
    folder.run(&["cache", "list", "--document", "nobody"]).failed_with(&["nobody"]);
    folder.run(&["cache", "list", "--of-model", "gpt"]).failed_with(&["gpt", "ragstone-demo"]);
    for (arguments, word) in [(["--older-than", "7"], "7d"), (["--tier", "tape"], "tape")] {
        let ran = folder.run(&[&["cache", "list"], &arguments[..]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(word), "{ran:?}");
    }
    // Only who can read the data folder may change anything, or see who the tenants are.
    for verb in ["evict", "pin", "unpin", "invalidate", "warm"] {
        let (status, error) = service.post(&format!("/v1/cache/{verb}"), &json!({ "all": true })).await;
        assert_eq!(status, 403, "{verb} {error}");
        assert!(error_message(&error).contains("x-ragstone-token"), "{error}");
    }
    for path in ["/v1/cache/entries", "/v1/cache/jobs"] {
        assert_eq!(service.get(path).await.0, 403);
    }
    let record: Value = serde_json::from_slice(&std::fs::read(folder.data().join("service.json")).unwrap()).unwrap();
    let token = record["token"].as_str().unwrap();
    let client = reqwest::Client::new();
    let evict = client.post(service.url("/v1/cache/evict")).header("x-ragstone-token", token);
    let answer = evict.json(&json!({ "colection": "x" })).send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["param"], "colection");
    let listing = client.get(service.url("/v1/cache/entries?limit=x")).header("x-ragstone-token", token);
    assert_eq!(listing.send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn entries_are_verified_and_damaged_ones_are_named_and_removed() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    service.add("world", WORLD).await;
    let before = cited(&service, "world", "What does Calbet Works make?", "").await;
    settle(&service).await;
    let report = cache(&folder, &["verify"]);
    assert!(report["entries"].as_u64().unwrap() > 0 && report["damaged"] == json!([]), "{report}");
    assert_eq!(cache(&folder, &["verify", "--tier", "object"])["entries"], 0);
    assert!(cache(&folder, &["gc", "--dry-run"])["disk_freed_bytes"].is_u64());
    assert!(cache(&folder, &["gc"])["disk_freed_bytes"].is_u64());
    folder.run(&["cache", "gc", "--ttl", "1d"]).failed_with(&["no object tier"]);
    assert_eq!(service.stop(), 0);
    assert!(crate::restart::flip(&folder.data().join("kv")) > 0);
    let all = list(&folder, &[]).len();
    let ran = folder.run(&["cache", "verify", "--dry-run", "--json"]).failed_with(&["--dry-run"]);
    let damaged = serde_json::from_str::<Value>(&ran.stdout).unwrap()["damaged"].as_array().unwrap().len();
    assert!(damaged > 0, "{ran:?}");
    assert_eq!(list(&folder, &[]).len(), all, "a dry run removes nothing");
    folder.run(&["cache", "verify"]).failed_with(&["found and removed"]);
    assert_eq!(cache(&folder, &["verify"])["damaged"], json!([]));
    assert!(list(&folder, &[]).len() < all);
    let service = folder.serve(&[]).await;
    assert_eq!(cited(&service, "world", "What does Calbet Works make?", "").await, before);
}

#[tokio::test]
async fn entries_are_carried_to_another_folder_and_answer_there() {
    let (folder, other) = (Folder::new(), Folder::new());
    let always = ["--set", "kv_admission=always"];
    let service = folder.serve(&always).await;
    service.add("world", WORLD).await;
    cited(&service, "world", "What does Calbet Works make?", "").await;
    settle(&service).await;
    let place = folder.path().join("carried over");
    let place = place.to_str().unwrap();
    let said = cache(&folder, &["export", place, "--collection", "world", "--dry-run"]);
    assert!(said["wanted"].as_u64().unwrap() > 0 && said["entries"] == 0, "{said}");
    assert!(!std::path::Path::new(place).exists(), "a dry run makes no folder");
    let done = cache(&folder, &["export", place, "--collection", "world"]);
    assert_eq!((&done["entries"], &done["wanted"]), (&said["wanted"], &said["wanted"]), "{done}");
    let again = cache(&folder, &["export", place]);
    assert_eq!(again["already_there"], said["wanted"], "{again}");

    let service = other.serve(&always).await;
    service.add("world", WORLD).await;
    let before = cache(&other, &["import", place, "--dry-run"]);
    assert_eq!((&before["entries"], list(&other, &[]).len()), (&json!(0), 0), "{before}");
    let done = cache(&other, &["import", place]);
    assert_eq!(done["entries"], again["wanted"], "{done}");
    assert_eq!(keys(&list(&other, &[])), keys(&list(&folder, &[])));
    let body = json!({
        "messages": [{ "role": "user", "content": "What does Calbet Works make?" }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "collection": "world", "top_k": 4 },
    });
    let report = service.ask(CHAT, &body).await["ragstone"]["report"].clone();
    assert!(report["tokens"]["exact"].as_u64().unwrap() > 50, "{report}");
    // What is damaged there is left out, and said, with an exit status that a script sees.
    cache(&other, &["evict", "--all"]);
    flip_an_object(std::path::Path::new(place));
    let ran = other.run(&["cache", "import", place, "--json"]).failed_with(&["1 damaged"]);
    let said: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&said["damaged"], said["entries"].as_u64()), (&json!(1), done["entries"].as_u64().map(|all| all - 1)));
    other.run(&["cache", "import", "/nowhere/at/all"]).failed_with(&["/nowhere/at/all"]);
    let typo = folder.path().join("carried-ovr");
    let url = format!("file://{}", typo.display());
    for dry_run in [&["--dry-run"][..], &[]] {
        let ran = other.run(&[&["cache", "import", &url], dry_run].concat());
        ran.failed_with(&["carried-ovr", "check the path"]);
        assert!(!typo.exists(), "an import makes no folder");
    }
    other.run(&["cache", "import", place, "--tier", "disk"]).failed_with(&["tier and age"]);
    other.run(&["cache", "export", "ftp://somewhere"]).failed_with(&["s3://"]);
    for verb in ["export", "import"] {
        other.run(&["cache", verb, "memory://somewhere"]).failed_with(&["memory://", "gone", "file:///folder"]);
    }
}

/// Changes the last byte, which is of a frame, of one object below a folder.
fn flip_an_object(folder: &std::path::Path) {
    let inside = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    if inside.is_dir() {
        return flip_an_object(&inside);
    }
    let mut bytes = std::fs::read(&inside).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&inside, bytes).unwrap();
}
