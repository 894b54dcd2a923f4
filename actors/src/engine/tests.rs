//! The engine alone, on a small random model: bounds, cancellation, panics, batches.

use std::collections::HashMap;

use ragstone_env::FailMode;
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::sampling::SamplingParams;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::{Choosing, SegmentPlan, Source, Why};
use ragstone_storage::segment::SegmentKind;
use ragstone_storage::tier::device::DeviceOptions;

use super::device::shed_hopeless;
use super::inbox::Waiting;
use super::pace::Pace;
use super::*;
use crate::engine::status::SequencesStatus;

pub(super) fn model() -> Arc<Model> {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 128, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "float32"}"#;
    Arc::new(Model::random(ModelConfig::from_json(config).expect("a valid config"), 3, LoadOptions::default()))
}

pub(super) fn start(blocks: usize, env: &Env) -> Engine {
    let model = model();
    let block_bytes = model.kv_layout().block_bytes();
    let device = DeviceOptions { blocks, block_bytes, policy: PolicyKind::HitDensity, cache: true };
    let tier = DeviceTier::new(device).expect("a tier");
    Engine::start(model, tier, options(4), env.clone()).expect("started")
}

pub(super) fn options(max_queued: usize) -> EngineOptions {
    EngineOptions {
        max_queued,
        max_batch: 4,
        inter_token_ms: 0.0,
        reorder_window: 32,
        load_deadline: Duration::from_secs(60),
    }
}

pub(super) fn env() -> Env {
    Env::seeded(1, 0)
}

/// A plan that computes everything.
fn compute(tokens: u32) -> LoadPlan {
    let segment = SegmentPlan {
        segment: 0,
        kind: SegmentKind::Question,
        range: 0..tokens,
        position: 0,
        source: Source::Compute,
        why: Why::NotStored,
        tiers: Vec::new(),
        bytes: 0,
        predicted: None,
        store_as: None,
        exact_key: None,
        device_key: None,
        parent: None,
    };
    LoadPlan {
        segments: vec![segment],
        epoch: 0,
        ratio: 0.15,
        choosing: Choosing { layer: 1, probed: 0, looked: 0 },
        prediction: None,
        in_tiers: Vec::new(),
        total_tokens: tokens,
        exact_tokens: 0,
        blended_tokens: 0,
        computed_tokens: tokens,
        root_key: None,
        files_answer: false,
        missing_standalone: Vec::new(),
    }
}

type Reply = oneshot::Receiver<Result<PrefillReport, PrefillError>>;

pub(super) fn job(seed: u32, length: u32, max_tokens: usize) -> (Job, Reply, mpsc::Receiver<Decoded>) {
    let tokens: Vec<u32> = (0..length).map(|i| (seed * 17 + i * 5) % 64).collect();
    let (output, decoded) = mpsc::channel(max_tokens + 1);
    let params = SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() };
    let decode = DecodeSpec {
        sampler: Sampler::new(params),
        max_tokens,
        end_tokens: [].into(),
        file: None,
        resume: None,
        lookup: Lookup::default(),
        is_begun: false,
        output,
    };
    let (reply, prefilled) = oneshot::channel();
    let (plan, loads) = (compute(length), LayerLoads::none());
    let (tokens, decode, selection, tenant) = (tokens.into(), vec![decode], Selection::default(), "tests".into());
    let queued = Stopwatch::start();
    let within = Duration::from_secs(600);
    let job = Job {
        tokens,
        plan,
        loads,
        device: None,
        selection,
        decode,
        caller: Caller::default(),
        tenant,
        reply,
        queued,
        within,
        hold: None,
        computed: ComputeTime::default(),
    };
    (job, prefilled, decoded)
}

/// All tokens of an answer, and how it ended.
pub(super) fn drain(mut decoded: mpsc::Receiver<Decoded>) -> (Vec<u32>, Option<FinishReason>) {
    let mut ids = Vec::new();
    while let Some(item) = decoded.blocking_recv() {
        match item {
            Decoded::EndToken(_) => {}
            Decoded::Token(sampled) => ids.push(sampled.id),
            Decoded::End(reason) => return (ids, Some(reason)),
            Decoded::Failed(error) => panic!("{error}"),
        }
    }
    (ids, None)
}

