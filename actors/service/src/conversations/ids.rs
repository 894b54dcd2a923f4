//! Ids of responses and conversations, which are what protects these where there are no keys.

use crate::error::{Error, Result};

/// A new id of a kind of thing, such as `resp`: whoever knows it may use it, so nobody may guess it.
///
/// # Errors
/// `Internal` where the system has no randomness. Not the environment's, which may be replayed.
pub fn secret_id(kind: &str) -> Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Error::internal(format!("no randomness for an id: {error}")))?;
    Ok(format!("{kind}_{}", hex::encode(random)))
}

/// Characters of an id that are told: its kind and eight or more of 32 digits, which tell two apart and let nobody guess the rest.
const TOLD_CHARS: usize = 13;

/// An id as logs have it, which more people read than may use it: its beginning, by which whoever has the id finds its lines.
pub fn told_id(id: &str) -> String {
    match id.char_indices().nth(TOLD_CHARS) {
        Some((end, _)) => format!("{}…", &id[..end]),
        None => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_id_is_told() {
        let id = secret_id("conv").unwrap();
        let told = told_id(&id);
        assert!(id.starts_with(told.trim_end_matches('…')) && told.chars().count() == TOLD_CHARS + 1, "{id} {told}");
        assert_eq!(told_id("msg_0123456789abcdef0123456789abcdef_0"), "msg_012345678…");
        for short in ["", "resp_1", "conversations", "input_items"] {
            assert_eq!(told_id(short), short);
        }
        assert_eq!(told_id(&"ä".repeat(14)), format!("{}…", "ä".repeat(13)));
    }
}
