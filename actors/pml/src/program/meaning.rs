//! What an expression means: a value that is known, an argument, or a condition that arguments decide. What is known is worked out here.

use std::sync::Arc;

use super::declaration::{Kind, listed};
use super::expression::{Expression, Form};
use super::known::{Known, filtered};
use super::unroll::Unroller;
use crate::MAX_DOCUMENT_BYTES;
use crate::document::{Place, wrong};
use ragstone_env::Result;

/// Parts of a condition that a name stands for.
const MAX_CONDITION: usize = 100;

/// What an expression means.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    Known(Known),
    /// The argument of this name.
    Argument(Arc<str>, Arc<Kind>),
    Condition(Arc<Condition>),
}

/// What arguments decide.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    /// A flag is true.
    Flag(Arc<str>),
    /// A string is given, and not empty.
    Filled(Arc<str>),
    /// A choice has this value.
    Is(Arc<str>, Arc<str>),
    Not(Arc<Condition>),
    All(Vec<Arc<Condition>>),
    Any(Vec<Arc<Condition>>),
}

/// A condition, as far as it is known.
#[derive(Debug, Clone)]
pub(super) enum Decided {
    Known(bool),
    By(Arc<Condition>),
}

impl Meaning {
    /// What a name may stand for: conditions of conditions of conditions would take for ever to decide.
    ///
    /// # Errors
    /// `InvalidInput` if it is too large a condition.
    pub fn bound(self, at: Place) -> Result<Self> {
        match &self {
            Self::Condition(condition) if condition.size(MAX_CONDITION) >= MAX_CONDITION => {
                Err(wrong(at, "too long a condition for a name to stand for; write it where it is asked"))
            }
            _ => Ok(self),
        }
    }
}

impl Condition {
    /// Its parts, counted up to `most`.
    fn size(&self, most: usize) -> usize {
        let of = |parts: &[Arc<Self>]| {
            parts.iter().fold(1, |size, part| if size < most { size + part.size(most - size) } else { size })
        };
        match self {
            Self::Flag(_) | Self::Filled(_) | Self::Is(..) => 1,
            Self::Not(inner) => of(std::slice::from_ref(inner)),
            Self::All(parts) | Self::Any(parts) => of(parts),
        }
    }
}

