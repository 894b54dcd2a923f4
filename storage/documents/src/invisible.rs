//! Characters that nobody sees and that part words: soft hyphens, and blanks and joints of no width. A search for `Donaudampfschiff` would not
//! find `Donau\u{ad}dampf\u{ad}schiff`.

use std::borrow::Cow;

use super::parse::Parsed;

/// Joiners (U+200C, U+200D) are none of them: words of Persian and of India are written with them, and emoji. Nor is a blank of no width where it
/// parts words, as Thai, Lao, Burmese and Khmer have no other blank. `before`: what stands before it.
fn is_invisible(before: char, c: char) -> bool {
    match c {
        '\u{ad}' | '\u{2060}' | '\u{feff}' => true,
        '\u{200b}' => !matches!(before, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'),
        _ => false,
    }
}

/// A document without them; its elements and pages begin where they began.
pub fn without(mut parsed: Parsed) -> Parsed {
    if let Some(title) = &mut parsed.title {
        remove(title);
    }
    if invisible(&parsed.text).next().is_some() {
        shift(&parsed.text, parsed.elements.iter_mut().map(|element| &mut element.at));
        shift(&parsed.text, parsed.pages.iter_mut());
        remove(&mut parsed.text);
    }
    parsed
}

/// A text without them: what a question asks, and what a text is searched by that is kept as it was given.
pub fn visible(text: &str) -> Cow<'_, str> {
    if invisible(text).next().is_none() {
        return Cow::Borrowed(text);
    }
    let mut text = text.to_owned();
    remove(&mut text);
    Cow::Owned(text)
}

/// Those of a text, and where they stand.
fn invisible(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut before = ' ';
    text.char_indices().filter(move |(_, c)| is_invisible(std::mem::replace(&mut before, *c), *c))
}

fn remove(text: &mut String) {
    let mut before = ' ';
    text.retain(|c| !is_invisible(std::mem::replace(&mut before, c), c));
}

/// Moves places of a text, in order, to where they are without such characters.
fn shift<'a>(text: &str, places: impl Iterator<Item = &'a mut usize>) {
    let (mut found, mut gone) = (invisible(text).peekable(), 0);
    for place in places {
        while let Some((_, c)) = found.next_if(|(at, _)| *at < *place) {
            gone += c.len_utf8();
        }
        *place = place.saturating_sub(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Element, ElementKind};

    #[test]
    fn words_are_whole_and_what_lies_in_them_stays_where_it_was() {
        let text = "\u{feff}Do\u{ad}nau\n\nDampf\u{200b}schiff\u{2060}.\u{ad}\n\nEnde";
        let at = |word: &str| text.find(word).unwrap();
        let kind = ElementKind::Text;
        let elements = [0, at("Dampf"), at("Ende")].map(|at| Element { at, kind }).to_vec();
        let pages = vec![0, at("Ende"), text.len()];
        let title = Some("PPR\u{ad}-1670".to_owned());
        let parsed = without(Parsed { title, text: text.to_owned(), elements, pages, ..Parsed::default() });
        assert_eq!((parsed.title.as_deref(), &*parsed.text), (Some("PPR-1670"), "Donau\n\nDampfschiff.\n\nEnde"));
        let places: Vec<usize> = parsed.elements.iter().map(|element| element.at).collect();
        assert_eq!(places, [0, 7, 21]);
        assert_eq!(parsed.pages, [0, 21, 25]);
    }

    #[test]
    fn joiners_stay_and_what_parts_words_where_nothing_else_does() {
        let persian = "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645}";
        let khmer = "\u{1781}\u{17d2}\u{1789}\u{17bb}\u{17c6}\u{200b}\u{1791}\u{17c5}";
        for text in [persian, khmer, "\u{e01}\u{200b}\u{e02}", "\u{1f469}\u{200d}\u{1f680}"] {
            assert_eq!(without(Parsed { text: text.to_owned(), ..Parsed::default() }).text, text);
            assert_eq!(visible(text), text);
        }
        assert_eq!(visible("Do\u{ad}nau PPR\u{200b}-1670"), "Donau PPR-1670");
    }
}
