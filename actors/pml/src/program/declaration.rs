//! What a program takes, stated in the comment that it begins with: its name, then a line for each argument and list.
//!
//! ```text
//! {# program trip
//!    duration: 12 tokens, like "a few days"
//!    city: one of "lisbon", "tromso"
//!    frugal: flag
//!    sights: list ["the castle", "the harbour"]
//!    question: text
//! #}
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use super::known::Known;
use crate::document::{Place, is_char, wrong};
use ragstone_env::Result;

/// Names that mean something of their own in Jinja.
const WORDS: [&str; 25] = [
    "true",
    "True",
    "false",
    "False",
    "none",
    "None",
    "loop",
    "self",
    "super",
    "caller",
    "varargs",
    "kwargs",
    "not",
    "and",
    "or",
    "in",
    "is",
    "if",
    "else",
    "elif",
    "for",
    "set",
    "macro",
    "include",
    "recursive",
];
/// Values of one choice, at the most.
const MAX_CHOICES: usize = 256;

/// What a program takes.
#[derive(Debug)]
pub(super) struct Declarations {
    pub program: String,
    pub arguments: BTreeMap<String, Kind>,
    pub lists: BTreeMap<String, Known>,
}

/// What an argument may be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A string of at most so many tokens, and what stands there while its module is computed.
    Tokens { length: u32, like: Option<String> },
    /// One of these.
    Choice(Vec<String>),
    /// True or false.
    Flag,
    /// Any text: the prompt's own, behind all modules.
    Text,
}

impl Kind {
    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Tokens { length, .. } => format!("{length} tokens"),
            Self::Choice(values) => format!("one of {}", listed(values)),
            Self::Flag => "true or false".to_owned(),
            Self::Text => "a text".to_owned(),
        }
    }
}

/// `"a", "b"`
pub(super) fn listed(values: &[String]) -> String {
    values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ")
}

/// Whether something can be called so.
pub(super) fn is_name(name: &str) -> bool {
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_word
        && name.len() <= 64
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && !WORDS.contains(&name)
}

/// Reads the comment that a program begins with; `lists` has what lists are that it does not state itself.
///
/// # Errors
/// `InvalidInput` with line and column.
pub(super) fn declarations(text: &str, lists: &BTreeMap<String, Value>) -> Result<Declarations> {
    let start = Place { line: 1, column: 1 };
    let comment = text.strip_prefix("{#").and_then(|text| text.split_once("#}")).map(|(comment, _)| comment);
    let Some(comment) = comment else {
        return Err(wrong(
            start,
            "a program begins with a comment that names it and what it takes: {# program NAME … #}",
        ));
    };
    let comment = comment.strip_suffix('-').unwrap_or(comment);
    let mut lines = comment.split('\n').enumerate().map(|(index, line)| {
        let blank = line.chars().take_while(|c| c.is_whitespace()).count();
        let before = if index == 0 { 2 } else { 0 };
        (Place { line: index as u32 + 1, column: (before + blank) as u32 + 1 }, line.trim())
    });
    let first = lines.next().map_or("", |(_, line)| line).trim_start_matches(['-', '+']).trim();
    let program = first.strip_prefix("program").filter(|name| name.starts_with(char::is_whitespace)).map(str::trim);
    let Some(program) = program.filter(|name| !name.is_empty() && name.chars().all(is_char)) else {
        return Err(wrong(start, "a program's first line is {# program NAME"));
    };
    let mut found = Declarations { program: program.to_owned(), arguments: BTreeMap::new(), lists: BTreeMap::new() };
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        declaration(&mut found, at, line, lists)?;
    }
    match lists.keys().find(|name| !found.lists.contains_key(*name)) {
        None => Ok(found),
        Some(name) => {
            Err(wrong(start, format!("a list `{name}` is given, and the program declares none; write `{name}: list`")))
        }
    }
}

