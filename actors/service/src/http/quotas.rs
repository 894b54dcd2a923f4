//! `/v1/quotas`: what tenants may use and use; and the check of every request that comes with a tenant's key.

use std::collections::BTreeSet;

use actix_web::http::header::{HeaderValue, RETRY_AFTER};
use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use ragstone_actors::admission::quotas::UsedUp;

use super::body::Incoming;
use super::error::Answered;
use super::fields::Fields;
use super::identity::Visitor;
use super::state::State;
use super::{audit, refused_in_words, resource};
use crate::api::List;
use crate::api::permissions::asks;
use crate::api::quotas::{ChangeQuotas, QuotaUse, TenantQuotas, named};
use crate::error::{Error, ErrorKind, Result};
use crate::lanes::Work;

/// Paths that are no requests of their own, as what they do are requests within them; and the one that says what is used up.
const UNCOUNTED: &[&str] = &["/mcp", "/v1/quotas"];

/// The path.
pub fn paths(config: &mut ServiceConfig) {
    config.service(resource("/v1/quotas", "GET, POST", vec![web::get().to(list), web::post().to(change)]));
}

/// Counts a request that comes with a tenant's key; what it is told where a quota of its tenant is used up, in the words of its protocol.
pub fn begin(state: &State, visitor: &Visitor, path: &str) -> Option<HttpResponse> {
    let Visitor::Key(key) = visitor else { return None };
    // Whoever is admitted before the store is open hears of that.
    let ragstone = &state.opened().ok()?.ragstone;
    if UNCOUNTED.contains(&path) {
        return None;
    }
    let tenant = &key.record.tenant;
    let used_up = ragstone.quotas().begin_request(tenant, asks(path)).err()?;
    Some(refused(tenant, used_up, path))
}

/// What a request that turns out to ask the model is told where its tenant has used up its tokens: of paths that need not ask it, the body says
/// whether they do.
pub fn begin_asking(ragstone: &Ragstone, visitor: &Visitor, path: &str) -> Option<HttpResponse> {
    let Visitor::Key(key) = visitor else { return None };
    let tenant = &key.record.tenant;
    let used_up = ragstone.quotas().check_tokens(tenant).err()?;
    Some(refused(tenant, used_up, path))
}

fn refused(tenant: &str, UsedUp { name, limit, wait }: UsedUp, path: &str) -> HttpResponse {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    let message = format!("tenant `{tenant}` has used up its quota `{name}` of {limit}; come back in {seconds} s");
    let error = Error::of_field(ErrorKind::Overloaded, name.name(), message);
    let mut response = refused_in_words(path, error);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX)));
    response
}

/// Quotas with what is used of them: a key's own tenant's, or those of all who have some.
async fn list(state: web::Data<State>, request: HttpRequest) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let tenants = match Visitor::of(&request)?.bound() {
        Some(key) => BTreeSet::from([key.record.tenant.clone()]),
        None => tenants(&ragstone),
    };
    let listing = async move { used(&ragstone, tenants).await };
    let data = state.run(&request, Work::Look, listing).await??;
    Ok(HttpResponse::Ok().json(List::from(data)))
}

/// Tenants that have keys or quotas of their own.
pub fn tenants(ragstone: &Ragstone) -> BTreeSet<String> {
    let keys = ragstone.api_keys().list().into_iter().map(|key| key.tenant);
    keys.chain(ragstone.quotas().tenants()).collect()
}

/// The quotas of those of `tenants` that have some.
pub async fn used(ragstone: &Ragstone, tenants: BTreeSet<String>) -> Result<Vec<TenantQuotas>> {
    let mut all = Vec::new();
    for tenant in tenants {
        let used = ragstone.quotas().used(ragstone.corpus(), &tenant).await?;
        if !used.is_empty() {
            all.push(TenantQuotas { tenant, quotas: used.into_iter().map(QuotaUse::from).collect() });
        }
    }
    Ok(all)
}

/// Changes a tenant's quotas: `{"tenant"?, "quota": {"NAME": NUMBER, …}}`.
async fn change(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let ragstone = state.opened()?.ragstone.clone();
    let ChangeQuotas { tenant, quota } = Fields::whole(incoming).await?;
    let tenant = tenant.unwrap_or_default();
    audit::say(&request, "tenant", tenant.as_str());
    ragstone.quotas().change(&tenant, named(quota)?).await?;
    let whose = tenant.clone();
    let telling = async move { ragstone.quotas().used(ragstone.corpus(), &whose).await };
    let used = state.run(&request, Work::Look, telling).await??;
    Ok(HttpResponse::Ok().json(TenantQuotas { tenant, quotas: used.into_iter().map(QuotaUse::from).collect() }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix_web::body::to_bytes;
    use ragstone_storage::catalog::QuotaName;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn each_protocol_hears_of_a_quota_in_its_own_words() {
        let used_up = UsedUp { name: QuotaName::TokensPerMinute, limit: 1000, wait: Duration::from_millis(11_001) };
        for (path, at) in [
            ("/v1/chat/completions", "/error/message"),
            ("/v1/responses", "/error/message"),
            ("/v1/collections/{collection}/search", "/error/message"),
            ("/v1/messages", "/error/message"),
            ("/api/chat", "/error"),
        ] {
            let response = refused("acme", used_up, path);
            assert_eq!(response.status().as_u16(), 429);
            assert_eq!(response.headers().get("retry-after").unwrap(), "12", "{path}");
            assert!(response.headers().get("content-type").unwrap().to_str().unwrap().starts_with("application/json"));
            let body: Value = serde_json::from_slice(&to_bytes(response.into_body()).await.unwrap()).unwrap();
            let message = body.pointer(at).and_then(Value::as_str).unwrap();
            assert!(message.contains("tokens_per_minute") && message.contains("12 s"), "{body}");
        }
        let anthropic = refused("acme", used_up, "/v1/messages");
        let body: Value = serde_json::from_slice(&to_bytes(anthropic.into_body()).await.unwrap()).unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
    }
}
