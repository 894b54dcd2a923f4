//! Makes prompts of questions, on threads of its own: tokenizing a long text takes a while, and neither the HTTP threads nor
//! the async runtime's may stand still for it. What cannot fit into the model's context is refused before it is read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ragstone_env::Env;
use ragstone_kernels::chat::calls::CallForm;
use ragstone_kernels::chat::thoughts::Thinking;
use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::grammar::{Constraint, GrammarSpec, STACK_BYTES};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::segment::{Segment, SegmentKind};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::admission::caller::Caller;
use crate::admission::deadline::deadline_error;
use crate::admission::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::question::budget::Budget;
use crate::question::grammars::Grammars;
use crate::question::prompt::{Asked, ChatLayout, PromptFormat, Task, assemble_chat};
use crate::question::{Context, InlineDocument, Input, Question};
use crate::worker::panic_text;
use ragstone_pml::{Layout, Roles, Schema, compile, modules};

/// Threads that tokenize. Few, because each remembers words, and because one text keeps one of them busy: others go on.
const THREADS: usize = 4;

/// The model's tokenizer and chat template, and the threads that use them for questions.
pub(crate) struct Assembler {
    inner: Arc<Inner>,
    threads: rayon::ThreadPool,
    /// Its own, as all others wait for disks, too.
    turns: Turns,
    /// Those who compile grammars, which takes long: half of the threads are left for what takes moments.
    compiling: Turns,
}

struct Inner {
    grammars: Grammars,
    tokenizer: Arc<Tokenizer>,
    chat: Option<ChatLayout>,
    /// `None` where the chat template does not show them.
    roles: Option<Roles>,
    /// Found once, as it takes a rendering.
    thinking: Option<Thinking>,
    format: PromptFormat,
    /// Tokens of the model's context.
    context: usize,
    /// Whether the model's KV can be moved.
    can_move: bool,
}

