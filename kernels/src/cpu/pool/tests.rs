use super::*;

const LAYOUT: KvLayout = KvLayout { layers: 2, kv_heads: 2, head_dim: 6, dtype: KvDtype::Bf16 };

fn rope() -> Rope {
    Rope::from_frequencies(vec![1.0, 0.2, 0.01], 1.0, 64)
}

fn rows(seed: u64, tokens: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rows: Vec<f32> = (0..tokens * LAYOUT.kv_dim()).map(|_| rng.f32() - 0.5).collect();
    LAYOUT.dtype.round(&mut rows);
    rows
}

#[test]
fn tokens_land_in_their_slots_rotated() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        land_in_slots(KvLayout { dtype, ..LAYOUT });
    }
}

fn land_in_slots(layout: KvLayout) {
    let mut pool = KvPool::new(layout, 5);
    let blocks = [BlockId(3), BlockId(0)];
    let (slots, positions) = ([17, 2, 31], [5, 40, 900]);
    let (k, v) = (rows(1, 3), rows(2, 3));
    pool.write(1, &rope(), &blocks, &slots, &positions, KvData::F32(&k), KvData::F32(&v)).unwrap();
    for token in 0..3 {
        let (block, lane) = (blocks[slots[token] as usize / 16], slots[token] as usize % 16);
        for head in 0..2 {
            let mut key = k[token * 12 + head * 6..][..6].to_vec();
            rope().rotate(&mut key, positions[token]);
            layout.dtype.round(&mut key);
            let start = pool.head(head).start(block);
            let key_cell = |dim: usize| match layout.dtype {
                KvDtype::Bf16 => dim / 2 * 32 + lane * 2 + dim % 2,
                _ => dim * 16 + lane,
            };
            let value_cell = |dim: usize| match layout.dtype {
                KvDtype::Bf16 => lane / 2 * 32 + dim * 2 + lane % 2,
                _ => lane * 16 + dim,
            };
            let written: Vec<f32> = (0..6).map(|dim| cell(pool.arenas(1).0, start + key_cell(dim))).collect();
            assert_eq!(written, key, "{}", layout.dtype);
            let written: Vec<f32> = (0..6).map(|dim| cell(pool.arenas(1).1, start + value_cell(dim))).collect();
            let mut value = v[token * 12 + head * 6..][..6].to_vec();
            layout.dtype.round(&mut value);
            assert_eq!(written, value, "{}", layout.dtype);
        }
    }
    assert!((0..5 * layout.block_len()).all(|at| cell(pool.arenas(0).0, at) == 0.0), "the other layer is untouched");
}

/// Whole blocks are placed by another way than single tokens, with the same bits: heads that are turned in whole vectors, in part, and not; positions whose
/// angles are kept, and others.
#[test]
fn blocks_and_single_tokens_are_placed_alike() {
    for (head_dim, pairs, kept) in [
        (18, 9, 64),
        (18, 5, 64),
        (64, 32, 2048),
        (64, 32, 64),
        (128, 64, 2048),
        (32, 16, 2048),
        (96, 48, 2048),
        (64, 16, 2048),
    ] {
        let frequencies = (0..pairs).map(|i| 1.0 / (1 + i) as f32).collect();
        let rope = Rope::of_part(head_dim, frequencies, kept);
        for (path, step) in Path::available().iter().flat_map(|path| [(*path, 1), (*path, 3)]) {
            are_placed_alike(path, KvLayout { head_dim, ..LAYOUT }, &rope, step);
        }
    }
}

fn are_placed_alike(path: Path, layout: KvLayout, rope: &Rope, step: u32) {
    let tokens = 53;
    let mut rng = fastrand::Rng::with_seed(3);
    let values: Vec<u8> =
        (0..tokens * layout.kv_dim() * 2).map(|i| if i % 2 == 1 { rng.u8(..) & 0xbf } else { rng.u8(..) }).collect();
    let (k, v) = values.split_at(values.len() / 2);
    let (k, v) = ([k, k].concat(), [v, v].concat());
    let blocks = [4, 1, 3, 0].map(BlockId);
    // Over a border between angles that are kept together.
    let positions: Vec<u32> = (0..tokens as u32).map(|token| 1001 + step * token).collect();
    // From the middle of a block, over two whole ones, into a fourth.
    let slots: Vec<u32> = (5..5 + tokens as u32).collect();
    let row = layout.kv_dim() * 2;
    let mut together = KvPool::new(layout, 5);
    fn data(bytes: &[u8]) -> KvData<'_> {
        KvData::Bytes(KvDtype::Bf16, bytes)
    }
    let to = Slots { blocks: &blocks, slots: &slots, positions: &positions };
    together.write_on(path, 0, rope, to, data(&k), data(&v)).unwrap();
    let mut apart = KvPool::new(layout, 5);
    for token in 0..tokens {
        let (slot, position) = (&slots[token..=token], &positions[token..=token]);
        let at = token * row..(token + 1) * row;
        apart.write(0, rope, &blocks, slot, position, data(&k[at.clone()]), data(&v[at])).unwrap();
    }
    let bits = |pool: &KvPool| {
        let (keys, values) = pool.arenas(0);
        let all = 0..5 * layout.block_len();
        all.map(|at| (cell(keys, at).to_bits(), cell(values, at).to_bits())).collect::<Vec<_>>()
    };
    assert!(bits(&together) == bits(&apart), "{path:?}, {layout:?}");
    assert!(bits(&together).iter().filter(|(key, _)| *key != 0).count() > tokens * layout.kv_dim() / 2);
}

