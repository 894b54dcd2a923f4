//! PDF as plain text.

use std::panic::catch_unwind;

/// The text of all pages. The library panics on some damaged files, which costs that file only.
pub fn text(bytes: &[u8]) -> Result<String, String> {
    let extracted = catch_unwind(|| pdf_extract::extract_text_from_mem(bytes));
    match extracted {
        Ok(Ok(text)) if text.trim().is_empty() => {
            Err("this PDF holds no text (scanned pages?); run it through OCR first".into())
        }
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(format!("not readable as PDF: {error}")),
        Err(_) => {
            Err("this PDF is damaged, or uses what the PDF library does not know; convert it to text first".into())
        }
    }
}
