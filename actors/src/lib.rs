//! Moves. The pipeline of a question as one readable function, and the supervised workers behind it.
//!
//! Concurrency lives here and nowhere else: actix workers with bounded queues and deadlines, one OS thread that owns
//! the device. Decisions are made by pure functions of `storage`; arithmetic is done by `kernels`.

pub mod api_keys;
mod assembler;
mod background;
pub mod blend;
mod blocking;
mod budget;
pub mod calibration;
mod caller;
pub mod citation;
mod collector;
pub mod costs;
mod deadline;
pub mod embedding;
mod encoder;
pub mod engine;
pub mod entries;
pub mod events;
pub mod eviction;
mod folders;
mod follow_up;
pub mod fusion;
mod grammars;
pub mod grounding;
pub mod ingests;
pub mod jobs;
pub mod kernel_choice;
pub mod language_model;
pub mod library;
mod loaded_model;
mod manner;
mod measured;
mod metering;
mod nodes;
pub mod nothing_found;
mod pipeline;
mod plans;
pub mod prefill;
mod primer;
pub mod prompt;
pub mod question;
pub mod quotas;
pub mod ragstone;
pub mod read_prompt;
pub mod renewal;
pub mod report;
pub mod reranking;
pub mod retrieval;
mod runner;
pub mod schemas;
pub mod settings;
pub mod size;
pub mod speculation;
pub mod status;
pub mod stream;
mod tails;
pub mod tenant;
pub mod turns;
pub mod warm;
pub mod worker;

pub use caller::Caller;
pub use citation::Citation;
pub use embedding::Embedded;
pub use folders::{Folders, Progress};
pub use grounding::{Grounding, GroundingState};
pub use nothing_found::{Answered, MinSimilarity, NothingFound, OnNothingFound};
pub use plans::PlanRecord;
pub use prefill::{DEFAULT_SELECTION_LAYER, FIRST_SELECTION_LAYER, Rule, Schedule, Selection};
pub use question::{
    Context, InlineDocument, Input, MAX_ANSWERS, MAX_CANDIDATES, MAX_PROMPT_LOGPROBS, MAX_ROUND_TOKENS, MAX_ROUNDS,
    Question, Reuse, RootCut,
};
pub use ragstone::Ragstone;
pub use ragstone_kernels::error;
pub use ragstone_kernels::error::{Error, ErrorKind, Result};
pub use read_prompt::{ReadPrompt, ReadToken, Score};
pub use report::{
    Alternative, Answer, ArrangementReport, Drafts, Event, Finish, FinishReason, RerankReport, RerankedBy, ReuseReport,
    RoundReport, TokenEvent, Usage,
};
pub use reranking::{Rerank, Reranked};
pub use retrieval::MAX_QUERY_BYTES;
pub use settings::Settings;
pub use status::Status;
pub use stream::AnswerStream;
pub use tenant::check_tenant;
