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
    /// Text of a name without an ending, which may be a script.
    Unnamed,
    Markdown,
    /// Markdown with components of JavaScript.
    Mdx,
    Html,
    JsonLines,
    JsonArray,
    /// CSV, TSV and their like.
    Delimited,
    Parquet,
    /// Arrow's IPC format, a file (Feather) or a stream.
    Arrow,
    Pdf,
    Docx,
    /// `.doc`: many a program writes RTF or HTML under that name.
    OldWord,
    Pptx,
    /// Of Excel or OpenDocument.
    Spreadsheet,
    /// A text or a presentation of OpenDocument.
    OpenText,
    Rtf,
    Xml,
    /// SRT and WebVTT.
    Subtitles,
    /// Of Jupyter.
    Notebook,
    Epub,
    /// One e-mail.
    Mail,
    /// A folder of e-mails in one file.
    Mailbox,
}

/// For people: what `ragstone` reads.
pub const SUPPORTED: &str = ".txt .rst .adoc .tex .log .md .mdx .html .xhtml .xml .jsonl .json .csv .tsv .parquet .arrow .pdf .docx .odt .rtf .pptx .odp .xlsx .xls \
                             .ods .epub .eml .mbox .srt .vtt .ipynb, source code, and text without an ending";

/// Media types of what is read, and the endings of files of each.
const MEDIA: &[(&str, &str)] = &[
    ("text/html", "html"),
    ("application/xhtml+xml", "html"),
    ("text/plain", "txt"),
    ("text/markdown", "md"),
    ("text/csv", "csv"),
    ("text/tab-separated-values", "tsv"),
    ("application/pdf", "pdf"),
    ("application/json", "json"),
    ("application/feed+json", "json"),
    ("application/x-ndjson", "jsonl"),
    ("application/xml", "xml"),
    ("text/xml", "xml"),
    ("application/rss+xml", "rss"),
    ("application/atom+xml", "atom"),
    ("application/epub+zip", "epub"),
    ("application/rtf", "rtf"),
    ("text/rtf", "rtf"),
    ("application/vnd.ms-excel", "xls"),
    ("message/rfc822", "eml"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "docx"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", "pptx"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx"),
    ("application/vnd.oasis.opendocument.text", "odt"),
    ("application/vnd.oasis.opendocument.spreadsheet", "ods"),
    ("application/vnd.oasis.opendocument.presentation", "odp"),
];

/// The ending of files of a media type, in small letters and without parameters, if they are read.
pub fn ending_of(media: &str) -> Option<&'static str> {
    MEDIA.iter().find(|(known, _)| *known == media).map(|(_, ending)| *ending)
}

/// Names without an ending that people give to texts, in small letters.
const TEXTS: &[&str] = &[
    "acknowledgements",
    "authors",
    "bugs",
    "changelog",
    "changes",
    "contributing",
    "contributors",
    "copying",
    "copyright",
    "credits",
    "faq",
    "history",
    "install",
    "licence",
    "license",
    "maintainers",
    "news",
    "notes",
    "notice",
    "patents",
    "readme",
    "security",
    "thanks",
    "todo",
    "version",
];
/// And those that programs read.
const CODES: &[&str] = &[
    "brewfile",
    "build",
    "caddyfile",
    "codeowners",
    "containerfile",
    "dockerfile",
    "earthfile",
    "gemfile",
    "gnumakefile",
    "jenkinsfile",
    "justfile",
    "kconfig",
    "makefile",
    "pipfile",
    "podfile",
    "procfile",
    "rakefile",
    "sconscript",
    "sconstruct",
    "snakefile",
    "tiltfile",
    "vagrantfile",
    "workspace",
];

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
        let Some(extension) = path.extension() else { return Self::of_unnamed(path) };
        let extension = extension.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "txt" | "text" | "rst" | "adoc" | "asciidoc" | "org" | "tex" => Self::Text,
            "md" | "markdown" => Self::Markdown,
            "mdx" => Self::Mdx,
            "html" | "htm" | "xhtml" => Self::Html,
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::JsonArray,
            "csv" | "tsv" | "tab" => Self::Delimited,
            "parquet" | "pq" => Self::Parquet,
            "arrow" | "arrows" | "feather" => Self::Arrow,
            "pdf" => Self::Pdf,
            "docx" | "docm" => Self::Docx,
            "doc" | "dot" => Self::OldWord,
            "odt" | "ott" | "odp" | "otp" => Self::OpenText,
            "rtf" => Self::Rtf,
            "xml" | "rss" | "atom" | "dbk" | "docbook" | "opml" => Self::Xml,
            "srt" | "vtt" => Self::Subtitles,
            "ipynb" => Self::Notebook,
            "log" => Self::Code,
            "pptx" | "pptm" => Self::Pptx,
            "xlsx" | "xlsm" | "xlsb" | "xls" | "ods" => Self::Spreadsheet,
            "epub" => Self::Epub,
            "eml" => Self::Mail,
            "mbox" => Self::Mailbox,
            code if CODE.contains(&code) => Self::Code,
            _ => return None,
        })
    }

    /// That of a file whose name has no ending. Hidden files are not read.
    fn of_unnamed(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        Some(match name.as_str() {
            text if TEXTS.contains(&text) => Self::Text,
            code if CODES.contains(&code) => Self::Code,
            hidden if hidden.starts_with('.') => return None,
            _ => Self::Unnamed,
        })
    }

    /// What to do about a file that many people have and ragstone does not read.
    pub fn refusal(path: &Path) -> Option<&'static str> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "ppt" | "pps" | "pot" => "the form that PowerPoint wrote before 2007; save it as .pptx",
            "pages" => "a document of Pages; export it as .docx or .pdf",
            "key" => "a presentation of Keynote; export it as .pptx or .pdf",
            "numbers" => "a table of Numbers; export it as .xlsx or .csv",
            "odg" => "a drawing of OpenDocument; export it as .pdf",
            "wps" | "wpd" => "an old form of text; save it as .docx",
            "mobi" | "azw" | "azw3" => "a book for Kindle; convert it to .epub",
            "msg" => "a mail of Outlook; save it as .eml",
            _ => return None,
        })
    }

    /// Whether there is nothing in it that a parser could stumble over.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Text | Self::Code | Self::Unnamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!([of("a/README"), of("License"), of("NOTES")], [Some(Format::Text); 3]);
        assert_eq!([of("Makefile"), of("Dockerfile"), of("gateway.LOG")], [Some(Format::Code); 3]);
        assert_eq!(
            (of("letter"), of(".gitignore"), of("a.bin"), of("a/")),
            (Some(Format::Unnamed), None, None, Some(Format::Unnamed))
        );
        assert_eq!(of("talk.key"), None);
        assert!(Format::refusal(Path::new("talk.key")).is_some_and(|why| why.contains("export it as .pptx")));
        assert_eq!(Format::refusal(Path::new("a.bin")), None);
    }
}
