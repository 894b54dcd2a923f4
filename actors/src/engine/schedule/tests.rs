use super::*;

const WINDOW: u32 = 32;

const LIMITS: Limits = Limits {
    window: WINDOW,
    rows: 100,
    background_rows: 0,
    decoding_rows: usize::MAX,
    sequences: 8,
    free_blocks: 100,
    watermark_blocks: 1,
};

fn at(id: u64, phase: Phase) -> View {
    View {
        id,
        owner: Owner::default(),
        background: false,
        speculative: false,
        tails: 1,
        cached: 0,
        to_compute: 40,
        most_rows: usize::MAX,
        overtaken: 0,
        left_out: 0,
        blocks: 4,
        promised: 0,
        phase,
    }
}

fn nobody() -> Served {
    Served { callers: vec![0], tenants: vec![0] }
}

fn waiting(id: u64) -> View {
    at(id, Phase::Waiting { prompt_blocks: 3 })
}

fn decoding(id: u64, more_blocks: usize) -> View {
    drafting(id, more_blocks, 0, 0)
}

fn drafting(id: u64, more_blocks: usize, drafts: usize, draft_blocks: usize) -> View {
    at(id, Phase::Decoding { rows: 1, more_blocks, drafts, draft_blocks })
}

fn rows(step: &Step) -> Vec<(u64, usize)> {
    step.rows.clone()
}

/// Where every row has its logits, chunks are shorter; what they leave of a step is others'.
#[test]
fn a_chunk_is_no_longer_than_it_may_be() {
    let described = View { to_compute: 400, most_rows: 30, ..at(1, Phase::Prefilling { chunk: None, more_blocks: 2 }) };
    let long = View { to_compute: 4000, ..at(2, Phase::Prefilling { chunk: None, more_blocks: 7 }) };
    let step = schedule(&[described, long], &nobody(), LIMITS);
    assert_eq!(rows(&step), [(1, 30), (2, LIMITS.rows - 30)]);
}

#[test]
fn everybody_decodes_and_the_rest_of_the_rows_prefills() {
    let long = View { to_compute: 4000, ..at(2, Phase::Prefilling { chunk: None, more_blocks: 7 }) };
    let views = [decoding(0, 0), decoding(1, 1), long, waiting(3), at(4, Phase::Loading)];
    // The short prompt first: with nothing cached, the fewer tokens the more each is worth.
    let step = schedule(&views, &nobody(), LIMITS);
    assert_eq!(rows(&step), [(0, 1), (1, 1), (3, 40), (2, 60)]);
    assert!(step.swap_out.is_empty() && step.swap_in.is_empty());
}

#[test]
fn what_is_cached_goes_first_and_nobody_waits_for_ever() {
    let cached = View { cached: 400, to_compute: 40, ..waiting(7) };
    let mut views = [waiting(1), cached, View { to_compute: 90, ..waiting(2) }];
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(7, 40), (1, 40), (2, 20)]);
    views[2].overtaken = WINDOW;
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(2, 90), (7, 10)]);
    // One that was overtaken often enough and does not fit keeps all others from beginning.
    views[2].phase = Phase::Waiting { prompt_blocks: 1000 };
    let running = decoding(0, 0);
    let views = [running, views[0].clone(), views[1].clone(), views[2].clone()];
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(0, 1)]);
    // With no window all are in the order they came.
    let fifo = Limits { window: 0, ..LIMITS };
    let order = [waiting(1), View { cached: 400, ..waiting(7) }, waiting(2)];
    assert_eq!(rows(&schedule(&order, &nobody(), fifo)), [(1, 40), (2, 40), (7, 20)]);
    // Before that it lets others go by.
    let views = [views[0].clone(), waiting(1), at(2, Phase::Waiting { prompt_blocks: 1000 })];
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(0, 1), (1, 40)]);
}

