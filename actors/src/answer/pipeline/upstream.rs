//! The way of a question that an engine elsewhere answers: retrieve, put in order, send, pass on.

use std::sync::{Arc, PoisonError};

use futures::future::try_join_all;
use ragstone_env::Stopwatch;
use ragstone_storage::key::{Fingerprint, KvKey};
use ragstone_storage::prompt::arrange::{Arrangement, Arranging};
use ragstone_storage::segment::{Segment, SegmentKind};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::arranging::{TURNED, permute};
use super::search::{add, free, short_titles};
use super::{Asking, Passage, Pipeline, inline};
use crate::admission::deadline::{deadline_after, remaining};
use crate::admission::tenant::check_tenant;
use crate::admission::turns::Place;
use crate::answer::pipeline::ending;
use crate::answer::stream::{AnswerStream, Opened};
use crate::engine::Decoded;
use crate::error::{Error, ErrorKind, Result};
use crate::question::follow_up::searched;
use crate::question::prompt::Task;
use crate::question::{Context, Input, MAX_ANSWERS, Question};
use crate::report::events::Happened;
use crate::report::nothing_found::{Answered, NothingFound};
use crate::report::{ArrangementReport, EngineReport, RerankReport, ReuseReport, TokenAccount, Ttft};
use crate::upstream::{Answering, Asked, Heard, Prompt, Upstream, UpstreamUsage, body, likely_tokens};

/// Parts of an answer that wait for whoever reads it; then the engine waits.
const AHEAD: usize = 256;
/// What a question is answered from.
#[derive(Default)]
struct Found {
    passages: Vec<Passage>,
    rerank: Option<RerankReport>,
    words_only: bool,
    nothing_found: Option<NothingFound>,
}

/// What is known of a prompt when it is sent.
struct Sent {
    /// Of each passage behind what stands before it.
    keys: Vec<KvKey>,
    tenant: String,
    report: ReuseReport,
}

impl Pipeline {
    /// Answers `question` by `upstream`, as often as it wants. Returns when its first token is there.
    pub(super) async fn answer_upstream(
        &self,
        upstream: &Arc<Upstream>,
        question: Question,
    ) -> Result<Vec<AnswerStream>> {
        let arrived = Stopwatch::start();
        let deadline = deadline_after(question.deadline);
        let admission = Arc::new(self.admit_upstream(&question)?);
        let (meter, found_in) = (self.meter(question.caller), self.store.epoch());
        let asking =
            Asking { question: Arc::new(question), found_in, deadline, constraint: None, task: Task::Answer, meter };
        let mut found = self.find(&asking).instrument(tracing::info_span!("retrieve")).await?;
        let retrieve_ms = arrived.elapsed_ms();
        if let Some(nothing @ NothingFound { answered: Answered::Said, .. }) = found.nothing_found {
            let ttft = Ttft { total_ms: retrieve_ms, retrieve_ms, ..Ttft::default() };
            let (nothing_found, words_only) = (Some(nothing), found.words_only);
            let report = ReuseReport { nothing_found, words_only, ttft, ..ReuseReport::default() };
            return Ok(self.say_nothing_found(&asking, &report, &admission));
        }
        let question = &asking.question;
        let (arrangement, keys) = self.arrange_upstream(upstream, question, &mut found.passages);
        let prompt = self.prompt_upstream(question, &found.passages)?;
        asking.meter.prompt(likely_tokens(prompt.bytes()));

        let sending = Stopwatch::start();
        let asked = (0..question.answers).map(|index| self.send(upstream, &asking, &prompt, index));
        let fuse = tracing::info_span!("engine", model = upstream.served().id);
        let mut answers = try_join_all(asked).instrument(fuse.clone()).await?;
        let first = async {
            match answers.first_mut() {
                Some(answer) => answer.next().await.transpose(),
                None => Ok(None),
            }
        };
        let first = first.instrument(fuse).await?;
        let (compute_ms, total_ms) = (sending.elapsed_ms(), arrived.elapsed_ms());
        metrics::histogram!("ragstone_ttft_seconds").record(total_ms / 1e3);

        let rerank_ms = found.rerank.map_or(0.0, |rerank| rerank.ms);
        let report = ReuseReport {
            arrangement,
            rerank: found.rerank,
            words_only: found.words_only,
            nothing_found: found.nothing_found,
            engine: Some(EngineReport { model: upstream.served().id.clone(), cached_tokens: None }),
            ttft: Ttft { total_ms, retrieve_ms, rerank_ms, compute_ms, ..Ttft::default() },
            ..ReuseReport::default()
        };
        let sent = Arc::new(Sent { keys, tenant: question.tenant.clone(), report });
        let mut first = Some(first);
        let stream = |(index, answering)| {
            let tokens = self.pass_on(upstream, (index, answering), first.take().flatten(), sent.clone());
            AnswerStream::new(
                self.opened(&asking, &found, (sent.report.clone(), tokens), &admission),
                self.assembler.tokenizer().clone(),
            )
        };
        Ok(answers.into_iter().enumerate().map(stream).collect())
    }

