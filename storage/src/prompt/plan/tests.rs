use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::cost::PrefillCost;
use crate::key::Fingerprint;
use crate::prompt::primer::Primer;
use crate::prompt::residency::prompt_keys;
use crate::prompt::uses_of;
use crate::segment::{Apart, Place, Segment};

/// Without costs: what is stored is used.
fn plan(residency: &Residency, options: &PlanOptions) -> Result<LoadPlan> {
    super::plan(residency, options, None)
}

fn auto() -> PlanOptions {
    PlanOptions::fixed(0.15, ReuseMode::Auto)
}

/// A prompt in which segment `i` has `tokens` ids that follow from `content`, and what is resident of it.
fn residency(prompt: &[(SegmentKind, u32, u32)], exact: usize, standalone: &[usize]) -> Residency {
    let segment = |&(kind, tokens, content): &(SegmentKind, u32, u32)| Segment {
        kind,
        tokens: (0..tokens).map(|at| content * 1000 + at).collect(),
        place: None,
    };
    let segments: Vec<Segment> = prompt.iter().map(segment).collect();
    let mut found = prompt_keys(&Fingerprint([0; 32]), "", &Primer::none(), &segments).unwrap();
    let tier = Tier::Disk;
    for (index, at) in found.iter_mut().enumerate() {
        let Some(chain_key) = at.chain_key else { continue };
        at.standalone_tier = at.standalone_key.filter(|_| standalone.contains(&index)).map(|_| tier);
        let found = match (at.standalone_key, at.standalone_tier) {
            _ if index < exact => Some((CandidateKind::Exact, chain_key, Tier::Host)),
            (Some(key), Some(tier)) => Some((CandidateKind::Standalone, key, tier)),
            _ => None,
        };
        let candidate = |(kind, key, tier)| Candidate { kind, key, tier, tiers: vec![tier], bytes: 1 };
        at.candidates = found.map(candidate).into_iter().collect();
    }
    Residency { segments: found, ..Residency::default() }
}

/// Text that begins the prompt, two modules that were computed apart, an argument between them, and the question.
fn modules() -> Residency {
    let module = |tokens: &[u32], start: u32| {
        let apart = Some(Apart { behind: Arc::new([]), start: 0 });
        Segment { kind: SegmentKind::Module, tokens: tokens.into(), place: Some(Place { start, apart }) }
    };
    let text = |tokens: &[u32], start: u32| {
        let place = Some(Place { start, apart: None });
        Segment { kind: QUESTION, tokens: tokens.into(), place }
    };
    let prompt = [module(&[1], 0), module(&[2, 2], 1), text(&[3], 5), module(&[4, 4], 9), text(&[5], 11)];
    let mut found = prompt_keys(&Fingerprint([0; 32]), "", &Primer::none(), &prompt).unwrap();
    for at in &mut found {
        let Some(key) = at.standalone_key else { continue };
        let kind = if at.chain_key == Some(key) { CandidateKind::Exact } else { CandidateKind::Standalone };
        at.candidates = vec![Candidate { kind, key, tier: Tier::Host, tiers: vec![Tier::Host], bytes: 1 }];
    }
    Residency { segments: found, ..Residency::default() }
}

