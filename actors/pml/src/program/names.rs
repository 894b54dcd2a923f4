//! What names stand for. A name has one meaning at a time, so that scopes are told apart by nobody: what Jinja calls shadowing is refused.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::declaration::Declarations;
use super::known::Known;
use super::meaning::Meaning;
use super::syntax::Macro;
use crate::document::{Place, wrong};
use ragstone_env::Result;

/// What a name stands for.
pub(super) enum Binding {
    Value(Meaning),
    Macro(Rc<Macro>),
}

/// All that has a name.
#[derive(Default)]
pub(super) struct Names {
    /// With when it was introduced; the last one counts.
    bindings: HashMap<Rc<str>, Vec<(usize, Binding)>>,
    introduced: Vec<Rc<str>>,
    /// Of those, what a macro does not see: what came between its definition and its call.
    hidden: Range<usize>,
}

impl Names {
    /// What a program declares.
    pub fn of(declared: &Declarations) -> Self {
        let mut names = Self::default();
        for (name, kind) in &declared.arguments {
            names.introduce(name, Binding::Value(Meaning::Argument(name.as_str().into(), Arc::new(kind.clone()))));
        }
        for (name, list) in &declared.lists {
            names.introduce(name, Binding::Value(Meaning::Known(list.clone())));
        }
        names
    }

    fn introduce(&mut self, name: &str, binding: Binding) {
        let name: Rc<str> = name.into();
        self.bindings.entry(Rc::clone(&name)).or_default().push((self.introduced.len(), binding));
        self.introduced.push(name);
    }

    /// Gives a name a meaning, which it must not have yet.
    pub fn define(&mut self, at: Place, name: &str, binding: Binding) -> Result<()> {
        if self.seen(name).is_some() {
            return Err(wrong(at, format!("`{name}` stands for something already; take another name")));
        }
        self.introduce(name, binding);
        Ok(())
    }

    pub fn define_loop(&mut self, index: usize, length: usize) {
        let whole = |value: usize| Known::Whole(value as i64);
        let fields = [
            ("index", whole(index + 1)),
            ("index0", whole(index)),
            ("first", Known::Truth(index == 0)),
            ("last", Known::Truth(index + 1 == length)),
            ("length", whole(length)),
        ];
        let fields: BTreeMap<String, Known> = fields.map(|(name, value)| (name.to_owned(), value)).into();
        self.introduce("loop", Binding::Value(Meaning::Known(Known::Map(Rc::new(fields)))));
    }

    /// What was introduced so far, to [`forget`](Self::forget) what comes after.
    pub fn mark(&self) -> usize {
        self.introduced.len()
    }

    pub fn forget(&mut self, mark: usize) {
        for name in self.introduced.drain(mark..) {
            if let Some(stack) = self.bindings.get_mut(&name) {
                stack.pop();
            }
        }
    }

    /// What a name stands for here, and since when.
    fn seen(&self, name: &str) -> Option<&(usize, Binding)> {
        self.bindings.get(name)?.iter().rev().find(|(order, _)| !self.hidden.contains(order))
    }

    /// What a name in an expression means.
    pub fn named(&self, at: Place, name: &str) -> Result<Meaning> {
        match self.seen(name).map(|(_, binding)| binding) {
            Some(Binding::Value(meaning)) => Ok(meaning.clone()),
            Some(Binding::Macro(_)) => Err(wrong(at, format!("`{name}` is a macro; call it: {{{{ {name}(…) }}}}"))),
            None => {
                let declared = "declare it at the program's beginning, or set it before";
                Err(wrong(at, format!("nothing is called `{name}` here; {declared}")))
            }
        }
    }

    /// The macro of this name, and when it was defined.
    pub fn macro_named(&self, at: Place, name: &str) -> Result<(Rc<Macro>, usize)> {
        let defined = self.seen(name);
        match defined {
            Some((order, Binding::Macro(called))) => Ok((Rc::clone(called), *order)),
            Some(_) => Err(wrong(at, format!("`{name}` is no macro and cannot be called"))),
            None => Err(wrong(at, format!("no macro `{name}` is defined before this; there are no functions"))),
        }
    }

    /// Hides what was introduced since `order`, where a macro was defined that is called now. Returns what was hidden before.
    pub fn hide_since(&mut self, order: usize) -> Range<usize> {
        std::mem::replace(&mut self.hidden, order..self.introduced.len())
    }

    pub fn show(&mut self, hidden: Range<usize>) {
        self.hidden = hidden;
    }
}
