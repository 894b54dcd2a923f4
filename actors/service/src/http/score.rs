//! `POST /score` and `/v1/score`, as vLLM has them: how well texts answer texts.

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::InlineDocument;

use super::body::Incoming;
use super::fields::Fields;
use super::rerank::{Asked, name_of, reranker, usage};
use crate::api::ListObject;
use crate::api::rerank::{RerankExtension, RerankTokens, RerankUsage, Score, Scores, Texts};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows; what else comes is ignored, and named in a header.
const FIELDS: &[&str] = &["model", "text_1", "text_2", "ragstone", "user"];
/// Pairs whose first texts differ: each is a reranking of its own.
const MOST_PAIRS: usize = 64;

/// A score for each pair.
pub async fn score(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| FIELDS.contains(&name));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Answered {
    let by = reranker(&mut fields, opened)?;
    let questions = pairs(texts(&mut fields, "text_1")?, texts(&mut fields, "text_2")?)?;
    let extension: RerankExtension = fields.take("ragstone")?.unwrap_or_default();
    fields.ignore(&["user"]);
    fields.finish()?;
    let (mut data, mut model) = (Vec::new(), opened.model_id.clone());
    let mut total =
        RerankUsage { prompt_tokens: 0, total_tokens: 0, prompt_tokens_details: RerankTokens { cached_tokens: 0 } };
    for (query, documents) in questions {
        let count = documents.len();
        let documents = documents.into_iter().map(|text| InlineDocument { text, ..InlineDocument::default() });
        let asked = Asked { by, query, documents: documents.collect(), extension: extension.clone() };
        let reranked = asked.done(state, request, opened).await.map_err(renamed)?;
        let score = |at: usize| Score { index: data.len() + at, object: "score".into(), score: reranked.relevance(at) };
        let scores: Vec<Score> = (0..count).map(score).collect();
        data.extend(scores);
        let used = usage(&reranked);
        total.prompt_tokens += used.prompt_tokens;
        total.total_tokens += used.total_tokens;
        total.prompt_tokens_details.cached_tokens += used.prompt_tokens_details.cached_tokens;
        name_of(reranked.by, opened).clone_into(&mut model);
    }
    Ok(HttpResponse::Ok().json(Scores {
        id: format!("score-{:016x}", state.env.random_u64()),
        object: ListObject::List,
        created: state.env.now_unix_ms() / 1000,
        model,
        data,
        usage: total,
    }))
}

fn texts(fields: &mut Fields, name: &str) -> Result<Vec<String>> {
    match fields.need::<Texts>(name) {
        Ok(Texts::One(text)) => Ok(vec![text]),
        Ok(Texts::Many(texts)) if !texts.is_empty() => Ok(texts),
        Err(error) if error.to_string().contains("missing") => Err(error),
        _ => Err(Error::invalid_field(name, format!("`{name}` must be a text, or a list of texts that is not empty"))),
    }
}

/// Each first text with those that are read with it: one text with every other, or pair by pair.
fn pairs(first: Vec<String>, second: Vec<String>) -> Result<Vec<(String, Vec<String>)>> {
    if first.len() == 1 {
        return Ok(first.into_iter().map(|query| (query, second.clone())).collect());
    }
    if first.len() != second.len() {
        let message = "`text_1` must be one text, or as many as `text_2` has";
        return Err(Error::invalid_field("text_1", message));
    }
    if first.len() > MOST_PAIRS {
        let message = format!("`text_1` has {} texts; send {MOST_PAIRS} at most, or one with all others", first.len());
        return Err(Error::invalid_field("text_1", message));
    }
    Ok(first.into_iter().zip(second).map(|(query, text)| (query, vec![text])).collect())
}

/// An error names this endpoint's fields.
fn renamed(error: Error) -> Error {
    let own = match error.at_field() {
        Some("query") => ("query", "text_1"),
        Some("documents") => ("documents", "text_2"),
        _ => return error,
    };
    Error::of_field(error.kind(), own.1, error.to_string().replace(own.0, own.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_paired_as_vllm_pairs_them() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let paired = |first: &[&str], second: &[&str]| pairs(list(first), list(second));
        assert_eq!(paired(&["q"], &["a", "b"]).unwrap(), [("q".to_owned(), list(&["a", "b"]))]);
        let each = paired(&["p", "q"], &["a", "b"]).unwrap();
        assert_eq!(each, [("p".to_owned(), list(&["a"])), ("q".to_owned(), list(&["b"]))]);
        assert_eq!(paired(&["p", "q"], &["a"]).unwrap_err().at_field(), Some("text_1"));
        assert_eq!(paired(&["p"; 65], &["a"; 65]).unwrap_err().at_field(), Some("text_1"));
    }
}
