//! Markdown as plain text. HTML in it is read as such, links keep their addresses, and front matter is text, too.

mod front_matter;
mod raw;

use crate::element::ElementKind;
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd};

use self::raw::Raw;
use super::body::{Body, one_line};
use super::html::address::{self, Place};
use super::html::{self, Page};
use super::metadata::FileMetadata;
use super::parse::Parsed;

/// Around text that is struck: without it, a price would be two.
const STRUCK: &str = "~~";

/// A text without its marks.
#[derive(Debug, Default)]
pub struct Markdown {
    /// The first heading; where there is none, what the front matter says.
    pub title: Option<String>,
    pub body: Body,
    /// Of the front matter.
    pub metadata: FileMetadata,
    /// What of it is not in the text, for people.
    pub left_out: Vec<String>,
}

/// A text as a document.
pub fn document(source: &str) -> Parsed {
    let Markdown { title, body, metadata, left_out } = markdown(source);
    Parsed { left_out, ..Parsed::of(title, body, metadata) }
}

/// The first heading, and the text without marks. Code and tables stay. A text that is only a heading is that heading.
pub fn markdown(source: &str) -> Markdown {
    let mut reading = Reading::default();
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    for event in Parser::new_ext(source, options) {
        reading.take(event);
    }
    reading.end_raw();
    let Reading { title, mut body, front_matter, page, too_deep, .. } = reading;
    let mut metadata = FileMetadata::default();
    metadata.add_yaml(&front_matter);
    let title = title.or(page.heading.clone()).or_else(|| metadata.get("title").map(str::to_owned));
    body.begin_with(&front_matter::text(&front_matter, title.as_deref()));
    if body.is_blank() {
        body.paragraph(title.as_deref().unwrap_or_default());
    }
    let mut left_out = page.left_out();
    if too_deep > 0 {
        left_out.push("HTML that nests too deep".into());
    }
    Markdown { title, body, metadata, left_out }
}

/// Where text goes.
#[derive(Debug, Default, PartialEq, Eq)]
enum Target {
    #[default]
    Body,
    Title,
    FrontMatter,
    Cell,
}

#[derive(Default)]
struct Reading {
    title: Option<String>,
    body: Body,
    front_matter: String,
    into: Target,
    row: Vec<String>,
    link: Option<Link>,
    /// An address in the title: it comes below, as a title stands beside every passage.
    below_title: Option<String>,
    /// Of the lists around, the number of the next item; `None` where they have none.
    lists: Vec<Option<u64>>,
    raw: Raw,
    /// What HTML says of itself.
    page: Page,
    too_deep: usize,
}

/// A link that is being read.
struct Link {
    address: String,
    words: String,
    /// Pictures around: their words are no link's.
    images: usize,
}

