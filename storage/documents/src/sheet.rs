//! Workbooks of Excel and OpenDocument: each sheet is a heading and a table, whose first row is taken for its header.

use std::collections::BTreeSet;
use std::io::Cursor;

use calamine::{Data, ExcelDateTime, Ods, Reader, Xls, Xlsb, Xlsx};

use super::archive::{Archive, compound};
use super::body::Body;
use super::docx::core_properties;
use super::metadata::FileMetadata;
use super::parse::Parsed;
use super::xml;

/// Cells of one file that are not empty.
const MAX_CELLS: usize = 4_000_000;

/// Reads a workbook, whatever its name says that it is.
///
/// # Errors
/// Where it is none, or more than one file may be.
pub fn read(bytes: &[u8]) -> Result<Parsed, String> {
    let mut sheets = Sheets::default();
    let mut metadata = FileMetadata::default();
    if compound(bytes)? {
        let book: Xls<_> = Xls::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?;
        sheets.all(book)?;
    } else {
        let mut archive = Archive::open(bytes, "a workbook")?;
        metadata = core_properties(&mut archive)?;
        if let Some(text) = archive.text("meta.xml")?
            && let Ok(parsed) = xml::parse(&text, "meta.xml")
        {
            xml::dublin_core(parsed.root_element(), &mut metadata);
        }
        if archive.has("xl/workbook.bin") {
            sheets.all(Xlsb::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?)?;
        } else if archive.has("content.xml") {
            sheets.all(Ods::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?)?;
        } else {
            sheets.xlsx(bytes)?;
        }
    }
    Ok(Parsed::of(xml::own_title(&metadata), sheets.body, metadata))
}

fn unreadable(error: &dyn std::fmt::Display) -> String {
    format!("not readable as a workbook: {error}")
}

/// A cell that has something in it.
struct Cell {
    row: u32,
    column: u32,
    text: String,
}

#[derive(Default)]
struct Sheets {
    body: Body,
    cells: usize,
}

impl Sheets {
    fn all<'a, R>(&mut self, mut book: R) -> Result<(), String>
    where
        R: Reader<Cursor<&'a [u8]>>,
        R::Error: std::fmt::Display,
    {
        for name in book.sheet_names() {
            let range = book.worksheet_range(&name).map_err(|error| unreadable(&error))?;
            let (top, left) = range.start().unwrap_or_default();
            let mut cells = Vec::new();
            for (row, column, value) in range.used_cells() {
                self.take(&mut cells, top + row as u32, left + column as u32, value)?;
            }
            self.put(&name, cells);
        }
        Ok(())
    }

    /// Cell by cell: one far off makes the sheet no larger.
    fn xlsx(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut book: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?;
        for name in book.sheet_names() {
            let mut cells = Vec::new();
            // A sheet of charts has none.
            let Ok(mut reader) = book.worksheet_cells_reader(&name) else { continue };
            while let Some(cell) = reader.next_cell().map_err(|error| unreadable(&error))? {
                let (row, column) = cell.get_position();
                self.take(&mut cells, row, column, &Data::from(cell.get_value().clone()))?;
            }
            self.put(&name, cells);
        }
        Ok(())
    }

    fn take(&mut self, cells: &mut Vec<Cell>, row: u32, column: u32, value: &Data) -> Result<(), String> {
        let text = shown(value);
        if text.trim().is_empty() {
            return Ok(());
        }
        self.cells += 1;
        if self.cells > MAX_CELLS {
            return Err(format!("it has more than {MAX_CELLS} cells, which one file may have; split it"));
        }
        cells.push(Cell { row, column, text });
        Ok(())
    }

    /// A sheet's rows, without the columns and rows that are empty.
    fn put(&mut self, name: &str, mut cells: Vec<Cell>) {
        if cells.is_empty() {
            return;
        }
        cells.sort_by_key(|cell| (cell.row, cell.column));
        self.body.heading(1, name);
        let columns: Vec<u32> = cells.iter().map(|cell| cell.column).collect::<BTreeSet<_>>().into_iter().collect();
        if columns.len() == 1 {
            return cells.iter().for_each(|cell| self.body.line(&cell.text));
        }
        self.body.begin_table(true);
        for (index, row) in cells.chunk_by(|one, next| one.row == next.row).enumerate() {
            let mut row = row.iter().peekable();
            let texts = columns.iter().map(|column| match row.next_if(|cell| cell.column == *column) {
                Some(cell) => cell.text.as_str(),
                None => "",
            });
            self.body.row(texts, index == 0);
        }
        self.body.end_block();
    }
}

/// A cell's value as a reader sees it, without its format.
fn shown(value: &Data) -> String {
    match value {
        Data::Empty => String::new(),
        Data::String(text) | Data::DateTimeIso(text) | Data::DurationIso(text) => text.clone(),
        Data::Int(number) => number.to_string(),
        Data::Float(number) => rounded(*number).to_string(),
        Data::Bool(is) => if *is { "TRUE" } else { "FALSE" }.to_owned(),
        Data::DateTime(date) => dated(date),
        Data::Error(error) => error.to_string(),
    }
}

/// To the 15 digits that spreadsheets count with: 0.1 + 0.2 is 0.3 there.
fn rounded(number: f64) -> f64 {
    format!("{number:.14e}").parse().unwrap_or(number)
}

fn dated(date: &ExcelDateTime) -> String {
    let (year, month, day, hour, minute, second, _) = date.to_ymd_hms_milli();
    let serial = date.as_f64();
    if date.is_duration() {
        let seconds = (serial * 86_400.0).round();
        let (hours, rest) = ((seconds / 3600.0).trunc(), (seconds % 3600.0).abs());
        return format!("{hours}:{:02}:{:02}", (rest / 60.0).trunc(), rest % 60.0);
    }
    let (day, time) = (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"));
    match (serial < 1.0, serial.fract() == 0.0) {
        (true, _) => time,
        (false, true) => day,
        (false, false) => format!("{day} {time}"),
    }
}
