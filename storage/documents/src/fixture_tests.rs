//! Files as other programs write them; `ops/fixtures/make_documents.py` made these.

use crate::element::ElementKind;

use super::parse::{Parsed, parse};
use super::*;

fn all(name: &str, bytes: &[u8]) -> Vec<Parsed> {
    let mut found = Vec::new();
    let format = Format::of(Path::new(name)).expect("a known ending");
    let bad = parse(format, bytes.to_vec(), &mut |parsed| {
        found.push(parsed);
        Ok(())
    });
    assert_eq!(bad, Ok(None));
    found
}

fn one(name: &str, bytes: &[u8]) -> Parsed {
    all(name, bytes).pop().expect("a document")
}

fn kinds(parsed: &Parsed) -> Vec<(ElementKind, &str)> {
    let first = |at: usize| parsed.text[at..].lines().next().unwrap_or_default();
    parsed.elements.iter().map(|element| (element.kind, first(element.at))).collect()
}

const TABLE: ElementKind = ElementKind::Table { header_lines: 2 };

#[test]
fn word_documents_keep_headings_lists_and_tables() {
    let parsed = one("works.docx", include_bytes!("fixtures/works.docx"));
    assert_eq!(parsed.title.as_deref(), Some("The Works"));
    assert_eq!(
        parsed.text,
        "The works of Orvik employ 26 people.\n\nFurnaces\n\nThe old furnace\n\nIt burns charcoal.\n- Tap it at dawn.\n\
         - Rest it at dusk.\n\nOutput\n\n| Year | Tons |\n| --- | --- |\n| 1905 | 310 |\n| 1906 | 345 |\n\nWeighed at the gate."
    );
    assert_eq!(
        kinds(&parsed),
        [
            (ElementKind::Heading(1), "Furnaces"),
            (ElementKind::Heading(2), "The old furnace"),
            (ElementKind::Text, "It burns charcoal."),
            (ElementKind::Heading(1), "Output"),
            (TABLE, "| Year | Tons |"),
            (ElementKind::Text, "Weighed at the gate."),
        ]
    );
    let metadata = &parsed.metadata;
    assert_eq!(
        (&metadata["author"], &metadata["title"], &metadata["keywords"], &metadata["date"]),
        (&"Ada Lind".into(), &"The Works of Orvik".into(), &"iron, mill".into(), &"2026-03-03T09:15:00Z".into())
    );
}

#[test]
fn slides_keep_their_order_titles_notes_and_tables() {
    let parsed = one("herons.pptx", include_bytes!("fixtures/herons.pptx"));
    // `PowerPoint Presentation` is what a program called it.
    assert_eq!(parsed.title.as_deref(), Some("Herons of Orvik"));
    assert_eq!(
        parsed.text,
        "Herons of Orvik\n\nA talk in two slides\n\nWhere they stand\n\nIn the reeds\nOn one leg\n\nSpeaker notes\n\n\
         Tell them about the seven herons.\n\nSlide 3\n\n| Bird | Count |\n| --- | --- |\n| Heron | 7 |"
    );
    assert_eq!(kinds(&parsed)[4], (ElementKind::Heading(2), "Speaker notes"));
}

#[test]
fn sheets_are_headings_and_tables() {
    let parsed = one("stones.xlsx", include_bytes!("fixtures/stones.xlsx"));
    assert_eq!(
        parsed.text,
        "Weights\n\n| Stone | Weight | Found | Sold |  |\n| --- | --- | --- | --- | --- |\n\
         | Granite \\| grey | 2.5 | 2026-03-03 | TRUE |  |\n| Slate | 0.3 | 2026-03-04 12:30:00 | FALSE |  |\n\
         |  |  |  |  | far off |\n\nNotes\n\nWeighed with the old scales."
    );
    assert_eq!((parsed.title.as_deref(), kinds(&parsed)[1].0), (Some("Stones"), TABLE));
    let parsed = one("owls.ods", include_bytes!("fixtures/owls.ods"));
    assert_eq!(parsed.text, "Owls\n\n| Owl | Mice |\n| --- | --- |\n| Calbet | 12 |");
}

