//! What feeds and sitemaps name. Blocking: a long list takes a while.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};
use roxmltree::{Document, ParsingOptions};
use serde::Deserialize;
use url::Url;

use super::tags;

/// A larger list is not read.
pub const MOST_BYTES: u64 = 16 << 20;
/// Addresses of one list, at most.
const MOST_NAMED: usize = 50_000;
/// Nodes of a list.
const MOST_NODES: u32 = 1_000_000;
/// What the version of each JSON Feed begins with.
const JSON_FEED: &str = "https://jsonfeed.org/version/1";
/// Where an encoding is named, if it is.
const MOST_DECLARED: usize = 200;

/// A JSON Feed, as far as it names pages. The library's own reader copies what a feed says of its authors to each entry, however many there are.
#[derive(Deserialize)]
struct JsonFeed {
    version: String,
    #[serde(default)]
    items: Vec<JsonItem>,
}

#[derive(Deserialize)]
struct JsonItem {
    url: Option<String>,
    external_url: Option<String>,
}

/// The pages of a feed's entries (RSS, Atom, JSON Feed), in its order; `None` where `bytes` is none, or more than is read of one.
pub fn entries(bytes: &[u8], own: &Url) -> Option<Vec<Url>> {
    if bytes.len() as u64 > MOST_BYTES {
        return None;
    }
    let text = text_of(bytes);
    let mut text = text.trim_start();
    if text.starts_with('{') {
        let feed = serde_json::from_str::<JsonFeed>(text).ok()?;
        if !feed.version.starts_with(JSON_FEED) {
            return None;
        }
        let pages = feed.items.into_iter().filter_map(|item| own.join(&item.url.or(item.external_url)?).ok());
        return Some(pages.take(MOST_NAMED).collect());
    }
    // It says which encoding it was in.
    while let Some((_, rest)) = text.strip_prefix("<?xml").and_then(|declared| declared.split_once("?>")) {
        text = rest.trim_start();
    }
    if text.contains('\0') || !tags::are_few(text) {
        return None;
    }
    let feed = feed_rs::parser::Builder::new().base_uri(Some(own.as_str())).build().parse(text.as_bytes()).ok()?;
    let page = |entry: feed_rs::model::Entry| {
        // The entry's own page, where it says which one that is.
        let alternate = entry.links.iter().find(|link| link.rel.as_deref() == Some("alternate"));
        let link = alternate.or_else(|| entry.links.iter().find(|link| link.rel.is_none()))?;
        own.join(&link.href).ok()
    };
    Some(feed.entries.into_iter().filter_map(page).take(MOST_NAMED).collect())
}

/// A feed's text: what is looked at before it is parsed is what is parsed.
fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    // Most are UTF-8, whatever they say. Two old encodings look like it, and have these characters.
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(['\0', '\u{1b}']) => Cow::Borrowed(text.trim_start_matches('\u{feff}')),
        _ => declared(bytes).unwrap_or(UTF_8).decode(bytes).0,
    }
}

/// The encoding that an XML file says it is in. A mark at its beginning goes before it.
fn declared(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_DECLARED)]);
    let (_, label) = head.split_once("?>")?.0.split_once("encoding=")?;
    let label = label.trim_start_matches(['"', '\'']).split(['"', '\'']).next()?;
    Encoding::for_label(label.as_bytes())
}

/// What a sitemap names: pages, and further sitemaps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sitemap {
    pub pages: Vec<Url>,
    pub sitemaps: Vec<Url>,
}

/// Reads a sitemap, or an index of several; nothing where it is none, or more than is read of one.
pub fn sitemap(bytes: &[u8]) -> Sitemap {
    let mut found = Sitemap::default();
    let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| tags::are_few(text)) else { return found };
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
        let json =
            br#" {"version":"https://jsonfeed.org/version/1.1","title":"News","authors":[{"name":"Ida"}],"items":[
            {"id":"1","url":"https://a.example/news/1","authors":[]},{"id":"2","external_url":"/news/2"},{"id":3}]}"#;
        assert_eq!(told(json).unwrap(), ["/news/1", "/news/2"]);
        assert_eq!(told(b"<html><body>no feed</body></html>"), None);
        assert_eq!(told(b"{\"version\":\"1.0\",\"items\":[]}"), None, "a file of JSON");
        assert_eq!(told(b""), None);
        // In an old encoding, and in one of which each character has two bytes.
        let text = std::str::from_utf8(rss).unwrap();
        let latin = text.replacen("?>", " encoding='iso-8859-1'?>", 1).replace("News", "Caf\u{e9}");
        let latin: Vec<u8> = latin.chars().map(|c| c as u8).collect();
        assert_eq!(told(&latin).unwrap(), ["/news/1", "/news/2"]);
        let wide: Vec<u8> = [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        assert_eq!(told(&wide).unwrap(), ["/news/1", "/news/2"]);
    }

    #[test]
    fn what_takes_a_parser_for_ever_is_not_parsed() {
        let attributes: String = (0..100_000).map(|n| format!(" a{n}=''")).collect();
        let map = format!("<urlset{attributes}><url><loc>https://a.example/x</loc></url></urlset>");
        assert_eq!(sitemap(map.as_bytes()), Sitemap::default());
        let link = "<item><link>https://a.example/x</link></item>";
        let feed = format!("<rss version='2.0'><channel{attributes}><title>x</title>{link}</channel></rss>");
        let own = Url::parse("https://a.example/feed").unwrap();
        assert_eq!(entries(feed.as_bytes(), &own), None);
        assert!(entries(feed.replace(&attributes, "").as_bytes(), &own).is_some_and(|pages| pages.len() == 1));
        let nested: String = (0..1000).map(|n| format!("<a xmlns:n{n}='x'>")).collect();
        let map = format!("<urlset><url><loc>https://a.example/x</loc></url>{nested}{}</urlset>", "</a>".repeat(1000));
        assert_eq!(sitemap(map.as_bytes()), Sitemap::default());
        let long = format!("{}{}", feed.replace(&attributes, ""), " ".repeat(MOST_BYTES as usize));
        assert_eq!(entries(long.as_bytes(), &own), None);
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
