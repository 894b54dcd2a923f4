mod fuzz;
mod random;

use serde_json::json;

use super::*;
use crate::tests::{Bytes, MOST};
use crate::{Layout, Roles, Selected, select};

/// Files that programs include.
struct Files(Vec<(&'static str, &'static str)>);

impl Sources for Files {
    fn text(&self, name: &str) -> std::result::Result<String, String> {
        let found = self.0.iter().find(|(its, _)| *its == name);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "there is no such file".to_owned())
    }
}

type Arguments = BTreeMap<String, String>;

fn arguments(all: &[(&str, &str)]) -> Arguments {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn compiled(text: &str) -> Result<Program> {
    Program::compile(text, &BTreeMap::new(), &())
}

fn xml(text: &str) -> String {
    compiled(text).unwrap_or_else(|error| panic!("{text}: {error}")).schema().to_xml()
}

/// The roles' tags themselves: what minijinja makes of them.
fn tags() -> Roles {
    let around = |role: &str| (format!("<{role}>"), format!("</{role}>"));
    Roles {
        system: around("system"),
        user: around("user"),
        assistant: around("assistant"),
        user_after_system: "<user>".to_owned(),
        answer: String::new(),
    }
}

fn selected(program: &Program, given: &Arguments) -> Result<Selected> {
    let layout = Layout::of(program.schema(), Some(&tags()), &Bytes, MOST)?;
    select(&layout, &program.prompt(given)?, Some(&tags()), &Bytes, MOST)
}

/// The text of the prompt that arguments select.
fn text(program: &Program, given: &Arguments) -> Result<String> {
    let bytes =
        selected(program, given)?.placed.iter().flat_map(|at| at.tokens.to_vec()).map(|byte| byte as u8).collect();
    Ok(String::from_utf8(bytes).expect("what was text"))
}

/// What minijinja renders of the same program.
fn rendered(
    program: &Program,
    text: &str,
    lists: &BTreeMap<String, Value>,
    files: &Files,
    given: &Arguments,
) -> String {
    let mut environment = minijinja::Environment::new();
    for (name, text) in &files.0 {
        environment.add_template(name, text).expect("a template");
    }
    let mut context: BTreeMap<String, Value> = lists.clone();
    for (name, value) in given {
        let flag = matches!(program.arguments.get(name), Some(Kind::Flag));
        context.insert(name.clone(), if flag { json!(value == "true") } else { json!(value) });
    }
    environment.render_str(text, context).unwrap_or_else(|error| panic!("{text}\n{error:#}"))
}

/// Whether the text of a prompt is what was rendered. White space at the edges of texts is PML's: any run of it may be another, and at the edges of
/// the prompt's own text there is none.
fn agrees(program: &Program, selected: &str, rendered: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let runs = |text: &str| {
        let mut runs = String::new();
        for c in text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }) {
            if !(c == ' ' && runs.ends_with(' ')) {
                runs.push(c);
            }
        }
        runs
    };
    if program.tail.is_some() { words(selected) == words(rendered) } else { runs(selected) == runs(rendered) }
}