#[test]
fn callers_have_equal_shares_and_so_have_the_tenants_of_each() {
    let of = |id, caller, tenant| View { owner: Owner { caller, tenant }, to_compute: 30, ..waiting(id) };
    let served = |callers: [u64; 2], tenants: [u64; 3]| Served { callers: callers.into(), tenants: tenants.into() };
    let views = [of(1, 0, 0), of(2, 0, 0), of(3, 0, 0), of(4, 1, 1)];
    let order = |views: &[View], served| rows(&schedule(views, &served, LIMITS));
    assert_eq!(order(&views, served([0, 0], [0, 0, 0])), [(1, 30), (4, 30), (2, 30), (3, 10)]);
    assert_eq!(order(&views, served([500, 0], [500, 0, 0])), [(4, 30), (1, 30), (2, 30), (3, 10)]);
    // Many tenants are no more than one to another caller.
    let views = [of(1, 0, 0), of(2, 0, 0), of(3, 0, 1), of(4, 1, 2)];
    assert_eq!(order(&views, served([60, 0], [60, 0, 0])), [(4, 30), (3, 30), (1, 30), (2, 10)]);
}

#[test]
fn a_group_takes_as_many_places_as_it_has_answers() {
    let group = |id, tails| View { tails, to_compute: 1, ..waiting(id) };
    let ids = |views: &[View]| rows(&schedule(views, &nobody(), LIMITS)).iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(&[group(1, 4), group(2, 4), group(3, 3)]), [1, 2], "eight places");
    assert_eq!(ids(&[group(1, 16), group(2, 1)]), [1], "where nobody else runs");
    let running = View { tails: 2, ..decoding(0, 0) };
    assert_eq!(ids(&[running.clone(), group(1, 16), group(2, 1)]), [0, 2]);
    let overtaken = View { overtaken: WINDOW, ..group(1, 16) };
    assert_eq!(ids(&[running.clone(), overtaken.clone(), group(2, 1)]), [0], "its turn comes");
    // Callers that have less than its own begin all the same; those that have more do not.
    let of = |view: View, caller| View { owner: Owner { caller, tenant: caller }, ..view };
    let served = |callers: [u64; 2]| Served { callers: callers.into(), tenants: callers.into() };
    let begun = |views: &[View], callers| rows(&schedule(views, &served(callers), LIMITS)).len();
    assert_eq!(begun(&[of(running.clone(), 0), of(overtaken.clone(), 0), of(group(2, 1), 1)], [0, 0]), 2);
    assert_eq!(begun(&[of(running, 1), of(overtaken, 0), of(group(2, 1), 1)], [0, 0]), 1);
}

#[test]
fn answers_of_one_that_has_many_take_turns() {
    let of = |view: View, caller| View { owner: Owner { caller, tenant: caller }, ..view };
    let served = Served { callers: vec![0; 2], tenants: vec![0; 2] };
    let shared = Limits { decoding_rows: 2, ..LIMITS };
    let mut views: Vec<View> = (0..5).map(|id| of(decoding(id, 0), 0)).collect();
    views.push(of(decoding(5, 0), 1));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let step = schedule(&views, &served, shared);
        let ids: Vec<u64> = step.rows.iter().map(|(id, _)| *id).collect();
        for view in &mut views {
            view.left_out = if ids.contains(&view.id) { 0 } else { view.left_out + 1 };
        }
        seen.push(ids);
    }
    assert_eq!(seen, [[0, 1, 5], [2, 3, 5], [0, 4, 5]]);
    // A group advances whole, where it is its turn.
    let group = of(at(6, Phase::Decoding { rows: 4, more_blocks: 0, drafts: 0, draft_blocks: 0 }), 1);
    let step = schedule(&[views[5].clone(), group.clone()], &served, shared);
    assert_eq!(step.rows, [(5, 1)]);
    let step = schedule(&[views[5].clone(), View { left_out: 1, ..group }], &served, shared);
    assert_eq!(step.rows, [(6, 4)]);
}

