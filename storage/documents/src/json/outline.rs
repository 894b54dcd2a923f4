//! Objects in objects as text: titles are headings, fields are lines with the way to them, and what is prose is paragraphs.

use serde_json::{Map, Value};

use super::rows::{Rows, cell, flat};
use super::said;
use crate::body::Body;
use crate::html::{self, Page};

/// Words of a text that somebody wrote; names and settings have fewer.
const PROSE_WORDS: usize = 5;
/// Letters of prose for which a file is read as text.
const MIN_PROSE_BYTES: usize = 30;
/// A longer way is told by its last part.
const MAX_WAY_BYTES: usize = 200;
const MAX_LEVEL: u8 = 6;
/// Objects of a list that is a table.
const MIN_ROWS: usize = 2;

/// Whether what is said in a value is mostly prose.
pub fn is_prose(value: &Map<String, Value>) -> bool {
    let (mut prose, mut all) = (0, 0);
    value.values().for_each(|value| count(value, &mut prose, &mut all));
    prose >= MIN_PROSE_BYTES && prose * 2 >= all
}

/// Whether a value has any prose in it.
pub fn has_prose(value: &Value) -> bool {
    let (mut prose, mut all) = (0, 0);
    count(value, &mut prose, &mut all);
    prose > 0
}

fn count(value: &Value, prose: &mut usize, all: &mut usize) {
    match value {
        Value::String(text) => {
            *all += text.len();
            *prose += if is_sentence(text) { text.len() } else { 0 };
        }
        Value::Number(_) => *all += 1,
        Value::Array(items) => items.iter().for_each(|item| count(item, prose, all)),
        Value::Object(object) => object.values().for_each(|value| count(value, prose, all)),
        Value::Null | Value::Bool(_) => {}
    }
}

fn is_sentence(text: &str) -> bool {
    text.split_whitespace().nth(PROSE_WORDS - 1).is_some()
}

/// Writes a value; `way` leads to it, such as `export / version`, and headings in it have this level.
pub fn put(value: &Value, way: &str, level: u8, body: &mut Body) {
    match value {
        Value::Object(object) => put_object(object, way, level, body),
        Value::Array(items) => put_list(items, way, level, body),
        other => put_field(way, &cell(other).unwrap_or_default(), body),
    }
}

fn put_object(object: &Map<String, Value>, way: &str, level: u8, body: &mut Body) {
    body.end_block();
    let title = said::title(object);
    if let Some((_, title)) = &title {
        body.heading(level, title);
    }
    let (way, level) = if title.is_some() { ("", (level + 1).min(MAX_LEVEL)) } else { (way, level) };
    let is_title = |key: &str| title.as_ref().is_some_and(|(title, _)| *title == key);
    let (singles, others): (Vec<_>, Vec<_>) =
        object.iter().filter(|(key, _)| !is_title(key)).partition(|(_, value)| cell(value).is_some());
    for (key, value) in singles {
        let text = cell(value).unwrap_or_default();
        if said::is_text(key) && is_sentence(&text) {
            put_text(&text, body);
        } else {
            put_field(&joined(way, key), &text, body);
        }
    }
    for (key, value) in others {
        put(value, &joined(way, key), level, body);
    }
    body.end_block();
}

fn put_list(items: &[Value], way: &str, level: u8, body: &mut Body) {
    let rows: Option<Vec<_>> =
        items.iter().map(|item| item.as_object().filter(|_| !has_prose(item)).and_then(flat)).collect();
    if let Some(found) = rows.filter(|rows| rows.len() >= MIN_ROWS) {
        let mut rows = Rows::default();
        found.into_iter().for_each(|row| rows.add(row));
        body.paragraph(way);
        return rows.put(body);
    }
    for item in items {
        put(item, way, level, body);
    }
}

fn put_field(way: &str, value: &str, body: &mut Body) {
    if !value.is_empty() {
        let is_plain = way.is_empty();
        body.line(&if is_plain { value.to_owned() } else { format!("{way}: {value}") });
    }
}

fn joined(way: &str, key: &str) -> String {
    if way.is_empty() || way.len() + key.len() > MAX_WAY_BYTES { key.to_owned() } else { format!("{way} / {key}") }
}

/// A text as somebody wrote it, or as HTML, which begins with a tag and ends some.
pub fn put_text(text: &str, body: &mut Body) {
    let text = text.trim();
    let is_tag = text.strip_prefix('<').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    if is_tag && (text.contains("</") || text.contains("<br")) {
        let mut page = Page { body: std::mem::take(body), ..Page::default() };
        let read = html::append(text, &mut page);
        *body = page.body;
        if read.is_ok() {
            return;
        }
    }
    body.paragraph(text);
    body.end_block();
}