#[test]
fn the_device_keeps_modules_as_they_are_and_nothing_behind_others() {
    let (found, kept) = (modules(), |plan: &LoadPlan| plan.device_path().map(|(at, _)| at.segment).collect::<Vec<_>>());
    let as_they_are = plan(&found, &PlanOptions::fixed(0.0, ReuseMode::Auto)).unwrap();
    assert_eq!((letters(&as_they_are).as_str(), kept(&as_they_are)), ("LBCBC", vec![0, 1, 2, 3]));
    let keys: Vec<_> = as_they_are.device_path().map(|(_, key)| Some(key)).collect();
    assert_eq!(keys, found.segments[..4].iter().map(|at| at.device_key).collect::<Vec<_>>());
    // Partly recomputed it is another one, and so it is where it is computed with the prompt.
    assert_eq!(kept(&plan(&found, &auto()).unwrap()), [0]);
    let mut missing = modules();
    missing.segments[1].candidates.clear();
    let computed = plan(&missing, &PlanOptions::fixed(0.0, ReuseMode::Auto)).unwrap();
    assert_eq!((letters(&computed).as_str(), kept(&computed)), ("LC+CBC", vec![0]));
    // What was to be loaded and was computed after all.
    let mut mended = as_they_are;
    mended.segments[3].source = Source::Compute;
    assert_eq!(kept(&mended), [0, 1, 2]);
    // On the device all of it is in place, the argument, too.
    let mut there = modules();
    for at in &mut there.segments[..4] {
        let (kind, tier) = (CandidateKind::Standalone, Tier::Device);
        at.candidates = vec![Candidate { kind, key: at.device_key.unwrap(), tier, tiers: vec![tier], bytes: 0 }];
    }
    let in_place = plan(&there, &PlanOptions::fixed(0.0, ReuseMode::Auto)).unwrap();
    assert_eq!((letters(&in_place).as_str(), kept(&in_place)), ("BBBBC", vec![0, 1, 2, 3]));
    assert_eq!((in_place.device_tokens(), in_place.segments[2].why), (6, Why::InPlace));
}

const ROOT: SegmentKind = SegmentKind::SystemPrompt;
const PASSAGE: SegmentKind = SegmentKind::Passage;
const QUESTION: SegmentKind = SegmentKind::Question;

/// root, three passages, question
const PROMPT: [(SegmentKind, u32, u32); 5] =
    [(ROOT, 10, 0), (PASSAGE, 20, 1), (PASSAGE, 30, 2), (PASSAGE, 40, 3), (QUESTION, 5, 4)];

/// One letter a segment: L(oad), B(lend), C(ompute), and `+` where it may be filed.
fn letters(plan: &LoadPlan) -> String {
    let letter = |plan: &SegmentPlan| match plan.source {
        Source::Load { .. } => "L".to_owned(),
        Source::Blend { .. } => "B".to_owned(),
        Source::Compute => format!("C{}", if plan.store_as.is_some() { "+" } else { "" }),
    };
    plan.segments.iter().map(letter).collect()
}

