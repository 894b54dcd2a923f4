use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use super::super::tests::{pool, team};
use super::*;

/// How often each of `len` tasks ran.
fn counts(len: usize) -> Vec<AtomicUsize> {
    (0..len).map(|_| AtomicUsize::new(0)).collect()
}

fn once(counts: &[AtomicUsize]) -> bool {
    counts.iter().all(|count| count.load(Ordering::SeqCst) == 1)
}

#[test]
fn cuts_are_in_proportion_to_threads() {
    for (processors, threads, parts, cuts) in [
        (&[1, 1][..], 2, 10, &[0, 5, 10][..]),
        (&[1, 1], 4, 5, &[0, 3, 5]),
        (&[3, 1], 4, 8, &[0, 6, 8]),
        (&[1, 1, 1], 3, 10, &[0, 3, 7, 10]),
        (&[1, 1, 1], 3, 1, &[0, 0, 1, 1]),
        (&[2, 2, 2, 2], 8, 3, &[0, 1, 2, 2, 3]),
        (&[1, 1], 2, 0, &[0, 0, 0]),
    ] {
        let team = team(processors, threads).unwrap();
        assert_eq!(team.cuts(parts), cuts, "{processors:?} {threads} {parts}");
    }
}

#[test]
fn what_is_small_is_not_cut_and_what_is_few_only_evenly() {
    let mut of_many = team(&[1, 1], 2).unwrap();
    of_many.least_share = 1000;
    let of_many = pool(of_many);
    let cuts = |shares: Shares| shares.cuts;
    of_many.install(|| {
        assert_eq!(cuts(Shares::of(10, 1999)), [0, 10]);
        assert_eq!(cuts(Shares::of(10, 2000)), [0, 5, 10]);
        assert_eq!(cuts(Shares::of_heads(8, 1999)), [0, 8]);
        for (heads, expected) in
            [(1, &[0, 1][..]), (2, &[0, 1, 2]), (3, &[0, 3]), (4, &[0, 2, 4]), (5, &[0, 5]), (9, &[0, 5, 9])]
        {
            assert_eq!(cuts(Shares::of_heads(heads, 2000)), expected, "{heads} heads");
        }
    });
    let whole = Shares::of(10, usize::MAX);
    assert!(!whole.is_split() && whole.team.is_none(), "where nothing is divided");
    let uneven = pool(team(&[2, 1], 3).unwrap());
    assert_eq!(uneven.install(|| cuts(Shares::of_heads(6, 0))), [0, 4, 6]);
    assert_eq!(uneven.install(|| cuts(Shares::of_heads(2, 0))), [0, 2]);
}

#[test]
fn shares_begin_where_pages_do() {
    for (start, cuts, page, expected) in [
        (0x10_0000, &[0, 5000, 10_000][..], 4096, &[0, 4096, 10_000][..]),
        (0x10_0000, &[0, 6200, 10_000], 4096, &[0, 8192, 10_000]),
        // Memory that does not begin with a huge page: its borders are those of addresses.
        (0x10_0000, &[0, 4 << 20, 9 << 20], 2 << 20, &[0, 5 << 20, 9 << 20]),
        (0x10_0000, &[0, 1, 9 << 20], 2 << 20, &[0, 1 << 20, 9 << 20]),
        (0x20_0000, &[0, 1, 100], 4096, &[0, 0, 100]),
        (0x20_0000, &[0, 100, 100], 4096, &[0, 0, 100]),
        (0x20_0000, &[0, 4000, 4000], 4096, &[0, 4000, 4000]),
        (0x20_0000, &[0, 0, 8192, 8192], 4096, &[0, 0, 8192, 8192]),
    ] {
        assert_eq!(borders(start, cuts, page), expected, "{start:#x} {cuts:?} {page}");
    }
}

/// Under as many shapes as seeds: nodes without threads or tasks, threads without tasks, one helper and many.
#[test]
fn every_task_runs_once() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes = rng.usize(2..5);
        let processors: Vec<usize> = (0..nodes).map(|_| rng.usize(1..4)).collect();
        let Some(team) = team(&processors, rng.usize(2..9)) else { continue };
        let nodes = team.groups.len();
        let pool = pool(team);
        for _ in 0..20 {
            let most = [1, 5, 300][rng.usize(0..3)];
            let cuts = sums((0..nodes).map(|_| rng.usize(0..most)));
            let ran = counts(cuts[nodes]);
            let run = |node: usize, task: usize| {
                assert!((cuts[node]..cuts[node + 1]).contains(&task), "a task of another node");
                ran[task].fetch_add(1, Ordering::SeqCst);
            };
            // From a thread of the pool, and from one that belongs to no node.
            if rng.bool() {
                pool.install(|| for_each(&cuts, run))
            } else {
                for_each(&cuts, run)
            }
            assert!(once(&ran), "seed {seed}, {cuts:?}");
        }
    }
}