impl Assembler {
    pub(crate) fn start(
        tokenizer: Arc<Tokenizer>,
        chat: Option<ChatTemplate>,
        format: PromptFormat,
        context: usize,
        config: &ModelConfig,
        env: Env,
    ) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = cores.clamp(2, THREADS);
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(at_once)
            .thread_name(|index| format!("tokenize-{index}"))
            .stack_size(STACK_BYTES)
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::Internal, format!("the tokenizing threads did not start: {error}"))
            })?;
        let roles = chat.as_ref().and_then(|template| Roles::of(template).ok());
        let chat = chat.map(ChatLayout::new);
        let thinking = chat.as_ref().and_then(|chat| chat.thinking(None));
        Ok(Self {
            inner: Arc::new(Inner {
                grammars: Grammars::new(tokenizer.clone(), config.vocab_size),
                tokenizer,
                chat,
                roles,
                thinking,
                format,
                context,
                can_move: config.positions.can_move(),
            }),
            threads,
            turns: Turns::new(at_once, env.clone()),
            compiling: Turns::new(at_once / 2, env),
        })
    }

    /// Tokens of the model's context.
    pub(crate) fn context(&self) -> usize {
        self.inner.context
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.inner.tokenizer
    }

    /// Refuses what is longer than the context whatever its tokens are. Reads nothing of the text.
    ///
    /// # Errors
    /// `ContextLength`; the message states the rule.
    pub(crate) fn check_size(&self, input: &Input) -> Result<()> {
        check_size(input, self.inner.context, self.inner.tokenizer.bytes_per_token())
    }

    /// The token ids of documents that came with a question, each as a passage.
    pub(crate) async fn passages(&self, question: &Arc<Question>, deadline: Instant) -> Result<Vec<Arc<[u32]>>> {
        match &question.input {
            Input::Chat { context: Some(context), .. } if !context.documents.is_empty() => {}
            _ => return Ok(Vec::new()),
        }
        let question = question.clone();
        self.run(question.caller, deadline, move |inner| match &question.input {
            Input::Chat { context: Some(Context { documents, .. }), .. } => inner.passages(documents),
            _ => Ok(Vec::new()),
        })
        .await
    }

    /// The token ids of documents that are read one at a time, each as a passage.
    ///
    /// # Errors
    /// `ContextLength` for one that is longer than the context.
    pub(crate) async fn documents(
        &self,
        documents: Vec<InlineDocument>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Vec<Arc<[u32]>>> {
        self.run(caller, deadline, move |inner| {
            let alone = documents.iter().enumerate().map(|(index, document)| {
                let tokens = inner.passages(std::slice::from_ref(document));
                let told = |error: Error| Error::new(error.kind(), format!("document {index}: {error}"));
                Ok(tokens.map_err(told)?.pop().unwrap_or_default())
            });
            alone.collect()
        })
        .await
    }

    /// The token ids of what a question would have for its prompt, without passages.
    ///
    /// # Errors
    /// As a question's: `ContextLength` for one that is too long.
    pub(crate) async fn tokens(
        &self,
        input: Input,
        today: Date,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Vec<u32>> {
        self.check_size(&input)?;
        self.run(caller, deadline, move |inner| {
            let segments = inner.assemble(&input, Task::Answer, &[], today)?;
            Ok(segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect())
        })
        .await
    }

    /// The segments of a question over `passages`.
    pub(crate) async fn assemble(
        &self,
        (question, task): (&Arc<Question>, Task),
        passages: Vec<Arc<[u32]>>,
        today: Date,
        deadline: Instant,
    ) -> Result<Vec<Segment>> {
        if let Input::Tokens(tokens) = &question.input {
            return Ok(Segment::of_text(tokens));
        }
        let question = question.clone();
        self.run(question.caller, deadline, move |inner| inner.assemble(&question.input, task, &passages, today)).await
    }

    /// Where everything of a schema stands, and how each text of its modules is computed apart, with its module's path.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub(crate) async fn lay_out(
        &self,
        schema: Arc<Schema>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<(Layout, Vec<(String, Segment)>)> {
        self.run(caller, deadline, move |inner| {
            let most = u32::try_from(inner.context).unwrap_or(u32::MAX);
            let layout = Layout::of(&schema, inner.roles.as_ref(), &*inner.tokenizer, most)?;
            let modules = modules(&schema, &layout, inner.can_move)?;
            Ok((layout, modules))
        })
        .await
    }

    /// Reads what came with a request: that takes a while where it is long.
    ///
    /// # Errors
    /// What `read` says; `DeadlineExceeded`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        caller: Caller,
        deadline: Instant,
        read: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(caller, deadline, move |_| read()).await
    }

    /// What an answer must conform to, compiled; for each answer to make a copy of.
    ///
    /// # Errors
    /// `InvalidInput` for a grammar that is wrong or too large.
    pub(crate) async fn constraint(
        &self,
        spec: &Arc<GrammarSpec>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Arc<Constraint>> {
        let digest = spec.digest();
        if let Some(known) = self.inner.grammars.known(&digest) {
            return Ok(known);
        }
        let compiling = timeout_at(deadline, self.compiling.take(caller)).await.map_err(|_| deadline_error())?;
        let spec = spec.clone();
        let compile = move |inner: &Inner| {
            let _compiling = compiling;
            inner.grammars.compile(&spec, digest)
        };
        self.run(caller, deadline, compile).await
    }

    /// How the model writes calls of tools; `None` where it calls none.
    pub(crate) fn call_form(&self) -> Option<CallForm> {
        self.inner.chat.as_ref().and_then(ChatLayout::call_form)
    }

    /// How the model thinks before it answers, told to or not to; `None`: it does not.
    pub(crate) fn thinking(&self, thinks: Option<bool>) -> Option<Thinking> {
        match thinks {
            None => self.inner.thinking,
            told => self.inner.chat.as_ref().and_then(|chat| chat.thinking(told)),
        }
    }

    /// The chat template's text; `None`: there is none.
    pub(crate) fn chat_template_source(&self) -> Option<String> {
        self.inner.chat.as_ref().map(ChatLayout::source)
    }

    /// What tells one chat template from others, and whether what it writes may depend on the date. `None`: there is none.
    pub(crate) fn chat_template(&self) -> Option<(String, bool)> {
        self.inner.chat.as_ref().map(ChatLayout::identity)
    }

    /// What prompts over passages begin with, unless they bring a system prompt of their own. `None`: nothing.
    pub(crate) fn root(&self, today: Date) -> Result<Option<Segment>> {
        let context = Some(Context::default());
        let message = ChatMessage::new("user", "?");
        let input = Input::Chat { messages: vec![message], tools: Vec::new(), thinks: None, context };
        let segments = self.inner.assemble(&input, Task::Answer, &[], today)?;
        Ok(segments.into_iter().find(|segment| segment.kind == SegmentKind::SystemPrompt))
    }

    /// Runs work on one of the threads, when it is the caller's turn. What nobody waits for any more is not begun; what waits has a
    /// place among the requests that the service takes, so the queue is as long as those are many.
    async fn run<T: Send + 'static>(
        &self,
        caller: Caller,
        deadline: Instant,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = timeout_at(deadline, self.turns.take(caller)).await.map_err(|_| deadline_error())?;
        let (reply, done) = oneshot::channel();
        let (inner, span) = (self.inner.clone(), tracing::Span::current());
        self.threads.spawn(move || {
            let _turn = turn;
            if reply.is_closed() {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| work(&inner))));
            let outcome = outcome.unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
            // Nobody may wait for it any more.
            drop(reply.send(outcome));
        });
        match timeout_at(deadline, done).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
            Err(_) => Err(deadline_error()),
        }
    }
}

