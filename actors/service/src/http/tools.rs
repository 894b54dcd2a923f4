//! Tools of a chat: what the request offers, what it wants called, and how calls are read back from the answer.

use std::collections::HashMap;

use ragstone_actors::Ragstone;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::chat::calls::{CallForm, CallParser, Part};
use serde_json::{Value, json};

use super::fields::Fields;
use super::format::Format;
use super::generation::Generation;
use crate::api::chat::SentCall;
use crate::error::{Error, Result};

/// The most tools of a request: OpenAI's 128 are too few for agents with several MCP servers.
const MAX_TOOLS: usize = 512;
/// Characters of a tool's name, as Anthropic has it; OpenAI has 64.
const MAX_NAME: usize = 128;
/// Of an id of a call: Mistral's templates refuse others.
const ID_CHARS: usize = 9;

/// What a request says about tools.
#[derive(Debug, Clone)]
pub struct Tools {
    /// As the chat template takes them.
    pub list: Vec<Value>,
    /// Their names.
    names: Vec<String>,
    form: CallForm,
    /// Whether one answer may have several calls.
    parallel: bool,
}

/// Whether the model must call, and what.
enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`. Where a call is wanted, `generation` gets a grammar of calls.
    pub fn take(fields: &mut Fields, generation: &mut Generation, ragstone: &Ragstone) -> Result<Option<Self>> {
        let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        let choice = choice(fields.take("tool_choice")?)?;
        let parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        if tools.is_empty() {
            return match choice {
                Choice::None | Choice::Auto => Ok(None),
                _ => Err(Error::invalid_field("tool_choice", "`tool_choice` wants a call, but there are no `tools`")),
            };
        }
        if matches!(choice, Choice::None) {
            return Ok(None);
        }
        let Some(form) = form(ragstone) else {
            let message = "the model has no chat template, so there is no way to tell it of tools; leave out `tools`";
            return Err(Error::invalid_field("tools", message));
        };
        if tools.len() > MAX_TOOLS {
            return Err(Error::invalid_field("tools", format!("{} tools; use at most {MAX_TOOLS}", tools.len())));
        }
        let names = tools.iter().enumerate().map(|(index, tool)| name(index, tool)).collect::<Result<Vec<_>>>()?;
        if let Some(format) = &generation.format {
            let message = format!("`{}` and tools contradict each other; set `tool_choice` to none", format.field);
            return Err(Error::invalid_field(format.field, message));
        }
        let taken = Self { list: tools, names, form, parallel };
        let wanted: Option<Vec<usize>> = match &choice {
            Choice::Required => Some((0..taken.names.len()).collect()),
            Choice::Named(name) => match taken.names.iter().position(|other| other == name) {
                Some(index) => Some(vec![index]),
                None => {
                    return Err(Error::invalid_field("tool_choice", format!("`tool_choice` names no tool: `{name}`")));
                }
            },
            Choice::None | Choice::Auto => None,
        };
        // An engine elsewhere is told the choice itself.
        if let Some(wanted) = wanted.filter(|_| generation.said.is_none()) {
            let many = parallel && matches!(choice, Choice::Required);
            generation.set_format(taken.wanted(&wanted, many, ragstone));
        }
        generation.sampling.show_control |= form.needs_control();
        Ok(Some(taken))
    }

    /// A grammar of calls of these tools.
    fn wanted(&self, indices: &[usize], many: bool, ragstone: &Ragstone) -> Format {
        let schema = |index: &usize| {
            let mut schema = self.list[*index]["function"]["parameters"].clone();
            let says = |field: &&str| schema.get(*field).is_some();
            if !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(says) {
                schema["type"] = "object".into();
            }
            (self.names[*index].as_str(), schema)
        };
        let schemas: Vec<(&str, Value)> = indices.iter().map(schema).collect();
        let tools: Vec<(&str, &Value)> = schemas.iter().map(|(name, schema)| (*name, schema)).collect();
        let spec = self.form.grammar(&tools, many, |name| ragstone.tokenizer().token_id(name));
        Format { field: "tools", spec: spec.into() }
    }

    /// Reads calls from one answer's text; `seed` is of their ids.
    pub fn reader(&self, seed: u64) -> CallReader {
        CallReader {
            parser: CallParser::new(self.form, self.names.clone()),
            random: fastrand::Rng::with_seed(seed),
            calls: 0,
            parallel: self.parallel,
        }
    }
}

/// How the model writes calls; `None` where it has no chat template. Where that knows no tools, or calls of another form, they are told in
/// words (`kernels/src/chat/in_words.rs`).
pub fn form(ragstone: &Ragstone) -> Option<CallForm> {
    let in_words = || ragstone.chat_template().map(|_| CallForm::Hermes);
    ragstone.call_form().or_else(in_words)
}

fn choice(given: Option<Value>) -> Result<Choice> {
    let Some(value) = given else { return Ok(Choice::Auto) };
    let named = || value["function"]["name"].as_str().or_else(|| value["name"].as_str());
    match value.as_str() {
        Some("none") => Ok(Choice::None),
        Some("auto") => Ok(Choice::Auto),
        Some("required") => Ok(Choice::Required),
        _ if value["type"] == "function" && named().is_some() => {
            Ok(Choice::Named(named().unwrap_or_default().to_owned()))
        }
        _ => {
            let message =
                "`tool_choice` must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
            Err(Error::invalid_field("tool_choice", message))
        }
    }
}

/// The name of a tool, which must be a function.
fn name(index: usize, tool: &Value) -> Result<String> {
    let at = |field: &str| format!("tools[{index}].{field}");
    if tool["type"] != "function" {
        return Err(Error::invalid_field(at("type"), format!("`{}` must be function", at("type"))));
    }
    let is_fit = |name: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_plain)
    };
    let function = &tool["function"];
    let (parameters, kind) = (&function["parameters"], &function["parameters"]["type"]);
    if !matches!(parameters, Value::Null | Value::Object(_)) || !(kind.is_null() || kind == "object") {
        let param = at("function.parameters");
        return Err(Error::invalid_field(
            &*param,
            format!("`{param}` must be a JSON schema, an object, of type object"),
        ));
    }
    match function["name"].as_str().filter(is_fit) {
        Some(name) => Ok(name.to_owned()),
        None => {
            let param = at("function.name");
            let message = format!("`{param}` must be a name of at most {MAX_NAME} letters, digits, _, . and -");
            Err(Error::invalid_field(param, message))
        }
    }
}

/// A part of an answer as clients get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Text(String),
    /// What the model thought before it said anything.
    Thought(String),
    Call {
        /// From 0, in the order of the calls.
        index: usize,
        id: String,
        name: String,
        arguments: String,
    },
}

impl Said {
    /// Whether it is something beside the answer's text.
    pub fn is_part(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    /// Whether it is a call.
    pub fn is_call(&self) -> bool {
        matches!(self, Self::Call { .. })
    }
}

/// Reads calls from one answer.
#[derive(Debug)]
pub struct CallReader {
    parser: CallParser,
    random: fastrand::Rng,
    calls: usize,
    parallel: bool,
}

impl CallReader {
    /// What is certain with a piece of text, or, without one, at the end.
    pub fn read(&mut self, piece: Option<&str>) -> Vec<Said> {
        let parts = match piece {
            Some(text) => self.parser.push(text),
            None => self.parser.finish(),
        };
        let mut said = Vec::new();
        for part in parts {
            // A model that is told of one call may write more: the answer ends behind the first.
            if self.has_called() && !self.parallel {
                break;
            }
            said.push(self.said(part));
        }
        said
    }

    /// Whether there was a call.
    pub fn has_called(&self) -> bool {
        self.calls > 0
    }

    fn said(&mut self, part: Part) -> Said {
        match part {
            Part::Text(text) => Said::Text(text),
            Part::Call(call) => {
                let id = (0..ID_CHARS).map(|_| self.random.alphanumeric()).collect();
                let index = self.calls;
                self.calls += 1;
                Said::Call { index, id, name: call.name, arguments: call.arguments }
            }
        }
    }
}

/// Puts the calls of an assistant's message in the form of chat templates, which take arguments as an object.
pub fn sent_calls(param: &str, calls: Vec<SentCall>) -> Result<Vec<Value>> {
    let call = |(index, call): (usize, SentCall)| {
        let arguments = match call.function.arguments {
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => serde_json::from_str(&text).unwrap_or_default(),
            Value::Null => json!({}),
            other => other,
        };
        if !arguments.is_object() {
            let param = format!("{param}[{index}].function.arguments");
            let message = format!("`{param}` must be the text of a JSON object");
            return Err(Error::invalid_field(param, message));
        }
        let function = json!({ "name": call.function.name, "arguments": arguments });
        Ok(json!({ "id": call.id, "type": "function", "function": function }))
    };
    calls.into_iter().enumerate().map(call).collect()
}

/// Tells each tool's word which tool it is of: some templates want the name.
pub fn name_tools(messages: &mut [ChatMessage]) {
    // Of calls of one id the last one is meant.
    let mut called: HashMap<String, String> = HashMap::new();
    for message in messages {
        for call in &message.tool_calls {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            called.insert(text(&call["id"]), text(&call["function"]["name"]));
        }
        if let (Some(id), None) = (&message.tool_call_id, &message.name) {
            message.name = called.get(id).cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the calls, and the texts, of an answer that comes in pieces of so many characters.
    fn read(form: CallForm, parallel: bool, text: &str, piece: usize) -> (Vec<String>, String) {
        let tools = Tools { list: Vec::new(), names: vec!["find".into(), "now".into()], form, parallel };
        let mut reader = tools.reader(1);
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(piece).map(|piece| piece.iter().collect::<String>());
        let mut said: Vec<Said> = pieces.flat_map(|piece| reader.read(Some(&piece))).collect();
        said.extend(reader.read(None));
        let (mut calls, mut texts) = (Vec::new(), String::new());
        for part in said {
            match part {
                Said::Call { index, name, .. } => {
                    assert_eq!(index, calls.len());
                    calls.push(name);
                }
                Said::Text(text) => texts.push_str(&text),
                Said::Thought(thought) => panic!("{thought}"),
            }
        }
        assert!(reader.has_called());
        (calls, texts)
    }

    #[test]
    fn an_answer_ends_behind_its_first_call_where_no_more_are_allowed() {
        let (find, now) = (r#"{"name": "find", "arguments": {}}"#, r#"{"name": "now", "arguments": {}}"#);
        let hermes = format!("Look: <tool_call>{find}</tool_call>\n<tool_call>{now}</tool_call> So.");
        let mistral = format!("[TOOL_CALLS][{find}, {now}]");
        let llama = format!("{find}; {now}").replace("arguments", "parameters");
        for (form, text, said) in [
            (CallForm::Hermes, hermes, ("Look:", " So.")),
            (CallForm::Mistral, mistral, ("", "")),
            (CallForm::Llama, llama, ("", "")),
        ] {
            for piece in [1, 7, 1000] {
                let (calls, texts) = read(form, false, &text, piece);
                assert_eq!((calls, texts.trim()), (vec!["find".to_owned()], said.0), "{form:?}");
                let (calls, texts) = read(form, true, &text, piece);
                assert_eq!(calls, ["find", "now"], "{form:?}");
                assert!(texts.ends_with(said.1.trim()), "{form:?}: {texts:?}");
            }
        }
    }
}
