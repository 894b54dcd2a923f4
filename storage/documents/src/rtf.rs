//! RTF: paragraphs, headings, numbers of lists, tables, links and notes. What is deleted, struck or hidden is left out.

mod blocks;
mod pages;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::HashMap;

use encoding_rs::Encoding;

use self::blocks::{Blocks, Unread};
use self::tokens::{Token, Tokens};
use super::address;
use super::left_out::LeftOut;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml;

/// Groups in one another.
const MAX_DEPTH: usize = 10_000;
const MAX_FONTS: usize = 10_000;
/// Of a field's instruction, or a field of what the file says of itself.
const MAX_ASIDE_BYTES: usize = 4000;

/// Whether a file is RTF, whatever its name.
pub fn is_rtf(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{\\rtf")
}

/// Reads a file.
///
/// # Errors
/// Where it is none, or nests too deep.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    if !is_rtf(bytes) {
        return Err("not readable as RTF: it does not begin with `{\\rtf`".into());
    }
    let mut reading = Reading::default();
    for token in Tokens::of(bytes) {
        reading.take(token)?;
    }
    reading.blocks.end();
    let Reading { blocks, metadata, .. } = reading;
    let mut left_out = LeftOut::default();
    left_out.places("struck text", blocks.struck);
    left_out.places("hidden text", blocks.hidden);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(xml::own_title(&metadata), blocks.body, metadata) })
}

/// What a group is for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Aim {
    #[default]
    Text,
    /// For programs.
    Nothing,
    Fonts,
    /// What the file says of itself, entry by entry.
    Entries,
    /// What the file says of itself, by this name.
    Info(&'static str),
    Instruction,
    /// The result of a field, from there on.
    Result(usize),
    /// The number of an item, from there on.
    Label(usize),
    Note,
}

/// What holds within a group.
#[derive(Debug, Clone, Copy)]
struct State {
    aim: Aim,
    /// Whether it is the group itself that has the aim, and not one in it.
    is_own: bool,
    unread: [bool; 3],
    /// Characters that stand for those who know no Unicode.
    fallbacks: usize,
    font: i32,
}

impl Default for State {
    fn default() -> Self {
        Self { aim: Aim::Text, is_own: false, unread: [false; 3], fallbacks: 1, font: -1 }
    }
}

#[derive(Default)]
struct Reading {
    state: State,
    outer: Vec<State>,
    blocks: Blocks,
    fonts: HashMap<i32, &'static Encoding>,
    encoding: Option<&'static Encoding>,
    metadata: FileMetadata,
    /// Of the field or entry that is being read.
    aside: Blocks,
    /// Instructions of fields whose results come.
    instructions: Vec<String>,
    heading: Option<u8>,
    is_in_table: bool,
    /// Fallback characters that are still to come.
    skip: usize,
    /// Whether the last token was `\*`: programs may pass over what comes.
    is_optional: bool,
}

impl Reading {
    fn take(&mut self, token: Token<'_>) -> Result<(), String> {
        let is_optional = std::mem::take(&mut self.is_optional);
        match token {
            Token::GroupBegins => {
                if self.outer.len() >= MAX_DEPTH {
                    return Err(format!("it nests too deep: more than {MAX_DEPTH} groups; convert it to text first"));
                }
                self.skip = 0;
                self.outer.push(self.state);
                self.state.is_own = false;
            }
            Token::GroupEnds => {
                self.skip = 0;
                self.end();
                self.state = self.outer.pop().unwrap_or_default();
            }
            Token::Symbol(b'*') => self.is_optional = true,
            _ if self.state.aim == Aim::Nothing => {}
            Token::Symbol(symbol) => self.symbol(symbol),
            Token::Word(word, number) => self.word(word, number, is_optional),
            Token::Byte(_) if self.skip > 0 => self.skip -= 1,
            Token::Byte(byte) => self.byte(byte),
        }
        Ok(())
    }

    /// The end of a group.
    fn end(&mut self) {
        if !self.state.is_own {
            return;
        }
        match self.state.aim {
            Aim::Info(key) => {
                self.aside.paragraph(None, false);
                let text = std::mem::take(&mut self.aside).body.finish().0;
                self.metadata.add(key, &text);
            }
            Aim::Instruction => {
                self.aside.paragraph(None, false);
                self.instructions.push(std::mem::take(&mut self.aside).body.finish().0);
            }
            Aim::Result(start) => {
                let instruction = self.instructions.pop().unwrap_or_default();
                if let Some(address) = address::of_field(&instruction) {
                    self.blocks.link(start, address);
                }
            }
            Aim::Label(start) => {
                let label = self.blocks.take_back(start);
                self.blocks.label(&label);
            }
            Aim::Note => self.blocks.push(")"),
            Aim::Text | Aim::Nothing | Aim::Fonts | Aim::Entries => {}
        }
    }

    /// Where text of this group goes, unless it goes nowhere.
    fn target(&mut self) -> Option<&mut Blocks> {
        match self.state.aim {
            Aim::Nothing | Aim::Fonts | Aim::Entries => None,
            Aim::Info(_) | Aim::Instruction => (self.aside.len() < MAX_ASIDE_BYTES).then_some(&mut self.aside),
            Aim::Text | Aim::Result(_) | Aim::Label(_) | Aim::Note => {
                let why = [Unread::Deleted, Unread::Hidden, Unread::Struck];
                match self.state.unread.iter().zip(why).find(|(is, _)| **is) {
                    Some((_, why)) => {
                        self.blocks.leave_out(why);
                        None
                    }
                    None => Some(&mut self.blocks),
                }
            }
        }
    }

