//! Reranking through HTTP and the command line: by the language model, and by a cross-encoder.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const RERANK: &str = "/v1/rerank";
const QUERY: &str = "Who is the chair of Callux Motors?";
const PAGES: &[(&str, &str)] = &[
    ("Bornix Brewery", "Bornix Brewery makes glue. The chair of Bornix Brewery is Jomi Jorrud."),
    ("Callux Motors", "Callux Motors makes lamps. The chair of Callux Motors is Gavin Wesden."),
    ("Gavin Wesden", "Gavin Wesden plays harp. Gavin Wesden keeps 12 doves."),
    ("Calnix Bakery", "Calnix Bakery makes boats."),
];

fn bert() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/tests/fixtures/cross_encoder/bert");
    folder.to_str().unwrap().to_owned()
}

fn documents() -> Value {
    PAGES.iter().map(|(title, text)| json!({ "title": title, "text": text })).collect()
}

fn indices(answer: &Value) -> Vec<u64> {
    answer["results"].as_array().unwrap().iter().map(|result| result["index"].as_u64().unwrap()).collect()
}

fn scores(answer: &Value) -> Vec<f64> {
    answer["results"].as_array().unwrap().iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect()
}

/// What both kinds do alike; the order that they gave.
async fn check(service: &Service, model: &str, cached: bool) -> Vec<u64> {
    let asked = json!({ "query": QUERY, "documents": documents() });
    let first = service.ask(RERANK, &asked).await;
    let order = indices(&first);
    assert_eq!((first["model"].as_str(), order.len()), (Some(model), PAGES.len()));
    let scored = scores(&first);
    assert!(scored.is_sorted_by(|a, b| a >= b) && scored.iter().all(|score| (0.0..=1.0).contains(score)), "{first}");
    assert_eq!(first["results"][0]["document"], documents()[order[0] as usize]);
    assert!(first["usage"]["total_tokens"].as_u64() > Some(40), "{first}");
    let again = service
        .ask("/v2/rerank", &json!({ "query": QUERY, "documents": documents(), "top_n": 2, "model": model }))
        .await;
    assert_eq!(indices(&again), order[..2]);
    let reused = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(reused > 60, cached, "{again}");
    let bare =
        json!({ "query": QUERY, "documents": ["Tarn.", "Nine boats."], "return_documents": false, "truncate": true });
    let bare = service.ask(RERANK, &bare).await;
    assert!(bare["results"][0].get("document").is_none() && indices(&bare).len() == 2, "{bare}");

    // A search's and a question's candidates stand in the same order.
    let found = service.ask("/v1/collections/world/search", &json!({ "query": QUERY, "top_k": 3, "rerank": 4 })).await;
    let titles = |list: &Value, at: &str| -> Vec<String> {
        let title = |it: &Value| it.pointer(at).and_then(Value::as_str).unwrap_or_else(|| panic!("{it}")).to_owned();
        list.as_array().unwrap().iter().map(title).collect()
    };
    let expected: Vec<_> = order.iter().map(|index| PAGES[*index as usize].0).collect();
    assert_eq!(titles(&found["data"], "/passage/title"), expected[..3], "{found}");
    let chat = json!({
        "messages": [{ "role": "user", "content": QUERY }], "temperature": 0, "max_tokens": 4,
        "ragstone": { "collection": "world", "top_k": 2, "rerank": 4 },
    });
    let answer = service.ask(CHAT, &chat).await;
    assert_eq!(titles(&answer["ragstone"]["citations"], "/title"), expected[..2]);
    let report = &answer["ragstone"]["report"];
    assert_eq!((report["rerank"]["candidates"].as_u64(), report["speculation"].is_null()), (Some(4), true));
    assert!(report["ttft"]["rerank_ms"].as_f64() > Some(0.0), "{report}");
    order
}

