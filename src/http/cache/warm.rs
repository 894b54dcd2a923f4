//! Warm-ups: begin one and watch it, list those that are not finished, cancel one. For the data folder's owner.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::warm::Warm;
use ragstone_storage::catalog::WarmSubject;
use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::http::answer::event;
use crate::http::body::Incoming;
use crate::http::error::body;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::lanes::Work;
use crate::service::{Audience, State};

/// Computes a collection's or a document's entries ahead, or a schema's: `{"collection", "document"?}` or `{"schema", "modules"?}`, and
/// `"tenants"?, "dry_run"?`. The job
/// is journaled first and goes on if the caller leaves, or the process is killed; the events tell how far it is.
pub async fn warm(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let visitor = Visitor::of(&request)?;
    let subject = match fields.take("schema")? {
        Some(schema) => {
            let modules = fields.take("modules")?.unwrap_or_default();
            WarmSubject::Modules { schema, modules, version: String::new() }
        }
        None => WarmSubject::Passages {
            collection: visitor.collection(&fields.need::<String>("collection")?)?,
            document: fields.take("document")?,
        },
    };
    let tenants = match fields.take("tenants")? {
        Some(tenants) => tenants,
        None => vec![visitor.tenant(None, "tenants")?],
    };
    let wanted = Warm { subject, tenants };
    let dry_run = fields.take("dry_run")?.unwrap_or(false);
    fields.finish()?;
    let warmer = opened.ragstone.warmer().clone();
    if dry_run {
        let estimate = state.run(&request, Work::Upkeep, async move { warmer.estimate(&wanted).await }).await??;
        let status = opened.ragstone.status();
        let bytes = estimate.tokens_missing * status.model.kv_bytes_per_token as u64;
        let mut answer = json!(estimate);
        (answer["bytes_missing"], answer["dry_run"]) = (bytes.into(), true.into());
        return Ok(HttpResponse::Ok().json(answer));
    }
    begin(&state, &request, wanted).await
}

/// Begins a warm-up, and tells how far it is.
pub async fn begin(state: &web::Data<State>, request: &HttpRequest, wanted: Warm) -> Result<HttpResponse> {
    let warmer = state.opened()?.ragstone.warmer().clone();
    let beginning = warmer.clone();
    let job = state.run(request, Work::Upkeep, async move { beginning.begin(wanted).await }).await??;
    if state.audience() == Audience::Private {
        // Nobody else will.
        warmer.resume(Some(job.id)).await?;
    }
    let mut begun = json!({ "begun": job });
    if let (Some(fields), true) = (begun["begun"].as_object_mut(), Visitor::of(request)?.bound().is_some()) {
        // It counts everybody's, and is of use to who looks after all of them alone.
        fields.remove("id");
    }
    let begun = futures::stream::once(futures::future::ready(begun));
    let events = warmer.run(job).map(|done| done.map_or_else(|error| body(&error.into()), |event| json!(event)));
    let events = begun.chain(events).map(|data| Ok::<_, std::convert::Infallible>(event(&data)));
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}

/// Unfinished warm-ups.
pub async fn jobs(state: web::Data<State>) -> Result<HttpResponse> {
    let data = state.opened()?.ragstone.warmer().unfinished().await?;
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": data })))
}

/// Ends a warm-up for good; what it computed stays.
pub async fn cancel(state: web::Data<State>, path: web::Path<String>) -> Result<HttpResponse> {
    let id = path.into_inner();
    let unknown =
        || Error::new(ErrorKind::NotFound, format!("no unfinished warm-up `{id}`; see `ragstone cache warm --list`"));
    let number: u64 = id.parse().map_err(|_| unknown())?;
    if !state.opened()?.ragstone.warmer().cancel(number).await? {
        return Err(unknown());
    }
    Ok(HttpResponse::Ok().json(json!({ "id": number, "cancelled": true })))
}
