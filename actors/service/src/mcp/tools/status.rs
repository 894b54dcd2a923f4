//! `status`

use ragstone_actors::Status;
use ragstone_corpus::CollectionInfo;
use ragstone_env::mebibytes;
use ragstone_storage::tier::{Tier, TierStatus};
use ragstone_terminal::output;
use rmcp::model::CallToolResult;
use serde::Serialize;

use super::{plural, result};
use crate::api::List;
use crate::api::cache::{CacheStatus, KeyStatus};
use crate::client::routes::{Request, Routes};
use crate::error::{ErrorKind, Result};

/// What a program gets.
#[derive(Serialize)]
struct State {
    collections: Vec<CollectionInfo>,
    model: Option<String>,
    /// What the caller may not see is null.
    tiers: Option<Vec<TierRow>>,
}

/// What a tier holds, and of how much.
#[derive(Serialize)]
struct TierRow {
    tier: Tier,
    entries: u64,
    bytes: u64,
    capacity_bytes: u64,
    hits: u64,
    misses: u64,
}

pub async fn run(routes: &dyn Routes) -> Result<CallToolResult> {
    let collections: List<CollectionInfo> = routes.send(Request::get(&["v1", "collections"])).await?.json().await?;
    // Who may read documents may not look at the store, perhaps.
    let (model, tiers) = match routes.send(Request::get(&["v1", "cache", "status"])).await?.json().await {
        Ok(CacheStatus::Whole(whole)) => (Some(whole.status.model.id.clone()), Some(tiers(&whole.status))),
        Ok(CacheStatus::OfKey(KeyStatus { model, .. })) => (Some(model.id), Some(Vec::new())),
        Err(error) if error.kind() == ErrorKind::Forbidden => (None, None),
        Err(error) => return Err(error),
    };
    let state = State { collections: collections.data, model, tiers };
    Ok(result(shown(&state), state))
}

/// Each tier that is there.
fn tiers(Status { device, store, .. }: &Status) -> Vec<TierRow> {
    let all = [
        (Tier::Device, Some(device.cache)),
        (Tier::Host, Some(store.host)),
        (Tier::Disk, Some(store.disk)),
        (Tier::Object, store.object),
    ];
    let row = |(tier, status): (Tier, Option<TierStatus>)| {
        let TierStatus { entries, bytes, capacity_bytes, hits, misses, .. } = status?;
        Some(TierRow { tier, entries, bytes, capacity_bytes, hits, misses })
    };
    all.into_iter().filter_map(row).collect()
}

fn shown(State { collections, model, tiers }: &State) -> String {
    let mut text = match collections.len() {
        0 => "There is no collection yet; `add` begins one.".to_owned(),
        count => format!("{count} collection{}:", plural(count)),
    };
    for CollectionInfo { name, documents, passages, damaged } in collections {
        let documents = output::count(*documents as u64, "document", "documents");
        let passages = output::count(*passages as u64, "passage", "passages");
        text.push_str(&format!("\n- {name}: {documents}, {passages}"));
        if damaged.is_some() {
            text.push_str(", damaged: whoever looks after the service must mend it");
        }
    }
    if let Some(model) = model {
        text.push_str(&format!("\n\nLanguage model: {model}"));
    }
    for TierRow { tier, entries, bytes, hits, misses, .. } in tiers.iter().flatten() {
        let size = mebibytes(*bytes);
        let entries = output::count(*entries, "entry", "entries");
        let (hits, misses) = (output::count(*hits, "hit", "hits"), output::count(*misses, "miss", "misses"));
        text.push_str(&format!("\nKV cache, {tier}: {entries}, {size:.1} MiB, {hits}, {misses}"));
    }
    text
}
