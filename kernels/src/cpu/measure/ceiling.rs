//! The most that this machine can do: arithmetic without memory traffic, and reading without arithmetic.

use std::hint::black_box;
use std::sync::Arc;

use rayon::prelude::*;

use super::Case;
use crate::aligned::Aligned;
use crate::simd::{self, Kernel, Path, Vector, amx};

/// Steps of one call: each fills a register tile once.
const STEPS: usize = 1 << 16;
/// The loops, for every thread at once: products of f32, of bf16, of bytes, and reading `read_bytes`, which should be
/// more than any cache holds.
pub fn ceilings(read_bytes: usize) -> Vec<Case> {
    let path = Path::best();
    let mut cases = vec![
        arithmetic("f32 products", path, "f32", Arithmetic::F32),
        arithmetic("byte products", path, "q8", Arithmetic::Bytes),
        reading(path, read_bytes),
    ];
    let bf16 = if path == Path::Amx { Arithmetic::Tiles } else { Arithmetic::Bf16 };
    cases.insert(1, arithmetic("bf16 products", path, "bf16", bf16));
    cases
}

#[derive(Clone, Copy)]
enum Arithmetic {
    F32,
    Bf16,
    Bytes,
    /// bf16 by [`amx`].
    Tiles,
}

fn arithmetic(kernel: &'static str, path: Path, precision: &'static str, kind: Arithmetic) -> Case {
    let threads = rayon::current_num_threads();
    let mut operations = 0.0;
    simd::dispatch(path, Loop { kind, steps: 0, operations: &mut operations });
    let call = move || {
        (0..threads).into_par_iter().with_max_len(1).for_each(|_| {
            simd::dispatch(path, Loop { kind, steps: STEPS, operations: &mut 0.0 });
        });
    };
    let work = (operations * STEPS as f64 * threads as f64, 0.0);
    Case::new(kernel, path, precision, format!("{threads} threads"), work, call)
}

/// `steps` steps of a register tile; says how many operations one step is.
struct Loop<'a> {
    kind: Arithmetic,
    steps: usize,
    operations: &'a mut f64,
}

impl Kernel for Loop<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let per_lane = match self.kind {
            Arithmetic::F32 => 2.0,
            Arithmetic::Bf16 => 4.0,
            Arithmetic::Bytes => 8.0,
            Arithmetic::Tiles => 0.0,
        };
        *self.operations = per_lane * (ROWS * VECS * V::LANES) as f64;
        // SAFETY: the caller's promise about the machine.
        unsafe {
            match self.kind {
                Arithmetic::F32 => {
                    let (x, column) = (V::splat(black_box(1e-9)), V::splat(black_box(0.5)));
                    let mut sums = [[V::splat(0.0); VECS]; ROWS];
                    // Different ones, or they could all be the same sum.
                    for (row, sums) in sums.iter_mut().enumerate() {
                        for (vec, sum) in sums.iter_mut().enumerate() {
                            *sum = V::splat((row * VECS + vec) as f32);
                        }
                    }
                    for _ in 0..self.steps {
                        for sum in sums.as_flattened_mut() {
                            *sum = x.mul_add(column, *sum);
                        }
                    }
                    sink(&sums);
                }
                Arithmetic::Bf16 => {
                    let (x, column) = (V::splat_word(black_box(0x3080_3080)), V::splat_word(black_box(0x3f00_3f00)));
                    let mut sums = [[V::splat(0.0); VECS]; ROWS];
                    for (row, sums) in sums.iter_mut().enumerate() {
                        for (vec, sum) in sums.iter_mut().enumerate() {
                            *sum = V::splat((row * VECS + vec) as f32);
                        }
                    }
                    for _ in 0..self.steps {
                        for sum in sums.as_flattened_mut() {
                            *sum = sum.dot_bf16(x, column);
                        }
                    }
                    sink(&sums);
                }
                Arithmetic::Bytes => {
                    let column = V::splat_word(black_box(0x0100_0100));
                    let mut sums = [[V::splat_word(0); VECS]; ROWS];
                    for _ in 0..self.steps {
                        // Another one each time: where a product is several instructions, some would be done once.
                        let x = V::splat_word(black_box(0x0101_0101));
                        for sum in sums.as_flattened_mut() {
                            *sum = V::dot_bytes(*sum, x, column);
                        }
                    }
                    let sums = sums.map(|sums| sums.map(|sum| V::from_integers(sum)));
                    sink(&sums);
                }
                Arithmetic::Tiles => tiles(self.steps, self.operations),
            }
        }
    }
}

/// Keeps the loop from being taken for useless.
///
/// # Safety
/// The machine must have the instruction set of `V`.
#[inline(always)]
unsafe fn sink<V: Vector, const ROWS: usize, const VECS: usize>(sums: &[[V; VECS]; ROWS]) {
    let mut out = [0.0; 16];
    for sum in sums.iter().flatten() {
        // SAFETY: no vector is longer than 16.
        unsafe { sum.store(out.as_mut_ptr()) };
        black_box(&out);
    }
}

/// Products of tiles that stay in the L1 cache.
///
/// # Safety
/// Tiles must be available.
unsafe fn tiles(steps: usize, operations: &mut f64) {
    const DEPTH: usize = 64;
    // Thirty-two rows by one panel.
    let (x, panel) = (Aligned::<u32>::zeros(32 * DEPTH), Aligned::<u32>::zeros(DEPTH * 64));
    let mut sums = Aligned::<f32>::zeros(32 * 64);
    let product = amx::Product {
        x: x.as_ptr(),
        x_stride: 16 * DEPTH,
        panel: panel.as_ptr(),
        depth: DEPTH,
        sums: sums.as_mut_ptr(),
        sums_stride: 64,
        rows: 32,
        next: panel.as_ptr(),
        next_lines: 0,
    };
    *operations = 32.0 * 64.0 * 4.0 * DEPTH as f64 / 16.0;
    for _ in 0..steps / 16 {
        // SAFETY: the caller's promise; the memory is as long as the product says.
        unsafe { product.run() };
    }
}

fn reading(path: Path, read_bytes: usize) -> Case {
    let threads = rayon::current_num_threads();
    let mut memory = Aligned::<u32>::zeros(read_bytes / 4);
    memory.par_chunks_mut(1 << 20).for_each(|chunk| chunk.fill(1.0_f32.to_bits()));
    let memory = Arc::new(memory);
    let call = move || {
        let share = memory.len() / threads / 64 * 64;
        memory.par_chunks_exact(share).with_max_len(1).for_each(|words| simd::dispatch(path, Read { words }));
    };
    let bytes = (read_bytes / 4 / threads / 64 * 64 * threads * 4) as f64;
    Case::new("read", path, "bytes", format!("{} MiB", read_bytes >> 20), (0.0, bytes), call)
}

/// Sums up words, a whole number of four vectors.
struct Read<'a> {
    words: &'a [u32],
}

impl Kernel for Read<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: the caller's promise about the machine; the words divide into four vectors of any length.
        unsafe {
            let mut sums = [V::splat(0.0); 4];
            for start in (0..self.words.len()).step_by(4 * V::LANES) {
                for (vec, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(self.words.as_ptr().add(start + vec * V::LANES).cast()));
                }
            }
            sink(&[sums]);
        }
    }
}
