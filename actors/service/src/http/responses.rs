//! `/v1/responses`. A request is turned into the fields of a chat, behind the turns that it goes on from, so that both endpoints mean the
//! same by each; its answer is kept for those that refer to it ([`kept`]).

pub mod items;
pub mod kept;
mod stored;
pub mod stream;

pub use self::stored::paths;

use actix_web::{HttpRequest, web};
use serde_json::{Map, Value, json};

use self::kept::Before;
use self::stream::ResponseStream;
use super::body::{Incoming, value_bytes};
use super::chat;
use super::fields::Fields;
use crate::conversations::secret_id;
use crate::error::{Error, Result};
use crate::http::error::{Answered, Refusal};
use crate::http::state::{State, caller};
use crate::lanes::Work;

/// What this endpoint takes.
const TAKEN: &[&str] = &[
    "model",
    "ragstone",
    "input",
    "instructions",
    "stream",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_logprobs",
    "text",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "previous_response_id",
    "conversation",
    "metadata",
    "prompt",
    "background",
    "max_tool_calls",
];

/// Without effect on the answer.
const HINTS: &[&str] = &[
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "truncation",
    "include",
    "stream_options",
];

/// What an answer may repeat of its request, in bytes of memory: more than the tools and instructions take that models read. It is held until the
/// answer is read, and is kept with it.
const MOST_REPEATED: usize = 4 << 20;

/// Answers a text or a list of items.
pub async fn create(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| TAKEN.contains(&name) || HINTS.contains(&name));
    fields.ignore(HINTS);
    let asked = async {
        let input = kept::input(&mut fields)?;
        let refers = fields.has("previous_response_id") || fields.has("conversation");
        // What is read again takes memory.
        let place = if refers { Some(state.place(&request, Work::Look).await?) } else { None };
        let before = Before::take(&mut fields, &input, &opened.conversations, &request).await?;
        drop(place);
        translate(fields, before, input)
    };
    let id = secret_id("resp")?;
    let answered = match asked.await {
        Ok((fields, asked)) => {
            let reply = ResponseStream::new(id, &state.env, &opened.model_id, asked);
            let answered = chat::answer(&state, &request, opened, fields, Some(Box::new(reply))).await;
            answered.map_err(|Refusal(error)| Refusal(renamed(error)))
        }
        Err(error) => Err(error.into()),
    };
    Ok(ignored.note(answered))
}

/// What the answer repeats of its request, and how it is kept.
#[derive(Debug, Default)]
pub struct Requested {
    pub echo: Map<String, Value>,
    pub keeping: Option<kept::Keeping>,
}