#[test]
fn a_draft_has_what_nobody_else_needs() {
    let full = |free_blocks| Limits { free_blocks, ..LIMITS };
    let views = [drafting(0, 0, 5, 1), drafting(1, 1, 3, 0)];
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(0, 6), (1, 4)]);
    assert_eq!(rows(&schedule(&views, &nobody(), full(2))), [(0, 1), (1, 4)], "the watermark stays free");
    // Prefills have so many rows less.
    let long = View { to_compute: 4000, ..at(2, Phase::Prefilling { chunk: None, more_blocks: 7 }) };
    let beside = [views[0].clone(), long];
    assert_eq!(rows(&schedule(&beside, &nobody(), LIMITS)), [(0, 6), (2, 95)]);
    // Who is in host memory has the blocks first.
    let swapped = [views[0].clone(), at(3, Phase::Swapped { blocks: 50 })];
    assert_eq!(rows(&schedule(&swapped, &nobody(), full(20))), [(0, 1)]);
    // Where one that has many takes turns, its drafts count.
    let shared = Limits { decoding_rows: 4, ..LIMITS };
    assert_eq!(rows(&schedule(&views, &nobody(), shared)), [(0, 1), (1, 1)]);
    assert_eq!(rows(&schedule(&views, &nobody(), Limits { decoding_rows: 5, ..LIMITS })), [(0, 1), (1, 4)]);
}

#[test]
fn one_caller_leaves_a_place_to_others() {
    let of = |id, caller| View { owner: Owner { caller, tenant: caller }, to_compute: 1, ..waiting(id) };
    let views: Vec<View> = (0..9).map(|id| of(id, 0)).collect();
    let served = Served { callers: vec![0; 2], tenants: vec![0; 2] };
    let plenty = Limits { free_blocks: 1000, ..LIMITS };
    assert_eq!(rows(&schedule(&views, &served, plenty)).len(), 7);
    let mut views: Vec<View> = (0..7).map(|id| View { owner: Owner::default(), ..decoding(id, 0) }).collect();
    views.extend([of(7, 0), of(8, 1)]);
    let step = schedule(&views, &served, plenty);
    assert_eq!(step.rows.last(), Some(&(8, 1)));
    assert_eq!(step.rows.len(), 8);
}

#[test]
fn background_work_has_what_is_left_and_a_share() {
    let background = View { background: true, to_compute: 500, ..waiting(1) };
    assert_eq!(rows(&schedule(std::slice::from_ref(&background), &nobody(), LIMITS)), [(1, 100)]);
    let busy = [background, View { to_compute: 500, ..waiting(2) }];
    assert_eq!(rows(&schedule(&busy, &nobody(), LIMITS)), [(2, 100)]);
    let owed = Limits { background_rows: 20, ..LIMITS };
    assert_eq!(rows(&schedule(&busy, &nobody(), owed)), [(1, 20), (2, 80)]);
    // What it is owed and cannot use is not kept from others.
    let full = [View { phase: Phase::Waiting { prompt_blocks: 1000 }, ..busy[0].clone() }, busy[1].clone()];
    assert_eq!(rows(&schedule(&full, &nobody(), owed)), [(2, 100)]);
    // Beside answers that decode it has a quarter at most.
    let views = [busy[0].clone(), decoding(5, 0)];
    assert_eq!(rows(&schedule(&views, &nobody(), LIMITS)), [(5, 1), (1, 25)]);
}

#[test]
fn the_last_to_come_makes_room_and_nobody_comes_in_meanwhile() {
    let full = Limits { free_blocks: 0, ..LIMITS };
    let prefilling = at(3, Phase::Prefilling { chunk: None, more_blocks: 1 });
    let swapped = at(0, Phase::Swapped { blocks: 1 });
    let views = [swapped, decoding(1, 1), decoding(2, 1), prefilling, waiting(4)];
    let step = schedule(&views, &nobody(), full);
    assert_eq!((rows(&step), step.swap_out, step.swap_in), (vec![(1, 1), (2, 1)], vec![3], vec![]));
    // It is its own turn: it goes itself.
    let step = schedule(&[decoding(1, 1), decoding(2, 5)], &nobody(), Limits { free_blocks: 1, ..LIMITS });
    assert_eq!((rows(&step), step.swap_out), (vec![(1, 1)], vec![2]));
    // One that is alone is not swapped for itself.
    let step = schedule(&[decoding(1, 1)], &nobody(), full);
    assert_eq!((rows(&step), step.swap_out), (vec![(1, 1)], vec![]));
}

