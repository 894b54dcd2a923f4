//! Loads that fail or do not come: what was to be loaded is computed, and the prompt is not started again.

use std::collections::HashMap;

use ragstone_env::FailMode;
use ragstone_storage::ErrorKind;
use ragstone_storage::prompt::plan::Why;
use ragstone_storage::prompt::primer::Primer;
use ragstone_storage::tier::Precision;

use super::*;
use crate::fusion::{LoadedLayer, Lost, WantedEntry, layer_loads};

/// Lets a disk that hangs go on, also where a test fails: its thread would be waited for, for ever.
struct Healed(Env);

impl Drop for Healed {
    fn drop(&mut self) {
        self.0.set_fail_point("disk.read_frame", FailMode::Off, 1);
    }
}

impl Bench {
    /// The layers that a plan loads: those from `from(segment)` on.
    fn layers(&self, segments: &[Segment], plan: &LoadPlan, from: impl Fn(usize) -> u32) -> Vec<LoadedLayer> {
        let layers = self.model.config().layers as u32;
        let mut loaded: Vec<LoadedLayer> = (0..layers).map(|_| LoadedLayer::default()).collect();
        for planned in &plan.segments {
            let Some(key) = planned.source.key() else { continue };
            let reader = self.store.open_entry(&key, &segments[planned.segment].tokens).expect("it is there");
            for layer in from(planned.segment)..layers {
                let frame = reader.layer(layer).expect("read");
                loaded[layer as usize].push(0, planned.segment, frame);
            }
        }
        loaded
    }

    /// As `layers`, but of `lost` nothing comes from the layer on.
    fn layers_but(&self, segments: &[Segment], plan: &LoadPlan, lost: usize, from: usize) -> LayerLoads {
        let mut layers = self.layers(segments, plan, |_| 0);
        for layer in &mut layers[from..] {
            layer.frames.retain(|(segment, _)| *segment != lost);
        }
        let key = plan.segments[lost].source.key().expect("it was to be loaded");
        let failed = FailedLoad {
            id: self.store.id(&key, &segments[lost].tokens),
            tier: Tier::Host,
            precision: Precision::Exact,
            error: Error::new(ErrorKind::Corrupt, "by the test"),
        };
        layers[from].lost.push(Lost { segment: lost, failed: Some(failed) });
        LayerLoads::ready(layers)
    }

    /// Looks up and plans, without loading.
    fn plan(&self, segments: &[Segment], options: PlanOptions) -> LoadPlan {
        self.fuse(segments, options).plan
    }

    fn fuse(&self, segments: &[Segment], options: PlanOptions) -> Fused {
        let handle = self.runtime.handle().clone();
        let fusor = Arc::new(Fusor::new(self.store.clone(), no_device(), handle, ReadAhead::default()));
        let segments = segments.to_vec().into();
        let fuse = Fuse {
            segments,
            tenant: TENANT.into(),
            primer: Primer::none(),
            options,
            on_device: false,
            explain: false,
            speculative: false,
        };
        self.runtime.block_on(fusor.handle(fuse)).expect("planned")
    }

    fn run(
        &self,
        segments: &[Segment],
        plan: &LoadPlan,
        loads: LayerLoads,
        selection: Selection,
    ) -> Result<Prefilled, PrefillError> {
        let tokens = tokens_of(segments);
        let mut pool = self.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
        let blocks: Vec<BlockId> = (0..pool.blocks() as u32).rev().map(BlockId).collect();
        prefill(&self.model, &mut pool, self.prompt(&tokens, plan, loads, selection), &blocks, self.chunk_rows)
    }
}

#[track_caller]
fn assert_adds_up(done: &Prefilled, tokens: usize) {
    let TokenAccount { exact, blended, recomputed, computed } = done.account;
    assert_eq!((exact + blended + recomputed + computed) as usize, tokens);
}

