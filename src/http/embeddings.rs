//! `POST /v1/embeddings`

use actix_web::{HttpResponse, web};
use base64::Engine;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Incoming;
use super::fields::Fields;
use super::generation::check_model;
use crate::error::{Error, Result};
use crate::service::{Opened, State};

/// As many as OpenAI takes.
const MAX_INPUTS: usize = 2048;

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
pub async fn embed(state: web::Data<State>, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
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
    if texts.is_empty() || texts.len() > MAX_INPUTS {
        return Err(Error::param("input", format!("`input` holds {} texts; send 1 to {MAX_INPUTS}", texts.len())));
    }
    if let Some(index) = texts.iter().position(String::is_empty) {
        return Err(Error::param("input", format!("text {index} of `input` is empty")));
    }
    let tokens = count_tokens(opened, &texts)?;
    let ragstone = opened.ragstone.clone();
    let vectors = state.on_runtime(async move { ragstone.embed(texts).await }).await??;
    if let (Some(wanted), Some(own)) = (dimensions, vectors.first().map(Vec::len))
        && wanted != own
    {
        return Err(Error::param("dimensions", format!("this model's vectors have {own} dimensions; leave it out")));
    }
    let data: Vec<Value> = vectors.iter().enumerate().map(|(index, vector)| object(index, vector, encoding)).collect();
    Ok(HttpResponse::Ok().json(json!({
        "object": "list", "data": data, "model": opened.embedder_id,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// In tokens of the language model: close enough for accounting.
fn count_tokens(opened: &Opened, texts: &[String]) -> Result<usize> {
    texts.iter().map(|text| Ok(opened.ragstone.tokenizer().encode_text(text)?.len())).sum()
}

fn object(index: usize, vector: &[f32], encoding: Encoding) -> Value {
    let embedding = match encoding {
        Encoding::Float => json!(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            json!(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    };
    json!({ "object": "embedding", "index": index, "embedding": embedding })
}
