//! Metadata and filters through HTTP and the command line; the same text under two titles.

use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const DOCUMENTS: &str = "/v1/collections/c/documents";
const SEARCH: &str = "/v1/collections/c/search";
const LETTER: &str = "The garden behind the mill grows blue poppies, and the miller waters them at night.";

fn one(kind: &str, key: &str, value: impl Into<Value>) -> Value {
    json!({ "type": kind, "key": key, "value": value.into() })
}

async fn add(service: &Service) {
    let metadata = json!({ "lang": "en", "year": 2021, "date": "2021-05-04", "tags": ["garden", "mill"] });
    let documents = json!([
        { "id": "letter", "title": "Garden letter", "text": LETTER, "metadata": metadata },
        { "id": "copy", "title": "Copied letter", "text": LETTER, "metadata": { "lang": "en", "year": "2023" } },
        { "id": "brief", "title": "Gartenbrief", "text": "Der Garten hinter der Mühle: blauer Mohn.", "metadata": { "lang": "de" } },
        { "id": "boats", "title": "Harbour report", "text": "Nine boats lay in the harbour this week.", "metadata": { "o'k": "\"; --" } },
    ]);
    service.ask(DOCUMENTS, &json!({ "documents": documents })).await;
}

async fn found(service: &Service, filter: Value, mode: &str) -> Vec<String> {
    let asked = json!({ "query": "garden behind the mill", "mode": mode, "top_k": 9, "filter": filter });
    let found = service.ask(SEARCH, &asked).await;
    let hits = found["data"].as_array().unwrap().iter();
    let mut ids: Vec<String> = hits.map(|hit| hit["passage"]["document_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn filters_choose_what_is_searched_and_answered_from() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    add(&service).await;
    for (filter, ids) in [
        (one("eq", "lang", "de"), &["brief"][..]),
        (one("gte", "year", 2022), &["copy"]),
        (one("lt", "date", "2022"), &["letter"]),
        (one("eq", "tags", "mill"), &["letter"]),
        (one("eq", "o'k", "\"; --"), &["boats"]),
        (one("eq", "lang", "' OR '1'='1"), &[]),
        (json!({ "type": "and", "filters": [one("eq", "lang", "en"), one("in", "year", json!([2021]))] }), &["letter"]),
        (json!({ "type": "not", "filter": { "type": "exists", "key": "lang" } }), &["boats"]),
    ] {
        assert_eq!(found(&service, filter.clone(), "vector").await, ids, "{filter}");
        assert_eq!(found(&service, filter.clone(), "fused").await, ids, "{filter}");
    }
    // The text counts once, under the title that answers best, and the other is named.
    let hits = service.ask(SEARCH, &json!({ "query": "garden letter", "top_k": 2 })).await;
    let hit = &hits["data"][0];
    assert_eq!((&hit["passage"]["document_id"], &hit["also_in"][0]["document_id"]), (&json!("letter"), &json!("copy")));
    assert_eq!(hit["also_in"][0]["title"], "Copied letter");
    assert_ne!(hits["data"][1]["passage"]["text"], hit["passage"]["text"], "{hits}");

    let ask = async |filter: Value| {
        let body = json!({
            "messages": [{ "role": "user", "content": "What grows behind the mill?" }], "temperature": 0, "max_tokens": 4,
            "ragstone": { "collection": "c", "filter": filter },
        });
        service.ask(CHAT, &body).await
    };
    let cited = |answer: &Value| -> Vec<String> {
        let citations = answer["ragstone"]["citations"].as_array().unwrap().iter();
        citations.map(|citation| citation["document_id"].as_str().unwrap().to_owned()).collect()
    };
    let answer = ask(one("eq", "lang", "en")).await;
    let also = &answer["ragstone"]["citations"][0]["also_in"][0]["document_id"];
    let mut both = [cited(&answer), vec![also.as_str().unwrap().to_owned()]].concat();
    both.sort();
    assert_eq!((cited(&answer).len(), both), (1, vec!["copy".to_owned(), "letter".to_owned()]), "{answer}");
    assert_eq!(cited(&ask(one("gt", "year", "2022")).await), ["copy"]);
    let asked =
        ["ask", "What grows?", "--collection", "c", "--max-tokens", "2", "--json", "--filter", "lang!=de", "--filter"];
    let by_command = |last: &str| folder.json(&[&asked[..], &[last]].concat());
    assert_eq!(by_command("tags^=gar")["citations"][0]["document_id"], "letter");
    assert_eq!(by_command(&one("eq", "year", 2023).to_string())["citations"][0]["document_id"], "copy");
    let nothing = ["ask", "What grows?", "--collection", "c", "--max-tokens", "2", "--filter", "lang=xx"];
    let ran = folder.run(&nothing).succeeded();
    assert!(ran.stdout.contains("Nothing of `c` stood in the prompt"), "{ran:?}");
    let said = folder.run(&[&nothing[..], &["--on-nothing-found", "say"]].concat()).succeeded();
    assert!(said.stdout.contains("The documents do not say anything about this."), "{said:?}");
    let own = folder.run(&[&nothing[..], &["--on-nothing-found", "answer"]].concat()).succeeded();
    assert!(own.stdout.contains("without your documents"), "{own:?}");
    let wrong = folder.run(&["ask", "?", "--filter", "{\"type\":\"like\"}"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("must be one of eq"), "{wrong:?}");

    // New metadata for the same text: it is found by that at once, and its KV stays.
    let before = ask(one("eq", "lang", "de")).await;
    let text = "Der Garten hinter der Mühle: blauer Mohn.";
    let changed = json!({ "id": "brief", "title": "Gartenbrief", "text": text, "metadata": { "lang": "de-CH" } });
    let report = service.ask(DOCUMENTS, &json!({ "documents": [changed] })).await;
    assert_eq!((&report["documents_replaced"], &report["entries_removed"]), (&json!(1), &json!(0)), "{report}");
    let after = ask(one("prefix", "lang", "de-")).await;
    assert_eq!(cited(&after), ["brief"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached(&after) > cached(&before), "{after}");
    let listed = service.get(DOCUMENTS).await.1;
    let listed = listed["data"].as_array().unwrap().iter().find(|document| document["id"] == "brief").unwrap().clone();
    assert_eq!(listed["metadata"], json!({ "lang": "de-CH" }));
}

#[tokio::test]
async fn hostile_filters_are_refused_with_their_place() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    add(&service).await;
    let deep = (0..100).fold(one("eq", "lang", "en"), |inner, _| json!({ "type": "not", "filter": inner }));
    let wide = json!({ "type": "or", "filters": vec![one("eq", "lang", "en"); 10_000] });
    let many = one("in", "lang", json!(vec!["x"; 100_000]));
    for (filter, words) in [
        (deep, "too deep"),
        (wide, "at most 64 conditions"),
        (many, "too many values"),
        (json!("lang = 'en'"), "must be an object"),
        (json!({ "type": "eq", "key": "lang", "value": "en", "sql": "1=1" }), "does not know"),
        (json!({ "type": "like", "key": "lang", "value": "%" }), "must be one of eq"),
        (
            json!({ "type": "and", "filters": [{ "type": "eq", "key": "lang" }] }),
            "`filter.filters[0].value` is missing",
        ),
        (one("eq", "", "x"), "`filter.key`"),
        (one("eq", "lang", json!({ "a": 1 })), "`filter.value`"),
    ] {
        let (status, error) = service.post(SEARCH, &json!({ "query": "garden", "filter": filter })).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("filter")), "{error}");
        assert!(error_message(&error).contains(words), "{error}");
        let body = json!({
            "messages": [{ "role": "user", "content": "?" }], "ragstone": { "collection": "c", "filter": filter },
        });
        let (status, error) = service.post(CHAT, &body).await;
        assert_eq!(status, 400, "{error}");
        assert!(error_message(&error).contains(words), "{error}");
    }
    let bomb = format!("{{\"query\":\"x\",\"filter\":{}", r#"{"type":"not","filter":"#.repeat(200_000));
    assert_eq!(service.post_bytes(SEARCH, bomb.as_bytes()).await.0, 400);
    let body = json!({ "messages": [{ "role": "user", "content": "?" }], "ragstone": { "filter": one("eq", "a", 1) } });
    let (status, error) = service.post(CHAT, &body).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("ragstone.filter")));
    let huge = json!({ "documents": [{ "id": "x", "text": "t", "metadata": { "k": "x".repeat(70_000) } }] });
    let (status, error) = service.post(DOCUMENTS, &huge).await;
    assert!(status == 400 && error_message(&error).contains("metadata"), "{error}");
    // Everything is as it was.
    assert_eq!(found(&service, one("eq", "lang", "de"), "fused").await, ["brief"]);
}
