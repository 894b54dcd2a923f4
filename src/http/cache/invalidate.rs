//! Documents out of everything: the corpus, and every tier.

use std::collections::{HashMap, HashSet};

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use ragstone_storage::corpus::Scope;
use ragstone_storage::key::KvKey;
use ragstone_storage::tier::Tier;
use serde_json::{Value, json};

use super::entries::blocking;
use crate::error::{Error, Result};
use crate::http::body::Incoming;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::lanes::Work;
use crate::service::State;

/// Removes a document, or a whole collection, from the corpus and its KV from every tier, with all that was computed
/// behind it: `{"collection", "document"? or "all", "dry_run"?}`. A kill in between is finished by the next start.
pub async fn invalidate(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Result<HttpResponse> {
    let opened = state.opened()?;
    let mut fields = Fields::read(incoming).await?;
    let visitor = Visitor::of(&request)?;
    let collection = visitor.collection(&fields.need::<String>("collection")?)?;
    let document: Option<String> = fields.take("document")?;
    let all = fields.take("all")?.unwrap_or(false);
    let dry_run = fields.take("dry_run")?.unwrap_or(false);
    fields.finish()?;
    if document.is_none() && !all && !dry_run {
        let message = "say which `document`, or `\"all\": true` for every document of the collection";
        return Err(Error::param("document", message));
    }
    let ragstone = opened.ragstone.clone();
    let answer = state.run(&request, Work::Change, async move {
        if dry_run {
            return preview(ragstone, &collection, document.as_deref()).await;
        }
        let removed = match &document {
            Some(document) => ragstone.library().delete_document(&collection, document, None).await?,
            None => ragstone.library().delete_collection(&collection, None).await?,
        };
        let mut answer = json!(removed);
        answer["dry_run"] = json!(false);
        Ok(answer)
    });
    Ok(HttpResponse::Ok().json(answer.await??))
}

/// What is held of one entry.
struct Held {
    key: KvKey,
    copies: u64,
    bytes: u64,
}

/// What would go at most: entries of these passages, and those that were computed behind them. Passages that another document has,
/// too, are counted here and would stay.
async fn preview(ragstone: Ragstone, collection: &str, document: Option<&str>) -> Result<Value> {
    let scope = Scope { collection: Some(collection), document };
    let mut passages = 0_u64;
    let mut each = |some: Vec<ragstone_storage::corpus::PassageTokens>| {
        passages += some.len() as u64;
        Ok(())
    };
    ragstone.corpus().scan(scope, &mut each).await?;
    if let (0, Some(document)) = (passages, document) {
        let message = format!("there is no document `{document}` in collection `{collection}`");
        return Err(Error::param_of(crate::error::ErrorKind::NotFound, "document", message));
    }
    let segments: HashSet<_> = ragstone.library().segments(scope).await?;
    blocking(move || {
        let (mut behind, mut leaving) = (HashMap::<KvKey, Vec<Held>>::new(), Vec::new());
        ragstone.store().entries(&Tier::ALL, &mut |entry| {
            let stored = entry.tiers.iter().filter(|tier| **tier != Tier::Device).count() as u64;
            let bytes = stored * entry.summary.bytes;
            let held = Held { key: entry.summary.key, copies: entry.tiers.len() as u64, bytes };
            match entry.summary.parent {
                _ if segments.contains(&entry.summary.segment) => leaving.push(held),
                Some(parent) => behind.entry(parent).or_default().push(held),
                None => {}
            }
        })?;
        let (mut entries, mut copies, mut bytes) = (0_u64, 0_u64, 0_u64);
        while let Some(held) = leaving.pop() {
            (entries, copies, bytes) = (entries + 1, copies + held.copies, bytes + held.bytes);
            leaving.extend(behind.remove(&held.key).unwrap_or_default());
        }
        Ok(json!({
            "passages_removed": passages, "entries_removed": entries, "copies_removed": copies, "bytes_removed": bytes,
            "dry_run": true,
        }))
    })
    .await
}
