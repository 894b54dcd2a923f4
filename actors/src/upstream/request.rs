//! What an engine is sent: a question over passages as OpenAI's messages. Pure.
//!
//! The order is that of our own prompts: system prompt, passages, the turns. So a prompt over the same passages begins with the same text,
//! which is all that an engine's prefix cache wants.

use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use serde_json::{Map, Value, json};

use super::served::{Make, Served};
use crate::question::prompt::PromptFormat;

/// Which of an engine's paths is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Messages.
    Chat,
    /// A text that goes on.
    Completions,
}

impl Endpoint {
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
        }
    }
}

/// Fields that engines take beside OpenAI's: one that does not know them may refuse the request for it.
const BEYOND_OPENAI: &[&str] = &[
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "skip_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// What is asked, without how.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Messages {
        messages: Vec<Value>,
        tools: Vec<Value>,
    },
    /// A text or token ids.
    Text(Value),
}

impl Prompt {
    /// A conversation over `passages`, each as it is written in a prompt; without passages as it is.
    pub fn of_chat(
        messages: &[ChatMessage],
        tools: &[Value],
        passages: Option<&[String]>,
        format: &PromptFormat,
    ) -> Self {
        let mut messages = messages.to_vec();
        if let Some(passages) = passages {
            if messages.first().is_none_or(|first| first.role != "system") {
                messages.insert(0, ChatMessage::new("system", format.system.trim_end()));
            }
            for message in messages.iter_mut().filter(|message| message.role == "user") {
                message.content = format.render_answer(&message.content);
            }
            if let Some(first) = messages.iter_mut().find(|message| message.role == "user") {
                first.content.insert_str(0, &passages.concat());
            }
        }
        Self::Messages { messages: messages.iter().map(message).collect(), tools: tools.to_vec() }
    }

    pub fn endpoint(&self) -> Endpoint {
        match self {
            Self::Messages { .. } => Endpoint::Chat,
            Self::Text(_) => Endpoint::Completions,
        }
    }

    /// Its text's bytes, about.
    pub fn bytes(&self) -> usize {
        let one = |message: &Value| message["content"].as_str().map_or(0, str::len);
        match self {
            Self::Messages { messages, .. } => messages.iter().map(one).sum(),
            Self::Text(text) => text.as_str().map_or_else(|| text.as_array().map_or(0, |ids| 4 * ids.len()), str::len),
        }
    }

    fn goes_on(&self) -> bool {
        match self {
            Self::Messages { messages, .. } => messages.last().is_some_and(|last| last["role"] == "assistant"),
            Self::Text(_) => false,
        }
    }
}

/// How it is asked.
pub(crate) struct Asked<'a> {
    /// The request's own fields, as they were written; `None`: the question did not come as a request.
    pub said: Option<&'a Map<String, Value>>,
    pub sampling: &'a SamplingParams,
    /// Which of several answers to one question it is.
    pub index: usize,
    /// Keeps one tenant's prefixes from another's, where the engine can.
    pub salt: &'a str,
}

/// The body of a request.
pub(crate) fn body(prompt: &Prompt, asked: &Asked<'_>, served: &Served) -> Value {
    let mut body = match asked.said {
        Some(said) => said.clone(),
        None => unsaid(asked.sampling),
    };
    if served.make == Make::Other {
        body.retain(|name, _| !BEYOND_OPENAI.contains(&name.as_str()));
    }
    // Both refuse 0; so small a share leaves the likeliest token alone, too.
    if matches!(served.make, Make::Vllm | Make::Sglang) && body.get("top_p").and_then(Value::as_f64) == Some(0.0) {
        body.insert("top_p".into(), LEAST_TOP_P.into());
    }
    let beyond = matches!(served.make, Make::Vllm | Make::Sglang | Make::Ragstone);
    match prompt {
        Prompt::Messages { messages, tools } => {
            body.insert("messages".into(), messages.clone().into());
            if tools.is_empty() {
                body.remove("tool_choice");
                body.remove("parallel_tool_calls");
            } else {
                body.insert("tools".into(), tools.clone().into());
            }
            if prompt.goes_on() && beyond {
                body.insert("continue_final_message".into(), true.into());
                body.insert("add_generation_prompt".into(), false.into());
            }
        }
        Prompt::Text(text) => {
            body.insert("prompt".into(), text.clone());
        }
    }
    bound_length(&mut body, prompt, served);
    if served.make == Make::Vllm && !asked.salt.is_empty() {
        body.insert("cache_salt".into(), asked.salt.into());
    }
    // One answer is one request: not every engine takes `n`, and the second finds the first one's prompt in its cache.
    if asked.index > 0 {
        let seed = body.get("seed").and_then(Value::as_u64).unwrap_or(asked.sampling.seed);
        body.insert("seed".into(), (seed.wrapping_add(asked.index as u64) & SEEDS).into());
    }
    body.insert("model".into(), served.id.clone().into());
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({ "include_usage": true }));
    Value::Object(body)
}