#[test]
fn what_was_swapped_out_comes_back_before_anybody_new() {
    let views = [decoding(1, 0), at(2, Phase::Swapped { blocks: 5 }), at(3, Phase::Swapped { blocks: 2 }), waiting(4)];
    let step = schedule(&views, &nobody(), Limits { free_blocks: 7, ..LIMITS });
    assert_eq!((rows(&step), step.swap_in), (vec![(1, 1)], vec![2]), "the watermark stays free");
    let step = schedule(&views, &nobody(), Limits { free_blocks: 20, ..LIMITS });
    assert_eq!((rows(&step), step.swap_in), (vec![(1, 1), (4, 40)], vec![2, 3]));
    let step = schedule(&views[1..2], &nobody(), Limits { free_blocks: 3, ..LIMITS });
    assert_eq!(step.swap_in, [2], "nobody else is there");
}

#[test]
fn prefills_that_keep_each_other_from_growing_are_parted() {
    let stuck = |id| at(id, Phase::Prefilling { chunk: Some(16), more_blocks: 2 });
    let none = Limits { free_blocks: 1, ..LIMITS };
    let step = schedule(&[stuck(1), stuck(2)], &nobody(), none);
    assert_eq!((rows(&step), step.swap_out), (vec![], vec![2]));
    // It does not come back while the first needs what it left.
    let step =
        schedule(&[stuck(1), at(2, Phase::Swapped { blocks: 4 })], &nobody(), Limits { free_blocks: 5, ..LIMITS });
    assert_eq!((rows(&step), step.swap_in), (vec![(1, 16)], vec![]));
    // What those under way will need is not there for new ones.
    let promised = View { promised: 60, ..at(1, Phase::Loading) };
    let views = [promised, at(2, Phase::Waiting { prompt_blocks: 60 })];
    assert_eq!(schedule(&views, &nobody(), LIMITS), Step::default());
    let step = schedule(&[stuck(1)], &nobody(), none);
    assert_eq!(rows(&step), [(1, 16)], "alone it tries");
}

#[test]
fn a_chunk_under_way_goes_on_as_long_as_it_is() {
    let chunk = |id, rows| at(id, Phase::Prefilling { chunk: Some(rows), more_blocks: 0 });
    let step = schedule(&[chunk(1, 300), chunk(2, 10)], &nobody(), LIMITS);
    assert_eq!(rows(&step), [(1, 300)]);
    let step = schedule(&[View { to_compute: 10, ..chunk(2, 10) }, chunk(3, 300)], &nobody(), LIMITS);
    assert_eq!(rows(&step), [(2, 10)], "the next one in the next step");
}

/// What must hold of every step, whatever there is.
#[test]
fn steps_keep_their_promises() {
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..20_000 {
        let count = random.u64(1..12);
        let views: Vec<View> = (0..count).map(|id| any(&mut random, id)).collect();
        let limits = Limits {
            rows: random.usize(16..512),
            background_rows: if random.bool() { 16 } else { 0 },
            decoding_rows: if random.bool() { usize::MAX } else { random.usize(1..8) },
            sequences: random.usize(1..8),
            free_blocks: random.usize(0..40),
            watermark_blocks: random.usize(0..3),
            window: if random.bool() { WINDOW } else { 0 },
        };
        let mut two = || vec![random.u64(0..1000), random.u64(0..1000)];
        let served = Served { callers: two(), tenants: two() };
        let step = schedule(&views, &served, limits);
        assert_eq!(step, schedule(&views, &served, limits), "a pure function");
        check(&views, limits, &step, round);
    }
}

fn any(random: &mut fastrand::Rng, id: u64) -> View {
    let blocks = random.usize(1..20);
    let phase = match random.usize(0..5) {
        0 => Phase::Waiting { prompt_blocks: random.usize(1..30) },
        1 => Phase::Prefilling { chunk: random.bool().then(|| random.usize(1..600)), more_blocks: random.usize(0..10) },
        2 => Phase::Loading,
        3 => {
            let (rows, more_blocks) = (random.usize(1..4), random.usize(0..3));
            let (drafts, draft_blocks) = if random.bool() { (random.usize(1..9), random.usize(0..3)) } else { (0, 0) };
            Phase::Decoding { rows, more_blocks, drafts, draft_blocks }
        }
        _ => Phase::Swapped { blocks },
    };
    let background = random.u8(0..4) == 0 && !matches!(phase, Phase::Decoding { .. } | Phase::Swapped { .. });
    let (caller, overtaken) = (random.usize(0..2), random.u32(0..2 * WINDOW));
    View {
        id,
        owner: Owner { caller, tenant: caller },
        tails: 1,
        background,
        speculative: false,
        cached: random.usize(0..500),
        to_compute: random.usize(1..3000),
        most_rows: usize::MAX,
        overtaken,
        left_out: random.u32(0..9),
        blocks,
        promised: if matches!(phase, Phase::Loading | Phase::Prefilling { .. }) { random.usize(0..10) } else { 0 },
        phase,
    }
}

