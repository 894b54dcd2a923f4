//! The way of a question that an engine elsewhere answers: retrieve, put in order, choose the engine, send, pass on.

mod standing;

use std::sync::{Arc, PoisonError};

use futures::future::try_join_all;
use ragstone_env::Stopwatch;
use tokio::sync::mpsc;
use tracing::Instrument;

use self::standing::{Standing, Texts};
use super::arranging::permute;
use super::search::{add, free, short_titles};
use super::{Asking, Passage, Pipeline, inline};
use crate::admission::deadline::{deadline_after, remaining};
use crate::admission::tenant::check_tenant;
use crate::admission::turns::{ComputeTime, Place};
use crate::answer::pipeline::ending;
use crate::answer::stream::{AnswerStream, Coming, Opened};
use crate::error::{Error, ErrorKind, Result};
use crate::question::follow_up::searched;
use crate::question::prompt::Task;
use crate::question::{Context, Input, MAX_ANSWERS, Question};
use crate::report::events::Happened;
use crate::report::nothing_found::{Answered, NothingFound};
use crate::report::{EngineReport, RerankReport, ReuseReport, TokenAccount, Ttft};
use crate::upstream::{
    Answering, Asked, Heard, Look, Node, Prompt, Upstream, UpstreamUsage, body, in_order, likely_tokens,
};

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

/// A prompt that an engine has taken, and how its answers begin.
struct Begun {
    /// Which engine it is.
    node: usize,
    standing: Standing,
    passages: Vec<Passage>,
    answers: Vec<Answering>,
    first: Option<Heard>,
    compute_ms: f64,
}

/// What is known of a prompt when its answer ends.
struct Sent {
    node: usize,
    standing: Standing,
    tenant: String,
    /// The start of the question, for whoever looks at plans.
    asked: Option<String>,
    report: ReuseReport,
}

impl Sent {
    /// Notes what the engine has now, and, where it said so, what was there before and what the rest took.
    fn remember(&self, upstream: &Upstream, usage: Option<UpstreamUsage>) {
        let cached = usage.and_then(|usage| usage.cached_tokens);
        let mut prefixes = upstream.nodes()[self.node].prefixes();
        prefixes.sent(&self.standing.keys, self.standing.expected, cached);
        if let Some(usage) = usage {
            prefixes.took(self.report.ttft.compute_ms, usage.prompt_tokens.saturating_sub(cached.unwrap_or(0)));
        }
    }
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
        let (question, constraint, task) = (Arc::new(question), None, Task::Answer);
        let (computed, is_round) = (ComputeTime::default(), false);
        let asking = Asking { question, found_in, deadline, constraint, task, meter, computed, is_round };
        let mut found = self.find(&asking).instrument(tracing::info_span!("retrieve")).await?;
        let retrieve_ms = arrived.elapsed_ms();
        if let Some(nothing @ NothingFound { answered: Answered::Said, .. }) = found.nothing_found {
            let ttft = Ttft { total_ms: retrieve_ms, retrieve_ms, ..Ttft::default() };
            let (nothing_found, words_only) = (Some(nothing), found.words_only);
            let report = ReuseReport { nothing_found, words_only, ttft, ..ReuseReport::default() };
            return Ok(self.say_nothing_found(&asking, &report, &admission));
        }
        let Begun { node, standing, passages, answers, first, compute_ms } =
            self.begin(upstream, &asking, &found.passages).await?;
        found.passages = passages;
        let total_ms = arrived.elapsed_ms();
        metrics::histogram!("ragstone_ttft_seconds").record(total_ms / 1e3);