#[test]
fn each_form_becomes_its_part_of_the_schema() {
    let head = "{# program p\n days: 6 tokens, like \"a < b\"\n city: one of \"rome\", \"new york\"\n frugal: flag\n files: list [\"a\", \"b\"]\n";
    let cases = [
        ("Plan.", "Plan."),
        ("{% if frugal %}x{% endif %}", "<module name=\"frugal\">x</module>"),
        ("{% if not frugal %}x{% endif %}", "<module name=\"not-frugal\">x</module>"),
        (
            "{% if frugal %}x{% else %}y{% endif %}",
            "<union><module name=\"frugal\">x</module><module name=\"not-frugal\">y</module></union>",
        ),
        (
            "{% if city == \"rome\" %}x{% elif city == 'new york' %}y{% else %}z{% endif %}",
            "<union><module name=\"city-rome\">x</module><module name=\"city-new-york\">y</module><module name=\"city-else\">z</module></union>",
        ),
        (
            "{{ city }}",
            "<union><module name=\"city-rome\">rome</module><module name=\"city-new-york\">new york</module></union>",
        ),
        (
            "{{ days }} {{ days }}",
            "<module name=\"days\"><parameter name=\"days\" length=\"6\" scaffold=\"a &lt; b\"/></module> \
             <module name=\"days-2\"><parameter name=\"days\" length=\"6\" scaffold=\"a &lt; b\"/></module>",
        ),
        (
            "{% if frugal %}{{ days }}-{{ days }}{% endif %}",
            "<module name=\"frugal\"><parameter name=\"days\" length=\"6\" scaffold=\"a &lt; b\"/>-\
             <parameter name=\"days-2\" length=\"6\" scaffold=\"a &lt; b\"/></module>",
        ),
        (
            "{% for f in files %}{{ loop.index }}{{ f|upper }}{% if not loop.last %},{% endif %}{% endfor %}",
            "<module name=\"f-1\">1A,</module><module name=\"f-2\">2B</module>",
        ),
        ("{% for f in [] %}x{% else %}none{% endfor %}", "none"),
        (
            "{% macro m(a, b='c') %}{{ a }}{{ b }}{% if frugal %}!{% endif %}{% endmacro %}{{ m('x') }}{{ m('y', b=1) }}",
            "<module name=\"m\">xc<module name=\"frugal\">!</module></module><module name=\"m-2\">y1<module name=\"frugal\">!</module></module>",
        ),
        ("<user>Go <system-a></user>", "<user>Go &lt;system-a&gt;</user>"),
        ("{{ '<user>' }}{% raw %}{{ x }}</user>{% endraw %}", "&lt;user&gt;{{ x }}&lt;/user&gt;"),
        ("{% set a = files|join(', ') %}a {%- if true %} {{- a }} {%- endif %} {# gone #}", "aa, b "),
        ("{% if frugal and city != 'rome' or 1 == 2 %}x{% endif %}", "<module name=\"case\">x</module>"),
        ("{% if city in ['rome', 'new york'] %}x{% endif %}", "<module name=\"case\">x</module>"),
        ("{% if days %}{{ days|length }}{% endif %}", ""),
    ];
    for (program, wanted) in cases {
        let program = format!("{head}#}}{program}");
        match compiled(&program) {
            Ok(compiled) => {
                let wanted = if wanted.is_empty() { "refused" } else { wanted };
                assert_eq!(compiled.schema().to_xml(), format!("<schema name=\"p\">{wanted}</schema>"), "{program}");
            }
            Err(error) => {
                assert!(wanted.is_empty() && error.to_string().contains("`days` is an argument"), "{program}: {error}")
            }
        }
    }
    // A flag of a name that means something in PML.
    assert!(xml("{# program p\nuser: flag\n#}{% if user %}x{% endif %}").contains("<module name=\"user-2\">"));
}

const TRIP: &str = "{# program trip
   days: 12 tokens, like \"a few days\"
   city: one of \"lisbon\", \"tromso\"
   frugal: flag
   sights: list
   question: text