fn check(views: &[View], limits: Limits, step: &Step, round: usize) {
    let phase = |id: &u64| views.iter().find(|view| view.id == *id).map(|view| view.phase).unwrap();
    let (mut prefill_rows, mut begun, mut wanted) = (0, 0, 0);
    for (id, rows) in &step.rows {
        assert!(*rows > 0, "round {round}");
        assert!(!step.swap_out.contains(id) && !step.swap_in.contains(id), "round {round}");
        match phase(id) {
            Phase::Waiting { prompt_blocks } => {
                (prefill_rows, begun, wanted) = (prefill_rows + rows, begun + 1, wanted + prompt_blocks);
            }
            Phase::Prefilling { more_blocks, .. } => {
                (prefill_rows, wanted) = (prefill_rows + rows, wanted + more_blocks)
            }
            Phase::Decoding { rows: all, more_blocks, drafts, draft_blocks } => {
                assert!([all, all + drafts].contains(rows), "a group advances as one");
                wanted += more_blocks + if *rows > all { draft_blocks } else { 0 };
                assert!(*rows == all || step.swap_out.is_empty(), "round {round}: nobody leaves for a draft");
            }
            other => panic!("round {round}: {other:?} cannot run"),
        }
    }
    let has_fixed = step.rows.iter().any(|(id, _)| matches!(phase(id), Phase::Prefilling { chunk: Some(_), .. }));
    assert!(prefill_rows <= limits.rows || has_fixed, "round {round}");
    let running = |view: &&View| !matches!(view.phase, Phase::Waiting { .. });
    let held = views.iter().filter(running).count();
    let is_answer = |id: &u64| views.iter().any(|view| view.id == *id && !view.background);
    let is_begun = |id: &u64| matches!(phase(id), Phase::Waiting { .. });
    let begun_answers = step.rows.iter().filter(|(id, _)| is_begun(id) && is_answer(id)).count();
    let held_answers = views.iter().filter(running).filter(|view| !view.background).count();
    assert!(begun_answers == 0 || held_answers + begun_answers <= limits.sequences, "round {round}");
    // Whoever begins in the background has a place that is left.
    let begun_behind = begun - begun_answers;
    assert!(begun_behind == 0 || held + begun_behind <= limits.sequences, "round {round}");
    assert!(step.let_go.iter().all(|id| !is_answer(id)) && step.swap_out.iter().all(is_answer), "round {round}");
    assert!(step.let_go.iter().all(|id| step.rows.iter().all(|(other, _)| id != other)), "round {round}");
    assert!(step.swap_out.is_empty() || (begun == 0 && step.swap_in.is_empty()), "round {round}: never in and out");
    let swapped = views.iter().filter(|view| matches!(view.phase, Phase::Swapped { .. })).count();
    assert!(begun == 0 || step.swap_in.len() == swapped, "round {round}: those who were here first");
    let gone = step.swap_out.iter().chain(&step.let_go);
    let freed: usize = gone.filter_map(|id| views.iter().find(|view| view.id == *id)).map(|view| view.blocks).sum();
    let back: usize = step
        .swap_in
        .iter()
        .map(|id| match phase(id) {
            Phase::Swapped { blocks } => blocks,
            _ => 0,
        })
        .sum();
    let is_alone = step.rows.len() + step.swap_in.len() == 1;
    assert!(wanted + back <= limits.free_blocks + freed || is_alone, "round {round}: {wanted} and {back}");
    // Somebody who could go on does.
    let could = views.iter().any(|view| matches!(view.phase, Phase::Decoding { .. } | Phase::Prefilling { .. }))
        || (swapped > 0 && held == swapped);
    assert!(!could || *step != Step::default(), "round {round}: nothing happens: {views:?} {limits:?}");
}

