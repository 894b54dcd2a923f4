//! What feeds and sitemaps name.

use roxmltree::{Document, ParsingOptions};
use url::Url;

/// Addresses of one list, at most.
const MOST_NAMED: usize = 50_000;
/// Nodes of a list.
const MOST_NODES: u32 = 1_000_000;

/// The pages of a feed's entries (RSS, Atom, JSON Feed), in its order; `None` where `bytes` is none.
pub fn entries(bytes: &[u8], own: &Url) -> Option<Vec<Url>> {
    let feed = feed_rs::parser::Builder::new().base_uri(Some(own.as_str())).build().parse(bytes).ok()?;
    let page = |entry: feed_rs::model::Entry| {
        // The entry's own page, where it says which one that is.
        let alternate = entry.links.iter().find(|link| link.rel.as_deref() == Some("alternate"));
        let link = alternate.or_else(|| entry.links.iter().find(|link| link.rel.is_none()))?;
        own.join(&link.href).ok()
    };
    Some(feed.entries.into_iter().filter_map(page).take(MOST_NAMED).collect())
}

/// What a sitemap names: pages, and further sitemaps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sitemap {
    pub pages: Vec<Url>,
    pub sitemaps: Vec<Url>,
}

/// Reads a sitemap, or an index of several; nothing where it is none.
pub fn sitemap(bytes: &[u8]) -> Sitemap {
    let mut found = Sitemap::default();
    let Ok(text) = std::str::from_utf8(bytes) else { return found };
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    let Ok(document) = Document::parse_with_options(text.trim_start_matches('\u{feff}'), options) else { return found };
    for location in document.descendants().filter(|node| node.tag_name().name() == "loc").take(MOST_NAMED) {
        let Some(Ok(url)) = location.text().map(|text| Url::parse(text.trim())) else { continue };
        match location.parent().map(|parent| parent.tag_name().name()) {
            Some("url") => found.pages.push(url),
            Some("sitemap") => found.sitemaps.push(url),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lead_to_their_pages() {
        let own = Url::parse("https://a.example/news/feed").unwrap();
        let rss = br#"<?xml version="1.0"?><rss version="2.0"><channel><title>News</title><link>https://a.example/</link>
            <item><title>One</title><link>https://a.example/news/1</link></item><item><title>Two</title><link>/news/2</link></item>
            <item><title>None</title></item></channel></rss>"#;
        let atom = br#"<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><id>x</id><updated>2026-11-01T00:00:00Z</updated>
            <entry><title>One</title><id>1</id><updated>2026-11-01T00:00:00Z</updated><link rel="edit" href="https://a.example/edit"/>
            <link rel="alternate" href="https://a.example/news/1"/></entry></feed>"#;
        let told = |bytes: &[u8]| {
            entries(bytes, &own).map(|pages| pages.iter().map(|page| page.path().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(told(rss).unwrap(), ["/news/1", "/news/2"]);
        assert_eq!(told(atom).unwrap(), ["/news/1"]);
        assert_eq!(told(b"<html><body>no feed</body></html>"), None);
        assert_eq!(told(b""), None);
    }

    #[test]
    fn sitemaps_name_pages_and_sitemaps() {
        let map = br#"<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc> https://a.example/x </loc></url>
            <url><loc>no address</loc></url></urlset>"#;
        let index = br#"<sitemapindex><sitemap><loc>https://a.example/more.xml</loc></sitemap></sitemapindex>"#;
        let url = |text: &str| Url::parse(text).unwrap();
        assert_eq!(sitemap(map), Sitemap { pages: vec![url("https://a.example/x")], sitemaps: vec![] });
        assert_eq!(sitemap(index), Sitemap { pages: vec![], sitemaps: vec![url("https://a.example/more.xml")] });
        for none in [
            &b"<html>"[..],
            b"",
            b"\xff",
            br#"<!DOCTYPE x [<!ENTITY a "b">]><urlset><url><loc>&a;</loc></url></urlset>"#,
        ] {
            assert_eq!(sitemap(none), Sitemap::default());
        }
    }
}
