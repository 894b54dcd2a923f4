//! Schemas and prompts written in code, for programs that embed ragstone.
//!
//! What is built is written as XML and parsed, so that nothing can be built that the parser refuses, and both ways give equal values.
//!
//! ```
//! use ragstone_pml::{Choice, Content, Picks};
//!
//! let schema = Content::new()
//!     .text("You plan trips.")
//!     .module("plan", Content::new().text("I travel for ").parameter("duration", 12).text("."))
//!     .union(Choice::new().member("lisbon", Content::new().text("To Lisbon.")).member("oslo", Content::new().text("To Oslo.")))
//!     .schema("trip")?;
//! let prompt = Picks::new()
//!     .import("plan", Picks::new().argument("duration", "3 days"))
//!     .import("lisbon", Picks::new())
//!     .text("What should I pack?")
//!     .prompt(&schema)?;
//! # assert_eq!(prompt.schema, "trip");
//! # Ok::<(), ragstone_env::Error>(())
//! ```

use std::collections::{HashMap, HashSet};

use super::document::{MAX_DEPTH, Place, is_char};
use super::prompt::{Import, PromptItem};
use super::schema::is_element_name;
use super::{Item, Module, Parameter, Prompt, Role, Schema, Union};
use ragstone_env::{Error, ErrorKind, Result};

/// What a schema, a module or a turn consists of, in order.
#[derive(Debug, Clone, Default)]
pub struct Content {
    items: Vec<Item>,
    scaffolds: Vec<Vec<String>>,
    built: Built,
}

/// Modules of which a prompt takes one at the most.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    members: Vec<Module>,
    scaffold: Option<String>,
    built: Built,
}

/// What a prompt, or one of its imports, takes and adds, in order.
#[derive(Debug, Clone, Default)]
pub struct Picks {
    items: Vec<PromptItem>,
    arguments: Vec<(String, String)>,
    built: Built,
}

/// What is known of something before it is written.
#[derive(Debug, Clone, Default)]
struct Built {
    /// Elements inside one another.
    depth: usize,
    /// The first mistake that its XML would not show.
    wrong: Option<String>,
}

impl Built {
    /// Something is put inside, as `levels` elements around it; whether there is room.
    fn holds(&mut self, inner: Self, levels: usize) -> bool {
        let depth = inner.depth + levels;
        if let Some(why) = inner.wrong {
            self.fail(why);
        }
        // The root is one more.
        if depth >= MAX_DEPTH {
            self.fail(format!("it is nested more than {MAX_DEPTH} deep; nest less"));
            return false;
        }
        self.depth = self.depth.max(depth);
        true
    }

    /// White space around a name would be gone when it is read.
    fn named(&mut self, name: &str) {
        if name.trim() != name {
            self.fail(format!("`{name}` is no name, as it has white space around it"));
        }
    }

    fn fail(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }
}

