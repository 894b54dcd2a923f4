//! Whether XML that a stranger wrote can be parsed in about the time that its size says. Parsers compare each attribute of an element with all
//! others, and look for a namespace among all that hold there.

/// Of one element.
const MOST_ATTRIBUTES: usize = 500;
/// Namespaces that hold in one place; each one that is declared counts.
const MOST_NAMESPACES: usize = 64;
/// What stands between such marks has no elements.
const PASSED_OVER: [(&str, &str); 3] = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>")];

/// Whether no element has more attributes than can be compared, and nowhere more namespaces hold than can be looked through. What could be
/// read in two ways counts as too much: the parser might read the other one.
pub fn are_few(text: &str) -> bool {
    let mut rest = text;
    // Of the elements that are open, the namespaces that each declares.
    let mut open: Vec<usize> = Vec::new();
    let mut namespaces = 0;
    while let Some((_, after)) = rest.split_once('<') {
        if let Some((begin, end)) = PASSED_OVER.iter().find(|(begin, _)| after.starts_with(*begin)) {
            let within = &after[begin.len()..];
            if within.starts_with('>') || within.starts_with("->") {
                return false;
            }
            rest = within.split_once(*end).map_or("", |(_, rest)| rest);
            continue;
        }
        let (tag, behind) = after.split_at(length(after));
        rest = behind;
        if tag.starts_with('!') {
            // Declarations in a declaration, or a quoted `>`.
            if tag.contains(['[', '<', '>']) {
                return false;
            }
        } else if tag.starts_with('/') {
            namespaces -= open.pop().unwrap_or_default();
        } else {
            let declared = tag.matches("xmlns").count();
            let attributes = tag.bytes().filter(|byte| *byte == b'=').count();
            if attributes > MOST_ATTRIBUTES || namespaces + declared > MOST_NAMESPACES {
                return false;
            }
            if !tag.ends_with('/') {
                open.push(declared);
                namespaces += declared;
            }
        }
    }
    true
}

/// Of a tag, up to the `>` that is not quoted.
fn length(tag: &str) -> usize {
    let mut quote = None;
    let end = tag.bytes().position(|byte| {
        match (quote, byte) {
            (None, b'>') => return true,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
        false
    });
    end.unwrap_or(tag.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(attributes: usize) -> String {
        let attributes: Vec<String> = (0..attributes).map(|n| format!("a{n}=\"\"")).collect();
        format!("<a {}>", attributes.join(" "))
    }

    #[test]
    fn an_element_has_no_more_attributes_than_can_be_compared() {
        assert!(are_few("") && are_few("no element, a=b") && are_few(&element(MOST_ATTRIBUTES)));
        let many = element(MOST_ATTRIBUTES + 1);
        assert!(!are_few(&many));
        assert!(are_few(&format!("<a>{}</a>", "=".repeat(5000))), "a text may have any signs");
        assert!(are_few(&format!("<!-- it's {many} --><a/><![CDATA[ \" {many} ]]>")), "these are no elements");
        // Nothing hides one.
        for before in [
            "<a b='<' c='>'>",
            "<!-- ' -->",
            "<!-->",
            "<!--->",
            "<?>",
            "<?x '?>",
            "<![CDATA[']]>",
            "<!DOCTYPE x [<!ENTITY a '<!--'>]>",
            "<!DOCTYPE x \">\" \"<!--\">",
            "</a '>'>",
        ] {
            assert!(!are_few(&format!("{before}{many}<!-- -->")), "{before}");
        }
        assert!(!are_few(&many.replacen("<a ", "<a b='>' ", 1)));
        assert!(are_few("<!DOCTYPE rss PUBLIC \"-//Netscape//DTD RSS 0.91//EN\" 'rss.dtd'><rss/>"));
    }

    #[test]
    fn nowhere_hold_more_namespaces_than_can_be_looked_through() {
        let one = |n: usize| format!("<a xmlns:n{n}='x'>");
        let deep: String = (0..MOST_NAMESPACES).map(one).collect();
        assert!(are_few(&deep));
        assert!(!are_few(&(deep + &one(MOST_NAMESPACES))));
        // Each entry of a feed may have its own.
        assert!(are_few(&"<a xmlns='x'><b/></a><c xmlns='y'/>".repeat(1000)));
    }
}