/// Every segment of a prompt, lost at every layer, however it is cut: the answer has the bits of a full prefill's, and what was lost is
/// there to be filed again, as it was.
#[test]
fn what_is_exact_and_lost_on_the_way_is_computed_to_the_same_bits() {
    let mut bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let full = bench.full(&segments);
    let (first, _) = bench.ask(&segments, ReuseMode::ExactOnly, 0.0, false);
    let stored: HashMap<KvKey, Vec<LayerBytes>> =
        first.fresh.into_iter().map(|fresh| (fresh.key, fresh.layers)).collect();
    bench.ask(&segments, ReuseMode::ExactOnly, 0.0, true);
    let plan = bench.plan(&segments, PlanOptions::fixed(0.0, ReuseMode::ExactOnly));
    for lost in 0..segments.len() - 1 {
        for layer in 0..bench.model.config().layers {
            for chunk_rows in [1, 5, 16, usize::MAX] {
                bench.chunk_rows = chunk_rows;
                let loads = bench.layers_but(&segments, &plan, lost, layer);
                let done = bench.run(&segments, &plan, loads, Selection::default()).expect("prefilled");
                let case = format!("segment {lost}, layer {layer}, {chunk_rows} rows");
                assert_eq!(done.logits, full, "{case}");
                assert_adds_up(&done, tokens_of(&segments).len());
                assert_eq!(done.account.computed as usize, 11 + segments[lost].tokens.len(), "{case}");
                let planned = &done.plan.segments[lost];
                assert_eq!((planned.source, planned.why), (Source::Compute, Why::LateMiss), "{case}");
                let key = plan.segments[lost].source.key().expect("it was loaded");
                assert_eq!(done.late_misses.iter().map(|miss| miss.id.key).collect::<Vec<_>>(), [key], "{case}");
                assert_eq!(done.fresh.iter().map(|fresh| fresh.key).collect::<Vec<_>>(), [key], "{case}");
                assert_eq!(done.fresh[0].layers, stored[&key], "{case}");
            }
        }
    }
}

/// Two segments, at two layers, beside one that is not stored: what is lost stands before, between and behind the rows under way.
#[test]
fn what_is_lost_twice_and_around_computed_rows_is_computed_to_the_same_bits() {
    let mut bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let full = bench.full(&segments);
    let (_, kept) = bench.ask(&segments, ReuseMode::ExactOnly, 0.0, true);
    let (mut mended, mut planned_again) = (0, 0);
    for hole in 1..segments.len() - 1 {
        let key = kept.segments[hole].store_as.expect("it was kept");
        let mut plan = bench.plan(&segments, PlanOptions::fixed(0.0, ReuseMode::ExactOnly));
        let segment = &mut plan.segments[hole];
        (segment.source, segment.store_as) = (Source::Compute, Some(key));
        plan.exact_tokens -= segment.range.len() as u32;
        plan.computed_tokens += segment.range.len() as u32;
        let others: Vec<usize> = (0..segments.len() - 1).filter(|index| *index != hole).collect();
        for (one, other) in [(others[0], others[1]), (others[1], others[2]), (others[2], others[0])] {
            for chunk_rows in [1, 7, 16, 33, usize::MAX] {
                bench.chunk_rows = chunk_rows;
                let mut layers = bench.layers(&segments, &plan, |_| 0);
                for (lost, from) in [(one, 1), (other, 3)] {
                    for layer in &mut layers[from..] {
                        layer.frames.retain(|(segment, _)| *segment != lost);
                    }
                    layers[from].lost.push(Lost { segment: lost, failed: None });
                }
                let loads = LayerLoads::ready(layers);
                let case = format!("{hole} not stored, {one} and {other} lost, {chunk_rows} rows");
                let done = match bench.run(&segments, &plan, loads, Selection::default()) {
                    Ok(done) => done,
                    // What had caught up went on in several chunks.
                    Err(PrefillError::Overdue(None)) if chunk_rows < usize::MAX => {
                        planned_again += 1;
                        continue;
                    }
                    Err(other) => panic!("{case}: {other:?}"),
                };
                mended += 1;
                assert_eq!(done.logits, full, "{case}");
                assert!(done.late_misses.is_empty() && done.fresh.len() == 3);
                assert_adds_up(&done, tokens_of(&segments).len());
            }
        }
    }
    assert!(mended > 0 && planned_again > 0, "{mended}, {planned_again}");
}

