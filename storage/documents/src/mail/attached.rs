//! What is attached to a mail: files, each read as what it is, and mails.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use mail_parser::{Message, MessagePart, MimeHeaders, PartType};
use serde_json::{Map, Value};

use crate::Format;
use crate::format::ending_of;
use crate::json::{Bad, RecordFields};
use crate::name::clean;
use crate::parse::{self, Asked, Each, Parsed, check};

/// Mails in mails.
const MAX_DEPTH: usize = 2;
/// Of one mail; those after them are told.
const MAX_PARTS: usize = 50;
/// Of all that is attached to a mail, with what stands beside its texts.
const MAX_TEXT_BYTES: usize = 64 << 20;
/// Of a name, and of a title.
const MAX_NAME_CHARS: usize = 100;
const MAX_TITLE_BYTES: usize = 1000;
/// Of the note on what is not read.
const MAX_NOTE_BYTES: usize = 150;

/// What is attached to a mail.
pub struct Attached<'a> {
    pub parts: Vec<Part<'a>>,
    /// What is not read of it, for people.
    pub left_out: Vec<String>,
}

/// One attachment that is read.
pub struct Part<'a> {
    /// Among all attachments, from 1 on.
    number: usize,
    name: String,
    kind: Kind,
    part: &'a MessagePart<'a>,
}

#[derive(Clone, Copy)]
enum Kind {
    File(Format),
    Mail,
}

/// The mail that something is attached to.
pub struct From {
    title: String,
    anchor: Option<String>,
    metadata: Map<String, Value>,
}

impl From {
    pub fn of(mail: &Parsed) -> Self {
        let kept = |key: &&str| mail.metadata.contains_key(*key);
        let fields = ["from", "to", "date"].into_iter().filter(kept);
        let metadata = fields.map(|key| (key.to_owned(), mail.metadata[key].clone())).collect();
        Self { title: mail.title.clone().unwrap_or_default(), anchor: mail.anchor.clone(), metadata }
    }

    /// A document of an attachment, with the names of both. An id of its own could be that of another document.
    fn put(&self, part: &Part<'_>, inner: Parsed) -> Parsed {
        let joined = |parts: &[Option<&str>], between: &str| -> String {
            let parts: Vec<&str> = parts.iter().flatten().copied().filter(|part| !part.is_empty()).collect();
            parts.join(between)
        };
        let place = joined(&[Some(&format!("attachment-{}", part.number)), Some(&plain(&part.name))], "-");
        let anchor = joined(&[self.anchor.as_deref(), Some(&place), inner.anchor.as_deref()], "-");
        let stem = Path::new(&part.name).file_stem().and_then(|stem| stem.to_str());
        let own = inner.title.as_deref().filter(|own| stem != Some(own.trim()));
        let own = joined(&[Some(&part.name), own], " – ");
        let mut title = joined(&[Some(&self.title), Some(&own)], ": ");
        title.truncate(title.floor_char_boundary(MAX_TITLE_BYTES));
        let mut metadata = inner.metadata;
        for (key, value) in &self.metadata {
            metadata.entry(key.clone()).or_insert_with(|| value.clone());
        }
        if !part.name.is_empty() {
            metadata.insert("attachment".into(), part.name.clone().into());
        }
        Parsed { id: None, source: None, title: Some(title), anchor: Some(anchor), metadata, ..inner }
    }
}

/// What is attached to a mail that is in `depth` others.
pub fn of<'a>(message: &'a Message<'a>, depth: usize) -> Attached<'a> {
    let texts: HashSet<usize> = message.text_body.iter().copied().collect();
    let ids = message.attachments.iter().filter(|id| !texts.contains(id));
    let (mut parts, mut unread) = (Vec::new(), Vec::new());
    for (index, part) in ids.filter_map(|id| message.parts.get(*id)).enumerate() {
        let name = part.attachment_name().unwrap_or_default();
        // Whoever sent it named it: only the last part of a path is a name.
        let name = clean(name.rsplit(['/', '\\']).next().unwrap_or_default(), MAX_NAME_CHARS);
        match kind(part, &name) {
            Some(Kind::Mail) if depth >= MAX_DEPTH => unread.push(or(&name, "a mail")),
            Some(kind) if parts.len() < MAX_PARTS => parts.push(Part { number: index + 1, name, kind, part }),
            None if is_silent(part) => {}
            _ => unread.push(or(&name, &type_of(part))),
        }
    }
    Attached { parts, left_out: note(&unread).into_iter().collect() }
}

/// What the mail says of an attachment without a name: `image/png`.
fn type_of(part: &MessagePart<'_>) -> String {
    let said = part.content_type().map(|said| format!("{}/{}", said.ctype(), said.subtype().unwrap_or_default()));
    said.map_or_else(|| "one without a name".into(), |said| clean(&said, MAX_NAME_CHARS))
}

