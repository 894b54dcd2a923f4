//! Warm-ups: begin one and watch it, list those that are not finished, cancel one. For the data folder's owner.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::StreamExt;
use ragstone_actors::upkeep::warm::{Warm, WarmEvent};
use ragstone_storage::catalog::WarmSubject;

use crate::api::List;
use crate::api::cache::{BegunWarmUp, CancelledJob, WarmUp, WarmUpEstimate, WarmUpEvent};
use crate::error::{Error, ErrorKind};
use crate::http::answer::{HEARTBEAT, beating, comment, event};
use crate::http::audit;
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::error::body;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::state::State;
use crate::lanes::Work;

/// Tenants of a warm-up: all of it is computed for each.
const MOST_TENANTS: usize = 1000;

/// Computes a collection's or a document's entries ahead, or a schema's: `{"collection", "document"?}` or `{"schema", "modules"?}`, and
/// `"tenants"?, "dry_run"?`. The job
/// is journaled first and goes on if the caller leaves, or the process is killed; the events tell how far it is.
pub async fn warm(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    let visitor = Visitor::of(&request)?;
    let WarmUp { collection, document, schema, modules, tenants, dry_run } = Fields::whole(incoming).await?;
    audit::say(&request, "collection", collection.clone());
    audit::say(&request, "document", document.clone());
    audit::say(&request, "schema", schema.clone());
    let subject = match (schema, collection) {
        (Some(schema), None) if document.is_none() => {
            WarmSubject::Modules { schema, modules: modules.unwrap_or_default(), version: String::new() }
        }
        (Some(_), _) => {
            return Err(Error::invalid_field(
                "schema",
                "give either a `schema`, or a `collection` and perhaps a `document`",
            )
            .into());
        }
        (None, Some(_)) if modules.is_some() => {
            return Err(Error::invalid_field("modules", "say of which `schema` the modules are").into());
        }
        (None, Some(collection)) => WarmSubject::Passages { collection: visitor.collection(&collection)?, document },
        (None, None) => return Err(Error::invalid_field("collection", "`collection` is missing").into()),
    };
    let tenants = match tenants {
        Some(tenants) => tenants,
        None => vec![visitor.tenant(None, "tenants")?],
    };
    if tenants.len() > MOST_TENANTS {
        let message = format!("`tenants` names {}; name at most {MOST_TENANTS}", tenants.len());
        return Err(Error::invalid_field("tenants", message).into());
    }
    let wanted = Warm { subject, tenants };
    let warmer = opened.ragstone.warmer().clone();
    if dry_run {
        let estimate = state.run(&request, Work::Upkeep, async move { warmer.estimate(&wanted).await }).await??;
        let status = opened.ragstone.status();
        let bytes = estimate.tokens_missing * status.model.kv_bytes_per_token as u64;
        return Ok(HttpResponse::Ok().json(WarmUpEstimate { estimate, bytes_missing: bytes, dry_run }));
    }
    begin(&state, &request, wanted).await
}

/// Begins a warm-up, and tells how far it is.
pub async fn begin(state: &web::Data<State>, request: &HttpRequest, wanted: Warm) -> Answered {
    let warmer = state.opened()?.ragstone.warmer().clone();
    let beginning = warmer.clone();
    let job = state.run(request, Work::Upkeep, async move { beginning.begin(wanted).await }).await??;
    if !state.audience().resumes() {
        // Nobody else will.
        warmer.resume(Some(job.id)).await?;
    }
    let (visitor, fault) = (Visitor::of(request)?, state.env.random_u64());
    let begun = BegunWarmUp::of(job.clone(), visitor.bound().is_none());
    let begun = futures::stream::once(futures::future::ready(event(&WarmUpEvent::Begun(begun))));
    let told = |done| match done {
        WarmEvent::Progress(progress) => WarmUpEvent::Progress(progress),
        WarmEvent::Finished(progress) => WarmUpEvent::Finished(progress),
    };
    let events = warmer.run(job);
    let events = events.map(move |done| match done {
        Ok(done) => event(&told(done)),
        Err(error) => event(&body(&visitor.told(error, fault))),
    });
    let events = begun.chain(events).map(Ok::<_, std::convert::Infallible>);
    let events = beating(events, comment(), HEARTBEAT);
    Ok(HttpResponse::build(StatusCode::OK).content_type("text/event-stream; charset=utf-8").streaming(events))
}

/// Unfinished warm-ups.
pub async fn jobs(state: web::Data<State>) -> Answered {
    let data = state.opened()?.ragstone.warmer().unfinished().await?;
    Ok(HttpResponse::Ok().json(List::from(data)))
}

/// Ends a warm-up for good; what it computed stays.
pub async fn cancel(state: web::Data<State>, path: web::Path<String>) -> Answered {
    let id = path.into_inner();
    let unknown =
        || Error::new(ErrorKind::NotFound, format!("no unfinished warm-up `{id}`; see `ragstone cache warm --list`"));
    let number: u64 = id.parse().map_err(|_| unknown())?;
    if !state.opened()?.ragstone.warmer().cancel(number).await? {
        return Err(unknown().into());
    }
    Ok(HttpResponse::Ok().json(CancelledJob { id: number, cancelled: true }))
}
