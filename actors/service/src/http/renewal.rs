//! `/v1/collections/{collection}/renewal`: a collection that was built with another embedding model is embedded again.

use std::future::Future;

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::upkeep::renewal::{RenewalStatus, Renewer};

use super::identity::Visitor;
use crate::http::error::Answered;
use crate::http::state::State;
use crate::lanes::Work;

/// Where a collection stands.
pub async fn status(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let name = Visitor::of(&request)?.collection(&path)?;
    answer(&state, &request, &path, |renewer| async move { renewer.status(&name).await }).await
}

/// Begins, also where it was cancelled. It goes on if the caller leaves, and with the next start.
pub async fn begin(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let name = Visitor::of(&request)?.own_collection(&path)?;
    answer(&state, &request, &path, |renewer| async move { renewer.begin(&name).await }).await
}

/// Ends it; the collection stays as it was built.
pub async fn cancel(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let name = Visitor::of(&request)?.own_collection(&path)?;
    answer(&state, &request, &path, |renewer| async move { renewer.cancel(&name).await }).await
}

async fn answer<F>(
    state: &web::Data<State>,
    request: &HttpRequest,
    given: &str,
    work: impl FnOnce(Renewer) -> F,
) -> Answered
where
    F: Future<Output = ragstone_actors::Result<RenewalStatus>> + Send + 'static,
{
    let renewer = state.opened()?.ragstone.renewer().clone();
    let status = state.run(request, Work::Look, work(renewer)).await??;
    Ok(HttpResponse::Ok().json(RenewalStatus { collection: given.to_owned(), ..status }))
}
