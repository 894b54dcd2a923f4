//! Documents that are invalidated, deleted or changed: nothing of them can be found, cited or loaded afterwards.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cache::{cache, cited, document, list, settle};
use crate::harness::{Folder, Service, WORLD};

const QUESTION: &str = "What does Calbet Works make?";

/// The entries of a document, and what they are known by.
struct Traces {
    segments: BTreeSet<String>,
    keys: BTreeSet<String>,
}

fn text(entry: &Value, name: &str) -> String {
    entry[name].as_str().unwrap_or_default().to_owned()
}

impl Traces {
    fn of(folder: &Folder, id: &str) -> Self {
        let entries = list(folder, &["--document", id]);
        assert!(!entries.is_empty(), "nothing was kept of {id}");
        Self {
            segments: entries.iter().map(|entry| text(entry, "segment")).collect(),
            keys: entries.iter().map(|entry| text(entry, "key")).collect(),
        }
    }

    /// Entries of the document, or computed right behind it, that are anywhere.
    fn left(&self, folder: &Folder) -> Vec<Value> {
        let mut all = list(folder, &[]);
        all.retain(|entry| {
            self.segments.contains(&text(entry, "segment")) || self.keys.contains(&text(entry, "parent"))
        });
        all
    }
}

async fn found(service: &Service, collection: &str, query: &str) -> Vec<String> {
    let body = json!({ "query": query, "top_k": 10 });
    let hits = service.ask(&format!("/v1/collections/{collection}/search"), &body).await;
    hits["data"].as_array().unwrap().iter().map(|hit| text(&hit["passage"], "title")).collect()
}

async fn upsert(service: &Service, collection: &str, id: &str, words: &str) -> Value {
    let documents = json!({ "documents": [{ "id": id, "title": id, "text": words }] });
    service.ask(&format!("/v1/collections/{collection}/documents"), &documents).await
}

#[tokio::test]
async fn an_invalidated_document_is_nowhere_any_more() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let title = WORLD[0].0;
    assert!(cited(&service, "world", QUESTION, "").await.contains(title));
    cited(&service, "world", QUESTION, "guest").await;
    settle(&service).await;
    let id = document(&service, "world", title).await;
    let traces = Traces::of(&folder, &id);
    let all = list(&folder, &[]).len();

    let invalidate = ["invalidate", "--collection", "world", "--document", &id];
    let said = cache(&folder, &[&invalidate[..], &["--dry-run"]].concat());
    assert_eq!((&said["passages_removed"], &said["dry_run"]), (&json!(1), &json!(true)));
    assert!(said["entries_removed"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(list(&folder, &[]).len(), all, "a dry run changes nothing");
    assert!(cited(&service, "world", QUESTION, "").await.contains(title));

    assert!(said["copies_removed"].as_u64().unwrap() >= 2 * said["entries_removed"].as_u64().unwrap(), "{said}");
    let before = list(&folder, &[]);
    let done = cache(&folder, &invalidate);
    assert_eq!(done["passages_removed"], 1);
    let after = list(&folder, &[]);
    assert_eq!(done["entries_removed"], before.len() - after.len(), "each once: {done}");
    assert!(done["copies_removed"].as_u64().unwrap() >= 2 * (before.len() - after.len()) as u64, "{done}");
    assert_eq!(done["entries_removed"], said["entries_removed"], "as the dry run said, what stood behind included");
    assert_eq!(traces.left(&folder), [json!(null); 0]);
    nowhere(&folder, &service, &traces, title).await;
    assert_eq!(service.stop(), 0);
    let service = folder.serve(&[]).await;
    nowhere(&folder, &service, &traces, title).await;
}

async fn nowhere(folder: &Folder, service: &Service, traces: &Traces, title: &str) {
    assert!(!found(service, "world", QUESTION).await.contains(&title.to_owned()));
    for tenant in ["", "guest"] {
        assert!(!cited(service, "world", QUESTION, tenant).await.contains(title));
    }
    settle(service).await;
    assert_eq!(traces.left(folder), [json!(null); 0]);
}

#[tokio::test]
async fn a_question_that_was_in_flight_leaves_nothing_behind() {
    in_flight("boats").await;
}

/// Then a removal goes tenant by tenant, and the one who asks has no KV yet that would name him.
#[tokio::test]
async fn nor_does_one_where_tenants_are_kept_apart() {
    in_flight("acme/boats").await;
}

async fn in_flight(collection: &str) {
    let at = collection.replace('/', "%2F");
    let folder = Folder::new();
    let service = folder.serve(&["--set", "top_k=12"]).await;
    // Long enough that its prefill takes a while.
    let texts: Vec<(String, String)> = (0..12)
        .map(|number| {
            (format!("Report {number}"), format!("Boat {number} carries salt and copper to Tarn. ").repeat(14))
        })
        .collect();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(title, text)| (title.as_str(), text.as_str())).collect();
    service.add(&at, &texts).await;
    let id = document(&service, &at, "Report 3").await;
    let asked = json!({
        "messages": [{ "role": "user", "content": "What does boat 3 carry?" }], "temperature": 0, "max_tokens": 2,
        "ragstone": { "collection": collection, "top_k": 12 },
    });
    let request = service.ask("/v1/chat/completions", &asked);
    let removal = async {
        // It has found its passages and computes their KV.
        while service.get("/v1/cache/status").await.1["workers"][2]["in_flight"] == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let path = format!("/v1/collections/{at}/documents/{id}");
        reqwest::Client::new()
            .delete(service.url(&path))
            .header("x-ragstone-token", folder.token())
            .send()
            .await
            .unwrap()
            .status()
    };
    let (answer, removed) = futures::join!(request, removal);
    assert_eq!(removed, 200);
    let titles: Vec<String> =
        answer["ragstone"]["citations"].as_array().unwrap().iter().map(|citation| text(citation, "title")).collect();
    assert!(titles.contains(&"Report 3".to_owned()), "it was in flight: {titles:?}");
    settle(&service).await;
    // Its segment is that of the same text, added again.
    let (title, words) = texts[3];
    service.add("again", &[(title, words)]).await;
    assert_eq!(list(&folder, &["--collection", "again"]), [json!(null); 0]);
    assert!(!list(&folder, &["--collection", collection]).is_empty(), "the others are kept");
}

