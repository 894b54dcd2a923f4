//! `ragstone doctor`: what is wrong, and what to do. Creates, fetches and changes nothing, and works whether a service runs or not.

mod finding;
mod folder;
mod ingests;
mod machine;
mod models;
mod service;

use std::fmt::Write;

use ragstone_service::config::Config;
use ragstone_terminal::output;
use serde_json::json;

use self::finding::{Finding, State};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Looks at everything and prints what it found; fails where something is a problem.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    let findings = examine(config).await?;
    let problems = findings.iter().filter(|finding| finding.state == State::Problem).count() as u64;
    if args.json {
        output::json(&json!({ "ok": problems == 0, "findings": findings }))?;
    } else {
        output::text(&shown(&findings))?;
    }
    match problems {
        0 => Ok(()),
        many => {
            let message = format!("{} found", output::count(many, "problem", "problems"));
            Err(Error::new(ErrorKind::Incompatible, message))
        }
    }
}

/// In the order in which a start meets them.
async fn examine(config: &Config) -> Result<Vec<Finding>> {
    let (surface, settings) = (&config.surface, &config.settings);
    let data = config.data()?;
    let mut findings = vec![
        Finding::ok("version", format!("ragstone {}, {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS)),
        settings_given(config),
        machine::processor(settings),
    ];
    findings.extend(machine::gpu(settings));
    let (model, weights) = models::language(surface, settings).await;
    let (service, client) = service::running(config).await;
    findings.extend([model, models::embedding(config).await]);
    findings.extend(models::reranker(surface).await);
    if client.is_none() {
        // One that runs has its memory and its files already.
        findings.extend(machine::memory(settings, weights));
        #[cfg(unix)]
        findings.push(machine::open_files(surface));
    }
    let place = folder::place(&data);
    let is_there = place.state != State::Problem;
    findings.push(place);
    if is_there {
        findings.push(folder::format(&data));
        findings.extend(folder::room(&data, settings.disk_bytes));
        findings.extend(folder::aside(&data));
    }
    findings.extend(service::bucket(config).await);
    findings.extend(service::beside(surface, client.is_some()));
    findings.push(service);
    match client {
        Some(client) => {
            findings.extend(models::served(&client).await);
            findings.extend(service::health(&client).await);
        }
        None => {
            findings.push(service::address(config));
            findings.extend(ingests::of_folder(&data));
        }
    }
    Ok(findings)
}

/// Those that are not the defaults, and where they come from; values may be secrets.
fn settings_given(config: &Config) -> Finding {
    let given = config.listing.iter().filter_map(|setting| Some((&setting.key, setting.source.as_ref()?)));
    let given: Vec<String> = given.map(|(key, source)| format!("{key} ({source})")).collect();
    Finding::ok("settings", if given.is_empty() { "all defaults".to_owned() } else { given.join(", ") })
}

fn shown(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Finding { what, state, found, advice } in findings {
        let state = match state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Problem => "PROBLEM",
        };
        let _ = writeln!(out, "{state:7}  {what:width$}  {}", output::one_line(found, 400));
        if let Some(advice) = advice {
            let _ = writeln!(out, "{:7}  {:width$}  -> {}", "", "", output::one_line(advice, 400));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_look_and_below_it_what_to_do() {
        let findings = [Finding::ok("a", "fine\u{1b}[2J"), Finding::problem("longer", "broken", "mend it")];
        let expected = "ok       a       fine[2J\nPROBLEM  longer  broken\n                 -> mend it\n";
        assert_eq!(shown(&findings), expected);
    }
}
