//! What was measured, as charts: quality against time to first token, and the CacheBlend paper's figures 6 to 8.

use std::collections::BTreeMap;

use ragstone_actors::upkeep::calibration::Deviation;

use super::plot::{Axis, Chart, Point, Series};
use super::report::{AnswersReport, ModeReport};

/// Layers whose distributions are drawn: of deeper models every second one, or third.
const MOST_LAYERS: usize = 12;

/// What counts as quality.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Quality {
    /// Overlap of words
    F1,
    /// Longest common subsequence of words, for long answers
    RougeL,
}

/// A point a variant: its quality with the 95 % interval, against TTFT with its tenth and ninetieth percentile. Ratios of one way to
/// choose are joined by a line.
pub fn quality(report: &AnswersReport, quality: Quality) -> Chart {
    let mut modes: Vec<&ModeReport> = report.modes.iter().collect();
    // Lines go from ratio to ratio, whatever order they were asked in.
    modes.sort_by(|a, b| a.variant.ratio.unwrap_or(0.0).total_cmp(&b.variant.ratio.unwrap_or(0.0)));
    let mut series: Vec<Series> = Vec::new();
    for mode in modes {
        let name = mode.variant.name();
        let point = point(mode, quality);
        match series.iter_mut().find(|it| it.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point], line: true, marks: true }),
        }
    }
    let name = match quality {
        Quality::F1 => "F1",
        Quality::RougeL => "Rouge-L",
    };
    Chart {
        title: format!("{name} against time to first token: {}, {} questions", report.model, report.questions),
        x: Axis { label: "time to first token, ms: median, 10th to 90th percentile".into(), least: None },
        y: Axis { label: format!("{name}: mean, 95 % interval"), least: Some((0.0, 1.0)) },
        series,
    }
}

fn point(mode: &ModeReport, quality: Quality) -> Point {
    let (y, y_span) = match quality {
        Quality::F1 => (mode.mean.f1, mode.f1_interval),
        Quality::RougeL => (mode.mean.rouge_l, mode.rouge_l_interval),
    };
    let (ttft, name) = (mode.ttft_ms, mode.variant.name());
    let percent = mode.variant.ratio.map(|ratio| format!("{} %", (f64::from(ratio) * 1000.0).round() / 10.0));
    let [low, high] = y_span.unwrap_or([y; 2]);
    let hover = format!(
        "{name}{}: {y:.3} ({low:.3} .. {high:.3}), {:.1} ms ({:.1} .. {:.1})",
        percent.as_ref().map_or_else(String::new, |percent| format!(" {percent}")),
        ttft.p50,
        ttft.p10,
        ttft.p90
    );
    Point { x: ttft.p50, y, x_span: Some([ttft.p10, ttft.p90]), y_span, label: percent.unwrap_or(name), hover }
}

/// Figures 6, 7 and 8, one below the other.
pub fn deviation(deviation: &Deviation, model: &str) -> Vec<Chart> {
    let axis = |label: &str, least| Axis { label: label.into(), least };
    let count = format!("{model}, {} prompts, {} tokens", deviation.prompts, deviation.tokens);
    let mut ways: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for way in &deviation.attention {
        let percent = f64::from(way.ratio) * 100.0;
        let hover = format!("{} {percent:.0} %: {:.4}", way.selection.name(), way.mean);
        let point = Point { x: percent, y: way.mean, hover, ..Point::default() };
        ways.entry(way.selection.name()).or_default().push(point);
    }
    let attention = ways.into_iter().map(|(name, points)| Series { name, points, line: true, marks: true });
    let every = deviation.kv_percentiles.len().div_ceil(MOST_LAYERS).max(1);
    let layers = deviation.kv_percentiles.iter().enumerate().skip(1).step_by(every);
    let distribution = layers.map(|(layer, percentiles)| {
        // Of a layer's mean, or layers could not be shown together.
        let mean = percentiles.iter().sum::<f32>() / percentiles.len().max(1) as f32;
        let point = |(percent, value): (usize, &f32)| Point {
            x: f64::from(value / mean),
            y: percent as f64 / 100.0,
            ..Point::default()
        };
        let points = percentiles.iter().enumerate().map(point).collect();
        Series { name: format!("layer {layer}"), points, line: true, marks: false }
    });
    let correlation = deviation.rank_correlation.iter().enumerate().filter_map(|(layer, rho)| {
        let hover = format!("layers {layer} and {}: {:.3}", layer + 1, (*rho)?);
        Some(Point {
            x: layer as f64 + 0.5,
            y: (*rho)?,
            label: format!("{layer}-{}", layer + 1),
            hover,
            ..Point::default()
        })
    });
    let last = deviation.kv_percentiles.len().max(2) as f64 - 1.0;
    vec![
        Chart {
            title: format!("Attention deviation by what is recomputed (figure 6): {count}"),
            x: axis("recomputed share of the blended tokens, %", Some((0.0, 0.0))),
            y: axis("L2 of the forward attention's difference, mean over layers", Some((0.0, 0.0))),
            series: attention.collect(),
        },
        Chart {
            title: format!("KV deviation of tokens under plain reuse (figure 7): {count}"),
            x: axis("KV deviation, of the layer's mean", Some((0.0, 0.0))),
            y: axis("share of the tokens up to it", Some((0.0, 1.0))),
            series: distribution.collect(),
        },
        Chart {
            title: format!("Rank correlation of KV deviation between layers (figure 8): {count}"),
            x: axis("between layers", Some((0.0, last))),
            y: axis("Spearman's rank correlation, mean over prompts", Some((0.0, 1.0))),
            series: vec![Series {
                name: "this layer and the next".into(),
                points: correlation.collect(),
                line: true,
                marks: true,
            }],
        },
    ]
}

