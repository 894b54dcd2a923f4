//! Calls of tools, put together of the pieces that an engine sends.

use serde_json::{Map, Value};

use super::{MOST_EVENT_BYTES, bad};
use crate::error::Result;

/// Calls of one answer.
const MOST_CALLS: usize = 256;

/// Those of an answer so far, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    /// The engine's name for it, if it has given one.
    id: String,
    name: String,
    arguments: String,
}

impl Calls {
    /// Takes a piece of a call: the name comes first, the arguments in pieces. Which call's it is, its `index` says; of engines that send none,
    /// or 0 with each, another id or a name behind whole arguments begins the next one.
    ///
    /// # Errors
    /// For more calls, or longer arguments, than anybody makes.
    pub fn add(&mut self, piece: &Value) -> Result<()> {
        let (index, id) = (piece["index"].as_u64(), piece["id"].as_str().unwrap_or_default());
        let name = piece["function"]["name"].as_str().unwrap_or_default();
        let found = self.0.iter().rposition(|call| index.is_none() || call.index == index);
        let at = match found.filter(|at| !self.0[*at].ends_before(id, name)) {
            Some(at) => at,
            None if self.0.len().max(index.unwrap_or_default() as usize) >= MOST_CALLS => {
                return Err(bad(&format!("an answer has more than {MOST_CALLS} calls")));
            }
            None => {
                self.0.push(Call { index, id: id.to_owned(), ..Call::default() });
                self.0.len() - 1
            }
        };
        let call = &mut self.0[at];
        // Some repeat it with each piece.
        if call.name != name {
            call.name.push_str(name);
        }
        match &piece["function"]["arguments"] {
            Value::String(text) => call.arguments.push_str(text),
            Value::Null => {}
            whole => call.arguments.push_str(&whole.to_string()),
        }
        if call.arguments.len() > MOST_EVENT_BYTES {
            return Err(bad(&format!("a call's arguments have more than {MOST_EVENT_BYTES} bytes")));
        }
        Ok(())
    }

    /// All of them, as models write them.
    pub fn written(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|call| call.written())
    }
}

impl Call {
    /// Whether a piece with this id and name, either of which may be empty, is of another call.
    fn ends_before(&self, id: &str, name: &str) -> bool {
        if !id.is_empty() && !self.id.is_empty() {
            return id != self.id;
        }
        !name.is_empty() && serde_json::from_str::<Map<String, Value>>(&self.arguments).is_ok()
    }

    /// As models write it. What was cut off, or is no object, is not made into a call that nobody made: it is written as the text that it is, so
    /// that whoever reads calls finds none.
    fn written(&self) -> String {
        let name = Value::from(self.name.as_str());
        match self.arguments.trim() {
            "" => format!("{{\"name\":{name},\"arguments\":{{}}}}"),
            arguments => match serde_json::from_str::<Map<String, Value>>(arguments) {
                Ok(arguments) => format!("{{\"name\":{name},\"arguments\":{}}}", Value::Object(arguments)),
                Err(_) => format!("{{\"name\":{name},\"arguments\":{}}}", Value::from(arguments)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(pieces: &[Value]) -> Vec<Value> {
        let mut calls = Calls::default();
        pieces.iter().for_each(|piece| calls.add(piece).unwrap());
        calls.written().map(|call| serde_json::from_str(&call).unwrap()).collect()
    }

    /// As Gemini and gateways before it send them, and OpenAI.
    #[test]
    fn calls_are_told_apart_with_and_without_an_index() {
        let whole = |id: &str, name: &str| json!({ "id": id, "function": { "name": name, "arguments": "{\"a\":1}" } });
        let expected = ["f", "g"].map(|name| json!({ "name": name, "arguments": { "a": 1 } }));
        let at_0 = |mut piece: Value| {
            piece["index"] = 0.into();
            piece
        };
        for pieces in [
            vec![whole("x", "f"), whole("y", "g")],
            vec![at_0(whole("x", "f")), at_0(whole("y", "g"))],
            vec![whole("", "f"), whole("", "g")],
            vec![
                json!({ "index": 0, "id": "x", "function": { "name": "f", "arguments": "" } }),
                json!({ "index": 1, "id": "y", "function": { "name": "g", "arguments": "{\"a\"" } }),
                json!({ "index": 0, "function": { "arguments": "{\"a\":1}" } }),
                json!({ "index": 1, "function": { "name": "g", "arguments": ":1}" } }),
            ],
            vec![
                json!({ "index": 0, "id": "x", "function": { "name": "f", "arguments": "{\"a\"" } }),
                json!({ "index": 0, "id": "x", "function": { "name": "f", "arguments": ":1}" } }),
                json!({ "id": "y", "function": { "name": "g", "arguments": { "a": 1 } } }),
            ],
        ] {
            assert_eq!(written(&pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn there_are_not_more_calls_than_anybody_makes() {
        let mut calls = Calls::default();
        let call = |index: usize| json!({ "index": index, "function": { "name": "f" } });
        (0..MOST_CALLS).for_each(|index| calls.add(&call(index)).unwrap());
        assert!(calls.add(&call(MOST_CALLS)).is_err());
    }
}
