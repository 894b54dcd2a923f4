//! The models on this machine: those of the hub's cache, and those that ragstone keeps itself.

use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ragstone_kernels::gguf::Gguf;
use ragstone_kernels::weights::main_dtype;
use ragstone_models::hub::stored::{self, Snapshot};
use ragstone_models::kind::{Described, Kind, describe};
use ragstone_models::model_source::demo::DEMO;
use ragstone_models::model_source::{self, default_model};
use ragstone_models::{embedder_source, hub};
use ragstone_service::client::Client;
use ragstone_service::config::Config;
use ragstone_service::data_folder::DataFolder;
use serde::Serialize;
use serde_json::Value;

use crate::error::Result;

/// A model that is here, or a part of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Here {
    /// As `--model` or `models remove` takes it.
    pub id: String,
    /// The branches and tags that stand for it here.
    pub revisions: Vec<String>,
    /// Null: it is not from the hub, or nothing of it is whole.
    pub commit: Option<String>,
    /// The GGUF file that is meant of this commit.
    pub file: Option<String>,
    pub kind: Kind,
    pub architecture: Option<String>,
    /// Of most weights.
    pub dtype: Option<String>,
    /// On disk.
    pub bytes: u64,
    /// Whether all its files are here.
    pub whole: bool,
    /// When its weights were read last, as far as the file system notes that.
    pub last_used_unix_ms: Option<u64>,
    /// Whether the service of the data folder has it.
    pub in_use: bool,
    /// Its folder or file.
    pub path: PathBuf,
}

/// The models of a running service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// The service's process; `None` where none runs.
    pub pid: Option<u32>,
    paths: Vec<PathBuf>,
}

impl InUse {
    /// Those of the data folder's service, if one runs. Nothing is created.
    pub async fn of(config: &Config) -> Result<Self> {
        let path = config.data()?;
        let record = if DataFolder::is_used(&path) { DataFolder::existing(&path)?.service_record() } else { None };
        let Some(record) = record else { return Ok(Self::default()) };
        if !Client::new(&record.address, &record.token)?.is_process(record.pid).await {
            return Ok(Self::default());
        }
        let paths = record.models.iter().filter_map(|path| path.canonicalize().ok()).collect();
        Ok(Self { pid: Some(record.pid), paths })
    }

    /// Whether the service has this folder or GGUF file.
    pub fn has(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| self.paths.contains(&path))
    }

    /// Whether the service has the files of this snapshot; of a GGUF file the snapshot has only a link.
    pub fn has_snapshot(&self, snapshot: &Snapshot) -> bool {
        self.has(&snapshot.path) || snapshot.files.iter().any(|name| self.has(&snapshot.path.join(name)))
    }
}

/// Every model that is here, by id.
pub fn all(data: &Path, used: &InUse) -> Vec<Here> {
    let mut all = Vec::new();
    for repository in stored::all() {
        all.extend(repository.snapshots.iter().flat_map(of_snapshot));
        if repository.partial_bytes > 0 {
            all.push(partial(&repository));
        }
    }
    all.extend(own(data).into_iter().filter(|own| own.folder.is_dir()).map(|own| match own.gguf() {
        Some(file) => Here { id: own.id.to_owned(), ..of_file(file) },
        None => of_folder(own.id, own.folder),
    }));
    all.iter_mut().for_each(|here| here.in_use = used.has(&here.path));
    all
}

/// A model that ragstone keeps itself, in a folder of its own.
pub struct Own {
    pub id: &'static str,
    pub folder: PathBuf,
}

impl Own {
    /// The model: the folder, or the GGUF file in it.
    pub fn path(&self) -> PathBuf {
        self.gguf().unwrap_or_else(|| self.folder.clone())
    }

    fn gguf(&self) -> Option<PathBuf> {
        let mut files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        files.find(|path| path.extension().is_some_and(|end| end == "gguf"))
    }
}

