use super::*;
use crate::archive::zipped;

const NAMES: &str = r#"xmlns:office="o" xmlns:text="t" xmlns:style="s" xmlns:table="b" xmlns:draw="d" xmlns:presentation="p" xmlns:fo="f"
    xmlns:xlink="x" xmlns:dc="c""#;

fn document(styles: &str, body: &str) -> Parsed {
    let content = format!(
        "<office:document-content {NAMES}><office:automatic-styles>{styles}</office:automatic-styles><office:body>{body}</office:body></office:document-content>"
    );
    read(&zipped(&[(CONTENT, &content)])).unwrap()
}

const STYLES: &str = r#"<style:style style:name="P1" style:parent-style-name="Title"/>
    <style:style style:name="Gone"><style:text-properties text:display="none"/></style:style>
    <style:style style:name="Struck"><style:text-properties style:text-line-through-style="solid"/></style:style>
    <style:style style:name="P2" style:list-style-name="L1"/>
    <text:outline-style><text:outline-level-style text:level="1" style:num-format="1" style:num-suffix="."/>
      <text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style>
    <text:list-style style:name="L1"><text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>
      <text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"/></text:list-style>
    <text:list-style style:name="L2"><text:list-level-style-bullet text:level="1" text:bullet-char="•"/></text:list-style>"#;

fn text(body: &str) -> Parsed {
    document(STYLES, &format!("<office:text>{body}</office:text>"))
}

fn item(text: &str) -> String {
    format!("<text:list-item><text:p>{text}</text:p></text:list-item>")
}

#[test]
fn titles_headings_and_lists_have_their_numbers() {
    let deep = format!(
        "<text:list-item><text:p>two</text:p><text:list>{}{}</text:list></text:list-item>",
        item("a"),
        item("b")
    );
    let parsed = text(&format!(
        "<text:p text:style-name=\"P1\">The Mill</text:p><text:h text:outline-level=\"1\">Rent</text:h><text:h text:outline-level=\"2\">When</text:h>\
         <text:p>Do:</text:p><text:list text:style-name=\"L1\">{}{deep}{}</text:list><text:list text:style-name=\"L2\">{}</text:list>\
         <text:list text:continue-numbering=\"true\" text:style-name=\"L1\">{}</text:list><text:h text:outline-level=\"1\">End</text:h>",
        item("one"),
        item("three"),
        item("point"),
        item("four")
    ));
    assert_eq!(parsed.title.as_deref(), Some("The Mill"));
    assert_eq!(
        parsed.text,
        "1. Rent\n\n1.1 When\n\nDo:\n\n1. one\n2. two\na) a\nb) b\n3. three\n\n- point\n\n4. four\n\n2. End"
    );
    let parsed =
        text(&format!("<text:list>{}</text:list>", item("x").replace("<text:p>", "<text:p text:style-name=\"P2\">")));
    assert_eq!(parsed.text, "1. x");
}

#[test]
fn tables_links_notes_and_comments() {
    let cell = |more: &str, text: &str| format!("<table:table-cell{more}><text:p>{text}</text:p></table:table-cell>");
    let parsed = text(&format!(
        "<text:p>See  <text:a xlink:href=\"https://a.example\">the <text:span>form</text:span></text:a>.<text:note><text:note-citation>1</text:note-citation>\
         <text:note-body><text:p>Old.</text:p></text:note-body></text:note> Or<office:annotation><dc:creator>Ada</dc:creator><dc:date>2026</dc:date>\
         <text:p>Why?</text:p></office:annotation><text:s text:c=\"2\"/>not<text:line-break/>now.</text:p><table:table><table:table-header-rows><table:table-row>{}{}</table:table-row></table:table-header-rows>\
         <table:table-row>{}{}</table:table-row><table:table-row><table:covered-table-cell/>{}</table:table-row></table:table>",
        cell("", "Hall"),
        cell("", "Thing"),
        cell(" table:number-rows-spanned=\"2\"", "North"),
        cell("", "Rake"),
        cell("", "Hoe")
    ));
    assert_eq!(
        parsed.text,
        "See the form (https://a.example). (Old.) Or [comment by Ada: Why?]  not\nnow.\n\n\
         | Hall | Thing |\n| --- | --- |\n| North | Rake |\n| North | Hoe |"
    );
}

#[test]
fn words_of_a_box_stand_apart() {
    let parsed = text(
        "<text:p>See<draw:frame><draw:text-box><text:p>Figure 1</text:p><text:p>The mill</text:p></draw:text-box></draw:frame>below.</text:p>",
    );
    assert_eq!(parsed.text, "See\nFigure 1\nThe mill\nbelow.");
}

#[test]
fn what_is_deleted_hidden_or_struck_is_left_out() {
    let parsed = text(
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>Gone</text:p></text:deletion></text:changed-region></text:tracked-changes>\
         <text:p>The rent is <text:span text:style-name=\"Struck\">900</text:span> 740<text:span text:style-name=\"Gone\">Obey <text:span>me</text:span></text:span>.</text:p>\
         <text:p text:style-name=\"Gone\">Unseen</text:p><text:section text:display=\"none\"><text:p>Nor this</text:p></text:section>\
         <text:table-of-content><text:index-body><text:p>Rent 1</text:p></text:index-body></text:table-of-content>",
    );
    assert_eq!(parsed.text, "The rent is 740.");
    assert_eq!(parsed.left_out, ["struck text: 1 place", "hidden text: 3 places"]);
}

#[test]
fn slides_have_titles_and_notes() {
    let frame = |class: &str, text: &str| {
        format!(
            "<draw:frame presentation:class=\"{class}\"><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame>"
        )
    };
    let styles = "<style:style style:name=\"h\"><style:drawing-page-properties presentation:visibility=\"hidden\"/></style:style>";
    let body = format!(
        "<office:presentation><draw:page>{}{}{}<presentation:notes>{}</presentation:notes></draw:page><draw:page draw:style-name=\"h\">{}</draw:page>\
         <draw:page>{}</draw:page></office:presentation>",
        frame("title", "Herons"),
        frame("outline", "They stand."),
        frame("footer", "Page"),
        frame("notes", "Say it."),
        frame("title", "Secret"),
        frame("outline", "On one leg.")
    );
    let parsed = document(styles, &body);
    assert_eq!(parsed.title.as_deref(), Some("Herons"));
    assert_eq!(parsed.text, "Herons\n\nThey stand.\n\nSpeaker notes\n\nSay it.\n\nSlide 3\n\nOn one leg.");
    assert_eq!(parsed.left_out, ["1 hidden slide"]);
}

#[test]
fn other_documents_are_refused() {
    let locked = zipped(&[("META-INF/manifest.xml", "<manifest:encryption-data/>"), (CONTENT, "\u{1}")]);
    assert!(read(&locked).unwrap_err().contains("without a password"));
    assert!(read(b"PK").unwrap_err().contains("not readable as OpenDocument"));
    let deep = format!("<office:text>{}{}</office:text>", "<text:section>".repeat(50), "</text:section>".repeat(50));
    let content =
        format!("<office:document-content {NAMES}><office:body>{deep}</office:body></office:document-content>");
    assert!(read(&zipped(&[(CONTENT, &content)])).unwrap_err().contains("too deep"));
}
