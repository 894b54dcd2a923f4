use super::*;
use crate::archive::zipped;

const NAMES: &str = r#"xmlns:w="w" xmlns:r="r""#;

fn docx(body: &str, more: &[(&str, &str)]) -> Parsed {
    let document = format!("<w:document {NAMES}><w:body>{body}</w:body></w:document>");
    let more: Vec<(&str, String)> = more.iter().map(|(name, text)| (*name, text.replace("NAMES", NAMES))).collect();
    let mut parts = vec![(DOCUMENT, document.as_str())];
    parts.extend(more.iter().map(|(name, text)| (*name, text.as_str())));
    read(&zipped(&parts)).unwrap()
}

const STYLES: &str = r#"<w:styles NAMES>
    <w:style w:styleId="H1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="5"/></w:numPr></w:pPr></w:style>
    <w:style w:styleId="H2"><w:name w:val="heading 2"/><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="5"/></w:numPr></w:pPr></w:style>
    <w:style w:styleId="Steps"><w:name w:val="Steps"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>
    <w:style w:styleId="More"><w:name w:val="More"/><w:basedOn w:val="Steps"/></w:style>
    <w:style w:styleId="Gone"><w:name w:val="Gone"/><w:rPr><w:vanish/></w:rPr></w:style>
    </w:styles>"#;

fn level(at: usize, start: u32, format: &str, text: &str, more: &str) -> String {
    format!(
        r#"<w:lvl w:ilvl="{at}"><w:start w:val="{start}"/><w:numFmt w:val="{format}"/>{more}<w:lvlText w:val="{text}"/></w:lvl>"#
    )
}

fn numbering() -> String {
    let steps = level(0, 1, "decimal", "%1.", "")
        + &level(1, 1, "lowerLetter", "%2)", "")
        + &level(2, 1, "upperRoman", "%1.%2.%3", "");
    let bullets = level(0, 1, "bullet", "\u{f0b7}", "");
    let chapters = level(0, 1, "upperRoman", "%1", "") + &level(1, 1, "decimal", "%1.%2", "<w:isLgl/>");
    let letters = level(0, 3, "upperLetter", "(%1)", "");
    format!(
        r#"<w:numbering NAMES><w:abstractNum w:abstractNumId="0">{steps}</w:abstractNum>
        <w:abstractNum w:abstractNumId="1">{bullets}</w:abstractNum><w:abstractNum w:abstractNumId="2">{chapters}</w:abstractNum>
        <w:abstractNum w:abstractNumId="3"><w:styleLink w:val="L"/>{letters}</w:abstractNum>
        <w:abstractNum w:abstractNumId="4"><w:numStyleLink w:val="L"/></w:abstractNum>
        <w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>
        <w:num w:numId="3"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num>
        <w:num w:numId="4"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="5"><w:abstractNumId w:val="2"/></w:num>
        <w:num w:numId="6"><w:abstractNumId w:val="4"/></w:num></w:numbering>"#
    )
}

fn item(list: u32, at: usize, text: &str) -> String {
    format!(
        r#"<w:p><w:pPr><w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{list}"/></w:numPr></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"#
    )
}

