//! Files that are made to do harm: each ends in one clear line, everything else is ingested, and the service goes on.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ragstone_env::Stopwatch;
use serde_json::{Value, json};

use crate::harness::{Folder, Service};

/// A PDF of these objects, numbered from 1; the first is the catalog.
fn pdf(objects: &[Vec<u8>]) -> Vec<u8> {
    let (mut file, mut places) = (b"%PDF-1.5\n".to_vec(), Vec::new());
    for (index, object) in objects.iter().enumerate() {
        places.push(file.len());
        writeln!(file, "{} 0 obj", index + 1).unwrap();
        file.extend_from_slice(object);
        file.extend_from_slice(b"\nendobj\n");
    }
    let xref = file.len();
    writeln!(file, "xref\n0 {}\n0000000000 65535 f ", objects.len() + 1).unwrap();
    for place in places {
        writeln!(file, "{place:010} 00000 n ").unwrap();
    }
    writeln!(file, "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF", objects.len() + 1).unwrap();
    file
}

fn stream(dictionary: &str, content: &[u8]) -> Vec<u8> {
    let mut object = format!("<< {dictionary} /Length {} >>\nstream\n", content.len()).into_bytes();
    object.extend_from_slice(content);
    object.extend_from_slice(b"\nendstream");
    object
}

/// A PDF of one page with this content; `more` are the objects from 5 on, `/X5` and so on in the page's resources.
fn page(content: &[u8], filter: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let forms: String = (5..5 + more.len()).map(|number| format!("/X{number} {number} 0 R ")).collect();
    let resources = format!(
        "/Resources << /XObject << {forms} >> /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica \
         /Encoding /WinAnsiEncoding >> >> >>"
    );
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
        format!("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R {resources} >>").into_bytes(),
        stream(filter, content),
    ];
    objects.extend_from_slice(more);
    pdf(&objects)
}

/// zlib's form of more than `bytes` spaces: a literal, then matches of 258 bytes at distance 1 in 13 bits each.
fn flate_bomb(bytes: usize) -> Vec<u8> {
    let mut bits: Vec<u8> = vec![1, 1, 0];
    // A space is 0x30 + 0x20; codes go out from their highest bit.
    bits.extend((0..8).rev().map(|bit| (0x50 >> bit) & 1));
    let matched: Vec<u8> = (0..8).rev().map(|bit| (0xC5 >> bit) & 1).chain([0; 5]).collect();
    // Eight of them are whole bytes again.
    let period: Vec<u8> = matched.iter().copied().cycle().skip(5).take(8 * 13).collect();
    bits.extend(&matched[..5]);
    let pack = |bits: &[u8]| -> Vec<u8> {
        bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |packed, bit| (packed << 1) | bit)).collect()
    };
    let mut file = vec![0x78, 0x9C];
    file.extend(pack(&bits));
    file.extend(pack(&period).repeat(bytes / (258 * 8)));
    file
}

fn pdfs(folder: &Folder) {
    let form = |content: &str| stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9]", content.as_bytes());
    folder.write("in/pdf-form-in-itself.pdf", page(b"/X5 Do", "", &[form("/X5 Do")]));
    let doubling: Vec<_> = (6..46).map(|next| form(&format!("/X{next} Do /X{next} Do"))).chain([form("q")]).collect();
    folder.write("in/pdf-forms-doubling.pdf", page(b"/X5 Do", "", &doubling));
    folder.write("in/pdf-bomb.pdf", page(&flate_bomb(3 << 30), "/Filter /FlateDecode", &[]));
    let tree = |pages: &str, page: &str| {
        let catalog = b"<< /Type /Catalog /Pages 2 0 R >>".to_vec();
        pdf(&[catalog, pages.as_bytes().to_vec(), page.as_bytes().to_vec()])
    };
    let kids = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>";
    folder.write("in/pdf-own-parent.pdf", tree(kids, "<< /Type /Page /Parent 3 0 R >>"));
    folder.write("in/pdf-pages-cycle.pdf", tree(kids, "<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 9 >>"));
    folder.write("in/pdf-reference-cycle.pdf", tree("2 0 R", "3 0 R"));
    folder.write("in/pdf-nested.pdf", tree(kids, &"[".repeat(1_000_000)));
    let objects: Vec<_> = (0..100_000).map(|_| b"[1 0 R]".to_vec()).collect();
    folder.write("in/pdf-many-objects.pdf", page(b"", "", &objects));
    let whole = page(b"BT /F 12 Tf 72 700 Td (Half a heron.) Tj ET", "", &[]);
    folder.write("in/pdf-truncated.pdf", &whole[..whole.len() / 2]);
}

