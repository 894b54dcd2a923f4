//! A table of a page, with what its cells span.

use std::ops::Range;

use super::dom::Node;

/// What a cell spans at the most, as browsers bound it, and columns that are filled up.
const MAX_COLUMNS: usize = 1000;
const MAX_ROWS: usize = 65_534;
/// Of a cell that is said in each of its rows.
const MAX_SPANNED_BYTES: usize = 200;
/// What a cell takes beside its text.
const CELL_BYTES: usize = 32;

/// Cells as they are written: one that spans several columns or rows is one.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    /// Whether its first row names its columns.
    pub has_header: bool,
    /// Whether the next row is the first of a group.
    begins_group: bool,
}

#[derive(Debug)]
struct Row {
    cells: Vec<Cell>,
    begins_group: bool,
}

#[derive(Debug)]
struct Cell {
    text: String,
    columns: usize,
    rows: usize,
}

impl Table {
    /// Begins a group of rows: no cell above goes on in it.
    pub fn begin_group(&mut self) {
        self.begins_group = true;
    }

    pub fn begin_row(&mut self) {
        self.rows.push(Row { cells: Vec::new(), begins_group: std::mem::take(&mut self.begins_group) });
    }

    /// Puts a cell into the row that is being read.
    pub fn put(&mut self, cell: &Node, text: String) {
        self.has_header |= cell.name() == "th" && self.rows.len() <= 1;
        let columns = span(cell, "colspan").unwrap_or(1).clamp(1, MAX_COLUMNS);
        // None at all means all that follow in its group.
        let rows = span(cell, "rowspan").map_or(1, |rows| if rows == 0 { MAX_ROWS } else { rows.min(MAX_ROWS) });
        if let Some(row) = self.rows.last_mut() {
            row.cells.push(Cell { text, columns, rows });
        }
    }

    /// The texts of its cells, each once.
    pub fn cells(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.text.as_str())
    }

    /// Its rows, with each cell in its column: what goes down over several rows is said in each, what goes over several columns once, with
    /// empty cells behind it. `None` where what is filled up takes more bytes than there is `room`.
    pub fn lines(&self, room: &mut usize) -> Option<Vec<Vec<&str>>> {
        let mut grid = Grid { spans: Vec::new(), room };
        let (mut lines, mut ends) = (Vec::with_capacity(self.rows.len()), Vec::with_capacity(self.rows.len()));
        for (at, row) in self.rows.iter().enumerate() {
            if row.begins_group {
                grid.spans.clear();
            }
            let (line, end) = grid.line(row, at)?;
            lines.push(line);
            ends.push(end);
        }
        // A title that spans more columns than there are makes no more of them.
        let width = lines.iter().map(Vec::len).max().unwrap_or(0);
        for (line, end) in lines.iter_mut().zip(ends) {
            while line.len() < end.min(width) {
                grid.fill(line, "")?;
            }
        }
        Some(lines)
    }
}

/// What a cell says in the rows below it.
#[derive(Default, Clone)]
struct Span<'a> {
    rows: Range<usize>,
    text: &'a str,
}

/// Cells find their columns in it, row by row.
struct Grid<'a, 'r> {
    /// By column.
    spans: Vec<Span<'a>>,
    room: &'r mut usize,
}

impl<'a> Grid<'a, '_> {
    /// A row up to its last cell that says something, and where the cells behind that would begin.
    fn line(&mut self, row: &'a Row, at: usize) -> Option<(Vec<&'a str>, usize)> {
        let (mut line, mut column) = (Vec::with_capacity(row.cells.len()), 0);
        for cell in &row.cells {
            while self.above(column, at).is_some() {
                column += 1;
            }
            self.fill_to(&mut line, column, at)?;
            line.push(cell.text.as_str());
            self.spread(cell, column, at);
            column += cell.columns;
        }
        let goes_on = |column: &usize| self.above(*column, at).is_some_and(|text| !text.is_empty());
        // A row without cells only makes those above it higher.
        let last = (line.len()..self.spans.len()).rev().find(goes_on).filter(|_| !line.is_empty());
        if let Some(last) = last {
            self.fill_to(&mut line, last + 1, at)?;
        }
        Some((line, column))
    }

    /// What a cell above says in this column.
    fn above(&self, column: usize, at: usize) -> Option<&'a str> {
        self.spans.get(column).filter(|span| span.rows.contains(&at)).map(|span| span.text)
    }

    fn fill_to(&mut self, line: &mut Vec<&'a str>, column: usize, at: usize) -> Option<()> {
        while line.len() < column.min(MAX_COLUMNS) {
            let text = self.above(line.len(), at).unwrap_or_default();
            self.fill(line, text)?;
        }
        Some(())
    }

    fn fill(&mut self, line: &mut Vec<&'a str>, text: &'a str) -> Option<()> {
        *self.room = self.room.checked_sub(CELL_BYTES + text.len())?;
        line.push(text);
        Some(())
    }

    /// Notes that a cell goes on in the rows below.
    fn spread(&mut self, cell: &'a Cell, column: usize, at: usize) {
        let end = (column + cell.columns).min(MAX_COLUMNS);
        if cell.rows < 2 || column >= end {
            return;
        }
        if self.spans.len() < end {
            self.spans.resize(end, Span::default());
        }
        let rows = at + 1..at + cell.rows;
        self.spans[column..end].fill(Span { rows: rows.clone(), text: "" });
        let text = Some(cell.text.as_str()).filter(|text| text.len() <= MAX_SPANNED_BYTES).unwrap_or_default();
        self.spans[column] = Span { rows, text };
    }
}

