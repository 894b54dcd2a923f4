//! Which files of a repository make a model, and what is missing of them here.

use std::path::PathBuf;

use serde::Deserialize;

use super::cache::{self, Repository, is_commit, is_path};
use super::fetch::Hub;
use super::{FILE_BYTES, HubId, INDEX, WANTED, WEIGHTS, shards, untrusted};
use crate::error::{Error, ErrorKind, Result};
use crate::machine;

/// What of a repository is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// A folder of `config.json`, `tokenizer.json` and safetensors.
    Folder,
    /// That, or the only GGUF file of a repository that has no such folder.
    Any,
    /// The GGUF file of this name.
    File(String),
    /// The GGUF file of this quantization, such as `q4_k_m`.
    Quantization(String),
}

/// What the hub says of a repository.
#[derive(Deserialize)]
pub(super) struct Info {
    sha: String,
    siblings: Vec<RemoteFile>,
}

/// A file of a repository, as the hub describes it. Mirrors may leave out what is optional.
#[derive(Debug, Clone, Deserialize)]
pub struct RemoteFile {
    /// Its place in the repository.
    #[serde(rename = "rfilename")]
    pub name: String,
    /// Bytes.
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

/// How large files are kept: by their hash.
#[derive(Debug, Clone, Deserialize)]
struct Lfs {
    sha256: String,
    #[serde(default)]
    size: Option<u64>,
}

impl RemoteFile {
    /// Bytes, if the hub said so.
    pub fn bytes(&self) -> Option<u64> {
        self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size)
    }

    /// The SHA-256 of its content, if the hub said so.
    pub fn sha256(&self) -> Option<&str> {
        self.lfs.as_ref().map(|lfs| lfs.sha256.as_str())
    }
}

/// What is to be fetched.
pub struct Plan {
    pub id: HubId,
    /// The commit that the revision stands for now.
    pub commit: String,
    /// Every file that is wanted.
    pub files: Vec<RemoteFile>,
    hub: Hub,
    repository: Repository,
    /// A GGUF file by itself.
    gguf: Option<String>,
}

impl Plan {
    /// Asks the hub what a repository holds, and chooses from it. Nothing is written.
    ///
    /// # Errors
    /// `NotFound` for a repository that is not there, or lacks what is wanted: the message lists what there is.
    pub async fn of(id: &HubId, choice: &Choice) -> Result<Self> {
        let repository = Repository::of(id).ok_or_else(|| {
            Error::invalid_input(
                "cannot find this user's cache folder (no HOME); set HF_HOME, or give a model's folder",
            )
        })?;
        let hub = Hub::from_environment(cache::token())?;
        let Info { sha: commit, siblings } = hub.info(id).await?;
        if !is_commit(&commit) {
            return Err(untrusted(id, &format!("calls its commit {commit:?}")));
        }
        if cache::is_full_commit(&id.revision) && id.revision != commit {
            return Err(untrusted(id, &format!("is about commit {commit}")));
        }
        let (files, gguf) = chosen(id, siblings, choice)?;
        let mut plan = Self { id: id.clone(), commit, files, hub, repository, gguf };
        if plan.has(INDEX) {
            let named = plan.indexed(&plan.read(INDEX).await?)?;
            plan.files.retain(|file| is_fetched(&file.name, &named));
        }
        Ok(plan)
    }

    /// The shards that an index names.
    fn indexed(&self, index: &[u8]) -> Result<Vec<String>> {
        shards(index).map_err(|why| untrusted(&self.id, &format!("has an {INDEX} that is of no use: {why}")))
    }

    /// The chosen GGUF file.
    pub fn gguf(&self) -> Option<&str> {
        self.gguf.as_deref()
    }

    /// The files with weights.
    pub fn weights(&self) -> impl Iterator<Item = &RemoteFile> {
        self.files.iter().filter(|file| is_weights(&file.name))
    }

    /// Bytes of all files, as far as the hub said.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(RemoteFile::bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that are not here yet, as far as the hub said how long its files are.
    pub fn missing_bytes(&self) -> u64 {
        let missing = |file: &RemoteFile| {
            let bytes = file.bytes().unwrap_or(0);
            if self.repository.file(&self.commit, &file.name).is_some() {
                return 0;
            }
            let Some(sha256) = file.sha256().filter(|sha256| cache::is_etag(sha256)) else { return bytes };
            let has = |path: PathBuf| path.metadata().map_or(0, |found| found.len());
            match has(self.repository.blob(sha256)) {
                0 => bytes.saturating_sub(has(self.repository.part(sha256))),
                there => bytes.saturating_sub(there),
            }
        };
        self.files.iter().map(missing).fold(0, u64::saturating_add)
    }

