//! Chat messages to one prompt text, by the Jinja template that a model folder brings.

pub mod calls;
mod date;
pub mod in_words;
mod json;
mod marks;
#[cfg(test)]
mod tests;
pub mod thoughts;

use std::io;
use std::path::Path;

use minijinja::{Environment, ErrorKind as TemplateErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::folder;
use crate::tokenizer::{SpecialTokens, read_json};
use calls::CallForm;
pub use date::Date;
use thoughts::Thinking;

const TEMPLATE: &str = "chat template";
/// The template for conversations with tools: what transformers calls it, and where it puts it in a folder.
const TOOL_USE: &str = "tool_use";
const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
/// A template's own text. Published ones have some 10 kB.
pub(crate) const SOURCE_BYTES: u64 = 1 << 20;
/// Steps that one rendering may take: a conversation of ten thousand messages takes about half a million. A template is a
/// program from elsewhere, and one that does not end would hold a thread for ever.
const FUEL: u64 = 2_000_000;
/// Bytes of a rendered prompt: so many whatever the messages say, and so many for each byte and each message of theirs.
const TEXT_BYTES: usize = 1 << 20;
const TEXT_BYTES_PER_BYTE: usize = 16;
const TEXT_BYTES_PER_MESSAGE: usize = 4096;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`, and what else the model's template knows.
    pub role: String,
    pub content: String,
    /// An assistant's calls: objects with `id`, `type` and `function`, whose `arguments` are an object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let (role, content) = (role.into(), content.into());
        Self { role, content, tool_calls: Vec::new(), tool_call_id: None, name: None }
    }

    /// Bytes of its text.
    pub fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| call.to_string().len()).sum::<usize>();
        self.role.len() + self.content.len() + calls
    }
}

/// What a template is told beside the conversation.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// When it asks for the date.
    pub today: Date,
    /// `Some(false)`: the answer is to begin at once, where the template knows how a model that thinks first is kept from it (Qwen3's
    /// `enable_thinking`; `thinking` of DeepSeek V3.1 and Granite). `None`: as the template has it.
    pub enable_thinking: Option<bool>,
}

/// A compiled chat template, rendered as transformers renders it: blocks trimmed, Python methods on values,
/// `raise_exception` and `strftime_now`; keys of tools and calls in the order in which they came.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: SpecialTokens,
    /// Where the template stands, for messages.
    origin: String,
    /// Whether there is another one for conversations with tools.
    has_tool_use: bool,
}

impl ChatTemplate {
    /// The template in `chat_template.jinja` or else in `tokenizer_config.json` (a text, or a list of named ones, of
    /// which `default` is taken, and `tool_use` where there are tools); `None` when the model has none.
    pub fn from_folder(model: &Path) -> Result<Option<Self>> {
        let tokens = SpecialTokens::from_folder(model)?;
        let path = model.join("chat_template.jinja");
        if path.is_file() {
            let tool_use = model.join(TOOL_USE_FILE);
            let tool_use = if tool_use.is_file() { Some(read_source(&tool_use)?) } else { None };
            let template = Self::named(read_source(&path)?, tokens, path.display().to_string())?;
            return Ok(Some(template.with_tool_use(tool_use.as_deref())));
        }
        let path = model.join("tokenizer_config.json");
        let config = read_json(&path)?.unwrap_or_default();
        let Some(source) = configured_template(&config) else { return Ok(None) };
        let template = Self::named(source.to_owned(), tokens, format!("`chat_template` in {}", path.display()))?;
        Ok(Some(template.with_tool_use(named_template(&config, TOOL_USE))))
    }

    /// Compiles a template's text.
    ///
    /// # Errors
    /// `UnsupportedModel` when it uses what this engine does not know; the message has the line.
    pub fn new(source: String, tokens: SpecialTokens) -> Result<Self> {
        Self::named(source, tokens, "of the model".to_owned())
    }

    /// Compiles a template's text and renders two conversations by it, so that one that does not end is refused now and not at
    /// the first question. `origin` says where it stands.
    pub(crate) fn named(source: String, tokens: SpecialTokens, origin: String) -> Result<Self> {
        let template = Self::compile(&source, tokens, origin)?;
        let says = |roles: &[&str]| roles.iter().map(|role| ChatMessage::new(*role, "Hello")).collect::<Vec<_>>();
        for messages in [says(&["user"]), says(&["system", "user", "assistant", "user"])] {
            // A template may refuse a conversation, one with a system prompt say; that it does not end is the template's fault.
            let told = Told { today: Date::from_unix_ms(0), enable_thinking: None };
            if let Err(Failure::Endless(message)) = template.try_render(&messages, &[], true, told) {
                return Err(Error::unsupported(message));
            }
        }
        Ok(template)
    }

    fn compile(source: &str, tokens: SpecialTokens, origin: String) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", json::to_json);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(TemplateErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(TEMPLATE, without_generation_tags(source)).map_err(|error| {
            Error::unsupported(format!(
                "the model's chat template is not understood ({error:#}); use /v1/completions, or edit the template"
            ))
            .with_source(error)
        })?;
        Ok(Self { environment, tokens, origin, has_tool_use: false })
    }

    /// With the template that the model has for conversations with tools. One whose calls are of no known form, that is not understood or does
    /// not end is left out: tools are then told as by a model without it.
    pub(crate) fn with_tool_use(mut self, source: Option<&str>) -> Self {
        let Some(source) = source.filter(|source| CallForm::of(source).is_some()) else { return self };
        if self.environment.add_template_owned(TOOL_USE, without_generation_tags(source)).is_err() {
            return self;
        }
        self.has_tool_use = true;
        let parameters = serde_json::json!({ "type": "object", "properties": {} });
        let function = serde_json::json!({ "name": "find", "description": "Finds.", "parameters": parameters });
        let tool = serde_json::json!({ "type": "function", "function": function });
        let told = Told { today: Date::from_unix_ms(0), enable_thinking: None };
        let tried = self.try_render(&[ChatMessage::new("user", "Hello")], &[tool], true, told);
        if matches!(tried, Err(Failure::Endless(_))) {
            self.environment.remove_template(TOOL_USE);
            self.has_tool_use = false;
        }
        self
    }

    /// The prompt text of `messages`. With `add_generation_prompt` it ends where the assistant's answer begins.
    /// `today` is what a template is told when it asks for the date.
    ///
    /// The text already holds the model's BOS where the template wants one: encode it without adding another.
    ///
    /// # Errors
    /// `InvalidInput` when the template refuses the messages, with its reason, or does not come to an end with them.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool, today: Date) -> Result<String> {
        self.render_with_tools(messages, &[], add_generation_prompt, Told { today, enable_thinking: None })
    }

    /// As [`render`](Self::render), with the tools that the model may call, in OpenAI's form.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with_tools(
        &self,
        messages: &[ChatMessage],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
        told: Told,
    ) -> Result<String> {
        self.try_render(messages, tools, add_generation_prompt, told).map_err(|failure| match failure {
            Failure::Endless(message) => Error::invalid_input(message),
            Failure::Refused(error) => {
                let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
                Error::invalid_input(format!("the model's chat template refuses these messages: {reason}"))
                    .with_source(error)
            }
        })
    }

    /// How the model writes calls of tools; `None` where its template knows no tools, or the form is not known.
    pub fn call_form(&self) -> Option<CallForm> {
        let template = self.environment.get_template(self.name(true)).ok()?;
        CallForm::of(template.source())
    }

    /// How the model thinks before it answers, told so ([`Told::enable_thinking`]); `None` where its template knows no thoughts.
    pub fn thinking(&self, enable_thinking: Option<bool>) -> Option<Thinking> {
        let told = Told { today: Date::from_unix_ms(0), enable_thinking };
        let prompt = self.render_with_tools(&[ChatMessage::new("user", "Hello")], &[], true, told).unwrap_or_default();
        Thinking::of(&self.source(), &prompt)
    }

    /// Whether what the template writes may depend on the date. Where it cannot, the text is the same every day.
    pub fn may_tell_date(&self) -> bool {
        let may = |name: &str| {
            self.environment.get_template(name).is_ok_and(|template| template.source().contains("strftime_now"))
        };
        may(TEMPLATE) || may(TOOL_USE)
    }

    /// Its text.
    pub fn source(&self) -> String {
        self.text(TEMPLATE)
    }

    /// Its text and the special tokens that it is rendered with: prompts of two templates that have the same are the same.
    pub fn identity(&self) -> String {
        format!("{:?} {}", self.tokens, self.sources())
    }

    /// Its text, and behind it that of the one for conversations with tools, where there is one.
    fn sources(&self) -> String {
        self.text(TEMPLATE) + &self.text(TOOL_USE)
    }

    fn text(&self, name: &str) -> String {
        self.environment.get_template(name).map(|template| template.source().to_owned()).unwrap_or_default()
    }

    /// The template of a conversation in which there are tools or calls, or not.
    fn name(&self, has_tools: bool) -> &'static str {
        if has_tools && self.has_tool_use { TOOL_USE } else { TEMPLATE }
    }

    fn try_render(
        &self,
        messages: &[ChatMessage],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
        told: Told,
    ) -> Result<String, Failure> {
        let Told { today, enable_thinking } = told;
        let refused = Failure::Refused;
        let has_calls = |message: &ChatMessage| message.role == "tool" || !message.tool_calls.is_empty();
        let name = self.name(!tools.is_empty() || messages.iter().any(has_calls));
        let template = self.environment.get_template(name).map_err(refused)?;
        let strftime = Value::from_function(move |format: String| today.format(&format));
        // Absent tokens stay undefined, as transformers leaves them.
        let token = |text: &Option<String>| text.clone().map_or(Value::UNDEFINED, Value::from);
        let values = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            tools => if tools.is_empty() { Value::from(()) } else { Value::from_serialize(tools) },
            documents => Value::from(()),
            enable_thinking => enable_thinking.map_or(Value::UNDEFINED, Value::from),
            thinking => enable_thinking.map_or(Value::UNDEFINED, Value::from),
            bos_token => token(&self.tokens.bos),
            eos_token => token(&self.tokens.eos),
            unk_token => token(&self.tokens.unk),
            pad_token => token(&self.tokens.pad),
            strftime_now => strftime,
        };
        let said: usize = messages.iter().map(ChatMessage::bytes).sum();
        let said = said + tools.iter().map(|tool| tool.to_string().len()).sum::<usize>();
        let most_bytes = TEXT_BYTES
            .saturating_add(said.saturating_mul(TEXT_BYTES_PER_BYTE))
            .saturating_add(messages.len().saturating_mul(TEXT_BYTES_PER_MESSAGE));
        let mut text = Bounded { bytes: Vec::new(), most_bytes, is_over: false };
        let rendered = template.render_captured_to(values, &mut text).map(drop);
        let endless = |what: String| {
            let (count, origin) = (messages.len(), &self.origin);
            Failure::Endless(format!(
                "the model's chat template ({origin}) {what} for {count} messages, so it was stopped; send fewer messages, use \
                 /v1/completions, or repair the template"
            ))
        };
        if text.is_over {
            return Err(endless(format!("writes more than {most_bytes} bytes")));
        }
        match rendered {
            Err(error) if error.kind() == TemplateErrorKind::OutOfFuel => {
                Err(endless(format!("takes more than {FUEL} steps")))
            }
            Err(error) => Err(refused(error)),
            Ok(()) => String::from_utf8(text.bytes).map_err(|_| endless("writes what is no text".to_owned())),
        }
    }
}

/// Why a conversation was not rendered.
enum Failure {
    /// The template's word on the messages.
    Refused(minijinja::Error),
    /// It was stopped.
    Endless(String),
}

/// A text that stops growing.
struct Bounded {
    bytes: Vec<u8>,
    most_bytes: usize,
    is_over: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.is_over |= self.bytes.len().saturating_add(piece.len()) > self.most_bytes;
        if self.is_over {
            return Err(io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn configured_template(config: &serde_json::Value) -> Option<&str> {
    let value = config.get("chat_template")?;
    if let Some(source) = value.as_str() {
        return Some(source);
    }
    let first = || value.as_array()?.first()?.get("template")?.as_str();
    named_template(config, "default").or_else(first)
}

/// That of a name in a list.
fn named_template<'a>(config: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let named = config.get("chat_template")?.as_array()?;
    let found = named.iter().find(|entry| entry.get("name").and_then(|name| name.as_str()) == Some(name));
    found?.get("template")?.as_str()
}

fn read_source(path: &Path) -> Result<String> {
    folder::read_text(path, SOURCE_BYTES).map_err(|error| Error::io("cannot read", path, error))
}

/// transformers marks the assistant's text with `{% generation %}` blocks, for training. They render what they hold,
/// as a block that is always taken does.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length + 2];
        text.push_str(&rest[..start]);
        match tag.trim_matches(['{', '%', '}', '-', '+']).trim() {
            name @ ("generation" | "endgeneration") => {
                text.push_str(&tag.replace(name, if name == "generation" { "if true" } else { "endif" }));
            }
            _ => text.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    text.push_str(rest);
    text
}
