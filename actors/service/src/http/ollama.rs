//! `/api/…`: Ollama's API, as its official clients and Open WebUI speak it: chats, completions, embeddings, and what models there are. A
//! request is turned into the fields of a chat or a plain completion, so that all mean the same by each.

pub(super) mod lines;
mod models;

use std::collections::VecDeque;
use std::time::Duration;

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_env::Stopwatch;
use serde_json::{Map, Value, json};

use self::lines::{Kind, Lines};
use super::anthropic::by_the_model;
use super::body::Incoming;
use super::fields::{Fields, is_nothing};
use super::generation::check_model;
use super::{chat, completions, reply, resource};
use crate::api::embeddings::OneOrMany;
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::Answered;
use crate::http::state::{State, caller};

/// What a name ends with where its owner chose no tag.
const TAG: &str = ":latest";
/// What these endpoints take.
const TAKEN: &[&str] = &[
    "model",
    "name",
    "messages",
    "prompt",
    "system",
    "raw",
    "tools",
    "stream",
    "format",
    "options",
    "think",
    "images",
    "suffix",
    "input",
    "dimensions",
    "ragstone",
];
/// Without effect: there is one model, it stays loaded, its context is its own.
const HINTS: &[&str] = &["keep_alive", "truncate", "template", "context", "logprobs", "top_logprobs", "shift"];

/// Its paths.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource("/api/chat", "POST", vec![web::post().to(chat_with)]))
        .service(resource("/api/generate", "POST", vec![web::post().to(generate)]))
        .service(resource("/api/embed", "POST", vec![web::post().to(embed)]))
        .service(resource("/api/embeddings", "POST", vec![web::post().to(embed_one)]))
        .service(resource("/api/tags", "GET", vec![web::get().to(models::tags)]))
        .service(resource("/api/ps", "GET", vec![web::get().to(models::running)]))
        .service(resource("/api/show", "POST", vec![web::post().to(models::show)]))
        .service(resource("/api/version", "GET", vec![web::get().to(models::version)]));
}

/// Answers a conversation.
async fn chat_with(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    told(&state, &request, read(&state, &request, incoming, Kind::Chat).await)
}

/// Answers a prompt: in the model's chat template, or as it stands where the request says `raw`.
async fn generate(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    told(&state, &request, read(&state, &request, incoming, Kind::Generate).await)
}

