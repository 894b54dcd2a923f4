//! What is built in code: equal to what is parsed from its XML, and refused where the parser refuses.

use super::*;
use crate::document::Place;
use crate::prompt::PromptItem;

/// The prompt without the places of its imports.
pub(crate) fn unplaced(prompt: &Prompt) -> Prompt {
    fn strip(items: &mut [PromptItem]) {
        for item in items {
            match item {
                PromptItem::Text(_) => {}
                PromptItem::Role(_, said) => strip(said),
                PromptItem::Import(import) => {
                    import.at = Place { line: 0, column: 0 };
                    strip(&mut import.items);
                }
            }
        }
    }
    let mut prompt = prompt.clone();
    strip(&mut prompt.items);
    prompt
}

fn trip() -> Schema {
    let plan = Content::new().text("stay ").parameter("days", 6).text("!");
    let cities = Choice::new()
        .member("rome", Content::new().text("Rome, old"))
        .member("oslo", Content::new().text("Oslo, cold and far"));
    let content = Content::new().text("Plan").text(":").module("for", plan).union(cities).text(" End");
    content.uncached_module("late", Content::new().text("quick")).schema("trip").unwrap()
}

#[test]
fn what_is_built_is_what_is_parsed() {
    // TRIP has a comment, which is nothing, and white space between a union's members, which is nothing either.
    let built = trip();
    assert_eq!(built, Schema::parse(TRIP, &()).unwrap());
    assert_eq!(Schema::parse(&built.to_xml(), &()).unwrap(), built);
    let picks = Picks::new()
        .import("for", Picks::new().argument("days", "3 days"))
        .import("rome", Picks::new())
        .text(" Where to ")
        .text("surf? ");
    let prompt = picks.prompt(&built).unwrap();
    let parsed = Prompt::parse(r#"<prompt schema="trip"><for days="3 days"/><rome/>Where to surf?</prompt>"#).unwrap();
    assert_eq!(prompt, parsed);
    assert_eq!(Prompt::parse(&prompt.to_xml()).unwrap(), prompt);
}

#[test]
fn every_kind_of_part_comes_back_from_its_xml() {
    let awkward = "a < b && c > \"d\" 'e' ]]> \r\n\t é 東 &amp; &#13;";
    let inner = Choice::new()
        .member("x", Content::new().parameter_like("p", 60, awkward).parameter("q", 65_536))
        .uncached_member("y.1-z", Content::new())
        .scaffold("y.1-z");
    let schema = Content::new()
        .role(Role::System, Content::new().text(awkward))
        .role(Role::User, Content::new().module("été", Content::new().union(inner).text("\r")).text("\n "))
        .module("b", Content::new().role(Role::Assistant, Content::new().text("so")))
        .scaffold(["été", "b"])
        .text("between")
        .schema("an \"awkward\" <name>")
        .unwrap();
    assert_eq!(Schema::parse(&schema.to_xml(), &()).unwrap(), schema);
    assert_eq!((schema.items().len(), schema.scaffolds().len()), (4, 1));
    let Item::Role(Role::System, said) = &schema.items()[0] else { panic!("{schema:?}") };
    assert_eq!(said, &[Item::Text(awkward.to_owned())]);

    let x = Picks::new().argument("p", awkward).argument("q", " spaces\nand lines ");
    let prompt = Picks::new()
        .import("été", Picks::new().import("x", x).text("inside"))
        .import("b", Picks::new())
        .role(Role::User, Picks::new().text(awkward))
        .prompt(&schema)
        .unwrap();
    assert_eq!(Prompt::parse(&prompt.to_xml()).unwrap(), prompt);
    let PromptItem::Import(import) = &prompt.items[0] else { panic!("{prompt:?}") };
    let PromptItem::Import(x) = &import.items[0] else { panic!("{prompt:?}") };
    assert_eq!(x.arguments[0].1, awkward);
    assert_eq!(x.arguments[1].1, " spaces\nand lines ");
    let PromptItem::Role(Role::User, said) = &prompt.items[2] else { panic!("{prompt:?}") };
    assert_eq!(said, &[PromptItem::Text(awkward.to_owned())]);
    // And it is a prompt of that schema.
    let layout = Layout::of(&schema, Some(&roles()), &Bytes, MOST).unwrap();
    let selected = select(&layout, &prompt, Some(&roles()), &Bytes, MOST).unwrap();
    let argument = |at: &&Placed| matches!(&at.from, PlacedFrom::Argument { parameter, .. } if parameter == "p");
    let given = selected.placed.iter().find(argument).unwrap();
    assert_eq!(given.tokens.len(), awkward.len());
}

#[test]
fn nothing_is_built_that_the_parser_refuses() {
    let text = |text: &str| Content::new().text(text);
    let empty = Content::new;
    let mut deep = empty();
    for _ in 0..100_000 {
        deep = empty().module("m", deep);
    }
    let long_name = empty().module("b", empty().parameter("p q", 1));
    let cases: Vec<(Content, &str)> = vec![
        (empty().module("1st", empty()), "`1st` is no name for a module"),
        (empty().module("a ", empty()), "white space around it"),
        (empty().module("a\"/><b c=\"", empty()), "is no name for a module"),
        (empty().module("ª", empty()), "is no name for a module"),
        (empty().module("user", empty()), "cannot be called `user`"),
        (empty().module("a", empty()).union(Choice::new().member("a", empty())), "another module is called `a`"),
        (empty().union(Choice::new()), "a union without modules"),
        (empty().union(Choice::new().member("a", empty()).scaffold("b")), "scaffold `b`"),
        (empty().parameter("p", 1), "stands in a module"),
        (empty().module("a", empty().parameter("p", 0)), "not `0`"),
        (empty().module("a", empty().parameter("p", 65_537)), "not `65537`"),
        (empty().module("a", empty().parameter("p", 1).parameter("p", 2)), "another parameter `p`"),
        (empty().module("a", empty().parameter("xmlns", 1)), "`xmlns` is no name for a parameter"),
        (long_name, "`p q` is no name for a parameter"),
        (empty().module("a", empty()).scaffold(["a"]), "at least two"),
        (empty().module("a", empty()).module("b", empty()).scaffold(["a b", "a"]), "`a b` is no name"),
        (empty().scaffold(["a", "b"]), "names `a`"),
        (empty().module("a", empty().scaffold(["a", "b"])), "by the schema itself"),
        (empty().union(Choice::new().member("a", empty().scaffold(["a", "b"]))), "by the schema itself"),
        (empty().role(Role::User, empty().module("a", empty().role(Role::System, empty()))), "<system> inside <user>"),
        (text("bell \u{7}"), "U+0007"),
        (text(&"&".repeat(MAX_DOCUMENT_BYTES / 4)), "bytes"),
        (deep, "nest less"),
    ];
    for (content, why) in cases {
        let error = content.schema("s").unwrap_err();
        assert_eq!(error.kind(), ragstone_env::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("`s` cannot be built") && error.to_string().contains(why), "{why}: {error}");
    }
    assert!(empty().schema(" ").unwrap_err().to_string().contains("needs a `name`"));
    assert_eq!(empty().schema(" s ").unwrap().name, "s");
}

#[test]
fn nothing_is_picked_that_is_not_there() {
    let schema = trip();
    let none = Picks::new;
    let mut deep = none();
    for _ in 0..100_000 {
        deep = none().role(Role::User, deep);
    }
    let cases = [
        (none().import("paris", none()), "`trip` has no module `paris`"),
        (none().import("for", none().import("rome", none())), "`for` has no module `rome`"),
        (none().import("for", none()).import("for", none()), "imported already"),
        (none().role(Role::User, none().import("rome", none())).import("oslo", none()), "another member of its union"),
        (none().import("for", none().argument("weeks", "1")), "no parameter `weeks`"),
        (none().import("for", none().argument("days", "1").argument("days", "2")), "`days` twice"),
        (none().argument("days", "1"), "belongs to the import"),
        (none().role(Role::User, none().argument("days", "1")), "belongs to the import"),
        (none().role(Role::User, none().role(Role::User, none())), "<user> inside <user>"),
        (none().text("\u{0}"), "U+0000"),
        (none().import("for", none().argument("days", "\u{FFFF}")), "U+FFFF"),
        (deep, "nest less"),
    ];
    for (picks, why) in cases {
        let error = picks.prompt(&schema).unwrap_err().to_string();
        assert!(error.contains("the prompt of `trip` cannot be built") && error.contains(why), "{why}: {error}");
    }
}

/// Names that the parser takes are names of elements and of attributes: every module can be imported, every parameter given.
#[test]
fn every_module_and_parameter_that_a_schema_may_have_can_be_named_by_a_prompt() {
    let mut taken = 0;
    for c in ('\0'..='\u{2FFF}').chain(['東', '\u{FFFD}', '😀']) {
        for name in [format!("{c}"), format!("a{c}")] {
            let Ok(schema) = Content::new().module(&name, Content::new().parameter(&name, 9)).schema("s") else {
                continue;
            };
            let picks = Picks::new().import(&name, Picks::new().argument(&name, "x"));
            picks.prompt(&schema).unwrap_or_else(|error| panic!("{name:?}: {error}"));
            taken += 1;
        }
    }
    assert!(taken > 10_000, "{taken}");
}