        let rerank_ms = found.rerank.map_or(0.0, |rerank| rerank.ms);
        let model = upstream.served().id.clone();
        let report = ReuseReport {
            arrangement: standing.report,
            rerank: found.rerank,
            words_only: found.words_only,
            nothing_found: found.nothing_found,
            engine: Some(EngineReport { model, number: node as u32 + 1, cached_tokens: None }),
            ttft: Ttft { total_ms, retrieve_ms, rerank_ms, compute_ms, ..Ttft::default() },
            ..ReuseReport::default()
        };
        let (tenant, asked) = (asking.question.tenant.clone(), asking.question.input.start());
        let sent = Arc::new(Sent { node, standing, tenant, asked, report });
        let mut first = Some(first);
        let stream = |(index, answering)| {
            let tokens = self.pass_on(upstream, (index, answering), first.take().flatten(), sent.clone());
            // The engine counts the prompt's tokens at the end, ends what is to end, and has control tokens of its own.
            let opened = Opened {
                citations: found.passages.iter().map(|passage| passage.citation.clone()).collect(),
                note: ending::note(&asking.question, found.nothing_found),
                cites: ending::cites(&asking.question),
                ..asking.opened(Coming::Elsewhere(tokens), sent.report.clone(), &admission)
            };
            AnswerStream::new(opened, self.assembler.tokenizer().clone())
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

    /// Has the engine that is predicted to begin first begin, or, where that does not answer, the next one.
    async fn begin(&self, upstream: &Upstream, asking: &Asking, passages: &[Passage]) -> Result<Begun> {
        let question = &asking.question;
        let written: Vec<String> = passages.iter().map(|passage| self.written(passage)).collect();
        let (texts, may_move) = self.texts(upstream, question, &written);
        let nodes = upstream.nodes();
        let mut standings: Vec<Option<Standing>> =
            nodes.iter().map(|node| Some(texts.stand(&node.prefixes(), may_move))).collect();
        let look = |(node, standing): (&Node, &Option<Standing>)| Look {
            saves_ms: standing.as_ref().map_or(0.0, |standing| standing.worth_ms),
            running: node.running(),
            is_down: node.is_down(&self.env),
        };
        let looks: Vec<Look> = nodes.iter().zip(&standings).map(look).collect();
        let prompt_ms = texts.tokens() * nodes.first().map_or(0.0, |node| node.prefixes().token_ms());
        let mut failed = None;
        for index in in_order(&looks, prompt_ms, upstream.turn()) {
            let Some(standing) = standings[index].take() else { continue };
            let (mut passages, mut written) = (passages.to_vec(), written.clone());
            let free = passages.len() - standing.order.len();
            permute(&mut passages[free..], &standing.order);
            permute(&mut written[free..], &standing.order);
            let prompt = self.prompt_upstream(question, &written)?;
            asking.meter.prompt(likely_tokens(prompt.bytes()));
            let engine = tracing::info_span!("engine", number = index as i64 + 1);
            let sending = Stopwatch::start();
            match self.send(upstream, index, asking, &prompt).instrument(engine).await {
                Ok((answers, first)) => {
                    let compute_ms = sending.elapsed_ms();
                    return Ok(Begun { node: index, standing, passages, answers, first, compute_ms });
                }
                // Nothing was said yet: another one may say it.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Overloaded) => {
                    if error.kind() == ErrorKind::Unavailable {
                        nodes[index].mark_down(&self.env);
                    }
                    tracing::warn!(%error, "an engine did not answer");
                    failed = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Internal, "there is no engine")))
    }

    /// A question's prompt as texts over the `written` passages, and whether these may change places.
    fn texts(&self, upstream: &Upstream, question: &Question, written: &[String]) -> (Texts, bool) {
        let (model, salt) = (upstream.served().id.as_str(), question.tenant.as_str());
        let Input::Chat { messages, tools, context, .. } = &question.input else {
            let text = match &question.input {
                Input::Text(text) => text.clone(),
                _ => String::new(),
            };
            return (Texts::new(model, salt, "", &[], 0, &[text]), false);
        };
        let leading = messages.iter().take_while(|message| message.role == "system").count();
        let said = |message: &ragstone_kernels::chat::ChatMessage| format!("{}\n{}", message.role, message.content);
        let tools = serde_json::Value::from(tools.clone());
        let before = messages[..leading].iter().map(said).chain([tools.to_string()]).collect::<Vec<_>>().concat();
        let turns: Vec<String> = messages[leading..].iter().map(said).collect();
        let given = context.as_ref().map_or(0, |context| context.documents.len());
        let texts = Texts::new(model, salt, &before, written, free(question, given), &turns);
        let may_move = context.as_ref().and_then(|context| context.arrange).unwrap_or(self.settings.arrange);
        let texts = match may_move {
            true => texts.with_uses(|fingerprint, salt, segments| {
                let tokens = segments.iter().map(|segment| &*segment.tokens);
                self.popularity.lock().unwrap_or_else(PoisonError::into_inner).arrived(fingerprint, salt, tokens)
            }),
            false => texts,
        };
        (texts, may_move)
    }

