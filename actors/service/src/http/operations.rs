//! What operators look at: models, health, readiness, metrics.

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};

use crate::api::List;
use crate::api::models::{GenerationDefaults, Health, Modalities, ModelFacts, Props, Ready, ServedModel, Slot};
use crate::api::openapi;
use crate::error::{Error, ErrorKind};
use crate::http::error::Answered;
use crate::http::exposition;
use crate::http::state::{Opened, State};
use crate::http::tokenize;

/// The language model, the embedding model and the cross-encoder.
pub async fn models(state: web::Data<State>) -> Answered {
    let opened = state.opened()?;
    Ok(HttpResponse::Ok().json(List::from(known(opened))))
}

/// One of them.
pub async fn model(state: web::Data<State>, path: web::Path<String>) -> Answered {
    let name = path.into_inner();
    let found = known(state.opened()?).into_iter().find(|model| model.id == name);
    let model = found.ok_or_else(|| {
        Error::of_field(ErrorKind::NotFound, "model", format!("model `{name}` is not served here; see /v1/models"))
    })?;
    Ok(HttpResponse::Ok().json(model))
}

fn known(opened: &Opened) -> Vec<ServedModel> {
    let own = opened.ragstone.model();
    let facts = ModelFacts { context: own.context, architecture: own.architecture.clone(), note: opened.note.clone() };
    let language = ServedModel::new(&opened.model_id, Some(facts));
    let others = [Some(&opened.embedder_id), opened.reranker_id.as_ref()];
    [language].into_iter().chain(others.into_iter().flatten().map(|id| ServedModel::new(id, None))).collect()
}

/// What the language model is, as llama.cpp's clients ask.
pub async fn props(state: web::Data<State>) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_own_model()?;
    let info = tokenize::facts(opened);
    Ok(HttpResponse::Ok().json(Props {
        default_generation_settings: GenerationDefaults { n_ctx: opened.context },
        total_slots: state.settings.max_batch,
        model_alias: opened.model_id.clone(),
        chat_template: info.chat_template,
        bos_token: info.bos_token,
        eos_token: info.eos_token,
        modalities: Modalities::default(),
        build_info: concat!("ragstone ", env!("CARGO_PKG_VERSION")).to_owned(),
    }))
}

/// How many answers are being made.
pub async fn slots(state: web::Data<State>) -> Answered {
    let opened = state.opened()?;
    let running = opened.ragstone.status().device.sequences;
    let taken = running.loading + running.prefilling + running.decoding;
    let slot = |id| Slot { id, n_ctx: opened.context, is_processing: id < taken };
    Ok(HttpResponse::Ok().json((0..state.settings.max_batch).map(slot).collect::<Vec<_>>()))
}

/// Every setting, and where it comes from. For the data folder's owner.
pub async fn settings(state: web::Data<State>) -> Answered {
    Ok(HttpResponse::Ok().json(List::from(state.given.clone())))
}

/// What every path takes and answers, as OpenAPI has it.
pub async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::json()).body(openapi::text())
}

/// The process is up. The process id lets a command tell this service from another that took its port.
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "ok".to_owned(), pid: std::process::id() })
}

/// The models are loaded, the engine runs, and the service takes questions.
pub async fn readyz(state: web::Data<State>) -> Answered {
    if !state.opened()?.ragstone.is_alive() {
        return Err(Error::internal("the engine has stopped; start the service again").into());
    }
    Ok(HttpResponse::Ok().json(Ready { status: "ready".to_owned() }))
}

/// In Prometheus's text format.
pub async fn metrics(state: web::Data<State>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(exposition::of(&state).await)
}
