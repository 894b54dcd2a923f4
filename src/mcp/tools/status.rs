//! `status`

use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use super::{plural, result};
use crate::client::routes::{Request, Routes};
use crate::error::{ErrorKind, Result};
use crate::progress::mebibytes;

pub async fn run(routes: &dyn Routes) -> Result<CallToolResult> {
    let listed = routes.send(Request::get(&["v1", "collections"])).await?.json().await?;
    let collections = listed["data"].as_array().cloned().unwrap_or_default();
    // Who may read documents may not look at the store, perhaps.
    let store = match routes.send(Request::get(&["v1", "cache", "status"])).await?.json().await {
        Ok(store) => Some(store),
        Err(error) if error.kind() == ErrorKind::Forbidden => None,
        Err(error) => return Err(error),
    };
    let model = store.as_ref().map_or(Value::Null, |store| store["model"]["id"].clone());
    let tiers = store.as_ref().map(tiers);
    let text = shown(&collections, &model, tiers.as_deref());
    Ok(result(text, json!({ "collections": collections, "model": model, "tiers": tiers })))
}

/// Each tier that is there: what it holds, and of how much.
fn tiers(store: &Value) -> Vec<Value> {
    let all = [
        ("device", &store["device"]["cache"]),
        ("host", &store["store"]["host"]),
        ("disk", &store["store"]["disk"]),
        ("object", &store["store"]["object"]),
    ];
    let there = all.into_iter().filter(|(_, tier)| tier.is_object());
    let row = |(name, tier): (&str, &Value)| {
        json!({
            "tier": name, "entries": tier["entries"], "bytes": tier["bytes"], "capacity_bytes": tier["capacity_bytes"],
            "hits": tier["hits"], "misses": tier["misses"],
        })
    };
    there.map(row).collect()
}

fn shown(collections: &[Value], model: &Value, tiers: Option<&[Value]>) -> String {
    let mut text = match collections.len() {
        0 => "There is no collection yet; `add` begins one.".to_owned(),
        count => format!("{count} collection{}:", plural(count)),
    };
    for collection in collections {
        let (name, count) =
            (collection["name"].as_str().unwrap_or_default(), |of: &str| collection[of].as_u64().unwrap_or(0));
        text.push_str(&format!("\n- {name}: {} documents, {} passages", count("documents"), count("passages")));
    }
    if let Some(model) = model.as_str() {
        text.push_str(&format!("\n\nLanguage model: {model}"));
    }
    for tier in tiers.into_iter().flatten() {
        let (name, count) = (tier["tier"].as_str().unwrap_or_default(), |of: &str| tier[of].as_u64().unwrap_or(0));
        text.push_str(&format!(
            "\nKV cache, {name}: {} entries, {:.1} MiB, {} hits, {} misses",
            count("entries"),
            mebibytes(count("bytes")),
            count("hits"),
            count("misses")
        ));
    }
    text
}
