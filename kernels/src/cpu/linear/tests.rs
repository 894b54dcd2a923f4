use super::activations::Halves;
use super::*;
use crate::numa::tests::divided;

mod gelu;
mod grouped;

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

fn round(values: &[f32]) -> Vec<f32> {
    widen(&to_bf16(values))
}

/// 8 bits with a scale for each `group` values, as values.
fn quantize(values: &[f32], width: usize, group: usize) -> Vec<f32> {
    let rows = values.chunks(width.max(1)).flat_map(|row| row.chunks(group));
    rows.flat_map(|group| {
        let scale = group.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / 127.0;
        group.iter().map(move |value| if scale > 0.0 { (value / scale).round() * scale } else { 0.0 })
    })
    .collect()
}

/// `x W^T + bias` in f64.
fn exact(x: &[f32], weights: &[f32], inputs: usize, bias: Option<&[f32]>) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let row = |x| {
        let outputs = weights.chunks(inputs).enumerate();
        outputs.map(move |(output, w)| dot(x, w) + bias.map_or(0.0, |bias| f64::from(bias[output])))
    };
    x.chunks(inputs).flat_map(row).collect()
}

fn forward(linear: &Linear, path: Path, x: &[f32], rows: usize) -> Vec<f32> {
    let mut input = Activations::default();
    input.encode_on(path, linear.format(), x, rows);
    let mut out = vec![f32::NAN; rows * linear.out_features()];
    linear.forward_on(path, Input::from(&input), Output::Store(&mut out));
    out
}

fn assert_close(got: &[f32], exact: &[f64], bound: f64, what: &str) {
    assert_eq!(got.len(), exact.len(), "{what}");
    for (index, (got, exact)) in got.iter().zip(exact).enumerate() {
        assert!((f64::from(*got) - exact).abs() < bound, "{what}: {got} is not {exact} at {index}");
    }
}

const SHAPES: [(usize, usize, usize); 10] = [
    (0, 5, 7),
    (1, 1, 1),
    (1, 33, 130),
    (2, 64, 64),
    (5, 7, 65),
    (7, 129, 63),
    (13, 96, 1),
    (25, 1027, 200),
    (197, 3, 66),
    (40, 260, 70),
];

const PRECISIONS: [Precision; 4] = [Precision::F32, Precision::Bf16, Precision::Q8, Precision::Q4];

#[test]
fn products_agree_with_f64_for_odd_shapes() {
    for (rows, inputs, outputs) in SHAPES.into_iter().filter(|(rows, inputs, _)| !cfg!(miri) || rows * inputs < 1000) {
        let (weights, bias, x) =
            (random(7, inputs * outputs), random(8, outputs), random(rows as u64 + 99, rows * inputs));
        let bits = to_bf16(&weights);
        for bias in [None, Some(bias.as_slice())] {
            for &path in Path::available() {
                let what = |name| format!("{name} on {path:?} [{rows}, {inputs}] x {outputs}");
                let sums = 2e-7 * inputs as f64 + 1e-6;
                let new = |weights, precision| Linear::new(outputs, inputs, weights, bias, precision);
                let check = |linear: &Linear, x_rounded: &[f32], w_rounded: &[f32], name| {
                    let exact = exact(x_rounded, w_rounded, inputs, bias);
                    assert_close(&forward(linear, path, &x, rows), &exact, sums, &what(name));
                };
                check(&new(Weights::F32(&weights), Precision::F32), &x, &weights, "f32");
                check(&new(Weights::Bf16(&bits), Precision::F32), &x, &widen(&bits), "bf16 weights in f32");
                check(&new(Weights::Bf16(&bits), Precision::Bf16), &round(&x), &widen(&bits), "bf16");
                check(&new(Weights::F32(&weights), Precision::Bf16), &round(&x), &round(&weights), "f32 in bf16");
                let (xq, wq) = (quantize(&x, inputs, 128), quantize(&weights, inputs, inputs));
                check(&new(Weights::F32(&weights), Precision::Q8), &xq, &wq, "q8");
            }
        }
    }
}

