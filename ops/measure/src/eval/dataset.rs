//! Data sets of questions with their own passages: an array of
//!
//! ```json
//! {"question": "…", "ctxs": [{"title": "…", "text": "…"}], "answers": ["…"], "type": "T2"}
//! ```
//!
//! `title`, `answers` and `type` may be missing, other fields are not looked at. MuSiQue as CacheBlend published it has no
//! types; the demo model's data sets have `type`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub question: String,
    /// At least one, in prompt order.
    pub passages: Vec<Passage>,
    /// Right answers, each as good as the others; only of a data set that was read for them, and then at least one.
    pub answers: Vec<String>,
    /// The kind of question, where the data set has it and was read for its answers.
    pub kind: Option<String>,
}

/// One passage of a question. Its title may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    pub title: String,
    pub text: String,
}

/// Reads questions and passages.
///
/// # Errors
/// `InvalidInput` that names the file, the item (the first is 0) and the field.
pub fn read(path: &Path) -> Result<Vec<Item>> {
    read_for(path, false)
}

/// Reads questions, passages and answers.
///
/// # Errors
/// As [`read`], also for a question without an answer.
pub fn read_answered(path: &Path) -> Result<Vec<Item>> {
    read_for(path, true)
}

fn read_for(path: &Path, answers: bool) -> Result<Vec<Item>> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("cannot read the data set", path, error))?;
    parse(&bytes, answers).map_err(|why| {
        let more = if answers { ", \"answers\": [\"…\"], \"type\"?" } else { "" };
        let shape = format!("an array of {{\"question\", \"ctxs\": [{{\"title\"?, \"text\"}}]{more}}}");
        Error::invalid_input(format!(
            "{} is not a data set of questions with passages ({shape}): {why}",
            path.display()
        ))
    })
}

fn parse(bytes: &[u8], answers: bool) -> Result<Vec<Item>, String> {
    let whole: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let Value::Array(items) = whole else { return Err(format!("the file holds {}, no array", kind_of(&whole))) };
    if items.is_empty() {
        return Err("it has no questions".into());
    }
    let item = |(at, item)| parse_item(item, answers).map_err(|why| format!("item {at}: {why}"));
    items.iter().enumerate().map(item).collect()
}

fn parse_item(item: &Value, answers: bool) -> Result<Item, String> {
    let fields = object(item, "it")?;
    let passages = list(fields, "ctxs", "")?.ok_or("`ctxs` is missing")?;
    if passages.is_empty() {
        return Err("`ctxs` is empty; a question needs at least one passage".into());
    }
    let passage = |(at, passage): (usize, &Value)| {
        let place = format!("ctxs[{at}]");
        let fields = object(passage, &format!("`{place}`"))?;
        let title = text(fields, "title", &format!("{place}."))?.unwrap_or_default();
        let text = text(fields, "text", &format!("{place}."))?.ok_or_else(|| format!("`{place}.text` is missing"))?;
        Ok(Passage { title, text })
    };
    let answer = |(at, answer): (usize, &Value)| match answer {
        Value::String(text) => Ok(text.clone()),
        other => Err(format!("`answers[{at}]` is {}, not a text", kind_of(other))),
    };
    let mut parsed = Item {
        question: text(fields, "question", "")?.ok_or("`question` is missing")?,
        passages: passages.iter().enumerate().map(passage).collect::<Result<_, String>>()?,
        answers: Vec::new(),
        kind: None,
    };
    if answers {
        let found = list(fields, "answers", "")?.ok_or("`answers` is missing")?;
        parsed.answers = found.iter().enumerate().map(answer).collect::<Result<_, String>>()?;
        if found.is_empty() {
            return Err("`answers` is empty; what is right must be known".into());
        }
        parsed.kind = text(fields, "type", "")?;
    }
    Ok(parsed)
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{place} is {}, not an object", kind_of(value)))
}

/// A field that holds a list; `None` where it is missing.
fn list<'a>(fields: &'a Map<String, Value>, name: &str, place: &str) -> Result<Option<&'a [Value]>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(format!("`{place}{name}` is {}, not a list", kind_of(other))),
    }
}

