//! What a look at one thing found.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// ragstone works; somebody should know all the same.
    Warning,
    /// ragstone does not start with it, or does without something that was asked for.
    Problem,
}

/// What was looked at, what was found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Such as `memory` or `bucket`.
    pub what: &'static str,
    pub state: State,
    /// One line.
    pub found: String,
    /// What to do; `None` where nothing is to be done.
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, state: State::Ok, found: found.into(), advice: None }
    }

    pub fn warning(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what, state: State::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn problem(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what, state: State::Problem, found: found.into(), advice: Some(advice.into()) }
    }

    /// Of an error, whose text says what to do.
    pub fn of(what: &'static str, error: &dyn std::error::Error) -> Self {
        Self { what, state: State::Problem, found: error.to_string(), advice: None }
    }
}