/// Rows that catch up and those that they catch up with go on in chunks that are no longer than others, so that answers beside them
/// keep their pace; a chunk that is longer, however it came to be, makes none longer.
#[test]
fn what_was_caught_up_with_is_cut_as_any_other() {
    let bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let full = bench.full(&segments);
    bench.ask(&segments, ReuseMode::ExactOnly, 0.0, true);
    let plan = bench.plan(&segments, PlanOptions::fixed(0.0, ReuseMode::ExactOnly));
    let tokens = tokens_of(&segments);
    for (lost, layer) in [(1, 1), (3, 2), (3, 3)] {
        let loads = bench.layers_but(&segments, &plan, lost, layer);
        let mut prefill = Prefill::new(&bench.model, bench.prompt(&tokens, &plan, loads, Selection::default()));
        let mut longest = 0;
        let done = drive(&bench, &mut prefill, tokens.len(), |prefill| {
            let rows = prefill.next_rows(8);
            longest = longest.max(rows);
            // A chunk under way is as long as it is: who asks for more rows of it asks for no longer ones.
            if prefill.chunk().is_some() { 1000 } else { rows }
        });
        assert_eq!((longest, done), (8, full.clone()), "segment {lost}, layer {layer}");
    }
}

/// What a prompt read ahead is others' to have once it has all of it, be it ever so far from its end.
#[test]
fn room_to_read_ahead_is_given_back_with_the_last_layer() {
    let (bench, segments, full, fused, healed) = from_a_disk(FailMode::Hang);
    let (ahead, tokens) = (ReadAhead::default(), tokens_of(&segments));
    let wanted = fused.plan.segments.iter().filter_map(|planned| {
        let reader = bench.store.open_entry(&planned.source.key()?, &segments[planned.segment].tokens)?;
        Some(WantedEntry { segment: planned.segment, reader, from: 0 })
    });
    let (loads, lanes) = layer_loads(wanted.collect(), bench.model.config().layers as u32, &ahead);
    let room = ahead.free_mib();
    drop(healed);
    lanes.into_iter().for_each(|lane| drop(bench.runtime.spawn_blocking(lane)));
    let prompt = bench.prompt(&tokens, &fused.plan, loads, Selection::default());
    let mut prefill = Prefill::new(&bench.model, prompt);
    let mut seen = Vec::new();
    let done = drive(&bench, &mut prefill, tokens.len(), |prefill| {
        seen.push((prefill.embedded, ahead.free_mib()));
        2
    });
    assert_eq!(done, full);
    let all = ReadAhead::default().free_mib();
    assert_eq!(seen.first(), Some(&(0, room)));
    assert!(room < all && seen.len() > 4);
    assert!(seen.iter().filter(|(embedded, _)| *embedded > 2).all(|(_, room)| *room == all), "{seen:?}");
}

/// Runs a prefill whose loads come, `rows` of it asked for in each pass; its logits.
fn drive(
    bench: &Bench,
    prefill: &mut Prefill<Model>,
    tokens: usize,
    mut rows: impl FnMut(&Prefill<Model>) -> usize,
) -> Vec<f32> {
    let mut pool = bench.model.new_pool(tokens.div_ceil(BLOCK_TOKENS));
    let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
    loop {
        if !prefill.is_ready() {
            assert!(prefill.walk.wait(Duration::from_secs(60)), "it comes");
            prefill.mend();
        }
        let rows = rows(prefill);
        let rider = prefill.rider(&bench.model, rows, &blocks).expect("embedded");
        let mut passed = Forward::new(&bench.model, &mut pool).pass(vec![rider]);
        let outcome = passed.outcomes.pop().expect("one rider");
        if let Some(logits) = prefill.passed(&bench.model, outcome, &passed.logits).expect("it goes on") {
            return logits;
        }
    }
}

