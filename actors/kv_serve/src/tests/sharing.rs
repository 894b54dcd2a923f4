//! Who shares what with whom.

use super::*;

#[test]
fn whatever_differs_in_a_namespace_nothing_is_hit() {
    let place = Place::new(PLENTY, PLENTY);
    let _daemon = place.daemon();
    place.engine("first", &namespace()).store(&[1]);
    let json = serde_json::to_value(namespace()).unwrap();
    for (field, value) in json.as_object().unwrap() {
        let mut changed = json.clone();
        changed[field] = match (field.as_str(), value.as_u64()) {
            (_, Some(number)) => (number + 1).into(),
            ("weights", _) => "c0ffee01".repeat(8).into(),
            _ => format!("{}-other", value.as_str().unwrap()).into(),
        };
        let mut other = place.engine(field, &serde_json::from_value(changed).unwrap());
        assert_eq!(other.has(&[1], false), [false], "{field}");
        assert_eq!(other.load(&[1]), [false], "{field}");
    }
    let mut other = place.silent_engine("other-size");
    let hello = Hello { block_bytes: BLOCK - 4, ..other.hello_of(&namespace()) };
    other.client.call(&Request::Hello(hello.into())).unwrap();
    assert_eq!(other.has(&[1], false), [false], "other blocks");
    assert_eq!(place.engine("again", &namespace()).load(&[1]), [true], "what one stored another hits");
}

#[test]
fn two_clients_at_once_get_what_is_right() {
    let place = Place::new(PLENTY, PLENTY);
    let _daemon = place.daemon();
    let namespaces = [namespace(), namespace(), Namespace { isa: "avx2".into(), ..namespace() }];
    let engines = namespaces.iter().zip(0..).map(|(namespace, of)| place.engine(&format!("e{of}"), namespace));
    let threads: Vec<_> = engines
        .enumerate()
        .map(|(of, mut engine)| {
            let work = move || {
                for round in 0..30_u64 {
                    let ids: Vec<u64> = (0..5).map(|at| (round * 3 + at) % 40).collect();
                    engine.store(&ids);
                    assert_eq!(engine.load(&ids), [true; 5], "client {of}");
                }
            };
            Env::spawn("test-client", work).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_pinned_block_outlives_what_is_stored_after_it_until_the_lease_ends() {
    let place = Place::new(10 * 4600, 0);
    let daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1, 2]);
    assert_eq!(engine.has(&[1], true), [true]);
    (10..40).for_each(|id| drop(engine.store(&[id])));
    assert_eq!(engine.has(&[1, 2], false), [true, false]);
    assert_eq!(engine.release(&[1, 2]), 1);
    (40..60).for_each(|id| drop(engine.store(&[id])));
    assert_eq!(engine.has(&[1], false), [false]);
    // Never more than half of the tier.
    let all: Vec<u64> = (50..60).collect();
    let has = engine.has(&all, true).into_iter().filter(|has| *has).count();
    assert!(has >= 8 && daemon.blocks().pinned_bytes() <= 5 * 4600, "{has}");
    place.env.advance(Duration::from_secs(61));
    assert_eq!(engine.release(&all), 0, "the lease is over");
    assert_eq!(daemon.blocks().pinned_bytes(), 0);
    // One that dies gives its pins back.
    engine.has(&[59], true);
    assert!(daemon.blocks().pinned_bytes() > 0);
    drop(engine);
    wait_until(|| daemon.blocks().pinned_bytes() == 0);
}

/// A chain is evicted from its end: a prefix without a hole is what an engine can use.
#[test]
fn a_chain_is_evicted_from_its_end() {
    let place = Place::new(8 * 4600, 0);
    let _daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1, 2, 3, 4, 5, 6]);
    engine.store(&[11, 12, 13, 14]);
    let has = engine.has(&[1, 2, 3, 4, 5, 6], false);
    assert!(has[0] && !has[5], "{has:?}");
    assert!(has.is_sorted_by(|a, b| a >= b), "a hole: {has:?}");
}

#[test]
fn done_is_answered_when_every_job_has_ended_and_then_the_connection_ends() {
    let place = Place::new(PLENTY, 0);
    let _daemon = place.daemon();
    let mut engine = place.engine("e", &namespace());
    engine.store(&[1]);
    let reply = engine.client.call(&Request::Done { id: 7 }).unwrap();
    assert_eq!(reply, Reply::Done { id: 7 });
    assert!(engine.client.call(&Request::Status { id: 8 }).is_err());
}

#[test]
fn a_status_of_many_namespaces_fits_into_a_message() {
    let place = Place::new(PLENTY, 0);
    let daemon = place.daemon();
    let mut engine = place.silent_engine("e");
    let say_hello = |namespace: Namespace| drop(daemon.blocks().space(&namespace, BLOCK).unwrap());
    for number in 0..80 {
        let long = |name: &str| format!("{name} {number} {}", "x".repeat(4000));
        let (layout, groups, isa, engine) = (long("layout"), long("groups"), long("isa"), long("engine"));
        say_hello(Namespace { layout, groups, isa, engine, ..namespace() });
    }
    let status = engine.status();
    assert_eq!((status.namespaces.len(), status.left_out), (80, 0));
    assert!(status.namespaces.iter().all(|of| of.description.is_none() && of.namespace.len() == 64));
    for number in 0..400 {
        say_hello(Namespace { tenant: format!("{number} {}", "x".repeat(4000)), ..namespace() });
    }
    let status = engine.status();
    assert!(status.left_out > 0 && status.namespaces.len() > 100, "{}", status.left_out);
    assert_eq!(status.namespaces.len() as u64 + status.left_out, 480);
}