    fn byte(&mut self, byte: u8) {
        let of_font = self.fonts.get(&self.state.font).copied();
        let encoding = of_font.or(self.encoding).unwrap_or(encoding_rs::WINDOWS_1252);
        if let Some(target) = self.target() {
            target.byte(byte, encoding);
        }
    }

    fn push(&mut self, text: &str) {
        if let Some(target) = self.target() {
            target.push(text);
        }
    }

    fn symbol(&mut self, symbol: u8) {
        match symbol {
            b'~' => self.push("\u{a0}"),
            b'_' => self.push("-"),
            b'\\' | b'{' | b'}' => match self.skip.checked_sub(1) {
                Some(left) => self.skip = left,
                None => self.byte(symbol),
            },
            b'\n' | b'\r' => self.paragraph(),
            _ => {}
        }
    }

    fn paragraph(&mut self) {
        if self.state.aim == Aim::Text || matches!(self.state.aim, Aim::Result(_)) {
            self.blocks.paragraph(self.heading, self.is_in_table);
        } else {
            self.push(" ");
        }
    }

    fn word(&mut self, word: &str, number: Option<i32>, is_optional: bool) {
        if self.aim(word) || self.look(word, number) || self.of_file(word, number) {
            return;
        }
        match word {
            "par" | "sect" | "page" => self.paragraph(),
            "cell" | "nestcell" if self.state.aim == Aim::Text => self.blocks.cell(),
            "row" if self.state.aim == Aim::Text => self.blocks.row(),
            "pard" => (self.heading, self.is_in_table) = (None, false),
            "intbl" => self.is_in_table = true,
            "outlinelevel" => {
                let level = number.and_then(|level| u8::try_from(level).ok()).filter(|level| *level < 9);
                self.heading = level.map(|level| level + 1);
            }
            "line" | "softline" => self.push("\n"),
            "tab" => self.push("\t"),
            "emdash" => self.push("—"),
            "endash" => self.push("–"),
            "lquote" => self.push("‘"),
            "rquote" => self.push("’"),
            "ldblquote" => self.push("“"),
            "rdblquote" => self.push("”"),
            "bullet" => self.push("•"),
            "emspace" | "enspace" | "qmspace" => self.push(" "),
            // Not known, and may be passed over.
            _ if is_optional => self.state.aim = Aim::Nothing,
            _ => {}
        }
    }

    /// Whether the word says what its group is for.
    fn aim(&mut self, word: &str) -> bool {
        let aim = match word {
            "fonttbl" => Aim::Fonts,
            "title" => Aim::Info("title"),
            "author" => Aim::Info("author"),
            "subject" => Aim::Info("subject"),
            "keywords" => Aim::Info("keywords"),
            "fldinst" => Aim::Instruction,
            "fldrslt" => Aim::Result(self.blocks.at()),
            "listtext" | "pntext" => Aim::Label(self.blocks.at()),
            "footnote" => {
                self.push(" (");
                Aim::Note
            }
            "info" => Aim::Entries,
            "shptxt" | "shpinst" | "field" | "shppict" => return true,
            "colortbl" | "stylesheet" | "pict" | "objdata" | "header" | "headerl" | "headerr" | "headerf"
            | "footer" | "footerl" | "footerr" | "footerf" | "sp" | "nonshppict" | "listtable"
            | "listoverridetable" | "rsidtbl" | "themedata" | "colorschememapping" | "datastore" | "generator"
            | "xmlnstbl" | "latentstyles" | "pn" | "creatim" | "revtim" | "printim" | "company" | "operator"
            | "doccomm" | "htmltag" | "mmathPr" | "revtbl" | "template" | "ftnsep" | "ftnsepc" | "aftnsep"
            | "aftnsepc" | "annotation" | "atnid" | "atnauthor" => Aim::Nothing,
            _ => return false,
        };
        (self.state.aim, self.state.is_own) = (aim, true);
        true
    }

    /// Whether the word says how text looks.
    fn look(&mut self, word: &str, number: Option<i32>) -> bool {
        let is_on = number != Some(0);
        let [deleted, hidden, struck] = &mut self.state.unread;
        match word {
            "deleted" => *deleted = is_on,
            "v" => *hidden = is_on,
            "strike" | "striked" => *struck = is_on,
            "plain" => self.state.unread = [false; 3],
            _ => return false,
        }
        true
    }

    /// Whether the word is about characters and fonts.
    fn of_file(&mut self, word: &str, number: Option<i32>) -> bool {
        match (word, number) {
            ("u", Some(unit)) => {
                // Negative beyond 15 bits.
                let unit = (unit & 0xffff) as u16;
                if let Some(target) = self.target() {
                    target.unit(unit);
                }
                self.skip = self.state.fallbacks;
            }
            ("uc", Some(fallbacks)) => self.state.fallbacks = usize::try_from(fallbacks).unwrap_or(1).min(16),
            ("ansicpg", Some(page)) => self.encoding = pages::of_number(page),
            ("mac", _) => self.encoding = Some(encoding_rs::MACINTOSH),
            ("f" | "deff", Some(font)) => self.state.font = font,
            ("fcharset", Some(charset)) if self.state.aim == Aim::Fonts => {
                if let Some(encoding) = pages::of_font(charset).filter(|_| self.fonts.len() < MAX_FONTS) {
                    self.fonts.insert(self.state.font, encoding);
                }
            }
            _ => return false,
        }
        true
    }
}
