//! Weights in groups: what GGUF's blocks become, and our own 4 bits.

use half::f16;

use super::*;
use crate::linear::groups::{GROUP, GROUPS, OWN};
use crate::linear::panels::QUANT_GROUP;
use crate::numa::tests::divided;

const GROUPINGS: [Grouping; 10] = [
    Grouping { bits: Bits::Four, scales: Scales::Symmetric },
    Grouping { bits: Bits::Four, scales: Scales::Min },
    Grouping { bits: Bits::Four, scales: Scales::Nested },
    Grouping { bits: Bits::Four, scales: Scales::Pair },
    OWN,
    Grouping { bits: Bits::Six, scales: Scales::Symmetric },
    Grouping { bits: Bits::Six, scales: Scales::Min },
    Grouping { bits: Bits::Six, scales: Scales::Nested },
    Grouping { bits: Bits::Six, scales: Scales::Pair },
    Grouping { bits: Bits::Eight, scales: Scales::Symmetric },
];

/// Any quants and scales that the grouping allows, the greatest and the least among them; weights are of about one.
fn random_row(grouping: Grouping, inputs: usize, seed: u64) -> GroupRow {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut row = GroupRow::new(inputs);
    let most = match grouping.bits {
        Bits::Four => 15,
        Bits::Six => 63,
        Bits::Eight => 255,
    };
    row.quants[..inputs].iter_mut().for_each(|quant| *quant = [0, most, rng.u8(0..=most)][rng.usize(0..3)]);
    let half = |value: f32| f16::from_f32(value).to_bits();
    let unit = 1.0 / f32::from(most);
    for group in 0..inputs.div_ceil(QUANT_GROUP) * GROUPS {
        (row.scales[group], row.mins[group]) = match grouping.scales {
            Scales::Symmetric => (half((2.0 * rng.f32() - 1.0) * unit), 0),
            Scales::Min => (half(rng.f32() * unit), half(-rng.f32())),
            Scales::Nested => (rng.u16(0..64), rng.u16(0..64)),
            Scales::Pair => ([0, 255, rng.u16(0..256)][rng.usize(0..3)], rng.u16(0..256)),
            Scales::Steps => {
                let step = rng.u16(0..18);
                (step, rng.u16(0..=255 - 15 * step))
            }
        };
    }
    row.outer.iter_mut().for_each(|outer| {
        *outer = match grouping.scales {
            Scales::Nested => [half(rng.f32() * unit / 64.0), half(rng.f32() / 64.0)],
            Scales::Pair => [half(rng.f32() * unit / 64.0), 0],
            _ => [half(rng.f32()), 0],
        };
    });
    row.unit = if grouping.scales == Scales::Steps { 1.0 / 127.0 } else { 1.0 };
    row
}

fn random_rows(grouping: Grouping, inputs: usize, seed: u64) -> GroupedRows<'static> {
    let fill = move |output: usize, row: &mut GroupRow| *row = random_row(grouping, inputs, seed + output as u64);
    GroupedRows { grouping, fill: Box::new(fill) }
}

/// What a row stands for, by the definition.
fn meaning(grouping: Grouping, row: &GroupRow, inputs: usize) -> Vec<f32> {
    let half = |bits: u16| f16::from_bits(bits).to_f32();
    let middle = match grouping.bits {
        Bits::Four => 8.0,
        Bits::Six => 32.0,
        Bits::Eight => 128.0,
    };
    let weight = |k: usize| {
        let (quant, group, [outer, outer_min]) = (f32::from(row.quants[k]), k / GROUP, row.outer[k / QUANT_GROUP]);
        let (scale, min) = (row.scales[group], row.mins[group]);
        match grouping.scales {
            Scales::Symmetric => half(scale) * (quant - middle),
            Scales::Min => half(scale) * quant + half(min),
            Scales::Nested => half(outer) * f32::from(scale) * quant - half(outer_min) * f32::from(min),
            Scales::Pair => {
                let scale = if k % GROUP < GROUP / 2 { scale } else { min };
                half(outer) * (f32::from(scale) - 128.0) * (quant - middle)
            }
            Scales::Steps => row.unit * half(outer) * (f32::from(scale) * quant + f32::from(min) - 128.0),
        }
    };
    (0..inputs).map(weight).collect()
}

