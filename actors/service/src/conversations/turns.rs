//! A conversation as people see it: questions, their answers, and what these stand on.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{StoredConversation, StoredResponse};

/// Bytes of the passages that are kept with a conversation: those of its last answers, where it has more.
const MOST_SOURCES: usize = 4 << 20;
/// Characters of a name that is the start of a question.
const MOST_NAME: usize = 120;

/// What an answer stands on. The answer itself may be gone before its conversation is, which changes with each turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    /// The first item of its turn.
    pub item: String,
    /// The answer's id.
    pub response: String,
    /// The full name of the collection that it was asked of.
    pub collection: Option<String>,
    pub created_unix_ms: u64,
    /// Whether the answer was cut off.
    pub is_cut: bool,
    /// Null where there are none, or none any more.
    pub citations: Value,
    pub grounding: Value,
}

impl Sources {
    /// Those of a response that was just answered; `None` of one without an item.
    pub fn of(response: &StoredResponse, collection: Option<String>, now_unix_ms: u64) -> Option<Self> {
        let item = response.items().next()?["id"].as_str()?.to_owned();
        let told = &response.response["ragstone"];
        Some(Self {
            item,
            response: response.id.clone(),
            collection,
            created_unix_ms: now_unix_ms,
            is_cut: response.response["status"] == "incomplete",
            citations: told["citations"].clone(),
            grounding: told["grounding"].clone(),
        })
    }

    fn bytes(&self) -> usize {
        self.citations.to_string().len()
    }
}

/// What is appended to a conversation.
#[derive(Debug, Default)]
pub struct Addition {
    pub items: Vec<Value>,
    /// The item in whose place, and of all that follow it, they are.
    pub replaces: Option<String>,
    /// The full names of the collections that they are from.
    pub collections: BTreeSet<String>,
    pub sources: Option<Sources>,
}

/// A question and its answer.
#[derive(Debug, PartialEq)]
pub struct Turn<'a> {
    /// At least one.
    pub items: &'a [Value],
    pub sources: Option<&'a Sources>,
}

impl Turn<'_> {
    /// What was asked.
    pub fn question(&self) -> String {
        self.said_by("user")
    }

    /// What was answered.
    pub fn answer(&self) -> String {
        self.said_by("assistant")
    }

    /// Whether the answer was neither stopped nor cut off.
    pub fn is_whole(&self) -> bool {
        let is_cut = self.sources.is_some_and(|sources| sources.is_cut);
        !is_cut && self.items.iter().all(|item| item["status"] != "incomplete")
    }

    fn said_by(&self, role: &str) -> String {
        let said = self.items.iter().filter(|item| item["role"] == role).map(text);
        said.collect::<Vec<_>>().join("\n\n")
    }
}

impl StoredConversation {
    /// Its turns, the oldest first. What stands before the first question is in none.
    pub fn turns(&self) -> Vec<Turn<'_>> {
        let is_user = |at: usize| self.items[at]["role"] == "user";
        // Of several messages in a row the first begins it.
        let begins = |at: &usize| is_user(*at) && (*at == 0 || !is_user(at - 1));
        let starts: Vec<usize> = (0..self.items.len()).filter(begins).collect();
        let ends = starts.iter().skip(1).copied().chain([self.items.len()]);
        let turn = |(start, end): (&usize, usize)| {
            let items = &self.items[*start..end];
            let is_of = |sources: &&Sources| items.iter().any(|item| item["id"] == sources.item.as_str());
            Turn { items, sources: self.sources.iter().rfind(is_of) }
        };
        starts.iter().zip(ends).map(turn).collect()
    }

    /// The place of an item.
    pub fn place_of(&self, item: &str) -> Option<usize> {
        self.items.iter().position(|kept| kept["id"] == item)
    }

    /// After a change: what was deleted leaves nothing behind that is only of it, but for the answer's id, with which the answer is deleted
    /// when the conversation is.
    pub(super) fn settle(&mut self) {
        let items = &self.items;
        for sources in &mut self.sources {
            if !items.iter().any(|item| item["id"] == sources.item.as_str()) {
                (sources.citations, sources.grounding) = (Value::Null, Value::Null);
            }
        }
        self.asked = first_question(&self.items);
    }

    /// Takes what is added; the answers that were replaced by it.
    pub(super) fn add(&mut self, added: Addition) -> Vec<String> {
        let replaced = match added.replaces.and_then(|item| self.place_of(&item)) {
            Some(at) => self.items.split_off(at),
            None => Vec::new(),
        };
        // Not of items that were deleted one by one: their answers stay until the conversation or their time is over.
        let is_replaced = |sources: &Sources| replaced.iter().any(|item| item["id"] == sources.item.as_str());
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sources).into_iter().partition(is_replaced);
        self.sources = left;
        self.items.extend(added.items);
        self.collections.extend(added.collections);
        self.sources.extend(added.sources);
        let mut bytes: usize = self.sources.iter().map(Sources::bytes).sum();
        for sources in &mut self.sources {
            if bytes <= MOST_SOURCES {
                break;
            }
            bytes -= sources.bytes();
            sources.citations = Value::Null;
        }
        gone.into_iter().map(|sources| sources.response).collect()
    }
}