/// "As much as there is room for" (-1, or more than the context) is what engines refuse. One that is told nothing writes a message as far as there
/// is room, and of a text a few tokens, so that there the room is told: what is left where each byte of the prompt is a token, or, where that is
/// nothing, about. Another ragstone takes what it is told, and writes a little where it is told nothing.
fn bound_length(body: &mut Map<String, Value>, prompt: &Prompt, served: &Served) {
    if served.make == Make::Ragstone {
        return;
    }
    let context = served.context.map(|context| context as u64);
    let is_bound = |most: &Value| most.as_u64().is_some_and(|most| most < context.unwrap_or(u64::from(u32::MAX)));
    for name in ["max_tokens", "max_completion_tokens"] {
        if body.get(name).is_none_or(|most| most.is_null() || is_bound(most)) {
            continue;
        }
        match prompt {
            Prompt::Text(text) if context.is_some() => {
                let (most, likely) = tokens(text);
                let room =
                    |taken: u64| context.map(|context| context.saturating_sub(taken + 16)).filter(|room| *room > 0);
                // Where there is none, the engine says so.
                if let Some(room) = room(most).or_else(|| room(likely)) {
                    body.insert(name.into(), room.into());
                }
            }
            _ => drop(body.remove(name)),
        }
    }
}

/// Of a text or its ids: as many as it has at the most, and twice what is likely.
fn tokens(text: &Value) -> (u64, u64) {
    match text.as_array() {
        Some(ids) => (ids.len() as u64, ids.len() as u64),
        None => {
            let bytes = text.as_str().map_or(0, str::len);
            (bytes as u64, 2 * likely_tokens(bytes))
        }
    }
}

/// What vLLM and SGLang are asked for where 0 is meant.
const LEAST_TOP_P: f64 = 1e-6;

/// Seeds that every engine takes.
const SEEDS: u64 = i32::MAX as u64;

/// Of a question that no request brought.
fn unsaid(sampling: &SamplingParams) -> Map<String, Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    set("temperature", sampling.temperature.into());
    set("top_p", sampling.top_p.into());
    set("max_tokens", sampling.max_tokens.into());
    set("seed", (sampling.seed & SEEDS).into());
    if !sampling.stop.is_empty() {
        set("stop", sampling.stop.clone().into());
    }
    body
}

/// A message as OpenAI has it: our templates want a call's arguments as an object, and OpenAI as its text.
fn message(message: &ChatMessage) -> Value {
    let mut sent = json!({ "role": message.role, "content": message.content });
    let calls: Vec<Value> = message.tool_calls.iter().map(call).collect();
    if !calls.is_empty() {
        sent["tool_calls"] = calls.into();
        if message.content.is_empty() {
            sent["content"] = Value::Null;
        }
    }
    if let Some(id) = &message.tool_call_id {
        sent["tool_call_id"] = id.as_str().into();
    }
    if let Some(name) = &message.name {
        sent["name"] = name.as_str().into();
    }
    sent
}

fn call(call: &Value) -> Value {
    let mut call = call.clone();
    if call["function"]["arguments"].is_object() {
        call["function"]["arguments"] = call["function"]["arguments"].to_string().into();
    }
    call
}

