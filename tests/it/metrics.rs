//! Metrics: described, zero before they count, and named rightly by the alerts and the board of `ops/monitoring`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::cache::{cited, settle};
use crate::harness::{Folder, WORLD};
use crate::tree::sources;

/// What is there only once it has happened, as its labels are known then.
const WHEN_IT_HAPPENS: &[&str] = &["ragstone_panics_total", "ragstone_preemptions_total", "ragstone_shed_total"];

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: &char| c.is_ascii_lowercase() || *c == '_';
    text.match_indices("ragstone_").map(|(at, _)| text[at..].chars().take_while(is_part).collect()).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn monitoring(file: &str) -> String {
    std::fs::read_to_string(root().join("ops/monitoring").join(file)).unwrap()
}

/// Those that the program describes.
fn described() -> BTreeSet<String> {
    names(&std::fs::read_to_string(root().join("actors/service/src/telemetry/metrics.rs")).unwrap())
}

/// Labels of a metric as the table has them.
fn labels_described(name: &str) -> BTreeSet<String> {
    let table = std::fs::read_to_string(root().join("actors/service/src/telemetry/metrics.rs")).unwrap();
    let (_, row) = table.split_once(&format!("\"{name}\", &[")).unwrap_or_else(|| panic!("{name} is not in the table"));
    let (labels, _) = row.split_once(']').unwrap();
    labels.split(", ").map(|label| label.trim_matches('"').to_owned()).filter(|label| !label.is_empty()).collect()
}

/// Metrics of an exposition, each with its labels; without the bounds of a histogram's buckets.
fn labels(text: &str) -> BTreeSet<(String, BTreeSet<String>)> {
    let series = text.lines().filter(|line| line.starts_with("ragstone_"));
    let one = |line: &str| match line.split_once('{') {
        None => (plain(line.split(' ').next().unwrap()), BTreeSet::new()),
        Some((name, rest)) => {
            let labels =
                rest.match_indices("=\"").map(|(at, _)| rest[..at].rsplit(['{', ',']).next().unwrap().to_owned());
            (plain(name), labels.filter(|label| label != "le").collect())
        }
    };
    series.map(one).collect()
}

/// As the program names what Prometheus makes several series of.
fn plain(name: &str) -> String {
    let bare = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    bare.filter(|bare| bare.ends_with("_seconds")).unwrap_or(name).to_owned()
}

#[test]
fn what_is_counted_is_described_and_nothing_else() {
    let mut counted = BTreeSet::new();
    for (name, text) in sources() {
        if name.starts_with("tests/") || name.ends_with("telemetry/metrics.rs") {
            continue;
        }
        for macro_name in ["counter!(", "gauge!(", "histogram!("] {
            let calls = text.match_indices(macro_name).map(|(at, _)| text[at + macro_name.len()..].trim_start());
            let given = calls.filter_map(|rest| rest.strip_prefix('"')?.split('"').next());
            counted.extend(given.filter(|name| name.starts_with("ragstone_")).map(str::to_owned));
        }
    }
    assert!(counted.len() > 30, "the sources were not understood: {counted:?}");
    assert_eq!(counted, described());
}

#[tokio::test]
async fn a_live_service_has_what_the_board_and_the_alerts_name() {
    let folder = Folder::new();
    // So that the second answer loads what the first one left.
    let service = folder.serve(&["--set", "device_cache=false"]).await;
    let metrics = async || reqwest::get(service.url("/metrics")).await.unwrap().text().await.unwrap();
    assert!(metrics().await.contains("\nragstone_late_misses_total 0\n"), "zero before anything happens");
    service.add("world", WORLD).await;
    for _ in 0..2 {
        cited(&service, "world", "What does Calbet Works make?", "").await;
        settle(&service).await;
    }
    let text = metrics().await;
    let live: BTreeSet<String> = (text.lines().filter(|line| line.starts_with("ragstone_")))
        .map(|line| plain(line.split(['{', ' ']).next().unwrap()))
        .collect();
    for name in &live {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} is not described");
    }
    for (name, labels) in labels(&text) {
        assert_eq!(labels, labels_described(&name), "{name}");
    }
    let described = described();
    for file in ["alerts.yml", "alerts.test.yml", "dashboard.json"] {
        let named: BTreeSet<String> = names(&monitoring(file)).iter().map(|name| plain(name)).collect();
        assert!(named.len() > 5, "{file}: {named:?}");
        let unknown: Vec<&String> = named.difference(&described).collect();
        assert!(unknown.is_empty(), "{file} names what is no metric: {unknown:?}");
        let missing: Vec<&String> =
            named.difference(&live).filter(|name| !WHEN_IT_HAPPENS.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "{file} names what a service that answered does not have: {missing:?}");
    }
    let top = std::fs::read_to_string(root().join("src/cli/top/figures.rs")).unwrap();
    let mut read: BTreeSet<String> = names(&top).iter().map(|name| plain(name)).collect();
    read.retain(|name| !["ragstone_actors", "ragstone_service"].contains(&name.as_str()));
    let unknown: Vec<&String> =
        read.difference(&live).filter(|name| !WHEN_IT_HAPPENS.contains(&name.as_str())).collect();
    assert!(read.len() > 10 && unknown.is_empty(), "`ragstone top` reads what a service does not have: {unknown:?}");
}

#[test]
fn the_board_is_whole() {
    let board: Value = serde_json::from_str(&monitoring("dashboard.json")).unwrap();
    assert_eq!((&board["uid"], &board["id"]), (&json!("ragstone"), &json!(null)), "imported as new, and found again");
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert!(panels.len() >= 12 && ids.len() == panels.len());
    for panel in panels {
        assert!(!panel["title"].as_str().unwrap().is_empty() && !panel["description"].as_str().unwrap().is_empty());
        for target in panel["targets"].as_array().unwrap() {
            assert!(!names(target["expr"].as_str().unwrap()).is_empty(), "{panel}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
}
