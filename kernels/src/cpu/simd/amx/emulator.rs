//! A processor's tiles in software: a handler of illegal-instruction signals that decodes the instructions of
//! [`super::linux`], does what the manual says ("Intel 64 and IA-32 Architectures Software Developer's Manual",
//! volume 2, LDTILECFG to TILESTORED), and goes on behind them.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard};

use super::is_available;

/// One thread's tiles.
struct Tiles {
    is_configured: bool,
    bytes: [[[u8; 64]; 16]; 8],
}

thread_local! {
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles { is_configured: false, bytes: [[[0; 64]; 16]; 8] }) };
}

static INSTALLED: Mutex<()> = Mutex::new(());

/// The handler, until this is dropped.
pub(crate) struct Emulation {
    before: Option<libc::sigaction>,
    _alone: MutexGuard<'static, ()>,
}

/// Emulates tiles until what it returns is dropped, unless this processor has them.
pub(crate) fn install() -> Emulation {
    // A test that failed with it has nothing to hand on.
    let alone = INSTALLED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if is_available() {
        return Emulation { before: None, _alone: alone };
    }
    // SAFETY: the structures are plain numbers; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_illegal_instruction as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = MaybeUninit::uninit();
        assert_eq!(libc::sigaction(libc::SIGILL, &action, before.as_mut_ptr()), 0);
        Emulation { before: Some(before.assume_init()), _alone: alone }
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the action that was there before.
            unsafe { libc::sigaction(libc::SIGILL, before, std::ptr::null_mut()) };
        }
    }
}

extern "C" fn on_illegal_instruction(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system hands over the state of the thread that stopped.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: an instruction is at most 15 bytes, and the kernels' code does not end here.
    let code = unsafe { std::slice::from_raw_parts(at, 15) };
    let done = TILES.with_borrow_mut(|tiles| {
        // SAFETY: the addresses are those that the kernel under test computes.
        unsafe { execute(tiles, code, registers) }
    });
    match done {
        Some(len) => registers[libc::REG_RIP as usize] += len as i64,
        // SAFETY: ends the process: this is no instruction of tiles.
        None => unsafe { libc::abort() },
    }
}

/// The general registers by their number in an instruction.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// An address with a base and an index, which is the stride of tile loads and stores.
struct Address {
    base: u64,
    stride: u64,
    /// Bytes of the instruction up to here.
    len: usize,
}

/// Decodes ModRM, SIB and displacement that begin at byte 5 or before it.
fn address(code: &[u8], registers: &[i64]) -> Option<Address> {
    let value = |number: u8| registers[REGISTERS[number as usize] as usize] as u64;
    // The extension bits of a three-byte VEX prefix are inverted.
    let (extend_index, extend_base) = (u8::from(code[1] & 0x40 == 0) << 3, u8::from(code[1] & 0x20 == 0) << 3);
    let (mode, memory) = (code[4] >> 6, code[4] & 7);
    let (base, stride, at) = if memory == 4 {
        let (scale, index, base) = (code[5] >> 6, code[5] >> 3 & 7 | extend_index, code[5] & 7 | extend_base);
        let stride = if index == 4 { 0 } else { value(index) << scale };
        (value(base), stride, 6)
    } else {
        (value(memory | extend_base), 0, 5)
    };
    let (displacement, len) = match mode {
        0 if memory != 5 => (0, at),
        1 => (i64::from(code[at] as i8), at + 1),
        2 => (i64::from(i32::from_le_bytes(code[at..at + 4].try_into().ok()?)), at + 4),
        _ => return None,
    };
    Some(Address { base: base.wrapping_add_signed(displacement), stride, len })
}