pub(super) fn alone(seed: u32, length: u32, max_tokens: usize) -> Vec<u32> {
    let (job, _reply, decoded) = job(seed, length, max_tokens);
    let engine = start(32, &env());
    engine.submit(job, Urgency::Answer).expect("queued");
    drain(decoded).0
}

#[test]
fn a_batch_gives_every_sequence_the_tokens_it_gets_alone() {
    let engine = start(32, &env());
    let asked: Vec<(u32, u32, usize)> = vec![(1, 9, 12), (2, 31, 5), (3, 16, 20)];
    let running: Vec<_> = asked
        .iter()
        .map(|(seed, length, max_tokens)| {
            let (job, reply, decoded) = job(*seed, *length, *max_tokens);
            engine.submit(job, Urgency::Answer).expect("queued");
            (reply, decoded)
        })
        .collect();
    for ((seed, length, max_tokens), (_reply, decoded)) in asked.into_iter().zip(running) {
        let (ids, reason) = drain(decoded);
        assert_eq!(reason, Some(FinishReason::Length));
        assert_eq!(ids, alone(seed, length, max_tokens));
    }
    wait_for_blocks(&engine, 32);
}

#[test]
fn a_panic_costs_its_request_only() {
    let env = env();
    let engine = start(32, &env);
    env.set_fail_point("engine.prefill", FailMode::Panic, 1);
    let (first, reply, _decoded) = job(1, 9, 4);
    engine.submit(first, Urgency::Answer).expect("queued");
    assert!(matches!(reply.blocking_recv().expect("answered"), Err(PrefillError::Failed(_))));
    env.set_fail_point("engine.prefill", FailMode::Off, 1);
    let (second, reply, decoded) = job(1, 9, 4);
    engine.submit(second, Urgency::Answer).expect("queued");
    assert!(reply.blocking_recv().expect("answered").is_ok());
    assert_eq!(drain(decoded).0, alone(1, 9, 4));
    wait_for_blocks(&engine, 32);
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let engine = start(4, &env());
    for (length, max_tokens) in [(120, 9), (60, 5)] {
        let (job, _reply, _decoded) = job(1, length, max_tokens);
        let error = engine.submit(job, Urgency::Answer).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::ContextLength);
    }
}

#[test]
fn a_full_pool_makes_the_next_request_wait_not_fail() {
    let engine = start(4, &env());
    let jobs: Vec<_> = (0..3).map(|seed| job(seed, 40, 20)).collect();
    let mut answers = Vec::new();
    for (job, reply, decoded) in jobs {
        engine.submit(job, Urgency::Answer).expect("queued");
        answers.push((reply, decoded));
    }
    for (seed, (_reply, decoded)) in answers.into_iter().enumerate() {
        assert_eq!(drain(decoded).0, alone(seed as u32, 40, 20));
    }
}

#[test]
fn what_nobody_waits_for_any_more_is_passed_over_and_takes_no_place_in_the_queue() {
    let env = env();
    let engine = start(32, &env);
    env.set_fail_point("engine.prefill", FailMode::Off, 1);
    // Whoever waits for tokens leaves without them; three times what the queue has room for.
    for seed in 0..12 {
        let (job, reply, decoded) = job(seed, 40, 20);
        drop(decoded);
        engine.submit(job, Urgency::Answer).expect("room");
        drop(reply);
    }
    let (wanted, reply, _decoded) = job(1, 9, 4);
    engine.submit(wanted, Urgency::Answer).expect("room");
    assert!(reply.blocking_recv().expect("answered").is_ok());
    assert_eq!(env.fail_point_hits("engine.prefill"), 1, "only what was wanted");
}

/// At a tenth of a second a row each of these takes four seconds.
fn four_seconds(caller: Caller, within: u64) -> Job {
    let mut job = job(1, 40, 4).0;
    (job.caller, job.within) = (caller, Duration::from_secs(within));
    // Nobody has to wait for it: it is only queued.
    job.decode.clear();
    job.reply = kept_open();
    job
}

fn kept_open() -> oneshot::Sender<Result<PrefillReport, PrefillError>> {
    let (reply, prefilled) = oneshot::channel();
    std::mem::forget(prefilled);
    reply
}

