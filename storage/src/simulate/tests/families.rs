//! Each family has the habit that it claims, and the default policy follows the better one on all of them.

use std::collections::HashMap;

use super::super::*;
use crate::cost::CostGrid;
use crate::policy::PolicyKind;

const REQUESTS: usize = 6000;

/// Uses of each node, as requests.
fn uses(workload: &Workload) -> HashMap<u32, Vec<usize>> {
    let mut uses: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, request) in workload.requests.iter().enumerate() {
        request.path.iter().for_each(|node| uses.entry(*node).or_default().push(at));
    }
    uses
}

fn made(family: Family) -> Workload {
    family.generate(5, REQUESTS).unwrap()
}

/// The share of all requests that is about the most popular tenth.
fn share_of_the_top(uses: &HashMap<u32, Vec<usize>>) -> f64 {
    let mut counts: Vec<usize> = uses.values().map(Vec::len).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts[..counts.len() / 10].iter().sum::<usize>() as f64 / counts.iter().sum::<usize>() as f64
}

#[test]
fn a_seed_replays_a_family_and_names_are_read_back() {
    for family in Family::ALL {
        assert_eq!(family.generate(5, 300).unwrap(), family.generate(5, 300).unwrap(), "{family}");
        assert_eq!(family.to_string().parse::<Family>().unwrap(), family);
        assert_eq!(made(family).requests.len(), REQUESTS);
    }
    assert_ne!(Family::Zipf.generate(5, 300).unwrap(), Family::Zipf.generate(6, 300).unwrap());
    assert!("zip".parse::<Family>().unwrap_err().to_string().contains("zipf"));
    assert!(Family::Zipf.generate(5, 0).is_err());
}

#[test]
fn cycles_come_back_after_their_length() {
    for times in uses(&made(Family::Cycle)).values() {
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 500));
    }
    // Three loops at once: each passage of the shortest comes back some 120 requests later.
    let loops = uses(&made(Family::Loops));
    assert_eq!(loops.len(), 40 + 200 + 800);
    let often = loops.values().filter(|times| times.len() > 30).count();
    assert_eq!(often, 40);
}

#[test]
fn sessions_are_short_mostly_and_go_on_behind_themselves() {
    let workload = made(Family::Sessions);
    let longest: HashMap<u32, usize> =
        workload.requests.iter().map(|request| (request.path[0], request.path.len())).collect();
    let (short, long) =
        (longest.values().filter(|turns| **turns <= 2).count(), longest.values().filter(|turns| **turns >= 15).count());
    assert!(short * 2 > longest.len() && long * 50 > longest.len(), "{short} short, {long} long of {}", longest.len());
    // Each request goes one turn on.
    assert_eq!(workload.nodes.len(), REQUESTS);
}

#[test]
fn popularity_is_skewed_even_or_moves_on() {
    let (zipf, uniform) =
        (share_of_the_top(&uses(&made(Family::Zipf))), share_of_the_top(&uses(&made(Family::Uniform))));
    assert!(zipf > 0.4 && uniform < 0.25, "{zipf} {uniform}");
    // Of a family whose popularity moves, the first half's favourites are asked for less in the second.
    let kept = |family: Family| {
        let uses = uses(&made(family));
        let mut first: Vec<(usize, usize)> = uses
            .values()
            .map(|times| {
                let early = times.iter().filter(|at| **at < REQUESTS / 2).count();
                (early, times.len() - early)
            })
            .collect();
        first.sort_unstable_by(|a, b| b.cmp(a));
        let (early, late) = first[..20].iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        late as f64 / early as f64
    };
    let (steady, drift, shift) = (kept(Family::Zipf), kept(Family::Drift), kept(Family::Shift));
    assert!(steady > 0.85 && drift < steady && shift == 0.0, "{steady} {drift} {shift}");
}

#[test]
fn bursts_end_and_scans_are_of_one_use() {
    for times in uses(&made(Family::Bursts)).values() {
        assert!(times.len() <= 30 && times[times.len() - 1] - times[0] < REQUESTS / 2);
    }
    let scans = uses(&made(Family::Scans));
    let once = scans.values().filter(|times| times.len() == 1).count();
    assert!(once > REQUESTS / 3 && scans.values().any(|times| times.len() > 50));
}

#[test]
fn sizes_tenants_days_and_orders_are_mixed() {
    let sizes = made(Family::Sizes);
    let (short, long) = (
        sizes.nodes.iter().filter(|node| node.tokens < 120).count(),
        sizes.nodes.iter().filter(|node| node.tokens >= 3000).count(),
    );
    assert_eq!(short + long, sizes.nodes.len());
    assert!(short > long && long * 5 > short);
    let tenants = made(Family::Tenants);
    assert_eq!(tenants.nodes.iter().filter(|node| node.parent.is_none()).count(), 2);
    assert!(tenants.has_system_prompt);
    // The first set of the day is asked for in its quarter, and again a day later.
    let daily = made(Family::Daily);
    let every = REQUESTS / 16;
    for times in uses(&daily).values() {
        assert!(times.iter().all(|at| at / every % 4 == times[0] / every % 4));
    }
    assert!(uses(&daily).values().any(|times| times.windows(2).any(|pair| pair[1] - pair[0] > 2 * every)));
    let shuffled = made(Family::Shuffled);
    assert!(shuffled.requests.iter().all(|request| request.path.len() == 4));
    assert!(shuffled.nodes.len() > 4 * 300, "topics in more than one order");
    // One habit after the other: nothing of one part is asked for in the next.
    let mix = uses(&made(Family::Mix));
    assert!(mix.values().all(|times| times[0] / (REQUESTS / 5) == times[times.len() - 1] / (REQUESTS / 5)));
}

/// What fails if the default stops following: on families that PGDSF, LRU and hit density each lead, it is near the best of them.
#[test]
fn the_default_follows_the_better_one() {
    let policies = vec![PolicyKind::Pgdsf, PolicyKind::Lru, PolicyKind::HitDensity, PolicyKind::Adaptive];
    let grid = CostGrid::measured_default().unwrap();
    for (family, capacity) in
        [(Family::Zipf, 0.5), (Family::Shift, 0.1), (Family::Cycle, 0.5), (Family::Scans, 0.05), (Family::Bursts, 0.05)]
    {
        let workload = family.generate(1, FAMILY_REQUESTS).unwrap();
        let capacities = vec![capacity];
        let comparison = Comparison { policies: policies.clone(), capacities, device: 0.0, max_nodes: 1 << 18 };
        let report = compare(&workload, &grid, &comparison, &|_, _| ()).unwrap();
        let [pgdsf, lru, density, adaptive] =
            [0, 1, 2, 3].map(|at: usize| report.capacities[0].policies[at].outcome.cost_hit_rate);
        assert!(adaptive >= 0.98 * pgdsf.max(lru), "{family}: {adaptive} for {pgdsf} and {lru}");
        // And of the one that it prefers where nothing speaks against it.
        assert!(adaptive >= 0.98 * density, "{family}: {adaptive} for {density}");
    }
}