fn or(name: &str, otherwise: &str) -> String {
    if name.is_empty() { otherwise.to_owned() } else { name.to_owned() }
}

/// What is not read, by name.
fn note(unread: &[String]) -> Option<String> {
    let mut note = format!("attachments that are not read: {}", unread.first()?);
    let mut named = 1;
    for name in unread.iter().skip(1).take_while(|name| name.len() < MAX_NOTE_BYTES) {
        if note.len() + name.len() > MAX_NOTE_BYTES {
            break;
        }
        note.push_str(&format!(", {name}"));
        named += 1;
    }
    note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
    if unread.len() > named {
        note.push_str(&format!(" and {} more", unread.len() - named));
    }
    Some(note)
}

/// Hands out the documents of attachments. What is wrong with one goes to `bad`.
pub fn read(parts: &[Part<'_>], from: &From, depth: usize, bad: &mut Bad, each: Each<'_>) -> Result<(), String> {
    let mut left = MAX_TEXT_BYTES;
    for part in parts {
        let mut stopped = None;
        let mut put = |inner: Parsed| {
            let parsed = from.put(part, inner);
            let beside = serde_json::to_string(&parsed.metadata).map_or(0, |json| json.len());
            left = left.checked_sub(parsed.text.len() + beside + MAX_TITLE_BYTES).ok_or_else(|| {
                "the mail's attachments have too much text; save them, and ingest the files".to_owned()
            })?;
            check(&parsed)?;
            each(parsed).inspect_err(|why| stopped = Some(why.clone()))
        };
        let read = match part.kind {
            Kind::Mail => mail(part, depth + 1, bad, &mut put).map(|()| None),
            // A parser's panic costs its attachment, not the mail.
            Kind::File(format) => {
                let bytes = part.part.contents().to_vec();
                // What whoever ingests says of fields is about his files, and not about what was sent to him.
                let asked = Asked { format, fields: RecordFields::default() };
                catch_unwind(AssertUnwindSafe(|| parse::parse(&asked, bytes, &mut put)))
                    .unwrap_or_else(|_| Err("the parser failed on it; convert it to text first".into()))
            }
        };
        if let Some(why) = stopped {
            return Err(why);
        }
        if let Some(why) = read.unwrap_or_else(Some) {
            bad.note(|| format!("attachment {}: {why}", or(&part.name, &part.number.to_string())));
        }
    }
    Ok(())
}

/// A mail that is attached to another one, and what is attached to it.
fn mail(part: &Part<'_>, depth: usize, bad: &mut Bad, put: Each<'_>) -> Result<(), String> {
    let parsed;
    let message = match &part.part.body {
        PartType::Message(message) if super::is_message(message) => message,
        PartType::Message(_) => return Err(super::none()),
        _ => {
            parsed = super::open(part.part.contents())?;
            &parsed
        }
    };
    let Attached { parts, left_out } = of(message, depth);
    let inner = Parsed { left_out, ..super::document(message)? };
    let from = From::of(&inner);
    put(inner)?;
    read(&parts, &from, depth, bad, put)
}

/// How an attachment is read: by its name, then by what the mail says of it.
fn kind(part: &MessagePart<'_>, name: &str) -> Option<Kind> {
    if part.is_message() {
        return Some(Kind::Mail);
    }
    let name = Path::new(name);
    // A name without an ending says less than the mail does.
    match name.extension().and_then(|_| Format::of(name)) {
        Some(Format::Mail) => return Some(Kind::Mail),
        Some(Format::Mailbox) => return None,
        Some(format) => return Some(Kind::File(format)),
        None => {}
    }
    let said = part.content_type()?;
    let (kind, sub) = (said.ctype().to_ascii_lowercase(), said.subtype().unwrap_or_default().to_ascii_lowercase());
    let media = format!("{kind}/{sub}");
    match ending_of(&media) {
        _ if media == "message/rfc822" => Some(Kind::Mail),
        Some(ending) => Format::of(Path::new(&format!("attached.{ending}"))).map(Kind::File),
        None if kind == "text" => Some(Kind::File(Format::Text)),
        None => Format::of(name).map(Kind::File),
    }
}

/// Signatures, and pictures that a mail shows itself: nobody misses them.
fn is_silent(part: &MessagePart<'_>) -> bool {
    let said = part.content_type().map(|said| (said.ctype(), said.subtype().unwrap_or_default()));
    match said {
        Some(("application", sub)) => sub.ends_with("-signature"),
        Some(("image", _)) => part.content_id().is_some() && matches!(part.body, PartType::InlineBinary(_)),
        _ => false,
    }
}

/// A name as a part of a place: what could be read as another part of it goes.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}
