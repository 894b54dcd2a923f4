//! `POST /v1/chat/completions`

use actix_web::{HttpRequest, web};
use ragstone_actors::{Input, Question, RootCut};
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::chat::thoughts::Thinking;
use ragstone_kernels::sampling::MAX_LOGPROBS;
use serde_json::Value;

use super::answer::{self, Asked};
use super::audit;
use super::body::Incoming;
use super::collections::naming;
use super::fields::Fields;
use super::format;
use super::generation::{Extension, Generation, alternatives, check_model, is_known, text_of};
use super::identity::Visitor;
use super::reply::Reply;
use super::shape::Shape;
use super::told::Wish;
use super::tools::{Tools, name_tools, sent_calls};
use crate::api::chat::{RequestMessage, Unsaid};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows beside what both know.
const FIELDS: &[&str] = &["messages", "logprobs", "top_logprobs", "chat_template_kwargs", "reasoning_effort"];

/// Answers a conversation, from passages where the extension names some.
pub async fn complete(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let unheard = if opened.ragstone.has_upstream() { Vec::new() } else { unheard(&fields) };
    let ignored = fields.ignore_unknown(|name| is_known(name, FIELDS)).and(&unheard);
    Ok(ignored.note(answer(&state, &request, opened, fields, None).await))
}

/// Answers what the fields ask; in the form of `reply` where there is one.
pub async fn answer(
    state: &State,
    request: &HttpRequest,
    opened: &Opened,
    mut fields: Fields,
    reply: Option<Box<dyn Reply>>,
) -> Answered {
    check_model(&mut fields, &opened.model_id)?;
    let mut generation = Generation::take(&mut fields, state, opened.default_max_tokens())?;
    check_answers(&generation)?;
    let visitor = Visitor::of(request)?;
    let tenant = generation.extension.settle(&visitor)?;
    let collection = generation.extension.collection.clone();
    if let Some(collection) = &collection {
        audit::say(request, "collection", collection.as_str());
    }
    generation.sampling.logprobs = logprobs(&mut fields)?;
    let tools = Tools::take(&mut fields, &mut generation, &opened.ragstone)?;
    let thinks = thinks(&mut fields)?;
    let messages = fields.need::<Vec<RequestMessage>>("messages")?;
    let mut messages = conversation(&mut fields, messages)?;
    generation.extension.take_qualifiers(&mut messages)?;
    fields.finish()?;
    format::check(state, &opened.ragstone, &generation, caller(request)).await?;
    let wish = Wish { prompt_logprobs: generation.sampling.prompt_logprobs, ..Wish::default() };
    let list = tools.as_ref().map(|tools| tools.list.clone()).unwrap_or_default();
    let input = match generation.extension.pml.take() {
        Some(pml) => {
            if !wish.is_nothing() {
                let message = "`prompt_logprobs` is not told of a prompt of modules; leave it out";
                return Err(Error::invalid_field("prompt_logprobs", message).into());
            }
            let prompt = ("messages[0].content", markup(messages, &list, &generation.extension)?);
            pml.input(prompt, &opened.ragstone, &tenant, caller(request), generation.deadline).await?
        }
        None => Input::Chat { messages, tools: list, thinks, context: generation.extension.context() },
    };
    let goes_on =
        matches!(&input, Input::Chat { messages, .. } if messages.last().is_some_and(|last| last.role == "assistant"));
    // What goes on with an answer that was begun thinks no more, but for an engine that begins a new one; and a form holds from the first token on.
    let is_formed = generation.format.is_some();
    let thinking = opened.ragstone.thinking(thinks).filter(|_| !goes_on || opened.ragstone.has_upstream());
    let thinking = thinking.map(|thinking| if is_formed { Thinking::Maybe } else { thinking });
    let question = Question {
        input,
        sampling: generation.sampling,
        answers: generation.answers,
        reuse: generation.extension.reuse,
        explain: generation.extension.explain,
        cites: generation.extension.cite,
        ends_at_repeat: generation.extension.sampling == Unsaid::Model,
        drafts: generation.drafts,
        selection: None,
        root: RootCut::Whole,
        said: generation.said,
        tenant,
        caller: caller(request),
        deadline: generation.deadline,
    };
    let asked = Asked {
        choices: generation.choices,
        shape: Shape::chat(&state.env, &opened.model_id, question.sampling.logprobs),
        question,
        more: Vec::new(),
        wish,
        stream: generation.stream,
        include_usage: generation.include_usage,
        tools,
        thinking,
        reply,
    };
    let answered = answer::respond(state, request, asked).await;
    match collection {
        Some(collection) => naming(opened, &visitor, &collection, answered).await,
        None => answered,
    }
}

