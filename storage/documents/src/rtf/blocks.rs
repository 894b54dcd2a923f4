//! Paragraphs and tables of RTF, as they come.

use encoding_rs::Encoding;

use crate::address;
use crate::body::{Body, one_line};

/// Why text is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    Struck,
    Hidden,
    Deleted,
}

/// Where text goes.
#[derive(Debug)]
pub struct Blocks {
    pub body: Body,
    /// Places whose text was left out.
    pub struck: usize,
    pub hidden: usize,
    text: String,
    /// Bytes of a code page, whose characters may have several.
    bytes: Vec<u8>,
    encoding: &'static Encoding,
    /// The first half of a character beyond 16 bits.
    high: Option<u16>,
    last: Option<Unread>,
    label: Option<String>,
    cells: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            body: Body::default(),
            struck: 0,
            hidden: 0,
            text: String::new(),
            bytes: Vec::new(),
            encoding: encoding_rs::WINDOWS_1252,
            high: None,
            last: None,
            label: None,
            cells: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl Blocks {
    /// A byte of a code page.
    pub fn byte(&mut self, byte: u8, encoding: &'static Encoding) {
        if self.encoding != encoding {
            self.decode();
            self.encoding = encoding;
        }
        self.bytes.push(byte);
    }

    /// A unit of UTF-16.
    pub fn unit(&mut self, unit: u16) {
        self.decode();
        let units = self.high.take().into_iter().chain([unit]);
        for c in char::decode_utf16(units) {
            match c {
                Ok(c) => self.text.push(c),
                Err(half) if half.unpaired_surrogate() == unit && unit < 0xdc00 => self.high = Some(unit),
                Err(_) => {}
            }
        }
        self.last = None;
    }

    /// Text.
    pub fn push(&mut self, text: &str) {
        self.decode();
        self.text.push_str(text);
    }

    fn decode(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        let (text, _) = self.encoding.decode_without_bom_handling(&self.bytes);
        let is_joint = self.last.take().is_some() && self.text.ends_with(' ');
        self.text.push_str(if is_joint { text.trim_start_matches(' ') } else { &text });
        self.bytes.clear();
    }

    /// Counts a place whose text is left out.
    pub fn leave_out(&mut self, why: Unread) {
        self.decode();
        if self.last.replace(why) != Some(why) {
            match why {
                Unread::Struck => self.struck += 1,
                Unread::Hidden => self.hidden += 1,
                Unread::Deleted => {}
            }
        }
    }

    /// About how long the paragraph is so far.
    pub fn len(&self) -> usize {
        self.text.len() + self.bytes.len()
    }

    /// Bytes of the paragraph so far.
    pub fn at(&mut self) -> usize {
        self.decode();
        self.text.len()
    }

    /// What was said since `start` is a link.
    pub fn link(&mut self, start: usize, address: &str) {
        self.decode();
        address::put(&mut self.text, start, address);
    }

    /// Takes back what was said since `start`.
    pub fn take_back(&mut self, start: usize) -> String {
        self.decode();
        if self.text.is_char_boundary(start) { self.text.split_off(start) } else { String::new() }
    }

    /// The next paragraph has this number.
    pub fn label(&mut self, text: &str) {
        let label = one_line(text);
        let is_number = label.chars().any(char::is_alphanumeric);
        self.label = (!label.is_empty()).then(|| if is_number { label } else { "-".to_owned() });
    }

    /// The end of a paragraph, of a heading of this level, or in a table.
    pub fn paragraph(&mut self, heading: Option<u8>, is_in_table: bool) {
        self.decode();
        if is_in_table {
            return self.text.push(' ');
        }
        self.end_table();
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        let label = self.label.take().filter(|_| !text.is_empty());
        match (heading, label) {
            (Some(level), Some(label)) => self.body.heading(level, &format!("{label} {text}")),
            (Some(level), None) => self.body.heading(level, text),
            (None, Some(label)) => self.body.line(&format!("{label} {text}")),
            (None, None) => self.body.paragraph(text),
        }
        self.last = None;
    }

    /// The end of a cell.
    pub fn cell(&mut self) {
        self.decode();
        let text = std::mem::take(&mut self.text);
        let label = self.label.take().map(|label| format!("{label} ")).unwrap_or_default();
        self.cells.push(one_line(&(label + &text)));
        self.last = None;
    }

    /// The end of a row.
    pub fn row(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        if !cells.is_empty() {
            self.rows.push(cells);
        }
    }

    /// The end of all.
    pub fn end(&mut self) {
        if !self.cells.is_empty() {
            self.cell();
            self.row();
        }
        self.paragraph(None, false);
    }

    fn end_table(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            self.body.table(&rows, true);
        }
    }
}
