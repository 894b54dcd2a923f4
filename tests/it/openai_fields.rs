//! OpenAI's endpoints with what other servers' clients send: fields work, or are ignored and named, or are refused because the
//! answer would be another one.

use serde_json::{Map, Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const HEADER: &str = "x-ragstone-ignored";

/// Status, the header, and the body.
async fn post(service: &Service, path: &str, body: &Value) -> (u16, Option<String>, String) {
    let response = reqwest::Client::new().post(service.url(path)).json(body).send().await.unwrap();
    let header = response.headers().get(HEADER).map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), header, response.text().await.unwrap())
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 2, "temperature": 0 })
}

fn text() -> Value {
    json!({ "prompt": [5, 6], "max_tokens": 2, "temperature": 0 })
}

/// What `vllm-router` adds to every body, and what vLLM's, SGLang's and llama.cpp's clients send.
#[tokio::test]
async fn fields_of_other_servers_are_no_errors() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let ignored = json!({
        "no_stop_trim": false, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
        "include_reasoning": true, "reasoning_effort": "low", "cache_prompt": true, "priority": 1,
        "tempratur": 1,
    });
    let known = json!({
        "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "top_k": -1, "min_p": 0.05,
        "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": -0.5, "min_tokens": 1,
        "stop_token_ids": [3], "logit_bias": { "7": -1.5 }, "user": "u", "n": 1, "best_of": 1, "tools": [],
        "tool_choice": "none", "response_format": { "type": "text" }, "add_generation_prompt": true, "guided_json": null,
    });
    let mut names: Vec<&str> = ignored.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    for (path, body) in [(CHAT, chat()), (TEXT, text())] {
        for fields in [&ignored, &known] {
            for (name, value) in fields.as_object().unwrap() {
                let alone = with(body.clone(), &json!({ name: value }));
                let (status, header, answer) = post(&service, path, &alone).await;
                assert_eq!(status, 200, "{path} {name} {answer}");
                assert_eq!(header.as_deref(), names.contains(&name.as_str()).then_some(name.as_str()), "{path}");
            }
        }
        let (status, header, answer) = post(&service, path, &with(with(body, &ignored), &known)).await;
        assert_eq!((status, header), (200, Some(names.join(", "))), "{answer}");
    }
    let embedding = json!({ "input": "a", "truncate_prompt_tokens": 8 });
    assert_eq!(post(&service, "/v1/embeddings", &embedding).await.1.as_deref(), Some("truncate_prompt_tokens"));
}

#[tokio::test]
async fn streams_and_errors_name_what_was_ignored_and_nothing_comes_out_of_a_name() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let ignored = json!({ "foo": 1, "no_stop_trim": true, "x\r\ninjected: 1": 1, "": 1, "null": null, "é": 1 });
    let (status, header, events) =
        post(&service, CHAT, &with(with(chat(), &json!({ "stream": true })), &ignored)).await;
    assert_eq!((status, header.as_deref()), (200, Some("foo, no_stop_trim")));
    assert!(events.trim_end().ends_with("[DONE]"), "{events}");
    for (path, wrong, status) in [
        (CHAT, with(chat(), &json!({ "temperature": 9 })), 400),
        (CHAT, with(chat(), &json!({ "n": 17 })), 400),
        (CHAT, json!({}), 400),
        (CHAT, with(chat(), &json!({ "ragstone": { "collection": "nowhere" } })), 404),
        (TEXT, with(text(), &json!({ "model": "gpt-9" })), 404),
        (TEXT, json!({ "prompt": vec![5; 5000] }), 400),
        ("/v1/embeddings", json!({}), 400),
    ] {
        let (answered, header, error) = post(&service, path, &with(wrong, &ignored)).await;
        assert_eq!((answered, header.as_deref()), (status, Some("foo, no_stop_trim")), "{error}");
        error_message(&serde_json::from_str(&error).unwrap());
    }
    let many: Map<String, Value> = (0..5000).map(|index| (format!("{index:060}"), json!(1))).collect();
    let (status, header, _) = post(&service, TEXT, &with(text(), &Value::Object(many))).await;
    assert_eq!((status, header.unwrap().split(", ").count()), (200, 32));
}

