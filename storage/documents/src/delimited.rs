//! CSV, TSV and their like: one table with its header, and above it the lines that exports begin with; of one column, lines.

mod quotes;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use self::quotes::mended;
use super::body::{Body, one_line};
use super::header::{self, Row, SAMPLE_ROWS, Start};
use super::json::{Bad, RecordFields, Records};
use super::metadata::FileMetadata;
use super::parse::{Each, Parsed};

/// Where two cut a text alike, the earlier one does: commas stand in texts, too.
const DELIMITERS: [u8; 4] = [b'\t', b';', b'|', b','];
/// Cells of a row that are looked at for the header.
const SAMPLE_CELLS: usize = 1000;

/// Reads a table.
///
/// # Errors
/// Where a row cannot be read.
pub fn read(text: &str) -> Result<Parsed, String> {
    let (said, text) = said_delimiter(text);
    let Some(delimiter) = said.or_else(|| guessed_delimiter(text)) else { return Ok(lines(text)) };
    let text = mended(text, delimiter);
    let Start { above, has_header } = header::start(&sample(&text, delimiter)?);
    let (mut body, mut rows) = (Body::default(), 0);
    each(&text, delimiter, |record| {
        if rows < above {
            let cells: Vec<String> = record.iter().map(one_line).filter(|cell| !cell.is_empty()).collect();
            body.line(&cells.join(if delimiter == b',' { ", " } else { " " }));
        } else {
            if rows == above {
                body.begin_table(has_header);
            }
            body.row(record.iter(), has_header && rows == above);
        }
        rows += 1;
        true
    })?;
    Ok(Parsed::of(None, body, FileMetadata::default()))
}

/// Reads rows as records of the fields that the header names, one document a row; what it returns is wrong with some of them.
///
/// # Errors
/// Where no row names the columns, or a row cannot be read; or what `each` says.
pub fn records(text: &str, fields: &RecordFields, each: Each<'_>) -> Result<Option<String>, String> {
    let (said, text) = said_delimiter(text);
    // Of one column: no text has this character.
    let delimiter = said.or_else(|| guessed_delimiter(text)).unwrap_or(0);
    let text = mended(text, delimiter);
    let Start { above, has_header } = header::start(&sample(&text, delimiter)?);
    // One column has its name in the first line.
    if !has_header && delimiter != 0 {
        return Err(
            "no row names its columns, so that no field can be found by its name; write one above the others".into()
        );
    }
    let (mut bad, mut records) = (Bad::default(), Records::of(fields, Vec::new()));
    let (mut names, mut rows, mut stopped) = (Vec::new(), 0, Ok(()));
    self::each(&text, delimiter, |row| {
        if rows == above {
            names = column_names(row);
        } else if rows > above {
            let line = row.position().map_or(0, csv::Position::line);
            let cells = names.iter().zip(row).filter(|(name, cell)| !name.is_empty() && !cell.trim().is_empty());
            let object = cells.map(|(name, cell)| (name.clone(), Value::from(cell.trim()))).collect();
            match records.take(Value::Object(object), format!("L{line}")) {
                Ok(Some(mut parsed)) => {
                    if row.iter().skip(names.len()).any(|cell| !cell.trim().is_empty()) {
                        parsed.left_out.push(format!("cells behind the last column that has a name, in line {line}"));
                    }
                    stopped = each(parsed);
                }
                Ok(None) => {}
                Err(why) => bad.note(|| format!("line {line}: {why}")),
            }
        }
        rows += 1;
        stopped.is_ok()
    })?;
    stopped?;
    records.finish(&mut bad, each)?;
    Ok(bad.told("lines"))
}

/// The names of columns: those of one name are counted, so that none takes another's place.
fn column_names(row: &csv::StringRecord) -> Vec<String> {
    let names: Vec<String> = row.iter().map(|name| one_line(name.trim_start_matches('\u{feff}'))).collect();
    // A name that is made may be another column's, too.
    let mut known: HashSet<String> = names.iter().cloned().collect();
    let mut times = HashMap::<&str, usize>::new();
    let counted = names.iter().map(|name| {
        let time = times.entry(name).or_default();
        *time += 1;
        if *time == 1 || name.is_empty() {
            return name.clone();
        }
        let mut made = format!("{name} ({time})");
        while !known.insert(made.clone()) {
            *time += 1;
            made = format!("{name} ({time})");
        }
        made
    });
    counted.collect()
}

fn lines(text: &str) -> Parsed {
    let mut body = Body::default();
    let text = mended(text, b'\n');
    let mut reader = reader(&text, b'\n');
    let mut record = csv::StringRecord::new();
    while let Ok(true) = reader.read_record(&mut record) {
        record.iter().for_each(|cell| body.line(cell));
    }
    Parsed::of(None, body, FileMetadata::default())
}

