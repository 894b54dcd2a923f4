//! `/v1/keys…`: API keys, for the data folder's owner.

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::admission::api_keys::NewApiKey;
use ragstone_corpus::full_name;
use ragstone_storage::catalog::{ApiKeyRecord, Role};

use super::audit;
use super::body::Incoming;
use super::fields::Fields;
use super::resource;
use crate::api::List;
use crate::api::keys::{AddKey, AddedKey, Key, RevokedKey};
use crate::api::quotas::named;
use crate::error::Error;
use crate::http::error::Answered;
use crate::http::state::State;

/// The paths.
pub fn paths(config: &mut ServiceConfig) {
    config
        .service(resource("/v1/keys", "GET, POST", vec![web::get().to(list), web::post().to(add)]))
        .service(resource("/v1/keys/{key}", "DELETE", vec![web::delete().to(revoke)]));
}

/// All keys, without the keys themselves: nobody has those.
async fn list(state: web::Data<State>) -> Answered {
    let ragstone = &state.opened()?.ragstone;
    let shown = |record: &ApiKeyRecord| Key { quota: ragstone.quotas().of(&record.tenant).0, ..Key::from(record) };
    let data: Vec<Key> = ragstone.api_keys().list().iter().map(shown).collect();
    Ok(HttpResponse::Ok().json(List::from(data)))
}

/// Makes a key, and shows it this once: `{"name", "role"?, "tenant"?, "collections"?, "quota"?}`.
async fn add(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let AddKey { name, role, tenant, collections, quota } = Fields::whole(incoming).await?;
    audit::say(&request, "key", name.as_str());
    audit::say(&request, "role", role.unwrap_or(Role::Read).name());
    audit::say(&request, "tenant", tenant.as_deref().unwrap_or_default());
    let wanted = NewApiKey {
        name,
        role: role.unwrap_or(Role::Read),
        tenant: tenant.unwrap_or_default(),
        collections: collections.iter().flatten().map(|name| full_name("", name)).collect(),
    };
    if let Some(changes) = quota {
        // What makes no key changes no quota of the tenant's others.
        ragstone.api_keys().check(&wanted)?;
        ragstone.quotas().change(&wanted.tenant, named(changes)?).await?;
    }
    let mut random = [0; 32];
    // Not the environment's, which may be replayed.
    getrandom::fill(&mut random).map_err(|error| Error::internal(format!("no randomness for a key: {error}")))?;
    let (key, record) = ragstone.api_keys().add(wanted, random).await?;
    let quota = ragstone.quotas().of(&record.tenant).0;
    let answer = AddedKey { shown: Key { quota, ..Key::from(&record) }, key };
    Ok(HttpResponse::Ok().insert_header(("cache-control", "no-store")).json(answer))
}

/// Revokes a key at once.
async fn revoke(state: web::Data<State>, path: web::Path<String>) -> Answered {
    let name = path.into_inner();
    state.opened()?.ragstone.api_keys().clone().revoke(&name).await?;
    Ok(HttpResponse::Ok().json(RevokedKey { name, revoked: true }))
}
