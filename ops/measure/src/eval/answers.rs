//! Measures answers to a data set's questions over their own passages, by where the passages' KV comes from.
//!
//! Every prompt takes the whole way of a question through the running program (assemble, look up, plan, fuse, decode); only
//! retrieval is left out, because a question brings its passages along. Before a mode that loads KV, the prompts that
//! compute it are asked in the same way: the whole prompt for `exact`, the first passage for `prefix`, each passage by itself for
//! the others. The kinds live under tenants of their own, so that none finds another's entries.

use std::time::Duration;

use futures::future::try_join_all;
use ragstone_actors::report::{KvSource, SegmentReport};
use ragstone_actors::{Answer, Caller, Context, InlineDocument, Input, Question, Ragstone, Reuse, RootCut, Selection};
use ragstone_env::Stopwatch;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::segment::SegmentKind;

use super::dataset::Item;
use super::journal::{Asked, Journal};
use super::map::{map_question, reduced, surest};
use super::report::{Answered, AnswersReport, Measured, Tokens};
use super::score::score;
use super::variant::{After, Mode, Variant};
use crate::error::{Error, ErrorKind, Result};

/// Passages one after the other, as the data set has them.
const IN_ORDER: &str = "eval-in-order";
/// Each passage after the system prompt alone.
const ALONE: &str = "eval-alone";
/// A passage that no data set has.
const BETWEEN: &str = "-- ragstone eval --";
/// Each passage after the prompt's first token alone.
const AFTER_BOS: &str = "eval-after-bos";
/// Passages that are asked about at a time.
const MAPPED_TOGETHER: usize = 8;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    pub variants: Vec<Variant>,
    /// Of the random choice, and of the intervals.
    pub seed: u64,
    /// The longest answer.
    pub max_tokens: usize,
    /// Score only what follows this in an answer.
    pub answer_after: Option<String>,
    /// What `map-reduce` asks of each passage.
    pub map_prompt: String,
}

/// How far it is.
#[derive(Debug)]
pub enum Step<'a> {
    /// Of the answers that the journal did not have, so many are there.
    Asked { done: usize, total: usize },
    /// A question has all its answers, one a variant.
    Answered(&'a [Answered]),
}