/// A bucket that does not answer keeps nothing from leaving this machine; what it holds leaves with the next start.
#[tokio::test]
async fn a_dead_bucket_does_not_keep_a_tenants_kv_here() {
    let (folder, bucket) = (Folder::new(), tempfile::tempdir().unwrap());
    let url = format!("object_url=file://{}", bucket.path().display());
    let settings = ["--set", url.as_str(), "--set", "kv_admission=always"];
    let service = folder.serve(&settings).await;
    service.add("acme%2Fboats", WORLD).await;
    cited(&service, "acme/boats", QUESTION, "acme").await;
    settle(&service).await;
    let id = document(&service, "acme%2Fboats", WORLD[0].0).await;
    let traces = Traces::of(&folder, &id);
    let far = || list(&folder, &["--document", &id, "--tier", "object"]).len();
    assert!(far() > 0, "in the bucket, too");
    assert_eq!(service.stop(), 0);

    let dead = "object.list=error:unavailable;object.delete=error:unavailable;object.get_header=error:unavailable";
    let service = folder.serve_with(&settings, &[("RAGSTONE_FAILPOINTS", dead)]).await;
    let removal = ["cache", "invalidate", "--collection", "acme/boats", "--document", &id];
    folder.run(&removal).failed_with(&[]);
    let here = ["host", "disk"].map(|tier| list(&folder, &["--tier", tier])).concat();
    assert!(!here.is_empty(), "others are kept");
    assert!(!here.iter().any(|entry| traces.segments.contains(&text(entry, "segment"))), "{here:?}");
    assert_eq!(service.stop(), 0);

    let service = folder.serve(&settings).await;
    assert!(!cited(&service, "acme/boats", QUESTION, "acme").await.contains(WORLD[0].0));
    settle(&service).await;
    assert_eq!(traces.left(&folder), [json!(null); 0]);
}

#[tokio::test]
async fn a_passage_that_another_document_has_keeps_its_kv_until_the_last_one_goes() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("one", &WORLD[..2]).await;
    service.add("two", &WORLD[..1]).await;
    cited(&service, "one", QUESTION, "").await;
    settle(&service).await;
    let (first, second) = (document(&service, "one", WORLD[0].0).await, document(&service, "two", WORLD[0].0).await);
    let traces = Traces::of(&folder, &first);
    let before = traces.left(&folder).len();
    let done = cache(&folder, &["invalidate", "--collection", "one", "--document", &first]);
    assert_eq!((&done["passages_removed"], &done["entries_removed"]), (&json!(1), &json!(0)), "{done}");
    assert_eq!(traces.left(&folder).len(), before);
    assert!(!found(&service, "one", QUESTION).await.contains(&WORLD[0].0.to_owned()));
    assert!(found(&service, "two", QUESTION).await.contains(&WORLD[0].0.to_owned()));
    cache(&folder, &["invalidate", "--collection", "two", "--document", &second]);
    assert_eq!(traces.left(&folder), [json!(null); 0]);
}

