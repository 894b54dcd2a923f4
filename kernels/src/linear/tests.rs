use super::*;

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

fn to_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect()
}

fn widen(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|bits| half::bf16::from_bits(*bits).to_f32()).collect()
}

/// Compares `linear` with f64 sums over `weights`, on every path.
fn check(linear: &Linear, weights: &[f32], bias: Option<&[f32]>, rows: usize) {
    let (inputs, outputs) = (linear.in_features(), linear.out_features());
    let x = random(rows as u64 + 99, rows * inputs);
    for path in Path::available() {
        let mut out = vec![f32::NAN; rows * outputs];
        linear.forward_on(path, &x, rows, &mut out);
        for row in 0..rows {
            for output in 0..outputs {
                let terms = x[row * inputs..][..inputs].iter().zip(&weights[output * inputs..][..inputs]);
                let sum: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let exact = sum + bias.map_or(0.0, |bias| f64::from(bias[output]));
                let got = f64::from(out[row * outputs + output]);
                let bound = 2e-7 * inputs as f64 + 1e-6;
                assert!(
                    (got - exact).abs() < bound,
                    "{path:?} [{rows}, {inputs}] x {outputs}: {got} is not {exact} at {row}, {output}"
                );
            }
        }
    }
}

#[test]
fn products_agree_with_f64_for_odd_shapes() {
    for (rows, inputs, outputs) in [
        (0, 5, 7),
        (1, 1, 1),
        (1, 33, 130),
        (2, 64, 64),
        (5, 7, 65),
        (7, 129, 63),
        (13, 96, 1),
        (25, 1027, 200),
        (197, 3, 66),
    ] {
        let weights = random(7, inputs * outputs);
        let bias = random(8, outputs);
        check(&Linear::from_f32(outputs, inputs, &weights, None), &weights, None, rows);
        check(&Linear::from_f32(outputs, inputs, &weights, Some(&bias)), &weights, Some(&bias), rows);
        let bits = to_bf16(&weights);
        check(&Linear::from_bf16(outputs, inputs, &bits, Some(&bias)), &widen(&bits), Some(&bias), rows);
        check(&Linear::from_bf16(outputs, inputs, &bits, None), &widen(&bits), None, rows);
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    let (inputs, outputs) = (1100, 70);
    let weights = random(1, inputs * outputs);
    let bias = random(2, outputs);
    let bits = to_bf16(&weights);
    let x = random(3, 400 * inputs);
    for linear in [
        Linear::from_f32(outputs, inputs, &weights, Some(&bias)),
        Linear::from_bf16(outputs, inputs, &bits, Some(&bias)),
    ] {
        for path in Path::available() {
            let mut all = vec![0.0; 400 * outputs];
            linear.forward_on(path, &x, 400, &mut all);
            for (first, rows) in [(0, 1), (399, 1), (17, 2), (30, 6), (100, 13), (3, 200)] {
                let mut some = vec![0.0; rows * outputs];
                linear.forward_on(path, &x[first * inputs..][..rows * inputs], rows, &mut some);
                let expected = &all[first * outputs..][..rows * outputs];
                assert!(some.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{path:?} {first} {rows}");
            }
        }
    }
}

#[test]
fn f32_and_bf16_panels_of_the_same_values_give_the_same_bits() {
    let (inputs, outputs, rows) = (77, 90, 9);
    let bits = to_bf16(&random(4, inputs * outputs));
    let x = random(5, rows * inputs);
    for path in Path::available() {
        let (mut wide, mut narrow) = (vec![0.0; rows * outputs], vec![0.0; rows * outputs]);
        Linear::from_f32(outputs, inputs, &widen(&bits), None).forward_on(path, &x, rows, &mut wide);
        Linear::from_bf16(outputs, inputs, &bits, None).forward_on(path, &x, rows, &mut narrow);
        assert_eq!(wide, narrow, "{path:?}");
    }
}

#[test]
fn weight_rows_come_back() {
    for inputs in [6, 7] {
        let bits = to_bf16(&random(6, inputs * 100));
        let weights = widen(&bits);
        for linear in [Linear::from_f32(100, inputs, &weights, None), Linear::from_bf16(100, inputs, &bits, None)] {
            for row in [0, 63, 64, 99] {
                let mut out = vec![0.0; inputs];
                linear.weight_row(row, &mut out);
                assert_eq!(out, weights[row * inputs..][..inputs]);
            }
        }
    }
}
