//! A program's tokens to its statements.

use std::rc::Rc;

use super::declaration::is_name;
use super::expression::{Expression, Form};
use super::tokens::{Token, tokens};
use crate::Role;
use crate::document::{Place, wrong};
use ragstone_env::Result;

/// Statements inside one another, at the most.
const MAX_NESTING: usize = 32;
/// Branches of one `if`, at the most.
const MAX_BRANCHES: usize = 256;
/// Parameters of one macro, at the most.
const MAX_PARAMETERS: usize = 64;

/// A statement.
#[derive(Debug)]
pub(super) enum Node {
    Text(Place, String),
    /// What somebody says: `<user>…</user>`.
    Role(Place, Role, Vec<Node>),
    /// `{{ … }}`
    Output(Expression),
    If(If),
    For(For),
    Macro(Place, Rc<Macro>),
    Set(Place, String, Expression),
    Include(Place, String),
}

#[derive(Debug)]
pub(super) struct If {
    pub at: Place,
    pub branches: Vec<(Expression, Vec<Node>)>,
    pub otherwise: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct For {
    pub at: Place,
    pub item: String,
    pub list: Expression,
    pub body: Vec<Node>,
    pub otherwise: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub name: String,
    /// With what they are where a call does not say.
    pub parameters: Vec<(String, Option<Expression>)>,
    pub body: Vec<Node>,
}

/// Reads a program's statements.
///
/// # Errors
/// `InvalidInput` with its place, and what to write instead.
pub(super) fn parse(text: &str) -> Result<Vec<Node>> {
    let mut parser =
        Parser { tokens: tokens(text)?.into_iter().peekable(), last: Place { line: 1, column: 1 }, depth: 0 };
    let (nodes, end) = parser.body(None)?;
    match end {
        None => Ok(nodes),
        Some((word, at)) => Err(wrong(at, format!("nothing is open that {{% {word} %}} could belong to"))),
    }
}

/// Tokens that are left, and where the last one stood.
pub(super) struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<(Token, Place)>>,
    last: Place,
    depth: usize,
}

impl Token {
    /// For people.
    pub fn describe(&self) -> String {
        match self {
            Self::Text(_) => "text".to_owned(),
            Self::RoleOpens(role) => format!("<{}>", role.name()),
            Self::RoleCloses(role) => format!("</{}>", role.name()),
            Self::Output => "`{{`".to_owned(),
            Self::Block => "`{%`".to_owned(),
            Self::Close => "the end".to_owned(),
            Self::Name(name) => format!("`{name}`"),
            Self::Quoted(_) => "a string".to_owned(),
            Self::Whole(whole) => format!("`{whole}`"),
            Self::Symbol(symbol) => format!("`{symbol}`"),
        }
    }
}

impl Parser {
    pub(super) fn peek(&mut self) -> Option<(&Token, Place)> {
        self.tokens.peek().map(|(token, at)| (token, *at))
    }

    pub(super) fn place(&mut self) -> Place {
        self.tokens.peek().map_or(self.last, |(_, at)| *at)
    }

    pub(super) fn skip(&mut self) {
        if let Some((_, at)) = self.tokens.next() {
            self.last = at;
        }
    }

    pub(super) fn next(&mut self, wanted: &str) -> Result<(Token, Place)> {
        match self.tokens.next() {
            Some((token, at)) => {
                self.last = at;
                Ok((token, at))
            }
            None => Err(wrong(self.last, format!("the program ends where {wanted} is expected"))),
        }
    }

    pub(super) fn takes(&mut self, symbol: &str) -> bool {
        let is_it = matches!(self.peek(), Some((Token::Symbol(its), _)) if *its == symbol);
        if is_it {
            self.skip();
        }
        is_it
    }

    pub(super) fn takes_name(&mut self, word: &str) -> bool {
        let is_it = matches!(self.peek(), Some((Token::Name(its), _)) if its == word);
        if is_it {
            self.skip();
        }
        is_it
    }

    pub(super) fn expect(&mut self, symbol: &'static str) -> Result<()> {
        let wanted = format!("`{symbol}`");
        match self.next(&wanted)? {
            (Token::Symbol(its), _) if its == symbol => Ok(()),
            (other, at) => Err(wrong(at, format!("{wanted} is expected, not {}", other.describe()))),
        }
    }

