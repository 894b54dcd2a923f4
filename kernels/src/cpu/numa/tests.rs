//! Pretended nodes, and the real ones where there are several.

use super::*;
#[cfg(target_os = "linux")]
use crate::dtype::KvDtype;
#[cfg(target_os = "linux")]
use crate::pool::{Arena, BlockId, KvLayout, KvPool};

/// A team of pretended nodes with so many processors each, whose numbers are those of this machine in turn; everything is cut, however small.
pub(super) fn team(processors: &[usize], threads: usize) -> Option<Team> {
    let cpus = system::allowed_cpus().unwrap_or_else(|| vec![0]);
    let mut cpus = cpus.into_iter().cycle();
    let nodes = processors.iter().map(|count| Node { id: 0, cpus: cpus.by_ref().take(*count).collect() });
    let team = Team::new(&Topology { nodes: nodes.collect() }, threads)?;
    Some(Team { least_share: 0, ..team })
}

/// The threads of a team.
pub(super) fn pool(team: Team) -> rayon::ThreadPool {
    let (threads, team) = (team.threads().sum(), Arc::new(team));
    ThreadPoolBuilder::new().num_threads(threads).start_handler(team.join()).build().unwrap()
}

/// Two threads on each of so many pretended nodes; with one node, a plain pool.
pub(crate) fn divided(nodes: usize) -> rayon::ThreadPool {
    match team(&vec![1; nodes], 2 * nodes) {
        Some(team) => pool(team),
        None => ThreadPoolBuilder::new().num_threads(2).build().unwrap(),
    }
}

#[test]
fn threads_are_in_proportion_to_processors_whatever_their_number() {
    for (processors, threads, expected) in [
        (&[16, 16][..], 32, &[16, 16][..]),
        (&[16, 16], 5, &[3, 2]),
        (&[12, 4], 8, &[6, 2]),
        (&[4, 12], 8, &[2, 6]),
        (&[1, 1], 7, &[4, 3]),
        (&[8, 8, 8, 8], 6, &[2, 2, 1, 1]),
        // A node that no thread is left for has no share either.
        (&[30, 1, 30], 4, &[2, 2]),
    ] {
        let team = team(processors, threads).unwrap();
        assert_eq!(team.threads().collect::<Vec<_>>(), expected, "{processors:?} {threads}");
    }
    for (processors, threads) in [(&[4][..], 4), (&[4, 4], 1), (&[], 3), (&[40, 1], 3)] {
        assert!(team(processors, threads).is_none(), "{processors:?} {threads}: one node has all");
    }
}

#[test]
fn a_team_tells_of_itself() {
    assert_eq!(team(&[1, 1], 3).unwrap().to_string(), "2 NUMA nodes: 2 + 1 threads, weights split");
    assert!(Team::planned(2, Numa::Off).is_none());
}

/// Whoever chose a policy for all memory of a process keeps it.
#[test]
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "a policy is a thread's")]
fn a_policy_of_numactl_is_left_alone() {
    assert!(!system::has_policy());
    std::thread::spawn(|| {
        let (mode, nodes) = (libc::MPOL_PREFERRED, [1 as libc::c_ulong]);
        // SAFETY: the set has as many bits as is said.
        let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), 64) };
        if status != 0 {
            println!("skipped: the system does not let a policy be set");
            return;
        }
        assert!(system::has_policy());
        assert!(Team::planned(2, Numa::Auto).is_none());
    })
    .join()
    .unwrap();
}

/// Each thread is on its own node's processors; a thread of none knows of no node.
#[test]
#[cfg(target_os = "linux")]
fn threads_stay_on_their_node_s_processors() {
    let allowed = system::allowed_cpus().unwrap();
    let divided = pool(team(&[1, 1, 1], 6).unwrap());
    let found = divided.broadcast(|_| (home().unwrap(), system::allowed_cpus().unwrap()));
    for (node, cpus) in &found {
        assert_eq!(*cpus, [allowed[node % allowed.len()]]);
    }
    let on = |node| found.iter().filter(|(found, _)| *found == node).count();
    assert_eq!([0, 1, 2].map(on), [2, 2, 2]);
    assert!(home().is_none() && in_use().is_none());
    assert_eq!(system::allowed_cpus().unwrap(), allowed, "who starts them stays where it was");
}

