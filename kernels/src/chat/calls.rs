//! Calls of tools: how models write them, read back from their text, and grammars that make a model write one.

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::grammar::{GrammarSpec, JSON_SPACE};

/// How a model writes calls. Its chat template says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, among other text: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": {…}}`, several separated by `;`: Llama 3.1 to 3.3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]` ends the answer: Mistral up to v7.
    Mistral,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Call(ToolCall),
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const MISTRAL: &str = "[TOOL_CALLS]";
const PYTHON: &str = "<|python_tag|>";

impl CallForm {
    /// The form that a chat template asks for; `None` where it knows no tools, or another form.
    pub fn of(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        match () {
            () if !has("tools") => None,
            // Qwen 3 Coder's calls are XML.
            () if has(OPEN) && !has("<function=") => Some(Self::Hermes),
            // Later ones write `[TOOL_CALLS]name[ARGS]{…}`.
            () if has(MISTRAL) && !has("[ARGS]") => Some(Self::Mistral),
            () if has("ipython") && has("\"parameters\"") => Some(Self::Llama),
            () => None,
        }
    }

    /// Whether calls begin with a control token, which text does not show by itself.
    pub fn needs_control(self) -> bool {
        self == Self::Mistral
    }

    /// A grammar of answers that call one of `tools` (each a name and its parameters' JSON schema), or, where `many`, several of them. Llama writes one.
    /// `id_of` says which control token has a name.
    pub fn grammar(self, tools: &[(&str, &Value)], many: bool, id_of: impl Fn(&str) -> Option<u32>) -> GrammarSpec {
        let arguments = if self == Self::Llama { "parameters" } else { "arguments" };
        let at = if self == Self::Mistral { "#/items/anyOf" } else { "#/anyOf" };
        let any = tools.iter().enumerate().map(|(index, (name, schema))| {
            let mut schema = (*schema).clone();
            move_references(&mut schema, &format!("{at}/{index}/properties/{arguments}"));
            json!({
                "type": "object", "properties": { "name": { "const": name }, arguments: schema },
                "required": ["name", arguments], "additionalProperties": false,
            })
        });
        let mut schema = json!({ "anyOf": any.collect::<Vec<_>>() });
        if self == Self::Mistral {
            schema = json!({ "type": "array", "items": schema, "minItems": 1 });
            if !many {
                schema["maxItems"] = json!(1);
            }
        }
        schema["x-guidance"] = json!({ "whitespace_pattern": JSON_SPACE });
        let start = match self {
            Self::Hermes if many => r#"start: call ("\n" call)*"#.to_owned(),
            Self::Hermes => "start: call".to_owned(),
            Self::Llama => "start: json".to_owned(),
            Self::Mistral => match id_of(MISTRAL) {
                Some(id) => format!("start: <[{id}]> json"),
                None => format!("start: \"{MISTRAL}\" json"),
            },
        };
        let call =
            if self == Self::Hermes { format!("\ncall: \"{OPEN}\\n\" json \"\\n{CLOSE}\"") } else { String::new() };
        GrammarSpec::Calls { rules: start + &call, schema }
    }
}

/// A schema that becomes part of another one: its references go from there.
fn move_references(schema: &mut Value, to: &str) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(|value| move_references(value, to)),
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(text) if key == "$ref" && text.starts_with('#') => {
                        *text = format!("{to}{}", &text[1..]);
                    }
                    value => move_references(value, to),
                }
            }
        }
        _ => {}
    }
}

/// Reads calls out of an answer's text as it comes. What looks like a call and is none, because it is no JSON, lacks something or
/// names no tool, comes back as text. White space beside calls is dropped. However the text is cut into pieces, its parts are the
/// same: a call is given out when it is complete.
#[derive(Debug)]
pub struct CallParser {
    form: CallForm,
    tools: Vec<String>,
    held: String,
    /// White space that is text only if text follows.
    space: String,
    /// What of the answer was decided on so far.
    state: Reading,
    has_called: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Nothing but white space came.
    Begin,
    Text,
    Call,
}

impl CallParser {
    /// Knows calls of these tools.
    pub fn new(form: CallForm, tools: Vec<String>) -> Self {
        Self { form, tools, held: String::new(), space: String::new(), state: Reading::Begin, has_called: false }
    }

