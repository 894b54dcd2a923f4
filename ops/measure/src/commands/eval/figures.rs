//! `ragstone eval --figures`

use std::path::Path;

use ragstone_actors::upkeep::calibration::{Asked, Deviation};
use ragstone_actors::{InlineDocument, Rule, Selection};
use ragstone_service::config::Config;
use ragstone_terminal::progress::{Progress, Unit};
use ragstone_terminal::{output, table};
use serde::Serialize;

use super::{Args, open, plot};
use crate::error::Result;
use crate::eval::chart::deviation;
use crate::eval::dataset;
use crate::eval::variant::{Mode, Variant};

/// What blending is measured by unless something else is asked for.
const RATIOS: [f32; 10] = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0];
const SELECTORS: [Rule; 2] = [Rule::Cacheblend, Rule::Random];

/// What `--json` prints.
#[derive(Serialize)]
struct Figures<'a> {
    model: &'a str,
    #[serde(flatten)]
    measured: &'a Deviation,
}

/// Measures in memory how far reused KV is from a full prefill's.
pub async fn run(config: &Config, args: &Args) -> Result<()> {
    let questions = questions(&args.dataset, args.answers.most())?;
    let variants = Variant::of(&[Mode::Blend], &args.answers.axes(&RATIOS, &SELECTORS)?);
    let way = |variant: &Variant| -> (Selection, f32) {
        // Rules that take none or all do so at any ratio between.
        (variant.selection(args.answers.seed()), variant.ratio.unwrap_or(0.5))
    };
    let ways = variants.iter().map(way).collect();
    let (ragstone, _folder) = open(config).await?;
    let progress = Progress::new("measuring prompts", Unit::Items);
    let show = move |done, total| progress.set(done as u64, total as u64);
    let measured = ragstone.calibrator().deviation(&questions, ways, show).await?;
    let model = ragstone.status().model.id;
    ragstone.close().await?;
    if let Some(path) = &args.plot {
        plot(path, &deviation(&measured, &model))?;
    }
    if args.json {
        return output::json(&Figures { model: &model, measured: &measured });
    }
    table(&measured, &model).iter().try_for_each(|line| output::line(line))
}

/// The first `most` questions.
fn questions(dataset: &Path, most: usize) -> Result<Vec<Asked>> {
    let document = |passage: dataset::Passage| InlineDocument { title: passage.title, text: passage.text };
    let asked = |item: dataset::Item| Asked {
        question: item.question,
        passages: item.passages.into_iter().map(document).collect(),
    };
    Ok(dataset::read(dataset)?.into_iter().take(most).map(asked).collect())
}

fn table(measured: &Deviation, model: &str) -> Vec<String> {
    let dtype = measured.kv_dtype.name();
    let mut lines =
        vec![format!("{} prompts, {} blended tokens, {model}, KV in {dtype}", measured.prompts, measured.tokens)];
    lines.push(String::new());
    lines.push("figure 6: how far forward attention is from a full prefill's (L2)".into());
    let rows = measured.attention.iter().map(|way| {
        let layers: Vec<String> = way.layers.iter().map(|layer| format!("{layer:.3}")).collect();
        vec![way.selection.name(), way.ratio.to_string(), format!("{:.4}", way.mean), layers.join(" ")]
    });
    lines.extend(columns(&["rule", "ratio", "mean", "by layer"], rows.collect()));
    lines.push(String::new());
    lines.push("figure 7: KV deviation of tokens (L2 of K and V) by percentile; the share of all, in squares, of the most deviating tenth".into());
    let mut rows = Vec::new();
    for (layer, (percentiles, top)) in measured.kv_percentiles.iter().zip(&measured.top_tenth).enumerate() {
        let at = |percent: usize| percentiles.get(percent).copied().unwrap_or_default();
        let values = [10, 50, 75, 90, 95, 100].map(|percent| format!("{:.3}", at(percent)));
        let top = top.map_or_else(|| "-".to_owned(), |share| format!("{share:.3}"));
        rows.push([layer.to_string()].into_iter().chain(values).chain([top]).collect());
    }
    lines.extend(columns(&["layer", "p10", "p50", "p75", "p90", "p95", "p100", "top tenth"], rows));
    lines.push(String::new());
    lines.push("figure 8: rank correlation (Spearman) of tokens' KV deviation between a layer and the next".into());
    let rows = measured.rank_correlation.iter().enumerate().map(|(layer, rho)| {
        let rho = rho.map_or_else(|| "-".to_owned(), |rho| format!("{rho:.3}"));
        vec![format!("{layer} to {}", layer + 1), rho]
    });
    lines.extend(columns(&["layers", "rho"], rows.collect()));
    lines
}

fn columns(heads: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    table::table(heads, &rows).lines().map(str::to_owned).collect()
}