fn weights_of(linear: &Linear) -> Vec<f32> {
    let mut weights = vec![0.0; linear.out_features() * linear.in_features()];
    let rows = weights.chunks_mut(linear.in_features()).enumerate();
    rows.for_each(|(row, out)| linear.weight_row(row, out));
    weights
}

#[test]
fn packed_groups_keep_their_values() {
    for (grouping, inputs) in
        GROUPINGS.into_iter().flat_map(|grouping| [1, 33, 130, 256].map(|inputs| (grouping, inputs)))
    {
        let outputs = 70;
        let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 5), None);
        let expected: Vec<f32> = (0..outputs)
            .flat_map(|row| meaning(grouping, &random_row(grouping, inputs, 5 + row as u64), inputs))
            .collect();
        assert_eq!(weights_of(&linear), expected, "{grouping:?} of {inputs}");
    }
}

#[test]
fn products_agree_with_f64_of_what_the_groups_stand_for() {
    for (rows, inputs, outputs) in SHAPES.into_iter().filter(|(rows, inputs, _)| !cfg!(miri) || rows * inputs < 1000) {
        let (bias, x) = (random(8, outputs), random(rows as u64 + 99, rows * inputs));
        let by_group = quantize(&x, inputs, GROUP);
        let by_block = quantize(&x, inputs, QUANT_GROUP);
        for (grouping, bias) in GROUPINGS.into_iter().flat_map(|of| [(of, None), (of, Some(bias.as_slice()))]) {
            let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 11), bias);
            let rounded = if grouping == OWN { &by_block } else { &by_group };
            let exact = exact(rounded, &weights_of(&linear), inputs, bias);
            for &path in Path::available() {
                let what = format!("{grouping:?} on {path:?} [{rows}, {inputs}] x {outputs}");
                assert_close(&forward(&linear, path, &x, rows), &exact, 3e-7 * inputs as f64 + 2e-6, &what);
            }
        }
        let weights = random(7, inputs * outputs);
        let linear = Linear::new(outputs, inputs, Weights::F32(&weights), Some(&bias), Precision::Q4);
        let exact = exact(&by_block, &weights_of(&linear), inputs, Some(&bias));
        for &path in Path::available() {
            let what = format!("q4 on {path:?} [{rows}, {inputs}] x {outputs}");
            assert_close(&forward(&linear, path, &x, rows), &exact, 2e-7 * inputs as f64 + 1e-6, &what);
        }
    }
}

/// One row reads packed blocks, more read what was unpacked: the same bits, and those of every count of rows and of threads.
#[test]
fn a_grouped_row_has_the_same_bits_alone_and_in_any_batch() {
    let (inputs, outputs) = (2200, 70);
    let (bias, x) = (random(2, outputs), random(3, 530 * inputs));
    for grouping in GROUPINGS {
        let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 3), Some(&bias));
        for &path in Path::available() {
            let all = forward(&linear, path, &x, 530);
            for (first, rows) in [(0, 1), (529, 1), (17, 2), (40, 3), (100, 13), (1, 520)] {
                let some = forward(&linear, path, &x[first * inputs..][..rows * inputs], rows);
                let expected = &all[first * outputs..][..rows * outputs];
                let same = some.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{path:?} {grouping:?} {first} {rows}");
            }
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let of = |pool: &rayon::ThreadPool| pool.install(|| forward(&linear, Path::best(), &x[..90 * inputs], 90));
        assert_eq!(of(&pool), of(&one), "{grouping:?}");
    }
}