/// Runs one instruction; how long it is, or nothing if it is not one of tiles.
///
/// # Safety
/// Its addresses must be good for what it reads and writes.
unsafe fn execute(tiles: &mut Tiles, code: &[u8], registers: &[i64]) -> Option<usize> {
    // A three-byte VEX prefix, opcode map 2, 128 bits wide.
    if code[0] != 0xc4 || code[1] & 0x1f != 2 || code[2] & 0x84 != 0 {
        return None;
    }
    let tile = (code[4] >> 3 & 7) as usize;
    // SAFETY: the caller's promise.
    unsafe {
        match (code[3], code[2] & 3) {
            (0x49, 0) if code[4] == 0xc0 => {
                assert!(tiles.is_configured, "TILERELEASE of nothing");
                tiles.is_configured = false;
                Some(5)
            }
            (0x49, 0) => {
                let address = address(code, registers)?;
                let shape = std::slice::from_raw_parts(address.base as *const u8, 64);
                let rows_of_64 = (0..8).all(|tile| shape[16 + 2 * tile] == 64 && shape[17 + 2 * tile] == 0);
                let whole = shape[48..56].iter().all(|rows| *rows == 16);
                let unused = shape[32..48].iter().chain(&shape[56..]).chain(&shape[1..16]).all(|byte| *byte == 0);
                assert!(shape[0] == 1 && rows_of_64 && whole && unused, "a shape that a processor takes");
                *tiles = Tiles { is_configured: true, bytes: [[[0; 64]; 16]; 8] };
                Some(address.len)
            }
            (0x49, 3) if code[4] >> 6 == 3 => {
                assert!(tiles.is_configured, "TILEZERO without a shape");
                tiles.bytes[tile] = [[0; 64]; 16];
                Some(5)
            }
            (0x4b, 3) => {
                assert!(tiles.is_configured, "TILELOADD without a shape");
                let address = address(code, registers)?;
                for (row, bytes) in tiles.bytes[tile].iter_mut().enumerate() {
                    let from = (address.base + row as u64 * address.stride) as *const u8;
                    bytes.as_mut_ptr().copy_from_nonoverlapping(from, 64);
                }
                Some(address.len)
            }
            (0x4b, 2) => {
                assert!(tiles.is_configured, "TILESTORED without a shape");
                let address = address(code, registers)?;
                for (row, bytes) in tiles.bytes[tile].iter().enumerate() {
                    let to = (address.base + row as u64 * address.stride) as *mut u8;
                    to.copy_from_nonoverlapping(bytes.as_ptr(), 64);
                }
                Some(address.len)
            }
            (0x5c, 2) if code[4] >> 6 == 3 => {
                assert!(tiles.is_configured, "TDPBF16PS without a shape");
                let (a, b) = ((code[4] & 7) as usize, (!code[2] >> 3 & 7) as usize);
                multiply(tiles, tile, a, b);
                Some(5)
            }
            (0x5e, 1) if code[4] >> 6 == 3 => {
                assert!(tiles.is_configured, "TDPBUSD without a shape");
                let (a, b) = ((code[4] & 7) as usize, (!code[2] >> 3 & 7) as usize);
                multiply_bytes(tiles, tile, a, b);
                Some(5)
            }
            _ => None,
        }
    }
}

/// TDPBUSD: `tile += a b` over quads of bytes, unsigned in `a` and signed in `b`.
fn multiply_bytes(tiles: &mut Tiles, tile: usize, a: usize, b: usize) {
    for row in 0..16 {
        for column in 0..16 {
            let at = 4 * column..4 * column + 4;
            let before = i32::from_le_bytes(tiles.bytes[tile][row][at.clone()].try_into().unwrap());
            let products = (0..64).map(|k| {
                let (x, w) = (tiles.bytes[a][row][k], tiles.bytes[b][k / 4][4 * column + k % 4]);
                i32::from(x) * i32::from(w as i8)
            });
            let sum = products.fold(before, i32::wrapping_add);
            tiles.bytes[tile][row][at].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// TDPBF16PS: `tile += a b` over pairs, those of even and of odd places summed apart.
fn multiply(tiles: &mut Tiles, tile: usize, a: usize, b: usize) {
    let word = |tiles: &Tiles, tile: usize, row: usize, column: usize| {
        u32::from_le_bytes(tiles.bytes[tile][row][4 * column..][..4].try_into().unwrap())
    };
    let flush = |value: f32| if value.is_subnormal() { 0.0 } else { value };
    let halves = |word: u32| [flush(f32::from_bits(word << 16)), flush(f32::from_bits(word & 0xffff_0000))];
    for row in 0..16 {
        for column in 0..16 {
            let mut sums = [0.0_f32; 2];
            for k in 0..16 {
                let (x, w) = (halves(word(tiles, a, row, k)), halves(word(tiles, b, k, column)));
                for (sum, (x, w)) in sums.iter_mut().zip(x.into_iter().zip(w)) {
                    *sum = flush(x.mul_add(w, *sum));
                }
            }
            let before = f32::from_bits(word(tiles, tile, row, column));
            let sum = flush(flush(before) + flush(sums[0] + sums[1]));
            tiles.bytes[tile][row][4 * column..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}