fn texts(folder: &Folder) {
    folder.write("in/html-nested.html", "<div>a".repeat(200_000));
    folder.write("in/html-tables.html", "<table><tr><td>".repeat(3_000_000));
    let attributes: String = (0..400_000).map(|number| format!(" a{number}=1")).collect();
    folder.write("in/html-attributes.html", format!("<p{attributes}>"));
    folder.write("in/json-nested.json", "[".repeat(100_000));
    folder.write("in/json-nested-line.jsonl", format!("{{\"text\":\"a\",\"x\":{}", "{\"a\":".repeat(100_000)));
    folder.write("in/json-long-line.jsonl", format!("{{\"text\":\"a\",\"x\":[{}0]}}", "0,".repeat(15 << 20)));
    folder.write("in/json-nameless.jsonl", "{\"text\":\"a\",\"id\":\"\"}");
    folder.write("in/json-not-ended.json", "[{\"text\":\"a\"},");
    folder.write("in/markdown-zeros.md", vec![0; 1 << 20]);
    folder.write("in/text-half-utf-16.txt", b"\xff\xfea");
    folder.write("in/text-picture.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    folder.write("in/name-\u{1b}[31m\n-\u{202e}.txt", b"\0\xff");
    folder.write("in/csv-wide.csv", format!("{}\n", "a,".repeat(10 << 20)).repeat(2));
    folder.write("in/mail-none.eml", "Dear all,\n");
    folder.write("in/mail-none.mbox", "Dear all,\n");
    let parts = "--b\nContent-Type: text/html\n\n<p>\n".repeat(1_500_000);
    folder.write("in/mail-parts.eml", format!("From: a@b\nContent-Type: multipart/mixed; boundary=b\n\n{parts}"));
}

/// An archive of these parts.
fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .compression_level(Some(1));
    for (name, content) in parts {
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// An archive of one part that is this many spaces, and says that it is so long.
fn archive_bomb(name: &str, bytes: usize, declared: usize) -> Vec<u8> {
    // Without zlib's own header.
    let packed = flate_bomb(bytes).split_off(2);
    let number = |number: usize, bytes: usize| number.to_le_bytes()[..bytes].to_vec();
    // Version, flags, deflated, time, date, checksum, sizes, length of the name and of more.
    let about: Vec<u8> =
        [(20, 2), (0, 2), (8, 2), (0, 2), (0, 2), (0, 4), (packed.len(), 4), (declared, 4), (name.len(), 2), (0, 2)]
            .into_iter()
            .flat_map(|(value, bytes)| number(value, bytes))
            .collect();
    let mut file = [&b"PK\x03\x04"[..], &about, name.as_bytes(), &packed].concat();
    let directory = file.len();
    // The place of the part is its beginning.
    file.extend([&b"PK\x01\x02"[..], &number(20, 2), &about, &[0; 14], name.as_bytes()].concat());
    let length = file.len() - directory;
    file.extend([&b"PK\x05\x06\0\0\0\0\x01\0\x01\0"[..], &number(length, 4), &number(directory, 4), &[0, 0]].concat());
    file
}

/// A Word document with this body.
fn word(body: &str) -> Vec<u8> {
    let document = format!("<w:document xmlns:w=\"w\"><w:body>{body}</w:body></w:document>");
    archive(&[("word/document.xml", document.as_bytes())])
}

/// A workbook with a sheet of this content.
fn workbook(sheet: &str) -> Vec<u8> {
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let book = format!(
        "<workbook xmlns=\"{main}\" xmlns:r=\"{links}\"><sheets><sheet name=\"S\" sheetId=\"1\" r:id=\"r1\"/></sheets></workbook>"
    );
    let rels = format!(
        "<Relationships xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\"><Relationship Id=\"r1\" \
         Type=\"{links}/worksheet\" Target=\"worksheets/sheet1.xml\"/></Relationships>"
    );
    let root = rels.replace("/worksheet", "/officeDocument").replace("worksheets/sheet1.xml", "xl/workbook.xml");
    let sheet = format!("<worksheet xmlns=\"{main}\"><sheetData>{sheet}</sheetData></worksheet>");
    archive(&[
        ("_rels/.rels", root.as_bytes()),
        ("xl/workbook.xml", book.as_bytes()),
        ("xl/_rels/workbook.xml.rels", rels.as_bytes()),
        ("xl/worksheets/sheet1.xml", sheet.as_bytes()),
    ])
}

fn archives(folder: &Folder) {
    const ENCRYPTED: &[u8] = include_bytes!("../../storage/documents/src/fixtures/encrypted.docx");
    const WORKS: &[u8] = include_bytes!("../../storage/documents/src/fixtures/works.docx");
    folder.write("in/office-encrypted.docx", ENCRYPTED);
    folder.write("in/office-truncated.docx", &WORKS[..WORKS.len() / 2]);
    folder.write("in/office-none.pptx", "no archive");
    folder.write("in/office-bomb.docx", archive_bomb("word/document.xml", 3 << 30, 3 << 30));
    folder.write("in/office-bomb-untold.docx", archive_bomb("word/document.xml", 3 << 30, 1000));
    folder.write("in/office-bomb-small.docx", archive_bomb("word/document.xml", 400 << 20, 400 << 20));
    let laughs: String =
        (1..10).map(|level| format!("<!ENTITY a{level} \"{}\">", format!("&a{};", level - 1).repeat(10))).collect();
    let document = format!(
        "<!DOCTYPE w [<!ENTITY a0 \"ha\">{laughs}]><w:document xmlns:w=\"w\"><w:body>&a9;</w:body></w:document>"
    );
    folder.write("in/office-entities.docx", archive(&[("word/document.xml", document.as_bytes())]));
    let table = "<w:tbl><w:tr><w:tc>";
    folder.write(
        "in/office-tables.docx",
        word(&format!("{}{}", table.repeat(1000), "</w:tc></w:tr></w:tbl>".repeat(1000))),
    );
    folder.write("in/office-nodes.docx", word(&"<w:p/>".repeat(4_200_000)));
    let rows: String =
        (1..=4_100).map(|row| format!("<row r=\"{row}\">{}</row>", "<c><v>1</v></c>".repeat(1000))).collect();
    folder.write("in/office-cells.xlsx", workbook(&rows));
    let far = "<table:table-row table:number-rows-repeated=\"1000000\"><table:table-cell table:number-columns-repeated=\"16000\" \
               office:value-type=\"string\"><text:p>a</text:p></table:table-cell></table:table-row>";
    let content = format!(
        "<office:document-content xmlns:office=\"urn:oasis:names:tc:opendocument:xmlns:office:1.0\" \
         xmlns:table=\"urn:oasis:names:tc:opendocument:xmlns:table:1.0\" xmlns:text=\"urn:oasis:names:tc:opendocument:xmlns:text:1.0\">\
         <office:body><office:spreadsheet><table:table table:name=\"T\">{far}</table:table></office:spreadsheet></office:body>\
         </office:document-content>"
    );
    let kind = b"application/vnd.oasis.opendocument.spreadsheet";
    folder.write(
        "in/office-repeated.ods",
        archive(&[("mimetype", kind), ("META-INF/manifest.xml", b"<a/>"), ("content.xml", content.as_bytes())]),
    );
    let container = b"<container><rootfile full-path=\"../../etc/passwd\"/></container>";
    folder.write("in/book-elsewhere.epub", archive(&[("META-INF/container.xml", container)]));
}

/// Data sets whose libraries ask for the memory that a file says, or give up.
fn data_sets(folder: &Folder) {
    const WELLS: &[u8] = include_bytes!("../../storage/documents/src/fixtures/wells-snappy.parquet");
    const STREAM: &[u8] = include_bytes!("../../storage/documents/src/fixtures/lanterns.arrow");
    folder.write("in/arrow-long-head.arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f");
    folder.write("in/arrow-old.feather", "FEA1");
    folder.write("in/arrow-truncated.arrow", &STREAM[..STREAM.len() / 4]);
    folder.write("in/parquet-none.parquet", "PAR1 and no more");
    // The kinds of its columns, as base64.
    let mut schema = WELLS.to_vec();
    let at = schema.windows(12).position(|bytes| bytes == b"ARROW:schema").unwrap();
    schema[at + 60..at + 400].fill(b'Z');
    folder.write("in/parquet-schema.parquet", schema);
    let mut lengths = WELLS.to_vec();
    let end = lengths.len() - 8;
    lengths[end - 200..end].fill(0xff);
    folder.write("in/parquet-lengths.parquet", lengths);
}

fn specials(folder: &Folder) {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    let inside = |name: &str| folder.path().join("in").join(name);
    let made = std::process::Command::new("mkfifo").arg(inside("special-pipe.txt")).status().unwrap();
    assert!(made.success());
    symlink("/etc/passwd", inside("link-out.txt")).unwrap();
    symlink("link-loop.txt", inside("link-loop.txt")).unwrap();
    symlink("/", inside("link-root")).unwrap();
    symlink("..", inside("link-parent")).unwrap();
    File::create(inside("special-sparse.txt")).unwrap().set_len(10 << 30).unwrap();
    std::fs::write(inside("special-private.txt"), "x").unwrap();
    std::fs::set_permissions(inside("special-private.txt"), PermissionsExt::from_mode(0o0)).unwrap();
    if File::open(inside("special-private.txt")).is_ok() {
        // Root reads everything.
        std::fs::remove_file(inside("special-private.txt")).unwrap();
    }
    std::fs::write(folder.path().join("in").join(std::ffi::OsStr::from_bytes(b"bytes-\xff.txt")), b"\0\xff").unwrap();
}

/// What must be ingested, with words that find it.
fn good(folder: &Folder) -> usize {
    folder.write("in/a-good.txt", "The heron of Orvik sleeps on one leg.");
    folder.write("in/m-good.md", "# Otter\n\nThe otter of Tarn opens mussels.");
    folder.write("in/n-good.html", "<title>Owl</title><p>The owl of Calbet hears mice.<hr><p>And voles.");
    folder.write("in/o-good.jsonl", "{\"text\":\"The newt of Elka is orange.\"}\n{\"text\":\"The toad is brown.\"}\n");
    folder.write("in/q-good.json", "[{\"text\":\"The swift of Dorman never lands.\"}]");
    folder.write("in/z-good.pdf", page(b"BT /F 12 Tf 72 700 Td (The crane of Mill dances.) Tj ET", "", &[]));
    std::os::unix::fs::symlink("a-good.txt", folder.path().join("in/b-link-inside.txt")).unwrap();
    8
}

fn hostile_names(folder: &Folder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.path().join("in")).unwrap().map(|entry| entry.unwrap().path());
    let is_good = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.contains("good") || name.contains("link-inside")
    };
    entries.filter(|path| !is_good(path)).collect()
}

/// Of a process, in MiB: `VmRSS` now, `VmHWM` at its most.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// Processes that `pid` started and did not wait for, or that still run.
fn children(pid: u32) -> Vec<String> {
    let parent = format!("PPid:\t{pid}");
    let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("status"));
    all.filter_map(|path| std::fs::read_to_string(path).ok())
        .filter(|status| status.lines().any(|line| line == parent))
        .collect()
}

