//! The HTTP surface: OpenAI's shapes, streaming and not, and collections.

use serde_json::{Value, json};

use crate::harness::{Folder, Service, WORLD, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn question(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 12 })
}

fn over(collection: &str, text: &str) -> Value {
    let mut question = question(text);
    question["ragstone"] = json!({ "collection": collection, "top_k": 3 });
    question
}

#[tokio::test]
async fn chat_over_a_collection() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    service.add("world", WORLD).await;
    let answer = service.ask(CHAT, &over("world", "What does Calbet Works make?")).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "ragstone-demo");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let text = choice["message"]["content"].as_str().unwrap();
    let citations = answer["ragstone"]["citations"].as_array().unwrap();
    assert_eq!(citations.len(), 3);
    assert_eq!(citations[0]["title"], "Calbet Works");
    let usage = &answer["usage"];
    assert_eq!(account(&answer["ragstone"]["report"]), usage["prompt_tokens"].as_u64().unwrap());

    // The stream says the same in pieces.
    let mut streamed = over("world", "What does Calbet Works make?");
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({ "include_usage": true });
    let events = service.stream(CHAT, &streamed).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces, text);
    let [.., ending, counts] = &chunks[..] else { panic!("too few chunks") };
    assert_eq!(ending["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert_eq!(ending["ragstone"]["citations"], answer["ragstone"]["citations"]);
    assert_eq!(counts["choices"], json!([]));
    assert_eq!(counts["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert_eq!(service.stop(), 0);
}

/// The four counts of a report.
fn account(report: &Value) -> u64 {
    ["exact", "blended", "recomputed", "computed"].iter().map(|kind| report["tokens"][kind].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn documents_in_the_request_and_plain_chat() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let mut asked = question("What is blue?");
    asked["ragstone"] = json!({ "documents": [{ "title": "A", "text": "The lantern is blue." }, { "text": "B." }] });
    let answer = service.ask(CHAT, &asked).await;
    assert_eq!(answer["ragstone"]["citations"].as_array().unwrap().len(), 2);
    let plain = service.ask(CHAT, &question("Hello")).await;
    assert_eq!(plain["ragstone"]["citations"], json!([]));
    let parts = json!({ "messages": [
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "Hel" }, { "type": "text", "text": "lo" }] },
    ], "max_completion_tokens": 3, "temperature": 0 });
    let counted = service.ask(CHAT, &parts).await["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((1..=3).contains(&counted), "{counted}");
}

#[tokio::test]
async fn completions_of_text_and_token_ids() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let ask = async |prompt: Value| {
        service.ask(TEXT, &json!({ "prompt": prompt, "temperature": 0, "max_tokens": 6, "logprobs": 2 })).await
    };
    let answer = ask(json!([5, 6, 7, 8])).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    assert_eq!(answer["choices"], ask(json!([[5, 6, 7, 8]])).await["choices"]);
    let logprobs = &answer["choices"][0]["logprobs"];
    let count = answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), count);
    assert!(logprobs["token_logprobs"].as_array().unwrap().iter().all(|value| value.as_f64().unwrap() <= 0.0));
    assert_eq!(logprobs["top_logprobs"].as_array().unwrap().len(), count);
    let text = ask(json!("The director of")).await;
    assert_eq!(text["choices"], ask(json!(["The director of"])).await["choices"]);

    // Chosen by chance, and by the same chance again.
    let sampled = json!({ "prompt": "The", "temperature": 1.5, "top_p": 0.9, "seed": 7, "max_tokens": 8 });
    assert_eq!(service.ask(TEXT, &sampled).await["choices"], service.ask(TEXT, &sampled).await["choices"]);

    // A stop string ends the answer and is not part of it.
    let whole = answer["choices"][0]["text"].as_str().unwrap();
    let stop: String = whole.trim_start().chars().skip(2).take(2).collect();
    let body = json!({ "prompt": [5, 6, 7, 8], "temperature": 0, "max_tokens": 6, "stop": [stop] });
    let stopped = service.ask(TEXT, &body).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
}