/// The names of `chat_template_kwargs` that say whether a model thinks first: Qwen's and SmolLM's, and that of DeepSeek and Granite.
const THINKS: &[&str] = &["enable_thinking", "thinking"];

/// What two fields say that has no effect here, as it is named to the client.
fn unheard(fields: &Fields) -> Vec<String> {
    let others = |(name, _): (&String, &Value)| {
        (!THINKS.contains(&name.as_str())).then(|| format!("chat_template_kwargs.{name}"))
    };
    let kwargs = fields.get("chat_template_kwargs").and_then(Value::as_object).into_iter().flatten();
    let effort = fields.get("reasoning_effort").filter(|effort| !effort.is_null() && **effort != "none");
    kwargs.filter_map(others).chain(effort.map(|_| "reasoning_effort".to_owned())).collect()
}

/// Whether the model is to think first: `chat_template_kwargs` of vLLM and llama.cpp, and OpenAI's `reasoning_effort`, of which `none` is heard.
fn thinks(fields: &mut Fields) -> Result<Option<bool>> {
    let effort = fields.take_value("reasoning_effort").filter(|effort| *effort == "none");
    let Some(kwargs) = fields.take::<serde_json::Map<String, Value>>("chat_template_kwargs")? else {
        return Ok(effort.map(|_| false));
    };
    let mut said = effort.map(|_| false);
    for (name, value) in kwargs.iter().filter(|(name, _)| THINKS.contains(&name.as_str())) {
        let Some(thinks) = value.as_bool() else {
            let field = format!("chat_template_kwargs.{name}");
            return Err(Error::invalid_field(&*field, format!("`{field}` must be true or false")));
        };
        said = Some(thinks);
    }
    Ok(said)
}

/// Refuses what only plain completions have.
fn check_answers(generation: &Generation) -> Result<()> {
    if generation.sampling.max_tokens == 0 {
        return Err(Error::invalid_field("max_tokens", "`max_tokens` must be at least 1"));
    }
    if generation.choices < generation.answers {
        let message = "`best_of` is a field of /v1/completions; here all answers are returned";
        return Err(Error::invalid_field("best_of", message));
    }
    Ok(())
}

/// The messages as a chat template takes them; takes the fields that say how their prompt ends.
pub fn conversation(fields: &mut Fields, messages: Vec<RequestMessage>) -> Result<Vec<ChatMessage>> {
    check_end(fields, messages.last().is_some_and(|message| message.role == "assistant"))?;
    let plain = messages.into_iter().enumerate().map(|(index, message)| plain(index, message));
    let mut messages = plain.collect::<Result<Vec<_>>>()?;
    name_tools(&mut messages);
    // OpenAI's service answers instructions alone; templates want somebody who asks.
    let is_asked = messages.iter().any(|message| message.role != "system");
    if let Some(last) = messages.last_mut().filter(|_| !is_asked) {
        last.role = "user".to_owned();
    }
    Ok(messages)
}