impl Content {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Text.
    #[must_use]
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        match self.items.last_mut() {
            _ if text.is_empty() => {}
            Some(Item::Text(before)) => before.push_str(text),
            _ => self.items.push(Item::Text(text.to_owned())),
        }
        self
    }

    /// What somebody says.
    #[must_use]
    pub fn role(mut self, role: Role, said: Self) -> Self {
        if let Some(items) = self.inside(said) {
            self.items.push(Item::Role(role, items));
        }
        self
    }

    /// A place for an argument of at most `length` tokens.
    #[must_use]
    pub fn parameter(self, name: impl Into<String>, length: u32) -> Self {
        self.place(name.into(), length, None)
    }

    /// A place for an argument, with what stands there while the module is computed.
    #[must_use]
    pub fn parameter_like(self, name: impl Into<String>, length: u32, scaffold: impl Into<String>) -> Self {
        self.place(name.into(), length, Some(scaffold.into()))
    }

    /// A module.
    #[must_use]
    pub fn module(self, name: impl Into<String>, content: Self) -> Self {
        self.with_module(name.into(), true, content)
    }

    /// A module whose KV is not kept.
    #[must_use]
    pub fn uncached_module(self, name: impl Into<String>, content: Self) -> Self {
        self.with_module(name.into(), false, content)
    }

    /// Modules that exclude each other.
    #[must_use]
    pub fn union(mut self, choice: Choice) -> Self {
        let Choice { members, scaffold, built } = choice;
        if self.built.holds(built, 1) {
            self.items.push(Item::Union(Union { scaffold, members }));
        }
        self
    }

    /// Modules that are computed together where a prompt imports all of them; of a schema itself only.
    #[must_use]
    pub fn scaffold<N: Into<String>>(mut self, modules: impl IntoIterator<Item = N>) -> Self {
        let modules: Vec<String> = modules.into_iter().map(Into::into).collect();
        if let Some(name) = modules.iter().find(|name| !is_element_name(name)) {
            self.built.fail(format!("`{name}` is no name for a module, and a scaffold names it"));
        }
        self.scaffolds.push(modules);
        self
    }

    /// The schema that consists of this.
    ///
    /// # Errors
    /// `InvalidInput` for whatever [`Schema::parse`] refuses: names that are taken, reserved or no names of XML elements, unions without members,
    /// parameters outside modules or of no length, turns within turns, scaffolds of modules that are not there, characters that XML has not, and
    /// documents that are too long or too deep.
    pub fn schema(self, name: impl Into<String>) -> Result<Schema> {
        let Self { items, scaffolds, built } = self;
        let schema = Schema { name: name.into(), items, scaffolds };
        let refused = |why: String| {
            Error::new(ErrorKind::InvalidInput, format!("the schema `{}` cannot be built: {why}", schema.name))
        };
        let xml = written(schema.to_xml(), built).map_err(refused)?;
        Schema::parse(&xml, &()).map_err(|error| refused(error.to_string()))
    }

    fn place(mut self, name: String, length: u32, scaffold: Option<String>) -> Self {
        self.built.named(&name);
        if self.built.holds(Built::default(), 1) {
            self.items.push(Item::Parameter(Parameter { name, length, scaffold }));
        }
        self
    }

    fn with_module(mut self, name: String, cache: bool, content: Self) -> Self {
        self.built.named(&name);
        if let Some(items) = self.inside(content) {
            self.items.push(Item::Module(Module { name, cache, items }));
        }
        self
    }

    fn inside(&mut self, content: Self) -> Option<Vec<Item>> {
        if !content.scaffolds.is_empty() {
            self.built.fail("a scaffold of modules is stated by the schema itself, not inside something".to_owned());
        }
        self.built.holds(content.built, 1).then_some(content.items)
    }
}

impl Choice {
    /// No member yet; there must be one.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more module.
    #[must_use]
    pub fn member(self, name: impl Into<String>, content: Content) -> Self {
        self.with(name.into(), true, content)
    }

    /// One more module, whose KV is not kept.
    #[must_use]
    pub fn uncached_member(self, name: impl Into<String>, content: Content) -> Self {
        self.with(name.into(), false, content)
    }

    /// The member that stands for all of them where something around them is computed.
    #[must_use]
    pub fn scaffold(mut self, name: impl Into<String>) -> Self {
        self.scaffold = Some(name.into());
        self
    }

    fn with(mut self, name: String, cache: bool, content: Content) -> Self {
        if !content.scaffolds.is_empty() {
            self.built.fail("a scaffold of modules is stated by the schema itself, not inside something".to_owned());
        }
        self.built.named(&name);
        if self.built.holds(content.built, 1) {
            self.members.push(Module { name, cache, items: content.items });
        }
        self
    }
}

impl Picks {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Text of the prompt's own; white space at its edges is dropped.
    #[must_use]
    pub fn text(mut self, text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        match self.items.last_mut() {
            _ if text.is_empty() => {}
            Some(PromptItem::Text(before)) => before.push_str(text),
            _ => self.items.push(PromptItem::Text(text.to_owned())),
        }
        self
    }

    /// What somebody says.
    #[must_use]
    pub fn role(mut self, role: Role, said: Self) -> Self {
        self.no_arguments(&said);
        if self.built.holds(said.built, 1) {
            self.items.push(PromptItem::Role(role, said.items));
        }
        self
    }

    /// A module, with the arguments, the inner modules and the text that `picks` has for it.
    #[must_use]
    pub fn import(mut self, module: impl Into<String>, picks: Self) -> Self {
        let Self { items, arguments, built } = picks;
        if self.built.holds(built, 1) {
            let at = Place { line: 0, column: 0 };
            self.items.push(PromptItem::Import(Import { name: module.into(), arguments, items, at }));
        }
        self
    }

    /// An argument of the module that these are imported with.
    #[must_use]
    pub fn argument(mut self, parameter: impl Into<String>, value: impl Into<String>) -> Self {
        self.arguments.push((parameter.into(), value.into()));
        self
    }

    /// These, then those.
    #[must_use]
    pub fn join(mut self, others: Self) -> Self {
        self.no_arguments(&others);
        if self.built.holds(others.built, 0) {
            for item in others.items {
                match item {
                    PromptItem::Text(text) => self = self.text(text),
                    item => self.items.push(item),
                }
            }
        }
        self
    }

