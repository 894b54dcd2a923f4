//! Items of responses and conversations, and the messages of a chat that mean the same.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::http::generation::text_of;

/// Who says a message.
const ROLES: &[&str] = &["user", "assistant", "system", "developer"];

/// The items that `field` sends: a text is a message of the user's.
///
/// # Errors
/// `InvalidInput`.
pub fn as_items(field: &str, value: Value) -> Result<Vec<Value>> {
    match value {
        Value::String(text) => Ok(vec![json!({ "role": "user", "content": text })]),
        Value::Array(items) => Ok(items),
        _ => Err(Error::invalid_field(field, format!("`{field}` must be a text or a list of items"))),
    }
}

/// The messages that items mean. Those of `field` are named in errors.
///
/// # Errors
/// `InvalidInput` for an item that no chat has.
pub fn messages(field: &str, items: Vec<Value>) -> Result<Vec<Value>> {
    let mut messages = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        take_item(&format!("{field}[{index}]"), item, &mut messages)?;
    }
    Ok(messages)
}

/// A message, a call, or what a tool said, as a message of a chat.
fn take_item(at: &str, mut item: Value, messages: &mut Vec<Value>) -> Result<()> {
    if !item.is_object() {
        return Err(Error::invalid_field(at, format!("`{at}` must be an object")));
    }
    match item["type"].as_str() {
        None | Some("message") => {
            let role = item["role"].as_str().unwrap_or_default();
            if !ROLES.contains(&role) {
                let message = format!("`{at}.role` must be one of {}", ROLES.join(", "));
                return Err(Error::invalid_field(format!("{at}.role"), message));
            }
            let text = text(at, "content", &mut item)?;
            messages.push(json!({ "role": item["role"], "content": text }));
        }
        Some("function_call") => {
            need_texts(at, &item, &["call_id", "name", "arguments"])?;
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            // What was said before a call is of the same turn: the model wrote one, and some templates refuse two in a row.
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(Value::Object(last)) => {
                    if let Value::Array(calls) = last.entry("tool_calls").or_insert_with(|| json!([])) {
                        calls.push(call);
                    }
                }
                _ => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
            }
        }
        Some("function_call_output") => {
            need_texts(at, &item, &["call_id"])?;
            let text = text(at, "output", &mut item)?;
            messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": text }));
        }
        // What a model thought is not shown to it again.
        Some("reasoning") => {}
        Some(kind) => {
            let message = format!("items of type `{kind}` are not supported");
            return Err(Error::invalid_field(format!("{at}.type"), message));
        }
    }
    Ok(())
}

/// Whether fields of an item are texts. What is wrong with an item is said when it comes, as it may be kept, and not when somebody goes on from it.
fn need_texts(at: &str, item: &Value, fields: &[&str]) -> Result<()> {
    match fields.iter().find(|field| !item[**field].is_string()) {
        Some(field) => {
            let field = format!("{at}.{field}");
            Err(Error::invalid_field(&*field, format!("`{field}` must be a text")))
        }
        None => Ok(()),
    }
}

/// The text of a field: one, or a list of parts.
fn text(at: &str, field: &str, item: &mut Value) -> Result<String> {
    let param = format!("{at}.{field}");
    let content = match item.get_mut(field).map(Value::take).unwrap_or_default() {
        Value::Null => return Err(Error::invalid_field(&*param, format!("`{param}` is missing"))),
        Value::Array(parts) => parts.into_iter().map(text_part).collect(),
        other => other,
    };
    text_of(content, &param)
}

fn text_part(part: Value) -> Value {
    match part["type"].as_str() {
        Some("input_text" | "output_text") => json!({ "type": "text", "text": part["text"] }),
        _ => part,
    }
}

/// What is kept of an item, and of a part of its content.
const KEPT: &[&str] = &["type", "id", "status", "role", "content", "call_id", "name", "arguments", "output", "summary"];
const KEPT_OF_PARTS: &[&str] = &["type", "text"];