/// Answers `items` (with their places in the data set) in every variant, one prompt at a time (of `map-reduce` and `map-rerank` those of
/// a few passages), greedily. What `journal` has is not asked again, what is asked goes into it.
///
/// # Errors
/// Those of the first question that could not be answered, with its place. A question that is too long for the model is
/// left out of all variants and reported instead, unless every one is.
pub async fn answers(
    ragstone: &Ragstone,
    items: &[(usize, Item)],
    options: &Options,
    journal: &mut Journal,
    each: &mut (dyn FnMut(Step<'_>) -> Result<()> + Send),
) -> Result<AnswersReport> {
    let model = ragstone.status().model;
    let asker = Asker { ragstone, options, context: model.context };
    let (mut questions, mut left_out) = (Vec::with_capacity(items.len()), Vec::new());
    let mut tally = Tally::new(items, options, journal);
    for (place, item) in items {
        match asker.item(*place, item, journal, &mut tally, each).await {
            Ok(answered) => {
                each(Step::Answered(&answered))?;
                questions.push(answered);
            }
            Err(error) if error.kind() == ErrorKind::ContextLength => {
                tracing::info!(item = place, %error, "question left out");
                if journal.left_out(*place).is_none() {
                    journal.leave_out(*place, &error.to_string())?;
                }
                left_out.push((*place, error));
            }
            Err(error) => return Err(Error::new(error.kind(), format!("item {place}: {error}"))),
        }
    }
    if let (true, Some((_, error))) = (questions.is_empty(), left_out.first()) {
        return Err(Error::new(error.kind(), format!("no question fits the model; the first: {error}")));
    }
    Ok(AnswersReport {
        model: model.id,
        questions: questions.len(),
        left_out: left_out.into_iter().map(|(place, _)| place).collect(),
        seed: options.seed,
        max_tokens: options.max_tokens,
        answer_after: options.answer_after.clone(),
        modes: Measured { variants: &options.variants, questions: &questions, seed: options.seed }.modes(),
    })
}

/// Answers that are still to be asked for.
struct Tally {
    done: usize,
    total: usize,
}

impl Tally {
    fn new(items: &[(usize, Item)], options: &Options, journal: &Journal) -> Self {
        let is_left = |place: usize, variant: &Variant| {
            journal.left_out(place).is_none() && journal.asked(place, *variant).is_none()
        };
        let of_item = |(place, _): &(usize, Item)| options.variants.iter().filter(|it| is_left(*place, it)).count();
        Self { done: 0, total: items.iter().map(of_item).sum() }
    }
}

struct Asker<'a> {
    ragstone: &'a Ragstone,
    options: &'a Options,
    /// Tokens of the model's context.
    context: usize,
}

/// How a prompt's KV is come by.
#[derive(Clone)]
struct Way {
    reuse: Reuse,
    selection: Selection,
    root: RootCut,
    tenant: String,
}

impl Way {
    fn new(reuse: Reuse, tenant: impl Into<String>) -> Self {
        Self { reuse, selection: Selection::default(), root: RootCut::Whole, tenant: tenant.into() }
    }

    /// Computes what is missing and keeps it.
    fn storing(root: RootCut, tenant: impl Into<String>) -> Self {
        Self { root, ..Self::new(Reuse::Exact, tenant) }
    }
}

/// What a variant answered, by however many prompts.
struct Given {
    answer: String,
    ttft_ms: f64,
    tokens: Tokens,
}

impl From<Answer> for Given {
    fn from(answer: Answer) -> Self {
        let report = answer.finish.report;
        Self { answer: answer.text, ttft_ms: report.ttft.total_ms, tokens: report.tokens.into() }
    }
}

impl Asker<'_> {
    /// One question in every variant. Each question begins with the next one, so that none always comes after the same other.
    async fn item(
        &self,
        place: usize,
        item: &Item,
        journal: &mut Journal,
        tally: &mut Tally,
        each: &mut (dyn FnMut(Step<'_>) -> Result<()> + Send),
    ) -> Result<Vec<Answered>> {
        if let Some(why) = journal.left_out(place) {
            return Err(Error::new(ErrorKind::ContextLength, why));
        }
        let variants = &self.options.variants;
        for index in (0..variants.len()).map(|at| (at + place) % variants.len()) {
            let variant = variants[index];
            if journal.asked(place, variant).is_some() {
                continue;
            }
            let Given { answer, ttft_ms, tokens } = self.measure(variant, place, item).await?;
            // To the microsecond: what is read again is then what was written.
            let ttft_ms = (ttft_ms * 1e3).round() / 1e3;
            journal.note(Asked { item: place, variant, answer: answer.trim().to_owned(), ttft_ms, tokens })?;
            tally.done += 1;
            each(Step::Asked { done: tally.done, total: tally.total })?;
        }
        let asked = variants.iter().filter_map(|variant| journal.asked(place, *variant));
        Ok(asked.map(|asked| self.scored(item, asked)).collect())
    }

    fn scored(&self, item: &Item, asked: &Asked) -> Answered {
        let score = score(&asked.answer, &item.answers, self.options.answer_after.as_deref());
        Answered {
            item: asked.item,
            kind: item.kind.clone(),
            question: item.question.clone(),
            gold: item.answers.clone(),
            variant: asked.variant,
            answer: asked.answer.clone(),
            f1: score.f1,
            em: score.exact_match,
            rouge_l: score.rouge_l,
            ttft_ms: asked.ttft_ms,
            tokens: asked.tokens,
        }
    }

    async fn measure(&self, variant: Variant, place: usize, item: &Item) -> Result<Given> {
        let documents: Vec<InlineDocument> = item
            .passages
            .iter()
            .map(|passage| InlineDocument { title: passage.title.clone(), text: passage.text.clone() })
            .collect();
        let way = self.way(variant, place);
        self.prepare(variant, &item.question, &documents, &way).await?;
        match variant.mode {
            Mode::MapReduce => self.map_reduce(&item.question, &documents, &way).await,
            Mode::MapRerank => self.map_rerank(&item.question, &documents, &way).await,
            mode => {
                let documents = if mode == Mode::NoPassages { &[][..] } else { &documents };
                let answer = self.ask(&item.question, documents, &way, self.options.max_tokens).await?;
                check_source(variant, &answer.finish.report.segments)?;
                Ok(answer.into())
            }
        }
    }

    /// Its first token comes when all passages were asked about and the question over what was said is prefilled.
    async fn map_reduce(&self, question: &str, documents: &[InlineDocument], way: &Way) -> Result<Given> {
        let begun = Stopwatch::start();
        let said = self.map(&map_question(&self.options.map_prompt, question), documents, way).await?;
        let mapped_ms = begun.elapsed_ms();
        let answer = self.ask(question, &reduced(documents, &said), way, self.options.max_tokens).await?;
        let reduced = Given::from(answer);
        let tokens = said.iter().map(|it| Tokens::from(it.finish.report.tokens)).chain([reduced.tokens]).sum();
        Ok(Given { ttft_ms: mapped_ms + reduced.ttft_ms, tokens, ..reduced })
    }

    /// Which answer is given, and so its first token, is known when all of them have ended.
    async fn map_rerank(&self, question: &str, documents: &[InlineDocument], way: &Way) -> Result<Given> {
        let begun = Stopwatch::start();
        let said = self.map(question, documents, way).await?;
        let surest = surest(&said).ok_or_else(|| Error::internal("a question without passages"))?;
        let ttft_ms = begun.elapsed_ms();
        let tokens = said.iter().map(|it| Tokens::from(it.finish.report.tokens)).sum();
        Ok(Given { answer: said[surest].text.clone(), ttft_ms, tokens })
    }

    /// Asks about each passage alone, a few at a time. KV of a passage directly after the system prompt is exact.
    async fn map(&self, question: &str, documents: &[InlineDocument], way: &Way) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(documents.len());
        for together in documents.chunks(MAPPED_TOGETHER) {
            let asked = together.iter().map(async |document| {
                let answer = self.ask(question, std::slice::from_ref(document), way, self.options.max_tokens).await?;
                check_source(Variant::plain(Mode::MapRerank), &answer.finish.report.segments)?;
                Ok::<_, Error>(answer)
            });
            answers.extend(try_join_all(asked).await?);
        }
        Ok(answers)
    }

    fn way(&self, variant: Variant, place: usize) -> Way {
        let (root, alone) = Self::alone(variant);
        let (reuse, tenant) = match variant.mode {
            Mode::NoPassages | Mode::Full => (Reuse::Off, IN_ORDER.to_owned()),
            Mode::Exact => (Reuse::Exact, IN_ORDER.to_owned()),
            // Each question's own: what it computes is kept, and another question over the same passages would find it.
            Mode::Prefix => (Reuse::Exact, format!("eval-prefix-{place}")),
            Mode::Reuse => (Reuse::Ratio(0.0), alone.to_owned()),
            // Rules that take none or all do so at any ratio between.
            Mode::Blend => (Reuse::Ratio(variant.ratio.unwrap_or(0.5)), alone.to_owned()),
            Mode::MapReduce | Mode::MapRerank => (Reuse::Exact, alone.to_owned()),
        };
        // Each question draws its own tokens, whatever other questions are measured.
        let selection = variant.selection(self.options.seed.rotate_left(32) ^ place as u64);
        Way { selection, root, ..Way::new(reuse, tenant) }
    }

    /// Where passages that were computed without each other are kept.
    fn alone(variant: Variant) -> (RootCut, &'static str) {
        match variant.after {
            Some(After::Bos) => (RootCut::FirstToken, AFTER_BOS),
            Some(After::SystemPrompt) | None => (RootCut::Whole, ALONE),
        }
    }

    /// Stores what the variant loads. What is there already is not computed again.
    async fn prepare(&self, variant: Variant, question: &str, documents: &[InlineDocument], way: &Way) -> Result<()> {
        let storing = Way::storing(way.root, way.tenant.as_str());
        match variant.mode {
            Mode::NoPassages | Mode::Full => {}
            Mode::Exact => self.store(question, documents, &storing).await?,
            Mode::Prefix => self.store(question, &documents[..1], &storing).await?,
            Mode::Reuse | Mode::Blend | Mode::MapReduce | Mode::MapRerank => {
                // In the first place it is computed exactly; in the background also for later ones.
                let storing = Way { reuse: Reuse::Auto, ..storing };
                for document in documents {
                    // With a cut root what is left of the system prompt comes first, and no document may be stored after it
                    // as it will stand: another passage comes between them.
                    let between = InlineDocument { title: String::new(), text: BETWEEN.into() };
                    let prompt = [between, document.clone()];
                    let prompt = if way.root == RootCut::Whole { &prompt[1..] } else { &prompt };
                    self.store(question, prompt, &storing).await?;
                }
            }
        }
        Ok(())
    }

    async fn store(&self, question: &str, documents: &[InlineDocument], way: &Way) -> Result<()> {
        self.ask(question, documents, way, 1).await?;
        self.ragstone.settle().await;
        Ok(())
    }

    async fn ask(&self, question: &str, documents: &[InlineDocument], way: &Way, max_tokens: usize) -> Result<Answer> {
        let message = ChatMessage::new("user", question);
        let context = Context { documents: documents.to_vec(), ..Context::default() };
        let question = Question {
            input: Input::Chat { messages: vec![message], tools: Vec::new(), thinks: None, context: Some(context) },
            sampling: SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() },
            answers: 1,
            reuse: way.reuse,
            ends_at_repeat: false,
            cites: false,
            drafts: None,
            explain: false,
            selection: Some(way.selection),
            root: way.root,
            said: None,
            tenant: way.tenant.clone(),
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
        answer.collect().await
    }
}

/// An answer whose passages were quietly computed would be measured as something that it is not.
fn check_source(variant: Variant, segments: &[SegmentReport]) -> Result<()> {
    let mode = variant.mode;
    let passages = || segments.iter().filter(|it| it.kind == SegmentKind::Passage && it.tokens > 0);
    let as_wanted = match (mode, variant.after) {
        (Mode::NoPassages, _) => passages().next().is_none(),
        (Mode::Full, _) => passages().all(|it| it.source == KvSource::Compute),
        (Mode::Exact | Mode::MapReduce | Mode::MapRerank, _) => passages().all(|it| it.source == KvSource::Exact),
        (Mode::Prefix, _) => {
            let is_right = |(at, it): (usize, &SegmentReport)| {
                it.source == if at == 0 { KvSource::Exact } else { KvSource::Compute }
            };
            passages().enumerate().all(is_right)
        }
        // The first one is the rest of the system prompt.
        (_, Some(After::Bos)) => passages().skip(1).all(|it| it.source == KvSource::Blend),
        (Mode::Reuse | Mode::Blend, _) => passages().all(|it| it.source != KvSource::Compute),
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
    use ragstone_storage::prompt::plan::Why;

    use super::*;

    #[test]
    fn an_answer_from_elsewhere_is_not_measured() {
        use KvSource::{Blend, Compute, Exact};
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
        let prompt = |sources: &[KvSource]| {
            let mut segments = vec![segment(SegmentKind::SystemPrompt, 3, Compute)];
            segments.extend(sources.iter().map(|source| segment(SegmentKind::Passage, 5, *source)));
            segments.push(segment(SegmentKind::Passage, 0, Compute));
            segments.push(segment(SegmentKind::Question, 4, Compute));
            segments
        };
        let bos = Some(After::Bos);
        for (mode, after, sources, right) in [
            (Mode::Full, None, &[Compute, Compute][..], true),
            (Mode::Full, None, &[Exact, Compute], false),
            (Mode::NoPassages, None, &[], true),
            (Mode::Exact, None, &[Exact, Exact], true),
            (Mode::Exact, None, &[Exact, Compute], false),
            (Mode::Exact, None, &[Exact, Blend], false),
            (Mode::Prefix, None, &[Exact, Compute, Compute], true),
            (Mode::Prefix, None, &[Exact, Exact], false),
            (Mode::Prefix, None, &[Compute, Compute], false),
            (Mode::Reuse, None, &[Exact, Blend], true),
            (Mode::Blend, None, &[Exact, Compute], false),
            (Mode::Blend, bos, &[Exact, Blend, Blend], true),
            (Mode::Blend, bos, &[Exact, Exact, Blend], false),
        ] {
            let variant = Variant { after, ..Variant::plain(mode) };
            assert_eq!(check_source(variant, &prompt(sources)).is_ok(), right, "{mode:?} {sources:?}");
        }
    }
}