#[test]
fn eight_bits_are_close_to_what_they_stand_for() {
    let (rows, inputs, outputs) = (9, 512, 96);
    let (weights, x) = (random(17, inputs * outputs), random(18, rows * inputs));
    let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, Precision::Q8);
    let exact = exact(&x, &weights, inputs, None);
    // Rounding errors of 1/127/2 of either factor, uniform and independent, over 512 products of variance 1/9.
    assert_close(&forward(&linear, Path::best(), &x, rows), &exact, 6.0 * 0.05, "q8 and what it rounds");
    // An input that dwarfs the others is in one group, and costs the others nothing.
    let mut peaked = x.clone();
    peaked.iter_mut().step_by(inputs).for_each(|value| *value = 1000.0);
    let mut without = weights.clone();
    without.chunks_mut(inputs).for_each(|row| row[..128].fill(0.0));
    let linear = Linear::new(outputs, inputs, Weights::F32(&without), None, Precision::Q8);
    let plain = forward(&linear, Path::best(), &x, rows);
    let peaked = forward(&linear, Path::best(), &peaked, rows);
    assert_eq!(plain, peaked);
}

/// Integers are exact however they are made, and all else on these paths is the same.
#[test]
fn dot_products_of_bytes_change_no_bits() {
    if !Path::available().contains(&Path::Avx512Vnni) {
        return;
    }
    for (rows, inputs, outputs) in SHAPES {
        let (weights, x) = (random(21, inputs * outputs), random(22, rows * inputs));
        for precision in PRECISIONS {
            let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
            let on = |path| forward(&linear, path, &x, rows).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(on(Path::Avx512Vnni), on(Path::Avx512), "{precision:?} [{rows}, {inputs}] x {outputs}");
        }
    }
}

/// The whole way of a layer through tiles, on processors without them by an emulator: padding, blocks of K, ragged rows.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_make_the_products_of_a_layer() {
    let _emulated = crate::simd::amx::emulator::install();
    let forward = |linear: &Linear, x: &[f32], rows: usize| {
        let mut input = Activations::default();
        // A longer use before, of which nothing may be left.
        let before = vec![f32::NAN; (rows + 40) * linear.in_features()];
        input.encode_with(Path::best(), true, Format::Bf16, &before, rows + 40);
        input.encode_with(Path::best(), true, Format::Bf16, x, rows);
        let mut out = vec![f32::NAN; rows * linear.out_features()];
        let sink = Sink::Store { to: SharedMut::new(&mut out), stride: linear.out_features() };
        linear.run(Path::best(), true, Input::from(&input), sink);
        out
    };
    for (rows, inputs, outputs) in [(1, 33, 70), (16, 64, 64), (17, 70, 130), (45, 600, 66), (33, 1, 1)] {
        let (weights, bias, x) = (random(7, inputs * outputs), random(8, outputs), random(9, rows * inputs));
        let linear = Linear::new(outputs, inputs, Weights::F32(&weights), Some(&bias), Precision::Bf16);
        let out = forward(&linear, &x, rows);
        let exact = exact(&round(&x), &round(&weights), inputs, Some(&bias));
        assert_close(&out, &exact, 2e-7 * inputs as f64 + 1e-6, &format!("[{rows}, {inputs}] x {outputs}"));
        for (first, some) in [(0, 1), (rows / 2, rows - rows / 2)] {
            let alone = forward(&linear, &x[first * inputs..][..some * inputs], some);
            assert_eq!(alone, out[first * outputs..][..some * outputs], "rows {first} and on");
        }
    }
}