/// Before the choice all of what is blended was computed anyway: what is lost there is as if it had not been stored.
#[test]
fn what_is_blended_and_lost_before_the_choice_is_as_if_it_had_not_been_stored() {
    let mut bench = Bench::new();
    let passages = &cases()[0];
    let segments = prompt_of(passages);
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    for rule in [Rule::Cacheblend, Rule::QuestionAttention, Rule::Random] {
        let selection = Selection { layer: 2, ..Selection::by(rule) };
        let choosing = selection.choosing(bench.model.config().layers);
        let options = PlanOptions { choosing, ..PlanOptions::fixed(0.3, ReuseMode::Auto) };
        let plan = bench.plan(&segments, options);
        for lost in [2, 3] {
            let mut without = plan.clone();
            without.segments[lost].source = Source::Compute;
            let tokens = segments[lost].tokens.len() as u32;
            (without.blended_tokens, without.computed_tokens) =
                (plan.blended_tokens - tokens, plan.computed_tokens + tokens);
            for chunk_rows in [9, 16, usize::MAX] {
                bench.chunk_rows = chunk_rows;
                let loads = LayerLoads::ready(bench.layers(&segments, &without, |_| 0));
                let expected = bench.run(&segments, &without, loads, selection).expect("prefilled");
                for layer in 0..=2 {
                    let loads = bench.layers_but(&segments, &plan, lost, layer);
                    let done = bench.run(&segments, &plan, loads, selection).expect("prefilled");
                    let case = format!("{rule:?}, segment {lost}, layer {layer}, {chunk_rows} rows");
                    assert_eq!(done.logits, expected.logits, "{case}");
                    assert_eq!(done.account, expected.account, "{case}");
                }
            }
        }
    }
}

/// Behind the choice what is lost catches up; where it cannot, that is a late miss, and the prompt is planned again.
#[test]
fn behind_the_choice_what_is_lost_catches_up_or_is_a_late_miss() {
    let mut bench = Bench::new();
    let passages = &cases()[0];
    let segments = prompt_of(passages);
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    let full = bench.full(&segments);
    let gradual = Selection { schedule: Schedule::Gradual, ..Selection { layer: 1, ..Selection::default() } };
    // Rule, rows of a chunk, layer, whether it is too late.
    let table = [
        (Selection { layer: 1, ..Selection::default() }, usize::MAX, 2, false),
        (Selection { layer: 1, ..Selection::default() }, usize::MAX, 3, false),
        (Selection { layer: 1, ..Selection::default() }, 8, 3, true),
        (gradual, usize::MAX, 1, false),
        (gradual, usize::MAX, 2, true),
        (Selection::by(Rule::FirstK), 8, 2, false),
        (Selection::by(Rule::TwoStage), usize::MAX, 2, true),
        (Selection::by(Rule::None), usize::MAX, 2, false),
    ];
    for (selection, chunk_rows, layer, is_too_late) in table {
        bench.chunk_rows = chunk_rows;
        let choosing = selection.choosing(bench.model.config().layers);
        let options = PlanOptions { choosing, ..PlanOptions::fixed(0.3, ReuseMode::Auto) };
        let plan = bench.plan(&segments, options);
        let case = format!("{selection:?}, {chunk_rows} rows, layer {layer}");
        let key = plan.segments[2].source.key().expect("it is blended");
        let loads = bench.layers_but(&segments, &plan, 2, layer);
        match bench.run(&segments, &plan, loads, selection) {
            Ok(done) => {
                assert!(!is_too_late, "{case}");
                assert_adds_up(&done, tokens_of(&segments).len());
                assert_eq!(done.late_misses.iter().map(|miss| miss.id.key).collect::<Vec<_>>(), [key], "{case}");
                // As far from a full prefill as what is blended is, not further.
                let all = LayerLoads::ready(bench.layers(&segments, &plan, |_| 0));
                let blended = bench.run(&segments, &plan, all, selection).expect("prefilled");
                let (off, usual) = (difference(&done.logits, &full), difference(&blended.logits, &full));
                assert!(off <= 2.0 * usual + 1e-3, "{case}: {off}, all loaded {usual}");
            }
            Err(PrefillError::LateMiss(failed)) => {
                assert!(is_too_late, "{case}");
                assert_eq!(failed.id.key, key, "{case}");
            }
            Err(other) => panic!("{case}: {other:?}"),
        }
    }
}

