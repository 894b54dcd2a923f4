//! Asks the questions of a request, one for each of its prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::try_join_all;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use ragstone_actors::{Answer, AnswerStream, Event, Input, MAX_PROMPT_LOGPROBS, Question, Ragstone};

use super::told::{Told, Wish};
use crate::error::{Error, ErrorKind, Result};
use crate::telemetry::trace;

/// Prompts of one request that are asked at once. Each has its places among the questions that the service takes.
const AT_ONCE: usize = 8;

/// How a request's questions are asked.
#[derive(Clone)]
pub struct Asking {
    ragstone: Ragstone,
    wish: Wish,
    /// Choices that are returned for each prompt.
    choices: usize,
    /// Log-probabilities of prompts that are to be told so far: all prompts of a request have as many as one may have.
    told: Arc<AtomicUsize>,
}

/// The answers to one prompt, as they begin, and what is told of it.
pub struct Begun {
    pub answers: Vec<AnswerStream>,
    pub told: Arc<Told>,
}

/// The whole answers to one prompt.
pub struct Whole {
    pub answers: Vec<Answer>,
    pub told: Arc<Told>,
}

/// A part of a choice's stream.
pub enum Piece {
    /// The prompt, before anything else.
    Echo(Arc<Told>),
    Event(Event),
}

/// Parts of streams, each with the number of its choice.
pub type Pieces = BoxStream<'static, (usize, Result<Piece>)>;

impl Asking {
    pub fn new(ragstone: Ragstone, wish: Wish, choices: usize) -> Self {
        Self { ragstone, wish, choices, told: Arc::default() }
    }

    /// Asks one question. Returns when its first tokens are there, and what is told of its prompt.
    pub async fn begin(&self, question: Question) -> Result<Begun> {
        let sent = match &question.input {
            Input::Text(text) if self.wish.echo => Some(text.clone()),
            _ => None,
        };
        let (caller, deadline) = (question.caller, question.deadline);
        let answers = self.ragstone.answers(question).await?;
        answers.first().iter().for_each(|answer| trace::describe_prompt(answer.report()));
        if self.wish.is_nothing() {
            return Ok(Begun { answers, told: Arc::default() });
        }
        let prompt = answers.first().and_then(AnswerStream::prompt).cloned();
        self.count(prompt.as_ref().map_or(0, |prompt| prompt.len()))?;
        let wish = self.wish;
        // A long prompt takes a while to write, which no thread that others' requests pass has.
        let told = move || Told::of(wish, prompt.as_deref(), sent);
        let told = self.ragstone.read(caller, deadline, told).await?;
        Ok(Begun { answers, told: Arc::new(told) })
    }

    fn count(&self, tokens: usize) -> Result<()> {
        let Some(count) = self.wish.alternatives() else { return Ok(()) };
        let more = tokens * (usize::from(count) + 1) * self.choices;
        if self.told.fetch_add(more, Ordering::Relaxed) + more > MAX_PROMPT_LOGPROBS {
            let message = format!(
                "the prompts have more log-probabilities, alternatives and repetitions for `n` included, than the {MAX_PROMPT_LOGPROBS} \
                 that are told at most: send fewer prompts at once, or ask for fewer alternatives"
            );
            return Err(Error::invalid_field("prompt", message));
        }
        Ok(())
    }

    /// The whole answers to all questions, in order.
    pub async fn whole(self, questions: Vec<Question>) -> Result<Vec<Whole>> {
        let is_one = questions.len() == 1;
        let ask = |(index, question)| {
            let asking = &self;
            async move {
                let told = |error| if is_one { error } else { of_prompt(index, error) };
                let Begun { answers, told: prompt } = asking.begin(question).await.map_err(told)?;
                let answers = try_join_all(answers.into_iter().map(AnswerStream::collect)).await.map_err(told)?;
                Ok(Whole { answers, told: prompt })
            }
        };
        stream::iter(questions.into_iter().enumerate()).map(ask).buffered(AT_ONCE).try_collect().await
    }

    /// The streams of questions behind the first, each of which has so many `answers`. They are asked while others are answered.
    pub fn more(self, questions: Vec<Question>, answers: usize) -> Pieces {
        let ask = move |(at, question)| {
            let (asking, index) = (self.clone(), at + 1);
            let begin = async move {
                match asking.begin(question).await {
                    Ok(begun) => begun.pieces(index * answers),
                    Err(error) => {
                        let failed = (index * answers, Err(of_prompt(index, error)));
                        stream::once(std::future::ready(failed)).boxed()
                    }
                }
            };
            begin.flatten_stream().boxed()
        };
        stream::iter(questions.into_iter().enumerate()).map(ask).flatten_unordered(AT_ONCE).boxed()
    }
}

impl Begun {
    /// The streams of its answers, whose numbers begin with `first`.
    pub fn pieces(self, first: usize) -> Pieces {
        let Self { answers, told } = self;
        let each = answers.into_iter().enumerate().map(|(at, answer)| {
            let index = first + at;
            let echo = told.echo.is_some().then(|| (index, Ok(Piece::Echo(told.clone()))));
            stream::iter(echo).chain(events(index, answer)).boxed()
        });
        stream::select_all(each).boxed()
    }
}

/// The events of one choice.
fn events(index: usize, answer: AnswerStream) -> Pieces {
    let next = move |mut answer: AnswerStream| async move {
        answer.next().await.map(|event| ((index, event.map(Piece::Event)), answer))
    };
    stream::unfold(answer, next).boxed()
}

/// What is wrong with a prompt says which one it is.
fn of_prompt(index: usize, error: Error) -> Error {
    match error.kind() {
        kind @ (ErrorKind::ContextLength | ErrorKind::InvalidInput) => {
            Error::of_field(kind, "prompt", format!("prompt {index}: {error}"))
        }
        _ => error,
    }
}
