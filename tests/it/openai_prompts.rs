//! Prompts as evaluation harnesses send them: repeated with their log-probabilities, several at once, with nothing behind them; messages that
//! are continued; and the tokenizer.

use serde_json::{Map, Value, json};

use crate::harness::{Folder, Service, error_message};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn with(mut body: Value, fields: Value) -> Value {
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
        body.extend(fields);
    }
    body
}

/// As `lm_eval/models/openai_completions.py` writes it.
fn measured(prompt: Value) -> Value {
    json!({ "model": "ragstone-demo", "prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true })
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a Vec<Value> {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("no {name} in {choice}"))
}

fn bits(logprob: &Value) -> u32 {
    (logprob.as_f64().unwrap_or_else(|| panic!("{logprob}")) as f32).to_bits()
}

/// What one step says of `next`: log-probabilities are those before any rule.
async fn stepped(service: &Service, prompt: &[u32], next: u32) -> Value {
    let bias: Map<String, Value> = [(next.to_string(), json!(100))].into_iter().collect();
    let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 20, "logit_bias": bias, "ignore_eos": true });
    service.ask(TEXT, &body).await["choices"][0].clone()
}

#[tokio::test]
async fn a_prompt_has_the_log_probabilities_of_single_steps_and_is_continued_as_ever() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let tokens = service.ask("/tokenize", &json!({ "prompt": "Calbet Works makes lamps. \u{2603}!" })).await;
    let tokens: Vec<u32> = serde_json::from_value(tokens["tokens"].clone()).unwrap();
    let body = with(measured(json!(tokens)), json!({ "logprobs": 20, "max_tokens": 6, "ignore_eos": true }));
    let echoed = service.ask(TEXT, &body).await["choices"][0].clone();
    let logprobs = list(&echoed, "token_logprobs");
    assert_eq!(logprobs.len(), tokens.len() + 6);
    assert_eq!((&logprobs[0], &list(&echoed, "top_logprobs")[0]), (&Value::Null, &Value::Null));
    for at in 1..tokens.len() {
        let step = stepped(&service, &tokens[..at], tokens[at]).await;
        assert_eq!(bits(&logprobs[at]), bits(&list(&step, "token_logprobs")[0]), "token {at}");
        let (told, top) = (&list(&echoed, "top_logprobs")[at], &list(&step, "top_logprobs")[0]);
        for (name, logprob) in top.as_object().unwrap() {
            assert_eq!(bits(&told[name]), bits(logprob), "token {at}, {name}");
        }
        // Beside the likeliest stands the token itself.
        assert!((20..=21).contains(&told.as_object().unwrap().len()), "{told}");
    }
    // What follows is what follows without.
    let plain = with(body.clone(), json!({ "echo": false }));
    let plain = service.ask(TEXT, &plain).await["choices"][0].clone();
    let text = echoed["text"].as_str().unwrap();
    let prompt = service.ask("/detokenize", &json!({ "tokens": tokens })).await["prompt"].as_str().unwrap().to_owned();
    assert_eq!(text, format!("{prompt}{}", plain["text"].as_str().unwrap()));
    for name in ["tokens", "token_logprobs", "top_logprobs"] {
        assert_eq!(list(&echoed, name)[tokens.len()..], list(&plain, name)[..], "{name}");
    }
    let offset = |choice: &Value, at: usize| list(choice, "text_offset")[at].as_u64().unwrap();
    assert_eq!((offset(&echoed, 0), offset(&echoed, tokens.len())), (0, prompt.chars().count() as u64));
    assert_eq!(offset(&plain, 0), 0);
}

/// `lm_eval` sums `token_logprobs[context:-1]` and compares each with the greatest of its `top_logprobs`.
#[tokio::test]
async fn a_harness_finds_one_more_element_than_the_prompt_has() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let prompts = json!([[5, 6, 7, 8], [9, 10], [5, 6, 7, 8, 9, 10, 11]]);
    let answer = service.ask(TEXT, &measured(prompts.clone())).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, (choice, prompt)) in choices.iter().zip(prompts.as_array().unwrap()).enumerate() {
        assert_eq!(choice["index"], index);
        let (logprobs, tops) = (list(choice, "token_logprobs"), list(choice, "top_logprobs"));
        assert_eq!(logprobs.len(), prompt.as_array().unwrap().len() + 1, "{choice}");
        for (logprob, top) in logprobs.iter().zip(tops).skip(1) {
            let greatest =
                top.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
            assert!(logprob.as_f64().unwrap() <= greatest, "{choice}");
        }
        let alone = service.ask(TEXT, &measured(prompt.clone())).await;
        assert_eq!(choice["logprobs"], alone["choices"][0]["logprobs"], "as if it were asked alone");
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 4 + 2 + 7, "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    // 2 is this model's end token: an answer of it alone has an element, too, as the harness leaves the last one out.
    let ended = service.ask(TEXT, &with(measured(json!([5, 6, 7])), json!({ "logit_bias": { "2": 100 } }))).await;
    let choice = &ended["choices"][0];
    assert_eq!((list(choice, "token_logprobs").len(), &choice["finish_reason"]), (4, &json!("stop")), "{choice}");
    assert_eq!(list(choice, "tokens")[3], "</s>");
    assert!(choice["text"].as_str().is_some_and(|text| !text.contains("</s>")), "{choice}");
    // Also in a stream.
    let body = with(measured(json!([5, 6, 7])), json!({ "logit_bias": { "2": 100 }, "stream": true }));
    let (texts, logprobs) = streamed(&service, &body, 1).await;
    assert_eq!(
        (&texts[0], &logprobs[0]),
        (&choice["text"].as_str().unwrap().to_owned(), list(choice, "token_logprobs"))
    );
}