#[tokio::test]
async fn what_would_change_the_answer_is_refused_by_name() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for (field, value) in [
        ("n", json!(17)),
        ("best_of", json!(17)),
        ("tools", json!([{ "type": "function" }])),
        ("tool_choice", json!("required")),
        ("response_format", json!({ "type": "xml" })),
        ("guided_json", json!(1)),
        ("structured_outputs", json!({ "structural_tag": "a" })),
        ("grammar", json!("root ::= \"a\"")),
        ("bad_words", json!(["a"])),
        ("continue_final_message", json!(true)),
        ("add_generation_prompt", json!(false)),
        ("chat_template", json!("{{ messages }}")),
    ] {
        for (path, body) in [(CHAT, chat()), (TEXT, text())] {
            let (status, error) = service.post(path, &with(body, &json!({ field: value }))).await;
            assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{path} {error}");
        }
    }
    let (status, error) = service.post(TEXT, &with(text(), &json!({ "suffix": "b" }))).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("suffix")), "{error}");
}

/// Every field that the lists name is taken by somebody: a null is as good as nothing.
#[tokio::test]
async fn every_known_field_may_be_null() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let source = include_str!("../../actors/service/src/http/known_fields.rs");
    let lists = source.split_once("const TAKEN").and_then(|(_, rest)| rest.split_once("pub fn")).unwrap().0;
    let names = lists.split('"').skip(1).step_by(2);
    let nulls: Map<String, Value> = names.map(|name| (name.to_owned(), Value::Null)).collect();
    assert!(nulls.len() > 40, "{nulls:?}");
    for (path, own, body) in [
        (CHAT, json!({ "logprobs": null, "top_logprobs": null }), json!({ "messages": chat()["messages"] })),
        (TEXT, json!({ "logprobs": null, "echo": null, "suffix": null }), json!({ "prompt": [5] })),
    ] {
        let (status, header, answer) =
            post(&service, path, &with(with(Value::Object(nulls.clone()), &own), &body)).await;
        assert_eq!((status, header), (200, None), "{answer}");
    }
}

async fn tokens(service: &Service, fields: &Value) -> (Vec<String>, Value) {
    let answer = service.ask(TEXT, &with(json!({ "prompt": [5, 6], "temperature": 0, "logprobs": 5 }), fields)).await;
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    (tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect(), choice.clone())
}

#[tokio::test]
async fn sampling_fields_do_what_they_say() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let (plain, choice) = tokens(&service, &json!({ "max_tokens": 40 })).await;

    // Greedy repeats itself here; whoever may not repeat says something else at the first repetition, at the latest.
    let differs = |other: &[String]| plain.iter().zip(other).any(|(a, b)| a != b) || plain.len() != other.len();
    for fields in [
        json!({ "repetition_penalty": 5 }),
        json!({ "frequency_penalty": 2 }),
        json!({ "presence_penalty": 2, "frequency_penalty": 2 }),
    ] {
        let (penalized, _) = tokens(&service, &with(fields.clone(), &json!({ "max_tokens": 40 }))).await;
        assert!(differs(&penalized), "{fields} {plain:?}");
    }

    // The likeliest first token, forbidden, and another one, forced. `top_logprobs` does not change with it.
    let (biased, forced) = tokens(&service, &json!({ "max_tokens": 3, "logit_bias": { "9": 100 } })).await;
    assert_ne!(biased[0], plain[0]);
    assert!(biased.iter().all(|token| *token == biased[0]), "{biased:?}");
    assert_eq!(forced["logprobs"]["top_logprobs"][0], choice["logprobs"]["top_logprobs"][0]);
    let (status, error) = service.post(TEXT, &with(text(), &json!({ "logit_bias": { "999999": 1 } }))).await;
    assert_eq!(status, 400);
    assert!(error_message(&error).contains("999999"), "{error}");

    // A token that ends the answer is not part of it.
    let (stopped, ended) =
        tokens(&service, &json!({ "max_tokens": 3, "logit_bias": { "9": 100 }, "stop_token_ids": [9] })).await;
    assert_eq!((stopped.len(), &ended["finish_reason"]), (0, &json!("stop")));
    let at_least = json!({ "max_tokens": 3, "min_tokens": 3, "logit_bias": { "9": 100 }, "stop_token_ids": [9] });
    assert_eq!(tokens(&service, &at_least).await.0.len(), 3);

    // 2 is this model's end token: it ends the answer, or not.
    let end = json!({ "max_tokens": 3, "logit_bias": { "2": 100 } });
    let (ended, choice) = tokens(&service, &end).await;
    assert_eq!((ended.len(), &choice["finish_reason"]), (0, &json!("stop")));
    let (_, choice) = tokens(&service, &with(end.clone(), &json!({ "ignore_eos": true }))).await;
    assert_eq!((&choice["finish_reason"], &choice["text"]), (&json!("length"), &json!("")));
    let shown = with(end, &json!({ "ignore_eos": true, "skip_special_tokens": false }));
    assert_eq!(tokens(&service, &shown).await.1["text"], "</s></s></s>");
}

