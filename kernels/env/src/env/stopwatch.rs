//! Time that passes, as opposed to the time of day: it never runs backwards.

use std::time::{Duration, Instant};

use super::Env;

/// Measures from the moment it was made. [`Env::stopwatch`] makes those whose times decide something, so that a seed
/// replays the decision; [`Stopwatch::start`] those that people look at.
#[derive(Debug, Clone)]
pub struct Stopwatch(Start);

#[derive(Debug, Clone)]
enum Start {
    System(Instant),
    /// A seeded clock, and where it stood.
    Seeded(Env, u64),
}

impl Stopwatch {
    /// On the system's clock, for progress, patience and reports.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system for monotonic time")]
    pub fn start() -> Self {
        Self(Start::System(Instant::now()))
    }

    /// On a seeded clock, which only [`Env::advance`] moves.
    pub(super) fn seeded(env: &Env) -> Self {
        Self(Start::Seeded(env.clone(), env.now_unix_ms()))
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Start::System(started) => started.elapsed(),
            Start::Seeded(env, started_ms) => Duration::from_millis(env.now_unix_ms().saturating_sub(*started_ms)),
        }
    }

    /// [`elapsed`](Self::elapsed) in milliseconds.
    pub fn elapsed_ms(&self) -> f64 {
        self.elapsed().as_secs_f64() * 1e3
    }

    /// [`elapsed`](Self::elapsed) in seconds.
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_stopwatch_shows_what_the_clock_was_moved_by_and_a_system_one_runs() {
        let env = Env::seeded(0, 5_000);
        let watch = env.stopwatch();
        assert_eq!(watch.elapsed(), Duration::ZERO);
        env.advance(Duration::from_millis(1_500));
        assert_eq!((watch.elapsed_ms(), watch.clone().elapsed_s()), (1_500.0, 1.5));
        assert_eq!(env.stopwatch().elapsed(), Duration::ZERO, "each from its own start");
        for system in [Stopwatch::start(), Env::system().stopwatch(), Env::system_with_seed(1).stopwatch()] {
            let first = system.elapsed();
            while system.elapsed() == first {}
            assert!(system.elapsed() > first);
        }
    }
}
