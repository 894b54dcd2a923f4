//! Measures answers to a data set's questions over their own passages, by where the passages' KV comes from.
//!
//! Every prompt takes the whole way of a question through the running program (assemble, look up, plan, fuse, decode); only
//! retrieval is left out, because a question brings its passages along. Before a mode that loads KV, the prompts that
//! compute it are asked in the same way: the whole prompt for `exact`, each passage by itself for the others. The kinds
//! live under tenants of their own, so that none finds another's entries.

use std::time::Duration;

use ragstone_actors::report::SegmentReport;
use ragstone_actors::{Answer, Caller, Context, InlineDocument, Input, Question, Ragstone, Reuse, RootCut, Selection};
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::residency::SegmentKind;

use super::dataset::Item;
use super::report::{Answered, AnswersReport, Behind, Mode, ModeReport, Variant};
use super::score::score;
use crate::error::{Error, ErrorKind, Result};

/// Passages behind each other, as the data set has them.
const IN_ORDER: &str = "eval-in-order";
/// Each passage behind the system prompt alone.
const ALONE: &str = "eval-alone";
/// A passage that no data set has.
const BETWEEN: &str = "-- ragstone eval --";
/// Each passage behind the prompt's first token alone.
const BEHIND_BOS: &str = "eval-behind-bos";

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    pub variants: Vec<Variant>,
    /// Of the random choice.
    pub seed: u64,
    /// The longest answer.
    pub max_tokens: usize,
    /// Score only what follows this in an answer.
    pub answer_after: Option<String>,
}

/// Answers `items` (with their places in the data set) in every variant, one prompt at a time, greedily. `each` gets the
/// answers to one question after the other.
///
/// # Errors
/// Those of the first question that could not be answered, with its place. A question that is too long for the model is
/// left out of all variants and reported instead, unless every one is.
pub async fn answers(
    ragstone: &Ragstone,
    items: &[(usize, Item)],
    options: &Options,
    each: &mut (dyn FnMut(&[Answered]) -> Result<()> + Send),
) -> Result<AnswersReport> {
    let model = ragstone.status().model;
    let mut report = AnswersReport {
        model: model.id,
        questions: 0,
        left_out: Vec::new(),
        seed: options.seed,
        max_tokens: options.max_tokens,
        answer_after: options.answer_after.clone(),
        modes: options.variants.iter().map(|variant| ModeReport::new(*variant)).collect(),
    };
    let asker = Asker { ragstone, options, context: model.context };
    let mut too_long = None;
    for (place, item) in items {
        let answered = match asker.item(*place, item).await {
            Ok(answered) => answered,
            Err(error) if error.kind() == ErrorKind::ContextLength => {
                tracing::info!(item = place, %error, "question left out");
                report.left_out.push(*place);
                too_long.get_or_insert(error);
                Vec::new()
            }
            Err(error) => return Err(Error::new(error.kind(), format!("item {place}: {error}"))),
        };
        report.questions += usize::from(!answered.is_empty());
        let full = answered.iter().find(|it| it.variant.mode == Mode::Full).map(|it| it.answer.as_str());
        for (mode, answered) in report.modes.iter_mut().zip(&answered) {
            mode.add(answered, full);
        }
        each(&answered)?;
    }
    match too_long {
        Some(error) if report.questions == 0 => {
            Err(Error::new(error.kind(), format!("no question fits the model; the first: {error}")))
        }
        _ => Ok(report),
    }
}

struct Asker<'a> {
    ragstone: &'a Ragstone,
    options: &'a Options,
    /// Tokens of the model's context.
    context: usize,
}

/// How a prompt's KV is come by.
#[derive(Clone, Copy)]
struct Way {
    reuse: Reuse,
    selection: Selection,
    root: RootCut,
    tenant: &'static str,
}

impl Way {
    /// Computes what is missing and keeps it; with a cut root also what the passage is behind that alone, in the background.
    fn storing(root: RootCut, tenant: &'static str) -> Self {
        let reuse = if root == RootCut::Whole { Reuse::Exact } else { Reuse::Auto };
        Self { reuse, selection: Selection::default(), root, tenant }
    }
}