#[test]
fn books_are_read_in_the_order_of_their_spine() {
    let parsed = one("orvik.epub", include_bytes!("fixtures/orvik.epub"));
    assert_eq!(parsed.text, "The lantern\n\nThe lantern burns green.\n\nThe mill\n\nThe mill grinds rye.");
    assert_eq!(kinds(&parsed)[2], (ElementKind::Heading(1), "The mill"));
    assert_eq!(parsed.title.as_deref(), Some("The Book of Orvik"));
    assert_eq!((&parsed.metadata["author"], &parsed.metadata["date"]), (&"Ada Lind".into(), &"2026-03-03".into()));
}

#[test]
fn mail_keeps_who_wrote_it_to_whom_and_when() {
    let parsed = one("otter.eml", include_bytes!("fixtures/otter.eml"));
    let head = "From: Ada Lind <ada@example.org>\nTo: Jürgen Holm <jurgen@example.org>\nDate: 2026-03-03T09:15:00Z\n\n";
    assert_eq!(parsed.text, format!("{head}The otter of Tärn opens mussels.\n\nAda"));
    assert_eq!(parsed.metadata["attachments"], "otter.png");
    let both = all("otters.mbox", include_bytes!("fixtures/otters.mbox"));
    assert_eq!(both.len(), 2);
    assert_eq!(both[0].text, parsed.text);
    assert_eq!(both[1].anchor.as_deref(), Some("the-otters-page@example.org"));
    let page = "The otter opens mussels.\n\n| Day | Mussels |\n| --- | --- |\n| Monday | 40 |";
    assert_eq!(both[1].text, format!("{head}{page}"));
}

#[test]
fn pdf_tells_author_and_title() {
    let parsed = one("cranes.pdf", include_bytes!("fixtures/cranes.pdf"));
    assert!(parsed.text.contains("The crane of Mill dances."));
    let metadata = &parsed.metadata;
    assert_eq!((&metadata["author"], &metadata["title"]), (&"Ada Lind".into(), &"Cranes".into()));
    assert_eq!(metadata["keywords"], "crane, dance");
}

#[test]
fn old_encodings_are_read_as_such() {
    let parsed = one("library.txt", include_bytes!("fixtures/library.txt"));
    assert_eq!(parsed.text, "図書館は毎日九時に開きます。日曜日は休みです。本は二週間借りられます。\n");
    assert_eq!(parsed.metadata["encoding"], "Shift_JIS");
    let parsed = one("cafe.csv", include_bytes!("fixtures/cafe.csv"));
    assert_eq!(parsed.text, "| Café | Straße |\n| --- | --- |\n| Mühle | Lindenstraße |");
}

#[test]
fn what_is_encrypted_damaged_or_old_says_what_to_do() {
    let why = |name: &str, bytes: &[u8]| {
        let format = Format::of(Path::new(name)).expect("a known ending");
        parse(format, bytes.to_vec(), &mut |_| Ok(())).expect_err("unreadable")
    };
    assert!(why("a.docx", include_bytes!("fixtures/encrypted.docx")).contains("save it without a password"));
    assert!(why("a.xlsx", include_bytes!("fixtures/encrypted.docx")).contains("save it without a password"));
    assert!(why("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 old").contains("before 2007"));
    let whole = include_bytes!("fixtures/works.docx");
    assert!(why("a.docx", &whole[..whole.len() / 2]).contains("not readable as DOCX"));
    assert!(why("a.docx", include_bytes!("fixtures/orvik.epub")).contains("has no `word/document.xml`"));
    assert!(why("a.pptx", b"PK").contains("not readable as PPTX"));
    assert!(why("a.epub", whole).contains("names no book"));
    assert!(why("a.xlsx", whole).contains("not readable as a workbook"));
}
