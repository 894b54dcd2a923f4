//! Entries one by one, and what they are of. For the data folder's owner.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::Ragstone;
use ragstone_actors::library::PassageName;
use ragstone_actors::schemas::ModuleName;
use ragstone_storage::corpus::Scope;
use ragstone_storage::key::SegmentDigest;
use ragstone_storage::store::EntryInfo;
use ragstone_storage::tier::Tier;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::entries::blocking;
use super::filter::Filter;
use crate::error::{Error, Result};
use crate::http::identity::Visitor;
use crate::lanes::Work;
use crate::service::State;

/// Entries that are named at once.
const MOST_LISTED: usize = 10_000;

/// Which entries to list. (No `flatten` of [`Filter`]: it takes numbers in a query for text.)
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listing {
    collection: Option<String>,
    document: Option<String>,
    schema: Option<String>,
    module: Option<String>,
    tenant: Option<String>,
    tier: Option<Tier>,
    older_than_s: Option<u64>,
    younger_than_s: Option<u64>,
    model: Option<String>,
    limit: Option<usize>,
}

/// What a filter lets pass.
#[derive(Debug, Default)]
struct Matching {
    /// Last used first; the bound holds.
    entries: Vec<EntryInfo>,
    count: u64,
    bytes: u64,
    /// The bucket was asked and did not answer: what only it has is not among them.
    object_unavailable: bool,
}

/// An entry, and what it is of.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: EntryInfo,
    of: Of,
}

/// What an entry is of. Questions are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Of {
    /// A passage of this folder's corpus.
    Passage(PassageName),
    /// What questions over passages begin with.
    SystemPrompt,
    /// Text of a module of a schema that is kept.
    Module(ModuleName),
    /// What another prompt begins with: a caller's own system prompt, or a conversation.
    PromptStart,
    /// Nothing that this folder's corpus has: a passage that came with a request, or with an import.
    Unknown,
}

/// Entries, what they are of, and what they weigh, last used first.
pub async fn list(state: web::Data<State>, request: HttpRequest) -> Result<HttpResponse> {
    let query = web::Query::<Listing>::from_query(request.query_string())
        .map_err(|error| Error::invalid(format!("query: {error}; use collection, document, tenant, tier, …")))?;
    let Listing { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model, limit } =
        query.into_inner();
    let collection = Visitor::of(&request)?.collection_if(collection)?;
    let filter = Filter { collection, document, schema, module, tenant, tier, older_than_s, younger_than_s, model };
    let limit = limit.unwrap_or(100).min(MOST_LISTED);
    let ragstone = state.opened()?.ragstone.clone();
    let now = state.env.now_unix_ms();
    let answer = state.run(&request, Work::Look, async move {
        let within = (filter.collection.clone(), filter.document.clone());
        let matcher = filter.look_up(&ragstone, now).await?;
        let looking = ragstone.clone();
        let Matching { entries, count, bytes, object_unavailable } = blocking(move || {
            let mut found = Matching::default();
            let is_complete = looking.store().entries(&matcher.listed(), &mut |entry| {
                if matcher.matches(&entry) {
                    found.add(entry, limit);
                }
            })?;
            found.object_unavailable = !is_complete;
            found.cut(limit);
            Ok(found)
        })
        .await?;
        let has_more = count > entries.len() as u64;
        let data = named(&ragstone, entries, (within.0.as_deref(), within.1.as_deref())).await?;
        Ok::<_, Error>(json!({
            "object": "list", "entries": count, "bytes": bytes, "has_more": has_more,
            "object_unavailable": object_unavailable, "data": data,
        }))
    });
    Ok(HttpResponse::Ok().json(answer.await??))
}

impl Matching {
    fn add(&mut self, entry: EntryInfo, limit: usize) {
        self.count += 1;
        self.bytes += entry.summary.bytes;
        self.entries.push(entry);
        // Sorted and cut now and then: `KvStore::entries` holds a summary of every entry already, once is enough.
        if self.entries.len() >= 2 * limit + 1024 {
            self.cut(limit);
        }
    }

    fn cut(&mut self, limit: usize) {
        self.entries.sort_by_key(|entry| (Reverse(entry.last_use_unix_ms), entry.summary.key));
        self.entries.truncate(limit);
    }
}

/// Says what entries of some collection or document are of.
async fn named(
    ragstone: &Ragstone,
    entries: Vec<EntryInfo>,
    (collection, document): (Option<&str>, Option<&str>),
) -> Result<Vec<Listed>> {
    let segments: HashSet<SegmentDigest> = entries.iter().map(|entry| entry.summary.segment).collect();
    let names = ragstone.library().names(&segments, Scope { collection, document }).await?;
    let modules = ragstone.schemas().names().await?;
    let system_prompt = ragstone.warmer().system_prompt()?;
    let of = |entry: &EntryInfo| match modules.get(&entry.summary.key) {
        Some(module) => Of::Module(module.clone()),
        None => of(entry, &names, system_prompt),
    };
    Ok(entries.into_iter().map(|entry| Listed { of: of(&entry), entry }).collect())
}

fn of(entry: &EntryInfo, names: &HashMap<SegmentDigest, PassageName>, system_prompt: Option<SegmentDigest>) -> Of {
    let segment = entry.summary.segment;
    match names.get(&segment) {
        Some(name) => Of::Passage(name.clone()),
        None if system_prompt == Some(segment) => Of::SystemPrompt,
        None if entry.summary.parent.is_none() => Of::PromptStart,
        None => Of::Unknown,
    }
}
