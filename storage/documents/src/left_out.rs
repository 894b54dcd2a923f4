//! What a reader leaves out, in words for people.

/// Names in one note.
const MAX_NAMES: usize = 3;
const MAX_NAME_BYTES: usize = 40;

/// Notes of a document.
#[derive(Debug, Default)]
pub struct LeftOut(Vec<String>);

impl LeftOut {
    /// `hidden text: 2 places`.
    pub fn places(&mut self, what: &str, count: usize) {
        match count {
            0 => {}
            1 => self.0.push(format!("{what}: 1 place")),
            _ => self.0.push(format!("{what}: {count} places")),
        }
    }

    /// `2 hidden slides`.
    pub fn count(&mut self, one: &str, several: &str, count: usize) {
        match count {
            0 => {}
            1 => self.0.push(format!("1 {one}")),
            _ => self.0.push(format!("{count} {several}")),
        }
    }

    /// ``hidden sheets `A`, `B` and 4 more``.
    pub fn names(&mut self, one: &str, several: &str, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let shown = |name: &String| {
            let clean = super::name::clean(name, MAX_NAME_BYTES);
            format!("`{}`", &clean[..clean.floor_char_boundary(MAX_NAME_BYTES)])
        };
        let mut note = if names.len() == 1 { one.to_owned() } else { several.to_owned() };
        note.push(' ');
        note.push_str(&names.iter().take(MAX_NAMES).map(shown).collect::<Vec<_>>().join(", "));
        if names.len() > MAX_NAMES {
            note.push_str(&format!(" and {} more", names.len() - MAX_NAMES));
        }
        self.0.push(note);
    }

    /// As documents have it.
    pub fn into_notes(self) -> Vec<String> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_short() {
        let mut left = LeftOut::default();
        left.places("struck text", 0);
        left.places("hidden text", 1);
        left.places("struck text", 2);
        left.count("hidden slide", "hidden slides", 2);
        left.names("hidden sheet", "hidden sheets", &["Costs".into()]);
        left.names("hidden sheet", "hidden sheets", &vec!["é".repeat(100); 7]);
        let notes = left.into_notes();
        assert_eq!(notes[..3], ["hidden text: 1 place", "struck text: 2 places", "2 hidden slides"]);
        assert_eq!(notes[3], "hidden sheet `Costs`");
        assert!(notes[4].starts_with("hidden sheets `éé") && notes[4].ends_with(" and 4 more"), "{}", notes[4]);
        assert!(notes[4].len() < 200);
    }
}
