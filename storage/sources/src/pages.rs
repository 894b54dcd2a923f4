//! What two pages have in common, and what one is written in. Pure.

use encoding_rs::Encoding;
use url::Url;

/// Whether two addresses differ in nothing but what stands behind the `?`, and how a folder's own page is named.
pub fn is_same_place(one: &Url, other: &Url) -> bool {
    let place = |url: &Url| {
        let path = url.path().trim_end_matches('/').to_ascii_lowercase();
        let path = path.strip_suffix(".html").or_else(|| path.strip_suffix(".htm")).unwrap_or(&path);
        path.strip_suffix("/index").unwrap_or(path).to_owned()
    };
    place(one) == place(other)
}

/// A text that its server says is in an old encoding, and that does not say so itself.
pub fn in_utf_8(bytes: Vec<u8>, media: Option<&str>) -> Vec<u8> {
    let charset = media.and_then(|media| {
        let mut parameters = media.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
        parameters
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
            .map(|(_, value)| value.trim_matches([' ', '"']))
    });
    let encoding = charset.and_then(|charset| Encoding::for_label(charset.as_bytes()));
    match encoding.filter(|encoding| *encoding != encoding_rs::UTF_8 && std::str::from_utf8(&bytes).is_err()) {
        Some(encoding) => match encoding.decode_without_bom_handling_and_without_replacement(&bytes) {
            Some(text) => text.into_owned().into_bytes(),
            None => bytes,
        },
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_page_are_known() {
        let is_same = |one: &str, other: &str| {
            let url = |path: &str| Url::parse("https://a.example/").unwrap().join(path).unwrap();
            is_same_place(&url(one), &url(other))
        };
        assert!(
            is_same("/a?x=1", "/a")
                && is_same("/a/", "/A")
                && is_same("/a/index.html", "/a")
                && is_same("/a.htm", "/a/")
        );
        assert!(!is_same("/a", "/") && !is_same("/a/b", "/a"));
    }

    #[test]
    fn a_text_in_an_old_encoding_is_made_utf_8_where_its_server_says_so() {
        let latin = b"Jos\xe9".to_vec();
        assert_eq!(in_utf_8(latin.clone(), Some("text/plain; charset=\"windows-1252\"")), "José".as_bytes());
        assert_eq!(in_utf_8(latin.clone(), Some("text/plain")), latin);
        assert_eq!(
            in_utf_8("José".into(), Some("text/plain; Charset=latin1")),
            "José".as_bytes(),
            "it is that already"
        );
    }
}
