//! What a program's pieces become: its schema, and a prompt for arguments.

use std::collections::BTreeMap;

use super::declaration::{Kind, allowed, listed};
use super::meaning::Condition;
use super::unroll::{Part, Piece, Tail, Tailed};
use crate::document::Place;
use crate::{Choice, Content, Picks};
use ragstone_env::{Error, ErrorKind, Result};

/// The schema's content.
pub(super) fn content(pieces: &[Piece]) -> Content {
    pieces.iter().fold(Content::new(), |content, piece| match piece {
        Piece::Text(text) => content.text(text),
        Piece::Role(role, said) => content.role(*role, self::content(said)),
        Piece::Slot { parameter, length, like: None, .. } => content.parameter(parameter, *length),
        Piece::Slot { parameter, length, like: Some(like), .. } => content.parameter_like(parameter, *length, like),
        Piece::Parts(parts) => {
            let parts: Vec<&Part> = parts.iter().filter(|part| !part.pieces.is_empty()).collect();
            match parts.as_slice() {
                [only] => content.module(&only.name, self::content(&only.pieces)),
                all => content.union(
                    all.iter()
                        .fold(Choice::new(), |choice, part| choice.member(&part.name, self::content(&part.pieces))),
                ),
            }
        }
    })
}

/// What is given to a program.
pub(super) struct Given<'a> {
    pub declared: &'a BTreeMap<String, Kind>,
    pub values: &'a BTreeMap<String, String>,
}

impl Given<'_> {
    /// Whether everything that is given may be.
    ///
    /// # Errors
    /// `InvalidInput` that names the argument.
    pub fn check(&self) -> Result<()> {
        for (name, value) in self.values {
            let Some(kind) = self.declared.get(name) else {
                let names: Vec<&str> = self.declared.keys().map(String::as_str).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(refused(format!("the program has no argument `{name}`; it has {known}")));
            };
            let fits = match kind {
                Kind::Flag => value == "true" || value == "false",
                Kind::Choice(values) => values.contains(value),
                Kind::Tokens { .. } | Kind::Text => true,
            };
            if !fits {
                return Err(refused(format!("the argument `{name}` is {}, not {value:?}", kind.describe())));
            }
            allowed(Place { line: 1, column: 1 }, value)
                .map_err(|_| refused(format!("the argument `{name}` has a character that no prompt can have")))?;
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<&str> {
        self.values.get(name).map(String::as_str).ok_or_else(|| {
            let what = match self.declared.get(name) {
                Some(Kind::Choice(values)) => format!("one of {}", listed(values)),
                Some(kind) => kind.describe(),
                None => "unknown".to_owned(),
            };
            refused(format!("the argument `{name}` ({what}) is not given"))
        })
    }

    fn holds(&self, condition: &Condition) -> Result<bool> {
        match condition {
            Condition::Flag(name) => Ok(self.values.get(&**name).is_some_and(|value| value == "true")),
            Condition::Filled(name) => Ok(self.values.get(&**name).is_some_and(|value| !value.is_empty())),
            Condition::Is(name, value) => Ok(self.value(name)? == &**value),
            Condition::Not(inner) => Ok(!self.holds(inner)?),
            Condition::All(all) => {
                for condition in all {
                    if !self.holds(condition)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Condition::Any(any) => {
                for condition in any {
                    if self.holds(condition)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// What a prompt takes.
    pub fn picks(&self, pieces: &[Piece], mut picks: Picks) -> Result<Picks> {
        for piece in pieces {
            picks = match piece {
                Piece::Text(_) => picks,
                Piece::Role(_, said) => self.picks(said, picks)?,
                Piece::Slot { parameter, argument, .. } => picks.argument(parameter, self.value(argument)?),
                Piece::Parts(parts) => match self.taken(parts)? {
                    Some(part) => picks.import(&part.name, self.picks(&part.pieces, Picks::new())?),
                    None => picks,
                },
            };
        }
        Ok(picks)
    }

    fn taken<'p>(&self, parts: &'p [Part]) -> Result<Option<&'p Part>> {
        for part in parts {
            let is_it = match &part.when {
                None => true,
                Some(condition) => self.holds(condition)?,
            };
            if is_it {
                return Ok(Some(part).filter(|part| !part.pieces.is_empty()));
            }
        }
        Ok(None)
    }

    /// The prompt's own text.
    pub fn tail(&self, tail: &Tail, picks: Picks) -> Result<Picks> {
        let mut own = Picks::new();
        for piece in &tail.pieces {
            own = match piece {
                Tailed::Text(text) => own.text(text),
                Tailed::Argument(name) => own.text(self.value(name)?),
            };
        }
        Ok(match tail.role {
            Some(role) => picks.role(role, own),
            None => picks.join(own),
        })
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, why)
}
