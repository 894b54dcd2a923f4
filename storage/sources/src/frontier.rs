//! Which pages of a site are still to be asked for. Pure: it knows addresses alone.

use std::collections::{HashMap, HashSet, VecDeque};

use url::Url;

use super::client::is_plain;
use super::scope::Scope;

/// Pages that differ only in what stands behind the `?`: a calendar has one for each day there ever was.
const MOST_QUERIES: usize = 64;
/// Addresses that are known, whatever the bound for pages.
const MOST_KNOWN: usize = 100_000;

/// Pages in the order in which they were found, each once.
pub struct Frontier {
    scope: Scope,
    depth: Option<u32>,
    known: HashSet<String>,
    queries: HashMap<String, usize>,
    waiting: VecDeque<(Url, u32)>,
}

impl Frontier {
    pub fn new(scope: Scope, depth: Option<u32>) -> Self {
        Self { scope, depth, known: HashSet::new(), queries: HashMap::new(), waiting: VecDeque::new() }
    }

    /// Takes a page that is in scope, near enough, and not known, so many links from the first.
    pub fn offer(&mut self, page: Url, links: u32) {
        if self.scope.has(&page) {
            self.take(page, links);
        }
    }

    /// As [`offer`](Self::offer), of any host: what a feed names.
    pub fn take(&mut self, mut page: Url, links: u32) {
        page.set_fragment(None);
        let is_near = self.depth.is_none_or(|depth| links <= depth);
        if !is_near || !is_plain(&page) || !matches!(page.scheme(), "http" | "https") || self.known.len() >= MOST_KNOWN
        {
            return;
        }
        if self.known.contains(page.as_str()) {
            return;
        }
        if page.query().is_some() {
            let mut plain = page.clone();
            plain.set_query(None);
            let queries = self.queries.entry(plain.into()).or_default();
            if *queries >= MOST_QUERIES {
                return;
            }
            *queries += 1;
        }
        self.known.insert(page.as_str().to_owned());
        self.waiting.push_back((page, links));
    }

    /// Notes that a page is dealt with, under this address, too; whether it was not, and there is room for it.
    pub fn note(&mut self, page: &Url) -> bool {
        self.known.len() < MOST_KNOWN && self.known.insert(page.as_str().to_owned())
    }

    pub fn knows(&self, page: &str) -> bool {
        self.known.contains(page)
    }

    /// The next page, and how many links it is from the first.
    pub fn next(&mut self) -> Option<(Url, u32)> {
        self.waiting.pop_front()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_comes_once_and_none_of_elsewhere() {
        let url = |text: &str| Url::parse("https://a.example/guide/").unwrap().join(text).unwrap();
        let mut frontier = Frontier::new(Scope::of(&url("")), Some(2));
        for (page, links) in [
            ("a", 1),
            ("a#part", 1),
            ("b", 2),
            ("c", 3),
            ("../other", 1),
            ("https://b.example/guide/x", 1),
            ("mailto:ida@a.example", 1),
            ("ftp://a.example/guide/x", 1),
            ("a", 1),
        ] {
            frontier.offer(url(page), links);
        }
        frontier.take(url("https://b.example/entry"), 1);
        let mut found = Vec::new();
        while let Some((page, _)) = frontier.next() {
            found.push(page.to_string());
        }
        assert_eq!(found, ["https://a.example/guide/a", "https://a.example/guide/b", "https://b.example/entry"]);
        for day in 0..1000 {
            frontier.offer(url(&format!("calendar?day={day}")), 1);
        }
        assert_eq!(frontier.waiting(), MOST_QUERIES);
        assert!(!frontier.note(&url("a")) && frontier.note(&url("d")) && frontier.knows(url("d").as_str()));
    }
}
