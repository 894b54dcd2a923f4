//! Where the table of a sheet or of a delimited text begins: titles, dates and accounts stand above many a header.

/// Rows that are looked at.
pub const SAMPLE_ROWS: usize = 200;
/// A header stands among the first rows.
const MOST_ABOVE: usize = 30;
/// Rows below a header that say what its columns have.
const ROWS_BELOW: usize = 20;

/// A row that has something in it.
#[derive(Debug, Default)]
pub struct Row {
    /// Whether blank rows or lines stand above it.
    pub is_after_gap: bool,
    /// Its cells that are not blank, by their columns, in order.
    pub cells: Vec<(u32, String)>,
}

impl Row {
    fn cell(&self, column: u32) -> Option<&str> {
        let at = self.cells.binary_search_by_key(&column, |(column, _)| *column).ok()?;
        self.cells.get(at).map(|(_, text)| text.as_str())
    }
}

/// Where a table begins among its first rows.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// Rows of text above it.
    pub above: usize,
    /// Whether its first row names its columns.
    pub has_header: bool,
}

/// Finds the beginning: the first row that fills most columns, unless a row soon below it is a header and it is none. The first row of all is a
/// header whatever it says.
pub fn start(rows: &[Row]) -> Start {
    let columns = columns(rows);
    let filled = |row: &Row| columns.iter().filter(|column| row.cell(**column).is_some()).count();
    let Some(first) = rows.iter().take(MOST_ABOVE).position(|row| 2 * filled(row) > columns.len()) else {
        return Start { above: 0, has_header: rows.first().is_some_and(|row| row.cells.len() > 1) };
    };
    let is_text = |row: &Row| row.cells.iter().all(|(_, text)| is_name(text));
    let names = |at: usize| {
        let Some(row) = rows.get(at).filter(|row| is_text(row)) else { return false };
        let below = rows.get(at + 1..).unwrap_or_default().iter().take(ROWS_BELOW);
        row.cells.iter().any(|(column, _)| {
            let cells: Vec<&str> = below.clone().filter_map(|row| row.cell(*column)).collect();
            let values = cells.iter().filter(|text| is_value(text)).count();
            cells.first().is_some_and(|next| is_value(next)) && 2 * values >= cells.len()
        })
    };
    let top = &rows[first];
    let is_better = |at: usize| {
        let Some(row) = rows.get(at) else { return false };
        let is_wide = filled(row) >= filled(top) && 4 * filled(row) >= 3 * columns.len() && is_text(row);
        let is_after_gap = row.is_after_gap && rows.len() > at + 1 && (filled(row) > filled(top) || !is_text(top));
        is_wide && (names(at) && !names(first) || is_after_gap)
    };
    let better = (first + 1..rows.len().min(first + MOST_ABOVE / 3)).find(|at| is_better(*at));
    let above = better.unwrap_or(first);
    let has_header = above == 0 || rows.get(above).is_some_and(|row| 2 * names_of(row) > row.cells.len());
    Start { above, has_header }
}

fn names_of(row: &Row) -> usize {
    row.cells.iter().filter(|(_, text)| is_name(text)).count()
}

/// Columns that more than a few rows have.
fn columns(rows: &[Row]) -> Vec<u32> {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    for (column, _) in rows.iter().flat_map(|row| &row.cells) {
        *counts.entry(*column).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let least = if rows.len() > 4 { (most / 4).max(1) } else { 1 };
    counts.into_iter().filter(|(_, count)| *count >= least).map(|(column, _)| column).collect()
}

/// Whether it could name a column: no amount, no day, but perhaps a year.
pub fn is_name(text: &str) -> bool {
    let text = text.trim();
    let is_year = text.len() == 4 && text.parse::<u16>().is_ok_and(|year| (1800..=2200).contains(&year));
    is_year || !is_value(text)
}

/// Whether it is an amount, a day or the like.
fn is_value(text: &str) -> bool {
    let text = text.trim();
    let digits = text.chars().filter(char::is_ascii_digit).count();
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    let is_worded = text.starts_with(char::is_alphabetic) || letters >= 4 && letters > digits;
    digits > 0 && !is_worded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows a line, cells by `|`; blank lines are gaps.
    fn rows(text: &str) -> Vec<Row> {
        let (mut rows, mut is_after_gap) = (Vec::new(), false);
        for line in text.lines() {
            let cells = (0..).zip(line.split('|').map(|cell| cell.trim().to_owned()));
            let cells: Vec<(u32, String)> = cells.filter(|(_, text)| !text.is_empty()).collect();
            if !cells.is_empty() {
                rows.push(Row { is_after_gap, cells });
            }
            is_after_gap = line.trim().is_empty();
        }
        rows
    }

    fn found(text: &str) -> (usize, bool) {
        let Start { above, has_header } = start(&rows(text));
        (above, has_header)
    }

    #[test]
    fn titles_stand_above_headers() {
        assert_eq!(found("Stock\nof May\n\nPart|Shelf|Pieces\nBolt|4|20\nNut|5|30"), (2, true));
        assert_eq!(
            found("Konto|DE00 12\nVon|Januar bis Juni\n\nTag|Wer|Betrag\n1.4.2024|Ada|-3,5\n2.4.2024|Bo|9"),
            (2, true)
        );
        assert_eq!(found("Account|12345\n\nItem|Price\nTea|3.50\nRice|2.10"), (1, true));
        assert_eq!(found("Konto|DE00\nVon|Januar\n\nTag|Betrag\n1.4.2024|-3,5\n2.4.2024|9"), (2, true));
        assert_eq!(found("Stock||2024-05-01\nPart|Shelf|Pieces\nBolt|4|20\nNut|5|30"), (1, true));
        assert_eq!(found("Sales by year\nRegion|2023|2024\nNorth|5|6\nSouth|7|8"), (1, true));
        assert_eq!(found("Readings\n1|2.5\n2|2.6"), (1, false));
    }

    #[test]
    fn a_header_in_the_first_row_stays_one() {
        for text in [
            "Name|City\nAda|Bonn\nBo|Ulm",
            "Name|City\n\nAda|Bonn\nBo|Ulm",
            "|North|South\nTea|3|4\nRice|5|6",
            "Name|Age|\nAda|5|late\nBo|6|ill",
            "Name|2024-01-01|2024-01-08\nAda|x|y\nBo|y|x",
            "1|2\n3|4",
            "Name|Born\nAda|1815\nBo|1907\nCy|50",
            "Name|Remark\nAda\nBo\nCy\nDi\nEd|ill\nFlo",
            "Stone|Weight|Found||Sold|\nGranite|2.5|2026-03-03||TRUE|\n\nSlate|0.3|2026-03-04||FALSE|\n|||||far off",
        ] {
            assert_eq!(found(text), (0, true), "{text}");
        }
        assert_eq!(found(""), (0, false));
    }

    #[test]
    fn names_of_columns_are_no_amounts() {
        for name in ["Betrag", "2024", "Q1", "Price in EUR", "Zeitraum: 2024 bis 2025"] {
            assert!(is_name(name), "{name}");
        }
        for value in ["-148,26", "11.04.2024", "3 %", "12 kg", "1800.5", "88 km/h"] {
            assert!(!is_name(value), "{value}");
        }
    }
}
