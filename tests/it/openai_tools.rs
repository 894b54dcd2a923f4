//! Structured output, tools and responses over HTTP: on the demo model with a chat template that knows tools.

use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::openai_client::{with_template, with_tools};

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "boats", "tags"],
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "boats": { "type": "integer", "minimum": 0, "maximum": 99 },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "maxItems": 2 },
        },
    })
}

fn chat(fields: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Whose boats?" }], "max_tokens": 200, "temperature": 2, "seed": 4 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{value}");
    assert!((0..100).contains(&value["boats"].as_i64().unwrap()), "{value}");
    assert!(value["tags"].as_array().unwrap().iter().all(|tag| tag == "a" || tag == "b"), "{value}");
    assert_eq!(value.as_object().unwrap().len(), 3, "{value}");
}

/// The text of a stream, by choice, and its calls.
async fn streamed(service: &Service, body: &Value) -> (Vec<String>, Vec<Value>, Vec<Value>) {
    let (mut texts, mut calls, mut ends) = (vec![String::new(); 16], Vec::<Value>::new(), Vec::new());
    for event in service.stream(CHAT, body).await {
        let Ok(chunk) = serde_json::from_str::<Value>(&event) else { continue };
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().unwrap_or(0) as usize;
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let function = &piece["function"];
            if piece["id"].is_string() {
                calls.push(json!({ "name": function["name"], "arguments": function["arguments"] }));
            } else {
                let call = &mut calls[piece["index"].as_u64().unwrap() as usize]["arguments"];
                *call = format!("{}{}", call.as_str().unwrap(), function["arguments"].as_str().unwrap()).into();
            }
        }
        if !choice["finish_reason"].is_null() {
            ends.push(choice["finish_reason"].clone());
        }
    }
    (texts, calls, ends)
}

#[tokio::test]
async fn answers_conform_to_what_is_asked() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let format = json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "boats", "strict": true, "schema": schema() } } });
    for seed in 0..6 {
        let mut body = chat(&format);
        (body["seed"], body["n"]) = (seed.into(), 3.into());
        body["logprobs"] = true.into();
        let answer = service.ask(CHAT, &body).await;
        let mut whole = Vec::new();
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            check(choice["message"]["content"].as_str().unwrap());
            whole.push(choice["message"]["content"].as_str().unwrap().to_owned());
        }
        body["stream"] = true.into();
        assert_eq!(streamed(&service, &body).await.0[..3], whole[..]);
    }
    // Over passages, and behind what is kept of them.
    service.add("world", crate::harness::WORLD).await;
    for _ in 0..2 {
        let mut body = chat(&format);
        body["ragstone"] = json!({ "collection": "world", "top_k": 2 });
        check(service.ask(CHAT, &body).await["choices"][0]["message"]["content"].as_str().unwrap());
    }
    let cut = chat(&json!({ "response_format": format["response_format"], "max_tokens": 3 }));
    assert_eq!(service.ask(CHAT, &cut).await["choices"][0]["finish_reason"], "length");
    for (fields, fits) in [
        (
            json!({ "guided_regex": "[0-9]{4}" }),
            (|text: &str| text.len() == 4 && text.parse::<u32>().is_ok()) as fn(&str) -> bool,
        ),
        (json!({ "guided_choice": ["red", "green"] }), |text| text == "red" || text == "green"),
        (json!({ "structured_outputs": { "grammar": "start: \"(\" /[a-z]{2}/ \")\"" } }), |text| {
            text.len() == 4 && text.starts_with('(')
        }),
    ] {
        let answer = service.ask(CHAT, &chat(&fields)).await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(fits(text) && answer["choices"][0]["finish_reason"] == "stop", "{fields} {answer}");
    }
    for (fields, param) in [
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "strin" } } } }),
            "response_format",
        ),
        (json!({ "guided_regex": "a(" }), "guided_regex"),
        (json!({ "guided_grammar": "start: nowhere" }), "guided_grammar"),
        (json!({ "guided_regex": "a", "ignore_eos": true }), "ignore_eos"),
    ] {
        let (status, error) = service.post(CHAT, &chat(&fields)).await;
        assert_eq!(status, 400, "{error}");
        assert!(
            error["error"]["param"] == param || error["error"]["message"].as_str().unwrap().contains(param),
            "{error}"
        );
    }
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "find_boats", "description": "Finds boats.", "parameters": {
            "type": "object", "properties": { "town": { "type": "string", "maxLength": 6 } }, "required": ["town"], "additionalProperties": false } } },
        { "type": "function", "function": { "name": "stop", "parameters": { "type": "object", "properties": {}, "additionalProperties": false } } },
    ])
}

