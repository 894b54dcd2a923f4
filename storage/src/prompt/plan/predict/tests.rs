use std::sync::Arc;

use super::*;
use crate::cost::{CostGrid, PrefillCost, Prices, ReadCost};

const LAYERS: u32 = 8;
const MIB: u64 = 1 << 20;

/// A token takes 8 ms, one a layer, however many stand before; a byte of the disk takes `us_per_mib / 2^20`, nothing else anything.
fn costs(us_per_mib: f64) -> CostModel {
    let (cached, new) = (vec![0, 10_000], vec![1, 100]);
    let grid = CostGrid::new("by hand", 64, cached, new, vec![vec![8e3, 8e5], vec![8e3, 8e5]]).unwrap();
    let prefill = PrefillCost {
        grid: Arc::new(grid),
        layers: LAYERS,
        place_us_per_byte: 0.0,
        look_us_per_weight: 0.0,
        scale: 1.0,
        is_measured: true,
    };
    let read = ReadCost { request_us: 0.0, us_per_byte: us_per_mib / MIB as f64 };
    CostModel { prefill, reads: [(read, true); 3], prices: Prices::default() }
}

fn part(tokens: u32, position: u32, work: Work) -> Part {
    Part { tokens, position, work }
}

const AT_2: Choosing = Choosing { layer: 2, probed: 0, looked: 0 };
const ONCE: Share = Share { ratio: 0.1, choosing: AT_2 };

#[track_caller]
fn assert_near(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-6 * right.abs().max(1.0), "{left} is not {right}");
}

#[test]
fn what_is_computed_takes_what_the_grid_says() {
    let whole = predict(&[part(250, 0, Work::Compute)], ONCE, &costs(1.0));
    assert_near(whole.total_ms, 2000.0);
    assert_eq!((whole.load_ms, whole.wait_ms), (0.0, 0.0));
    let on_device = predict(&[part(200, 0, Work::Nothing), part(50, 200, Work::Compute)], ONCE, &costs(1.0));
    assert_near(on_device.total_ms, 400.0);
}

#[test]
fn a_load_hides_behind_the_computation_but_for_its_first_layer() {
    // A layer of the load takes 10 ms, one of the computation 50.
    let parts = [part(100, 0, Work::Load { tier: Tier::Disk, bytes: 8 * MIB }), part(50, 100, Work::Compute)];
    let hidden = predict(&parts, ONCE, &costs(10e3));
    assert_near(hidden.total_ms, 10.0 + 8.0 * 50.0);
    assert_near(hidden.wait_ms, 10.0);
    assert_near(hidden.load_ms, 80.0);
    // Slower: the computation waits for every layer, and the last one is computed.
    let slow = predict(&parts, ONCE, &costs(70e3));
    assert_near(slow.total_ms, 8.0 * 70.0 + 50.0);
    assert_near(slow.compute_ms, 400.0);
}

#[test]
fn only_the_first_chunk_waits() {
    // Two chunks of 100 tokens; a layer of the load takes 150 ms, one of a chunk 100.
    let parts = [part(100, 0, Work::Load { tier: Tier::Disk, bytes: 8 * MIB }), part(200, 100, Work::Compute)];
    let whole = predict(&parts, ONCE, &costs(150e3));
    assert_near(whole.total_ms, 8.0 * 150.0 + 100.0 + 800.0);
}

#[test]
fn a_blend_computes_everything_before_the_choosing_layer_and_its_share_behind_it() {
    let blend = |ratio| {
        let parts = [part(100, 0, Work::Blend { tier: Tier::Host, bytes: 8 }), part(10, 100, Work::Compute)];
        predict(&parts, Share { ratio, choosing: AT_2 }, &costs(0.0))
    };
    // Two layers of 110 rows, in two chunks, and six of 10 + 10.
    assert_near(blend(0.1).total_ms, 2.0 * 110.0 + 6.0 * 20.0);
    assert_near(blend(0.0).total_ms, 8.0 * 10.0);
    assert_near(blend(1.0).total_ms, 8.0 * 110.0);
}

