//! What of a host is meant by an address: its page, and what lies below the page's folder.

use std::path::Path;

use url::Url;

use super::client::is_plain;

/// The longest ending of a file's name.
const MAX_ENDING: usize = 5;

/// A part of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    host: String,
    port: u16,
    /// With a `/` at its end.
    folder: String,
}

impl Scope {
    /// That of a page. `/guide/install.html` means `/guide/`; `/guide` means itself and what is below it.
    pub fn of(page: &Url) -> Self {
        let path = page.path();
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = match name.is_empty() || !is_file(name) {
            true => format!("{}/", path.trim_end_matches('/')),
            false => format!("{above}/"),
        };
        Self { host: page.host_str().unwrap_or_default().to_owned(), port: port(page), folder }
    }

    /// Whether the page is in it. Of plain and encrypted HTTP each may lead to the other.
    pub fn has(&self, page: &Url) -> bool {
        is_plain(page)
            && self.is_of_host(page)
            && (page.path().starts_with(&self.folder) || format!("{}/", page.path()) == self.folder)
    }

    /// Whether its host has the same name, whatever the port.
    pub fn is_named_as(&self, page: &Url) -> bool {
        page.host_str() == Some(&self.host)
    }

    /// Whether it is of the same host.
    pub fn is_of_host(&self, page: &Url) -> bool {
        page.host_str() == Some(&self.host) && port(page) == self.port
    }
}

/// Of the two usual ports one stands for both.
fn port(page: &Url) -> u16 {
    match page.port_or_known_default().unwrap_or_default() {
        443 => 80,
        port => port,
    }
}

/// Whether a name is that of a file, by its ending; `1.2` is a version.
pub fn is_file(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    (1..=MAX_ENDING).contains(&ending.len())
        && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_means_its_folder() {
        let url = |text: &str| Url::parse(text).unwrap();
        let has = |start: &str, page: &str| Scope::of(&url(start)).has(&url(page));
        for start in ["https://a.example/guide/", "https://a.example/guide", "https://a.example/guide/index.html"] {
            assert!(has(start, "https://a.example/guide/x/y?z=1"), "{start}");
            assert!(has(start, "http://a.example/guide/"), "{start}");
            assert!(!has(start, "https://a.example/guides/x") && !has(start, "https://a.example/"), "{start}");
            assert!(
                !has(start, "https://b.example/guide/x") && !has(start, "https://a.example:8443/guide/x"),
                "{start}"
            );
        }
        assert!(has("https://a.example/guide", "https://a.example/guide"));
        assert!(
            has("https://a.example/v/1.2", "https://a.example/v/1.2/x")
                && !has("https://a.example/v/1.2", "https://a.example/v/1.3/x")
        );
        assert!(has("https://a.example", "https://a.example/anything"));
        // What only looks like a folder of it.
        assert!(!has("https://a.example/guide/", "https://a.example/guide/../secret"));
    }
}
