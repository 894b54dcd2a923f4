//! Tiles where Linux grants them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use super::{ROWS, WORDS};

/// `arch_prctl` that asks for the right to use a part of the extended state, and the number of that part.
const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
const XTILEDATA: libc::c_ulong = 18;

/// Whether the processor has tiles with bf16 products, and the system lets this process use them. The right is asked
/// for once; it holds for all threads that are started later and for those that never used tiles.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_grants_tiles())
}

fn processor_has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    // SAFETY: every x86-64 processor has the instruction; leaf 7 is asked only where it exists.
    #[allow(unused_unsafe)]
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES) == BF16 | TILES
    }
}

fn system_grants_tiles() -> bool {
    // SAFETY: the call takes two numbers and changes what this process may do, nothing else; a kernel that does not
    // know it refuses.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

/// The shape of every tile: all rows, whole lines.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

static SHAPE: Shape = {
    let (mut bytes_per_row, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        bytes_per_row[tile] = 4 * WORDS as u16;
        rows[tile] = ROWS as u8;
        tile += 1;
    }
    Shape { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row, rows }
};

/// This thread's tiles, configured. They are released when this is dropped, so that the system saves none when it switches
/// threads elsewhere.
///
/// Each sum of a product takes the products of 32 k at a time, in ascending order: those of even and of odd k are summed
/// apart, then added ("Intel 64 and IA-32 Architectures Software Developer's Manual", TDPBF16PS). What a row comes to does
/// not depend on the others.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// Tiles must be available.
    pub(crate) unsafe fn configure() -> Self {
        // SAFETY: the caller's promise; the configuration is this thread's own.
        unsafe { asm!("ldtilecfg [{shape}]", shape = in(reg) &raw const SHAPE, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever made this promised that there are tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// `sums += x panel^T` for rows of bf16 pairs and a panel of 64 columns. Strides count words.
pub(crate) struct Product {
    /// `[rows][depth]`, pairs of bf16, good for whole tiles of rows.
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    /// `[depth][64]`, pairs of bf16.
    pub(crate) panel: *const u32,
    pub(crate) panel_stride: usize,
    /// Words; a positive multiple of [`WORDS`].
    pub(crate) depth: usize,
    /// `[rows][64]`, good for whole tiles of rows.
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    /// A multiple of [`ROWS`].
    pub(crate) rows: usize,
}

impl Product {
    /// # Safety
    /// Tiles must be available, the pointers good for what the fields say, and nobody else may use the sums meanwhile.
    pub(crate) unsafe fn run(&self) {
        assert!(self.depth > 0 && self.depth.is_multiple_of(WORDS) && self.rows.is_multiple_of(ROWS));
        // SAFETY: the caller's promise.
        unsafe {
            let _tiles = Tiles::configure();
            let mut row = 0;
            while row + 2 * ROWS <= self.rows {
                self.two_by_two(row, 0);
                self.two_by_two(row, 2 * WORDS);
                row += 2 * ROWS;
            }
            if row < self.rows {
                self.one_by_four(row);
            }
        }
    }

    /// 32 rows by 32 columns: four sums from two tiles of either side.
    ///
    /// # Safety
    /// As [`Product::run`], and the tiles must be configured.
    unsafe fn two_by_two(&self, row: usize, column: usize) {
        // SAFETY: the caller's promise; the loop reads `depth` words of each row.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums0} + {sums_stride}]",
                "tileloadd tmm1, [{sums0} + {sums_stride} + 64]",
                "tileloadd tmm2, [{sums1} + {sums_stride}]",
                "tileloadd tmm3, [{sums1} + {sums_stride} + 64]",
                "2:",
                "tileloadd tmm4, [{x0} + {x_stride}]",
                "tileloadd tmm6, [{panel} + {panel_stride}]",
                "tileloadd tmm7, [{panel} + {panel_stride} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{x1} + {x_stride}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x0}, 64",
                "add {x1}, 64",
                "add {panel}, {step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums0} + {sums_stride}], tmm0",
                "tilestored [{sums0} + {sums_stride} + 64], tmm1",
                "tilestored [{sums1} + {sums_stride}], tmm2",
                "tilestored [{sums1} + {sums_stride} + 64], tmm3",
                sums0 = in(reg) self.sums.add(row * self.sums_stride + column),
                sums1 = in(reg) self.sums.add((row + ROWS) * self.sums_stride + column),
                sums_stride = in(reg) 4 * self.sums_stride,
                x0 = inout(reg) self.x.add(row * self.x_stride) => _,
                x1 = inout(reg) self.x.add((row + ROWS) * self.x_stride) => _,
                x_stride = in(reg) 4 * self.x_stride,
                panel = inout(reg) self.panel.add(column) => _,
                panel_stride = in(reg) 4 * self.panel_stride,
                step = in(reg) 4 * WORDS * self.panel_stride,
                steps = inout(reg) self.depth / WORDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// 16 rows by all 64 columns.
    ///
    /// # Safety
    /// As [`Product::two_by_two`].
    unsafe fn one_by_four(&self, row: usize) {
        // SAFETY: the caller's promise; the loop reads `depth` words of each row.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {sums_stride}]",
                "tileloadd tmm1, [{sums} + {sums_stride} + 64]",
                "tileloadd tmm2, [{sums} + {sums_stride} + 128]",
                "tileloadd tmm3, [{sums} + {sums_stride} + 192]",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm5, [{panel} + {panel_stride}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{panel} + {panel_stride} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{panel} + {panel_stride} + 128]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{panel} + {panel_stride} + 192]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {x}, 64",
                "add {panel}, {step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {sums_stride}], tmm0",
                "tilestored [{sums} + {sums_stride} + 64], tmm1",
                "tilestored [{sums} + {sums_stride} + 128], tmm2",
                "tilestored [{sums} + {sums_stride} + 192], tmm3",
                sums = in(reg) self.sums.add(row * self.sums_stride),
                sums_stride = in(reg) 4 * self.sums_stride,
                x = inout(reg) self.x.add(row * self.x_stride) => _,
                x_stride = in(reg) 4 * self.x_stride,
                panel = inout(reg) self.panel => _,
                panel_stride = in(reg) 4 * self.panel_stride,
                step = in(reg) 4 * WORDS * self.panel_stride,
                steps = inout(reg) self.depth / WORDS => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