/// What an attribute of a cell says, as browsers read it: `2px` is 2.
fn span(cell: &Node, name: &str) -> Option<usize> {
    let said = cell.attribute(name)?.trim_start();
    let end = said.find(|c: char| !c.is_ascii_digit()).unwrap_or(said.len());
    said[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 10_000;

    /// Rows of cells: columns, rows and text.
    fn table(rows: &[&[(usize, usize, &str)]]) -> Table {
        let mut table = Table::default();
        for row in rows {
            table.begin_row();
            let cells = row.iter().map(|(columns, rows, text)| {
                let text = (*text).to_owned();
                Cell { text, columns: *columns, rows: *rows }
            });
            table.rows.last_mut().unwrap().cells.extend(cells);
        }
        table
    }

    fn lines(table: &Table) -> Vec<String> {
        let mut room = ROOM;
        let lines = table.lines(&mut room).unwrap();
        lines.iter().map(|line| line.join("|")).collect()
    }

    #[test]
    fn cells_stand_in_their_columns() {
        let halls = table(&[
            &[(1, 1, "Hall"), (1, 1, "Tool"), (1, 1, "Shelf")],
            &[(1, 3, "North"), (1, 1, "Rake"), (1, 2, "4")],
            &[(1, 1, "Hoe")],
            &[(2, 1, "none")],
            &[(1, 1, "South"), (2, 1, "empty")],
        ]);
        assert_eq!(lines(&halls), ["Hall|Tool|Shelf", "North|Rake|4", "North|Hoe|4", "North|none|", "South|empty|"]);
        // Over rows and columns at once, and between cells.
        let both = table(&[
            &[(1, 2, "a"), (2, 2, "b"), (1, 1, "c"), (1, 2, "d")],
            &[(1, 1, "e")],
            &[],
            &[(4, 1, "f"), (1, 1, "g")],
        ]);
        assert_eq!(lines(&both), ["a|b||c|d", "a|b||e|d", "", "f||||g"]);
    }

    #[test]
    fn a_title_makes_no_columns_and_a_long_cell_is_said_once() {
        let long = "x".repeat(MAX_SPANNED_BYTES + 1);
        let titled = table(&[
            &[(1000, 1, "Stones")],
            &[(1, 1, "Name"), (3, 1, "Weight")],
            &[(1, 2, long.as_str()), (1, 1, "2")],
            &[(1, 1, "3")],
        ]);
        assert_eq!(lines(&titled), ["Stones|", "Name|Weight", &format!("{long}|2"), "|3"]);
    }

    #[test]
    fn no_group_goes_on_in_the_next() {
        let mut groups = table(&[&[(1, MAX_ROWS, "a"), (1, 1, "b")]]);
        groups.begin_group();
        groups.begin_row();
        groups.rows[1].cells.push(Cell { text: "c".into(), columns: 1, rows: 1 });
        assert_eq!(lines(&groups), ["a|b", "c"]);
    }

    #[test]
    fn what_is_filled_up_is_bounded() {
        let wide = vec![(MAX_COLUMNS, MAX_ROWS, "a"); 1000];
        assert!(table(&[wide.as_slice()]).lines(&mut 1_000_000).is_some_and(|lines| lines[0].len() < 3 * MAX_COLUMNS));
        let text = "x".repeat(MAX_SPANNED_BYTES);
        let all: Vec<(usize, usize, &str)> = vec![(1, MAX_ROWS, text.as_str()); MAX_COLUMNS];
        let one: &[(usize, usize, &str)] = &[(1, 1, "b")];
        let mut rows = vec![one; 1000];
        rows[0] = &all;
        let mut room = 1_000_000;
        assert!(table(&rows).lines(&mut room).is_none() && room < CELL_BYTES + MAX_SPANNED_BYTES);
    }
}