#[test]
fn numa_nodes_change_no_bits_of_grouped_rows() {
    let (inputs, outputs) = (500, 600);
    let x = random(3, 90 * inputs);
    for grouping in GROUPINGS {
        let with = |nodes| {
            divided(nodes).install(|| {
                let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 3), None);
                [1, 6, 90].map(|rows| forward(&linear, Path::best(), &x[..rows * inputs], rows))
            })
        };
        let one = with(1);
        assert!([2, 3].into_iter().all(|nodes| with(nodes) == one), "{grouping:?}");
    }
}

/// The greatest quants, scales and activations: no integer overflows, and what f32 has to round is rounded alike by one row and by many.
#[test]
fn the_greatest_sums_have_the_same_bits_alone_and_in_a_batch() {
    let (inputs, outputs) = (256, 65);
    for bits in [Bits::Four, Bits::Six] {
        let grouping = Grouping { bits, scales: Scales::Pair };
        // Minus the middle in each place, times minus 128.
        let fill = |_: usize, row: &mut GroupRow| {
            row.quants.fill(0);
            row.scales.fill(0);
            row.mins.fill(0);
            row.outer.fill([f16::ONE.to_bits(), 0]);
        };
        let linear = Linear::grouped(outputs, inputs, &GroupedRows { grouping, fill: Box::new(fill) }, None);
        let middle = if bits == Bits::Four { 8.0 } else { 32.0 };
        let x = vec![127.0; 5 * inputs];
        for &path in Path::available() {
            let (one, many) = (forward(&linear, path, &x[..inputs], 1), forward(&linear, path, &x, 5));
            assert!(many.chunks(outputs).all(|row| row == one), "{path:?} {bits:?}");
            let expected = 256.0 * 128.0 * middle * 127.0;
            assert!(one.iter().all(|sum| (sum - expected).abs() < 1e-6 * expected), "{path:?} {bits:?}: {}", one[0]);
        }
    }
}

#[test]
fn dot_products_of_bytes_change_no_bits_of_groups() {
    if !Path::available().contains(&Path::Avx512Vnni) {
        return;
    }
    for ((rows, inputs, outputs), grouping) in SHAPES.into_iter().flat_map(|shape| GROUPINGS.map(|of| (shape, of))) {
        let x = random(22, rows * inputs);
        let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 9), None);
        let on = |path| forward(&linear, path, &x, rows).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(on(Path::Avx512Vnni), on(Path::Avx512), "{grouping:?} [{rows}, {inputs}] x {outputs}");
    }
}

#[test]
fn gate_and_up_in_groups_are_each_in_their_columns() {
    let (inputs, width) = (70, 41);
    for grouping in GROUPINGS {
        let rows = [1000, 2000].map(|seed| random_rows(grouping, inputs, seed));
        let gated = Linear::grouped_gate_up(width, inputs, [&rows[0], &rows[1]], None, Activation::Silu);
        let apart = rows.map(|rows| Linear::grouped(width, inputs, &rows, None));
        let x = random(5, 3 * inputs);
        let [gate, up] = apart.map(|linear| forward(&linear, Path::best(), &x, 3));
        let (mut input, mut out, mut spare) = Default::default();
        Activations::encode(&mut input, gated.format(), &x, 3);
        gated.forward_gated(&input, Format::F32, width, &mut out, &mut spare);
        for ((got, gate), up) in out.f32_rows()[..3 * width].iter().zip(gate).zip(up) {
            let expected = gate / (1.0 + (-gate).exp()) * up;
            assert!((got - expected).abs() < 1e-5 * expected.abs().max(1.0), "{grouping:?}: {got}, {expected}");
        }
    }
}

