use std::ops::Range;

use super::*;
use crate::dtype::KvDtype;
use crate::pool::{BlockId, KvData, KvLayout};
use crate::rope::Rope;

/// A sequence in a pool, its keys and values in the clear.
struct Scene {
    layout: KvLayout,
    heads: usize,
    pool: KvPool,
    blocks: Vec<BlockId>,
    key_positions: Vec<u32>,
    /// By slot, rotated.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// ALiBi's, one a head.
    slopes: Option<Vec<f32>>,
}

impl Scene {
    /// `key_positions` by slot; the blocks stand backwards in the pool, and hold garbage where no slot is filled.
    fn new(heads: usize, kv_heads: usize, head_dim: usize, key_positions: Vec<u32>) -> Self {
        Self::of(KvDtype::F32, heads, kv_heads, head_dim, key_positions)
    }

    fn of(dtype: KvDtype, heads: usize, kv_heads: usize, head_dim: usize, key_positions: Vec<u32>) -> Self {
        let layout = KvLayout { layers: 2, kv_heads, head_dim, dtype };
        let rope = Rope::from_frequencies((0..head_dim / 2).map(|i| 0.5 / (i + 1) as f32).collect(), 1.0, 4096);
        let tokens = key_positions.len();
        let count = tokens.div_ceil(BLOCK_TOKENS);
        let mut pool = KvPool::new(layout, count + 1);
        let blocks: Vec<BlockId> = (0..count).map(|block| BlockId((count - block) as u32)).collect();
        let mut rng = fastrand::Rng::with_seed(3);
        let mut rows = |tokens: usize| (0..tokens * layout.kv_dim()).map(|_| rng.f32() * 4.0 - 2.0).collect::<Vec<_>>();
        let slots: Vec<u32> = (0..(count * BLOCK_TOKENS) as u32).collect();
        let garbage = vec![f32::NAN; slots.len() * layout.kv_dim()];
        let garbage = KvData::F32(&garbage);
        pool.write(1, &rope, &blocks, &slots, &vec![0; slots.len()], garbage, garbage).unwrap();
        let (k, v) = (rows(tokens), rows(tokens));
        let positions: Vec<u32> = key_positions.iter().map(|position| (*position).min(9999)).collect();
        let (k_data, v_data) = (KvData::F32(&k), KvData::F32(&v));
        pool.write(1, &rope, &blocks, &slots[..tokens], &positions, k_data, v_data).unwrap();
        let mut keys: Vec<Vec<f32>> = k.chunks(layout.kv_dim()).map(<[f32]>::to_vec).collect();
        keys.iter_mut().zip(&positions).for_each(|(key, position)| rope.rotate_row(key, *position));
        let mut values: Vec<Vec<f32>> = v.chunks(layout.kv_dim()).map(<[f32]>::to_vec).collect();
        keys.iter_mut().chain(&mut values).for_each(|row| dtype.round(row));
        Self { layout, heads, pool, blocks, key_positions, keys, values, slopes: None }
    }

    fn queries(&self, rows: usize) -> Matrix {
        let mut rng = fastrand::Rng::with_seed(4);
        let cols = self.heads * self.layout.head_dim;
        Matrix::from_vec(rows, cols, (0..rows * cols).map(|_| rng.f32() * 4.0 - 2.0).collect())
    }

    fn group<'a>(&'a self, rows: Range<usize>, positions: &'a [u32]) -> RowGroup<'a> {
        let sequence = SequenceView { blocks: &self.blocks, key_positions: &self.key_positions };
        RowGroup { rows, positions, sequence }
    }

    fn attend(&self, path: Path, q: &Matrix, positions: &[u32], options: AttentionOptions<'_>) -> Matrix {
        let mut out = Matrix::zeros(q.rows(), q.cols());
        let groups = [self.group(0..q.rows(), positions)];
        let options = AttentionOptions { slopes: self.slopes.as_deref(), ..options };
        attend_on(path, &self.pool, 1, q, &groups, options, &mut out);
        out
    }

