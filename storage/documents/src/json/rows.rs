//! Records without a text, as the rows of one table; as lines where they are too wide for that.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::said;
use crate::body::Body;

/// A wider table, or one with longer cells, is lines.
const MAX_COLUMNS: usize = 20;
const MAX_CELL_BYTES: usize = 300;
/// Objects in a record whose fields are cells.
const MAX_DEPTH: usize = 3;
const MAX_KEY_BYTES: usize = 200;

/// Fields and what they are, in the record's order.
pub type Row = Vec<(String, String)>;

/// Rows of one table.
#[derive(Debug, Default)]
pub struct Rows {
    columns: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Cells with the numbers of their columns.
    rows: Vec<Vec<(usize, String)>>,
    has_long: bool,
}

impl Rows {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn add(&mut self, row: Row) {
        let mut cells = Vec::with_capacity(row.len());
        for (key, value) in row {
            self.has_long |= value.len() > MAX_CELL_BYTES;
            let number = *self.numbers.entry(key).or_insert_with_key(|key| {
                self.columns.push(key.clone());
                self.columns.len() - 1
            });
            cells.push((number, value));
        }
        self.rows.push(cells);
    }

    pub fn put(&self, body: &mut Body) {
        let columns = self.columns.len();
        if self.rows.len() > 1 && (2..=MAX_COLUMNS).contains(&columns) && !self.has_long {
            body.begin_table(true);
            body.row(self.columns.iter().map(String::as_str), true);
            for row in &self.rows {
                let mut cells = vec![""; columns];
                for (number, value) in row {
                    if let Some(cell) = cells.get_mut(*number) {
                        *cell = value;
                    }
                }
                body.row(cells.into_iter(), false);
            }
            body.end_block();
            body.mark(crate::element::ElementKind::Text);
        } else {
            self.rows.iter().for_each(|row| self.put_lines(row, body));
        }
    }

    /// One record: its title is a heading where it has more than that.
    fn put_lines(&self, row: &[(usize, String)], body: &mut Body) {
        body.end_block();
        let name = |number: &usize| self.columns.get(*number).map(String::as_str).unwrap_or_default();
        let title =
            row.iter().position(|(number, value)| said::is_title(name(number)) && value.len() <= MAX_CELL_BYTES);
        let title = title.filter(|_| row.len() > 1 && self.rows.len() > 1);
        if let Some((_, title)) = title.and_then(|at| row.get(at)) {
            body.heading(2, title);
        }
        for (_, (number, value)) in row.iter().enumerate().filter(|(at, _)| title != Some(*at)) {
            body.line(&format!("{}: {value}", name(number)));
        }
        body.end_block();
    }
}

/// The fields of a record that has nothing but single values and lists of them; nothing where there is more.
pub fn flat(object: &Map<String, Value>) -> Option<Row> {
    let mut row = Row::new();
    flatten(object, "", MAX_DEPTH, &mut row).then_some(row)
}

fn flatten(object: &Map<String, Value>, prefix: &str, depth: usize, row: &mut Row) -> bool {
    object.iter().all(|(key, value)| {
        let key = format!("{prefix}{key}");
        match value {
            Value::Object(inner) if depth > 0 && key.len() <= MAX_KEY_BYTES => {
                flatten(inner, &format!("{key}."), depth - 1, row)
            }
            value => match cell(value) {
                Some(value) => {
                    row.extend(Some((key, value)).filter(|(_, value)| !value.is_empty()));
                    true
                }
                None => false,
            },
        }
    })
}

/// A single value, or a list of them, as text.
pub fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Bool(is) => Some(is.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Array(items) if items.iter().all(|item| !item.is_array() && !item.is_object()) => {
            let items: Option<Vec<String>> = items.iter().map(cell).collect();
            Some(items?.join(", "))
        }
        Value::Array(_) | Value::Object(_) => None,
    }
}
