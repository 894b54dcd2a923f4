//! Random programs and arguments: the text of the selected prompt is what minijinja renders.

use std::fmt::Write;

use super::*;

const PROGRAMS: u64 = 600;

/// Writes a program.
struct Writer {
    random: fastrand::Rng,
    /// White space at the edges of texts, too.
    has_blanks: bool,
    macros: usize,
    /// What may be written by name: known strings and numbers, arguments.
    outputs: Vec<String>,
    /// What is known, and true or false.
    known: Vec<String>,
    in_role: bool,
    in_macro: bool,
    names: usize,
}

impl Writer {
    fn below(&mut self, bound: usize) -> usize {
        self.random.usize(..bound)
    }

    fn one_of(&mut self, all: &[&str]) -> String {
        all[self.random.usize(..all.len())].to_owned()
    }

    fn blank(&mut self) -> String {
        if self.has_blanks { self.one_of(&["", "", " ", "\n", "  \n ", "\t", "\u{a0}"]) } else { String::new() }
    }

    fn words(&mut self) -> String {
        let words = [
            "tea",
            "a < b",
            "é東",
            "&amp;",
            "}}",
            "]]>",
            "\"so\"",
            "<sys tem>",
            "{x",
            "it's",
            "%} x",
            "a  b\n c",
            "\\n",
            "#}",
        ];
        let text = self.one_of(&words);
        let (before, after) = (self.blank(), self.blank());
        format!("{before}{text}{after}")
    }

    /// A string as a program writes it.
    fn quoted(&mut self) -> String {
        let text = self.words().replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
        format!("'{text}'")
    }

    fn tag(&mut self, open: &str, inside: &str, close: &str) -> String {
        let mut control = || if self.random.u8(..5) == 0 { "-" } else { "" };
        format!("{open}{} {inside} {}{close}", control(), control())
    }

    fn block(&mut self, inside: &str) -> String {
        self.tag("{%", inside, "%}")
    }

    fn output(&mut self, inside: &str) -> String {
        self.tag("{{", inside, "}}")
    }

