//! Lists for people: rows below their heads, in columns as wide as what stands in them. Programs take `--json`.

use std::fmt::Write;

use crate::output;
use console::{Alignment, measure_text_width, pad_str};
use serde::Serialize;

use crate::error::Result;

/// Rows below their heads. A column of numbers, some of which may be unknown (`-`, or nothing), is aligned on the right, the last one is as long as
/// it is.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let column = |index: usize| rows.iter().map(move |row| row[index].as_str());
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(index, head)| column(index).chain([*head]).map(measure_text_width).max().unwrap_or(0))
        .collect();
    let is_number = |cell: &str| {
        let digits = cell.strip_prefix(['+', '-']).unwrap_or(cell);
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let is_fit = |cell: &str| cell.is_empty() || cell == "-" || is_number(cell);
    let is_of_numbers = |index: usize| column(index).all(is_fit) && column(index).any(is_number);
    let align = |index: usize| if is_of_numbers(index) { Alignment::Right } else { Alignment::Left };
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let mut out = String::new();
    for row in [&heads].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(index, (cell, width))| pad_str(cell, *width, align(index), None));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Prints a list: for programs all of it as JSON, for people the cells of each row, or `none` where there is nothing.
pub fn print<T: Serialize>(
    list: &[T],
    json: bool,
    heads: &[&str],
    cells: impl Fn(&T) -> Vec<String>,
    none: &str,
) -> Result<()> {
    if json {
        return output::json(&list);
    }
    if list.is_empty() {
        return output::line(none);
    }
    output::text(&table(heads, &list.iter().map(cells).collect::<Vec<_>>()))
}

/// Bytes as people say them: `1.2 GiB`, `345 MiB`, `12 KiB`.
pub fn bytes(bytes: u64) -> String {
    let scaled = |power: u32| bytes as f64 / 1024_f64.powi(power as i32);
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.0} KiB", scaled(1)),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", scaled(2)),
        _ => format!("{:.1} GiB", scaled(3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[[&str; 3]]) -> Vec<Vec<String>> {
        cells.iter().map(|row| row.map(str::to_owned).into()).collect()
    }

    #[test]
    fn columns_stand_below_each_other() {
        let text = table(&["id", "passages", "title"], &rows(&[["a", "1", "Roof"], ["longer", "12.5", ""]]));
        assert_eq!(text, "id      passages  title\na              1  Roof\nlonger      12.5\n");
        // Characters that are two columns wide.
        let text = table(&["id", "of", ""], &rows(&[["漢字", "x", ""], ["abcd", "y", "in use"]]));
        assert_eq!(text, "id    of\n漢字  x\nabcd  y   in use\n");
        assert_eq!(table(&["id", "size"], &[]), "id  size\n");
        // What is not known of a column of numbers.
        let text =
            table(&["F1", "to full", "note"], &rows(&[["12813.2", "-0.5", ""], ["0.1", "-", ""], ["2", "", "-"]]));
        assert_eq!(text, "     F1  to full  note\n12813.2     -0.5\n    0.1        -\n      2           -\n");
    }

    #[test]
    fn bytes_have_the_unit_that_fits() {
        assert_eq!([bytes(5), bytes(2048), bytes(3 << 20), bytes(5 << 29)], ["5 B", "2 KiB", "3 MiB", "2.5 GiB"]);
    }
}