    /// Where it will lie: a folder, or a GGUF file.
    pub fn path(&self) -> PathBuf {
        let folder = self.repository.snapshot(&self.commit);
        self.gguf.as_ref().map_or(folder.clone(), |name| folder.join(name))
    }

    /// Refuses what the disk has no room for, before anything is fetched.
    ///
    /// # Errors
    /// `Full`.
    pub fn check_room(&self) -> Result<()> {
        machine::check_room(self.repository.folder(), self.missing_bytes(), &format!("fetching {}", self.id), "HF_HOME")
    }

    /// A small file of the plan, read without being kept; that of the cache where it is there.
    pub async fn read(&self, name: &str) -> Result<Vec<u8>> {
        if let Some(path) = self.repository.file(&self.commit, name) {
            return cache::read(&path, FILE_BYTES).map_err(|error| Error::io("cannot read", &path, error));
        }
        self.hub.read(&self.id, &self.commit, name, None).await
    }

    /// The first `bytes` of a file from `begin` on, fewer where it ends before, without being kept.
    pub async fn read_part(&self, name: &str, begin: u64, bytes: u64) -> Result<Vec<u8>> {
        self.hub.read(&self.id, &self.commit, name, Some((begin, bytes))).await
    }

    /// Whether a file of this name is wanted.
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }

    /// Fetches what is missing, and says where the model lies.
    pub async fn fetch(&self) -> Result<PathBuf> {
        // The index says which shards there are: it comes before them.
        let (weights, small): (Vec<_>, Vec<_>) = self.files.iter().partition(|file| is_weights(&file.name));
        for file in small {
            self.take(file).await?;
        }
        if self.has(INDEX) {
            let path = self.repository.snapshot(&self.commit).join(INDEX);
            let index = cache::read(&path, FILE_BYTES).map_err(|error| Error::io("cannot read", &path, error))?;
            for name in self.indexed(&index)? {
                let unknown = || RemoteFile { name: name.clone(), size: None, lfs: None };
                let file = weights.iter().find(|file| file.name == name).map_or_else(unknown, |file| (*file).clone());
                self.take(&file).await?;
            }
        } else {
            for file in weights {
                self.take(file).await?;
            }
        }
        // Last, so that a revision stands for whole snapshots only.
        self.repository.note_commit(&self.id.revision, &self.commit)?;
        Ok(self.path())
    }

    async fn take(&self, file: &RemoteFile) -> Result<()> {
        self.hub.fetch(&self.id, &self.repository, &self.commit, file).await
    }
}

/// Whether a file is taken where an index names these shards: a repository may hold its weights twice, in another precision or for another
/// program.
fn is_fetched(name: &str, shards: &[String]) -> bool {
    !is_shard(name) || shards.iter().any(|shard| shard == name)
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || is_gguf(name)
}

fn is_gguf(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".gguf")
}

/// The files that are wanted of those that are there, and the GGUF file among them.
fn chosen(id: &HubId, there: Vec<RemoteFile>, choice: &Choice) -> Result<(Vec<RemoteFile>, Option<String>)> {
    let has = |name: &str| there.iter().any(|file| file.name == name);
    let has_weights = there.iter().any(|file| file.name.ends_with(".safetensors"));
    let is_folder = has("config.json") && has("tokenizer.json") && has_weights;
    if matches!(choice, Choice::Folder | Choice::Any) && is_folder {
        let sharded = has(INDEX);
        // Where there is an index, it says which of them are taken.
        let is_wanted = |name: &str| {
            (WANTED.contains(&name) && !(sharded && name == WEIGHTS)) || (sharded && is_shard(name) && is_path(name))
        };
        let mut wanted: Vec<RemoteFile> = there.into_iter().filter(|file| is_wanted(&file.name)).collect();
        // `config.json` first: what cannot be run is known by it.
        wanted.sort_by_key(|file| WANTED.iter().position(|name| *name == file.name).unwrap_or(WANTED.len()));
        return Ok((wanted, None));
    }
    let files: Vec<&RemoteFile> = there.iter().filter(|file| is_gguf(&file.name) && is_model(&file.name)).collect();
    if files.is_empty() || *choice == Choice::Folder {
        return Err(no_folder(id, &files));
    }
    let file = choose_gguf(id, &files, choice)?;
    if !is_path(&file.name) {
        return Err(untrusted(id, &format!("names the file {:?}", file.name)));
    }
    Ok((vec![file.clone()], Some(file.name.clone())))
}

