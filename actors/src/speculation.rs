//! Dynamic speculative pipelining (RAGCache, section 5.3 and algorithm 2): what is done about a prompt's prefill at the end of each
//! stage of its search. Pure, but for the flag that confirms a prefill and for the clock's averages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A search that takes less, in milliseconds, is not cut into stages.
const LEAST_SEARCH_MS: f64 = 2.0;
/// Nor is one that takes less than this share of a prefill: what could be hidden is less than what looking at cells twice costs.
const LEAST_SHARE: f64 = 0.05;
/// Weight of what was seen last.
const LEARNING: f64 = 0.25;
/// Collections that are remembered.
const MOST_COLLECTIONS: usize = 1024;

/// Whether a prefill that was begun before its search ended may go on to its answer. Until it is confirmed the engine
/// computes it when nobody else has a use for a step, and drops it where others need its blocks.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<AtomicBool>);

impl Hold {
    /// Its passages are those of the request: it is the request's own prefill from here on.
    pub(crate) fn release(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was released.
    pub fn is_released(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What the engine has to do, in rows of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Rows of prompts that wait or are under way, speculative ones among them.
    pub pending: usize,
    /// Rows that fill a step: more at once are not faster. `max_prefill_bs` of algorithm 2.
    pub most: usize,
}

impl Load {
    /// Whether a speculative prefill finds the processors idle.
    pub(crate) fn has_room(self) -> bool {
        self.pending < self.most
    }
}

/// What is done at the end of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The prefill that runs ends, after the current step.
    pub cancels: bool,
    /// One of the stage's passages begins.
    pub starts: bool,
}

/// Algorithm 2, lines 6 to 10: `running` are the passages of the prefill that runs. A stage with the passages of the stage before it
/// begins what did not find room then: the paper's theorem 5.1 has it so, its algorithm would not.
pub(crate) fn decide<T: PartialEq>(running: Option<&[T]>, provisional: &[T], load: Load) -> Decision {
    match running {
        Some(running) if running == provisional => Decision { cancels: false, starts: false },
        Some(_) => Decision { cancels: true, starts: load.has_room() && !provisional.is_empty() },
        None => Decision { cancels: false, starts: load.has_room() && !provisional.is_empty() },
    }
}

/// What came of speculation in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SpeculationOutcome")]
pub enum Outcome {
    /// The search ended with the passages of the prefill that ran: that went on as the request's own.
    Confirmed,
    /// It ended with others, or the engine had no room to go on: the prefill began anew.
    Cancelled,
    /// The search was cut into stages, and the engine had no room.
    NotStarted,
}

/// How a search and the prefill of what it found overlapped.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Speculation {
    /// What came of it.
    pub outcome: Outcome,
    /// Stages that told of passages before the search ended.
    pub stages: u32,
    /// Prefills that were begun before the search ended.
    pub started: u32,
    /// How long the request's own prefill ran beside the search, in milliseconds: search time that is hidden.
    pub hidden_ms: f64,
}

/// What searches and prefills take, to tell whether one can hide behind the other.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// By collection.
    search_ms: HashMap<String, f64>,
    prefill_ms: Option<f64>,
}

impl Times {
    /// Whether a search of this collection is worth stages.
    pub fn are_worth_stages(&self, collection: &str) -> bool {
        let seen = self.locked();
        is_worth_stages(seen.search_ms.get(collection).copied(), seen.prefill_ms)
    }

    /// A search took so long, without embedding its query.
    pub fn observe_search(&self, collection: &str, ms: f64) {
        let mut seen = self.locked();
        if seen.search_ms.len() >= MOST_COLLECTIONS && !seen.search_ms.contains_key(collection) {
            seen.search_ms.clear();
        }
        let average = seen.search_ms.entry(collection.to_owned()).or_insert(ms);
        *average += LEARNING * (ms - *average);
    }

    /// A prefill of retrieved passages took so long.
    pub fn observe_prefill(&self, ms: f64) {
        let mut seen = self.locked();
        let average = seen.prefill_ms.get_or_insert(ms);
        *average += LEARNING * (ms - *average);
    }