/// Of `--weights q4`, beside 8 bits and beside llama.cpp's Q4_0 and Q4_1 as their references round: the root mean square error of the
/// weights by that of the weights.
#[test]
fn four_bits_lose_no_more_than_formats_of_their_size() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut normal = || (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0;
    let (inputs, outputs) = (896, 64);
    let plain: Vec<f32> = (0..inputs * outputs).map(|_| 0.02 * normal()).collect();
    // One in two hundred is ten times as large, as in models that were trained.
    let peaked: Vec<f32> = plain.iter().enumerate().map(|(at, w)| if at % 197 == 0 { 10.0 * w } else { *w }).collect();
    for (weights, most) in [(plain, 0.075), (peaked, 0.095)] {
        let scale = weights.iter().map(|w| w * w).sum::<f32>();
        let error = |rounded: &[f32]| {
            let squares: f32 = rounded.iter().zip(&weights).map(|(a, b)| (a - b) * (a - b)).sum();
            (squares / scale).sqrt()
        };
        let ours =
            |precision| error(&weights_of(&Linear::new(outputs, inputs, Weights::F32(&weights), None, precision)));
        let (four, eight) = (ours(Precision::Q4), ours(Precision::Q8));
        let by_group =
            |round: fn(&[f32]) -> Vec<f32>| error(&weights.chunks(GROUP).flat_map(round).collect::<Vec<_>>());
        let q4_0 = by_group(|group| {
            let most = group.iter().copied().fold(0.0_f32, |a, b| if b.abs() > a.abs() { b } else { a });
            let scale = most / -8.0;
            group.iter().map(|w| ((w / scale + 8.5).floor().min(15.0) - 8.0) * scale).collect()
        });
        let q4_1 = by_group(|group| {
            let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(low, high), w| (low.min(*w), high.max(*w)));
            let scale = (high - low) / 15.0;
            group.iter().map(|w| ((w - low) / scale).round() * scale + low).collect()
        });
        println!("q4 {four:.4}, q8 {eight:.4}, Q4_0 {q4_0:.4}, Q4_1 {q4_1:.4}");
        assert!(four < most && four < q4_0 && four < 1.02 * q4_1 && eight < 0.5 * four, "{four} {eight} {q4_0} {q4_1}");
    }
}

#[test]
fn what_is_not_finite_among_four_bits_shows() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut weights = random(3, 200 * 70);
        weights[200 * 7 + 150] = odd;
        for precision in [Precision::Q8, Precision::Q4] {
            let linear = Linear::new(70, 200, Weights::F32(&weights), None, precision);
            for rows in [1, 4] {
                let out = forward(&linear, Path::best(), &random(4, rows * 200), rows);
                assert!(
                    out.iter().enumerate().all(|(at, out)| out.is_finite() == (at % 70 != 7)),
                    "{precision:?} {odd}"
                );
            }
        }
        let linear = Linear::grouped(70, 200, &GroupedRows::rounded(&weights, 200), None);
        let out = forward(&linear, Path::best(), &random(4, 200), 1);
        assert!(out.iter().enumerate().all(|(at, out)| out.is_finite() == (at != 7)), "{odd}");
    }
    let zeros = Linear::new(3, 40, Weights::F32(&[0.0; 120]), None, Precision::Q4);
    assert_eq!(forward(&zeros, Path::best(), &random(1, 40), 1), [0.0; 3]);
}

#[test]
fn groups_take_no_more_memory_than_their_bits_and_scales() {
    let expected = [4.5, 5.0, 4.75, 4.625, 4.625, 6.5, 7.0, 6.75, 6.625, 8.5];
    for (grouping, bits) in GROUPINGS.into_iter().zip(expected) {
        assert!((grouping.bits_per_weight() - bits).abs() < 1e-9, "{grouping:?}");
        let (inputs, outputs) = (896, 128);
        let linear = Linear::grouped(outputs, inputs, &random_rows(grouping, inputs, 1), None);
        let units = if grouping == OWN { 4 * outputs } else { 0 };
        assert_eq!(linear.size_in_bytes(), (bits * (inputs * outputs) as f64 / 8.0) as usize + units, "{grouping:?}");
    }
}
