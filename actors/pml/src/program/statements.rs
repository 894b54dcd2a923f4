//! What outputs, conditions, loops and calls become.

use std::sync::Arc;

use super::declaration::Kind;
use super::expression::{Call, Expression, Form};
use super::known::Known;
use super::meaning::{Condition, Decided, Meaning};
use super::names::Binding;
use super::syntax::{For, If, Node};
use super::unroll::{Part, Unroller, slug};
use crate::document::{Place, wrong};
use ragstone_env::Result;

impl Unroller<'_> {
    pub(super) fn output(&mut self, expression: &Expression) -> Result<()> {
        let at = expression.at;
        if let Form::Call(call) = &expression.form {
            return self.call(at, call);
        }
        let (name, kind) = match self.meaning(expression)? {
            Meaning::Known(known) => {
                let text = known.written().map_err(|why| wrong(at, why))?;
                return self.text(at, &text);
            }
            Meaning::Condition(_) => return Err(wrong(at, "a condition is no text; write {% if … %}")),
            Meaning::Argument(name, kind) => (name, kind),
        };
        match &*kind {
            Kind::Tokens { length, like } => self.slot(at, &name, *length, like.as_ref()),
            Kind::Text => self.ending(at, &name),
            Kind::Flag => Err(wrong(at, format!("`{name}` is a flag and no text; write {{% if {name} %}}"))),
            // In the prompt's own text there are no modules.
            Kind::Choice(_) if self.in_tail() => self.slot(at, &name, 1, None),
            Kind::Choice(values) => {
                let mut parts = Vec::with_capacity(values.len());
                for value in values {
                    self.step(at, 1)?;
                    let pieces = self.module(at, 2, |unroller| unroller.text(at, value))?;
                    let when = Condition::Is(Arc::clone(&name), value.as_str().into());
                    parts.push(Part { name: base(&when), when: Some(Arc::new(when)), pieces });
                }
                self.parts(at, parts)
            }
        }
    }

    /// Of branches that arguments decide, modules; what is known to be so is taken as it stands.
    pub(super) fn conditional(&mut self, conditional: &If) -> Result<()> {
        let at = conditional.at;
        let mut open: Vec<(Arc<Condition>, &[Node])> = Vec::new();
        let mut otherwise: &[Node] = &conditional.otherwise;
        for (condition, body) in &conditional.branches {
            match self.decided(condition)? {
                Decided::Known(false) => {}
                Decided::Known(true) => {
                    otherwise = body;
                    break;
                }
                Decided::By(condition) => open.push((condition, body)),
            }
        }
        if open.is_empty() {
            return self.nodes(otherwise);
        }
        let levels = if open.len() == 1 && otherwise.is_empty() { 1 } else { 2 };
        let last = base_of_rest(&open);
        let mut parts = Vec::with_capacity(open.len() + 1);
        for (condition, body) in open {
            let pieces = self.module(at, levels, |unroller| unroller.nodes(body))?;
            parts.push(Part { name: base(&condition), when: Some(condition), pieces });
        }
        if !otherwise.is_empty() {
            let pieces = self.module(at, levels, |unroller| unroller.nodes(otherwise))?;
            parts.push(Part { name: last, when: None, pieces });
        }
        self.parts(at, parts)
    }

    /// A module for each item, which every prompt takes.
    pub(super) fn repeated(&mut self, repeated: &For) -> Result<()> {
        let at = repeated.at;
        let items = match self.known(&repeated.list)? {
            Known::List(items) => items,
            other => {
                return Err(wrong(repeated.list.at, format!("a loop goes over a list, not over {}", other.kind())));
            }
        };
        if items.is_empty() {
            return self.nodes(&repeated.otherwise);
        }
        for (index, item) in items.iter().enumerate() {
            self.step(at, 1)?;
            let pieces = self.module(at, 1, |unroller| {
                unroller.names.define(at, &repeated.item, Binding::Value(Meaning::Known(item.clone())))?;
                unroller.names.define_loop(index, items.len());
                unroller.nodes(&repeated.body)
            })?;
            let name = format!("{}-{}", repeated.item, index + 1);
            self.parts(at, vec![Part { name, when: None, pieces }])?;
        }
        Ok(())
    }

    /// A module, which every prompt takes that takes what it is called in.
    fn call(&mut self, at: Place, call: &Call) -> Result<()> {
        if self.calls.contains(&call.name) {
            return Err(wrong(at, format!("`{}` calls itself: its module would be inside itself", call.name)));
        }
        let (called, order) = self.names.macro_named(at, &call.name)?;
        if call.arguments.len() > called.parameters.len() {
            let (most, given) = (called.parameters.len(), call.arguments.len());
            return Err(wrong(at, format!("`{}` takes {most} arguments and is given {given}", call.name)));
        }
        let mut given: Vec<Option<Meaning>> = Vec::with_capacity(called.parameters.len());
        for argument in &call.arguments {
            given.push(Some(self.meaning(argument)?.bound(argument.at)?));
        }
        given.resize(called.parameters.len(), None);
        for (name, value) in &call.named {
            let Some(index) = called.parameters.iter().position(|(its, _)| its == name) else {
                return Err(wrong(value.at, format!("`{}` has no parameter `{name}`", call.name)));
            };
            if given[index].is_some() {
                return Err(wrong(value.at, format!("`{name}` is given twice")));
            }
            given[index] = Some(self.meaning(value)?.bound(value.at)?);
        }
        self.calls.push(call.name.clone());
        let hidden = self.names.hide_since(order);
        for ((name, default), value) in called.parameters.iter().zip(&mut given) {
            if value.is_none() {
                let Some(default) = default else {
                    return Err(wrong(at, format!("`{}` needs `{name}`", call.name)));
                };
                *value = Some(self.meaning(default)?);
            }
        }
        let pieces = self.module(at, 1, |unroller| {
            for ((name, _), value) in called.parameters.iter().zip(given) {
                if let Some(value) = value {
                    unroller.names.define(at, name, Binding::Value(value))?;
                }
            }
            unroller.nodes(&called.body)
        })?;
        self.names.show(hidden);
        self.calls.pop();
        self.parts(at, vec![Part { name: call.name.clone(), when: None, pieces }])
    }
}

/// The name of the module that a condition selects.
fn base(condition: &Condition) -> String {
    match condition {
        Condition::Flag(name) => name.to_string(),
        Condition::Filled(name) => format!("with-{name}"),
        Condition::Is(name, value) => format!("{name}-{}", slug(value).trim_start_matches('_')),
        Condition::Not(inner) => match &**inner {
            Condition::Not(_) | Condition::All(_) | Condition::Any(_) => "case".to_owned(),
            inner => format!("not-{}", base(inner)),
        },
        Condition::All(_) | Condition::Any(_) => "case".to_owned(),
    }
}

/// The name of the module that is selected where none of these conditions holds.
fn base_of_rest(open: &[(Arc<Condition>, &[Node])]) -> String {
    let choice = |condition: &Condition| match condition {
        Condition::Is(name, _) => Some(Arc::clone(name)),
        _ => None,
    };
    match open {
        [(only, _)] if matches!(**only, Condition::Flag(_) | Condition::Filled(_)) => format!("not-{}", base(only)),
        [(first, _), rest @ ..] => match choice(first) {
            Some(name) if rest.iter().all(|(it, _)| choice(it).as_ref() == Some(&name)) => format!("{name}-else"),
            _ => "else".to_owned(),
        },
        [] => "else".to_owned(),
    }
}
