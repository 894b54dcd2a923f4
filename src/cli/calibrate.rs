//! `ragstone calibrate`

use std::path::PathBuf;

use futures::StreamExt;
use ragstone_actors::blend::{Calibration, Evidence};
use ragstone_actors::calibration::{Asked, Calibrate, CalibrationEvent, RULES};
use ragstone_actors::report::Blending;
use ragstone_actors::{InlineDocument, Rule};

use crate::access;
use crate::api::cache::KnownCalibration;
use crate::cli::output;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::eval::dataset;
use crate::progress::{Progress, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Questions with their passages: an array of {"question", "ctxs": [{"title"?, "text"}]}, such as MuSiQue [default: those
    /// that come with ragstone]
    #[arg(value_name = "QUESTIONS", conflicts_with = "collection")]
    questions: Option<PathBuf>,
    /// Calibrate with this collection's passages
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// How many prompts are made of them: half to search with, half to confirm what was found
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(8..=1000))]
    prompts: u32,
    /// The longest answer that is compared, in tokens
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    tokens: u32,
    /// The share of the answers that must be a full prefill's
    #[arg(long, value_name = "SHARE", default_value_t = 0.99)]
    fidelity: f64,
    /// The rules to try [default: all but the controls]
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Rule::from_name)]
    selector: Vec<Rule>,
    /// Only show what is known
    #[arg(long, conflicts_with_all = ["questions", "collection", "selector"])]
    show: bool,
    /// Write what was found to this file; as calibration.json in the model's folder it serves whoever has the model
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Finds out how the model's prompts may be blended so that its answers stay those of a full prefill.
pub async fn run(config: &Config, args: Args) -> Result<()> {
    if args.show {
        let known: KnownCalibration = access::with(config, access::asking("calibrate"), async |client: &Client| {
            client.get(&["v1", "cache", "calibration"]).await
        })
        .await?;
        return if args.json { output::json(&known) } else { show(&known) };
    }
    let body = request(&args)?;
    let work = async |client: &Client| {
        let mut events = std::pin::pin!(client.events(&["v1", "cache", "calibration"], &body).await?);
        let bar = Progress::new("calibrating", Unit::Items);
        while let Some(event) = events.next().await.transpose()? {
            match event {
                CalibrationEvent::Progress { way, ways, .. } => bar.set(way as u64, ways as u64),
                CalibrationEvent::Finished(found) => return Ok(found),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the calibration broke off; the same command tries again"))
    };
    let found = access::creating(config, access::asking("calibrate"), work).await?;
    if let Some(path) = &args.export {
        let text = serde_json::to_string_pretty(&found).map_err(|error| Error::internal(error.to_string()))?;
        std::fs::write(path, text + "\n").map_err(|error| Error::io("cannot write", path, error))?;
    }
    if args.json { output::json(&found) } else { output::text(&table(&found)) }
}

fn request(args: &Args) -> Result<Calibrate> {
    let questions = match &args.questions {
        None => Vec::new(),
        Some(path) => dataset::read(path)?,
    };
    let passage = |passage: dataset::Passage| InlineDocument { title: passage.title, text: passage.text };
    let asked = |item: dataset::Item| Asked {
        question: item.question,
        passages: item.passages.into_iter().map(passage).collect(),
    };
    Ok(Calibrate {
        questions: questions.into_iter().map(asked).collect(),
        collection: args.collection.clone(),
        prompts: args.prompts as usize,
        tokens: args.tokens as usize,
        fidelity: args.fidelity,
        selectors: if args.selector.is_empty() { RULES.to_vec() } else { args.selector.clone() },
    })
}

fn show(known: &KnownCalibration) -> Result<()> {
    output::line(match known.blend.blending {
        Blending::Calibrated => "passages are blended as the calibration found",
        Blending::Configured => "passages are blended as the settings say",
        Blending::Uncalibrated => "passages are blended although the model was not calibrated (blend_uncalibrated)",
        Blending::NotCalibrated => "passages are not blended: the model was not calibrated; run `ragstone calibrate`",
        Blending::CannotMove => "passages are not blended: the model's KV has its positions in it, and cannot be moved",
        Blending::NotGoodEnough => "passages are not blended: no way of blending keeps the model's answers",
    })?;
    match &known.calibration {
        Some(found) => output::text(&table(found)),
        None => Ok(()),
    }
}

/// What was chosen, and of each rule the way that came farthest.
fn table(found: &Calibration) -> String {
    let mut out = format!(
        "{} prompts of {} passages, answers of up to {} tokens; {} of {} ways tried\n",
        found.prompts,
        found.passages,
        found.tokens,
        found.evidence.len(),
        found.ways
    );
    out += &match &found.chosen {
        Some(way) => format!("chosen: {}, {:.3} of a full prefill's time\n", way.name(), way.cost),
        None => format!(
            "none keeps {:.0} % of the answers: the model's passages are reused exactly or computed, never blended\n",
            found.fidelity * 100.0
        ),
    };
    out += &format!("\n{:<34}{:>7}{:>9}{:>8}{:>14}\n", "way", "cost", "prompts", "differ", "nats a token");
    for rule in Rule::ALL {
        let tried = found.evidence.iter().filter(|seen| seen.way.selection.rule == rule);
        // Of equals the cheapest.
        let rank = |seen: &&Evidence| (seen.prompts, std::cmp::Reverse(seen.differ));
        if let Some(seen) = tried.rev().max_by_key(rank) {
            let Evidence { way, prompts, differ, divergence, .. } = seen;
            out += &format!("{:<34}{:>7.3}{prompts:>9}{differ:>8}{divergence:>14.4}\n", way.name(), way.cost);
        }
    }
    out + "cost: of a full prefill's time, as predicted; a way is given up where too many answers differ\n"
}

#[cfg(test)]
mod tests {
    use ragstone_actors::Selection;
    use ragstone_actors::blend::Way;

    use super::*;

    #[test]
    fn a_table_says_what_was_chosen_and_how_far_the_others_came() {
        let way = |rule, ratio, cost| Way { selection: Selection::by(rule), ratio, cost };
        let seen = |way, prompts, differ, keeps| Evidence { way, prompts, differ, divergence: 0.25, keeps };
        let chosen = way(Rule::Cacheblend, 0.15, 0.2);
        let mut found = Calibration {
            weights: "00".into(),
            measured_unix_ms: 0,
            passages: "bundled".into(),
            prompts: 100,
            tokens: 16,
            fidelity: 0.99,
            chosen: Some(chosen),
            ways: 90,
            evidence: vec![
                seen(way(Rule::FirstK, 0.05, 0.1), 3, 2, false),
                seen(way(Rule::FirstK, 0.1, 0.15), 40, 2, false),
                seen(chosen, 100, 1, true),
            ],
        };
        let text = table(&found);
        for words in ["3 of 90 ways", "chosen: cacheblend @2 15 %, 0.200", "first-k @0 10 %", "40"] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(!text.contains("first-k @0 5 %"), "{text}");
        found.chosen = None;
        assert!(table(&found).contains("none keeps 99 %"));
        assert_eq!(ragstone_actors::calibration::FILE_NAME, "calibration.json", "as the help of --export says");
    }
}
