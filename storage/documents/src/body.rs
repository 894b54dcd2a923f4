//! A document's text as it is put together, and where its headings, tables and code begin.

use crate::element::{Element, ElementKind};

/// Lines of a table that are its header: the names, and the rule below them.
const HEADER_LINES: u8 = 2;

/// Blocks of text with a blank line between them. Tables are rows as Markdown writes them.
#[derive(Debug, Default)]
pub struct Body {
    text: String,
    elements: Vec<Element>,
}

impl Body {
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Says what comes next.
    pub fn mark(&mut self, kind: ElementKind) {
        let at = self.text.len();
        self.elements.pop_if(|last| last.at == at);
        let last = self.elements.last().map_or(ElementKind::Text, |last| last.kind);
        if last != kind || matches!(kind, ElementKind::Heading(_) | ElementKind::Table { .. }) {
            self.elements.push(Element { at, kind });
        }
    }

    /// Whether it has no words.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Puts a paragraph before all others.
    pub fn begin_with(&mut self, paragraph: &str) {
        if !paragraph.is_empty() {
            let blank = self.text.len() - self.text.trim_start_matches('\n').len();
            let before = format!("{paragraph}\n\n");
            self.text.replace_range(..blank, &before);
            self.elements.iter_mut().for_each(|element| element.at = element.at.saturating_sub(blank) + before.len());
        }
    }

    /// Appends as it is.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// A heading of a level from 1 on.
    pub fn heading(&mut self, level: u8, text: &str) {
        let text = one_line(text);
        if !text.is_empty() {
            self.end_block();
            self.mark(ElementKind::Heading(level));
            self.text.push_str(&text);
            self.end_block();
            self.mark(ElementKind::Text);
        }
    }

    /// A paragraph, after a blank line.
    pub fn paragraph(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.end_block();
            self.mark(ElementKind::Text);
            self.text.push_str(text.trim());
        }
    }

    /// A line right below what stands there, such as one of a list.
    pub fn line(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.mark(ElementKind::Text);
            if !self.text.is_empty() && !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            self.text.push_str(text.trim());
        }
    }

    /// Lines whose indentation counts.
    pub fn code(&mut self, text: &str) {
        if !text.trim().is_empty() {
            self.end_block();
            self.mark(ElementKind::Code);
            self.text.push_str(text.trim_matches('\n').trim_end());
            self.end_block();
            self.mark(ElementKind::Text);
        }
    }

    /// One such line; those of neighbours are one stretch of code.
    pub fn code_line(&mut self, line: &str) {
        if self.elements.last().is_none_or(|last| last.kind != ElementKind::Code) {
            self.end_block();
            self.mark(ElementKind::Code);
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Begins a table. Its rows come next, then [`end_block`](Self::end_block).
    pub fn begin_table(&mut self, has_header: bool) {
        self.end_block();
        self.mark(ElementKind::Table { header_lines: if has_header { HEADER_LINES } else { 0 } });
    }

    /// A row of a table; the header is followed by a rule.
    pub fn row<'a>(&mut self, cells: impl Iterator<Item = &'a str>, is_header: bool) {
        let mut columns = 0;
        self.text.push('|');
        for cell in cells {
            self.text.push(' ');
            for (index, word) in cell.split_whitespace().enumerate() {
                self.text.push_str(if index > 0 { " " } else { "" });
                self.text.push_str(&word.replace('|', "\\|"));
            }
            self.text.push_str(" |");
            columns += 1;
        }
        self.text.push('\n');
        if is_header {
            self.text.push('|');
            self.text.push_str(&" --- |".repeat(columns));
            self.text.push('\n');
        }
    }

    /// A whole table; the first row is its header, if it has one. What is no table (one cell, one column, empty) is paragraphs.
    pub fn table(&mut self, rows: &[Vec<String>], has_header: bool) {
        let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
        self.lines(&rows, has_header);
    }

    /// As [`table`](Self::table).
    pub fn lines(&mut self, rows: &[Vec<&str>], has_header: bool) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_empty = |row: &&Vec<&str>| row.iter().all(|cell| cell.trim().is_empty());
        if columns < 2 {
            return rows.iter().flatten().for_each(|cell| self.paragraph(cell));
        }
        let mut rows = rows.iter().filter(|row| !is_empty(row)).peekable();
        if rows.peek().is_none() {
            return;
        }
        self.begin_table(has_header);
        for (index, row) in rows.enumerate() {
            self.row(row.iter().copied(), has_header && index == 0);
        }
        self.end_block();
        self.mark(ElementKind::Text);
    }

    /// Ends the line that is being written, if one is.
    pub fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    /// A blank line, unless one is there.
    pub fn end_block(&mut self) {
        if !self.text.is_empty() {
            let newlines = self.text.len() - self.text.trim_end_matches('\n').len();
            self.text.push_str(&"\n\n"[newlines.min(2)..]);
        }
    }

    /// The text, and its elements where it has other than paragraphs.
    pub fn finish(self) -> (String, Vec<Element>) {
        let Self { text, mut elements } = self;
        let end = text.trim_end().len();
        let blank = text[..end].len() - text[..end].trim_start().len();
        // Code may begin with its indentation.
        let start = text[..blank].rfind('\n').map_or(0, |at| at + 1);
        let begins_with_code =
            elements.first().is_some_and(|first| first.kind == ElementKind::Code && first.at <= start);
        let start = if begins_with_code { start } else { blank };
        elements.retain(|element| element.at < end);
        for element in &mut elements {
            element.at = element.at.saturating_sub(start);
        }
        (text[start.min(end)..end].to_owned(), elements)
    }
}

/// Words with single spaces between them.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stand_apart_and_are_known() {
        let mut body = Body::default();
        body.paragraph(" Lead. ");
        body.heading(2, "A\n heading");
        body.line("one");
        body.line("two");
        body.table(&[vec!["a".into(), "b|c".into()], vec!["1".into()], vec![" ".into()]], true);
        body.code("  fn f() {}\n");
        body.paragraph("End.");
        let (text, elements) = body.finish();
        assert_eq!(
            text,
            "Lead.\n\nA heading\n\none\ntwo\n\n| a | b\\|c |\n| --- | --- |\n| 1 |\n\n  fn f() {}\n\nEnd."
        );
        let at = |element: &Element| (element.kind, text[element.at..].lines().next().unwrap_or_default());
        assert_eq!(
            elements.iter().map(at).collect::<Vec<_>>(),
            [
                (ElementKind::Heading(2), "A heading"),
                (ElementKind::Text, "one"),
                (ElementKind::Table { header_lines: 2 }, "| a | b\\|c |"),
                (ElementKind::Code, "  fn f() {}"),
                (ElementKind::Text, "End."),
            ]
        );
    }

    #[test]
    fn text_alone_has_no_elements() {
        let mut body = Body::default();
        body.push("\n\n One.\n\nTwo.\n");
        body.mark(ElementKind::Text);
        assert_eq!(body.finish(), ("One.\n\nTwo.".into(), vec![]));
        assert_eq!(Body::default().finish(), (String::new(), vec![]));
        let mut body = Body::default();
        body.table(&[vec!["alone".into()]], true);
        assert_eq!(body.finish(), ("alone".into(), vec![]));
    }
}
