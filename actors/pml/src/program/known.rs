//! What is known when a program is compiled: items of lists, literals, and what filters make of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

/// A value; cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Known {
    Text(Rc<str>),
    Whole(i64),
    Truth(bool),
    List(Rc<[Known]>),
    Map(Rc<BTreeMap<String, Known>>),
    /// Is there, and nothing can be done with it but to ask whether it is something: `null`.
    Nothing,
    /// A number with a fraction, or too large: how it would be printed is not ours to say.
    Fraction,
}

impl Known {
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Nothing,
            Value::Bool(truth) => Self::Truth(*truth),
            Value::Number(number) => number.as_i64().map_or(Self::Fraction, Self::Whole),
            Value::String(text) => Self::text(text),
            Value::Array(items) => Self::List(items.iter().map(Self::of).collect()),
            Value::Object(map) => Self::Map(Rc::new(map.iter().map(|(key, of)| (key.clone(), Self::of(of))).collect())),
        }
    }

    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// What it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Whole(_) => "a number",
            Self::Truth(_) => "true or false",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
            Self::Nothing => "null",
            Self::Fraction => "a number with a fraction",
        }
    }

    /// The text that stands for it in a prompt.
    pub fn written(&self) -> Result<Rc<str>, String> {
        match self {
            Self::Text(text) => Ok(Rc::clone(text)),
            Self::Whole(whole) => Ok(whole.to_string().into()),
            Self::Truth(_) => Err("true or false is no text; write {% if … %}".to_owned()),
            Self::List(_) => Err("a list is no text; write {% for … %}, or join it: `|join(\", \")`".to_owned()),
            Self::Map(_) => Err("an object is no text; name one of its fields".to_owned()),
            Self::Nothing => Err("null is no text; leave it out".to_owned()),
            Self::Fraction => Err("a number with a fraction is no text; give it as a string".to_owned()),
        }
    }

    /// Whether it is something.
    pub fn is_true(&self) -> Result<bool, String> {
        match self {
            Self::Text(text) => Ok(!text.is_empty()),
            Self::Whole(whole) => Ok(*whole != 0),
            Self::Truth(truth) => Ok(*truth),
            Self::List(items) => Ok(!items.is_empty()),
            Self::Map(map) => Ok(!map.is_empty()),
            Self::Nothing => Ok(false),
            Self::Fraction => Err("a number with a fraction is no condition; give true or false".to_owned()),
        }
    }

    /// Whether both are the same string or number.
    pub fn equals(&self, other: &Self) -> Result<bool, String> {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => Ok(one == other),
            (Self::Whole(one), Self::Whole(other)) => Ok(one == other),
            _ => Err(format!("{} and {} are not compared; compare strings, or numbers", self.kind(), other.kind())),
        }
    }

    /// Bytes that work on it may look at.
    pub fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(items) => items.len(),
            _ => 1,
        }
    }
}

/// What a filter makes of a value; `most` bytes.
pub(super) fn filtered(of: &Known, name: &str, arguments: &[Known], most: usize) -> Result<Known, String> {
    let takes_none = || match arguments.len() {
        0 => Ok(()),
        _ => Err(format!("`{name}` takes nothing in brackets")),
    };
    let text = || match of {
        Known::Text(text) => Ok(text),
        other => Err(format!("`{name}` is for strings, not for {}", other.kind())),
    };
    match name {
        "upper" | "lower" | "trim" => {
            takes_none()?;
            let text = text()?;
            Ok(match name {
                "upper" => Known::text(&text.to_uppercase()),
                "lower" => Known::text(&text.to_lowercase()),
                _ => Known::text(text.trim()),
            })
        }
        "length" => {
            takes_none()?;
            let length = match of {
                Known::Text(text) => text.chars().count(),
                Known::List(items) => items.len(),
                Known::Map(map) => map.len(),
                other => return Err(format!("{} has no length", other.kind())),
            };
            Ok(Known::Whole(length as i64))
        }
        "join" => joined(of, arguments, most),
        _ => Err(format!("a program has no filter `{name}`; it has upper, lower, trim, length and join")),
    }
}

fn joined(of: &Known, arguments: &[Known], most: usize) -> Result<Known, String> {
    let Known::List(items) = of else {
        return Err(format!("`join` is for lists, not for {}", of.kind()));
    };
    let between: Rc<str> = match arguments {
        [] => "".into(),
        [Known::Text(text)] => Rc::clone(text),
        _ => return Err("`join` takes one string, what stands between: join(\", \")".to_owned()),
    };
    let mut text = String::new();
    for (index, item) in items.iter().enumerate() {
        let item = item.written()?;
        if text.len() + between.len() + item.len() > most {
            return Err(format!("what is joined is longer than a schema may be, {most} bytes"));
        }
        if index > 0 {
            text.push_str(&between);
        }
        text.push_str(&item);
    }
    Ok(Known::Text(text.into()))
}