/// What a plan says that is not read is not looked at.
#[test]
fn layers_that_are_not_read_are_of_no_use() {
    let bench = Bench::new();
    let passages = &cases()[0];
    let segments = prompt_of(passages);
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    let layers = bench.model.config().layers;
    let gradual = Selection { schedule: Schedule::Gradual, ..Selection::default() };
    let mut read = Vec::new();
    for selection in Rule::ALL.into_iter().map(Selection::by).chain([gradual]) {
        for ratio in [0.0, 0.3, 1.0] {
            let choosing = selection.choosing(layers);
            let plan = bench.plan(&segments, PlanOptions { choosing, ..PlanOptions::fixed(ratio, ReuseMode::Auto) });
            let from = choosing.reads_from(ratio, layers as u32);
            let is_blended = |segment: usize| matches!(plan.segments[segment].source, Source::Blend { .. });
            let needed = bench.layers(&segments, &plan, |segment| if is_blended(segment) { from } else { 0 });
            read.push(from);
            let all = LayerLoads::ready(bench.layers(&segments, &plan, |_| 0));
            let all = bench.run(&segments, &plan, all, selection).expect("prefilled");
            let done = bench.run(&segments, &plan, LayerLoads::ready(needed), selection).expect("prefilled");
            assert_eq!(done.logits, all.logits, "{selection:?} {ratio}");
            assert_eq!(done.account, all.account, "{selection:?} {ratio}");
            // And that is what is loaded.
            let fused = bench.fuse(&segments, PlanOptions { choosing, ..PlanOptions::fixed(ratio, ReuseMode::Auto) });
            let loaded = bench.run(&segments, &plan, fused.loads, selection).expect("prefilled");
            assert_eq!(loaded.logits, all.logits, "{selection:?} {ratio}");
            let bytes = |done: &Prefilled| done.loads.iter().map(|load| load.bytes).sum::<u64>();
            assert_eq!(bytes(&loaded), bytes(&done), "{selection:?} {ratio}");
        }
    }
    assert!(read.contains(&0) && read.contains(&2) && read.contains(&(layers as u32)), "{read:?}");
}

/// Lanes deal entries out by size: passages of unlike length, from the disk, are chosen from as from host memory.
#[test]
fn where_blended_passages_come_from_does_not_show() {
    let mut bench = Bench::new();
    let passages = &cases()[0];
    let segments = prompt_of(passages);
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    let selection = Selection::default();
    let (near, _) = bench.ask_selecting(&segments, PlanOptions::fixed(0.1, ReuseMode::Auto), false, selection);
    bench.reopen();
    let (far, plan) = bench.ask_selecting(&segments, PlanOptions::fixed(0.1, ReuseMode::Auto), false, selection);
    assert!(plan.segments.iter().filter(|segment| segment.source.tier() == Some(Tier::Disk)).count() >= 3, "{plan:?}");
    assert!(near.account.blended > 0);
    assert_eq!((far.logits, far.account), (near.logits, near.account));
}

/// A prompt, its loads from a disk of which every read is as `mode` says, and its full prefill's logits.
fn from_a_disk(mode: FailMode) -> (Bench, Vec<Segment>, Vec<f32>, Fused, Healed) {
    let mut bench = Bench::new();
    let segments = prompt_of(&cases()[0]);
    let full = bench.full(&segments);
    bench.ask(&segments, ReuseMode::Auto, 0.15, true);
    bench.reopen();
    let env = bench.store.env().clone();
    let healed = Healed(env.clone());
    env.set_fail_point("disk.read_frame", mode, 1);
    let fused = bench.fuse(&segments, PlanOptions::fixed(0.15, ReuseMode::Auto));
    (bench, segments, full, fused, healed)
}

