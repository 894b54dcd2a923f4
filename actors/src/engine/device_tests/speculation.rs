//! Speculative prefills under the real engine: what is confirmed has the bits of any other answer, and what is not leaves nothing.

use super::*;

/// Waits until all that was queued is computed, and waits for its confirmation.
fn wait_until_held(bench: &Bench) {
    let begun = Stopwatch::start();
    let is_done = || bench.engine.load().pending == 0;
    while !is_done() || bench.engine.status().free_blocks == bench.engine.status().blocks {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", bench.engine.load());
        std::thread::yield_now();
    }
}

fn prompt() -> [Segment; 4] {
    [root(9), passage(2, 33), passage(3, 20), question(11)]
}

#[test]
fn what_is_confirmed_goes_on_and_is_kept_as_any_other() {
    for waits in [false, true] {
        let bench = Bench::new(64);
        let cold = bench.cold(&prompt());
        let hold = Hold::default();
        let fused = bench.fuse(&prompt(), ReuseMode::Auto);
        let (mut reply, mut decoded) = bench.submit_held(&prompt(), fused, 6, Some(hold.clone()));
        if waits {
            wait_until_held(&bench);
            assert!(reply.try_recv().is_err() && decoded.try_recv().is_err(), "it waits to be confirmed");
            assert_eq!(bench.tier.status().entries, 0, "nothing is on the device before");
        }
        bench.engine.release(&hold);
        let Ok(Ok(prefill)) = reply.blocking_recv() else { panic!("not prefilled") };
        assert_eq!(drain(&mut decoded), cold);
        assert_eq!((prefill.account.computed, prefill.fresh.len()), (73, 3));
        let (again, asked) = bench.ask(&prompt(), ReuseMode::Auto);
        assert_eq!((letters(&asked.plan).as_str(), again), ("DDDC", cold));
        bench.close();
    }
}

#[test]
fn what_is_cancelled_leaves_nothing() {
    let bench = Bench::new(64);
    let (device, store) = (bench.tier.status(), bench.store.status());
    for waits in [false, true] {
        let fused = bench.fuse(&prompt(), ReuseMode::Auto);
        let (reply, decoded) = bench.submit_held(&prompt(), fused, 6, Some(Hold::default()));
        if waits {
            wait_until_held(&bench);
        }
        drop((reply, decoded));
        let status = bench.status();
        assert_eq!((status.free_blocks, status.cached_blocks), (64, 0));
    }
    let (device_after, store_after) = (bench.tier.status(), bench.store.status());
    assert_eq!((device_after.entries, device_after.bytes), (device.entries, device.bytes));
    assert_eq!((store_after.host.entries, store_after.disk.entries), (store.host.entries, store.disk.entries));
    bench.close();
}

/// Eight blocks: the speculative prompt holds five, and the other needs six.
#[test]
fn whoever_needs_its_blocks_has_them() {
    let bench = Bench::with(8, true);
    let other = [root(9), passage(4, 60), question(11)];
    let cold = bench.cold(&other);
    let hold = Hold::default();
    let (reply, _decoded) = bench.submit_held(&prompt(), bench.fuse(&prompt(), ReuseMode::Auto), 6, Some(hold.clone()));
    wait_until_held(&bench);
    assert_eq!(bench.ask(&other, ReuseMode::Auto).0, cold);
    let ended = reply.blocking_recv().expect("told");
    assert!(matches!(ended, Err(PrefillError::Interrupted(Interruption::Preempted))));
    bench.engine.release(&hold);
    assert_eq!(bench.engine.status().preemptions, 0, "it is not swapped out, nor counted");
    bench.close();
}
