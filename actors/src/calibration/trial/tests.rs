//! Trials on a small random model.
