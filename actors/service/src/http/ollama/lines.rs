//! An answer as Ollama's API has it: JSON lines, or one object.

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat};
use ragstone_actors::{Citation, Finish, FinishReason};
use ragstone_env::{Env, Stopwatch};
use serde_json::{Value, json};

use crate::error::Error;
use crate::http::reply::{Prompted, Reply, Wire};
use crate::http::shape;
use crate::http::tools::Said;

/// Which endpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Generate,
}

/// An answer as it grows.
pub struct Lines {
    kind: Kind,
    env: Env,
    model: String,
    begun: Stopwatch,
    /// With a text that the client began: a space before the answer counts.
    goes_on: bool,
    text: String,
    thoughts: String,
    calls: Vec<Value>,
    /// What the last line says beside the text.
    ending: Value,
}

impl Lines {
    /// An empty one of this model; `goes_on`: behind a text that the client began.
    pub fn new(kind: Kind, env: &Env, model: &str, goes_on: bool) -> Self {
        let model = model.to_owned();
        Self {
            kind,
            env: env.clone(),
            model,
            begun: Stopwatch::start(),
            goes_on,
            text: String::new(),
            thoughts: String::new(),
            calls: Vec::new(),
            ending: json!({}),
        }
    }

    /// What is said where nothing was asked.
    pub fn without_answer(&self, reason: &str) -> Value {
        let mut line = self.line("", &[], true);
        line["done_reason"] = reason.into();
        line
    }

    fn line(&self, text: &str, calls: &[Value], is_done: bool) -> Value {
        let mut line = json!({ "model": self.model, "created_at": rfc3339(self.env.now_unix_ms()), "done": is_done });
        match self.kind {
            Kind::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    line["message"]["tool_calls"] = calls.into();
                }
            }
            Kind::Generate => line["response"] = text.into(),
        }
        line
    }

    /// A line that also says what the model thought.
    fn thinking(&self, mut line: Value, thoughts: &str) -> Value {
        match self.kind {
            Kind::Chat => line["message"]["thinking"] = thoughts.into(),
            Kind::Generate => line["thinking"] = thoughts.into(),
        }
        line
    }

    fn last(&self, text: &str, calls: &[Value]) -> Value {
        let mut line = self.line(text, calls, true);
        if let (Value::Object(line), Value::Object(ending)) = (&mut line, &self.ending) {
            line.extend(ending.clone());
        }
        line
    }
}

impl Reply for Lines {
    fn begin(&mut self, _prompt: Prompted) -> Vec<Value> {
        Vec::new()
    }

    fn say(&mut self, said: &Said) -> Vec<Value> {
        match said {
            Said::Text(text) => {
                // Tokens carry the space before them.
                let text = if self.text.is_empty() && !self.goes_on { text.trim_start() } else { text };
                if text.is_empty() {
                    return Vec::new();
                }
                self.text.push_str(text);
                vec![self.line(text, &[], false)]
            }
            Said::Thought(thought) => {
                self.thoughts.push_str(thought);
                vec![self.thinking(self.line("", &[], false), thought)]
            }
            Said::Call { index, id, name, arguments } => {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                let function = json!({ "index": index, "name": name, "arguments": arguments });
                let call = json!({ "id": id, "function": function });
                self.calls.push(call.clone());
                vec![self.line("", &[call], false)]
            }
        }
    }

    fn end(&mut self, citations: &[Citation], finish: &Finish) -> Vec<Value> {
        let total = self.begun.elapsed().as_nanos() as u64;
        // What it took to the first token, and what the others took.
        let first = ((finish.report.ttft.total_ms * 1e6) as u64).min(total);
        let reason = match finish.reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        self.ending = json!({
            "done_reason": reason, "total_duration": total, "load_duration": 0, "prompt_eval_count": finish.usage.prompt_tokens,
            "prompt_eval_duration": first, "eval_count": finish.usage.completion_tokens, "eval_duration": total - first,
            "ragstone": shape::extension(citations, finish),
        });
        vec![self.last("", &[])]
    }

    fn fail(&mut self, error: &Error) -> Value {
        error_body(error)
    }

    fn whole(&self) -> Value {
        let line = self.last(&self.text, &self.calls);
        if self.thoughts.is_empty() { line } else { self.thinking(line, &self.thoughts) }
    }

    fn wire(&self) -> Wire {
        Wire::Lines
    }

    /// Each line is a part of the answer: there is none that says nothing.
    fn heartbeat(&self) -> Option<Bytes> {
        None
    }
}

/// `{"error": "why"}`
pub fn error_body(error: &Error) -> Value {
    json!({ "error": error.to_string() })
}

/// A time as these clients read it.
pub fn rfc3339(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(DateTime::from_timestamp_millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use ragstone_actors::{ReuseReport, Usage};

    use super::*;

    #[test]
    fn lines_add_up_to_the_answer() {
        let finish = Finish {
            reason: FinishReason::Length,
            usage: Usage { prompt_tokens: 10, completion_tokens: 3 },
            report: ReuseReport::default(),
            stop: None,
            grounding: None,
            end_token: None,
        };
        let call = Said::Call { index: 0, id: "x".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() };
        let mut lines = Lines::new(Kind::Chat, &Env::seeded(1, 5_000), "m", false);
        let mut sent = lines.begin(Prompted::default());
        for said in [Said::Text(" Hel".into()), Said::Text("lo".into()), call] {
            sent.extend(lines.say(&said));
        }
        sent.extend(lines.end(&[], &finish));
        assert_eq!((&sent[0]["message"]["content"], &sent[0]["done"]), (&json!("Hel"), &json!(false)));
        let called = json!([{ "id": "x", "function": { "index": 0, "name": "f", "arguments": { "a": 1 } } }]);
        assert_eq!(sent[2]["message"]["tool_calls"], called);
        assert_eq!(
            (&sent[3]["done"], &sent[3]["done_reason"], &sent[3]["eval_count"]),
            (&json!(true), &json!("length"), &json!(3))
        );
        let whole = lines.whole();
        assert_eq!((&whole["message"]["content"], &whole["message"]["tool_calls"]), (&json!("Hello"), &called));
        assert_eq!(whole["created_at"], "1970-01-01T00:00:05.000Z");

        let mut lines = Lines::new(Kind::Generate, &Env::seeded(1, 5_000), "m", true);
        assert_eq!(lines.without_answer("load")["done_reason"], "load");
        lines.say(&Said::Text(" a".into()));
        lines.end(&[], &finish);
        assert_eq!((&lines.whole()["response"], &lines.whole()["prompt_eval_count"]), (&json!(" a"), &json!(10)));
    }

    #[test]
    fn thoughts_stand_apart() {
        let mut lines = Lines::new(Kind::Chat, &Env::seeded(1, 5_000), "smol", false);
        let thought = lines.say(&Said::Thought("Hm.".into()));
        assert_eq!(thought[0]["message"], json!({ "role": "assistant", "content": "", "thinking": "Hm." }));
        lines.say(&Said::Text("Nine.".into()));
        let whole = lines.whole();
        assert_eq!(whole["message"], json!({ "role": "assistant", "content": "Nine.", "thinking": "Hm." }));
    }
}