fn speculative(id: u64, phase: Phase) -> View {
    View { speculative: true, ..at(id, phase) }
}

#[test]
fn speculation_has_the_steps_that_no_answer_has_a_use_for() {
    let begins = speculative(5, Phase::Waiting { prompt_blocks: 3 });
    let goes_on = speculative(4, Phase::Prefilling { chunk: None, more_blocks: 3 });
    let loading = at(1, Phase::Loading);
    let alone = schedule(&[begins.clone(), goes_on.clone(), loading.clone()], &nobody(), LIMITS);
    assert_eq!(rows(&alone), [(4, 40), (5, 40)], "whoever waits for a load has no use for it");
    for busy in [decoding(0, 0), waiting(0), at(0, Phase::Prefilling { chunk: None, more_blocks: 1 })] {
        let step = schedule(&[begins.clone(), goes_on.clone(), busy], &nobody(), LIMITS);
        assert_eq!(rows(&step).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0]);
        assert!(step.let_go.is_empty(), "there are blocks for both");
    }
    let background = View { background: true, to_compute: 500, ..waiting(2) };
    let owed = Limits { background_rows: 10, ..LIMITS };
    let step = schedule(&[begins.clone(), goes_on, background.clone()], &nobody(), owed);
    assert_eq!(rows(&step), [(2, 10), (4, 40), (5, 40)], "the background has what it is owed");
    let held = speculative(4, Phase::Loading);
    assert_eq!(rows(&schedule(&[held, background], &nobody(), LIMITS)), [(2, 100)], "one that waits wants nothing");
    let large = speculative(6, Phase::Waiting { prompt_blocks: 100 });
    assert_eq!(
        rows(&schedule(&[large, begins], &nobody(), LIMITS)),
        [(5, 40)],
        "what is kept for those that run is kept"
    );
}

#[test]
fn whoever_needs_blocks_has_those_of_speculation_the_last_first() {
    let held = |id, blocks| View { blocks, ..speculative(id, Phase::Loading) };
    let none = Limits { free_blocks: 2, ..LIMITS };
    let wants = View { phase: Phase::Waiting { prompt_blocks: 6 }, ..waiting(9) };
    let step = schedule(&[held(3, 4), held(4, 3), held(5, 3), wants.clone()], &nobody(), none);
    assert_eq!((rows(&step), &step.let_go[..]), (vec![(9, 40)], &[5, 4][..]), "and nothing is swapped out for it");
    let step = schedule(&[held(3, 4), decoding(4, 3), wants], &nobody(), none);
    assert_eq!((rows(&step), &step.let_go[..]), (vec![(4, 1)], &[3][..]));
    assert!(step.swap_out.is_empty());
}