    pub(super) fn name(&mut self, wanted: &str) -> Result<String> {
        match self.next(wanted)? {
            (Token::Name(name), _) => Ok(name),
            (other, at) => Err(wrong(at, format!("{wanted} is expected, not {}", other.describe()))),
        }
    }

    pub(super) fn deeper(&mut self, most: usize) -> Result<()> {
        self.depth += 1;
        if self.depth > most {
            return Err(wrong(self.place(), format!("more than {most} things are inside each other here; nest less")));
        }
        Ok(())
    }

    pub(super) fn shallower(&mut self) {
        self.depth -= 1;
    }

    /// A name that something is given.
    fn new_name(&mut self) -> Result<String> {
        let at = self.place();
        let name = self.name("a name")?;
        if is_name(&name) {
            return Ok(name);
        }
        Err(wrong(at, format!("`{name}` means something in Jinja; take another name")))
    }

    fn close(&mut self) -> Result<()> {
        match self.next("`%}`")? {
            (Token::Close, _) => Ok(()),
            (other, at) => Err(wrong(at, format!("the end of the block is expected, not {}", other.describe()))),
        }
    }

    /// Statements up to the end of a turn, or to a block that goes on or ends one: its word, read, and its place.
    fn body(&mut self, within: Option<Role>) -> Result<(Vec<Node>, Option<End>)> {
        let mut nodes = Vec::new();
        while let Some((token, at)) = self.tokens.next() {
            self.last = at;
            match token {
                Token::Text(text) => nodes.push(Node::Text(at, text)),
                Token::Output => {
                    nodes.push(Node::Output(self.expression()?));
                    self.close()?;
                }
                Token::RoleOpens(role) => {
                    self.deeper(MAX_NESTING)?;
                    let (said, end) = self.body(Some(role))?;
                    self.shallower();
                    if let Some((word, at)) = end {
                        let name = role.name();
                        return Err(wrong(
                            at,
                            format!("<{name}> is still open at {{% {word} %}}; end it with </{name}> first"),
                        ));
                    }
                    nodes.push(Node::Role(at, role, said));
                }
                Token::RoleCloses(role) if Some(role) == within => return Ok((nodes, None)),
                Token::RoleCloses(role) => {
                    let name = role.name();
                    return Err(wrong(at, format!("no <{name}> was opened here that </{name}> could end")));
                }
                Token::Block => match self.block(at)? {
                    Block::Statement(node) => nodes.push(node),
                    Block::Ends(word) => return Ok((nodes, Some((word, at)))),
                },
                other => return Err(wrong(at, format!("{} is not expected here", other.describe()))),
            }
        }
        match within {
            None => Ok((nodes, None)),
            Some(role) => Err(wrong(self.last, format!("<{0}> is not ended; write </{0}>", role.name()))),
        }
    }

    fn block(&mut self, at: Place) -> Result<Block> {
        let word = self.name("what the block is")?;
        self.deeper(MAX_NESTING)?;
        let node = match word.as_str() {
            "elif" | "else" | "endif" | "endfor" | "endmacro" => {
                self.shallower();
                return Ok(Block::Ends(word));
            }
            "if" => self.conditional(at)?,
            "for" => self.repeated(at)?,
            "macro" => self.definition(at)?,
            "set" => self.assignment(at)?,
            "include" => self.included(at)?,
            _ => return Err(wrong(at, instead(&word))),
        };
        self.shallower();
        Ok(Block::Statement(node))
    }

    fn conditional(&mut self, at: Place) -> Result<Node> {
        let mut parsed = If { at, branches: Vec::new(), otherwise: Vec::new() };
        loop {
            let condition = self.expression()?;
            self.close()?;
            let (body, end) = self.body(None)?;
            parsed.branches.push((condition, body));
            if parsed.branches.len() > MAX_BRANCHES {
                return Err(wrong(at, format!("an if has at most {MAX_BRANCHES} branches")));
            }
            match end.as_ref().map(|(word, _)| word.as_str()) {
                Some("elif") => {}
                Some("else") => {
                    self.close()?;
                    let (body, end) = self.body(None)?;
                    parsed.otherwise = body;
                    self.ended(at, "endif", end)?;
                    return Ok(Node::If(parsed));
                }
                _ => {
                    self.ended(at, "endif", end)?;
                    return Ok(Node::If(parsed));
                }
            }
        }
    }

