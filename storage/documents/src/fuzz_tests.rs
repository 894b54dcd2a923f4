//! Files of any content. Those of others' libraries that are known to panic, or to ask for as much memory as a file says, are left out: PDF, Parquet,
//! Arrow. It costs the file only (`tests/it/hostile_files.rs`).

use super::parse::{Asked, Parsed, parse};
use super::*;
use crate::fuzz::fuzz;

fn documents(format: Format, bytes: &[u8]) -> Result<Vec<Parsed>, String> {
    let mut found = Vec::new();
    let asked = Asked { format, fields: RecordFields::default() };
    parse(&asked, bytes.to_vec(), &mut |parsed| {
        found.push(parsed);
        Ok(())
    })?;
    Ok(found)
}

/// Refused with a reason, or read: twice the same, and within what a file of its size can say.
fn try_files(name: &str, format: Format, seeds: &[&str]) {
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    fuzz(name, &seeds, |bytes| match documents(format, bytes) {
        Ok(found) => {
            // Cells of tables have marks around them, and a rule below them.
            let bytes_of = |parsed: &Parsed| parsed.title.as_ref().map_or(0, String::len) + parsed.text.len();
            assert!(found.iter().map(bytes_of).sum::<usize>() <= (16 + bytes.len()) * bytes.len());
            assert!(documents(format, bytes).is_ok_and(|again| again == found), "twice the same");
            true
        }
        Err(reason) => {
            assert!(!reason.is_empty());
            false
        }
    });
}

#[test]
fn any_markdown_is_read_or_refused() {
    try_files(
        "markdown",
        Format::Markdown,
        &[
            "---\nt: x\n---\n\n# The *Works*\n\nIt [has](x) `26`.\n\n- one\n- two\n\n|a|b|\n|-|-|\n|c|d|\n",
            "<table>\n<tr><td>a\n\n*b*\n\n</table>\n\n## S\n\n<details><summary>c</summary>\n\nd <b hidden>e</b><br>[f](https://g.h/i)",
        ],
    );
}

#[test]
fn any_html_is_read_or_refused() {
    let page = "<html><head><TITLE>A &amp; B</TITLE><script>no()</script></head><body><p>One &lt; two.</p><ul><li>x</ul>\
                <table><tr><td>Granite</td><td>2.7</td></tr></table><pre>a\n b</pre><!-- c --><a href=x>y</a></body></html>";
    let site = "<style>.a, #b { display: none }</style><nav>m</nav><header><h1>T</h1></header><main><p class=a>x<p id=b>y\
                <p>Read <a href='https://a.b/c'>this</a>.</main><div class=cookie-bar>c</div><aside>r</aside><footer>f</footer>";
    let spans = "<table><thead><tr><th rowspan=2>a<th colspan=3>b<tr><td>c<tbody><tr><td rowspan=0>d<td>e<tr><td colspan=9>f<td>g</table>\
                 <table><tr><td><pre>h\n i</pre></table><pre>j<table><tr><td>k</table></pre>";
    try_files("html", Format::Html, &[page, site, spans]);
}

#[test]
fn any_table_is_read_or_refused() {
    try_files("csv", Format::Delimited, &["a,b\n\"c, d\",\"e\"\"\"\n", "a;b\r\n1;2", "a\tb\n1\t\"c\n2\t\"d\ne\""]);
}

#[test]
fn any_text_of_other_kinds_is_read_or_refused() {
    let subtitles = "WEBVTT\n\n1\n00:01.000 --> 00:02.000\n<v Ada>One &amp; <i>two</i>\n\n00:00:02,000 --> 00:00:03,000\n{\\an8}three\n";
    try_files("subtitles", Format::Subtitles, &[subtitles]);
    let mdx =
        "import { A } from \"a\"\n\n# T\n\n<A title=\"x\" b={c > 1}>\n  text {/* c */} `<B>`\n</A>\n```\ncode\n```\n";
    try_files("mdx", Format::Mdx, &[mdx]);
    let xml = "<?xml version=\"1.0\"?><a><title>t</title><b id=\"7\">x <c>y</c></b><table><row><entry>1</entry><entry>2</entry></row></table>\
               <d>&lt;p&gt;q</d><ol><li>z</li></ol></a>";
    try_files("xml", Format::Xml, &[xml]);
    let book = r##"{"cells":[{"cell_type":"markdown","source":["# t\n","x"]},{"cell_type":"code","source":"y","outputs":[{"text":"z"}]}]}"##;
    try_files("notebook", Format::Notebook, &[book]);
    let rtf = "{\\rtf1\\ansi{\\fonttbl{\\f0\\fcharset204 A;}}{\\info{\\title T}}\\pard{\\listtext 1.\\tab}a\\'e9\\u8364?{\\v b}\\par\\intbl c\\cell d\\cell\\row\
               {\\field{\\*\\fldinst HYPERLINK \"http://a\"}{\\fldrslt e}}\\par}";
    try_files("rtf", Format::Rtf, &[rtf]);
}

#[test]
fn any_mail_is_read_or_refused() {
    let mail = "From: \"A\" <a@example.org>\nSubject: =?utf-8?q?J=C3=BC?=\nContent-Type: multipart/mixed; boundary=x\n\n\
                --x\nContent-Type: text/html\nContent-Transfer-Encoding: base64\n\nPHA+Yg==\n--x--\n";
    let file = "--x\nContent-Type: text/csv; name=\"a/b#c.csv\"\n\na,b\n1,2\n--x\nContent-Type: message/rfc822\n\nSubject: i\n\nj\n--x--\n";
    try_files("mail", Format::Mail, &[mail, &mail.replace("--x--\n", file)]);
    try_files("mailbox", Format::Mailbox, &[&format!("From a\n{mail}\nFrom b\n{mail}")]);
}

#[test]
fn any_archive_is_read_or_refused() {
    let odt = archive::zipped(&[(
        "content.xml",
        "<d xmlns:t=\"t\"><body><text><t:h t:outline-level=\"1\">A</t:h><list><list-item><p>b<s c=\"3\"/></p></list-item></list>\
         <table><table-row><table-cell number-rows-spanned=\"2\"><p>c</p></table-cell></table-row></table></text></body></d>",
    )]);
    for (name, format, file) in [
        ("docx", Format::Docx, &include_bytes!("fixtures/works.docx")[..]),
        ("xlsx", Format::Spreadsheet, include_bytes!("fixtures/stones.xlsx")),
        ("epub", Format::Epub, include_bytes!("fixtures/orvik.epub")),
        ("odt", Format::OpenText, &odt),
        ("pptx", Format::Pptx, include_bytes!("fixtures/herons.pptx")),
    ] {
        fuzz(name, &[file.to_vec()], |bytes| match documents(format, bytes) {
            Ok(_) => true,
            Err(reason) => {
                assert!(!reason.is_empty());
                false
            }
        });
    }
}

#[test]
fn any_json_is_read_or_refused() {
    let one = r#"{"id":7,"title":"t","text":"a","source":"s","metadata":{"k":[1]},"more":null}"#;
    try_files("json lines", Format::JsonLines, &[&format!("{one}\n\n{one}\n")]);
    let exported = r#"[{"a":{"b":1},"c":[2,"d"]},{"e":3},{"content":{"parts":["f"]},"title":"g"},{"messages":[{"content":"h","role":"user"}]}]"#;
    let nested = r#"{"pages":[{"title":"a","body":"One two three four five six seven."},{"k":[{"l":1},{"m":2}]}],"n":{"o":"p"}}"#;
    try_files("json", Format::JsonArray, &[&format!("[{one},{{\"text\":\"b\"}}]"), exported, nested]);
}