async fn refuse(service: &Service) {
    let one = json!(["a"]);
    for (body, status, param, words) in [
        (json!({ "documents": one }), 400, "query", "missing"),
        (json!({ "query": QUERY }), 400, "documents", "missing"),
        (json!({ "query": "", "documents": one }), 400, "query", "empty"),
        (json!({ "query": QUERY, "documents": [] }), 400, "documents", "holds 0"),
        (json!({ "query": QUERY, "documents": ["a", ""] }), 400, "documents", "document 1"),
        (json!({ "query": QUERY, "documents": [{ "image": "a" }] }), 400, "documents", "list of texts"),
        (json!({ "query": QUERY, "documents": one, "top_n": 0 }), 400, "top_n", "at least 1"),
        (json!({ "query": QUERY, "documents": one, "model": "gpt-4" }), 404, "model", "does not rerank"),
        (json!({ "query": QUERY, "documents": one, "ragstone": { "tenant": " a" } }), 400, "", "tenant"),
        (
            json!({ "query": QUERY, "documents": one, "ragstone": { "deadline_s": 0 } }),
            400,
            "ragstone.deadline_s",
            "at least 1",
        ),
    ] {
        let (found, error) = service.post(RERANK, &body).await;
        assert_eq!(found, status, "{body}: {error}");
        assert!(error_message(&error).contains(words), "{body}: {error}");
        assert!(param.is_empty() || error["error"]["param"] == param, "{body}: {error}");
    }
    let chat = |extension: Value| json!({ "messages": [{ "role": "user", "content": "?" }], "ragstone": extension });
    for extension in [json!({ "collection": "world", "rerank": 201 }), json!({ "rerank": 5 })] {
        let (status, error) = service.post(CHAT, &chat(extension)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("ragstone.rerank")));
    }
    for (body, param) in [
        (json!({ "query": QUERY, "rerank": 201 }), "rerank"),
        (json!({ "query": QUERY, "rerank": 1, "top_k": 201 }), "top_k"),
    ] {
        let (status, error) = service.post("/v1/collections/world/search", &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn the_language_model_and_a_cross_encoder_put_passages_in_order() {
    let (folder, bert) = (Folder::new(), bert());
    let service = folder.serve(&[]).await;
    service.add("world", PAGES).await;
    check(&service, "ragstone-demo", true).await;
    refuse(&service).await;
    assert_eq!(service.stop(), 0);

    // As a setting, for every question.
    let service = folder.serve(&["--reranker", &bert, "--set", "rerank=4"]).await;
    let order = check(&service, "bert", false).await;
    let (_, models) = service.get("/v1/models").await;
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"bert"), "{models}");
    let by_model =
        service.ask(RERANK, &json!({ "query": QUERY, "documents": documents(), "model": "ragstone-demo" })).await;
    assert_eq!(by_model["model"], "ragstone-demo");
    let asked = folder.json(&["ask", QUERY, "--collection", "world", "--top-k", "1", "--max-tokens", "2", "--json"]);
    assert_eq!(asked["citations"][0]["title"], PAGES[order[0] as usize].0);
    assert_eq!(asked["report"]["rerank"]["by"], "cross_encoder");
    let told = folder.run(&["ask", QUERY, "--collection", "world", "--rerank", "3", "--max-tokens", "2"]).succeeded();
    assert!(told.stdout.contains("rerank       ") && told.stdout.contains("by the cross-encoder"), "{}", told.stdout);
    let plain = folder.json(&["ask", QUERY, "--collection", "world", "--rerank", "0", "--max-tokens", "2", "--json"]);
    assert!(plain["report"].get("rerank").is_none(), "{plain}");
}

#[tokio::test]
async fn what_is_no_cross_encoder_stops_the_start_with_what_to_do() {
    let folder = Folder::new();
    let embedder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/tests/fixtures/embedding/tiny");
    for (reranker, words) in [
        (embedder.to_str().unwrap(), &["labels", "ms-marco-MiniLM"][..]),
        ("/nowhere", &["no cross-encoder in /nowhere"]),
    ] {
        folder.run(&["--reranker", reranker, "serve", "--listen", "127.0.0.1:0"]).failed_with(words);
    }
}
