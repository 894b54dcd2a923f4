//! Markdown as plain text.

use crate::element::ElementKind;
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::body::Body;
use super::metadata::FileMetadata;

/// A text without its marks.
#[derive(Debug, Default)]
pub struct Markdown {
    /// The first heading; where there is none, what the front matter says.
    pub title: Option<String>,
    pub body: Body,
    /// Of the front matter.
    pub metadata: FileMetadata,
}

/// The first heading, and the text without marks. Code and tables stay; link targets and raw HTML go.
pub fn markdown(source: &str) -> Markdown {
    let mut reading = Reading::default();
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    for event in Parser::new_ext(source, options) {
        reading.take(event);
    }
    let Reading { title, body, front_matter, .. } = reading;
    let mut metadata = FileMetadata::default();
    metadata.add_yaml(&front_matter);
    let title = title.or_else(|| metadata.get("title").map(str::to_owned));
    Markdown { title, body, metadata }
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
}

impl Reading {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(part) | Event::Code(part) => self.push(&part),
            Event::SoftBreak | Event::HardBreak if self.into == Target::Body => self.push("\n"),
            Event::SoftBreak | Event::HardBreak => self.push(" "),
            _ => {}
        }
    }

    fn push(&mut self, text: &str) {
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
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::MetadataBlock(_) => self.into = Target::Body,
            // The title stands beside every passage already.
            TagEnd::Heading(_) if self.into == Target::Title => self.into = Target::Body,
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
            TagEnd::Item => self.body.push("\n"),
            TagEnd::Paragraph | TagEnd::List(_) => self.body.push("\n\n"),
            _ => {}
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
        assert_eq!(read.body.finish(), ("Text.".into(), vec![]));
        assert_eq!(markdown("---\nno: [\n---\n\n# A\n\nText.").title.as_deref(), Some("A"));
    }
}
