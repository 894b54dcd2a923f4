//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API, as its official clients and Claude Code speak it. A request
//! is turned into the fields of a chat, so that both mean the same by each.

mod message;

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Map, Value, json};

use self::message::Message;
use super::body::Incoming;
use super::chat;
use super::fields::Fields;
use super::generation::check_model;
use super::{reply, tokenize};
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::{Answered, Refusal};
use crate::http::state::{Opened, State, caller};

/// What these endpoints take.
const TAKEN: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "ragstone",
];
/// Of those, what the prompt is made of.
const PROMPT: &[&str] = &["model", "messages", "system", "tools"];
/// Without effect on the answer: what is stored is found without being marked.
const HINTS: &[&str] = &["metadata", "service_tier", "cache_control", "betas", "speed", "inference_geo"];
/// What their clients name where nobody chose a model: it is answered by the one that is here.
const THEIRS: &str = "claude-";
/// Begins a line that Claude Code puts first into its system prompt, of another content each time: with it no prompt would begin as
/// one before.
const BILLING: &str = "x-anthropic-billing-header";

/// Answers a conversation.
pub async fn create(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    answer(&state, &request, incoming).await.unwrap_or_else(|refusal| refused(&state, &request, refusal))
}

async fn answer(state: &State, request: &HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| TAKEN.contains(&name) || HINTS.contains(&name));
    let goes_on = |messages: &Value| messages.as_array()?.last().map(|last| last["role"] == "assistant");
    let goes_on = fields.get("messages").and_then(goes_on).unwrap_or(false);
    let fields = translate(fields)?;
    let reply = Message::new(&state.env, &opened.model_id, goes_on);
    let answered = chat::answer(state, request, opened, fields, Some(Box::new(reply))).await;
    Ok(ignored.note(Ok(answered.unwrap_or_else(|refusal| refused(state, request, refusal)))))
}

/// The tokens of a conversation's prompt, without passages.
pub async fn count_tokens(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    counted(&state, &request, incoming).await.unwrap_or_else(|refusal| refused(&state, &request, refusal))
}

