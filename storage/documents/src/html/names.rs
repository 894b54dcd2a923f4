//! What elements are, by their names.

pub fn heading_level(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [b'h', digit @ b'1'..=b'6'] => Some(digit - b'0'),
        _ => None,
    }
}

/// What is no text, and what is to be clicked; and how words are pronounced, which would stand within them.
pub fn is_unread(name: &str) -> bool {
    matches!(
        name,
        "script"
            | "style"
            | "template"
            | "noscript"
            | "button"
            | "select"
            | "textarea"
            | "svg"
            | "iframe"
            | "object"
            | "audio"
            | "video"
            | "canvas"
            | "datalist"
            | "rp"
            | "rt"
            | "rtc"
    )
}

pub fn is_item(name: &str) -> bool {
    matches!(name, "li" | "dt" | "dd" | "summary")
}

pub fn is_block(name: &str) -> bool {
    is_item(name)
        || heading_level(name).is_some()
        || matches!(
            name,
            "address"
                | "article"
                | "aside"
                | "blockquote"
                | "body"
                | "caption"
                | "center"
                | "details"
                | "dialog"
                | "div"
                | "dl"
                | "fieldset"
                | "figcaption"
                | "figure"
                | "footer"
                | "form"
                | "header"
                | "hr"
                | "html"
                | "legend"
                | "main"
                | "menu"
                | "ol"
                | "p"
                | "pre"
                | "section"
                | "table"
                | "tbody"
                | "td"
                | "tfoot"
                | "th"
                | "thead"
                | "ul"
        )
}
