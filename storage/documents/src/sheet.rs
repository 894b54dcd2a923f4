//! Workbooks of Excel and OpenDocument: each sheet is a heading and a table, with text above where titles stand there. Hidden sheets are left
//! out.

mod grid;

use std::collections::HashSet;
use std::io::Cursor;

use calamine::{Data, Dimensions, ExcelDateTime, Ods, Reader, SheetType, SheetVisible, Xls, Xlsb, Xlsx, XlsxError};

use self::grid::Grid;
use super::address;
use super::archive::{Archive, compound};
use super::body::Body;
use super::docx::core_properties;
use super::left_out::LeftOut;
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
        sheets.all(book, |book, name| book.merge_cells_by_sheet_name(name).unwrap_or_default())?;
    } else {
        let mut archive = Archive::open(bytes, "a workbook")?;
        metadata = core_properties(&mut archive)?;
        if let Some(text) = archive.text("meta.xml")?
            && let Ok(parsed) = xml::parse(&text, "meta.xml")
        {
            xml::dublin_core(parsed.root_element(), &mut metadata);
        }
        if archive.has("xl/workbook.bin") {
            sheets.all(Xlsb::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?, |_, _| Vec::new())?;
        } else if archive.has("content.xml") {
            sheets.all(Ods::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?, |_, _| Vec::new())?;
        } else {
            let has_links = archive.has_under("xl/worksheets/_rels/");
            sheets.xlsx(bytes, has_links)?;
        }
    }
    // What was stored of it stays then.
    if sheets.body.is_blank() && !(sheets.unread.is_empty() && sheets.cut.is_empty()) {
        return Err(unreadable(&"its sheets are damaged"));
    }
    let mut left_out = LeftOut::default();
    left_out.names("hidden sheet", "hidden sheets", &sheets.hidden);
    left_out.names("a sheet that cannot be read:", "sheets that cannot be read:", &sheets.unread);
    left_out.names("the rest of a damaged sheet:", "the rest of damaged sheets:", &sheets.cut);
    left_out.count("cell that cannot be read", "cells that cannot be read", sheets.unread_cells);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(xml::own_title(&metadata), sheets.body, metadata) })
}

fn unreadable(error: &dyn std::fmt::Display) -> String {
    format!("not readable as a workbook: {error}")
}

#[derive(Default)]
struct Sheets {
    body: Body,
    cells: usize,
    /// Names of those that were left out and are not empty.
    hidden: Vec<String>,
    /// Names of those that are damaged or missing.
    unread: Vec<String>,
    /// Names of those that were read as far as they are whole.
    cut: Vec<String>,
    /// Cells whose values the library does not know, such as errors of newer programs.
    unread_cells: usize,
}

impl Sheets {
    fn all<'a, R>(&mut self, mut book: R, merged: impl Fn(&mut R, &str) -> Vec<Dimensions>) -> Result<(), String>
    where
        R: Reader<Cursor<&'a [u8]>>,
    {
        let others = others(&book);
        for (name, is_hidden) in sheets(&book) {
            let Ok(range) = book.worksheet_range(&name) else {
                if is_hidden {
                    self.hidden.push(name);
                } else if !others.contains(&name) {
                    self.unread.push(name);
                }
                continue;
            };
            if is_hidden {
                self.hidden.extend((!range.is_empty()).then_some(name));
                continue;
            }
            let (top, left) = range.start().unwrap_or_default();
            let mut grid = Grid::default();
            for (row, column, value) in range.used_cells() {
                self.take(&mut grid, top + row as u32, left + column as u32, value)?;
            }
            let merged = merged(&mut book, &name);
            self.put(&name, grid, &merged);
        }
        Ok(())
    }

    /// Cell by cell: one far off makes the sheet no larger.
    fn xlsx(&mut self, bytes: &[u8], has_links: bool) -> Result<(), String> {
        let mut book: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|error| unreadable(&error))?;
        let others = others(&book);
        for (name, is_hidden) in sheets(&book) {
            if is_hidden {
                self.hidden.push(name);
                continue;
            }
            let mut grid = Grid::default();
            let Ok(mut reader) = book.worksheet_cells_reader(&name) else {
                if !others.contains(&name) {
                    self.unread.push(name);
                }
                continue;
            };
            loop {
                match reader.next_cell() {
                    Ok(Some(cell)) => {
                        let (row, column) = cell.get_position();
                        self.take(&mut grid, row, column, &Data::from(cell.get_value().clone()))?;
                    }
                    Ok(None) => break,
                    Err(XlsxError::Xml(_) | XlsxError::XmlEof(_) | XlsxError::Io(_) | XlsxError::Zip(_)) => {
                        self.cut.push(name.clone());
                        break;
                    }
                    // The reader stands behind it.
                    Err(_) => self.unread_cells += 1,
                }
            }
            drop(reader);
            // Without them a sheet is a sheet still.
            let links = if has_links { book.hyperlinks_by_sheet_name(&name).unwrap_or_default() } else { Vec::new() };
            for link in &links {
                if let (Some(address), Some(text)) = (&link.target, grid.at(link.range.start)) {
                    address::put(text, 0, address);
                }
            }
            let merged = book.merge_cells_by_sheet_name(&name).unwrap_or_default();
            self.put(&name, grid, &merged);
        }
        Ok(())
    }

    fn take(&mut self, grid: &mut Grid, row: u32, column: u32, value: &Data) -> Result<(), String> {
        let text = shown(value);
        if text.trim().is_empty() {
            return Ok(());
        }
        self.cells += 1;
        if self.cells > MAX_CELLS {
            return Err(format!("it has more than {MAX_CELLS} cells, which one file may have; split it"));
        }
        grid.add(row, column, text);
        Ok(())
    }

    fn put(&mut self, name: &str, grid: Grid, merged: &[Dimensions]) {
        let merged: Vec<_> = merged.iter().map(|region| (region.start, region.end)).collect();
        grid.put(name, &merged, &mut self.body);
    }
}

