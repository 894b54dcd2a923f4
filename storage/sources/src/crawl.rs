//! Fetches the pages of a site: what its first page leads to, what its lists name, and what is stored of it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use chrono::DateTime;
use ragstone_documents::{Links, robots};
use url::Url;

use super::client::{Answer, Client, Page};
use super::frontier::Frontier;
use super::keep::keep;
use super::memory;
use super::pages::{in_utf_8, is_same_place};
use super::robots::Robots;
use super::scope::{is_file, is_unread};
use super::site::Site;
use super::{Fetched, FetchedFile, Progress, Wanted, feed, name};
use ragstone_env::Result;

/// Of what is asked for many an address is no page: so many a page may be.
const ASKED_PER_PAGE: usize = 10;
const LEAST_ASKED: usize = 100;
/// A site that fails so often in a row is left alone: each is tried several times.
const MOST_FAILED: usize = 5;
/// Links that are noted of a page.
const MOST_NOTED: usize = 1000;
/// Endings of what may be in an encoding that its server alone knows.
const TEXTS: [&str; 5] = ["html", "txt", "md", "csv", "tsv"];
/// Of all files of a site.
const MOST_BYTES: u64 = 4 << 30;
/// A larger page's links are not followed: its tree would have millions of elements.
const MOST_LINKED_BYTES: usize = 8 << 20;
/// Lists of a site's pages that are read.
const MOST_SITEMAPS: usize = 16;

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
    /// Pages among them.
    visited: HashSet<String>,
    /// What the site's server said that wants to be left alone.
    later: Option<String>,
    /// As much is fetched as is wanted: pages are only asked whether they are there.
    only_looks: bool,
    bytes: u64,
    fetched: Fetched,
    /// Pages as they are now.
    noted: BTreeMap<String, memory::Page>,
    /// Addresses that they lead to, each once in memory.
    links: HashSet<Arc<str>>,
}