#[test]
fn plans_by_table() {
    /// Exact segments, entries after the system prompt, mode, plan, wanted after the system prompt.
    type Row = (usize, &'static [usize], ReuseMode, &'static str, &'static [usize]);
    let table: [Row; 15] = [
        (0, &[], ReuseMode::Auto, "C+C+C+C+C", &[2, 3]), // cold; the first passage is filed after the system prompt anyway
        (1, &[], ReuseMode::Auto, "LC+C+C+C", &[2, 3]),
        (2, &[1], ReuseMode::Auto, "LLC+C+C", &[2, 3]),
        (4, &[1, 2, 3], ReuseMode::Auto, "LLLLC", &[]), // warm
        (4, &[1], ReuseMode::Auto, "LLLLC", &[2, 3]),
        (2, &[1, 2, 3], ReuseMode::Auto, "LLBBC", &[]),
        (2, &[1, 3], ReuseMode::Auto, "LLC+BC", &[2]), // exact up to the blended one
        (2, &[1, 2], ReuseMode::Auto, "LLBCC", &[3]),  // nothing behind a blended one is filed
        (0, &[2], ReuseMode::Auto, "C+C+BCC", &[3]),
        (2, &[1, 2, 3], ReuseMode::SamePositions, "LLC+C+C", &[]),
        (0, &[1], ReuseMode::SamePositions, "C+C+C+C+C", &[]), // nor is anything computed for blending
        (4, &[1, 2, 3], ReuseMode::SamePositions, "LLLLC", &[]),
        (2, &[1, 2, 3], ReuseMode::ExactOnly, "LLC+C+C", &[]),
        (0, &[1, 2, 3], ReuseMode::ExactOnly, "C+C+C+C+C", &[]),
        (4, &[1, 2, 3], ReuseMode::Off, "CCCCC", &[]),
    ];
    for (exact, standalone, reuse, expected, missing) in table {
        let plan = plan(&residency(&PROMPT, exact, standalone), &PlanOptions::fixed(0.15, reuse)).unwrap();
        let case = format!("{exact} exact, {standalone:?} after the system prompt, {reuse:?}");
        assert_eq!(letters(&plan), expected, "{case}");
        assert_eq!(plan.missing_standalone, missing, "{case}");
        assert_eq!(plan.total_tokens, 105);
    }
}

/// Of a model whose KV cannot be moved: a passage that is stored for other positions says so, a module's key covers its own.
#[test]
fn what_was_computed_elsewhere_is_not_blended_and_the_plan_says_why() {
    let mut residency = residency(&PROMPT, 2, &[1, 3]);
    let same = PlanOptions::fixed(0.0, ReuseMode::SamePositions);
    let whys = |residency: &Residency| {
        plan(residency, &same).unwrap().segments.iter().map(|plan| plan.why).collect::<Vec<_>>()
    };
    let expected = [Why::StoredExactly, Why::StoredExactly, Why::NotStored, Why::OtherPositions, Why::EndsThePrompt];
    assert_eq!(whys(&residency), expected);
    residency.segments[3].kind = SegmentKind::Module;
    assert_eq!(whys(&residency)[3], Why::StoredClosely);
}

#[test]
fn the_last_token_is_never_taken_from_anywhere() {
    // Everything is there, on the device even: the last segment with tokens is computed all the same.
    for last in [(PASSAGE, 40, 3), (PASSAGE, 1, 3), (QUESTION, 5, 4)] {
        let prompt = [(ROOT, 10, 0), (PASSAGE, 20, 1), last, (PASSAGE, 0, 9)];
        let prompt = &prompt[..if last.0 == QUESTION { 3 } else { 4 }];
        let mut residency = residency(prompt, 4, &[]);
        for at in &mut residency.segments {
            at.candidates.iter_mut().for_each(|candidate| candidate.tier = Tier::Device);
        }
        let plan = plan(&residency, &auto()).unwrap();
        assert_eq!((plan.device_tokens(), plan.total_tokens), (30, 30 + last.1));
        // No entry tells whether it was filed: computed anew, it is offered again.
        assert_eq!(plan.segments[2].store_as.is_some(), last.0 == PASSAGE);
        let path: Vec<usize> = plan.exact_path().map(|(segment, _)| segment.segment).collect();
        assert_eq!(path, if last.0 == PASSAGE { vec![0, 1, 2] } else { vec![0, 1] });
    }
}

#[test]
fn the_exact_path_ends_where_blending_begins() {
    let plan = plan(&residency(&PROMPT, 2, &[1, 2]), &auto()).unwrap();
    let path: Vec<usize> = plan.exact_path().map(|(segment, _)| segment.segment).collect();
    assert_eq!((letters(&plan).as_str(), path, plan.device_tokens()), ("LLBCC", vec![0, 1], 0));
}

#[test]
fn ranges_and_counts() {
    let plan = plan(&residency(&PROMPT, 2, &[1, 2]), &auto()).unwrap();
    let ranges: Vec<_> = plan.segments.iter().map(|plan| plan.range.clone()).collect();
    assert_eq!(ranges, [0..10, 10..30, 30..60, 60..100, 100..105]);
    assert_eq!((plan.exact_tokens, plan.blended_tokens, plan.computed_tokens), (30, 30, 45));
    assert_eq!(plan.root_key, plan.segments[1].parent);
}

#[test]
fn the_same_passage_twice_is_wanted_and_filed_once_behind_the_root() {
    let twice = [(ROOT, 4, 0), (PASSAGE, 8, 1), (PASSAGE, 8, 1), (QUESTION, 2, 2)];
    let cold = plan(&residency(&twice, 0, &[]), &auto()).unwrap();
    assert_eq!(letters(&cold), "C+C+C+C");
    assert_ne!(cold.segments[1].store_as, cold.segments[2].store_as, "each at its place");
    assert!(cold.missing_standalone.is_empty(), "the first is after the system prompt");
    let after_another = [(ROOT, 4, 0), (PASSAGE, 9, 3), (PASSAGE, 8, 1), (PASSAGE, 8, 1), (QUESTION, 2, 2)];
    assert_eq!(plan(&residency(&after_another, 0, &[]), &auto()).unwrap().missing_standalone, [2]);
    let warm = plan(&residency(&twice, 2, &[1, 2]), &auto()).unwrap();
    assert_eq!(letters(&warm), "LLBC");
}

#[test]
fn without_a_root_passages_start_the_prompt() {
    let plan = plan(&residency(&[(PASSAGE, 3, 1), (PASSAGE, 3, 2), (QUESTION, 1, 3)], 0, &[]), &auto()).unwrap();
    assert_eq!((plan.root_key, plan.segments[0].parent), (None, None));
    assert_eq!(plan.segments[1].parent, plan.segments[0].store_as);
    assert_eq!(plan.missing_standalone, [1]);
}

#[test]
fn somebody_computes_the_last_token() {
    let no_question = [(ROOT, 4, 0), (PASSAGE, 8, 1)];
    let warm = plan(&residency(&no_question, 2, &[1]), &auto()).unwrap();
    assert_eq!(letters(&warm), "LC", "computed for its logits, and not filed a second time");
    let empty_question = [(ROOT, 4, 0), (PASSAGE, 8, 1), (QUESTION, 0, 2)];
    assert_eq!(letters(&plan(&residency(&empty_question, 2, &[1]), &auto()).unwrap()), "LCC");
}

#[test]
fn empty_prompts_and_empty_segments() {
    let nothing = plan(&Residency::default(), &auto()).unwrap();
    assert_eq!((nothing.total_tokens, nothing.segments.len()), (0, 0));
    let hollow = [(ROOT, 0, 0), (PASSAGE, 0, 1), (PASSAGE, 8, 2), (PASSAGE, 0, 3), (QUESTION, 2, 4)];
    let plan = plan(&residency(&hollow, 0, &[]), &auto()).unwrap();
    assert_eq!(letters(&plan), "CCC+CC");
    assert_eq!(plan.segments[2].parent, None, "an empty root is none");
    assert!(plan.missing_standalone.is_empty());
}

#[test]
fn a_ratio_outside_of_0_to_1_is_refused() {
    for ratio in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        let error = plan(&Residency::default(), &PlanOptions::fixed(ratio, ReuseMode::Auto)).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
    }
}

