//! What the engine says about the prompts it has.

use super::*;
use crate::engine::status::SequencesStatus;

/// The engine counts before each step, and a prompt is answered within one.
fn until(bench: &Bench, expected: SequencesStatus) {
    let begun = Stopwatch::start();
    while bench.engine.status().sequences != expected {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", bench.engine.status().sequences);
        std::thread::yield_now();
    }
}

#[test]
fn a_prompt_that_waits_for_its_kv_is_counted_as_loading_until_it_comes() {
    let bench = Bench::with(64, false);
    let prompt = [root(9), passage(2, 33), question(11)];
    bench.ask(&prompt, ReuseMode::ExactOnly);
    assert!(bench.store.drain(Duration::from_secs(60)));
    until(&bench, SequencesStatus::default());
    for (index, segment) in prompt[..2].iter().enumerate() {
        let id = bench.store.id(&bench.key(&prompt, index), &segment.tokens);
        bench.store.evict(&id, Tier::Host).expect("evicted");
    }
    bench.store.env().set_fail_point("disk.read_frame", FailMode::Hang, 1);
    let one = |urgency| {
        let (reply, _decoded) = bench.submit_as(&prompt, bench.fuse(&prompt, ReuseMode::ExactOnly), 0, None, urgency);
        bench.settle();
        reply
    };
    let answer = one(Urgency::Answer);
    until(&bench, SequencesStatus { loading: 1, ..SequencesStatus::default() });
    let background = one(Urgency::Background);
    until(&bench, SequencesStatus { loading: 1, background: 1, ..SequencesStatus::default() });
    bench.store.env().set_fail_point("disk.read_frame", FailMode::Off, 1);
    for reply in [answer, background] {
        assert!(matches!(reply.blocking_recv(), Ok(Ok(_))));
    }
    until(&bench, SequencesStatus::default());
    bench.close();
}