/// Whoever is confirmed gets what it would if speculative prompts were not there and had no blocks.
#[test]
fn speculation_takes_nothing_from_others() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..20_000 {
        let mut views: Vec<View> = (0..random.u64(1..12)).map(|id| any(&mut random, id)).collect();
        for view in &mut views {
            let can = !matches!(view.phase, Phase::Decoding { .. } | Phase::Swapped { .. });
            view.speculative = can && random.bool();
            view.background &= !view.speculative;
            if matches!(view.phase, Phase::Waiting { .. }) {
                view.blocks = 0;
            }
        }
        let limits = Limits {
            rows: random.usize(16..512),
            background_rows: if random.bool() { 16 } else { 0 },
            free_blocks: random.usize(0..40),
            sequences: random.usize(1..8),
            ..LIMITS
        };
        let served = Served { callers: vec![random.u64(0..9), random.u64(0..9)], tenants: vec![1, 2] };
        let step = schedule(&views, &served, limits);
        let (speculative, others): (Vec<View>, Vec<View>) = views.iter().cloned().partition(|view| view.speculative);
        let held: usize = speculative.iter().map(|view| view.blocks).sum();
        let free = limits.free_blocks + held;
        let without = schedule(&others, &served, Limits { free_blocks: free, ..limits });
        let of = |step: &Step, wanted: &dyn Fn(&View) -> bool| {
            let is_wanted = |id: u64| views.iter().any(|view| view.id == id && wanted(view));
            step.rows.iter().copied().filter(|(id, _)| is_wanted(*id)).collect::<Vec<_>>()
        };
        let is_answer = |view: &View| !view.speculative && !view.background;
        assert_eq!(of(&step, &is_answer), of(&without, &is_answer), "round {round}");
        let speculates = of(&step, &|view| view.speculative);
        // Background work that keeps itself from going on is parted when nobody speculates.
        if speculates.is_empty() {
            assert_eq!(of(&step, &|_| true), of(&without, &|_| true), "round {round}");
            assert_eq!((&step.swap_out, &step.swap_in), (&without.swap_out, &without.swap_in), "round {round}");
        }
        let has_use = others.iter().any(|view| is_answer(view) && view.phase != Phase::Loading);
        assert!(speculates.is_empty() || !has_use, "round {round}: {views:?}");
        assert!(speculates.iter().all(|(id, rows)| *rows > 0 && !step.let_go.contains(id)), "round {round}");
        let gone = |view: &&View| step.let_go.contains(&view.id);
        let freed: usize = speculative.iter().filter(gone).map(|view| view.blocks).sum();
        let wanted = |view: &View| match view.phase {
            Phase::Waiting { prompt_blocks } => prompt_blocks,
            Phase::Prefilling { more_blocks, .. } => more_blocks,
            _ => 0,
        };
        let begun: usize =
            views.iter().filter(|view| speculates.iter().any(|(id, _)| *id == view.id)).map(wanted).sum();
        assert!(begun <= limits.free_blocks + freed, "round {round}: what is not idle is not taken");
    }
}

fn background(id: u64, phase: Phase) -> View {
    View { background: true, ..at(id, phase) }
}

#[test]
fn background_work_keeps_no_answer_from_beginning() {
    let answer = |blocks| View { phase: Phase::Waiting { prompt_blocks: blocks }, ..waiting(9) };
    let has = |free_blocks| Limits { free_blocks, ..LIMITS };
    let of = |step: Step| (step.rows, step.let_go, step.swap_out);
    // What it was promised is an answer's to have.
    let promised = View { promised: 90, ..background(1, Phase::Loading) };
    let step = schedule(&[promised.clone(), answer(60)], &nobody(), LIMITS);
    assert_eq!(of(step), (vec![(9, 40)], vec![], vec![]));
    let other = background(2, Phase::Waiting { prompt_blocks: 60 });
    assert_eq!(schedule(&[promised, other], &nobody(), LIMITS), Step::default(), "but not other background work's");
    // What it has, too: the last to come ends first, and no more than is needed.
    let runs = |id| background(id, Phase::Prefilling { chunk: None, more_blocks: 1 });
    let loads = background(4, Phase::Loading);
    let views = [runs(1), runs(2), loads, answer(6)];
    assert_eq!(of(schedule(&views, &nobody(), has(7))), (vec![(9, 40), (1, 40)], vec![], vec![]));
    assert_eq!(of(schedule(&views, &nobody(), has(6))), (vec![(9, 40), (1, 40), (2, 20)], vec![4], vec![]));
    assert_eq!(of(schedule(&views, &nobody(), has(0))), (vec![(9, 40), (1, 40)], vec![4, 2], vec![]));
    // None ends where all of it would not do.
    let running = decoding(0, 0);
    let views = [running, runs(1), runs(2), answer(16)];
    assert_eq!(of(schedule(&views, &nobody(), has(8))), (vec![(0, 1), (1, 25)], vec![], vec![]));
    assert_eq!(of(schedule(&views[1..], &nobody(), has(8))).1, [2, 1], "unless only it is in the way");
    // What begins with the share that it is owed waits, too.
    let owed = Limits { background_rows: 20, free_blocks: 8, ..LIMITS };
    let begins = background(1, Phase::Waiting { prompt_blocks: 5 });
    assert_eq!(of(schedule(&[begins.clone(), answer(6)], &nobody(), owed)), (vec![(9, 40)], vec![], vec![]));
    assert_eq!(rows(&schedule(&[begins, answer(2)], &nobody(), owed)), [(1, 20), (9, 40)]);
}

