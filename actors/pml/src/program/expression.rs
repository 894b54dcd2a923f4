//! What stands between delimiters: names, literals, calls, filters and conditions; nothing is calculated.

use super::syntax::Parser;
use super::tokens::Token;
use crate::document::{Place, wrong};
use ragstone_env::Result;

/// Expressions inside one another, at the most.
const MAX_NESTING: usize = 32;
/// Values of a list, and arguments of a call, as they are written.
const MAX_VALUES: usize = 1000;

/// An expression.
#[derive(Debug)]
pub(super) struct Expression {
    pub at: Place,
    pub form: Form,
}

#[derive(Debug)]
pub(super) enum Form {
    Text(String),
    Whole(i64),
    Truth(bool),
    Name(String),
    List(Vec<Expression>),
    /// `of.name`, `of["name"]`, `of[0]`
    Item(Box<Expression>, Box<Expression>),
    Filter(Box<Expression>, String, Vec<Expression>),
    Call(Call),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Equal(Box<Expression>, Box<Expression>),
    In(Box<Expression>, Box<Expression>),
}

/// A macro that is called.
#[derive(Debug)]
pub(super) struct Call {
    pub name: String,
    pub arguments: Vec<Expression>,
    pub named: Vec<(String, Expression)>,
}

impl Parser {
    /// Reads an expression.
    ///
    /// # Errors
    /// `InvalidInput` with its place, and what to write instead.
    pub(super) fn expression(&mut self) -> Result<Expression> {
        self.deeper(MAX_NESTING)?;
        let expression = self.either();
        self.shallower();
        let expression = expression?;
        match self.peek() {
            Some((Token::Name(word), at)) if word == "if" => {
                Err(wrong(at, "a value that depends on a condition is written {% if … %}…{% else %}…{% endif %}"))
            }
            Some((Token::Name(word), at)) if word == "is" => {
                Err(wrong(at, "there are no tests; write the condition itself: `x`, `not x`, `x == \"a\"`"))
            }
            Some((Token::Symbol("+" | "-" | "*" | "/" | "//" | "%" | "**"), at)) => {
                Err(wrong(at, "a program does not calculate; write the result, or take it as an argument"))
            }
            Some((Token::Symbol("~"), at)) => {
                Err(wrong(at, "texts are joined by writing them one after the other: {{ a }}{{ b }}"))
            }
            Some((Token::Symbol("<" | ">" | "<=" | ">="), at)) => {
                Err(wrong(at, "nothing is greater or less in a program; compare with == and !="))
            }
            _ => Ok(expression),
        }
    }

    fn either(&mut self) -> Result<Expression> {
        let first = self.both()?;
        let at = first.at;
        let mut all = vec![first];
        while self.takes_name("or") {
            all.push(self.both()?);
        }
        Ok(one_or(all, at, Form::Or))
    }

    fn both(&mut self) -> Result<Expression> {
        let first = self.negation()?;
        let at = first.at;
        let mut all = vec![first];
        while self.takes_name("and") {
            all.push(self.negation()?);
        }
        Ok(one_or(all, at, Form::And))
    }

    fn negation(&mut self) -> Result<Expression> {
        let at = self.place();
        if !self.takes_name("not") {
            return self.comparison();
        }
        self.deeper(MAX_NESTING)?;
        let inner = self.negation();
        self.shallower();
        Ok(negated(inner?, at))
    }

    fn comparison(&mut self) -> Result<Expression> {
        let one = self.postfix()?;
        let at = one.at;
        let (is_in, is_negated) = match self.peek() {
            Some((Token::Symbol("=="), _)) => (false, false),
            Some((Token::Symbol("!="), _)) => (false, true),
            Some((Token::Name(word), _)) if word == "in" => (true, false),
            Some((Token::Name(word), _)) if word == "not" => (true, true),
            _ => return Ok(one),
        };
        self.skip();
        if is_in && is_negated && !self.takes_name("in") {
            return Err(wrong(self.place(), "`not` stands before what it denies, or in `not in`"));
        }
        let other = self.postfix()?;
        let is_compared_again = match self.peek() {
            Some((Token::Symbol("==" | "!="), _)) => true,
            Some((Token::Name(word), _)) => word == "in" || word == "not",
            _ => false,
        };
        if is_compared_again {
            return Err(wrong(self.place(), "compare two values at a time, and join the comparisons with `and`"));
        }
        let (one, other) = (Box::new(one), Box::new(other));
        let form = if is_in { Form::In(one, other) } else { Form::Equal(one, other) };
        let compared = Expression { at, form };
        Ok(if is_negated { negated(compared, at) } else { compared })
    }

