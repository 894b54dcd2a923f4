//! The running service, and what a start would meet: address, bucket.

use std::path::PathBuf;

use ragstone_actors::Status;
use ragstone_actors::report::Blending;
use ragstone_env::damage::Damage;
use ragstone_service::api::cache::WholeStatus;
use ragstone_service::client::Client;
use ragstone_service::config::{Config, Surface};
use ragstone_service::data_folder::DataFolder;
use ragstone_service::server;
use ragstone_storage::tier::{Tier, TierStatus};
use reqwest::Url;

use super::finding::Finding;
use super::{folder, ingests};
use crate::cli::serve;
use crate::error::{Error, Result};

/// The service of the data folder, if one runs, and what is to be said about it.
pub async fn running(config: &Config) -> (Finding, Option<Client>) {
    let what = "service";
    let found = async {
        let path = config.data()?;
        // Made absolute and nothing more: it is there.
        let record = if DataFolder::is_used(&path) { DataFolder::existing(&path)?.service_record() } else { None };
        let Some(record) = record else { return Ok((Finding::ok(what, "none runs on the data folder"), None)) };
        let client = Client::new(&record.address, &record.token)?;
        if client.is_process(record.pid).await {
            let found = match record.passes {
                true => format!(
                    "none; a command has the folder open (process {}), and others reach it through that",
                    record.pid
                ),
                false => format!("process {} at {}", record.pid, record.address),
            };
            return Ok((Finding::ok(what, found), Some(client)));
        }
        if record.passes {
            // A command that was killed: it is no service that somebody misses.
            return Ok((Finding::ok(what, "none runs on the data folder"), None));
        }
        let found = format!("process {} was at {} and does not answer", record.pid, record.address);
        let advice = format!(
            "if it was killed, start `ragstone serve` again; if it still runs (`ps -p {}`), end it first",
            record.pid
        );
        Ok::<_, Error>((Finding::warning(what, found, advice), None))
    };
    found.await.unwrap_or_else(|error| (Finding::of(what, &error), None))
}

/// What the running service has met.
pub async fn health(client: &Client) -> Vec<Finding> {
    match client.get::<WholeStatus>(&["v1", "cache", "status"]).await {
        Ok(status) => {
            let damage = status.damage.iter().map(damaged).collect();
            [damage, of_status(&status.status), ingests::findings(&status.ingests, true)].concat()
        }
        Err(error) => vec![Finding::warning("store", error.to_string(), "it is loading, or look into its log")],
    }
}

/// KV can be computed again; documents cannot.
fn damaged(Damage { what, found, advice }: &Damage) -> Finding {
    let found = format!("{what}: {found}");
    match what.starts_with("collection") {
        true => Finding::problem("damage", found, advice),
        false => Finding::warning("damage", found, advice),
    }
}

fn of_status(Status { blend, store, .. }: &Status) -> Vec<Finding> {
    let mut findings = vec![blending(blend.blending)];
    let before = findings.len();
    let tiers =
        [(Tier::Host, Some(&store.host)), (Tier::Disk, Some(&store.disk)), (Tier::Object, store.object.as_ref())];
    for (tier, TierStatus { corrupt, failed, forged, .. }) in
        tiers.into_iter().filter_map(|(tier, status)| Some((tier, status?)))
    {
        if *corrupt > 0 {
            let found =
                format!("{corrupt} of what was read from {tier} since the start was damaged, and computed again");
            let advice = "look after the medium; `ragstone cache verify` reads everything and removes what is damaged";
            findings.push(Finding::warning("store", found, advice));
        }
        if *forged > 0 {
            let found = format!(
                "{forged} headers and layers of the bucket were not what somebody with a key sealed; none was used"
            );
            let advice = "look who can write to the bucket; keys that differ between nodes are not the reason, their entries are not even looked at";
            findings.push(Finding::problem("store", found, advice));
        }
        if *failed > 0 {
            let found = format!("{failed} reads or writes of {tier} failed since the start");
            findings.push(Finding::warning("store", found, "the service's log names the error: room, rights, network"));
        }
    }
    if store.token_mismatches > 0 {
        let found = "a key was found with other tokens than its own (it was not used)";
        findings.push(Finding::problem("store", found, "please report it: this should not happen"));
    }
    if findings.len() == before {
        findings.push(Finding::ok("store", "nothing damaged and nothing failed since the start"));
    }
    findings
}