#[test]
fn a_probe_is_paid_before_the_blend_and_waits_for_its_layers_itself() {
    let share = Share { ratio: 0.1, choosing: Choosing { layer: 0, probed: 3, looked: 0 } };
    let parts = [part(100, 0, Work::Blend { tier: Tier::Disk, bytes: 8 * MIB }), part(10, 100, Work::Compute)];
    // Three layers of 10 rows, then all eight of 10 + 10.
    let hidden = predict(&parts, share, &costs(0.0));
    assert_near(hidden.total_ms, 3.0 * 10.0 + 8.0 * 20.0);
    // A layer of the load takes 20 ms: the probe waits for three, and the next are there before the blend comes to them.
    let slow = predict(&parts, share, &costs(20e3));
    assert!((slow.total_ms - (3.0 * 20.0 + 10.0 + 8.0 * 20.0)).abs() < 0.1, "{slow:?}");
    assert!((slow.wait_ms - (20.0 + 2.0 * 10.0)).abs() < 0.1, "{slow:?}");
    // Looking at what 10 rows see of 110 slots, in two layers, a microsecond each.
    let mut looking = costs(0.0);
    looking.prefill.look_us_per_weight = 1.0;
    let looked = |probed| Share { ratio: 0.1, choosing: Choosing { layer: 0, probed, looked: 2 } };
    assert_near(predict(&parts, looked(3), &looking).total_ms, 30.0 + 160.0 + 2.2);
    assert_near(predict(&parts, looked(0), &looking).total_ms, 160.0 + 2.2);
    // Nothing is chosen where all or nothing is recomputed.
    let all = Share { ratio: 1.0, ..share };
    assert_near(predict(&parts, all, &costs(0.0)).total_ms, 8.0 * 110.0);
}

#[test]
fn a_bucket_takes_a_round_trip_once_and_then_what_its_line_carries() {
    let mut costs = costs(10e3);
    costs.reads[2].0.request_us = 200e3;
    let object = |position| part(100, position, Work::Load { tier: Tier::Object, bytes: 8 * MIB });
    let parts = [object(0), object(100), part(1, 200, Work::Compute)];
    let whole = predict(&parts, ONCE, &costs);
    assert_near(whole.total_ms, 200.0 + 8.0 * 20.0 + 1.0);
    assert_near(whole.load_ms, 360.0);
}

/// Half of what is loaded comes from memory as fast as the other half from the disk: together they take what one does.
#[test]
fn tiers_are_read_at_the_same_time() {
    let part_from = |tier, position| part(100, position, Work::Load { tier, bytes: 8 * MIB });
    let question = part(1, 200, Work::Compute);
    let apart = [part_from(Tier::Host, 0), part_from(Tier::Disk, 100), question];
    let both = [part_from(Tier::Disk, 0), part_from(Tier::Disk, 100), question];
    assert_near(predict(&apart, ONCE, &costs(10e3)).total_ms, 8.0 * 10.0 + 1.0);
    assert_near(predict(&both, ONCE, &costs(10e3)).total_ms, 8.0 * 20.0 + 1.0);
}

/// Layers before the choosing one are computed and not read: six of eight are, and they come while the first two are computed.
#[test]
fn a_blend_reads_from_its_choosing_layer_on_and_ahead_of_it() {
    let parts = [part(100, 0, Work::Blend { tier: Tier::Disk, bytes: 8 * MIB }), part(10, 100, Work::Compute)];
    // Two layers of 110 rows; a layer of the load takes 30 ms, one of the rows that go on 20.
    let whole = predict(&parts, ONCE, &costs(30e3));
    assert_near(whole.load_ms, 6.0 * 30.0);
    assert_near(whole.total_ms, 220.0 + 6.0 * 20.0);
    assert_near(whole.wait_ms, 0.0);
}

#[test]
fn entries_are_dealt_to_lanes_by_tier_and_size() {
    use Tier::{Disk, Host, Object};
    assert_eq!(lanes(&[]), Vec::<Vec<usize>>::new());
    let mixed = lanes(&[(Host, 1), (Object, 5), (Host, 9), (Object, 1)]);
    assert_eq!(mixed, [vec![0, 2], vec![1, 3]]);
    // Four lanes: the largest first, each next to where least is.
    let disk = lanes(&[(Disk, 1), (Disk, 8), (Disk, 5), (Disk, 4), (Disk, 3), (Disk, 2)]);
    assert_eq!(disk, [vec![1], vec![2], vec![0, 3], vec![4, 5]]);
}

#[test]
fn placing_takes_the_computations_time() {
    let mut costs = costs(0.0);
    costs.reads[0].0.us_per_byte = 1e-9;
    costs.prefill.place_us_per_byte = 1e3 / MIB as f64;
    let parts = [part(100, 0, Work::Load { tier: Tier::Host, bytes: 8 * MIB }), part(1, 100, Work::Compute)];
    assert!((predict(&parts, ONCE, &costs).total_ms - (8.0 + 8.0)).abs() < 0.1);
}

#[test]
fn rows_are_counted_where_they_stand() {
    let parts = [
        part(30, 0, Work::Nothing),
        part(100, 30, Work::Compute),
        part(100, 130, Work::Blend { tier: Tier::Host, bytes: 1 }),
    ];
    let chunks = rows(&parts, 0.5, 80.0);
    let counts: Vec<f64> = chunks.iter().map(|rows| rows.count).collect();
    assert_eq!(counts, [80.0, 70.0]);
    assert_near(chunks[0].cached, 30.0);
    // 20 rows around 120 and 50 around 180.
    assert_near(chunks[1].cached, (20.0 * 120.0 + 50.0 * 180.0) / 70.0 - 35.0);
}
