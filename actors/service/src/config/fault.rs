//! What is wrong with a setting, in the words of whoever wrote it. figment and serde speak of Rust's types: `usize`, `string`, `map`.

use figment::error::{Actual, Kind};
use figment::{Metadata, Source};

use super::sources::surface_keys;
use super::table;
use crate::error::Error;

/// A key that is less like the wrong one, between 0 and 1 (Jaro), is not suggested.
const LEAST_LIKENESS: f64 = 0.72;
/// Characters of a text that are repeated.
const SHOWN: usize = 80;

/// The error that names the setting, where it stands, and what is wanted there.
pub fn explain(error: &figment::Error) -> Error {
    let place = error.metadata.as_ref().map_or_else(String::new, place);
    let key = error.path.join(".");
    let message = match &error.kind {
        Kind::UnknownField(name, known) => return unknown(&error.path, name, known, &place),
        // No key is at fault, but the file.
        Kind::Message(why) if key.is_empty() => {
            let why = why.trim_end();
            return Error::invalid_input(format!(
                "the settings{place} are not valid TOML: {why}\nwrite KEY = VALUE, with texts in quotes: model = \"FOLDER\""
            ));
        }
        Kind::InvalidType(found, wanted) | Kind::InvalidValue(found, wanted) => {
            format!("{} was given, and wanted is {}", given(found), named(wanted, found, &key))
        }
        Kind::InvalidLength(count, wanted) => {
            format!("a list of {count} was given, and wanted is {}", named(wanted, &Actual::Seq, &key))
        }
        Kind::UnknownVariant(found, known) => {
            let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            format!("{} was given, and wanted is one of {}", text(found), known.join(", "))
        }
        Kind::MissingField(name) => format!("`{name}` is missing in it"),
        Kind::DuplicateField(name) => format!("`{name}` is given twice"),
        Kind::ISizeOutOfRange(number) => format!("the number {number} is out of range"),
        Kind::USizeOutOfRange(number) => format!("the number {number} is out of range"),
        Kind::Unsupported(found) | Kind::UnsupportedKey(found, _) => format!("{} cannot stand here", given(found)),
        Kind::Message(why) => why.clone(),
    };
    Error::invalid_input(format!("setting `{key}`{place}: {message}"))
}

fn place(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(Source::File(path)) => format!(" in {}", path.display()),
        _ if metadata.name.contains("environment") => " in the environment (RAGSTONE_…)".to_owned(),
        _ => format!(" in {}", metadata.name),
    }
}

fn unknown(path: &[String], name: &str, known: &[&str], place: &str) -> Error {
    let mut at = path.to_vec();
    if at.last().is_none_or(|last| last != name) {
        at.push(name.to_owned());
    }
    let wrong = at.join(".");
    let advice = match nearest(&wrong) {
        Some(near) => format!("did you mean `{near}`? `ragstone settings` lists all"),
        None => {
            let mut known: Vec<String> = known.iter().map(ToString::to_string).collect();
            if at.len() == 1 {
                known.extend(surface_keys());
            }
            known.sort();
            format!("the settings are {}", known.join(", "))
        }
    };
    let what =
        if wrong.is_empty() { "a setting without a name".to_owned() } else { format!("unknown setting `{wrong}`") };
    Error::invalid_input(format!("{what}{place}; {advice}"))
}

/// The setting that a wrong key comes nearest to, if one is near. Who leaves out what a key begins with is understood, too.
fn nearest(wrong: &str) -> Option<&'static str> {
    let wrong = wrong.to_lowercase().replace('-', "_");
    let likeness = |key: &str| {
        let last = key.rsplit('.').next().unwrap_or(key);
        strsim::jaro(&wrong, key).max(strsim::jaro(&wrong, last))
    };
    let scored = table::all().map(|setting| (likeness(setting.key), setting.key));
    let near = scored.filter(|(likeness, _)| *likeness > LEAST_LIKENESS);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
}

/// What stands there.
fn given(found: &Actual) -> String {
    match found {
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(number) => format!("the number {number}"),
        Actual::Signed(number) => format!("the number {number}"),
        Actual::Float(number) => format!("the number {number}"),
        Actual::Char(character) => text(&character.to_string()),
        Actual::Str(given) => text(given),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        Actual::Unit | Actual::Option => "nothing".to_owned(),
        Actual::Other(other) => other.clone(),
        _ => "something else".to_owned(),
    }
}

fn text(given: &str) -> String {
    let shown: String = given.chars().take(SHOWN).collect();
    format!("the text {shown:?}")
}

