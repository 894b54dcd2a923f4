//! The process that parses files for another one: `ragstone parse-files PARENT SECONDS`, started by [`super::process`]
//! and by nobody else. What a file can do to a parser (recursion without end, gigabytes from kilobytes, a crash) ends
//! this process and costs that file.
//!
//! ```text
//! in:  one line of JSON, [`Asked`]; then frames: length, u32 little-endian, and as many bytes; length 0 ends the file
//! out: "ready\n" once; then for each request one line of JSON, [`Reply`], and as many bytes as it says: lines of JSON,
//!      [`Parsed`] each
//! ```
//! A file is parsed to its end before the first byte of it goes out, so that it is taken whole or not at all, but for records of its own that are bad.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};

use super::limits;
use super::parse::{self, Asked, Parsed};

/// The command line's word for it.
pub const COMMAND: &str = "parse-files";
/// What the process says when its limits stand.
pub const READY: &str = "ready\n";
/// Of a request's or reply's line.
pub const MAX_LINE_BYTES: u64 = 16 << 10;
/// Bytes of a frame.
pub const FRAME_BYTES: usize = 64 << 10;
/// What the documents of one file may come to, as lines of JSON.
const MAX_REPLY_BYTES: usize = 256 << 20;
/// Files nest; parsers recurse. Beside it the process may have [`limits::MEMORY_BYTES`].
const STACK_BYTES: usize = 64 << 20;

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// This many bytes of documents follow.
    Documents {
        bytes: u64,
        /// What is wrong with other records of the file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bad: Option<String>,
    },
    /// It is not what its name says, or more than one file may be.
    Unreadable { why: String },
}

/// The command's arguments, if this process was started to parse files.
pub fn arguments() -> Option<Vec<String>> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != COMMAND {
        return None;
    }
    Some(arguments.map(|argument| argument.to_string_lossy().into_owned()).collect())
}

/// Parses files until there are no more; the exit status. `arguments` are those after the command.
pub fn run(arguments: &[String]) -> u8 {
    let [parent, seconds] = arguments else {
        eprintln!("ragstone: {COMMAND} is ragstone's own, and nothing to be called");
        return 2;
    };
    let (Ok(parent), Ok(seconds)) = (parent.parse(), seconds.parse()) else { return 2 };
    // A panic is an answer here, not news for the terminal.
    std::panic::set_hook(Box::new(|_| {}));
    let work = move || limits::set(parent).and_then(|()| serve(seconds));
    match on_own_stack(work).map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => 0,
        Ok(Ok(Err(error))) => {
            eprintln!("{error}");
            1
        }
        _ => 1,
    }
}

/// Parsers that descend with their input have a stack of a known size.
#[expect(clippy::disallowed_methods, reason = "the one thread of a process of its own, which has no Env")]
fn on_own_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name("parser".into()).stack_size(STACK_BYTES).spawn(work)
}

fn serve(seconds: u64) -> std::io::Result<()> {
    let mut input = BufReader::with_capacity(FRAME_BYTES, std::io::stdin().lock());
    let mut output = BufWriter::with_capacity(FRAME_BYTES, std::io::stdout().lock());
    output.write_all(READY.as_bytes())?;
    output.flush()?;
    loop {
        let mut line = String::new();
        if input.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let asked: Asked = serde_json::from_str(&line)?;
        let bytes = receive(&mut input)?;
        limits::allow_processor_seconds(seconds)?;
        let mut documents = Vec::new();
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            parse::parse(&asked, bytes, &mut |parsed| append(&mut documents, &parsed))
        }));
        let told = |why: String| super::name::clean(&why, super::MAX_REASON_CHARS);
        let reply = match parsed {
            Ok(Ok(bad)) => Reply::Documents { bytes: documents.len() as u64, bad: bad.map(told) },
            Ok(Err(why)) => Reply::Unreadable { why: told(why) },
            Err(_) => Reply::Unreadable { why: "the parser failed on it; convert it to text first".into() },
        };
        serde_json::to_writer(&mut output, &reply)?;
        output.write_all(b"\n")?;
        if let Reply::Documents { .. } = reply {
            output.write_all(&documents)?;
        }
        output.flush()?;
    }
}

/// A file out of its frames. Whoever sends it bounds it.
fn receive(input: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        match u64::from(u32::from_le_bytes(length)) {
            0 => return Ok(bytes),
            length if input.by_ref().take(length).read_to_end(&mut bytes)? as u64 == length => {}
            _ => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn append(documents: &mut Vec<u8>, parsed: &Parsed) -> Result<(), String> {
    serde_json::to_writer(&mut *documents, parsed).map_err(|error| error.to_string())?;
    documents.push(b'\n');
    if documents.len() > MAX_REPLY_BYTES {
        let most = MAX_REPLY_BYTES >> 20;
        return Err(format!("its documents come to more than {most} MiB, which one file may have; split it"));
    }
    Ok(())
}