/// A field that holds text; `None` where it is missing.
fn text(fields: &Map<String, Value>, name: &str, place: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("`{place}{name}` is {}, not a text", kind_of(other))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let musique = br#"[{"ctxs": [{"title": "", "text": "a b"}], "question": "q?", "answers": ["x", "y"]}]"#;
        let item = &parse(musique, true).expect("MuSiQue")[0];
        assert_eq!(
            (item.question.as_str(), &item.answers[..], &item.kind),
            ("q?", &["x".into(), "y".into()][..], &None)
        );
        let demo = br#"[{"ctxs": [{"title": "T", "text": "a"}, {"text": "b"}], "question": "q?", "answers": ["18"],
            "type": "T2", "sub": "keep"}]"#;
        let item = &parse(demo, true).expect("the demo model's")[0];
        assert_eq!(item.kind.as_deref(), Some("T2"));
        let passages = [("T", "a"), ("", "b")].map(|(title, text)| Passage { title: title.into(), text: text.into() });
        assert_eq!(item.passages, passages);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_item_and_field() {
        let good = r#"{"question": "q", "ctxs": [{"text": "t"}], "answers": ["a"]}"#;
        for (bad, words) in [
            ("nonsense", &["line 1"][..]),
            ("{}", &["an object, no array"]),
            ("[]", &["no questions"]),
            ("[3]", &["item 0", "a number"]),
            (r#"[GOOD, {"ctxs": [{"text": "t"}]}]"#, &["item 1", "`question` is missing"]),
            (r#"[GOOD, {"question": 3, "ctxs": [{"text": "t"}]}]"#, &["item 1", "`question` is a number"]),
            (r#"[{"question": "q"}]"#, &["item 0", "`ctxs` is missing"]),
            (r#"[{"question": "q", "ctxs": []}]"#, &["item 0", "`ctxs` is empty"]),
            (r#"[{"question": "q", "ctxs": "t"}]"#, &["item 0", "`ctxs` is a text, not a list"]),
            (r#"[{"question": "q", "ctxs": ["t"]}]"#, &["item 0", "`ctxs[0]` is a text"]),
            (
                r#"[{"question": "q", "ctxs": [{"text": "t"}, {"title": "x"}]}]"#,
                &["item 0", "`ctxs[1].text` is missing"],
            ),
            (r#"[{"question": "q", "ctxs": [{"title": [], "text": "t"}]}]"#, &["`ctxs[0].title` is a list"]),
            (r#"[{"question": "q", "ctxs": [{"text": "t"}], "answers": "a"}]"#, &["`answers` is a text"]),
            (r#"[GOOD, {"question": "q", "ctxs": [{"text": "t"}]}]"#, &["item 1", "`answers` is missing"]),
            (r#"[{"question": "q", "ctxs": [{"text": "t"}], "answers": []}]"#, &["item 0", "`answers` is empty"]),
            (r#"[{"question": "q", "ctxs": [{"text": "t"}], "answers": ["a", null]}]"#, &["`answers[1]` is null"]),
            (
                r#"[{"question": "q", "ctxs": [{"text": "t"}], "answers": ["a"], "type": 2}]"#,
                &["item 0", "`type` is a number"],
            ),
        ] {
            let why = parse(bad.replace("GOOD", good).as_bytes(), true).expect_err(bad);
            words.iter().for_each(|word| assert!(why.contains(word), "{bad}: no {word:?} in {why}"));
        }
    }

    #[test]
    fn errors_name_the_file_and_only_what_is_measured_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("set.json");
        assert!(read(&path).expect_err("missing").to_string().contains("set.json"));
        std::fs::write(&path, "{}").expect("written");
        assert!(read(&path).expect_err("refused").to_string().contains("set.json"));
        std::fs::write(&path, r#"[{"question":"q","ctxs":[{"text":"t"}],"answers":7}]"#).expect("written");
        assert_eq!(read(&path).expect("read")[0].passages[0].title, "");
        let refused = read_answered(&path).expect_err("refused").to_string();
        assert!(refused.contains("set.json") && refused.contains("item 0: `answers`"), "{refused}");
    }
}
