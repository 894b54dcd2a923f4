use super::*;

/// Writes a file into a fresh folder and reads it, in this process.
fn read_as(name: &str, content: &[u8]) -> Result<Vec<Document>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("written");
    let mut documents = Vec::new();
    let read = Reader::new(Here).read(&FoundFile { path, within: None, bytes: 0, source: None }, &mut |document| {
        documents.push(document);
        true
    });
    match read {
        Ok(()) => Ok(documents),
        Err(Unread::Skipped(why)) => Err(why),
        Err(other) => panic!("{other:?}"),
    }
}

fn one(name: &str, content: &str) -> (String, String) {
    let documents = read_as(name, content.as_bytes()).expect("readable");
    assert_eq!(documents.len(), 1);
    (documents[0].title.clone(), documents[0].text.clone())
}

fn why(name: &str, content: &[u8]) -> String {
    read_as(name, content).expect_err("unreadable")
}

/// What comes of a file that is bad in places, and why.
fn read_in_part(name: &str, content: &[u8]) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("written");
    let mut texts = Vec::new();
    let read = Reader::new(Here).read(&FoundFile { path, within: None, bytes: 0, source: None }, &mut |document| {
        texts.push(document.text);
        true
    });
    match read {
        Err(Unread::Skipped(why)) => (texts, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bad_record_does_not_keep_the_others_from_being_read() {
    let lines = br#"{"text":"one"}
{"text":
{"text":"two"}
[]
{"text":5}
{"id":"","text":"a"}
{"text":"three"}"#;
    let (texts, why) = read_in_part("a.jsonl", lines);
    assert_eq!(texts, ["one", "two", "three"]);
    for words in ["line 2: EOF", "line 4: not an object", "line 5: `text`", "and 1 more such lines"] {
        assert!(why.contains(words), "{why}");
    }
    let (texts, why) = read_in_part("a.json", br#"[{"text":"one"},7,{"text":"two"}]"#);
    assert_eq!(texts, ["one", "two"]);
    assert!(why.starts_with("element 1: not an object"), "{why}");
    // What is no JSON cannot be read on.
    let (texts, why) = read_in_part("a.json", br#"[{"text":"one"},7,{"text":"#);
    assert!(texts == ["one"] && why.contains("element 1") && why.contains("EOF"), "{why}");
}

#[test]
fn text_takes_its_name_as_title_and_loses_its_byte_order_mark() {
    assert_eq!(one("herons.txt", "\u{feff}Seven herons."), ("herons".into(), "Seven herons.".into()));
}

#[test]
fn markdown_loses_its_marks_and_nothing_else() {
    let (title, text) =
        one("a.md", "# The *Works*\n\nIt has **26** [people](x).\n\n- one\n- two\n\n## Later\n\n`code`");
    assert_eq!(title, "The Works");
    for part in ["It has 26 people.", "one\n", "two\n", "Later", "code"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(!text.contains(['#', '*', '`']), "{text:?}");
}

#[test]
fn html_is_what_a_reader_sees() {
    let page =
        "<html><head><TITLE>A &amp; B</TITLE><script>no()</script></head><body><p>One &lt; two.</p><p>Three.</p>";
    let (title, text) = one("a.html", page);
    assert_eq!(title, "A & B");
    assert!(text.contains("One < two.") && text.contains("Three.") && !text.contains("no()"), "{text:?}");
}

#[test]
fn markdown_front_matter_is_no_heading_and_code_is_kept() {
    let (title, text) =
        one("a.md", "---\ntitle: Meta\n---\n\nLead.\n\nA *long*\ntitle\n===\n\n```rust\nfn f() {}\n```\n");
    assert_eq!(title, "A long title");
    assert!(text.contains("Lead.") && text.contains("fn f() {}"), "{text:?}");
    // Another title than that of its page is one of the fields that people write.
    assert!(text.starts_with("title: Meta\n\nLead."), "{text:?}");
}

#[test]
fn html_tables_and_lists_are_their_words() {
    let rows = "<tr><td>Granite</td><td>2.7</td></tr>".repeat(50);
    let page = format!("<table><tr><th>Stone<th>Weight</tr>{rows}</table><ul><li>one<li>two</ul><style>p{{}}</style>");
    let (title, text) = one("stones.html", &page);
    assert_eq!(title, "stones");
    assert!(text.contains("Stone") && text.contains("Granite") && text.contains("two"), "{text:?}");
    assert!(text.len() < 2000 && !text.contains("─") && !text.contains("p{"), "{} {text:?}", text.len());
}

/// One page with one line of text, as a program would write it.
fn pdf(line: &str) -> Vec<u8> {
    let content = format!("BT /F1 12 Tf 72 700 Td ({line}) Tj ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    let mut file = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file += &format!("{} 0 obj\n{object}\nendobj\n", index + 1);
    }
    let start = file.len();
    file += &format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for offset in offsets {
        file += &format!("{offset:010} 00000 n \n");
    }
    file += &format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    file.into_bytes()
}

#[test]
fn pdf_text_is_read_and_damage_costs_one_file() {
    let whole = pdf("Seven herons stand in the reeds.");
    let documents = read_as("herons.pdf", &whole).expect("readable");
    assert_eq!(documents[0].title, "herons");
    assert!(documents[0].text.contains("Seven herons stand in the reeds."), "{:?}", documents[0].text);
    assert!(why("empty.pdf", &pdf("")).contains("OCR"));
    for end in (0..whole.len()).step_by(23) {
        // Whatever the library does with a part of a file, it must come back.
        let _ = read_as("part.pdf", &whole[..end]);
    }
}

#[test]
fn a_number_is_an_id_and_other_types_are_errors() {
    let documents = read_as("a.jsonl", b"{\"id\":7,\"text\":\"one\"}").expect("readable");
    assert_eq!(documents[0].id.as_deref(), Some("7"));
    assert!(why("a.jsonl", b"{\"text\":5}").contains("`text` must be a string"));
    assert!(why("a.jsonl", b"[1]").contains("line 1"));
}

/// What comes of files of these names and contents, read one after another, and why not all of each.
fn read_all(files: &[(&str, &str)], fields: RecordFields) -> (Vec<Document>, Vec<Option<String>>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut reader = Reader::new(Here).with_fields(fields);
    let (mut documents, mut told) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("written");
        let read = reader.read(&FoundFile { path, within: None, bytes: 0, source: None }, &mut |document| {
            documents.push(document);
            true
        });
        told.push(match read {
            Ok(()) => None,
            Err(Unread::Skipped(why)) => Some(why),
            Err(other) => panic!("{other:?}"),
        });
    }
    (documents, told)
}

#[test]
fn files_whose_records_have_the_same_short_ids_are_told() {
    let lines = "{\"id\":0,\"text\":\"one\"}\n{\"id\":1,\"text\":\"two\"}\n";
    let files = [("train.jsonl", lines), ("test.jsonl", lines), ("other.json", "[{\"id\":7,\"text\":\"three\"}]")];
    let (documents, told) = read_all(&files, RecordFields::default());
    assert_eq!((documents.len(), &told[0], &told[2]), (5, &None, &None));
    let why = told[1].as_deref().expect("told");
    assert!(why.starts_with("2 of its records") && why.contains("train.jsonl") && why.contains("--id-field"), "{why}");
    // Beside what is wrong with other records.
    let (_, told) = read_all(&[files[0], ("bad.jsonl", "{\"id\":0,\"text\":\"one\"}\n{")], RecordFields::default());
    let why = told[1].as_deref().expect("told");
    assert!(why.starts_with("line 2: ") && why.contains("1 of its records"), "{why}");
    // Whoever names the field wants it so.
    let fields = RecordFields { id: Some("id".into()), ..RecordFields::default() };
    assert!(read_all(&files, fields).1.iter().all(Option::is_none));
}

#[test]
fn what_was_fetched_is_nobody_elses_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("copy.json");
    let bank = "https://bank.example/fees";
    let id = digest("ragstone document source v1", &[bank.as_bytes()]);
    let record = format!(r#"{{"id":"{id}","source":"{bank}","title":"Fees","text":"Transfers are free."}}"#);
    let records = format!(r#"[{record},{{"text":"two"}}]"#);
    std::fs::write(&path, records).expect("written");
    let read = |source: Option<&str>| {
        let mut documents = Vec::new();
        let file = FoundFile { path: path.clone(), within: None, bytes: 0, source: source.map(Into::into) };
        let read = Reader::new(Here).read(&file, &mut |document| {
            documents.push(document);
            true
        });
        read.expect("read");
        documents
    };
    let fetched = read(Some("https://other.example/data.json"));
    let [first, second] = &fetched[..] else { panic!("two documents") };
    assert_eq!(first.source.as_deref(), Some("https://other.example/data.json#0"));
    assert_eq!(second.source.as_deref(), Some("https://other.example/data.json#1"));
    assert_eq!((&first.metadata["id"], &first.metadata["source"]), (&id.as_str().into(), &bank.into()));
    let own = first.identity().expect("an id");
    assert!(own != id && own != second.identity().expect("an id"));
    // The same record of another site is another document, and that of the same file is the same.
    assert_ne!(read(Some("https://third.example/data.json"))[0].identity().expect("an id"), own);
    assert_eq!(read(Some("https://other.example/data.json"))[0].identity().expect("an id"), own);
    // A file of the owner's own says what it wishes.
    let mine = read(None);
    assert_eq!((mine[0].identity().expect("an id"), mine[0].source.as_deref()), (id.clone(), Some(bank)));
}

#[test]
fn soft_hyphens_part_no_words() {
    let (title, text) =
        one("a.html", "<title>Donau&shy;dampf</title><h2>Das Schiff</h2><p>Donau&shy;dampf&#x200b;schiff");
    assert_eq!((title.as_str(), text.as_str()), ("Donaudampf", "Das Schiff\n\nDonaudampfschiff"));
    assert_eq!(one("a.txt", "Donau\u{ad}dampf").1, "Donaudampf");
    assert_eq!(one("a.rs", "let s = \"a\u{ad}b\";").1, "let s = \"a\u{ad}b\";");
}

#[test]
fn json_lines_keep_ids_and_other_fields() {
    let documents =
        read_as("a.jsonl", b"{\"id\":\"x\",\"title\":\"T\",\"text\":\"one\",\"year\":1906}\n\n{\"text\":\"two\"}\n")
            .expect("readable");
    assert_eq!(documents[0].id.as_deref(), Some("x"));
    assert_eq!(documents[0].metadata["year"], 1906);
    assert!(documents[1].source.as_deref().is_some_and(|source| source.ends_with("a.jsonl#L3")));
}

#[test]
fn an_array_is_one_document_an_element() {
    assert_eq!(read_as("a.json", br#"[{"title":"","text":"one"},{"text":"two"}]"#).expect("readable").len(), 2);
}

#[test]
fn what_stands_beside_every_passage_is_bounded() {
    let long = "x".repeat(70_000);
    assert!(
        why("a.jsonl", format!("\n{{\"text\":\"a\",\"title\":\"{long}\"}}").as_bytes()).contains("line 2: `title`")
    );
    assert!(
        why("a.json", format!("[{{\"text\":\"a\",\"source\":\"{long}\"}}]").as_bytes()).contains("element 0: `source`")
    );
    assert!(why("a.jsonl", format!("{{\"text\":\"a\",\"more\":\"{long}\"}}").as_bytes()).contains("69 KiB"));
    // Found by the corpus, it would end the whole ingest.
    assert!(why("a.jsonl", b"{\"text\":\"a\",\"id\":\"\"}").contains("id is empty"));
    let (title, text) = one("a.md", &format!("# {long}\n\nText."));
    assert_eq!((&*title, text.len()), ("a", long.len() + "\n\nText.".len()));
    assert_eq!(one("a.html", &format!("<title>{long}</title><p>Text.")).0, "a");
}

#[test]
fn no_file_is_refused_for_its_title() {
    let folder = tempfile::tempdir().expect("a folder");
    let within = folder.path().canonicalize().expect("there");
    let path = within.join("蔵書".repeat(20)).join(format!("{}.md", "目録の写し".repeat(8)));
    std::fs::create_dir(path.parent().expect("a parent")).expect("made");
    for chars in [20, 180, 233, 234, 333, 334, 2000] {
        let heading = "図".repeat(chars);
        std::fs::write(&path, format!("# {heading}\n\nSlate.")).expect("written");
        let mut documents = Vec::new();
        let file = FoundFile { path: path.clone(), within: Some(within.clone().into()), bytes: 0, source: None };
        let read = Reader::new(Here).read(&file, &mut |document| {
            documents.push(document);
            true
        });
        read.expect("read");
        documents[0].check().expect("it fits");
        let said = format!("{}\n{}", documents[0].title, documents[0].text);
        assert!(said.contains(&heading) && said.ends_with("Slate."), "{chars}: {said}");
    }
}

#[test]
fn beside_a_long_path_less_of_the_title_is_kept() {
    let most = most_beside(1 << 20);
    let mut document = Document {
        title: "ü".repeat(500),
        text: "x".repeat(1 << 20),
        source: Some("s".repeat(most - 500)),
        ..Document::default()
    };
    document.metadata.insert("file".into(), "x".repeat(200).into());
    let document = fitted(document);
    document.check().expect("it fits");
    assert_eq!((document.title.len(), document.metadata.len()), (500 - "{}".len(), 0));
    // Where the path alone is too long, whoever takes the document says so.
    let document = fitted(Document { source: Some("s".repeat(most)), ..document });
    assert!(document.check().is_err() && !document.title.is_empty());
}

#[test]
fn other_encodings_are_read_and_told() {
    let documents = read_as("a.md", b"# Caf\xe9\n\nIn der Stra\xdfe.").expect("readable");
    assert_eq!((documents[0].title.as_str(), documents[0].text.as_str()), ("Café", "In der Straße."));
    assert_eq!(documents[0].metadata["encoding"], "windows-1252");
    let utf_16: Vec<u8> = "\u{feff}Nine herons.".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(read_as("a.txt", &utf_16).expect("readable")[0].text, "Nine herons.");
}

#[test]
fn source_code_is_kept_with_the_way_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("src/mill.rs");
    std::fs::create_dir(folder.path().join("src")).expect("made");
    std::fs::write(&path, "fn mill() {\n    grind();\n}\n").expect("written");
    let mut found = Vec::new();
    let file =
        FoundFile { path, within: Some(folder.path().canonicalize().expect("there").into()), bytes: 0, source: None };
    let read = Reader::new(Here).read(&file, &mut |document| {
        found.push(document);
        true
    });
    assert!(read.is_ok() && found.len() == 1);
    assert_eq!((found[0].title.as_str(), found[0].text.as_str()), ("src/mill.rs", "fn mill() {\n    grind();\n}\n"));
    assert_eq!(found[0].elements, [crate::element::Element { at: 0, kind: crate::element::ElementKind::Code }]);
}

#[test]
fn what_is_no_text_says_so() {
    assert!(why("a.txt", b"\xff\xfea").contains("UTF-16LE"));
    assert!(why("a.md", b"a\0b").contains("byte 1 is zero"));
}

#[test]
fn bad_input_names_the_place() {
    assert!(why("a.jsonl", b"{\"text\":\"one\"}\n{\"text\":").contains("line 2"));
    assert!(why("a.jsonl", b"{\"title\":null}").contains("`text` is missing"));
    assert!(why("a.json", b"[{}]").contains("`text` is missing"));
    assert!(
        why("a.txt", "öäüß€ \u{e4}".as_bytes().iter().chain(b"\xff").copied().collect::<Vec<_>>().as_slice())
            .contains("UTF-8 at byte 14")
    );
    assert!(why("a.exe", b"").contains("not a format"));
    assert!(why("a.pdf", b"%PDF-1.4 damaged").contains("PDF"));
}

#[test]
fn a_document_tells_its_files_name_and_when_it_was_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("House").join("roof.md");
    std::fs::create_dir(path.parent().expect("a parent")).expect("made");
    std::fs::write(&path, "---\nchanged: long ago\nfile: none\n---\nSlate.").expect("written");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_709_210_096);
    std::fs::File::options().write(true).open(&path).expect("there").set_modified(time).expect("set");
    let within = Some(folder.path().canonicalize().expect("there").into());
    let mut documents = Vec::new();
    let file = FoundFile { path: path.canonicalize().expect("there"), within, bytes: 0, source: None };
    let read = Reader::new(Here).read(&file, &mut |document| {
        documents.push(document);
        true
    });
    read.expect("read");
    let metadata = &documents[0].metadata;
    let told = ["changed", "file", "path", "folder"].map(|key| metadata[key].as_str().expect("a text"));
    assert_eq!(told, ["2024-02-29T12:34:56Z", "roof.md", "House/roof.md", "House"]);
    // What came with a request has the time that is told with it, or none.
    let sent = |changed: Option<&str>| {
        let mut documents = Vec::new();
        let bytes = (Bytes::from_static(b"Slate."), changed.map(str::to_owned));
        let read = Reader::new(Here).read_bytes(Path::new("roof.md"), bytes, &mut |document| {
            documents.push(document);
            true
        });
        read.expect("read");
        documents.remove(0).metadata
    };
    assert_eq!(sent(Some("2024-02-29T12:34:56Z"))["changed"], "2024-02-29T12:34:56Z");
    assert_eq!((sent(None).get("changed"), &sent(None)["file"]), (None, &"roof.md".into()));
}