/// Names of those that are no sheets of cells: one of charts has none.
fn others<'a, R: Reader<Cursor<&'a [u8]>>>(book: &R) -> HashSet<String> {
    let others = book.sheets_metadata().iter().filter(|sheet| sheet.typ != SheetType::WorkSheet);
    others.map(|sheet| sheet.name.clone()).collect()
}

/// Names of sheets, and whether each is hidden.
fn sheets<'a, R: Reader<Cursor<&'a [u8]>>>(book: &R) -> Vec<(String, bool)> {
    let seen = book.sheets_metadata().iter();
    let hidden: HashSet<&str> =
        seen.filter(|sheet| sheet.visible != SheetVisible::Visible).map(|sheet| sheet.name.as_str()).collect();
    book.sheet_names()
        .into_iter()
        .map(|name| {
            let is_hidden = hidden.contains(name.as_str());
            (name, is_hidden)
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::zipped;

    const MAIN: &str = "xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\"";

    /// A workbook of sheets of these names and kinds, of which these are there.
    fn workbook(sheets: &[(&str, &str)], parts: &[(&str, &str)]) -> Vec<u8> {
        let (mut listed, mut relations) = (String::new(), String::new());
        for (at, (name, kind)) in sheets.iter().enumerate() {
            listed += &format!(r#"<sheet name="{name}" sheetId="{}" r:id="r{at}"/>"#, at + 1);
            relations += &format!(
                r#"<Relationship Id="r{at}" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}" Target="{kind}s/{name}.xml"/>"#
            );
        }
        let office = "xmlns:r=\"http://schemas.openxmlformats.org/officeDocument/2006/relationships\"";
        let package = r#"<Relationships><Relationship Id="a" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>"#;
        let book = format!("<workbook {MAIN} {office}><sheets>{listed}</sheets></workbook>");
        let relations = format!("<Relationships>{relations}</Relationships>");
        let mut all = vec![
            ("_rels/.rels", package),
            ("xl/workbook.xml", book.as_str()),
            ("xl/_rels/workbook.xml.rels", relations.as_str()),
        ];
        all.extend(parts);
        zipped(&all)
    }

    #[test]
    fn sheets_that_cannot_be_read_are_told() {
        let sheets = [("Works", "worksheet"), ("Chart", "chartsheet"), ("Broken", "worksheet"), ("Gone", "worksheet")];
        let cell = r#"<sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>Granite</t></is></c></row><row r="2"><c r="A2" t="e"><v>#SPILL!</v></c><c r="B2" t="n"><v>-</v></c></row></sheetData>"#;
        let file = workbook(
            &sheets,
            &[
                ("xl/worksheets/Works.xml", &format!("<worksheet {MAIN}>{cell}</worksheet>")),
                ("xl/chartsheets/Chart.xml", &format!("<chartsheet {MAIN}><sheetPr/></chartsheet>")),
                ("xl/worksheets/Broken.xml", &format!("<worksheet {MAIN}><sheetPr></sheetPr></worksheet>")),
            ],
        );
        let parsed = read(&file).unwrap();
        assert_eq!(parsed.text, "Works\n\nGranite");
        assert_eq!(parsed.left_out, ["sheets that cannot be read: `Broken`, `Gone`", "2 cells that cannot be read"]);
    }

    #[test]
    fn a_workbook_of_damaged_sheets_is_not_an_empty_one() {
        let read = |sheet: &str| {
            let sheet = format!("<worksheet {MAIN}>{sheet}");
            read(&workbook(&[("Works", "worksheet")], &[("xl/worksheets/Works.xml", &sheet)]))
        };
        for damaged in ["<sheetPr></sheetPr></worksheet>", "<sheetData><row r=\"1\"><c r=\"A1\""] {
            assert!(read(damaged).unwrap_err().contains("damaged"), "{damaged}");
        }
        assert_eq!(read("<sheetData></sheetData></worksheet>").unwrap().text, "");
    }
}
