//! Names of the files that pages are kept in: those of their addresses, as far as a file can have them.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use ragstone_documents::{ending_of, is_read};
use url::Url;

use super::scope::is_file;

/// Of one part of a path; longer ones are cut.
const MAX_NAME_CHARS: usize = 100;
/// Hex digits that tell apart what is cut or replaced.
const DIGEST_CHARS: usize = 8;

/// The file of a page: `host/folder/name.ending`. `None` for what is not read.
pub fn of(page: &Url, media: Option<&str>) -> Option<PathBuf> {
    let ending = ending(page, media)?;
    let mut parts: Vec<String> = vec![part(page.host_str().unwrap_or_default())];
    let mut names: Vec<&str> = page.path().split('/').filter(|name| !name.is_empty()).collect();
    let last = if page.path().ends_with('/') { None } else { names.pop() };
    parts.extend(names.into_iter().map(part));
    let stem = match last {
        None => "index".to_owned(),
        Some(name) if is_file(name) => part(name.rsplit_once('.').map_or(name, |(stem, _)| stem)),
        Some(name) => part(name),
    };
    // Pages that differ in what stands behind the `?`, and names that a file cannot have.
    let told = match page.query() {
        Some(query) => format!("{stem}-{}.{ending}", digest(query)),
        None => format!("{stem}.{ending}"),
    };
    parts.push(told);
    Some(parts.iter().collect())
}

/// The file of what has a name of several parts, such as an object of a bucket.
pub fn of_parts(parts: impl Iterator<Item = String>) -> PathBuf {
    let named = |name: String| match name.rsplit_once('.').filter(|_| is_file(&name)) {
        // Its ending says what it is.
        Some((stem, ending)) => format!("{}.{ending}", part(stem)),
        None => part(&name),
    };
    parts.map(named).collect()
}

/// What a file of the page is called, so that it is read as what it is: as its server says, and where that says nothing of use, by its name.
fn ending(page: &Url, media: Option<&str>) -> Option<String> {
    let name = page.path_segments().and_then(|mut names| names.next_back()).unwrap_or_default();
    let own = is_file(name).then(|| name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase())).flatten();
    let media = media.map(|media| media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let said = media.as_deref().and_then(ending_of);
    match (said, own) {
        // Servers send all that they do not know as one of these.
        (None | Some("txt" | "xml"), Some(own)) if is_read(format!("x.{own}").as_ref()) && own != "php" => Some(own),
        (Some(said), _) => Some(said.to_owned()),
        (None, _) => None,
    }
}

/// A part of an address as a name: without what leads elsewhere or steers a terminal.
fn part(name: &str) -> String {
    let decoded = percent_decode_str(name).decode_utf8_lossy();
    let is_plain =
        |c: char| !c.is_control() && !matches!(c, '/' | '\\' | ':' | '\u{fffd}' | '<' | '>' | '"' | '|' | '?' | '*');
    let kept: String = decoded.chars().filter(|c| is_plain(*c)).take(MAX_NAME_CHARS).collect();
    // A name of a file has so many bytes at most.
    let kept = &kept[..kept.floor_char_boundary(2 * MAX_NAME_CHARS)];
    let kept = kept.trim_start_matches('.').trim();
    if kept == decoded { kept.to_owned() } else { format!("{kept}-{}", digest(name)) }
}

fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..DIGEST_CHARS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &str, media: Option<&str>) -> Option<String> {
        super::of(&Url::parse(page).unwrap(), media).map(|path| path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_page_is_kept_by_its_name_and_kind() {
        for (page, media, name) in [
            ("https://a.example/", Some("text/html; charset=utf-8"), Some("a.example/index.html")),
            ("https://a.example/guide/", Some("text/html"), Some("a.example/guide/index.html")),
            ("https://a.example/guide", Some("text/html"), Some("a.example/guide.html")),
            ("https://a.example/v/1.2", Some("text/html"), Some("a.example/v/1.2.html")),
            ("https://a.example/a.php", Some("text/html"), Some("a.example/a.html")),
            ("https://a.example/plan.PDF", None, Some("a.example/plan.pdf")),
            ("https://a.example/plan", Some("application/pdf"), Some("a.example/plan.pdf")),
            ("https://a.example/notes.md", Some("text/plain"), Some("a.example/notes.md")),
            ("https://a.example/feed.rss", Some("application/xml"), Some("a.example/feed.rss")),
            ("https://a.example/stra%C3%9Fe", Some("text/html"), Some("a.example/straße.html")),
            ("https://a.example/docs/11.x", Some("text/html"), Some("a.example/docs/11.x.html")),
            ("https://a.example/feed/json", Some("application/feed+json"), Some("a.example/feed/json.json")),
            ("https://a.example/x.parquet", Some("application/octet-stream"), Some("a.example/x.parquet")),
            ("https://a.example/x.png", Some("image/png"), None),
            ("https://a.example/x", Some("video/mp4"), None),
            ("https://a.example/x", None, None),
        ] {
            assert_eq!(of(page, media).as_deref(), name, "{page} {media:?}");
        }
    }

    #[test]
    fn an_object_keeps_its_ending() {
        let of = |key: &str| of_parts(key.split('/').map(str::to_owned)).to_str().unwrap().to_owned();
        assert_eq!(of("papers/mill.md"), "papers/mill.md");
        let odd = of("papers/10:00.md");
        assert!(odd.starts_with("papers/1000-") && odd.ends_with(".md"), "{odd}");
        assert!(!of("../x/.ssh").contains(".."));
    }

    #[test]
    fn no_name_leads_out_of_the_folder_and_none_stands_for_two_pages() {
        let html = Some("text/html");
        for page in
            ["%2e%2e%2fx", "..%2f..%2fetc", "%00a", "a%5c..%5cb", ".ssh", &"x".repeat(300), "%ff%fe", "%1b%5b0m"]
        {
            let name = of(&format!("https://a.example/{page}"), html).unwrap();
            let parts: Vec<&str> = name.split('/').collect();
            assert_eq!(parts.len(), 2, "{name}");
            assert!(
                !parts[1].starts_with('.') && parts[1].len() < 250 && !name.chars().any(char::is_control),
                "{name}"
            );
        }
        assert_ne!(of("https://a.example/a?x=1", html), of("https://a.example/a?x=2", html));
        assert_ne!(of("https://a.example/a%3Ab", html), of("https://a.example/ab", html));
    }
}