/// vLLM's two fields on how the prompt ends, which must say what it does: an assistant's message at the end is continued, and behind any
/// other one a new turn begins.
fn check_end(fields: &mut Fields, is_begun: bool) -> Result<()> {
    let (goes_on, opens) = ("continue_final_message", "add_generation_prompt");
    let refused = |field, message| Err(Error::invalid_field(field, message));
    match (fields.take::<bool>(goes_on)?, fields.take::<bool>(opens)?) {
        (Some(true), Some(true)) => refused(
            goes_on,
            "`continue_final_message` and `add_generation_prompt` contradict each other; leave one out",
        ),
        (Some(true), _) if !is_begun => {
            refused(goes_on, "`continue_final_message` needs a last message that is the assistant's")
        }
        (Some(false), _) if is_begun => refused(
            goes_on,
            "the last message is the assistant's, which is continued; leave `continue_final_message` out",
        ),
        (_, Some(true)) if is_begun => {
            refused(opens, "the last message is the assistant's, which is continued; leave `add_generation_prompt` out")
        }
        (_, Some(false)) if !is_begun => {
            refused(opens, "`add_generation_prompt` may be false where the last message is the assistant's alone")
        }
        _ => Ok(()),
    }
}

/// The prompt of a schema: who says what stands in its markup, in the template's words.
fn markup(mut messages: Vec<ChatMessage>, tools: &[Value], extension: &Extension) -> Result<String> {
    if extension.collection.is_some() || !extension.documents.is_empty() {
        let message = "a prompt of modules takes no passages: put them into its schema, or leave `ragstone.pml` out";
        return Err(Error::invalid_field("ragstone.pml", message));
    }
    if !tools.is_empty() {
        return Err(Error::invalid_field("tools", "a prompt of modules takes no tools: describe them in its schema"));
    }
    match messages.pop() {
        Some(prompt) if messages.is_empty() && prompt.role == "user" => Ok(prompt.content),
        _ => {
            let message = "with `ragstone.pml`, `messages` is one user message, whose content is the prompt of the schema: \
                           earlier turns stand in it as <user> and <assistant>";
            Err(Error::invalid_field("messages", message))
        }
    }
}

/// `logprobs: true` asks for the chosen tokens', `top_logprobs` for alternatives beside them.
fn logprobs(fields: &mut Fields) -> Result<Option<u8>> {
    let wanted = fields.take::<bool>("logprobs")?.unwrap_or(false);
    match fields.take::<u64>("top_logprobs")? {
        Some(count) if !wanted && count > 0 => {
            Err(Error::invalid_field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        count => {
            let count = alternatives("top_logprobs", count.unwrap_or(0), MAX_LOGPROBS)?;
            Ok(wanted.then_some(count))
        }
    }
}

fn plain(index: usize, message: RequestMessage) -> Result<ChatMessage> {
    let param = format!("messages[{index}].content");
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        other => {
            let message = format!("role `{other}` is not supported; use system, user, assistant or tool");
            return Err(Error::invalid_field(format!("messages[{index}].role"), message));
        }
    };
    let calls = message.tool_calls.unwrap_or_default();
    let at = |field: &str| format!("messages[{index}].{field}");
    if role != "assistant" && !calls.is_empty() {
        return Err(Error::invalid_field(at("tool_calls"), "only an assistant calls tools"));
    }
    if role == "tool" && message.tool_call_id.is_none() {
        return Err(Error::invalid_field(at("tool_call_id"), format!("`{}` is missing", at("tool_call_id"))));
    }
    if message.content.is_null() && role != "assistant" {
        return Err(Error::invalid_field(&*param, format!("`{param}` is missing")));
    }
    Ok(ChatMessage {
        tool_calls: sent_calls(&at("tool_calls"), calls)?,
        tool_call_id: message.tool_call_id.filter(|_| role == "tool"),
        name: message.name.filter(|_| role == "tool"),
        ..ChatMessage::new(role, text_of(message.content, &param)?)
    })
}

#[cfg(test)]
mod fuzz_tests;
