//! Where every part of a schema stands (Prompt Cache, section 3.3): running offsets; the members of a union begin together, and it is as long
//! as the longest; a parameter has the positions that it reserves.

use std::sync::Arc;

use super::{Encode, Item, Module, Parameter, Role, Roles, Schema, Union};
use ragstone_env::{Error, ErrorKind, Result};

/// Bytes of the paths of a schema's modules, each again for each text and parameter of its module. A path says the names of all that its
/// module is in, so that few bytes of text make many of paths, which are kept with every text's key. A flat schema has fewer, however long.
const MOST_PATH_BYTES: usize = 1 << 21;

/// A schema's tokens and their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The schema's name.
    pub name: String,
    /// The schema itself: its anonymous text, and what it contains.
    pub top: Block,
    /// Who speaks last in it.
    pub last: Option<Role>,
}

/// The schema, or one of its modules.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Its name.
    pub name: String,
    /// Its first position.
    pub start: u32,
    /// Its positions, those of what it contains among them.
    pub length: u32,
    /// Whether its KV is kept.
    pub cache: bool,
    /// What it consists of, by position.
    pub parts: Vec<Part>,
}

/// A part of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text, one position a token.
    Text {
        start: u32,
        tokens: Arc<[u32]>,
    },
    /// Room for an argument.
    Parameter {
        start: u32,
        /// Positions that it reserves.
        length: u32,
        name: String,
        /// What stands there while the module is computed: as many tokens as positions.
        scaffold: Arc<[u32]>,
    },
    Module(Block),
    Union {
        start: u32,
        /// Positions of its longest member.
        length: u32,
        /// Which of its members stands for it where what is around it is computed.
        scaffold: Option<usize>,
        members: Vec<Block>,
    },
}

/// Text on its way to tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    /// Somebody's words: control tokens in them stay text.
    Words(String),
    /// A chat template's.
    Control(String),
}

impl Layout {
    /// Lays a schema out. `roles` are those of the model's chat template; `None` where it has none.
    ///
    /// # Errors
    /// `InvalidInput` if the schema has roles and the model has none, if a scaffold is longer than its parameter, or if the paths of its
    /// modules are too long together; `ContextLength` if it has more than `most` positions.
    pub fn of(schema: &Schema, roles: Option<&Roles>, encode: &dyn Encode, most: u32) -> Result<Self> {
        let mut writer = Writer { roles, encode, most, last: None, pieces: Vec::new() };
        let top = writer.block(&schema.name, true, &schema.items, 0)?;
        let bytes = path_bytes(&top, 0);
        if bytes > MOST_PATH_BYTES {
            let message = format!(
                "the paths of the schema's modules, such as `a/b` of `b` in `a`, have {bytes} bytes, each counted for each of its texts, and \
                 {MOST_PATH_BYTES} are the most: give the modules shorter names, or nest them less"
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(Self { name: schema.name.clone(), top, last: writer.last })
    }

    /// Its positions: what a prompt adds at its end begins there.
    pub fn length(&self) -> u32 {
        self.top.length
    }
}

impl Part {
    /// Its first position.
    pub fn start(&self) -> u32 {
        match self {
            Self::Text { start, .. } | Self::Parameter { start, .. } | Self::Union { start, .. } => *start,
            Self::Module(block) => block.start,
        }
    }
}

/// Bytes of the paths of a block, whose own has so many, and of what it contains.
fn path_bytes(block: &Block, path: usize) -> usize {
    let below = |inner: &Block| path_bytes(inner, path + 1 + inner.name.len());
    let parts = block.parts.iter().map(|part| match part {
        Part::Text { .. } | Part::Parameter { .. } => path,
        Part::Module(inner) => below(inner),
        Part::Union { members, .. } => members.iter().map(below).sum(),
    });
    path + parts.sum::<usize>()
}

struct Writer<'a> {
    roles: Option<&'a Roles>,
    encode: &'a dyn Encode,
    most: u32,
    /// Who spoke last.
    last: Option<Role>,
    /// Text that no part has yet.
    pieces: Vec<Piece>,
}

impl Writer<'_> {
    fn block(&mut self, name: &str, cache: bool, items: &[Item], start: u32) -> Result<Block> {
        let mut parts = Vec::new();
        let mut at = start;
        self.items(items, &mut parts, &mut at)?;
        self.flush(&mut parts, &mut at)?;
        Ok(Block { name: name.to_owned(), start, length: at - start, cache, parts })
    }

