//! What a schema states: anonymous text, modules, unions of modules, parameters, and roles around them.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use super::document::{Child, Element, Place, read, wrong};
use ragstone_env::Result;

/// What all parameters of a schema reserve, in tokens: members of a union take the same positions, and each its memory.
const MOST_PARAMETER_TOKENS: usize = 1 << 20;
/// Scaffolds of a schema: each looks through all modules.
const MOST_SCAFFOLDS: usize = 256;

/// The longest argument that a parameter may have, in tokens.
pub(super) const MAX_PARAMETER_TOKENS: u32 = 1 << 16;

/// Elements that mean something of their own: no module has such a name, as a prompt imports modules by theirs.
const RESERVED: [&str; 10] =
    ["schema", "prompt", "module", "union", "parameter", "param", "scaffold", "system", "user", "assistant"];

/// Texts of files that a schema names (`src`).
pub trait Sources {
    /// The text of the file `name`.
    ///
    /// # Errors
    /// Why it is not to be had, for people.
    fn text(&self, name: &str) -> std::result::Result<String, String>;
}

/// No file may be named: a schema that came from elsewhere.
impl Sources for () {
    fn text(&self, _name: &str) -> std::result::Result<String, String> {
        Err("a schema may name files only where it is read from a file itself".to_owned())
    }
}

/// Bytes of all the texts that a schema takes from elsewhere, each time that it does.
const MOST_SOURCE_BYTES: usize = 8 << 20;

/// Texts that came with a schema, by the names that it has for them.
pub struct GivenSources<'a> {
    texts: &'a BTreeMap<String, String>,
    left: Cell<usize>,
}

impl<'a> GivenSources<'a> {
    /// These texts, each of which may be taken more than once, within a bound on what is taken.
    pub fn new(texts: &'a BTreeMap<String, String>) -> Self {
        Self { texts, left: Cell::new(MOST_SOURCE_BYTES) }
    }
}

impl Sources for GivenSources<'_> {
    fn text(&self, name: &str) -> std::result::Result<String, String> {
        let text = self.texts.get(name).ok_or("`sources` does not have it")?;
        let left = self.left.get().checked_sub(text.len());
        let left = left.ok_or_else(|| format!("the schema takes more than {MOST_SOURCE_BYTES} bytes of such texts"))?;
        self.left.set(left);
        Ok(text.clone())
    }
}

/// A schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// Its name, which prompts say.
    pub name: String,
    pub(super) items: Vec<Item>,
    pub(super) scaffolds: Vec<Vec<String>>,
}

/// A part of a schema or of a module.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Always in a prompt, if what it is part of is.
    Text(String),
    /// What somebody of a conversation says.
    Role(Role, Vec<Item>),
    /// A place for an argument.
    Parameter(Parameter),
    /// In a prompt that imports it.
    Module(Module),
    /// Of which a prompt imports one at the most.
    Union(Union),
}

/// Who says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// The role of an element.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "system" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            _ => None,
        }
    }

    /// Its name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A module.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// Its name, unique among the modules of what it is part of.
    pub name: String,
    /// Whether its KV is kept; if not, it is computed with every prompt.
    pub cache: bool,
    /// What it consists of, in order.
    pub items: Vec<Item>,
}

/// Modules that exclude each other, at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct Union {
    /// The member that stands for all of them where something around them is computed.
    pub scaffold: Option<String>,
    /// Its modules.
    pub members: Vec<Module>,
}

/// A place for an argument.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name, unique within its module.
    pub name: String,
    /// The longest argument, in tokens: so many positions are reserved.
    pub length: u32,
    /// What stands there while the module is computed, instead of placeholders.
    pub scaffold: Option<String>,
}

/// Names that are taken in one module: those of modules in it, those of its parameters.
#[derive(Default)]
struct Names {
    modules: HashSet<String>,
    parameters: HashSet<String>,
}

impl Schema {
    /// What it consists of, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Modules that are computed together, by the names of modules at the top, where a prompt imports all of them.
    pub fn scaffolds(&self) -> &[Vec<String>] {
        &self.scaffolds
    }

