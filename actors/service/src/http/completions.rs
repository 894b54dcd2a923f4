//! `POST /v1/completions`

use actix_web::{HttpRequest, web};
use ragstone_actors::{Input, MAX_ANSWERS, Question, RootCut};
use ragstone_kernels::sampling::{MAX_LOGPROBS, SamplingParams};

use super::answer::{self, Asked};
use super::body::Incoming;
use super::fields::{Fields, is_nothing};
use super::format;
use super::generation::{Generation, alternatives, check_model, is_known};
use super::identity::Visitor;
use super::reply::Reply;
use super::shape::Shape;
use super::told::Wish;
use crate::api::chat::{Prompt, Unsaid};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows beside what both know.
const FIELDS: &[&str] = &["prompt", "logprobs", "echo", "suffix"];

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Prompts of one request.
const MAX_PROMPTS: usize = 128;
/// Tokens, and alternatives beside each, that the answers to several prompts may come to: all of them are held until the last is there.
const MAX_LISTED: usize = 1 << 19;

impl Prompt {
    fn inputs(self) -> Result<Vec<Input>> {
        let inputs: Vec<Input> = match self {
            Self::Text(text) => vec![Input::Text(text)],
            Self::Tokens(ids) => vec![Input::Tokens(ids)],
            Self::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
        };
        if inputs.len() > MAX_PROMPTS {
            let message = format!("`prompt` holds {} prompts; send {MAX_PROMPTS} at most at once", inputs.len());
            return Err(Error::invalid_field("prompt", message));
        }
        Ok(inputs)
    }
}

/// Continues a text or token ids.
pub async fn complete(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| is_known(name, FIELDS));
    Ok(ignored.note(answer(&state, &request, opened, fields, None).await))
}

/// Continues what the fields say; in the form of `reply` where there is one, for one prompt.
pub async fn answer(
    state: &State,
    request: &HttpRequest,
    opened: &Opened,
    mut fields: Fields,
    reply: Option<Box<dyn Reply>>,
) -> Answered {
    check_model(&mut fields, &opened.model_id)?;
    fields.refuse_unless("tools", is_nothing)?;
    fields.refuse_unless("tool_choice", |value| matches!(value.as_str(), Some("none" | "auto")))?;
    fields.ignore(&["parallel_tool_calls"]);
    fields.refuse_unless("continue_final_message", is_nothing)?;
    fields.refuse_unless("add_generation_prompt", |value| *value == true)?;
    let has_seed = fields.has("seed");
    let mut generation = Generation::take(&mut fields, state, DEFAULT_MAX_TOKENS)?;
    let tenant = generation.extension.settle(&Visitor::of(request)?)?;
    format::check(state, &opened.ragstone, &generation, caller(request)).await?;
    let wish = wish(&mut fields, &mut generation.sampling)?;
    fields.refuse_unless("suffix", is_nothing)?;
    let prompt = fields.need::<Prompt>("prompt").map_err(|error| match error.to_string().contains("missing") {
        true => error,
        false => Error::invalid_field(
            "prompt",
            "`prompt` must be a string, a list of token ids, or a list of either of these",
        ),
    })?;
    fields.finish()?;
    check(&generation, wish)?;
    let Generation { sampling, extension, answers, choices, drafts, deadline, said, .. } = generation;
    let (asks, model) = (caller(request), &opened.model_id);
    let inputs = match (extension.pml, prompt) {
        (None, prompt) => prompt.inputs()?,
        (Some(pml), Prompt::Text(prompt)) => {
            vec![pml.input(("prompt", prompt), &opened.ragstone, &tenant, asks, deadline).await?]
        }
        (Some(_), _) => {
            return Err(Error::invalid_field("prompt", "`prompt` must be one text, a prompt of the schema").into());
        }
    };
    check_all(inputs.len() * answers, &sampling, opened.context)?;
    let shape = Shape::completion(&state.env, model, sampling.logprobs);
    let question = |input: Input| {
        // Each is answered as if it were asked alone: where no seed is given each has its own.
        let seed = if has_seed { sampling.seed } else { state.env.random_u64() };
        Question {
            input,
            sampling: SamplingParams { seed, ..sampling.clone() },
            answers,
            reuse: extension.reuse,
            explain: extension.explain,
            cites: extension.cite,
            ends_at_repeat: extension.sampling == Unsaid::Model,
            drafts,
            selection: None,
            root: RootCut::Whole,
            said: said.clone(),
            tenant: tenant.clone(),
            caller: asks,
            deadline,
        }
    };
    let mut questions = inputs.into_iter().map(question);
    let first = questions.next().ok_or_else(|| Error::invalid_field("prompt", "`prompt` is an empty list"))?;
    let asked = Asked {
        question: first,
        more: questions.collect(),
        wish,
        choices,
        shape,
        stream: generation.stream,
        include_usage: generation.include_usage,
        tools: None,
        thinking: None,
        reply,
    };
    answer::respond(state, request, asked).await
}

