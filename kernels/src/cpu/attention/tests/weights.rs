//! Softmax weights against plain loops in f64, and against themselves.

use super::*;

impl Scene {
    fn weights(&self, path: Path, q: &Matrix, positions: &[u32], options: AttentionOptions<'_>) -> Matrix {
        let options = AttentionOptions { slopes: self.slopes.as_deref(), ..options };
        let group = self.group(0..q.rows(), positions);
        attention_weights_with(path, false, &self.pool, 1, q, &group, options)
    }

    /// The mean over heads of softmax weights, slot by slot, as the textbook has it.
    fn expected_weights(&self, q: &[f32], position: u32, window: Option<u32>) -> Vec<f64> {
        let head_dim = self.layout.head_dim;
        let mut mean = vec![0.0; self.keys.len()];
        for (head, q) in q.chunks(head_dim).enumerate() {
            let kv = head / (self.heads / self.layout.kv_heads) * head_dim;
            let weights = self.keys.iter().zip(&self.key_positions).map(|(key, at)| {
                let is_seen = *at != u32::MAX && *at <= position && window.is_none_or(|window| position - at < window);
                let products = q.iter().zip(&key[kv..]).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let score = products.sum::<f64>() * 0.3 + self.bias(head, position, *at);
                if is_seen { score.exp() } else { 0.0 }
            });
            let weights: Vec<f64> = weights.collect();
            let total: f64 = weights.iter().sum();
            if total > 0.0 {
                mean.iter_mut().zip(weights).for_each(|(mean, weight)| *mean += weight / total / self.heads as f64);
            }
        }
        mean
    }

    fn check_weights(&self, positions: &[u32], window: Option<u32>) {
        let mut q = self.queries(positions.len());
        KvDtype::Bf16.round(q.as_mut_slice());
        for (path, compute) in Path::available().iter().flat_map(|path| COMPUTES.map(|compute| (*path, compute))) {
            let is_rounded = compute == ComputeDtype::Bf16 && self.layout.dtype == KvDtype::Bf16;
            // Scaled queries that are off by 2^-9 at most: of scores up to 20, each weight by a twentieth at most.
            let bound = |exact: f64| if is_rounded { 0.05 * exact + 1e-6 } else { 2e-5 * exact + 1e-7 };
            let got = self.weights(path, &q, positions, options(window, compute));
            assert_eq!((got.rows(), got.cols()), (positions.len(), self.keys.len()));
            for (row, position) in positions.iter().enumerate() {
                let expected = self.expected_weights(q.row(row), *position, window);
                for (slot, (got, exact)) in got.row(row).iter().zip(expected).enumerate() {
                    let what = || format!("{path:?} {compute:?} row {row} slot {slot}: {got} is not {exact}");
                    assert!((f64::from(*got) - exact).abs() <= bound(exact), "{}", what());
                    assert!(exact > 0.0 || *got == 0.0, "{}", what());
                }
            }
        }
    }
}

const COMPUTES: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

#[test]
fn weights_are_those_of_the_dense_reference() {
    for (heads, kv_heads, head_dim) in [(14, 2, 64), (4, 4, 8), (6, 2, 128), (3, 1, 80), (8, 2, 10)] {
        for dtype in DTYPES {
            let mut positions = shuffled(83);
            positions[12] = u32::MAX;
            positions[70] = u32::MAX;
            let mut scene = Scene::of(dtype, heads, kv_heads, head_dim, positions);
            // Some with ALiBi.
            scene.slopes = (heads < 5).then(|| crate::config::alibi_slopes(heads));
            for window in [None, Some(20), Some(0)] {
                scene.check_weights(&[82, 0, 40, 81, 79, 12, 64], window);
            }
        }
    }
}

#[test]
fn weights_of_odd_shapes_are_those_of_the_dense_reference() {
    let mut rng = fastrand::Rng::with_seed(31);
    for slots in [1, 15, 16, 17, 63, 64, 65, 128, 129, 200] {
        let dtype = DTYPES[slots % 3];
        let mut positions = if rng.bool() { shuffled(slots as u32) } else { (0..slots as u32).collect() };
        positions.iter_mut().for_each(|position| *position = *position * 3 + 5);
        let (kv_heads, shared) = (rng.usize(1..4), rng.usize(1..9));
        let scene = Scene::of(dtype, kv_heads * shared, kv_heads, 2 * rng.usize(1..20), positions);
        let rows: Vec<u32> = (0..rng.usize(1..20)).map(|_| rng.u32(0..3 * slots as u32 + 10)).collect();
        scene.check_weights(&rows, [None, Some(rng.u32(1..40))][rng.usize(..2)]);
    }
}