#[test]
fn background_work_keeps_no_answer_off_the_device() {
    let full = |free_blocks| Limits { free_blocks, ..LIMITS };
    let runs = background(1, Phase::Prefilling { chunk: None, more_blocks: 2 });
    let swapped = at(2, Phase::Swapped { blocks: 5 });
    let step = schedule(&[runs.clone(), swapped], &nobody(), full(3));
    assert_eq!((rows(&step), step.swap_in, step.let_go), (vec![], vec![2], vec![1]));
    // An answer that grows has its blocks, and nothing is swapped out for it.
    let grows = at(3, Phase::Prefilling { chunk: Some(16), more_blocks: 3 });
    let step = schedule(&[runs.clone(), decoding(2, 1), grows], &nobody(), full(1));
    assert_eq!((rows(&step), step.let_go, step.swap_out), (vec![(2, 1), (3, 16)], vec![1], vec![]));
    // Nor does one leave because there is other work that has nothing to give.
    let nothing = View { blocks: 0, ..background(1, Phase::Loading) };
    let step = schedule(&[nothing, decoding(2, 1)], &nobody(), full(0));
    assert_eq!((rows(&step), step.swap_out), (vec![(2, 1)], vec![]));
}

#[test]
fn background_work_takes_no_place_and_no_turn_of_an_answer() {
    let few = Limits { sequences: 2, ..LIMITS };
    let [first, second] = [1, 2].map(|id| background(id, Phase::Loading));
    let views = [first.clone(), second, waiting(3), background(4, Phase::Waiting { prompt_blocks: 1 })];
    assert_eq!(rows(&schedule(&views, &nobody(), few)), [(3, 40)]);
    assert_eq!(
        rows(&schedule(&[first, views[3].clone()], &nobody(), few)),
        [(4, 40)],
        "it has the places that are left"
    );
    // One that was overtaken often enough keeps its own from beginning, and no answer.
    let large = View { overtaken: WINDOW, ..background(1, Phase::Waiting { prompt_blocks: 1000 }) };
    let step = schedule(&[decoding(0, 0), large, waiting(2), views[3].clone()], &nobody(), LIMITS);
    assert_eq!(rows(&step), [(0, 1), (2, 40)]);
}

/// Answers have what they would have if background work were not there and had no blocks.
#[test]
fn background_work_takes_nothing_from_answers() {
    let mut random = fastrand::Rng::with_seed(13);
    for round in 0..20_000 {
        let mut views: Vec<View> = (0..random.u64(1..12)).map(|id| any(&mut random, id)).collect();
        for view in &mut views {
            // Drafts have the blocks that are free.
            if let Phase::Decoding { drafts, .. } = &mut view.phase {
                *drafts = 0;
            }
        }
        let limits = Limits {
            rows: random.usize(16..512),
            free_blocks: random.usize(0..40),
            sequences: random.usize(1..8),
            ..LIMITS
        };
        let served = Served { callers: vec![random.u64(0..9), random.u64(0..9)], tenants: vec![1, 2] };
        let step = schedule(&views, &served, limits);
        let (background, answers): (Vec<View>, Vec<View>) = views.iter().cloned().partition(|view| view.background);
        let has_blocks = |view: &&View| !matches!(view.phase, Phase::Waiting { .. } | Phase::Swapped { .. });
        let held: usize = background.iter().filter(has_blocks).map(|view| view.blocks).sum();
        let free_blocks = limits.free_blocks + held;
        let without = schedule(&answers, &served, Limits { free_blocks, ..limits });
        let is_answer = |id: u64| answers.iter().any(|view| view.id == id);
        let of = |step: &Step| step.rows.iter().copied().filter(|(id, _)| is_answer(*id)).collect::<Vec<_>>();
        assert_eq!(of(&step), of(&without), "round {round}: {views:?} {limits:?}");
        assert_eq!(step.swap_in, without.swap_in, "round {round}");
        // Answers that keep each other from going on are parted once the background has nothing to give.
        if !without.rows.is_empty() {
            assert_eq!(step.swap_out, without.swap_out, "round {round}");
        }
    }
}
