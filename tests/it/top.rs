//! `ragstone top`: figures of a running service for people and programs, and a terminal that is left as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::harness::{Folder, Ran, WORLD};

const QUESTION: &[&str] = &["ask", "What does Calbet Works make?", "--collection", "world", "--max-tokens", "8"];

#[test]
fn without_a_service_there_is_nothing_to_watch() {
    let folder = Folder::new();
    folder.run(&["top"]).failed_with(&["there is no data folder"]);
    folder.run(&["ingest", folder.write("a.md", "One.").to_str().unwrap()]).succeeded();
    folder.run(&["top", "--once", "--json"]).failed_with(&["no service runs on", "`ragstone serve`"]);
    folder.run(&["page"]).failed_with(&["no service runs on"]);
}

#[tokio::test]
async fn a_running_service_is_told_in_figures_also_where_requests_need_a_key() {
    let folder = Folder::new();
    for (title, text) in WORLD {
        folder.write(&format!("corpus/{title}.md"), text);
    }
    let corpus = folder.path().join("corpus").display().to_string();
    folder.run(&["ingest", &corpus, "--collection", "world"]).succeeded();
    let service = folder.serve(&["--keys", "required"]).await;
    let idle = folder.json(&["top", "--once", "--json"]);
    assert_eq!(idle["answers"], json!({ "per_s": 0.0, "total": 0.0 }), "{idle}");
    assert_eq!(idle["ttft"]["since_start"], json!({ "p50_s": null, "p95_s": null }));
    assert_eq!((&idle["pid"], &idle["address"]), (&json!(service.pid()), &json!(service.address)));
    assert_eq!(idle["model"], "ragstone-demo");
    for state in ["in_flight", "searching", "queued", "loading", "prefilling", "decoding", "swapped"] {
        assert_eq!(idle["requests"][state], 0, "{state}: {idle}");
    }
    folder.run(QUESTION).succeeded();
    folder.run(QUESTION).succeeded();
    let figures = folder.json(&["top", "--json"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {figures}"));
    assert_eq!(number(&figures["answers"]["total"]), 2.0);
    assert!(number(&figures["window_s"]) >= 1.0 && number(&figures["ttft"]["since_start"]["p95_s"]) > 0.0);
    let origins = figures["prompt_tokens"]["by_origin"].as_array().unwrap();
    let of = |name: &str| number(&origins.iter().find(|part| part["origin"] == name).unwrap()["tokens"]["total"]);
    // The first answer computed all of its prompt, the second took what that left.
    assert!(of("exact") > 0.0 && of("computed") > 0.0, "{origins:?}");
    assert_eq!(
        origins.iter().map(|part| number(&part["tokens"]["total"])).sum::<f64>(),
        number(&figures["prompt_tokens"]["total"])
    );
    let tier = |name: &str| figures["tiers"].as_array().unwrap().iter().find(|tier| tier["tier"] == name).cloned();
    let device = tier("device").unwrap();
    assert!(number(&device["hits"]["total"]) > 0.0 && number(&device["bytes"]) > 0.0, "{device}");
    assert!(number(&device["bound_bytes"]) >= number(&device["bytes"]), "{device}");
    assert!(tier("disk").is_some() && tier("object").is_none(), "there is no bucket");

    // Standard output is no terminal here.
    let text = folder.run(&["top"]).succeeded().stdout;
    for words in ["ragstone-demo", "in flight", "first token, p50", "prompt tokens", "  exact", "device", "hit rate"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    folder.run(&["top", "--threads", "3"]).failed_with(&["--threads", "no effect"]);
}

/// A terminal of 24 rows and 80 columns, and a program in it.
struct Terminal {
    master: File,
    slave: OwnedFd,
    before: String,
}

impl Terminal {
    fn new() -> Self {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: it writes the two descriptors, reads the size, and takes no name and no attributes; both are owned from here on.
        let (master, slave) = unsafe {
            let done = libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size);
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
            (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        let before = attributes(&slave);
        Self { master, slave, before }
    }

    fn run(&self, folder: &Folder, arguments: &[&str]) -> Child {
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        let mut command = folder.ragstone(arguments);
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    /// What the program wrote, up to `words`.
    fn until(&mut self, words: &str) -> String {
        let mut text = Vec::new();
        loop {
            let mut poll = libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which stays open.
            let ready = unsafe { libc::poll(&mut poll, 1, 120_000) };
            let so_far = String::from_utf8_lossy(&text).into_owned();
            assert_eq!(ready, 1, "no {words:?} came after {so_far:?}");
            let mut part = [0; 4096];
            let read = self.master.read(&mut part).unwrap();
            text.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&text);
            if text.contains(words) {
                return text.into_owned();
            }
        }
    }
}

/// How the terminal treats keys.
fn attributes(terminal: &OwnedFd) -> String {
    let mut attributes = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the call fills it in, or fails.
    let attributes = unsafe {
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), attributes.as_mut_ptr()), 0);
        attributes.assume_init()
    };
    format!("{:?} {:?} {:?}", attributes.c_iflag, attributes.c_lflag, attributes.c_cc)
}

#[tokio::test]
async fn a_terminal_shows_it_until_somebody_leaves_and_is_then_as_it_was() {
    let folder = Folder::new();
    let service = folder.serve(&[]).await;
    for leave in ["q", "interrupt"] {
        let mut terminal = Terminal::new();
        let mut top = terminal.run(&folder, &["top"]);
        let shown = terminal.until("q quits");
        assert!(shown.contains("\u{1b}[?1049h") && shown.contains("ragstone-demo"), "{shown:?}");
        assert_ne!(attributes(&terminal.slave), terminal.before);
        assert!(terminal.until("q quits").contains("last 1 s"), "it is drawn again after a second");
        match leave {
            "q" => terminal.master.write_all(b"xq").unwrap(),
            _ => assert!(crate::harness::signal("INT", top.id())),
        }
        assert_eq!(top.wait().unwrap().code(), Some(0), "{leave}");
        assert!(terminal.until("\u{1b}[?1049l").contains("\u{1b}[?25h"), "{leave}");
        assert_eq!(attributes(&terminal.slave), terminal.before, "{leave}");
    }
    // One that ends is missed, and found again when it comes back.
    let mut terminal = Terminal::new();
    let mut top = terminal.run(&folder, &["top"]);
    terminal.until("q quits");
    assert_eq!(service.stop(), 0);
    terminal.until("no service runs on");
    let service = folder.serve(&[]).await;
    terminal.until(&format!("process {}", service.pid()));
    terminal.master.write_all(b"q").unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
    let dumb = Ran::of(folder.ragstone(&["top", "--once"]).env("TERM", "dumb").output().unwrap()).succeeded();
    assert!(dumb.stdout.contains("first token"));
}