/// Whether passages are blended, for people who wonder why nothing is.
fn blending(blending: Blending) -> Finding {
    let what = "blending";
    match blending {
        Blending::NotCalibrated => Finding::warning(
            what,
            "passages are reused exactly, and not blended: the model was not calibrated",
            "run `ragstone calibrate`: it finds out how its answers stay the same",
        ),
        Blending::Uncalibrated => Finding::warning(
            what,
            "passages are blended although the model was not calibrated",
            "run `ragstone calibrate`, or answers may differ from those of a full prefill",
        ),
        Blending::NotGoodEnough => Finding::ok(what, "off: no way of blending keeps this model's answers"),
        Blending::CannotMove => Finding::ok(what, "off: this model's KV cannot be moved to other positions"),
        Blending::Calibrated | Blending::Configured => Finding::ok(what, "on"),
    }
}

/// Whether a service could listen where the settings say, and who would reach it.
pub fn address(config: &Config) -> Finding {
    let (what, listen) = ("address", &config.surface.listen);
    let listener = match serve::bind(listen) {
        Ok(listener) => listener,
        Err(error) => return Finding::of(what, &error),
    };
    match listener.local_addr().map(|address| serve::exposure(address, &config.surface)) {
        Ok(Err(error)) => Finding::of(what, &error),
        Ok(Ok(Some(word))) => {
            Finding::warning(what, format!("{listen} is free; it is {word}"), "see README, Who may use it")
        }
        Ok(Ok(None)) | Err(_) => Finding::ok(what, format!("{listen} is free")),
    }
}

/// Of a bucket that is a folder; its name may be percent-encoded.
fn folder_of(url: &str) -> Option<PathBuf> {
    Url::parse(url).ok().filter(|url| url.scheme() == "file")?.to_file_path().ok()
}

/// Certificates, the port of health and the audit log, as far as they are set: a start that cannot use them ends. `runs`: a service has the
/// port already.
pub fn beside(surface: &Surface, runs: bool) -> Vec<Finding> {
    let found = |what, tried: Result<()>, given: &str| match tried {
        Ok(()) => Finding::ok(what, given),
        Err(error) => Finding::of(what, &error),
    };
    let mut findings = Vec::new();
    if surface.tls_certificate.is_some() || surface.tls_key.is_some() || surface.tls_client_ca.is_some() {
        findings.push(found("TLS", server::try_tls(surface), "the certificate and its key can be used"));
    }
    if let Some(listen) = surface.health_listen.as_deref().filter(|_| !runs) {
        findings.push(found("health", server::try_health(surface), &format!("{listen} is free")));
    }
    findings.extend(surface.audit_log.as_deref().map(folder::audit_log));
    findings
}

/// Whether the bucket answers; `None` without one.
pub async fn bucket(config: &Config) -> Option<Finding> {
    let what = "bucket";
    // To open a folder as a bucket makes it.
    if let Some(folder) = config.settings.object_url.as_deref().and_then(folder_of).filter(|folder| !folder.exists()) {
        let found = format!("there is no folder {}", folder.display());
        return Some(Finding::warning(what, found, "the first start makes it; check its name"));
    }
    let tier = match serve::bucket(config) {
        Ok(tier) => tier?,
        Err(error) => return Some(Finding::of(what, &error)),
    };
    let probed = tokio::task::spawn_blocking(move || tier.probe()).await;
    Some(match probed {
        Ok(Ok(())) => Finding::ok(what, "it answers, and lets this node list"),
        Ok(Err(error)) => Finding::problem(
            what,
            error.to_string(),
            "check `object_url`, `object_options` and the credentials; a service starts without it and computes what only it has",
        ),
        Err(error) => Finding::problem(what, format!("asking it broke off: {error}"), "please report it"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::finding::State;
    use super::*;

    #[test]
    fn what_the_store_has_met_is_told() {
        let tier = |corrupt, failed| json!({ "corrupt": corrupt, "failed": failed });
        let state = |host: Value, disk: Value, mismatches: u64| -> Vec<State> {
            let store = json!({ "host": host, "disk": disk, "object": null, "token_mismatches": mismatches });
            let blend = json!({ "blending": "calibrated", "ratio": 0.1 });
            let found = of_status(&serde_json::from_value(json!({ "blend": blend, "store": store })).unwrap());
            found.iter().map(|finding| finding.state).collect()
        };
        assert_eq!(state(tier(0, 0), tier(0, 0), 0), [State::Ok, State::Ok]);
        assert_eq!(state(tier(0, 0), tier(3, 1), 0), [State::Ok, State::Warning, State::Warning]);
        assert_eq!(state(tier(0, 0), tier(0, 0), 1), [State::Ok, State::Problem]);
    }

    #[test]
    fn who_wonders_why_nothing_is_blended_is_told() {
        for (name, state) in [
            (Blending::Calibrated, State::Ok),
            (Blending::Configured, State::Ok),
            (Blending::NotGoodEnough, State::Ok),
            (Blending::CannotMove, State::Ok),
            (Blending::NotCalibrated, State::Warning),
            (Blending::Uncalibrated, State::Warning),
        ] {
            assert_eq!(blending(name).state, state, "{name:?}");
        }
    }
}
