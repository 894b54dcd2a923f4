//! Notebooks of Jupyter: texts, code, and what the code said. Pictures are left out.

use serde_json::Value;

use super::body::Body;
use super::element::ElementKind;
use super::html;
use super::json::repaired;
use super::left_out::LeftOut;
use super::markup;
use super::parse::Parsed;

/// Of one output; longer ones are data.
const MAX_OUTPUT_BYTES: usize = 2000;

/// Reads a notebook.
///
/// # Errors
/// Where it is none.
pub fn read(text: &str) -> Result<Parsed, String> {
    let book: Value =
        serde_json::from_str(&repaired(text)).map_err(|error| format!("not readable as a notebook: {error}"))?;
    let old = book.get("worksheets").and_then(|sheets| sheets.get(0)).and_then(|sheet| sheet.get("cells"));
    let cells = book.get("cells").or(old).and_then(Value::as_array);
    let cells = cells.ok_or("not readable as a notebook: it has no `cells`")?;
    let (mut source, mut pictures) = (String::new(), 0);
    for cell in cells {
        let text = cell.get("source").or_else(|| cell.get("input")).map(joined).unwrap_or_default();
        match cell.get("cell_type").and_then(Value::as_str) {
            Some("code") => {
                fenced(&text, &mut source);
                for output in cell.get("outputs").and_then(Value::as_array).into_iter().flatten() {
                    pictures += usize::from(is_picture(output));
                    if !put_displayed(output, &mut source) {
                        fenced(&said(output), &mut source);
                    }
                }
            }
            Some("raw") => fenced(&text, &mut source),
            _ => put(&text, &mut source),
        }
    }
    let read = markup::markdown(&source);
    let mut left_out = LeftOut::default();
    left_out.count("picture", "pictures", pictures);
    Ok(Parsed { left_out: left_out.into_notes(), ..Parsed::of(read.title, read.body, read.metadata) })
}

/// A text, or its lines.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

/// Puts a Markdown text there.
fn put(text: &str, source: &mut String) {
    source.push_str(text);
    // What a cell leaves open ends with it.
    for fence in ["```", "~~~"] {
        let fences = text.lines().filter(|line| line.trim_start().starts_with(fence)).count();
        source.push_str(if fences % 2 == 1 { "\n" } else { "" });
        source.push_str(if fences % 2 == 1 { fence } else { "" });
    }
    source.push_str("\n\n");
}

/// Puts what an output displays as a page does: what its code made for people. Whether it does; where its plain text tells the same, that is
/// shorter.
fn put_displayed(output: &Value, source: &mut String) -> bool {
    let Some(data) = output.get("data").filter(|_| !is_picture(output)) else { return false };
    let text = |kind: &str| data.get(kind).map(joined).filter(|text| !text.trim().is_empty());
    if let Some(text) = text("text/markdown") {
        put(&text, source);
        return true;
    }
    if text("text/plain").is_some_and(|plain| !is_name(&plain)) {
        return false;
    }
    let (Some(html), mut page) = (text("text/html"), html::Page::default()) else { return false };
    if html::append(&html, &mut page).is_err() || page.body.is_blank() {
        return false;
    }
    put_page(page.body, source);
    true
}

/// Puts a page's text so that Markdown gives it back as it is.
fn put_page(body: Body, source: &mut String) {
    let (text, elements) = body.finish();
    let text = cut(text);
    let ends = elements.iter().map(|element| (element.at, element.kind));
    let ends = ends.take_while(|(at, _)| text.is_char_boundary(*at)).chain([(text.len(), ElementKind::Text)]);
    let (mut at, mut kind) = (0, ElementKind::Text);
    for (end, next) in ends {
        let part = text.get(at..end).unwrap_or_default();
        let is_row = matches!(kind, ElementKind::Table { .. });
        match kind {
            ElementKind::Code => fenced(part.trim_matches('\n'), source),
            _ => part.lines().for_each(|line| put_line(line, is_row, source)),
        }
        (at, kind) = (end, next);
    }
    source.push('\n');
}

/// Puts a line without what it would be to Markdown. Bars of a table's row are its own.
fn put_line(line: &str, is_row: bool, source: &mut String) {
    let line = line.trim_start();
    let is_rule = is_row && line.bytes().all(|byte| b"| -".contains(&byte));
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_own = is_row && (letter == '|' || letter == '\\' && letters.peek() == Some(&'|'));
        if letter.is_ascii_punctuation() && !is_rule && !is_own {
            source.push('\\');
        }
        source.push(letter);
    }
    source.push('\n');
}

/// Whether a text says no more than which object there is: `<IPython.core.display.HTML object>`.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('<') && (text.ends_with(" object>") || text.contains(" at 0x") && text.ends_with('>'))
}

fn cut(text: String) -> String {
    let end = text.floor_char_boundary(MAX_OUTPUT_BYTES);
    if end < text.len() { format!("{}…", &text[..end]) } else { text }
}