impl Inner {
    fn passages(&self, documents: &[InlineDocument]) -> Result<Vec<Arc<[u32]>>> {
        let mut budget = Budget::new(self.context);
        let passage = |document: &InlineDocument| {
            let rendered = self.format.render_passage(&document.title, &document.text);
            Ok(budget.tokens(&rendered, |text| self.tokenizer.encode_text(text))?.into())
        };
        documents.iter().map(passage).collect()
    }

    fn assemble(&self, input: &Input, task: Task, passages: &[Arc<[u32]>], today: Date) -> Result<Vec<Segment>> {
        let mut budget = Budget::new(self.context);
        Ok(match input {
            Input::Tokens(tokens) => Segment::of_text(tokens),
            Input::Text(text) => Segment::of_text(&budget.tokens(text, |text| self.tokenizer.encode(text, true))?),
            Input::Chat { messages, tools, thinks, context } => {
                let asked = Asked { format: &self.format, task, thinks: *thinks };
                let layout = self.chat.as_ref().map(|layout| (layout, today));
                let passages = context.as_ref().map(|_| passages);
                assemble_chat(messages, tools, passages, asked, layout, &self.tokenizer, &mut budget)?
            }
            Input::Pml { schema, layout, prompt, .. } => {
                let (most, roles) = (u32::try_from(self.context).unwrap_or(u32::MAX), self.roles.as_ref());
                let layout = match layout {
                    Some(known) => known.clone(),
                    None => Arc::new(Layout::of(schema, roles, &*self.tokenizer, most)?),
                };
                compile(schema, &layout, prompt, roles, &*self.tokenizer, most, self.can_move)?
            }
        })
    }
}

/// A token has at most `bytes_per_token` bytes of text, and a message or document at least a token.
fn check_size(input: &Input, context: usize, bytes_per_token: usize) -> Result<()> {
    let too_many = |what: &str, count: usize| {
        let message = format!("{count} {what} do not fit the model's context of {context} tokens; send fewer");
        Err(Error::new(ErrorKind::ContextLength, message))
    };
    let bytes = match input {
        Input::Tokens(tokens) if tokens.len() > context => return too_many("tokens", tokens.len()),
        // A document's length is bounded, and its layout by the context.
        Input::Tokens(_) | Input::Pml { .. } => 0,
        Input::Text(text) => text.len(),
        Input::Chat { messages, tools, context: passages, .. } => {
            let documents = passages.as_ref().map_or(&[][..], |passages| &passages.documents);
            if messages.len() > context {
                return too_many("messages", messages.len());
            }
            if documents.len() > context {
                return too_many("documents", documents.len());
            }
            let lengths = documents.iter().flat_map(|document| [document.title.len(), document.text.len()]);
            let tools = tools.iter().map(|tool| tool.to_string().len());
            lengths
                .chain(messages.iter().map(|message| message.content.len()))
                .chain(tools)
                .fold(0, usize::saturating_add)
        }
    };
    let most = context.saturating_mul(bytes_per_token);
    if bytes > most {
        let message = format!(
            "the prompt has {bytes} bytes of text, and the model's context of {context} tokens holds {most} at most \
             ({bytes_per_token} bytes a token); shorten it"
        );
        return Err(Error::new(ErrorKind::ContextLength, message));
    }
    Ok(())
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic_text(panic);
    tracing::error!(worker = "tokenize", panic = what, "request panicked; the service goes on");
    metrics::counter!("ragstone_panics_total", "worker" => "tokenize").increment(1);
    Error::new(ErrorKind::Internal, format!("the tokenizer failed on this request ({what}); the service goes on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(messages: &[&str], documents: &[&str]) -> Input {
        let message = |content: &&str| ChatMessage::new("user", *content);
        let document = |text: &&str| InlineDocument { title: String::new(), text: (*text).to_owned() };
        let context = Context { documents: documents.iter().map(document).collect(), ..Context::default() };
        let messages = messages.iter().map(message).collect();
        Input::Chat { messages, tools: Vec::new(), thinks: None, context: Some(context) }
    }

    #[test]
    fn what_cannot_fit_is_refused_unread_and_the_rule_is_told() {
        let check = |input: &Input| check_size(input, 4, 8);
        for fits in [
            Input::Tokens(vec![1; 4]),
            Input::Text("a".repeat(32)),
            chat(&["a"; 4], &["b"; 4]),
            chat(&[&"a".repeat(16)], &[&"b".repeat(16)]),
        ] {
            check(&fits).unwrap();
        }
        for (input, words) in [
            (Input::Tokens(vec![1; 5]), "5 tokens"),
            (Input::Text("a".repeat(33)), "8 bytes a token"),
            (chat(&["a"; 5], &[]), "5 messages"),
            (chat(&[], &["a"; 5]), "5 documents"),
            (chat(&[&"a".repeat(16)], &[&"b".repeat(17)]), "33 bytes"),
        ] {
            let error = check(&input).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ContextLength);
            assert!(error.to_string().contains(words), "{error}");
        }
        check_size(&Input::Text("a".into()), usize::MAX, 32).unwrap();
    }
}