fn any_prompt() -> impl Strategy<Value = (Vec<(SegmentKind, u32, u32)>, usize, Vec<usize>)> {
    let passages = prop::collection::vec((Just(PASSAGE), 0u32..6, 0u32..4), 0..7);
    let root = prop::option::of((Just(ROOT), 0u32..6, Just(9u32)));
    let question = prop::option::of((Just(QUESTION), 0u32..6, Just(8u32)));
    let prompt = (root, passages, question)
        .prop_map(|(root, passages, question)| root.into_iter().chain(passages).chain(question).collect::<Vec<_>>());
    (prompt, 0usize..10, prop::collection::vec(0usize..10, 0..10))
}

proptest! {
    #[test]
    fn whatever_is_resident(
        (prompt, exact, standalone) in any_prompt(), holes in prop::collection::vec(0usize..10, 0..4), reuse in 0u8..3,
    ) {
        let reuse = [ReuseMode::Auto, ReuseMode::ExactOnly, ReuseMode::Off][usize::from(reuse)];
        let mut residency = residency(&prompt, exact, &standalone);
        for hole in holes {
            if let Some(at) = residency.segments.get_mut(hole) {
                // What is blended there, if anything, has exact entries behind it.
                at.candidates.retain(|candidate| candidate.kind != CandidateKind::Exact);
            }
        }
        let plan = plan(&residency, &PlanOptions::fixed(0.15, reuse)).unwrap();
        // The segments cover the prompt exactly, in order.
        prop_assert_eq!(plan.segments.len(), prompt.len());
        let mut position = 0;
        for (planned, (kind, tokens, _)) in plan.segments.iter().zip(&prompt) {
            prop_assert_eq!(planned.kind, *kind);
            prop_assert_eq!(planned.range.clone(), position..position + tokens);
            position += tokens;
        }
        prop_assert_eq!(plan.total_tokens, position);
        prop_assert_eq!(plan.exact_tokens + plan.blended_tokens + plan.computed_tokens, position);
        let with_tokens: Vec<&SegmentPlan> = plan.segments.iter().filter(|plan| !plan.range.is_empty()).collect();
        // What is exact is used wherever it stands, and the exact path ends where blending begins; the last token is computed.
        let may_load = reuse != ReuseMode::Off;
        for planned in &with_tokens[..with_tokens.len().saturating_sub(1)] {
            let has_exact = residency.segments[planned.segment].candidates.iter().any(|it| it.kind == CandidateKind::Exact);
            let loads = matches!(planned.source, Source::Load { .. });
            prop_assert_eq!(loads, has_exact && may_load && planned.kind != QUESTION);
        }
        let first_blend = with_tokens.iter().position(|plan| matches!(plan.source, Source::Blend { .. }));
        prop_assert!(plan.exact_path().count() <= first_blend.unwrap_or(with_tokens.len()));
        prop_assert_eq!(plan.files_answer, first_blend.is_none() && reuse != ReuseMode::Off);
        prop_assert!(with_tokens.last().is_none_or(|plan| plan.source == Source::Compute));
        let mut blended_before = false;
        for planned in &plan.segments {
            let at = &residency.segments[planned.segment];
            blended_before |= matches!(planned.source, Source::Blend { .. });
            if planned.kind == QUESTION || planned.range.is_empty() {
                prop_assert_eq!((planned.source, planned.store_as), (Source::Compute, None));
            }
            // Exact stays exact: what is filed was computed, at its place, behind nothing blended.
            if let Some(key) = planned.store_as {
                prop_assert!(planned.source == Source::Compute && !blended_before && reuse != ReuseMode::Off);
                prop_assert_eq!(Some(key), at.chain_key);
            }
            match planned.source {
                Source::Load { key, .. } => prop_assert_eq!(Some(key), at.chain_key),
                Source::Blend { key, .. } => {
                    prop_assert_eq!(Some(key), at.standalone_key);
                    prop_assert_eq!(reuse, ReuseMode::Auto);
                }
                Source::Compute => {}
            }
        }
        // Each key of a path that was used stands behind the one before it.
        for used in uses_of(&plan, &PrefillCost::assumed().unwrap()) {
            for pair in used.path.windows(2) {
                let at = plan.segments.iter().find(|planned| planned.exact_key == Some(pair[1]));
                prop_assert_eq!(at.and_then(|planned| planned.parent), Some(pair[0]));
            }
        }
        if reuse == ReuseMode::Off {
            prop_assert_eq!(plan.computed_tokens, position);
        }
        for index in &plan.missing_standalone {
            let at = &residency.segments[*index];
            prop_assert!(at.standalone_tier.is_none() && at.standalone_key.is_some());
            prop_assert!(plan.segments.iter().all(|plan| plan.store_as != at.standalone_key));
        }
    }
}