    /// Softmax attention as the textbook has it, in f64.
    fn expected(&self, q: &[f32], position: u32, window: Option<u32>) -> Vec<f64> {
        let head_dim = self.layout.head_dim;
        let mut out = vec![0.0; q.len()];
        for head in 0..self.heads {
            let kv = head / (self.heads / self.layout.kv_heads) * head_dim;
            let sees = |key: u32| key != u32::MAX && key <= position && window.is_none_or(|w| position - key < w);
            let weight = |slot: usize| {
                let products =
                    (0..head_dim).map(|d| f64::from(q[head * head_dim + d]) * f64::from(self.keys[slot][kv + d]));
                (products.sum::<f64>() * 0.3 + self.bias(head, position, self.key_positions[slot])).exp()
            };
            let seen: Vec<usize> = (0..self.keys.len()).filter(|slot| sees(self.key_positions[*slot])).collect();
            let weights: Vec<f64> = seen.iter().map(|slot| weight(*slot)).collect();
            let total: f64 = weights.iter().sum();
            for (slot, weight) in seen.into_iter().zip(weights) {
                for d in 0..head_dim {
                    out[head * head_dim + d] += weight / total * f64::from(self.values[slot][kv + d]);
                }
            }
        }
        out
    }

    /// What ALiBi adds to a score.
    fn bias(&self, head: usize, position: u32, key: u32) -> f64 {
        let slope = self.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
        slope * (f64::from(key) - f64::from(position))
    }

    /// As [`Scene::attend`] in bf16, by the processor's tiles or their emulation.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn attend_by_tiles(&self, q: &Matrix, positions: &[u32], window: Option<u32>) -> Matrix {
        let mut out = Matrix::zeros(q.rows(), q.cols());
        let groups = [self.group(0..q.rows(), positions)];
        let slopes = self.slopes.as_deref();
        let options = AttentionOptions { slopes, ..options(window, ComputeDtype::Bf16) };
        attend_with(Path::best(), true, &self.pool, 1, q, &groups, options, &mut out);
        out
    }

    fn check(&self, positions: &[u32], window: Option<u32>) {
        let mut q = self.queries(positions.len());
        // Queries that bf16 holds, for scores of the same size whatever the format.
        KvDtype::Bf16.round(q.as_mut_slice());
        for &path in Path::available() {
            for compute in [ComputeDtype::F32, ComputeDtype::Bf16] {
                let is_rounded = compute == ComputeDtype::Bf16 && self.layout.dtype == KvDtype::Bf16;
                // Scaled queries and weights that are off by 2^-9 at most: of scores up to 20, and values up to 2.
                let bound = if is_rounded { 0.08 } else { 2e-5 };
                let out = self.attend(path, &q, positions, options(window, compute));
                for (row, position) in positions.iter().enumerate() {
                    let expected = self.expected(q.row(row), *position, window);
                    for (got, exact) in out.row(row).iter().zip(expected) {
                        let difference = (f64::from(*got) - exact).abs();
                        assert!(difference < bound, "{path:?} {compute:?} row {row}: {got} is not {exact}");
                    }
                }
            }
        }
    }
}

mod weights;

fn options(window: Option<u32>, compute: ComputeDtype) -> AttentionOptions<'static> {
    AttentionOptions { window, scale: 0.3, compute, slopes: None }
}

const DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];

fn shuffled(count: u32) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..count).collect();
    fastrand::Rng::with_seed(9).shuffle(&mut positions);
    positions
}

#[test]
fn a_causal_prefill_agrees_with_the_dense_reference() {
    for (heads, kv_heads, head_dim) in [(14, 2, 64), (4, 4, 8), (6, 2, 128), (3, 1, 80), (8, 2, 10)] {
        for dtype in DTYPES {
            let scene = Scene::of(dtype, heads, kv_heads, head_dim, (0..83).collect());
            scene.check(&(0..83).collect::<Vec<_>>(), None);
        }
    }
}