fn no_folder(id: &HubId, files: &[&RemoteFile]) -> Error {
    let advice = if files.is_empty() {
        "take a model that has them, or download one of its .gguf files and give its path".to_owned()
    } else {
        format!(
            "it has .gguf files: `ragstone models fetch {id} --quant NAME` takes one of {}, and prints the path to give as --model",
            names(files)
        )
    };
    Error::invalid_input(format!(
        "{id} on the hub lacks config.json, tokenizer.json or *.safetensors weights; {advice}"
    ))
}

fn choose_gguf<'a>(id: &HubId, files: &[&'a RemoteFile], choice: &Choice) -> Result<&'a RemoteFile> {
    let not_found = |what: String| {
        let message = format!("{what}; there are {}", names(files));
        Err(Error::new(ErrorKind::NotFound, message))
    };
    let found: Vec<&RemoteFile> = match choice {
        Choice::File(name) => files.iter().filter(|file| file.name == *name).copied().collect(),
        Choice::Quantization(wanted) => {
            let is_it =
                |file: &&&RemoteFile| quantization(&file.name).is_some_and(|found| found.eq_ignore_ascii_case(wanted));
            files.iter().filter(is_it).copied().collect()
        }
        Choice::Folder | Choice::Any => files.to_vec(),
    };
    match (found.as_slice(), choice) {
        ([], Choice::File(name)) => not_found(format!("{id} has no file {name:?}")),
        ([], Choice::Quantization(wanted)) => not_found(format!("{id} has no GGUF file of quantization {wanted}")),
        (found, _) if !found.is_empty() && found.iter().all(|file| is_split(&file.name)) => {
            let message = format!(
                "{} of {id} is one part of a model; take another quantization, or fetch all parts and join them with llama.cpp's \
                 `llama-gguf-split --merge`",
                found[0].name
            );
            Err(Error::invalid_input(message))
        }
        ([file], _) => Ok(file),
        _ => Err(Error::invalid_input(format!(
            "{id} has several GGUF files: choose one with --quant NAME or --file FILE; there are {}",
            names(files)
        ))),
    }
}

/// What can be chosen from, a line's worth.
fn names(files: &[&RemoteFile]) -> String {
    const SHOWN: usize = 40;
    let name = |file: &&RemoteFile| match quantization(&file.name) {
        Some(quantization) => quantization.to_owned(),
        None => file.name.chars().filter(|c| !c.is_control()).take(100).collect(),
    };
    let mut names: Vec<String> = files.iter().take(SHOWN).map(name).collect();
    names.dedup();
    let more = if files.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}

/// Projectors of images, and what quantization was made with, are no models.
fn is_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    !file.starts_with("mmproj") && !file.contains("imatrix")
}

/// `model-00001-of-00003.safetensors`
fn is_shard(name: &str) -> bool {
    name.strip_suffix(".safetensors").is_some_and(is_numbered) && !name.contains('/')
}

/// `model-q4_k_m-00001-of-00003.gguf`
fn is_split(name: &str) -> bool {
    name.len() > 5 && is_numbered(&name[..name.len() - 5])
}

fn is_numbered(stem: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((before, last)) = stem.rsplit_once("-of-") else { return false };
    digits(last) && before.rsplit_once('-').is_some_and(|(_, number)| digits(number))
}