/// Whole blocks of rows by tiles, the others by vectors: no bit may tell.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_of_bytes_change_no_bits() {
    let _emulated = crate::simd::amx::emulator::install();
    for (rows, inputs, outputs) in [(1, 33, 70), (16, 128, 64), (17, 130, 130), (45, 1500, 66), (33, 1, 1)] {
        let (weights, bias, x) = (random(7, inputs * outputs), random(8, outputs), random(9, rows * inputs));
        let linear = Linear::new(outputs, inputs, Weights::F32(&weights), Some(&bias), Precision::Q8);
        let mut input = Activations::default();
        for &path in Path::available() {
            input.encode_with(path, false, Format::Q8, &x, rows);
            let [vectors, tiles] = [false, true].map(|has_tiles| {
                let mut out = vec![f32::NAN; rows * outputs];
                let sink = Sink::Store { to: SharedMut::new(&mut out), stride: outputs };
                linear.run(path, has_tiles, Input::from(&input), sink);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert_eq!(tiles, vectors, "{path:?} [{rows}, {inputs}] x {outputs}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    let (inputs, outputs) = (1100, 70);
    let (weights, bias, x) = (random(1, inputs * outputs), random(2, outputs), random(3, 600 * inputs));
    let bits = to_bf16(&weights);
    let linears = PRECISIONS
        .iter()
        .flat_map(|p| [(Weights::F32(&weights), *p), (Weights::Bf16(&bits), *p)])
        .map(|(weights, precision)| Linear::new(outputs, inputs, weights, Some(&bias), precision));
    for linear in linears {
        for &path in Path::available() {
            let all = forward(&linear, path, &x, 600);
            for (first, rows) in [(0, 1), (599, 1), (17, 2), (30, 6), (100, 13), (3, 200), (1, 520)] {
                let some = forward(&linear, path, &x[first * inputs..][..rows * inputs], rows);
                let expected = &all[first * outputs..][..rows * outputs];
                let same = some.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{path:?} {:?} {first} {rows}", linear.format());
            }
        }
    }
}

#[test]
fn threads_change_no_bits() {
    let (rows, inputs, outputs) = (90, 700, 330);
    let (weights, x) = (random(1, inputs * outputs), random(3, rows * inputs));
    for precision in PRECISIONS {
        let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| forward(&linear, Path::best(), &x, rows))
        };
        let one = with(1);
        assert!([2, 3, 7].into_iter().all(|threads| with(threads) == one), "{precision:?}");
    }
}

/// Tasks that are cut between nodes, and whole; one row and blocks of rows.
#[test]
fn numa_nodes_change_no_bits() {
    let (inputs, outputs) = (300, 700);
    let (weights, up) = (random(1, inputs * outputs), random(2, inputs * outputs));
    let (x, bias) = (random(3, 600 * inputs), random(4, outputs));
    let both = [Weights::F32(&weights), Weights::F32(&up)];
    for (precision, &path) in PRECISIONS.into_iter().flat_map(|p| Path::available().iter().map(move |path| (p, path))) {
        let with = |nodes| {
            divided(nodes).install(|| {
                let plain = Linear::new(outputs, inputs, both[0], Some(&bias), precision);
                let gated = Linear::gate_up(outputs, inputs, both, None, precision, Activation::Silu);
                let of_rows = |rows: usize| {
                    let (mut input, mut out, mut spare) = <(Activations, Activations, Activations)>::default();
                    input.encode_on(path, gated.format(), &x[..rows * inputs], rows);
                    let paths = [path, path];
                    gated.forward_gated_on(paths, Input::from(&input), Format::F32, outputs, &mut out, &mut spare);
                    let gated = out.f32_rows()[..rows * outputs].to_vec();
                    (forward(&plain, path, &x[..rows * inputs], rows), gated)
                };
                let mut row = vec![0.0; inputs];
                plain.weight_row(699, &mut row);
                ([1, 7, 90, 600].map(of_rows), row)
            })
        };
        let one = with(1);
        assert!(one.0.iter().all(|(plain, _)| plain.iter().all(|value| value.is_finite())));
        assert!([2, 3].into_iter().all(|nodes| with(nodes) == one), "{precision:?} {path:?}");
    }
}

#[test]
fn f32_and_bf16_panels_of_the_same_values_give_the_same_bits() {
    let (inputs, outputs, rows) = (77, 90, 9);
    let bits = to_bf16(&random(4, inputs * outputs));
    let x = random(5, rows * inputs);
    for &path in Path::available() {
        let wide = Linear::new(outputs, inputs, Weights::F32(&widen(&bits)), None, Precision::F32);
        let narrow = Linear::new(outputs, inputs, Weights::Bf16(&bits), None, Precision::F32);
        assert_eq!(forward(&wide, path, &x, rows), forward(&narrow, path, &x, rows), "{path:?}");
    }
}

#[test]
fn what_is_not_a_number_reaches_every_output_of_its_row_alone() {
    let (inputs, outputs, rows) = (150, 70, 8);
    let weights = random(4, inputs * outputs);
    for precision in PRECISIONS {
        let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
        for &path in Path::available() {
            let plain = forward(&linear, path, &random(5, rows * inputs), rows);
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = random(5, rows * inputs);
                x[3 * inputs + 140] = odd;
                let out = forward(&linear, path, &x, rows);
                for (row, (out, plain)) in out.chunks(outputs).zip(plain.chunks(outputs)).enumerate() {
                    match row {
                        3 => assert!(out.iter().all(|out| !out.is_finite()), "{path:?} {precision:?} {odd}"),
                        _ => assert_eq!(out, plain, "{path:?} {precision:?} {odd}"),
                    }
                }
            }
        }
    }
}

#[test]
fn outputs_are_added_to_what_is_there() {
    let (inputs, outputs, rows) = (96, 75, 7);
    let (weights, x) = (random(4, inputs * outputs), random(5, rows * inputs));
    let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, Precision::F32);
    for &path in Path::available() {
        let stored = forward(&linear, path, &x, rows);
        let before = random(6, rows * outputs);
        let mut added = before.clone();
        linear.forward_on(path, Input::f32(&x, rows), Output::Add(&mut added));
        let expected: Vec<f32> = before.iter().zip(&stored).map(|(a, b)| a + b).collect();
        assert_eq!(added, expected, "{path:?}");
    }
}

