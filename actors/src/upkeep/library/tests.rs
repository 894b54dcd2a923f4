//! Corpus, journals and KV together.

mod damage;
mod power_cuts;
