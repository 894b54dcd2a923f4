//! `POST /v1/chat/completions`

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::{Input, Question, RootCut};
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::MAX_LOGPROBS;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{self, Asked};
use super::body::Incoming;
use super::fields::Fields;
use super::generation::{Generation, alternatives, check_model, is_known, text_of};
use super::shape::Shape;
use crate::error::{Error, Result};
use crate::service::{Opened, State, caller};

/// What this endpoint knows beside what both know.
const FIELDS: &[&str] = &["messages", "logprobs", "top_logprobs"];

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
}

/// Answers a conversation, from passages where the extension names some.
pub async fn complete(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| is_known(name, FIELDS));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Result<HttpResponse> {
    check_model(&mut fields, &opened.model_id)?;
    let mut generation = Generation::take(&mut fields, state, opened.default_max_tokens())?;
    generation.sampling.logprobs = logprobs(&mut fields)?;
    let messages = fields
        .need::<Vec<Message>>("messages")?
        .into_iter()
        .enumerate()
        .map(|(index, message)| plain(index, message))
        .collect::<Result<Vec<_>>>()?;
    fields.finish()?;
    let question = Question {
        input: Input::Chat { messages, context: generation.extension.context() },
        sampling: generation.sampling,
        answers: generation.answers,
        reuse: generation.extension.reuse,
        explain: generation.extension.explain,
        drafts: generation.drafts,
        selection: None,
        root: RootCut::Whole,
        tenant: std::mem::take(&mut generation.extension.tenant),
        caller: caller(request),
        deadline: generation.deadline,
    };
    if generation.choices < generation.answers {
        return Err(Error::param("best_of", "`best_of` is a field of /v1/completions; here all answers are returned"));
    }
    let asked = Asked {
        choices: generation.choices,
        shape: Shape::chat(&state.env, &opened.model_id, question.sampling.logprobs),
        question,
        stream: generation.stream,
        include_usage: generation.include_usage,
    };
    answer::respond(state, request, asked).await
}

/// `logprobs: true` asks for the chosen tokens', `top_logprobs` for alternatives beside them.
fn logprobs(fields: &mut Fields) -> Result<Option<u8>> {
    let wanted = fields.take::<bool>("logprobs")?.unwrap_or(false);
    match fields.take::<u64>("top_logprobs")? {
        Some(count) if !wanted && count > 0 => {
            Err(Error::param("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        count => {
            let count = alternatives("top_logprobs", count.unwrap_or(0), MAX_LOGPROBS)?;
            Ok(wanted.then_some(count))
        }
    }
}

fn plain(index: usize, message: Message) -> Result<ChatMessage> {
    let param = format!("messages[{index}].content");
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => {
            let message = format!("role `{other}` is not supported; use system, user or assistant");
            return Err(Error::param(format!("messages[{index}].role"), message));
        }
    };
    if message.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return Err(Error::param(format!("messages[{index}].tool_calls"), "tool calls are not supported"));
    }
    if message.content.is_null() && role != "assistant" {
        return Err(Error::param(&*param, format!("`{param}` is missing")));
    }
    Ok(ChatMessage { role: role.to_owned(), content: text_of(message.content, &param)? })
}

#[cfg(test)]
mod fuzz_tests;
