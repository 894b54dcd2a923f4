//! The way of a question, as one function: retrieve, assemble, look up, plan, fuse, decode.

use std::sync::{Arc, Weak};

use ragstone_kernels::chat::Date;
use ragstone_kernels::grammar::Constraint;
use ragstone_kernels::sampling::{Sampler, SamplingParams};
use ragstone_storage::env::{Env, Stopwatch};
use ragstone_storage::plan::{LoadPlan, PlanOptions, Ratio, ReuseMode};
use ragstone_storage::residency::{Segment, SegmentKind};
use ragstone_storage::store::KvStore;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument;

use crate::assembler::Assembler;
use crate::background::{Background, Precompute};
use crate::calibration::{Blend, Blending, Known};
use crate::caller::Caller;
use crate::engine::{DecodeSpec, Decoded, Engine, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::eviction::{Evictor, Keep};
use crate::plans::Plans;
use crate::prefill::{Rule, Selection};
use crate::question::{Context, InlineDocument, Input, MAX_ANSWERS, Question, Reuse, RootCut, check_tenant};
use crate::report::{Citation, ReuseReport, SegmentReport, Ttft};
use crate::retrieval::{Retriever, Search};
use crate::runner::{Ran, Run, Runner};
use crate::settings::Settings;
use crate::stream::{AnswerStream, Opened, deadline_after, remaining};
use crate::turns::{Place, Places};
use crate::worker::Supervised;

/// A prompt that took more than so many times its own part of the passes shared them with others.
const ALONE: f64 = 1.1;

/// The workers a question passes, and what they share.
pub(crate) struct Pipeline {
    pub settings: Settings,
    /// What is known of the model: how its prompts are blended.
    pub known: Known,
    pub env: Env,
    pub assembler: Assembler,
    pub engine: Engine,
    pub store: KvStore,
    pub admission: Places,
    pub retriever: Supervised<Retriever>,
    pub runner: Runner,
    pub evictor: Supervised<Evictor>,
    pub background: Background,
    pub plans: Plans,
    pub runtime: Handle,
    /// Itself, for what the engine holds.
    pub me: Weak<Pipeline>,
}

/// A passage of the prompt.
struct Passage {
    citation: Citation,
    tokens: Arc<[u32]>,
}

/// What bounds an answer.
struct Limits {
    max_tokens: usize,
    /// The store's epoch when its passages were looked for.
    found_in: u64,
    deadline: Instant,
    /// What its tokens must conform to.
    constraint: Option<Constraint>,
}

/// A prefilled sequence that decodes now.
type Sequence = Ran<Vec<mpsc::Receiver<Decoded>>>;

impl Pipeline {
    /// Answers `question`, as often as it wants. Returns when its first token is there.
    pub(crate) async fn answer(&self, question: Question) -> Result<Vec<AnswerStream>> {
        let arrived = Stopwatch::start();
        let deadline = deadline_after(question.deadline);
        let admission = Arc::new(self.admit(&question)?);
        let question = Arc::new(question);

        let constraint = match &question.sampling.grammar {
            Some(spec) => Some(self.assembler.constraint(spec, question.caller, deadline).await?),
            None => None,
        };
        // Before anything is found: a passage that is invalidated while this runs must not be filed by it.
        let found_in = self.store.epoch();
        let passages = self.retrieve(&question, deadline).instrument(tracing::info_span!("retrieve")).await?;
        let retrieve_ms = arrived.elapsed_ms();

        let assembling = Stopwatch::start();
        let assemble = tracing::info_span!("assemble");
        let segments = self.assemble(&question, &passages, deadline).instrument(assemble).await?;
        let prompt_tokens = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>();
        let max_tokens = question.sampling.max_tokens.min(self.engine.room(prompt_tokens, question.answers)?);
        let assemble_ms = assembling.elapsed_ms();

        let fuse = tracing::info_span!("fuse", prompt_tokens);
        let blend = self.blend(&question);
        let limits = Limits { max_tokens, found_in, deadline, constraint };
        let fused = self.fuse(&question, &segments, &blend, limits);
        let mut sequence = fused.instrument(fuse).await?;
        let total_ms = arrived.elapsed_ms();

        self.keep(&question, &segments, &mut sequence, found_in);
        let ttft = Ttft { total_ms, retrieve_ms, assemble_ms, ..Ttft::default() };
        let report = report(&sequence, blend.blending, ttft);
        record(&report);
        self.plans.remember(self.env.now_unix_ms(), &question.tenant, &report);
        let opened = |tokens| Opened {
            citations: passages.iter().map(|passage| passage.citation.clone()).collect(),
            // No more than the context has.
            prompt_tokens: prompt_tokens as u32,
            report: report.clone(),
            tokens,
            stop: question.sampling.stop.clone(),
            show_control: question.sampling.show_control,
            deadline,
            admission: admission.clone(),
        };
        let stream = |tokens| AnswerStream::new(opened(tokens), self.assembler.tokenizer().clone());
        Ok(sequence.outputs.into_iter().map(stream).collect())
    }

    /// What prompts over passages begin with, unless they bring a system prompt of their own. `None`: nothing.
    pub(crate) fn root(&self) -> Result<Option<Segment>> {
        self.assembler.root(self.today())
    }

    pub(crate) fn today(&self) -> Date {
        Date::from_unix_ms(self.env.now_unix_ms())
    }

    fn admit(&self, question: &Question) -> Result<Place> {
        question.sampling.validate()?;
        check_tenant(&question.tenant)?;
        if !(1..=MAX_ANSWERS).contains(&question.answers) {
            let message = format!("{} answers; ask for 1 to {MAX_ANSWERS}", question.answers);
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let vocabulary = self.engine.vocabulary();
        if let Some((id, _)) = question.sampling.logit_bias.iter().find(|(id, _)| *id as usize >= vocabulary) {
            let message = format!("logit_bias names token {id}; the model's vocabulary has {vocabulary}");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if let Reuse::Ratio(ratio) = question.reuse
            && !(0.0..=1.0).contains(&ratio)
        {
            return Err(Error::new(ErrorKind::InvalidInput, format!("ratio {ratio} must lie between 0.0 and 1.0")));
        }
        if let Input::Chat { messages, context: Some(_), .. } = &question.input
            && messages.last().is_some_and(|message| message.role == "user" && message.content.trim().is_empty())
        {
            return Err(Error::new(ErrorKind::InvalidInput, "the question is empty; ask something"));
        }
        self.assembler.check_size(&question.input)?;
        self.admission.take_many(question.caller, question.answers)
    }

    /// Whether a question of `caller` would be admitted now.
    pub(crate) fn check_room(&self, caller: Caller) -> Result<()> {
        self.admission.check_room(caller)
    }

    /// Passages in prompt order: inline documents first, then what the search found, best first.
    async fn retrieve(&self, question: &Arc<Question>, deadline: Instant) -> Result<Vec<Passage>> {
        let Input::Chat { messages, context: Some(context), .. } = &question.input else { return Ok(Vec::new()) };
        let mut passages = inline(context, self.assembler.passages(question, deadline).await?);
        let Some(collection) = &context.collection else { return Ok(passages) };
        let asked = messages.iter().rev().find(|message| message.role == "user");
        let query = asked.map(|message| message.content.clone()).unwrap_or_default();
        let top_k = context.top_k.unwrap_or(self.settings.top_k);
        if top_k > 1000 {
            return Err(Error::new(ErrorKind::InvalidInput, format!("top_k {top_k} must be at most 1000")));
        }
        let search = Search { collection: collection.clone(), query, top_k, caller: question.caller };
        for hit in self.retriever.ask(search, remaining(deadline)?).await? {
            let citation = Citation {
                number: passages.len() + 1,
                document_id: hit.passage.document_id,
                title: hit.passage.title,
                source: hit.passage.source,
                text: hit.passage.text,
                score: Some(hit.score),
            };
            passages.push(Passage { citation, tokens: hit.passage.token_ids });
        }
        Ok(passages)
    }

    async fn assemble(
        &self,
        question: &Arc<Question>,
        passages: &[Passage],
        deadline: Instant,
    ) -> Result<Arc<[Segment]>> {
        let tokens = passages.iter().map(|passage| passage.tokens.clone()).collect();
        let mut segments = self.assembler.assemble(question, tokens, self.today(), deadline).await?;
        if question.root == RootCut::FirstToken {
            cut_root(&mut segments);
        }
        if segments.iter().all(|segment| segment.tokens.is_empty()) {
            return Err(Error::new(ErrorKind::InvalidInput, "the prompt is empty; send at least one token"));
        }
        Ok(segments.into())
    }

    /// Looks up, plans, loads and prefills. What is invalidated after the epoch `found_in` is not left on the device.
    async fn fuse(
        &self,
        question: &Question,
        segments: &Arc<[Segment]>,
        blend: &Blend,
        limits: Limits,
    ) -> Result<Sequence> {
        let Limits { max_tokens, found_in, deadline, constraint } = limits;
        let run = Run {
            segments: segments.clone(),
            caller: question.caller,
            tenant: question.tenant.as_str().into(),
            options: self.plan_options(question, blend),
            selection: blend.selection,
            found_in,
            urgency: Urgency::Answer,
            deadline,
            explain: question.explain,
        };
        let decode = |plan: &LoadPlan, tokens: &[u32]| {
            // One for each answer: where one cannot be kept, others can.
            let spec = |index| {
                let (spec, output) = self.decode_spec(question, index, tokens, max_tokens);
                let sampler = spec.sampler.constrained(constraint.clone());
                let spec = DecodeSpec { sampler, ..spec };
                (DecodeSpec { file: self.file_text(&run, plan), resume: Some(self.resume(&run, plan)), ..spec }, output)
            };
            (0..question.answers).map(spec).unzip()
        };
        let ran = self.runner.run(&run, decode).await?;
        self.store.record_use(&ran.prefill.plan);
        self.learn(&ran);
        Ok(ran)
    }

    /// What the prompt took corrects what the next one is predicted to. Passes that were shared say nothing of one alone, nor what was not done as planned.
    fn learn(&self, ran: &Sequence) {
        let (prefill, prediction) = (&ran.prefill, ran.prefill.plan.prediction);
        let was_alone = prefill.compute_ms <= prefill.computing_ms * ALONE;
        let as_planned = ran.late_misses == 0;
        if let Some(prediction) = prediction.filter(|_| was_alone && as_planned) {
            self.store.costs().observe_prefill(&prediction, prefill.computing_ms);
        }
    }

    /// How the question's prompt is blended. Whoever measures a choice has it made.
    fn blend(&self, question: &Question) -> Blend {
        let known = self.known.blend();
        match (question.selection, question.reuse) {
            (Some(selection), _) => Blend { selection, blending: Blending::Configured, ..known },
            // Whoever wants some recomputed gets some.
            (None, Reuse::Ratio(ratio)) if ratio > 0.0 && known.selection.rule == Rule::None => {
                Blend { selection: Selection::default(), ..known }
            }
            (None, _) => known,
        }
    }

    fn plan_options(&self, question: &Question, blend: &Blend) -> PlanOptions {
        // More than the floor hides under the loads of an engine that does nothing else; beside others it is their time.
        let is_alone = self.admission.taken() <= question.answers;
        let floor = blend.ratio;
        let least = if is_alone { Ratio::AtLeast(floor) } else { Ratio::Fixed(floor) };
        let (reuse, ratio) = match question.reuse {
            Reuse::Auto => (ReuseMode::Auto, least),
            Reuse::Ratio(ratio) => (ReuseMode::Auto, Ratio::Fixed(ratio)),
            Reuse::Exact => (ReuseMode::ExactOnly, least),
            Reuse::Off => (ReuseMode::Off, least),
        };
        // Rules that take none or all do so at any ratio.
        let ratio = match blend.selection.rule {
            Rule::None => Ratio::Fixed(0.0),
            Rule::All => Ratio::Fixed(1.0),
            _ => ratio,
        };
        let may_blend = blend.blending.blends();
        let reuse = if reuse == ReuseMode::Auto && !may_blend { ReuseMode::ExactOnly } else { reuse };
        let choosing = blend.selection.choosing(self.engine.layers());
        PlanOptions { ratio, choosing, reuse, declines: true }
    }

    /// `max_tokens` is bounded by the context, and so is the channel, which holds a whole answer.
    fn decode_spec(
        &self,
        question: &Question,
        index: usize,
        prompt: &[u32],
        max_tokens: usize,
    ) -> (DecodeSpec, mpsc::Receiver<Decoded>) {
        let sampling = &question.sampling;
        let max_tokens = max_tokens.max(1);
        let (output, tokens) = mpsc::channel(max_tokens.saturating_add(1));
        let own: &[u32] = if sampling.ignore_eos { &[] } else { self.assembler.tokenizer().eos_ids() };
        let end_tokens: Arc<[u32]> = own.iter().chain(&sampling.stop_token_ids).copied().collect();
        // Answers to one question must differ where chance decides.
        let sampling = SamplingParams { seed: sampling.seed.wrapping_add(index as u64), ..sampling.clone() };
        let sampler = Sampler::answering(sampling, prompt, &end_tokens);
        (DecodeSpec { sampler, max_tokens, end_tokens, file: None, resume: None, is_begun: false, output }, tokens)
    }

    /// Hands fresh KV to the eviction worker, and passages that have no entry behind the root to the background.
    fn keep(&self, question: &Question, segments: &[Segment], sequence: &mut Sequence, found_in: u64) {
        let tenant: Arc<str> = question.tenant.as_str().into();
        let fresh = std::mem::take(&mut sequence.prefill.fresh);
        if !fresh.is_empty() {
            let planned_in = sequence.prefill.plan.epoch.min(found_in);
            self.background.keep(&self.evictor, Keep { tenant: tenant.clone(), segments: fresh, planned_in });
        }
        let root = segments.first().filter(|_| sequence.prefill.plan.root_key.is_some()).cloned();
        for index in &sequence.prefill.plan.missing_behind_root {
            let passage = segments[*index].clone();
            self.background.precompute(Precompute { tenant: tenant.clone(), root: root.clone(), passage, found_in });
        }
    }
}

/// The documents that came with a question, and their token ids.
fn inline(context: &Context, tokens: Vec<Arc<[u32]>>) -> Vec<Passage> {
    let passage = |(index, (document, tokens)): (usize, (&InlineDocument, Arc<[u32]>))| {
        let citation = Citation {
            number: index + 1,
            document_id: String::new(),
            title: document.title.clone(),
            source: None,
            text: document.text.clone(),
            score: None,
        };
        Passage { citation, tokens }
    };
    context.documents.iter().zip(tokens).enumerate().map(passage).collect()
}

/// Makes a passage of all but the first token of the root.
fn cut_root(segments: &mut Vec<Segment>) {
    if let Some(root) =
        segments.first_mut().filter(|segment| segment.kind == SegmentKind::Root && segment.tokens.len() > 1)
    {
        let rest = root.tokens[1..].into();
        root.tokens = root.tokens[..1].into();
        segments.insert(1, Segment { kind: SegmentKind::Passage, tokens: rest });
    }
}

fn report(sequence: &Sequence, blending: Blending, times: Ttft) -> ReuseReport {
    let prefill = &sequence.prefill;
    ReuseReport {
        tokens: prefill.account,
        loads: prefill.loads.clone(),
        late_misses: sequence.late_misses,
        blending,
        ratio: sequence.prefill.plan.ratio,
        selection_layer: (sequence.prefill.plan.blended_tokens > 0).then_some(sequence.prefill.plan.choosing.layer),
        predicted: sequence.prefill.plan.prediction,
        without: sequence.without.clone(),
        in_tiers: sequence.prefill.plan.in_tiers.clone(),
        segments: SegmentReport::all(&sequence.prefill.plan),
        ttft: Ttft {
            look_up_ms: sequence.look_up_ms,
            plan_ms: sequence.plan_ms,
            queue_ms: prefill.queue_ms,
            compute_ms: prefill.compute_ms,
            load_wait_ms: prefill.load_wait_ms,
            ..times
        },
    }
}

fn record(report: &ReuseReport) {
    let tokens = report.tokens;
    for (kind, count) in [
        ("exact", tokens.exact),
        ("blended", tokens.blended),
        ("recomputed", tokens.recomputed),
        ("computed", tokens.computed),
    ] {
        metrics::counter!("ragstone_prompt_tokens_total", "source" => kind).increment(u64::from(count));
    }
    for (segment, tier) in report.segments.iter().filter_map(|segment| Some((segment, segment.tier?))) {
        let count = u64::from(segment.tokens);
        metrics::counter!("ragstone_reused_tokens_total", "tier" => tier.name()).increment(count);
    }
    metrics::histogram!("ragstone_ttft_seconds").record(report.ttft.total_ms / 1e3);
    metrics::counter!("ragstone_late_misses_total").increment(u64::from(report.late_misses));
    for load in &report.loads {
        metrics::counter!("ragstone_loaded_bytes_total", "tier" => load.tier.name()).increment(load.bytes);
    }
}

#[cfg(test)]
mod hijack_tests;
#[cfg(test)]
mod tests;
