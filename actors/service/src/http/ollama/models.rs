//! What Ollama's clients ask about models: which there are, what they can.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::lines::rfc3339;
use super::{TAG, model, told};
use crate::error::{Error, ErrorKind};
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::fields::Fields;
use crate::http::state::{Opened, State};
use crate::http::tools;

/// The version of Ollama whose API this is: clients refuse what they think is too old for them.
const VERSION: &str = "0.13.0";

pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "version": VERSION }))
}

/// The language model and the embedding model.
pub async fn tags(state: web::Data<State>, request: HttpRequest) -> HttpResponse {
    told(&state, &request, listed(&state, |opened, now| vec![language(opened, now), embedder(opened, now)]))
}

/// Those that are loaded: the same.
pub async fn running(state: web::Data<State>, request: HttpRequest) -> HttpResponse {
    told(
        &state,
        &request,
        listed(&state, |opened, now| {
            let mut model = language(opened, now);
            model["size_vram"] = 0.into();
            model["context_length"] = opened.context.into();
            model["expires_at"] = rfc3339(now + 365 * 24 * 3_600_000).into();
            vec![model]
        }),
    )
}

fn listed(state: &State, models: impl Fn(&Opened, u64) -> Vec<Value>) -> Answered {
    let models = models(state.opened()?, state.env.now_unix_ms());
    Ok(HttpResponse::Ok().json(json!({ "models": models })))
}

/// One of them.
pub async fn show(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> HttpResponse {
    told(&state, &request, shown(&state, incoming).await)
}

async fn shown(state: &State, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| ["model", "name"].contains(&name));
    let name = model(&mut fields, &[opened.model_id.as_str(), opened.embedder_id.as_str()])?;
    let name = name.ok_or_else(|| Error::invalid_field("model", "`model` is missing"))?;
    let ragstone = &opened.ragstone;
    if name == opened.embedder_id {
        let info = json!({ "general.architecture": "bert", "bert.embedding_length": ragstone.embedding_dimension() });
        return Ok(ignored.note(Ok(HttpResponse::Ok().json(json!({
            "modelfile": "", "parameters": "", "template": "", "details": details("bert"), "model_info": info, "capabilities": ["embedding"],
        })))));
    }
    if name != opened.model_id && name != "default" {
        let message = format!("model `{name}` is not served here; use `{}`", opened.model_id);
        return Err(Error::of_field(ErrorKind::NotFound, "model", message).into());
    }
    let family = family(&ragstone.model().architecture);
    let mut info = Map::from_iter([
        ("general.architecture".to_owned(), json!(family)),
        ("general.basename".to_owned(), json!(opened.model_id)),
    ]);
    info.insert(format!("{family}.context_length"), opened.context.into());
    let calls = tools::form(ragstone).map(|_| "tools");
    // Of an engine elsewhere nobody knows.
    let thoughts = ragstone.thinking(None).filter(|_| !ragstone.has_upstream()).map(|_| "thinking");
    let capabilities: Vec<&str> = ["completion"].into_iter().chain(calls).chain(thoughts).collect();
    Ok(ignored.note(Ok(HttpResponse::Ok().json(json!({
        "modelfile": "", "parameters": "", "template": ragstone.chat_template_source().unwrap_or_default(), "details": details(&family),
        "model_info": info, "capabilities": capabilities,
    })))))
}

fn language(opened: &Opened, now: u64) -> Value {
    let own = opened.ragstone.model();
    let mut model = named(&opened.model_id, &family(&own.architecture), now, &own.weights);
    model["size"] = own.weight_bytes.into();
    model
}

fn embedder(opened: &Opened, now: u64) -> Value {
    named(&opened.embedder_id, "bert", now, &opened.embedder_id)
}

/// `identity` tells it from others: clients want a digest, and a tag behind the name.
fn named(id: &str, family: &str, now: u64, identity: &str) -> Value {
    let name = if id.contains(':') { id.to_owned() } else { format!("{id}{TAG}") };
    let digest = hex::encode(Sha256::digest(identity));
    json!({ "name": name, "model": name, "modified_at": rfc3339(now), "size": 0, "digest": digest, "details": details(family) })
}

fn details(family: &str) -> Value {
    json!({
        "parent_model": "", "format": "", "family": family, "families": [family], "parameter_size": "", "quantization_level": "",
    })
}

/// `llama` of `LlamaForCausalLM`.
fn family(architecture: &str) -> String {
    architecture.strip_suffix("ForCausalLM").unwrap_or(architecture).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_short_names() {
        assert_eq!(family("LlamaForCausalLM"), "llama");
        assert_eq!(family("Gemma3Other"), "gemma3other");
    }
}
