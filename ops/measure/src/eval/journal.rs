//! What an evaluation has measured so far, in a file, so that one that was interrupted goes on where it was.
//!
//! ```text
//! {"ragstone": "0.1.0", "build": "…", "dataset": "…", "model": "…", "chat_template": "…", "settings": "…", "kernels": {…},
//!  "threads": 8, "date": null, "max_tokens": 32, "seed": 1, "map_prompt": "…"}   (one line)
//! {"item": 0, "variant": {"mode": "full", …}, "answer": "…", "ttft_ms": 21.3, "tokens": {…}}
//! {"item": 4, "left_out": "the prompt has …"}
//! ```
//!
//! JSON lines; the first says what the others were measured of, and must be that of the run that goes on. A line is written whole, by
//! one write, when its answer is there; a last line that is not whole (the machine stopped while it was written) is cut off.
//! What is kept is what was measured and not how it was scored, so that scoring can change.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ragstone_kernels::simd::Paths;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::report::Tokens;
use super::variant::Variant;
use crate::error::{Error, ErrorKind, Result};

/// What answers depend on beside question and variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The program's version.
    pub ragstone: String,
    /// Digest of the program itself: two builds of a version need not answer alike.
    #[serde(default)]
    pub build: String,
    /// Digest of the data set's file.
    pub dataset: String,
    /// The model's fingerprint.
    pub model: String,
    /// Digest of the chat template; empty where the model has none.
    #[serde(default)]
    pub chat_template: String,
    /// Digest of the settings.
    pub settings: String,
    /// The kernels that compute, on whose bits answers depend; `None` in a journal of a version that noted none, or others.
    #[serde(default, deserialize_with = "kernels")]
    pub kernels: Option<Paths>,
    /// Compute threads, on which times to the first token depend.
    #[serde(default)]
    pub threads: usize,
    /// The date, where prompts tell it.
    #[serde(default)]
    pub date: Option<String>,
    /// The longest answer.
    pub max_tokens: usize,
    /// Of the rule `random`.
    pub seed: u64,
    /// What `map-reduce` asks of each passage.
    pub map_prompt: String,
}

fn kernels<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Paths>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// The kernels by which the journal at `path` was begun. Whoever goes on takes them, since another measurement may find others to be the
/// fastest. `None` where that file is no journal yet.
pub fn kernels_of(path: &Path) -> Option<Paths> {
    let mut first = String::new();
    BufReader::new(File::open(path).ok()?).take(MOST_BOUND_BYTES).read_line(&mut first).ok()?;
    serde_json::from_str::<Bound>(&first).ok()?.kernels
}

/// One answer, as it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The question's place in the data set.
    pub item: usize,
    pub variant: Variant,
    pub answer: String,
    pub ttft_ms: f64,
    pub tokens: Tokens,
}

/// A question that does not fit the model's context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LeftOut {
    item: usize,
    left_out: String,
}

/// Answers by question and variant; in memory, or in a file, too.
#[derive(Debug, Default)]
pub struct Journal {
    /// By question.
    asked: BTreeMap<usize, Vec<Asked>>,
    left_out: Vec<LeftOut>,
    file: Option<(PathBuf, File)>,
}

/// More than a journal's first line has.
const MOST_BOUND_BYTES: u64 = 1 << 20;
/// What every journal begins with.
const BEGINNING: &[u8] = b"{\"ragstone\":\"";

impl Journal {
    /// Goes on with the journal at `path`, or begins it.
    ///
    /// # Errors
    /// `Incompatible` if it is of another run, `Unavailable` while another process writes it, `InvalidInput` for a file that is no
    /// journal, those of reading and writing.
    pub fn open(path: &Path, bound: &Bound) -> Result<Self> {
        let cannot = |doing: &'static str| move |error: std::io::Error| Error::io(doing, path, error);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(cannot("cannot open"))?;
        // Where a file system has no locks, nobody is kept out.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = format!("another evaluation writes {}; wait for it, or name another file", path.display());
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(cannot("cannot read"))?;
        let mut journal = Self::default();
        let whole = journal.read(&bytes, bound, path)?;
        file.set_len(whole as u64).map_err(cannot("cannot write"))?;
        file.seek(SeekFrom::End(0)).map_err(cannot("cannot write"))?;
        journal.file = Some((path.to_owned(), file));
        if whole == 0 {
            journal.write(bound)?;
        }
        Ok(journal)
    }

