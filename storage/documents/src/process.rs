//! Parses files in a process of their own: starts it, feeds it, and ends it where a file takes too long. One process takes
//! one file after another, as long as they are small and it reads them well.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use ragstone_env::Stopwatch;
use tokio_util::sync::CancellationToken;

use super::child::{COMMAND, FRAME_BYTES, MAX_LINE_BYTES, READY, Reply};
use super::limits::MEMORY_BYTES;
use super::name::clean;
use super::open::{Opened, failed};
use super::parse::{Asked, Each, Parsed};
use super::{MAX_REASON_CHARS, Parser, Unread};
use ragstone_env::{Error, ErrorKind};

/// To start may take long where the machine is busy or the program comes from a slow disk.
const START: Duration = Duration::from_secs(60);
/// The process bounds its own processor time. Where the machine is busy, that takes longer by the clock.
const PATIENCE: u32 = 4;
/// How soon a service that stops is noticed.
const GLANCE: Duration = Duration::from_millis(100);
/// A process that parsed a greater file is not kept: what it freed may still be its own.
const KEEP_BYTES: usize = 1 << 20;
/// And none is kept for ever.
const KEEP_FILES: usize = 1000;
/// What is kept of what it wrote to its standard error.
const NOISE_BYTES: usize = 4 << 10;

/// Starts and ends processes that parse files.
pub struct Process {
    running: Option<Running>,
    /// Of processor time, for one file.
    seconds: u64,
    stopping: CancellationToken,
}

impl Process {
    /// None is started before it is needed. A file may take `seconds` of processor time; one that is being parsed is let go when `stopping`
    /// is cancelled.
    pub fn new(seconds: u64, stopping: CancellationToken) -> Self {
        Self { running: None, seconds, stopping }
    }
}

impl Parser for Process {
    fn parse(&mut self, asked: &Asked, file: &mut Opened, each: Each<'_>) -> Result<(), Unread> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start(self.seconds, self.stopping.clone()).map_err(|why| {
                let message = format!(
                    "the process that parses files does not start: {why}; the ingest goes on at the next start"
                );
                Unread::Failed(Error::new(ErrorKind::Unavailable, message))
            })?,
        };
        running.budget = Duration::from_secs(self.seconds) * PATIENCE;
        let done = running.exchange(asked, file, each);
        match done {
            Ok(Exchanged { bytes, bad }) => {
                running.files += 1;
                if bytes <= KEEP_BYTES && running.files < KEEP_FILES {
                    self.running = Some(running);
                }
                bad.map_or(Ok(()), |why| Err(Unread::Skipped(why)))
            }
            Err(Fault::File(why)) => Err(Unread::Skipped(why)),
            Err(Fault::Stopping) => Err(Unread::Stopped),
            Err(Fault::TimedOut) => Err(Unread::Skipped(too_long(self.seconds))),
            Err(Fault::Ended) => {
                let (status, noise) = running.end();
                tracing::debug!(?status, noise, "the process that parses files ended");
                Err(Unread::Skipped(why_it_ended(status, &noise, self.seconds)))
            }
        }
    }
}

/// A file that was parsed to its end.
struct Exchanged {
    /// Its length.
    bytes: usize,
    /// What is wrong with some of its records.
    bad: Option<String>,
}

/// Why a file was not parsed to its end.
#[derive(Debug)]
enum Fault {
    /// Something about the file, for people.
    File(String),
    /// The process is gone.
    Ended,
    /// It took all the time there is.
    TimedOut,
    /// The service stops.
    Stopping,
}

/// A process that waits for files. Ended and reaped when dropped.
struct Running {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    noise: Noise,
    files: usize,
    /// How long it may still be waited for. Time in which it waits for us does not count.
    budget: Duration,
    stopping: CancellationToken,
    /// What went wrong, where only an `io::Error` can be told.
    fault: Option<Fault>,
}

/// Its standard error: read so that it never blocks, kept for what it says at its end.
struct Noise {
    pipe: Option<ChildStderr>,
    text: Vec<u8>,
}

