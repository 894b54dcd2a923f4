//! Moves. The pipeline of a question as one readable function, and the supervised workers behind it.
//!
//! Concurrency lives here and nowhere else: actix workers with bounded queues and deadlines, one OS thread that owns
//! the device. Decisions are made by pure functions of `storage`; arithmetic is done by `kernels`.
//!
//! Each of these knows those before it alone (`tests/it/tree.rs` holds them to it): [`worker`], [`admission`], [`report`],
//! [`retrieval`], [`fusion`], [`prefill`], [`question`], [`upstream`], [`eviction`], [`engine`], [`models`], [`settings`], [`answer`],
//! [`upkeep`], [`ragstone`]. The four actors are [`retrieval`], [`fusion`], [`prefill`] and [`eviction`].

pub mod admission;
pub mod answer;
pub mod engine;
pub mod eviction;
pub mod fusion;
pub mod models;
pub mod prefill;
pub mod question;
pub mod ragstone;
pub mod report;
pub mod retrieval;
pub mod settings;
pub mod speculation;
pub mod upkeep;
pub mod upstream;
pub mod worker;

pub use admission::caller::Caller;
pub use admission::tenant::check_tenant;
pub use answer::reranking::{Rerank, Reranked};
pub use answer::stream::AnswerStream;
pub use models::embedding::Embedded;
pub use models::folders::{Folders, Progress};
pub use prefill::{DEFAULT_SELECTION_LAYER, Rule, Schedule, Selection};
pub use question::{
    Context, InlineDocument, Input, MAX_ANSWERS, MAX_CANDIDATES, MAX_PROMPT_LOGPROBS, MAX_ROUND_TOKENS, MAX_ROUNDS,
    Question, Reuse, RootCut,
};
pub use ragstone::Ragstone;
pub use ragstone::status::Status;
pub use ragstone_kernels::error;
pub use ragstone_kernels::error::{Error, ErrorKind, Result};
pub use report::citation::Citation;
pub use report::grounding::{GroundedSentence, Grounding, GroundingState};
pub use report::nothing_found::{Answered, MinSimilarity, NothingFound, OnNothingFound};
pub use report::plans::PlanRecord;
pub use report::read_prompt::{ReadPrompt, ReadToken, Score};
pub use report::{
    Alternative, Answer, ArrangementReport, Drafts, EngineReport, Event, Finish, FinishReason, RerankReport,
    RerankedBy, ReuseReport, RoundReport, TokenEvent, Usage,
};
pub use retrieval::MAX_QUERY_BYTES;
pub use settings::Settings;