#[test]
fn nothing_seen_or_asked_weighs_nothing() {
    let scene = Scene::new(2, 2, 16, (50..150).collect());
    let q = scene.queries(3);
    for &path in Path::available() {
        let got = scene.weights(path, &q, &[49, 120, 3], options(None, ComputeDtype::F32));
        assert!([0, 2].iter().all(|row| got.row(*row).iter().all(|weight| *weight == 0.0)), "{path:?}");
        assert!((got.row(1).iter().sum::<f32>() - 1.0).abs() < 1e-5, "{path:?}");
    }
    assert_eq!(scene.weights(Path::best(), &scene.queries(0), &[], options(None, ComputeDtype::F32)).rows(), 0);
    let empty = Scene::new(2, 2, 16, Vec::new());
    let got = empty.weights(Path::best(), &empty.queries(2), &[1, 2], options(None, ComputeDtype::F32));
    assert_eq!((got.rows(), got.cols()), (2, 0));
}

/// Also beside rows that see tiles which these do not, and on any number of threads, which decides how rows are cut.
#[test]
fn a_row_of_weights_has_the_same_bits_alone_and_in_any_batch() {
    for dtype in DTYPES {
        let scene = Scene::of(dtype, 14, 2, 64, shuffled(333));
        let (positions, q) = (shuffled(333), scene.queries(333));
        for options in [options(None, ComputeDtype::F32), options(Some(100), ComputeDtype::Bf16)] {
            for &path in Path::available() {
                let all = scene.weights(path, &q, &positions, options);
                for rows in [vec![0], vec![332], (10..40).collect(), vec![5, 100, 101, 300]] {
                    let some: Vec<u32> = rows.iter().map(|row| positions[*row]).collect();
                    let got = scene.weights(path, &q.select_rows(&rows), &some, options);
                    assert!(bits_equal(&got, &all.select_rows(&rows)), "{path:?} {rows:?}");
                }
                for threads in [1, 3, 7] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let got = pool.install(|| scene.weights(path, &q, &positions, options));
                    assert!(bits_equal(&got, &all), "{path:?} {threads} threads");
                }
            }
        }
    }
}

#[test]
fn keys_behind_a_query_do_not_change_the_bits_of_its_weights() {
    for (dtype, compute) in DTYPES.into_iter().zip([ComputeDtype::F32, ComputeDtype::F32, ComputeDtype::Bf16]) {
        let long = Scene::of(dtype, 4, 2, 16, (0..150).collect());
        let (q, positions) = (long.queries(70), (0..70).collect::<Vec<u32>>());
        for &path in Path::available() {
            let all = long.weights(path, &q, &positions, options(None, compute));
            let sequence = SequenceView { blocks: &long.blocks[..5], key_positions: &long.key_positions[..70] };
            let group = RowGroup { rows: 0..70, positions: &positions, sequence };
            let short = attention_weights_with(path, false, &long.pool, 1, &q, &group, options(None, compute));
            for row in 0..70 {
                let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(short.row(row)), bits(&all.row(row)[..70]), "{path:?} row {row}");
            }
        }
    }
}

/// On processors without tiles by an emulator. Of 48 elements there are no tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_weigh_as_the_dense_reference_does() {
    let _emulated = crate::simd::amx::emulator::install();
    let mut hidden = shuffled(83);
    hidden[12] = u32::MAX;
    for (heads, kv_heads, head_dim) in [(14, 2, 64), (2, 2, 32), (6, 2, 128), (4, 2, 48)] {
        let scene = Scene::of(KvDtype::Bf16, heads, kv_heads, head_dim, hidden.clone());
        let positions = [3, 0, 70, 82];
        let mut q = scene.queries(positions.len());
        KvDtype::Bf16.round(q.as_mut_slice());
        let options = options(None, ComputeDtype::Bf16);
        let weights = |q: &Matrix, positions: &[u32]| {
            attention_weights_with(Path::best(), true, &scene.pool, 1, q, &scene.group(0..q.rows(), positions), options)
        };
        let got = weights(&q, &positions);
        for (row, position) in positions.iter().enumerate() {
            let expected = scene.expected_weights(q.row(row), *position, None);
            for (got, exact) in got.row(row).iter().zip(expected) {
                assert!(
                    (f64::from(*got) - exact).abs() <= 0.05 * exact + 1e-6,
                    "{head_dim} row {row}: {got}, not {exact}"
                );
            }
            assert!(
                bits_equal(&weights(&q.select_rows(&[row]), &[*position]), &got.select_rows(&[row])),
                "{row} alone"
            );
        }
    }
}
