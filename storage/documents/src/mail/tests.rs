use super::*;

const HERON: &[u8] =
    b"From: =?utf-8?q?J=C3=BCrgen?= <j@example.org>\r\nTo: a@example.org, \"B, C\" <b@example.org>\r\n\
    Subject: The heron\r\nDate: Tue, 3 Mar 2026 09:15:00 +0100\r\nMessage-ID: <1@example.org>\r\n\
    Content-Type: text/plain; charset=iso-8859-1\r\n\r\nIt stands in the reeds, caf\xe9.\r\n\r\nJ.\r\n";

fn message(bytes: &[u8]) -> Result<Parsed, String> {
    document(&open(bytes)?)
}

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

#[test]
fn a_line_of_a_text_ends_no_message() {
    let mut bytes = Vec::new();
    for message in
        ["Subject: Lock\n\nDear all,\n\nFrom Monday on the lock is closed.\nYours\n", "Subject: Weir\n\nIt is open.\n"]
    {
        bytes.extend(b"From x@example.org Tue Mar  3 09:15:00 2026\n");
        bytes.extend(message.as_bytes());
        bytes.push(b'\n');
    }
    bytes.extend(b"From nobody\nSubject: Ford\n\nIt is dry.\n");
    let mut found = Vec::new();
    let bad = mailbox(&bytes, &mut |parsed| {
        found.push(parsed.text);
        Ok(())
    });
    assert_eq!(bad, Ok(None));
    assert_eq!(found.len(), 3);
    assert!(found[0].contains("From Monday on the lock is closed.\nYours"), "{:?}", found[0]);
}

#[test]
fn a_message_begins_whatever_its_date_looks_like() {
    for date in ["2026-03-03T09:15:00Z", "3 Mar 2026 09:15:00", "Tue Mar  3 09:15:00 26", "Di Mär  3 09:15:00 2026"] {
        let head = "Received: by a.example\n\twith SMTP\nSubject: Ford";
        let text = format!("From a@x.example {date}\n{head}\n\nIt is dry.\n\nFrom May on\nit is wet.\n\n").repeat(2);
        let (found, bad) = read(crate::Format::Mailbox, &text);
        assert_eq!((found.len(), bad), (2, None), "{date}");
        assert!(found.iter().all(|one| one.text == "It is dry.\n\nFrom May on\nit is wet."), "{date}");
    }
}

/// A message of several parts: headers, and what follows them.
fn parts(subject: &str, parts: &[(&str, &str)]) -> String {
    let mut text = format!(
        "From: ada@example.org\nSubject: {subject}\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary={subject}\n\n"
    );
    for (head, body) in parts {
        text += &format!("--{subject}\n{head}\n\n{body}\n");
    }
    text + &format!("--{subject}--\n")
}

fn attached(name: &str) -> String {
    format!("Content-Type: application/octet-stream\nContent-Disposition: attachment; filename=\"{name}\"")
}

fn read(format: crate::Format, bytes: &str) -> (Vec<Parsed>, Option<String>) {
    let mut found = Vec::new();
    let mut take = |parsed| {
        found.push(parsed);
        Ok(())
    };
    let bad = match format {
        crate::Format::Mail => file(bytes.as_bytes(), &mut take),
        _ => mailbox(bytes.as_bytes(), &mut take),
    };
    (found, bad.unwrap())
}

#[test]
fn attachments_are_documents_of_their_own() {
    let plain = ("Content-Type: text/plain", "Minutes are attached.\n\n> Are they?\n\n-- \nAda");
    let text = parts(
        "Minutes",
        &[
            plain,
            (&attached("../min#utes.txt"), "The room is let."),
            (&attached("scan.png"), "PNG"),
            (&attached("list.jsonl"), "{\"id\": 1, \"text\": \"one\"}\n{\"text\": \"two\"}"),
            (&attached("offer.pdf"), "%PDF-1.4 damaged"),
            ("Content-Type: text/html; name=\"page\"", "<title>Page</title><p>Two."),
            ("Content-Type: application/rtf; name=\"letter\"", "{\\rtf1 Three.}"),
        ],
    );
    let (found, bad) = read(crate::Format::Mail, &text);
    let all: Vec<_> =
        found.iter().map(|one| (one.anchor.as_deref(), one.title.as_deref().unwrap(), &*one.text)).collect();
    assert_eq!(
        all,
        [
            (None, "Minutes", "From: ada@example.org\n\nMinutes are attached.\n\n> Are they?\n\n-- \nAda"),
            (Some("attachment-1-min_utes.txt"), "Minutes: min#utes.txt", "The room is let."),
            (Some("attachment-3-list.jsonl-L1"), "Minutes: list.jsonl", "one"),
            (Some("attachment-3-list.jsonl-L2"), "Minutes: list.jsonl", "two"),
            (Some("attachment-5-page"), "Minutes: page – Page", "Two."),
            (Some("attachment-6-letter"), "Minutes: letter", "Three."),
        ]
    );
    assert_eq!(found[0].left_out, ["attachments that are not read: scan.png"]);
    assert_eq!(
        (&found[1].metadata["from"], &found[1].metadata["attachment"]),
        (&"ada@example.org".into(), &"min#utes.txt".into())
    );
    // An id in what somebody sent would be that of somebody else's document.
    assert!(found.iter().all(|one| one.id.is_none() && one.source.is_none()));
    let bad = bad.unwrap();
    assert!(bad.starts_with("attachment offer.pdf: ") && bad.contains("PDF"), "{bad}");
}

