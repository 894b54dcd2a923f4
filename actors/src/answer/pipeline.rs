//! The way of a question, as one function: retrieve, assemble, look up, plan, fuse, decode.

mod account;
mod admitting;
mod arranging;
mod blending;
mod ending;
mod judging;
mod keep;
mod modules;
mod reading;
pub(crate) mod rerank;
mod rounds;
mod search;
mod upstream;

use std::sync::{Arc, Mutex, Weak};

use ragstone_env::{Env, Stopwatch};
use ragstone_kernels::chat::Date;
use ragstone_kernels::grammar::Constraint;
use ragstone_kernels::sampling::{Sampler, SamplingParams};
use ragstone_storage::prompt::arrange::Popularity;
use ragstone_storage::prompt::plan::{LoadPlan, Recurring, Why};
use ragstone_storage::segment::{Segment, SegmentKind};
use ragstone_storage::store::KvStore;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use self::account::record_speculation;
use self::arranging::Arranged;
use self::modules::options_of;
use crate::admission::caller::Caller;
use crate::admission::deadline::{deadline_after, deadline_error};
use crate::admission::metering::Meter;
use crate::admission::quotas::Quotas;
use crate::admission::turns::{ComputeTime, Places, Turns};
use crate::answer::assembler::Assembler;
use crate::answer::background::Background;
use crate::answer::blend::{Blend, Known};
use crate::answer::reranking::CrossReranker;
use crate::answer::runner::{Ran, Run, Runner};
use crate::answer::stream::{AnswerStream, Coming, Opened};
use crate::engine::{DecodeSpec, Decoded, DraftCounts, Engine, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::eviction::Evictor;
use crate::question::manner::Manner;
use crate::question::prompt::Task;
use crate::question::{Context, InlineDocument, Input, Question, RootCut};
use crate::report::Blending;
use crate::report::citation::Citation;
use crate::report::events::{Feed, Happened};
use crate::report::nothing_found::NothingFound;
use crate::report::plans::Plans;
use crate::report::{RerankReport, ReuseReport, RoundReport, Ttft};
use crate::retrieval::Retriever;
use crate::settings::Settings;
use crate::speculation::{Hold, Speculation, Times};
use crate::upstream::Upstream;
use crate::worker::Supervised;

/// A prompt that took more than so many times its own part of the passes shared them with others.
const ALONE: f64 = 1.1;

/// The workers a question passes, and what they share.
pub(crate) struct Pipeline {
    pub settings: Settings,
    /// How the model is asked.
    pub manner: Manner,
    /// What is known of the model: how its prompts are blended.
    pub known: Known,
    pub env: Env,
    pub assembler: Assembler,
    /// The engine that answers in the place of this one; `None`: there is no other.
    pub upstream: Option<Arc<Upstream>>,
    pub engine: Engine,
    pub store: KvStore,
    pub admission: Places,
    /// Turns at questions until their first token.
    pub beginning: Turns,
    /// Turns of prompts that ask the language model after a passage.
    pub judging: Turns,
    pub retriever: Supervised<Retriever>,
    /// What puts passages in order where that is asked for; `None`: the language model does.
    pub reranker: Option<CrossReranker>,
    pub runner: Runner,
    pub evictor: Supervised<Evictor>,
    pub background: Background,
    /// Prompts that were blended.
    pub recurring: Mutex<Recurring>,
    /// What prompts over passages have asked for lately.
    pub popularity: Mutex<Popularity>,
    pub plans: Plans,
    /// What tenants may use.
    pub quotas: Quotas,
    /// Where those who watch hear of everything.
    pub feed: Feed,
    /// What searches and prefills take.
    pub times: Times,
    pub runtime: Handle,
    /// Itself, for what the engine holds.
    pub me: Weak<Pipeline>,
}

/// A passage of the prompt.
#[derive(Clone)]
struct Passage {
    citation: Citation,
    tokens: Arc<[u32]>,
}

/// A question under way.
#[derive(Clone)]
struct Asking {
    question: Arc<Question>,
    /// The store's epoch before anything was searched.
    found_in: u64,
    deadline: Instant,
    /// What the answers' tokens must conform to.
    constraint: Option<Arc<Constraint>>,
    task: Task,
    meter: Arc<Meter>,
    /// What its prompts took of the engine's time so far: the answer's, and those of verdicts and of rounds before it.
    computed: ComputeTime,
    /// Whether it is answered only as far as it takes to search again.
    is_round: bool,
}

/// A prompt that was prefilled.
struct Prefilled {
    segments: Arc<[Segment]>,
    prompt_tokens: usize,
    assemble_ms: f64,
    blending: Blending,
    /// The order of its passages, where they could stand in another than retrieval's.
    arranged: Option<Arranged>,
    sequence: Sequence,
}

/// A question's prompt, and how it was found.
struct Found {
    passages: Vec<Passage>,
    prefilled: Prefilled,
    retrieve_ms: f64,
    rerank: Option<RerankReport>,
    words_only: bool,
    nothing_found: Option<NothingFound>,
    speculation: Option<Speculation>,
    rounds: Vec<RoundReport>,
    /// What the prompts of the rounds before the last took.
    earlier: Ttft,
}

/// How far a question came.
enum Reached {
    /// Its prompt is prefilled.
    Prompt(Box<Found>),
    /// The collection has nothing about it, and that is the answer.
    Nothing { nothing_found: Option<NothingFound>, retrieve_ms: f64, words_only: bool },
}

/// A prefilled sequence that decodes now.
type Sequence = Ran<Vec<Output>>;

/// Where an answer comes out, and what came of its drafts.
type Output = (mpsc::Receiver<Decoded>, Arc<DraftCounts>);

impl Pipeline {
    /// Answers `question`, as often as it wants. Returns when its first token is there.
    pub(crate) async fn answer(&self, question: Question) -> Result<Vec<AnswerStream>> {
        if let Some(upstream) = &self.upstream {
            return self.answer_upstream(upstream, question).await;
        }
        let arrived = Stopwatch::start();
        let deadline = deadline_after(question.deadline);
        let admission = Arc::new(self.admit(&question)?);
        let constraint = match &question.sampling.grammar {
            Some(spec) => Some(self.assembler.constraint(spec, question.caller, deadline).await?),
            None => None,
        };
        let turn = timeout_at(deadline, self.beginning.take(question.caller)).await;
        let mut turn = turn.map_err(|_| deadline_error())?;
        // Before anything is found: a passage that is invalidated while this runs must not be filed by it.
        let found_in = match &question.input {
            Input::Pml { found_in: Some(before), .. } => self.store.epoch().min(*before),
            _ => self.store.epoch(),
        };
        let (meter, task) = (self.meter(question.caller), Task::Answer);
        let (question, computed) = (Arc::new(question), turn.counts());
        let asking = Asking { question, found_in, deadline, constraint, task, meter, computed, is_round: false };

        let before = self.search_rounds(&asking, &admission).await?;
        let reached = match before {
            Some(before) => self.answer_rounds(&asking, before).await?,
            None => self.find_and_prefill(&asking).await?,
        };
        let total_ms = arrived.elapsed_ms();
        let found = match reached {
            Reached::Prompt(found) => *found,
            Reached::Nothing { nothing_found, retrieve_ms, words_only } => {
                let ttft = Ttft { total_ms, retrieve_ms, ..Ttft::default() };
                let report = ReuseReport { nothing_found, words_only, ttft, ..ReuseReport::default() };
                return Ok(self.say_nothing_found(&asking, &report, &admission));
            }
        };
        let Found {
            passages,
            mut prefilled,
            retrieve_ms,
            rerank,
            words_only,
            nothing_found,
            speculation,
            rounds,
            earlier,
        } = found;
        drop(turn);

        let rerank_ms = rerank.map_or(0.0, |rerank| rerank.ms);
        let ttft = Ttft { total_ms, retrieve_ms, rerank_ms, ..Ttft::default() };
        let mut account = self.account(&asking, &mut prefilled, ttft);
        account.ttft.add_prompt(&earlier);
        let report = ReuseReport { rerank, words_only, nothing_found, speculation, rounds, ..account };
        metrics::histogram!("ragstone_ttft_seconds").record(total_ms / 1e3);
        report.speculation.iter().for_each(record_speculation);
        let question = &asking.question;
        // Rounds are as long as what was asked; of that plans have the start.
        let plan = ReuseReport { rounds: Vec::new(), ..report.clone() };
        let whose = (&*question.tenant, question.input.start());
        let record = self.plans.remember(self.env.now_unix_ms(), whose, &plan);
        self.feed.publish(|| Happened::Answer(Arc::new(record)));
        let prompt = self.read_prompt(question, &mut prefilled);
        let opened = |(tokens, drafts): Output| Opened {
            citations: passages.iter().map(|passage| passage.citation.clone()).collect(),
            // No more than the context has.
            prompt_tokens: prefilled.prompt_tokens as u32,
            note: ending::note(question, nothing_found),
            drafts,
            prompt: prompt.clone(),
            stop: self.stop_texts(question),
            ends_at_repeat: self.ends_at_repeat(question),
            cites: ending::cites(question),
            show_control: question.sampling.show_control,
            ..asking.opened(Coming::Here(tokens), report.clone(), &admission)
        };
        let stream = |output| AnswerStream::new(opened(output), self.assembler.tokenizer().clone());
        Ok(prefilled.sequence.outputs.into_iter().map(stream).collect())
    }

    /// Assembles the prompt over `passages` and prefills it; the prefill waits at its end where `hold` is not released. Passages from the
    /// `free`th on may stand in another order.
    async fn prefill(
        &self,
        asking: &Asking,
        (passages, free): (&[Passage], usize),
        hold: Option<Hold>,
    ) -> Result<Prefilled> {
        let Asking { question, deadline, task, .. } = asking;
        let assembling = Stopwatch::start();
        let assemble = tracing::info_span!("assemble");
        let mut segments = self.assemble((question, *task), passages, *deadline).instrument(assemble).await?;
        let blend = self.blend(question);
        let arranged = self.arrange(question, &mut segments, free, &blend);
        // What is speculative counts once it is confirmed.
        if hold.is_none() && !asking.is_round {
            self.count_passages(question, &segments);
        }
        let segments: Arc<[Segment]> = segments.into();
        let prompt_tokens = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>();
        let max_tokens = self.most_tokens(question, &segments)?;
        if *task == Task::Answer {
            asking.meter.prompt(prompt_tokens as u64);
        }
        let assemble_ms = assembling.elapsed_ms();

        self.encode_modules(asking, &segments).await?;
        let fuse = tracing::info_span!("fuse", prompt_tokens = prompt_tokens as i64);
        let sequence = self.fuse(asking, &segments, &blend, max_tokens, hold).instrument(fuse).await?;
        Ok(Prefilled { segments, prompt_tokens, assemble_ms, blending: blend.blending, arranged, sequence })
    }

    /// What prompts over passages begin with, unless they bring a system prompt of their own. `None`: nothing.
    pub(crate) fn root(&self) -> Result<Option<Segment>> {
        self.assembler.root(self.today())
    }

    pub(crate) fn today(&self) -> Date {
        Date::from_unix_ms(self.env.now_unix_ms())
    }

    fn meter(&self, caller: Caller) -> Arc<Meter> {
        Arc::new(Meter::new(self.quotas.spent().clone(), caller))
    }

    /// The documents that came with the question, as passages.
    async fn given(&self, asking: &Asking) -> Result<Vec<Passage>> {
        let Asking { question, deadline, .. } = asking;
        match &question.input {
            Input::Chat { context: Some(context), .. } => {
                Ok(inline(context, self.assembler.passages(question, *deadline).await?))
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn assemble(
        &self,
        (question, task): (&Arc<Question>, Task),
        passages: &[Passage],
        deadline: Instant,
    ) -> Result<Vec<Segment>> {
        let tokens = passages.iter().map(|passage| passage.tokens.clone()).collect();
        let mut segments = self.assembler.assemble((question, task), tokens, self.today(), deadline).await?;
        if question.root == RootCut::FirstToken {
            cut_root(&mut segments);
        }
        if segments.iter().all(|segment| segment.tokens.is_empty()) {
            return Err(Error::new(ErrorKind::InvalidInput, "the prompt is empty; send at least one token"));
        }
        Ok(segments)
    }

    /// Looks up, plans, loads and prefills. What is invalidated since the search began is not left on the device.
    async fn fuse(
        &self,
        asking: &Asking,
        segments: &Arc<[Segment]>,
        blend: &Blend,
        max_tokens: usize,
        hold: Option<Hold>,
    ) -> Result<Sequence> {
        let Asking { question, found_in, deadline, constraint, task, computed, .. } = asking;
        let run = Run {
            segments: segments.clone(),
            caller: question.caller,
            tenant: question.tenant.as_str().into(),
            primer: self.known.primer(),
            options: options_of(question, self.plan_options(question, blend), blend.blending, self.known.can_move()),
            selection: blend.selection,
            found_in: *found_in,
            urgency: Urgency::Answer,
            deadline: *deadline,
            explain: question.explain,
            hold,
            computed: computed.clone(),
        };
        let decode = |plan: &LoadPlan, tokens: &[u32]| {
            // One for each answer: where one cannot be kept, others can.
            let spec = |index| {
                let (spec, output) = self.decode_spec(question, index, tokens, max_tokens);
                let sampler = spec.sampler.constrained(constraint.as_deref().cloned());
                let spec = DecodeSpec { sampler, ..spec };
                // What a beam says may turn out not to be the answer, and nobody goes on behind a verdict.
                let is_beam = question.sampling.beams.is_some();
                let file = self.file_text(&run, plan).filter(|_| !is_beam && *task == Task::Answer);
                (DecodeSpec { file, resume: (!is_beam).then(|| self.resume(&run, plan)), ..spec }, output)
            };
            (0..question.answers).map(spec).unzip()
        };
        self.runner.run(&run, decode).await
    }

    /// What the prompt took corrects what the next one is predicted to. Passes that were shared say nothing of one alone, nor what was not
    /// done as planned, nor prompts whose tokens are scored: their chunks are shorter, and each row has logits.
    fn learn(&self, ran: &Sequence) {
        let (prefill, prediction) = (&ran.prefill, ran.prefill.plan.prediction);
        let was_alone = prefill.compute_ms <= prefill.computing_ms * ALONE;
        let lost = prefill.plan.segments.iter().any(|segment| segment.why == Why::LateMiss);
        let as_planned = ran.late_misses == 0 && !lost && prefill.scores.is_empty();
        if let Some(prediction) = prediction.filter(|_| was_alone && as_planned) {
            self.store.costs().observe_prefill(&prediction, prefill.computing_ms);
        }
    }

    /// `max_tokens` is bounded by the context, and so is the channel, which holds a whole answer.
    fn decode_spec(
        &self,
        question: &Question,
        index: usize,
        prompt: &[u32],
        max_tokens: usize,
    ) -> (DecodeSpec, Output) {
        let sampling = &question.sampling;
        let (output, tokens) = mpsc::channel(max_tokens.saturating_add(1));
        let own: &[u32] = if sampling.ignore_eos { &[] } else { self.assembler.tokenizer().eos_ids() };
        let end_tokens: Arc<[u32]> = own.iter().chain(&sampling.stop_token_ids).copied().collect();
        // Answers to one question must differ where chance decides.
        let sampling = SamplingParams { seed: sampling.seed.wrapping_add(index as u64), ..sampling.clone() };
        let sampler = Sampler::answering(sampling, prompt, &end_tokens);
        let lookup = self.settings.lookup(question.drafts);
        let counts = lookup.counts.clone();
        let (file, resume, is_begun) = (None, None, false);
        (DecodeSpec { sampler, max_tokens, end_tokens, lookup, file, resume, is_begun, output }, (tokens, counts))
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
            page: None,
            text: document.text.clone(),
            score: None,
            ..Citation::default()
        };
        Passage { citation, tokens }
    };
    context.documents.iter().zip(tokens).enumerate().map(passage).collect()
}

/// Makes a passage of all but the first token of the root.
fn cut_root(segments: &mut Vec<Segment>) {
    if let Some(root) =
        segments.first_mut().filter(|segment| segment.kind == SegmentKind::SystemPrompt && segment.tokens.len() > 1)
    {
        let rest = root.tokens[1..].into();
        root.tokens = root.tokens[..1].into();
        segments.insert(1, Segment { kind: SegmentKind::Passage, tokens: rest, place: None });
    }
}

#[cfg(test)]
mod arranging_tests;
#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod dropped_tests;
#[cfg(test)]
mod hijack_tests;
#[cfg(test)]
mod learned_tests;
#[cfg(test)]
mod pml_tests;
#[cfg(test)]
mod recurring_tests;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod warm_tests;