impl Running {
    fn start(seconds: u64, stopping: CancellationToken) -> Result<Self, String> {
        let mut command = Command::new(program().map_err(|error| error.to_string())?);
        command.arg(COMMAND).arg(std::process::id().to_string()).arg(seconds.to_string()).env_clear();
        // Where the program's own libraries are found; nothing else of the environment is its business.
        if let Some(folders) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", folders);
        }
        // Ctrl-C is for this process, which then ends that one.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(noise)) = pipes else {
            return Err("it has no pipes".into());
        };
        let pipes = [input.as_raw_fd(), output.as_raw_fd(), noise.as_raw_fd()];
        let noise = Noise { pipe: Some(noise), text: Vec::new() };
        let mut running = Self { child, input, output, noise, files: 0, budget: START, stopping, fault: None };
        for pipe in pipes {
            set_nonblocking(pipe).map_err(|error| error.to_string())?;
        }
        let mut ready = vec![0; READY.len()];
        match Output(&mut running).read_exact(&mut ready) {
            Ok(()) if ready == READY.as_bytes() => Ok(running),
            _ => {
                let (status, noise) = running.end();
                Err(format!("{status}: {noise}"))
            }
        }
    }

    /// Sends a file and hands out what comes back.
    fn exchange(&mut self, asked: &Asked, file: &mut Opened, each: Each<'_>) -> Result<Exchanged, Fault> {
        let bytes = self.send(asked, file)?;
        let mut output = BufReader::with_capacity(FRAME_BYTES, Output(self));
        let received = receive(&mut output, each);
        drop(output);
        // What was wrong with the pipe says more than what was missing from it.
        match (self.fault.take(), received) {
            (Some(fault), _) => Err(fault),
            (None, received) => received.map(|bad| Exchanged { bytes, bad }),
        }
    }

    fn send(&mut self, asked: &Asked, file: &mut Opened) -> Result<usize, Fault> {
        let broken = |error: serde_json::Error| Fault::File(error.to_string());
        let mut request = serde_json::to_vec(asked).map_err(broken)?;
        request.push(b'\n');
        self.write_all(&request)?;
        let (mut frame, mut sent) = (vec![0; 4 + FRAME_BYTES], 0);
        loop {
            let read = match file.read(&mut frame[4..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| Fault::File(failed(&error)))?,
            };
            // At most FRAME_BYTES.
            frame[..4].copy_from_slice(&(read as u32).to_le_bytes());
            self.write_all(&frame[..4 + read])?;
            sent += read;
            if read == 0 {
                return Ok(sent);
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match self.input.write(bytes) {
                Ok(0) => return Err(Fault::Ended),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_for_later(&error) => self.wait(self.input.as_raw_fd(), libc::POLLOUT)?,
                Err(_) => return Err(Fault::Ended),
            }
        }
        Ok(())
    }

    /// Waits until `pipe` can be used, or its other end is closed.
    fn wait(&mut self, pipe: RawFd, events: libc::c_short) -> Result<(), Fault> {
        loop {
            if self.stopping.is_cancelled() {
                return Err(Fault::Stopping);
            }
            if self.budget.is_zero() {
                return Err(Fault::TimedOut);
            }
            let noise = self.noise.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let mut polled = [
                libc::pollfd { fd: pipe, events, revents: 0 },
                libc::pollfd { fd: noise, events: libc::POLLIN, revents: 0 },
            ];
            let most = self.budget.min(GLANCE).as_millis().max(1) as libc::c_int;
            let begun = Stopwatch::start();
            // SAFETY: the array is two long and outlives the call.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, most) };
            self.budget = self.budget.saturating_sub(begun.elapsed());
            if polled[1].revents != 0 {
                self.noise.read();
            }
            if polled[0].revents != 0 {
                return Ok(());
            }
        }
    }

    /// Ends it; how it ended, by itself or so, and what it said.
    fn end(&mut self) -> (ExitStatus, String) {
        // One that ended already keeps its own status.
        let _ = self.child.kill();
        let status = self.child.wait().unwrap_or_default();
        self.noise.read();
        (status, clean(&String::from_utf8_lossy(&self.noise.text), MAX_REASON_CHARS))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Noise {
    /// Takes what is there now.
    fn read(&mut self) {
        let mut chunk = [0; 1024];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let room = NOISE_BYTES.saturating_sub(self.text.len());
                    self.text.extend_from_slice(&chunk[..read.min(room)]);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The process's standard output, waited for within its budget.
struct Output<'a>(&'a mut Running);

impl Read for Output<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.output.read(into) {
                Err(error) if is_for_later(&error) => {
                    if let Err(fault) = self.0.wait(self.0.output.as_raw_fd(), libc::POLLIN) {
                        self.0.fault = Some(fault);
                        return Err(std::io::Error::other("not waited for any longer"));
                    }
                }
                read => return read,
            }
        }
    }
}

