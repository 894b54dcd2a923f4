//! Links of office documents: a text and where it leads.

/// Longer ones are made for machines.
const MAX_ADDRESS_BYTES: usize = 1000;

/// Puts the address of a link after the text from `start` on: `this form (https://example.org/form)`. Places of the same document, and what
/// the text says already, are not told.
pub fn put(text: &mut String, start: usize, address: &str) {
    let address = address.trim();
    let (Some(said), false) = (text.get(start..), address.is_empty() || address.len() > MAX_ADDRESS_BYTES) else {
        return;
    };
    let is_place = address.starts_with('#');
    let is_program = ["javascript:", "data:", "vbscript:"].iter().any(|scheme| has_prefix(address, scheme));
    if said.trim().is_empty() || is_place || is_program || said.contains(bare(address)) {
        return;
    }
    let kept = text.trim_end().len();
    let blanks = text.split_off(kept);
    text.push_str(&format!(" ({address})"));
    text.push_str(&blanks);
}

/// An address as people write it in a text.
fn bare(address: &str) -> &str {
    let scheme = ["https://", "http://", "mailto:", "tel:"].into_iter().find(|scheme| has_prefix(address, scheme));
    let rest = &address[scheme.map_or(0, str::len)..];
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() { address } else { rest.strip_prefix("www.").unwrap_or(rest) }
}

fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// The address of a field of Word, such as `HYPERLINK "https://example.org" \o "tip"`; places of the same document have none.
pub fn of_field(instruction: &str) -> Option<&str> {
    let rest = instruction.trim_start();
    let rest = if has_prefix(rest, "HYPERLINK") { rest.get("HYPERLINK".len()..)?.trim_start() } else { return None };
    let address = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => rest.split_whitespace().next().filter(|word| !word.starts_with('\\'))?,
    };
    Some(address).filter(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, start: usize, address: &str) -> String {
        let mut text = text.to_owned();
        put(&mut text, start, address);
        text
    }

    #[test]
    fn an_address_stands_after_its_text_once() {
        assert_eq!(with("Use this form ", 4, "https://a.example/x"), "Use this form (https://a.example/x) ");
        for (text, address) in [
            ("www.a.example/x", "http://www.a.example/x/"),
            ("ada@example.org", "mailto:ada@example.org"),
            ("see below", "#below"),
            ("run", "JavaScript:alert(1)"),
            (" ", "https://a.example"),
        ] {
            assert_eq!(with(text, 0, address), text);
        }
        assert_eq!(with("é", 1, "https://a.example"), "é");
    }

    #[test]
    fn fields_have_addresses() {
        assert_eq!(of_field(r#" HYPERLINK "https://a.example/x" \o "a tip" "#), Some("https://a.example/x"));
        assert_eq!(of_field("HYPERLINK https://a.example"), Some("https://a.example"));
        assert_eq!(of_field(r#"HYPERLINK \l "_Toc1""#), None);
        assert_eq!(of_field("PAGE"), None);
    }
}
