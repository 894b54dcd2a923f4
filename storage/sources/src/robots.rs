//! What a site's `robots.txt` allows (RFC 9309).

use std::time::Duration;

use texting_robots::Robot;
use url::Url;

/// Who fetches, as `robots.txt` names it.
pub const AGENT: &str = "ragstone";
/// What is read of it, at most, as the RFC wants.
pub const MOST_BYTES: u64 = 512 << 10;
/// A longer pause between two pages is not kept.
const LONGEST_PAUSE: f32 = 30.0;

/// The rules of one host.
pub struct Robots {
    /// `None`: all is allowed.
    rules: Option<Robot>,
    /// They cannot be understood.
    forbids_all: bool,
}

impl Robots {
    /// Of a host that has none.
    pub fn none() -> Self {
        Self { rules: None, forbids_all: false }
    }

    /// As a host says. What is no list of rules allows all; rules that cannot be understood, none.
    pub fn of(text: &[u8]) -> Self {
        let rules = Robot::new(AGENT, text).ok();
        Self { forbids_all: rules.is_none(), rules }
    }

    pub fn allow(&self, page: &Url) -> bool {
        !self.forbids_all && self.rules.as_ref().is_none_or(|rules| rules.allowed(page.as_str()))
    }

    /// Between two pages, if it says so.
    pub fn pause(&self) -> Option<Duration> {
        let seconds = self.rules.as_ref()?.delay?;
        Duration::try_from_secs_f32(seconds.min(LONGEST_PAUSE)).ok()
    }

    /// Lists of the site's pages.
    pub fn sitemaps(&self) -> Vec<Url> {
        let named = self.rules.as_ref().map_or(&[][..], |rules| &rules.sitemaps);
        named.iter().filter_map(|address| Url::parse(address).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_says_what_is_allowed() {
        let robots = Robots::of(
            b"User-agent: other\nDisallow: /\n\nUser-agent: ragstone\nDisallow: /private/\nCrawl-delay: 2\n\nUser-agent: *\nDisallow: /all\nSitemap: https://a.example/map.xml",
        );
        let allows = |path: &str| robots.allow(&Url::parse(&format!("https://a.example{path}")).unwrap());
        assert_eq!([allows("/"), allows("/private/x"), allows("/all")], [true, false, true]);
        assert_eq!(robots.pause(), Some(Duration::from_secs(2)));
        assert_eq!(robots.sitemaps().len(), 1);
        for anything in
            [&b""[..], b"\xff\xfe\x00", b"<html>not found</html>", b"Crawl-delay: -1\nUser-agent: *\nCrawl-delay: nan"]
        {
            assert!(Robots::of(anything).allow(&Url::parse("https://a.example/x").unwrap()));
            assert!(Robots::of(anything).pause().is_none_or(|pause| pause <= Duration::from_secs(30)));
        }
        assert!(Robots::none().allow(&Url::parse("https://a.example/x").unwrap()));
    }
}
