//! What of a host is meant by an address: its page, and what lies below the page's folder.

use std::path::Path;

use ragstone_documents::is_read;
use url::Url;

use super::client::is_plain;

/// Endings of pages that programs write.
const PROGRAMS: [&str; 9] = ["asp", "aspx", "cgi", "do", "jsp", "jsf", "php", "phtml", "shtml"];
/// Endings of files that are not read: pictures, sound, films, archives, programs, fonts, data. None that a name of a page may well end in
/// (`open.ai`, `array.map`): such a one costs one request.
const UNREAD: &[&str] = &[
    "7z", "aac", "apk", "avi", "avif", "azw", "azw3", "bak", "bin", "bmp", "bz2", "crx", "dat", "deb", "dll", "dmg",
    "dwg", "dxf", "eot", "eps", "exe", "flac", "flv", "gif", "gz", "h5", "heic", "ico", "ics", "img", "iso", "jar",
    "jfif", "jpeg", "jpg", "m4a", "m4v", "mdb", "mkv", "mobi", "mov", "mp3", "mp4", "mpeg", "mpg", "msg", "msi", "npy",
    "npz", "nupkg", "odg", "oga", "ogg", "ogv", "onnx", "opus", "otf", "png", "ppt", "pps", "psd", "pyc", "rar", "rpm",
    "sqlite", "svg", "svgz", "swf", "tar", "tgz", "tif", "tiff", "torrent", "ttf", "vcf", "war", "wasm", "wav", "webm",
    "webp", "whl", "wmv", "woff", "woff2", "xpi", "xz", "zip", "zst",
];

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

/// Whether a name is that of a file, by its ending. Only what is known is one: `11.x` is a version, and `asp.net` and `yaml.v3` are names.
pub fn is_file(name: &str) -> bool {
    let Some(ending) = Path::new(name).extension() else { return false };
    is_read(Path::new(name)) || is_unread(name) || PROGRAMS.iter().any(|program| ending.eq_ignore_ascii_case(program))
}

/// Whether a name is that of a file of no kind that is read, so that it need not be asked for.
pub fn is_unread(name: &str) -> bool {
    let ending = Path::new(name).extension();
    ending.is_some_and(|ending| UNREAD.iter().any(|unread| ending.eq_ignore_ascii_case(unread)))
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
        // Names with a full stop are no files.
        for page in ["docs/11.x", "docs/v2.x", "api/system.io", "wiki/ASP.NET", "gopkg.in/yaml.v3", "@john.doe"] {
            let start = format!("https://a.example/{page}");
            assert!(has(&start, &format!("{start}/x")) && !has(&start, &format!("{start}/../10.x/x")), "{page}");
        }
        for file in ["x.HTML", "x.markdown", "x.php", "x.Aspx"] {
            assert!(is_file(file) && !is_unread(file), "{file}");
        }
        for file in ["x.Png", "x.woff2", "x.tar.gz"] {
            assert!(is_file(file) && is_unread(file), "{file}");
        }
        assert!(!is_file("README") && !is_file("png"));
        assert!(has("https://a.example", "https://a.example/anything"));
        // What only looks like a folder of it.
        assert!(!has("https://a.example/guide/", "https://a.example/guide/../secret"));
    }
}