/// Texts and log-probabilities of a stream's choices.
async fn streamed(service: &Service, body: &Value, choices: usize) -> (Vec<String>, Vec<Vec<Value>>) {
    let events = service.stream(TEXT, body).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let (mut texts, mut logprobs) = (vec![String::new(); choices], vec![Vec::new(); choices]);
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        for choice in chunk["choices"].as_array().unwrap_or_else(|| panic!("{chunk}")) {
            let index = choice["index"].as_u64().unwrap() as usize;
            texts[index].push_str(choice["text"].as_str().unwrap());
            logprobs[index].extend(choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten().cloned());
        }
    }
    (texts, logprobs)
}

#[tokio::test]
async fn several_prompts_are_answered_in_order_whole_and_streamed() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    // More than are asked at once.
    let prompts: Vec<String> = (0..11).map(|at| format!("Prompt {at} says")).collect();
    let body = json!({ "prompt": prompts, "n": 2, "max_tokens": 5, "temperature": 1, "seed": 7, "logprobs": 0, "echo": true, "ignore_eos": true });
    let whole = service.ask(TEXT, &body).await;
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 22);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert!(choice["text"].as_str().unwrap().starts_with(&prompts[index / 2]), "{choice}");
        assert_eq!(choice["logprobs"]["top_logprobs"], Value::Null);
    }
    let alone = service.ask(TEXT, &with(body.clone(), json!({ "prompt": prompts[4] }))).await;
    assert_eq!(
        (&choices[8]["text"], &choices[9]["text"]),
        (&alone["choices"][0]["text"], &alone["choices"][1]["text"])
    );
    assert_eq!(whole["usage"]["completion_tokens"], 22 * 5);
    let prompt_tokens = alone["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(
        (11 * (prompt_tokens - 1)..=11 * (prompt_tokens + 1))
            .contains(&whole["usage"]["prompt_tokens"].as_u64().unwrap())
    );

    let body = with(body, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let (texts, logprobs) = streamed(&service, &body, 22).await;
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(texts[index], choice["text"].as_str().unwrap(), "{index}");
        assert_eq!(&logprobs[index], list(choice, "token_logprobs"), "{index}");
    }
    let events = service.stream(TEXT, &body).await;
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"], "{last}");

    for (wrong, words) in [
        (json!([]), "empty"),
        (json!(["a", ""]), ""),
        (json!([[5, 6], []]), "prompt 1"),
        (json!([[5, 6], [1_000_000]]), ""),
        (json!(vec!["a"; 129]), "129 prompts"),
        (json!([["a"]]), "list of token ids"),
    ] {
        let (status, error) = service.post(TEXT, &json!({ "prompt": wrong, "max_tokens": 1 })).await;
        if words.is_empty() {
            assert!(status == 400 || status == 200, "{error}");
        } else {
            assert!(status == 400 && error_message(&error).contains(words), "{words}: {error}");
        }
    }
}

