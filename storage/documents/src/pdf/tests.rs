//! Small files, each with one thing that people's PDFs have.

use std::fmt::Write;

use super::*;
use crate::element::ElementKind;

const HEIGHT: i32 = 842;

/// A line at its place, from the page's lower left corner.
fn line(x: f32, y: f32, text: &str) -> String {
    sized(x, y, 10.0, "F1", text)
}

fn sized(x: f32, y: f32, size: f32, font: &str, text: &str) -> String {
    format!("BT /{font} {size} Tf 1 0 0 1 {x} {y} Tm ({text}) Tj ET\n")
}

/// Lines one below the other.
fn column(x: f32, y: f32, lines: &[&str]) -> String {
    lines.iter().enumerate().map(|(at, text)| line(x, y - 13.0 * at as f32, text)).collect()
}

/// A file of pages: what they draw, and what else stands in their dictionaries. `more` are objects from number 5 on; the catalog has `catalog`.
fn file(pages: &[(&str, &str)], more: &[&str], catalog: &str) -> Vec<u8> {
    let first = 5 + more.len();
    let kids: String = (0..pages.len()).map(|at| format!("{} 0 R ", first + 2 * at)).collect();
    let mut objects = vec![
        format!("<</Type /Catalog /Pages 2 0 R {catalog}>>"),
        format!("<</Type /Pages /Kids [{kids}] /Count {} /MediaBox [0 0 595 {HEIGHT}]>>", pages.len()),
        "<</Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding>>".to_owned(),
        "<</Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding>>".to_owned(),
    ];
    objects.extend(more.iter().map(|&object| object.to_owned()));
    for (at, (content, entries)) in pages.iter().enumerate() {
        let resources =
            if entries.contains("/Resources") { "" } else { "/Resources <</Font <</F1 3 0 R /F2 4 0 R>>>>" };
        let content_at = first + 2 * at + 1;
        objects.push(format!("<</Type /Page /Parent 2 0 R /Contents {content_at} 0 R {resources} {entries}>>"));
        objects.push(stream("", content));
    }
    let (mut file, mut places) = ("%PDF-1.5\n".to_owned(), Vec::new());
    for (at, object) in objects.iter().enumerate() {
        places.push(file.len());
        write!(file, "{} 0 obj\n{object}\nendobj\n", at + 1).unwrap();
    }
    let start = file.len();
    write!(file, "xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).unwrap();
    places.iter().for_each(|place| writeln!(file, "{place:010} 00000 n ").unwrap());
    write!(file, "trailer\n<</Size {} /Root 1 0 R>>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1).unwrap();
    file.into_bytes()
}

fn stream(entries: &str, content: &str) -> String {
    format!("<<{entries} /Length {}>>\nstream\n{content}\nendstream", content.len())
}

fn page(content: &str) -> Parsed {
    read(&file(&[(content, "")], &[], "")).unwrap()
}

fn kinds(parsed: &Parsed) -> Vec<(ElementKind, &str)> {
    let first = |at: usize| parsed.text[at..].lines().next().unwrap_or_default();
    parsed.elements.iter().map(|element| (element.kind, first(element.at))).collect()
}

#[test]
fn lines_are_paragraphs_and_broken_words_are_whole() {
    let first = [
        "The surveyor notes that the rope of the counter-",
        "weight is worn, and that a well-known firm has to",
        "replace it within a year; well-",
        "known ones are dear.",
    ];
    let second = ["Nothing else was found, and the lift may be used by", "all tenants until then."];
    let parsed = page(&(column(60.0, 700.0, &first) + &column(60.0, 640.0, &second)));
    assert_eq!(
        parsed.text,
        "The surveyor notes that the rope of the counterweight is worn, and that a well-known firm has to replace it within a year; \
         well-known ones are dear.\n\nNothing else was found, and the lift may be used by all tenants until then."
    );
    assert_eq!((parsed.elements, parsed.pages, parsed.left_out), (vec![], vec![0], vec![]));
}

#[test]
fn an_indented_line_begins_a_paragraph() {
    let lines = [
        "The lamp burns twelve litres of oil in a winter night, and the",
        "keeper is called Torvald Esk.",
        "He has two dogs and a boat, which is painted green like the",
        "lighthouse itself and lies below it.",
    ];
    let content: String = lines
        .iter()
        .zip([0.0, 0.0, 15.0, 0.0])
        .zip(0u8..)
        .map(|((text, indent), at)| line(60.0 + indent, 700.0 - 13.0 * f32::from(at), text))
        .collect();
    assert_eq!(
        page(&content).text,
        "The lamp burns twelve litres of oil in a winter night, and the keeper is called Torvald Esk.\n\n\
         He has two dogs and a boat, which is painted green like the lighthouse itself and lies below it."
    );
}

const LEFT: [&str; 4] = [
    "The harbour office opens at seven in",
    "the morning and closes at noon on",
    "Fridays, and the harbour master keeps",
    "the register of all the boats.",
];
const RIGHT: [&str; 4] = [
    "The lighthouse was painted green, and",
    "its lamp burns twelve litres of oil in",
    "a winter night, as the keeper told us",
    "who lives beside it with two dogs.",
];

#[test]
fn columns_are_read_one_after_the_other_though_written_line_by_line() {
    let mut content = sized(60.0, 740.0, 16.0, "F2", "News of the harbour and its surroundings");
    for (at, (left, right)) in (0u8..).zip(LEFT.iter().zip(RIGHT)) {
        let y = 700.0 - 13.0 * f32::from(at);
        content += &(line(60.0, y, left) + &line(270.0, y, right));
    }
    let parsed = page(&content);
    assert_eq!(
        parsed.text,
        "News of the harbour and its surroundings\n\nThe harbour office opens at seven in the morning and closes at noon on Fridays, and the harbour \
         master keeps the register of all the boats.\n\nThe lighthouse was painted green, and its lamp burns twelve litres of oil in a winter night, \
         as the keeper told us who lives beside it with two dogs."
    );
    assert_eq!(kinds(&parsed)[0], (ElementKind::Heading(1), "News of the harbour and its surroundings"));
}

#[test]
fn rows_of_a_table_stay_whole() {
    let rows = [
        ["Pump", "Pressure", "Price"],
        ["Q-100", "3.0 bar", "400 crowns"],
        ["Q-101", "", "437 crowns"],
        ["Q-102", "4.0 bar", "474 crowns"],
    ];
    let mut content = line(60.0, 740.0, "Prices hold until the end of the year, from the yard.");
    for (at, row) in (0u8..).zip(rows) {
        for (text, x) in row.iter().zip([60.0, 200.0, 330.0]).filter(|(text, _)| !text.is_empty()) {
            content += &line(x, 700.0 - 16.0 * f32::from(at), text);
        }
    }
    let parsed = page(&content);
    assert_eq!(
        parsed.text,
        "Prices hold until the end of the year, from the yard.\n\n| Pump | Pressure | Price |\n| --- | --- | --- |\n\
         | Q-100 | 3.0 bar | 400 crowns |\n| Q-101 |  | 437 crowns |\n| Q-102 | 4.0 bar | 474 crowns |"
    );
    assert_eq!(kinds(&parsed), [(ElementKind::Table { header_lines: 2 }, "| Pump | Pressure | Price |")]);
}

#[test]
fn heads_and_feet_are_left_out_and_sentences_go_on_over_the_page() {
    let texts = [
        [
            "One may take the scull out only by day, and never alone when",
            "the gauge at the lock stands above two metres and the",
        ],
        [
            "wind is from the north, as the boats are light and easily",
            "turn over. Nobody was hurt so far. The committee decides on",
        ],
        ["exceptions, of which there were three in the last year, all", "of them for races."],
    ];
    let pages: Vec<String> = (1..)
        .zip(texts)
        .map(|(number, lines)| {
            let head = sized(60.0, 800.0, 8.0, "F1", "Handbook of the rowing club");
            head + &column(60.0, 700.0, &lines) + &sized(60.0, 40.0, 8.0, "F1", &format!("Page {number} of 3"))
        })
        .collect();
    let pages: Vec<(&str, &str)> = pages.iter().map(|content| (content.as_str(), "")).collect();
    let parsed = read(&file(&pages, &[], "")).unwrap();
    assert_eq!(
        parsed.text,
        "One may take the scull out only by day, and never alone when the gauge at the lock stands above two metres and the wind is from the north, \
         as the boats are light and easily turn over. Nobody was hurt so far. The committee decides on exceptions, of which there were three in the \
         last year, all of them for races."
    );
    let starts: Vec<&str> = parsed.pages.iter().map(|at| &parsed.text[*at..*at + 7]).collect();
    assert_eq!(starts, ["One may", "wind is", "excepti"]);
    assert_eq!(parsed.left_out, ["heads and feet of 3 pages"]);
    // Two pages that end alike may be two letters.
    let two = read(&file(&pages[..2], &[], "")).unwrap();
    assert!(two.text.contains("Handbook of the rowing club") && !two.text.contains("Page 1"), "{}", two.text);
}

#[test]
fn a_page_without_text_begins_where_the_next_one_does() {
    let one = line(60.0, 700.0, "One.");
    let two = line(60.0, 700.0, "Two.");
    let parsed = read(&file(&[("", ""), (&one, ""), ("", ""), (&two, ""), ("", "")], &[], "")).unwrap();
    assert_eq!((parsed.text.as_str(), parsed.pages), ("One.\n\nTwo.", vec![0, 0, 6, 6, 10]));
}

#[test]
fn values_of_forms_stand_in_their_fields() {
    let content = column(60.0, 700.0, &["Name of the tenant:", "Keeps a dog:"]);
    let fields = [
        "<</Type /Annot /Subtype /Widget /Rect [200 696 400 712] /Parent 8 0 R>>",
        "<</Type /Annot /Subtype /Widget /Rect [200 683 212 699] /FT /Btn /T (dog) /V /Yes /AS /Yes>>",
        "<</FT /Tx /T (remark) /TU (Remarks of the caretaker) /V <FEFF0047016100750074>>>",
        "<</T (tenant) /FT /Tx /V (Ludmila Castor) /Kids [5 0 R]>>",
    ];
    let form = "/AcroForm <</Fields [8 0 R 6 0 R 7 0 R]>>";
    let parsed = read(&file(&[(&content, "/Annots [5 0 R 6 0 R]")], &fields, form)).unwrap();
    assert_eq!(parsed.text, "Name of the tenant: Ludmila Castor\nKeeps a dog: [x]\n\nRemarks of the caretaker: Gšut");
}

#[test]
fn addresses_stand_behind_what_is_linked_to_them() {
    let content = column(60.0, 700.0, &["Fill in the form before May.", "See example.org/rules for more."]);
    let link = |corners: &str, address: &str| {
        format!("<</Type /Annot /Subtype /Link /Rect [{corners}] /A <</S /URI /URI ({address})>>>>")
    };
    let links =
        [link("95 697 138 710", "https://example.org/form"), link("80 684 150 697", "https://example.org/rules")];
    let links: Vec<&str> = links.iter().map(String::as_str).collect();
    let parsed = read(&file(&[(&content, "/Annots [5 0 R 6 0 R]")], &links, "")).unwrap();
    assert_eq!(parsed.text, "Fill in the form (https://example.org/form) before May.\nSee example.org/rules for more.");
}

#[test]
fn distances_are_blanks_and_kerning_is_none() {
    let content = "BT /F1 10 Tf 1 0 0 1 60 700 Tm [(Bicycles) -278 (t) 60 (ra) -80 (vel) -278 (free)] TJ ET \
                   BT /F1 10 Tf 1 0 0 1 60 687 Tm (and) Tj ET BT /F1 10 Tf 1 0 0 1 80 687 Tm (tandems) Tj ET";
    assert_eq!(page(content).text, "Bicycles travel free and tandems");
}

#[test]
fn turned_text_is_read_along_its_own_direction() {
    let rows = [["Leaves", "For"], ["05:12", "Brackwell"], ["06:40", "Tarn End"], ["07:05", "Saltmere"]];
    let mut content = String::new();
    for (at, row) in rows.iter().enumerate() {
        for (text, x) in row.iter().zip([60, 200]) {
            content += &format!("BT /F1 10 Tf 0 1 -1 0 {} {x} Tm ({text}) Tj ET\n", 100 + 15 * at);
        }
    }
    let expected = "| Leaves | For |\n| --- | --- |\n| 05:12 | Brackwell |\n| 06:40 | Tarn End |\n| 07:05 | Saltmere |";
    for rotated in ["", "/Rotate 90"] {
        assert_eq!(read(&file(&[(&content, rotated)], &[], "")).unwrap().text, expected);
    }
}

#[test]
fn lists_keep_their_lines() {
    let lines = [
        "\\225 a single scull, which only members who hold the brass",
        "badge may take out",
        "\\225 two doubles",
        "1. the lock",
        "2. the weir",
    ];
    let parsed = page(&column(60.0, 700.0, &lines));
    assert_eq!(
        parsed.text,
        "• a single scull, which only members who hold the brass badge may take out\n• two doubles\n1. the lock\n2. the weir"
    );
}

#[test]
fn drawings_within_a_page_are_read_in_their_place() {
    let content =
        line(60.0, 700.0, "Above.") + "/Odd cs 1 0 0 1 0 500 cm /Form Do /Image Do\n" + &line(60.0, -100.0, "Below.");
    let form = stream(
        "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Matrix [1 0 0 1 60 0]",
        "BT /F1 10 Tf (Within) Tj 12 TL (itself) ' ET /Form Do",
    );
    let resources = "/Resources <</Font <</F1 3 0 R>> /XObject <</Form 5 0 R /Image 6 0 R>>>>";
    let image = stream("/Type /XObject /Subtype /Image /Width 1 /Height 1", "(nonsense) Tj");
    let parsed = read(&file(&[(&content, resources)], &[&form, &image], "")).unwrap();
    assert_eq!(parsed.text, "Above.\n\nWithin itself\n\nBelow.");
    assert_eq!(parsed.left_out, [""; 0]);
}

#[test]
fn a_bad_page_costs_itself_alone() {
    let (good, bad) = (line(60.0, 700.0, "Good."), sized(60.0, 700.0, 10.0, "F3", "Bad."));
    let font = "<</Type /Font /Subtype /Type0 /BaseFont /Helvetica /Encoding /Identity-H>>";
    let resources = "/Resources <</Font <</F3 5 0 R>>>>";
    let parsed = read(&file(&[(&good, ""), (&bad, resources)], &[font], "")).unwrap();
    assert_eq!(parsed.text, "Good.");
    assert_eq!(parsed.left_out, ["1 page that could not be read to the end"]);
    assert!(read(&file(&[(&bad, resources)], &[font], "")).unwrap_err().contains("damaged"));
}

#[test]
fn fonts_that_others_read_are_read() {
    let map = stream("", "1 beginbfrange <41> <42> <006600660069> endbfrange");
    let widths = format!("/TrueType /BaseFont /Arial /FirstChar 32 /LastChar 255 /Widths [{}]", "500 ".repeat(95));
    for (font, expected) in [
        (widths.as_str(), "AB 1100 had"),
        ("/Type1 /BaseFont /Helvetica /Encoding /StandardEncoding", "AB 1100 had"),
        ("/TrueType /BaseFont /Arial /Encoding /Identity-H", "AB 1100 had"),
        (
            "/Type1 /BaseFont /Arial /Encoding <</BaseEncoding /StandardEncoding /Differences [65 /C 300 /D]>>",
            "CB 1100 had",
        ),
        ("/TrueType /BaseFont /Arial /ToUnicode 6 0 R", "ffiffj 1100 had"),
        ("/Type1 /BaseFont /Helvetica /FirstChar 0 /LastChar 255 /Widths []", "AB 1100 had"),
        ("/Type1 /Encoding /WinAnsiEncoding", "AB 1100 had"),
    ] {
        let font = format!("<</Type /Font /Subtype {font}>>");
        let content = line(60.0, 680.0, "Below.") + &sized(60.0, 700.0, 10.0, "F3", "AB 1100 had");
        let resources = "/Resources <</Font <</F1 3 0 R /F3 5 0 R>>>>";
        let parsed = read(&file(&[(&content, resources)], &[&font, &map], "")).unwrap();
        assert!(parsed.text.starts_with(expected) && parsed.text.ends_with("Below."), "{font}: {:?}", parsed.text);
        assert_eq!(parsed.left_out, [""; 0], "{font}");
    }
}

#[test]
fn a_font_whose_file_is_damaged_keeps_its_letters() {
    let (map, program) = (stream("", "1 beginbfrange <41> <42> <0058> endbfrange"), stream("", "\u{80}"));
    let widths = "/FirstChar 65 /LastChar 66 /Widths [500 500]";
    for (says, expected, notes) in [
        ("/ToUnicode 6 0 R", "XY", 0),
        ("/ToUnicode 6 0 R /Encoding <</Differences [65 /P /Q]>>", "XY", 0),
        ("/Encoding <</Differences [65 /P /Q]>>", "PQ", 1),
    ] {
        let font = format!("<</Type /Font /Subtype /Type1 /BaseFont /AB+X {widths} {says} /FontDescriptor 7 0 R>>");
        let content = sized(60.0, 700.0, 10.0, "F3", "AB") + &line(60.0, 680.0, "Below.");
        let resources = "/Resources <</Font <</F1 3 0 R /F3 5 0 R>>>>";
        let more: [&str; 4] = [&font, &map, "<</FontFile 8 0 R>>", &program];
        let parsed = read(&file(&[(&content, resources)], &more, "")).unwrap();
        assert!(parsed.text.starts_with(expected), "{says}: {:?}", parsed.text);
        assert_eq!(parsed.left_out.len(), notes, "{says}");
    }
}

#[test]
fn fonts_that_stand_in_their_page_are_mended() {
    let map = stream("", "1 beginbfrange <41> <42> <006600660069> endbfrange");
    let fonts = "<</F1 3 0 R /F3 <</Type /Font /Subtype /TrueType /BaseFont /Arial /ToUnicode 5 0 R>>>>";
    let content = sized(60.0, 700.0, 10.0, "F3", "AB 1100 had") + &line(60.0, 680.0, "Below.");
    let resources = format!("/Resources <</Font {fonts}>>");
    let parsed = read(&file(&[(&content, &resources)], &[&map], "")).unwrap();
    assert!(parsed.text.starts_with("ffiffj 1100 had"), "{:?}", parsed.text);
    assert_eq!(parsed.left_out, [""; 0]);
}

#[test]
fn drawings_have_fonts_of_their_own() {
    let content = line(60.0, 700.0, "Above.") + "/Form Do\n";
    let form = stream(
        "/Type /XObject /Subtype /Form /Resources <</Font <</F1 6 0 R>>>>",
        "BT /F1 10 Tf 1 0 0 1 60 600 Tm (A) Tj ET",
    );
    let font = "<</Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding <</Differences [65 /Z]>>>>";
    let resources = "/Resources <</Font <</F1 3 0 R>> /XObject <</Form 5 0 R>>>>";
    let parsed = read(&file(&[(&content, resources)], &[&form, font], "")).unwrap();
    assert_eq!(parsed.text, "Above.\n\nZ");
}

#[test]
fn letters_without_a_meaning_are_told() {
    let font = "<</Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /DescendantFonts [6 0 R]>>";
    let descendant = "<</Type /Font /Subtype /CIDFontType2 /BaseFont /X /FontDescriptor <<>>>>";
    let content = "BT /F3 10 Tf 1 0 0 1 60 700 Tm <00410042004300440045> Tj ET\n";
    let resources = "/Resources <</Font <</F1 3 0 R /F3 5 0 R>>>>";
    let more = [font, descendant];
    assert!(read(&file(&[(content, resources)], &more, "")).unwrap_err().contains("which letters"));
    let beside = content.to_owned() + &line(60.0, 600.0, "Beside.");
    let parsed = read(&file(&[(&beside, resources)], &more, "")).unwrap();
    assert_eq!(parsed.text, "Beside.");
    assert_eq!(parsed.left_out, ["letters whose font does not say what they are, on 1 page"]);
}

#[test]
fn letters_are_bounded() {
    let bytes = file(&[(&line(60.0, 700.0, "Seven herons stand in the reeds."), "")], &[], "");
    let mut pages = Pages::of(Document::load_mem(&bytes).unwrap()).unwrap();
    let mut taken = Taken { glyphs: MAX_GLYPHS - 12, ..Taken::default() };
    let pieces = taken.page(&mut pages, 0, &[]);
    let text: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
    assert_eq!((text, taken.glyphs), (vec!["Seven", "herons"], MAX_GLYPHS));
    assert_eq!(taken.left_out(0), ["what comes after 6000000 letters, on 1 page"]);
}

#[test]
fn dates_are_iso_dates() {
    assert_eq!(date("D:20260303091500+01'00'").as_deref(), Some("2026-03-03T09:15:00+01:00"));
    assert_eq!(date("D:20260303091500Z00'00'").as_deref(), Some("2026-03-03T09:15:00Z"));
    assert_eq!(date("D:202603").as_deref(), Some("2026-03"));
    assert_eq!(date("D:2026030309").as_deref(), Some("2026-03-03T09"));
    assert_eq!(date("3 March"), None);
}

#[test]
fn titles_and_lone_texts_that_repeat_are_no_heads() {
    let slide = |bird: &str| {
        let lines = [format!("Seven {bird} were seen."), format!("The {bird} stood in the reeds all day long.")];
        sized(60.0, 780.0, 20.0, "F1", "Results") + &line(60.0, 700.0, &lines[1]) + &line(60.0, 650.0, &lines[0])
    };
    let slides = ["herons", "owls", "cranes"].map(slide);
    let pages: Vec<(&str, &str)> = slides.iter().map(|slide| (slide.as_str(), "")).collect();
    let parsed = read(&file(&pages, &[], "")).unwrap();
    assert_eq!((parsed.text.matches("Results").count(), parsed.left_out.len()), (3, 0));
    let lone = line(60.0, 700.0, "Ticket for one person");
    let parsed = read(&file(&[(&lone, ""), (&lone, ""), (&lone, "")], &[], "")).unwrap();
    assert_eq!((parsed.text.matches("Ticket").count(), parsed.left_out.len()), (3, 0));
}

#[test]
fn titles_that_are_numbered_as_pages_are_no_heads() {
    let read_all = |titles: &[String], size: f32| {
        let body = |bird: &str| {
            let lines =
                [format!("Seven {bird} stood beside the lock in May,"), format!("and all {bird} left in June.")];
            column(60.0, 700.0, &[&lines[0], &lines[1]])
        };
        let birds = ["herons", "owls", "cranes", "rooks"];
        let page = |(title, bird): (&String, &str)| sized(60.0, 780.0, size, "F1", title) + &body(bird);
        let pages: Vec<String> = titles.iter().zip(birds).map(page).collect();
        let pages: Vec<(&str, &str)> = pages.iter().map(|page| (page.as_str(), "")).collect();
        read(&file(&pages, &[], "")).unwrap()
    };
    for size in [10.0, 24.0] {
        let invoices: Vec<String> = (1001..1005).map(|number| format!("Invoice {number}")).collect();
        let days: Vec<String> = (1..5).map(|day| format!("{day} January")).collect();
        let names = ["Goals", "Method", "Data", "Results"];
        let slides: Vec<String> = (1..).zip(names).map(|(at, name)| format!("{at}. {name}")).collect();
        for titles in [invoices, days, slides] {
            let parsed = read_all(&titles, size);
            assert!(titles.iter().all(|title| parsed.text.contains(title)), "{titles:?} in {:?}", parsed.text);
            assert_eq!(parsed.left_out.len(), 0);
        }
    }
    // A page's number stands away from the words, or says what it is.
    for words in ["Rules |", "Page"] {
        let heads: Vec<String> = (1..5).map(|page| format!("{words} {page}")).collect();
        assert!(!read_all(&heads, 10.0).text.contains(words), "{words}");
    }
}

#[test]
fn widths_of_several_letters_are_widths_of_each() {
    for (widths, expected) in [
        ("[1 [500 600] 7 9 550]", "[1 [500 600] 7 [550 550 550]]"),
        ("[1 [500] 7]", "[1 [500]]"),
        ("[1.0 [500 null] 2.0 3 0.5]", "[1 [500 0] 2 [0.5 0.5]]"),
        ("[1 [500] 9 7 500]", "[1 [500]]"),
        ("[1 6 0 R]", "[1 [500 250]]"),
    ] {
        let font = format!("<</Subtype /CIDFontType2 /W {widths}>>");
        let bytes = file(&[(&line(60.0, 700.0, "A."), "")], &[&font, "[500 250]"], "");
        let mut document = Document::load_mem(&bytes).unwrap();
        fonts::list_widths(&mut document);
        let font = document.get_dictionary((5, 0)).unwrap();
        assert_eq!(format!("{:?}", font.get(b"W").unwrap()), expected);
    }
}

#[test]
fn lists_of_fonts_are_written_as_far_as_there_are_codes() {
    let font = "<</Subtype /Type1 /FirstChar 0 /Widths 7 0 R /Encoding 8 0 R>>";
    let whole = "<</Subtype /Type1 /FirstChar 32 /LastChar 33 /Widths 9 0 R>>";
    let widths = format!("[{}]", "500 ".repeat(3000));
    let encoding = format!("<</Differences [{}]>>", "0 /a ".repeat(3000));
    let more: [&str; 5] = [font, whole, &widths, &encoding, "[500 250]"];
    let mut document = Document::load_mem(&file(&[(&line(60.0, 700.0, "A."), "")], &more, "")).unwrap();
    fonts::mend(&mut document);
    let font = document.get_dictionary((5, 0)).unwrap();
    let length = |font: &Dictionary, key: &[u8]| font.get(key).unwrap().as_array().unwrap().len();
    assert_eq!(length(font, b"Widths"), 256);
    assert_eq!(length(font.get(b"Encoding").unwrap().as_dict().unwrap(), b"Differences"), 2);
    // What the library takes as it is stays one list.
    let whole = document.get_dictionary((6, 0)).unwrap();
    assert!(whole.get(b"Widths").unwrap().as_reference().is_ok());
}
