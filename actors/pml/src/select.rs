//! A prompt against its schema's layout: which tokens stand at which positions (Prompt Cache, section 3.4). Pure.
//!
//! Imported modules have the schema's positions, arguments the first of those that their parameters reserve, and what is not imported leaves
//! gaps. The prompt's own text between two imports goes into a gap between them if there is one that is long enough, else behind the schema, as
//! does everything after it: so that the text keeps its order. (The reference implementation drops it.)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::document::wrong;
use super::layout::{Piece, around, tokens_of};
use super::prompt::{Import, PromptItem};
use super::{Block, Encode, Layout, Part, Prompt, Role, Roles};
use ragstone_env::{Error, ErrorKind, Result};

/// What a prompt consists of.
#[derive(Debug, Clone, PartialEq)]
pub struct Selected {
    /// By position, without overlaps.
    pub placed: Vec<Placed>,
}

/// Tokens at positions one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The first one's position.
    pub start: u32,
    /// The tokens.
    pub tokens: Arc<[u32]>,
    /// Whose they are.
    pub from: PlacedFrom,
}

/// Whose tokens they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacedFrom {
    /// The schema's: of the module at this path (`/`: the schema's own text), whose KV is kept or not.
    Module { path: String, cache: bool },
    /// An argument's.
    Argument { path: String, parameter: String },
    /// The prompt's own.
    Text,
}

impl Placed {
    /// The position after its last.
    pub fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }
}

/// Text of the prompt, and between which positions it would stand.
struct Added {
    pieces: Vec<Piece>,
    from: u32,
    /// `None`: after everything.
    to: Option<u32>,
}

/// Reads a prompt's tokens and positions off its schema's layout.
///
/// # Errors
/// `InvalidInput` if the prompt is of another schema, imports what is not there, twice, or two members of a union, has an argument that is unknown or
/// too long, or roles where the model has no chat template; `ContextLength` beyond `most` positions.
pub fn select(
    layout: &Layout,
    prompt: &Prompt,
    roles: Option<&Roles>,
    encode: &dyn Encode,
    most: u32,
) -> Result<Selected> {
    if prompt.schema != layout.name {
        let message = format!("the prompt is of the schema `{}`, not `{}`", prompt.schema, layout.name);
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let mut selection = Selection {
        roles,
        encode,
        placed: Vec::new(),
        added: Vec::new(),
        imported: HashSet::new(),
        speaker: layout.last,
        at: 0,
    };
    selection.include(&layout.top, "", &[])?;
    selection.items(&prompt.items, &Inside::new(&layout.top), "")?;
    if let (Some(PromptItem::Role(Role::User, _)), Some(roles)) = (prompt.items.last(), roles) {
        selection.add(Piece::Control(roles.answer.clone()));
    }
    selection.finish(layout.length(), most)
}

struct Selection<'a> {
    roles: Option<&'a Roles>,
    encode: &'a dyn Encode,
    placed: Vec<Placed>,
    added: Vec<Added>,
    /// Paths of modules, and of the unions that they are members of.
    imported: HashSet<String>,
    speaker: Option<Role>,
    /// Where text that comes now would stand at the earliest.
    at: u32,
}

