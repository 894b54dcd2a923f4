//! Files as other programs write them; `ops/fixtures/make_documents.py` made these.

use crate::element::ElementKind;

use super::parse::{Asked, Parsed, parse};
use super::*;

fn all(name: &str, bytes: &[u8]) -> Vec<Parsed> {
    all_with(RecordFields::default(), name, bytes)
}

fn all_with(fields: RecordFields, name: &str, bytes: &[u8]) -> Vec<Parsed> {
    let mut found = Vec::new();
    let format = Format::of(Path::new(name)).expect("a known ending");
    let bad = parse(&Asked { format, fields }, bytes.to_vec(), &mut |parsed| {
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
        let asked = Asked { format, fields: RecordFields::default() };
        parse(&asked, bytes.to_vec(), &mut |_| Ok(())).expect_err("unreadable")
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

#[test]
fn data_sets_are_records_in_whatever_form_they_are_kept() {
    let fields = || RecordFields { text: vec!["body.plain".into()], title: Some("name".into()), id: Some("pk".into()) };
    let read = |name: &str, bytes: &[u8]| {
        let (mut found, format) = (Vec::new(), Format::of(Path::new(name)).expect("a known ending"));
        let bad = parse(&Asked { format, fields: fields() }, bytes.to_vec(), &mut |parsed| {
            found.push(parsed);
            Ok(())
        });
        let bad = bad.expect("readable").expect("the last row has no text");
        assert_eq!(bad, "row 3: there is no `body.plain`; it has `pk`, `name`, `kind`, `seen`");
        found
    };
    let all = [
        read("wells.parquet", include_bytes!("fixtures/wells-snappy.parquet")),
        read("wells.parquet", include_bytes!("fixtures/wells-zstd.parquet")),
        read("wells.parquet", include_bytes!("fixtures/wells-gzip.parquet")),
        read("wells.parquet", include_bytes!("fixtures/wells-brotli.parquet")),
        read("wells.parquet", include_bytes!("fixtures/wells-lz4.parquet")),
        read("wells.feather", include_bytes!("fixtures/wells.feather")),
    ];
    assert!(all.iter().all(|read| *read == all[0]));
    let [north, south] = &all[0][..] else { panic!("two documents: {all:?}") };
    assert_eq!(
        (north.text.as_str(), north.title.as_deref()),
        ("The north well is nine metres deep.", Some("The north well"))
    );
    assert_eq!((north.id.as_deref(), north.anchor.as_deref()), (Some("7"), Some("R1")));
    assert_eq!(
        serde_json::Value::Object(north.metadata.clone()),
        serde_json::json!({
            "body": { "html": "<p>" }, "tags": ["water", "stone"], "depth": 9.5, "kind": "dug", "seen": "2026-03-03T09:15:00Z",
        })
    );
    assert_eq!(north.left_out, ["column of bytes `photo`"], "once for the file");
    assert_eq!(
        (south.text.as_str(), south.title.as_deref(), south.left_out.len()),
        ("The south well ran dry in 1911.", None, 0)
    );

    // As JSON lines are read where nothing is said.
    let texts = all_of("lanterns.arrow", include_bytes!("fixtures/lanterns.arrow"));
    assert_eq!(texts, [("One lantern.".into(), "R1".into()), ("Two lanterns.".into(), "R2".into())]);
}

fn all_of(name: &str, bytes: &[u8]) -> Vec<(String, String)> {
    all(name, bytes).into_iter().map(|parsed| (parsed.text, parsed.anchor.unwrap_or_default())).collect()
}

#[test]
fn data_sets_that_are_damaged_are_told_and_what_is_whole_is_kept() {
    let read = |name: &str, bytes: &[u8]| {
        let (mut found, format) = (0, Format::of(Path::new(name)).expect("a known ending"));
        let read = parse(&Asked { format, fields: RecordFields::default() }, bytes.to_vec(), &mut |_| {
            found += 1;
            Ok(())
        });
        (read, found)
    };
    let whole = include_bytes!("fixtures/wells-zstd.parquet");
    for (name, bytes, words) in [
        ("a.parquet", &whole[..whole.len() / 2], "not readable as Parquet"),
        ("a.parquet", b"no such thing", "not readable as Parquet"),
        ("a.arrow", b"no such thing at all", "not readable as Arrow"),
        ("a.feather", b"FEA1 old", "the first version of Feather"),
    ] {
        let (read, found) = read(name, bytes);
        assert!(read.as_ref().is_err_and(|why| why.contains(words)) && found == 0, "{name}: {read:?}");
    }
    // The first page of the first group of rows, behind the four bytes that all files begin with.
    let mut damaged = whole.to_vec();
    damaged[4..64].fill(0xa5);
    let (read, found) = read("a.parquet", &damaged);
    let why = read.expect("it is a Parquet file").expect("its rows cannot be read");
    assert!(why.starts_with("from row 1 on: ") && found == 0, "{why}");
}

#[test]
fn rows_of_a_table_are_documents_where_their_text_is_named() {
    let named = |text: &str| RecordFields { text: vec![text.into()], id: Some("nr".into()), ..RecordFields::default() };
    let csv = "Bestand, Mai\n\nnr;titel;text\n1;A;\"Eins; zwei\"\n2;;Drei\n";
    let found = all_with(named("text"), "a.csv", csv.as_bytes());
    let told: Vec<_> =
        found.iter().map(|parsed| (parsed.id.as_deref(), parsed.text.as_str(), parsed.anchor.as_deref())).collect();
    assert_eq!(told, [(Some("1"), "Eins; zwei", Some("L4")), (Some("2"), "Drei", Some("L5"))]);
    assert_eq!(found[0].metadata["titel"], "A");
    // One column.
    let found = all_with(named("text"), "a.csv", b"text\nOne, two\n\"Three\nfour\"\n");
    assert_eq!(found.iter().map(|parsed| parsed.text.as_str()).collect::<Vec<_>>(), ["One, two", "Three\nfour"]);
    let asked = Asked { format: Format::Delimited, fields: named("review") };
    let bad = parse(&asked, csv.as_bytes().to_vec(), &mut |_| Ok(())).unwrap().unwrap();
    assert!(bad.starts_with("line 4: there is no `review`; it has `nr`, `titel`, `text`"), "{bad}");
}
