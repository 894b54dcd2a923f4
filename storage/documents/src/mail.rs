//! E-mail: one message (`.eml`), or a folder of them (`.mbox`), each a document of its own.

use std::collections::HashSet;

use mail_parser::mailbox::mbox::MessageIterator;
use mail_parser::{Address, Message, MessageParser, MimeHeaders, PartType};

use super::body::Body;
use super::html;
use super::json::Bad;
use super::metadata::FileMetadata;
use super::parse::{Each, Parsed, check};

/// Addresses of one field that are named.
const MAX_ADDRESSES: usize = 20;

/// Reads a message.
///
/// # Errors
/// Where it is none.
pub fn message(bytes: &[u8]) -> Result<Parsed, String> {
    let none = "not readable as an e-mail: it has no header fields such as From and Subject";
    let message = MessageParser::new().parse(bytes).ok_or(none)?;
    if message.from().is_none() && message.subject().is_none() && message.date().is_none() {
        return Err(none.into());
    }
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
    let body = texts(&message, body)?;
    Ok(Parsed::of(message.subject().map(super::body::one_line), body, metadata))
}

/// What a message says: its plain text, or its HTML where it has no other.
fn texts(message: &Message<'_>, mut body: Body) -> Result<Body, String> {
    for part in message.text_bodies() {
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
    for (index, found) in MessageIterator::new(bytes).enumerate() {
        let found = found.map_err(|_| "not readable as a mailbox: it ends within a message; export it anew")?;
        let read = message(found.contents()).and_then(|parsed| {
            let anchor = anchor(&parsed, index + 1);
            let parsed = Parsed { anchor: Some(anchor), title: parsed.title.or_else(|| Some(String::new())), ..parsed };
            check(&parsed).map(|()| parsed)
        });
        match read {
            Ok(mut parsed) => {
                // A message that was sent twice is one document, unless it is another with the same id.
                if let Some(anchor) = parsed.anchor.take_if(|anchor| !known.insert(anchor.clone())) {
                    parsed.anchor = Some(format!("{anchor}-{}", index + 1));
                }
                each(parsed)?;
            }
            Err(why) => bad.note(|| format!("message {}: {why}", index + 1)),
        }
    }
    Ok(bad.told("messages"))
}

/// A message's place: its own id, which stays when others are removed.
fn anchor(parsed: &Parsed, number: usize) -> String {
    let id = parsed.metadata.get("message_id").and_then(|id| id.as_str());
    let is_plain =
        |id: &&str| id.len() <= 200 && id.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '#' | '\\' | '/'));
    id.filter(is_plain).map_or_else(|| number.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERON: &[u8] =
        b"From: =?utf-8?q?J=C3=BCrgen?= <j@example.org>\r\nTo: a@example.org, \"B, C\" <b@example.org>\r\n\
        Subject: The heron\r\nDate: Tue, 3 Mar 2026 09:15:00 +0100\r\nMessage-ID: <1@example.org>\r\n\
        Content-Type: text/plain; charset=iso-8859-1\r\n\r\nIt stands in the reeds, caf\xe9.\r\n\r\nJ.\r\n";

    #[test]
    fn a_message_is_its_text_and_who_wrote_it() {
        let parsed = message(HERON).unwrap();
        assert_eq!(parsed.title.as_deref(), Some("The heron"));
        assert_eq!(
            parsed.text,
            "From: Jürgen <j@example.org>\nTo: a@example.org, B, C <b@example.org>\nDate: 2026-03-03T09:15:00+01:00\n\n\
             It stands in the reeds, café.\n\nJ."
        );
        assert_eq!(parsed.metadata["from"], "Jürgen <j@example.org>");
        assert_eq!(parsed.metadata["message_id"], "1@example.org");
        assert!(message(b"").unwrap_err().contains("no header fields"));
        assert!(message(b"no mail at all").unwrap_err().contains("no header fields"));
    }

    #[test]
    fn a_mailbox_is_its_messages() {
        let mut bytes = Vec::new();
        for message in [HERON, b"no fields\n", HERON, b"Subject: None\n\n>From here on.\n"] {
            bytes.extend(b"From x@example.org Tue Mar  3 09:15:00 2026\n");
            bytes.extend(message);
            bytes.push(b'\n');
        }
        let mut found = Vec::new();
        let bad = mailbox(&bytes, &mut |parsed| {
            found.push((parsed.anchor.unwrap(), parsed.text));
            Ok(())
        });
        assert!(bad.unwrap().unwrap().starts_with("message 2: not readable as an e-mail"));
        let anchors: Vec<&str> = found.iter().map(|(anchor, _)| anchor.as_str()).collect();
        assert_eq!(anchors, ["1@example.org", "1@example.org-3", "4"]);
        assert_eq!(found[2].1, "From here on.");
        assert!(mailbox(HERON, &mut |_| Ok(())).unwrap_err().contains(".eml"));
    }
}
