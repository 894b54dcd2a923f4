//! Prompts that come again in the same order, and were blended: worth an exact chain.
//!
//! A blended prompt files nothing, so that the same prompt would be blended for ever, which costs its ratio each time and is an
//! approximation. What comes a second time is likely to come a third (what RAGCache's frequencies count on), so its chain is computed
//! once, when nobody waits; from then on it is loaded as it is.

use std::collections::HashSet;

use super::{LoadPlan, Source};
use crate::key::KvKey;
use crate::prompt::residency::SegmentResidency;
use crate::segment::SegmentKind;

/// Chains that are remembered: between so many and twice as many.
const REMEMBERED: usize = 1 << 14;

/// Chains of blended prompts that were seen once.
#[derive(Debug, Default)]
pub struct Recurring {
    recent: HashSet<KvKey>,
    older: HashSet<KvKey>,
}

impl Recurring {
    /// Notes a prompt. How many of its segments, from the first on, are to be computed exactly: up to the last that an earlier blended prompt
    /// had after the very same segments; 0 if there is none. `prompt` is the prompt that the plan was made for.
    pub fn note(&mut self, prompt: &[SegmentResidency], plan: &LoadPlan) -> usize {
        let Some(first) = plan.segments.iter().position(|at| matches!(at.source, Source::Blend { .. })) else {
            return 0;
        };
        let mut wanted = 0;
        for (index, at) in prompt.iter().enumerate().skip(first) {
            // Text behind the passages is another with every prompt.
            let Some(key) = at.chain_key.filter(|_| at.kind == SegmentKind::Passage) else { continue };
            let is_known = self.recent.remove(&key) | self.older.remove(&key);
            if is_known {
                wanted = index + 1;
            } else {
                self.remember(key);
            }
        }
        wanted
    }

    fn remember(&mut self, key: KvKey) {
        if self.recent.len() >= REMEMBERED {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::plan::{PlanOptions, ReuseMode, plan};
    use crate::prompt::residency::{Candidate, CandidateKind, Residency};
    use crate::tier::Tier;

    /// A passage after those before it, with its standalone entry where it is to be blended.
    fn prompt(passages: &[(u8, bool)]) -> Residency {
        let mut parent = None;
        let mut chain = [0; 32];
        let mut segments = Vec::new();
        for (index, (label, blends)) in passages.iter().enumerate() {
            chain[index] = label + 1;
            let candidate = Candidate {
                kind: CandidateKind::Standalone,
                key: KvKey([*label; 32]),
                tier: Tier::Host,
                tiers: vec![Tier::Host],
                bytes: 1,
            };
            segments.push(SegmentResidency {
                kind: SegmentKind::Passage,
                tokens: 4,
                parent,
                chain_key: Some(KvKey(chain)),
                standalone_key: Some(KvKey([*label; 32])),
                standalone_tier: None,
                candidates: if *blends { vec![candidate] } else { Vec::new() },
                position: None,
                device_key: None,
            });
            parent = Some(KvKey(chain));
        }
        let (kind, tokens, chain_key) = (SegmentKind::Question, 1, None);
        let standalone_tier = None;
        let candidates = Vec::new();
        segments.push(SegmentResidency {
            kind,
            tokens,
            parent,
            chain_key,
            standalone_key: None,
            standalone_tier,
            candidates,
            position: None,
            device_key: None,
        });
        Residency { segments, ..Residency::default() }
    }

    fn note(recurring: &mut Recurring, passages: &[(u8, bool)]) -> usize {
        let prompt = prompt(passages);
        let plan = plan(&prompt, &PlanOptions::fixed(0.1, ReuseMode::Auto), None).unwrap();
        recurring.note(&prompt.segments, &plan)
    }

    #[test]
    fn what_comes_again_in_the_same_order_is_wanted_once() {
        let mut recurring = Recurring::default();
        let all = [(1, true), (2, true), (3, true)];
        assert_eq!(note(&mut recurring, &all), 0, "for the first time");
        assert_eq!(note(&mut recurring, &[(2, true), (1, true), (3, true)]), 0, "in another order");
        assert_eq!(note(&mut recurring, &[(1, true), (2, true), (4, true)]), 2, "as far as they are alike");
        assert_eq!(note(&mut recurring, &all), 3, "its last passage came a second time");
        assert_eq!(note(&mut recurring, &[(2, true), (1, true)]), 2);
        assert_eq!(note(&mut recurring, &[(2, true), (1, true)]), 0, "asked for already, it has to come twice again");
    }

    #[test]
    fn what_is_not_blended_is_not_noted() {
        let mut recurring = Recurring::default();
        for _ in 0..3 {
            assert_eq!(note(&mut recurring, &[(1, false), (2, false)]), 0);
        }
        // What stands before the first blended passage is exact, and after it nothing is.
        assert_eq!(note(&mut recurring, &[(1, false), (2, true), (3, false)]), 0);
        assert_eq!(note(&mut recurring, &[(1, false), (2, true), (3, false)]), 3);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recurring = Recurring::default();
        for id in 0..3 * REMEMBERED as u32 {
            let mut bytes = [7; 32];
            bytes[..4].copy_from_slice(&id.to_le_bytes());
            recurring.remember(KvKey(bytes));
        }
        assert_eq!(recurring.recent.len() + recurring.older.len(), 2 * REMEMBERED);
    }
}