/// The delimiter that a first line such as `sep=;` says, and the text below it.
fn said_delimiter(text: &str) -> (Option<u8>, &str) {
    let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
    let line = line.trim_end_matches('\r').trim_matches('"');
    let said = line.get(..4).filter(|head| head.eq_ignore_ascii_case("sep=")).and_then(|_| line.as_bytes().get(4));
    // Other programs leave the delimiters of the table behind it.
    match said {
        Some(delimiter) if line.bytes().skip(5).all(|byte| byte == *delimiter) && is_delimiter(*delimiter) => {
            (Some(*delimiter), rest)
        }
        _ => (None, text),
    }
}

fn is_delimiter(byte: u8) -> bool {
    byte.is_ascii() && !byte.is_ascii_alphanumeric() && !matches!(byte, b'"' | b'\n' | b'\r')
}

fn reader(text: &str, delimiter: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().delimiter(delimiter).has_headers(false).flexible(true).from_reader(text.as_bytes())
}

/// Hands rows that are not blank to `take`, until it wants no more.
fn each(text: &str, delimiter: u8, mut take: impl FnMut(&csv::StringRecord) -> bool) -> Result<(), String> {
    let mut reader = reader(text, delimiter);
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| format!("not readable as CSV: {error}"))? {
        if record.iter().any(|cell| !cell.trim().is_empty()) && !take(&record) {
            break;
        }
    }
    Ok(())
}

fn sample(text: &str, delimiter: u8) -> Result<Vec<Row>, String> {
    let (mut rows, mut next_line) = (Vec::new(), None);
    each(text, delimiter, |record| {
        let cells = record.iter().zip(0..).take(SAMPLE_CELLS).filter(|(cell, _)| !cell.trim().is_empty());
        let cells: Vec<(u32, String)> = cells.map(|(cell, column)| (column, cell.to_owned())).collect();
        let line = record.position().map_or(0, csv::Position::line);
        let is_after_gap = next_line.is_some_and(|next| line > next);
        next_line = Some(line + 1 + record.iter().map(|cell| cell.matches('\n').count() as u64).sum::<u64>());
        rows.push(Row { is_after_gap, cells });
        rows.len() < SAMPLE_ROWS
    })?;
    Ok(rows)
}

/// How a delimiter cuts a text.
struct Cut {
    delimiter: u8,
    /// Rows of the most frequent number of cells, from 2 on, for each thousand rows.
    share: usize,
    cells: usize,
    /// Whether the delimiters are mostly those of prose and numbers: `1,5`, `Lind, Ada`.
    is_prose: bool,
}

/// The one that cuts most rows into equally many parts, as many as can be; `None` where there is one column.
fn guessed_delimiter(text: &str) -> Option<u8> {
    let mut cuts: Vec<Cut> = DELIMITERS.into_iter().filter_map(|delimiter| cut(text, delimiter)).collect();
    let best = cuts.iter().map(|cut| cut.share).max()?;
    cuts.retain(|cut| 10 * cut.share >= 7 * best);
    if cuts.iter().any(|cut| !cut.is_prose) {
        cuts.retain(|cut| !cut.is_prose);
    }
    let first = cuts.into_iter().rev().max_by_key(|cut| (cut.share * (cut.cells - 1), cut.cells))?;
    let is_table = first.share >= 500 || {
        let mut head = 0;
        each(&mended(text, first.delimiter), first.delimiter, |record| {
            head = record.len();
            false
        })
        .ok()?;
        head > 1
    };
    is_table.then_some(first.delimiter)
}

