//! What figures 6 to 8 of the CacheBlend paper show, for the model in use: how far attention is from a full prefill's by what is
//! recomputed, how deviation is distributed over tokens, and whether one layer's says anything of the next one's.

use std::sync::Arc;

use ragstone_kernels::backend::Backend;
use ragstone_kernels::dtype::KvDtype;
use serde::Serialize;

use super::trial::deviation::PromptDeviation;
use super::trial::{Trials, blends};
use super::{Asked, Calibrator, prompts};
use crate::admission::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::models::language_model::LanguageModel;
use crate::prefill::Selection;

/// How far reused KV is from a full prefill's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Deviation {
    /// Prompts that were measured; others have nothing to blend, or do not fit the model's context.
    pub prompts: usize,
    /// Tokens of their blended passages.
    pub tokens: usize,
    /// As KV is stored.
    pub kv_dtype: KvDtype,
    /// Figure 6: by way of blending, in the order asked for.
    pub attention: Vec<AttentionDeviation>,
    /// Figure 7: by layer, percentiles 0 to 100 of tokens' KV deviation, the length (L2) of the difference of K and V.
    pub kv_percentiles: Vec<Vec<f32>>,
    /// Figure 7: by layer, the share of all deviation, in squares, that the tenth of the tokens with the most has; null where nothing
    /// deviates.
    pub top_tenth: Vec<Option<f64>>,
    /// Figure 8: between each layer and the next, Spearman's rank correlation of tokens' KV deviation, the mean over prompts; null
    /// where one of the two does not deviate at all, as the first layer's.
    pub rank_correlation: Vec<Option<f64>>,
}

/// Forward attention (what the tokens behind the passages look at) in one way of blending.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionDeviation {
    /// How tokens are chosen.
    pub selection: Selection,
    /// The share that is recomputed.
    pub ratio: f32,
    /// The length (L2) of its difference to a full prefill's, the mean over layers and prompts.
    pub mean: f64,
    /// The same by layer.
    pub layers: Vec<f64>,
}