/// The pages of `memory` that are wholly within a node's share lie there. `cuts` are in bytes.
#[cfg(target_os = "linux")]
fn assert_placed(memory: &[u8], cuts: &[usize], team: &Team, what: &str) {
    let (nodes, page) = (system::nodes_of_pages(memory), system::page_size());
    let near = 1 << 20;
    for (group, cuts) in team.groups.iter().zip(cuts.windows(2)) {
        let own = cuts[0] + near..cuts[1].saturating_sub(near);
        let within: Vec<i32> = (own.start.div_ceil(page)..own.end / page).map(|index| nodes[index]).collect();
        assert!(!within.is_empty(), "{what}: a share that shows");
        let wrong = within.iter().filter(|node| **node != group.node.id as i32).count();
        assert_eq!(wrong, 0, "{what}: {wrong} of {} pages of {group:?} lie elsewhere", within.len());
    }
}

#[cfg(target_os = "linux")]
fn assert_spread(memory: &[u8], team: &Team, what: &str) {
    let nodes = system::nodes_of_pages(memory);
    for group in &team.groups {
        let own = nodes.iter().filter(|node| **node == group.node.id as i32).count();
        // Pretended nodes are one.
        let same = team.groups.iter().filter(|other| other.node.id == group.node.id).count();
        let even = nodes.len() / team.groups.len();
        assert!(own.abs_diff(same * even) <= even / 2, "{what}: {own} of {} pages on {group:?}", nodes.len());
    }
}

/// Where shares begin and end, of parts of so many bytes.
#[cfg(target_os = "linux")]
fn cuts(shares: &Shares, bytes: usize) -> Vec<usize> {
    [0].into_iter().chain(shares.ranges().map(|range| range.end * bytes)).collect()
}

/// The K and the V of a pool of one layer, once every block is written.
#[cfg(target_os = "linux")]
fn written(pool: &mut KvPool) -> [&[u8]; 2] {
    let ones = vec![1; pool.layout().block_bytes()];
    for block in 0..pool.blocks() {
        pool.write_block(BlockId(block as u32), &ones).unwrap();
    }
    let (keys, values) = pool.arenas(0);
    [keys, values].map(|arena| match arena {
        Arena::Bf16(values) => bytemuck::cast_slice(values),
        _ => panic!("a pool of bf16"),
    })
}

/// On the nodes that this machine has; with one, binding to that one is still tried. Weights are written by whoever packs them, and lie
/// where they are bound all the same.
#[test]
#[cfg(target_os = "linux")]
fn weights_and_kv_lie_on_their_nodes() {
    let real = Topology::of_machine();
    println!("{real:?}");
    let made = if real.nodes.len() > 1 { Team::new(&real, 2 * real.nodes.len()) } else { team(&[1, 1], 4) };
    let Some(made) = made.filter(|team| team.refusal.is_none()) else {
        println!("skipped: the system does not let memory be placed");
        return;
    };
    println!("{made}{}", if real.nodes.len() > 1 { "" } else { " (pretended: this machine has one)" });
    let divided = pool(Team { least_share: LEAST_SHARE, ..made });
    let team = divided.install(in_use).unwrap();
    let nodes = team.groups.len();
    divided.install(|| {
        // Shares of 6 MiB in the mean, and of 24 MiB.
        for megabytes in [6, 24] {
            let (parts, each) = (64 * nodes, megabytes << 12);
            let shares = Shares::of(parts, 4 * parts * each);
            let cuts = cuts(&shares, 4 * each);
            let mut values = shares.zeros::<f32>(each);
            shares.fill(values.chunks_mut(each), |_, part| part.fill(1.0));
            assert_placed(values.mapping().unwrap(), &cuts, &team, "weights");
            // Who writes does not decide.
            let mut values = shares.zeros::<f32>(each);
            values.fill(1.0);
            assert_placed(values.mapping().unwrap(), &cuts, &team, "weights of one writer");
        }
        // A whole that is too small to be cut is spread.
        let shares = Shares::of(4, LEAST_SHARE * nodes - 4);
        let mut values = shares.zeros::<f32>(4 << 20);
        values.fill(1.0);
        assert_spread(values.mapping().unwrap(), &team, "what is not cut");
        let layout = KvLayout { layers: 1, kv_heads: 2 * nodes, head_dim: 64, dtype: KvDtype::Bf16 };
        let mut kv = KvPool::new(layout, 2 << 10);
        let cuts = cuts(kv.heads(), 2 * (2 << 10) * layout.head_len());
        assert_eq!(cuts.len(), nodes + 1);
        for memory in written(&mut kv) {
            assert_placed(memory, &cuts, &team, "KV");
        }
        let uneven = KvLayout { kv_heads: 2 * nodes - 1, ..layout };
        let mut kv = KvPool::new(uneven, 4 << 10);
        for memory in written(&mut kv) {
            assert_spread(memory, &team, "KV of heads that do not come out even");
        }
    });
}
