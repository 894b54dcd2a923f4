//! Products whose outputs go through the GELU of encoders on their way.

use super::*;

/// "Handbook of Mathematical Functions", 7.1.26: off by 1.5e-7 at most.
fn gelu(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let terms = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let erfc = terms.iter().fold(0.0, |sum, term| sum * t + term) * t * (-z * z).exp();
    x.max(0.0) - x.abs() / 2.0 * erfc
}

#[test]
fn outputs_are_the_gelu_of_products_in_bf16() {
    for (rows, inputs, width) in [(1, 40, 5), (7, 33, 48), (20, 130, 100), (3, 64, 64), (35, 20, 130)] {
        let (weights, bias, x) = (random(1, inputs * width), random(2, width), random(3, rows * inputs));
        let plain = Linear::new(width, inputs, Weights::F32(&weights), Some(&bias), Precision::F32);
        let expected: Vec<f64> = exact(&x, &weights, inputs, Some(&bias)).into_iter().map(gelu).collect();
        // Seen through a layer that passes its inputs on.
        let identity: Vec<f32> = (0..width * width).map(|i| f32::from(u8::from(i / width == i % width))).collect();
        let identity = Linear::new(width, width, Weights::F32(&identity), None, Precision::Bf16);
        let greatest = expected.iter().fold(1.0_f64, |a, b| a.max(b.abs()));
        for (&path, &next) in Path::available().iter().flat_map(|p| Path::available().iter().map(move |n| (p, n))) {
            let mut inner = Activations::default();
            // What was there before does not stay in what pads a row.
            inner.encode_on(next, Format::Bf16, &vec![f32::NAN; rows * (width + 40)], rows);
            plain.forward_gelu_on([path, next], Input::f32(&x, rows), &mut inner);
            let mut out = vec![f32::NAN; rows * width];
            identity.forward_on(next, Input::from(&inner), Output::Store(&mut out));
            assert_close(&out, &expected, 0.005 * greatest, &format!("{path:?} {next:?} [{rows}, {inputs}] x {width}"));
        }
    }
}
