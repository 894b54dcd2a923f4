//! Notebooks of Jupyter: texts, code, and what the code said. Pictures are left out.

use serde_json::Value;

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
    let book: Value = serde_json::from_str(text).map_err(|error| format!("not readable as a notebook: {error}"))?;
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
                    fenced(&said(output), &mut source);
                }
            }
            Some("raw") => fenced(&text, &mut source),
            _ => {
                source.push_str(&text);
                // What a cell leaves open ends with it.
                for fence in ["```", "~~~"] {
                    let fences = text.lines().filter(|line| line.trim_start().starts_with(fence)).count();
                    source.push_str(if fences % 2 == 1 { "\n" } else { "" });
                    source.push_str(if fences % 2 == 1 { fence } else { "" });
                }
                source.push_str("\n\n");
            }
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
    let plain = || output.get("data").unwrap_or(output).get("text/plain");
    let text = match (output.get("text"), plain(), output.get("ename")) {
        (Some(text), ..) => joined(text),
        // The text beside a picture says that there is one.
        (_, Some(text), _) if !is_picture(output) => joined(text),
        (.., Some(_)) => ["ename", "evalue"].map(|key| output.get(key).map(joined).unwrap_or_default()).join(": "),
        _ => String::new(),
    };
    let end = text.floor_char_boundary(MAX_OUTPUT_BYTES);
    if end < text.len() { format!("{}…", &text[..end]) } else { text }
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
    use crate::element::ElementKind;

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
}
