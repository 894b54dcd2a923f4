mod bounds;
mod build;
mod fuzz;
mod reference;

use super::*;
use ragstone_env::Error;

/// A token a byte.
pub(super) struct Bytes;

impl Encode for Bytes {
    fn words(&self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn control(&self, text: &str) -> Result<Vec<u32>> {
        self.words(text)
    }

    fn placeholder(&self) -> u32 {
        u32::from(b'_')
    }
}

pub(super) const MOST: u32 = 100_000;

/// Roles as Qwen's template writes them, in short.
fn roles() -> Roles {
    let around = |role: &str| (format!("<|{role}>"), "<|end>".to_owned());
    Roles {
        system: around("s"),
        user: around("u"),
        assistant: around("a"),
        user_after_system: "<|u>".to_owned(),
        answer: "<|a>".to_owned(),
    }
}

fn text_of(tokens: &[u32]) -> String {
    tokens.iter().map(|token| char::from(*token as u8)).collect()
}

pub(super) fn lay(schema: &str) -> Result<Layout> {
    Layout::of(&Schema::parse(schema, &())?, Some(&roles()), &Bytes, MOST)
}

/// The prompt's pieces: where, what, whose.
fn placed(schema: &str, prompt: &str) -> Result<Vec<(u32, String, String)>> {
    let selected = select(&lay(schema)?, &Prompt::parse(prompt)?, Some(&roles()), &Bytes, MOST)?;
    let whose = |from: &PlacedFrom| match from {
        PlacedFrom::Module { path, cache: true } => path.clone(),
        PlacedFrom::Module { path, cache: false } => format!("{path} (not kept)"),
        PlacedFrom::Argument { path, parameter } => format!("{path} {parameter}="),
        PlacedFrom::Text => "text".to_owned(),
    };
    Ok(selected.placed.iter().map(|at| (at.start, text_of(&at.tokens), whose(&at.from))).collect())
}

fn expect(found: Result<Vec<(u32, String, String)>>, wanted: &[(u32, &str, &str)]) {
    let found = found.unwrap();
    let found: Vec<(u32, &str, &str)> = found.iter().map(|(at, text, from)| (*at, &**text, &**from)).collect();
    assert_eq!(found, wanted);
}

/// A trip as in the paper's figure 2: a parameter, and a union whose members differ in length.
const TRIP: &str = r#"<schema name="trip">Plan:<module name="for">stay <parameter name="days" length="6"/>!</module><union>
    <module name="rome">Rome, old</module>
    <!-- the longest -->
    <module name="oslo">Oslo, cold and far</module>
  </union> End<module name="late" cache="false">quick</module></schema>"#;

#[test]
fn offsets_run_and_a_unions_members_begin_together() {
    let layout = lay(TRIP).unwrap();
    let starts: Vec<u32> = layout.top.parts.iter().map(Part::start).collect();
    // "Plan:", the module of 5 + 6 + 1, the union of 18, " End", the last module.
    assert_eq!((starts, layout.length()), (vec![0, 5, 17, 35, 39], 44));
    let Part::Union { members, length, .. } = &layout.top.parts[2] else { panic!("{layout:?}") };
    let members: Vec<_> = members.iter().map(|it| (it.name.as_str(), it.start, it.length)).collect();
    assert_eq!((members, *length), (vec![("rome", 17, 9), ("oslo", 17, 18)], 18));
    let Part::Module(stay) = &layout.top.parts[1] else { panic!("{layout:?}") };
    let Part::Parameter { start: 10, length: 6, scaffold, .. } = &stay.parts[1] else { panic!("{stay:?}") };
    assert_eq!(text_of(scaffold), "______");
}

#[test]
fn a_prompt_takes_what_it_imports_where_the_schema_has_it() {
    let prompt = r#"<prompt schema="trip"><for days="3 days"/><rome/> Where to surf? </prompt>"#;
    let all = [
        (0, "Plan:", "/"),
        (5, "stay ", "for"),
        (10, "3 days", "for days="),
        (16, "!", "for"),
        (17, "Rome, old", "rome"),
        (35, " End", "/"),
        (44, "Where to surf?", "text"),
    ];
    expect(placed(TRIP, prompt), &all);
    // A shorter argument leaves what is left of its positions free; without one all are.
    let shorter = placed(TRIP, r#"<prompt schema="trip"><for days="a"/></prompt>"#).unwrap();
    assert_eq!(shorter[2], (10, "a".to_owned(), "for days=".to_owned()));
    assert_eq!(shorter[3].0, 16);
    let none = placed(TRIP, r#"<prompt schema="trip"><for/><late/>x</prompt>"#).unwrap();
    assert_eq!(none.iter().map(|at| at.0).collect::<Vec<_>>(), [0, 5, 16, 35, 39, 44]);
    assert_eq!(none[4].2, "late (not kept)");
}

#[test]
fn text_between_imports_keeps_its_place_where_there_is_room_and_its_order_everywhere() {
    // Between the end of `rome` (26) and " End" (35) nine positions are free.
    let fits = placed(TRIP, r#"<prompt schema="trip"><rome/>nine long<late/>then</prompt>"#);
    let all = [
        (0, "Plan:", "/"),
        (17, "Rome, old", "rome"),
        (26, "nine long", "text"),
        (35, " End", "/"),
        (39, "quick", "late (not kept)"),
        (44, "then", "text"),
    ];
    expect(fits, &all);
    // Ten do not fit: they go behind the schema, and what comes after them in the prompt follows them.
    let prompt = r#"<prompt schema="trip"><for/>ten is too<oslo/>a<late/>b</prompt>"#;
    let behind = placed(TRIP, prompt).unwrap();
    let text: Vec<_> = behind.iter().filter(|at| at.2 == "text").map(|at| (at.0, at.1.as_str())).collect();
    assert_eq!(text, [(44, "ten is too"), (54, "a"), (55, "b")]);
}

#[test]
fn roles_are_the_templates_and_white_space_at_edges_is_one_space() {
    let schema = "<schema name='r'>\n  <system>\n  Be  brief. </system>\n <user>\n<module name='m'>\n a\n  b \n</module>\n</user>\n</schema>";
    let prompt = "<prompt schema='r'>\n<m/>\n<user> Why? </user></prompt>";
    let all = [
        (0, " <|s>\n  Be  brief. <|end>\n <|u> ", "/"),
        (32, " a\n  b ", "m"),
        (39, " <|end> ", "/"),
        (47, "<|u>Why?<|end><|a>", "text"),
    ];
    expect(placed(schema, prompt), &all);
    // Without a template there are no roles.
    let schema = Schema::parse(schema, &()).unwrap();
    let refused = Layout::of(&schema, None, &Bytes, MOST).unwrap_err().to_string();
    assert!(refused.contains("<system>") && refused.contains("chat template"), "{refused}");
}

#[test]
fn comments_and_escapes_are_no_text_and_text() {
    let schema = "<!-- a --><schema name='c'><module name='unit.py'>if a &lt; b <!-- c --> and <![CDATA[c < d]]>:</module></schema>";
    let found = placed(schema, "<prompt schema='c'><!-- x --><unit.py/>go</prompt>").unwrap();
    assert_eq!(found[0].1, "if a < b  and c < d:");
}

#[test]
fn a_module_reads_a_file_where_it_may() {
    struct One;
    impl Sources for One {
        fn text(&self, name: &str) -> std::result::Result<String, String> {
            if name == "a.txt" { Ok("from the file".to_owned()) } else { Err("there is no such file".to_owned()) }
        }
    }
    let schema = |name| format!("<schema name='f'>\n<module name='a' src='{name}'/></schema>");
    let read = Schema::parse(&schema("a.txt"), &One).unwrap();
    let Item::Module(module) = &read.items[1] else { panic!("{read:?}") };
    assert_eq!(module.items, [Item::Text("from the file".to_owned())]);
    let refused = |error: Error| error.to_string();
    let missing = refused(Schema::parse(&schema("b.txt"), &One).unwrap_err());
    assert!(missing.starts_with("line 2, column 1: ") && missing.contains("b.txt"), "{missing}");
    assert!(refused(Schema::parse(&schema("/etc/passwd"), &()).unwrap_err()).contains("/etc/passwd"));
}

#[test]
fn what_is_wrong_with_a_schema_is_said_with_its_place() {
    let cases = [
        ("<schema name='a'>\n  <module name='b'></schema>", "line 2", "not well-formed"),
        ("<schema name='a'>a < b</schema>", "line 1", "not well-formed"),
        ("<!DOCTYPE a [<!ENTITY b \"c\">]><schema name='a'>&b;</schema>", "line 1", "not well-formed"),
        ("<prompt schema='a'/>", "line 1, column 1", "not <prompt>"),
        ("<schema/>", "line 1, column 1", "needs a `name`"),
        ("<schema name='a' version='1'/>", "line 1", "no attribute `version`"),
        ("<schema name='a'>\n<module>x</module></schema>", "line 2, column 1", "needs a `name`"),
        ("<schema name='a'><module name='user'/></schema>", "line 1", "cannot be called `user`"),
        ("<schema name='a'><module name='1st'/></schema>", "line 1", "is no name for a module"),
        ("<schema name='a'><module name='a b'/></schema>", "line 1", "is no name for a module"),
        (
            "<schema name='a'><module name='b'/>\n<union><module name='b'/></union></schema>",
            "line 2, column 8",
            "another module",
        ),
        ("<schema name='a'><module name='b' cache='no'/></schema>", "line 1", "not `no`"),
        ("<schema name='a'><union>text</union></schema>", "line 1", "modules only"),
        ("<schema name='a'><union><user/></union></schema>", "line 1", "modules only, not <user>"),
        ("<schema name='a'><union> </union></schema>", "line 1", "without modules"),
        ("<schema name='a'><union scaffold='c'><module name='b'/></union></schema>", "line 1", "scaffold `c`"),
        ("<schema name='a'><parameter name='p' length='1'/></schema>", "line 1", "stands in a module"),
        ("<schema name='a'><user><parameter name='p' length='1'/></user></schema>", "line 1", "stands in a module"),
        ("<schema name='a'><module name='b'><parameter name='p'/></module></schema>", "line 1", "needs a `length`"),
        ("<schema name='a'><module name='b'><parameter name='p' length='0'/></module></schema>", "line 1", "not `0`"),
        (
            "<schema name='a'><module name='b'><parameter name='p' length='9e9'/></module></schema>",
            "line 1",
            "not `9e9`",
        ),
        (
            "<schema name='a'><module name='b'><parameter name='p' length='1'/><param name='p' len='1'/></module></schema>",
            "line 1",
            "another parameter `p`",
        ),
        (
            "<schema name='a'><module name='b'><parameter name='p' length='1'>x</parameter></module></schema>",
            "line 1",
            "must be empty",
        ),
        ("<schema name='a'><modul name='b'/></schema>", "line 1", "no <modul>"),
        ("<schema name='a'><scaffold modules='b c'/><module name='b'/></schema>", "line 1", "names `c`"),
        ("<schema name='a'><scaffold modules='b'/><module name='b'/></schema>", "line 1", "at least two"),
        ("<schema name='a'><module name='b'><scaffold modules='b c'/></module></schema>", "line 1", "no <scaffold>"),
        (
            "<schema name='a'><user><module name='b'><system>x</system></module></user></schema>",
            "line 1",
            "<system> inside <user>",
        ),
        ("<schema name='a' xmlns='urn:x'/>", "line 1", "namespace"),
    ];
    for (schema, place, why) in cases {
        let error = lay(schema).unwrap_err().to_string();
        assert!(error.starts_with(place) && error.contains(why), "{schema}\n{error}");
    }
    let deep = format!("<schema name='a'>{}", "<module name='b'>".repeat(40)) + &"</module>".repeat(40) + "</schema>";
    assert!(lay(&deep).unwrap_err().to_string().contains("nest less"));
    let long = format!("<schema name='a'>{}</schema>", "x".repeat(MAX_DOCUMENT_BYTES));
    assert!(lay(&long).unwrap_err().to_string().contains("bytes"));
    let positions = format!("<schema name='a'>{}</schema>", "x".repeat(MOST as usize + 1));
    assert!(lay(&positions).unwrap_err().to_string().contains("positions"));
    let scaffold =
        "<schema name='a'><module name='b'><parameter name='p' length='2' scaffold='abc'/></module></schema>";
    assert!(lay(scaffold).unwrap_err().to_string().contains("3 tokens, and the parameter 2"));
}

#[test]
fn what_is_wrong_with_a_prompt_is_said_with_its_place() {
    let cases = [
        ("<schema name='trip'/>", "not <schema>"),
        ("<prompt/>", "needs a `schema`"),
        ("<prompt schema='other'/>", "of the schema `other`"),
        (
            "<prompt schema='trip'><paris/></prompt>",
            "line 1, column 23: `trip` has no module <paris/>; it has for, rome, oslo, late",
        ),
        ("<prompt schema='trip'><for><rome/></for></prompt>", "`for` has no module <rome/>; it has none"),
        ("<prompt schema='trip'><rome/>\n<oslo/></prompt>", "line 2, column 1: <oslo/>: another member of its union"),
        ("<prompt schema='trip'><for/><for/></prompt>", "imported already"),
        ("<prompt schema='trip'><for weeks='1'/></prompt>", "no parameter `weeks`"),
        ("<prompt schema='trip'><for days='a very long time'/></prompt>", "has 16 tokens, and room for 6"),
        ("<prompt schema='trip'><user><assistant>x</assistant></user></prompt>", "<assistant> inside <user>"),
        ("<prompt schema='trip'><user name='x'/></prompt>", "has no attributes"),
    ];
    for (prompt, why) in cases {
        let error = placed(TRIP, prompt).unwrap_err().to_string();
        assert!(error.contains(why), "{prompt}\n{error}");
    }
    let layout = lay(TRIP).unwrap();
    let prompt = Prompt::parse("<prompt schema='trip'>more</prompt>").unwrap();
    let refused = select(&layout, &prompt, None, &Bytes, layout.length() + 3).unwrap_err();
    assert_eq!(refused.kind(), ragstone_env::ErrorKind::ContextLength);
}

/// What surrounds each role's words is what the model's own template writes there.
#[test]
fn roles_of_real_templates_put_together_what_the_template_renders() {
    use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date};

    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/tests/fixtures/chat");
    let mut tried = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let Ok(Some(template)) = ChatTemplate::from_folder(&entry.unwrap().path()) else { continue };
        let Ok(roles) = Roles::of(&template) else { continue };
        let said = ["Be brief.", "One?", "1.", "Two?"];
        let names = ["system", "user", "assistant", "user"];
        let messages: Vec<_> = names.iter().zip(said).map(|(role, said)| ChatMessage::new(*role, said)).collect();
        let rendered = template.render(&messages, true, Date::from_unix_ms(0)).unwrap();
        let mut written = format!("{}Be brief.{}", roles.system.0, roles.system.1);
        written += &format!("{}One?{}", roles.user_after_system, roles.user.1);
        written += &format!("{}1.{}", roles.assistant.0, roles.assistant.1);
        written += &format!("{}Two?{}{}", roles.user.0, roles.user.1, roles.answer);
        assert_eq!(written, rendered);
        tried += 1;
    }
    assert!(tried >= 3, "{tried} templates");
}
