//! Tiles where Linux grants them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

use super::{ROWS, WORDS};

/// `arch_prctl` that asks for the right to use a part of the extended state, and the number of that part.
const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
const XTILEDATA: libc::c_ulong = 18;

/// Whether the processor has tiles with products of bf16 and of bytes (every one so far that has the former), and the system lets this process use them. The right is asked
/// for once; it holds for all threads that are started later and for those that never used tiles.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_grants_tiles())
}

fn processor_has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    // SAFETY: every x86-64 processor has the instruction; leaf 7 is asked only where it exists.
    #[allow(unused_unsafe)]
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILES | INT8) == BF16 | TILES | INT8
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
    /// By 16 rows, `[depth / 16][16][16]`: tiles of pairs of bf16, one after the other.
    pub(crate) x: *const u32,
    /// From 16 rows to the next.
    pub(crate) x_stride: usize,
    /// `[depth][64]`, pairs of bf16.
    pub(crate) panel: *const u32,
    /// Words; a positive multiple of [`WORDS`].
    pub(crate) depth: usize,
    /// `[rows][64]`
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    /// A multiple of [`ROWS`].
    pub(crate) rows: usize,
    /// Memory that is read next, and the lines of 64 bytes of it that are fetched meanwhile; it need not be there.
    pub(crate) next: *const u32,
    pub(crate) next_lines: usize,
}

/// Words of a panel's row.
const PANEL: usize = 64;
/// Bytes of a tile.
const TILE: usize = 4 * ROWS * WORDS;
/// Bytes of a panel that one step of k takes.
const STEP: usize = 4 * WORDS * PANEL;

impl Product {
    /// # Safety
    /// Tiles must be available, the pointers good for what the fields say, and nobody else may use the sums meanwhile.
    pub(crate) unsafe fn run(&self) {
        assert!(self.depth > 0 && self.depth.is_multiple_of(WORDS) && self.rows.is_multiple_of(ROWS));
        let strips = self.rows / ROWS;
        // Calls below, and what each of their steps fetches.
        let calls = strips / 2 * 2 + strips % 2;
        let lines = self.next_lines.div_ceil((calls * self.depth / WORDS).max(1));
        let mut next = self.next;
        // SAFETY: the caller's promise.
        unsafe {
            let _tiles = Tiles::configure();
            for pair in 0..strips / 2 {
                next = self.two_by_two(2 * pair, 0, next, lines);
                next = self.two_by_two(2 * pair, 2 * WORDS, next, lines);
            }
            if strips % 2 == 1 {
                self.one_by_four(strips - 1, next, lines);
            }
        }
    }

    /// 32 rows by 32 columns: four sums from two tiles of either side. What is to be fetched next after it.
    ///
    /// # Safety
    /// As [`Product::run`], and the tiles must be configured.
    unsafe fn two_by_two(&self, strip: usize, column: usize, next: *const u32, lines: usize) -> *const u32 {
        let mut after = next;
        // SAFETY: the caller's promise; the loop reads `depth` words of each row.
        unsafe {
            let sums = self.sums.add(strip * ROWS * self.sums_stride + column);
            let x = self.x.add(strip * self.x_stride);
            asm!(
                "tileloadd tmm0, [{sums0} + {sums_stride}]",
                "tileloadd tmm1, [{sums0} + {sums_stride} + 64]",
                "tileloadd tmm2, [{sums1} + {sums_stride}]",
                "tileloadd tmm3, [{sums1} + {sums_stride} + 64]",
                "2:",
                "tileloadd tmm4, [{x0} + {line}]",
                "tileloadd tmm6, [{panel} + {panel_stride}]",
                "tileloadd tmm7, [{panel} + {panel_stride} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{x1} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x0}, {tile}",
                "add {x1}, {tile}",
                "add {panel}, {step}",
                // Into the second cache: the first one has no room for it.
                "mov {left}, {lines}",
                "3:",
                "dec {left}",
                "js 4f",
                "prefetcht1 [{next}]",
                "add {next}, 64",
                "jmp 3b",
                "4:",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums0} + {sums_stride}], tmm0",
                "tilestored [{sums0} + {sums_stride} + 64], tmm1",
                "tilestored [{sums1} + {sums_stride}], tmm2",
                "tilestored [{sums1} + {sums_stride} + 64], tmm3",
                sums0 = in(reg) sums,
                sums1 = in(reg) sums.add(ROWS * self.sums_stride),
                sums_stride = in(reg) 4 * self.sums_stride,
                x0 = inout(reg) x => _,
                x1 = inout(reg) x.add(self.x_stride) => _,
                line = in(reg) 4 * WORDS,
                panel = inout(reg) self.panel.add(column) => _,
                panel_stride = in(reg) 4 * PANEL,
                steps = inout(reg) self.depth / WORDS => _,
                next = inout(reg) after,
                lines = in(reg) lines,
                left = out(reg) _,
                tile = const TILE,
                step = const STEP,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        after
    }

    /// 16 rows by all 64 columns.
    ///
    /// # Safety
    /// As [`Product::two_by_two`].
    unsafe fn one_by_four(&self, strip: usize, next: *const u32, lines: usize) {
        // SAFETY: the caller's promise; the loop reads `depth` words of each row.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {sums_stride}]",
                "tileloadd tmm1, [{sums} + {sums_stride} + 64]",
                "tileloadd tmm2, [{sums} + {sums_stride} + 128]",
                "tileloadd tmm3, [{sums} + {sums_stride} + 192]",
                "2:",
                // Into the first cache: few rows go through one step after the other.
                "mov {left}, {lines}",
                "3:",
                "dec {left}",
                "js 4f",
                "prefetcht0 [{next}]",
                "add {next}, 64",
                "jmp 3b",
                "4:",
                "tileloadd tmm4, [{x} + {line}]",
                "tileloadd tmm5, [{panel} + {panel_stride}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm6, [{panel} + {panel_stride} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm7, [{panel} + {panel_stride} + 128]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{panel} + {panel_stride} + 192]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {x}, {tile}",
                "add {panel}, {step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {sums_stride}], tmm0",
                "tilestored [{sums} + {sums_stride} + 64], tmm1",
                "tilestored [{sums} + {sums_stride} + 128], tmm2",
                "tilestored [{sums} + {sums_stride} + 192], tmm3",
                sums = in(reg) self.sums.add(strip * ROWS * self.sums_stride),
                sums_stride = in(reg) 4 * self.sums_stride,
                x = inout(reg) self.x.add(strip * self.x_stride) => _,
                line = in(reg) 4 * WORDS,
                panel = inout(reg) self.panel => _,
                panel_stride = in(reg) 4 * PANEL,
                steps = inout(reg) self.depth / WORDS => _,
                next = inout(reg) next => _,
                lines = in(reg) lines,
                left = out(reg) _,
                tile = const TILE,
                step = const STEP,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
