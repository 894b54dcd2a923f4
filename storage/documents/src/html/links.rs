//! Where a page leads, for whoever fetches a site.

use std::collections::HashSet;

use super::super::encoding;
use super::dom::{self, Node};

/// More links than pages of people have.
const MOST_LINKS: usize = 10_000;
/// Who fetches, as pages and servers name it.
const AGENT: &str = "ragstone";
/// Longer addresses are made for machines.
const MAX_ADDRESS_BYTES: usize = 2000;

/// The links of a page, as they are written: relative to `base`, or to the page's own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    pub base: Option<String>,
    /// In the page's order, each once.
    pub addresses: Vec<String>,
    /// The address that the page says it is of.
    pub canonical: Option<String>,
    /// Whether its author wants it to be found, and its links to be followed (`<meta name="robots">`).
    pub is_indexed: bool,
    pub is_followed: bool,
}

impl Links {
    /// Of a page in any encoding.
    ///
    /// # Errors
    /// For what is no text, and where it nests too deep or has more elements than a page of its length.
    pub fn of(page: &[u8]) -> Result<Self, String> {
        let nodes = dom::parse(&encoding::decode(page.to_owned())?.text)?;
        let mut links =
            Self { base: None, addresses: Vec::new(), canonical: None, is_indexed: true, is_followed: true };
        let mut known = HashSet::new();
        for node in &nodes {
            let Some(address) = links.look(node) else { continue };
            if links.addresses.len() < MOST_LINKS && known.insert(address.clone()) {
                links.addresses.push(address);
            }
        }
        Ok(links)
    }

    /// Takes what an element says of the page; the address that it leads to.
    fn look(&mut self, node: &Node) -> Option<String> {
        let of = |name: &str| {
            let address = node.attribute(name)?.trim();
            let is_some = !address.is_empty() && !address.starts_with('#') && address.len() <= MAX_ADDRESS_BYTES;
            is_some.then(|| address.to_owned())
        };
        let says = |name: &str, word: &str| {
            node.attribute(name)
                .is_some_and(|all| all.split([' ', ',']).any(|one| one.trim().eq_ignore_ascii_case(word)))
        };
        match node.name() {
            "a" | "area" if !says("rel", "nofollow") => of("href"),
            "iframe" | "frame" => of("src"),
            "base" => {
                self.base = self.base.take().or_else(|| of("href"));
                None
            }
            "link" if says("rel", "canonical") => {
                self.canonical = self.canonical.take().or_else(|| of("href"));
                None
            }
            "link" if says("rel", "next") || says("rel", "prev") => of("href"),
            "meta" if says("name", "robots") || says("name", AGENT) => {
                let (is_indexed, is_followed) = robots(node.attribute("content").unwrap_or_default());
                self.is_indexed &= is_indexed;
                self.is_followed &= is_followed;
                None
            }
            _ => None,
        }
    }
}

/// Whether a page may be found, and its links followed, as its `<meta name="robots">` or a header `X-Robots-Tag` says: `noindex, nofollow`,
/// `ragstone: none`. What it says to others, and of pictures and the like, is not for us.
pub fn robots(said: &str) -> (bool, bool) {
    let (mut is_indexed, mut is_followed) = (true, true);
    for part in said.split(',') {
        let part = part.trim().to_ascii_lowercase();
        let word = match part.split_once(':') {
            None => part.as_str(),
            Some((name, word)) if name.trim() == AGENT => word.trim(),
            Some((name, _)) if name.starts_with("max-") || name.starts_with("unavailable_after") => continue,
            // All that follows is another's.
            Some(_) => break,
        };
        is_indexed &= !matches!(word, "noindex" | "none");
        is_followed &= !matches!(word, "nofollow" | "none");
    }
    (is_indexed, is_followed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_where_it_leads_and_what_may_be_done_with_it() {
        let page = r##"<html><head><base href="/docs/"><link rel="canonical" href="/docs/a"><link rel="stylesheet" href="x.css">
            <link rel="next" href="p2"></head><body><a href="b.html">b</a> <a href=" b.html ">again</a> <a href="#top">up</a>
            <a rel="external nofollow" href="ad">ad</a><map><area href="c"></map><iframe src="d"></iframe><a>none</a></body>"##;
        let links = Links::of(page.as_bytes()).unwrap();
        assert_eq!(links.addresses, ["p2", "b.html", "c", "d"]);
        assert_eq!((links.base.as_deref(), links.canonical.as_deref()), (Some("/docs/"), Some("/docs/a")));
        assert!(links.is_indexed && links.is_followed);
        for (content, is_indexed, is_followed) in
            [("noindex", false, true), ("index, NOFOLLOW", true, false), ("none", false, false), ("all", true, true)]
        {
            let page = format!(r#"<meta name="Robots" content="{content}"><a href="b">b</a>"#);
            let links = Links::of(page.as_bytes()).unwrap();
            assert_eq!((links.is_indexed, links.is_followed), (is_indexed, is_followed), "{content}");
        }
        for (said, expected) in [
            ("max-image-preview:none, max-snippet: -1", (true, true)),
            ("googlebot: noindex, nofollow", (true, true)),
            ("ragstone: noindex", (false, true)),
            ("unavailable_after: 2026-01-01, nofollow", (true, false)),
        ] {
            assert_eq!(robots(said), expected, "{said}");
        }
        // In an old encoding, too.
        let latin = Links::of(b"<meta charset=iso-8859-1><a href=stra\xdfe.html>x</a>").unwrap();
        assert_eq!(latin.addresses, ["straße.html"]);
        assert!(Links::of(b"\x00\x01\x02").is_err() && Links::of("<b>".repeat(2000).as_bytes()).is_err());
    }

    #[test]
    fn a_page_that_makes_too_many_elements_is_refused() {
        let formats: String = (0..400).map(|id| format!("<b id={id}>")).collect();
        let page = format!("<p>{formats}{}", "<p>x".repeat(60_000));
        assert!(Links::of(page.as_bytes()).unwrap_err().contains("elements and attributes"));
    }
}
