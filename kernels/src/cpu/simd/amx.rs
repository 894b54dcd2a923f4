//! Matrix tiles of x86 (AMX): eight registers of 16 rows by 64 bytes, and products of them.
//!
//! The compiler has no stable intrinsics for these instructions, so they are written as assembly. The tests run the
//! same machine code on processors without AMX, by emulating each instruction where it traps.

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod emulator;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use linux::{Product, is_available};

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Words of 32 bits in a row of a tile: 16 columns, or 32 k of bf16.
pub(crate) const WORDS: usize = 16;

/// Elsewhere no thread may use tiles.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
pub(crate) fn is_available() -> bool {
    false
}

/// A product that is never made: [`is_available`] says no.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[allow(dead_code)]
pub(crate) struct Product {
    pub(crate) x: *const u32,
    pub(crate) x_stride: usize,
    pub(crate) panel: *const u32,
    pub(crate) panel_stride: usize,
    pub(crate) depth: usize,
    pub(crate) sums: *mut f32,
    pub(crate) sums_stride: usize,
    pub(crate) rows: usize,
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl Product {
    pub(crate) unsafe fn run(&self) {
        unreachable!("tiles are not available here")
    }
}
