//! Which files are read, by the endings of their names, and how.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Text,
    /// Text whose lines and indentation count.
    Code,
    Markdown,
    Html,
    JsonLines,
    JsonArray,
    /// CSV, TSV and their like.
    Delimited,
    Pdf,
    Docx,
    Pptx,
    /// Of Excel or OpenDocument.
    Spreadsheet,
    Epub,
    /// One e-mail.
    Mail,
    /// A folder of e-mails in one file.
    Mailbox,
}

/// For people: what `ragstone` reads.
pub const SUPPORTED: &str = ".txt .rst .adoc .tex .md .html .xhtml .jsonl .json .csv .tsv .pdf .docx .pptx .xlsx .xls .ods .epub \
                             .eml .mbox and source code";

/// Endings of source code, of configuration, and of what is written like these.
const CODE: &[&str] = &[
    "bash", "bat", "bzl", "c", "cc", "clj", "cljs", "cmake", "conf", "cpp", "cs", "css", "cu", "cxx", "d", "dart",
    "el", "ex", "exs", "erl", "f90", "fs", "go", "gradle", "graphql", "groovy", "h", "hcl", "hh", "hpp", "hs", "hxx",
    "ini", "java", "jl", "js", "jsx", "kt", "kts", "less", "lisp", "lua", "m", "mjs", "ml", "mli", "mm", "nim", "nix",
    "pas", "php", "pl", "pm", "proto", "ps1", "py", "pyi", "r", "rb", "rs", "scala", "scm", "scss", "sh", "sol", "sql",
    "svelte", "swift", "tcl", "tf", "toml", "ts", "tsx", "v", "vb", "vhd", "vue", "yaml", "yml", "zig", "zsh",
];

impl Format {
    /// That of a file of this name, if it is read.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "txt" | "text" | "rst" | "adoc" | "asciidoc" | "org" | "tex" => Self::Text,
            "md" | "markdown" => Self::Markdown,
            "html" | "htm" | "xhtml" => Self::Html,
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::JsonArray,
            "csv" | "tsv" | "tab" => Self::Delimited,
            "pdf" => Self::Pdf,
            "docx" | "docm" => Self::Docx,
            "pptx" | "pptm" => Self::Pptx,
            "xlsx" | "xlsm" | "xlsb" | "xls" | "ods" => Self::Spreadsheet,
            "epub" => Self::Epub,
            "eml" => Self::Mail,
            "mbox" => Self::Mailbox,
            code if CODE.contains(&code) => Self::Code,
            _ => return None,
        })
    }

    /// Whether there is nothing in it that a parser could stumble over.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Text | Self::Code)
    }
}