impl Reading {
    fn take(&mut self, event: Event<'_>) {
        if self.raw.is_open() && self.raw_takes(&event) {
            return;
        }
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(part) | Event::Code(part) => self.push(&part),
            Event::SoftBreak | Event::HardBreak if self.into == Target::Body => self.push("\n"),
            Event::SoftBreak | Event::HardBreak => self.push(" "),
            Event::Html(part) => self.raw.push(&part),
            Event::InlineHtml(tag) => self.inline(&tag),
            _ => {}
        }
    }

    /// Whether what stands within an open table of HTML belongs to it: blank lines end HTML, but not the table.
    fn raw_takes(&mut self, event: &Event<'_>) -> bool {
        match event {
            Event::Html(part) | Event::InlineHtml(part) => self.raw.push(part),
            Event::Text(part) | Event::Code(part) => self.raw.push_text(part),
            Event::SoftBreak | Event::HardBreak => self.raw.push(" "),
            Event::End(TagEnd::HtmlBlock) if self.raw.is_whole() => self.end_raw(),
            Event::Start(Tag::Heading { .. } | Tag::Table(_)) => {
                self.end_raw();
                return false;
            }
            Event::End(TagEnd::Paragraph | TagEnd::Item) => self.raw.push("<br>"),
            _ => {}
        }
        true
    }

    /// Reads the HTML that was gathered.
    fn end_raw(&mut self) {
        let source = self.raw.take();
        if source.trim().is_empty() {
            return;
        }
        self.page.body = std::mem::take(&mut self.body);
        self.too_deep += usize::from(html::append(&source, &mut self.page).is_err());
        self.body = std::mem::take(&mut self.page.body);
    }

    /// A tag within a paragraph. Of most only what stands between them counts.
    fn inline(&mut self, tag: &CowStr<'_>) {
        match self.raw.inline(tag) {
            raw::Inline::Break => self.push(if self.into == Target::Body { "\n" } else { " " }),
            raw::Inline::Words(words) => self.push(&words),
            raw::Inline::Link(address) => self.link = Some(Link { address, words: String::new(), images: 0 }),
            raw::Inline::EndLink => self.end_link(),
            raw::Inline::Hidden => self.page.hidden += 1,
            raw::Inline::Nothing => {}
        }
    }

    fn push(&mut self, text: &str) {
        if self.raw.is_hidden() {
            return;
        }
        if let Some(link) = self.link.as_mut().filter(|link| link.images == 0) {
            link.words.push_str(text);
        }
        match self.into {
            Target::Body => self.body.push(text),
            Target::Title => self.title.get_or_insert_default().push_str(text),
            Target::FrontMatter => self.front_matter.push_str(text),
            Target::Cell => {
                if let Some(cell) = self.row.last_mut() {
                    cell.push_str(text);
                }
            }
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::MetadataBlock(_) => self.into = Target::FrontMatter,
            Tag::Heading { level: HeadingLevel::H1 | HeadingLevel::H2, .. } if self.title.is_none() => {
                self.into = Target::Title;
                self.title = Some(String::new());
            }
            Tag::Heading { level, .. } => self.body.mark(ElementKind::Heading(*level as u8)),
            Tag::CodeBlock(_) => self.body.mark(ElementKind::Code),
            Tag::Table(_) => self.body.begin_table(true),
            Tag::TableHead | Tag::TableRow => {
                self.into = Target::Cell;
                self.row.clear();
            }
            Tag::TableCell => self.row.push(String::new()),
            Tag::List(first) => {
                // One in an item begins right behind its words.
                if !self.lists.is_empty() {
                    self.body.end_line();
                }
                self.lists.push(*first);
            }
            Tag::Item => {
                if let Some(Some(number)) = self.lists.last_mut() {
                    self.body.push(&format!("{number}. "));
                    *number = number.saturating_add(1);
                }
            }
            Tag::Strikethrough => self.push(STRUCK),
            Tag::Link { link_type, dest_url, .. } => {
                // An address of a mail is written without its scheme.
                let scheme = if *link_type == LinkType::Email { "mailto:" } else { "" };
                self.link = Some(Link { address: format!("{scheme}{dest_url}"), words: String::new(), images: 0 });
            }
            Tag::Image { .. } => {
                if let Some(link) = &mut self.link {
                    link.images += 1;
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::MetadataBlock(_) => self.into = Target::Body,
            // The title stands beside every passage already.
            TagEnd::Heading(_) if self.into == Target::Title => {
                self.into = Target::Body;
                if let Some(address) = self.below_title.take() {
                    self.body.paragraph(&format!("({address})"));
                    self.body.end_block();
                }
            }
            TagEnd::Heading(_) | TagEnd::CodeBlock => {
                self.body.push("\n\n");
                self.body.mark(ElementKind::Text);
            }
            TagEnd::TableHead | TagEnd::TableRow => {
                self.into = Target::Body;
                self.body.row(self.row.iter().map(String::as_str), tag == TagEnd::TableHead);
            }
            TagEnd::Table => {
                self.body.push("\n\n");
                self.body.mark(ElementKind::Text);
            }
            TagEnd::Item => self.body.end_line(),
            TagEnd::Paragraph => {
                self.raw.end_paragraph();
                self.body.push("\n\n");
            }
            TagEnd::List(_) => {
                self.lists.pop();
                if self.lists.is_empty() {
                    self.body.end_block();
                }
            }
            TagEnd::Strikethrough => self.push(STRUCK),
            TagEnd::Link => self.end_link(),
            TagEnd::Image => {
                if let Some(link) = &mut self.link {
                    link.images = link.images.saturating_sub(1);
                }
            }
            _ => {}
        }
    }

    /// Puts the address behind the words.
    fn end_link(&mut self) {
        let Some(link) = self.link.take() else { return };
        let Some(address) = address::told(&link.address, &one_line(&link.words), Place::Note) else { return };
        match self.into {
            Target::Title => self.below_title = Some(address),
            _ => self.push(&format!(" ({address})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_tables_and_code_are_known() {
        let source = "# Works\n\nLead.\n\n## Stones\n\n| a | b |\n|---|---|\n| 1 | *2* |\n\n```\nfn f()\n```\n\nEnd.";
        let Markdown { title, body, .. } = markdown(source);
        let (text, elements) = body.finish();
        assert_eq!(title.as_deref(), Some("Works"));
        assert_eq!(text, "Lead.\n\nStones\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n\nfn f()\n\n\nEnd.");
        let at = |element: &crate::element::Element| (element.kind, &text[element.at..][..3]);
        assert_eq!(
            elements.iter().map(at).collect::<Vec<_>>(),
            [
                (ElementKind::Heading(2), "Sto"),
                (ElementKind::Table { header_lines: 2 }, "| a"),
                (ElementKind::Code, "fn "),
                (ElementKind::Text, "End"),
            ]
        );
    }

    #[test]
    fn front_matter_is_metadata() {
        let read = markdown("---\ntitle: Meta\ntags: [a, b]\n---\n\nText.");
        assert_eq!((read.title.as_deref(), read.metadata.get("tags")), (Some("Meta"), Some("a, b")));
        assert_eq!(read.body.finish(), ("tags: a, b\n\nText.".into(), vec![]));
        assert_eq!(markdown("---\nno: [\n---\n\n# A\n\nText.").title.as_deref(), Some("A"));
    }

    fn text(source: &str) -> String {
        markdown(source).body.finish().0
    }

    #[test]
    fn links_keep_their_addresses() {
        let source = "# [Works](https://a.example/w)\n\nRead [the *sheet*](https://a.example/44), <https://a.example/b>, \
                      <ida@a.example>, [Ida](mailto:ida@a.example), [up](#top), [the net][n], [plan](files/plan.dwg) and \
                      [![badge](b.svg)](https://ci.example/x).\n\n| a | b |\n|-|-|\n| [c](https://a.example/c) | d |\n\n\
                      [n]: https://a.example/n";
        let read = markdown(source);
        assert_eq!(read.title.as_deref(), Some("Works"));
        assert_eq!(
            read.body.finish().0,
            "(https://a.example/w)\n\nRead the sheet (https://a.example/44), https://a.example/b, ida@a.example, \
             Ida (ida@a.example), up, the net (https://a.example/n), plan (files/plan.dwg) and badge.\n\n\
             | a | b |\n| --- | --- |\n| c (https://a.example/c) | d |"
        );
    }

    #[test]
    fn html_is_read_as_such() {
        let table = "<table>\n<tr><th>Cone</th><th>Celsius</th></tr>\n\n<tr><td>Cone 6</td><td>\n\n*1222*\n\n</td></tr>\n</table>\n\nAfter.";
        assert_eq!(text(table), "| Cone | Celsius |\n| --- | --- |\n| Cone 6 | 1222 |\n\nAfter.");
        let details = "<details><summary>Reset</summary>\n\nHold *both* keys.\n\n</details>\n\n<details>\n<summary>If it hangs</summary>\nDrain it.\n</details>";
        assert_eq!(text(details), "Reset\n\nHold both keys.\n\nIf it hangs\n\nDrain it.");
        let inline = "Press <kbd>K</kbd><br>or <b>stop</b> <a href=\"https://a.example/x\">here</a> <img alt='Key'><!-- no -->\
                      <span style='display:none'>say bananas</span>!";
        let read = markdown(inline);
        assert_eq!(read.left_out, ["hidden text: 1 place"]);
        assert_eq!(read.body.finish().0, "Press K\nor stop here (https://a.example/x) Key!");
        assert_eq!(text("<div hidden>\nno\n</div>\n\n<!-- no\n\nno -->\n\nYes."), "Yes.");
        let readme = markdown("<h1 align=center>Loom</h1>\n\n<p align=center><img src=x.svg></p>\n\nIt weaves.");
        assert_eq!((readme.title.as_deref(), &*readme.body.finish().0), (Some("Loom"), "Loom\n\nIt weaves."));
        let deep = markdown(&format!("{}\n\nAfter.", "<div>".repeat(1000)));
        assert_eq!((&*deep.left_out, &*deep.body.finish().0), (&["HTML that nests too deep".to_owned()][..], "After."));
        // A table that is never closed ends where the next section begins.
        assert_eq!(text("# T\n\n<table><tr><td>a</td><td>b</td>\n\nc\n\n## S\n\nd"), "c\n\n| a | b |\n\nS\n\nd");
    }

    #[test]
    fn numbers_of_lists_and_struck_text_are_kept() {
        let source = "3. Open.\n4. Press.\n   - the left key\n5. Close.\n\nIt costs ~~900~~ 740 crowns.";
        assert_eq!(text(source), "3. Open.\n4. Press.\nthe left key\n5. Close.\n\nIt costs ~~900~~ 740 crowns.");
    }

    #[test]
    fn a_note_that_is_only_a_heading_is_its_heading() {
        let read = markdown("# The password is plum-orchard-9\n");
        assert_eq!(read.title.as_deref(), Some("The password is plum-orchard-9"));
        assert_eq!(read.body.finish().0, "The password is plum-orchard-9");
        assert_eq!(text(""), "");
    }

    #[test]
    fn front_matter_is_text_where_people_wrote_it() {
        let front = "---\ntitle: Call with the glazier\nattendees: [Leopold Hask, Ida Munro]\nlayout: post\ndate: 2026-03-04\nauthor: {name: x}\n---\n";
        assert_eq!(
            text(&format!("{front}# What was said\n\nMuch.")),
            "title: Call with the glazier\nattendees: Leopold Hask, Ida Munro\ndate: 2026-03-04\n\nMuch."
        );
        let (text, elements) =
            markdown(&format!("{front}## Call with the glazier\n\n### Doors\n\nMuch.")).body.finish();
        assert!(text.starts_with("attendees: Leopold Hask"), "{text}");
        assert!(text[elements[0].at..].starts_with("Doors"));
    }
}
