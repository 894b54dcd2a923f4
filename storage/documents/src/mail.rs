//! E-mail: one message (`.eml`), or a folder of them (`.mbox`), each a document of its own, and so is each of their attachments.

mod attached;

use std::borrow::Cow;
use std::collections::HashSet;

use mail_parser::mailbox::mbox::MessageIterator;
use mail_parser::{Address, Message, MessageParser, MimeHeaders, PartType};

use self::attached::{Attached, From};
use super::body::Body;
use super::html;
use super::json::Bad;
use super::metadata::FileMetadata;
use super::parse::{Each, Parsed, check};

/// Addresses of one field that are named.
const MAX_ADDRESSES: usize = 20;
/// Letters of a plain text that may be no more than a word to programs that display no HTML; and how many times as many its page has then.
const LITTLE: usize = 200;
const MUCH: usize = 10;
/// Fields of which each message has one.
const HEAD: [&[u8]; 6] = [b"From", b"Subject", b"Date", b"Message-ID", b"Received", b"Return-Path"];

/// Reads a message, and what is attached to it. What is wrong with attachments it returns; the others, and the message, were handed out.
///
/// # Errors
/// Where it is none, or what `each` says.
pub fn file(bytes: &[u8], each: Each<'_>) -> Result<Option<String>, String> {
    let mut bad = Bad::default();
    let message = open(bytes)?;
    with_attachments(&message, None, &mut bad, each)?;
    Ok(bad.told("attachments"))
}

/// A message, at its place in a file of several, then what is attached to it.
fn with_attachments(
    message: &Message<'_>,
    anchor: Option<String>,
    bad: &mut Bad,
    each: Each<'_>,
) -> Result<(), String> {
    let Attached { parts, left_out } = attached::of(message, 0);
    let parsed = Parsed { left_out, ..document(message)? };
    let title = parsed.title.clone().or_else(|| anchor.as_ref().map(|_| String::new()));
    let parsed = Parsed { anchor, title, ..parsed };
    check(&parsed)?;
    let from = From::of(&parsed);
    each(parsed)?;
    attached::read(&parts, &from, 0, bad, each)
}

fn open(bytes: &[u8]) -> Result<Message<'_>, String> {
    MessageParser::new().parse(bytes).filter(is_message).ok_or_else(none)
}

fn none() -> String {
    "not readable as an e-mail: it has no header fields such as From and Subject".into()
}

/// Whether it has a head. The library's own looks at one that has no part at all panic.
fn is_message(message: &Message<'_>) -> bool {
    !message.parts.is_empty() && (message.from().is_some() || message.subject().is_some() || message.date().is_some())
}

/// A message without its attachments.
fn document(message: &Message<'_>) -> Result<Parsed, String> {
    let mut metadata = FileMetadata::default();
    let mut body = Body::default();
    let date = message.date().filter(|date| date.is_valid()).map(mail_parser::DateTime::to_rfc3339);
    let fields = [
        ("From", "from", message.from().map(addresses)),
        ("To", "to", message.to().map(addresses)),
        ("Cc", "cc", message.cc().map(addresses)),
        ("Date", "date", date),
    ];
    for (label, key, value) in fields {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            metadata.add(key, &value);
            body.line(&format!("{label}: {value}"));
        }
    }
    body.end_block();
    metadata.add_some("message_id", message.message_id());
    let names: Vec<&str> = message.attachments().filter_map(|part| part.attachment_name()).collect();
    metadata.add("attachments", &names.join(", "));
    let body = texts(message, body)?;
    Ok(Parsed::of(message.subject().map(super::body::one_line), body, metadata))
}

/// What a message says: its plain text, or its HTML where it has no other, or one that says next to nothing. Text that nobody sees is left out of that.
fn texts(message: &Message<'_>, mut body: Body) -> Result<Body, String> {
    let is_page = is_page(message);
    let ids = if is_page { &message.html_body } else { &message.text_body };
    // What stands beside the page alone is an attachment, too, and read as that.
    let attached: HashSet<usize> = message.attachments.iter().copied().collect();
    let ids = ids.iter().filter(|id| !is_page || !attached.contains(id));
    for part in ids.filter_map(|id| message.parts.get(*id)) {
        match &part.body {
            PartType::Text(text) => body.paragraph(&text.replace("\r\n", "\n")),
            PartType::Html(source) => {
                let mut page = html::Page { body, ..html::Page::default() };
                html::append(source, &mut page)?;
                body = page.body;
            }
            _ => continue,
        }
        body.end_block();
    }
    Ok(body)
}

/// Whether its HTML is to be read: its plain text is blank, as many programs write it beside that, or says little. What stands in both, such as
/// the last lines of a mailing list, tells nothing.
fn is_page(message: &Message<'_>) -> bool {
    let says = |id: &usize, is_html: bool| match message.parts.get(*id).map(|part| &part.body) {
        Some(PartType::Text(text)) => !is_html && !text.trim().is_empty(),
        Some(PartType::Html(text)) => !text.trim().is_empty(),
        _ => false,
    };
    // A mail may have millions of parts.
    let known = |ids: &[usize]| ids.iter().copied().collect::<HashSet<_>>();
    let (texts, pages) = (known(&message.text_body), known(&message.html_body));
    let is_said = texts.iter().any(|id| says(id, false) && !pages.contains(id));
    let has_page = pages.iter().any(|id| says(id, true) && !texts.contains(id));
    has_page && (!is_said || says_little(message, &texts, &pages))
}