fn declaration(found: &mut Declarations, at: Place, line: &str, lists: &BTreeMap<String, Value>) -> Result<()> {
    let Some((name, what)) = line.split_once(':') else {
        return Err(wrong(at, format!("`{line}` declares nothing; write NAME: WHAT")));
    };
    let (name, what) = (name.trim(), what.trim());
    if !is_name(name) {
        let why = "it has ASCII letters, digits and _, does not begin with a digit and means nothing else in Jinja";
        return Err(wrong(at, format!("`{name}` is no name: {why}")));
    }
    if found.arguments.contains_key(name) || found.lists.contains_key(name) {
        return Err(wrong(at, format!("`{name}` is declared already")));
    }
    if let Some(stated) = what.strip_prefix("list").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '[']))
    {
        let list = list(at, name, stated.trim(), lists)?;
        found.lists.insert(name.to_owned(), list);
        return Ok(());
    }
    let kind = match what {
        "flag" => Kind::Flag,
        "text" => Kind::Text,
        _ => match what.strip_prefix("one of ") {
            Some(values) => Kind::Choice(choices(at, name, values)?),
            None => tokens(at, name, what)?,
        },
    };
    found.arguments.insert(name.to_owned(), kind);
    Ok(())
}

fn list(at: Place, name: &str, stated: &str, lists: &BTreeMap<String, Value>) -> Result<Known> {
    let stated: Option<Value> = match stated {
        "" => None,
        json => Some(
            serde_json::from_str(json).map_err(|error| wrong(at, format!("the list `{name}` is no JSON: {error}")))?,
        ),
    };
    let list = match (lists.get(name), &stated) {
        (Some(given), _) => given,
        (None, Some(stated)) => stated,
        (None, None) => {
            let why = "it has to be known when the program is compiled: state it here, or give a file of lists";
            return Err(wrong(at, format!("the list `{name}` is not given; {why}")));
        }
    };
    match Known::of(list) {
        Known::List(list) => Ok(Known::List(list)),
        _ => Err(wrong(at, format!("`{name}` has to be a list, `[…]`"))),
    }
}

fn choices(at: Place, name: &str, values: &str) -> Result<Vec<String>> {
    let parsed: Option<Vec<String>> = serde_json::from_str(&format!("[{values}]")).ok();
    let Some(values) = parsed.filter(|values| !values.is_empty()) else {
        return Err(wrong(at, format!("`{name}: one of` wants strings: one of \"a\", \"b\"")));
    };
    if values.len() > MAX_CHOICES {
        return Err(wrong(at, format!("`{name}` has {} values, and a choice at most {MAX_CHOICES}", values.len())));
    }
    for (index, value) in values.iter().enumerate() {
        if values[..index].contains(value) {
            return Err(wrong(at, format!("`{name}` has the value {value:?} twice")));
        }
        allowed(at, value)?;
    }
    Ok(values)
}

fn tokens(at: Place, name: &str, what: &str) -> Result<Kind> {
    let known = "`12 tokens`, `12 tokens, like \"…\"`, `one of \"a\", \"b\"`, `flag`, `list` or `text`";
    let unknown = || wrong(at, format!("`{name}` is declared as `{what}`; it can be {known}"));
    let (length, rest) = what.split_once(char::is_whitespace).ok_or_else(unknown)?;
    let length: u32 = length.parse().map_err(|_| unknown())?;
    if !(1..=crate::schema::MAX_PARAMETER_TOKENS).contains(&length) {
        let most = crate::schema::MAX_PARAMETER_TOKENS;
        return Err(wrong(at, format!("`{name}` has {length} tokens; an argument has 1 to {most}")));
    }
    let rest = rest.trim_start().strip_prefix("token").ok_or_else(unknown)?;
    let rest = rest.strip_prefix('s').unwrap_or(rest).trim();
    if rest.is_empty() {
        return Ok(Kind::Tokens { length, like: None });
    }
    let like = rest.strip_prefix(',').and_then(|rest| rest.trim_start().strip_prefix("like ")).ok_or_else(unknown)?;
    let like: String = serde_json::from_str(like.trim()).map_err(|_| unknown())?;
    allowed(at, &like)?;
    Ok(Kind::Tokens { length, like: Some(like) })
}

/// Whether a prompt can have this text.
pub(super) fn allowed(at: Place, text: &str) -> Result<()> {
    match text.chars().find(|c| !is_char(*c)) {
        None => Ok(()),
        Some(c) => Err(wrong(at, format!("the character U+{:04X} cannot stand in a prompt", u32::from(c)))),
    }
}