    fn condition(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 7 } else { 10 }) {
            0 | 1 => self.one_of(&["f", "g", "not f", "a", "b", "not a"]),
            2 => self.one_of(&["c == 'x'", "'yy' == c", "c != 'x'", "d == \"one two\"", "not d == 'x'"]),
            3 => self.one_of(&["c in ['x', 'yy']", "d not in [\"x\"]", "c in []", "true", "1 == 2", "'q' in s", "s"]),
            4..7 => {
                let index = self.below(self.known.len());
                self.known[index].clone()
            }
            7 => format!("({})", self.condition(depth - 1)),
            8 => format!("{} and {}", self.condition(depth - 1), self.condition(depth - 1)),
            _ => format!("not ({} or {})", self.condition(depth - 1), self.condition(depth - 1)),
        }
    }

    fn body(&mut self, depth: usize, is_top: bool) -> String {
        let mut text = String::new();
        for _ in 0..=self.below(4) {
            let part = self.part(depth, is_top);
            text.push_str(&part);
        }
        text
    }

    fn part(&mut self, depth: usize, is_top: bool) -> String {
        match self.below(if depth == 0 { 4 } else { 11 }) {
            0 | 1 => self.words(),
            2 => {
                let index = self.below(self.outputs.len());
                let name = self.outputs[index].clone();
                self.output(&name)
            }
            3 => {
                let quoted = self.quoted();
                let known =
                    [quoted.as_str(), "s|join(', ')", "s|length", "' tea '|trim|upper", "7", "l|length", "'TEA'|lower"];
                let known = self.one_of(&known);
                self.output(&known)
            }
            4 | 5 => self.conditional(depth),
            6 => self.repeated(depth),
            7 if self.macros > 0 => {
                let called = self.below(self.macros);
                let argument = match self.below(3) {
                    0 => self.quoted(),
                    1 => "a".to_owned(),
                    _ => {
                        let index = self.below(self.outputs.len());
                        self.outputs[index].clone()
                    }
                };
                let call = match self.below(3) {
                    0 => format!("m{called}({argument})"),
                    1 => format!("m{called}(p={argument})"),
                    _ => format!("m{called}({argument}, f and not g)"),
                };
                self.output(&call)
            }
            8 if !self.in_macro => {
                let file = self.one_of(&["include 'one.txt'", "include \"two.txt\""]);
                self.block(&file)
            }
            9 if !self.in_role && !self.in_macro => {
                let role = self.one_of(&["system", "user", "assistant"]);
                self.in_role = true;
                let said = self.body(depth - 1, is_top);
                self.in_role = false;
                format!("<{role}>{said}</{role}>")
            }
            10 => {
                let quoted = self.quoted();
                let raw = if quoted.contains("endraw") { String::new() } else { "{{ f }} {% if".to_owned() };
                format!("{}{{% raw %}}x{raw}y{{% endraw %}}{{# {{{{ }}}} #}}", self.blank())
            }
            _ => self.words(),
        }
    }

    fn conditional(&mut self, depth: usize) -> String {
        let mut text = String::new();
        let mut word = "if";
        for _ in 0..=self.below(3) {
            let condition = self.condition(2);
            text += &self.block(&format!("{word} {condition}"));
            text += &self.body(depth - 1, false);
            word = "elif";
        }
        if self.below(2) == 0 {
            text += &self.block("else");
            text += &self.body(depth - 1, false);
        }
        text + &self.block("endif")
    }

    fn repeated(&mut self, depth: usize) -> String {
        self.names += 1;
        let item = format!("i{}", self.names);
        let (outputs, known) = (self.outputs.len(), self.known.len());
        let list = self.one_of(&["l", "s", "s", "['q', 'r']", "[]"]);
        if list == "l" {
            self.outputs.extend([format!("{item}.n"), format!("{item}['k']"), "loop.index".to_owned()]);
            self.known.extend([format!("{item}.on"), format!("{item}.k == 2"), "loop.first".to_owned()]);
        } else {
            self.outputs.extend([item.clone(), format!("{item}|upper"), "loop.length".to_owned()]);
            self.known.extend([format!("{item} == 'q'"), "loop.last".to_owned()]);
        }
        let mut text = self.block(&format!("for {item} in {list}"));
        if self.below(3) == 0 {
            self.names += 1;
            let (name, quoted) = (format!("v{}", self.names), self.quoted());
            text += &self.block(&format!("set {name} = {quoted}"));
            self.outputs.push(name);
        }
        text += &self.body(depth - 1, false);
        self.outputs.truncate(outputs);
        self.known.truncate(known);
        if self.below(3) == 0 {
            text += &self.block("else");
            text += &self.body(depth - 1, false);
        }
        text + &self.block("endfor")
    }

    fn definition(&mut self) -> String {
        let (outputs, known) = (self.outputs.len(), self.known.len());
        let default = self.quoted();
        self.outputs.push("p".to_owned());
        self.known.push("o".to_owned());
        self.in_macro = true;
        let opens = self.block(&format!("macro m{}(p={default}, o=true)", self.macros));
        let body = self.body(2, false);
        self.in_macro = false;
        self.outputs.truncate(outputs);
        self.known.truncate(known);
        self.macros += 1;
        format!("{opens}{body}{{% endmacro %}}")
    }

    /// A program, its files, its lists and its arguments.
    fn program(&mut self) -> (String, Files, BTreeMap<String, Value>, Arguments) {
        let mut lists: BTreeMap<String, Value> = BTreeMap::new();
        let strings: Vec<String> = (0..self.below(3)).map(|_| self.words()).chain(["q".to_owned()]).collect();
        let objects: Vec<Value> =
            (0..self.below(4)).map(|at| json!({ "n": self.words(), "k": at, "on": at % 2 == 0 })).collect();
        lists.insert("s".to_owned(), json!(strings));
        lists.insert("l".to_owned(), json!(objects));
        let mut text = String::from(
            "{# program random\na: 90 tokens\nb: 90 tokens, like \"tea\"\nc: one of \"x\", \"yy\", \"\"\n",
        );
        text += "d: one of \"x\", \"one two\"\nf: flag\ng: flag\nl: list\ns: list [\"stated\"]\nt: text\n#}";
        let files = [("one.txt", 2), ("two.txt", 1)].map(|(name, depth)| {
            let end = if self.has_blanks { self.one_of(&["", "\n", "\r\n", "\n\n"]) } else { String::new() };
            // A file includes none, so that it does not include itself.
            self.in_macro = true;
            let body = self.body(depth, false);
            self.in_macro = false;
            (name, &*Box::leak((body + &end).into_boxed_str()))
        });
        for _ in 0..self.below(3) {
            text += &self.definition();
        }
        text += &self.body(3, true);
        if self.below(3) == 0 {
            let (words, turn) = (self.words(), self.below(2));
            let _ = match turn {
                0 => write!(text, "<user>{words}{{{{ t }}}}!</user>"),
                _ => write!(text, "{words}{{{{ t }}}}{{{{ a }}}}{{{{ c }}}}."),
            };
        }
        let mut given = arguments(&[("a", ""), ("b", ""), ("t", "")]);
        for value in given.values_mut() {
            *value = if self.random.u8(..4) == 0 { String::new() } else { self.words() };
        }
        given.insert("c".to_owned(), self.one_of(&["x", "yy", ""]));
        given.insert("d".to_owned(), self.one_of(&["x", "one two"]));
        for flag in ["f", "g"] {
            given.insert(flag.to_owned(), self.random.bool().to_string());
        }
        (text, Files(files.to_vec()), lists, given)
    }
}

#[test]
fn the_text_of_a_selected_prompt_is_what_minijinja_renders() {
    let mut parts = 0;
    for seed in 0..PROGRAMS {
        let has_blanks = seed % 2 == 1;
        let mut writer = Writer {
            random: fastrand::Rng::with_seed(seed),
            has_blanks,
            macros: 0,
            outputs: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            known: vec!["true".to_owned()],
            in_role: false,
            in_macro: false,
            names: 0,
        };
        let (source, files, lists, given) = writer.program();
        let program =
            Program::compile(&source, &lists, &files).unwrap_or_else(|error| panic!("{seed}: {source}\n{error}"));
        let selected = text(&program, &given).unwrap_or_else(|error| panic!("{seed}: {source}\n{error}"));
        let rendered = rendered(&program, &source, &lists, &files, &given);
        // Without white space at any edge there is nothing that PML would change.
        let is_equal = if has_blanks { agrees(&program, &selected, &rendered) } else { selected == rendered };
        assert!(
            is_equal,
            "{seed}: {source}\n{given:?}\nselected {selected:?}\nrendered {rendered:?}\n{}",
            program.schema().to_xml()
        );
        assert_eq!(Schema::parse(&program.schema().to_xml(), &()).unwrap(), program.schema);
        parts += program.prompt(&given).unwrap().to_xml().matches('<').count();
    }
    assert!(parts > PROGRAMS as usize * 5, "{parts}");
}
