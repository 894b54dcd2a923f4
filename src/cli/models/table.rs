//! Columns of text, as wide as what stands in them.

use std::fmt::Write;

/// Rows below their heads; the last column is as long as it is.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let length = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| length(&row[column]));
        cells.chain([length(heads[column])]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut out = String::new();
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    for row in [&heads].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
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

    #[test]
    fn columns_stand_below_each_other() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["longer".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["id", "size"], &rows), "id      size\na       1\nlonger  2\n");
        assert_eq!([bytes(5), bytes(2048), bytes(3 << 20), bytes(5 << 29)], ["5 B", "2 KiB", "3 MiB", "2.5 GiB"]);
    }
}