    fn items(&mut self, items: &[Item], parts: &mut Vec<Part>, at: &mut u32) -> Result<()> {
        for item in items {
            match item {
                Item::Text(text) => self.pieces.push(Piece::Words(text.clone())),
                Item::Role(role, said) => {
                    let (open, close) = around(self.roles, *role, self.last)?;
                    self.pieces.push(Piece::Control(open));
                    self.last = Some(*role);
                    self.items(said, parts, at)?;
                    self.pieces.push(Piece::Control(close));
                }
                Item::Parameter(parameter) => {
                    self.flush(parts, at)?;
                    parts.push(self.parameter(parameter, *at)?);
                    self.advance(at, parameter.length as usize)?;
                }
                Item::Module(Module { name, cache, items }) => {
                    self.flush(parts, at)?;
                    let block = self.block(name, *cache, items, *at)?;
                    *at += block.length;
                    parts.push(Part::Module(block));
                }
                Item::Union(union) => {
                    self.flush(parts, at)?;
                    let (union, length) = self.union(union, *at)?;
                    *at += length;
                    parts.push(union);
                }
            }
        }
        Ok(())
    }

    fn union(&mut self, union: &Union, start: u32) -> Result<(Part, u32)> {
        let before = self.last;
        let mut members = Vec::with_capacity(union.members.len());
        let mut after = before;
        for member in &union.members {
            self.last = before;
            members.push(self.block(&member.name, member.cache, &member.items, start)?);
            after = self.last;
        }
        // Whichever is imported, members are alike in who speaks; the last one says.
        self.last = after;
        let length = members.iter().map(|member| member.length).max().unwrap_or(0);
        let scaffold = union.scaffold.as_ref().and_then(|name| members.iter().position(|member| member.name == *name));
        Ok((Part::Union { start, length, scaffold, members }, length))
    }

    fn parameter(&self, parameter: &Parameter, start: u32) -> Result<Part> {
        let Parameter { name, length, scaffold } = parameter;
        let mut tokens = match scaffold {
            Some(text) => self.encode.words(text)?,
            None => Vec::new(),
        };
        if tokens.len() > *length as usize {
            let message = format!(
                "the scaffold of the parameter `{name}` has {} tokens, and the parameter {length}: shorten it, or give the parameter more",
                tokens.len()
            );
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        tokens.resize(*length as usize, self.encode.placeholder());
        Ok(Part::Parameter { start, length: *length, name: name.clone(), scaffold: tokens.into() })
    }

    /// Makes a part of the text so far.
    fn flush(&mut self, parts: &mut Vec<Part>, at: &mut u32) -> Result<()> {
        let pieces = at_edges(std::mem::take(&mut self.pieces));
        let tokens = tokens_of(&pieces, self.encode)?;
        if !tokens.is_empty() {
            let start = *at;
            self.advance(at, tokens.len())?;
            parts.push(Part::Text { start, tokens: tokens.into() });
        }
        Ok(())
    }

    fn advance(&self, at: &mut u32, tokens: usize) -> Result<()> {
        let end = *at as usize + tokens;
        match u32::try_from(end).ok().filter(|end| *end <= self.most) {
            Some(end) => {
                *at = end;
                Ok(())
            }
            None => {
                let message = format!("the schema has more than the model's {} positions; state less in it", self.most);
                Err(Error::new(ErrorKind::ContextLength, message))
            }
        }
    }
}

/// What opens and closes a role, owned.
pub(super) fn around(roles: Option<&Roles>, role: Role, after: Option<Role>) -> Result<(String, String)> {
    let Some(roles) = roles else {
        let message = format!(
            "<{}> needs a chat template, and the model has none; write what it expects as text instead",
            role.name()
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    };
    let (open, close) = roles.around(role, after);
    Ok((open.to_owned(), close.to_owned()))
}

/// Tokens of pieces, one after the other.
pub(super) fn tokens_of(pieces: &[Piece], encode: &dyn Encode) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for piece in pieces {
        tokens.extend(match piece {
            Piece::Words(text) => encode.words(text)?,
            Piece::Control(text) => encode.control(text)?,
        });
    }
    Ok(tokens)
}

/// Text between two other parts: white space at its edges is one space, unless the template has some there.
fn at_edges(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (_, Piece::Words(text) | Piece::Control(text)) if text.is_empty() => {}
            (Some(Piece::Words(before)), Piece::Words(text)) => before.push_str(&text),
            (_, piece) => joined.push(piece),
        }
    }
    let is_space_at = |piece: Option<&Piece>, edge: fn(&str) -> Option<char>| matches!(piece, Some(Piece::Control(text)) if edge(text).is_some_and(char::is_whitespace));
    let second_begins = is_space_at(joined.get(1), |text| text.chars().next());
    if let Some(Piece::Words(text)) = joined.first_mut() {
        let rest = text.trim_start();
        if rest.len() < text.len() {
            let space = if rest.is_empty() && second_begins { "" } else { " " };
            *text = format!("{space}{rest}");
        }
    }
    let before = joined.len().checked_sub(2).and_then(|index| joined.get(index));
    let before_ends = is_space_at(before, |text| text.chars().next_back());
    if let Some(Piece::Words(text)) = joined.last_mut() {
        let rest = text.trim_end();
        if rest.len() < text.len() {
            let space = if rest.is_empty() && before_ends { "" } else { " " };
            *text = format!("{rest}{space}");
        }
    }
    joined
}
