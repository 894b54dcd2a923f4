//! The running service, and what a start would meet: address, bucket.

use std::path::Path;

use serde_json::Value;

use super::finding::Finding;
use crate::cli::serve;
use crate::client::Client;
use crate::config::Config;
use crate::data_folder::DataFolder;
use crate::error::Error;

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
            return Ok((Finding::ok(what, format!("process {} at {}", record.pid, record.address)), Some(client)));
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
    match client.get::<Value>(&["v1", "cache", "status"]).await {
        Ok(status) => of_status(&status),
        Err(error) => vec![Finding::warning("store", error.to_string(), "it is loading, or look into its log")],
    }
}

fn of_status(status: &Value) -> Vec<Finding> {
    let mut findings = vec![blending(&status["blend"])];
    let store = &status["store"];
    let before = findings.len();
    for tier in ["host", "disk", "object"] {
        let count = |name: &str| store[tier][name].as_u64().unwrap_or(0);
        if count("corrupt") > 0 {
            let found = format!(
                "{} of what was read from {tier} since the start was damaged, and computed again",
                count("corrupt")
            );
            let advice = "look after the medium; `ragstone cache verify` reads everything and removes what is damaged";
            findings.push(Finding::warning("store", found, advice));
        }
        if count("failed") > 0 {
            let found = format!("{} reads or writes of {tier} failed since the start", count("failed"));
            findings.push(Finding::warning("store", found, "the service's log names the error: room, rights, network"));
        }
    }
    if store["token_mismatches"].as_u64().unwrap_or(0) > 0 {
        let found = "a key was found with other tokens than its own (it was not used)";
        findings.push(Finding::problem("store", found, "please report it: this should not happen"));
    }
    if findings.len() == before {
        findings.push(Finding::ok("store", "nothing damaged and nothing failed since the start"));
    }
    findings
}

/// Whether passages are blended, for people who wonder why nothing is.
fn blending(blend: &Value) -> Finding {
    let what = "blending";
    match blend["blending"].as_str().unwrap_or_default() {
        "not_calibrated" => Finding::warning(
            what,
            "passages are reused exactly, and not blended: the model was not calibrated",
            "run `ragstone calibrate`: it finds out how its answers stay the same",
        ),
        "uncalibrated" => Finding::warning(
            what,
            "passages are blended although the model was not calibrated",
            "run `ragstone calibrate`, or answers may differ from those of a full prefill",
        ),
        "not_good_enough" => Finding::ok(what, "off: no way of blending keeps this model's answers"),
        "cannot_move" => Finding::ok(what, "off: this model's KV cannot be moved to other positions"),
        _ => Finding::ok(what, "on"),
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

/// Whether the bucket answers; `None` without one.
pub async fn bucket(config: &Config) -> Option<Finding> {
    let what = "bucket";
    // To open a folder as a bucket makes it.
    let folder = config.settings.object_url.as_deref().and_then(|url| url.strip_prefix("file://"));
    if let Some(folder) = folder.filter(|folder| !Path::new(folder).exists()) {
        return Some(Finding::warning(
            what,
            format!("there is no folder {folder}"),
            "the first start makes it; check its name",
        ));
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
    use serde_json::json;

    use super::super::finding::State;
    use super::*;

    #[test]
    fn what_the_store_has_met_is_told() {
        let tier = |corrupt, failed| json!({ "corrupt": corrupt, "failed": failed });
        let state = |host: Value, disk: Value, mismatches: u64| -> Vec<State> {
            let store = json!({ "host": host, "disk": disk, "object": null, "token_mismatches": mismatches });
            let found = of_status(&json!({ "blend": { "blending": "calibrated" }, "store": store }));
            found.iter().map(|finding| finding.state).collect()
        };
        assert_eq!(state(tier(0, 0), tier(0, 0), 0), [State::Ok, State::Ok]);
        assert_eq!(state(tier(0, 0), tier(3, 1), 0), [State::Ok, State::Warning, State::Warning]);
        assert_eq!(state(tier(0, 0), tier(0, 0), 1), [State::Ok, State::Problem]);
    }

    #[test]
    fn who_wonders_why_nothing_is_blended_is_told() {
        for (name, state) in [
            ("calibrated", State::Ok),
            ("configured", State::Ok),
            ("not_good_enough", State::Ok),
            ("cannot_move", State::Ok),
            ("not_calibrated", State::Warning),
            ("uncalibrated", State::Warning),
        ] {
            assert_eq!(blending(&json!({ "blending": name })).state, state, "{name}");
        }
    }
}