/// Up to two of five were lost, as tokens that are part of a character all had the text U+FFFD.
#[tokio::test]
async fn all_alternatives_are_told_apart() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for prompt in [json!([5, 6]), json!("é"), json!("\u{2603} 🚢"), json!([200, 201, 202]), json!([150, 240])] {
        let body = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 2, "seed": 1, "logprobs": 5, "ignore_eos": true });
        let answer = service.ask(TEXT, &body).await;
        for top in answer["choices"][0]["logprobs"]["top_logprobs"].as_array().unwrap() {
            assert_eq!(top.as_object().unwrap().len(), 5, "{top}");
            assert!(top.as_object().unwrap().keys().all(|name| !name.contains('\u{fffd}')), "{top}");
        }
    }
}

#[tokio::test]
async fn a_beam_search_returns_its_best_and_refuses_what_it_cannot_do() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let search =
        json!({ "use_beam_search": true, "best_of": 4, "n": 2, "max_tokens": 8, "ignore_eos": true, "logprobs": 1 });
    let found = service.ask(TEXT, &with(text(), &search)).await;
    let score = |choice: &Value| {
        let each = choice["logprobs"]["token_logprobs"].as_array().unwrap().iter();
        each.map(|logprob| logprob.as_f64().unwrap()).sum::<f64>()
    };
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2, "{found}");
    assert!(score(&choices[0]) >= score(&choices[1]) && choices[0]["text"] != choices[1]["text"], "{found}");
    assert_eq!(found["usage"]["completion_tokens"], 4 * 8, "all that were searched count: {found}");
    // Wider is no worse, and of one beam it is what greedy search says.
    let greedy = service
        .ask(TEXT, &with(text(), &json!({ "temperature": 0, "max_tokens": 8, "ignore_eos": true, "logprobs": 1 })))
        .await;
    assert!(score(&choices[0]) >= score(&greedy["choices"][0]) - 1e-4, "{found} {greedy}");
    let one = service
        .ask(TEXT, &with(text(), &json!({ "use_beam_search": true, "max_tokens": 8, "ignore_eos": true })))
        .await;
    assert_eq!(one["choices"][0]["text"], greedy["choices"][0]["text"]);
    for (field, value) in
        [("stream", json!(true)), ("early_stopping", json!("soon")), ("length_penalty", json!("long"))]
    {
        let body = with(with(text(), &json!({ "use_beam_search": true })), &json!({ field: value }));
        let (status, error) = service.post(TEXT, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{error}");
    }
    for more in [json!({ "temperature": 0.7 }), json!({ "length_penalty": 99 }), json!({ "guided_regex": "a+" })] {
        let body = with(with(text(), &json!({ "use_beam_search": true })), &more);
        assert_eq!(service.post(TEXT, &body).await.0, 400, "{body}");
    }
}
