//! Characters that nobody sees and that part words: soft hyphens, and blanks and joints of no width. A search for `Donaudampfschiff` would not
//! find `Donau\u{ad}dampf\u{ad}schiff`.

use super::parse::Parsed;

/// Joiners (U+200C, U+200D) are none of them: words of Persian and of India are written with them, and emoji.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}' | '\u{2060}' | '\u{feff}')
}

/// A document without them; its elements and pages begin where they began.
pub fn without(mut parsed: Parsed) -> Parsed {
    if let Some(title) = &mut parsed.title {
        title.retain(|c| !is_invisible(c));
    }
    if parsed.text.contains(is_invisible) {
        shift(&parsed.text, parsed.elements.iter_mut().map(|element| &mut element.at));
        shift(&parsed.text, parsed.pages.iter_mut());
        parsed.text.retain(|c| !is_invisible(c));
    }
    parsed
}

/// Moves places of a text, in order, to where they are without such characters.
fn shift<'a>(text: &str, places: impl Iterator<Item = &'a mut usize>) {
    let (mut found, mut gone) = (text.char_indices().filter(|(_, c)| is_invisible(*c)).peekable(), 0);
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
    fn joiners_stay() {
        for text in ["\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645}", "\u{1f469}\u{200d}\u{1f680}"] {
            assert_eq!(without(Parsed { text: text.to_owned(), ..Parsed::default() }).text, text);
        }
    }
}
