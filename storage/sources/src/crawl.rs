//! Fetches the pages of a site: what its first page leads to, what its lists name, and what is stored of it.

use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;

use chrono::DateTime;
use encoding_rs::Encoding;
use ragstone_documents::{Links, is_read, robots};
use url::Url;

use super::client::{Answer, Client, Page};
use super::frontier::Frontier;
use super::keep::keep;
use super::memory;
use super::robots::Robots;
use super::scope::is_file;
use super::site::Site;
use super::{Fetched, FetchedFile, Progress, Wanted, feed, name};
use ragstone_env::Result;

/// Of what is asked for many an address is no page: so many a page may be.
const ASKED_PER_PAGE: usize = 10;
const LEAST_ASKED: usize = 100;
/// A site that fails so often in a row is left alone: each is tried several times.
const MOST_FAILED: usize = 5;
/// Links that are noted of a page.
const MOST_NOTED: usize = 200;
/// Endings of what may be in an encoding that its server alone knows.
const TEXTS: [&str; 5] = ["html", "txt", "md", "csv", "tsv"];
/// Of all files of a site.
const MOST_BYTES: u64 = 4 << 30;
/// A larger page's links are not followed: what builds its tree is not bounded as the reading of files is.
const MOST_LINKED_BYTES: usize = 8 << 20;
/// Lists of a site's pages that are read.
const MOST_SITEMAPS: usize = 16;
/// Endings of pages that programs write.
const PROGRAMS: [&str; 9] = ["asp", "aspx", "cgi", "do", "jsp", "jsf", "php", "phtml", "shtml"];

/// A fetch on its way.
pub struct Crawl<'a, 'w> {
    client: Client,
    /// Of the site, and of other hosts that a feed leads to.
    robots: Robots,
    others: HashMap<String, Option<Robots>>,
    scope: super::scope::Scope,
    frontier: Frontier,
    wanted: Wanted<'w>,
    told: &'a (dyn Fn(Progress) + Sync),
    is_feed: bool,
    /// Addresses that were asked for, and of the last ones those that could not be had.
    asked: usize,
    failed: usize,
    bytes: u64,
    fetched: Fetched,
    /// Pages as they are now.
    noted: std::collections::BTreeMap<String, memory::Page>,
}

impl<'a, 'w> Crawl<'a, 'w> {
    /// Fetches the site, as far as it is wanted.
    pub async fn run(site: Site, wanted: Wanted<'w>, told: &'a (dyn Fn(Progress) + Sync)) -> Result<Fetched> {
        let Site { client, robots, scope, first } = site;
        let start = first.url.clone();
        let frontier = Frontier::new(scope.clone(), wanted.bounds.depth);
        let (fetched, noted, others) = Default::default();
        let mut crawl = Self {
            client,
            robots,
            others,
            scope,
            frontier,
            wanted,
            told,
            is_feed: false,
            asked: 0,
            failed: 0,
            bytes: 0,
            fetched,
            noted,
        };
        crawl.frontier.note(&start);
        crawl.take(first, 0, true).await?;
        if !crawl.is_feed && crawl.wanted.bounds.depth != Some(0) {
            crawl.read_sitemaps().await;
        }
        let is_whole = crawl.visit_all(&start).await?;
        // What lies further than somebody wanted to look stays as it is.
        if is_whole && !crawl.is_feed && crawl.wanted.bounds.depth.is_none() {
            crawl.look_for_stored(&start).await?;
        }
        // One that came under this address is there, whatever another address of it said.
        crawl.fetched.gone.retain(|page| !crawl.noted.contains_key(page));
        crawl.wanted.memory.pages = crawl.noted;
        Ok(crawl.fetched)
    }

    /// Visits what is known and not visited; whether nothing is left.
    async fn visit_all(&mut self, start: &Url) -> Result<bool> {
        while let Some((page, links)) = self.frontier.next() {
            if self.is_over(start) {
                return Ok(false);
            }
            self.visit(page, links).await?;
        }
        Ok(true)
    }