    fn postfix(&mut self) -> Result<Expression> {
        let mut expression = self.primary()?;
        let at = expression.at;
        let (mut is_filtered, mut steps) = (false, 0);
        loop {
            steps += 1;
            if steps > MAX_NESTING {
                return Err(wrong(self.place(), "too many fields and filters of one value"));
            }
            let form = match self.peek() {
                Some((Token::Symbol("." | "["), place)) if is_filtered => {
                    return Err(wrong(place, "a filter's result has no fields"));
                }
                Some((Token::Symbol("."), _)) => {
                    self.skip();
                    let place = self.place();
                    let name = self.name("the name of a field")?;
                    Form::Item(Box::new(expression), Box::new(Expression { at: place, form: Form::Text(name) }))
                }
                Some((Token::Symbol("["), _)) => {
                    self.skip();
                    let index = self.expression()?;
                    self.expect("]")?;
                    Form::Item(Box::new(expression), Box::new(index))
                }
                Some((Token::Symbol("("), place)) => {
                    let Form::Name(name) = expression.form else {
                        return Err(wrong(place, "only macros are called"));
                    };
                    Form::Call(self.call(name)?)
                }
                Some((Token::Symbol("|"), _)) => {
                    self.skip();
                    is_filtered = true;
                    let name = self.name("the name of a filter")?;
                    let mut arguments = Vec::new();
                    if self.takes("(") {
                        arguments = self.values(")")?;
                    }
                    Form::Filter(Box::new(expression), name, arguments)
                }
                _ => return Ok(expression),
            };
            expression = Expression { at, form };
        }
    }

    fn call(&mut self, name: String) -> Result<Call> {
        self.expect("(")?;
        let mut call = Call { name, arguments: Vec::new(), named: Vec::new() };
        while !self.takes(")") {
            if !(call.arguments.is_empty() && call.named.is_empty()) {
                self.expect(",")?;
                if self.takes(")") {
                    break;
                }
            }
            let at = self.place();
            let value = self.expression()?;
            let is_named = self.takes("=");
            match value.form {
                Form::Name(name) if is_named => {
                    let value = self.expression()?;
                    if call.named.iter().any(|(its, _)| *its == name) {
                        return Err(wrong(at, format!("`{name}` is given twice")));
                    }
                    call.named.push((name, value));
                }
                _ if is_named => return Err(wrong(at, "before `=` stands the name of an argument")),
                _ if !call.named.is_empty() => {
                    return Err(wrong(at, "arguments without names stand before those with names"));
                }
                form => call.arguments.push(Expression { at, form }),
            }
            if call.arguments.len() + call.named.len() > MAX_VALUES {
                return Err(wrong(at, format!("a call has at most {MAX_VALUES} arguments")));
            }
        }
        Ok(call)
    }

    fn primary(&mut self) -> Result<Expression> {
        let (token, at) = self.next("a value")?;
        let form = match token {
            Token::Quoted(text) => Form::Text(text),
            Token::Whole(whole) => Form::Whole(whole),
            Token::Name(word) => match word.as_str() {
                "true" | "True" => Form::Truth(true),
                "false" | "False" => Form::Truth(false),
                "none" | "None" => {
                    return Err(wrong(at, "there is no `none`; write {% if … %} where something may be absent"));
                }
                "and" | "or" | "in" | "is" | "if" | "else" => {
                    return Err(wrong(at, format!("a value is expected before `{word}`")));
                }
                _ => Form::Name(word),
            },
            Token::Symbol("[") => Form::List(self.values("]")?),
            Token::Symbol("(") => {
                let inner = self.expression()?;
                if matches!(self.peek(), Some((Token::Symbol(","), _))) {
                    return Err(wrong(at, "a list stands in [ and ]"));
                }
                self.expect(")")?;
                inner.form
            }
            Token::Symbol("{") => {
                return Err(wrong(at, "objects come in lists that are given as JSON, not in the program"));
            }
            Token::Symbol("-" | "+") => {
                return Err(wrong(at, "a program does not calculate; write the result, or take it as an argument"));
            }
            other => return Err(wrong(at, format!("a value is expected, not {}", other.describe()))),
        };
        Ok(Expression { at, form })
    }

    fn values(&mut self, close: &'static str) -> Result<Vec<Expression>> {
        let mut values = Vec::new();
        while !self.takes(close) {
            if !values.is_empty() {
                self.expect(",")?;
                if self.takes(close) {
                    break;
                }
            }
            values.push(self.expression()?);
            if values.len() > MAX_VALUES {
                return Err(wrong(
                    self.place(),
                    format!("at most {MAX_VALUES} values are written in one place; give a list"),
                ));
            }
        }
        Ok(values)
    }
}

fn one_or(mut all: Vec<Expression>, at: Place, form: fn(Vec<Expression>) -> Form) -> Expression {
    match (all.len(), all.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            all.extend(last);
            Expression { at, form: form(all) }
        }
    }
}

fn negated(inner: Expression, at: Place) -> Expression {
    Expression { at, form: Form::Not(Box::new(inner)) }
}
