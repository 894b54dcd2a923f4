//! What a page does not display: by attributes, by an element's own style, and by simple rules of the page's `<style>`.

use std::collections::HashSet;

use super::dom::{Data, Node, NodeId};
use super::names::is_unread;
use super::visit::{visit, visit_below};

/// Of all `<style>` together; pages of people have some hundred kilobytes.
const MAX_CSS_BYTES: usize = 1 << 20;

/// What of a page nobody sees.
#[derive(Debug, Default)]
pub struct Hidden {
    /// In order, so that one is found fast.
    pub nodes: Vec<NodeId>,
    /// How many of them have words.
    pub places: usize,
}

impl Hidden {
    pub fn of(nodes: &[Node]) -> Self {
        let rules = Rules::of(nodes);
        let mut hidden = Self::default();
        let (mut aside, mut seen) = (Vec::new(), 0);
        visit(nodes, |id, node, is_end| {
            if is_end || is_unread(node.name()) {
                return is_end;
            }
            seen += letters_of(node);
            // What hides the whole page until its scripts have run hides nothing from people.
            if matches!(node.name(), "" | "html" | "head" | "body") {
                return true;
            }
            if rules.hide(node) {
                hidden.add(id, letters(nodes, id));
                return false;
            }
            let is_aside = node.attribute("aria-hidden").is_some_and(|value| value.eq_ignore_ascii_case("true"));
            if is_aside {
                aside.push((id, letters(nodes, id)));
            }
            !is_aside
        });
        // An open dialog hides the rest of its page from screen readers, and a page is saved so.
        let others: usize = aside.iter().map(|(_, letters)| letters).sum();
        for (id, letters) in aside {
            if letters <= seen + others - letters {
                hidden.add(id, letters);
            }
        }
        hidden.nodes.sort_unstable();
        hidden
    }

    pub fn has(&self, id: NodeId) -> bool {
        self.nodes.binary_search(&id).is_ok()
    }

    fn add(&mut self, id: NodeId, letters: usize) {
        self.nodes.push(id);
        self.places += usize::from(letters > 0);
    }
}

