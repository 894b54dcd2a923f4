//! Where sentences begin, in time that grows with the text and not with its square.
//!
//! Behind a full stop UAX #29 looks ahead over whatever is neither letter, stop nor the end of a line, to see whether a small letter follows (rule
//! SB8), and does so again at each bracket, quote or blank that follows the stop. A megabyte of them would take a minute.

use unicode_segmentation::UnicodeSegmentation;

/// Characters in a row, marks apart, that nothing of a sentence is looked for behind: more than any text has without a letter, a stop or a line's
/// end.
const LONGEST_LOOK: usize = 512;

/// Where sentences begin, with their texts.
pub(super) fn sentences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    blocks(text).into_iter().flat_map(|(at, block)| {
        block.split_sentence_bound_indices().map(move |(within, sentence)| (at + within, sentence))
    })
}

/// The text in blocks of which none has [`LONGEST_LOOK`] characters in a row that are looked over: mostly one.
fn blocks(text: &str) -> Vec<(usize, &str)> {
    let (mut blocks, mut start, mut looked_over) = (Vec::new(), 0, 0);
    let mut count = |at: usize, character: char| {
        looked_over = if ends_look(character) { 0 } else { looked_over + 1 };
        if looked_over >= LONGEST_LOOK {
            blocks.push((start, &text[start..at]));
            (start, looked_over) = (at, 0);
        }
    };
    // A mark is part of the character before it, and looked over with it.
    match text.is_ascii() {
        true => text.char_indices().for_each(|(at, character)| count(at, character)),
        false => {
            let clusters = text.grapheme_indices(true);
            clusters.for_each(|(at, cluster)| cluster.chars().next().into_iter().for_each(|first| count(at, first)));
        }
    }
    blocks.push((start, &text[start..]));
    blocks
}

/// Whether no look goes on behind it.
fn ends_look(character: char) -> bool {
    character.is_alphabetic() || matches!(character, '\n' | '\r' | '.' | '!' | '?')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that looks go over, at the most: from each character that is not looked for a letter from, as far as its block has none.
    fn looked_over(text: &str) -> usize {
        let of_block = |block: &str| {
            let runs = block.split(ends_look).map(|run| run.chars().count());
            runs.map(|run| run * (run + 1) / 2).sum::<usize>()
        };
        blocks(text).into_iter().map(|(_, block)| of_block(block)).sum()
    }

    #[test]
    fn work_grows_with_the_text_and_not_with_its_square() {
        for run in [")", " ", "1", "\u{201d}", "-", ")\u{301}"] {
            let text = |times: usize| format!("Ab.{}", run.repeat(times));
            let (small, large) = (looked_over(&text(20_000)), looked_over(&text(200_000)));
            assert!(large <= 11 * small, "{run:?}: {small} and {large}");
            let all: String = sentences(&text(200_000)).map(|(_, sentence)| sentence).collect();
            assert_eq!(all, text(200_000));
        }
    }

    #[test]
    fn texts_are_one_block() {
        let line = format!("A sentence (see above). {} 自転車を直す。 {}\n", "1,234;".repeat(60), "...".repeat(800));
        let text = line.repeat(50);
        assert_eq!(blocks(&text).len(), 1);
        assert!(sentences(&text).eq(text.split_sentence_bound_indices()));
        assert_eq!(sentences("").count(), 0);
    }
}
