//! `/v1/pml/schemas…`: schemas that are kept by name, for prompts of their modules.

use std::collections::BTreeMap;

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::warm::Warm;
use ragstone_storage::catalog::WarmSubject;
use serde::Deserialize;
use serde_json::json;

use super::body::Incoming;
use super::cache::begin_warm_up;
use super::fields::Fields;
use super::identity::Visitor;
use super::resource;
use crate::error::{Error, Result};
use crate::lanes::Work;
use crate::service::{State, caller};

/// The paths.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource("/v1/pml/schemas", "GET, POST", vec![web::get().to(list), web::post().to(add)]))
        .service(resource("/v1/pml/schemas/{name}", "GET, DELETE", vec![web::get().to(show), web::delete().to(remove)]))
        .service(resource("/v1/pml/schemas/{name}/encode", "POST", vec![web::post().to(encode)]));
}

/// Whose schema is meant.
#[derive(Deserialize)]
struct Whose {
    #[serde(default)]
    tenant: Option<String>,
}

impl Whose {
    fn of(request: &HttpRequest) -> Result<String> {
        let query = web::Query::<Self>::from_query(request.query_string());
        let Self { tenant } =
            query.map_err(|error| Error::invalid(format!("query: {error}; use ?tenant=NAME")))?.into_inner();
        Visitor::of(request)?.tenant(tenant, "tenant")
    }
}

/// Keeps a schema: `{"schema", "sources"?, "tenant"?}`. What it does not say any more leaves the tiers.
async fn add(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let mut fields = Fields::read(incoming).await?;
    let schema: String = fields.need("schema")?;
    let sources: BTreeMap<String, String> = fields.take("sources")?.unwrap_or_default();
    let tenant = Visitor::of(&request)?.tenant(fields.take("tenant")?, "tenant")?;
    fields.finish()?;
    let caller = caller(&request);
    let work = async move { schemas.add(&tenant, schema, sources, caller).await };
    let added = state.run(&request, Work::Change, work).await??;
    Ok(HttpResponse::Ok().json(added))
}

/// A tenant's schemas.
async fn list(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let tenant = Whose::of(&request)?;
    let all = state.run(&request, Work::Look, async move { schemas.list(&tenant).await }).await??;
    let row = |record: &ragstone_storage::catalog::SchemaRecord| {
        json!({
            "name": record.name, "version": record.version, "added_unix_ms": record.added_unix_ms,
            "bytes": record.schema.len() + record.sources.values().map(String::len).sum::<usize>(),
        })
    };
    Ok(HttpResponse::Ok().json(json!({ "object": "list", "data": all.iter().map(row).collect::<Vec<_>>() })))
}

/// A schema, its text and where its modules stand.
async fn show(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Result<HttpResponse> {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let (tenant, name, caller) = (Whose::of(&request)?, path.into_inner(), caller(&request));
    let work = async move { schemas.get(&tenant, &name, caller).await };
    let (record, stored) = state.run(&request, Work::Look, work).await??;
    let mut shown = json!(stored);
    (shown["schema"], shown["sources"]) = (json!(record.schema), json!(record.sources));
    Ok(HttpResponse::Ok().json(shown))
}

/// Forgets a schema, and takes its KV out of every tier. For the data folder's owner, and keys that write.
async fn remove(state: web::Data<State>, request: HttpRequest, path: web::Path<String>) -> Result<HttpResponse> {
    let schemas = state.opened()?.ragstone.schemas().clone();
    let (tenant, name, caller) = (Whose::of(&request)?, path.into_inner(), caller(&request));
    let wanted = name.clone();
    let work = async move { schemas.remove(&tenant, &wanted, caller).await };
    let withdrawn = state.run(&request, Work::Change, work).await??;
    let mut answer = json!(withdrawn);
    (answer["name"], answer["deleted"]) = (json!(name), json!(true));
    Ok(HttpResponse::Ok().json(answer))
}

/// Computes a schema's modules before anybody asks, as a warm-up of `/v1/cache/warm` does: `{"modules"?, "tenant"?}`. For the data folder's
/// owner, and keys that write.
async fn encode(
    state: web::Data<State>,
    request: HttpRequest,
    path: web::Path<String>,
    incoming: Incoming,
) -> Result<HttpResponse> {
    let mut fields = Fields::read(incoming).await?;
    let modules: Vec<String> = fields.take("modules")?.unwrap_or_default();
    let tenant = Visitor::of(&request)?.tenant(fields.take("tenant")?, "tenant")?;
    fields.finish()?;
    let subject = WarmSubject::Modules { schema: path.into_inner(), modules, version: String::new() };
    begin_warm_up(&state, &request, Warm { subject, tenants: vec![tenant] }).await
}
