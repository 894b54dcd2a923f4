//! Prints what files are read as: one line of JSON for each document of each path. For whoever works on a reader.
//!
//!     cargo run -p ragstone-documents --example read -- PATH...

use std::io::Write;
use std::process::ExitCode;

use ragstone_documents::{Document, Process, Reader, Unread, child, find_files};
use tokio_util::sync::CancellationToken;

const SECONDS: u64 = 60;

fn main() -> ExitCode {
    // It is the process that parses, too.
    if let Some(arguments) = child::arguments() {
        return child::run(&arguments).into();
    }
    let mut reader = Reader::new(Process::new(SECONDS, CancellationToken::new()));
    let mut output = std::io::stdout().lock();
    let paths: Vec<_> = std::env::args().skip(1).map(Into::into).collect();
    let found = match find_files(&paths) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for file in &found.files {
        let path = file.path.display().to_string();
        let read = reader.read(file, &mut |document| writeln!(output, "{}", as_json(&path, &document)).is_ok());
        if let Err(Unread::Skipped(why)) = read {
            let _ = writeln!(output, "{}", serde_json::json!({"path": path, "skipped": why}));
        }
    }
    ExitCode::SUCCESS
}

fn as_json(path: &str, document: &Document) -> serde_json::Value {
    let Document { title, text, metadata, elements, pages, left_out, .. } = document;
    serde_json::json!({"path": path, "title": title, "metadata": metadata, "text": text, "elements": elements, "pages": pages,
        "left_out": left_out})
}