/// What of a prompt's tokens is likely: engines say it when the answer ends, and whoever leaves before has used them, too.
pub(crate) fn likely_tokens(bytes: usize) -> u64 {
    (bytes / 5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(make: Make) -> Served {
        Served { id: "m".into(), make, context: None }
    }

    fn asked<'a>(said: Option<&'a Map<String, Value>>, sampling: &'a SamplingParams, index: usize) -> Asked<'a> {
        Asked { said, sampling, index, salt: "tenant" }
    }

    fn said(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("{value}") };
        map
    }

    #[test]
    fn passages_stand_behind_the_system_prompt_and_before_every_turn() {
        let format = PromptFormat::default();
        let turns = [("user", "Who?"), ("assistant", "Ada."), ("user", "When?")]
            .map(|(role, text)| ChatMessage::new(role, text));
        let passages = ["Passage: a | b\n".to_owned(), "Passage: c | d\n".to_owned()];
        let Prompt::Messages { messages, .. } = Prompt::of_chat(&turns, &[], Some(&passages), &format) else {
            panic!()
        };
        let text = |index: usize| messages[index]["content"].as_str().unwrap();
        assert_eq!(messages[0], json!({ "role": "system", "content": "Answer each question from the passages." }));
        assert_eq!(text(1), "Passage: a | b\nPassage: c | d\nQuestion: Who?\nAnswer:");
        assert_eq!((text(2), text(3)), ("Ada.", "Question: When?\nAnswer:"));
        // A conversation without passages is the client's own.
        let Prompt::Messages { messages, .. } = Prompt::of_chat(&turns, &[], None, &format) else { panic!() };
        assert_eq!(messages[0], json!({ "role": "user", "content": "Who?" }));
        assert_eq!(messages.len(), 3);
    }

    #[test]
    fn a_request_is_passed_on_as_it_was_written() {
        let (sampling, prompt) = (
            SamplingParams::default(),
            Prompt::of_chat(&[ChatMessage::new("user", "x")], &[], None, &PromptFormat::default()),
        );
        let said = said(
            json!({ "temperature": 0.3, "top_k": 5, "response_format": { "type": "json_object" }, "tool_choice": "auto" }),
        );
        let vllm = body(&prompt, &asked(Some(&said), &sampling, 0), &served(Make::Vllm));
        assert_eq!(
            (&vllm["temperature"], &vllm["top_k"], &vllm["cache_salt"]),
            (&json!(0.3), &json!(5), &json!("tenant"))
        );
        assert_eq!(vllm["response_format"]["type"], "json_object");
        assert_eq!((&vllm["stream"], &vllm["stream_options"]["include_usage"]), (&json!(true), &json!(true)));
        assert!(
            vllm.get("tool_choice").is_none() && vllm.get("max_tokens").is_none() && vllm.get("seed").is_none(),
            "{vllm}"
        );
        let other = body(&prompt, &asked(Some(&said), &sampling, 2), &served(Make::Other));
        assert!(other.get("top_k").is_none() && other.get("cache_salt").is_none(), "{other}");
        assert_eq!(other["seed"], 2, "another answer to the same question");
        let own = body(
            &prompt,
            &asked(None, &SamplingParams { stop: vec!["x".into()], ..sampling.clone() }, 0),
            &served(Make::Other),
        );
        assert_eq!((&own["temperature"], &own["max_tokens"], &own["stop"]), (&json!(0.0), &json!(256), &json!(["x"])));
    }

    #[test]
    fn the_likeliest_token_alone_is_asked_for_as_each_engine_takes_it() {
        let sampling = SamplingParams::default();
        let prompt = Prompt::of_chat(&[ChatMessage::new("user", "x")], &[], None, &PromptFormat::default());
        for (said_top_p, make, expected) in [
            (json!(0), Make::Vllm, json!(LEAST_TOP_P)),
            (json!(0.0), Make::Sglang, json!(LEAST_TOP_P)),
            (json!(0), Make::Other, json!(0)),
            (json!(0), Make::Ragstone, json!(0)),
            (json!(0.5), Make::Vllm, json!(0.5)),
        ] {
            let said = said(json!({ "top_p": said_top_p }));
            assert_eq!(body(&prompt, &asked(Some(&said), &sampling, 0), &served(make))["top_p"], expected);
        }
    }

    /// vLLM refuses what its context has no room for.
    #[test]
    fn as_much_as_there_is_room_for_is_left_to_the_engine() {
        let sampling = SamplingParams::default();
        let chat = Prompt::of_chat(&[ChatMessage::new("user", "x")], &[], None, &PromptFormat::default());
        let text = Prompt::Text(json!("four"));
        let asked_for = |prompt: &Prompt, most: Value, context| {
            let said = said(json!({ "max_tokens": most }));
            let served = Served { context, ..served(Make::Vllm) };
            body(prompt, &asked(Some(&said), &sampling, 0), &served).get("max_tokens").cloned()
        };
        for context in [None, Some(4096)] {
            assert_eq!(asked_for(&chat, json!(u32::MAX), context), None);
            assert_eq!(asked_for(&chat, json!(-1), context), None);
            assert_eq!(asked_for(&chat, json!(100), context), Some(json!(100)));
        }
        assert_eq!(asked_for(&chat, json!(4096), Some(4096)), None);
        assert_eq!(asked_for(&text, json!(-1), Some(4096)), Some(json!(4096 - 4 - 16)));
        assert_eq!(asked_for(&text, json!(u32::MAX), None), None);
        assert_eq!(
            asked_for(&text, json!(u32::MAX), Some(19)),
            Some(json!(3)),
            "four bytes are likely to be one token"
        );
        assert_eq!(
            asked_for(&text, json!(u32::MAX), Some(10)),
            Some(json!(u32::MAX)),
            "the engine says that it is too long"
        );
        let long = Prompt::Text(json!("word ".repeat(1000)));
        assert_eq!(asked_for(&long, json!(-1), Some(4096)), Some(json!(4096 - 2000 - 16)));
        assert_eq!(
            asked_for(&Prompt::Text(json!(vec![7; 3000])), json!(-1), Some(4096)),
            Some(json!(4096 - 3000 - 16))
        );
        let said = said(json!({ "max_tokens": u32::MAX }));
        let served = Served { context: Some(4096), ..served(Make::Ragstone) };
        let sent = body(&chat, &asked(Some(&said), &sampling, 0), &served);
        assert_eq!(sent["max_tokens"], u32::MAX, "which knows it, and would write 256 where it is told nothing");
    }

    #[test]
    fn calls_and_what_tools_said_have_openais_form() {
        let call = json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": { "a": 1 } } });
        let called = ChatMessage { tool_calls: vec![call], ..ChatMessage::new("assistant", "") };
        let told =
            ChatMessage { tool_call_id: Some("c1".into()), name: Some("f".into()), ..ChatMessage::new("tool", "2") };
        let tools = [json!({ "type": "function", "function": { "name": "f" } })];
        let prompt =
            Prompt::of_chat(&[ChatMessage::new("user", "x"), called, told], &tools, None, &PromptFormat::default());
        let sampling = SamplingParams::default();
        let said = said(json!({ "tool_choice": "required" }));
        let body = body(&prompt, &asked(Some(&said), &sampling, 0), &served(Make::Other));
        assert_eq!(body["messages"][1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(body["messages"][1]["content"], Value::Null);
        assert_eq!(body["messages"][2], json!({ "role": "tool", "content": "2", "tool_call_id": "c1", "name": "f" }));
        assert_eq!((&body["tools"][0]["function"]["name"], &body["tool_choice"]), (&json!("f"), &json!("required")));
    }

    #[test]
    fn an_answer_that_was_begun_is_continued_where_the_engine_can() {
        let turns = [ChatMessage::new("user", "x"), ChatMessage::new("assistant", "It is")];
        let (prompt, sampling) =
            (Prompt::of_chat(&turns, &[], None, &PromptFormat::default()), SamplingParams::default());
        let of = |make| body(&prompt, &asked(None, &sampling, 0), &served(make));
        assert_eq!(
            (&of(Make::Vllm)["continue_final_message"], &of(Make::Vllm)["add_generation_prompt"]),
            (&json!(true), &json!(false))
        );
        assert!(of(Make::Other).get("continue_final_message").is_none());
    }
}
