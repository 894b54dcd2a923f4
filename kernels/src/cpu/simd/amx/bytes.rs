//! Products of bytes with tiles (AMX-INT8): exact integers, so that they are those of every other path.

use std::arch::asm;

use super::WORDS;
use super::linux::Tiles;

/// Words of a panel's row, and of the sums'.
const PANEL: usize = 64;
/// Bytes of a panel that one step of k takes.
const STEP: usize = 4 * WORDS * PANEL;

/// `sums = start + x weights` for 16 rows of unsigned bytes and 64 columns of signed ones. Strides count words.
pub(crate) struct ByteProduct {
    /// `[16][depth]`, quads of bytes.
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    /// `[depth][64]`, quads of bytes.
    pub(crate) weights: *const u32,
    /// Words; a positive multiple of [`WORDS`].
    pub(crate) depth: usize,
    /// `[64]`: what the sums of every row begin with.
    pub(crate) start: *const i32,
    /// `[16][64]`
    pub(crate) sums: *mut i32,
}

impl ByteProduct {
    /// # Safety
    /// The pointers must be good for what the fields say, and nobody else may use the sums meanwhile.
    pub(crate) unsafe fn store(&self, _: &Tiles) {
        assert!(self.depth > 0 && self.depth.is_multiple_of(WORDS), "a depth of {} words", self.depth);
        // SAFETY: the caller's promise; the tiles are configured, and the loop reads `depth` words of each row.
        unsafe {
            asm!(
                // Without a stride every row of a tile is the same one.
                "tileloadd tmm0, [{start} + {none}]",
                "tileloadd tmm1, [{start} + {none} + 64]",
                "tileloadd tmm2, [{start} + {none} + 128]",
                "tileloadd tmm3, [{start} + {none} + 192]",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm5, [{weights} + {panel}]",
                "tdpbusd tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{weights} + {panel} + 64]",
                "tdpbusd tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{weights} + {panel} + 128]",
                "tdpbusd tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{weights} + {panel} + 192]",
                "tdpbusd tmm3, tmm4, tmm5",
                "add {x}, {line}",
                "add {weights}, {step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {panel}], tmm0",
                "tilestored [{sums} + {panel} + 64], tmm1",
                "tilestored [{sums} + {panel} + 128], tmm2",
                "tilestored [{sums} + {panel} + 192], tmm3",
                start = in(reg) self.start,
                none = in(reg) 0_usize,
                x = inout(reg) self.x => _,
                x_stride = in(reg) 4 * self.x_stride,
                weights = inout(reg) self.weights => _,
                panel = in(reg) 4 * PANEL,
                sums = in(reg) self.sums,
                steps = inout(reg) self.depth / WORDS => _,
                line = const 4 * WORDS,
                step = const STEP,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