/// The start of the first question of these items, on one line.
pub(super) fn first_question(items: &[Value]) -> Option<String> {
    let first = items.iter().filter(|item| item["role"] == "user").map(text).find(|text| !text.trim().is_empty())?;
    let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_NAME) {
        Some((end, _)) => Some(format!("{}…", line[..end].trim_end())),
        None => Some(line),
    }
}

/// The text of a message, whose content is one or a list of parts.
fn text(item: &Value) -> String {
    match &item["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn said(role: &str, id: &str, text: &str) -> Value {
        json!({ "role": role, "id": id, "content": [{ "type": "input_text", "text": text }] })
    }

    fn sources(item: &str, text: &str) -> Sources {
        Sources {
            item: item.into(),
            response: format!("resp_{item}"),
            collection: Some("house".into()),
            created_unix_ms: 7,
            is_cut: false,
            citations: json!([{ "text": text }]),
            grounding: Value::Null,
        }
    }

    fn conversation(items: Vec<Value>, sources: Vec<Sources>) -> StoredConversation {
        let (tenant, id) = ("acme".to_owned(), "conv_1".to_owned());
        let (metadata, collections) = (Map::new(), BTreeSet::new());
        StoredConversation { tenant, id, created_unix_ms: 0, metadata, collections, asked: None, items, sources }
    }

    #[test]
    fn questions_have_their_answers_and_what_these_stand_on() {
        let call = json!({ "type": "function_call", "id": "c", "status": "completed" });
        let items = vec![
            said("system", "s", "Be brief."),
            said("user", "a", "Look at this."),
            said("user", "b", "What is it?"),
            call,
            said("assistant", "d", "A mill."),
            said("user", "e", "Where?"),
            json!({ "role": "assistant", "id": "f", "status": "incomplete", "content": "By the" }),
        ];
        let kept = conversation(items, vec![sources("b", "The mill."), sources("e", "By the bridge.")]);
        let turns = kept.turns();
        let texts: Vec<_> = turns.iter().map(|turn| (turn.question(), turn.answer(), turn.is_whole())).collect();
        let both = "Look at this.\n\nWhat is it?".to_owned();
        assert_eq!(texts, [(both, "A mill.".into(), true), ("Where?".into(), "By the".into(), false)]);
        assert_eq!(turns[0].items[0]["id"], "a");
        assert_eq!(
            turns.iter().map(|turn| turn.sources.unwrap().response.as_str()).collect::<Vec<_>>(),
            ["resp_b", "resp_e"]
        );
        assert!(conversation(vec![said("system", "s", "x")], Vec::new()).turns().is_empty());
    }

    #[test]
    fn what_is_replaced_leaves_with_its_answers() {
        let items = ["a", "b", "c", "d"].map(|id| said(if id < "c" { "user" } else { "assistant" }, id, id)).into();
        let mut kept = conversation(items, vec![sources("a", "x"), sources("b", "y")]);
        let added =
            Addition { items: vec![said("user", "e", "New")], replaces: Some("b".into()), ..Addition::default() };
        assert_eq!(kept.add(added), ["resp_b"]);
        assert_eq!(kept.items.iter().map(|item| item["id"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "e"]);
        assert_eq!(kept.sources.len(), 1);
        kept.items.remove(0);
        kept.settle();
        assert_eq!(kept.asked.as_deref(), Some("New"));
        assert_eq!((&kept.sources[0].response[..], &kept.sources[0].citations), ("resp_a", &Value::Null));
        assert!(kept.turns().iter().all(|turn| turn.sources.is_none()));
        kept.items.insert(0, said("user", "a", "x"));
        // What is to be replaced is gone meanwhile: nothing else goes for it.
        let added = Addition { items: vec![said("user", "g", "x")], replaces: Some("b".into()), ..Addition::default() };
        assert!(kept.add(added).is_empty());
        assert_eq!((kept.items.len(), kept.sources.len()), (3, 1));
    }

    #[test]
    fn the_passages_of_the_last_answers_stay_where_all_are_too_many() {
        let (items, long) = (["a", "b", "c"].map(|id| said("user", id, id)).into(), "x".repeat(MOST_SOURCES / 2));
        let mut kept = conversation(items, Vec::new());
        for item in ["a", "b", "c"] {
            kept.add(Addition { sources: Some(sources(item, &long)), ..Addition::default() });
        }
        let has: Vec<bool> = kept.sources.iter().map(|sources| !sources.citations.is_null()).collect();
        assert_eq!(has, [false, false, true]);
        assert_eq!(kept.sources[0].response, "resp_a", "the answer is still known");
    }

    #[test]
    fn a_name_is_the_start_of_the_first_question() {
        let items = [said("system", "s", "Be brief."), said("user", "a", " What\n is  it? ")];
        assert_eq!(first_question(&items).unwrap(), "What is it?");
        let long = first_question(&[said("user", "a", &"ä ".repeat(200))]).unwrap();
        assert_eq!((long.chars().count(), long.ends_with("ä…")), (MOST_NAME, true), "{long}");
        assert_eq!(first_question(&[said("user", "a", " ")]), None);
    }
}