async fn counted(state: &State, request: &HttpRequest, incoming: Incoming) -> Answered {
    let opened: &Opened = state.opened()?;
    opened.ragstone.check_room(caller(request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| TAKEN.contains(&name) || HINTS.contains(&name));
    let unasked = |name: &&str| !PROMPT.contains(name);
    fields.ignore(&TAKEN.iter().copied().filter(unasked).collect::<Vec<_>>());
    let mut fields = converted(fields)?;
    check_model(&mut fields, &opened.model_id)?;
    let count = tokenize::count(state, caller(request), opened, fields).await?;
    Ok(ignored.note(Ok(HttpResponse::Ok().json(json!({ "input_tokens": count })))))
}

/// The fields of the chat that means the same.
fn translate(mut fields: Fields) -> Result<Fields> {
    let max_tokens = fields.need::<usize>("max_tokens")?;
    let mut chat = Map::from_iter([("max_tokens".to_owned(), json!(max_tokens))]);
    for (name, own) in [
        ("stream", "stream"),
        ("stop_sequences", "stop"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
    ] {
        if let Some(value) = fields.take_value(name) {
            chat.insert(own.to_owned(), value);
        }
    }
    chat.insert("ragstone".to_owned(), by_the_model(fields.take_value("ragstone")));
    // Where it is enabled, the model thinks as its template has it.
    if fields.take_value("thinking").is_some_and(|thinking| thinking["type"] == "disabled") {
        chat.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": false }));
    }
    let choice = fields.take_value("tool_choice");
    let may_call = fields.has("tools") && choice.as_ref().is_none_or(|choice| choice["type"] != "none");
    if let Some(choice) = choice {
        chat.insert("parallel_tool_calls".to_owned(), json!(choice["disable_parallel_tool_use"] != true));
        chat.insert("tool_choice".to_owned(), tool_choice(&choice)?);
    }
    let format = fields.take_value("output_config").map(|config| config["format"].clone());
    let format = format.filter(|format| !format.is_null()).or(fields.take_value("output_format"));
    // Where tools may be called, the answer may be a call, which has a form of its own.
    if let Some(format) = format.filter(|format| format["type"] == "json_schema" && !may_call) {
        let schema = json!({ "name": "format", "schema": format["schema"] });
        chat.insert("response_format".to_owned(), json!({ "type": "json_schema", "json_schema": schema }));
    }
    let rest = converted(fields)?;
    Ok(rest.with(chat))
}

/// What these clients do not say of sampling is as the model's makers say, unless the request says otherwise.
pub fn by_the_model(extension: Option<Value>) -> Value {
    let mut extension = extension.unwrap_or_else(|| json!({}));
    if let Value::Object(extension) = &mut extension {
        extension.entry("sampling").or_insert_with(|| json!("model"));
    }
    extension
}

/// Model, messages and tools of a chat.
fn converted(mut fields: Fields) -> Result<Fields> {
    fields.ignore(HINTS);
    let mut chat = Map::new();
    if let Some(model) = fields.take::<String>("model")?.filter(|model| !model.starts_with(THEIRS)) {
        chat.insert("model".to_owned(), model.into());
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.take_value("system") {
        let text = texts(system, "system")?;
        let lines: Vec<&str> = text.iter().map(|text| unbilled(text)).filter(|text| !text.is_empty()).collect();
        if !lines.is_empty() {
            messages.push(json!({ "role": "system", "content": lines.join("\n\n") }));
        }
    }
    let sent = fields.need::<Vec<Value>>("messages")?;
    if sent.is_empty() {
        return Err(Error::invalid_field("messages", "`messages` is empty; send at least one user message"));
    }
    let last = sent.len().saturating_sub(1);
    for (index, message) in sent.into_iter().enumerate() {
        take_message(index, index == last, message, &mut messages)?;
    }
    chat.insert("messages".to_owned(), messages.into());
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    if !tools.is_empty() {
        let tools =
            tools.into_iter().enumerate().map(|(index, tool)| function(index, tool)).collect::<Result<Vec<_>>>()?;
        chat.insert("tools".to_owned(), tools.into());
    }
    fields.finish()?;
    Ok(Fields::of(chat))
}

/// A system prompt without the line that differs each time.
fn unbilled(text: &str) -> &str {
    match text.starts_with(BILLING) {
        true => text.split_once('\n').map_or("", |(_, rest)| rest.trim_start()),
        false => text,
    }
}

/// A message of a chat, or several: what tools said are messages of their own there. Turns of one role are one, as templates want them to
/// alternate; a system prompt that comes later is told in the user's turn.
fn take_message(index: usize, is_last: bool, mut message: Value, messages: &mut Vec<Value>) -> Result<()> {
    let at = format!("messages[{index}]");
    let role = match message["role"].as_str() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("system") => "system",
        _ => return Err(Error::invalid_field(format!("{at}.role"), format!("`{at}.role` must be user or assistant"))),
    };
    let blocks = match message.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => vec![json!({ "type": "text", "text": text })],
        Some(Value::Array(blocks)) => blocks,
        _ => {
            let at = format!("{at}.content");
            let message = format!("`{at}` must be a text or a list of blocks");
            return Err(Error::invalid_field(at, message));
        }
    };
    let (mut said, mut calls) = (Vec::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}.content[{number}]");
        match block["type"].as_str() {
            Some("tool_use") => {
                let function = json!({ "name": block["name"], "arguments": block["input"] });
                calls.push(json!({ "id": own_id(&block["id"]), "type": "function", "function": function }));
            }
            Some("tool_result") => {
                let content = result_text(&block, &format!("{at}.content"))?;
                let id = own_id(&block["tool_use_id"]);
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            // What a model thought is not shown to it again.
            Some("thinking" | "redacted_thinking") => {}
            // What cannot be read stays in the conversation for ever.
            _ => match block_text(&block, &at) {
                Ok(text) => said.push(text),
                Err(_) if !is_last => said.push(unseen(&block)),
                Err(error) => return Err(error),
            },
        }
    }
    let mut text = said.join("\n");
    let role = if role == "system" && !messages.is_empty() {
        text = format!("<system-reminder>\n{text}\n</system-reminder>");
        "user"
    } else {
        role
    };
    if !calls.is_empty() {
        let content = if text.is_empty() { Value::Null } else { text.into() };
        messages.push(json!({ "role": role, "content": content, "tool_calls": calls }));
    } else if !said.is_empty() {
        add_turn(messages, role, text);
    }
    Ok(())
}

/// Goes on with the last message where that is the same one's.
fn add_turn(messages: &mut Vec<Value>, role: &str, text: String) {
    let last = messages.last_mut().filter(|last| last["role"] == role && last["tool_calls"].is_null());
    match last.and_then(|last| last.get_mut("content")) {
        Some(Value::String(before)) => {
            before.push('\n');
            before.push_str(&text);
        }
        _ => messages.push(json!({ "role": role, "content": text })),
    }
}

/// What a tool said, as text. What cannot be read is named: the client sends it again with every later turn.
fn result_text(block: &Value, at: &str) -> Result<String> {
    let text = match &block["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |(number, part): (usize, &Value)| match part["type"].as_str() {
                Some("tool_reference") => format!("[tool {}]", part["tool_name"].as_str().unwrap_or_default()),
                _ => block_text(part, &format!("{at}[{number}]")).unwrap_or_else(|_| unseen(part)),
            };
            parts.iter().enumerate().map(text).collect::<Vec<_>>().join("\n")
        }
        _ => return Err(Error::invalid_field(at, format!("`{at}` must be a text or a list of blocks"))),
    };
    Ok(if block["is_error"] == true { format!("Error: {text}") } else { text })
}

