//! Matrix tiles of x86 (AMX): eight registers of 16 rows by 64 bytes, and products of them.
//!
//! The compiler has no stable intrinsics for these instructions, so they are written as assembly. The tests run the
//! same machine code on processors without AMX, by emulating each instruction where it traps.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod bytes;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[allow(dead_code)]
mod elsewhere;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod emulator;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod strip;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use bytes::ByteProduct;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[allow(unused_imports)]
pub(crate) use elsewhere::{ByteProduct, Product, Strip, Tiles, is_available};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use linux::{Product, Tiles, is_available};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use strip::Strip;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Words of 32 bits in a row of a tile: 16 columns, or 32 k of bf16, or 64 of bytes.
pub(crate) const WORDS: usize = 16;
