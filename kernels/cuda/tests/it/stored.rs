//! KV out of the device and into it again.

use ragstone_cuda::CudaModel;
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::{Backend, KvBytes, Slots, StoredKv};
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_kernels::forward::{Chunk, Forward, Next, Outcome, Places, Rider, Seen, Selector, Wanted};
use ragstone_kernels::pool::BlockId;

use crate::fixtures::Expected;
use crate::forward::counted;
use crate::standin::StandIn;

/// Tokens whose KV is stored.
pub const STORED: usize = 21;

/// Keeps each layer's fresh KV of the first tokens.
#[derive(Debug, Default, PartialEq)]
pub struct Keep(pub Vec<KvBytes>);

impl<B: Backend> Selector<B> for Keep {
    fn take(&mut self, seen: &Seen<'_, B>, _: &mut B::Pool) -> Next {
        self.0.push(seen.export(0..STORED));
        Next::Go
    }
}

/// Puts stored KV of the first tokens into each layer.
pub struct Load<'a>(pub &'a Keep, pub KvDtype);

impl<B: Backend> Selector<B> for Load<'_> {
    fn take(&mut self, seen: &Seen<'_, B>, pool: &mut B::Pool) -> Next {
        let kept = &self.0.0[seen.layer];
        let places = Places { slots: counted(STORED), positions: counted(STORED) };
        seen.place_stored(pool, &places, StoredKv { dtype: self.1, k: &kept.k, v: &kept.v }).unwrap();
        Next::Go
    }
}

fn blocks(count: usize) -> Vec<BlockId> {
    (0..count.div_ceil(16) as u32).rev().map(BlockId).collect()
}

/// The logits of the rows from `first` on.
pub fn pass(model: &CudaModel, tokens: &[u32], first: usize, selector: &mut dyn Selector<CudaModel>) -> Vec<f32> {
    let (blocks, positions) = (blocks(tokens.len()), counted(tokens.len()));
    let mut pool = model.new_pool(blocks.len());
    let places = Places { slots: positions[first..].to_vec(), positions: positions[first..].to_vec() };
    let chunk = Chunk::embed(model, &tokens[first..], places, Wanted::All).unwrap();
    let rider = Rider { chunk, blocks: &blocks, key_positions: &positions, selector: Some(selector) };
    let passed = Forward::new(model, &mut pool).pass(vec![rider]);
    assert!(matches!(passed.outcomes[..], [Outcome::Done(_)]), "{:?}", passed.outcomes);
    passed.logits.into_vec()
}

/// Also the bits of a lost, out-of-order or half-filled load would be others: under several seeds.
#[test]
fn rows_over_stored_kv_have_the_bits_of_those_over_fresh_kv() {
    for (seed, dtype) in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16].into_iter().cycle().take(9).enumerate() {
        let standin = StandIn::new(seed as u64);
        let model = standin.model("qwen3", dtype, ComputeDtype::F32).unwrap();
        let tokens = Expected::of("qwen3").tokens;
        let mut kept = Keep::default();
        let whole = pass(&model, &tokens, 0, &mut kept);
        assert!(kept.0.len() == model.config().layers && kept.0.iter().all(|kv| kv.is_finite));
        let rest = pass(&model, &tokens, STORED, &mut Load(&kept, dtype));
        let expected = &whole[STORED * model.config().vocab_size..];
        assert!(rest.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype:?}, seed {seed}");
        assert_eq!(rest.len(), expected.len());
        drop(model);
        standin.assert_clean();
    }
}