impl Calibrator {
    /// Measures each question over its passages, in their order, in memory; `progress` gets the number of prompts done, and of all.
    ///
    /// # Errors
    /// `InvalidInput` where no prompt has anything to blend and fits the model's context; those of the model.
    pub async fn deviation(
        &self,
        questions: &[Asked],
        ways: Vec<(Selection, f32)>,
        progress: impl Fn(usize, usize) + Send + 'static,
    ) -> Result<Deviation> {
        let pipeline = &self.0.pipeline;
        let mut prompts = Vec::with_capacity(questions.len());
        for prompt in prompts::given(questions) {
            match prompt.segments(pipeline).await {
                Ok(segments) => {
                    let tokens: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
                    prompts.extend(Some(segments).filter(|it| tokens <= pipeline.engine.context() && blends(it)));
                }
                Err(error) if error.kind() == ErrorKind::ContextLength => {}
                Err(error) => return Err(error),
            }
        }
        if prompts.is_empty() {
            let message = "no question has two passages and fits the model's context";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let (model, env, count) = (self.0.model.clone(), pipeline.env.clone(), prompts.len());
        let primer = pipeline.known.primer();
        let stopping = self.0.jobs.stopping().clone();
        let is_wanted = Arc::new(move || !stopping.is_cancelled());
        blocking(move || {
            let kv_dtype = model.kv_layout().dtype;
            let measured = match model {
                LanguageModel::Cpu(model) => {
                    let trials = Trials::new(model, env, (prompts, primer), (Vec::new(), 0), is_wanted, 0.0);
                    measure(trials, count, &ways, &progress)?
                }
                LanguageModel::Cuda(model) => {
                    let trials = Trials::new(model, env, (prompts, primer), (Vec::new(), 0), is_wanted, 0.0);
                    measure(trials, count, &ways, &progress)?
                }
            };
            Ok(summarize(&measured, &ways, kv_dtype))
        })
        .await
    }
}

/// Of each prompt in turn.
fn measure<B: Backend>(
    mut trials: Trials<B>,
    count: usize,
    ways: &[(Selection, f32)],
    progress: &impl Fn(usize, usize),
) -> Result<Vec<PromptDeviation>> {
    let of = |prompt| {
        progress(prompt, count);
        trials.deviation(prompt, ways)
    };
    (0..count).map(of).collect()
}

/// Puts prompts together.
fn summarize(prompts: &[PromptDeviation], ways: &[(Selection, f32)], kv_dtype: KvDtype) -> Deviation {
    let layers = prompts.first().map_or(0, |prompt| prompt.kv.len());
    let tokens = |layer: usize| {
        let mut all: Vec<f32> = prompts.iter().flat_map(|prompt| prompt.kv[layer].iter().copied()).collect();
        all.sort_unstable_by(f32::total_cmp);
        all
    };
    let attention = ways.iter().enumerate().map(|(way, (selection, ratio))| {
        let layer = |layer: usize| mean(prompts.iter().map(|prompt| f64::from(prompt.attention[way][layer])));
        let layers: Vec<f64> = (0..layers).map(|at| layer(at).unwrap_or(0.0)).collect();
        let mean = mean(layers.iter().copied()).unwrap_or(0.0);
        AttentionDeviation { selection: *selection, ratio: *ratio, mean, layers }
    });
    let correlation =
        |layer: usize| mean(prompts.iter().filter_map(|prompt| spearman(&prompt.kv[layer], &prompt.kv[layer + 1])));
    Deviation {
        prompts: prompts.len(),
        tokens: prompts.iter().filter_map(|prompt| prompt.kv.first()).map(Vec::len).sum(),
        kv_dtype,
        attention: attention.collect(),
        kv_percentiles: (0..layers).map(|layer| percentiles(&tokens(layer))).collect(),
        top_tenth: (0..layers).map(|layer| top_tenth(&tokens(layer))).collect(),
        rank_correlation: (1..layers).map(|layer| correlation(layer - 1)).collect(),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The value at each percent of ascending ones, the nearest.
fn percentiles(ascending: &[f32]) -> Vec<f32> {
    let at = |percent: usize| ((ascending.len() - 1) * percent + 50) / 100;
    if ascending.is_empty() { Vec::new() } else { (0..=100).map(|percent| ascending[at(percent)]).collect() }
}

fn top_tenth(ascending: &[f32]) -> Option<f64> {
    let squares = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let all = squares(ascending);
    (all > 0.0).then(|| squares(&ascending[ascending.len() - ascending.len().div_ceil(10)..]) / all)
}

/// Spearman's rank correlation: Pearson's of ranks, equal values sharing the mean of theirs; `None` where one side does not vary.
fn spearman(left: &[f32], right: &[f32]) -> Option<f64> {
    let (left, right) = (ranks(left), ranks(right));
    let middle = (left.len() as f64 - 1.0) / 2.0;
    let product = |one: &[f64], two: &[f64]| one.iter().zip(two).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
    let spread = (product(&left, &left) * product(&right, &right)).sqrt();
    (spread > 0.0).then(|| product(&left, &right) / spread)
}

fn ranks(values: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = first as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|at| ranks[*at] = rank);
        first += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefill::Rule;

    #[test]
    fn ranks_and_their_correlation_by_hand() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 900.0]), Some(1.0), "ranks, not values");
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        // scipy.stats.spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
        let rho = spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]).unwrap();
        assert!((rho - 0.820_782_681_668_123_3).abs() < 1e-12, "{rho}");
        assert_eq!((spearman(&[0.0; 4], &[1.0, 2.0, 3.0, 4.0]), spearman(&[], &[])), (None, None));
    }

    #[test]
    fn prompts_are_put_together() {
        let prompt = |kv: &[&[f32]], attention: &[f32]| PromptDeviation {
            kv: kv.iter().map(|layer| layer.to_vec()).collect(),
            attention: vec![attention.to_vec()],
        };
        let one = prompt(&[&[0.0, 0.0], &[1.0, 2.0], &[3.0, 4.0]], &[0.0, 0.5, 1.0]);
        let two = prompt(&[&[0.0, 0.0, 0.0], &[1.0, 2.0, 3.0], &[9.0, 8.0, 7.0]], &[0.0, 1.5, 3.0]);
        let ways = [(Selection::by(Rule::Random), 0.5)];
        let all = summarize(&[one, two], &ways, KvDtype::F32);
        assert_eq!((all.prompts, all.tokens), (2, 5));
        assert_eq!((&all.attention[0].layers[..], all.attention[0].mean), (&[0.0, 1.0, 2.0][..], 1.0));
        assert_eq!(all.rank_correlation, [None, Some(0.0)], "1 and -1");
        assert_eq!((all.kv_percentiles[1][0], all.kv_percentiles[1][50], all.kv_percentiles[1][100]), (1.0, 2.0, 3.0));
        assert_eq!(all.top_tenth, [None, Some(9.0 / 19.0), Some(81.0 / 219.0)]);
    }
}