#[test]
fn what_the_queue_cannot_serve_in_time_is_refused_at_once_and_callers_wait_for_their_own() {
    let (inbox, hog, other) = (Inbox::new(8), Caller::of([127, 0, 0, 1].into()), Caller::of([127, 0, 0, 2].into()));
    let refused = |caller, within| inbox.push(four_seconds(caller, within), Urgency::Answer).err();
    assert!(refused(hog, 1).is_none(), "nothing is known of the pace");
    inbox.look(Vec::clear);
    inbox.note_pace(100.0, HashMap::new(), (0, false));
    assert!(refused(hog, 1).is_none(), "it has nothing to do");
    inbox.look(Vec::clear);
    assert!(refused(hog, 60).is_none() && refused(hog, 60).is_none() && refused(hog, 60).is_none());
    let error = refused(hog, 15).expect("sixteen seconds");
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert!(error.to_string().contains("work for 16 s"), "{error}");
    assert!(refused(other, 9).is_none(), "it waits for one of the hog's");
    assert!(inbox.push(four_seconds(hog, 1), Urgency::Background).is_ok());
    // What has begun counts; of blended tokens, those that are chosen.
    inbox.look(Vec::clear);
    inbox.note_pace(100.0, HashMap::from([(hog, 500)]), (7, false));
    assert!(refused(hog, 50).is_some() && refused(hog, 60).is_none());
    let mut blended = four_seconds(other, 5);
    (blended.plan.computed_tokens, blended.plan.blended_tokens, blended.plan.ratio) = (10, 1000, 0.01);
    assert!(inbox.push(blended, Urgency::Answer).is_ok(), "twenty rows, and as many of the hog's");
}

#[test]
fn the_load_counts_all_but_background_work_and_answers_that_decode_leave_no_room() {
    let (inbox, caller) = (Inbox::new(8), Caller::default());
    assert_eq!(inbox.load(512), Load { pending: 0, most: 512 });
    inbox.note_pace(1.0, HashMap::from([(caller, 100)]), (20, false));
    for (urgency, hold) in
        [(Urgency::Answer, None), (Urgency::Speculative, Some(Hold::default())), (Urgency::Background, None)]
    {
        inbox.push(Job { hold, ..four_seconds(caller, 60) }, urgency).expect("queued");
    }
    assert_eq!(inbox.load(512), Load { pending: 200, most: 512 });
    inbox.note_pace(1.0, HashMap::new(), (0, true));
    assert!(!inbox.load(512).has_room());
}

#[test]
fn who_waits_is_counted_beside_who_has_begun() {
    let (inbox, caller) = (Inbox::new(8), Caller::default());
    assert_eq!(inbox.sequences(), SequencesStatus::default());
    for urgency in [Urgency::Answer, Urgency::Answer, Urgency::Background] {
        inbox.push(four_seconds(caller, 60), urgency).expect("queued");
    }
    // Nobody waits for its answer: it takes no place.
    let left = Job { reply: oneshot::channel().0, ..four_seconds(caller, 60) };
    inbox.push(left, Urgency::Answer).expect("queued");
    inbox.note_begun(SequencesStatus { decoding: 4, background: 1, ..SequencesStatus::default() });
    let expected = SequencesStatus { waiting: 2, decoding: 4, background: 2, ..SequencesStatus::default() };
    assert_eq!(inbox.sequences(), expected);
}

#[test]
fn what_cannot_be_met_any_more_leaves_the_queue() {
    let mut pace = Pace::default();
    pace.observe(0, 200, 20_000.0);
    let waiting = |within| Waiting {
        id: within,
        urgency: Urgency::Answer,
        overtaken: 0,
        job: four_seconds(Caller::default(), within),
    };
    let mut queue = vec![waiting(3), waiting(5), waiting(2)];
    shed_hopeless(&mut queue, &pace, false);
    assert_eq!(queue.iter().map(|waiting| waiting.id).collect::<Vec<_>>(), [5]);
    shed_hopeless(&mut queue, &Pace::default(), true);
    let mut alone = vec![waiting(1)];
    shed_hopeless(&mut alone, &pace, false);
    assert_eq!((queue.len(), alone.len()), (1, 1), "one alone is to show what the engine can");
    shed_hopeless(&mut alone, &pace, true);
    assert!(alone.is_empty());
}

