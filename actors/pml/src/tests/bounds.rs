//! What a document may be at the most, and that its places are right however it is laid out.

use super::super::document::{Child, Element, read};
use super::*;

fn refused(text: &str, words: &str) {
    let error = read(text).unwrap_err();
    assert_eq!(error.kind(), ragstone_env::ErrorKind::InvalidInput);
    assert!(error.to_string().contains(words), "{words}: {error}");
}

fn many(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect()
}

#[test]
fn what_is_read_in_the_square_of_its_size_is_bounded() {
    refused(&format!("<a>{}</a>", "<b/>".repeat(99_000)), "nodes");
    refused(&format!("<a{}/>", many(1001, |at| format!(" n{at}='>'"))), "at most 1000 attributes");
    refused(&format!("<a>{}</a>", many(101, |at| format!("<b xmlns:n{at}='x'/>"))), "at most 100 namespaces");
    refused(&format!("<{}/>", "n".repeat(129)), "a name has 129 bytes");
    refused(&format!("<a name='{}'/>", "n".repeat(129)), "a name has 129 bytes");
    read(&format!("<a{}/>", many(1000, |at| format!(" n{at}='='")))).unwrap();
    // Equals signs of a text are no attributes.
    read(&format!("<a>{0}<!-- it's {0} --></a>", "=".repeat(5000))).unwrap();
}

#[test]
fn what_multiplies_in_a_schema_is_bounded() {
    let member = |at| format!("<module name='m{at}'><parameter name='p' length='65536'/></module>");
    let union = |count| format!("<schema name='s'><union>{}</union></schema>", many(count, member));
    assert!(Schema::parse(&union(16), &()).is_ok());
    let error = Schema::parse(&union(17), &()).unwrap_err().to_string();
    assert!(error.contains("parameters have at most 1048576 tokens"), "{error}");
    let scaffolds = |count| {
        let modules = "<module name='c'/><module name='d'/>";
        format!("<schema name='s'>{modules}{}</schema>", "<scaffold modules='c d'/>".repeat(count))
    };
    assert!(Schema::parse(&scaffolds(256), &()).is_ok());
    assert!(Schema::parse(&scaffolds(257), &()).unwrap_err().to_string().contains("at most 256 scaffolds"));
}

/// Names of modules in modules multiply: each path has those of all that its module is in, and is kept for each of its texts.
#[test]
fn paths_of_nested_modules_are_bounded() {
    let nested = |width: usize, inner: &str| {
        let open = many(28, |at| {
            let name = format!("m{at}");
            format!("<module name='{name:x<width$}'>")
        });
        lay(&format!("<schema name='s'>{open}{inner}{}</schema>", "</module>".repeat(28)))
    };
    let union = format!("<union>{}</union>", many(2000, |at| format!("<module name='a{at}'>c</module>")));
    let parameters = many(2000, |at| format!("c<parameter name='p{at}' length='1'/>"));
    for inner in [union, parameters] {
        let error = nested(128, &inner).unwrap_err();
        assert_eq!(error.kind(), ragstone_env::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("shorter names, or nest them less"), "{error}");
        nested(3, &inner).unwrap();
    }
    // As long as a document can be, and flat.
    let flat = many(5500, |at| {
        let name = format!("m{at}");
        format!("<module name='{name:x<128}'>c</module>")
    });
    lay(&format!("<schema name='s'>{flat}</schema>")).unwrap();
}

/// A prompt that imports all of a schema's many modules, and an error that does not name them all.
#[test]
fn many_modules_are_found_by_name() {
    let schema = format!("<schema name='s'>{}</schema>", many(4000, |at| format!("<module name='m{at}'>x</module>")));
    let prompt = |more: &str| format!("<prompt schema='s'>{}{more}</prompt>", many(4000, |at| format!("<m{at}/>")));
    assert_eq!(placed(&schema, &prompt("")).unwrap().len(), 4000);
    let error = placed(&schema, &prompt("<other/>")).unwrap_err().to_string();
    assert!(error.contains("no module <other/>; it has m0, m1,") && error.ends_with("m19, …"), "{error}");
}

/// Where an element begins, counted from the start of the text.
fn check_places(element: &Element, text: &str) {
    let (line, column) = (element.at.line as usize, element.at.column as usize);
    let rest: String = text.split('\n').nth(line - 1).unwrap().chars().skip(column - 1).collect();
    assert!(rest.starts_with(&format!("<{}", element.name)), "{:?}: {rest}", element.at);
    for child in &element.children {
        if let Child::Element(child) = child {
            check_places(child, text);
        }
    }
}

#[test]
fn places_are_lines_and_characters() {
    let text = "<a>é<b/>\n\n  ü<c x='\n'><d/>\r\n<e/></c><!-- \n --><f/></a>";
    let root = read(text).unwrap();
    check_places(&root, text);
    assert_eq!(root.children.len(), 5, "{root:?}");
}
