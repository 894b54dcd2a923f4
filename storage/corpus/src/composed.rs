//! Texts as their words are searched: a letter with its accent is one character, and nothing invisible stands within a word.
//!
//! A text index cuts at combining marks and at invisible characters: `Fahrra\u{308}der` (NFD, as names of files on a Mac and the text of some PDFs
//! have it) is two words to it, and `Fahrräder` from a keyboard one. A text stays as it was given; what it is searched by is made here.

use std::borrow::Cow;
use std::collections::HashSet;

use ragstone_documents::visible;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// A text without invisible characters, whose letters and marks are one character where there is one.
///
/// That is NFC but for characters that NFC takes apart (some of Hindi, Hebrew, Bengali): their words would be cut then.
pub(super) fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let text = visible(text);
    if !text.chars().any(is_combining_mark) {
        return text;
    }
    let (mut composed, mut letter) = (String::with_capacity(text.len()), String::new());
    for c in text.chars() {
        if !is_combining_mark(c) {
            push_composed(&mut composed, &letter);
            letter.clear();
        }
        letter.push(c);
    }
    push_composed(&mut composed, &letter);
    if *composed == *text { text } else { Cow::Owned(composed) }
}

/// Adds a letter with its marks.
fn push_composed(text: &mut String, letter: &str) {
    let length = letter.chars().count();
    let composed: String = if length > 1 { letter.nfc().collect() } else { String::new() };
    let is_shorter = length > 1 && composed.chars().count() < length;
    text.push_str(if is_shorter { &composed } else { letter });
}

/// A text as its words are compared: [`composed`], and the Turkish `İ` is an `I`, as its small form is two characters, `i` and a dot.
pub(super) fn searched(text: &str) -> Cow<'_, str> {
    let composed = composed(text);
    if composed.contains('İ') || composed.contains("i\u{307}") {
        return Cow::Owned(composed.replace('İ', "I").replace("i\u{307}", "i"));
    }
    composed
}

/// The words of a text as it is [`searched`] that it has not as it was written.
pub(super) fn other_words<'a>(written: &str, searched: &'a str) -> impl Iterator<Item = &'a str> {
    // Nearly every text is written so.
    let (written, searched) = if written == searched { ("", "") } else { (written, searched) };
    let known: HashSet<String> = words(written).map(str::to_owned).collect();
    words(searched).filter(move |word| !known.contains(*word))
}

/// A text's words as the text index cuts it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_with_its_marks_is_one_character_where_there_is_one() {
        for (given, expected) in [
            ("Fahrra\u{308}der", "Fahrräder"),
            ("the\u{301}", "thé"),
            // The dot below comes after the circumflex, as keyboards of Vietnam write it.
            ("Vi\u{ea}\u{323}t", "Việt"),
            ("Donau\u{ad}dampf\u{200b}schiff", "Donaudampfschiff"),
            // What NFC would take apart.
            ("\u{958}\u{932}\u{92e}", "\u{958}\u{932}\u{92e}"),
            ("q\u{301}", "q\u{301}"),
            ("İzmir", "İzmir"),
            ("The roof", "The roof"),
            ("", ""),
        ] {
            assert_eq!(composed(given), expected, "{given}");
        }
    }

    #[test]
    fn words_that_a_text_has_but_for_how_it_is_written_are_told() {
        let others = |text: &str| other_words(text, &searched(text)).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(others("Alte Fahrra\u{308}der im Keller"), ["Fahrräder"]);
        assert_eq!(others("İzmir, I\u{307}stanbul ve i\u{307}zmit"), ["Izmir", "Istanbul", "izmit"]);
        assert_eq!(others("Straße, café, señor"), [""; 0]);
    }
}