/// An item as it is listed: with its type, a status, an id, and its text in parts. Fields that mean nothing here are left out. `id` makes one of a
/// kind.
pub fn identified(mut item: Value, id: impl Fn(&str) -> String) -> Value {
    if let Value::Object(fields) = &mut item {
        fields.retain(|name, _| KEPT.contains(&name.as_str()));
        for name in ["content", "output", "summary"] {
            for part in fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Value::Object(part) = part {
                    part.retain(|name, _| KEPT_OF_PARTS.contains(&name.as_str()));
                }
            }
        }
    }
    let kind = item["type"].as_str().unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "function_call" => "fc",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        _ => "msg",
    };
    let is_own = item["id"].as_str().is_some_and(|id| !id.is_empty());
    if let Value::Object(fields) = &mut item {
        if !is_own {
            fields.insert("id".to_owned(), id(prefix).into());
        }
        fields.entry("status").or_insert_with(|| "completed".into());
        fields.insert("type".to_owned(), kind.into());
        let part =
            if fields.get("role").is_some_and(|role| role == "assistant") { "output_text" } else { "input_text" };
        if let Some(content @ Value::String(_)) = fields.get_mut("content") {
            let text = content.take();
            *content = json!([{ "type": part, "text": text }]);
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mistral's template refuses two turns of the assistant in a row.
    #[test]
    fn what_was_said_before_a_call_is_of_its_turn() {
        let call =
            |id: &str| json!({ "type": "function_call", "call_id": id, "name": "find", "arguments": "{}", "id": id });
        let items = vec![
            json!({ "role": "user", "content": "Where is it?" }),
            json!({ "role": "assistant", "content": "I will look." }),
            call("a"),
            call("b"),
            json!({ "type": "function_call_output", "call_id": "a", "output": "here" }),
            json!({ "type": "function_call_output", "call_id": "b", "output": "there" }),
            call("c"),
        ];
        let messages = messages("input", items).unwrap();
        let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"]);
        assert_eq!(messages[1]["content"], "I will look.");
        let ids: Vec<_> = messages[1]["tool_calls"].as_array().unwrap().iter().map(|call| &call["id"]).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!((&messages[4]["content"], &messages[4]["tool_calls"][0]["id"]), (&Value::Null, &json!("c")));
    }

    #[test]
    fn items_have_ids_types_and_parts() {
        let made = |item: Value| identified(item, |kind| format!("{kind}_1"));
        assert_eq!(
            made(json!({ "role": "user", "content": "Hi" })),
            json!({
                "role": "user", "content": [{ "type": "input_text", "text": "Hi" }], "id": "msg_1", "status": "completed",
                "type": "message",
            })
        );
        let junk =
            json!({ "role": "user", "content": [{ "type": "input_text", "text": "Hi", "x": [0] }], "junk": [[0]] });
        assert_eq!(made(junk), made(json!({ "role": "user", "content": "Hi" })));
        let call = json!({ "type": "function_call", "id": "own", "call_id": "c", "name": "f", "arguments": "{}" });
        assert_eq!(made(call.clone())["id"], "own");
        assert_eq!(made(json!({ "role": "assistant", "content": "Yes" }))["content"][0]["type"], "output_text");
        assert_eq!(messages("input", vec![made(call)]).unwrap()[0]["tool_calls"][0]["id"], "c");
        for bad in [
            json!(7),
            json!({}),
            json!({ "type": "image_generation_call" }),
            json!({ "role": "nobody", "content": "x" }),
            json!({ "role": "user" }),
            json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }),
            json!({ "type": "function_call", "call_id": "c", "name": "f" }),
            json!({ "type": "function_call_output", "output": "x" }),
        ] {
            assert!(messages("items", vec![bad]).unwrap_err().at_field().unwrap().starts_with("items[0]"));
        }
    }
}
