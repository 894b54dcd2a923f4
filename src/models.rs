//! Models: of which kind they are, what they take of disk and memory, which are here.

pub mod here;
pub mod kind;
pub mod need;
