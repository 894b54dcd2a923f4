use super::super::{Arena, BlockId};
use super::*;
use crate::dtype::KvDtype;

/// The bits of a layer's K and V.
fn bits(pool: &KvPool) -> [Vec<u32>; 2] {
    let of = |arena: &Arena| match arena {
        Arena::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
        Arena::F16(values) | Arena::Bf16(values) => values.iter().map(|bits| u32::from(*bits)).collect(),
    };
    let (keys, values) = pool.arenas(1);
    [of(keys), of(values)]
}

/// Stored rows of so many tokens, normal numbers.
fn stored(layout: KvLayout, tokens: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let values: Vec<f32> = (0..tokens * layout.kv_dim()).map(|_| rng.f32() - 0.5).collect();
    layout.dtype.encode(&values)
}

/// What parts are compared with: token by token, which is the slow way.
fn one_by_one(layout: KvLayout, rope: &Rope, parts: &[Part<'_>]) -> [Vec<u32>; 2] {
    let mut pool = KvPool::new(layout, 9);
    let row = layout.kv_dim() * layout.dtype.size_in_bytes();
    for Part { to, k, v } in parts {
        for token in 0..to.slots.len() {
            let at = |data: &KvData<'_>| match data {
                KvData::Bytes(dtype, bytes) => (*dtype, bytes[token * row..(token + 1) * row].to_vec()),
                KvData::F32(_) => unreachable!("these tests store bytes"),
            };
            let (k, v) = (at(k), at(v));
            let (slots, positions) = (&to.slots[token..=token], &to.positions[token..=token]);
            let (k, v) = (KvData::Bytes(k.0, &k.1), KvData::Bytes(v.0, &v.1));
            pool.write(1, rope, to.blocks, slots, positions, k, v).unwrap();
        }
    }
    bits(&pool)
}

/// Parts of one sequence that begin and end within blocks, and blocks in between: on every path, streamed and not, the bits of token by token. More heads than
/// the parts, and fewer; rows of whole vectors, and others.
#[test]
fn parts_are_written_with_the_bits_of_single_tokens() {
    let blocks = [7, 2, 5, 0, 1, 8, 3].map(BlockId);
    for (dtype, head_dim, kv_heads) in [
        (KvDtype::Bf16, 64, 2),
        (KvDtype::Bf16, 128, 1),
        (KvDtype::Bf16, 40, 3),
        (KvDtype::F16, 64, 2),
        (KvDtype::F32, 16, 2),
    ] {
        let layout = KvLayout { layers: 2, kv_heads, head_dim, dtype };
        let rope = Rope::from_frequencies((0..head_dim / 2).map(|i| 1.0 / (1 + i) as f32).collect(), 1.0, 2048);
        let ranges = [0..21, 21..64, 64..80, 83..112];
        let slots = ranges.clone().map(|range| range.collect::<Vec<u32>>());
        let positions = ranges.map(|range| range.map(|slot| 1000 + slot).collect::<Vec<u32>>());
        let data = [0, 1, 2, 3].map(|i| [10, 20].map(|seed| stored(layout, slots[i].len(), seed + i as u64)));
        let parts = [0, 1, 2, 3].map(|i| {
            let to = Slots { blocks: &blocks, slots: &slots[i], positions: &positions[i] };
            Part { to, k: KvData::Bytes(dtype, &data[i][0]), v: KvData::Bytes(dtype, &data[i][1]) }
        });
        assert!(are_apart(&parts));
        let (all, without_third) =
            (one_by_one(layout, &rope, &parts), one_by_one(layout, &rope, &[parts[0], parts[1], parts[3]]));
        for (path, streams) in Path::available().iter().flat_map(|path| [(*path, false), (*path, true)]) {
            let mut pool = KvPool::new(layout, 9);
            let refused = pool.write_parts_on(path, 1, &rope, &parts, &|_| true, streams).unwrap();
            assert_eq!(refused, Vec::<usize>::new());
            assert!(bits(&pool) == all, "{path:?}, streams {streams}, {layout:?}");
            let mut pool = KvPool::new(layout, 9);
            let refused = pool.write_parts_on(path, 1, &rope, &parts, &|part| part != 2, streams).unwrap();
            assert_eq!(refused, [2]);
            assert!(bits(&pool) == without_third, "{path:?}, streams {streams}, {layout:?}");
            // Fewer parts than there may be threads.
            let mut pool = KvPool::new(layout, 9);
            pool.write_parts_on(path, 1, &rope, &parts[1..2], &|_| true, streams).unwrap();
            assert!(bits(&pool) == one_by_one(layout, &rope, &parts[1..2]), "{path:?}, streams {streams}, {layout:?}");
        }
    }
}

#[test]
fn parts_that_name_a_cell_twice_are_written_in_their_order() {
    let layout = KvLayout { layers: 2, kv_heads: 2, head_dim: 64, dtype: KvDtype::Bf16 };
    let rope = Rope::from_frequencies(vec![0.5; 32], 1.0, 64);
    let slots: [Vec<u32>; 2] = [(0..40).collect(), (32..64).collect()];
    let blocks = [0, 1, 2, 3].map(BlockId);
    let data = [0, 1].map(|i| stored(layout, slots[i].len(), i as u64));
    let part = |i: usize| {
        let data = KvData::Bytes(layout.dtype, &data[i]);
        Part { to: Slots { blocks: &blocks, slots: &slots[i], positions: &slots[i] }, k: data, v: data }
    };
    let parts = [part(0), part(1), part(0)];
    assert!(!are_apart(&parts) && are_apart(&parts[..1]) && are_apart(&[]));
    let mut pool = KvPool::new(layout, 9);
    pool.write_parts(1, &rope, &parts, &|_| true).unwrap();
    assert!(bits(&pool) == one_by_one(layout, &rope, &parts));
}

#[test]
fn blocks_that_come_twice_or_of_two_sequences_are_not_apart() {
    let (slots, data) = ([0, 17], KvData::F32(&[]));
    let part = |blocks, slots| Part { to: Slots { blocks, slots, positions: slots }, k: data, v: data };
    let (twice, once, other) = ([3, 3].map(BlockId), [3, 4].map(BlockId), [5, 4].map(BlockId));
    assert!(!are_apart(&[part(&twice, &slots)]));
    assert!(are_apart(&[part(&once, &slots)]));
    assert!(!are_apart(&[part(&once, &slots[..1]), part(&other, &slots[1..])]));
}

#[test]
fn nothing_is_written_where_a_part_names_what_is_not_there() {
    let layout = KvLayout { layers: 2, kv_heads: 2, head_dim: 4, dtype: KvDtype::Bf16 };
    let rope = Rope::from_frequencies(vec![1.0, 0.5], 1.0, 64);
    let data = stored(layout, 1, 1);
    let data = KvData::Bytes(layout.dtype, &data);
    let blocks = [BlockId(0)];
    let part =
        |slot: &'static [u32]| Part { to: Slots { blocks: &blocks, slots: slot, positions: slot }, k: data, v: data };
    let mut pool = KvPool::new(layout, 9);
    let checked = AtomicBool::new(false);
    let check = |_| checked.fetch_or(true, Ordering::Relaxed);
    let error = pool.write_parts(1, &rope, &[part(&[0]), part(&[16])], &check).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
    assert!(!checked.into_inner() && bits(&pool).iter().flatten().all(|bits| *bits == 0));
}