#[test]
fn mails_in_mails_are_read_to_a_depth() {
    let mut text = parts("d3", &[("Content-Type: text/plain", "Three."), (&attached("c.txt"), "Not read.")]);
    for depth in ["d2", "d1", "d0"] {
        let body = format!("At {depth}.");
        text = parts(depth, &[("Content-Type: text/plain", &body), ("Content-Type: message/rfc822", &text)]);
    }
    let (found, bad) = read(crate::Format::Mail, &text);
    assert_eq!(bad, None);
    let all: Vec<_> = found.iter().map(|one| (one.anchor.as_deref(), one.title.as_deref().unwrap())).collect();
    assert_eq!(
        all,
        [(None, "d0"), (Some("attachment-1"), "d0: d1"), (Some("attachment-1-attachment-1"), "d0: d1: d2")]
    );
    assert_eq!(found[2].left_out, ["attachments that are not read: a mail"]);
    assert!(found[1].text.ends_with("At d1."), "{}", found[1].text);
}

#[test]
fn attachments_in_a_mailbox_have_the_place_of_their_message() {
    let one = parts("M", &[("Content-Type: text/plain", "See below."), (&attached("a.csv"), "x,y\n1,2")]);
    let (found, bad) = read(crate::Format::Mailbox, &format!("From a\n{one}\nFrom b\n{one}"));
    assert_eq!(bad, None);
    let anchors: Vec<_> = found.iter().map(|one| one.anchor.as_deref().unwrap()).collect();
    assert_eq!(anchors, ["1", "1-attachment-1-a.csv", "2", "2-attachment-1-a.csv"]);
    assert_eq!(found[1].text, "| x | y |\n| --- | --- |\n| 1 | 2 |");
}

#[test]
fn an_attachments_source_leads_to_its_mail() {
    let path = std::path::Path::new("/post/minutes.eml");
    assert!(crate::may_have_several(path));
    assert_eq!(crate::file_of("/post/minutes.eml#attachment-1-min_utes.txt"), "/post/minutes.eml");
    assert_eq!(crate::file_of("/post/minutes.eml"), "/post/minutes.eml");
}

#[test]
fn a_mail_without_a_head_costs_its_place_only() {
    let text = parts("M", &[("Content-Type: text/plain", "Text."), ("Content-Type: message/rfc822", "")]);
    let (found, bad) = read(crate::Format::Mail, &text);
    assert_eq!((found.len(), found[0].title.as_deref()), (1, Some("M")));
    assert!(bad.is_none_or(|bad| bad.starts_with("attachment 1: not readable as an e-mail")));
}

/// A mail of two alternatives, and what a mailing list puts below them.
fn alternatives(plain: &str, page: &str, below: &str) -> String {
    let alternative = format!(
        "--in\r\nContent-Type: text/plain\r\n\r\n{plain}\r\n--in\r\nContent-Type: text/html\r\n\r\n{page}\r\n--in--\r\n"
    );
    let both = format!("Content-Type: multipart/alternative; boundary=in\r\n\r\n{alternative}");
    let head = "From: ada@example.org\r\nSubject: News\r\nMIME-Version: 1.0\r\n";
    match below {
        "" => format!("{head}{both}"),
        _ => format!(
            "{head}Content-Type: multipart/mixed; boundary=out\r\n\r\n--out\r\n{both}\r\n--out\r\nContent-Type: text/plain\r\n\r\n\
             {below}\r\n--out--\r\n"
        ),
    }
}

#[test]
fn a_blank_text_beside_a_page_hides_nothing() {
    let page = "<p>The <b>mill</b> is dry.</p>";
    for (plain, below, expected) in [
        ("\r\n", "", "The mill is dry."),
        ("", "", "The mill is dry."),
        (" \u{a0}\r\n\t", "", "The mill is dry."),
        ("The mill.", "", "The mill."),
        ("\r\n", "You get this as a miller.", "The mill is dry.\n\nYou get this as a miller."),
        ("The mill.", "You get this as a miller.", "The mill.\n\nYou get this as a miller."),
    ] {
        let (found, bad) = read(crate::Format::Mail, &alternatives(plain, page, below));
        assert_eq!((found.len(), bad), (1, None), "{plain:?}");
        assert_eq!(found[0].text, format!("From: ada@example.org\n\n{expected}"), "{plain:?} {below:?}");
    }
    // Where neither says anything, nothing is said.
    let (found, _) = read(crate::Format::Mail, &alternatives("\r\n", " ", ""));
    assert_eq!(found[0].text, "From: ada@example.org");
    let (found, _) = read(crate::Format::Mailbox, &format!("From a\n{}", alternatives("\r\n", page, "")));
    assert_eq!(found[0].text, "From: ada@example.org\n\nThe mill is dry.");
}

#[test]
fn a_text_that_says_next_to_nothing_hides_no_page() {
    let page = "<p>The mill is dry, and will be let from May on to whoever mends its wheel.</p>".repeat(8);
    let said = |plain: &str, page: &str| {
        let (found, bad) = read(crate::Format::Mail, &alternatives(plain, page, ""));
        assert_eq!((found.len(), bad), (1, None), "{plain}");
        found[0].text.clone()
    };
    assert!(said("Your program cannot show HTML.", &page).contains("whoever mends its wheel"));
    // One that is short beside a page that is as short, or long itself, is what was written.
    assert!(said("It is dry.", "<p>The mill is dry, and let.").ends_with("It is dry."));
    let long = "The mill is dry and will be let. ".repeat(10);
    assert!(said(&long, &page.repeat(30)).ends_with(long.trim()));
}