/// What ragstone keeps itself: the demo model of a data folder, and the default models that wheels brought.
pub fn own(data: &Path) -> Vec<Own> {
    let demo = Own { id: model_source::DEMO_ID, folder: DEMO.folder(&data.join("models")) };
    let model = default_model::cache_folder().map(|folder| Own { id: model_source::DEFAULT_ID, folder });
    let embedder = embedder_source::cache_folder().ok().map(|folder| Own { id: embedder_source::DEFAULT_ID, folder });
    [demo].into_iter().chain(model).chain(embedder).collect()
}

/// A download that was broken off.
fn partial(repository: &stored::StoredRepository) -> Here {
    Here {
        id: repository.name.clone(),
        revisions: Vec::new(),
        commit: None,
        file: None,
        kind: Kind::Other,
        architecture: None,
        dtype: None,
        bytes: repository.partial_bytes,
        whole: false,
        last_used_unix_ms: None,
        in_use: false,
        path: repository.folder.clone(),
    }
}

/// The model folder of a commit, and each of its GGUF files.
fn of_snapshot(snapshot: &Snapshot) -> Vec<Here> {
    let ggufs = snapshot.files.iter().filter(|name| name.to_ascii_lowercase().ends_with(".gguf"));
    let mut found: Vec<Here> = ggufs.map(|name| of_gguf(snapshot, name)).collect();
    if found.is_empty() || snapshot.files.iter().any(|name| name == "config.json") {
        let mut folder = of_folder(&snapshot.name, snapshot.path.clone());
        let in_files: u64 = found.iter().map(|gguf| gguf.bytes).sum();
        folder.bytes = snapshot.bytes().saturating_sub(in_files);
        folder.commit = Some(snapshot.commit.clone());
        folder.revisions.clone_from(&snapshot.revisions);
        found.insert(0, folder);
    }
    found
}

fn of_folder(id: &str, path: PathBuf) -> Here {
    let files = std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    let config = std::fs::read(path.join("config.json")).ok();
    let config: Value = config.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let Described { kind, architecture, dtype } = describe(&config, |name| path.join(name).is_file());
    let weights = files.iter().filter(|file| file.extension().is_some_and(|end| end == "safetensors"));
    Here {
        id: id.to_owned(),
        revisions: Vec::new(),
        commit: None,
        file: None,
        kind,
        architecture,
        dtype,
        bytes: files.iter().filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum(),
        whole: hub::is_whole(&path),
        last_used_unix_ms: weights.filter_map(|file| accessed(file)).max().and_then(unix_ms),
        in_use: false,
        path,
    }
}

fn of_gguf(snapshot: &Snapshot, name: &str) -> Here {
    Here {
        id: snapshot.name.clone(),
        revisions: snapshot.revisions.clone(),
        commit: Some(snapshot.commit.clone()),
        file: Some(name.to_owned()),
        ..of_file(snapshot.path.join(name))
    }
}

/// What a GGUF file says of itself.
fn of_file(path: PathBuf) -> Here {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let used = accessed(&path);
    let opened = Gguf::open(&path).ok();
    let architecture = opened.as_ref().and_then(|gguf| gguf.config().ok());
    let dtype = opened.as_ref().map(|gguf| main_dtype(&gguf.shapes()));
    // Looking at it here is no use of it.
    if let (Some(used), Ok(file)) = (used, File::open(&path)) {
        let restored = file.set_times(FileTimes::new().set_accessed(used));
        tracing::debug!(path = %path.display(), is_restored = restored.is_ok(), "looked into a model");
    }
    Here {
        id: String::new(),
        revisions: Vec::new(),
        commit: None,
        kind: Kind::LanguageModel,
        architecture: architecture.map(|config| config.architecture.class_name().to_owned()),
        dtype: dtype.or_else(|| hub::quantization(&name).map(str::to_owned)),
        bytes: path.metadata().map_or(0, |found| found.len()),
        whole: path.is_file(),
        last_used_unix_ms: used.and_then(unix_ms),
        in_use: false,
        file: Some(name),
        path,
    }
}

fn accessed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.accessed().ok()
}

fn unix_ms(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}
