//! Systems whose nodes are not known: there is one.

use std::io;

pub(super) fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

pub(super) fn has_policy() -> bool {
    false
}

pub(super) fn pin(_cpus: &[usize]) -> bool {
    true
}

pub(super) fn bind(_memory: &mut [u8], _node: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn spread(_memory: &mut [u8], _nodes: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn try_bind(node: usize) -> io::Result<()> {
    bind(&mut [], node)
}

pub(super) fn page_size() -> usize {
    4096
}