/// Whether the plain text is a word or two beside all that the HTML says: "Your program cannot show this mail".
fn says_little(message: &Message<'_>, texts: &HashSet<usize>, pages: &HashSet<usize>) -> bool {
    let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).count();
    let mut plain = 0;
    for id in texts.difference(pages) {
        if let Some(PartType::Text(text)) = message.parts.get(*id).map(|part| &part.body) {
            plain += letters(text);
        }
    }
    if plain >= LITTLE {
        return false;
    }
    let mut said = 0;
    for id in pages.difference(texts) {
        if let Some(PartType::Html(source)) = message.parts.get(*id).map(|part| &part.body) {
            let mut page = html::Page::default();
            // What cannot be read says nothing.
            if html::append(source, &mut page).is_ok() {
                said += letters(&page.body.finish().0);
            }
        }
    }
    said >= plain.max(1) * MUCH
}

fn addresses(address: &Address<'_>) -> String {
    let one = |address: &mail_parser::Addr<'_>| match (address.name(), address.address()) {
        (Some(name), Some(at)) => format!("{name} <{at}>"),
        (name, at) => name.or(at).unwrap_or_default().to_owned(),
    };
    address.iter().take(MAX_ADDRESSES).map(one).collect::<Vec<_>>().join(", ")
}

/// Reads a folder of messages. Which of them are bad, and why, it returns.
///
/// # Errors
/// Where it is none, or what `each` says.
pub fn mailbox(bytes: &[u8], each: Each<'_>) -> Result<Option<String>, String> {
    if !bytes.starts_with(b"From ") {
        return Err("not readable as a mailbox: it does not begin with a line `From …`; name one message .eml".into());
    }
    let (mut bad, mut known) = (Bad::default(), HashSet::new());
    let bytes = quoted(bytes);
    for (index, found) in MessageIterator::new(&*bytes).enumerate() {
        let number = index + 1;
        let found = found.map_err(|_| "not readable as a mailbox: it ends within a message; export it anew")?;
        let message = match open(found.contents()) {
            Ok(message) => message,
            Err(why) => {
                bad.note(|| format!("message {number}: {why}"));
                continue;
            }
        };
        // A message that was sent twice is one document, unless it is another with the same id.
        let mut anchor = anchor(&message, number);
        if !known.insert(anchor.clone()) {
            anchor = format!("{anchor}-{number}");
        }
        let (mut inner, mut stopped) = (Bad::default(), None);
        let mut pass_on = |parsed| each(parsed).inspect_err(|why| stopped = Some(why.clone()));
        let read = with_attachments(&message, Some(anchor), &mut inner, &mut pass_on);
        if let Some(why) = stopped {
            return Err(why);
        }
        if let Some(why) = read.err().or_else(|| inner.told("attachments")) {
            bad.note(|| format!("message {number}: {why}"));
        }
    }
    Ok(bad.told("messages"))
}

/// A mailbox in which lines of texts that look as those between messages do are quoted, as not all programs write it.
fn quoted(bytes: &[u8]) -> Cow<'_, [u8]> {
    let (mut quoted, mut copied, mut at, mut is_behind_blank) = (Vec::new(), 0, 0, true);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let next = at + line.len();
        if at > 0 && line.starts_with(b"From ") && !is_between(line, &bytes[next..], is_behind_blank) {
            quoted.extend_from_slice(&bytes[copied..at]);
            quoted.push(b'>');
            copied = at;
        }
        is_behind_blank = line.trim_ascii().is_empty();
        at = next;
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    quoted.extend_from_slice(&bytes[copied..]);
    Cow::Owned(quoted)
}

/// Whether a line `From …` begins a message: it says when that came, or stands between a blank line and header fields.
fn is_between(line: &[u8], rest: &[u8], is_behind_blank: bool) -> bool {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let is_digits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let has = |is: &dyn Fn(&str) -> bool| words.iter().any(|word| is(word));
    let has_date = has(&|word| DAYS.contains(&word.trim_end_matches(',')))
        && has(&|word| word.len() == 4 && is_digits(word))
        && has(&|word| word.split_once(':').is_some_and(|(hour, _)| is_digits(hour)));
    has_date || is_behind_blank && has_head(rest)
}

/// Whether a text begins with a mail's head, whatever date the line above it has: programs write many.
fn has_head(text: &[u8]) -> bool {
    for line in text.split(|byte| *byte == b'\n') {
        let end = line.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-').unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        if end > 0 && rest.first() == Some(&b':') {
            if HEAD.iter().any(|field| name.eq_ignore_ascii_case(field)) {
                return true;
            }
        } else if !matches!(line.first(), Some(b' ' | b'\t')) {
            return false;
        }
    }
    false
}

/// A message's place: its own id, which stays when others are removed.
fn anchor(message: &Message<'_>, number: usize) -> String {
    let is_plain =
        |id: &&str| id.len() <= 200 && id.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '#' | '\\' | '/'));
    message.message_id().filter(is_plain).map_or_else(|| number.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
