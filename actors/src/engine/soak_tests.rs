//! Mixed requests in a pool so small that most are preempted: prompts and groups of answers that are read to the end, hung up on
//! while they wait, compute or decode, or out of time. Nothing hangs, answers are right, and every block comes back.

use std::collections::{HashMap, VecDeque};

use super::tests::{alone, drain, env, job, model, options};
use super::*;
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::tier::device::DeviceOptions;

const BLOCKS: usize = 12;
const LONGEST: usize = 128;
const OUTSTANDING: usize = 12;

/// How a client behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Reads,
    /// Leaves at once.
    Leaves,
    /// Leaves after so many tokens.
    HangsUp(usize),
    /// Has no time.
    IsLate,
}

struct Asked {
    manner: Manner,
    key: (u32, u32),
    reply: oneshot::Receiver<Result<PrefillReport, PrefillError>>,
    answers: Vec<mpsc::Receiver<Decoded>>,
}

#[derive(Default, Debug)]
struct Seen {
    right: usize,
    left: usize,
    late: usize,
}

fn soak(requests: usize, seed: u64) -> Seen {
    let (model, mut random) = (model(), fastrand::Rng::with_seed(seed));
    let block_bytes = model.kv_layout().block_bytes();
    let device = DeviceOptions { blocks: BLOCKS, block_bytes, policy: PolicyKind::HitDensity, cache: true };
    let tier = DeviceTier::new(device).expect("a tier");
    let engine = Engine::start(model, tier, options(2 * OUTSTANDING), env()).expect("started");
    let (mut expected, mut outstanding, mut seen) = (HashMap::new(), VecDeque::new(), Seen::default());
    for _ in 0..requests {
        if outstanding.len() == OUTSTANDING {
            // Any of them: the oldest are not always the first to be read.
            let next = random.usize(..outstanding.len());
            end(outstanding.swap_remove_back(next).expect("there"), &mut expected, &mut seen);
        }
        outstanding.extend(ask(&engine, &mut random, &mut seen));
    }
    outstanding.into_iter().for_each(|asked| end(asked, &mut expected, &mut seen));
    // Those that were hung up on last leave at the next step.
    while engine.status().free_blocks < BLOCKS {
        std::thread::yield_now();
    }
    assert!(engine.status().preemptions as usize > requests / 20, "{}", engine.status().preemptions);
    seen
}

fn ask(engine: &Engine, random: &mut fastrand::Rng, seen: &mut Seen) -> Option<Asked> {
    let manner = match random.u8(..8) {
        0..4 => Manner::Reads,
        4 => Manner::Leaves,
        5 | 6 => Manner::HangsUp(random.usize(..20)),
        _ => Manner::IsLate,
    };
    let key = (random.u32(..5), 8 * random.u32(1..9));
    let more = random.usize(1..LONGEST - key.1 as usize);
    let (mut job, reply, first) = job(key.0, key.1, more);
    job.caller = Caller::of([127, 0, 0, random.u8(..4)].into());
    if manner == Manner::IsLate {
        job.within = Duration::from_nanos(1);
    }
    let mut answers = vec![first];
    let lookup = if random.bool() { super::draft_tests::lookup() } else { Lookup::default() };
    // A group, where all of it fits.
    if random.u8(..4) == 0 && key.1 as usize + 2 * (more + 16) <= BLOCKS * 8 {
        let (other, _, second) = super::tests::job(key.0, key.1, more);
        job.decode.extend(other.decode);
        answers.push(second);
    }
    job.decode.iter_mut().for_each(|decode| decode.lookup = lookup.clone());
    match engine.submit(job, Urgency::Answer) {
        Ok(()) => Some(Asked { manner, key, reply, answers }),
        Err(error) if manner == Manner::IsLate && error.kind() == ErrorKind::Overloaded => {
            seen.late += 1;
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn end(asked: Asked, expected: &mut HashMap<(u32, u32), Vec<u32>>, seen: &mut Seen) {
    let Asked { manner, key, reply, answers } = asked;
    match manner {
        Manner::Leaves => seen.left += 1,
        Manner::HangsUp(tokens) => {
            for mut answer in answers {
                (0..tokens).map_while(|_| answer.blocking_recv()).for_each(drop);
            }
            seen.left += 1;
        }
        Manner::Reads | Manner::IsLate => match reply.blocking_recv().expect("it ends") {
            Ok(_) => {
                let (seed, length) = key;
                let whole = expected.entry(key).or_insert_with(|| alone(seed, length, LONGEST - length as usize));
                for answer in answers {
                    let (ids, reason) = drain(answer);
                    assert_eq!((&ids[..], reason), (&whole[..ids.len()], Some(FinishReason::Length)));
                }
                seen.right += 1;
            }
            Err(PrefillError::Failed(error)) if manner == Manner::IsLate => {
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                seen.late += 1;
            }
            Err(error) => panic!("{error:?}"),
        },
    }
}

#[test]
fn mixed_requests_in_a_tiny_pool_end_well() {
    let seen = soak(400, 1);
    assert!(seen.right > 100 && seen.left > 50 && seen.late > 20, "{seen:?}");
}

/// `cargo nextest run -p ragstone-actors --run-ignored only ten_thousand`
#[test]
#[ignore = "half a minute; docs/results/serving.md has its figures"]
fn ten_thousand_mixed_requests_in_a_tiny_pool_end_well() {
    for seed in 2..7 {
        let seen = soak(2000, seed);
        println!("seed {seed}: {seen:?}");
    }
}
