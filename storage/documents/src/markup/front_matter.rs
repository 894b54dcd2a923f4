//! Front matter as text: what people write there is asked for, such as who was at a meeting.

use serde_yaml_ng::Value;

use crate::body::one_line;

/// As of metadata: a parser of YAML takes the square of the time for what nests.
const MAX_YAML_BYTES: usize = 16 << 10;
/// Longer values are no fields that people write.
const MAX_VALUE_BYTES: usize = 500;
const MAX_TEXT_BYTES: usize = 4000;

/// Fields for the programs that make pages of a text.
const MACHINERY: &[&str] = &[
    "layout",
    "permalink",
    "slug",
    "url",
    "id",
    "uuid",
    "uid",
    "guid",
    "weight",
    "order",
    "draft",
    "published",
    "publish",
    "nav_order",
    "nav_exclude",
    "has_children",
    "sidebar",
    "sidebar_label",
    "sidebar_position",
    "template",
    "theme",
    "cssclass",
    "cssclasses",
    "css",
    "output",
    "format",
    "toc",
    "redirect_from",
    "redirect_to",
    "image",
    "images",
    "cover",
    "thumbnail",
    "icon",
    "comments",
    "math",
    "mathjax",
    "katex",
    "highlight",
    "type",
    "pagination",
    "hide",
    "search",
    "bibliography",
    "csl",
    "header-includes",
    "geometry",
    "fontsize",
    "documentclass",
    "mainfont",
    "kernelspec",
    "jupyter",
    "jupytext",
    "lang",
    "language",
    "robots",
    "canonical",
    "canonical_url",
    "hide_title",
    "hide_table_of_contents",
];

/// The fields that people write, one a line; none that says the title again.
pub fn text(yaml: &str, title: Option<&str>) -> String {
    let mut text = String::new();
    if yaml.len() > MAX_YAML_BYTES {
        return text;
    }
    let Ok(Value::Mapping(fields)) = serde_yaml_ng::from_str(yaml) else { return text };
    for (key, value) in &fields {
        let (Some(key), Some(value)) = (scalar(key).map(|key| one_line(&key)), said(value)) else { continue };
        let is_title = key.eq_ignore_ascii_case("title") && title.is_some_and(|title| one_line(title) == value);
        let is_machinery = MACHINERY.contains(&key.to_ascii_lowercase().as_str());
        let is_too_long = value.len() > MAX_VALUE_BYTES || text.len() + key.len() + value.len() > MAX_TEXT_BYTES;
        if !(value.is_empty() || is_title || is_machinery || is_too_long) {
            text.push_str(if text.is_empty() { "" } else { "\n" });
            text.push_str(&format!("{key}: {value}"));
        }
    }
    text
}

/// A value, or several, on one line.
fn said(value: &Value) -> Option<String> {
    match value {
        Value::Sequence(items) => {
            let items: Option<Vec<String>> = items.iter().map(scalar).collect();
            Some(one_line(&items?.join(", ")))
        }
        other => scalar(other).map(|value| one_line(&value)),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.replace('\0', "")),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(if *is { "yes" } else { "no" }.to_owned()),
        _ => None,
    }
}
