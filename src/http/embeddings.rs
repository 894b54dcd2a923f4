//! `POST /v1/embeddings`

use std::time::Duration;

use actix_web::http::header::ContentType;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use ragstone_actors::Embedded;
use serde::{Deserialize, Serialize};

use super::body::Incoming;
use super::fields::Fields;
use super::generation::check_model;
use crate::error::{Error, ErrorKind, Result};
use crate::service::{Opened, State, caller};

/// What this endpoint knows; what else comes is ignored, and named in a header.
const FIELDS: &[&str] = &["model", "input", "encoding_format", "dimensions", "user"];

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    One(String),
    Many(Vec<String>),
}

#[derive(Default, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    #[default]
    Float,
    /// Little-endian f32: what the official Python client asks for by default.
    Base64,
}

/// One unit vector a text.
pub async fn embed(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| FIELDS.contains(&name));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Result<HttpResponse> {
    check_model(&mut fields, &opened.embedder_id)?;
    let texts = match fields.need("input") {
        Ok(Input::One(text)) => vec![text],
        Ok(Input::Many(texts)) => texts,
        Err(error) if error.to_string().contains("missing") => return Err(error),
        Err(_) => return Err(Error::param("input", "`input` must be a string or a list of strings")),
    };
    let encoding: Encoding = fields.take("encoding_format")?.unwrap_or_default();
    let dimensions = fields.take::<usize>("dimensions")?;
    fields.ignore(&["user"]);
    fields.finish()?;
    let own = opened.ragstone.embedding_dimension();
    if dimensions.is_some_and(|wanted| wanted != own) {
        return Err(Error::param("dimensions", format!("this model's vectors have {own} dimensions; leave it out")));
    }
    let (ragstone, model) = (opened.ragstone.clone(), opened.embedder_id.clone());
    let deadline = Duration::from_secs(state.settings.deadline_s);
    let caller = caller(request);
    let body = state.on_runtime(async move {
        let embedded = ragstone.embed(texts, caller, deadline).await.map_err(Error::from)?;
        // Half a million numbers are written at most: not on a thread that others wait for.
        let written = tokio::task::spawn_blocking(move || json(&model, &embedded, encoding)).await;
        written.map_err(|_| Error::internal("writing the vectors broke off"))?
    });
    let body = body.await?.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::param("input", error.to_string()),
        _ => error,
    })?;
    Ok(HttpResponse::Ok().content_type(ContentType::json()).body(body))
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Object<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Object<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

fn json(model: &str, embedded: &Embedded, encoding: Encoding) -> Result<Vec<u8>> {
    let object = |(index, vector)| Object { object: "embedding", index, embedding: encoded(vector, encoding) };
    let data = embedded.vectors.iter().map(Vec::as_slice).enumerate().map(object).collect();
    let usage = Usage { prompt_tokens: embedded.tokens, total_tokens: embedded.tokens };
    serde_json::to_vec(&List { object: "list", data, model, usage })
        .map_err(|error| Error::internal(format!("the vectors cannot be written: {error}")))
}

fn encoded(vector: &[f32], encoding: Encoding) -> Vector<'_> {
    match encoding {
        Encoding::Float => Vector::Float(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Vector::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}