impl Selection<'_> {
    /// Takes a block's own text, and arguments for its parameters.
    fn include(&mut self, block: &Block, path: &str, arguments: &[(String, Vec<u32>)]) -> Result<()> {
        for part in &block.parts {
            let (start, tokens, from) = match part {
                Part::Text { start, tokens } => {
                    let path = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
                    (*start, Arc::clone(tokens), PlacedFrom::Module { path, cache: block.cache })
                }
                Part::Parameter { start, name, .. } => {
                    let Some((_, tokens)) = arguments.iter().find(|(its, _)| its == name) else { continue };
                    let (path, parameter) = (path.to_owned(), name.clone());
                    (*start, tokens.as_slice().into(), PlacedFrom::Argument { path, parameter })
                }
                Part::Module(_) | Part::Union { .. } => continue,
            };
            if !tokens.is_empty() {
                self.placed.push(Placed { start, tokens, from });
            }
        }
        Ok(())
    }

    fn items(&mut self, items: &[PromptItem], within: &Inside<'_>, path: &str) -> Result<()> {
        for item in items {
            match item {
                PromptItem::Text(text) => self.add(Piece::Words(text.clone())),
                PromptItem::Role(role, said) => {
                    let (open, close) = around(self.roles, *role, self.speaker)?;
                    self.speaker = Some(*role);
                    self.add(Piece::Control(open));
                    self.items(said, within, path)?;
                    self.add(Piece::Control(close));
                }
                PromptItem::Import(import) => self.import(import, within, path)?,
            }
        }
        Ok(())
    }

    fn import(&mut self, import: &Import, within: &Inside<'_>, path: &str) -> Result<()> {
        let found = within.modules.get(import.name.as_str()).copied();
        let (block, union) = found.ok_or_else(|| unknown(import, within.block))?;
        let outer = path;
        let path = if path.is_empty() { import.name.clone() } else { format!("{path}/{}", import.name) };
        if !self.imported.insert(path.clone()) {
            return Err(wrong(import.at, format!("<{}/> is imported already", import.name)));
        }
        // No path of a module ends so: no name begins with a digit.
        if let Some(union) = union
            && !self.imported.insert(format!("{outer}/{union}"))
        {
            let why = "another member of its union is imported already, and they exclude each other";
            return Err(wrong(import.at, format!("<{}/>: {why}", import.name)));
        }
        let arguments = self.arguments(import, block)?;
        // What was added last stands before this.
        self.added
            .iter_mut()
            .rev()
            .take_while(|added| added.to.is_none())
            .for_each(|added| added.to = Some(block.start));
        self.include(block, &path, &arguments)?;
        self.at = block.start;
        if !import.items.is_empty() {
            self.items(&import.items, &Inside::new(block), &path)?;
        }
        self.at = block.start + block.length;
        Ok(())
    }

    /// Tokens of an import's arguments.
    fn arguments(&self, import: &Import, block: &Block) -> Result<Vec<(String, Vec<u32>)>> {
        let mut arguments = Vec::with_capacity(import.arguments.len());
        for (name, value) in &import.arguments {
            let parameter = block.parts.iter().find_map(|part| match part {
                Part::Parameter { name: its, length, .. } if its == name => Some(*length),
                _ => None,
            });
            let Some(length) = parameter else {
                return Err(wrong(import.at, format!("<{}> has no parameter `{name}`", import.name)));
            };
            let tokens = self.encode.words(value)?;
            if tokens.len() > length as usize {
                let why = format!(
                    "the argument `{name}` of <{}> has {} tokens, and room for {length}",
                    import.name,
                    tokens.len()
                );
                return Err(wrong(import.at, why));
            }
            arguments.push((name.clone(), tokens));
        }
        Ok(arguments)
    }

    fn add(&mut self, piece: Piece) {
        match self.added.last_mut() {
            Some(last) if last.to.is_none() && last.from == self.at => last.pieces.push(piece),
            _ => self.added.push(Added { pieces: vec![piece], from: self.at, to: None }),
        }
    }

    /// Puts the prompt's own text into gaps, or behind all of the schema.
    fn finish(mut self, schema_end: u32, most: u32) -> Result<Selected> {
        self.placed.sort_by_key(|placed| placed.start);
        let (mut end, mut is_behind, mut earliest) = (schema_end, false, 0);
        for added in std::mem::take(&mut self.added) {
            let tokens = tokens_of(&added.pieces, self.encode)?;
            if tokens.is_empty() {
                continue;
            }
            let gap = added.to.filter(|_| !is_behind);
            let gap = gap.and_then(|to| gap_for(&self.placed, added.from.max(earliest), to, tokens.len()));
            let start = gap.unwrap_or(end);
            let after = u32::try_from(start as usize + tokens.len()).ok().filter(|after| *after <= most);
            let Some(after) = after else {
                let message = format!("the prompt goes beyond the model's {most} positions; add less to the schema");
                return Err(Error::new(ErrorKind::ContextLength, message));
            };
            earliest = after;
            if gap.is_none() {
                (end, is_behind) = (after, true);
            }
            let at = self.placed.partition_point(|placed| placed.start < start);
            self.placed.insert(at, Placed { start, tokens: tokens.into(), from: PlacedFrom::Text });
        }
        Ok(Selected { placed: self.placed })
    }
}

/// The first of `tokens` free positions one after the other, from `from` to `to`; `placed` is ordered.
fn gap_for(placed: &[Placed], from: u32, to: u32, tokens: usize) -> Option<u32> {
    let mut start = from;
    let fits = |start: u32, end: u32| end.saturating_sub(start) as usize >= tokens;
    for at in placed.iter().filter(|at| at.end() > from) {
        if at.start >= to || fits(start, at.start.min(to)) {
            break;
        }
        start = start.max(at.end());
    }
    fits(start, to).then_some(start).filter(|start| {
        let end = u64::from(*start) + tokens as u64;
        placed.iter().all(|at| at.end() <= *start || u64::from(at.start) >= end)
    })
}

/// A block and its modules by name, each with which of its unions it is a member of.
struct Inside<'a> {
    block: &'a Block,
    modules: HashMap<&'a str, (&'a Block, Option<usize>)>,
}

impl<'a> Inside<'a> {
    fn new(block: &'a Block) -> Self {
        let mut modules = HashMap::new();
        for (index, part) in block.parts.iter().enumerate() {
            match part {
                Part::Module(inner) => drop(modules.insert(inner.name.as_str(), (inner, None))),
                Part::Union { members, .. } => {
                    modules.extend(members.iter().map(|member| (member.name.as_str(), (member, Some(index)))));
                }
                Part::Text { .. } | Part::Parameter { .. } => {}
            }
        }
        Self { block, modules }
    }
}

/// Modules that an error names.
const MOST_NAMED: usize = 20;

fn unknown(import: &Import, within: &Block) -> Error {
    let names = within.parts.iter().flat_map(|part| match part {
        Part::Module(block) => std::slice::from_ref(block),
        Part::Union { members, .. } => members,
        Part::Text { .. } | Part::Parameter { .. } => &[],
    });
    let mut names: Vec<&str> = names.map(|block| block.name.as_str()).take(MOST_NAMED + 1).collect();
    if let Some(last) = names.get_mut(MOST_NAMED) {
        *last = "…";
    }
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    wrong(import.at, format!("`{}` has no module <{}/>; it has {known}", within.name, import.name))
}