/// As if the pass took 20 ms, in the middle of a prefill that nobody may ever ask for the end of.
#[test]
fn what_a_prefill_takes_is_counted_before_its_end() {
    let env = env();
    let engine = start(32, &env);
    env.set_fail_point("engine.device", FailMode::Hang, 1);
    let (job, mut reply, _decoded) = job(1, 40, 4);
    let (computed, begun) = (job.computed.clone(), Stopwatch::start());
    engine.submit(Job { hold: Some(Hold::default()), ..job }, Urgency::Speculative).expect("queued");
    let wait = |is_there: &dyn Fn() -> bool| {
        while !is_there() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.load());
            std::thread::yield_now();
        }
    };
    wait(&|| env.fail_point_hits("engine.device") > 0);
    env.advance(Duration::from_millis(20));
    env.set_fail_point("engine.device", FailMode::Off, 1);
    wait(&|| computed.ms() > 0.0);
    assert!(computed.ms() > 19.0, "{}", computed.ms());
    assert!(reply.try_recv().is_err(), "it waits to be released");
}

#[test]
fn a_caller_that_goes_away_frees_its_blocks() {
    let engine = start(8, &env());
    let (first, reply, decoded) = job(1, 40, 80);
    engine.submit(first, Urgency::Answer).expect("queued");
    assert!(reply.blocking_recv().expect("answered").is_ok());
    drop(decoded);
    // It needs every block, so it starts only once the abandoned sequence is gone.
    let (second, _reply, decoded) = job(2, 100, 28);
    engine.submit(second, Urgency::Answer).expect("queued");
    assert_eq!(drain(decoded).0.len(), 28);
}

#[test]
fn a_prompt_that_needs_every_block_is_served_beside_others() {
    // 60 tokens and 40 more in 7 blocks, three of them: each is swapped out again and again.
    let engine = start(9, &env());
    let jobs: Vec<_> = (0..3).map(|seed| job(seed, 60, 40)).collect();
    let mut answers = Vec::new();
    for (job, reply, decoded) in jobs {
        engine.submit(job, Urgency::Answer).expect("queued");
        answers.push((reply, decoded));
    }
    for (seed, (_reply, decoded)) in answers.into_iter().enumerate() {
        assert_eq!(drain(decoded).0, alone(seed as u32, 60, 40), "prompt {seed}");
    }
    wait_for_blocks(&engine, 9);
}

#[test]
fn answers_are_the_same_in_a_pool_so_small_that_all_are_preempted() {
    // Prompts are short, so that all are admitted; answers are long, so that none fits beside another to its end.
    let engine = start(12, &env());
    let asked: Vec<(u32, u32, usize)> = (0..4).map(|seed| (seed, 20 + seed, 100)).collect();
    let running: Vec<_> = asked
        .iter()
        .map(|(seed, length, more)| {
            let (job, reply, decoded) = job(*seed, *length, *more);
            engine.submit(job, Urgency::Answer).expect("queued");
            (reply, decoded)
        })
        .collect();
    for ((seed, length, more), (_reply, decoded)) in asked.into_iter().zip(running) {
        assert_eq!(drain(decoded).0, alone(seed, length, more), "prompt {seed}");
    }
    assert!(engine.status().preemptions > 2, "{}", engine.status().preemptions);
    wait_for_blocks(&engine, 12);
}

/// Every block comes back, a moment after the last token.
pub(super) fn wait_for_blocks(engine: &Engine, blocks: usize) {
    let begun = Stopwatch::start();
    while engine.status().free_blocks < blocks {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} of {blocks} blocks came back",
            engine.status().free_blocks
        );
        std::thread::yield_now();
    }
}

#[test]
fn several_answers_share_their_prompt() {
    let engine = start(32, &env());
    let (mut group, reply, first) = job(3, 40, 12);
    let (other, _other_reply, second) = job(3, 40, 12);
    group.decode.extend(other.decode);
    engine.submit(group, Urgency::Answer).expect("queued");
    assert!(reply.blocking_recv().expect("answered").is_ok());
    let expected = alone(3, 40, 12);
    assert_eq!((drain(first).0, drain(second).0), (expected.clone(), expected));
    wait_for_blocks(&engine, 32);
}

#[test]
fn blocks_come_as_answers_grow() {
    let engine = start(32, &env());
    let (job, reply, mut decoded) = job(1, 20, 90);
    engine.submit(job, Urgency::Answer).expect("queued");
    assert!(reply.blocking_recv().expect("answered").is_ok());
    decoded.blocking_recv().expect("a token");
    // 20 tokens are two blocks; not the seven of its whole answer at once.
    drop(decoded);
    wait_for_blocks(&engine, 32);
}