    /// Takes what `bytes` hold, and says how many of them are whole lines.
    fn read(&mut self, bytes: &[u8], bound: &Bound, path: &Path) -> Result<usize> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        // A first line that was cut short begins as all do; anything else is somebody's file.
        let begins = &bytes[..bytes.len().min(BEGINNING.len())];
        if whole == 0 && !BEGINNING.starts_with(begins) {
            let why = "not the journal of an evaluation; name another file, or remove it";
            return Err(Error::invalid_input(format!("{}: {why}", path.display())));
        }
        let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate();
        for (at, line) in lines {
            let wrong = |why: &str| Error::invalid_input(format!("{} line {}: {why}", path.display(), at + 1));
            if at == 0 {
                let found: Bound = serde_json::from_slice(line)
                    .map_err(|_| wrong("not the journal of an evaluation; name another file, or remove it"))?;
                check(&found, bound, path)?;
            } else if let Ok(asked) = serde_json::from_slice::<Asked>(line) {
                self.asked.entry(asked.item).or_default().push(asked);
            } else {
                let left_out = serde_json::from_slice::<LeftOut>(line);
                self.left_out.push(left_out.map_err(|error| wrong(&format!("damaged: {error}")))?);
            }
        }
        Ok(whole)
    }

    /// The answer that was measured already.
    pub fn asked(&self, item: usize, variant: Variant) -> Option<&Asked> {
        self.asked.get(&item)?.iter().find(|asked| asked.variant == variant)
    }

    /// Why the question is left out, where it is.
    pub fn left_out(&self, item: usize) -> Option<&str> {
        self.left_out.iter().find(|it| it.item == item).map(|it| it.left_out.as_str())
    }

    /// Keeps an answer.
    ///
    /// # Errors
    /// Those of writing.
    pub fn note(&mut self, asked: Asked) -> Result<()> {
        self.write(&asked)?;
        self.asked.entry(asked.item).or_default().push(asked);
        Ok(())
    }

    /// Keeps that a question is left out, and why.
    ///
    /// # Errors
    /// Those of writing.
    pub fn leave_out(&mut self, item: usize, why: &str) -> Result<()> {
        let left_out = LeftOut { item, left_out: why.to_owned() };
        self.write(&left_out)?;
        self.left_out.push(left_out);
        Ok(())
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let mut line =
            serde_json::to_vec(line).map_err(|error| Error::internal(format!("an answer as JSON: {error}")))?;
        line.push(b'\n');
        file.write_all(&line).map_err(|error| Error::io("cannot write", path, error))
    }
}

/// Whether a journal is of this run.
fn check(found: &Bound, wanted: &Bound, path: &Path) -> Result<()> {
    let differs = [
        ("the program's version", found.ragstone != wanted.ragstone),
        ("the program's build", found.build != wanted.build),
        ("the data set", found.dataset != wanted.dataset),
        ("the model", found.model != wanted.model),
        ("the chat template", found.chat_template != wanted.chat_template),
        ("the settings", found.settings != wanted.settings),
        ("the kernels", found.kernels != wanted.kernels),
        ("the compute threads", found.threads != wanted.threads),
        ("the date that prompts tell", found.date != wanted.date),
        ("--max-tokens", found.max_tokens != wanted.max_tokens),
        ("--seed", found.seed != wanted.seed),
        ("--map-prompt", found.map_prompt != wanted.map_prompt),
    ];
    let names: Vec<&str> = differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
    if names.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} is the journal of another run, which differs in {}; name another file, or remove it",
        path.display(),
        names.join(", ")
    );
    Err(Error::new(ErrorKind::Incompatible, message))
}

#[cfg(test)]
mod tests {
    use ragstone_kernels::simd;

    use super::super::variant::Mode;
    use super::*;

    fn bound() -> Bound {
        Bound {
            ragstone: "1".into(),
            build: "b".into(),
            dataset: "d".into(),
            model: "m".into(),
            chat_template: "c".into(),
            settings: "s".into(),
            kernels: Some(Paths::all(simd::Path::Avx2)),
            threads: 2,
            date: None,
            max_tokens: 8,
            seed: 1,
            map_prompt: "{question}".into(),
        }
    }

    fn asked(item: usize, mode: Mode) -> Asked {
        let tokens = Tokens { exact: 1, blended: 2, recomputed: 3, computed: 4 };
        Asked { item, variant: Variant::plain(mode), answer: "a\n\"b\"".into(), ttft_ms: 1.25, tokens }
    }

