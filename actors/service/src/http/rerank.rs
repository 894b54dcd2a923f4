//! `POST /v1/rerank` and `/v2/rerank`, in the form that Jina, Cohere and vLLM share.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::{InlineDocument, Rerank, Reranked, RerankedBy};

use super::body::Incoming;
use super::fields::Fields;
use super::identity::Visitor;
use crate::api::ListObject;
use crate::api::rerank::{RerankDocument, RerankExtension, RerankResult, RerankTokens, RerankUsage, Reranking};
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows; what else comes is ignored, and named in a header.
const FIELDS: &[&str] = &["model", "query", "documents", "top_n", "return_documents", "ragstone", "user"];

/// Documents in the order of how well they answer a query.
pub async fn rerank(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| FIELDS.contains(&name));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Answered {
    let by = reranker(&mut fields, opened)?;
    let query: String = fields.need("query")?;
    let documents = match fields.need::<Vec<RerankDocument>>("documents") {
        Ok(documents) => documents.into_iter().map(plain).collect::<Vec<_>>(),
        Err(error) if error.to_string().contains("missing") => return Err(error.into()),
        Err(_) => {
            let message = "`documents` must be a list of texts, or of objects with `text` and perhaps `title`";
            return Err(Error::invalid_field("documents", message).into());
        }
    };
    let top_n = fields.take::<usize>("top_n")?.unwrap_or(usize::MAX);
    let shows_documents = fields.take("return_documents")?.unwrap_or(true);
    let extension: RerankExtension = fields.take("ragstone")?.unwrap_or_default();
    fields.ignore(&["user"]);
    fields.finish()?;
    if top_n == 0 {
        return Err(Error::invalid_field("top_n", "`top_n` must be at least 1").into());
    }
    let asked = Asked { by, query, documents: documents.clone(), extension };
    let reranked = asked.done(state, request, opened).await?;
    let item = |index: usize| RerankResult {
        index,
        relevance_score: reranked.relevance(index),
        document: shows_documents.then(|| documents[index].clone()),
    };
    Ok(HttpResponse::Ok().json(Reranking {
        id: format!("rerank-{:016x}", state.env.random_u64()),
        object: ListObject::List,
        model: name_of(reranked.by, opened).to_owned(),
        results: reranked.order().into_iter().take(top_n).map(item).collect(),
        usage: usage(&reranked),
    }))
}

/// What is read with a query.
pub struct Asked {
    pub by: Option<RerankedBy>,
    pub query: String,
    pub documents: Vec<InlineDocument>,
    pub extension: RerankExtension,
}

impl Asked {
    /// How well each document answers the query.
    ///
    /// # Errors
    /// `InvalidInput` that names `query` or `documents`. As the model says.
    pub async fn done(self, state: &State, request: &HttpRequest, opened: &Opened) -> Result<Reranked> {
        let Self { by, query, documents, extension } = self;
        if extension.deadline_s == Some(0) {
            return Err(Error::invalid_field("ragstone.deadline_s", "`deadline_s` must be at least 1"));
        }
        let limit = Duration::from_secs(state.settings.deadline_s);
        let asked = Rerank {
            query,
            documents,
            by,
            reuse: extension.reuse,
            tenant: Visitor::of(request)?.tenant(extension.tenant, "ragstone.tenant")?,
            caller: caller(request),
            deadline: extension.deadline_s.map_or(limit, |seconds| Duration::from_secs(seconds).min(limit)),
        };
        let ragstone = opened.ragstone.clone();
        let reranked = state.on_runtime(async move { ragstone.rerank(asked).await }).await?;
        reranked.map_err(|error| match (error.kind(), error.to_string()) {
            (ErrorKind::InvalidInput, message) if message.starts_with("`query`") => {
                Error::invalid_field("query", message)
            }
            (ErrorKind::InvalidInput, message) => Error::invalid_field("documents", message),
            _ => error,
        })
    }
}

fn plain(document: RerankDocument) -> InlineDocument {
    match document {
        RerankDocument::Text(text) => InlineDocument { text, ..InlineDocument::default() },
        RerankDocument::Fields(document) => document,
    }
}

pub fn usage(reranked: &Reranked) -> RerankUsage {
    RerankUsage {
        prompt_tokens: reranked.prompt_tokens,
        total_tokens: reranked.prompt_tokens,
        prompt_tokens_details: RerankTokens { cached_tokens: reranked.cached_tokens },
    }
}

/// Who is to do it, by the name of its model; `None` and `default`: whoever is configured.
pub fn reranker(fields: &mut Fields, opened: &Opened) -> Result<Option<RerankedBy>> {
    let Some(name) = fields.take::<String>("model")?.filter(|name| name != "default") else { return Ok(None) };
    if opened.reranker_id.as_ref() == Some(&name) {
        return Ok(Some(RerankedBy::CrossEncoder));
    }
    if opened.model_id == name {
        return Ok(Some(RerankedBy::Model));
    }
    let known: Vec<String> =
        opened.reranker_id.iter().chain([&opened.model_id]).map(|name| format!("`{name}`")).collect();
    let message = format!("model `{name}` does not rerank here; use {}", known.join(" or "));
    Err(Error::of_field(ErrorKind::NotFound, "model", message))
}

pub fn name_of(by: RerankedBy, opened: &Opened) -> &str {
    match (by, &opened.reranker_id) {
        (RerankedBy::CrossEncoder, Some(name)) => name,
        _ => &opened.model_id,
    }
}