    fn locked(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A first search is not cut: it shows what there is to gain.
fn is_worth_stages(search_ms: Option<f64>, prefill_ms: Option<f64>) -> bool {
    search_ms.is_some_and(|ms| ms >= LEAST_SEARCH_MS && ms >= LEAST_SHARE * prefill_ms.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use ragstone_env::Env;

    use super::*;

    const IDLE: Load = Load { pending: 0, most: 512 };
    const FULL: Load = Load { pending: 512, most: 512 };

    /// What runs after each stage, and what of it was begun when.
    fn play(stages: &[(&[u32], Load)]) -> Vec<(Decision, Option<Vec<u32>>)> {
        let mut running: Option<Vec<u32>> = None;
        let play = |(provisional, load): &(&[u32], Load)| {
            let decision = decide(running.as_deref(), provisional, *load);
            if decision.cancels {
                running = None;
            }
            if decision.starts {
                running = Some(provisional.to_vec());
            }
            (decision, running.clone())
        };
        stages.iter().map(play).collect()
    }

    const NOTHING: Decision = Decision { cancels: false, starts: false };
    const STARTS: Decision = Decision { cancels: false, starts: true };
    const REPLACES: Decision = Decision { cancels: true, starts: true };
    const CANCELS: Decision = Decision { cancels: true, starts: false };

    /// RAGCache, figure 11: [D1, D3], then three times [D1, D2]; the last stage is the final one.
    #[test]
    fn the_papers_example() {
        let (first, later): (&[u32], &[u32]) = (&[1, 3], &[1, 2]);
        let played = play(&[(first, IDLE), (later, IDLE), (later, IDLE), (later, IDLE)]);
        let decisions: Vec<Decision> = played.iter().map(|(decision, _)| *decision).collect();
        assert_eq!(decisions, [STARTS, REPLACES, NOTHING, NOTHING]);
        assert_eq!(played[3].1.as_deref(), Some(later), "it is confirmed");
    }

    /// The four cases of theorem 5.1's proof, and what lies between.
    #[test]
    fn a_full_pool_starts_nothing_and_order_counts() {
        let (a, b, none): (&[u32], &[u32], &[u32]) = (&[1, 2], &[2, 1], &[]);
        for (stages, expected) in [
            (vec![(a, FULL), (a, IDLE), (a, FULL)], vec![NOTHING, STARTS, NOTHING]),
            (vec![(a, IDLE), (b, FULL), (a, FULL)], vec![STARTS, CANCELS, NOTHING]),
            (vec![(a, IDLE), (b, IDLE)], vec![STARTS, REPLACES]),
            (vec![(none, IDLE), (a, Load { pending: 511, most: 512 })], vec![NOTHING, STARTS]),
            (vec![(a, IDLE), (none, IDLE)], vec![STARTS, CANCELS]),
        ] {
            let decisions: Vec<Decision> = play(&stages).into_iter().map(|(decision, _)| decision).collect();
            assert_eq!(decisions, expected, "{stages:?}");
        }
    }

    /// Algorithm 2 as it stands in the paper: what is in the pool of this request after each stage.
    fn as_printed(stages: &[(Vec<u32>, Load)]) -> Vec<Option<Vec<u32>>> {
        let (mut before, mut pool): (Vec<u32>, Option<Vec<u32>>) = (Vec::new(), None);
        let mut after = Vec::new();
        for (provisional, load) in stages {
            if *provisional != before {
                if pool.as_ref() == Some(&before) {
                    pool = None;
                }
                if load.pending < load.most {
                    pool = Some(provisional.clone());
                }
            }
            before.clone_from(provisional);
            after.push(pool.clone());
        }
        after
    }

    #[test]
    fn promises_that_random_searches_keep() {
        let env = Env::seeded(5, 0);
        let below = |bound: u64| env.random_u64() % bound;
        for _ in 0..20_000 {
            let stages: Vec<(Vec<u32>, Load)> = (0..1 + below(6))
                .map(|_| (vec![below(3) as u32, 7], Load { pending: below(4) as usize, most: 2 }))
                .collect();
            let borrowed: Vec<(&[u32], Load)> = stages.iter().map(|(found, load)| (&found[..], *load)).collect();
            let (played, printed) = (play(&borrowed), as_printed(&stages));
            let mut deferred = false;
            for (at, (decision, running)) in played.iter().enumerate() {
                let (found, load) = &stages[at];
                assert!(!decision.starts || load.has_room(), "nothing begins where there is no room");
                assert!(
                    running.as_ref().is_none_or(|running| running == found),
                    "what is known to be wrong does not run"
                );
                let before = if at > 0 { played[at - 1].1.as_ref() } else { None };
                assert!(!decision.cancels || before.is_some_and(|before| before != found), "what may be right goes on");
                // The one difference to the paper: what found no room begins later.
                let is_as_before = at > 0 && stages[at - 1].0 == *found;
                deferred = is_as_before && (deferred || decision.starts);
                assert!(deferred || *running == printed[at], "{stages:?}");
            }
        }
    }

    #[test]
    fn what_takes_no_time_beside_the_prefill_is_not_cut() {
        for (search_ms, prefill_ms, expected) in [
            (None, None, false),
            (None, Some(100.0), false),
            (Some(50.0), None, true),
            (Some(1.9), Some(10.0), false),
            (Some(4.9), Some(100.0), false),
            (Some(5.1), Some(100.0), true),
        ] {
            assert_eq!(is_worth_stages(search_ms, prefill_ms), expected, "{search_ms:?} {prefill_ms:?}");
        }
        let times = Times::default();
        times.observe_search("a", 100.0);
        times.observe_prefill(100.0);
        assert!(times.are_worth_stages("a") && !times.are_worth_stages("b"));
        (0..30).for_each(|_| times.observe_search("a", 1.0));
        assert!(!times.are_worth_stages("a"));
    }
}
