//! What a chat template writes around what somebody says, found by rendering a conversation with placeholders.

use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date};

use super::Role;
use ragstone_env::{Error, ErrorKind, Result};

/// Placeholders of what a system prompt, a user, an assistant and a user say.
const SAID: [&str; 4] = ["\u{2}0\u{2}", "\u{2}1\u{2}", "\u{2}2\u{2}", "\u{2}3\u{2}"];

/// The texts around what each role says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// Before and after a system prompt, which stands first.
    pub system: (String, String),
    /// Before and after a user's words.
    pub user: (String, String),
    /// Before and after an assistant's.
    pub assistant: (String, String),
    /// Before a user's words that directly follow a system prompt: templates that write both into one turn end the system prompt alone.
    pub user_after_system: String,
    /// What an answer begins with, after a user's words and what ends them.
    pub answer: String,
}

impl Roles {
    /// Those of a template.
    ///
    /// # Errors
    /// `Incompatible` if the template refuses a system prompt, a user, an assistant and another user, or drops what one of them says.
    pub fn of(template: &ChatTemplate) -> Result<Self> {
        let said = |role: Role, index: usize| ChatMessage::new(role.name(), SAID[index]);
        let all = [said(Role::System, 0), said(Role::User, 1), said(Role::Assistant, 2), said(Role::User, 3)];
        let day = Date::from_unix_ms(0);
        let render = |messages: &[ChatMessage], answer: bool| template.render(messages, answer, day);
        let whole = render(&all, false)?;
        let between = cut(&whole, &SAID)?;
        let [first, after_system, after_user, after_assistant, end] = &between[..] else {
            return Err(drops());
        };
        // What ends a turn is what stands after it where nothing follows.
        let answered = render(&all[1..3], false)?;
        let assistant_close = cut(&answered, &SAID[1..3])?.pop().unwrap_or_default();
        let with_answer = cut(&render(&all, true)?, &SAID)?.pop().unwrap_or_default();
        let user_close = end.clone();
        let answer = with_answer.strip_prefix(&user_close).unwrap_or(&with_answer).to_owned();
        let assistant_open = after_user.strip_prefix(&user_close).unwrap_or(after_user).to_owned();
        let user_open = after_assistant.strip_prefix(&assistant_close).unwrap_or(after_assistant).to_owned();
        let (system_close, user_after_system) = match after_system.strip_suffix(&user_open) {
            Some(close) => (close.to_owned(), user_open.clone()),
            None => (after_system.clone(), String::new()),
        };
        Ok(Self {
            system: (first.clone(), system_close),
            user: (user_open, user_close),
            assistant: (assistant_open, assistant_close),
            user_after_system,
            answer,
        })
    }

    /// What opens and closes a role; `after` is who spoke before.
    pub(super) fn around(&self, role: Role, after: Option<Role>) -> (&str, &str) {
        match role {
            Role::System => (&self.system.0, &self.system.1),
            Role::User if after == Some(Role::System) => (&self.user_after_system, &self.user.1),
            Role::User => (&self.user.0, &self.user.1),
            Role::Assistant => (&self.assistant.0, &self.assistant.1),
        }
    }
}

/// What stands before, between and after the placeholders.
fn cut(text: &str, said: &[&str]) -> Result<Vec<String>> {
    let mut rest = text;
    let mut parts = Vec::with_capacity(said.len() + 1);
    for placeholder in said {
        let (before, after) = rest.split_once(placeholder).ok_or_else(drops)?;
        parts.push(before.to_owned());
        rest = after;
    }
    parts.push(rest.to_owned());
    Ok(parts)
}

fn drops() -> Error {
    let message = "the model's chat template drops a system prompt or a turn, so that PML's roles cannot be written with it; \
        write the schema without <system>, <user> and <assistant>";
    Error::new(ErrorKind::Incompatible, message)
}