/// How a GGUF file is quantized, by its name: `Q4_K_M` of `Llama-3.2-1B-Instruct-Q4_K_M.gguf`.
pub fn quantization(name: &str) -> Option<&str> {
    let file = name.rsplit('/').next()?;
    let stem = file.get(..file.len().checked_sub(5)?)?;
    let stem = if is_numbered(stem) { stem.rsplit_once("-of-")?.0.rsplit_once('-')?.0 } else { stem };
    let is_one = |text: &str| {
        let text = text.to_ascii_lowercase();
        let digit_after =
            |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        matches!(text.as_str(), "f16" | "f32" | "bf16" | "fp16" | "fp32" | "mxfp4")
            || ["q", "iq", "tq"].iter().any(|prefix| digit_after(prefix))
    };
    // The longest end that is one: `Q4_K_M`, not a part of it.
    let begins = stem.char_indices().filter(|(_, c)| matches!(c, '-' | '.' | '_')).map(|(at, _)| at + 1);
    std::iter::once(0).chain(begins).map(|at| &stem[at..]).find(|end| is_one(end) && !end.contains(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<RemoteFile> {
        names.iter().map(|name| RemoteFile { name: (*name).to_owned(), size: Some(1), lfs: None }).collect()
    }

    fn choose(names: &[&str], choice: &Choice) -> Result<Vec<String>> {
        let id = HubId::parse("a/b").unwrap();
        chosen(&id, files(names), choice).map(|(files, _)| files.into_iter().map(|file| file.name).collect())
    }

    #[test]
    fn quantizations_are_known_by_the_names_that_people_give() {
        for (name, expected) in [
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", Some("q4_k_m")),
            ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", Some("Q4_K_M")),
            ("tinyllama-1.1b-chat-v1.0.Q8_0.gguf", Some("Q8_0")),
            ("model_q5_0.gguf", Some("q5_0")),
            ("x-IQ4_XS.gguf", Some("IQ4_XS")),
            ("x-BF16.gguf", Some("BF16")),
            ("q8/x-fp16-00001-of-00002.gguf", Some("fp16")),
            ("qwen.gguf", None),
            ("q.gguf", None),
            (".gguf", None),
            ("x", None),
        ] {
            assert_eq!(quantization(name), expected, "{name}");
        }
    }

    #[test]
    fn one_file_of_a_gguf_repository_is_chosen_or_the_choice_is_listed() {
        let there = ["README.md", "x-q4_k_m.gguf", "x-q8_0.gguf", "mmproj-x-f16.gguf", "x-f16-00001-of-00002.gguf"];
        let quant = |name: &str| Choice::Quantization(name.to_owned());
        assert_eq!(choose(&there, &quant("Q4_K_M")).unwrap(), ["x-q4_k_m.gguf"]);
        assert_eq!(choose(&there, &Choice::File("x-q8_0.gguf".into())).unwrap(), ["x-q8_0.gguf"]);
        assert_eq!(choose(&there[..2], &Choice::Any).unwrap(), ["x-q4_k_m.gguf"]);
        for (choice, words) in [
            (quant("q4_k"), "q4_k_m, q8_0"),
            (quant("k_m"), "q4_k_m, q8_0"),
            (quant("f16"), "llama-gguf-split"),
            (Choice::File("../x".into()), "no file"),
            (Choice::Any, "--quant"),
            (Choice::Folder, "--quant"),
        ] {
            let error = choose(&there, &choice).unwrap_err().to_string();
            assert!(error.contains(words), "{choice:?}: {error}");
        }
        let error = choose(&["/x-q4_0.gguf"], &Choice::Any).unwrap_err().to_string();
        assert!(error.contains("nothing of it was used"), "{error}");
    }

    #[test]
    fn a_folder_is_its_configuration_tokenizer_and_weights() {
        let whole = ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "x-q8_0.gguf"];
        let expected = ["config.json", "tokenizer.json", "model.safetensors"];
        for choice in [Choice::Folder, Choice::Any] {
            assert_eq!(choose(&whole, &choice).unwrap(), expected);
        }
        let sharded = [
            "config.json",
            "tokenizer.json",
            INDEX,
            "model-1-of-2.safetensors",
            "model-2-of-2.safetensors",
            "adapter.safetensors",
        ];
        assert_eq!(choose(&sharded, &Choice::Any).unwrap(), sharded[..5]);
        assert!(choose(&["config.json", "pytorch_model.bin"], &Choice::Any).unwrap_err().to_string().contains("lacks"));
    }

    #[test]
    fn shards_that_the_index_does_not_name_are_not_of_the_model() {
        let there = [
            "config.json",
            "tokenizer.json",
            INDEX,
            "consolidated-00001-of-00002.safetensors",
            "consolidated-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model-fp32-00001-of-00001.safetensors",
        ];
        let index =
            br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
        let named = shards(index).unwrap();
        let mut chosen = choose(&there, &Choice::Folder).unwrap();
        chosen.retain(|name| is_fetched(name, &named));
        assert_eq!(chosen, [&there[..3], &there[5..7]].concat());
    }
}