impl Unroller<'_> {
    /// # Errors
    /// `InvalidInput` with its place: a name that is unknown, or what does not fit together.
    pub(super) fn meaning(&mut self, of: &Expression) -> Result<Meaning> {
        self.step(of.at, 1)?;
        match &of.form {
            Form::Text(text) => Ok(Meaning::Known(Known::text(text))),
            Form::Whole(whole) => Ok(Meaning::Known(Known::Whole(*whole))),
            Form::Truth(truth) => Ok(Meaning::Known(Known::Truth(*truth))),
            Form::Name(name) => {
                let meaning = self.names.named(of.at, name)?;
                if let Meaning::Condition(condition) = &meaning {
                    self.step(of.at, condition.size(MAX_CONDITION))?;
                }
                Ok(meaning)
            }
            Form::List(items) => {
                let items: Result<Vec<Known>> = items.iter().map(|item| self.written(item)).collect();
                Ok(Meaning::Known(Known::List(items?.into())))
            }
            Form::Item(whole, field) => {
                let (whole, field) = (self.known(whole)?, self.known(field)?);
                item(&whole, &field).map(Meaning::Known).map_err(|why| wrong(of.at, why))
            }
            Form::Filter(value, name, arguments) => {
                let value = self.known(value)?;
                let arguments: Result<Vec<Known>> = arguments.iter().map(|argument| self.known(argument)).collect();
                self.step(of.at, value.weight())?;
                let made = filtered(&value, name, &arguments?, MAX_DOCUMENT_BYTES);
                made.map(Meaning::Known).map_err(|why| wrong(of.at, why))
            }
            Form::Call(call) => {
                let why = "a macro stands alone in an output: {{ name(…) }}";
                Err(wrong(of.at, format!("`{}` is called inside something else; {why}", call.name)))
            }
            Form::Not(_) | Form::And(_) | Form::Or(_) | Form::Equal(..) | Form::In(..) => {
                Ok(match self.decided(of)? {
                    Decided::Known(truth) => Meaning::Known(Known::Truth(truth)),
                    Decided::By(condition) => Meaning::Condition(condition),
                })
            }
        }
    }

    /// A value that has to be known.
    pub(super) fn known(&mut self, of: &Expression) -> Result<Known> {
        match self.meaning(of)? {
            Meaning::Known(known) => Ok(known),
            Meaning::Argument(name, kind) => {
                let why = "fields, filters and lists are for what is known when the program is compiled";
                let what = kind.describe();
                Err(wrong(of.at, format!("`{name}` is an argument ({what}) and known when the prompt is made; {why}")))
            }
            Meaning::Condition(_) => Err(wrong(of.at, "a condition is no value; write {% if … %}")),
        }
    }

    /// An item of a list that is written in the program.
    fn written(&mut self, of: &Expression) -> Result<Known> {
        match self.known(of)? {
            item @ (Known::Text(_) | Known::Whole(_) | Known::Truth(_)) => Ok(item),
            other => {
                let why = "a list that is written in a program has strings and numbers; give others as JSON";
                Err(wrong(of.at, format!("{} in a list: {why}", other.kind())))
            }
        }
    }

    /// A condition.
    pub(super) fn decided(&mut self, of: &Expression) -> Result<Decided> {
        match &of.form {
            Form::Not(inner) => Ok(match self.decided(inner)? {
                Decided::Known(truth) => Decided::Known(!truth),
                Decided::By(condition) => Decided::By(Arc::new(Condition::Not(condition))),
            }),
            Form::And(all) => self.joined(all, false),
            Form::Or(any) => self.joined(any, true),
            Form::Equal(one, other) => {
                let (left, right) = (self.meaning(one)?, self.meaning(other)?);
                match (left, right) {
                    (Meaning::Known(left), Meaning::Known(right)) => {
                        self.equal(of.at, &left, &right).map(Decided::Known)
                    }
                    (Meaning::Argument(name, kind), Meaning::Known(value))
                    | (Meaning::Known(value), Meaning::Argument(name, kind)) => self.is(of.at, &name, &kind, &value),
                    _ => Err(wrong(of.at, "a choice is compared with a string: x == \"a\"")),
                }
            }
            Form::In(one, list) => {
                let Known::List(values) = self.known(list)? else {
                    return Err(wrong(list.at, "after `in` stands a list"));
                };
                self.among(of.at, one, &values)
            }
            _ => match self.meaning(of)? {
                Meaning::Known(known) => known.is_true().map(Decided::Known).map_err(|why| wrong(of.at, why)),
                Meaning::Condition(condition) => Ok(Decided::By(condition)),
                Meaning::Argument(name, kind) => match &*kind {
                    Kind::Flag => Ok(Decided::By(Arc::new(Condition::Flag(name)))),
                    Kind::Tokens { .. } | Kind::Text => Ok(Decided::By(Arc::new(Condition::Filled(name)))),
                    Kind::Choice(values) => {
                        Err(wrong(of.at, format!("`{name}` is one of {}; compare it: {name} == …", listed(values))))
                    }
                },
            },
        }
    }

    /// The whole of conditions of which any, or all, have to hold.
    fn joined(&mut self, parts: &[Expression], is_any: bool) -> Result<Decided> {
        let mut open = Vec::new();
        let mut is_settled = false;
        for part in parts {
            match self.decided(part)? {
                Decided::Known(truth) => is_settled |= truth == is_any,
                Decided::By(condition) => open.push(condition),
            }
        }
        Ok(match open.len() {
            _ if is_settled => Decided::Known(is_any),
            0 => Decided::Known(!is_any),
            1 => Decided::By(open.swap_remove(0)),
            _ => Decided::By(Arc::new(if is_any { Condition::Any(open) } else { Condition::All(open) })),
        })
    }

    fn equal(&mut self, at: Place, one: &Known, other: &Known) -> Result<bool> {
        self.step(at, one.weight().min(other.weight()) / 64)?;
        one.equals(other).map_err(|why| wrong(at, why))
    }

    /// Whether a choice has a value.
    fn is(&mut self, at: Place, name: &Arc<str>, kind: &Kind, value: &Known) -> Result<Decided> {
        let (Kind::Choice(values), Known::Text(text)) = (kind, value) else {
            let why = match kind {
                Kind::Choice(_) => format!("`{name}` is a string; compare it with one: {name} == \"…\""),
                Kind::Flag => format!("`{name}` is a flag; write `{name}` or `not {name}`"),
                _ => format!("only choices are compared: declare `{name}: one of \"…\", \"…\"`"),
            };
            return Err(wrong(at, why));
        };
        self.step(at, values.len())?;
        if !values.iter().any(|its| **its == **text) {
            return Err(wrong(at, format!("`{name}` is never {text:?}: it is one of {}", listed(values))));
        }
        Ok(Decided::By(Arc::new(Condition::Is(Arc::clone(name), (**text).into()))))
    }

    fn among(&mut self, at: Place, one: &Expression, list: &[Known]) -> Result<Decided> {
        match self.meaning(one)? {
            Meaning::Known(value) => {
                let mut is_there = false;
                for item in list {
                    self.step(at, 1)?;
                    is_there |= self.equal(at, &value, item)?;
                }
                Ok(Decided::Known(is_there))
            }
            Meaning::Argument(name, kind) => {
                let mut any = Vec::new();
                for value in list {
                    match self.is(at, &name, &kind, value)? {
                        Decided::By(condition) if !any.contains(&condition) => any.push(condition),
                        Decided::By(_) | Decided::Known(_) => {}
                    }
                }
                Ok(match any.len() {
                    0 => Decided::Known(false),
                    1 => Decided::By(any.swap_remove(0)),
                    _ => Decided::By(Arc::new(Condition::Any(any))),
                })
            }
            Meaning::Condition(_) => Err(wrong(at, "a condition is in no list")),
        }
    }
}

/// A field of an object, or an item of a list.
fn item(of: &Known, field: &Known) -> Result<Known, String> {
    match (of, field) {
        (Known::Map(map), Known::Text(name)) => map.get(&**name).cloned().ok_or_else(|| {
            let names: Vec<&str> = map.keys().map(String::as_str).take(20).collect();
            format!("there is no field `{name}`; there are: {}", names.join(", "))
        }),
        (Known::List(items), Known::Whole(index)) => {
            let item = usize::try_from(*index).ok().and_then(|index| items.get(index));
            item.cloned()
                .ok_or_else(|| format!("there is no item {index} in a list of {}, counted from 0", items.len()))
        }
        _ => Err(format!("{} has no fields by {}", of.kind(), field.kind())),
    }
}