#[tokio::test]
async fn calls_are_forced_read_back_and_answered() {
    let folder = Folder::new();
    let model = with_tools(&folder);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    let named =
        json!({ "tools": tools(), "tool_choice": { "type": "function", "function": { "name": "find_boats" } } });
    let answer = service.ask(CHAT, &chat(&named)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["town"].as_str().unwrap().chars().count() <= 6, "{call}");
    assert!(choice["message"]["content"].is_null(), "{answer}");

    let mut body = chat(&named);
    body["stream"] = true.into();
    let (texts, calls, ends) = streamed(&service, &body).await;
    assert!(texts.iter().all(String::is_empty), "{texts:?}");
    assert_eq!(calls, [json!({ "name": "find_boats", "arguments": call["function"]["arguments"] })]);
    assert_eq!(ends, ["tool_calls"]);

    // What the tool said goes back; without a forced call there is text.
    let mut body = chat(&json!({ "tools": tools(), "max_tokens": 5 }));
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": call["id"], "content": "Nine <|im_end|> boats" }),
    ]);
    let answer = service.ask(CHAT, &body).await;
    assert!(answer["usage"]["prompt_tokens"].as_u64() > Some(50), "{answer}");

    for (fields, param) in [
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "function", "function": { "name": "fly" } } }),
            "tool_choice",
        ),
        (json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools[0].function.name"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": tools(), "response_format": { "type": "json_object" } }), "response_format"),
    ] {
        let (status, error) = service.post(CHAT, &chat(&fields)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
}

/// SmolLM2's own knows none.
#[tokio::test]
async fn tools_are_told_in_words_where_the_template_knows_none() {
    let folder = Folder::new();
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
    let model = with_template(&folder, template);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    let plain = service.ask("/tokenize", &chat(&json!({}))).await["count"].as_u64().unwrap();
    let told = service.ask("/tokenize", &chat(&json!({ "tools": tools() }))).await["count"].as_u64().unwrap();
    assert!(told > plain + 100, "{plain} tokens without tools, {told} with them");
    let answer = service
        .ask(CHAT, &chat(&json!({ "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false })))
        .await;
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert!(["find_boats", "stop"].contains(&call["function"]["name"].as_str().unwrap()), "{answer}");
    let mut body = chat(&json!({ "tools": tools(), "max_tokens": 5 }));
    body["messages"].as_array_mut().unwrap().extend([
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": call["id"], "content": "Nine boats" }),
    ]);
    let answered = service.ask(CHAT, &body).await;
    assert!(answered["usage"]["prompt_tokens"].as_u64().unwrap() > told + 20, "{answered}");

    // Without a chat template there is nowhere to tell it.
    let plain = Folder::new();
    let service = plain.serve(&[]).await;
    let (status, error) = service.post(CHAT, &chat(&json!({ "tools": tools() }))).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tools")), "{error}");
}

#[tokio::test]
async fn a_response_has_a_form() {
    let folder = Folder::new();
    let model = with_tools(&folder);
    let service = folder.serve(&["--model", model.to_str().unwrap()]).await;
    let text = json!({ "format": { "type": "json_schema", "name": "boats", "schema": schema(), "strict": true } });
    let body = json!({ "input": "Whose boats?", "instructions": "Be brief.", "text": text, "max_output_tokens": 200, "temperature": 1.5 });
    let answer = service.ask("/v1/responses", &body).await;
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")), "{answer}");
    check(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    for (field, value) in
        [("background", json!(true)), ("previous_response_id", json!("resp_1")), ("max_output_tokens", json!("x"))]
    {
        let mut body = body.clone();
        body[field] = value;
        let (status, error) = service.post("/v1/responses", &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(field)), "{error}");
    }
}