fn styled(style: &str, text: &str) -> String {
    format!(r#"<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"#)
}

fn listed(items: &[String]) -> String {
    docx(&items.concat(), &[("word/styles.xml", STYLES), ("word/numbering.xml", &numbering())]).text
}

#[test]
fn items_of_lists_have_their_numbers() {
    let items = [item(1, 0, "one"), item(1, 1, "deep"), item(1, 1, "deep"), item(1, 2, "deeper"), item(1, 0, "two")];
    assert_eq!(listed(&items), "1. one\na) deep\nb) deep\n1.b.I deeper\n2. two");
    // Another list of the same definition goes on, unless it says where it starts.
    let items = [item(1, 0, "one"), item(4, 0, "on"), item(3, 0, "anew"), item(3, 0, "anew"), item(1, 1, "deep")];
    assert_eq!(listed(&items), "1. one\n2. on\n1. anew\n2. anew\na) deep");
    // The letters of a level begin again below each item.
    let items = [item(1, 1, "a"), item(1, 0, "b"), item(1, 1, "c"), item(1, 1, ""), item(1, 1, "d")];
    assert_eq!(listed(&items), "a) a\n1. b\na) c\nc) d");
    assert_eq!(
        listed(&[item(2, 0, "x"), item(6, 0, "y"), item(6, 0, "z"), item(0, 0, "w"), item(77, 0, "v")]),
        "- x\n(C) y\n(D) z\n\nw\nv"
    );
}

#[test]
fn styles_are_what_they_are_made_from() {
    use crate::element::ElementKind;
    let styles = r#"<w:styles NAMES>
        <w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style>
        <w:style w:styleId="Own"><w:name w:val="Firma 1"/><w:basedOn w:val="H1"/></w:style>
        <w:style w:styleId="Plain"><w:name w:val="Lead"/><w:basedOn w:val="Own"/><w:pPr><w:outlineLvl w:val="9"/></w:pPr></w:style>
        </w:styles>"#;
    let body = [styled("Own", "Rent"), styled("Plain", "It is due in May.")].concat();
    let parsed = docx(&body, &[("word/styles.xml", styles)]);
    let kinds: Vec<ElementKind> = parsed.elements.iter().map(|element| element.kind).collect();
    assert_eq!(kinds.first(), Some(&ElementKind::Heading(1)));
    assert_eq!(kinds.iter().filter(|kind| matches!(kind, ElementKind::Heading(_))).count(), 1);
}

#[test]
fn a_subtitle_is_no_heading_whatever_it_is_made_from() {
    let styles = r#"<w:styles NAMES>
        <w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style>
        <w:style w:styleId="Title"><w:name w:val="Title"/></w:style>
        <w:style w:styleId="Subtitle"><w:name w:val="Subtitle"/><w:basedOn w:val="Title"/></w:style>
        <w:style w:styleId="Contents"><w:name w:val="Contents Heading"/><w:basedOn w:val="H1"/></w:style>
        </w:styles>"#;
    let subtitle = styled("Subtitle", "From 1912 on");
    let body = styled("Title", "The weir") + &subtitle + &styled("Contents", "What is where");
    let parsed = docx(&body, &[("word/styles.xml", styles)]);
    assert_eq!((parsed.title.as_deref(), parsed.text.as_str()), (Some("The weir"), "From 1912 on"));
    assert_eq!(parsed.elements.len(), 0);
    let parsed = docx(&subtitle, &[("word/styles.xml", styles)]);
    assert_eq!((parsed.title, parsed.text.as_str()), (None, "From 1912 on"));
}

#[test]
fn styles_give_numbers_to_headings_and_lists() {
    let items = [styled("H1", "Rent"), styled("H2", "When"), styled("H2", "How"), styled("H1", "Heating")];
    assert_eq!(listed(&items), "I Rent\n\n1.1 When\n\n1.2 How\n\nII Heating");
    assert_eq!(listed(&[styled("Steps", "one"), styled("More", "two")]), "1. one\n2. two");
}

#[test]
fn numbers_stand_in_cells_and_deleted_items_do_not_count() {
    let deleted = item(1, 0, "").replace("</w:numPr>", "</w:numPr><w:rPr><w:del/></w:rPr>");
    let cell = |items: &[String]| format!("<w:tc>{}</w:tc>", items.concat());
    let table =
        format!("<w:tbl><w:tr>{}{}</w:tr></w:tbl>", cell(&[item(1, 0, "x"), deleted]), cell(&[item(1, 0, "y")]));
    assert_eq!(listed(&[table]), "| 1. x | 2. y |\n| --- | --- |");
}

#[test]
fn links_have_their_addresses() {
    let relations = r#"<Relationships><Relationship Id="a" Type="x/hyperlink" Target="https://a.example/form?x=1&amp;y=2" TargetMode="External"/>
        <Relationship Id="b" Type="x/hyperlink" Target="mailto:ada@example.org" TargetMode="External"/></Relationships>"#;
    let run = |text: &str| format!(r#"<w:r><w:t xml:space="preserve">{text}</w:t></w:r>"#);
    let field = |kind: &str| format!(r#"<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>"#);
    let instruction = r#"<w:r><w:instrText> HYPERLINK "https://</w:instrText></w:r><w:r><w:instrText>b.example" </w:instrText></w:r>"#;
    let body = format!(
        r#"<w:p>{}<w:hyperlink r:id="a">{}</w:hyperlink>{}<w:hyperlink r:id="b">{}</w:hyperlink>{}<w:hyperlink w:anchor="x">{}</w:hyperlink></w:p>
        <w:p>{}{instruction}{}{}{}{}</w:p><w:p><w:fldSimple w:instr="HYPERLINK &quot;https://c.example&quot;">{}</w:fldSimple></w:p>"#,
        run("Use "),
        run("this ") + &run("form"),
        run(" or ask "),
        run("ada@example.org"),
        run("; see "),
        run("below"),
        field("begin"),
        field("separate"),
        run("There"),
        field("end"),
        run("."),
        run("Here")
    );
    assert_eq!(
        docx(&body, &[("word/_rels/document.xml.rels", relations)]).text,
        "Use this form (https://a.example/form?x=1&y=2) or ask ada@example.org; see below\n\nThere (https://b.example).\n\n\
         Here (https://c.example)"
    );
}

#[test]
fn struck_and_hidden_text_is_left_out_and_told() {
    let run =
        |look: &str, text: &str| format!(r#"<w:r><w:rPr>{look}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>"#);
    let body = [
        "<w:p>".into(),
        run("", "The rent is "),
        run("<w:strike/>", "9"),
        run("<w:dstrike/>", "00"),
        run("<w:strike w:val=\"0\"/>", " 740 crowns"),
        run("<w:vanish/>", "Obey me."),
        run("<w:vanish w:val=\"false\"/>", "."),
        "</w:p>".into(),
        styled("Gone", "Not to be seen."),
        "<w:p>".into(),
        run("<w:rStyle w:val=\"Gone\"/>", "Nor this."),
        run("<w:rStyle w:val=\"Gone\"/><w:vanish w:val=\"0\"/>", "But this."),
        "</w:p>".into(),
    ];
    let parsed = docx(&body.concat(), &[("word/styles.xml", STYLES)]);
    assert_eq!(parsed.text, "The rent is 740 crowns.\n\nBut this.");
    assert_eq!(parsed.left_out, ["struck text: 1 place", "hidden text: 3 places"]);
}

#[test]
fn notes_are_read_as_text_is() {
    let notes = r#"<w:footnotes NAMES><w:footnote w:id="1"><w:p><w:r><w:t>Old </w:t></w:r><w:del><w:r><w:delText>no</w:delText></w:r></w:del>
        <w:r><w:instrText>PAGE</w:instrText><w:t>rent</w:t></w:r></w:p></w:footnote></w:footnotes>"#;
    let body = r#"<w:p><w:r><w:t>Rent</w:t></w:r><w:r><w:footnoteReference w:id="1"/></w:r></w:p>"#;
    assert_eq!(docx(body, &[("word/footnotes.xml", notes)]).text, "Rent (Old rent)");
}

#[test]
fn merged_cells_are_said_in_each_row() {
    let cell =
        |look: &str, text: &str| format!("<w:tc><w:tcPr>{look}</w:tcPr><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>");
    let row = |cells: &[String]| format!("<w:tr>{}</w:tr>", cells.concat());
    let body = [
        "<w:tbl>".into(),
        row(&[cell("", "Hall"), cell("", "Thing"), cell("", "Pieces")]),
        row(&[cell("<w:vMerge w:val=\"restart\"/>", "North"), cell("", "Rake"), cell("", "4")]),
        format!(
            "<w:sdt><w:sdtContent>{}</w:sdtContent></w:sdt>",
            row(&[cell("<w:vMerge/>", ""), cell("", "Hoe"), cell("", "9")])
        ),
        row(&[cell("<w:gridSpan w:val=\"2\"/>", "All"), cell("", "13")]),
        "</w:tbl>".into(),
    ];
    assert_eq!(
        docx(&body.concat(), &[]).text,
        "| Hall | Thing | Pieces |\n| --- | --- | --- |\n| North | Rake | 4 |\n| North | Hoe | 9 |\n| All |  | 13 |"
    );
}

fn boxed(text: &str) -> String {
    let run = |text: &str| format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>");
    let content = format!("<w:txbxContent>{}{}</w:txbxContent>", run(text), run("Handle with care"));
    format!(
        "<w:r><mc:AlternateContent xmlns:mc=\"m\"><mc:Choice><w:drawing>{content}</w:drawing></mc:Choice>\
         <mc:Fallback><w:pict>{content}</w:pict></mc:Fallback></mc:AlternateContent></w:r>"
    )
}

#[test]
fn boxes_stand_behind_the_paragraph_that_they_hang_on() {
    let text = |text: &str| format!("<w:r><w:t>{text}</w:t></w:r>");
    let body = [
        format!("<w:p><w:pPr><w:pStyle w:val=\"H1\"/></w:pPr>{}{}</w:p>", boxed("Keep dry"), text("The mill")),
        format!("<w:p>{}{}{}</w:p>", text("It was built "), boxed("Keep cool"), text("in 1911.")),
        format!("<w:tbl><w:tr><w:tc><w:p>{}{}</w:p></w:tc></w:tr></w:tbl>", boxed("Keep shut"), text("Door")),
    ];
    let parsed = docx(&body.concat(), &[("word/styles.xml", STYLES)]);
    assert_eq!(
        parsed.text,
        "The mill\n\nKeep dry\nHandle with care\n\nIt was built in 1911.\n\nKeep cool\nHandle with care\n\n\
         Door \nKeep shut\nHandle with care"
    );
    assert_eq!(parsed.elements[0], crate::element::Element { at: 0, kind: crate::element::ElementKind::Heading(1) });
}

#[test]
fn how_words_are_pronounced_does_not_stand_within_them() {
    let body = "<w:p><w:r><w:ruby><w:rubyPr/><w:rt><w:r><w:t>かんじ</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>漢字</w:t></w:r></w:rubyBase>\
                </w:ruby></w:r><w:r><w:t>を読む。</w:t></w:r></w:p>";
    assert_eq!(docx(body, &[]).text, "漢字を読む。");
}

#[test]
fn parts_are_those_that_the_archive_names() {
    let relation = |kind: &str, target: &str| {
        format!(r#"<Relationship Id="{kind}" Type="http://schemas.example/{kind}" Target="{target}"/>"#)
    };
    let relations = |each: &[String]| format!("<Relationships>{}</Relationships>", each.concat());
    let body = format!(
        r#"<w:document {NAMES}><w:body>{}<w:p><w:r><w:t>Rent</w:t></w:r><w:r><w:footnoteReference w:id="1"/></w:r></w:p></w:body></w:document>"#,
        styled("Gone", "Not to be seen.")
    );
    let notes = format!(
        r#"<w:footnotes {NAMES}><w:footnote w:id="1"><w:p><w:r><w:t>Old rent</w:t></w:r></w:p></w:footnote></w:footnotes>"#
    );
    let of_document = [
        relation("styles", "styles2.xml"),
        relation("footnotes", "/word/footnotes2.xml"),
        relation("numbering", "missing.xml"),
    ];
    let file = zipped(&[
        ("_rels/.rels", &relations(&[relation("officeDocument", "word/document2.xml")])),
        ("word/document2.xml", &body),
        ("word/_rels/document2.xml.rels", &relations(&of_document)),
        ("word/styles2.xml", &STYLES.replace("NAMES", NAMES)),
        ("word/footnotes2.xml", &notes),
    ]);
    let parsed = read(&file).unwrap();
    assert_eq!((parsed.text.as_str(), parsed.left_out.len()), ("Rent (Old rent)", 1));
}
