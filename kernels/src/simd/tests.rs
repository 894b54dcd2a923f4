use super::*;

struct ExpAll<'a>(&'a mut [f32]);

impl Kernel for ExpAll<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for chunk in self.0.chunks_exact_mut(V::LANES) {
            // SAFETY: the chunk is as long as a vector; `dispatch` checked the machine.
            unsafe { exp(V::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) }
        }
    }
}

#[test]
fn exp_is_close_to_f64_on_every_path() {
    let inputs: Vec<f32> = (0..160_000).map(|i| -87.0 + i as f32 * (175.0 / 160_000.0)).collect();
    for path in Path::available() {
        let mut outputs = inputs.clone();
        dispatch(path, ExpAll(&mut outputs));
        for (x, y) in inputs.iter().zip(&outputs) {
            let exact = f64::from(*x).exp();
            let error = (f64::from(*y) - exact).abs() / exact;
            assert!(error < 2.5e-7, "{path:?}: exp({x}) = {y}, off by {error:e}");
        }
    }
}

#[test]
fn exp_is_exact_where_masks_rely_on_it() {
    for path in Path::available() {
        let mut values = [0.0_f32; 16];
        values[1] = -0.0;
        values[2] = f32::NEG_INFINITY;
        values[3] = -1e30;
        values[4] = -100.0;
        values[5] = f32::NAN;
        values[6] = 1e9;
        dispatch(path, ExpAll(&mut values));
        assert_eq!(values[..5], [1.0, 1.0, 0.0, 0.0, 0.0], "{path:?}");
        assert!(values[5].is_nan(), "{path:?}: a NaN must stay one");
        assert!(values[6].is_finite() && values[6] > 1e38, "{path:?}");
    }
}

struct Reduce<'a>(&'a [f32; 16], &'a mut [f32; 2]);

impl Kernel for Reduce<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: no vector is longer than the input.
        let vector = unsafe { V::load(self.0.as_ptr()) };
        // SAFETY: `dispatch` checked the machine.
        *self.1 = unsafe { [vector.sum_lanes(), vector.max_lane()] };
    }
}

#[test]
fn lanes_are_reduced() {
    let values: [f32; 16] = std::array::from_fn(|i| ((i * 7) % 16) as f32 - 3.0);
    for (path, lanes) in [(Path::Avx512, 16), (Path::Avx2, 8), (Path::Portable, 4)] {
        if Path::available().contains(&path) {
            let mut out = [0.0; 2];
            dispatch(path, Reduce(&values, &mut out));
            let greatest = values[..lanes].iter().copied().fold(f32::MIN, f32::max);
            assert_eq!(out, [values[..lanes].iter().sum::<f32>(), greatest], "{path:?}");
        }
    }
}