#[tokio::test]
async fn several_choices_have_one_prompt() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter().enumerate();
        choices
            .inspect(|(index, choice)| assert_eq!(choice["index"], *index))
            .map(|(_, it)| it["text"].to_string())
            .collect()
    };
    let body = json!({ "prompt": "The", "n": 4, "best_of": 4, "temperature": 0, "max_tokens": 6, "ignore_eos": true });
    let greedy = service.ask(TEXT, &body).await;
    assert_eq!((texts(&greedy).len(), texts(&greedy).iter().all(|text| *text == texts(&greedy)[0])), (4, true));
    let one =
        service.ask(TEXT, &json!({ "prompt": "The", "temperature": 0, "max_tokens": 6, "ignore_eos": true })).await;
    assert_eq!(texts(&one)[0], texts(&greedy)[0]);
    let (prompt, completion) = (&greedy["usage"]["prompt_tokens"], &greedy["usage"]["completion_tokens"]);
    assert_eq!((prompt, completion), (&one["usage"]["prompt_tokens"], &json!(24)));

    // The likeliest of all that were generated, which are all paid for.
    let all = json!({ "prompt": "The", "n": 5, "temperature": 1.5, "seed": 7, "max_tokens": 8, "ignore_eos": true,
        "logprobs": 0 });
    let mut best = all.clone();
    (best["n"], best["best_of"]) = (json!(2), json!(5));
    let mean = |choice: &Value| -> f64 {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let all = service.ask(TEXT, &all).await;
    let mut means: Vec<f64> = all["choices"].as_array().unwrap().iter().map(mean).collect();
    means.sort_by(|a, b| b.total_cmp(a));
    let best = service.ask(TEXT, &best).await;
    assert_eq!(best["choices"].as_array().unwrap().iter().map(mean).collect::<Vec<_>>(), means[..2]);
    assert_eq!(best["usage"], all["usage"]);
    let chat = service.post(CHAT, &json!({ "messages": question("Hello")["messages"], "best_of": 2 })).await;
    assert_eq!((chat.0, &chat.1["error"]["param"]), (400, &json!("best_of")));

    // Drafts change when tokens come, never which.
    let long = |most: Value| {
        json!({ "prompt": "The lamp is red. The lamp is red. The", "temperature": 0, "max_tokens": 48, "ignore_eos": true,
            "speculative.n_max": most })
    };
    let (with, without) = (service.ask(TEXT, &long(json!(7))).await, service.ask(TEXT, &long(json!(0))).await);
    assert_eq!(texts(&with), texts(&without));
    assert!(with["ragstone"]["report"]["drafts"]["drafted"].as_u64() > Some(0), "{with}");
    assert_eq!(without["ragstone"]["report"]["drafts"], Value::Null);
    let wrong = service.post(TEXT, &long(json!(-1))).await;
    assert_eq!((wrong.0, &wrong.1["error"]["param"]), (400, &json!("speculative.n_max")));

    // By chance they differ; the first is that of the seed alone.
    let chance = |n: usize| json!({ "prompt": "The", "n": n, "temperature": 1.5, "seed": 7, "max_tokens": 12 });
    let several = texts(&service.ask(TEXT, &chance(3)).await);
    assert!(several[0] != several[1] && several[1] != several[2], "{several:?}");
    assert_eq!(several[0], texts(&service.ask(TEXT, &chance(1)).await)[0]);

    let mut streamed = question("Hello");
    (streamed["n"], streamed["stream"]) = (json!(3), json!(true));
    streamed["stream_options"] = json!({ "include_usage": true });
    let events = service.stream(CHAT, &streamed).await;
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for index in 0..3 {
        let of = |key: &str| {
            let chunks = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
            chunks.filter(|choice| !choice[key].is_null()).count()
        };
        assert_eq!(of("finish_reason"), 1);
        assert!(of("delta") > 2);
    }
    let counts = &chunks.last().unwrap()["usage"];
    assert_eq!(counts["completion_tokens"].as_u64().unwrap() % 3, 0, "greedy: three alike");
    assert_eq!(service.stop(), 0);
}

/// The second turn finds the first, and the answer that it was given.
#[tokio::test]
async fn the_next_turn_of_a_conversation_computes_its_new_tokens() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let long = "Nine boats lay in the harbour of Tarn; three of them carried salt. ".repeat(30);
    let mut body = json!({ "messages": [{ "role": "user", "content": long }], "temperature": 0, "max_tokens": 200, "ignore_eos": true });
    let first = service.ask(CHAT, &body).await;
    let said = first["choices"][0]["message"]["content"].as_str().unwrap();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": said }));
    messages.push(json!({ "role": "user", "content": "And salt?" }));
    let second = service.ask(CHAT, &body).await;
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(prompt(&first) > 500, "{}", prompt(&first));
    // All of the first turn's tokens but those that do not fill 64.
    assert!(cached + 64 > prompt(&first), "{cached} of {} after {}", prompt(&second), prompt(&first));
    assert_eq!(service.stop(), 0);
}

