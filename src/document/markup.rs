//! Markdown and HTML as plain text.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// The first heading, and the text without marks. Code stays; front matter, link targets and raw HTML go.
pub fn markdown(source: &str) -> (Option<String>, String) {
    let (mut title, mut text) = (None::<String>, String::with_capacity(source.len()));
    let (mut in_title, mut in_front_matter) = (false, false);
    // Front matter is only recognised so that it is not taken for a heading.
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    for event in Parser::new_ext(source, options) {
        match event {
            Event::Start(Tag::MetadataBlock(_)) => in_front_matter = true,
            Event::End(TagEnd::MetadataBlock(_)) => in_front_matter = false,
            Event::Text(_) if in_front_matter => {}
            Event::Start(Tag::Heading { level: HeadingLevel::H1 | HeadingLevel::H2, .. }) if title.is_none() => {
                in_title = true;
                title = Some(String::new());
            }
            Event::End(TagEnd::Heading(_)) => {
                // The title stands beside every passage already.
                text.push_str(if in_title { "" } else { "\n\n" });
                in_title = false;
            }
            Event::Text(part) | Event::Code(part) => match title.as_mut().filter(|_| in_title) {
                Some(title) => title.push_str(&part),
                None => text.push_str(&part),
            },
            Event::SoftBreak | Event::HardBreak => match title.as_mut().filter(|_| in_title) {
                Some(title) => title.push(' '),
                None => text.push('\n'),
            },
            Event::End(TagEnd::TableCell) => text.push(' '),
            Event::End(TagEnd::Item | TagEnd::TableRow | TagEnd::TableHead) => text.push('\n'),
            Event::End(TagEnd::Paragraph | TagEnd::CodeBlock | TagEnd::List(_) | TagEnd::Table) => {
                text.push_str("\n\n")
            }
            _ => {}
        }
    }
    (title, text.trim().to_owned())
}

/// Wide enough that only paragraphs break lines.
const WIDTH: usize = 1_000_000;

/// The `<title>`, and the text as a reader sees it.
pub fn html(source: &str) -> Result<(Option<String>, String), String> {
    // Tables cell by cell: drawn as tables, they would be mostly lines and padding.
    let text = html2text::config::plain_no_decorate()
        .raw_mode(true)
        .string_from_read(source.as_bytes(), WIDTH)
        .map_err(|error| format!("not readable as HTML: {error}"))?;
    Ok((title(source), text.trim().to_owned()))
}

fn title(source: &str) -> Option<String> {
    let lower = source.to_ascii_lowercase();
    let open = lower.find("<title")?;
    let start = open + lower[open..].find('>')? + 1;
    let end = start + lower[start..].find("</title")?;
    // Through the same parser, for its character references.
    let inner = html2text::config::plain_no_decorate().string_from_read(&source.as_bytes()[start..end], WIDTH).ok()?;
    Some(inner.split_whitespace().collect::<Vec<_>>().join(" "))
}
