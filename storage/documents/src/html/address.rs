//! The addresses of links, as they stand behind the links' words: `the form (https://example.org/form)`.

/// A longer address is no use to people: it loses its query, or is left out.
const MAX_BYTES: usize = 200;
/// Of an address without its query, where that was too long.
const MAX_PATH_BYTES: usize = 100;
const MAX_ENDING: usize = 5;

/// Where a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// On a page of this host, if it is known. Other pages of the site are not told, only files: such links stand at every other word.
    Page(Option<&'a str>),
    /// In a text of somebody's own, beside whose file others may lie.
    Note,
}

/// What is told of a link, if anything: its address, unless its words are that already, it leads nowhere, or only through the site.
pub fn told(address: &str, words: &str, place: Place<'_>) -> Option<String> {
    let address: String = address.trim().chars().filter(|c| !c.is_control()).collect();
    let told = match scheme(&address) {
        Some("mailto" | "tel") => {
            let (_, rest) = address.split_once(':')?;
            rest.split(['?', '&']).next().unwrap_or_default().to_owned()
        }
        Some("http" | "https") => match place {
            Place::Page(site) if site == host(&address) && !is_file(&address, place) => return None,
            _ => address,
        },
        Some(_) => return None,
        None => Some(address).filter(|address| is_file(address, place))?,
    };
    let told = shortened(told)?;
    let (address, words) = (bare(&told), bare(words));
    (!address.is_empty() && !words.is_empty() && !words.contains(&address)).then_some(told)
}

/// The host of an address.
pub fn host(address: &str) -> Option<&str> {
    let rest = address.split_once("//")?.1;
    let host = rest.split(['/', '?', '#']).next()?;
    Some(host.strip_prefix("www.").unwrap_or(host)).filter(|host| !host.is_empty())
}

/// In small letters, of those that are known; another one by its first letters.
fn scheme(address: &str) -> Option<&'static str> {
    if address.starts_with("//") {
        return Some("https");
    }
    let (scheme, _) = address.split_once(':').filter(|(scheme, _)| !scheme.contains(['/', '?', '#', '.']))?;
    let known = ["http", "https", "mailto", "tel"];
    Some(known.into_iter().find(|known| scheme.trim().eq_ignore_ascii_case(known)).unwrap_or("other"))
}

/// Whether it leads to a file by its ending: of pages, to one that is none itself.
fn is_file(address: &str, place: Place<'_>) -> bool {
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let path = path.split_once("//").map_or(path, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some((_, ending)) = name.rsplit_once('.') else { return false };
    let is_ending = (1..=MAX_ENDING).contains(&ending.len())
        && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && ending.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_page = || {
        let ending = ending.to_ascii_lowercase();
        matches!(&*ending, "html" | "htm" | "xhtml" | "shtml" | "php" | "asp" | "aspx" | "jsp" | "cgi" | "do")
    };
    is_ending && (place == Place::Note || !is_page())
}

fn shortened(address: String) -> Option<String> {
    if address.len() <= MAX_BYTES {
        return Some(address);
    }
    let path = address.split(['?', '#']).next().filter(|path| path.len() <= MAX_PATH_BYTES)?;
    Some(format!("{path}?…"))
}

/// What is compared of an address and of words.
fn bare(text: &str) -> String {
    let text = text.trim().to_lowercase();
    let text = text.strip_prefix("https:").or_else(|| text.strip_prefix("http:")).unwrap_or(&text);
    let text = text.trim_start_matches('/');
    text.strip_prefix("www.").unwrap_or(text).trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_behind_its_words_once() {
        let page = |address: &str, words: &str| told(address, words, Place::Page(Some("orvik.example")));
        let is = |address: &str, words: &str, told: &str| assert_eq!(page(address, words).as_deref(), Some(told));
        is(" https://a.example/form ", "the form", "https://a.example/form");
        is("mailto:ida@a.example?subject=x", "Ida", "ida@a.example");
        is("tel:+49555", "call", "+49555");
        is("files/plan.dwg", "plan", "files/plan.dwg");
        is("https://www.orvik.example/a/plan.pdf?v=2", "plan", "https://www.orvik.example/a/plan.pdf?v=2");
        is(&format!("https://a.example/x?{}", "y".repeat(300)), "x", "https://a.example/x?…");
        for (address, words) in [
            ("https://a.example/", "a.example"),
            ("https://www.a.example/b", "see http://a.example/b"),
            ("mailto:ida@a.example", "ida@a.example"),
            ("#top", "up"),
            ("javascript:go('x.pdf')", "go"),
            ("data:text/plain,x", "x"),
            ("/wiki/Heron", "heron"),
            ("other.html", "other"),
            ("https://orvik.example/wiki/Heron", "heron"),
            ("https://a.example/x", " "),
            ("", "x"),
        ] {
            assert_eq!(page(address, words), None, "{address}");
        }
        assert_eq!(page(&format!("https://a.example/{}", "y".repeat(300)), "x"), None);
        assert_eq!(told("other.md#a", "other", Place::Note).as_deref(), Some("other.md#a"));
        assert_eq!(told("x", "people", Place::Note), None);
    }
}
