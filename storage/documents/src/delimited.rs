//! CSV, TSV and their like: one table, whose first row is its header; of one column, lines.

use super::body::Body;
use super::metadata::FileMetadata;
use super::parse::Parsed;

/// What the delimiter is guessed from.
const SAMPLE_LINES: usize = 20;
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Reads a table.
///
/// # Errors
/// Where a row cannot be read.
pub fn read(text: &str) -> Result<Parsed, String> {
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter(text))
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let mut body = Body::default();
    let (mut record, mut is_first, mut is_table) = (csv::StringRecord::new(), true, false);
    while reader.read_record(&mut record).map_err(|error| format!("not readable as CSV: {error}"))? {
        if record.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        if is_first && record.len() > 1 {
            is_table = true;
            body.begin_table(true);
        }
        if is_table {
            body.row(record.iter(), is_first);
        } else {
            record.iter().for_each(|cell| body.line(cell));
        }
        is_first = false;
    }
    Ok(Parsed::of(None, body, FileMetadata::default()))
}

/// The one that cuts the first lines into most parts, equally many each.
fn delimiter(text: &str) -> u8 {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).take(SAMPLE_LINES).collect();
    let score = |delimiter: u8| {
        let counts = || lines.iter().map(|line| line.bytes().filter(|byte| *byte == delimiter).count());
        let first = counts().next().unwrap_or(0);
        // How many lines have as many as the first one counts before how many they have.
        if first == 0 { (0, 0) } else { (counts().filter(|count| *count == first).count(), first) }
    };
    DELIMITERS.into_iter().rev().max_by_key(|delimiter| score(*delimiter)).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_stands_between_cells() {
        let expected = "| stone | weight |\n| --- | --- |\n| granite, grey | 2 |\n| slate |";
        for source in [
            "stone,weight\n\"granite, grey\",2\nslate\n",
            "stone;weight\r\n\r\ngranite, grey;2\r\nslate",
            "stone\tweight\ngranite, grey\t2\nslate",
        ] {
            assert_eq!(read(source).unwrap().text, expected, "{source}");
        }
        assert_eq!(read("\n").unwrap().text, "");
        assert_eq!(read("stone\ngranite\n").unwrap().text, "stone\ngranite");
    }
}