fn cut(text: &str, delimiter: u8) -> Option<Cut> {
    let delimiters = text.bytes().filter(|byte| *byte == delimiter).count();
    if delimiters == 0 {
        return None;
    }
    let (mut counts, mut rows) = (BTreeMap::<usize, usize>::new(), 0);
    let mended = mended(text, delimiter);
    let mut reader = reader(&mended, delimiter);
    let mut record = csv::ByteRecord::new();
    let mut named = None;
    while let Ok(true) = reader.read_byte_record(&mut record) {
        if record.iter().any(|cell| !cell.trim_ascii().is_empty()) {
            let is_name =
                |cell: &[u8]| cell.first().is_some_and(|byte| *byte != b' ') && !cell.iter().any(u8::is_ascii_digit);
            if named.is_none() {
                named = Some(if record.iter().all(is_name) { record.len() } else { 0 });
            }
            *counts.entry(record.len()).or_default() += 1;
            rows += 1;
        }
    }
    let (cells, most) = counts.into_iter().filter(|(cells, _)| *cells > 1).max_by_key(|(_, rows)| *rows)?;
    // Below names that commas part they part numbers, too.
    let is_prose = delimiter == b',' && named != Some(cells) && {
        let is_of_prose = |at: usize| {
            let byte = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).copied().unwrap_or_default();
            let (before, after) = (byte(at.checked_sub(1)), byte(Some(at + 1)));
            after == b' ' || before.is_ascii_digit() && after.is_ascii_digit()
        };
        let prose = text.match_indices(',').filter(|(at, _)| is_of_prose(*at)).count();
        2 * prose > delimiters
    };
    Some(Cut { delimiter, share: 1000 * most / rows, cells, is_prose })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> String {
        read(source).unwrap().text
    }

    #[test]
    fn whatever_stands_between_cells() {
        let expected = "| stone | weight |\n| --- | --- |\n| granite, grey | 2 |\n| slate |";
        for source in [
            "stone,weight\n\"granite, grey\",2\nslate\n",
            "stone;weight\r\n\r\ngranite, grey;2\r\nslate",
            "stone\tweight\ngranite, grey\t2\nslate",
            "sep=;\r\nstone;weight\r\ngranite, grey;2\r\nslate",
            "\"SEP=|\"\nstone|weight\ngranite, grey|2\nslate",
            "sep=;;\nstone;weight\ngranite, grey;2\nslate",
        ] {
            assert_eq!(text(source), expected, "{source}");
        }
        assert_eq!(text("\n"), "");
        assert_eq!(text("sep=;"), "");
        assert_eq!(text("stone\ngranite\n"), "stone\ngranite");
        assert_eq!(text("name\n\"Lind, Ada\"\nHolm, Jo\nBo\nCy\nDi"), "name\nLind, Ada\nHolm, Jo\nBo\nCy\nDi");
        assert_eq!(text("sep=late\nstone"), "sep=late\nstone");
    }

    #[test]
    fn commas_within_cells_cut_nothing() {
        assert_eq!(
            text("Titre, sous-titre;Auteur, rôle;Rayon\nLe phare, ou la nuit;Ada, autrice;F52\n"),
            "| Titre, sous-titre | Auteur, rôle | Rayon |\n| --- | --- | --- |\n| Le phare, ou la nuit | Ada, autrice | F52 |"
        );
        assert_eq!(
            text("Preis;Menge\n1,50;2,25\n3,75;4,5\n"),
            "| Preis | Menge |\n| --- | --- |\n| 1,50 | 2,25 |\n| 3,75 | 4,5 |"
        );
        assert_eq!(
            text("Ort;Preis\nBonn;1,50\nUlm;2,25"),
            "| Ort | Preis |\n| --- | --- |\n| Bonn | 1,50 |\n| Ulm | 2,25 |"
        );
        // But these do.
        assert_eq!(text("a,b,c\n1,2,3\n4,5,6"), "| a | b | c |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |");
        assert_eq!(text("a, b\nx; y, z\n"), "| a | b |\n| --- | --- |\n| x; y | z |");
    }

    #[test]
    fn commas_between_numbers_cut_below_names() {
        let rows = "1,2024,5,08:00;16:00\n2,2024,6,09:00;17:00\n3,2024,7,08:30;16:30\n4,2024,8,08:00;16:00\n";
        let read = text(&format!("id,year,month,hours\n{rows}"));
        assert!(
            read.starts_with(
                "| id | year | month | hours |\n| --- | --- | --- | --- |\n| 1 | 2024 | 5 | 08:00;16:00 |"
            ),
            "{read}"
        );
    }

    #[test]
    fn cells_that_are_quoted_behind_blanks_stay_whole() {
        assert_eq!(
            text("name, note\n\"Ada\", \"born 1815, in London\"\n\"Bo\", \"born 1820\"\n"),
            "| name | note |\n| --- | --- |\n| Ada | born 1815, in London |\n| Bo | born 1820 |"
        );
    }

    #[test]
    fn columns_and_cells_without_names_of_their_own_are_told() {
        let fields = RecordFields { text: vec!["note".into()], ..RecordFields::default() };
        let mut found = Vec::new();
        let bad = records(
            "id,note,note\n1,one,two\n2,three,four,five\n3,six,seven\n4,eight,nine\n",
            &fields,
            &mut |parsed| {
                found.push(parsed);
                Ok(())
            },
        );
        // Its row is read, so that the file is.
        assert_eq!(bad, Ok(None));
        assert_eq!((found[0].text.as_str(), &found[0].metadata["note (2)"]), ("one", &"two".into()));
        assert_eq!(found.len(), 4);
        assert_eq!(found[1].left_out, ["cells behind the last column that has a name, in line 3"]);
        assert!(found.iter().enumerate().all(|(at, one)| at == 1 || one.left_out.is_empty()));
    }

    #[test]
    fn names_that_are_made_are_no_others() {
        let row = csv::StringRecord::from(vec!["note", "note", "", "note (2)", "note", "note (2)", ""]);
        let expected = ["note", "note (3)", "", "note (2)", "note (4)", "note (2) (2)", ""];
        assert_eq!(column_names(&row), expected);
    }

    #[test]
    fn lines_before_the_header_are_text() {
        assert_eq!(
            text(
                "Kontoauszug\nKonto;DE00\nZeitraum;Mai\n\nTag;Wer;Betrag;Zweck\n2.5.2024;Ada;-1,50;Tee\n3.5.2024;Bo;-2,5;Gas\n"
            ),
            "Kontoauszug\nKonto DE00\nZeitraum Mai\n\n| Tag | Wer | Betrag | Zweck |\n| --- | --- | --- | --- |\n\
             | 2.5.2024 | Ada | -1,50 | Tee |\n| 3.5.2024 | Bo | -2,5 | Gas |"
        );
        // Programs fill such lines up.
        assert_eq!(
            text("Konto;DE00;;\n;;;\nTag;Wer;Betrag;Zweck\n2.5.2024;Ada;-1,50;Tee\n3.5.2024;Bo;-2,5;Gas\n"),
            "Konto DE00\n\n| Tag | Wer | Betrag | Zweck |\n| --- | --- | --- | --- |\n| 2.5.2024 | Ada | -1,50 | Tee |\n\
             | 3.5.2024 | Bo | -2,5 | Gas |"
        );
        assert_eq!(
            text("Station, north\nLogger 4.2\n\ntime,wind\n00:00,30 km/h\n00:20,40 km/h\n"),
            "Station, north\nLogger 4.2\n\n| time | wind |\n| --- | --- |\n| 00:00 | 30 km/h |\n| 00:20 | 40 km/h |"
        );
    }

    #[test]
    fn a_quote_that_never_ends_takes_no_other_row() {
        let rows: String = (0..300).map(|row| format!("t{row}\tHoe {row}\t{row}\n")).collect();
        let read = text(&format!("id\ttitle\tyear\nt\t\"Rake, the\t1905\n{rows}"));
        assert_eq!(read.lines().count(), 303, "{read}");
        assert!(read.starts_with("| id | title | year |\n| --- | --- | --- |\n| t | \"Rake, the | 1905 |\n| t0 |"));
        assert!(read.ends_with("| t299 | Hoe 299 | 299 |"));
        // Inches: behind a number, and where a column has nothing else.
        assert_eq!(
            text("part,size,unit\nscreen,24\",\"\npipe,\"3/4,in\nhose,5\" x 3\",\"\nknob,1,cm\n"),
            "| part | size | unit |\n| --- | --- | --- |\n| screen | 24\" | \" |\n| pipe | \"3/4 | in |\n\
             | hose | 5\" x 3\" | \" |\n| knob | 1 | cm |"
        );
        assert_eq!(text("title\n\"Rake\nHoe\n"), "title\n\"Rake\nHoe");
    }

    #[test]
    fn cells_of_several_lines_stay_whole() {
        let source = "part,note\nrake,\"Line one,\nline \"\"two\"\"\n\nand three\"\nhoe,\"a\nb\"\n";
        let expected = "| part | note |\n| --- | --- |\n| rake | Line one, line \"two\" and three |\n| hoe | a b |";
        assert_eq!(text(source), expected);
        // Beside a quote that never ends, too.
        assert_eq!(text(&format!("{source}\"awl,c\nsaw,d\n")), format!("{expected}\n| \"awl | c |\n| saw | d |"));
    }

    #[test]
    fn a_quote_that_never_ends_takes_no_other_record() {
        let found = |source: &str| {
            let fields = RecordFields { text: vec!["text".into()], ..RecordFields::default() };
            let mut found = Vec::new();
            let bad = records(source, &fields, &mut |parsed| {
                found.push((parsed.anchor.unwrap(), parsed.text));
                Ok(())
            });
            assert_eq!(bad.unwrap(), None);
            found
        };
        let expected = [("L2", "\"Rake"), ("L3", "Hoe"), ("L4", "a\nb"), ("L6", "Saw")];
        let expected = expected.map(|(anchor, text)| (anchor.to_owned(), text.to_owned()));
        assert_eq!(found("id\ttext\n1\t\"Rake\n2\tHoe\n3\t\"a\nb\"\n4\tSaw\n"), expected);
        assert_eq!(found("id,text\n1,\"Rake\n2,Hoe\n3,\"a\nb\"\n4,Saw\n"), expected);
    }
}