    #[test]
    fn what_was_measured_is_there_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.journal");
        let mut journal = Journal::open(&path, &bound()).expect("begun");
        journal.note(asked(3, Mode::Full)).expect("written");
        journal.leave_out(4, "too long").expect("written");
        assert_eq!(Journal::open(&path, &bound()).expect_err("held").kind(), ErrorKind::Unavailable);
        drop(journal);
        let mut journal = Journal::open(&path, &bound()).expect("gone on with");
        assert_eq!(journal.asked(3, Variant::plain(Mode::Full)), Some(&asked(3, Mode::Full)));
        assert_eq!((journal.asked(3, Variant::plain(Mode::Exact)), journal.left_out(4)), (None, Some("too long")));
        journal.note(asked(3, Mode::Exact)).expect("written");
        drop(journal);
        assert_eq!(kernels_of(&path), bound().kernels);
        let journal = Journal::open(&path, &bound()).expect("gone on with");
        assert_eq!(journal.asked(3, Variant::plain(Mode::Exact)), Some(&asked(3, Mode::Exact)));
        assert_eq!(std::fs::read_to_string(&path).expect("text").lines().count(), 4);
    }

    /// Wherever the file ends, what is whole is there, and the next line is whole again.
    #[test]
    fn a_torn_last_line_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.journal");
        let mut journal = Journal::open(&path, &bound()).expect("begun");
        journal.note(asked(0, Mode::Full)).expect("written");
        journal.note(asked(1, Mode::Full)).expect("written");
        drop(journal);
        let whole = std::fs::read(&path).expect("bytes");
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).expect("cut");
            let mut journal = Journal::open(&path, &bound()).expect("gone on with");
            let lines = ends.iter().filter(|line| **line < end).count();
            let there = [0, 1].map(|item| journal.asked(item, Variant::plain(Mode::Full)).is_some());
            assert_eq!(there, [lines > 1, lines > 2], "{end}");
            journal.note(asked(2, Mode::Full)).expect("written");
            drop(journal);
            let journal = Journal::open(&path, &bound()).expect("whole again");
            assert!(journal.asked(2, Variant::plain(Mode::Full)).is_some());
        }
    }

    #[test]
    fn another_run_and_another_file_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.journal");
        Journal::open(&path, &bound()).expect("begun");
        for (other, words) in [
            (Bound { dataset: "e".into(), ..bound() }, "the data set"),
            (Bound { model: "n".into(), seed: 2, ..bound() }, "the model, --seed"),
            (Bound { settings: "t".into(), ..bound() }, "the settings"),
            (Bound { max_tokens: 9, ..bound() }, "--max-tokens"),
            (Bound { ragstone: "2".into(), ..bound() }, "version"),
            (Bound { map_prompt: String::new(), ..bound() }, "--map-prompt"),
            (Bound { build: "c".into(), ..bound() }, "the program's build;"),
            (Bound { chat_template: String::new(), ..bound() }, "the chat template;"),
            (
                Bound { kernels: Some(Paths::all(simd::Path::Amx)), threads: 4, ..bound() },
                "the kernels, the compute threads;",
            ),
            (Bound { date: Some("2026-11-23".into()), ..bound() }, "the date that prompts tell;"),
        ] {
            let refused = Journal::open(&path, &other).expect_err("another run");
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let before = std::fs::read(&path).expect("bytes");
        // Of versions that noted less, and otherwise.
        for kernels in ["", r#","kernels":"avx2""#] {
            let less = format!(
                r#"{{"ragstone":"1","dataset":"d","model":"m","settings":"s","max_tokens":8,"seed":1,"map_prompt":""{kernels}}}"#
            );
            std::fs::write(&path, format!("{less}\n")).expect("written");
            let refused = Journal::open(&path, &bound()).expect_err("it may be another run's");
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            assert!(refused.to_string().contains("the program's build, the chat template, the kernels"), "{refused}");
            assert_eq!(kernels_of(&path), None);
        }
        for (bytes, words) in [
            (&b"hello\n"[..], "line 1: not the journal"),
            (&[&before[..], b"{\"item\": 1}\n"].concat(), "line 2: damaged"),
        ] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(kernels_of(&path).is_some(), words.starts_with("line 2"));
            let refused = Journal::open(&path, &bound()).expect_err("no journal").to_string();
            assert!(refused.contains(words), "{refused}");
            assert_eq!(std::fs::read(&path).expect("bytes"), bytes, "it is left alone");
        }
    }

    #[test]
    fn without_a_file_it_is_in_memory() {
        let mut journal = Journal::default();
        journal.note(asked(0, Mode::Full)).expect("kept");
        assert!(journal.asked(0, Variant::plain(Mode::Full)).is_some());
    }
}
