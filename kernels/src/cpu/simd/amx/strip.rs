//! Products of many rows with 32 columns that stay in registers while the rows go by: what attention needs, where keys and
//! values are a block's, and not a panel's.

use std::arch::asm;

use super::linux::Tiles;
use super::{ROWS, WORDS};

/// Rows of bf16 pairs and two columns of tiles to multiply them with. Strides count words.
pub(crate) struct Strip {
    /// `[rows][depth]`, pairs of bf16.
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    /// Two columns: of each, `depth / 16` tiles `[16][16]` of pairs, one after the other.
    pub(crate) columns: [*const u32; 2],
    /// Words; a positive multiple of [`WORDS`].
    pub(crate) depth: usize,
    /// `[rows][32]`.
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    /// A positive multiple of [`ROWS`].
    pub(crate) rows: usize,
}

/// The products of all rows with one or two steps of k; the sums begin as `$start` says, and `$second` is done with the
/// second step's tiles.
macro_rules! strip {
    ($strip:expr, $step:expr, [$($load:literal),*], [$($start:literal),*], [$($second:literal),*]) => {
        asm!(
            "tileloadd tmm4, [{left} + {line}]",
            "tileloadd tmm5, [{right} + {line}]",
            $($load,)*
            "2:",
            "tileloadd tmm2, [{x} + {x_stride}]",
            $($start,)*
            "tdpbf16ps tmm0, tmm2, tmm4",
            "tdpbf16ps tmm1, tmm2, tmm5",
            $($second,)*
            "tilestored [{sums} + {sums_stride}], tmm0",
            "tilestored [{sums} + {sums_stride} + 64], tmm1",
            "add {x}, {x_step}",
            "add {sums}, {sums_step}",
            "dec {blocks}",
            "jnz 2b",
            left = in(reg) $strip.columns[0].add($step * ROWS * WORDS),
            right = in(reg) $strip.columns[1].add($step * ROWS * WORDS),
            line = in(reg) 4 * WORDS,
            x = inout(reg) $strip.x.add($step * WORDS) => _,
            x_stride = in(reg) 4 * $strip.x_stride,
            x_step = in(reg) 4 * ROWS * $strip.x_stride,
            sums = inout(reg) $strip.sums => _,
            sums_stride = in(reg) 4 * $strip.sums_stride,
            sums_step = in(reg) 4 * ROWS * $strip.sums_stride,
            blocks = inout(reg) $strip.rows / ROWS => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
    // Two steps of k.
    ($strip:expr, $step:expr, two, [$($start:literal),*]) => {
        strip!(
            $strip, $step,
            ["tileloadd tmm6, [{left} + {line} + 1024]", "tileloadd tmm7, [{right} + {line} + 1024]"],
            [$($start),*],
            ["tileloadd tmm3, [{x} + {x_stride} + 64]", "tdpbf16ps tmm0, tmm3, tmm6", "tdpbf16ps tmm1, tmm3, tmm7"]
        )
    };
    ($strip:expr, $step:expr, one, [$($start:literal),*]) => {
        strip!($strip, $step, [], [$($start),*], [])
    };
    ($strip:expr, $step:expr, $steps:ident, zero) => {
        strip!($strip, $step, $steps, ["tilezero tmm0", "tilezero tmm1"])
    };
    ($strip:expr, $step:expr, $steps:ident, add) => {
        strip!(
            $strip, $step, $steps,
            ["tileloadd tmm0, [{sums} + {sums_stride}]", "tileloadd tmm1, [{sums} + {sums_stride} + 64]"]
        )
    };
}

impl Strip {
    /// `sums = x columns`
    ///
    /// # Safety
    /// The pointers must be good for what the fields say, and nobody else may use the sums meanwhile.
    pub(crate) unsafe fn store(&self, _: &Tiles) {
        self.check();
        // SAFETY: the caller's promise; the tiles are configured.
        unsafe {
            match self.depth / WORDS {
                1 => strip!(self, 0, one, zero),
                steps => {
                    strip!(self, 0, two, zero);
                    self.add_from(2, steps);
                }
            }
        }
    }

    /// `sums += x columns`
    ///
    /// # Safety
    /// As [`Strip::store`].
    pub(crate) unsafe fn add(&self, _: &Tiles) {
        self.check();
        // SAFETY: the caller's promise; the tiles are configured.
        unsafe { self.add_from(0, self.depth / WORDS) }
    }

    /// # Safety
    /// As [`Strip::store`], and tiles must be configured.
    unsafe fn add_from(&self, first: usize, steps: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut step = first;
            while step + 2 <= steps {
                strip!(self, step, two, add);
                step += 2;
            }
            if step < steps {
                strip!(self, step, one, add);
            }
        }
    }

    fn check(&self) {
        assert!(self.depth > 0 && self.depth.is_multiple_of(WORDS), "a depth of {} words", self.depth);
        assert!(self.rows > 0 && self.rows.is_multiple_of(ROWS), "{} rows of tiles", self.rows);
    }
}