    fn repeated(&mut self, at: Place) -> Result<Node> {
        let item = self.new_name()?;
        if self.takes(",") {
            return Err(wrong(at, "a loop has one name; take an item's fields apart where they are used: `item.name`"));
        }
        if !self.takes_name("in") {
            return Err(wrong(self.place(), "a loop is written {% for item in list %}"));
        }
        let list = match self.expression() {
            Err(_) if self.takes_name("if") => {
                return Err(wrong(self.last, "a loop takes its whole list; write {% if … %} inside it"));
            }
            other => other?,
        };
        if self.takes_name("recursive") {
            return Err(wrong(self.last, "a loop cannot contain itself; write the levels out"));
        }
        self.close()?;
        let (body, mut end) = self.body(None)?;
        let mut otherwise = Vec::new();
        if end.as_ref().is_some_and(|(word, _)| word == "else") {
            self.close()?;
            (otherwise, end) = self.body(None)?;
        }
        self.ended(at, "endfor", end)?;
        Ok(Node::For(For { at, item, list, body, otherwise }))
    }

    fn definition(&mut self, at: Place) -> Result<Node> {
        let name = self.new_name()?;
        self.expect("(")?;
        let mut parameters: Vec<(String, Option<Expression>)> = Vec::new();
        while !self.takes(")") {
            if !parameters.is_empty() {
                self.expect(",")?;
                if self.takes(")") {
                    break;
                }
            }
            let place = self.place();
            let parameter = self.new_name()?;
            if parameters.iter().any(|(its, _)| *its == parameter) || parameters.len() == MAX_PARAMETERS {
                let most = format!("a macro has at most {MAX_PARAMETERS} parameters, each of its own name");
                return Err(wrong(place, most));
            }
            let default = if self.takes("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(wrong(place, format!("`{parameter}` needs a value, as the parameter before it has one")));
            }
            parameters.push((parameter, default));
        }
        self.close()?;
        let (body, end) = self.body(None)?;
        self.ended(at, "endmacro", end)?;
        Ok(Node::Macro(at, Rc::new(Macro { name, parameters, body })))
    }

    fn assignment(&mut self, at: Place) -> Result<Node> {
        let name = self.new_name()?;
        if !self.takes("=") {
            return Err(wrong(
                self.place(),
                "a name is set to a value: {% set name = \"…\" %}; text in blocks is a macro",
            ));
        }
        let value = self.expression()?;
        self.close()?;
        Ok(Node::Set(at, name, value))
    }

    fn included(&mut self, at: Place) -> Result<Node> {
        let place = self.place();
        let Form::Text(file) = self.expression()?.form else {
            return Err(wrong(
                place,
                "the name of an included file is written as a string: {% include \"file.txt\" %}",
            ));
        };
        self.close()?;
        Ok(Node::Include(at, file))
    }

    /// Whether a block has ended as it should.
    fn ended(&mut self, at: Place, wanted: &str, end: Option<End>) -> Result<()> {
        match end {
            Some((word, _)) if word == wanted => self.close(),
            Some((word, place)) => {
                Err(wrong(place, format!("{{% {wanted} %}} is expected, for the block of {at}, not {{% {word} %}}")))
            }
            None => Err(wrong(at, format!("this is not ended; write {{% {wanted} %}}"))),
        }
    }
}

/// What ended a body, and where.
type End = (String, Place);

enum Block {
    Statement(Node),
    /// A block that goes on, or its end.
    Ends(String),
}

/// What to write instead of a statement that programs do not have.
fn instead(word: &str) -> String {
    let why = match word {
        "import" | "from" => "macros stand in the program itself; texts are included",
        "call" => "call macros in an output: {{ name(…) }}",
        "block" | "extends" => "a program is written in one piece; parts are macros or included",
        "with" => "write {% set name = \"…\" %}",
        "filter" => "filters are for values: {{ name|upper }}",
        "break" | "continue" => "a loop takes its whole list; write {% if … %} inside it",
        "do" => "a program does nothing but state its text",
        "autoescape" => "nothing is escaped in a prompt",
        _ => "there are if, for, macro, set, include and raw",
    };
    format!("a program has no {{% {word} %}}: {why}")
}