#}You plan trips for {{ days }}.
{% macro describe(what) %}Know that {{ what }}.{% endmacro %}
{%- if city == \"lisbon\" %}Lisbon has hills. {{ describe('it is warm') }}{% else %}Tromso has fjords.{% endif %}
{%- for sight in sights %} See {{ sight.name }}.{% endfor %}
{%- if frugal %} {% include \"money.txt\" %}{% endif %}
<user>{{ question }} Say why.</user>
";

#[test]
fn a_prompt_is_what_minijinja_renders() {
    let files = Files(vec![("money.txt", "There is little money.\n")]);
    let lists: BTreeMap<String, Value> =
        [("sights".to_owned(), json!([{"name": "the castle"}, {"name": "a tram"}]))].into();
    let program = Program::compile(TRIP, &lists, &files).unwrap();
    let given = arguments(&[("days", "3 days"), ("city", "lisbon"), ("frugal", "true"), ("question", "What now?")]);
    let prompt = program.prompt(&given).unwrap();
    let wanted = "<prompt schema=\"trip\"><days days=\"3 days\"/><city-lisbon><describe/></city-lisbon><sight-1/><sight-2/>\
                  <frugal><money/></frugal><user>What now? Say why.</user></prompt>";
    assert_eq!(prompt.to_xml(), wanted);
    let selected = text(&program, &given).unwrap();
    let wanted = "You plan trips for 3 days. Lisbon has hills. Know that it is warm. See the castle. See a tram. There is little money. \
                  <user>What now? Say why.</user>";
    assert_eq!(selected, wanted);
    assert_eq!(rendered(&program, TRIP, &lists, &files, &given).replace('\n', " ").trim_end(), selected.trim_end());
    // Another choice, and what is not needed is not asked for.
    let given = arguments(&[("days", ""), ("city", "tromso"), ("question", "Why?")]);
    let wanted =
        "<prompt schema=\"trip\"><days days=\"\"/><city-else/><sight-1/><sight-2/><user>Why? Say why.</user></prompt>";
    assert_eq!(program.prompt(&given).unwrap().to_xml(), wanted);
    let names: Vec<String> = program.arguments().map(|(name, what)| format!("{name}: {what}")).collect();
    let wanted =
        ["city: one of \"lisbon\", \"tromso\"", "days: 12 tokens", "frugal: true or false", "question: a text"];
    assert_eq!(names, wanted);
    for (given, why) in [
        (&[("days", "1"), ("question", "?")][..], "`city` (one of \"lisbon\", \"tromso\") is not given"),
        (&[("city", "lisbon")], "`days` (12 tokens) is not given"),
        (&[("city", "rome")], "`city` is one of \"lisbon\", \"tromso\", not \"rome\""),
        (&[("frugal", "yes")], "`frugal` is true or false"),
        (&[("sights", "x")], "no argument `sights`; it has city, days, frugal, question"),
        (&[("days", "\u{1}")], "no prompt can have"),
    ] {
        let error = program.prompt(&arguments(given)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// What is wrong, in which column of its line, and what is said of it.
const WRONG: [(&str, u32, &str); 59] = [
    ("{% if f %}x", 1, "not ended; write {% endif %}"),
    ("x\n  {{ a", 3, "is not closed; write `}}`"),
    ("{# x", 1, "without its end"),
    ("{% raw %}x", 1, "without {% endraw %}"),
    ("{{ 'x", 4, "closing quote"),
    ("{{ '\\x41' }}", 5, "after a backslash"),
    ("{{ 1.5 }}", 4, "as text, \"0.5\""),
    ("{{ 1 + 2 }}", 6, "does not calculate"),
    ("{{ -1 }}", 4, "does not calculate"),
    ("{{ a ~ 'x' }}", 6, "one after the other"),
    ("{% if 1 < 2 %}{% endif %}", 9, "compare with =="),
    ("{{ 'x' if f else 'y' }}", 8, "{% if … %}…{% else %}"),
    ("{% if a is defined %}{% endif %}", 9, "there are no tests"),
    ("{{ a|upper }}", 4, "known when the prompt is made"),
    ("{{ 'x'|title }}", 4, "no filter `title`; it has upper"),
    ("{{ f }}", 4, "a flag and no text"),
    ("{{ f and f }}", 4, "a condition is no text"),
    ("{{ l }}", 4, "write {% for … %}"),
    ("{{ l[0].h }}", 4, "give it as a string"),
    ("{{ l[1].n }}", 4, "no item 1 in a list of 1"),
    ("{{ l[0].m }}", 4, "no field `m`; there are: h, n"),
    ("{{ nobody }}", 4, "nothing is called `nobody`"),
    ("{{ range(3) }}", 4, "there are no functions"),
    ("{% if c %}{% endif %}", 7, "compare it: c == …"),
    ("{% if c == 'z' %}{% endif %}", 7, "`c` is never \"z\""),
    ("{% if a == 'z' %}{% endif %}", 7, "only choices are compared"),
    ("{% if f == true %}{% endif %}", 7, "write `f` or `not f`"),
    ("{% if 1 == '1' %}{% endif %}", 7, "are not compared"),
    ("{% for x in a %}{% endfor %}", 13, "known when the prompt is made"),
    ("{% for x in 'abc' %}{% endfor %}", 13, "a loop goes over a list, not over a string"),
    ("{% for x, y in l %}{% endfor %}", 1, "item.name"),
    ("{% for x in l if x %}{% endfor %}", 15, "inside it"),
    ("{% for a in l %}{% endfor %}", 1, "`a` stands for something already"),
    ("{% for loop in l %}{% endfor %}", 8, "means something in Jinja"),
    ("{% break %}", 1, "a loop takes its whole list"),
    ("{% import 'x' as y %}", 1, "macros stand in the program itself"),
    ("{% endfor %}", 1, "nothing is open"),
    ("{% for x in l %}{% endif %}", 17, "{% endfor %} is expected"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 19, "calls itself"),
    ("{% macro m(x) %}{% endmacro %}{{ m() }}", 34, "`m` needs `x`"),
    ("{% macro m(x) %}{% endmacro %}{{ m(1, 2) }}", 34, "takes 1 arguments and is given 2"),
    ("{% macro m(x) %}{% endmacro %}{{ m(y=1) }}", 38, "no parameter `y`"),
    ("{% macro m(x) %}{% endmacro %}{{ m(1, x=1) }}", 41, "given twice"),
    ("{% macro m() %}{% endmacro %}{{ m()|upper }}", 33, "is called inside something else"),
    ("{% macro m() %}{% endmacro %}{{ m }}", 33, "is a macro; call it"),
    ("{% if f %}{% macro m() %}{% endmacro %}{% endif %}", 11, "by the program itself"),
    ("{% for x in l %}{% set y = x.n %}{% endfor %}{{ y }}", 49, "nothing is called `y`"),
    ("{% set y %}x{% endset %}", 10, "text in blocks is a macro"),
    ("{% include 'gone.txt' %}", 1, "`gone.txt` cannot be read"),
    ("{% include a %}", 12, "written as a string"),
    ("<user>x", 7, "<user> is not ended"),
    ("{% if f %}<user>{% endif %}</user>", 17, "end it with </user> first"),
    ("x</user>", 2, "no <user> was opened"),
    ("<user><system>x</system></user>", 7, "<system> inside <user>"),
    ("{% if f %}{{ t }}{% endif %}", 14, "at the program's end"),
    ("{{ t }}{% if f %}x{% endif %}", 8, "behind the prompt's own text"),
    ("<user>{{ t }}</user>x", 21, "behind the prompt's own text"),
    ("<user>{{ a }}{{ t }}</user>", 17, "nothing but text besides it"),
    ("bell \u{7}", 6, "U+0007"),
];

#[test]
fn what_is_no_program_is_refused_with_its_place() {
    let head = "{# program p\n a: 3 tokens\n c: one of \"x\", \"y\"\n f: flag\n l: list [{\"n\": 1, \"h\": 0.5}]\n t: text\n#}\n";
    let mut wrong = Vec::new();
    for (program, column, why) in WRONG {
        let error = compiled(&format!("{head}{program}")).map(|program| program.schema().to_xml());
        let error = error.expect_err(program).to_string();
        let line = 8 + u32::from(program.starts_with("x\n"));
        let place = format!("line {line}, column {column}: ");
        if !(error.starts_with(&place) && error.contains(why)) {
            wrong.push(format!("{program}: {error}\n    wanted {place}{why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_head_of_a_program_is_refused() {
    let heads = [
        ("Hello", "begins with a comment"),
        ("{# programme p #}", "first line"),
        ("{# program #}", "first line"),
        ("{# program p\n  a = 3\n#}", "line 2, column 3: `a = 3` declares nothing"),
        ("{# program p\n1a: flag\n#}", "line 2, column 1: `1a` is no name"),
        ("{# program p\nloop: flag\n#}", "`loop` is no name"),
        ("{# program p\na: flag\na: text\n#}", "line 3, column 1: `a` is declared already"),
        ("{# program p\na: string\n#}", "it can be `12 tokens`"),
        ("{# program p\na: 0 tokens\n#}", "1 to 65536"),
        ("{# program p\na: one of x, y\n#}", "wants strings"),
        ("{# program p\na: one of \"x\", \"x\"\n#}", "\"x\" twice"),
        ("{# program p\na: list\n#}", "`a` is not given"),
        ("{# program p\na: list {}\n#}", "has to be a list"),
        ("{# program p\na: list [1\n#}", "is no JSON"),
    ];
    for (program, why) in heads {
        let error = compiled(program).map(|program| program.schema().to_xml()).expect_err(program).to_string();
        assert!(error.contains(why), "{program}: {error}");
    }
    let unknown: BTreeMap<String, Value> = [("l".to_owned(), json!([]))].into();
    let error = Program::compile("{# program p #}", &unknown, &()).unwrap_err().to_string();
    assert!(error.contains("declares none; write `l: list`"), "{error}");
}

#[test]
fn files_that_are_included_are_named_in_errors_and_cannot_include_themselves() {
    let files = Files(vec![
        ("a/one.txt", "first\n{% include 'two.txt' %}"),
        ("two.txt", "\n {{ nobody }}"),
        ("self.txt", "{% include 'self.txt' %}"),
        ("ok.v2.txt", "fine"),
    ]);
    let compile = |text: &str| Program::compile(&format!("{{# program p #}}{text}"), &BTreeMap::new(), &files);
    let refused = |text: &str| compile(text).expect_err(text).to_string();
    let nested = refused("{% include 'a/one.txt' %}");
    let wanted = "line 1, column 16: in `a/one.txt`: line 2, column 1: in `two.txt`: line 2, column 5: nothing is called `nobody`";
    assert!(nested.starts_with(wanted), "{nested}");
    assert!(refused("{% include 'self.txt' %}").contains("includes itself"));
    assert!(
        refused("{% macro m() %}{% include 'ok.v2.txt' %}{% endmacro %}{{ m() }}")
            .contains("where the macro is called")
    );
    let twice = compile("{% include 'ok.v2.txt' %}{% include 'ok.v2.txt' %}").unwrap();
    let wanted = "<schema name=\"p\"><module name=\"ok\">fine</module><module name=\"ok-2\">fine</module></schema>";
    assert_eq!(twice.schema().to_xml(), wanted);
}

/// Refused quickly, whatever is multiplied.
#[test]
fn nothing_blows_up() {
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let nested = |depth: usize, body: &str| {
        let open: String = (0..depth).map(|at| format!("{{% for x{at} in l %}}")).collect();
        format!("{{# program p\nl: list {ten}\n#}}{open}{body}{}", "{% endfor %}".repeat(depth))
    };
    let calls: String = (1..30)
        .map(|at| format!("{{% macro m{at}() %}}{0}{0}{{% endmacro %}}", format!("{{{{ m{}() }}}}", at - 1)))
        .collect();
    let calls = |body: &str| format!("{{# program p #}}{{% macro m0() %}}{body}{{% endmacro %}}{calls}{{{{ m29() }}}}");
    let long = "x".repeat(1000);
    let deep_ifs = format!("{{# program p\nf: flag\n#}}{}x{}", "{% if f %}".repeat(31), "{% endif %}".repeat(31));
    let deeper_ifs = format!("{{# program p\nf: flag\n#}}{}x{}", "{% if f %}".repeat(40), "{% endif %}".repeat(40));
    let brackets = format!("{{# program p #}}{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    let nots = format!("{{# program p #}}{{% if {} true %}}{{% endif %}}", "not ".repeat(10_000));
    let fields = format!("{{# program p\nl: list []\n#}}{{{{ l{} }}}}", "[0]".repeat(10_000));
    let lists: String = (1..20_000).map(|at| format!("{{% set l{at} = [l{}] %}}", at - 1)).collect();
    let lists = format!("{{# program p #}}{{% set l0 = [1] %}}{lists}");
    let conditions: String = (1..200).map(|at| format!("{{% set c{at} = c{0} and c{0} %}}", at - 1)).collect();
    let conditions =
        format!("{{# program p\nf: flag\n#}}{{% set c0 = not f %}}{conditions}{{% if c199 %}}x{{% endif %}}");
    let joined = format!("{{# program p\nl: list {ten}\n#}}{{{{ l|join('{}') }}}}", "y".repeat(200_000));
    let cases = [
        (nested(8, "x"), "becomes a schema of more than"),
        (nested(8, ""), "becomes a schema of more than"),
        (nested(4, &long), "becomes a schema of more than"),
        (calls("x"), "becomes a schema of more than"),
        (calls(""), "becomes a schema of more than"),
        (deep_ifs, ""),
        (deeper_ifs, "nest less"),
        (brackets, "nest less"),
        (nots, "nest less"),
        (fields, "too many fields"),
        (lists, "a list in a list"),
        (conditions, "too long a condition"),
        (joined, "longer than a schema may be"),
        ("x".repeat(MAX_DOCUMENT_BYTES + 1), "bytes"),
    ];
    for (program, why) in cases {
        match compiled(&program) {
            Ok(_) => assert!(why.is_empty(), "{why}"),
            Err(error) => assert!(!why.is_empty() && error.to_string().contains(why), "{why}: {error}"),
        }
    }
}
