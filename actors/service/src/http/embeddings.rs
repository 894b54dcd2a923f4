//! `POST /v1/embeddings`

use std::time::Duration;

use actix_web::http::header::ContentType;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use ragstone_actors::Embedded;

use super::body::Incoming;
use super::fields::Fields;
use super::generation::check_model;
use crate::api::ListObject;
use crate::api::embeddings::{Embedding, EmbeddingUsage, Embeddings, EncodingFormat, OneOrMany, Vector};
use crate::error::{Error, ErrorKind, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What this endpoint knows; what else comes is ignored, and named in a header.
const FIELDS: &[&str] = &["model", "input", "encoding_format", "dimensions", "user"];

/// One unit vector a text.
pub async fn embed(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| FIELDS.contains(&name));
    Ok(ignored.note(answer(&state, &request, opened, fields).await))
}

async fn answer(state: &State, request: &HttpRequest, opened: &Opened, mut fields: Fields) -> Answered {
    check_model(&mut fields, &opened.embedder_id)?;
    let texts = match fields.need("input") {
        Ok(OneOrMany::One(text)) => vec![text],
        Ok(OneOrMany::Many(texts)) => texts,
        Err(error) if error.to_string().contains("missing") => return Err(error.into()),
        Err(_) => return Err(Error::invalid_field("input", "`input` must be a string or a list of strings").into()),
    };
    let encoding: EncodingFormat = fields.take("encoding_format")?.unwrap_or_default();
    let dimensions = fields.take::<usize>("dimensions")?;
    fields.ignore(&["user"]);
    fields.finish()?;
    let own = opened.ragstone.embedding_dimension();
    if dimensions.is_some_and(|wanted| wanted != own) {
        return Err(Error::invalid_field(
            "dimensions",
            format!("this model's vectors have {own} dimensions; leave it out"),
        )
        .into());
    }
    let (ragstone, model) = (opened.ragstone.clone(), opened.embedder_id.clone());
    let deadline = Duration::from_secs(state.settings.deadline_s);
    let caller = caller(request);
    let body = state.on_runtime(async move {
        let embedded = ragstone.embed(texts, caller, deadline).await?;
        // Half a million numbers are written at most: not on a thread that others wait for.
        let written = tokio::task::spawn_blocking(move || json(&model, embedded, encoding)).await;
        written.map_err(|_| Error::internal("writing the vectors broke off"))?
    });
    let body = body.await?.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Error::invalid_field("input", error.to_string()),
        _ => error,
    })?;
    Ok(HttpResponse::Ok().content_type(ContentType::json()).body(body))
}

fn json(model: &str, embedded: Embedded, encoding: EncodingFormat) -> Result<Vec<u8>> {
    let object =
        |(index, vector)| Embedding { object: "embedding".to_owned(), index, embedding: encoded(vector, encoding) };
    let usage = EmbeddingUsage { prompt_tokens: embedded.tokens, total_tokens: embedded.tokens };
    let data = embedded.vectors.into_iter().enumerate().map(object).collect();
    serde_json::to_vec(&Embeddings { object: ListObject::List, data, model: model.to_owned(), usage })
        .map_err(|error| Error::internal(format!("the vectors cannot be written: {error}")))
}

fn encoded(vector: Vec<f32>, encoding: EncodingFormat) -> Vector {
    match encoding {
        EncodingFormat::Float => Vector::Float(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Vector::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}