#[test]
fn scattered_rows_over_permuted_slots_see_what_is_before_them() {
    for dtype in DTYPES {
        let scene = Scene::of(dtype, 6, 2, 16, shuffled(200));
        scene.check(&[3, 0, 199, 64, 63, 65, 120, 17, 5, 130], None);
        scene.check(&[7], None);
    }
}

#[test]
fn positions_may_have_gaps_and_slots_may_be_hidden() {
    let mut positions: Vec<u32> = (0..90).map(|slot| slot * 7 % 101 * 10 + 5).collect();
    positions[12] = u32::MAX;
    positions[70] = u32::MAX;
    for dtype in DTYPES {
        let scene = Scene::of(dtype, 4, 2, 16, positions.clone());
        scene.check(&[0, 5, 400, 1200, 777], None);
        scene.check(&[0, 5, 400, 1200, 777], Some(90));
    }
}

#[test]
fn a_window_hides_what_is_far_behind() {
    let scene = Scene::new(4, 2, 16, (0..300).collect());
    for window in [1, 16, 70, 1000] {
        scene.check(&[0, 1, 15, 16, 80, 150, 151, 299], Some(window));
    }
    let scene = Scene::new(4, 2, 16, shuffled(150));
    scene.check(&[149, 2, 60], Some(20));
}

