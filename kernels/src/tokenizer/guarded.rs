//! Calls of the tokenizers library on a file from elsewhere: where it panics over one that contradicts itself, they give an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Error, Result};

/// Reads the bytes of a `tokenizer.json`, without its own padding and truncation: they are leftovers of training, and cutting a text short would
/// lose some of it without a word. `path` is where they are from, for messages.
///
/// # Errors
/// `InvalidModel` when they are malformed.
pub(crate) fn from_bytes(bytes: &[u8], path: &Path) -> Result<tokenizers::Tokenizer> {
    let invalid = |why: &str| {
        Error::invalid_model(format!("{} is not a valid tokenizer ({why}); fetch it again", path.display()))
    };
    // The library's arithmetic on merges panics where a file was made to.
    let read = catch_unwind(|| tokenizers::Tokenizer::from_bytes(bytes));
    let read = read.map_err(|_| invalid("its merges do not fit its vocabulary"))?;
    let mut tokenizer = read.map_err(|error| invalid(&error.to_string()))?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| invalid(&error.to_string()))?;
    Ok(tokenizer)
}

/// What `work` makes of a text; `None` where it panicked, as it does where a file's post-processor names a token that it does not describe.
pub(crate) fn on_text<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Option<tokenizers::Result<T>> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