#[test]
fn deviations_are_the_squares_of_what_differs() {
    let standin = StandIn::new(1);
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let model = standin.model("qwen2", dtype, ComputeDtype::F32).unwrap();
        let rows = model.embed(&[5, 6, 7, 8], &counted(4)).unwrap();
        let kv = model.project(0, &rows);
        let (fresh, dim) = (model.export(&kv, 0..4), model.config().kv_dim());
        let decode = |bytes: &[u8]| {
            let mut values = vec![0.0; 4 * dim];
            dtype.decode(bytes, &mut values).unwrap();
            values
        };
        let (k, v) = (decode(&fresh.k), decode(&fresh.v));
        // Stored tokens are those of the rows in another order, V a little off.
        let moved = |values: &[f32], by: f32| -> Vec<u8> {
            let rows = [2, 0, 3, 1].iter().flat_map(|row| values[row * dim..(row + 1) * dim].iter());
            dtype.encode(&rows.map(|value| value + by).collect::<Vec<_>>())
        };
        let (stored_k, stored_v) = (moved(&k, 0.0), moved(&v, 0.5));
        let stored = StoredKv { dtype, k: &stored_k, v: &stored_v };
        let pairs = [(2, 0), (0, 1), (1, 1)];
        let of = |compared| model.deviation(&kv, stored, &pairs, compared).unwrap();
        let (stored_k, stored_v) = (decode(&stored_k), decode(&stored_v));
        let expected = |fresh: &[f32], stored: &[f32], (row, token): (usize, usize)| -> f32 {
            let pair = fresh[row * dim..][..dim].iter().zip(&stored[token * dim..][..dim]);
            pair.map(|(a, b)| (a - b) * (a - b)).sum()
        };
        let (keys, values, both) = (of(Compared::Keys), of(Compared::Values), of(Compared::Both));
        for (index, pair) in pairs.into_iter().enumerate() {
            let (key, value) = (expected(&k, &stored_k, pair), expected(&v, &stored_v, pair));
            for (ours, wanted) in [(keys[index], key), (values[index], value), (both[index], key + value)] {
                assert!((ours - wanted).abs() <= 1e-4 * wanted.max(1.0), "{dtype:?} {pair:?}: {ours} {wanted}");
            }
        }
        assert_eq!(keys[0], 0.0);
        for pairs in [[(4, 0)], [(0, 4)]] {
            let error = model.deviation(&kv, stored, &pairs, Compared::Both).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
    standin.assert_clean();
}

#[test]
fn blocks_are_copied_and_swapped_bit_for_bit() {
    let standin = StandIn::new(2);
    let model = standin.model("qwen2", KvDtype::Bf16, ComputeDtype::F32).unwrap();
    let tokens = &Expected::of("qwen2").tokens[..20];
    let (mut pool, blocks, positions) = (model.new_pool(6), [BlockId(4), BlockId(1)], counted(20));
    let places = || Places { slots: positions[19..].to_vec(), positions: positions[19..].to_vec() };
    let all = Places { slots: positions.clone(), positions: positions.clone() };
    let expected =
        Forward::new(&model, &mut pool).logits(tokens, all, Wanted::Last, &blocks, &positions).unwrap().into_vec();
    model.copy_block(&mut pool, BlockId(4), BlockId(5)).unwrap();
    let swapped = model.read_block(&pool, BlockId(1)).unwrap();
    model.write_block(&mut pool, BlockId(0), &swapped).unwrap();
    for moved in [[BlockId(5), BlockId(1)], [BlockId(4), BlockId(0)], [BlockId(5), BlockId(0)]] {
        let mut forward = Forward::new(&model, &mut pool);
        let logits = forward.logits(&tokens[19..], places(), Wanted::Last, &moved, &positions).unwrap();
        assert_eq!(logits.as_slice(), expected, "{moved:?}");
    }
    for (error, what) in [
        (model.copy_block(&mut pool, BlockId(6), BlockId(0)).unwrap_err(), "a block that is not there"),
        (model.read_block(&pool, BlockId(6)).unwrap_err(), "as above"),
        (model.write_block(&mut pool, BlockId(0), &swapped[1..]).unwrap_err(), "too few bytes"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}: {error}");
    }
    standin.assert_clean();
}

#[test]
fn of_tokens_that_name_one_slot_the_last_one_stays() {
    let standin = StandIn::new(3);
    let model = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap();
    let kv = model.project(0, &model.embed(&[5, 6, 7], &counted(3)).unwrap());
    let blocks = [BlockId(0)];
    let written = |slots: &[u32], positions: &[u32], rows: std::ops::Range<usize>| {
        let mut pool = model.new_pool(1);
        let to = Slots { blocks: &blocks, slots, positions };
        model.place(&mut pool, 0, to, &kv, rows).unwrap();
        model.read_block(&pool, BlockId(0)).unwrap()
    };
    assert_eq!(written(&[3, 3, 3], &[9, 8, 7], 0..3), written(&[3], &[7], 2..3));
    let mut pool = model.new_pool(1);
    let mut refused = |slots: &[u32], rows| {
        let to = Slots { blocks: &blocks, slots, positions: &[0] };
        assert_eq!(model.place(&mut pool, 0, to, &kv, rows).unwrap_err().kind(), ErrorKind::InvalidInput);
    };
    refused(&[16], 0..1);
    refused(&[0], 3..4);
    refused(&[0], 0..2);
    standin.assert_clean();
}
