//! Subtitles (SRT, WebVTT): what is said, joined to paragraphs that begin with their time.

use super::body::{Body, one_line};
use super::metadata::FileMetadata;
use super::parse::Parsed;

/// A paragraph ends with a sentence beyond so many bytes, or anyway beyond twice as many.
const PARAGRAPH_BYTES: usize = 500;
/// Or where nothing is said for so long.
const PAUSE_SECONDS: u64 = 5;
const MAX_MARK_BYTES: usize = 100;

/// Reads subtitles; a text without any is a text.
pub fn read(text: &str) -> Parsed {
    let cues = cues(text);
    if cues.is_empty() {
        return Parsed { text: text.to_owned(), ..Parsed::default() };
    }
    let (mut body, mut paragraph, mut end) = (Body::default(), String::new(), 0);
    let (mut speaker, mut last) = (None, Vec::new());
    for cue in cues {
        // Captions that roll say each line again.
        for line in cue.lines.iter().filter(|line| !last.contains(*line)) {
            let is_long = paragraph.len() > 2 * PARAGRAPH_BYTES
                || paragraph.len() > PARAGRAPH_BYTES && paragraph.ends_with(['.', '?', '!', '…', '。', '"', '”']);
            if is_long || line.speaker != speaker || cue.begin > end + PAUSE_SECONDS {
                body.paragraph(&std::mem::take(&mut paragraph));
            }
            if paragraph.is_empty() {
                let (hours, minutes) = (cue.begin / 3600, cue.begin / 60 % 60);
                paragraph = format!("[{hours:02}:{minutes:02}:{:02}]", cue.begin % 60);
                paragraph.extend(line.speaker.as_ref().map(|name| format!(" {name}:")));
            }
            paragraph.push(' ');
            paragraph.push_str(&line.text);
            speaker.clone_from(&line.speaker);
            end = cue.end.max(end);
        }
        if !cue.lines.is_empty() {
            last = cue.lines;
        }
        end = cue.end.max(end);
    }
    body.paragraph(&paragraph);
    Parsed::of(None, body, FileMetadata::default())
}

/// What is shown from `begin` to `end`, in seconds.
struct Cue {
    begin: u64,
    end: u64,
    lines: Vec<Line>,
}

impl Cue {
    fn add(&mut self, line: &str) {
        let mut line = said(line);
        if !line.text.is_empty() {
            let above = self.lines.last().and_then(|line| line.speaker.clone());
            line.speaker = line.speaker.or(above);
            self.lines.push(line);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    speaker: Option<String>,
    text: String,
}

fn cues(text: &str) -> Vec<Cue> {
    let (mut cues, mut is_cue, mut is_note) = (Vec::<Cue>::new(), false, false);
    for line in text.lines().map(str::trim) {
        if let Some((begin, end)) = times(line) {
            if let Some(cue) = cues.last_mut().filter(|_| is_cue) {
                // A number or a name of the next one, without a blank line above it.
                cue.lines.pop_if(|line| line.text.bytes().all(|byte| byte.is_ascii_digit()));
            }
            cues.push(Cue { begin, end, lines: Vec::new() });
            (is_cue, is_note) = (true, false);
        } else if line.is_empty() {
            (is_cue, is_note) = (false, false);
        } else if is_cue {
            cues.last_mut().into_iter().for_each(|cue| cue.add(line));
        } else if ["NOTE", "STYLE", "REGION", "WEBVTT"].iter().any(|word| line.starts_with(word)) {
            is_note = true;
        } else if !is_note && !cues.is_empty() && line.bytes().any(|byte| !byte.is_ascii_digit()) {
            // A cue may have a blank line in it; the names of cues are told from that by the times that follow.
            cues.last_mut().into_iter().for_each(|cue| cue.add(line));
            is_cue = true;
        }
    }
    cues
}

/// `00:01:05,000 --> 00:01:07,000`.
fn times(line: &str) -> Option<(u64, u64)> {
    let (begin, end) = line.split_once("-->")?;
    Some((seconds(begin)?, seconds(end.split_whitespace().next()?)?))
}

fn seconds(time: &str) -> Option<u64> {
    let whole = time.trim().split([',', '.']).next()?;
    let parts: Vec<u64> = whole.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    if !(2..=3).contains(&parts.len()) || parts.iter().any(|part| *part > 10_000) {
        return None;
    }
    Some(parts.iter().fold(0, |seconds, part| 60 * seconds + part))
}

/// A line without its marks: `<v Ada>Well, <i>yes</i>` is Ada's `Well, yes`.
fn said(line: &str) -> Line {
    let (mut text, mut speaker, mut rest) = (String::new(), None, line);
    while let Some(at) = rest.find(['<', '{']) {
        let (before, mark) = rest.split_at(at);
        text.push_str(before);
        let (close, is_mark) = match mark.strip_prefix('<') {
            Some(name) => (b'>', name.starts_with(|c: char| c == '/' || c.is_ascii_alphanumeric())),
            None => (b'}', mark.starts_with("{\\")),
        };
        match mark
            .bytes()
            .take(MAX_MARK_BYTES)
            .position(|byte| byte == close)
            .filter(|at| is_mark && *at > 0)
            .map(|at| (&mark[..at], &mark[at + 1..]))
        {
            Some((mark, after)) => {
                if let Some(name) = mark.strip_prefix("<v").and_then(|name| name.split_once(' ')) {
                    speaker = Some(name.1.trim().to_owned());
                }
                rest = after;
            }
            None => {
                let (first, after) = mark.split_at(1);
                text.push_str(first);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    let plain = text.replace("&nbsp;", " ").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Line { speaker, text: one_line(&plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_joined_with_its_time() {
        let source = "1\r\n00:01:05,000 --> 00:01:07,500\r\nShe dyed it with\r\n<i>walnut</i> {\\an8}shells,\r\n\r\n2\r\n00:01:08,000 --> 00:01:10,000\r\n\
                      and never told.\r\n\r\n3\r\n01:00:20,000 --> 01:00:21,000\r\nWhy?\r\n";
        assert_eq!(read(source).text, "[00:01:05] She dyed it with walnut shells, and never told.\n\n[01:00:20] Why?");
    }

    #[test]
    fn speakers_are_named_and_rolling_lines_said_once() {
        let source = "WEBVTT - Standup\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE not said\n\nfirst\n00:01.000 --> 00:02.000 align:start\n\
                      <v Greta>The key &amp; the lock\n\n00:02.000 --> 00:03.000\n<v Greta>The key &amp; the lock\nlie in <00:02.500><c>the safe</c>.\n\n\
                      00:03.000 --> 00:04.000\n<v.loud Bo>a < b\n\n00:04.000 --> 00:05.000\nYes.\n";
        assert_eq!(
            read(source).text,
            "[00:00:01] Greta: The key & the lock lie in the safe.\n\n[00:00:03] Bo: a < b\n\n[00:00:04] Yes."
        );
        assert_eq!(read("No cues here.").text, "No cues here.");
    }
}
