//! Models that think before they answer: their thoughts stand apart in every protocol. The demo model with a template that knows thoughts is made
//! to say something that has some.

use serde_json::{Value, json};

use crate::harness::{Folder, Service};
use crate::openai_client::with_template;

/// As Qwen 3's, as far as it matters here.
const TEMPLATE: &str = "{%- for message in messages %}{{ message.role }}: {{ message.content.split('</think>')[-1] }}\n{% endfor -%}assistant:";
const SAID: &str = "<think>\nNine boats, and one sank.\n</think>\n\nEight.";

async fn serve(folder: &Folder, template: &str) -> Service {
    let model = with_template(folder, template);
    folder.serve(&["--model", model.to_str().unwrap()]).await
}

fn asked(fields: &Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "How many boats?" }], "guided_choice": [SAID], "max_tokens": 200, "temperature": 0,
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn thoughts_stand_beside_the_answer() {
    let folder = Folder::new();
    let service = serve(&folder, TEMPLATE).await;
    let chat = "/v1/chat/completions";
    let message = service.ask(chat, &asked(&json!({}))).await["choices"][0]["message"].clone();
    let wanted = json!({
        "role": "assistant", "content": "Eight.", "refusal": null, "reasoning_content": "Nine boats, and one sank.",
    });
    assert_eq!(message, wanted);

    let (mut thoughts, mut text) = (String::new(), String::new());
    for event in service.stream(chat, &asked(&json!({ "stream": true }))).await {
        let Ok(chunk) = serde_json::from_str::<Value>(&event) else { continue };
        let delta = &chunk["choices"][0]["delta"];
        thoughts.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        assert!(text.is_empty() || delta["reasoning_content"].is_null(), "thoughts come first");
        text.push_str(delta["content"].as_str().unwrap_or_default());
    }
    assert_eq!((thoughts.as_str(), text.as_str()), ("Nine boats, and one sank.", "Eight."));

    // What was cut while it thought has no answer.
    let cut = service.ask(chat, &asked(&json!({ "max_tokens": 8 }))).await["choices"][0].clone();
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&Value::Null, &json!("length")), "{cut}");
    assert!("Nine boats, and one sank.".starts_with(cut["message"]["reasoning_content"].as_str().unwrap()), "{cut}");
    // A plain completion is as the model wrote it.
    let plain = json!({ "prompt": "How many boats?", "guided_choice": [SAID], "max_tokens": 200 });
    assert_eq!(service.ask("/v1/completions", &plain).await["choices"][0]["text"], SAID);
}

/// Where the prompt ends with `<think>`: what a form asks for is the answer, and a thought in which nothing is thought leaves no mark.
#[tokio::test]
async fn an_answer_of_a_form_is_no_thought() {
    let folder = Folder::new();
    let service = serve(&folder, &format!("{TEMPLATE} <think>\n")).await;
    let chat = "/v1/chat/completions";
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "const": "ab" } } });
    let body =
        json!({ "messages": [{ "role": "user", "content": "Say ab." }], "response_format": format, "max_tokens": 20 });
    let message = service.ask(chat, &body).await["choices"][0]["message"].clone();
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("\"ab\""), &Value::Null), "{message}");
    let empty = asked(&json!({ "guided_choice": ["<think>\n\n</think>\n\nEight."] }));
    let message = service.ask(chat, &empty).await["choices"][0]["message"].clone();
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Eight."), &Value::Null), "{message}");
}

#[tokio::test]
async fn each_protocol_has_its_own_form_of_thoughts() {
    let folder = Folder::new();
    let service = serve(&folder, TEMPLATE).await;
    let format = json!({ "type": "json_schema", "name": "a", "schema": { "type": "string" } });
    // There a schema is the only way to make a model say something: none of its own thoughts is certain.
    let response = json!({ "input": "How many boats?", "max_output_tokens": 8, "text": { "format": format } });
    let output = service.ask("/v1/responses", &response).await["output"].clone();
    assert_eq!(output[0]["type"], "message", "{output}");
    let body = json!({
        "messages": [{ "role": "user", "content": "How many boats?" }], "think": true, "stream": false, "options": { "num_predict": 4 },
    });
    assert!(service.ask("/api/chat", &body).await["message"]["content"].is_string());
    // Its clients ask before they say that a model is to think, or not to.
    let shown = service.ask("/api/show", &json!({ "model": "default" })).await;
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
}

/// A client says in its protocol's own words that a model is not to think first. The prompt is then the template's.
#[tokio::test]
async fn a_model_is_kept_from_thinking_in_every_protocol() {
    let folder = Folder::new();
    let kept = "{%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif -%}";
    let service = serve(&folder, &format!("{TEMPLATE}{kept}")).await;
    let messages = json!([{ "role": "user", "content": "How many boats?" }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (openai, anthropic, ollama, responses) = ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses");
    let ollamas = |think: Value| json!({ "messages": messages, "stream": false, "think": think, "options": { "num_predict": 1 } });
    let asked = |effort: &str| json!({ "input": messages, "max_output_tokens": 1, "store": false, "reasoning": { "effort": effort } });
    let tokens = async |path: &str, body: Value| {
        let answer = service.ask(path, &body).await;
        let usage = &answer["usage"];
        let found = [&usage["prompt_tokens"], &answer["prompt_eval_count"], &usage["input_tokens"]];
        let counts = found.into_iter().filter_map(Value::as_u64);
        let stored = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        counts.sum::<u64>() + stored
    };
    // What is sent with every message is sent with the question for its tokens.
    let effort = json!({ "output_config": { "effort": "low" }, "output_format": null, "stop_sequences": ["x"] });
    let counted = service.ask("/v1/messages/count_tokens", &chat(effort)).await;
    assert!(counted["input_tokens"].as_u64().is_some_and(|count| count > 0), "{counted}");
    let plain = tokens(openai, chat(json!({}))).await;
    let less = [
        tokens(openai, chat(json!({ "chat_template_kwargs": { "enable_thinking": false } }))).await,
        tokens(openai, chat(json!({ "chat_template_kwargs": { "thinking": false } }))).await,
        tokens(openai, chat(json!({ "reasoning_effort": "none" }))).await,
        tokens(anthropic, chat(json!({ "thinking": { "type": "disabled" } }))).await,
        tokens(ollama, ollamas(json!(false))).await,
        tokens(responses, asked("none")).await,
    ];
    assert!(less[0] > plain && less.iter().all(|count| *count == less[0]), "{plain} {less:?}");
    let more = [
        tokens(openai, chat(json!({ "chat_template_kwargs": { "enable_thinking": true } }))).await,
        tokens(openai, chat(json!({ "chat_template_kwargs": {}, "reasoning_effort": "low" }))).await,
        tokens(anthropic, chat(json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }))).await,
        tokens(ollama, ollamas(json!("high"))).await,
        tokens(responses, asked("high")).await,
    ];
    assert_eq!(more, [plain; 5]);
    let bad = chat(json!({ "chat_template_kwargs": { "enable_thinking": "no" } }));
    let (status, error) = service.post(openai, &bad).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("chat_template_kwargs.enable_thinking")), "{error}");
}

#[tokio::test]
async fn a_model_whose_template_knows_no_thoughts_says_what_it_says() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    let message = service.ask("/v1/chat/completions", &asked(&json!({}))).await["choices"][0]["message"].clone();
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(SAID), &Value::Null));
}
