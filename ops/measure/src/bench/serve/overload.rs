//! Far more requests than there is capacity for: what is answered in time, when the others are told, and how soon all is well
//! again.

use std::time::Duration;

use futures::StreamExt;
use ragstone_env::Stopwatch;
use ragstone_terminal::progress::{Progress, Unit};
use serde::Serialize;
use serde_json::{Value, json};

use super::clients::{Clients, streamed};
use super::load::{Endpoint, Fate, arrive, send};
use crate::bench::{Machine, Percentiles, Spread};
use crate::error::Result;

/// A prompt that takes no time.
const SHORT_PROMPT: usize = 32;
/// Requests one after the other that say what a quiet service takes to the first token.
const QUIET: usize = 5;
/// The service is well again once a short prompt takes at most so many times what it took before.
const WELL: f64 = 2.0;
/// Between two prompts that look whether it is.
const PROBE: Duration = Duration::from_millis(50);
/// How long that may take before it is given up.
const PATIENCE_S: f64 = 120.0;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Clients that ask one question after the other, which says what the service can do at best.
    pub clients: Vec<usize>,
    /// How long each of these numbers is measured, in seconds.
    pub calm_s: f64,
    /// How many times of that arrives.
    pub times: f64,
    /// How long, in seconds.
    pub overload_s: f64,
    /// What each request allows, in seconds.
    pub deadline_s: u64,
    /// Of each answer.
    pub answer_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Requests a second that are answered in time, by number of clients that wait for each other.
    pub calm: Vec<Calm>,
    /// Requests a second that arrived while there were too many.
    pub offered_per_s: f64,
    /// Those a second that were answered in time, from the first arrival to the last answer or refusal, as the calm ones are counted.
    pub goodput_per_s: f64,
    /// Beside the best of the calm ones.
    pub of_best: f64,
    pub answered: usize,
    /// Answered, but not in time.
    pub late: usize,
    pub refused: usize,
    /// Without an answer of any kind.
    pub lost: usize,
    /// From a request to its refusal.
    pub refused_ms: Percentiles,
    /// The longest of them.
    pub refused_most_ms: f64,
    /// From the last arrival until a short prompt takes at most twice what it took before; none where it was given up.
    pub recovery_s: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Calm {
    pub clients: usize,
    pub goodput_per_s: f64,
}

/// Measures once: the capacity, then the overload, then the recovery.
pub async fn measure(clients: Clients, options: Options) -> Result<Report> {
    let progress = Progress::new("measuring", Unit::Items);
    let total = options.clients.len() as u64 + 1;
    let mut quiet = Vec::new();
    // The first passes allocate what later ones use again.
    clients.complete(&clients.completion(SHORT_PROMPT, 4)).await?;
    for _ in 0..QUIET {
        quiet.push(clients.complete(&clients.completion(SHORT_PROMPT, 1)).await?.first_ms);
    }
    let quiet_ms = Spread::of(quiet).median;
    let mut calm = Vec::new();
    for (done, count) in options.clients.iter().enumerate() {
        progress.set(done as u64, total);
        calm.push(Calm { clients: *count, goodput_per_s: closed(&clients, &options, *count).await? });
        clients.settle().await?;
    }
    progress.set(total - 1, total);
    let best = calm.iter().map(|calm| calm.goodput_per_s).fold(0.0, f64::max);
    let offered_per_s = best * options.times;
    let requests = (0..(offered_per_s * options.overload_s).round() as usize).map(|_| options.request(&clients));
    let requests = requests.collect();
    let clock = Stopwatch::start();
    let arrived = arrive(&clients, Endpoint::Completions, requests, offered_per_s).await?;
    let ends = async { arrived.ends().await.map(|fates| (fates, clock.elapsed_s())) };
    let ((fates, took_s), recovery_s) = tokio::try_join!(ends, recovery(&clients, quiet_ms))?;
    Ok(options.report(calm, best, (&fates, took_s), recovery_s))
}

impl Options {
    /// A prompt of 32 to 1,024 tokens, half of them below 181.
    fn request(&self, clients: &Clients) -> Value {
        let prompt = clients.tokens(SHORT_PROMPT << clients.below(6));
        let request = json!({ "prompt": prompt, "ragstone": { "deadline_s": self.deadline_s } });
        streamed(request, self.answer_tokens)
    }