#[cfg(test)]
mod tests {
    use ragstone_actors::upkeep::calibration::AttentionDeviation;
    use ragstone_actors::{Rule, Selection};
    use ragstone_kernels::dtype::KvDtype;

    use super::super::report::Measured;
    use super::super::report::tests::answered;
    use super::super::variant::{Mode, Variant};
    use super::*;

    #[test]
    fn a_point_a_variant_and_a_line_a_way_to_choose() {
        let at = |ratio| Variant { ratio: Some(ratio), selector: Some(Rule::FirstK), ..Variant::plain(Mode::Blend) };
        let variants = [Variant::plain(Mode::Full), at(0.15), at(0.02)];
        let question = |item: usize| {
            let of = |(variant, (f1, ms)): (&Variant, (f64, f64))| answered(item, *variant, f1, ms);
            variants.iter().zip([(1.0, 30.0), (0.5, 12.0), (0.25, 9.0)]).map(of).collect()
        };
        let questions: Vec<Vec<_>> = (0..4).map(question).collect();
        let report = AnswersReport {
            model: "m".into(),
            questions: 4,
            left_out: Vec::new(),
            seed: 1,
            max_tokens: 8,
            answer_after: None,
            modes: Measured { variants: &variants, questions: &questions, seed: 1 }.modes(),
        };
        let chart = quality(&report, Quality::F1);
        let names: Vec<&str> = chart.series.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["full", "blend first-k"]);
        let labels: Vec<&str> = chart.series[1].points.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels, ["2 %", "15 %"], "smaller first");
        let point = &chart.series[1].points[1];
        assert_eq!((point.x, point.y, point.y_span), (12.0, 0.5, Some([0.5, 0.5])));
        assert_eq!(point.hover, "blend first-k 15 %: 0.500 (0.500 .. 0.500), 12.0 ms (12.0 .. 12.0)");
        assert_eq!(super::quality(&report, Quality::RougeL).series[0].points[0].y, 0.5);
    }

    #[test]
    fn three_figures() {
        let way = |rule, ratio, mean| AttentionDeviation {
            selection: Selection::by(rule),
            ratio,
            mean,
            layers: vec![mean; 3],
        };
        let measured = Deviation {
            prompts: 2,
            tokens: 9,
            kv_dtype: KvDtype::F32,
            attention: vec![
                way(Rule::Cacheblend, 0.0, 0.5),
                way(Rule::Random, 0.0, 0.5),
                way(Rule::Cacheblend, 0.1, 0.1),
            ],
            kv_percentiles: vec![vec![0.0; 101], vec![2.0; 101], vec![3.0; 101]],
            top_tenth: vec![None, Some(0.1), Some(0.1)],
            rank_correlation: vec![None, Some(0.8)],
        };
        let charts = deviation(&measured, "m");
        assert_eq!(charts.len(), 3);
        assert_eq!(charts[0].series.iter().map(|it| it.points.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(charts[1].series.len(), 2, "the first layer does not deviate");
        assert_eq!(charts[1].series[0].points[100].x, 1.0);
        assert_eq!((charts[2].series[0].points.len(), charts[2].series[0].points[0].y), (1, 0.8));
    }
}
