//! MDX as Markdown: without its imports, exports, comments and components; what components say, and their titles, stays.

/// A longer tag is none.
const MAX_TAG_BYTES: usize = 10_000;
/// A text with so many marks that begin no tag has none: each costs a look for its end.
const MOST_NO_TAGS: usize = 10_000;
/// Attributes that people see.
const SHOWN: &[&str] = &["title", "label", "summary", "caption", "heading"];

/// Markdown of an MDX text.
pub fn plain(source: &str) -> String {
    let mut reading = Reading::default();
    let (mut fence, mut is_module) = (None::<String>, false);
    for line in source.split_inclusive('\n') {
        let start = line.trim_start();
        let mark: String = start.chars().take_while(|c| matches!(c, '`' | '~')).collect();
        if let Some(open) = &fence {
            if start.starts_with(open.as_str()) && start.trim_end().chars().all(|c| matches!(c, '`' | '~')) {
                fence = None;
            }
            reading.flush();
            reading.text.push_str(reading.dedented(line));
            continue;
        }
        if is_module && !line.trim().is_empty() {
            continue;
        }
        is_module = reading.waiting.trim().is_empty() && is_of_module(line);
        if is_module {
            continue;
        }
        if mark.len() >= 3 {
            fence = Some(mark);
            reading.flush();
            reading.text.push_str(reading.dedented(line));
            continue;
        }
        reading.waiting.push_str(line);
        if line.trim().is_empty() {
            reading.flush();
        }
    }
    reading.flush();
    reading.text
}

/// Whether it imports or exports, and is no sentence that begins so.
fn is_of_module(line: &str) -> bool {
    if let Some(rest) = line.strip_prefix("import ") {
        let is_named = rest.contains(" from ") && rest.contains(['"', '\'']);
        return is_named || rest.starts_with(['"', '\'', '{', '*']);
    }
    let words = ["const ", "default ", "function ", "let ", "var ", "async ", "class ", "{", "*"];
    line.strip_prefix("export ").is_some_and(|rest| words.iter().any(|word| rest.starts_with(word)))
}

#[derive(Default)]
struct Reading {
    text: String,
    /// Lines that are not read yet: tags go over several.
    waiting: String,
    /// How deep in components the text is, and how far in their content stands.
    depth: usize,
    indent: usize,
    /// How often what began as a tag was none.
    no_tags: usize,
}

impl Reading {
    /// A line without the indentation that its component gives it.
    fn dedented<'a>(&self, line: &'a str) -> &'a str {
        let blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
        let most = if self.depth > 0 { self.indent } else { 0 };
        &line[blanks.min(most)..]
    }

    /// Takes what waits.
    fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let mut rest = waiting.as_str();
        let (mut is_line_start, mut may_comment) = (true, true);
        while !rest.is_empty() {
            if is_line_start {
                rest = self.dedented(rest);
            }
            let end = rest.find(['\n', '<', '{', '`']).unwrap_or(rest.len());
            let (before, mark) = rest.split_at(end);
            self.text.push_str(before);
            is_line_start = mark.starts_with('\n');
            rest = match mark.chars().next() {
                Some('`') => {
                    let ticks = mark.len() - mark.trim_start_matches('`').len();
                    let code = mark[ticks..].find(&mark[..ticks]).map_or(ticks, |at| at + 2 * ticks);
                    self.text.push_str(&mark[..code]);
                    &mark[code..]
                }
                Some('{') => {
                    match mark.strip_prefix("{/*").filter(|_| may_comment).map(|rest| rest.split_once("*/}")) {
                        Some(Some((_, after))) => after,
                        found => {
                            // There is no end of any further down.
                            may_comment &= found.is_none();
                            self.take(mark)
                        }
                    }
                }
                Some('<') => match tag(mark, self.no_tags) {
                    Some(tag) => {
                        self.component(tag, before);
                        &mark[tag.len()..]
                    }
                    None => {
                        self.no_tags += 1;
                        self.take(mark)
                    }
                },
                Some(_) => self.take(mark),
                None => "",
            };
        }
    }

    /// Takes a character as it is.
    fn take<'a>(&mut self, mark: &'a str) -> &'a str {
        let (first, after) = mark.split_at(mark.chars().next().map_or(0, char::len_utf8));
        self.text.push_str(first);
        after
    }

    fn component(&mut self, tag: &str, before: &str) {
        if tag.starts_with("</") {
            self.depth = self.depth.saturating_sub(1);
            self.indent = self.indent.saturating_sub(2);
            return;
        }
        for name in SHOWN {
            if let Some(value) = attribute(tag, name) {
                self.text.push_str(value);
                self.text.push_str("\n\n");
            }
        }
        if !tag.ends_with("/>") {
            let own = before.len() - before.trim_start().len();
            self.indent = if self.depth > 0 { self.indent + own + 2 } else { own + 2 };
            self.depth += 1;
        }
    }
}

/// The tag of a component that a text begins with, or of a fragment; those of HTML are Markdown's.
fn tag(text: &str, no_tags: usize) -> Option<&str> {
    let name = text.strip_prefix('<').filter(|_| no_tags < MOST_NO_TAGS)?;
    let name = name.strip_prefix('/').unwrap_or(name);
    if !name.starts_with(|c: char| c.is_ascii_uppercase() || c == '>') {
        return None;
    }
    let (mut braces, mut quote) = (0_usize, None);
    for (at, c) in text.char_indices().take_while(|(at, _)| *at < MAX_TAG_BYTES) {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'' | '`', None) => quote = Some(c),
            ('{', None) => braces += 1,
            ('}', None) => braces = braces.saturating_sub(1),
            ('<', None) if at > 0 && braces == 0 => return None,
            ('>', None) if braces == 0 => return Some(&text[..=at]),
            _ => {}
        }
    }
    None
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let at = tag.find(&format!(" {name}="))? + name.len() + 2;
    let value = &tag[at..];
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    value[1..].split(quote).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_go_and_what_they_say_stays() {
        let source = "import { Note } from \"../parts\"\nimport x,\n  { y } from 'z'\n\nexport const meta = {\n  a: 1,\n}\n\n# Start\n\n\
                      <Note kind=\"warn\" when={a > 1}>The key stops.</Note>\n\n<Tabs>\n  <Tab title=\"npm\">\n    Install it:\n\n    ```sh\n    \
                      import { x } from \"y\"\n    ```\n  </Tab>\n</Tabs>\n{/* not\nshown */}\nUse `<Note>` if a < b and {c}.\n\nimport the file from the menu.\n";
        assert_eq!(
            plain(source),
            "\n\n# Start\n\nThe key stops.\n\n\nnpm\n\n\nInstall it:\n\n```sh\nimport { x } from \"y\"\n```\n\n\n\n\
             Use `<Note>` if a < b and {c}.\n\nimport the file from the menu.\n"
        );
    }
}
