//! What Linux says and does.

use std::ffi::{c_int, c_ulong};
use std::io;

/// Bits that the system's sets are read with: it refuses fewer than it has processors, or nodes.
const BITS: usize = 8192;
/// Nodes of a set that is written.
const NODE_BITS: usize = 1024;
/// Bits of a word of a set.
const WORD: usize = c_ulong::BITS as usize;

fn set(numbers: &[usize], bits: usize) -> Vec<c_ulong> {
    let mut words: Vec<c_ulong> = vec![0; bits / WORD];
    for number in numbers.iter().filter(|number| **number < bits) {
        words[number / WORD] |= 1 << (number % WORD);
    }
    words
}

fn numbers(set: &[c_ulong]) -> Vec<usize> {
    (0..set.len() * WORD).filter(|number| set[number / WORD] >> (number % WORD) & 1 == 1).collect()
}

/// The processors that this thread may run on.
pub(super) fn allowed_cpus() -> Option<Vec<usize>> {
    let mut words = set(&[], BITS);
    // SAFETY: the set is as long as is said, and of words as the system has them.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&words[..]), words.as_mut_ptr().cast()) };
    (status == 0).then(|| numbers(&words))
}

/// Keeps this thread on these processors, if the system lets it.
pub(super) fn pin(cpus: &[usize]) -> bool {
    let words = set(cpus, BITS);
    // SAFETY: as above.
    unsafe { libc::sched_setaffinity(0, size_of_val(&words[..]), words.as_ptr().cast()) == 0 }
}

/// Whether somebody has said already where memory is to come from, as `numactl` does.
pub(super) fn has_policy() -> bool {
    let (mut mode, no_set, no_address): (c_int, _, _) = (libc::MPOL_DEFAULT, std::ptr::null_mut::<c_ulong>(), 0_usize);
    // SAFETY: the mode is one number; the other two may be null.
    let status = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, no_set, 0_usize, no_address, 0_usize) };
    status == 0 && mode != libc::MPOL_DEFAULT
}

/// Pages of `memory`, which begins with one, come from this node, if it has some when they are first written.
pub(super) fn bind(memory: &mut [u8], node: usize) -> io::Result<()> {
    place(memory, libc::MPOL_PREFERRED, &[node])
}

/// Pages of `memory`, which begins with one, come from these nodes in turn.
pub(super) fn spread(memory: &mut [u8], nodes: &[usize]) -> io::Result<()> {
    place(memory, libc::MPOL_INTERLEAVE, nodes)
}

fn place(memory: &mut [u8], mode: c_int, nodes: &[usize]) -> io::Result<()> {
    let words = set(nodes, NODE_BITS);
    let no_flags: c_ulong = 0;
    // SAFETY: the memory is ours, and keeps its contents; the set has as many bits as is said, of which the system reads one less.
    let status = unsafe {
        libc::syscall(libc::SYS_mbind, memory.as_mut_ptr(), memory.len(), mode, words.as_ptr(), NODE_BITS, no_flags)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether memory can be bound to a node: containers are often not let.
pub(super) fn try_bind(node: usize) -> io::Result<()> {
    bind(&mut memmap2::MmapMut::map_anon(page_size())?, node)
}

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: it takes a number and gives one.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The node of each page of `memory`; an error's number, negated, for one that is nowhere yet.
#[cfg(test)]
pub(super) fn nodes_of_pages(memory: &[u8]) -> Vec<c_int> {
    let pages: Vec<*const u8> = memory.chunks(page_size()).map(<[u8]>::as_ptr).collect();
    let mut nodes: Vec<c_int> = vec![c_int::MIN; pages.len()];
    let nowhere = std::ptr::null::<c_int>();
    // SAFETY: both lists are as long as is said; without a list of nodes nothing is moved.
    let status =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, nodes.as_mut_ptr(), 0) };
    assert_eq!(status, 0, "{}", io::Error::last_os_error());
    nodes
}