/// The fields of the chat that means the same.
fn translate(mut fields: Fields, before: Before, input: Vec<Value>) -> Result<(Fields, Requested)> {
    refuse_others(&mut fields)?;
    let mut messages: Vec<Value> = Vec::new();
    let instructions = fields.take::<String>("instructions")?;
    if let Some(text) = &instructions {
        messages.push(json!({ "role": "system", "content": text }));
    }
    messages.extend(items::messages("input", before.items)?);
    messages.extend(items::messages("input", input)?);
    let mut chat = Map::from_iter([("messages".to_owned(), Value::Array(messages))]);
    let mut echo = before.echo;
    echo.insert("instructions".to_owned(), instructions.into());
    for (name, own) in [
        ("model", "model"),
        ("ragstone", "ragstone"),
        ("stream", "stream"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("max_output_tokens", "max_completion_tokens"),
        ("tool_choice", "tool_choice"),
        ("parallel_tool_calls", "parallel_tool_calls"),
    ] {
        let value = fields.take_value(name).unwrap_or_default();
        if !matches!(name, "model" | "ragstone" | "stream") {
            echo.insert(name.to_owned(), value.clone());
        }
        chat.insert(own.to_owned(), value);
    }
    let reasoning = fields.take::<Map<String, Value>>("reasoning")?.unwrap_or_default();
    chat.insert("reasoning_effort".to_owned(), reasoning.get("effort").cloned().unwrap_or_default());
    echo.insert("reasoning".to_owned(), reasoning.into());
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    echo.insert("tools".to_owned(), tools.clone().into());
    chat.insert("tools".to_owned(), tools.into_iter().map(nested).collect());
    let text = fields.take::<Map<String, Value>>("text")?.unwrap_or_default();
    if let Some(format) = text.get("format").filter(|format| !format.is_null()) {
        chat.insert("response_format".to_owned(), response_format(format));
    }
    echo.insert("text".to_owned(), if text.is_empty() { json!({ "format": { "type": "text" } }) } else { text.into() });
    fields.finish()?;
    check_repeated(&echo)?;
    Ok((Fields::of(chat), Requested { echo, keeping: before.keeping }))
}

/// Refuses a request of which the answer would repeat too much.
///
/// # Errors
/// `InvalidInput`, at the field that takes most.
fn check_repeated(echo: &Map<String, Value>) -> Result<()> {
    let sizes: Vec<(usize, &String)> = echo.iter().map(|(name, value)| (value_bytes(value), name)).collect();
    let total: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
    match sizes.iter().max() {
        Some((bytes, name)) if total > MOST_REPEATED => {
            let message = format!(
                "an answer repeats `{name}`, which would take {bytes} bytes of memory; all that it repeats of its request may take \
                 {MOST_REPEATED}: send less there"
            );
            Err(Error::invalid_field(name.as_str(), message))
        }
        _ => Ok(()),
    }
}

/// What no answer has here.
fn refuse_others(fields: &mut Fields) -> Result<()> {
    fields.refuse_unless("background", |value| *value == false)?;
    for name in ["prompt", "max_tool_calls"] {
        fields.refuse_unless(name, |_| false)?;
    }
    fields.refuse_unless("top_logprobs", |value| *value == 0)
}

/// A function as chats have it. What is none is refused there.
fn nested(tool: Value) -> Value {
    let Value::Object(mut function) = tool else { return tool };
    let kind = function.shift_remove("type").unwrap_or_default();
    json!({ "type": kind, "function": function })
}

fn response_format(format: &Value) -> Value {
    match format["type"].as_str() {
        Some("json_schema") => json!({ "type": "json_schema", "json_schema": format }),
        _ => format.clone(),
    }
}

/// An error of the chat names this endpoint's fields.
fn renamed(error: Error) -> Error {
    let Some(param) = error.at_field() else { return error };
    let own = [
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
    ];
    match own.into_iter().find(|(name, _)| param.starts_with(name)) {
        Some((name, own)) => {
            let param = param.replacen(name, own, 1);
            Error::of_field(error.kind(), param, error.to_string().replace(name, own))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> Result<Value> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let input = kept::input(&mut fields)?;
        let (mut fields, _) = translate(fields, Before::default(), input)?;
        let messages = fields.take_value("messages").unwrap_or_default();
        let format = fields.take_value("response_format").unwrap_or_default();
        Ok(json!([messages, fields.take_value("tools"), format]))
    }

    #[test]
    fn items_become_messages() {
        assert_eq!(
            chat(r#"{"input": "Hi", "instructions": "Be brief."}"#).unwrap()[0],
            json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hi" }])
        );
        let body = r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "7"}],
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}}}}"#;
        let read = chat(body).unwrap();
        assert_eq!(read[0][0]["content"], "a");
        assert_eq!(read[0][1]["tool_calls"].as_array().map(Vec::len), Some(2));
        assert_eq!(read[0][2], json!({ "role": "tool", "tool_call_id": "c", "content": "7" }));
        assert_eq!(read[1], json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]));
        assert_eq!(read[2]["json_schema"]["schema"], json!({ "type": "null" }));
    }

    #[test]
    fn earlier_turns_stand_between_instructions_and_input() {
        let items = vec![
            json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "a" }] }),
            json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] }),
        ];
        let fields = Fields::parse(br#"{"instructions": "i"}"#).unwrap();
        let before = Before { items, ..Before::default() };
        let input = vec![json!({ "role": "user", "content": "c" })];
        let (mut chat, _) = translate(fields, before, input).unwrap();
        let messages = chat.take_value("messages").unwrap();
        let roles: Vec<_> = messages.as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[2]["content"], "b");
    }

    #[test]
    fn the_described_fields_are_taken() {
        let document = crate::api::openapi::document();
        let described =
            document["components"]["schemas"]["ResponsesRequest"]["properties"].as_object().unwrap().clone();
        // The others are taken to be refused.
        assert_eq!(described.len(), TAKEN.len() - 4);
        assert!(described.keys().all(|name| TAKEN.contains(&name.as_str())), "{described:?}");
    }

    #[test]
    fn what_no_answer_has_is_refused_by_name() {
        for (body, param) in [
            (r#"{"input": "a", "background": true}"#, "background"),
            (r#"{"input": "a", "prompt": {"id": "p"}}"#, "prompt"),
            (r#"{"input": 7}"#, "input"),
            (r#"{"input": [7]}"#, "input[0]"),
            (r#"{}"#, "input"),
            (r#"{"input": [{"type": "item_reference", "id": "x"}]}"#, "input[0].type"),
        ] {
            assert_eq!(chat(body).unwrap_err().at_field(), Some(param), "{body}");
        }
        chat(r#"{"input": "a", "background": false, "max_tool_calls": null}"#).unwrap();
    }

    #[test]
    fn what_an_answer_repeats_is_as_it_was_sent_and_bounded() {
        let repeated = |body: Value| {
            let mut fields = Fields::parse(body.to_string().as_bytes())?;
            let input = kept::input(&mut fields)?;
            translate(fields, Before::default(), input).map(|(_, requested)| requested.echo)
        };
        let tool = json!({ "type": "function", "name": "f", "description": "d".repeat(4000), "parameters": {} });
        let said = json!({
            "instructions": "Be brief.", "reasoning": { "effort": "none", "summary": "auto" }, "tools": vec![tool; 500],
            "text": { "format": { "type": "text" }, "verbosity": "low" },
        });
        let mut body = said.clone();
        body["input"] = json!("a");
        let echo = repeated(body).unwrap();
        assert!(said.as_object().unwrap().iter().all(|(name, value)| echo[name] == *value), "{echo:?}");
        for (field, value) in [
            ("reasoning", json!({ "effort": "none", "x": vec![0; 100_000] })),
            ("text", json!({ "x": vec![0; 100_000] })),
            ("tools", json!([{ "type": "function", "x": vec![0; 100_000] }])),
            ("instructions", json!("i".repeat(MOST_REPEATED))),
        ] {
            let error = repeated(json!({ "input": "a", field: value })).unwrap_err();
            assert_eq!(error.at_field(), Some(field), "{error}");
            assert!(error.to_string().contains(&MOST_REPEATED.to_string()), "{error}");
        }
    }

    #[test]
    fn errors_name_this_endpoints_fields() {
        for (theirs, own) in [
            ("response_format.json_schema.schema", "text.format.schema"),
            ("response_format", "text.format"),
            ("max_tokens", "max_output_tokens"),
            ("messages[2].content", "input[2].content"),
            ("temperature", "temperature"),
        ] {
            let error = renamed(Error::invalid_field(theirs, format!("`{theirs}` is wrong")));
            assert_eq!((error.at_field(), error.to_string()), (Some(own), format!("`{own}` is wrong")));
        }
    }
}