    /// Reads a schema.
    ///
    /// # Errors
    /// `InvalidInput` with line and column.
    pub fn parse(text: &str, sources: &dyn Sources) -> Result<Self> {
        let root = read(text)?;
        if root.name != "schema" {
            return Err(wrong(root.at, format!("a schema begins with <schema name=\"…\">, not <{}>", root.name)));
        }
        root.only(&["name"])?;
        let name = root.required("name")?.to_owned();
        let mut reader = Reader { sources, scaffolds: Vec::new(), role: None, reserved: 0 };
        let mut names = Names::default();
        let items = reader.items(&root, &mut names, true)?;
        for (scaffold, at) in &reader.scaffolds {
            if let Some(unknown) = scaffold.iter().find(|name| !names.modules.contains(*name)) {
                return Err(wrong(*at, format!("the scaffold names `{unknown}`, and the schema has no such module")));
            }
        }
        Ok(Self { name, items, scaffolds: reader.scaffolds.into_iter().map(|(names, _)| names).collect() })
    }
}

struct Reader<'a> {
    sources: &'a dyn Sources,
    scaffolds: Vec<(Vec<String>, Place)>,
    /// Whose words are read.
    role: Option<Role>,
    /// Tokens that parameters reserve so far.
    reserved: usize,
}

impl Reader<'_> {
    fn items(&mut self, of: &Element, names: &mut Names, is_top: bool) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(of.children.len());
        for child in &of.children {
            let element = match child {
                Child::Text(text) => {
                    match items.last_mut() {
                        // A `<scaffold>` stood between.
                        Some(Item::Text(before)) => before.push_str(text),
                        _ => items.push(Item::Text(text.clone())),
                    }
                    continue;
                }
                Child::Element(element) => element,
            };
            match element.name.as_str() {
                "module" => items.push(Item::Module(self.module(element, names)?)),
                "union" => items.push(Item::Union(self.union(element, names)?)),
                "parameter" | "param" => {
                    let parameter = parameter(element, names, is_top)?;
                    self.reserved += parameter.length as usize;
                    if self.reserved > MOST_PARAMETER_TOKENS {
                        let why = format!("a schema's parameters have at most {MOST_PARAMETER_TOKENS} tokens together");
                        return Err(wrong(element.at, why));
                    }
                    items.push(Item::Parameter(parameter));
                }
                "scaffold" if is_top => self.scaffold(element)?,
                name => match Role::of(name) {
                    Some(role) => {
                        element.only(&[])?;
                        if let Some(outer) = self.role {
                            let (inner, outer) = (role.name(), outer.name());
                            let why = "nobody speaks within another's words";
                            return Err(wrong(element.at, format!("<{inner}> inside <{outer}>: {why}")));
                        }
                        self.role = Some(role);
                        let said = self.items(element, names, is_top)?;
                        self.role = None;
                        items.push(Item::Role(role, said));
                    }
                    None => {
                        let known = "module, union, parameter, scaffold (at the top), system, user and assistant";
                        return Err(wrong(element.at, format!("a schema has no <{name}>; it has {known}")));
                    }
                },
            }
        }
        Ok(items)
    }

    fn module(&mut self, element: &Element, names: &mut Names) -> Result<Module> {
        element.only(&["name", "cache", "src"])?;
        let name = element.required("name")?.to_owned();
        if RESERVED.contains(&name.as_str()) {
            return Err(wrong(
                element.at,
                format!("a module cannot be called `{name}`: <{name}/> means something else"),
            ));
        }
        if !is_element_name(&name) {
            let why = "it has to be the name of an XML element, as prompts import it by <name/>";
            return Err(wrong(element.at, format!("`{name}` is no name for a module: {why}")));
        }
        if !names.modules.insert(name.clone()) {
            return Err(wrong(element.at, format!("another module is called `{name}` here; give it another name")));
        }
        let cache = match element.attribute("cache") {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => return Err(wrong(element.at, format!("`cache` is true or false, not `{other}`"))),
        };
        let mut own = Names::default();
        let mut items = self.items(element, &mut own, false)?;
        if let Some(source) = element.attribute("src") {
            let text = self.sources.text(source);
            let text = text.map_err(|why| wrong(element.at, format!("`{source}` cannot be read: {why}")))?;
            match items.first_mut() {
                Some(Item::Text(own)) => own.insert_str(0, &text),
                _ if text.is_empty() => {}
                _ => items.insert(0, Item::Text(text)),
            }
        }
        Ok(Module { name, cache, items })
    }

    fn union(&mut self, element: &Element, names: &mut Names) -> Result<Union> {
        element.only(&["scaffold"])?;
        let mut members = Vec::new();
        for child in &element.children {
            match child {
                Child::Text(text) if text.trim().is_empty() => {}
                Child::Element(member) if member.name == "module" => members.push(self.module(member, names)?),
                Child::Text(_) => {
                    return Err(wrong(element.at, "a union has modules only; put its text into one, or before it"));
                }
                Child::Element(other) => {
                    return Err(wrong(other.at, format!("a union has modules only, not <{}>", other.name)));
                }
            }
        }
        if members.is_empty() {
            return Err(wrong(element.at, "a union without modules"));
        }
        let scaffold = element.attribute("scaffold").map(str::to_owned);
        if let Some(name) = scaffold.as_ref().filter(|name| !members.iter().any(|member| member.name == **name)) {
            return Err(wrong(element.at, format!("the union's scaffold `{name}` is none of its modules")));
        }
        Ok(Union { scaffold, members })
    }

    fn scaffold(&mut self, element: &Element) -> Result<()> {
        element.only(&["modules"])?;
        element.empty()?;
        let names = element.required("modules")?.split([',', ' ', '\t', '\n', '\r']).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.len() < 2 {
            return Err(wrong(element.at, "a scaffold names at least two modules"));
        }
        if self.scaffolds.len() >= MOST_SCAFFOLDS {
            return Err(wrong(element.at, format!("a schema has at most {MOST_SCAFFOLDS} scaffolds")));
        }
        self.scaffolds.push((names, element.at));
        Ok(())
    }
}