#[tokio::test]
async fn chat_logprobs() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let mut body = question("Hello");
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(3));
    let answer = service.ask(CHAT, &body).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the likeliest");
    }
    body["logprobs"] = json!(false);
    let (status, error) = service.post(CHAT, &body).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("top_logprobs")));
}

#[tokio::test]
async fn embeddings_models_and_operations() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let embedded = service.ask("/v1/embeddings", &json!({ "input": ["a lantern", "a lute"] })).await;
    let vector = embedded["data"][1]["embedding"].as_array().unwrap();
    let norm: f64 = vector.iter().map(|number| number.as_f64().unwrap().powi(2)).sum();
    assert!((norm - 1.0).abs() < 1e-4, "{norm}");
    let encoded = service.ask("/v1/embeddings", &json!({ "input": "a lute", "encoding_format": "base64" })).await;
    assert_eq!(encoded["data"][0]["embedding"].as_str().unwrap().len(), vector.len() * 16 / 3);
    for (body, param) in [
        (json!({ "input": [] }), "input"),
        (json!({ "input": [""] }), "input"),
        (json!({ "input": [1, 2] }), "input"),
        (json!({ "input": "a", "dimensions": 7 }), "dimensions"),
        (json!({}), "input"),
    ] {
        let (status, error) = service.post("/v1/embeddings", &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{body}");
    }

    let (_, models) = service.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "ragstone-demo");
    assert_eq!(service.get("/v1/models/ragstone-demo").await.1["object"], "model");
    assert_eq!(service.get("/v1/models/gpt").await.1["error"]["code"], "model_not_found");
    assert_eq!(service.get("/healthz").await, (200, json!({ "status": "ok", "pid": service.pid() })));
    assert_eq!(service.get("/v1/cache/status").await.1["store"]["host"]["entries"], 0);
    let metrics = reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    for name in ["ragstone_requests_total", "ragstone_tier_bytes{tier=\"disk\"}", "ragstone_device_blocks", "# HELP"] {
        assert!(metrics.contains(name), "no {name} in {metrics}");
    }
}

#[tokio::test]
async fn documents_come_and_go() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let path = "/v1/collections/things/documents";
    let documents = json!({ "documents": [
        { "id": "a/b c", "title": "Lamp", "text": "A lamp of glass.", "metadata": { "year": 3 } },
        { "id": "plain", "text": "A stone." },
    ] });
    let report = service.ask(path, &documents).await;
    assert_eq!((&report["documents_added"], &report["passages_added"]), (&json!(2), &json!(2)));
    assert_eq!(service.ask(path, &documents).await["documents_unchanged"], 2);
    let (_, page) = service.get(&format!("{path}?limit=1")).await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (1, &json!(true)));
    let (_, document) = service.get(&format!("{path}/a%2Fb%20c")).await;
    assert_eq!((&document["title"], &document["metadata"]["year"]), (&json!("Lamp"), &json!(3)));
    let found = service.ask("/v1/collections/things/search", &json!({ "query": "glass lamp", "top_k": 1 })).await;
    assert_eq!(found["data"][0]["passage"]["document_id"], "a/b c");
    assert_eq!(delete(&folder, &service, &format!("{path}/a%2Fb%20c")).await.0, 200);
    let (status, error) = delete(&folder, &service, &format!("{path}/a%2Fb%20c")).await;
    assert_eq!(status, 404);
    assert!(error_message(&error).contains("a/b c"));
    assert_eq!(service.get("/v1/collections").await.1["data"][0]["documents"], 1);
    assert_eq!(delete(&folder, &service, "/v1/collections/things").await.0, 200);
    assert_eq!(service.get("/v1/collections").await.1["data"], json!([]));
}

async fn delete(folder: &Folder, service: &Service, path: &str) -> (u16, Value) {
    let request = reqwest::Client::new().delete(service.url(path)).header("x-ragstone-token", folder.token());
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}