/// Whether this element, by itself, is not displayed: of one that stands alone.
pub fn is_hidden(node: &Node) -> bool {
    Rules::default().hide(node) || node.attribute("aria-hidden").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Letters and digits of a text.
fn letters_of(node: &Node) -> usize {
    match &node.data {
        Data::Text(text) => text.chars().filter(|c| c.is_alphanumeric()).count(),
        _ => 0,
    }
}

/// Letters and digits below a node.
fn letters(nodes: &[Node], top: NodeId) -> usize {
    let mut sum = 0;
    visit_below(nodes, top, |_, node, is_end| {
        if !is_end {
            sum += letters_of(node);
        }
        !is_unread(node.name())
    });
    sum
}

/// Classes and ids that are hidden, as `.name` and `#name`.
#[derive(Debug, Default)]
struct Rules(HashSet<String>);

impl Rules {
    fn of(nodes: &[Node]) -> Self {
        let (mut hidden, mut shown) = (HashSet::new(), HashSet::new());
        let mut left = MAX_CSS_BYTES;
        for node in nodes.iter().filter(|node| node.name() == "style") {
            let media = node.attribute("media").unwrap_or("all").to_ascii_lowercase();
            let text = node.first.and_then(|id| nodes.get(id as usize)).map(|child| &child.data);
            let Some(Data::Text(css)) = text.filter(|_| media.contains("all") || media.contains("screen")) else {
                continue;
            };
            if css.len() <= left {
                left -= css.len();
                rules(&without_comments(css), |selectors, style, is_condition| match shows(style) {
                    Some(false) if !is_condition => hidden.extend(selectors.split(',').filter_map(alone)),
                    // What another rule shows is shown sooner or later, such as the next one of several tabs.
                    Some(true) => names(selectors, &mut shown),
                    _ => {}
                });
            }
        }
        hidden.retain(|name| !shown.contains(name));
        Self(hidden)
    }

    fn hide(&self, node: &Node) -> bool {
        if node.attribute("hidden").is_some_and(|value| !value.eq_ignore_ascii_case("until-found"))
            || node.attribute("style").and_then(shows) == Some(false)
        {
            return true;
        }
        if self.0.is_empty() {
            return false;
        }
        let mut classes = node.attribute("class").unwrap_or_default().split_whitespace();
        classes.any(|class| self.0.contains(&format!(".{class}")))
            || node.attribute("id").is_some_and(|id| self.0.contains(&format!("#{}", id.trim())))
    }
}

/// Whether declarations display what they are for, where they say so.
fn shows(style: &str) -> Option<bool> {
    let mut shows = None;
    for (name, value) in style.split(';').filter_map(|declaration| declaration.split_once(':')) {
        let value = value.trim().to_ascii_lowercase();
        let value = value.strip_suffix("!important").unwrap_or(&value).trim_end();
        let hides = match name.trim().to_ascii_lowercase().as_str() {
            "display" => value == "none",
            "visibility" => matches!(value, "hidden" | "collapse"),
            _ => continue,
        };
        shows = Some(!hides && shows.unwrap_or(true));
    }
    shows
}

/// A selector that is one class or id.
fn alone(selector: &str) -> Option<String> {
    let selector = selector.trim();
    let name = selector.strip_prefix(['.', '#'])?;
    (!name.is_empty() && name.chars().all(is_of_name)).then(|| selector.to_owned())
}

/// All classes and ids of selectors.
fn names(selectors: &str, into: &mut HashSet<String>) {
    for (at, mark) in selectors.match_indices(['.', '#']) {
        let name: String = selectors[at + 1..].chars().take_while(|c| is_of_name(*c)).collect();
        if !name.is_empty() {
            into.insert(format!("{mark}{name}"));
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_')
}

/// Each rule: its selectors, its declarations, and whether it counts under a condition only. What is for print is left out.
fn rules(css: &str, mut each: impl FnMut(&str, &str, bool)) {
    let (mut start, mut conditions) = (0, Vec::new());
    let mut at = 0;
    while let Some(next) = css[at..].find(['{', '}', ';']).map(|found| at + found) {
        let before = css[start..next].trim();
        at = next + 1;
        match css.as_bytes()[next] {
            b'{' if before.starts_with('@') => conditions.push(before.contains("print")),
            b'{' => {
                let end = css[at..].find('}').map_or(css.len(), |found| at + found);
                if !conditions.contains(&true) {
                    each(before, &css[at..end], !conditions.is_empty());
                }
                at = (end + 1).min(css.len());
            }
            b'}' => {
                conditions.pop();
            }
            _ => {}
        }
        start = at;
    }
}

fn without_comments(css: &str) -> String {
    let mut parts = css.split("/*");
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(part.split_once("*/").map_or("", |(_, after)| after));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(source: &str) -> usize {
        Hidden::of(&super::super::dom::parse(source).unwrap()).places
    }

    #[test]
    fn what_is_not_displayed_is_found() {
        for hidden in [
            "<p style='display:none'>no",
            "<p style='color:red; DISPLAY : none !important'>no",
            "<div style='visibility:hidden; position:absolute'>no</div>",
            "<p hidden>no",
            "<span aria-hidden=true>no</span>",
            "<style>/* a */ .b, .no { display: none }</style><p class='a no'>no",
            "<style>@import 'x'; @media screen { p { color: red } } #no{visibility:hidden}</style><p id=no>no",
        ] {
            assert_eq!(places(&format!("<body>{hidden}</p><p>Displayed.")), 1, "{hidden}");
        }
    }

    #[test]
    fn what_may_be_displayed_is_not_hidden() {
        for shown in [
            "<body style='display:none'><p>yes",
            "<p style='display:block'>yes",
            "<p hidden=until-found>yes",
            "<style>@media print { .a { display: none } } .b .a { display: none }</style><p class=a>yes",
            "<style>.tab { display: none } .tab.open { display: block }</style><p class=tab>yes",
            "<style media=print>.a{display:none}</style><p class=a>yes",
            "<style>.a{display:none</style><p class=b>yes",
            // The marks of headings and icons have no words.
            "<h2>Text<a aria-hidden=true>#</a></h2>",
            "<div aria-hidden=true>All of the text but for a dialog.</div><p>A dialog",
        ] {
            assert_eq!(places(shown), 0, "{shown}");
        }
    }
}