#[test]
fn a_gated_layer_is_the_activation_of_one_times_the_other() {
    let silu: fn(f64) -> f64 = |x| x / (1.0 + (-x).exp());
    let gelu: fn(f64) -> f64 =
        |x| x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let shapes = [(1, 40, 5), (7, 33, 48), (20, 130, 100), (3, 64, 32)];
    let both = [(Activation::Silu, silu), (Activation::Gelu, gelu)];
    for ((rows, inputs, width), (activation, activated)) in shapes.into_iter().flat_map(|of| both.map(|it| (of, it))) {
        let weights = [random(1, inputs * width), random(2, inputs * width)];
        let biases = [random(3, width), random(4, width)];
        let x = random(5, rows * inputs);
        let gated = Linear::gate_up(
            width,
            inputs,
            [Weights::F32(&weights[0]), Weights::F32(&weights[1])],
            Some([&biases[0], &biases[1]]),
            Precision::F32,
            activation,
        );
        let gate = exact(&x, &weights[0], inputs, Some(&biases[0]));
        let up = exact(&x, &weights[1], inputs, Some(&biases[1]));
        let expected: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| activated(*gate) * up).collect();
        // Seen through a layer that passes its inputs on: whatever format the gated values have.
        let identity: Vec<f32> = (0..width * width).map(|i| f32::from(u8::from(i / width == i % width))).collect();
        let greatest = expected.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
        for (precision, error) in [(Precision::F32, 1e-6), (Precision::Bf16, 0.005), (Precision::Q8, 0.006)] {
            let identity = Linear::new(width, width, Weights::F32(&identity), None, precision);
            // Each kind of product has its own path: the next layer's may be another.
            for (&path, &next) in Path::available().iter().flat_map(|p| Path::available().iter().map(move |n| (p, n))) {
                let (mut inner, mut spare) = (Activations::default(), Activations::default());
                // A longer use before leaves nothing behind.
                inner.encode(identity.format(), &vec![f32::NAN; 2 * rows * (width + 9)], 2 * rows);
                gated.forward_gated_on(
                    [path, next],
                    Input::f32(&x, rows),
                    identity.format(),
                    width,
                    &mut inner,
                    &mut spare,
                );
                let mut out = vec![f32::NAN; rows * width];
                identity.forward_on(next, Input::from(&inner), Output::Store(&mut out));
                let what = format!("{precision:?} {path:?} {next:?} {activation:?} [{rows}, {inputs}] x {width}");
                assert_close(&out, &expected, error * greatest.max(1.0) + 1e-5, &what);
            }
        }
    }
}

#[test]
fn a_gated_row_has_the_same_bits_alone_and_in_any_batch() {
    let (inputs, width) = (70, 41);
    let (weights, x) = ([random(1, inputs * width), random(2, inputs * width)], random(5, 530 * inputs));
    let bias = random(6, width);
    for precision in PRECISIONS {
        let weights = [Weights::F32(&weights[0]), Weights::F32(&weights[1])];
        let gated = Linear::gate_up(width, inputs, weights, Some([&bias, &bias]), precision, Activation::Silu);
        let formats = [Format::F32, Format::Bf16, Format::Q8, Format::Q8By32];
        for (format, &path) in formats.into_iter().flat_map(|f| Path::available().iter().map(move |p| (f, p))) {
            let run = |x: &[f32], rows| {
                let (mut input, mut out, mut spare) = Default::default();
                Activations::encode_on(&mut input, path, gated.format(), x, rows);
                gated.forward_gated_on([path, path], Input::from(&input), format, width, &mut out, &mut spare);
                let out = Input::from(&out);
                let stride = out.stride();
                let bits = |row: usize| match format {
                    Format::F32 => out.values[row * stride..][..stride].iter().map(|value| value.to_bits()).collect(),
                    Format::Bf16 => {
                        let halves = Halves { is_tiled: out.is_tiled, stride: 2 * stride };
                        (0..stride).map(|word| out.words[halves.at(row, 2 * word) / 2]).collect()
                    }
                    Format::Q8 | Format::Q8By32 => {
                        let groups = format.scales(width);
                        let scales = out.scales[row * groups..][..groups].iter().map(|scale| scale.to_bits());
                        out.words[row * stride..][..stride].iter().copied().chain(scales).collect()
                    }
                };
                (0..rows).map(bits).collect::<Vec<Vec<u32>>>()
            };
            let all = run(&x, 530);
            for (first, rows) in [(0, 1), (529, 1), (100, 13), (3, 520)] {
                let some = run(&x[first * inputs..][..rows * inputs], rows);
                assert_eq!(some, all[first..first + rows], "{precision:?} to {format:?} on {path:?}: {first}, {rows}");
            }
        }
    }
}