/// What stands for a block that cannot be read.
fn unseen(block: &Value) -> String {
    format!("[{}, which this model cannot see]", block["type"].as_str().unwrap_or("a block").replace('_', " "))
}

/// The text of a block: of text, a document of text, or what a search found.
fn block_text(block: &Value, at: &str) -> Result<String> {
    match block["type"].as_str() {
        Some("text") => text_in(block, "text", at),
        Some("document") if block["source"]["type"] == "text" => {
            let title = block["title"].as_str().map(|title| format!("{title}\n\n")).unwrap_or_default();
            Ok(format!("{title}{}", text_in(&block["source"], "data", at)?))
        }
        Some("search_result") => {
            let title = block["title"].as_str().unwrap_or_default();
            Ok(format!("{title}\n{}", texts(block["content"].clone(), &format!("{at}.content"))?.join("\n")))
        }
        kind => {
            let message = format!("blocks of type `{}` are not supported; send text", kind.unwrap_or("no type"));
            Err(Error::invalid_field(format!("{at}.type"), message))
        }
    }
}

/// An id as it was before these clients wanted one that begins so: templates may not take a longer one.
fn own_id(id: &Value) -> Value {
    id.as_str().map_or(Value::Null, |id| id.strip_prefix(message::CALL).unwrap_or(id).into())
}

fn text_in(block: &Value, field: &str, at: &str) -> Result<String> {
    block[field].as_str().map(str::to_owned).ok_or_else(|| {
        let at = format!("{at}.{field}");
        let message = format!("`{at}` must be a text");
        Error::invalid_field(at, message)
    })
}