/// What is to be told of the prompts, which `sampling` is to ask of the model.
fn wish(fields: &mut Fields, sampling: &mut SamplingParams) -> Result<Wish> {
    if let Some(count) = fields.take::<u64>("logprobs")? {
        sampling.logprobs = Some(alternatives("logprobs", count, MAX_LOGPROBS)?);
    }
    let echo = fields.take::<bool>("echo")?.unwrap_or(false);
    let lists = sampling.logprobs.filter(|_| echo);
    let wish = Wish { echo, lists, prompt_logprobs: sampling.prompt_logprobs };
    sampling.prompt_logprobs = wish.alternatives();
    Ok(wish)
}

/// Refuses what this endpoint cannot answer.
fn check(generation: &Generation, wish: Wish) -> Result<()> {
    let extension = &generation.extension;
    if extension.collection.is_some() || !extension.documents.is_empty() {
        let message = "passages need a conversation; use /v1/chat/completions";
        return Err(Error::invalid_field("ragstone.collection", message));
    }
    if extension.pml.is_some() && !wish.is_nothing() {
        let field = if wish.echo { "echo" } else { "prompt_logprobs" };
        return Err(Error::invalid_field(field, format!("`{field}` is not told of a prompt of modules; leave it out")));
    }
    if generation.stream && generation.choices < generation.answers {
        let message = "`best_of` cannot be streamed: which are the best is known at their ends";
        return Err(Error::invalid_field("best_of", message));
    }
    Ok(())
}

/// Bounds what so many answers of several prompts may come to; those of one are bounded by its context.
fn check_all(answers: usize, sampling: &SamplingParams, context: usize) -> Result<()> {
    let beside = usize::from(sampling.logprobs.unwrap_or(0)) + 1;
    let listed = answers.saturating_mul(sampling.max_tokens.min(context)).saturating_mul(beside);
    if answers > MAX_ANSWERS && listed > MAX_LISTED {
        let message = format!(
            "the answers to all prompts may have {listed} tokens and alternatives, and {MAX_LISTED} are told at most: send fewer prompts \
             at once, or lower `max_tokens`, `n` or `logprobs`"
        );
        return Err(Error::invalid_field("prompt", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(json: &str) -> Result<Vec<Input>> {
        serde_json::from_str::<Prompt>(json).unwrap().inputs()
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_a_list_of_either() {
        assert!(matches!(&inputs(r#""a""#).unwrap()[..], [Input::Text(text)] if text == "a"));
        assert!(matches!(&inputs("[1,2]").unwrap()[..], [Input::Tokens(ids)] if *ids == [1, 2]));
        assert!(
            matches!(&inputs(r#"["a","b"]"#).unwrap()[..], [Input::Text(a), Input::Text(b)] if (&a[..], &b[..]) == ("a", "b"))
        );
        assert!(
            matches!(&inputs("[[1,2],[3]]").unwrap()[..], [Input::Tokens(a), Input::Tokens(b)] if *a == [1, 2] && *b == [3])
        );
        let many = serde_json::to_string(&vec!["a"; MAX_PROMPTS + 1]).unwrap();
        assert!(inputs(&many).unwrap_err().to_string().contains("129 prompts"));
        assert!(serde_json::from_str::<Prompt>("[-1]").is_err());
    }

    #[test]
    fn what_answers_to_many_prompts_come_to_is_bounded() {
        let sampling = |max_tokens, logprobs| SamplingParams { max_tokens, logprobs, ..SamplingParams::default() };
        check_all(MAX_PROMPTS, &sampling(4096, None), 4096).unwrap();
        check_all(MAX_ANSWERS, &sampling(usize::MAX, Some(20)), 1 << 20).unwrap();
        let error = check_all(MAX_PROMPTS, &sampling(4096, Some(1)), 4096).unwrap_err();
        assert!(error.to_string().contains("1048576 tokens"), "{error}");
        assert!(check_all(MAX_PROMPTS * MAX_ANSWERS, &sampling(usize::MAX, None), usize::MAX).is_err());
    }
}