/// Over gaps, permuted and hidden slots, with heads that share K and V and ones that do not.
#[test]
fn alibi_counts_true_positions() {
    let mut positions: Vec<u32> = (0..90).map(|slot| slot * 7 % 101 * 3 + 5).collect();
    positions[12] = u32::MAX;
    for dtype in DTYPES {
        for (heads, kv_heads) in [(4, 4), (6, 2), (3, 3)] {
            let mut scene = Scene::of(dtype, heads, kv_heads, 16, positions.clone());
            scene.slopes = Some(crate::config::alibi_slopes(heads));
            scene.check(&[0, 5, 120, 300, 77], None);
            scene.check(&[300, 9, 3000], Some(40));
        }
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero() {
    let scene = Scene::new(2, 2, 16, vec![50, 60]);
    let q = scene.queries(1);
    for &path in Path::available() {
        let out = scene.attend(path, &q, &[49], options(None, ComputeDtype::F32));
        assert!(out.as_slice().iter().all(|value| *value == 0.0));
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero_beside_rows_that_do() {
    for dtype in DTYPES {
        let scene = Scene::of(dtype, 2, 2, 16, (50..80).collect());
        let q = scene.queries(3);
        for &path in Path::available() {
            let out = scene.attend(path, &q, &[49, 79, 3], options(None, ComputeDtype::Bf16));
            assert!([0, 2].iter().all(|row| out.row(*row).iter().all(|value| *value == 0.0)), "{path:?} {dtype}");
            assert!(out.row(1).iter().all(|value| value.is_finite() && *value != 0.0), "{path:?} {dtype}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    for dtype in DTYPES {
        let mut scene = Scene::of(dtype, 14, 2, 64, shuffled(333));
        // Rows with ALiBi in one of the three formats.
        scene.slopes = (dtype == KvDtype::Bf16).then(|| crate::config::alibi_slopes(14));
        let positions = shuffled(333);
        let q = scene.queries(333);
        for options in [options(None, ComputeDtype::F32), options(Some(100), ComputeDtype::Bf16)] {
            for &path in Path::available() {
                let all = scene.attend(path, &q, &positions, options);
                for rows in [vec![0], vec![332], (10..40).collect(), vec![5, 100, 101, 300]] {
                    let some: Vec<u32> = rows.iter().map(|row| positions[*row]).collect();
                    let out = scene.attend(path, &q.select_rows(&rows), &some, options);
                    assert!(bits_equal(&out, &all.select_rows(&rows)), "{path:?} {rows:?}");
                }
            }
        }
    }
}

#[test]
fn keys_behind_a_query_do_not_change_its_bits() {
    for (dtype, compute) in DTYPES.into_iter().zip([ComputeDtype::F32, ComputeDtype::F32, ComputeDtype::Bf16]) {
        let long = Scene::of(dtype, 4, 2, 16, (0..150).collect());
        let q = long.queries(70);
        let positions: Vec<u32> = (0..70).collect();
        for &path in Path::available() {
            let out = long.attend(path, &q, &positions, options(None, compute));
            let sequence = SequenceView { blocks: &long.blocks[..5], key_positions: &long.key_positions[..70] };
            let groups = [RowGroup { rows: 0..70, positions: &positions, sequence }];
            let mut short = Matrix::zeros(70, q.cols());
            attend_on(path, &long.pool, 1, &q, &groups, options(None, compute), &mut short);
            assert!(bits_equal(&out, &short), "{path:?}");
        }
    }
}

/// On processors without tiles by an emulator. Of 48 elements there are no tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_attend_as_the_dense_reference_does() {
    let _emulated = crate::simd::amx::emulator::install();
    let mut hidden: Vec<u32> = shuffled(83);
    hidden[12] = u32::MAX;
    let causal: Vec<u32> = (0..40).collect();
    for (heads, kv_heads, head_dim) in [(14, 2, 64), (2, 2, 32), (6, 2, 128), (3, 1, 96), (4, 2, 48)] {
        for (key_positions, positions, window) in
            [(&causal, &causal, None), (&hidden, &vec![3, 0, 70, 82], None), (&hidden, &vec![82, 30], Some(20))]
        {
            let mut scene = Scene::of(KvDtype::Bf16, heads, kv_heads, head_dim, key_positions.clone());
            scene.slopes = (heads % 3 == 0).then(|| crate::config::alibi_slopes(heads));
            let mut q = scene.queries(positions.len());
            KvDtype::Bf16.round(q.as_mut_slice());
            let out = scene.attend_by_tiles(&q, positions, window);
            for (row, position) in positions.iter().enumerate() {
                let expected = scene.expected(q.row(row), *position, window);
                for (got, exact) in out.row(row).iter().zip(expected) {
                    let difference = (f64::from(*got) - exact).abs();
                    assert!(difference < 0.08, "{head_dim} row {row}: {got} is not {exact}");
                }
                let alone = scene.attend_by_tiles(&q.select_rows(&[row]), &[*position], window);
                assert!(bits_equal(&alone, &out.select_rows(&[row])), "{head_dim} row {row} alone");
            }
        }
    }
}

#[test]
fn groups_read_their_own_sequence_and_other_rows_stay() {
    let scene = Scene::new(4, 2, 16, (0..100).collect());
    let q = scene.queries(7);
    let part = SequenceView { blocks: &scene.blocks[2..], key_positions: &scene.key_positions[32..] };
    let groups = [scene.group(1..3, &[20, 99]), RowGroup { rows: 4..6, positions: &[40, 90], sequence: part }];
    let mut out = Matrix::from_vec(7, q.cols(), vec![7.0; 7 * q.cols()]);
    attend(&scene.pool, 1, &q, &groups, options(None, ComputeDtype::F32), &mut out);
    for row in [0, 3, 6] {
        assert!(out.row(row).iter().all(|value| *value == 7.0));
    }
    let expected = scene.expected(q.row(2), 99, None);
    assert!(out.row(2).iter().zip(expected).all(|(got, exact)| (f64::from(*got) - exact).abs() < 2e-5));
    let mut alone = Matrix::zeros(2, q.cols());
    let groups = [RowGroup { rows: 0..2, positions: &[40, 90], sequence: part }];
    attend(&scene.pool, 1, &q.select_rows(&[4, 5]), &groups, options(None, ComputeDtype::F32), &mut alone);
    assert!(bits_equal(&alone, &out.select_rows(&[4, 5])));
}

fn bits_equal(a: &Matrix, b: &Matrix) -> bool {
    a.rows() == b.rows() && a.as_slice().iter().zip(b.as_slice()).all(|(a, b)| a.to_bits() == b.to_bits())
}