    /// The prompt of `schema` that takes these.
    ///
    /// # Errors
    /// `InvalidInput` if it imports what `schema` has not, twice, or two members of a union, has an argument that is unknown or given twice, and for
    /// whatever [`Prompt::parse`] refuses. How long arguments are is known when they are tokens.
    pub fn prompt(mut self, schema: &Schema) -> Result<Prompt> {
        let nothing = Self::new();
        let own = std::mem::take(&mut self.arguments);
        self.no_arguments(&Self { arguments: own, ..nothing });
        let Self { items, built, .. } = self;
        let refused = |why: String| {
            let message = format!("the prompt of `{}` cannot be built: {why}", schema.name);
            Error::new(ErrorKind::InvalidInput, message)
        };
        check(&items, &schema.name, &mut Scope::of(&schema.items)).map_err(refused)?;
        let prompt = Prompt { schema: schema.name.clone(), items };
        let xml = written(prompt.to_xml(), built).map_err(refused)?;
        // Once more, as white space at edges is gone now, and places are those of what `to_xml` writes.
        let parsed = Prompt::parse(&xml).and_then(|prompt| Prompt::parse(&prompt.to_xml()));
        parsed.map_err(|error| refused(error.to_string()))
    }

    fn no_arguments(&mut self, of: &Self) {
        if let Some((name, _)) = of.arguments.first() {
            self.built.fail(format!("the argument `{name}` belongs to the import of a module"));
        }
    }
}

/// Modules that may be imported beside each other, and those that are.
struct Scope<'a> {
    modules: HashMap<&'a str, (&'a Module, Option<usize>)>,
    unions: usize,
    imported: HashSet<&'a str>,
    decided: HashSet<usize>,
}

impl<'a> Scope<'a> {
    fn of(items: &'a [Item]) -> Self {
        let mut scope = Self { modules: HashMap::new(), unions: 0, imported: HashSet::new(), decided: HashSet::new() };
        scope.note(items);
        scope
    }

    fn note(&mut self, items: &'a [Item]) {
        for item in items {
            match item {
                Item::Text(_) | Item::Parameter(_) => {}
                Item::Role(_, said) => self.note(said),
                Item::Module(module) => drop(self.modules.insert(&module.name, (module, None))),
                Item::Union(union) => {
                    let members = union.members.iter().map(|it| (it.name.as_str(), (it, Some(self.unions))));
                    self.modules.extend(members);
                    self.unions += 1;
                }
            }
        }
    }
}

fn check<'a>(items: &'a [PromptItem], within: &str, scope: &mut Scope<'a>) -> std::result::Result<(), String> {
    for item in items {
        let import = match item {
            PromptItem::Text(_) => continue,
            PromptItem::Role(_, said) => {
                check(said, within, scope)?;
                continue;
            }
            PromptItem::Import(import) => import,
        };
        let name = import.name.as_str();
        let Some(&(module, union)) = scope.modules.get(name) else {
            return Err(format!("`{within}` has no module `{name}`"));
        };
        if !scope.imported.insert(name) {
            return Err(format!("`{name}` is imported already"));
        }
        if union.is_some_and(|union| !scope.decided.insert(union)) {
            return Err(format!(
                "`{name}`: another member of its union is imported already, and they exclude each other"
            ));
        }
        let mut given = HashSet::new();
        for (parameter, _) in &import.arguments {
            if !has_parameter(&module.items, parameter) {
                return Err(format!("`{name}` has no parameter `{parameter}`"));
            }
            if !given.insert(parameter) {
                return Err(format!("`{name}` is given `{parameter}` twice"));
            }
        }
        check(&import.items, name, &mut Scope::of(&module.items))?;
    }
    Ok(())
}

fn has_parameter(items: &[Item], name: &str) -> bool {
    items.iter().any(|item| match item {
        Item::Parameter(parameter) => parameter.name == name,
        Item::Role(_, said) => has_parameter(said, name),
        Item::Text(_) | Item::Module(_) | Item::Union(_) => false,
    })
}

/// What was written, if XML has a way to.
fn written(xml: String, built: Built) -> std::result::Result<String, String> {
    if let Some(why) = built.wrong {
        return Err(why);
    }
    match xml.chars().find(|c| !is_char(*c)) {
        Some(c) => Err(format!("it has the character U+{:04X}, and XML has no way to write that", u32::from(c))),
        None => Ok(xml),
    }
}
