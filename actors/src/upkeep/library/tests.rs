//! Corpus, journals and KV together.

#[cfg(target_os = "linux")]
mod power_cuts;