#[test]
fn entries_that_are_damaged_are_named_and_computed() {
    let (bench, segments, full, fused, _healed) = from_a_disk(FailMode::Error(ErrorKind::Corrupt));
    let done = bench.run(&segments, &fused.plan, fused.loads, Selection::default()).expect("prefilled");
    assert_eq!(done.logits, full);
    assert_eq!(done.account.computed as usize, tokens_of(&segments).len());
    let mut named: Vec<KvKey> = done.late_misses.iter().map(|miss| miss.id.key).collect();
    let mut planned: Vec<KvKey> = fused.plan.segments.iter().filter_map(|segment| segment.source.key()).collect();
    named.sort();
    planned.sort();
    assert_eq!(named, planned);
    assert_eq!(done.fresh.len(), planned.len(), "all of it can be filed again");
    assert!(done.loads.is_empty(), "{:?}", done.loads);
}

#[test]
fn a_layer_that_does_not_come_in_time_is_given_up_by_name() {
    let (bench, segments, full, fused, _healed) = from_a_disk(FailMode::Hang);
    let (tokens, env) = (tokens_of(&segments), bench.store.env().clone());
    let lanes = fused.plan.segments.len() - 1;
    let prompt = bench.prompt(&tokens, &fused.plan, fused.loads, Selection::default());
    let mut prefill = Prefill::new(&bench.model, prompt);
    // The disk hangs, once every lane has come to it; the clock, which is the test's, does not.
    while prefill.waits().is_none() || env.fail_point_hits("disk.read_frame") < lanes as u64 {
        assert!(!prefill.is_ready(), "it is not there");
        std::thread::yield_now();
    }
    env.advance(Duration::from_secs(9));
    assert!(!prefill.is_ready() && prefill.waits() >= Some(Duration::from_secs(9)));
    prefill.give_up_load(Duration::from_secs(9));
    let done = finish(&bench, prefill, tokens.len());
    assert_eq!(done.logits, full);
    assert_eq!(done.late_misses.len(), lanes);
    assert!(done.late_misses.iter().all(|miss| miss.tier == Tier::Disk));
    assert!(done.load_wait_ms >= 9000.0, "{}", done.load_wait_ms);
}

/// Where all threads that load are busy: no entry is to blame.
#[test]
fn a_load_that_has_not_begun_in_time_is_given_up_without_a_name() {
    let (bench, segments, full, fused, _healed) = from_a_disk(FailMode::Off);
    let tokens = tokens_of(&segments);
    let wanted = fused.plan.segments.iter().filter_map(|planned| {
        let reader = bench.store.open_entry(&planned.source.key()?, &segments[planned.segment].tokens)?;
        Some(WantedEntry { segment: planned.segment, reader, from: 0 })
    });
    let (loads, _not_begun) = layer_loads(wanted.collect(), bench.model.config().layers as u32, &ReadAhead::default());
    let prompt = bench.prompt(&tokens, &fused.plan, loads, Selection::default());
    let mut prefill = Prefill::new(&bench.model, prompt);
    assert!(!prefill.is_ready());
    prefill.give_up_load(Duration::from_secs(9));
    let done = finish(&bench, prefill, tokens.len());
    assert_eq!(done.logits, full);
    assert!(done.late_misses.is_empty());
}

