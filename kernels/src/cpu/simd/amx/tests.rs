//! The tile kernels against f64: as they are where the processor has tiles, else with each of their instructions
//! emulated where it traps.

use super::linux::{Product, Tiles};
use super::{ByteProduct, ROWS, Strip, WORDS, emulator};
use crate::aligned::Aligned;
use crate::dtype::bf16_bits;

const PANEL: usize = 64;

/// Random pairs of bf16.
fn pairs(rng: &mut fastrand::Rng, len: usize) -> Aligned<u32> {
    let mut words = Aligned::zeros(len);
    let mut half = || u32::from(bf16_bits(rng.f32() * 2.0 - 1.0));
    words.iter_mut().for_each(|word| *word = half() << 16 | half());
    words
}

fn halves(word: u32) -> [f64; 2] {
    [f64::from(f32::from_bits(word << 16)), f64::from(f32::from_bits(word & 0xffff_0000))]
}

#[test]
fn tiles_agree_with_f64() {
    let _emulated = emulator::install();
    let mut rng = fastrand::Rng::with_seed(7);
    for (strips, depth) in [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (5, 3)] {
        let (rows, depth) = (strips * ROWS, depth * WORDS);
        // Strides longer than what is used: nothing beyond may be read into the sums.
        let (x_stride, sums_stride) = (ROWS * (depth + 16), PANEL + 32);
        let x = pairs(&mut rng, strips * x_stride);
        let word =
            |row: usize, k: usize| x[row / ROWS * x_stride + k / WORDS * ROWS * WORDS + row % ROWS * WORDS + k % WORDS];
        let panel = pairs(&mut rng, depth * PANEL);
        let mut sums = Aligned::<f32>::zeros(rows * sums_stride);
        sums.iter_mut().for_each(|sum| *sum = rng.f32());
        let before = sums.to_vec();
        let product = Product {
            x: x.as_ptr(),
            x_stride,
            panel: panel.as_ptr(),
            depth,
            sums: sums.as_mut_ptr(),
            sums_stride,
            rows,
            next: panel.as_ptr(),
            next_lines: 7 * strips,
        };
        // SAFETY: the memory is as long as the product says, and tiles are there or emulated.
        unsafe { product.run() };
        for row in 0..rows {
            for column in 0..sums_stride {
                let (got, was) = (sums[row * sums_stride + column], before[row * sums_stride + column]);
                if column >= PANEL {
                    assert_eq!(got, was, "outside the panel");
                    continue;
                }
                let products = (0..depth).map(|k| {
                    let (a, b) = (halves(word(row, k)), halves(panel[k * PANEL + column]));
                    a[0] * b[0] + a[1] * b[1]
                });
                let exact = f64::from(was) + products.sum::<f64>();
                assert!((f64::from(got) - exact).abs() < 1e-5, "[{rows}, {depth}] {row}, {column}: {got}, {exact}");
            }
        }
    }
}

#[test]
fn products_of_bytes_are_exact() {
    let _emulated = emulator::install();
    let mut rng = fastrand::Rng::with_seed(9);
    for steps in [1, 2, 5] {
        let depth = steps * WORDS;
        // Longer than what is used.
        let x_stride = depth + 16;
        let mut words = |len| {
            let mut words = Aligned::<u32>::zeros(len);
            words.iter_mut().for_each(|word| *word = rng.u32(..));
            words
        };
        let (x, weights) = (words(ROWS * x_stride), words(depth * PANEL));
        let start: Vec<i32> = (0..PANEL as i32).map(|column| 1000 * column - 31_000).collect();
        let mut sums = vec![-1_i32; ROWS * PANEL];
        let product = ByteProduct {
            x: x.as_ptr(),
            x_stride,
            weights: weights.as_ptr(),
            depth,
            start: start.as_ptr(),
            sums: sums.as_mut_ptr(),
        };
        // SAFETY: the memory is as long as the product says, and tiles are there or emulated.
        unsafe { product.store(&Tiles::configure()) };
        for (index, got) in sums.iter().enumerate() {
            let (row, column) = (index / PANEL, index % PANEL);
            let dot = |k: usize| {
                let (x, w) = (x[row * x_stride + k].to_le_bytes(), weights[k * PANEL + column].to_le_bytes());
                x.into_iter().zip(w).map(|(x, w)| i32::from(x) * i32::from(w as i8)).sum::<i32>()
            };
            assert_eq!(*got, start[column] + (0..depth).map(dot).sum::<i32>(), "{steps}: {row}, {column}");
        }
    }
}

#[test]
fn strips_agree_with_f64() {
    let _emulated = emulator::install();
    let mut rng = fastrand::Rng::with_seed(8);
    for (rows, steps) in [(1, 1), (1, 2), (2, 3), (3, 4), (1, 5)] {
        let (rows, depth) = (rows * ROWS, steps * WORDS);
        let (x_stride, sums_stride) = (depth + 16, 2 * WORDS + 16);
        let x = pairs(&mut rng, rows * x_stride);
        let columns = [pairs(&mut rng, depth * WORDS), pairs(&mut rng, depth * WORDS)];
        let mut sums = Aligned::<f32>::zeros(rows * sums_stride);
        sums.iter_mut().for_each(|sum| *sum = rng.f32());
        let before = sums.to_vec();
        let strip = Strip {
            x: x.as_ptr(),
            x_stride,
            columns: columns.each_ref().map(|column| column.as_ptr()),
            depth,
            sums: sums.as_mut_ptr(),
            sums_stride,
            rows,
        };
        let check = |got: &[f32], start: &dyn Fn(usize) -> f32| {
            for (index, got) in got.iter().enumerate() {
                let (row, column) = (index / sums_stride, index % sums_stride);
                if column >= 2 * WORDS {
                    assert_eq!(*got, before[index], "outside the columns");
                    continue;
                }
                let products = (0..depth).map(|k| {
                    let panel = &columns[column / WORDS];
                    let (a, b) = (halves(x[row * x_stride + k]), halves(panel[k * WORDS + column % WORDS]));
                    a[0] * b[0] + a[1] * b[1]
                });
                let exact = f64::from(start(index)) + products.sum::<f64>();
                assert!((f64::from(*got) - exact).abs() < 1e-5, "[{rows}, {depth}] {row}, {column}: {got}, {exact}");
            }
        };
        // SAFETY: the memory is as long as the strip says, and tiles are there or emulated.
        let tiles = unsafe { Tiles::configure() };
        // SAFETY: as above.
        unsafe { strip.add(&tiles) };
        check(&sums, &|index| before[index]);
        // SAFETY: as above.
        unsafe { strip.store(&tiles) };
        check(&sums, &|_| 0.0);
    }
}