impl<'a, 'w> Crawl<'a, 'w> {
    /// Fetches the site, as far as it is wanted.
    pub async fn run(site: Site, wanted: Wanted<'w>, told: &'a (dyn Fn(Progress) + Sync)) -> Result<Fetched> {
        let Site { client, robots, scope, first } = site;
        let start = first.url.clone();
        let frontier = Frontier::new(scope.clone(), wanted.bounds.depth);
        let (fetched, noted, others, links) = Default::default();
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
            visited: HashSet::from([start.to_string()]),
            later: None,
            only_looks: false,
            bytes: 0,
            fetched,
            noted,
            links,
        };
        crawl.frontier.note(&start);
        crawl.take(first, 0, true).await?;
        if !crawl.is_feed && crawl.wanted.bounds.depth != Some(0) {
            crawl.read_sitemaps().await;
        }
        let is_whole = crawl.visit_all(&start).await?;
        // What lies further than somebody wanted to look stays as it is.
        if !crawl.is_feed && crawl.wanted.bounds.depth.is_none() {
            if is_whole {
                crawl.look_for_stored(&start).await?;
            }
            crawl.look_for_gone().await?;
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

    /// Whether no more is fetched, which is told.
    fn is_over(&mut self, start: &Url) -> bool {
        let enough = self.enough();
        let Some(why) = self.stopped().or_else(|| enough.clone()) else { return false };
        self.only_looks = enough.is_some();
        self.fetched.left_out.push((start.to_string(), why));
        true
    }

    /// Why the site is not asked for any more.
    fn stopped(&self) -> Option<String> {
        let most_asked = self.wanted.bounds.pages.saturating_mul(ASKED_PER_PAGE).max(LEAST_ASKED);
        if let Some(said) = &self.later {
            Some(format!("its server wants to be left alone ({said}); the others were not asked for: try again then"))
        } else if self.failed >= MOST_FAILED {
            Some(format!("{MOST_FAILED} pages in a row could not be had; the others were not asked for"))
        } else if self.asked >= most_asked {
            Some(format!("{most_asked} addresses were asked for, most of them no pages; --pages N asks for more"))
        } else {
            None
        }
    }

    /// Why no more is taken, where as much is fetched as is wanted.
    fn enough(&self) -> Option<String> {
        let pages = self.wanted.bounds.pages;
        if self.fetched.files.len() + self.fetched.unchanged >= pages {
            Some(format!("the first {pages} pages were taken; --pages N takes more"))
        } else if self.bytes >= MOST_BYTES {
            Some(format!("the first {} GiB were taken; name its folders one by one", MOST_BYTES >> 30))
        } else {
            None
        }
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

    /// Where enough is fetched, asks for the stored pages that nobody came to: whether they are there says only their server.
    async fn look_for_gone(&mut self) -> Result<()> {
        if !self.only_looks {
            return Ok(());
        }
        let mut rest: Vec<String> =
            self.wanted.stored.iter().filter(|page| !self.visited.contains(*page)).cloned().collect();
        rest.sort();
        for page in rest.iter().filter_map(|page| Url::parse(page).ok()) {
            if self.stopped().is_some() {
                break;
            }
            self.visit(page, 0).await?;
        }
        Ok(())
    }

    async fn visit(&mut self, page: Url, links: u32) -> Result<()> {
        let address = page.to_string();
        if self.noted.contains_key(&address) {
            // It came under another address.
            return Ok(());
        }
        self.asked += 1;
        self.visited.insert(address.clone());
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
        // Of one with links that are not noted, these are looked for again.
        let is_known = |known: &&memory::Page| is_stored && (self.only_looks || !known.are_links_cut);
        let known = self.wanted.memory.pages.get(&address).filter(is_known).cloned();
        let answer = self.client.ask(&page, known.as_ref()).await;
        let is_failed = match &answer {
            Ok(Answer::Not(why)) => !Answer::is_refusal(why),
            Ok(Answer::Later(_)) | Err(_) => true,
            Ok(_) => false,
        };
        self.failed = if is_failed { self.failed + 1 } else { 0 };
        match answer {
            // It is there; what it says comes when there is room for it.
            Ok(Answer::Page(_)) if self.only_looks => {}
            Ok(Answer::Page(page)) => self.take(*page, links, false).await?,
            Ok(Answer::Unchanged) => {
                self.fetched.unchanged += 1;
                let known = known.unwrap_or_default();
                self.follow(known.links.iter().filter_map(|link| Url::parse(link).ok()), links);
                self.links.extend(known.links.iter().cloned());
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
            Ok(Answer::Later(why)) => self.leave_alone(&page, why),
            Ok(Answer::Not(why)) | Err(why) => self.fetched.left_out.push((address, why)),
        }
        self.tell();
        Ok(())
    }

    /// Asks no more of a page's host, which said so.
    fn leave_alone(&mut self, page: &Url, why: String) {
        if self.scope.is_of_host(page) {
            self.later = Some(why.clone());
        } else {
            self.others.insert(page.origin().ascii_serialization(), None);
        }
        self.fetched.left_out.push((page.to_string(), why));
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
                    (known.links, known.are_links_cut) = self.worth_noting(found);
                }
                let Some(own) = self.own_address(&url, &read, &known) else { return Ok(()) };
                source = own;
            }
        } else if is_first && let Some(entries) = entries_of(&bytes, &url).await {
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

    /// Of a page's links those by which it is followed where it did not change, each once; and whether there are more.
    fn worth_noting(&mut self, found: Vec<Url>) -> (Vec<Arc<str>>, bool) {
        let (mut noted, mut known) = (Vec::new(), HashSet::new());
        for mut link in found.into_iter().filter(|link| self.scope.has(link)) {
            link.set_fragment(None);
            if !known.insert(link.to_string()) {
                continue;
            }
            if noted.len() >= MOST_NOTED {
                return (noted, true);
            }
            let link: Arc<str> = self.links.get(link.as_str()).cloned().unwrap_or_else(|| link.as_str().into());
            self.links.insert(link.clone());
            noted.push(link);
        }
        (noted, false)
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
            if !is_unread(name) {
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
        let mut lists: VecDeque<Url> = self.robots.sitemaps().into();
        let mut read = 0;
        while let Some(list) = lists.pop_front().filter(|_| read < MOST_SITEMAPS) {
            read += 1;
            if !self.scope.is_of_host(&list) {
                continue;
            }
            let page = match self.client.ask(&list, None).await {
                Ok(Answer::Page(page)) => page,
                // Its pages are not asked for, either.
                Ok(Answer::Later(why)) => return self.leave_alone(&list, why),
                _ => continue,
            };
            let Ok(bytes) = page.bytes_up_to(feed::MOST_BYTES).await else { continue };
            let Ok(found) = tokio::task::spawn_blocking(move || feed::sitemap(&bytes)).await else { continue };
            lists.extend(found.sitemaps);
            found.pages.into_iter().for_each(|page| self.frontier.offer(page, 1));
        }
    }
}

/// The pages of a feed's entries, if that is what a page is.
async fn entries_of(page: &[u8], url: &Url) -> Option<Vec<Url>> {
    if page.len() as u64 > feed::MOST_BYTES {
        return None;
    }
    let (page, url) = (page.to_owned(), url.clone());
    tokio::task::spawn_blocking(move || feed::entries(&page, &url)).await.ok()?
}