fn cell(arena: &Arena, at: usize) -> f32 {
    match arena {
        Arena::F32(values) => values[at],
        Arena::F16(values) => half::f16::from_bits(values[at]).to_f32(),
        Arena::Bf16(values) => half::bf16::from_bits(values[at]).to_f32(),
    }
}

#[test]
fn bytes_and_values_write_the_same_bits() {
    let (k, v) = (rows(3, 20), rows(4, 20));
    let slots: Vec<u32> = (0..20).collect();
    let mut fresh = KvPool::new(LAYOUT, 2);
    let mut loaded = KvPool::new(LAYOUT, 2);
    let blocks = [BlockId(0), BlockId(1)];
    fresh.write(0, &rope(), &blocks, &slots, &slots, KvData::F32(&k), KvData::F32(&v)).unwrap();
    let (k, v) = (LAYOUT.dtype.encode(&k), LAYOUT.dtype.encode(&v));
    let (k, v) = (KvData::Bytes(LAYOUT.dtype, &k), KvData::Bytes(LAYOUT.dtype, &v));
    loaded.write(0, &rope(), &blocks, &slots, &slots, k, v).unwrap();
    for at in 0..2 * LAYOUT.block_len() {
        assert_eq!(cell(fresh.arenas(0).0, at), cell(loaded.arenas(0).0, at));
        assert_eq!(cell(fresh.arenas(0).1, at), cell(loaded.arenas(0).1, at));
    }
}

#[test]
fn writes_outside_the_pool_are_refused() {
    let mut pool = KvPool::new(LAYOUT, 2);
    let rope = rope();
    let data = rows(1, 1);
    let data = KvData::F32(&data);
    let mut refused = |layer, block, slot: u32, positions: &[u32], k, says: &str| {
        let error = pool.write(layer, &rope, &[BlockId(block)], &[slot], positions, k, data).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(2, 0, 0, &[0], data, "layer 2");
    refused(0, 2, 0, &[0], data, "block 2");
    refused(0, 0, 16, &[0], data, "slot 16");
    refused(0, 0, 0, &[], data, "0 positions");
    refused(0, 0, 0, &[0], KvData::F32(&[0.0; 11]), "11 values of K");
    refused(0, 0, 0, &[0], KvData::Bytes(KvDtype::F16, &[0; 22]), "11 values of K");
}

#[test]
fn a_copied_block_has_every_bit_of_every_layer_and_touches_no_other() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let layout = KvLayout { dtype, ..LAYOUT };
        let mut pool = KvPool::new(layout, 4);
        let slots: Vec<u32> = (0..16).collect();
        for layer in 0..2 {
            let (k, v) = (rows(3 + layer, 16), rows(7 + layer, 16));
            let (k, v) = (KvData::F32(&k), KvData::F32(&v));
            pool.write(layer as usize, &rope(), &[BlockId(1)], &slots, &slots, k, v).unwrap();
        }
        pool.copy_block(BlockId(1), BlockId(3)).unwrap();
        let len = layout.block_len();
        for (keys, values) in (0..2).map(|layer| pool.arenas(layer)) {
            for arena in [keys, values] {
                let block = |block: usize| (0..len).map(|at| cell(arena, block * len + at)).collect::<Vec<_>>();
                assert_eq!(block(3), block(1), "{dtype}");
                assert!(block(1).iter().any(|value| *value != 0.0));
                assert!([0, 2].map(block).concat().iter().all(|value| *value == 0.0), "{dtype}");
            }
        }
        assert!(pool.copy_block(BlockId(1), BlockId(4)).is_err());
        assert!(pool.copy_block(BlockId(4), BlockId(1)).is_err());
    }
}