fn fenced(text: &str, source: &mut String) {
    if text.trim().is_empty() {
        return;
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    source.push_str(&format!("{fence}\n{text}\n{fence}\n\n"));
}

/// What an output says as text.
fn said(output: &Value) -> String {
    let data = output.get("data").unwrap_or(output);
    let plain = || {
        let plain = data.get("text/plain");
        let is_formula = plain.is_none_or(|plain| is_name(&joined(plain)));
        data.get("text/latex").filter(|_| is_formula).or(plain)
    };
    let text = match (output.get("text"), plain(), output.get("ename")) {
        (Some(text), ..) => joined(text),
        // The text beside a picture says that there is one.
        (_, Some(text), _) if !is_picture(output) => joined(text),
        (.., Some(_)) => ["ename", "evalue"].map(|key| output.get(key).map(joined).unwrap_or_default()).join(": "),
        _ => String::new(),
    };
    cut(text)
}

fn is_picture(output: &Value) -> bool {
    let of = output.get("data").unwrap_or(output).as_object();
    of.is_some_and(|data| {
        data.keys().any(|kind| kind.starts_with("image/") || matches!(kind.as_str(), "png" | "jpeg" | "svg"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_text_and_code() {
        let book = r###"{"cells": [
            {"cell_type": "markdown", "source": ["# Slip\n", "\n", "Shrinkage is *least* at\n", "23 per cent.\n", "```\nopen"]},
            {"cell_type": "code", "source": "a = '```'\nprint(a)", "outputs": [
                {"output_type": "stream", "text": ["0.23\n"]},
                {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}},
                {"output_type": "execute_result", "data": {"text/plain": ["mean 4"]}},
                {"output_type": "error", "ename": "KeyError", "evalue": "batch", "traceback": ["\u001b[0m"]}]},
            {"cell_type": "markdown", "source": "## After"}]}"###;
        let parsed = read(book).unwrap();
        assert_eq!(parsed.title.as_deref(), Some("Slip"));
        for text in ["Shrinkage is least at\n23 per cent.", "a = '```'\nprint(a)", "0.23", "mean 4", "KeyError: batch"]
        {
            assert!(parsed.text.contains(text), "{text:?} in {:?}", parsed.text);
        }
        assert!(!parsed.text.contains("iVBOR") && !parsed.text.contains("Figure"), "{:?}", parsed.text);
        assert_eq!(parsed.left_out, ["1 picture"]);
        let last = parsed.elements.iter().rev().find(|element| matches!(element.kind, ElementKind::Heading(_)));
        assert_eq!(last.map(|element| &parsed.text[element.at..]), Some("After"));
        assert!(read("{}").unwrap_err().contains("no `cells`") && read("x").unwrap_err().contains("not readable"));
    }

    #[test]
    fn what_is_displayed_is_read_and_not_its_object() {
        let book = r###"{"cells": [{"cell_type": "code", "source": "show()", "outputs": [
            {"data": {"text/markdown": "## Result\nThe kiln needs *1,240* degrees.", "text/plain": "<IPython.core.display.Markdown object>"}},
            {"data": {"text/html": "<table><tr><th>Kiln</th><th>Heat</th></tr><tr><td>North</td><td>7</td></tr></table>",
                "text/plain": "<pandas.io.formats.style.Styler at 0x7f01>"}},
            {"data": {"text/latex": "$x = 4$", "text/plain": "<IPython.core.display.Math object>"}},
            {"data": {"text/html": "<b>twice</b>", "text/plain": "once"}}]}]}"###;
        let parsed = read(book).unwrap();
        for text in ["The kiln needs 1,240 degrees.", "| Kiln | Heat |", "| North | 7 |", "$x = 4$", "once"] {
            assert!(parsed.text.contains(text), "{text:?} in {:?}", parsed.text);
        }
        assert!(!parsed.text.contains("object") && !parsed.text.contains("Styler") && !parsed.text.contains("twice"));
    }

    #[test]
    fn pages_that_are_displayed_stay_as_they_are() {
        let lines = [
            r"__init__ and `a` are _x_, 2 * 3 * 4 < 5 &amp; \(y\) of C:\_a~~b",
            "[1]: https://a.example/one",
            "[a](b)",
            "# no heading",
            "===",
            "1) one",
        ];
        let page: String = lines
            .iter()
            .map(|line| line.replace('&', "&amp;").replace('<', "&lt;"))
            .fold(String::new(), |page, line| format!("{page}<p>{line}</p>"));
        let code = "    if a < b &amp;&amp; \\*c:\n        stop()";
        let code_page = code.replace('&', "&amp;").replace('<', "&lt;");
        let table = "<table><tr><th>a_b</th><th>*</th></tr><tr><td>C:\\_x</td><td>1|2</td></tr></table>";
        let html = format!("{page}<pre>{code_page}</pre>{table}");
        let book = serde_json::json!({"cells": [
            {"cell_type": "code", "source": "show()", "outputs": [{"data": {"text/html": html}}]},
            {"cell_type": "markdown", "source": "*After.*"}]});
        let parsed = read(&book.to_string()).unwrap();
        for text in lines.iter().chain([&code, &"| a_b | * |\n| --- | --- |\n| C:\\_x | 1\\|2 |", &"\nAfter."]) {
            assert!(parsed.text.contains(text), "{text:?} in {:?}", parsed.text);
        }
        // What is cut is cut before it is written for Markdown.
        let html = format!("<p>{}</p>", "&lt;".repeat(MAX_OUTPUT_BYTES + 1));
        let book = serde_json::json!({"cells": [{"cell_type": "code", "outputs": [{"data": {"text/html": html}}]}]});
        assert_eq!(read(&book.to_string()).unwrap().text, "<".repeat(MAX_OUTPUT_BYTES) + "…");
    }

    #[test]
    fn formulas_alone_and_halves_of_characters_are_read() {
        let book = r#"{"cells": [{"cell_type": "code", "source": "x", "outputs": [{"data": {"text/latex": "$x = 4$"}},
            {"text": "cut \ud83d", "metadata": {"mean": NaN}}]}]}"#;
        let parsed = read(book).unwrap();
        assert!(parsed.text.contains("$x = 4$") && parsed.text.contains("cut \u{fffd}"), "{:?}", parsed.text);
    }
}
