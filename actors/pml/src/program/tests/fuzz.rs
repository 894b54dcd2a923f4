//! Whatever a program says: refused, or a schema that its XML gives back, with prompts that say what minijinja renders.

use super::*;
use crate::fuzz::fuzz;

/// Between a program and its arguments, `name=value` a line.
const CUT: &str = "\n---\n";

fn holds(input: &[u8]) -> bool {
    let Ok(input) = std::str::from_utf8(input) else { return false };
    let (source, given) = input.split_once(CUT).unwrap_or((input, ""));
    let files =
        Files(vec![("one.txt", "One {{ a }}{% if f %}!{% endif %}\n"), ("two.txt", "{% include 'one.txt' %} two")]);
    let Ok(program) = Program::compile(source, &BTreeMap::new(), &files) else { return false };
    assert_eq!(Schema::parse(&program.schema().to_xml(), &()).expect("it was built"), program.schema);
    let given: Arguments = given
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let Ok(prompt) = program.prompt(&given) else { return true };
    assert_eq!(Prompt::parse(&prompt.to_xml()).expect("it was built"), prompt);
    // What is too long is known when it is tokens.
    if let Ok(selected) = text(&program, &given) {
        let lists = declarations(source, &BTreeMap::new()).expect("it was compiled").lists;
        // Those that are stated, as JSON.
        let lists = lists.into_iter().map(|(name, list)| (name, value(&list))).collect();
        let rendered = rendered(&program, source, &lists, &files, &given);
        assert!(
            agrees(&program, &selected, &rendered),
            "{source}\n{given:?}\nselected {selected:?}\nrendered {rendered:?}"
        );
    }
    true
}

fn value(of: &known::Known) -> Value {
    use known::Known;
    match of {
        Known::Text(text) => json!(&**text),
        Known::Whole(whole) => json!(whole),
        Known::Truth(truth) => json!(truth),
        Known::List(items) => items.iter().map(value).collect(),
        Known::Map(map) => map.iter().map(|(key, of)| (key.clone(), value(of))).collect(),
        Known::Nothing => Value::Null,
        Known::Fraction => json!(0.5),
    }
}

#[test]
fn any_program_is_refused_or_renders_as_minijinja_does() {
    let head = "{# program p\na: 20 tokens, like \"so\"\nc: one of \"x\", \"y z\"\nf: flag\nl: list [\"q\", {\"n\": 1, \"t\": null}]\nt: text\n#}\n";
    let given = "a=three\nc=y z\nf=true\nt=Why?";
    let bodies = [
        "Hi {{ a }}.\n{%- if f and not c == 'x' -%} yes {% elif a %}no{% else %} {{ c }} {% endif %}<user>{{ t }} {{ a }}</user>\n",
        "{% macro m(p, q='r') %}{{ p }}-{{ q|upper }}{% endmacro %}<system>{{ m('x') }}{{ m(a, q='s') }}</system>{% include \"two.txt\" %}",
        "{% for i in l %}{% if loop.first %}{{ i }}{% else %}{{ i.n }}{% if i.t %}!{% endif %}{% endif %}{{ loop.index }}, {% endfor %}",
        "{% set v = ['a', 'b']|join(' & ') %}{{ v }}{% raw %}{{ v }}{% endraw %}{# gone #}{{ l[1]['n'] }}{{ \"\\\"\\n\" }}{% if c in ['x'] %}x{% endif %}",
    ];
    let seeds: Vec<Vec<u8>> = bodies.iter().map(|body| format!("{head}{body}{CUT}{given}").into_bytes()).collect();
    fuzz("program", &seeds, holds);
}
