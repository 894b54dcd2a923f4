//! The metrics, with what the tiers and workers hold now.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use ragstone_actors::{Ragstone, Status};
use ragstone_env::lock::locked;
use ragstone_storage::catalog::QuotaName;

use super::quotas;
use super::state::State;

/// How long the tiers may take to tell what they hold.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// Tenants whose quotas have labels: each stays for as long as the process lives.
const MOST_LABELLED: usize = 64;

/// Tenants and quotas that have labels.
pub type Labelled = Mutex<BTreeSet<(String, QuotaName)>>;

/// In Prometheus's text format (version 0.0.4).
pub async fn of(state: &State) -> String {
    if let Ok(opened) = state.opened() {
        let (ragstone, publishing) = (opened.ragstone.clone(), state.publishing.clone());
        let labelled = state.quota_labels.clone();
        let published = async move {
            // One at a time: a tier that hangs holds one thread, not one for each look at the metrics.
            let Ok(turn) = publishing.acquire_owned().await else { return };
            let tiers = ragstone.clone();
            let published = tokio::task::spawn_blocking(move || {
                publish(&tiers.status());
                drop(turn);
            });
            if let Err(error) = published.await {
                tracing::error!(%error, "the tiers' figures could not be published");
            }
            publish_quotas(&ragstone, &labelled).await;
        };
        // The corpus, where documents are counted, wants a multi-thread runtime.
        let published = async move { state.on_runtime(published).await.unwrap_or_default() };
        // Such a tier must not keep the other figures from whoever looks for the reason.
        if tokio::time::timeout(STATUS_PATIENCE, published).await.is_err() {
            tracing::warn!("the tiers do not tell what they hold; /metrics shows what they told last");
        }
    }
    state.metrics.render()
}

/// What tenants with quotas use of them. What has a label and no quota any more is told to be without a limit.
async fn publish_quotas(ragstone: &Ragstone, labelled: &Labelled) {
    let mut tenants = quotas::tenants(ragstone);
    {
        let labelled = locked(labelled);
        let known: BTreeSet<&String> = labelled.iter().map(|(tenant, _)| tenant).collect();
        let mut room = MOST_LABELLED.saturating_sub(known.len());
        tenants.retain(|tenant| {
            let has_some = !ragstone.quotas().of(tenant).0.is_empty();
            let is_new = has_some && !known.contains(tenant) && room > 0;
            room -= usize::from(is_new);
            is_new || known.contains(tenant)
        });
    }
    let all = match quotas::used(ragstone, tenants).await {
        Ok(all) => all,
        Err(error) => {
            return tracing::warn!(%error, "the documents of tenants with quotas could not be counted for /metrics");
        }
    };
    let mut gone = locked(labelled).clone();
    for of_tenant in all {
        for quota in of_tenant.quotas {
            let labels = [("tenant", of_tenant.tenant.clone()), ("quota", quota.name.name().to_owned())];
            metrics::gauge!("ragstone_tenant_quota_used", &labels).set(quota.used as f64);
            metrics::gauge!("ragstone_tenant_quota_limit", &labels).set(quota.limit as f64);
            let label = (of_tenant.tenant.clone(), quota.name);
            gone.remove(&label);
            locked(labelled).insert(label);
        }
    }
    for (tenant, name) in gone {
        let labels = [("tenant", tenant), ("quota", name.name().to_owned())];
        metrics::gauge!("ragstone_tenant_quota_used", &labels).set(0.0);
        metrics::gauge!("ragstone_tenant_quota_limit", &labels).set(if name.is_share() { 0.0 } else { f64::INFINITY });
    }
}

/// Copies a snapshot into the metrics that are states rather than events.
fn publish(status: &Status) {
    let (device, store) = (&status.device, &status.store);
    let tiers = [("device", Some(&device.cache)), ("host", Some(&store.host)), ("disk", Some(&store.disk))];
    let tiers = tiers.into_iter().chain([("object", store.object.as_ref())]);
    for (name, tier) in tiers.filter_map(|(name, tier)| Some((name, tier?))) {
        metrics::gauge!("ragstone_tier_bytes", "tier" => name).set(tier.bytes as f64);
        metrics::gauge!("ragstone_tier_capacity_bytes", "tier" => name).set(tier.capacity_bytes as f64);
        metrics::gauge!("ragstone_tier_entries", "tier" => name).set(tier.entries as f64);
        metrics::counter!("ragstone_tier_hits_total", "tier" => name).absolute(tier.hits);
        metrics::counter!("ragstone_tier_misses_total", "tier" => name).absolute(tier.misses);
        metrics::counter!("ragstone_tier_corrupt_total", "tier" => name).absolute(tier.corrupt);
        metrics::counter!("ragstone_tier_evicted_total", "tier" => name).absolute(tier.evicted);
        metrics::counter!("ragstone_tier_failed_total", "tier" => name).absolute(tier.failed);
        metrics::counter!("ragstone_tier_declined_total", "tier" => name).absolute(tier.declined);
    }
    metrics::counter!("ragstone_object_forged_total").absolute(store.object.map_or(0, |object| object.forged));
    for (name, queue) in [("disk", &store.to_disk), ("object", &store.to_object)] {
        metrics::gauge!("ragstone_write_behind_entries", "tier" => name).set(queue.entries as f64);
        metrics::counter!("ragstone_write_behind_dropped_total", "tier" => name).absolute(queue.dropped);
    }
    metrics::gauge!("ragstone_device_blocks").set(status.device.blocks as f64);
    metrics::gauge!("ragstone_device_free_blocks").set(status.device.free_blocks as f64);
    metrics::gauge!("ragstone_device_cached_blocks").set(status.device.cached_blocks as f64);
    let sequences = status.device.sequences;
    for (state, count) in [
        ("waiting", sequences.waiting),
        ("loading", sequences.loading),
        ("prefilling", sequences.prefilling),
        ("decoding", sequences.decoding),
        ("swapped", sequences.swapped),
        ("background", sequences.background),
    ] {
        metrics::gauge!("ragstone_sequences", "state" => state).set(count as f64);
    }
    metrics::gauge!("ragstone_questions_admitted").set(status.admitted as f64);
    let groups = status.device.groups;
    for (kind, blocks) in [("samples", groups.samples), ("beams", groups.beams)] {
        metrics::counter!("ragstone_group_blocks_total", "group" => kind, "blocks" => "held").absolute(blocks.held);
        metrics::counter!("ragstone_group_blocks_total", "group" => kind, "blocks" => "apart").absolute(blocks.apart);
    }
    for worker in &status.workers {
        metrics::gauge!("ragstone_worker_in_flight", "worker" => worker.name.clone()).set(worker.in_flight as f64);
        metrics::counter!("ragstone_worker_restarts_total", "worker" => worker.name.clone()).absolute(worker.restarts);
    }
}