/// The last one goes when the job's thread does, a moment after the job.
async fn wait_for_no_children(pid: u32) {
    let begun = Stopwatch::start();
    while let [child, ..] = &children(pid)[..] {
        assert!(begun.elapsed() < Duration::from_secs(20), "{child}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hostile_files_cost_one_line_each_and_nothing_else() {
    let folder = Folder::new();
    pdfs(&folder);
    texts(&folder);
    archives(&folder);
    data_sets(&folder);
    let documents = good(&folder);
    specials(&folder);
    let hostile = hostile_names(&folder);
    let service = folder.serve(&["--set", "file_seconds=1"]).await;
    let before = memory(service.pid(), "VmRSS");
    let path = folder.path().join("in").to_str().unwrap().to_owned();
    let ran = folder.run(&["ingest", &path, "--collection", "c", "--json"]).succeeded();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let skipped = report["skipped"].as_array().unwrap();
    for skip in skipped {
        println!("{} {}", skip["path"], skip["reason"]);
    }
    assert_eq!(
        (report["documents_added"].as_u64(), skipped.len()),
        // And the one whole record of the file that is cut off.
        (Some(documents as u64 + 1), hostile.len()),
        "{report}"
    );
    for name in hostile.iter().filter_map(|path| path.file_name()?.to_str()).filter(|name| !name.starts_with("name")) {
        let lines = skipped.iter().filter(|skip| Path::new(skip["path"].as_str().unwrap()).ends_with(name));
        assert_eq!(lines.count(), 1, "{name}: {report}");
    }
    for (name, words) in REASONS {
        let skip = skipped.iter().find(|skip| skip["path"].as_str().unwrap().contains(name));
        let reason = skip.unwrap_or_else(|| panic!("{name}: {report}"))["reason"].as_str().unwrap().to_owned();
        assert!(words.iter().any(|word| reason.contains(word)), "{name}: {reason}");
    }
    for text in [&ran.stdout, &ran.stderr] {
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{text:?}");
    }
    assert_eq!(ran.stderr.matches("name-\\u{1b}[31m\\n-\\u{202e}.txt: ").count(), 1, "{}", ran.stderr);
    let grown = memory(service.pid(), "VmHWM").saturating_sub(before);
    assert!(grown < 400, "the service took {grown} MiB more");
    wait_for_no_children(service.pid()).await;
    let found = service.ask("/v1/collections/c/search", &json!({ "query": "crane", "top_k": 1 })).await;
    assert!(found["data"][0].to_string().contains("dances"), "{found}");
}

/// Words of which the reason must have one.
const REASONS: &[(&str, &[&str])] = &[
    ("pdf-form-in-itself", &["nests too deep", "longer than 1 s", "holds no text"]),
    ("pdf-forms-doubling", &["longer than 1 s", "holds no text"]),
    ("pdf-bomb", &["1024 MiB of memory", "longer than 1 s", "no text"]),
    ("pdf-own-parent", &["nests too deep", "longer than 1 s", "holds no text"]),
    ("html-nested", &["nests too deep", "longer than 1 s", "1024 MiB"]),
    ("html-tables", &["nests too deep", "longer than 1 s", "1024 MiB"]),
    ("html-attributes", &["longer than 1 s", "more than 4000 attributes"]),
    ("json-nested.json", &["recursion limit"]),
    ("json-nested-line", &["line 1: recursion limit"]),
    ("json-long-line", &["fields beside `text`", "1024 MiB", "longer than 1 s"]),
    ("json-nameless", &["line 1: a document's id is empty"]),
    ("text-half-utf-16", &["UTF-16LE"]),
    ("text-picture", &["not text: byte 8 is zero"]),
    ("csv-wide", &["1024 MiB", "longer than 1 s", "MiB of text", "not readable as CSV"]),
    ("mail-none.eml", &["no header fields"]),
    ("mail-none.mbox", &["a line `From …`"]),
    ("mail-parts", &["1024 MiB", "longer than 1 s"]),
    ("office-encrypted", &["save it without a password"]),
    ("office-truncated", &["not readable as DOCX"]),
    ("office-none", &["not readable as PPTX"]),
    ("office-bomb.docx", &["unpacks to more than the 256 MiB"]),
    ("office-bomb-untold", &["is damaged"]),
    ("office-bomb-small", &["unpacks to more than the 256 MiB", "longer than 1 s"]),
    ("office-entities", &["declares entities (a DTD)"]),
    ("office-tables", &["nests too deep"]),
    ("office-nodes", &["has more than 4000000 nodes", "longer than 1 s", "1024 MiB"]),
    ("office-cells", &["more than 4000000 cells", "longer than 1 s", "1024 MiB"]),
    (
        "office-repeated",
        &["1024 MiB", "longer than 1 s", "not readable as a workbook", "more than 4000000 cells", "parser failed"],
    ),
    ("book-elsewhere", &["names no book"]),
    ("markdown-zeros", &["not text"]),
    ("special-pipe", &["not a regular file"]),
    ("special-sparse", &["10240 MiB is more than the 64 MiB"]),
    ("link-out", &["out of the ingested folder, to /etc/passwd"]),
    ("link-loop", &["symbolic links"]),
    ("link-root", &["out of the ingested folder"]),
    ("link-parent", &["out of the ingested folder"]),
    ("bytes-\\xff.txt", &["not text"]),
];

async fn wait_for_documents(service: &Service, wanted: usize) {
    let begun = Stopwatch::start();
    loop {
        let (_, collections) = service.get("/v1/collections").await;
        if collections["data"][0]["documents"] == wanted {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{collections}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_file_that_ends_the_process_does_so_twice() {
    const ARMED: &str = "ingest.read:020.txt=kill";
    let folder = Folder::new();
    for number in 0..40 {
        folder.write(&format!("in/{number:03}.txt"), format!("Lantern {number} burns with a flame of its own."));
    }
    let path = folder.path().join("in").to_str().unwrap().to_owned();
    let mut command = folder.ragstone(&["ingest", &path, "--collection", "c"]);
    let output = command.env("RAGSTONE_FAILPOINTS", ARMED).output().unwrap();
    assert_eq!(output.status.code(), None, "not killed: {output:?}");
    Service::start_unready(folder.serve_command(&[("RAGSTONE_FAILPOINTS", ARMED)])).wait();
    let service = folder.serve_with(&[], &[("RAGSTONE_FAILPOINTS", ARMED)]).await;
    wait_for_documents(&service, 39).await;
    // The job is done and forgotten, and asking for the file itself reads it again.
    assert_eq!(service.stop(), 0);
    let alone = folder.path().join("in/020.txt").to_str().unwrap().to_owned();
    assert_eq!(folder.json(&["ingest", &alone, "--collection", "c", "--json"])["documents_added"], 1);
}

#[tokio::test]
async fn a_job_that_only_ends_the_process_is_parked() {
    const ARMED: (&str, &str) = ("RAGSTONE_FAILPOINTS", "ingest.begin=kill");
    let folder = Folder::new();
    folder.write("in/lantern.txt", "The lantern of Orvik burns green.");
    folder.write("other.txt", "The mill grinds rye.");
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let output = folder.ragstone(&["ingest", &at("in"), "--collection", "c"]).env(ARMED.0, ARMED.1).output().unwrap();
    assert_eq!(output.status.code(), None, "not killed: {output:?}");
    for _ in 0..4 {
        Service::start_unready(folder.serve_command(&[ARMED])).wait();
    }
    // Still armed: it would end, were the job resumed.
    let service = folder.serve_with(&[], &[ARMED]).await;
    service.stop();
    let ran = folder.run(&["ingest", &at("other.txt"), "--collection", "c"]).succeeded();
    assert!(ran.stderr.contains("parked") && ran.stderr.contains(&at("in")), "{ran:?}");
    assert_eq!(folder.json(&["documents", "list", "--collection", "c", "--json"]).as_array().unwrap().len(), 1);
    let ran = folder.run(&["ingest", &at("in"), "--collection", "c"]).succeeded();
    assert!(ran.stdout.contains("1 document added") && !ran.stderr.contains("parked"), "{ran:?}");
}