/// Hands out the documents of a file; what is wrong with its other records.
fn receive(output: &mut impl BufRead, each: Each<'_>) -> Result<Option<String>, Fault> {
    let mut line = Vec::new();
    let mut next = |most: u64| -> Result<Vec<u8>, Fault> {
        line.clear();
        output.by_ref().take(most).read_until(b'\n', &mut line).map_err(|_| Fault::Ended)?;
        if line.last() == Some(&b'\n') { Ok(std::mem::take(&mut line)) } else { Err(Fault::Ended) }
    };
    let unexpected = |_| Fault::File("the parser answered something unexpected; convert it to text first".into());
    let reply: Reply = serde_json::from_slice(&next(MAX_LINE_BYTES)?).map_err(unexpected)?;
    let (all, bad) = match reply {
        Reply::Unreadable { why } => return Err(Fault::File(clean(&why, MAX_REASON_CHARS))),
        Reply::Documents { bytes, bad } => (bytes, bad.map(|why| clean(&why, MAX_REASON_CHARS))),
    };
    let mut left = all;
    while left > 0 {
        let line = next(left)?;
        left = left.saturating_sub(line.len() as u64);
        let mut parsed: Parsed = serde_json::from_slice(&line).map_err(unexpected)?;
        parsed.share = ((all - left) as f64 / all as f64) as f32;
        drop(line);
        each(parsed).map_err(Fault::File)?;
    }
    Ok(bad)
}

/// This program, also where its file was replaced or removed since it was started.
fn program() -> std::io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

fn set_nonblocking(pipe: RawFd) -> std::io::Result<()> {
    // SAFETY: the calls read and set flags of a pipe that is open.
    let set = unsafe {
        let flags = libc::fcntl(pipe, libc::F_GETFL);
        flags >= 0 && libc::fcntl(pipe, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn is_for_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

fn too_long(seconds: u64) -> String {
    format!(
        "it takes longer than {seconds} s to parse; split it, convert it to text, or raise the setting `file_seconds`"
    )
}

/// What a process that ended while it parsed a file says about the file.
fn why_it_ended(status: ExitStatus, noise: &str, seconds: u64) -> String {
    if status.signal() == Some(libc::SIGXCPU) {
        return too_long(seconds);
    }
    if noise.contains("overflowed its stack") {
        return "it nests too deep or refers to itself, which ended its parser; convert it to text first".into();
    }
    if noise.contains("memory allocation of") {
        return format!(
            "it takes more than {} MiB of memory to parse; split it or convert it to text",
            MEMORY_BYTES >> 20
        );
    }
    format!("it ended its parser ({status}); convert it to text first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_says_what_to_do() {
        let ended = |raw, noise| why_it_ended(ExitStatus::from_raw(raw), noise, 7);
        assert!(ended(libc::SIGXCPU, "").contains("longer than 7 s"));
        assert!(ended(libc::SIGABRT, "thread 'parser' has overflowed its stack").contains("nests too deep"));
        assert!(ended(libc::SIGABRT, "memory allocation of 5 bytes failed").contains("1024 MiB"));
        assert!(ended(libc::SIGSEGV, "").contains("SIGSEGV"));
    }

    #[test]
    fn an_answer_that_is_cut_off_or_none_is_told() {
        let take = |bytes: &[u8]| {
            let mut texts = Vec::new();
            receive(&mut &*bytes, &mut |parsed| {
                texts.push(parsed.text);
                Ok(())
            })
            .map(|bad| (texts, bad))
        };
        let (texts, bad) = take(b"{\"documents\":{\"bytes\":13}}\n{\"text\":\"a\"}\n").unwrap();
        assert!(texts == ["a"] && bad.is_none());
        let (texts, bad) = take(b"{\"documents\":{\"bytes\":13,\"bad\":\"x\"}}\n{\"text\":\"a\"}\n").unwrap();
        assert!(texts == ["a"] && bad.as_deref() == Some("x"));
        assert!(matches!(take(b"{\"documents\":{\"bytes\":14}}\n{\"text\":\"a\"}\n"), Err(Fault::Ended)));
        assert!(matches!(take(b"{\"documents\":"), Err(Fault::Ended)));
        assert!(matches!(take(b"hello\n"), Err(Fault::File(_))));
        assert!(matches!(take(b"{\"unreadable\":{\"why\":\"x\"}}\n"), Err(Fault::File(why)) if why == "x"));
    }
}
