//! `POST /v1/completions`

use actix_web::{HttpRequest, web};
use ragstone_actors::{Input, Question, RootCut};

use super::answer::{self, Asked};
use super::body::Incoming;
use super::fields::{Fields, is_nothing};
use super::format;
use super::generation::{Generation, alternatives, check_model, is_known};
use super::identity::Visitor;
use super::shape::Shape;
use crate::api::chat::Prompt;
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows beside what both know.
const FIELDS: &[&str] = &["prompt", "logprobs", "echo", "suffix"];

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: usize = 16;
/// OpenAI's bound on `logprobs` for this endpoint.
const MAX_ALTERNATIVES: u8 = 5;

impl Prompt {
    fn input(self) -> Result<Input> {
        let many = |count| {
            Err(Error::invalid_field("prompt", format!("`prompt` holds {count} prompts; send one prompt a request")))
        };
        match self {
            Self::Text(text) => Ok(Input::Text(text)),
            Self::Tokens(ids) => Ok(Input::Tokens(ids)),
            Self::Texts(mut texts) => match (texts.pop(), texts.len()) {
                (Some(text), 0) => Ok(Input::Text(text)),
                (_, rest) => many(rest + 1),
            },
            Self::TokenLists(mut lists) => match (lists.pop(), lists.len()) {
                (Some(ids), 0) => Ok(Input::Tokens(ids)),
                (_, rest) => many(rest + 1),
            },
        }
    }
}

/// Continues a text or token ids.
pub async fn complete(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| is_known(name, FIELDS));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Answered {
    check_model(&mut fields, &opened.model_id)?;
    fields.refuse_unless("tools", is_nothing)?;
    fields.refuse_unless("tool_choice", |value| matches!(value.as_str(), Some("none" | "auto")))?;
    fields.ignore(&["parallel_tool_calls"]);
    let mut generation = Generation::take(&mut fields, state, DEFAULT_MAX_TOKENS)?;
    let tenant = generation.extension.settle(&Visitor::of(request)?)?;
    format::check(state, &opened.ragstone, &generation, caller(request)).await?;
    let mut sampling = generation.sampling;
    if let Some(count) = fields.take::<u64>("logprobs")? {
        sampling.logprobs = Some(alternatives("logprobs", count, MAX_ALTERNATIVES)?);
    }
    for name in ["echo", "suffix"] {
        fields.refuse_unless(name, is_nothing)?;
    }
    let prompt = fields.need::<Prompt>("prompt").map_err(|error| match error.to_string().contains("missing") {
        true => error,
        false => Error::invalid_field("prompt", "`prompt` must be a string or a list of token ids"),
    })?;
    fields.finish()?;
    let extension = generation.extension;
    if extension.collection.is_some() || !extension.documents.is_empty() {
        return Err(Error::invalid_field(
            "ragstone.collection",
            "passages need a conversation; use /v1/chat/completions",
        )
        .into());
    }
    if generation.stream && generation.choices < generation.answers {
        return Err(Error::invalid_field(
            "best_of",
            "`best_of` cannot be streamed: which are the best is known at their ends",
        )
        .into());
    }
    let input = match (extension.pml, prompt) {
        (None, prompt) => prompt.input()?,
        (Some(pml), Prompt::Text(prompt)) => {
            pml.input(("prompt", prompt), &opened.ragstone, &tenant, caller(request), generation.deadline).await?
        }
        (Some(_), _) => {
            return Err(Error::invalid_field("prompt", "`prompt` must be one text, a prompt of the schema").into());
        }
    };
    let asked = Asked {
        choices: generation.choices,
        shape: Shape::completion(&state.env, &opened.model_id, sampling.logprobs),
        question: Question {
            input,
            sampling,
            answers: generation.answers,
            reuse: extension.reuse,
            explain: extension.explain,
            drafts: generation.drafts,
            selection: None,
            root: RootCut::Whole,
            tenant,
            caller: caller(request),
            deadline: generation.deadline,
        },
        stream: generation.stream,
        include_usage: generation.include_usage,
        tools: None,
        response: None,
    };
    answer::respond(state, request, asked).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(json: &str) -> Result<Input> {
        serde_json::from_str::<Prompt>(json).unwrap().input()
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_a_list_of_one() {
        assert!(matches!(input(r#""a""#), Ok(Input::Text(text)) if text == "a"));
        assert!(matches!(input("[1,2]"), Ok(Input::Tokens(ids)) if ids == [1, 2]));
        assert!(matches!(input(r#"["a"]"#), Ok(Input::Text(text)) if text == "a"));
        assert!(matches!(input("[[1,2]]"), Ok(Input::Tokens(ids)) if ids == [1, 2]));
        assert!(input(r#"["a","b"]"#).unwrap_err().to_string().contains("2 prompts"));
        assert!(serde_json::from_str::<Prompt>("[-1]").is_err());
    }
}