fn parameter(element: &Element, names: &mut Names, is_top: bool) -> Result<Parameter> {
    // The paper writes <param len>, its implementation <parameter length>.
    element.only(&["name", "length", "len", "scaffold"])?;
    element.empty()?;
    if is_top {
        return Err(wrong(element.at, "a parameter stands in a module: who imports that gives its argument"));
    }
    let name = element.required("name")?.to_owned();
    // An attribute of that name declares a namespace.
    if !is_element_name(&name) || name == "xmlns" {
        return Err(wrong(
            element.at,
            format!("`{name}` is no name for a parameter: it has to be that of an attribute"),
        ));
    }
    if !names.parameters.insert(name.clone()) {
        return Err(wrong(element.at, format!("the module has another parameter `{name}`")));
    }
    let length = element.attribute("length").or_else(|| element.attribute("len"));
    let Some(length) = length else {
        return Err(wrong(element.at, format!("the parameter `{name}` needs a `length`, in tokens")));
    };
    let is_one = |length: &u32| (1..=MAX_PARAMETER_TOKENS).contains(length);
    let Some(length) = length.trim().parse().ok().filter(is_one) else {
        let bounds = format!("1 to {MAX_PARAMETER_TOKENS} tokens");
        return Err(wrong(element.at, format!("the length of the parameter `{name}` is {bounds}, not `{length}`")));
    };
    Ok(Parameter { name, length, scaffold: element.attribute("scaffold").map(str::to_owned) })
}

/// Whether a module can be called so.
pub(super) fn is_module_name(name: &str) -> bool {
    is_element_name(name) && !RESERVED.contains(&name)
}

/// Whether an XML element, or an attribute, can be called so (XML 1.0, `Name`, without colons).
pub(super) fn is_element_name(name: &str) -> bool {
    name.starts_with(begins_name) && name.chars().all(|c| begins_name(c) || continues_name(c))
}

fn begins_name(c: char) -> bool {
    matches!(c, 'A'..='Z' | '_' | 'a'..='z' | '\u{C0}'..='\u{D6}' | '\u{D8}'..='\u{F6}' | '\u{F8}'..='\u{2FF}' | '\u{370}'..='\u{37D}'
        | '\u{37F}'..='\u{1FFF}' | '\u{200C}'..='\u{200D}' | '\u{2070}'..='\u{218F}' | '\u{2C00}'..='\u{2FEF}' | '\u{3001}'..='\u{D7FF}'
        | '\u{F900}'..='\u{FDCF}' | '\u{FDF0}'..='\u{FFFD}' | '\u{10000}'..='\u{EFFFF}')
}

fn continues_name(c: char) -> bool {
    matches!(c, '-' | '.' | '0'..='9' | '\u{B7}' | '\u{300}'..='\u{36F}' | '\u{203F}'..='\u{2040}')
}