    /// Whether as much is fetched as is wanted.
    fn is_over(&mut self, start: &Url) -> bool {
        let pages = self.wanted.bounds.pages;
        let most_asked = pages.saturating_mul(ASKED_PER_PAGE).max(LEAST_ASKED);
        let why = if self.failed >= MOST_FAILED {
            format!("{MOST_FAILED} pages in a row could not be had; the others were not asked for")
        } else if self.asked >= most_asked {
            format!("{most_asked} addresses were asked for, most of them no pages; --pages N asks for more")
        } else if self.fetched.files.len() + self.fetched.unchanged >= pages {
            format!("the first {pages} pages were taken; --pages N takes more")
        } else if self.bytes >= MOST_BYTES {
            format!("the first {} GiB were taken; name its folders one by one", MOST_BYTES >> 30)
        } else {
            return false;
        };
        self.fetched.left_out.push((start.to_string(), why));
        true
    }

    /// Asks for what is stored and was not come upon: a page to which nothing leads is there all the same.
    async fn look_for_stored(&mut self, start: &Url) -> Result<()> {
        let mut rest: Vec<String> =
            self.wanted.stored.iter().filter(|page| !self.frontier.knows(page)).cloned().collect();
        rest.sort();
        for page in rest.iter().filter_map(|page| Url::parse(page).ok()) {
            if self.is_over(start) {
                return Ok(());
            }
            if self.frontier.note(&page) {
                self.visit(page, 0).await?;
            }
        }
        // And what these lead to.
        self.visit_all(start).await.map(|_| ())
    }