/// Where nothing more may be read ahead a prompt has one lane, which waits for it at every layer, and the same answer.
#[test]
fn a_prompt_without_room_to_read_ahead_has_one_lane() {
    // What the disk has stays there until it is read.
    let (bench, segments, full, fused, healed) = from_a_disk(FailMode::Hang);
    let layers = bench.model.config().layers as u32;
    let wanted = || {
        let wanted = fused.plan.segments.iter().filter_map(|planned| {
            let reader = bench.store.open_entry(&planned.source.key()?, &segments[planned.segment].tokens)?;
            Some(WantedEntry { segment: planned.segment, reader, from: 0 })
        });
        wanted.collect::<Vec<_>>()
    };
    let ahead = ReadAhead::default();
    assert_eq!(layer_loads(wanted(), layers, &ahead).1.len(), 4);
    let taken: Vec<LayerLoads> = (0..1000).map(|_| layer_loads(wanted(), layers, &ahead).0).collect();
    assert!(taken.len() > 256, "a MiB each at least: there is no room any more");
    let (loads, lanes) = layer_loads(wanted(), layers, &ahead);
    assert_eq!(lanes.len(), 1);
    drop(taken);
    assert_eq!(layer_loads(wanted(), layers, &ahead).1.len(), 4, "the room is there again");
    drop(healed);
    lanes.into_iter().for_each(|lane| drop(bench.runtime.spawn_blocking(lane)));
    let done = bench.run(&segments, &fused.plan, loads, Selection::default()).expect("prefilled");
    assert_eq!(done.logits, full);
}

/// While a probe runs it is too late to go on without what hangs: the prompt is to be planned again.
#[test]
fn a_probe_whose_layer_does_not_come_ends() {
    let bench = Bench::new();
    let passages = &cases()[0];
    let segments = prompt_of(passages);
    passages.iter().for_each(|passage| bench.store_standalone(passage));
    let selection = Selection::by(Rule::TwoStage);
    let choosing = selection.choosing(bench.model.config().layers);
    let plan = bench.plan(&segments, PlanOptions { choosing, ..PlanOptions::fixed(0.3, ReuseMode::Auto) });
    let wanted = plan.segments.iter().filter_map(|planned| {
        let reader = bench.store.open_entry(&planned.source.key()?, &segments[planned.segment].tokens)?;
        Some(WantedEntry { segment: planned.segment, reader, from: 0 })
    });
    let (loads, _not_begun) = layer_loads(wanted.collect(), bench.model.config().layers as u32, &ReadAhead::default());
    let tokens = tokens_of(&segments);
    let mut prefill = Prefill::new(&bench.model, bench.prompt(&tokens, &plan, loads, selection));
    assert!(!prefill.is_ready());
    prefill.give_up_load(Duration::from_secs(9));
    assert!(prefill.is_ready(), "for its failure to be told");
    let mut pool = bench.model.new_pool(tokens.len().div_ceil(BLOCK_TOKENS));
    let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
    let rider = prefill.rider(&bench.model, 16, &blocks).expect("embedded");
    let mut passed = Forward::new(&bench.model, &mut pool).pass(vec![rider]);
    let outcome = passed.outcomes.pop().expect("one rider");
    assert!(matches!(prefill.passed(&bench.model, outcome, &passed.logits), Err(PrefillError::Overdue(None))));
}

/// Runs a prefill as the engine does, in chunks of 16 rows; its loads do not come any more.
fn finish(bench: &Bench, mut prefill: Prefill<Model>, tokens: usize) -> Prefilled {
    let mut pool = bench.model.new_pool(tokens.div_ceil(BLOCK_TOKENS));
    let blocks: Vec<BlockId> = (0..pool.blocks() as u32).map(BlockId).collect();
    loop {
        assert!(prefill.is_ready());
        let rows = prefill.next_rows(16);
        assert!(rows > 0 && prefill.rows_left() >= rows && prefill.slots_needed(rows) <= tokens);
        let rider = prefill.rider(&bench.model, rows, &blocks).expect("embedded");
        let mut passed = Forward::new(&bench.model, &mut pool).pass(vec![rider]);
        let outcome = passed.outcomes.pop().expect("one rider");
        if let Some(logits) = prefill.passed(&bench.model, outcome, &passed.logits).expect("it goes on") {
            return prefill.finish(logits);
        }
    }
}