#[test]
fn eight_bits_are_the_same_on_every_path() {
    let (rows, width) = (7, 300);
    let mut x = random(5, rows * width);
    x[..width].fill(0.0);
    x[width..2 * width].iter_mut().for_each(|value| *value *= 1e-38);
    for (format, group) in [(Format::Q8, 128), (Format::Q8By32, 32)] {
        let encoded = |path| {
            let mut input = Activations::default();
            input.encode_on(path, format, &x, rows);
            let input = Input::from(&input);
            let scales = rows * format.scales(width);
            let [of_values, of_sums] = [input.scales, input.group_sums].map(|scales_of| scales_of[..scales].to_vec());
            (input.words[..rows * input.stride()].to_vec(), input.sums[..rows * 24].to_vec(), of_values, of_sums)
        };
        let first = encoded(Path::Portable);
        assert!(Path::available().iter().all(|path| encoded(*path) == first), "{format:?}");
        let (words, sums, scales, group_sums) = first;
        assert!(words[..75].iter().all(|word| *word == 0x8080_8080), "zeros are the middle");
        // By the definition, of the last row, whose end is padded.
        let bytes: Vec<i32> =
            words[6 * 96..].iter().flat_map(|word| word.to_le_bytes()).map(|byte| i32::from(byte) - 128).collect();
        let row = &x[6 * width..];
        for (at, values) in row.chunks(group).enumerate() {
            let scale = values.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / 127.0;
            let (index, bytes) = (6 * format.scales(width) + at, &bytes[at * group..][..group]);
            assert_eq!(scales[index], scale);
            for (value, byte) in values.iter().zip(bytes) {
                assert!((value / scale - *byte as f32).abs() < 0.500_01, "{value} is not {byte} of {scale}");
            }
            assert!(bytes[values.len()..].iter().all(|byte| *byte == 0));
            let total = bytes.iter().sum::<i32>();
            assert_eq!(
                (group_sums[index], sums[6 * 24 + at * group / 16]),
                (total as f32 * scale, bytes[..16].iter().sum())
            );
        }
    }
}

#[test]
fn two_layers_of_different_types_keep_their_values() {
    let (inputs, width) = (40, 16);
    let (gate, up) = (to_bf16(&random(1, inputs * width)), random(2, inputs * width));
    let both = [Weights::Bf16(&gate), Weights::F32(&up)];
    let mixed = Linear::gate_up(width, inputs, both, None, Precision::F32, Activation::Silu);
    let mut row = vec![0.0; inputs];
    mixed.weight_row(16, &mut row);
    assert_eq!(row, up[..inputs]);
}

#[test]
fn weight_rows_come_back() {
    for inputs in [6, 7, 131] {
        let bits = to_bf16(&random(6, inputs * 100));
        let weights = widen(&bits);
        let quantized = quantize(&weights, inputs, inputs);
        for (source, precision, expected) in [
            (Weights::F32(&weights), Precision::F32, &weights),
            (Weights::Bf16(&bits), Precision::F32, &weights),
            (Weights::F32(&weights), Precision::Bf16, &weights),
            (Weights::Bf16(&bits), Precision::Q8, &quantized),
        ] {
            let linear = Linear::new(100, inputs, source, None, precision);
            for row in [0, 63, 64, 99] {
                let mut out = vec![0.0; inputs];
                linear.weight_row(row, &mut out);
                let expected = &expected[row * inputs..][..inputs];
                assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{precision:?}");
            }
        }
    }
}

#[test]
fn what_weights_will_take_is_what_they_take() {
    for (outputs, inputs) in [(1, 1), (64, 32), (65, 33), (200, 129), (16, 300)] {
        let weights = random(3, outputs * inputs);
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8, Precision::Q4] {
            let linear = Linear::new(outputs, inputs, Weights::F32(&weights), None, precision);
            let told = packed_bytes(outputs, inputs, precision);
            assert_eq!(told, linear.size_in_bytes() as u64, "{outputs} x {inputs} {precision:?}");
        }
    }
}
