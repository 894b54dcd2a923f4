//! The cells of a sheet: merged ones filled, titles as text, then the table.

use std::collections::{BTreeSet, HashMap};

use crate::body::{Body, one_line};
use crate::header::{self, Row, SAMPLE_ROWS, Start};

/// Cells that merged ones may come to, and the bytes of one.
const MAX_FILLED_CELLS: usize = 200_000;
const MAX_FILLED_BYTES: usize = 500;

/// A row and a column.
pub type Place = (u32, u32);
/// The first and the last place of a region.
pub type Region = (Place, Place);

/// Cells that have something in them.
#[derive(Debug, Default)]
pub struct Grid {
    cells: Vec<(Place, String)>,
    is_sorted: bool,
}

impl Grid {
    /// Puts a text into a cell.
    pub fn add(&mut self, row: u32, column: u32, text: String) {
        self.cells.push(((row, column), text));
        self.is_sorted = false;
    }

    /// The text of a cell.
    pub fn at(&mut self, place: Place) -> Option<&mut String> {
        self.sort();
        let at = self.cells.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        self.cells.get_mut(at).map(|(_, text)| text)
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.cells.sort_by_key(|(place, _)| *place);
            self.cells.dedup_by_key(|(place, _)| *place);
            self.is_sorted = true;
        }
    }

    /// Repeats what is merged in each row that has more; what is merged to the right is said once.
    fn fill(&mut self, merged: &[Region]) {
        let rows: BTreeSet<u32> = self.cells.iter().map(|((row, _), _)| *row).collect();
        let mut filled = Vec::new();
        for ((top, column), (bottom, _)) in merged.iter().filter(|(start, end)| end.0 > start.0) {
            let Some(text) = self.at((*top, *column)).map(|text| text.clone()) else { continue };
            for row in rows.range(top + 1..=*bottom) {
                if filled.len() >= MAX_FILLED_CELLS || text.len() > MAX_FILLED_BYTES {
                    break;
                }
                filled.push(((*row, *column), text.clone()));
            }
        }
        // Where a cell has a text of its own, that comes first.
        self.cells.extend(filled);
        self.is_sorted = false;
    }

    /// Appends a sheet of this name: its titles, and its rows without the columns and rows that are empty.
    pub fn put(mut self, name: &str, merged: &[Region], body: &mut Body) {
        if self.cells.is_empty() {
            return;
        }
        self.fill(merged);
        self.sort();
        let columns: BTreeSet<u32> = self.cells.iter().map(|((_, column), _)| *column).collect();
        let mut rows = rows(self.cells);
        body.heading(1, name);
        if columns.len() == 1 {
            return rows.iter().flat_map(|(_, row)| &row.cells).for_each(|(_, text)| body.line(text));
        }
        let Start { above, has_header } = start(&rows, merged);
        let groups = above.checked_sub(1).and_then(|at| groups(&rows, at, merged));
        for (_, row) in rows.iter().take(above - usize::from(groups.is_some())) {
            let cells: Vec<String> = row.cells.iter().map(|(_, text)| one_line(text)).collect();
            body.line(&cells.join(" "));
        }
        if let (Some(groups), Some((_, header))) = (groups, rows.get_mut(above)) {
            for (column, text) in &mut header.cells {
                if let Some(group) = groups.get(column).filter(|group| *group != text) {
                    *text = format!("{group} {text}");
                }
            }
        }
        let used: BTreeSet<u32> =
            rows.iter().skip(above).flat_map(|(_, row)| row.cells.iter().map(|(column, _)| *column)).collect();
        if used.is_empty() {
            return;
        }
        body.begin_table(has_header);
        for (index, (_, row)) in rows.iter().enumerate().skip(above) {
            let mut cells = row.cells.iter().peekable();
            let texts = used.iter().map(|column| match cells.next_if(|(own, _)| own == column) {
                Some((_, text)) => text.as_str(),
                None => "",
            });
            body.row(texts, has_header && index == above);
        }
        body.end_block();
    }
}

fn rows(cells: Vec<(Place, String)>) -> Vec<(u32, Row)> {
    let mut rows: Vec<(u32, Row)> = Vec::new();
    for ((at, column), text) in cells {
        match rows.last_mut().filter(|(last, _)| *last == at) {
            Some((_, row)) => row.cells.push((column, text)),
            None => {
                let is_after_gap = rows.last().is_some_and(|(last, _)| at > last + 1);
                rows.push((at, Row { is_after_gap, cells: vec![(column, text)] }));
            }
        }
    }
    rows
}