    fn written(&self, passage: &Passage) -> String {
        self.settings.prompt.render_passage(&passage.citation.title, &passage.citation.text)
    }

    fn prompt_upstream(&self, question: &Question, written: &[String]) -> Result<Prompt> {
        Ok(match &question.input {
            Input::Chat { messages, tools, context, .. } => {
                let passages = context.as_ref().map(|_: &Context| written);
                Prompt::of_chat(messages, tools, passages, &self.settings.prompt)
            }
            Input::Text(text) => Prompt::Text(text.as_str().into()),
            Input::Tokens(ids) => Prompt::Text(ids.clone().into()),
            Input::Pml { .. } => {
                return Err(Error::new(ErrorKind::Internal, "a prompt of modules came to an engine elsewhere"));
            }
        })
    }

    /// Sends a question as often as it wants answers; returns when the first of them begins.
    async fn send(
        &self,
        upstream: &Upstream,
        node: usize,
        asking: &Asking,
        prompt: &Prompt,
    ) -> Result<(Vec<Answering>, Option<Heard>)> {
        let (question, node) = (&asking.question, &upstream.nodes()[node]);
        let salt = match question.tenant.as_str() {
            "" => String::new(),
            tenant => blake3::hash(tenant.as_bytes()).to_hex()[..16].to_owned(),
        };
        let one = |index| {
            let asked = Asked { said: question.said.as_deref(), sampling: &question.sampling, index, salt: &salt };
            let body = body(prompt, &asked, upstream.served());
            async move { node.ask(prompt.endpoint(), &body, asking.deadline).await }
        };
        let begun = async {
            let mut answers = try_join_all((0..question.answers).map(one)).await?;
            let first = match answers.first_mut() {
                Some(answer) => answer.next().await.transpose()?,
                None => None,
            };
            Ok((answers, first))
        };
        let begun = begun.await;
        let outcome = begun.as_ref().map_or_else(|_: &Error| "failed", |_| "taken");
        metrics::counter!("ragstone_engine_requests_total", "outcome" => outcome).increment(1);
        begun
    }

    /// Passes on what the engine says, until it ends or nobody reads; the first of several answers is the one that is accounted for.
    fn pass_on(
        &self,
        upstream: &Arc<Upstream>,
        (index, mut answering): (usize, Answering),
        first: Option<Heard>,
        sent: Arc<Sent>,
    ) -> mpsc::Receiver<Result<Heard>> {
        let (sender, parts) = mpsc::channel(AHEAD);
        let (upstream, me) = (upstream.clone(), self.me.clone());
        let pump = async move {
            let (mut next, mut usage, mut ended) = (first.map(Ok), None, false);
            loop {
                let heard = match next.take() {
                    Some(heard) => Some(heard),
                    None => tokio::select! {
                        heard = answering.next() => heard,
                        () = sender.closed() => None,
                    },
                };
                let Some(heard) = heard else { break };
                match &heard {
                    Ok(Heard::Usage(said)) => usage = Some(*said),
                    Err(_) => ended = true,
                    Ok(Heard::End(..)) => {
                        ended = true;
                        if let Some(pipeline) = me.upgrade().filter(|_| index == 0) {
                            pipeline.ended(&upstream, &sent, usage);
                        }
                    }
                    _ => {}
                }
                if sender.send(heard).await.is_err() {
                    break;
                }
            }
            // Nobody waits for the rest. The engine has read the prompt all the same: it began to answer.
            if !ended && index == 0 {
                sent.remember(&upstream, None);
            }
        };
        self.runtime.spawn(pump.in_current_span());
        parts
    }

    /// An answer ended: what it took is remembered, and what the engine has now.
    fn ended(&self, upstream: &Upstream, sent: &Sent, usage: Option<UpstreamUsage>) {
        sent.remember(upstream, usage);
        let report = sent.report.clone().with_usage(usage.unwrap_or_default());
        let TokenAccount { exact, computed, .. } = report.tokens;
        metrics::counter!("ragstone_prompt_tokens_total", "source" => "exact").increment(u64::from(exact));
        metrics::counter!("ragstone_prompt_tokens_total", "source" => "computed").increment(u64::from(computed));
        let record = self.plans.remember(self.env.now_unix_ms(), (&*sent.tenant, sent.asked.clone()), &report);
        self.feed.publish(|| Happened::Answer(Arc::new(record)));
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
