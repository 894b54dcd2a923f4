//! The primer's passages: real prose that this project wrote, about nothing that an owner's documents are likely to be about. They are
//! written as an owner's passages are, so that what follows takes itself for a later passage of a prompt (docs/primer.md).

use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::prompt::primer::Primer;

use crate::error::{Error, ErrorKind, Result};
use crate::question::InlineDocument;
use crate::question::prompt::PromptFormat;

/// As many passages as there are.
pub(crate) const MOST_PASSAGES: usize = 4;
/// Passages of a primer where neither settings nor a calibration say how many: of 0, 1, 2 and 4 the best over prompts of two passages, and the
/// next best over five, on the one model that it was measured on (docs/results/fusion.md).
pub(crate) const UNCALIBRATED_PASSAGES: usize = 2;

const BUNDLED: &str = include_str!("primer.json");
/// At most this part of a model's context: what is computed behind it has to fit, too.
const PART_OF_CONTEXT: usize = 4;

/// All of the passages that leave room in a context of so many tokens.
///
/// # Errors
/// Those of the tokenizer.
pub(crate) fn bundled(format: &PromptFormat, tokenizer: &Tokenizer, context: usize) -> Result<Primer> {
    let (mut passages, mut left) = (Vec::new(), context / PART_OF_CONTEXT);
    for InlineDocument { title, text } in documents()? {
        let tokens = tokenizer.encode_text(&format.render_passage(&title, &text))?;
        if tokens.len() > left {
            break;
        }
        left -= tokens.len();
        passages.push(tokens.into());
    }
    Ok(Primer::new(passages))
}

fn documents() -> Result<Vec<InlineDocument>> {
    serde_json::from_str(BUNDLED)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the primer cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_passages_as_a_setting_may_ask_for() {
        let all = documents().unwrap();
        assert_eq!(all.len(), MOST_PASSAGES);
        assert!(all.iter().all(|it| it.text.split_whitespace().count() >= 80 && !it.title.is_empty()));
    }
}
