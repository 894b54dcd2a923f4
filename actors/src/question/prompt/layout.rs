//! Where the parts of a conversation stand in a chat template's text: so that it begins alike in every turn and on every
//! day, and is still what the template itself makes of the conversation.

use std::collections::{BTreeMap, HashSet};

use ragstone_kernels::chat::calls::CallForm;
use ragstone_kernels::chat::in_words::in_words;
use ragstone_kernels::chat::thoughts::Thinking;
use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date, Told};
use ragstone_kernels::tokenizer::Tokenizer;
use serde_json::Value;

use super::{Asked, Frame, Piece, PromptFormat, Task, check_last, is_continued, leading_system};
use crate::error::{Error, ErrorKind, Result};

/// Begins and ends a placeholder. No template and no user writes it on purpose; a message that contains it is refused,
/// because the rendered prompt could not be cut without doubt.
const MARK: char = '\u{2}';

/// Stands where the passages go, and the first user's words begin, while the template is rendered.
const PLACE: &str = "\u{2}place\u{2}";
/// Stands in the last message, to see that it was not dropped.
const LAST: &str = "\u{2}last\u{2}";
/// Stands behind the words of an assistant's message that is continued.
const END: &str = "\u{2}end\u{2}";

/// A chat template, and what was found out about it when it was loaded.
pub(crate) struct ChatLayout {
    template: ChatTemplate,
    /// The system prompt of questions over passages is written into the first user message, in front of the passages:
    /// where the template would put it into the last one (Mistral 7B v0.3, Nemo), so that it wandered from turn to turn,
    /// drops it, or refuses it (Mistral 7B v0.1, Gemma 2).
    folds_system: bool,
}

impl ChatLayout {
    /// Renders a short and a longer conversation to see where the template puts the system prompt.
    pub(crate) fn new(template: ChatTemplate) -> Self {
        let says = |role: &str, content: &str| ChatMessage::new(role, content);
        let system = format!("{MARK}system{MARK}");
        let begins_alike = |begin: &[ChatMessage]| {
            let root = |more: &[ChatMessage]| {
                let text = template.render(&[begin, more].concat(), true, Date::from_unix_ms(0)).ok()?;
                Some(text.split_once(PLACE)?.0.to_owned())
            };
            let (short, long) = (root(&[]), root(&[says("assistant", "b"), says("user", "c")]));
            short.as_ref().is_some_and(|root| root.contains(&system)) && short == long
        };
        let apart = [says("system", &system), says("user", &format!("{PLACE}a"))];
        let folded = [says("user", &folded(&system, &format!("{PLACE}a")))];
        let folds_system = !begins_alike(&apart) && begins_alike(&folded);
        Self { template, folds_system }
    }

