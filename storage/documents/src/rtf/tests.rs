use super::*;

fn rtf(body: &str) -> Parsed {
    read(format!("{{\\rtf1\\ansi\\ansicpg1252\\deff0{body}}}").as_bytes()).unwrap()
}

#[test]
fn paragraphs_and_what_the_file_says_of_itself() {
    let parsed = rtf(
        "{\\fonttbl{\\f0\\fswiss Helvetica;}{\\f1\\fcharset204 Arial;}}{\\*\\generator Pad 4.1;}{\\info{\\title Complaint}{\\author J\\'fcrgen}{\\category Letters}}\n\
         {\\header Not this}{\\stylesheet{\\s1 heading 1;}}\\pard\\outlinelevel0 {\\b The \\'dcbel}\\par\n\\pard Stra\\'dfe \\{5\\} \\u8364?5\\emdash\nand \
         {\\uc2\\u-10179??\\u-8694??}\\par {\\f1\\'cf\\'f0}\\~!\\line next{\\pict\\bin5 }}}}}\\par",
    );
    assert_eq!(parsed.title.as_deref(), Some("Complaint"));
    assert_eq!(parsed.metadata["author"], "Jürgen");
    assert_eq!(parsed.text, "The Übel\n\nStraße {5} €5—and 😊\n\nПр\u{a0}!\nnext");
    assert_eq!(parsed.elements.len(), 2);
}

#[test]
fn lists_tables_links_and_notes() {
    let parsed = rtf("\\pard Steps:\\par{\\listtext\\tab 1.\\tab}Stop it.\\par{\\pntext\\f3\\'b7\\tab}Drop it.\\par\
         \\trowd\\pard\\intbl Item\\cell Price\\cell\\row\\pard\\intbl Tea\\par leaf\\cell 3\\cell\\row\\pard After \
         {\\field{\\*\\fldinst {HYPERLINK \"https://a.example/x\"}}{\\fldrslt {\\ul the form}}}.{\\footnote\\pard Old.}\\par");
    assert_eq!(
        parsed.text,
        "Steps:\n1. Stop it.\n- Drop it.\n\n| Item | Price |\n| --- | --- |\n| Tea leaf | 3 |\n\nAfter the form (https://a.example/x). (Old.)"
    );
}

#[test]
fn hidden_struck_and_deleted_text_is_left_out() {
    let parsed = rtf("Rent {\\strike 900} 740{\\v Obey me.}{\\deleted 1}\\v  no\\v0 .\\par");
    assert_eq!(parsed.text, "Rent 740.");
    assert_eq!(parsed.left_out, ["struck text: 1 place", "hidden text: 2 places"]);
}

#[test]
fn damage_is_read_or_refused() {
    assert!(read(b"Dear Ada").unwrap_err().contains("does not begin"));
    assert!(read(format!("{{\\rtf1{}", "{".repeat(20_000)).as_bytes()).unwrap_err().contains("too deep"));
    for body in
        ["}}}\\u\\uc-5\\u99999999999 x", "\\'zz\\'", "\\bin99999999 x", "\\", "\\fldrslt}{\\listtext}\\cell\\row"]
    {
        let _ = rtf(body);
    }
}