    async fn visit(&mut self, page: Url, links: u32) -> Result<()> {
        let address = page.to_string();
        if self.noted.contains_key(&address) {
            // It came under another address.
            return Ok(());
        }
        self.asked += 1;
        match self.may_ask(&page).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(why) => {
                self.failed += 1;
                self.fetched.left_out.push((address, why));
                return Ok(());
            }
        }
        let is_stored = self.wanted.stored.contains(&address);
        let known = self.wanted.memory.pages.get(&address).filter(|_| is_stored).cloned();
        let answer = self.client.ask(&page, known.as_ref()).await;
        let is_failed = match &answer {
            Ok(Answer::Not(why)) => !why.starts_with("HTTP 4"),
            Ok(_) => false,
            Err(_) => true,
        };
        self.failed = if is_failed { self.failed + 1 } else { 0 };
        match answer {
            Ok(Answer::Page(page)) => self.take(*page, links, false).await?,
            Ok(Answer::Unchanged) => {
                self.fetched.unchanged += 1;
                let known = known.unwrap_or_default();
                self.follow(known.links.iter().filter_map(|link| Url::parse(link).ok()), links);
                self.noted.insert(address, known);
            }
            Ok(Answer::Gone) if is_stored => {
                self.fetched.gone.insert(address);
            }
            // A link that leads to nothing is the site's matter.
            Ok(Answer::Gone) => {}
            Ok(Answer::Elsewhere { to, is_permanent }) => {
                if is_stored && is_permanent && to != page {
                    self.fetched.gone.insert(address);
                }
                if self.is_feed {
                    self.frontier.take(to, links);
                } else {
                    self.frontier.offer(to, links);
                }
            }
            Ok(Answer::Not(why)) | Err(why) => self.fetched.left_out.push((address, why)),
        }
        self.tell();
        Ok(())
    }

    fn tell(&mut self) {
        let files = self.fetched.files.len() + self.fetched.unchanged;
        (self.told)(Progress { files, bytes: self.bytes, waiting: Some(self.frontier.waiting()) });
    }

    /// Whether the page's host allows it.
    async fn may_ask(&mut self, page: &Url) -> std::result::Result<bool, String> {
        if self.scope.is_of_host(page) {
            return Ok(self.robots.allow(page));
        }
        let host = page.origin().ascii_serialization();
        if !self.others.contains_key(&host) {
            let robots = self.client.robots(page).await.inspect_err(|_| {
                self.others.insert(host.clone(), None);
            })?;
            self.others.insert(host.clone(), Some(robots));
        }
        Ok(self.others.get(&host).is_some_and(|robots| robots.as_ref().is_some_and(|robots| robots.allow(page))))
    }

    /// Takes a page that came: keeps what it says, and notes where it leads.
    async fn take(&mut self, page: Page, links: u32, is_first: bool) -> Result<()> {
        let (url, media) = (page.url.clone(), page.media.clone());
        let address = url.to_string();
        let Some(name) = name::of(&url, media.as_deref()) else {
            self.leave(&url, media.as_deref());
            return Ok(());
        };
        let (etag, modified) = (page.etag.clone(), page.modified.clone());
        let mut known = memory::Page { etag, modified, ..memory::Page::default() };
        let said: Vec<(bool, bool)> = page.robots.iter().map(|said| robots(said)).collect();
        let mut is_indexed = said.iter().all(|(is_indexed, _)| *is_indexed);
        let mut is_followed = said.iter().all(|(_, is_followed)| *is_followed);
        let is_text = name.extension().is_some_and(|ending| TEXTS.iter().any(|text| ending == *text));
        let bytes = match page.bytes().await {
            Ok(bytes) if is_text => in_utf_8(bytes, media.as_deref()),
            Ok(bytes) => bytes,
            Err(why) => {
                self.fetched.left_out.push((address, why));
                return Ok(());
            }
        };
        known.digest = Some(blake3::hash(&bytes).to_hex().to_string());
        let mut source = url.clone();
        if name.extension().is_some_and(|ending| ending == "html") {
            // What is no page is said so when it is read.
            if let Ok((found, read)) = self.links_of(&bytes, &url).await {
                is_indexed &= read.is_indexed;
                is_followed &= read.is_followed;
                if is_followed {
                    self.follow(found.iter().cloned(), links);
                    known.links = self.worth_noting(found);
                }
                let Some(own) = self.own_address(&url, &read, &known) else { return Ok(()) };
                source = own;
            }
        } else if is_first && let Some(entries) = feed::entries(&bytes, &url) {
            self.is_feed = true;
            entries.into_iter().for_each(|entry| self.frontier.take(entry, 1));
            return Ok(());
        }
        let source = source.to_string();
        if !is_indexed {
            // Its author does not want it to be found.
            if self.wanted.stored.contains(&source) {
                self.fetched.gone.insert(source);
            }
            return Ok(());
        }
        self.bytes += bytes.len() as u64;
        let changed = known.modified.as_deref().and_then(|modified| DateTime::parse_from_rfc2822(modified).ok());
        let path = keep(self.wanted.folder, &name, &source, &bytes, changed.map(SystemTime::from)).await?;
        self.noted.insert(source.clone(), known);
        self.fetched.files.push(FetchedFile { path, source });
        self.tell();
        Ok(())
    }

    /// Of a page's links those by which it is followed where it did not change, each once.
    fn worth_noting(&self, found: Vec<Url>) -> Vec<String> {
        let mut noted: Vec<String> = Vec::new();
        for mut link in found.into_iter().filter(|link| self.scope.has(link)) {
            link.set_fragment(None);
            if noted.len() < MOST_NOTED && !noted.iter().any(|other| other == link.as_str()) {
                noted.push(link.into());
            }
        }
        noted
    }

    /// The links of a page, as addresses.
    async fn links_of(&self, bytes: &[u8], url: &Url) -> std::result::Result<(Vec<Url>, Links), String> {
        if bytes.len() > MOST_LINKED_BYTES {
            return Err("too large".to_owned());
        }
        let bytes = bytes.to_owned();
        let read = tokio::task::spawn_blocking(move || Links::of(&bytes)).await;
        let read = read.map_err(|error| error.to_string())??;
        let base = read.base.as_deref().and_then(|base| url.join(base).ok()).unwrap_or_else(|| url.clone());
        let joined = read.addresses.iter().filter_map(|address| base.join(address).ok());
        Ok((joined.collect(), read))
    }

    /// The address that a page of this site says it is of, where that is of the site, too; `None` where the page has come or will come under
    /// that one.
    fn own_address(&mut self, url: &Url, read: &Links, page: &memory::Page) -> Option<Url> {
        let canonical = read.canonical.as_deref().and_then(|canonical| url.join(canonical).ok());
        let Some(mut own) = canonical.filter(|own| self.scope.has(own) && own.scheme() == url.scheme()) else {
            return Some(url.clone());
        };
        own.set_fragment(None);
        let is_known = self.frontier.knows(own.as_str());
        let says_the_same = self.noted.get(own.as_str()).is_some_and(|noted| noted.digest == page.digest);
        // Some sites say of all pages that they are the first one.
        if own == *url || (is_known && !says_the_same && !is_same_place(&own, url)) {
            return Some(url.clone());
        }
        // The same page under another address.
        if self.wanted.stored.contains(url.as_str()) {
            self.fetched.gone.insert(url.to_string());
        }
        self.frontier.note(&own);
        (!self.noted.contains_key(own.as_str())).then_some(own)
    }

    fn follow(&mut self, found: impl Iterator<Item = Url>, links: u32) {
        if self.is_feed {
            return;
        }
        for link in found {
            let name = link.path_segments().and_then(|mut names| names.next_back()).unwrap_or_default();
            let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            let is_unread =
                is_file(name) && !is_read(Path::new(name)) && !PROGRAMS.contains(&&*ending.to_ascii_lowercase());
            if !is_unread {
                self.frontier.offer(link, links + 1);
            } else if self.scope.has(&link) && self.frontier.note(&link) {
                self.leave(&link, None);
            }
        }
    }

    /// Counts what is of no kind that is read.
    fn leave(&mut self, page: &Url, media: Option<&str>) {
        let name = page.path_segments().and_then(|mut names| names.next_back()).unwrap_or_default();
        let kind = match (is_file(name), media) {
            (true, _) => format!(".{}", name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase()),
            (false, Some(media)) => media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase(),
            (false, None) => String::new(),
        };
        *self.fetched.left_alone.entry(kind).or_default() += 1;
    }

    /// Takes the pages that the site's lists name.
    async fn read_sitemaps(&mut self) {
        let mut lists: std::collections::VecDeque<Url> = self.robots.sitemaps().into();
        let mut read = 0;
        while let Some(list) = lists.pop_front().filter(|_| read < MOST_SITEMAPS) {
            read += 1;
            if !self.scope.is_of_host(&list) {
                continue;
            }
            let Ok(Answer::Page(page)) = self.client.ask(&list, None).await else { continue };
            let Ok(bytes) = page.bytes().await else { continue };
            let found = feed::sitemap(&bytes);
            lists.extend(found.sitemaps);
            found.pages.into_iter().for_each(|page| self.frontier.offer(page, 1));
        }
    }
}

/// Whether two addresses differ in nothing but what stands behind the `?`, and how a folder's own page is named.
fn is_same_place(one: &Url, other: &Url) -> bool {
    let place = |url: &Url| {
        let path = url.path().trim_end_matches('/').to_ascii_lowercase();
        let path = path.strip_suffix(".html").or_else(|| path.strip_suffix(".htm")).unwrap_or(&path);
        path.strip_suffix("/index").unwrap_or(path).to_owned()
    };
    place(one) == place(other)
}

/// A text that its server says is in an old encoding, and that does not say so itself.
fn in_utf_8(bytes: Vec<u8>, media: Option<&str>) -> Vec<u8> {
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
