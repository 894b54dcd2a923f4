//! How many attributes the tags of a page may have: html5ever compares each attribute of a tag with all others.

/// Of one tag. Pages of people have some dozens.
pub const MAX_ATTRIBUTES: usize = 4_000;

/// Where a reader may be in a tag, as the HTML standard names the states of its tokenizer.
#[derive(Clone, Copy)]
enum At {
    /// In the tag's name.
    Tag,
    /// Before the name of an attribute.
    Before,
    /// In the name of one.
    Name,
    /// Behind it.
    After,
    /// Before a value.
    Value,
    /// In a value between quotes of both kinds, and in one without.
    Double,
    Single,
    Bare,
}

const ALL: [At; 8] = [At::Tag, At::Before, At::Name, At::After, At::Value, At::Double, At::Single, At::Bare];

/// For each place where a reader may be, one more than the attributes so far; 0 where none can be there. Small, as it is made for each byte.
type Counts = [u32; ALL.len()];

/// Counts the attributes of whatever may be a tag. What is a tag depends on what stands before it (scripts, comments, quotes), which only the
/// parser knows; so each `<` is taken for the beginning of one, beside those that are being read. No tag has more than is counted so.
///
/// # Errors
/// Where a tag may have more than [`MAX_ATTRIBUTES`].
pub fn check(source: &str) -> Result<(), String> {
    let bytes = source.as_bytes();
    let (mut counts, mut at): (Counts, usize) = ([0; ALL.len()], 0);
    while let Some(byte) = bytes.get(at) {
        if *byte != b'<' && counts.iter().all(|count| *count == 0) {
            // Nothing is being read: on to the next tag.
            let Some(next) = bytes[at..].iter().position(|byte| *byte == b'<') else { break };
            at += next;
            continue;
        }
        counts = after(&counts, *byte);
        if counts.iter().any(|count| *count as usize > MAX_ATTRIBUTES + 1) {
            return Err(format!("a tag of it has more than {MAX_ATTRIBUTES} attributes; convert it to text first"));
        }
        let begins = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'/';
        if *byte == b'<' && bytes.get(at + 1).is_some_and(begins) {
            put(&mut counts, At::Tag, 1);
        }
        at += 1;
    }
    Ok(())
}

/// Where a reader may be behind one more byte.
fn after(counts: &Counts, byte: u8) -> Counts {
    let mut next = [0; ALL.len()];
    for (at, count) in ALL.iter().zip(counts).filter(|(_, count)| **count > 0) {
        if let Some((at, is_new)) = step(*at, byte) {
            put(&mut next, at, *count + u32::from(is_new));
        }
    }
    next
}

fn put(counts: &mut Counts, at: At, count: u32) {
    let place = &mut counts[at as usize];
    *place = (*place).max(count);
}

/// Where a reader is behind one more byte, and whether an attribute begins with it; `None` where the tag ends.
fn step(at: At, byte: u8) -> Option<(At, bool)> {
    let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b'\x0c');
    let next = match (at, byte) {
        (At::Double, b'"') | (At::Single, b'\'') => At::Before,
        (At::Double | At::Single, _) => at,
        (_, b'>') => return None,
        (At::Bare | At::Tag, _) if is_blank => At::Before,
        (At::Bare, _) => At::Bare,
        (At::Value, b'"') => At::Double,
        (At::Value, b'\'') => At::Single,
        (At::Value, _) if is_blank => At::Value,
        (At::Value, _) => At::Bare,
        (_, b'/') => At::Before,
        (At::Tag, _) => At::Tag,
        (At::Name | At::After, b'=') => At::Value,
        (At::Name | At::After, _) if is_blank => At::After,
        (At::Name, _) => At::Name,
        (At::Before, _) if is_blank => At::Before,
        (At::Before | At::After, _) => return Some((At::Name, true)),
    };
    Some((next, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(attributes: usize) -> String {
        let attributes: Vec<String> = (0..attributes).map(|at| format!("a{at}")).collect();
        format!("<p {}>", attributes.join(" "))
    }

    #[test]
    fn a_tag_has_not_more_attributes_than_can_be_compared() {
        assert_eq!(check(&tag(MAX_ATTRIBUTES)), Ok(()));
        let many = tag(MAX_ATTRIBUTES + 1);
        assert!(check(&many).unwrap_err().contains("attributes"));
        for before in ["<script>\"<a x='</script>", "<!-- <a \" -->", "<a b\"c>", "<a b='", "<a b=c\" d=\""] {
            assert!(check(&format!("{before}{many}")).is_err(), "{before}");
        }
        for between in ["/", "='b' ", "=\"b\"", "=b\t", " = b\n"] {
            let many: String = (0..=MAX_ATTRIBUTES).map(|at| format!("a{at}{between}")).collect();
            assert!(check(&format!("<p {many}>")).is_err(), "{between:?}");
        }
    }

    #[test]
    fn long_values_and_many_tags_are_no_attributes() {
        let words = "a b/c = d ".repeat(MAX_ATTRIBUTES);
        for page in [
            format!("<p title=\"{words}\">{words}</p>"),
            format!("<p title='{words}' b>{words}"),
            format!("<img src=data:{}>", "a/b=".repeat(MAX_ATTRIBUTES)),
            "<p a b c>x".repeat(MAX_ATTRIBUTES),
            format!("1 < 2 {words}"),
        ] {
            assert_eq!(check(&page), Ok(()), "{}", &page[..20]);
        }
    }
}