#[tokio::test]
async fn nothing_behind_a_prompt_can_be_asked_for() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let body = json!({ "prompt": "Calbet Works", "max_tokens": 0, "logprobs": 2, "echo": true });
    let echoed = service.ask(TEXT, &body).await;
    let choice = &echoed["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("Calbet Works"), &json!("length")));
    let tokens = echoed["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!((list(choice, "tokens").len() as u64, &echoed["usage"]["completion_tokens"]), (tokens, &json!(0)));
    let silent = service.ask(TEXT, &with(body.clone(), json!({ "echo": false }))).await;
    assert_eq!((&silent["choices"][0]["text"], &silent["usage"]), (&json!(""), &echoed["usage"]));
    let (texts, logprobs) = streamed(&service, &with(body, json!({ "stream": true })), 1).await;
    assert_eq!((&texts[0][..], &logprobs[0]), ("Calbet Works", list(choice, "token_logprobs")));
    // A prompt that leaves no room for a token has all the room that it needs.
    let full = json!({ "prompt": vec![5; 4096], "max_tokens": 0 });
    assert_eq!(service.ask(TEXT, &full).await["usage"]["total_tokens"], 4096);
    for (path, wrong, param) in [
        (TEXT, json!({ "prompt": [5], "max_tokens": 0, "use_beam_search": true }), Value::Null),
        (CHAT, json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 0 }), json!("max_tokens")),
        (TEXT, json!({ "prompt": [5], "logprobs": 21 }), json!("logprobs")),
        (TEXT, json!({ "prompt": [5], "prompt_logprobs": 21 }), json!("prompt_logprobs")),
        (TEXT, json!({ "prompt": [5], "prompt_logprobs": 1, "stream": true }), json!("prompt_logprobs")),
        (TEXT, json!({ "prompt": [5], "suffix": "b" }), json!("suffix")),
        (TEXT, json!({ "prompt": "a", "echo": true, "ragstone": { "pml": { "name": "none" } } }), json!("echo")),
    ] {
        let (status, error) = service.post(path, &wrong).await;
        assert_eq!((status, &error["error"]["param"]), (400, &param), "{wrong} {error}");
    }
}

#[tokio::test]
async fn prompt_logprobs_are_told_as_vllm_tells_them() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let answer = service.ask(TEXT, &json!({ "prompt": [5, 6, 7], "max_tokens": 1, "prompt_logprobs": 2 })).await;
    let told = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]), (3, &Value::Null));
    let echoed = service.ask(TEXT, &with(measured(json!([5, 6, 7])), json!({ "logprobs": 2 }))).await;
    for (at, id) in [(1, "6"), (2, "7")] {
        let own = &told[at][id];
        assert_eq!(own["logprob"], list(&echoed["choices"][0], "token_logprobs")[at]);
        let ranks: Vec<u64> = told[at].as_object().unwrap().values().map(|one| one["rank"].as_u64().unwrap()).collect();
        assert!(ranks.contains(&1) && ranks.contains(&2) && ranks.len() <= 3, "{told:?}");
        assert!(own["decoded_token"].is_string(), "{own}");
    }
    let messages = json!([{ "role": "user", "content": "Who makes lamps?" }]);
    let answer = service.ask(CHAT, &json!({ "messages": messages, "max_tokens": 1, "prompt_logprobs": 0 })).await;
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let told = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]), (tokens, &Value::Null));
    assert!(told[1..].iter().all(|one| one.as_object().unwrap().len() == 1), "the tokens alone");
    assert!(answer["choices"][0].get("prompt_logprobs").is_none());
}