async fn read(state: &State, request: &HttpRequest, incoming: Incoming, kind: Kind) -> Answered {
    state.opened()?.ragstone.check_room(caller(request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(is_known);
    Ok(ignored.note(Ok(told(state, request, answer(state, request, fields, kind).await))))
}

fn is_known(name: &str) -> bool {
    TAKEN.contains(&name) || HINTS.contains(&name)
}

async fn answer(state: &State, request: &HttpRequest, mut fields: Fields, kind: Kind) -> Answered {
    let opened = state.opened()?;
    let is_zero = |time: &Value| time.as_f64() == Some(0.0) || matches!(time.as_str(), Some("0" | "0s" | "0m"));
    let is_let_go = fields.get("keep_alive").is_some_and(is_zero);
    let thinks = thinks(&fields);
    if opened.ragstone.thinking(None).is_some() {
        fields.take_value("think");
    }
    let mut answer = common(&mut fields, &opened.model_id)?;
    if !is_asked(&fields, kind) {
        // So clients load a model before they need it, and let go of it. Here it stays.
        check_model(&mut Fields::of(answer), &opened.model_id)?;
        let reason = if is_let_go { "unload" } else { "load" };
        return Ok(
            HttpResponse::Ok().json(Lines::new(kind, &state.env, &opened.model_id, false).without_answer(reason))
        );
    }
    let is_raw = fields.take::<bool>("raw")?.unwrap_or(false);
    if kind == Kind::Generate && is_raw {
        answer.insert("prompt".to_owned(), fields.need::<String>("prompt")?.into());
        fields.refuse_unless("system", is_nothing)?;
        let lines = Lines::new(kind, &state.env, &opened.model_id, true);
        return completions::answer(state, request, opened, Fields::of(answer), Some(Box::new(lines))).await;
    }
    let messages = match kind {
        Kind::Chat => conversation(fields.need("messages")?)?,
        Kind::Generate => prompted(&mut fields)?,
    };
    let goes_on = messages.last().is_some_and(|last| last["role"] == "assistant");
    answer.insert("messages".to_owned(), messages.into());
    if let Some(thinks) = thinks {
        answer.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": thinks }));
    }
    if let Some(tools) = fields.take_value("tools").filter(|tools| !is_nothing(tools)) {
        answer.insert("tools".to_owned(), tools);
        // The answer may be a call, which has a form of its own.
        answer.remove("response_format");
    }
    let lines = Lines::new(kind, &state.env, &opened.model_id, goes_on);
    chat::answer(state, request, opened, Fields::of(answer), Some(Box::new(lines))).await
}

fn is_asked(fields: &Fields, kind: Kind) -> bool {
    let of = |name| fields.get(name).is_some_and(|value| !is_nothing(value));
    match kind {
        Kind::Chat => of("messages"),
        Kind::Generate => of("prompt"),
    }
}

/// Whether the model is to think, where the request says so. How much it thinks is not heard.
fn thinks(fields: &Fields) -> Option<bool> {
    let think = fields.get("think").filter(|think| !think.is_null())?;
    Some(think.as_bool().unwrap_or(true))
}

/// What chats and completions have in common, as OpenAI's fields; `own` is the model's id.
fn common(fields: &mut Fields, own: &str) -> Result<Map<String, Value>> {
    let mut made = Map::new();
    if let Some(model) = model(fields, &[own])? {
        made.insert("model".to_owned(), model.into());
    }
    made.insert("stream".to_owned(), fields.take::<bool>("stream")?.unwrap_or(true).into());
    made.insert("ragstone".to_owned(), by_the_model(fields.take_value("ragstone")));
    fields.refuse_unless("think", is_nothing)?;
    fields.refuse_unless("images", is_nothing)?;
    fields.refuse_unless("suffix", is_nothing)?;
    match fields.take_value("format") {
        None => {}
        Some(Value::String(name)) if name.is_empty() => {}
        Some(Value::String(name)) if name == "json" => {
            made.insert("response_format".to_owned(), json!({ "type": "json_object" }));
        }
        Some(schema @ Value::Object(_)) => {
            let schema = json!({ "type": "json_schema", "json_schema": { "name": "format", "schema": schema } });
            made.insert("response_format".to_owned(), schema);
        }
        Some(_) => return Err(Error::invalid_field("format", "`format` must be json or a JSON schema, an object")),
    }
    let mut options = fields.take::<Map<String, Value>>("options")?.unwrap_or_default();
    // 0 is off there; a negative seed draws one.
    let is_off = |name: &str, value: &Value| match name {
        "top_p" | "repeat_penalty" => *value == 0 || *value == 0.0,
        "seed" => value.as_f64().is_some_and(|seed| seed < 0.0),
        _ => false,
    };
    for (name, own) in [
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("min_p", "min_p"),
        ("seed", "seed"),
        ("stop", "stop"),
        ("repeat_penalty", "repetition_penalty"),
        ("presence_penalty", "presence_penalty"),
        ("frequency_penalty", "frequency_penalty"),
    ] {
        let value = options.remove(name).filter(|value| !value.is_null() && !is_off(name, value));
        if let Some(value) = value {
            made.insert(own.to_owned(), if ["top_k", "seed"].contains(&name) { whole(value) } else { value });
        }
    }
    // Nothing, or less, is as much as there is room for.
    let most = options.remove("num_predict").filter(|count| !count.is_null());
    if most.as_ref().is_some_and(|count| !count.is_number()) {
        return Err(Error::invalid_field("options.num_predict", "`options.num_predict` must be a number"));
    }
    let most = most.and_then(|count| count.as_f64()).filter(|count| *count >= 1.0);
    made.insert("max_tokens".to_owned(), most.map_or(u64::from(u32::MAX), |count| count as u64).into());
    Ok(made)
}

/// Some clients send every number with a point.
fn whole(value: Value) -> Value {
    match value.as_f64() {
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => (number as i64).into(),
        _ => value,
    }
}

/// The model's name, as it is here: one of `own`, whether that or the name itself ends with the tag or not.
fn model(fields: &mut Fields, own: &[&str]) -> Result<Option<String>> {
    let name =
        [fields.take::<String>("model")?, fields.take("name")?].into_iter().flatten().find(|name| !name.is_empty());
    let bare = |name: &str| name.strip_suffix(TAG).unwrap_or(name).to_owned();
    Ok(name.map(|name| {
        let name = bare(&name);
        // An engine elsewhere may have the tag in its model's id.
        own.iter().find(|own| bare(own) == name).map_or(name, |own| (*own).to_owned())
    }))
}

/// Prompt and system prompt, as a conversation.
fn prompted(fields: &mut Fields) -> Result<Vec<Value>> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<String>("system")?.filter(|system| !system.is_empty()) {
        messages.push(json!({ "role": "system", "content": system }));
    }
    messages.push(json!({ "role": "user", "content": fields.need::<String>("prompt")? }));
    Ok(messages)
}

/// The messages as OpenAI has them. Calls may have no ids here: then what tools said is matched by their names, else by order.
fn conversation(messages: Vec<Value>) -> Result<Vec<Value>> {
    // The last calls' ids and names, those that were answered gone.
    let (mut calls, mut open) = (0, VecDeque::<(String, Value)>::new());
    let message = |(index, mut message): (usize, Value)| {
        let Some(fields) = message.as_object_mut() else {
            let at = format!("messages[{index}]");
            return Err(Error::invalid_field(&*at, format!("`{at}` must be an object")));
        };
        if fields.remove("images").is_some_and(|images| !is_nothing(&images)) {
            let at = format!("messages[{index}].images");
            return Err(Error::invalid_field(&*at, format!("`{at}` is not supported; send text")));
        }
        fields.remove("thinking");
        if let Some(Value::Array(called)) = fields.get_mut("tool_calls") {
            open.clear();
            for call in called {
                let id = call["id"]
                    .as_str()
                    .filter(|id| !id.is_empty())
                    .map_or_else(|| format!("call{calls:05}"), str::to_owned);
                calls += 1;
                open.push_back((id.clone(), call["function"]["name"].clone()));
                if let Value::Object(call) = call {
                    call.insert("id".to_owned(), id.into());
                    call.insert("type".to_owned(), "function".into());
                    call.shift_remove("index");
                }
            }
        }
        if fields.get("role").is_some_and(|role| role == "tool") {
            let name = fields.remove("tool_name").or_else(|| fields.get("name").cloned()).unwrap_or_default();
            let given = fields.get("tool_call_id").and_then(Value::as_str).map(str::to_owned);
            let at = match &given {
                Some(id) => open.iter().position(|(open, _)| open == id),
                None => Some(open.iter().position(|(_, called)| *called == name).unwrap_or(0)),
            };
            let matched = at.and_then(|at| open.remove(at)).map(|(id, _)| id);
            let id = given.or(matched).unwrap_or_else(|| format!("call{:05}", 0));
            fields.insert("tool_call_id".to_owned(), id.into());
        }
        Ok(message)
    };
    messages.into_iter().enumerate().map(message).collect()
}

/// One vector a text.
async fn embed(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    told(&state, &request, embedded(&state, &request, incoming, "input").await)
}

/// The vector of one text.
async fn embed_one(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    told(&state, &request, embedded(&state, &request, incoming, "prompt").await)
}

async fn embedded(state: &State, request: &HttpRequest, incoming: Incoming, field: &'static str) -> Answered {
    let (opened, begun) = (state.opened()?, Stopwatch::start());
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(is_known);
    if let Some(name) = model(&mut fields, &[opened.embedder_id.as_str()])? {
        check_model(&mut Fields::of(Map::from_iter([("model".to_owned(), name.into())])), &opened.embedder_id)?;
    }
    let dimension = opened.ragstone.embedding_dimension();
    fields.refuse_unless("dimensions", |wanted| *wanted == dimension)?;
    let texts = match fields.need(field)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    };
    let (ragstone, model) = (opened.ragstone.clone(), opened.embedder_id.clone());
    if texts.is_empty() {
        let none = json!({ "model": model, "embeddings": [], "total_duration": 0, "load_duration": 0, "prompt_eval_count": 0 });
        return Ok(HttpResponse::Ok().json(none));
    }
    let (deadline, asks) = (Duration::from_secs(state.settings.deadline_s), caller(request));
    let body = state.on_runtime(async move {
        let embedded = ragstone.embed(texts, asks, deadline).await?;
        let elapsed = begun.elapsed().as_nanos() as u64;
        // Half a million numbers are written at most: not on a thread that others wait for.
        let write = move || match field {
            "prompt" => json!({ "embedding": embedded.vectors.first() }).to_string(),
            _ => json!({
                "model": model, "embeddings": embedded.vectors, "total_duration": elapsed, "load_duration": 0,
                "prompt_eval_count": embedded.tokens,
            })
            .to_string(),
        };
        tokio::task::spawn_blocking(write).await.map_err(|_| Error::internal("writing the vectors broke off"))
    });
    let body = body.await?.map_err(|error: Error| match error.kind() {
        ErrorKind::InvalidInput => Error::invalid_field(field, error.to_string()),
        _ => error,
    })?;
    Ok(ignored.note(Ok(HttpResponse::Ok().content_type("application/json").body(body))))
}