/// Where the table begins: below a row of names of groups, if its first one is that.
fn start(rows: &[(u32, Row)], merged: &[Region]) -> Start {
    let sample: Vec<Row> = rows
        .iter()
        .take(SAMPLE_ROWS)
        .map(|(_, row)| Row { is_after_gap: row.is_after_gap, cells: row.cells.clone() })
        .collect();
    let found = header::start(&sample);
    let is_names =
        |at: usize| sample.get(at).is_some_and(|row| row.cells.iter().all(|(_, text)| header::is_name(text)));
    let is_wider = |at: usize| {
        let cells = |at: usize| sample.get(at).map_or(0, |row| row.cells.len());
        cells(at + 1) > cells(at)
    };
    let at = found.above;
    if groups(rows, at, merged).is_some() && is_wider(at) && is_names(at + 1) {
        return Start { above: at + 1, has_header: true };
    }
    found
}

/// The names that a row gives to groups of columns, where it gives such: by column.
fn groups(rows: &[(u32, Row)], at: usize, merged: &[Region]) -> Option<HashMap<u32, String>> {
    let ((row, names), (next, below)) = (rows.get(at)?, rows.get(at + 1)?);
    if *next != row + 1 {
        return None;
    }
    let mut groups = HashMap::new();
    for ((top, left), (_, right)) in merged.iter().filter(|(start, end)| start.0 == *row && end.1 > start.1) {
        let name = names.cells.iter().find(|(column, _)| column == left).filter(|_| top == row);
        for (column, _) in below.cells.iter().filter(|(column, _)| (left..=right).contains(&column)) {
            groups.extend(name.map(|(_, name)| (*column, one_line(name))));
        }
    }
    // One that spans all of it is a title.
    let is_title = names.cells.len() == 1 && groups.len() == below.cells.len();
    (!groups.is_empty() && !is_title).then_some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cells: &[(u32, u32, &str)], merged: &[Region]) -> String {
        let mut grid = Grid::default();
        cells.iter().for_each(|(row, column, text)| grid.add(*row, *column, (*text).to_owned()));
        let mut body = Body::default();
        grid.put("Sheet", merged, &mut body);
        body.finish().0
    }

    #[test]
    fn titles_stand_above_and_merged_cells_are_filled() {
        let cells = [
            (0, 0, "Stock of May"),
            (2, 0, "Hall"),
            (2, 1, "Thing"),
            (2, 2, "Pieces"),
            (3, 0, "North"),
            (3, 1, "Rake"),
            (3, 2, "4"),
            (4, 1, "Hoe"),
            (4, 2, "9"),
            (5, 0, "South"),
            (5, 1, "Winch"),
            (5, 2, "1"),
        ];
        let merged = [((0, 0), (0, 2)), ((3, 0), (4, 0)), ((5, 0), (u32::MAX, 0)), ((9, 9), (0, 0))];
        assert_eq!(
            text(&cells, &merged),
            "Sheet\n\nStock of May\n\n| Hall | Thing | Pieces |\n| --- | --- | --- |\n| North | Rake | 4 |\n\
             | North | Hoe | 9 |\n| South | Winch | 1 |"
        );
    }

    #[test]
    fn names_of_groups_stand_in_the_header() {
        let cells = [
            (0, 0, "Sales"),
            (1, 0, "Item"),
            (1, 1, "North"),
            (1, 3, "South"),
            (2, 1, "2023"),
            (2, 2, "2024"),
            (2, 3, "2023"),
            (2, 4, "2024"),
            (3, 0, "Tea"),
            (3, 1, "1"),
            (3, 2, "2"),
            (3, 3, "3"),
            (3, 4, "4"),
        ];
        let merged = [((0, 0), (0, 4)), ((1, 0), (2, 0)), ((1, 1), (1, 2)), ((1, 3), (1, 4))];
        assert_eq!(
            text(&cells, &merged),
            "Sheet\n\nSales\n\n| Item | North 2023 | North 2024 | South 2023 | South 2024 |\n| --- | --- | --- | --- | --- |\n\
             | Tea | 1 | 2 | 3 | 4 |"
        );
    }
}
