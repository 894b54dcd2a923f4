//! What elements, roles and class names say of a part of a page.

use super::dom::Node;
use super::parts::Size;

/// Letters of a banner, a box for letters of news, and the way to a page, at the most.
const MAX_BANNER: usize = 1500;
const MAX_WAY: usize = 400;

/// Whether it is a menu by its own word. Nothing else is ever called so.
pub fn is_menu(node: &Node) -> bool {
    node.name() == "nav"
        || matches!(node.attribute("role"), Some("navigation" | "search" | "menu" | "menubar" | "toolbar"))
}

/// Where a part is, and what is in it.
pub struct Around {
    /// Whether it is in an article or the like.
    pub within: bool,
    /// Letters of the page.
    pub all: usize,
    pub size: Size,
}

/// What a part may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Called {
    Header,
    Footer,
    Aside,
    /// Where its reader is asked for something.
    Banner,
    /// Where the page is in its site.
    Way,
    /// Leads elsewhere, where it is mostly links.
    Links,
    Sidebar,
}

impl Around {
    /// Whether a part stands around the page's text.
    pub fn has(&self, node: &Node) -> bool {
        let name = node.name();
        if is_never(name) || self.size.has_main {
            return false;
        }
        let role = node.attribute("role").unwrap_or_default();
        let by_itself = match (name, role) {
            (_, role) if role.starts_with("doc-") || role == "note" => return false,
            ("dialog", _) | (_, "dialog" | "alertdialog") => return true,
            ("header", _) | (_, "banner") => Some(Called::Header),
            ("footer", _) | (_, "contentinfo") => Some(Called::Footer),
            ("aside", _) | (_, "complementary") => Some(Called::Aside),
            _ => None,
        };
        if by_itself.is_some_and(|called| self.is(called)) {
            return true;
        }
        // By a class alone, most of a page is not left out.
        let is_part = self.size.letters * 2 <= self.all && !self.size.has_title;
        let called = [node.attribute("class"), node.attribute("id")].into_iter().flatten();
        is_part && called.flat_map(str::split_whitespace).filter_map(called_by).any(|called| self.is(called))
    }

    fn is(&self, called: Called) -> bool {
        let Size { letters, linked, .. } = self.size;
        let is_linked = |of: usize, parts: usize| letters > 0 && linked * parts >= letters * of;
        match called {
            // The title of a page may stand in its header.
            Called::Header => !self.within && !self.size.has_title,
            Called::Footer | Called::Aside => !self.within || is_linked(1, 2),
            Called::Banner => letters <= MAX_BANNER,
            Called::Way => letters <= MAX_WAY,
            Called::Links => is_linked(1, 2),
            Called::Sidebar => is_linked(1, 3),
        }
    }
}

/// Parts that no class makes a menu of.
fn is_never(name: &str) -> bool {
    matches!(
        name,
        "" | "html"
            | "body"
            | "main"
            | "article"
            | "h1"
            | "h2"
            | "h3"
            | "h4"
            | "h5"
            | "h6"
            | "pre"
            | "code"
            | "li"
            | "dt"
            | "dd"
            | "tr"
            | "tbody"
            | "thead"
            | "tfoot"
    )
}

/// What a class or id says, by its whole words: `cookie-banner`, `siteFooter`, and not `sharepoint`.
fn called_by(class: &str) -> Option<Called> {
    let words = words(class);
    let first = words.first().map(String::as_str).unwrap_or_default();
    // `has-sidebar` and `no-footer` are said of a page.
    if matches!(first, "has" | "with" | "without" | "no") {
        return None;
    }
    words.iter().find_map(|word| match word.as_str() {
        "cookie" | "cookies" | "cookiebar" | "cookiebanner" | "gdpr" | "consent" | "newsletter" => Some(Called::Banner),
        "breadcrumb" | "breadcrumbs" => Some(Called::Way),
        "footer" => Some(Called::Footer),
        "sidebar" => Some(Called::Sidebar),
        "menu" | "nav" | "navbar" | "navigation" | "topbar" | "masthead" | "related" | "share" | "sharing"
        | "social" | "skip" | "skiplink" | "pagination" | "pager" => Some(Called::Links),
        _ => None,
    })
}

/// The words of a name, in small letters: between hyphens, and where small letters end.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars().take(100) {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_small) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_small = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_by_whole_words() {
        assert_eq!(words("siteFooter-2_big"), ["site", "footer", "2", "big"]);
        for (class, called) in [
            ("cookie-banner", Some(Called::Banner)),
            ("cookieConsent", Some(Called::Banner)),
            ("breadcrumbs", Some(Called::Way)),
            ("page-footer", Some(Called::Footer)),
            ("main-menu", Some(Called::Links)),
            ("menu", Some(Called::Links)),
            ("left_sidebar", Some(Called::Sidebar)),
            ("has-sidebar", None),
            ("no-footer", None),
            ("sharepoint", None),
            ("content", None),
        ] {
            assert_eq!(called_by(class), called, "{class}");
        }
    }
}