impl Asker<'_> {
    /// One question in every variant.
    async fn item(&self, place: usize, item: &Item) -> Result<Vec<Answered>> {
        let documents: Vec<InlineDocument> = item
            .passages
            .iter()
            .map(|passage| InlineDocument { title: passage.title.clone(), text: passage.text.clone() })
            .collect();
        let mut answered = Vec::with_capacity(self.options.variants.len());
        for variant in &self.options.variants {
            let way = self.way(*variant, place);
            self.prepare(*variant, &item.question, &documents).await?;
            let documents = if variant.mode == Mode::NoPassages { &[][..] } else { &documents };
            let answer = self.ask(&item.question, documents, way, self.options.max_tokens).await?;
            check_source(*variant, &answer.finish.report.segments)?;
            let text = answer.text.trim();
            let score = score(text, &item.answers, self.options.answer_after.as_deref());
            answered.push(Answered {
                item: place,
                kind: item.kind.clone(),
                question: item.question.clone(),
                gold: item.answers.clone(),
                variant: *variant,
                answer: text.to_owned(),
                f1: score.f1,
                em: score.exact_match,
                tokens: answer.finish.report.tokens,
            });
        }
        Ok(answered)
    }

    fn way(&self, variant: Variant, place: usize) -> Way {
        let (root, alone) = Self::alone(variant);
        let (reuse, tenant) = match variant.mode {
            Mode::NoPassages | Mode::Full => (Reuse::Off, IN_ORDER),
            Mode::Exact => (Reuse::Exact, IN_ORDER),
            Mode::Reuse => (Reuse::Ratio(0.0), alone),
            // Rules that take none or all do so at any ratio between.
            Mode::Blend => (Reuse::Ratio(variant.ratio.unwrap_or(0.5)), alone),
        };
        // Each question draws its own tokens, whatever other questions are measured.
        let selection = variant.selection(self.options.seed.rotate_left(32) ^ place as u64);
        Way { reuse, selection, root, tenant }
    }

    /// Where passages that were computed without each other are kept.
    fn alone(variant: Variant) -> (RootCut, &'static str) {
        match variant.behind {
            Some(Behind::Bos) => (RootCut::FirstToken, BEHIND_BOS),
            Some(Behind::Root) | None => (RootCut::Whole, ALONE),
        }
    }

    /// Stores what the variant loads. What is there already is not computed again.
    async fn prepare(&self, variant: Variant, question: &str, documents: &[InlineDocument]) -> Result<()> {
        match variant.mode {
            Mode::NoPassages | Mode::Full => {}
            Mode::Exact => self.store(question, documents, Way::storing(RootCut::Whole, IN_ORDER)).await?,
            Mode::Reuse | Mode::Blend => {
                let (root, tenant) = Self::alone(variant);
                for document in documents {
                    // With a cut root what is left of the system prompt comes first, and no document may be stored behind it
                    // as it will stand: another passage comes between them.
                    let between = InlineDocument { title: String::new(), text: BETWEEN.into() };
                    let prompt = [between, document.clone()];
                    let prompt = if root == RootCut::Whole { &prompt[1..] } else { &prompt };
                    self.store(question, prompt, Way::storing(root, tenant)).await?;
                }
            }
        }
        Ok(())
    }

    async fn store(&self, question: &str, documents: &[InlineDocument], way: Way) -> Result<()> {
        self.ask(question, documents, way, 1).await?;
        self.ragstone.settle().await;
        Ok(())
    }

    async fn ask(&self, question: &str, documents: &[InlineDocument], way: Way, max_tokens: usize) -> Result<Answer> {
        let message = ChatMessage { role: "user".into(), content: question.to_owned() };
        let context = Context { documents: documents.to_vec(), ..Context::default() };
        let question = Question {
            input: Input::Chat { messages: vec![message], context: Some(context) },
            sampling: SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() },
            answers: 1,
            reuse: way.reuse,
            explain: false,
            selection: Some(way.selection),
            root: way.root,
            tenant: way.tenant.into(),
            caller: Caller::default(),
            deadline: Duration::from_secs(self.ragstone.settings().deadline_s),
        };
        let answer = self.ragstone.answer(question).await?;
        // The service cuts an answer to what the context leaves; measured, it would be another one than in other modes.
        let wanted = max_tokens.saturating_add(answer.prompt_tokens as usize);
        if wanted > self.context {
            let message = format!("prompt and answer want {wanted} tokens, the model's context is {}", self.context);
            return Err(Error::new(ErrorKind::ContextLength, message));
        }
        Ok(answer.collect().await?)
    }
}

/// An answer whose passages were quietly computed would be measured as something that it is not.
fn check_source(variant: Variant, segments: &[SegmentReport]) -> Result<()> {
    let mode = variant.mode;
    let passages = || segments.iter().filter(|it| it.kind == SegmentKind::Passage && it.tokens > 0);
    let as_wanted = match (mode, variant.behind) {
        (Mode::NoPassages, _) => passages().next().is_none(),
        (Mode::Full, _) => passages().all(|it| it.source == "compute"),
        (Mode::Exact, _) => passages().all(|it| it.source == "exact"),
        // The first one is the rest of the system prompt.
        (_, Some(Behind::Bos)) => passages().skip(1).all(|it| it.source == "blend"),
        (Mode::Reuse | Mode::Blend, _) => passages().all(|it| it.source != "compute"),
    };
    if as_wanted {
        return Ok(());
    }
    let message = format!(
        "mode {}: the passages' KV did not stay in the store until it was used; raise host_bytes (see --set)",
        mode.name()
    );
    Err(Error::new(ErrorKind::Full, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragstone_storage::plan::Why;

    #[test]
    fn an_answer_from_elsewhere_is_not_measured() {
        let segment = |kind, tokens, source| SegmentReport {
            kind,
            tokens,
            source,
            tier: None,
            why: Why::NotStored,
            tiers: Vec::new(),
            bytes: 0,
            predicted: None,
        };
        let prompt = |sources: &[&'static str]| {
            let mut segments = vec![segment(SegmentKind::Root, 3, "compute")];
            segments.extend(sources.iter().map(|source| segment(SegmentKind::Passage, 5, source)));
            segments.push(segment(SegmentKind::Passage, 0, "compute"));
            segments.push(segment(SegmentKind::Question, 4, "compute"));
            segments
        };
        let bos = Some(Behind::Bos);
        for (mode, behind, sources, right) in [
            (Mode::Full, None, &["compute", "compute"][..], true),
            (Mode::Full, None, &["exact", "compute"], false),
            (Mode::NoPassages, None, &[], true),
            (Mode::Exact, None, &["exact", "exact"], true),
            (Mode::Exact, None, &["exact", "compute"], false),
            (Mode::Exact, None, &["exact", "blend"], false),
            (Mode::Reuse, None, &["exact", "blend"], true),
            (Mode::Blend, None, &["exact", "compute"], false),
            (Mode::Blend, bos, &["exact", "blend", "blend"], true),
            (Mode::Blend, bos, &["exact", "exact", "blend"], false),
        ] {
            let variant = Variant { mode, ratio: None, selector: None, choice: None, layer: None, behind };
            assert_eq!(check_source(variant, &prompt(sources)).is_ok(), right, "{mode:?} {sources:?}");
        }
    }
}