    /// Renders the conversation with placeholders, then cuts it: at the first user's words, and around the words of messages in which control tokens would count. Other words stay joined with what surrounds them, so that
    /// their tokens are those of the model's own chat format.
    pub(super) fn frame(
        &self,
        messages: &[ChatMessage],
        tools: &[Value],
        with_passages: bool,
        asked: Asked<'_>,
        today: Date,
        tokenizer: &Tokenizer,
    ) -> Result<Frame> {
        let Asked { format, task, .. } = asked;
        check_turn(messages)?;
        if messages.iter().any(|message| message.content.contains(MARK)) {
            let message = "a message contains the control character U+0002; remove it";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        check_calls(messages, tools, tokenizer)?;
        let mut messages = messages.to_vec();
        let tells_tools = self.tells_tools(&messages, tools);
        if with_passages && !tells_tools {
            // What tools said becomes the user's, and is no question.
            if leading_system(&messages) == 0 {
                messages.insert(0, ChatMessage::new("system", format.system.trim_end()));
            }
            ask(&mut messages, format, task);
        }
        let (mut messages, tools) = if tells_tools { (messages, tools) } else { (in_words(messages, tools), &[][..]) };
        let mut words = set_words_apart(&mut messages, tokenizer);
        let mut system = None;
        if with_passages {
            system = self.place_system(&mut messages, format);
            if tells_tools {
                ask(&mut messages, format, task);
            }
        }
        let told = format.date.told(today);
        if self.is_misdated(&messages, told, today)
            && let Some(first) = messages.iter_mut().find(|message| message.role == "user")
        {
            // In the first message, so that every turn of a day begins alike.
            first.content.insert_str(0, &today.format("Today is %-d %B %Y.\n"));
        }
        place(&mut messages, with_passages, system);
        let is_continued = is_continued(&messages);
        if is_continued && let Some(last) = messages.last_mut() {
            // The space tells whether the template trims.
            last.content.push_str(&format!("{END} "));
        }
        let told = Told { today: told, enable_thinking: asked.enable_thinking() };
        let mut rendered = self.template.render_with_tools(&messages, tools, !is_continued, told)?;
        if is_continued {
            cut_end(&mut rendered)?;
        }
        let rendered = unescape_words(rendered, &messages, &mut words);
        let (true, Some(cut)) = (rendered.contains(LAST), rendered.find(PLACE)) else {
            let message = "the model's chat template drops the user's first or last message; take another model";
            return Err(Error::new(ErrorKind::Incompatible, message));
        };
        let (root, question) = rendered.split_at(cut);
        Ok(Frame { root: pieces(root, &words), question: pieces(question, &words), has_bos: true })
    }

    /// The template's text.
    pub(crate) fn source(&self) -> String {
        self.template.source()
    }

    /// What tells its template from others, and whether what that writes may depend on the date.
    pub(crate) fn identity(&self) -> (String, bool) {
        (self.template.identity(), self.template.may_tell_date())
    }

    /// How the model writes calls of tools.
    pub(crate) fn call_form(&self) -> Option<CallForm> {
        self.template.call_form()
    }

    /// How the model thinks before it answers, told so.
    pub(crate) fn thinking(&self, thinks: Option<bool>) -> Option<Thinking> {
        self.template.thinking(thinks)
    }

    /// Whether the template writes what there is of tools and calls.
    fn tells_tools(&self, messages: &[ChatMessage], tools: &[Value]) -> bool {
        let has_calls = |message: &ChatMessage| message.role == "tool" || !message.tool_calls.is_empty();
        let are_there = !tools.is_empty() || messages.iter().any(has_calls);
        !are_there || self.template.call_form().is_some()
    }

    /// Sees to it that there is a system prompt. Takes it out of the messages where it is to be folded.
    fn place_system(&self, messages: &mut Vec<ChatMessage>, format: &PromptFormat) -> Option<String> {
        if leading_system(messages) == 0 {
            messages.insert(0, ChatMessage::new("system", format.system.trim_end()));
        }
        if !self.folds_system {
            return None;
        }
        let system: Vec<String> = messages.drain(..leading_system(messages)).map(|message| message.content).collect();
        Some(system.join("\n\n"))
    }

    /// Whether the template prints a date that is not today's. Only the beginning is rendered for it: no template dates
    /// later turns.
    fn is_misdated(&self, messages: &[ChatMessage], told: Date, today: Date) -> bool {
        if told == today || !self.template.may_tell_date() {
            return false;
        }
        let mut begin = messages[..leading_system(messages)].to_vec();
        begin.push(ChatMessage::new("user", "?"));
        let render = |date: Date| self.template.render(&begin, true, date).ok();
        render(told) != render(today)
    }
}

/// Writes each of the user's messages as a question.
fn ask(messages: &mut [ChatMessage], format: &PromptFormat, task: Task) {
    for message in messages.iter_mut().filter(|message| message.role == "user") {
        message.content = format.render_question(task, &message.content);
    }
}

/// Replaces the content of messages that contain control tokens by placeholders with the messages' numbers.
fn set_words_apart(messages: &mut [ChatMessage], tokenizer: &Tokenizer) -> BTreeMap<usize, String> {
    let mut words = BTreeMap::new();
    for (index, message) in messages.iter_mut().enumerate() {
        if tokenizer.has_control(&message.content) {
            let content = std::mem::replace(&mut message.content, format!("{MARK}{index}{MARK}"));
            words.insert(index, content.trim().to_owned());
        }
    }
    words
}

/// The conversation must end with the user's turn, with what tools answered, or with a beginning of the answer.
fn check_turn(messages: &[ChatMessage]) -> Result<()> {
    let asked = messages.iter().any(|message| message.role == "user");
    match messages.last() {
        Some(message) if message.role == "tool" && asked => Ok(()),
        _ => check_last(messages),
    }
}

/// Tools and calls are written by the template, as JSON mostly, so control tokens in them cannot be set apart.
fn check_calls(messages: &[ChatMessage], tools: &[Value], tokenizer: &Tokenizer) -> Result<()> {
    let has_control = |value: &Value| {
        let text = value.to_string();
        tokenizer.has_control(&text) || text.contains("\\u0002")
    };
    let named =
        |name: &Option<String>| name.as_ref().is_some_and(|name| tokenizer.has_control(name) || name.contains(MARK));
    let what = if tools.iter().any(has_control) {
        "a tool"
    } else if messages.iter().any(|m| m.tool_calls.iter().any(has_control) || named(&m.name) || named(&m.tool_call_id))
    {
        "a message's tool call"
    } else {
        return Ok(());
    };
    let message = format!("{what} contains the text of one of the model's control tokens, or U+0002; remove it");
    Err(Error::new(ErrorKind::InvalidInput, message))
}

/// A mark as JSON writes it.
const ESCAPED_MARK: &str = "\\u0002";

/// A template that writes what a tool answered as JSON escapes the placeholder, too: then its words are to be escaped as well. In one pass: a
/// conversation may have thousands of such answers.
fn unescape_words(rendered: String, messages: &[ChatMessage], words: &mut BTreeMap<usize, String>) -> String {
    if words.is_empty() || !rendered.contains(ESCAPED_MARK) {
        return rendered;
    }
    let number = |content: &str| content.strip_prefix(MARK)?.strip_suffix(MARK)?.parse::<usize>().ok();
    let of_tools: HashSet<usize> = messages
        .iter()
        .filter(|message| message.role == "tool")
        .filter_map(|message| number(&message.content))
        .collect();
    let (mut unescaped, mut rest) = (String::with_capacity(rendered.len()), rendered.as_str());
    let mut seen = HashSet::new();
    while let Some((before, behind)) = rest.split_once(ESCAPED_MARK) {
        unescaped.push_str(before);
        let placeholder = behind.split_once(ESCAPED_MARK).and_then(|(number, after)| {
            let number = number.parse::<usize>().ok().filter(|number| of_tools.contains(number))?;
            Some((number, after))
        });
        match placeholder {
            Some((number, after)) => {
                unescaped.push_str(&format!("{MARK}{number}{MARK}"));
                seen.insert(number);
                rest = after;
            }
            None => {
                unescaped.push_str(ESCAPED_MARK);
                rest = behind;
            }
        }
    }
    unescaped.push_str(rest);
    for (_, words) in words.iter_mut().filter(|(number, _)| seen.contains(number)) {
        let json = Value::from(words.as_str()).to_string();
        *words = json[1..json.len() - 1].to_owned();
    }
    unescaped
}

/// A user message that begins with the system prompt, as Mistral's own templates write it.
fn folded(system: &str, content: &str) -> String {
    if system.is_empty() { content.to_owned() } else { format!("{system}\n\n{content}") }
}

/// Puts placeholders into the first user message and the last one.
fn place(messages: &mut [ChatMessage], with_passages: bool, system: Option<String>) {
    // White space stays in front, where a template that trims finds it.
    let mark = |content: &mut String, placeholder: &str| {
        let begin = content.len() - content.trim_start().len();
        content.insert_str(begin, placeholder);
    };
    if let Some(first) = messages.iter_mut().find(|message| message.role == "user") {
        if with_passages {
            first.content = folded(&system.unwrap_or_default(), &format!("{PLACE}{}", first.content));
        } else {
            mark(&mut first.content, PLACE);
        }
    }
    // A tool's word may be written as JSON; the user's last one is there all the same.
    if let Some(last) = messages.iter_mut().rev().find(|message| message.role == "user") {
        mark(&mut last.content, LAST);
    }
}

/// Leaves out what the template writes behind the last message, and the spaces at that one's end where it trims them: as transformers'
/// `continue_final_message` does.
fn cut_end(rendered: &mut String) -> Result<()> {
    let Some(at) = rendered.rfind(END) else {
        let message = "the model's chat template drops the assistant's last message, so it cannot be continued";
        return Err(Error::new(ErrorKind::InvalidInput, message));
    };
    let trims = !rendered[at + END.len()..].starts_with(' ');
    rendered.truncate(at);
    if trims {
        rendered.truncate(rendered.trim_end().len());
    }
    Ok(())
}

/// Puts `words` back in place of their placeholders and takes out the others, in one pass: what stands between two marks is
/// the name of a placeholder, as no message has the mark and a placeholder is never cut.
fn pieces(rendered: &str, words: &BTreeMap<usize, String>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for (index, part) in rendered.split(MARK).enumerate() {
        if index % 2 == 1 {
            let words = part.parse().ok().and_then(|message: usize| words.get(&message));
            out.extend(words.map(|words| Piece::Words(words.clone())));
        } else if let Some(Piece::Trusted(before)) = out.last_mut() {
            before.push_str(part);
        } else if !part.is_empty() {
            out.push(Piece::Trusted(part.to_owned()));
        }
    }
    out
}

#[cfg(test)]
mod tests;
