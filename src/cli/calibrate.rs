//! `ragstone calibrate`

use std::path::PathBuf;

use futures::StreamExt;
use ragstone_actors::answer::blend::{BALANCED, Calibration, Evidence, Verdict};
use ragstone_actors::report::Blending;
use ragstone_actors::upkeep::calibration::{Asked, Calibrate, CalibrationEvent, RULES};
use ragstone_actors::{InlineDocument, Rule};
use ragstone_measure::eval::dataset;
use ragstone_service::access;
use ragstone_service::api::cache::KnownCalibration;
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_terminal::output;
use ragstone_terminal::progress::{Progress, Unit};

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Questions with their passages: an array of {"question", "ctxs": [{"title"?, "text"}]}, such as MuSiQue [default: those
    /// that come with ragstone]
    #[arg(value_name = "QUESTIONS", conflicts_with = "collection")]
    questions: Option<PathBuf>,
    /// Calibrate with this collection's passages
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// How many prompts are made of them at most: an eighth to search with, the others to certify what was found
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=1000))]
    prompts: u32,
    /// The longest answer that is compared, in tokens
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    tokens: u32,
    /// The divergence from a full prefill that is allowed, in nats a token; half of it needs twice as many prompts
    #[arg(long, value_name = "NATS", default_value_t = BALANCED)]
    budget: f64,
    /// Only measure every way on every prompt, and show what each costs and keeps; nothing is chosen
    #[arg(long, conflicts_with_all = ["export", "show"])]
    frontier: bool,
    /// The rules to try [default: two-stage, cacheblend-v]
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = Rule::from_name)]
    selector: Vec<Rule>,
    /// Only show what is known
    #[arg(long, conflicts_with_all = ["questions", "collection", "selector"])]
    show: bool,
    /// Write what was found to this file; as calibration.json in the folder of the model, or of its adapter, it serves whoever has that
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
                CalibrationEvent::Progress { trials, most, .. } => bar.set(trials as u64, most as u64),
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
        budget: args.budget,
        selectors: if args.selector.is_empty() { RULES.to_vec() } else { args.selector.clone() },
        frontier: args.frontier,
    })
}

fn show(known: &KnownCalibration) -> Result<()> {
    output::line(match known.blend.blending {
        Blending::Calibrated => "passages are blended as the calibration found",
        Blending::Configured => "passages are blended as the settings say",
        Blending::Uncalibrated => "passages are blended although the model was not calibrated (blend_uncalibrated)",
        Blending::NotCalibrated => "passages are not blended: the model was not calibrated; run `ragstone calibrate`",
        Blending::CannotMove => "passages are not blended: the model's KV has its positions in it, and cannot be moved",
        Blending::NotGoodEnough => "passages are not blended: no way of blending keeps within the budget",
    })?;
    match &known.calibration {
        Some(found) => output::text(&table(found)),
        None => Ok(()),
    }
}

/// What was chosen, and what every way came to, cheapest first.
fn table(found: &Calibration) -> String {
    let mut out = format!(
        "up to {} prompts of {} passages, answers of up to {} tokens, a budget of {} nats a token\n",
        found.prompts, found.passages, found.tokens, found.budget
    );
    let is_frontier = found.evidence.iter().all(|seen| seen.verdict == Verdict::Left);
    out += &match &found.chosen {
        Some(way) => format!("chosen: {}, {:.3} of a full prefill's time\n", way.name(), way.cost),
        None if is_frontier => String::new(),
        None => format!(
            "none was certified: the model's passages are reused exactly or computed, never blended; the closest was {}\n",
            closest(&found.evidence)
        ),
    };
    out += &format!(
        "\n{:<34}{:>7}{:>9}{:>10}{:>9}{:>8}{:>8}  verdict\n",
        "way", "cost", "prompts", "KL", "+-", "p99", "differ"
    );
    for Evidence { way, prompts, differ, divergence, interval, p99, verdict } in &found.evidence {
        let verdict = match verdict {
            Verdict::Left => "",
            Verdict::Certified => "certified",
            Verdict::Refused => "over the budget",
            Verdict::Undecided => "undecided",
        };
        let (name, cost) = (way.name(), way.cost);
        out += &format!(
            "{name:<34}{cost:>7.3}{prompts:>9}{divergence:>10.4}{interval:>9.4}{p99:>8.3}{differ:>8}  {verdict}"
        );
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out + "cost: of a full prefill's time, as predicted. KL: the mean divergence of the answer's tokens from a full prefill's, in nats, each at \
           most 1, with its interval of 95 %. differ: answers with another token\n"
}

/// The way with the least divergence, and that.
fn closest(evidence: &[Evidence]) -> String {
    let least = evidence.iter().min_by(|left, right| left.divergence.total_cmp(&right.divergence));
    least.map_or_else(String::new, |it| format!("{} with {:.4} +- {:.4}", it.way.name(), it.divergence, it.interval))
}

#[cfg(test)]
mod tests {
    use ragstone_actors::Selection;
    use ragstone_actors::answer::blend::Way;

    use super::*;

    #[test]
    fn a_table_says_what_was_chosen_and_how_far_the_others_came() {
        let way = |rule, ratio, primer, cost| Way { selection: Selection::by(rule), ratio, primer, cost };
        let seen = |way, prompts, divergence, verdict| {
            let (differ, interval, p99) = (3, 0.01, 0.5);
            Evidence { way, prompts, differ, divergence, interval, p99, verdict }
        };
        let chosen = way(Rule::TwoStage, 0.15, 4, 0.2);
        let mut found = Calibration {
            weights: "00".into(),
            measured_unix_ms: 0,
            passages: "bundled".into(),
            prompts: 500,
            tokens: 16,
            budget: 0.03,
            chosen: Some(chosen),
            ways: 90,
            evidence: vec![
                seen(way(Rule::None, 0.0, 0, 0.1), 8, 0.2, Verdict::Refused),
                seen(way(Rule::TwoStage, 0.05, 4, 0.15), 16, 0.04, Verdict::Left),
                seen(chosen, 320, 0.02, Verdict::Certified),
            ],
        };
        let text = table(&found);
        for words in [
            "chosen: two-stage 15 %, primer 4, 0.200",
            "plain reuse                         0.100        8    0.2000   0.0100   0.500       3  over the budget\n",
            "    0.0200   0.0100   0.500       3  certified\n",
            "    0.0400   0.0100   0.500       3\n",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        found.chosen = None;
        assert!(table(&found).contains("closest was two-stage 15 %, primer 4 with 0.0200 +- 0.0100"));
        found.evidence.iter_mut().for_each(|seen| seen.verdict = Verdict::Left);
        assert!(!table(&found).contains("closest"), "a frontier chooses nothing");
        assert_eq!(ragstone_actors::upkeep::calibration::FILE_NAME, "calibration.json", "as the help of --export says");
    }
}