    fn is_in_time(&self, after_ms: f64) -> bool {
        after_ms <= self.deadline_s as f64 * 1e3
    }

    fn report(&self, calm: Vec<Calm>, best: f64, (fates, took_s): (&[Fate], f64), recovery_s: Option<f64>) -> Report {
        let answered = |fate: &&Fate| matches!(fate, Fate::Answered { .. });
        let in_time = |fate: &&Fate| matches!(fate, Fate::Answered { after_ms, .. } if self.is_in_time(*after_ms));
        let refused_ms: Vec<f64> = fates
            .iter()
            .filter_map(|fate| match fate {
                Fate::Refused { after_ms } => Some(*after_ms),
                Fate::Answered { .. } | Fate::Lost => None,
            })
            .collect();
        let (answered, in_time) = (fates.iter().filter(answered).count(), fates.iter().filter(in_time).count());
        let goodput_per_s = in_time as f64 / took_s;
        Report {
            machine: Machine::here(),
            calm,
            offered_per_s: fates.len() as f64 / self.overload_s,
            goodput_per_s,
            of_best: goodput_per_s / best,
            answered,
            late: answered - in_time,
            refused: refused_ms.len(),
            lost: fates.len() - answered - refused_ms.len(),
            refused_most_ms: refused_ms.iter().copied().fold(0.0, f64::max),
            refused_ms: Percentiles::of(refused_ms),
            recovery_s,
        }
    }
}

/// So many clients, each of which asks again when it was answered. Requests a second that were answered in time.
async fn closed(clients: &Clients, options: &Options, count: usize) -> Result<f64> {
    let clock = Stopwatch::start();
    let client = |_| {
        let clock = &clock;
        async move {
            let mut in_time = 0;
            while clock.elapsed_s() < options.calm_s {
                let fate = send(clients, Endpoint::Completions, &options.request(clients)).await?;
                in_time += usize::from(matches!(fate, Fate::Answered { after_ms, .. } if options.is_in_time(after_ms)));
            }
            Ok(in_time)
        }
    };
    let counts: Vec<Result<usize>> =
        futures::stream::iter((0..count).map(client)).buffer_unordered(count).collect().await;
    let in_time: usize = counts.into_iter().sum::<Result<usize>>()?;
    Ok(in_time as f64 / clock.elapsed_s())
}

/// Seconds until a short prompt takes little more than it took of a quiet service; none where that took too long.
async fn recovery(clients: &Clients, quiet_ms: f64) -> Result<Option<f64>> {
    let clock = Stopwatch::start();
    while clock.elapsed_s() < PATIENCE_S {
        let fate = send(clients, Endpoint::Completions, &clients.completion(SHORT_PROMPT, 1)).await?;
        if matches!(fate, Fate::Answered { answer, .. } if answer.first_ms <= WELL * quiet_ms) {
            return Ok(Some(clock.elapsed_s()));
        }
        tokio::time::sleep(PROBE).await;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::clients::Answer;
    use super::*;

    #[test]
    fn answers_are_counted_by_the_time_that_they_took() {
        let (clients, calm_s, overload_s) = (vec![1], 1.0, 10.0);
        let options = Options { clients, calm_s, times: 10.0, overload_s, deadline_s: 10, answer_tokens: 1 };
        let answer = || Answer { first_ms: 1.0, gaps_ms: Vec::new(), tokens: 1, prompt_tokens: 1, cached_tokens: 0 };
        let answered = |after_ms| Fate::Answered { answer: answer(), after_ms };
        let mut fates: Vec<Fate> = (0..20).map(|_| answered(9e3)).collect();
        fates.extend([answered(11e3), Fate::Refused { after_ms: 10e3 }, Fate::Lost]);
        // What waited at the last arrival was answered in the ten seconds behind it: one a second, as in calm.
        let report = options.report(Vec::new(), 1.0, (&fates, 20.0), None);
        assert_eq!((report.goodput_per_s, report.of_best), (1.0, 1.0));
        assert_eq!((report.answered, report.late, report.refused, report.lost), (21, 1, 1, 1));
    }
}
