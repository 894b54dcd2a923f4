//! Answers of a form, through the whole engine: with drafts and without, in groups, preempted, and behind rounds of search.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 10 },
            "count": { "type": "integer", "minimum": -3, "maximum": 40 },
            "tags": { "type": "array", "items": { "enum": ["red", "blue"] }, "maxItems": 3 },
        },
        "required": ["name", "count", "tags"],
        "additionalProperties": false,
    })
}

/// Whether a text is JSON that fits [`schema`].
fn fits(text: &str) -> bool {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return false };
    let tags = object.get("tags").and_then(Value::as_array);
    object.len() == 3
        && object.get("name").and_then(Value::as_str).is_some_and(|name| name.chars().count() <= 10)
        && object.get("count").and_then(Value::as_i64).is_some_and(|count| (-3..=40).contains(&count))
        && tags.is_some_and(|tags| tags.len() <= 3 && tags.iter().all(|tag| tag == "red" || tag == "blue"))
}

fn asked(seed: u64, drafts: u64) -> Value {
    let form = json!({ "type": "json_schema", "json_schema": { "name": "thing", "schema": schema() } });
    json!({
        "messages": [{ "role": "user", "content": format!("{seed}: {{\"name\": \"Tarn\", \"count\": 12, \"tags\": [\"red\", \"blue\"]}}") }],
        "response_format": form, "temperature": 1.0, "seed": seed, "n": 2, "max_tokens": 120, "speculative.n_max": drafts,
    })
}

/// Each choice's text, and why it ended.
fn said(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let choices = answer["choices"].as_array().unwrap().iter();
    choices.map(|choice| (text(&choice["message"]["content"]), text(&choice["finish_reason"]))).collect()
}

async fn preemptions(service: &Service) -> u64 {
    service.get("/v1/cache/status").await.1["device"]["preemptions"].as_u64().unwrap()
}

#[tokio::test]
async fn a_form_is_kept_and_the_answer_is_the_same_with_drafts_without_alone_and_preempted() {
    let folder = Folder::new();
    // Room for about three of the eight groups.
    let service = folder.serve(&["--set", "device_bytes=1000000"]).await;
    let seeds: Vec<u64> = (0..8).collect();
    let mut alone = Vec::new();
    for seed in &seeds {
        alone.push(said(&service.ask(CHAT, &asked(*seed, 0)).await));
    }
    assert_eq!(preemptions(&service).await, 0);
    let ended: Vec<&String> = alone.iter().flatten().filter(|(_, why)| why == "stop").map(|(text, _)| text).collect();
    assert!(ended.len() > 4, "{alone:?}");
    for text in ended {
        assert!(fits(text), "{text}");
    }
    let bodies: Vec<Value> = seeds.iter().map(|seed| asked(*seed, 7)).collect();
    let together = join_all(bodies.iter().map(|body| service.ask(CHAT, body))).await;
    for (seed, (answer, expected)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(&said(answer), expected, "seed {seed}");
    }
    assert!(preemptions(&service).await > 0);
    let drafted = together.iter().filter_map(|answer| answer["ragstone"]["report"]["drafts"]["drafted"].as_u64());
    assert!(drafted.sum::<u64>() > 0, "nothing was drafted");
}

#[tokio::test]
async fn a_round_is_in_words_and_the_last_answer_has_the_form() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let pages = [
        ("Bornix Brewery", "Bornix Brewery makes glue. The chair of Bornix Brewery is Jomi Jorrud."),
        ("Jomi Jorrud", "Jomi Jorrud plays harp. Jomi Jorrud keeps 12 doves."),
    ];
    service.add("world", &pages).await;
    let body = json!({
        "messages": [{ "role": "user", "content": "Who is the chair of Bornix Brewery?" }],
        "temperature": 0, "max_tokens": 40, "structured_outputs": { "regex": "<[A-Za-z ]{3,20}>" },
        "ragstone": { "collection": "world", "top_k": 1, "rounds": 2, "round_tokens": 8 },
    });
    let answer = service.ask(CHAT, &body).await;
    assert_eq!(answer["ragstone"]["report"]["rounds"][1]["query"], "Jomi Jorrud", "{answer}");
    let (text, why) = &said(&answer)[0];
    assert!(text.starts_with('<') && text.ends_with('>') && why == "stop", "{answer}");
}