/// What serde calls `wanted`. Our own readers say in whole words what they take: these stay as they are.
fn named(wanted: &str, found: &Actual, key: &str) -> String {
    let unsigned = |bits: &str| match bits {
        "8" => "from 0 to 255",
        "16" => "from 0 to 65535",
        _ => "that is not negative",
    };
    let is_number = matches!(found, Actual::Signed(_) | Actual::Unsigned(_));
    match wanted {
        "a boolean" => "true or false".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a string" | "a borrowed string" | "a character" | "path string" => "a text in quotes".to_owned(),
        "a sequence" => "a list, such as [\"a\", \"b\"]".to_owned(),
        "usize" | "u8" | "u16" | "u32" | "u64" | "u128" if is_number => {
            format!("a whole number {}", unsigned(wanted.trim_start_matches('u')))
        }
        "usize" | "u8" | "u16" | "u32" | "u64" | "u128" | "isize" | "i8" | "i16" | "i32" | "i64" | "i128" => {
            "a whole number".to_owned()
        }
        _ if wanted == "a map" || wanted.starts_with("struct ") => {
            let within = format!("{key}.");
            let example = table::all().map(|setting| setting.key).find(|name| name.starts_with(&within));
            format!("a table; set its parts, such as `{}`", example.unwrap_or(&format!("{key}.NAME")))
        }
        _ if wanted.starts_with("enum ") || wanted.starts_with("variant") => {
            let about =
                table::definition(key).map_or_else(String::new, |setting| format!(". {}", table::plain(setting.about)));
            format!("a name in quotes{about}")
        }
        own => own.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{file, load};
    use crate::config::{Flags, Settings, Surface};

    fn wrong(text: &str) -> String {
        load(Some(file(text).path()), &Flags::default()).unwrap_err().to_string()
    }

    #[test]
    fn kinds_of_values_have_plain_names() {
        for (text, expected) in [
            ("top_k = \"many\"", "the text \"many\" was given, and wanted is a whole number"),
            ("top_k = 1.5", "the number 1.5 was given, and wanted is a whole number"),
            ("top_k = -1", "the number -1 was given, and wanted is a whole number that is not negative"),
            ("top_k = [1]", "a list was given, and wanted is a whole number"),
            ("offline = 3", "the number 3 was given, and wanted is true or false"),
            ("offline = \"yes\"", "the text \"yes\" was given, and wanted is true or false"),
            ("listen = 7411", "the number 7411 was given, and wanted is a text in quotes"),
            ("data = 3", "the number 3 was given, and wanted is a text in quotes"),
            ("allowed_hosts = \"a\"", "the text \"a\" was given, and wanted is a list, such as"),
            ("recompute_ratio = \"half\"", "the text \"half\" was given, and wanted is a number"),
            ("prompt = \"x\"", "wanted is a table; set its parts, such as `prompt.system`"),
            ("host_bytes = true", "true was given, and wanted is a number of bytes, or one with a unit"),
            ("keys = \"maybe\"", "the text \"maybe\" was given, and wanted is one of `off`, `required`"),
            ("keys = true", "true was given, and wanted is a name in quotes. Whether requests need an API key"),
            ("host_policy = \"best\"", "the text \"best\" was given, and wanted is one of"),
        ] {
            let said = wrong(text);
            let key = text.split(' ').next().unwrap();
            assert!(said.contains(expected) && said.contains(&format!("setting `{key}` in ")), "{text}: {said}");
        }
    }

    /// Whatever the setting, and whatever stands there.
    #[test]
    fn no_type_of_rust_is_named() {
        let words = [
            "usize", "u64", "u32", "f64", "string", "boolean", "sequence", "map", "enum", "struct", "option",
            "variant", "serde",
        ];
        let values =
            [serde_json::to_value(Surface::default()).unwrap(), serde_json::to_value(Settings::default()).unwrap()];
        let mut seen = 0;
        for key in values.iter().flat_map(|values| values.as_object().unwrap().keys()) {
            for value in ["true", "-7", "1.5", "\"zzz\"", "[1]", "{ zzz = 1 }"] {
                let Err(error) = load(Some(file(&format!("{key} = {value}")).path()), &Flags::default()) else {
                    continue;
                };
                let error = error.to_string();
                assert!(!error.contains("``"), "{key} = {value}: {error}");
                let said = error.replace(key, "");
                let has = |word: &&str| said.split(|c: char| !c.is_alphanumeric()).any(|part| part == *word);
                assert_eq!(words.iter().find(|word| has(word)), None, "{key} = {value}: {said}");
                seen += 1;
            }
        }
        assert!(seen > 200, "only {seen} were wrong");
    }

    #[test]
    fn a_file_that_is_no_toml_is_at_fault_and_no_setting() {
        let file = file("top_k = 3\nmodel = /models/x\n");
        let said = load(Some(file.path()), &Flags::default()).unwrap_err().to_string();
        let name = file.path().display().to_string();
        for words in [format!("the settings in {name} are not valid TOML"), "line 2".into(), "texts in quotes".into()] {
            assert!(said.contains(&words), "no {words} in {said}");
        }
        assert!(!said.contains("``"), "{said}");
        assert!(wrong("\"\" = 1").starts_with("a setting without a name in "), "{}", wrong("\"\" = 1"));
    }
}
