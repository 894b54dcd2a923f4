//! A program's statements to what its schema consists of: macros and files are called, loops go over their lists, what is known is decided. What
//! is made is counted before it is made, so that no nesting of loops and calls becomes larger than a schema may be.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::declaration::{Declarations, allowed};
use super::meaning::Condition;
use super::names::{Binding, Names};
use super::syntax::{Node, parse};
use crate::document::{MAX_DEPTH, MAX_NODES, Place, wrong};
use crate::schema::is_module_name;
use crate::{MAX_DOCUMENT_BYTES, Role, Sources};
use ragstone_env::{Error, Result};

/// Statements and values that are looked at, at the most.
const MAX_STEPS: usize = 4_000_000;
/// Statements inside one another, through calls and files.
const MAX_NESTING: usize = 128;
/// Elements and texts of the schema, with some left for what holds them.
const MOST_NODES: usize = MAX_NODES as usize - 1000;

/// What a schema and its prompts consist of.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Role(Role, Vec<Piece>),
    /// A parameter, and the argument that is given for it.
    Slot {
        parameter: String,
        argument: String,
        length: u32,
        like: Option<String>,
    },
    /// Modules of which a prompt takes the first whose condition holds. Those of nothing are none.
    Parts(Vec<Part>),
}

/// A module.
#[derive(Debug)]
pub(super) struct Part {
    pub name: String,
    /// `None`: taken always.
    pub when: Option<Arc<Condition>>,
    pub pieces: Vec<Piece>,
}

/// The text of the prompt's own, behind the schema.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub role: Option<Role>,
    pub pieces: Vec<Tailed>,
    is_ended: bool,
}

#[derive(Debug)]
pub(super) enum Tailed {
    Text(String),
    Argument(String),
}

/// Names of a module's modules and parameters.
#[derive(Default)]
struct Taken {
    modules: HashSet<String>,
    parameters: HashSet<String>,
    /// The last number given to a name that was taken.
    numbers: HashMap<String, u32>,
}

pub(super) struct Unroller<'a> {
    sources: &'a dyn Sources,
    pub(super) names: Names,
    /// Macros and files that are open.
    pub(super) calls: Vec<String>,
    files: Vec<String>,
    read: HashMap<String, Rc<[Node]>>,
    modules: Vec<Taken>,
    pub(super) pieces: Vec<Vec<Piece>>,
    pub(super) tail: Option<Tail>,
    role: Option<Role>,
    steps: usize,
    bytes: usize,
    nodes: usize,
    depth: usize,
    nesting: usize,
}

impl<'a> Unroller<'a> {
    pub fn new(declared: &Declarations, sources: &'a dyn Sources) -> Self {
        Self {
            sources,
            names: Names::of(declared),
            calls: Vec::new(),
            files: Vec::new(),
            read: HashMap::new(),
            modules: vec![Taken::default()],
            pieces: vec![Vec::new()],
            tail: None,
            role: None,
            steps: 0,
            bytes: 0,
            nodes: 0,
            depth: 0,
            nesting: 0,
        }
    }

    /// Counts work.
    pub fn step(&mut self, at: Place, count: usize) -> Result<()> {
        self.steps = self.steps.saturating_add(count.max(1));
        if self.steps > MAX_STEPS {
            return Err(wrong(at, "the program goes on for too long; loop over less"));
        }
        Ok(())
    }

