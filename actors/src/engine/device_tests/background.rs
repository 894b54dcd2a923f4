//! Background work under the real engine, where answers need what it has.

use super::*;

/// Eight blocks: background work that waits for its load holds some and was promised most, and the answer needs six.
#[test]
fn an_answer_has_the_blocks_of_background_work_and_what_it_was_promised() {
    for held in [false, true] {
        let bench = Bench::with(8, held);
        let work = [root(9), passage(2, 33), passage(3, 20), question(11)];
        let other = [root(9), passage(4, 60), question(11)];
        let cold = bench.cold(&other);
        bench.ask(&work, ReuseMode::ExactOnly);
        assert!(bench.store.drain(Duration::from_secs(60)));
        let env = bench.store.env().clone();
        for (index, segment) in work[..3].iter().enumerate() {
            let id = bench.store.id(&bench.key(&work, index), &segment.tokens);
            bench.store.evict(&id, Tier::Host).expect("evicted");
        }
        if held {
            // It is found on the device; what stands behind it is not.
            bench.tier.clear();
            bench.ask(&[root(9), passage(2, 33), question(1)], ReuseMode::ExactOnly);
        }
        env.set_fail_point("disk.read_frame", FailMode::Hang, 1);
        let fused = bench.fuse(&work, ReuseMode::ExactOnly);
        assert_eq!(letters(&fused.plan), if held { "DDHC" } else { "HHHC" });
        let (reply, _decoded) = bench.submit_as(&work, fused, 0, None, Urgency::Background);
        bench.settle();
        assert_eq!(bench.ask(&other, ReuseMode::Off).0, cold);
        let preempted = |ended| matches!(ended, Err(PrefillError::Interrupted(Interruption::Preempted)));
        env.set_fail_point("disk.read_frame", FailMode::Off, 1);
        let ended = reply.blocking_recv().expect("told");
        assert_eq!(preempted(ended), held, "it ends where it has what the answer needs");
        assert_eq!(bench.engine.status().preemptions, u64::from(held));
        bench.close();
    }
}
