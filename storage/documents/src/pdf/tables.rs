//! Rows of cells that stand below each other.

use super::rows::{Cell, Row};
use super::units::{leader, marker};

/// Cells are this many ems apart.
const APART: f32 = 0.9;
/// Rows that a table has at least.
const LEAST_ROWS: usize = 3;
/// Rows of a table are no farther from each other than this many ems.
const FAR: f32 = 4.0;
const MAX_COLUMNS: usize = 60;
/// Rows of which a quarter has several cells.
const SPARSE_ROWS: usize = 40;
/// Rows that are looked at for one table.
const MAX_ROWS: usize = 1000;

/// A table's cells by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub rows: Vec<Vec<String>>,
    pub has_header: bool,
}

/// Columns as far as they are known: where they are, and the rows' cells in them.
#[derive(Default)]
struct Grid {
    columns: Vec<(f32, f32)>,
    /// For each row its cells by their column's left edge when they came.
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// Takes a row if each of its cells is in a column of its own.
    fn take(&mut self, cells: Vec<Cell>) -> bool {
        let mut columns = self.columns.clone();
        for cell in &cells {
            let touched = |column: &(f32, f32)| cell.left < column.1 && column.0 < cell.right;
            let mut over = columns.iter_mut().filter(|column| touched(column));
            match (over.next(), over.next()) {
                (None, _) => {
                    let at = columns.partition_point(|column| column.0 < cell.left);
                    columns.insert(at, (cell.left, cell.right));
                }
                (Some(column), None) => *column = (column.0.min(cell.left), column.1.max(cell.right)),
                _ => return false,
            }
        }
        let are_apart = columns.windows(2).all(|pair| matches!(pair, [a, b] if a.1 < b.0));
        if !are_apart || columns.len() > MAX_COLUMNS {
            return false;
        }
        let column_of = |cell: &Cell| columns.iter().position(|column| cell.left < column.1 && column.0 < cell.right);
        let places: Vec<Option<usize>> = cells.iter().map(column_of).collect();
        if places.windows(2).any(|pair| matches!(pair, [a, b] if a >= b)) {
            return false;
        }
        self.columns = columns;
        self.rows.push(cells);
        true
    }

    fn texts(&self) -> Vec<Vec<String>> {
        let mut texts = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let mut cells = row.iter().peekable();
            let in_column = |column: &(f32, f32)| {
                cells.next_if(|cell| cell.left < column.1).map_or_else(String::new, |cell| cell.text.clone())
            };
            texts.push(self.columns.iter().map(in_column).collect());
        }
        texts
    }
}

/// The table that begins with the first of these rows, and how many rows it has. If none does: of how many rows.
pub fn table(rows: &[Row]) -> Result<(Table, usize), usize> {
    let mut grid = Grid::default();
    let mut last: Option<&Row> = None;
    let mut full = Vec::new();
    for row in rows.iter().take(MAX_ROWS) {
        let cells = row.cells(APART);
        let is_far = last.is_some_and(|last| last.base - row.base > FAR * row.size.max(last.size));
        let count = cells.len();
        if is_far || (grid.rows.is_empty() && count < 2) {
            break;
        }
        // A lone text at the left, or a wide one, is what comes after the table.
        let is_alone = count == 1 && grid.columns.first().is_some_and(|first| row.left() < first.1);
        if is_alone || !grid.take(cells) {
            break;
        }
        full.push(count >= 2);
        // Lone cells below each other are no table, and are looked at from each row anew.
        if full.len() > SPARSE_ROWS && full.iter().filter(|is_full| **is_full).count() * 4 < full.len() {
            break;
        }
        last = Some(row);
    }
    let taken = full.iter().rposition(|is_full| *is_full).map_or(0, |at| at + 1);
    grid.rows.truncate(taken);
    let is_full = full.iter().filter(|is_full| **is_full).count();
    if is_full < LEAST_ROWS || is_full * 2 < taken {
        return Err(1);
    }
    if !is_clear(&grid) {
        return Err(taken);
    }
    let has_header = rows.first().is_some_and(Row::is_bold) && !rows.get(1).is_some_and(Row::is_bold);
    let texts = grid.texts();
    let has_header = has_header || is_header(&texts);
    Ok((Table { rows: texts, has_header }, taken))
}

/// Not numbered lines, labels with what they say, or prose with wide blanks.
fn is_clear(grid: &Grid) -> bool {
    let texts = grid.texts();
    let first = texts.iter().filter_map(|row| row.first()).map(String::as_str).filter(|text| !text.is_empty());
    let first: Vec<&str> = first.collect();
    let most = |are: usize| are * 2 > first.len();
    let is_sign = |text: &str| text.chars().count() == 1 && !text.chars().any(char::is_alphanumeric);
    let is_marker = |text: &&&str| is_sign(text) || marker(text).is_some_and(|length| length == text.len());
    let labels = first.iter().filter(|text| text.ends_with(':')).count();
    let markers = first.iter().filter(is_marker).count();
    let numbers: Vec<u32> = first.iter().filter_map(|text| text.parse().ok()).collect();
    let counted = numbers.windows(2).filter(|pair| matches!(pair, [a, b] if *b == a.saturating_add(1))).count();
    let leaders = texts.iter().filter(|row| row.iter().any(|cell| leader(cell).is_some())).count();
    let columns = grid.columns.len();
    let cells = texts.iter().flatten().filter(|cell| !cell.is_empty()).count();
    cells * 2 > columns * texts.len()
        && leaders * 2 < texts.len()
        && !(columns == 2 && (most(labels) || most(markers) || most(counted + 1)))
}

/// Whether a first row without numbers stands above ones with numbers.
fn is_header(rows: &[Vec<String>]) -> bool {
    let has_digit = |row: &Vec<String>| row.iter().any(|cell| cell.chars().any(|letter| letter.is_ascii_digit()));
    let Some((first, rest)) = rows.split_first() else { return false };
    let named = first.iter().filter(|cell| !cell.is_empty()).count();
    !has_digit(first)
        && named * 2 > first.len()
        && rest.iter().filter(|row| has_digit(row)).count() * 3 > rest.len() * 2
}