/// An answer, or an error in Ollama's form: `{"error": "why"}`.
fn told(state: &State, request: &HttpRequest, answered: Answered) -> HttpResponse {
    answered.unwrap_or_else(|refusal| reply::refused(state, request, refusal, lines::error_body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: &Value) -> Result<Value> {
        let mut fields = Fields::parse(body.to_string().as_bytes())?;
        common(&mut fields, "smol").map(Value::Object)
    }

    #[test]
    fn options_become_openais_fields() {
        let body = json!({
            "model": "smol:latest", "format": { "type": "null" },
            "options": { "temperature": 0.5, "num_predict": -1, "repeat_penalty": 1.1, "num_ctx": 4096, "stop": ["a"] },
        });
        assert_eq!(
            taken(&body).unwrap(),
            json!({
                "model": "smol", "stream": true, "ragstone": { "sampling": "model" }, "temperature": 0.5, "max_tokens": u32::MAX,
                "repetition_penalty": 1.1, "stop": ["a"],
                "response_format": { "type": "json_schema", "json_schema": { "name": "format", "schema": { "type": "null" } } },
            })
        );
        assert_eq!(
            taken(&json!({ "format": "json", "stream": false })).unwrap()["response_format"],
            json!({ "type": "json_object" })
        );
        for (body, field) in [
            (json!({ "think": true }), "think"),
            (json!({ "images": ["a"] }), "images"),
            (json!({ "format": "xml" }), "format"),
            (json!({ "options": 7 }), "options"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "options": { "num_predict": "5" } }), "options.num_predict"),
        ] {
            assert_eq!(taken(&body).unwrap_err().at_field(), Some(field));
        }
        taken(&json!({ "think": false, "images": [], "suffix": "" })).unwrap();
        // As clients of other languages write numbers, and what is off.
        let body = json!({ "options": { "top_k": 40.0, "seed": -1, "top_p": 0, "repeat_penalty": 0.0, "num_predict": 128.0, "stop": null } });
        assert_eq!(
            taken(&body).unwrap(),
            json!({ "stream": true, "ragstone": { "sampling": "model" }, "top_k": 40, "max_tokens": 128 })
        );
        assert_eq!(taken(&json!({ "options": { "num_predict": 0 } })).unwrap()["max_tokens"], u32::MAX);
        assert_eq!(taken(&json!({ "model": "", "name": "smol:latest" })).unwrap()["model"], "smol");
    }

    #[test]
    fn a_model_is_known_with_the_tag_and_without() {
        for (own, given, expected) in [
            ("smol", "smol:latest", "smol"),
            ("smol", "smol", "smol"),
            ("llama3.2:latest", "llama3.2:latest", "llama3.2:latest"),
            ("llama3.2:latest", "llama3.2", "llama3.2:latest"),
            ("qwen:4b", "qwen:4b", "qwen:4b"),
            ("qwen:4b", "qwen:latest", "qwen"),
            ("smol", "default:latest", "default"),
        ] {
            let mut fields = Fields::parse(json!({ "model": given }).to_string().as_bytes()).unwrap();
            assert_eq!(model(&mut fields, &["other", own]).unwrap().as_deref(), Some(expected), "{given}");
        }
    }

    #[test]
    fn nothing_said_of_thinking_is_neither_yes_nor_no() {
        for (body, expected) in [
            (json!({}), None),
            (json!({ "think": null }), None),
            (json!({ "think": false }), Some(false)),
            (json!({ "think": true }), Some(true)),
            (json!({ "think": "high" }), Some(true)),
        ] {
            assert_eq!(thinks(&Fields::parse(body.to_string().as_bytes()).unwrap()), expected, "{body}");
        }
    }

    #[test]
    fn calls_get_ids_and_what_tools_say_finds_them() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": {} } });
        let messages = conversation(vec![
            json!({ "role": "assistant", "content": "", "tool_calls": [call("a"), call("b")], "thinking": "hm" }),
            json!({ "role": "tool", "tool_name": "b", "content": "2" }),
            json!({ "role": "tool", "content": "1" }),
        ])
        .unwrap();
        assert_eq!(
            (&messages[0]["tool_calls"][1]["id"], &messages[0]["tool_calls"][1]["type"]),
            (&json!("call00001"), &json!("function"))
        );
        assert_eq!(messages[1], json!({ "role": "tool", "tool_call_id": "call00001", "content": "2" }));
        assert_eq!(messages[2]["tool_call_id"], "call00000");
        // Those that clients give stay, and a later call has nothing of an earlier one.
        let called =
            json!([{ "id": "x", "index": 0, "function": { "name": "a" } }, { "id": "y", "function": { "name": "a" } }]);
        let messages = conversation(vec![
            json!({ "role": "assistant", "content": "", "tool_calls": [call("a")] }),
            json!({ "role": "assistant", "content": "", "tool_calls": called }),
            json!({ "role": "tool", "tool_call_id": "y", "content": "2" }),
            json!({ "role": "tool", "name": "a", "content": "1" }),
        ])
        .unwrap();
        assert_eq!((&messages[2]["tool_call_id"], &messages[3]["tool_call_id"]), (&json!("y"), &json!("x")));
        assert_eq!(conversation(vec![json!(7)]).unwrap_err().at_field(), Some("messages[0]"));
        let picture = vec![json!({ "role": "user", "content": "a", "images": ["b"] })];
        assert_eq!(conversation(picture).unwrap_err().at_field(), Some("messages[0].images"));
    }
}