#[test]
fn groups_and_tasks_cover_every_part_once_and_no_group_is_of_two_nodes() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let processors: Vec<usize> = (0..rng.usize(2..5)).map(|_| rng.usize(1..4)).collect();
        let Some(team) = team(&processors, rng.usize(2..9)) else { continue };
        let pool = pool(team);
        let (parts, blocks) = (rng.usize(0..40), rng.usize(0..4));
        let groups = rng.usize(1..parts.max(1) + 1);
        // Cut, and not.
        for shares in [pool.install(|| Shares::of(parts, 0)), Shares::of(parts, 0)] {
            let ran = counts(parts * blocks);
            pool.install(|| {
                shares.run_groups(blocks, groups, |block, range| {
                    let is_of_one = shares.ranges().any(|own| own.start <= range.start && range.end <= own.end);
                    assert!(is_of_one || groups * blocks == 1, "{range:?} of {shares:?}");
                    range.for_each(|part| {
                        ran[block * parts + part].fetch_add(1, Ordering::SeqCst);
                    });
                });
            });
            assert!(once(&ran), "seed {seed}: {blocks} times {parts} in {groups}");
            let ran = counts(parts * blocks);
            let tasks: Vec<usize> = (0..parts * blocks).collect();
            pool.install(|| {
                shares.run_tasks(tasks, blocks, |task| {
                    ran[task].fetch_add(1, Ordering::SeqCst);
                });
            });
            assert!(once(&ran), "seed {seed}: {parts} of {blocks}");
            let mut written = vec![0; parts];
            pool.install(|| shares.fill(written.iter_mut(), |index, part| *part += index + 1));
            assert!(written.iter().enumerate().all(|(index, part)| *part == index + 1), "seed {seed}");
        }
    }
}

/// No thread takes a second task before each has its first: then all nodes have tasks left, and what a thread takes is its node's.
#[test]
fn threads_take_their_own_node_s_tasks_first() {
    for (processors, threads) in [(&[1, 1][..], 2), (&[1, 1], 6), (&[2, 1], 6), (&[1, 1, 1], 6)] {
        let team = team(processors, threads).unwrap();
        let nodes = team.groups.len();
        let pool = pool(team);
        let (all_began, firsts) = (Barrier::new(threads), Mutex::new(Vec::new()));
        let first = AtomicUsize::new(0);
        pool.install(|| {
            for_each(&sums((0..nodes).map(|_| 50)), |node, _| {
                let mut began = firsts.lock().unwrap();
                if first.load(Ordering::SeqCst) < threads {
                    first.fetch_add(1, Ordering::SeqCst);
                    began.push((node, home().unwrap()));
                    drop(began);
                    all_began.wait();
                }
            });
        });
        let firsts = firsts.into_inner().unwrap();
        assert_eq!(firsts.len(), threads);
        assert!(firsts.iter().all(|(node, home)| node == home), "{firsts:?}");
    }
}

/// A node whose threads are all busy elsewhere does not keep its tasks.
#[test]
fn what_a_node_does_not_get_to_is_done_by_others() {
    let pool = pool(team(&[1, 1], 2).unwrap());
    let (began, done, ran) = (Barrier::new(2), Barrier::new(2), counts(40));
    pool.install(|| {
        let keeps_busy = || {
            began.wait();
            done.wait();
        };
        rayon::join(
            || {
                began.wait();
                for_each(&[0, 20, 40], |_, task| {
                    ran[task].fetch_add(1, Ordering::SeqCst);
                });
                done.wait();
            },
            keeps_busy,
        );
    });
    assert!(once(&ran));
}

#[test]
fn calls_within_calls_and_from_outside_end() {
    let pool = pool(team(&[1, 1, 1], 3).unwrap());
    let ran = counts(6 * 10 * 4);
    let nested = || {
        for_each(&[0, 2, 5, 6], |_, outer| {
            for_each(&[0, 3, 3, 10], |_, inner| {
                (0..4_usize).into_par_iter().with_max_len(1).for_each(|most_inner| {
                    ran[(outer * 10 + inner) * 4 + most_inner].fetch_add(1, Ordering::SeqCst);
                });
            });
        });
    };
    pool.install(nested);
    assert!(once(&ran));
    // Several at once from threads of another pool, each of which waits for this one.
    let (others, calls) = (rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap(), AtomicUsize::new(0));
    others.broadcast(|_| {
        pool.install(|| {
            for_each(&[0, 7, 20, 30], |_, _| {
                calls.fetch_add(1, Ordering::SeqCst);
            });
        });
    });
    assert_eq!(calls.load(Ordering::SeqCst), 4 * 30);
}