    /// Refuses what the model in this process would have to do, where an engine elsewhere answers.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(crate) fn check_own_model(&self) -> Result<()> {
        self.upstream.as_ref().map_or(Ok(()), |upstream| Err(upstream.not_here()))
    }

    /// Checks a question and takes places for its answers. What the engine checks itself is left to it.
    fn admit_upstream(&self, question: &Question) -> Result<Place> {
        check_tenant(&question.tenant)?;
        let refused = |message: &str| Err(Error::new(ErrorKind::InvalidInput, message));
        if !(1..=MAX_ANSWERS).contains(&question.answers) {
            return refused(&format!("{} answers; ask for 1 to {MAX_ANSWERS}", question.answers));
        }
        let sampling = &question.sampling;
        if sampling.prompt_logprobs.is_some() || sampling.beams.is_some() {
            return refused(
                "an engine elsewhere answers here (`engine`), which neither tells of its prompts nor searches by beams: leave `prompt_logprobs`, `echo` and `use_beam_search` out",
            );
        }
        match &question.input {
            Input::Pml { .. } => refused(
                "prompts of modules need the model in this process, and an engine elsewhere answers here: leave `engine` out",
            ),
            Input::Text(_) | Input::Tokens(_) if sampling.logprobs.is_some() => {
                refused("an engine elsewhere answers here (`engine`): log-probabilities come with chats alone")
            }
            Input::Text(text) if text.is_empty() => refused("the prompt is empty; send some text"),
            Input::Chat { messages, context: Some(context), .. } => {
                context.check()?;
                if messages.last().is_some_and(|message| message.role == "user" && message.content.trim().is_empty()) {
                    return refused("the question is empty; ask something");
                }
                if context.rounds.is_some_and(|rounds| rounds > 1) {
                    return refused(
                        "`rounds` need the model in this process, and an engine elsewhere answers here: leave them out",
                    );
                }
                self.admission.take_many(question.caller, question.answers)
            }
            _ => self.admission.take_many(question.caller, question.answers),
        }
    }

    /// The passages that a question is answered from, in the order of their ranks.
    async fn find(&self, asking: &Asking) -> Result<Found> {
        let Input::Chat { messages, context: Some(context), .. } = &asking.question.input else {
            return Ok(Found::default());
        };
        let passages = inline(context, vec![Arc::default(); context.documents.len()]);
        if context.collection.is_none() {
            return Ok(Found { passages, ..Found::default() });
        }
        let query = searched(messages);
        if self.candidates(context).is_some() && self.reranker.is_none() {
            let message = "the language model reranks where no cross-encoder does, and an engine elsewhere answers here: name one with --reranker, \
                           or leave `rerank` out";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let search = self.search_of(asking, context, query.clone());
        let retrieved = self.retriever.ask(search, remaining(asking.deadline)?).await?;
        let nothing_found = self.nothing_found(asking, context, &retrieved, passages.len());
        let words_only = retrieved.words_only;
        let mut found = Found { passages, words_only, nothing_found, rerank: None };
        if matches!(nothing_found, Some(NothingFound { answered: Answered::Said | Answered::WithoutPassages, .. })) {
            return Ok(found);
        }
        let hits = short_titles(retrieved.hits);
        let (hits, rerank) = self.rerank(asking, context, &query, hits).await?;
        found.rerank = rerank;
        add(&mut found.passages, hits, false);
        Ok(found)
    }

    /// Puts passages into the order of which the engine is thought to have most, and gives their keys in it.
    fn arrange_upstream(
        &self,
        upstream: &Upstream,
        question: &Question,
        passages: &mut [Passage],
    ) -> (Option<ArrangementReport>, Vec<KvKey>) {
        let Input::Chat { messages, tools, context: Some(context), .. } = &question.input else {
            return (None, Vec::new());
        };
        let fingerprint =
            Fingerprint(*blake3::hash(format!("{}\n{}", upstream.base(), upstream.served().id).as_bytes()).as_bytes());
        let salt = question.tenant.as_str();
        let system: String = messages
            .iter()
            .take_while(|message| message.role == "system")
            .map(|message| message.content.as_str())
            .collect();
        let root = (SegmentKind::SystemPrompt, format!("{system}\n{}", serde_json::Value::from(tools.clone())));
        let texts = passages.iter().map(|passage| (SegmentKind::Passage, self.written(passage)));
        // Only which text it is counts: an engine's own tokens are not known here.
        let segment = |(kind, text): (SegmentKind, String)| Segment { kind, tokens: digest(&text), place: None };
        let mut segments: Vec<Segment> = [root].into_iter().chain(texts).map(segment).collect();

        let free = free(question, context.documents.len()).min(passages.len());
        let range = 1 + free..segments.len();
        let wants = context.arrange.unwrap_or(self.settings.arrange) && range.len() > 1;
        let report = wants.then(|| {
            let tokens = segments[range.clone()].iter().map(|segment| &*segment.tokens);
            let mut popularity = self.popularity.lock().unwrap_or_else(PoisonError::into_inner);
            let uses = popularity.arrived(&fingerprint, salt, tokens);
            drop(popularity);
            let likely: Vec<f64> =
                passages[free..].iter().map(|passage| likely_tokens(passage.citation.text.len()) as f64).collect();
            let prefixes = upstream.prefixes();
            let mean = likely.iter().sum::<f64>() / likely.len() as f64;
            let turned_ms = TURNED * mean * prefixes.token_ms();
            let saves = |key: &KvKey, passage: usize| prefixes.has(key).then(|| likely[passage] * prefixes.token_ms());
            let arranging = Arranging {
                fingerprint: &fingerprint,
                salt,
                segments: &segments,
                range: range.clone(),
                uses: &uses,
                turned_ms,
            };
            let Arrangement { order, stored, saved_ms, turned, .. } = arranging.best(saves);
            drop(prefixes);
            permute(&mut segments[range], &order);
            permute(&mut passages[free..], &order);
            ArrangementReport { passages: order.len() as u32, stored: stored as u32, saved_ms, turned: turned as u32 }
        });
        let mut parent = None;
        let along = segments.iter().map(|segment| {
            let key = KvKey::derive(&fingerprint, salt, parent.as_ref(), &segment.tokens);
            parent = Some(key);
            key
        });
        // What the system prompt alone begins is no passage's.
        (report, along.skip(1).collect())
    }

    fn written(&self, passage: &Passage) -> String {
        self.settings.prompt.render_passage(&passage.citation.title, &passage.citation.text)
    }

    fn prompt_upstream(&self, question: &Question, passages: &[Passage]) -> Result<Prompt> {
        Ok(match &question.input {
            Input::Chat { messages, tools, context, .. } => {
                let written: Vec<String> = passages.iter().map(|passage| self.written(passage)).collect();
                let passages = context.as_ref().map(|_: &Context| &written[..]);
                Prompt::of_chat(messages, tools, passages, &self.settings.prompt)
            }
            Input::Text(text) => Prompt::Text(text.as_str().into()),
            Input::Tokens(ids) => Prompt::Text(ids.clone().into()),
            Input::Pml { .. } => {
                return Err(Error::new(ErrorKind::Internal, "a prompt of modules came to an engine elsewhere"));
            }
        })
    }

    async fn send(&self, upstream: &Upstream, asking: &Asking, prompt: &Prompt, index: usize) -> Result<Answering> {
        let question = &asking.question;
        let salt = if question.tenant.is_empty() {
            String::new()
        } else {
            blake3::hash(question.tenant.as_bytes()).to_hex()[..16].to_owned()
        };
        let asked = Asked { said: question.said.as_deref(), sampling: &question.sampling, index, salt: &salt };
        let sent = upstream.ask(prompt.endpoint(), &body(prompt, &asked, upstream.served()), asking.deadline).await;
        let outcome = sent.as_ref().map_or_else(|_| "failed", |_| "taken");
        metrics::counter!("ragstone_engine_requests_total", "outcome" => outcome).increment(1);
        sent
    }

    /// Passes on what the engine says, until it ends or nobody reads; the first answer is the one that is accounted for.
    fn pass_on(
        &self,
        upstream: &Arc<Upstream>,
        (index, mut answering): (usize, Answering),
        first: Option<Heard>,
        sent: Arc<Sent>,
    ) -> mpsc::Receiver<Decoded> {
        let (sender, tokens) = mpsc::channel(AHEAD);
        let (upstream, me) = (upstream.clone(), self.me.clone());
        let pump = async move {
            let (mut next, mut usage) = (first.map(Ok), None);
            loop {
                let heard = match next.take() {
                    Some(heard) => Some(heard),
                    None => tokio::select! {
                        heard = answering.next() => heard,
                        () = sender.closed() => return,
                    },
                };
                let decoded = match heard {
                    Some(Ok(Heard::End(reason))) => {
                        if let Some(pipeline) = me.upgrade().filter(|_| index == 0) {
                            pipeline.ended(&upstream, &sent, usage);
                        }
                        Decoded::End(reason)
                    }
                    Some(Ok(heard)) => {
                        if let Heard::Usage(said) = &heard {
                            usage = Some(*said);
                        }
                        Decoded::Elsewhere(heard)
                    }
                    Some(Err(error)) => Decoded::Failed(error),
                    None => return,
                };
                if sender.send(decoded).await.is_err() {
                    return;
                }
            }
        };
        self.runtime.spawn(pump.in_current_span());
        tokens
    }

    /// An answer ended: what it took is remembered, and what the engine has now.
    fn ended(&self, upstream: &Upstream, sent: &Sent, usage: Option<UpstreamUsage>) {
        let cached = usage.and_then(|usage| usage.cached_tokens);
        let mut prefixes = upstream.prefixes();
        prefixes.sent(&sent.keys, cached);
        if let Some(usage) = usage {
            prefixes.took(sent.report.ttft.compute_ms, usage.prompt_tokens - cached.unwrap_or(0));
        }
        drop(prefixes);
        let report = sent.report.clone().with_usage(usage.unwrap_or_default());
        let TokenAccount { exact, computed, .. } = report.tokens;
        metrics::counter!("ragstone_prompt_tokens_total", "source" => "exact").increment(u64::from(exact));
        metrics::counter!("ragstone_prompt_tokens_total", "source" => "computed").increment(u64::from(computed));
        let record = self.plans.remember(self.env.now_unix_ms(), &sent.tenant, &report);
        self.feed.publish(|| Happened::Answer(Arc::new(record)));
    }

    fn opened(
        &self,
        asking: &Asking,
        found: &Found,
        (report, tokens): (ReuseReport, mpsc::Receiver<Decoded>),
        admission: &Arc<Place>,
    ) -> Opened {
        Opened {
            citations: found.passages.iter().map(|passage| passage.citation.clone()).collect(),
            // The engine says it at the end.
            prompt_tokens: 0,
            report,
            note: ending::note(&asking.question, found.nothing_found),
            tokens,
            drafts: Arc::default(),
            prompt: None,
            // It ends by itself what is to end, and has its own control tokens.
            stop: Vec::new(),
            ends_at_repeat: false,
            show_control: false,
            deadline: asking.deadline,
            admission: admission.clone(),
            meter: asking.meter.clone(),
        }
    }
}

impl ReuseReport {
    /// With what an engine elsewhere says that the prompt took.
    pub(crate) fn with_usage(mut self, usage: UpstreamUsage) -> Self {
        let exact = usage.cached_tokens.unwrap_or(0);
        self.tokens =
            TokenAccount { exact, computed: usage.prompt_tokens.saturating_sub(exact), ..TokenAccount::default() };
        if let Some(engine) = &mut self.engine {
            engine.cached_tokens = usage.cached_tokens;
        }
        self
    }
}

/// What stands for a text in keys.
fn digest(text: &str) -> Arc<[u32]> {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