/// What is stored has no logits, so it is not looked for; and a question of that kind leaves nothing.
#[tokio::test]
async fn a_prompt_whose_tokens_are_measured_neither_finds_nor_leaves_anything() {
    let folder = Folder::new();
    let service = folder.serve(&["--set", "kv_admission=always"]).await;
    let prompt: Vec<u32> = (0..300).map(|at| 5 + at % 90).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": true });
    service.ask(TEXT, &body).await;
    crate::cache::settle(&service).await;
    let store = |status: &Value| status["store"].clone();
    let before = service.get("/v1/cache/status").await.1;
    let echoed = service.ask(TEXT, &with(body.clone(), json!({ "echo": true, "logprobs": 1 }))).await;
    assert_eq!(echoed["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{}", echoed["usage"]);
    crate::cache::settle(&service).await;
    let after = service.get("/v1/cache/status").await.1;
    assert_eq!(store(&before), store(&after));
    assert_eq!(before["device"]["cache"]["entries"], after["device"]["cache"]["entries"]);
    // Where the text alone is repeated, what is stored serves.
    let repeated = service.ask(TEXT, &with(body, json!({ "echo": true }))).await;
    assert!(
        repeated["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 200,
        "{}",
        repeated["usage"]
    );
}

#[tokio::test]
async fn an_answer_that_was_begun_is_continued() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let messages = json!([{ "role": "user", "content": "Calbet Works makes lamps. What does Calbet Works make?" }]);
    let ask = |messages: Value, more: Value| {
        let (body, service) =
            (json!({ "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": true }), &service);
        async move { service.ask(CHAT, &with(body, more)).await }
    };
    let whole = ask(messages.clone(), json!({})).await;
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // Up to a space, so that the tokens are the same; the prompt has the one before it.
    let cut = whole.trim_start().find(' ').unwrap_or_else(|| panic!("one word: {whole:?}"));
    let (begun, rest) = whole.trim_start().split_at(cut);
    let mut turns = messages.as_array().unwrap().clone();
    turns.push(json!({ "role": "assistant", "content": begun }));
    let going_on = ask(json!(turns), json!({})).await;
    let said = going_on["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(said.starts_with(rest), "{whole:?} {begun:?} {said:?}");
    for fields in [
        json!({ "continue_final_message": true }),
        json!({ "continue_final_message": true, "add_generation_prompt": false }),
        json!({ "add_generation_prompt": false }),
    ] {
        assert_eq!(ask(json!(turns), fields).await["choices"][0]["message"]["content"], said);
    }
    let begun = json!({ "messages": turns });
    let asked = json!({ "messages": messages });
    for (body, fields, param) in [
        (&begun, json!({ "continue_final_message": false }), "continue_final_message"),
        (&begun, json!({ "add_generation_prompt": true }), "add_generation_prompt"),
        (&begun, json!({ "continue_final_message": true, "add_generation_prompt": true }), "continue_final_message"),
        (&asked, json!({ "continue_final_message": true }), "continue_final_message"),
        (&asked, json!({ "add_generation_prompt": false }), "add_generation_prompt"),
    ] {
        let (status, error) = service.post(CHAT, &with(body.clone(), fields)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    let only = json!({ "messages": [{ "role": "assistant", "content": "Yes" }] });
    assert_eq!(service.post(CHAT, &only).await.0, 400);
}

#[tokio::test]
async fn the_tokenizer_speaks_as_vllm_and_llama_cpp_do() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let ask = |body: Value| {
        let service = &service;
        async move { service.ask("/tokenize", &body).await }
    };
    let text = "Calbet Works </s> \u{2603}";
    let vllm = ask(json!({ "prompt": text, "add_special_tokens": false, "return_token_strs": true })).await;
    let ids = vllm["tokens"].as_array().unwrap();
    assert_eq!((&vllm["count"], &vllm["max_model_len"]), (&json!(ids.len()), &json!(4096)));
    assert_eq!(vllm["token_strs"].as_array().unwrap().len(), ids.len());
    assert!(ids.contains(&json!(2)), "the end token's text is that token: {ids:?}");
    // llama.cpp has the same tokens and nothing else.
    assert_eq!(ask(json!({ "content": text })).await, json!({ "tokens": ids }));
    let plain = ask(json!({ "content": text, "parse_special": false })).await;
    assert!(!plain["tokens"].as_array().unwrap().contains(&json!(2)), "{plain}");
    let pieces = ask(json!({ "content": "\u{2603}", "with_pieces": true })).await;
    let piece = &pieces["tokens"][0];
    assert!(piece["id"].is_u64() && (piece["piece"].is_array() || piece["piece"] == "\u{2603}"), "{pieces}");
    let special = ask(json!({ "prompt": text })).await;
    let also = ask(json!({ "content": text, "add_special": true })).await;
    assert_eq!(special["tokens"], also["tokens"]);

    let back = service.ask("/detokenize", &json!({ "tokens": ids })).await;
    assert_eq!(back, json!({ "prompt": text, "content": text }));

    // A conversation's are those of its prompt.
    let messages = json!([{ "role": "user", "content": "Who makes lamps?" }]);
    let chat = ask(json!({ "messages": messages })).await;
    let answer = service.ask(CHAT, &json!({ "messages": messages, "max_tokens": 1 })).await;
    assert_eq!(chat["count"], answer["usage"]["prompt_tokens"]);
    let begun = json!([{ "role": "user", "content": "Who?" }, { "role": "assistant", "content": "Calbet" }]);
    let begun = ask(json!({ "messages": begun, "continue_final_message": true, "add_generation_prompt": false })).await;
    let text = service.ask("/detokenize", &json!({ "tokens": begun["tokens"] })).await;
    assert!(text["prompt"].as_str().unwrap().ends_with("Calbet"), "{text}");

    let (status, info) = service.get("/tokenizer_info").await;
    assert_eq!((status, &info["eos_token"], &info["bos_token"]), (200, &json!("</s>"), &json!("<s>")));
    for (path, wrong, param) in [
        ("/tokenize", json!({}), json!("prompt")),
        ("/tokenize", json!({ "prompt": "a", "content": "a" }), json!("prompt")),
        ("/tokenize", json!({ "prompt": "a".repeat((1 << 20) + 1) }), json!("prompt")),
        ("/tokenize", json!({ "messages": [{ "role": "pirate", "content": "a" }] }), json!("messages[0].role")),
        ("/detokenize", json!({}), json!("tokens")),
        ("/detokenize", json!({ "tokens": [1_000_000] }), json!("tokens")),
    ] {
        let (status, error) = service.post(path, &wrong).await;
        assert_eq!((status, &error["error"]["param"]), (400, &param), "{error}");
    }
}