    /// The parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        match self.form {
            CallForm::Hermes => while self.step_hermes(&mut parts) {},
            CallForm::Mistral if self.state != Reading::Call => {
                if let Some(at) = self.held.find(MISTRAL) {
                    let before = self.held[..at].to_owned();
                    self.held.drain(..at);
                    self.text(&before, &mut parts);
                    self.state = Reading::Call;
                } else {
                    self.release(MISTRAL, &mut parts);
                }
            }
            CallForm::Llama if self.state == Reading::Begin => self.begin_llama(&mut parts),
            CallForm::Llama if self.state == Reading::Text => self.release("", &mut parts),
            CallForm::Llama | CallForm::Mistral => {}
        }
        parts
    }

    /// The rest, once no more text comes.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        let calls = match (self.state, self.form) {
            (Reading::Call, CallForm::Hermes) => {
                held.strip_prefix(OPEN).and_then(|json| self.call(json)).map(|call| vec![call])
            }
            (Reading::Call, CallForm::Mistral) => held.strip_prefix(MISTRAL).and_then(|json| self.list(json)),
            (_, CallForm::Llama) if self.state != Reading::Text => self.sequence(&held),
            _ => None,
        };
        match calls {
            Some(calls) => calls.into_iter().for_each(|call| self.give(call, &mut parts)),
            None => self.text(&held, &mut parts),
        }
        if !self.has_called && !self.space.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut self.space)));
        }
        parts
    }

    /// Whether there may be more in what is held.
    fn step_hermes(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.state != Reading::Call {
            let Some(at) = self.held.find(OPEN) else {
                self.release(OPEN, parts);
                return false;
            };
            let before = self.held[..at].to_owned();
            self.held.drain(..at);
            self.text(&before, parts);
            self.state = Reading::Call;
        }
        let Some(at) = self.held.find(CLOSE) else { return false };
        let whole: String = self.held.drain(..at + CLOSE.len()).collect();
        match self.call(&whole[OPEN.len()..at]) {
            Some(call) => self.give(call, parts),
            None => self.text(&whole, parts),
        }
        self.state = Reading::Text;
        true
    }

    fn begin_llama(&mut self, parts: &mut Vec<Part>) {
        let begin = self.held.trim_start();
        if begin.starts_with('{') || begin.starts_with(PYTHON) {
            self.state = Reading::Call;
        } else if !PYTHON.starts_with(begin) {
            self.state = Reading::Text;
            self.release("", parts);
        }
    }

    /// Gives out what is held, but what could be the beginning of `mark`.
    fn release(&mut self, mark: &str, parts: &mut Vec<Part>) {
        let longest = self.held.len().min(mark.len().saturating_sub(1));
        let keep = (1..=longest).rev().find(|length| self.held.ends_with(&mark[..*length])).unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        self.text(&text, parts);
    }

    fn text(&mut self, text: &str, parts: &mut Vec<Part>) {
        let solid = text.trim_end().len();
        if solid > 0 {
            let text = std::mem::take(&mut self.space) + &text[..solid];
            match parts.last_mut() {
                Some(Part::Text(before)) => before.push_str(&text),
                _ => parts.push(Part::Text(text)),
            }
        }
        self.space.push_str(&text[solid..]);
    }

    fn give(&mut self, call: ToolCall, parts: &mut Vec<Part>) {
        self.space.clear();
        self.has_called = true;
        parts.push(Part::Call(call));
    }

    fn call(&self, json: &str) -> Option<ToolCall> {
        self.call_of(&serde_json::from_str(json).ok()?)
    }

    fn call_of(&self, value: &Value) -> Option<ToolCall> {
        let name = value.get("name")?.as_str()?;
        let arguments = value.get("arguments").or_else(|| value.get("parameters"))?;
        let is_known = arguments.is_object() && self.tools.iter().any(|tool| tool == name);
        is_known.then(|| ToolCall { name: name.to_owned(), arguments: arguments.to_string() })
    }

    /// A list of calls, at least one.
    fn list(&self, json: &str) -> Option<Vec<ToolCall>> {
        let value: Value = serde_json::from_str(json).ok()?;
        let calls = value.as_array()?.iter().map(|value| self.call_of(value)).collect::<Option<Vec<_>>>()?;
        (!calls.is_empty()).then_some(calls)
    }

    /// Calls one behind the other, at least one.
    fn sequence(&self, text: &str) -> Option<Vec<ToolCall>> {
        let mut rest = text.trim_start();
        rest = rest.strip_prefix(PYTHON).unwrap_or(rest);
        let mut calls = Vec::new();
        while !rest.trim().is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = values.next()?.ok()?;
            calls.push(self.call_of(&value)?);
            rest = rest[values.byte_offset()..].trim_start();
            rest = rest.strip_prefix(';').unwrap_or(rest);
        }
        (!calls.is_empty()).then_some(calls)
    }
}
