//! What a record says: its text, its title, and who said what, by the names that programs give these.

use serde_json::{Map, Value};

use crate::body::one_line;

/// Names of a record's text, the first that is there. `text` comes before these.
const TEXTS: [&str; 7] = ["content", "body", "page_content", "contents", "markdown", "message", "description"];
/// Where a record's text nests.
const INNER: [&str; 8] = ["text", "parts", "content", "value", "rendered", "body", "markdown", "html"];
const TITLES: [&str; 5] = ["title", "name", "subject", "heading", "headline"];
const MESSAGES: [&str; 5] = ["messages", "chat_messages", "conversation", "conversations", "turns"];
const SPEAKERS: [&str; 6] = ["role", "sender", "from", "author", "speaker", "user"];
const ROLES: [&str; 9] = ["user", "assistant", "system", "developer", "tool", "function", "human", "model", "bot"];
/// Title and source stand beside each of a document's passages.
const MAX_TITLE_BYTES: usize = 1000;

/// One message of a conversation.
pub type Message = (String, String);

/// A record's text.
pub enum Said {
    Text(String),
    Conversation(Vec<Message>),
}

/// Whether a text field is one of many others in programs' logs and lists.
pub fn is_weak(key: &str) -> bool {
    matches!(key, "message" | "description")
}

/// The field with a record's text.
pub fn said(object: &Map<String, Value>) -> Option<(&'static str, Said)> {
    let conversation = MESSAGES.into_iter().find_map(|key| Some((key, conversation(object.get(key)?)?)));
    let tree = || Some(("mapping", tree(object.get("mapping")?)?));
    if let Some((key, messages)) = conversation.or_else(tree) {
        return Some((key, Said::Conversation(messages)));
    }
    let mut keys = ["text"].into_iter().chain(TEXTS);
    keys.find_map(|key| Some((key, Said::Text(object.get(key).and_then(text)?))))
}

/// A text, or several of them, or what has one.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Value::Array(parts) => {
            let parts: Vec<String> = parts.iter().filter_map(text).collect();
            (!parts.is_empty()).then(|| parts.join("\n\n"))
        }
        Value::Object(object) => INNER.into_iter().find_map(|key| object.get(key).and_then(text)),
        _ => None,
    }
}

/// The field with a record's title, and that.
pub fn title(object: &Map<String, Value>) -> Option<(&'static str, String)> {
    let of = |key: &'static str| {
        let title = match object.get(key)? {
            Value::String(title) => one_line(title),
            nested @ Value::Object(_) => one_line(&text(nested)?),
            _ => return None,
        };
        (!title.is_empty() && title.len() <= MAX_TITLE_BYTES).then_some((key, title))
    };
    TITLES.into_iter().find_map(of)
}

/// Whether a field is a title's.
pub fn is_title(key: &str) -> bool {
    TITLES.contains(&key)
}

/// Whether a field is a text's.
pub fn is_text(key: &str) -> bool {
    key == "text" || TEXTS.contains(&key)
}

/// A record that is one message of a conversation with a model.
pub fn message(object: &Map<String, Value>) -> Option<Message> {
    let role = object.get("role")?.as_str().filter(|role| ROLES.contains(role))?;
    Some((role.to_owned(), object.get("content").and_then(text)?))
}

/// Messages as text.
pub fn transcript(messages: &[Message]) -> String {
    let lines: Vec<String> = messages.iter().map(|(speaker, text)| format!("{speaker}: {text}")).collect();
    lines.join("\n\n")
}

/// Messages with their speakers; those without a text, such as calls of tools, are skipped.
fn conversation(value: &Value) -> Option<Vec<Message>> {
    let one = |value: &Value| -> Option<Option<Message>> {
        let object = value.as_object()?;
        let speaker = SPEAKERS.into_iter().find_map(|key| speaker(object.get(key)?))?;
        let said = ["content", "text", "value", "message", "body"].into_iter();
        let text = said.filter_map(|key| object.get(key)).find_map(text);
        Some(text.map(|text| (speaker, text)))
    };
    let messages: Option<Vec<Option<Message>>> = value.as_array()?.iter().map(one).collect();
    let messages: Vec<Message> = messages?.into_iter().flatten().collect();
    (!messages.is_empty()).then_some(messages)
}

fn speaker(value: &Value) -> Option<String> {
    match value {
        Value::String(name) => Some(name.clone()).filter(|name| !name.trim().is_empty()),
        Value::Object(object) => {
            ["role", "name"].into_iter().find_map(|key| object.get(key)?.as_str()).map(str::to_owned)
        }
        _ => None,
    }
}

/// Messages that know the one before them, by an id each, in the order of time.
fn tree(mapping: &Value) -> Option<Vec<Message>> {
    let mut found = Vec::new();
    for message in mapping.as_object()?.values().filter_map(|node| node.get("message")?.as_object()) {
        let time = message.get("create_time").and_then(Value::as_f64).unwrap_or(0.0);
        let (who, text) = (message.get("author").and_then(speaker), message.get("content").and_then(text));
        if let (Some(who), Some(text)) = (who.filter(|who| who != "system"), text) {
            found.push((time, (who, text)));
        }
    }
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    (!found.is_empty()).then(|| found.into_iter().map(|(_, message)| message).collect())
}