/// A text, or the texts of blocks.
fn texts(content: Value, at: &str) -> Result<Vec<String>> {
    match content {
        Value::String(text) => Ok(vec![text]),
        Value::Array(blocks) => {
            let text = |(index, block): (usize, &Value)| match block["type"].as_str() {
                Some("text") => text_in(block, "text", &format!("{at}[{index}]")),
                _ => {
                    let message = format!("`{at}[{index}]` must be a block of text: nothing else can be read here");
                    Err(Error::invalid_field(format!("{at}[{index}].type"), message))
                }
            };
            blocks.iter().enumerate().map(text).collect()
        }
        _ => Err(Error::invalid_field(at, format!("`{at}` must be a text or a list of blocks of text"))),
    }
}

/// A tool as chats have it.
fn function(index: usize, mut tool: Value) -> Result<Value> {
    if !matches!(tool["type"].as_str(), None | Some("custom")) {
        let (param, kind) = (format!("tools[{index}].type"), &tool["type"]);
        return Err(Error::invalid_field(
            param,
            format!("tools of type {kind} run at Anthropic's; describe it as a custom tool"),
        ));
    }
    let schema = tool.get_mut("input_schema").map(Value::take).unwrap_or_default();
    let mut function = json!({ "name": tool["name"], "parameters": schema });
    if !tool["description"].is_null() {
        function["description"] = tool["description"].clone();
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_choice(choice: &Value) -> Result<Value> {
    match choice["type"].as_str() {
        Some("auto") => Ok(json!("auto")),
        Some("any") => Ok(json!("required")),
        Some("none") => Ok(json!("none")),
        Some("tool") => Ok(json!({ "type": "function", "function": { "name": choice["name"] } })),
        _ => Err(Error::invalid_field("tool_choice.type", "`tool_choice.type` must be auto, any, tool or none")),
    }
}

/// An error in Anthropic's form.
fn refused(state: &State, request: &HttpRequest, Refusal(error): Refusal) -> HttpResponse {
    reply::refused(state, request, Refusal(renamed(error)), error_body)
}

/// An error of the chat in this endpoint's words.
fn renamed(error: Error) -> Error {
    match error.at_field() {
        _ if error.kind() == ErrorKind::ContextLength => {
            // What Claude Code looks for, to make its conversation shorter.
            let message = format!("prompt is too long: {error}");
            Error::new(ErrorKind::ContextLength, message)
        }
        Some("stop") => {
            let message = error.to_string().replace("`stop`", "`stop_sequences`");
            Error::of_field(error.kind(), "stop_sequences", message)
        }
        Some(field) if field.starts_with("response_format") => {
            Error::of_field(error.kind(), "output_config.format.schema", error.to_string())
        }
        _ => error,
    }
}

/// `{"type": "error", "error": {"type", "message"}}`
pub fn error_body(error: &Error) -> Value {
    let kind = match error.kind() {
        ErrorKind::Unauthenticated => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Overloaded => "rate_limit_error",
        ErrorKind::Unavailable | ErrorKind::Cancelled | ErrorKind::Full => "overloaded_error",
        ErrorKind::DeadlineExceeded => "timeout_error",
        ErrorKind::Corrupt | ErrorKind::DeviceLost | ErrorKind::Internal => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.to_string() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &Value) -> Result<Value> {
        let mut fields = translate(Fields::parse(body.to_string().as_bytes())?)?;
        let mut taken = |name: &str| fields.take_value(name).unwrap_or_default();
        Ok(json!({
            "messages": taken("messages"), "tools": taken("tools"), "choice": taken("tool_choice"), "stop": taken("stop"),
            "model": taken("model"), "format": taken("response_format"),
        }))
    }

    #[test]
    fn a_conversation_with_tools_becomes_a_chat() {
        let body = json!({
            "model": "claude-sonnet-4-5", "max_tokens": 9, "stop_sequences": ["END"], "stream": true, "metadata": { "user_id": "u" },
            "system": [{ "type": "text", "text": "x-anthropic-billing-header: 1" }, { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": "What is it like in Oslo?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Oslo" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "rain" }] },
                    { "type": "text", "text": "And now?" },
                ] },
            ],
            "tools": [{ "name": "weather", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "weather" },
        });
        let chat = chat(&body).unwrap();
        assert_eq!(
            chat["messages"],
            json!([
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "What is it like in Oslo?" },
                { "role": "assistant", "content": "I look.", "tool_calls": [{ "id": "t1", "type": "function",
                    "function": { "name": "weather", "arguments": { "city": "Oslo" } } }] },
                { "role": "tool", "tool_call_id": "t1", "content": "rain" },
                { "role": "user", "content": "And now?" },
            ])
        );
        assert_eq!(
            chat["tools"][0]["function"],
            json!({ "name": "weather", "description": "d", "parameters": { "type": "object" } })
        );
        assert_eq!(
            (&chat["choice"]["function"]["name"], &chat["stop"], &chat["model"]),
            (&json!("weather"), &json!(["END"]), &Value::Null)
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let of = |change: fn(&mut Value)| {
            let mut body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "a" }] });
            change(&mut body);
            chat(&body).unwrap_err().at_field().map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(of(|body| body["max_tokens"] = Value::Null), "max_tokens");
        assert_eq!(of(|body| body["messages"] = Value::Null), "messages");
        assert_eq!(of(|body| body["messages"][0]["role"] = json!("tool")), "messages[0].role");
        assert_eq!(of(|body| body["messages"][0]["content"] = json!(7)), "messages[0].content");
        assert_eq!(
            of(|body| body["messages"][0]["content"] = json!([{ "type": "image" }])),
            "messages[0].content[0].type"
        );
        assert_eq!(
            of(|body| body["messages"][0]["content"] = json!([{ "type": "text" }])),
            "messages[0].content[0].text"
        );
        assert_eq!(of(|body| body["tools"] = json!([{ "type": "web_search_20250305", "name": "s" }])), "tools[0].type");
        assert_eq!(of(|body| body["tool_choice"] = json!({ "type": "some" })), "tool_choice.type");
        assert_eq!(of(|body| body["system"] = json!([{ "type": "image" }])), "system[0].type");
    }

    /// As Claude Code sends them.
    #[test]
    fn a_conversation_goes_on_though_something_in_it_cannot_be_read() {
        let picture = json!({ "type": "image", "source": { "type": "url", "url": "x" } });
        let body = json!({
            "max_tokens": 9, "system": "x-anthropic-billing-header: 7\nBe brief.",
            "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": { "type": "null" } } },
            "messages": [
                { "role": "user", "content": [picture, { "type": "text", "text": "Look." }] },
                { "role": "assistant", "content": [{ "type": "tool_use", "id": "toolu_a", "name": "read", "input": {} }] },
                { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "toolu_a", "is_error": true, "content": [picture] }] },
                { "role": "system", "content": "One file changed." },
                { "role": "user", "content": "Go on." },
            ],
        });
        let read = chat(&body).unwrap();
        assert_eq!(
            read["messages"],
            json!([
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "[image, which this model cannot see]\nLook." },
                { "role": "assistant", "content": null, "tool_calls": [{ "id": "a", "type": "function",
                    "function": { "name": "read", "arguments": {} } }] },
                { "role": "tool", "tool_call_id": "a", "content": "Error: [image, which this model cannot see]" },
                { "role": "user", "content": "<system-reminder>\nOne file changed.\n</system-reminder>\nGo on." },
            ])
        );
        assert_eq!(read["format"]["json_schema"]["schema"], json!({ "type": "null" }));
        let error = renamed(Error::new(ErrorKind::ContextLength, "9 tokens"));
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::ContextLength, "prompt is too long: 9 tokens")
        );
    }

    #[test]
    fn sampling_is_the_models_unless_the_request_says_so() {
        assert_eq!(by_the_model(None), json!({ "sampling": "model" }));
        assert_eq!(
            by_the_model(Some(json!({ "sampling": "openai", "top_k": 2 }))),
            json!({ "sampling": "openai", "top_k": 2 })
        );
    }
}