#[tokio::test]
async fn a_changed_text_takes_along_the_kv_of_what_it_says_no_more() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "chunk_tokens=32"]).await;
    let first = "The lantern of Orvik was made by Elka Dorman out of green glass in the spring of that year. ";
    let old = "Its flame burns copper red in every winter night, and the people of the town come to see it burn. ";
    let new = "Its flame burns silver blue in every summer night, and the people of Tarn come to see it burn. ";
    upsert(&service, "c", "lantern", &format!("{first}{old}")).await;
    assert!(!cited(&service, "c", "What colour is the flame of the lantern?", "").await.is_empty());
    settle(&service).await;
    let before = Traces::of(&folder, "lantern");
    assert!(before.segments.len() >= 2, "several passages");
    // The same again changes nothing.
    assert_eq!(upsert(&service, "c", "lantern", &format!("{first}{old}")).await["entries_removed"], 0);
    let done = upsert(&service, "c", "lantern", &format!("{first}{new}")).await;
    assert_eq!(done["documents_replaced"], 1);
    assert!(done["entries_removed"].as_u64().unwrap() > 0, "{done}");
    // What it still says is kept where it stood before what it says no more; that is gone.
    let kept: BTreeSet<String> = list(&folder, &[]).iter().map(|entry| text(entry, "segment")).collect();
    assert_eq!(before.segments.intersection(&kept).count(), before.segments.len() - 1, "{kept:?}");
    let body = json!({
        "messages": [{ "role": "user", "content": "What colour is the flame?" }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "collection": "c" },
    });
    let citations = service.ask("/v1/chat/completions", &body).await["ragstone"]["citations"].to_string();
    assert!(citations.contains("silver blue") && !citations.contains("copper red"), "{citations}");
}

#[tokio::test]
async fn a_deleted_collection_takes_its_kv_along() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    cited(&service, "world", QUESTION, "").await;
    settle(&service).await;
    assert!(!list(&folder, &["--collection", "world"]).is_empty());
    folder.run(&["cache", "invalidate", "--collection", "world"]).failed_with(&["--yes", "evict"]);
    folder.run(&["cache", "invalidate", "--collection", "nowhere", "--yes"]).failed_with(&["nowhere"]);
    folder.run(&["cache", "invalidate", "--collection", "world", "--document", "nobody"]).failed_with(&["nobody"]);
    folder.run(&["collections", "delete", "world"]).failed_with(&["--yes", "evict"]);
    assert_eq!(folder.json(&["collections", "delete", "world", "--dry-run", "--json"])["dry_run"], true);
    folder.run(&["collections", "delete", "world", "--yes"]).succeeded();
    service.add("again", WORLD).await;
    assert_eq!(list(&folder, &["--collection", "again"]), [json!(null); 0]);
}

/// Killed at each step of a removal: the next start finishes it.
#[tokio::test]
async fn a_killed_removal_is_finished_by_the_next_start() {
    for point in ["removal.journaled", "removal.left_corpus", "removal.left_store"] {
        let folder = Folder::new();
        let service = folder.serve(&[]).await;
        service.add("world", WORLD).await;
        cited(&service, "world", QUESTION, "").await;
        settle(&service).await;
        let id = document(&service, "world", WORLD[0].0).await;
        let traces = Traces::of(&folder, &id);
        assert_eq!(service.stop(), 0);
        let kill = format!("{point}=kill");
        let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", &kill)]).await;
        folder.run(&["cache", "invalidate", "--collection", "world", "--document", &id]).failed_with(&["again"]);
        service.wait();
        let service = folder.serve(&[]).await;
        assert_eq!(traces.left(&folder), [json!(null); 0], "{point}");
        assert!(!cited(&service, "world", QUESTION, "").await.contains(WORLD[0].0), "{point}");
        settle(&service).await;
        assert_eq!(traces.left(&folder), [json!(null); 0], "{point}");
        assert!(!list(&folder, &["--collection", "world"]).is_empty(), "the others are kept");
    }
}

/// Killed at each step of an update: the document has its old text with its KV, or its new text and none of the old KV.
#[tokio::test]
async fn a_killed_update_is_whole_after_the_next_start() {
    for (point, replaced) in [("removal.journaled", false), ("removal.left_corpus", true), ("removal.left_store", true)]
    {
        let folder = Folder::new();
        let service = folder.serve(&[]).await;
        upsert(&service, "c", "lamp", "The lamp of Orvik is made of green glass.").await;
        cited(&service, "c", "What is the lamp made of?", "").await;
        settle(&service).await;
        let traces = Traces::of(&folder, "lamp");
        let before = traces.left(&folder).len();
        assert_eq!(service.stop(), 0);
        let kill = format!("{point}=kill");
        let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", &kill)]).await;
        let changed =
            json!({ "documents": [{ "id": "lamp", "title": "lamp", "text": "The lamp is made of blue glass." }] });
        let request = reqwest::Client::new().post(service.url("/v1/collections/c/documents")).json(&changed).send();
        assert!(request.await.is_err(), "{point}: killed");
        service.wait();
        let service = folder.serve(&[]).await;
        let (_, document) = service.get("/v1/collections/c/documents/lamp").await;
        let now = document["passages"][0]["text"].as_str().unwrap();
        assert_eq!(now.contains("blue"), replaced, "{point}: {document}");
        assert_eq!(traces.left(&folder).len(), if replaced { 0 } else { before }, "{point}");
    }
}