    /// Counts what is made.
    fn make(&mut self, at: Place, nodes: usize, bytes: usize) -> Result<()> {
        self.nodes = self.nodes.saturating_add(nodes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.nodes > MOST_NODES || self.bytes > MAX_DOCUMENT_BYTES {
            let most = format!("{MAX_DOCUMENT_BYTES} bytes or {MOST_NODES} parts");
            return Err(wrong(at, format!("the program becomes a schema of more than {most}; loop over less")));
        }
        Ok(())
    }

    pub fn nodes(&mut self, nodes: &[Node]) -> Result<()> {
        for node in nodes {
            self.nesting += 1;
            self.node(node)?;
            self.nesting -= 1;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let at = match node {
            Node::Text(at, _) | Node::Role(at, ..) | Node::Macro(at, _) | Node::Set(at, ..) | Node::Include(at, _) => {
                *at
            }
            Node::Output(expression) => expression.at,
            Node::If(conditional) => conditional.at,
            Node::For(repeated) => repeated.at,
        };
        self.step(at, 1)?;
        if self.nesting > MAX_NESTING {
            return Err(wrong(at, format!("more than {MAX_NESTING} things are inside each other here; nest less")));
        }
        match node {
            Node::Text(at, text) => self.text(*at, text),
            Node::Role(at, role, said) => self.turn(*at, *role, said),
            Node::Output(expression) => self.output(expression),
            Node::If(conditional) => self.conditional(conditional),
            Node::For(repeated) => self.repeated(repeated),
            Node::Macro(at, defined) => {
                if self.modules.len() > 1 || !self.files.is_empty() {
                    return Err(wrong(
                        *at,
                        "macros are defined by the program itself, outside of loops, conditions and files",
                    ));
                }
                self.names.define(*at, &defined.name, Binding::Macro(Rc::clone(defined)))
            }
            Node::Set(at, name, value) => {
                let value = self.meaning(value)?.bound(*at)?;
                self.names.define(*at, name, Binding::Value(value))
            }
            Node::Include(at, file) => self.include(*at, file),
        }
    }

    pub(super) fn text(&mut self, at: Place, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.make(at, 1, text.len())?;
        allowed(at, text)?;
        match &mut self.tail {
            Some(tail) if tail.is_ended && text.trim().is_empty() => {}
            Some(tail) if tail.is_ended => return Err(wrong(at, behind("text"))),
            Some(tail) => tail.pieces.push(Tailed::Text(text.to_owned())),
            None => self.push(Piece::Text(text.to_owned())),
        }
        Ok(())
    }

    fn push(&mut self, piece: Piece) {
        let Some(pieces) = self.pieces.last_mut() else { return };
        match (pieces.last_mut(), piece) {
            (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(&text),
            (_, piece) => pieces.push(piece),
        }
    }

    fn turn(&mut self, at: Place, role: Role, said: &[Node]) -> Result<()> {
        let name = role.name();
        if let Some(outer) = self.role {
            return Err(wrong(at, format!("<{name}> inside <{}>: nobody speaks within another's words", outer.name())));
        }
        if self.tail.is_some() {
            return Err(wrong(at, behind("turn")));
        }
        self.make(at, 1, 0)?;
        self.deeper(at, 1)?;
        self.pieces.push(Vec::new());
        self.role = Some(role);
        self.nodes(said)?;
        self.role = None;
        let said = self.pieces.pop().unwrap_or_default();
        self.depth -= 1;
        match &mut self.tail {
            // It is the prompt's own.
            Some(tail) => tail.is_ended = true,
            None => self.push(Piece::Role(role, said)),
        }
        Ok(())
    }

    /// A string argument.
    pub(super) fn slot(&mut self, at: Place, name: &str, length: u32, like: Option<&String>) -> Result<()> {
        self.make(at, 2, name.len() + like.map_or(0, String::len))?;
        if let Some(tail) = &mut self.tail {
            if tail.is_ended {
                return Err(wrong(at, behind("argument")));
            }
            tail.pieces.push(Tailed::Argument(name.to_owned()));
            return Ok(());
        }
        let is_top = self.modules.len() == 1;
        self.deeper(at, 1 + usize::from(is_top))?;
        self.depth -= 1 + usize::from(is_top);
        let argument = name.to_owned();
        let like = like.cloned();
        if is_top {
            // A parameter stands in a module.
            let slot = Piece::Slot { parameter: attribute(name), argument, length, like };
            let part = Part { name: self.fresh(name), when: None, pieces: vec![slot] };
            self.push(Piece::Parts(vec![part]));
            return Ok(());
        }
        let parameter = match self.modules.last_mut() {
            Some(names) => numbered(&mut names.parameters, &mut names.numbers, &attribute(name)),
            None => argument.clone(),
        };
        self.push(Piece::Slot { parameter, argument, length, like });
        Ok(())
    }

    /// A text argument: from here on it is the prompt's own text.
    pub(super) fn ending(&mut self, at: Place, name: &str) -> Result<()> {
        self.make(at, 1, name.len())?;
        if self.tail.is_none() {
            if self.modules.len() > 1 {
                let why = "it is the prompt's own, and stands at the program's end, outside of conditions, loops, macros and files";
                return Err(wrong(at, format!("`{name}` is a text: {why}; an argument of `N tokens` can stand here")));
            }
            let mut tail = Tail { role: self.role, ..Tail::default() };
            if self.role.is_some() {
                for piece in self.pieces.last_mut().map(std::mem::take).unwrap_or_default() {
                    let Piece::Text(text) = piece else {
                        let why = "the turn that it stands in has nothing but text besides it; put the rest into a turn before";
                        return Err(wrong(at, format!("`{name}` is a text: {why}")));
                    };
                    tail.pieces.push(Tailed::Text(text));
                }
            }
            self.tail = Some(tail);
        }
        match &mut self.tail {
            Some(tail) if !tail.is_ended => {
                tail.pieces.push(Tailed::Argument(name.to_owned()));
                Ok(())
            }
            _ => Err(wrong(at, behind("text"))),
        }
    }

    /// Whether the prompt's own text has begun; a choice is written into that.
    pub(super) fn in_tail(&self) -> bool {
        self.tail.is_some()
    }

    /// What a module consists of, which `fill` states.
    pub(super) fn module(
        &mut self,
        at: Place,
        levels: usize,
        fill: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Vec<Piece>> {
        if self.tail.is_some() {
            return Err(wrong(at, behind("module")));
        }
        self.make(at, levels, 0)?;
        self.deeper(at, levels)?;
        self.modules.push(Taken::default());
        self.pieces.push(Vec::new());
        let mark = self.names.mark();
        fill(self)?;
        self.names.forget(mark);
        self.modules.pop();
        self.depth -= levels;
        Ok(self.pieces.pop().unwrap_or_default())
    }

    /// Modules of which one is taken; each gets the name that it asks for, with a number if that is taken.
    pub(super) fn parts(&mut self, at: Place, mut parts: Vec<Part>) -> Result<()> {
        for part in parts.iter_mut().filter(|part| !part.pieces.is_empty()) {
            part.name = self.fresh(&part.name);
            self.make(at, 0, part.name.len())?;
        }
        if parts.iter().any(|part| !part.pieces.is_empty()) {
            self.push(Piece::Parts(parts));
        }
        Ok(())
    }

    fn fresh(&mut self, base: &str) -> String {
        match self.modules.last_mut() {
            Some(names) => numbered(&mut names.modules, &mut names.numbers, base),
            None => base.to_owned(),
        }
    }

    fn deeper(&mut self, at: Place, levels: usize) -> Result<()> {
        self.depth += levels;
        if self.depth >= MAX_DEPTH {
            return Err(wrong(at, format!("modules are inside each other more than {MAX_DEPTH} deep here; nest less")));
        }
        Ok(())
    }

    fn include(&mut self, at: Place, file: &str) -> Result<()> {
        if !self.calls.is_empty() {
            return Err(wrong(at, "a macro includes no file; include it where the macro is called"));
        }
        if self.files.iter().any(|open| open == file) {
            return Err(wrong(at, format!("`{file}` includes itself: its module would be inside itself")));
        }
        let inner = |error: Error| Error::new(error.kind(), format!("{at}: in `{file}`: {error}"));
        let nodes = match self.read.get(file) {
            Some(nodes) => Rc::clone(nodes),
            None => {
                let text = self.sources.text(file);
                let text = text.map_err(|why| wrong(at, format!("`{file}` cannot be read: {why}")))?;
                if text.len() > MAX_DOCUMENT_BYTES {
                    return Err(wrong(at, format!("`{file}` has more than {MAX_DOCUMENT_BYTES} bytes")));
                }
                self.step(at, text.len() / 4)?;
                let nodes: Rc<[Node]> = parse(&text).map_err(inner)?.into();
                self.read.insert(file.to_owned(), Rc::clone(&nodes));
                nodes
            }
        };
        self.files.push(file.to_owned());
        let pieces = self.module(at, 1, |unroller| unroller.nodes(&nodes).map_err(inner))?;
        self.files.pop();
        let stem = file.rsplit('/').next().unwrap_or(file).split('.').next().unwrap_or(file);
        self.parts(at, vec![Part { name: slug(stem), when: None, pieces }])
    }
}

fn behind(what: &str) -> String {
    format!(
        "a {what} behind the prompt's own text; a text argument, and what is written beside it, is the last thing of a program"
    )
}

/// The name, or the first with a number that is not taken.
fn numbered(taken: &mut HashSet<String>, numbers: &mut HashMap<String, u32>, base: &str) -> String {
    if is_module_name(base) && taken.insert(base.to_owned()) {
        return base.to_owned();
    }
    let number = numbers.entry(base.to_owned()).or_insert(1);
    loop {
        *number += 1;
        let name = format!("{base}-{number}");
        if taken.insert(name.clone()) {
            return name;
        }
    }
}

/// The name of a parameter: XML keeps one for itself.
fn attribute(name: &str) -> String {
    if name == "xmlns" { "xmlns-argument".to_owned() } else { name.to_owned() }
}

/// A name of what may be any text.
pub(super) fn slug(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let mut name: String = text.chars().take(40).map(|c| if is_plain(c) { c } else { '-' }).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    name
}
