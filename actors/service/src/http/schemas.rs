//! `/v1/pml/schemas…`: schemas that are kept by name, for prompts of their modules.

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::upkeep::warm::Warm;
use ragstone_storage::catalog::{SchemaRecord, WarmSubject};

use super::body::Incoming;
use super::cache::begin_warm_up;
use super::fields::Fields;
use super::identity::Visitor;
use super::resource;
use crate::api::List;
use crate::api::pml::{AddSchema, EncodeSchema, ListedSchema, RemovedSchema, SchemaQuery, ShownSchema};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{State, caller};
use crate::lanes::Work;

/// The paths.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource("/v1/pml/schemas", "GET, POST", vec![web::get().to(list), web::post().to(add)]))
        .service(resource("/v1/pml/schemas/{name}", "GET, DELETE", vec![web::get().to(show), web::delete().to(remove)]))
        .service(resource("/v1/pml/schemas/{name}/encode", "POST", vec![web::post().to(encode)]));
}

/// Whose schema is meant.
fn whose(request: &HttpRequest) -> Result<String> {
    let query = web::Query::<SchemaQuery>::from_query(request.query_string());
    let SchemaQuery { tenant } =
        query.map_err(|error| Error::invalid_input(format!("query: {error}; use ?tenant=NAME")))?.into_inner();
    Visitor::of(request)?.tenant(tenant, "tenant")
}

/// Keeps a schema: `{"schema", "sources"?, "tenant"?}`. What it does not say any more leaves the tiers.
async fn add(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let AddSchema { schema, sources, tenant } = Fields::whole(incoming).await?;
    let tenant = Visitor::of(&request)?.tenant(tenant, "tenant")?;
    let caller = caller(&request);
    let work = async move { schemas.add(&tenant, schema, sources.unwrap_or_default(), caller).await };
    let added = state.run(&request, Work::Change, work).await??;
    Ok(HttpResponse::Ok().json(added))
}

/// A tenant's schemas.
async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let tenant = whose(&request)?;
    let all = state.run(&request, Work::Look, async move { schemas.list(&tenant).await }).await??;
    let row = |record: SchemaRecord| ListedSchema {
        bytes: record.schema.len() + record.sources.values().map(String::len).sum::<usize>(),
        name: record.name,
        version: record.version,
        added_unix_ms: record.added_unix_ms,
    };
    Ok(HttpResponse::Ok().json(List::from(all.into_iter().map(row).collect::<Vec<_>>())))
}

/// A schema, its text and where its modules stand.
async fn show(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let (tenant, name, caller) = (whose(&request)?, path.into_inner(), caller(&request));
    let work = async move { schemas.get(&tenant, &name, caller).await };
    let (record, stored) = state.run(&request, Work::Look, work).await??;
    Ok(HttpResponse::Ok().json(ShownSchema { stored, schema: record.schema, sources: record.sources }))
}

/// Forgets a schema, and takes its KV out of every tier. For the data folder's owner, and keys that write.
async fn remove(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Answered {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let (tenant, name, caller) = (whose(&request)?, path.into_inner(), caller(&request));
    let wanted = name.clone();
    let work = async move { schemas.remove(&tenant, &wanted, caller).await };
    let withdrawn = state.run(&request, Work::Remove, work).await??;
    Ok(HttpResponse::Ok().json(RemovedSchema { withdrawn, name, deleted: true }))
}

/// Computes a schema's modules before anybody asks, as a warm-up of `/v1/cache/warm` does: `{"modules"?, "tenant"?}`. For the data folder's
/// owner, and keys that write.
async fn encode(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Answered {
    let EncodeSchema { modules, tenant } = Fields::whole(incoming).await?;
    let tenant = Visitor::of(&request)?.tenant(tenant, "tenant")?;
    let modules = modules.unwrap_or_default();
    let subject = WarmSubject::Modules { schema: path.into_inner(), modules, version: String::new() };
    begin_warm_up(&state, &request, Warm { subject, tenants: vec![tenant] }).await
}
