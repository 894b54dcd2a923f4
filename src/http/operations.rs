//! What operators look at: models, health, readiness, metrics.

use std::time::Duration;

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};
use ragstone_actors::Status;

use crate::api::List;
use crate::api::models::{Health, ModelFacts, Ready, ServedModel};
use crate::api::openapi;
use crate::error::{Error, ErrorKind};
use crate::http::error::Answered;
use crate::http::state::{Opened, State};

/// How long the tiers may take to tell what they hold.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

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
    let facts = ModelFacts { context: own.context, architecture: own.architecture.clone() };
    let language = ServedModel::new(&opened.model_id, Some(facts));
    let others = [Some(&opened.embedder_id), opened.reranker_id.as_ref()];
    [language].into_iter().chain(others.into_iter().flatten().map(|id| ServedModel::new(id, None))).collect()
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
    if let Ok(opened) = state.opened() {
        let (ragstone, publishing) = (opened.ragstone.clone(), state.publishing.clone());
        let published = async move {
            // One at a time: a tier that hangs holds one thread, not one for each look at the metrics.
            let Ok(turn) = publishing.acquire_owned().await else { return };
            let published = tokio::task::spawn_blocking(move || {
                publish(&ragstone.status());
                drop(turn);
            });
            if let Err(error) = published.await {
                tracing::error!(%error, "the tiers' figures could not be published");
            }
        };
        // Such a tier must not keep the other figures from whoever looks for the reason.
        if tokio::time::timeout(STATUS_PATIENCE, published).await.is_err() {
            tracing::warn!("the tiers do not tell what they hold; /metrics shows what they told last");
        }
    }
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(state.metrics.render())
}

/// Copies a snapshot into the metrics that are states rather than events.
fn publish(status: &Status) {
    let (device, store) = (&status.device, &status.store);
    let tiers = [("device", Some(&device.cache)), ("host", Some(&store.host)), ("disk", Some(&store.disk))];
    let tiers = tiers.into_iter().chain([("object", store.object.as_ref())]);
    for (name, tier) in tiers.filter_map(|(name, tier)| Some((name, tier?))) {
        metrics::gauge!("ragstone_tier_bytes", "tier" => name).set(tier.bytes as f64);
        metrics::gauge!("ragstone_tier_capacity_bytes", "tier" => name).set(tier.capacity_bytes as f64);
        metrics::gauge!("ragstone_tier_entries", "tier" => name).set(tier.entries as f64);
        metrics::counter!("ragstone_tier_hits_total", "tier" => name).absolute(tier.hits);
        metrics::counter!("ragstone_tier_misses_total", "tier" => name).absolute(tier.misses);
        metrics::counter!("ragstone_tier_corrupt_total", "tier" => name).absolute(tier.corrupt);
        metrics::counter!("ragstone_tier_evicted_total", "tier" => name).absolute(tier.evicted);
        metrics::counter!("ragstone_tier_failed_total", "tier" => name).absolute(tier.failed);
        metrics::counter!("ragstone_tier_declined_total", "tier" => name).absolute(tier.declined);
    }
    for (name, queue) in [("disk", &store.to_disk), ("object", &store.to_object)] {
        metrics::gauge!("ragstone_write_behind_entries", "tier" => name).set(queue.entries as f64);
        metrics::counter!("ragstone_write_behind_dropped_total", "tier" => name).absolute(queue.dropped);
    }
    metrics::gauge!("ragstone_device_blocks").set(status.device.blocks as f64);
    metrics::gauge!("ragstone_device_free_blocks").set(status.device.free_blocks as f64);
    metrics::gauge!("ragstone_device_cached_blocks").set(status.device.cached_blocks as f64);
    let sequences = status.device.sequences;
    for (state, count) in [
        ("waiting", sequences.waiting),
        ("loading", sequences.loading),
        ("prefilling", sequences.prefilling),
        ("decoding", sequences.decoding),
        ("swapped", sequences.swapped),
        ("background", sequences.background),
    ] {
        metrics::gauge!("ragstone_sequences", "state" => state).set(count as f64);
    }
    metrics::gauge!("ragstone_questions_admitted").set(status.admitted as f64);
    let groups = status.device.groups;
    for (kind, blocks) in [("samples", groups.samples), ("beams", groups.beams)] {
        metrics::counter!("ragstone_group_blocks_total", "group" => kind, "blocks" => "held").absolute(blocks.held);
        metrics::counter!("ragstone_group_blocks_total", "group" => kind, "blocks" => "apart").absolute(blocks.apart);
    }
    for worker in &status.workers {
        metrics::gauge!("ragstone_worker_in_flight", "worker" => worker.name.clone()).set(worker.in_flight as f64);
        metrics::counter!("ragstone_worker_restarts_total", "worker" => worker.name.clone()).absolute(worker.restarts);
    }
}
