//! The configuration: one typed struct out of defaults < `--config FILE` < `RAGSTONE_…` variables < flags.
//!
//! In a file and in variables the keys stand flat beside each other: those of [`Surface`] and those of
//! [`ragstone_actors::Settings`]. A key that neither knows is an error that names it and where it stands.

mod fault;
mod listing;
mod sources;
pub mod table;

use std::path::{Path, PathBuf};

use figment::Figment;
use ragstone_actors::{Settings, admission::size, settings};
use serde::{Deserialize, Serialize};

pub use self::listing::Setting;
use self::sources::{File, Half};
use crate::error::{Error, Result};

const PREFIX: &str = "RAGSTONE_";
/// What the binary itself needs to know: where things are and how to speak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Surface {
    /// The data folder; none given takes the platform's.
    pub data: Option<PathBuf>,
    /// The language model: a folder, a GGUF file, a hub id or `demo`; none given takes the default model.
    pub model: Option<String>,
    /// The adapter that is added to the language model: a folder, as PEFT saves it, `reader` or `none`; none given takes the
    /// default model's reader.
    pub adapter: Option<String>,
    /// The embedding model: a folder or a hub id; none given takes all-MiniLM-L6-v2.
    pub embedder: Option<String>,
    /// The cross-encoder that reranks: a folder or a hub id; none given leaves that to the language model.
    pub reranker: Option<String>,
    /// Where `serve` listens. Port 0 picks a free one.
    pub listen: String,
    /// Where health and metrics listen besides, on a thread of their own; none given takes a free port of the loopback interface.
    pub health_listen: Option<String>,
    /// The certificate chain that the service shows, a PEM file; none given: it speaks without TLS.
    pub tls_certificate: Option<PathBuf>,
    /// Its key, a PEM file.
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities that clients' certificates must be signed by, a PEM file; none given: clients need none.
    pub tls_client_ca: Option<PathBuf>,
    /// The folder of the audit log; none given: none is written.
    pub audit_log: Option<PathBuf>,
    /// Files of it that are kept: one for each day that had something to write.
    pub audit_files: usize,
    /// Days that responses and conversations stay after they changed last; 0 keeps none.
    pub responses_days: u64,
    /// What they may take of the disk together, in bytes; may be given with a unit.
    #[serde(deserialize_with = "size::deserialize")]
    pub responses_bytes: u64,
    /// Listen beyond loopback although nobody has to log in.
    pub allow_anyone: bool,
    /// Whether requests need an API key; off by default.
    pub keys: KeyMode,
    /// With keys, whether `/metrics` needs none.
    pub metrics_open: bool,
    /// Host names with a dot that clients may call this service by; `*` is any. Addresses, `localhost` and names without a dot always do.
    pub allowed_hosts: Vec<String>,
    /// Origins, such as `https://chat.example.org`, whose pages may use this service; `*` is any. Its own always does.
    pub allowed_origins: Vec<String>,
    /// Never use the network.
    pub offline: bool,
    /// Which log lines to write, as `RUST_LOG` has it; none given takes the command's own choice.
    pub log: Option<String>,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Also write a line with its times when a step of a request ends.
    pub log_steps: bool,
    /// The OpenTelemetry collector that `serve` sends traces and metrics to; none given leaves that to `OTEL_…`.
    pub otlp_endpoint: Option<String>,
    /// The greatest body of a request, in bytes; may be given with a unit.
    #[serde(deserialize_with = "size::deserialize")]
    pub body_bytes: usize,
    /// What the bodies of all requests may take of memory together, in bytes; may be given with a unit. Those of 64 KiB and
    /// less do not count: the connections bound them.
    #[serde(deserialize_with = "size::deserialize")]
    pub bodies_bytes: usize,
    /// Seconds that a body may take to come, and one more for each 64 KiB of it.
    pub body_timeout_s: u64,
    /// Seconds that a client may leave what was sent to it unread before its connection is closed.
    pub write_timeout_s: u64,
    /// Seconds that running answers have to end, and jobs to their next commit, when the service is told to stop.
    pub grace_s: u64,
    /// Connections at once; more wait until one ends.
    pub max_connections: usize,
    /// Processor time that parsing one file may take, in seconds; 60 by default.
    pub file_seconds: u64,
}

/// Whether requests need an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum KeyMode {
    /// No: whoever reaches the port asks and adds; what deletes wants the owner's token.
    #[default]
    Off,
    /// Yes, all but the page and health; what a request may do follows from its key.
    Required,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Surface {
    fn default() -> Self {
        Self {
            data: None,
            model: None,
            adapter: None,
            embedder: None,
            reranker: None,
            listen: "127.0.0.1:7411".into(),
            health_listen: None,
            tls_certificate: None,
            tls_key: None,
            tls_client_ca: None,
            audit_log: None,
            audit_files: 90,
            responses_days: 30,
            responses_bytes: 1 << 30,
            allow_anyone: false,
            keys: KeyMode::Off,
            metrics_open: false,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            offline: false,
            log: None,
            log_format: LogFormat::Text,
            log_steps: false,
            otlp_endpoint: None,
            body_bytes: 16 << 20,
            bodies_bytes: 64 << 20,
            body_timeout_s: 10,
            write_timeout_s: 30,
            grace_s: 10,
            max_connections: 1024,
            file_seconds: 60,
        }
    }
}

impl Surface {
    fn validate(&self) -> Result<()> {
        let values = serde_json::to_value(self).map_err(|error| Error::internal(error.to_string()))?;
        settings::check(table::SURFACE, &values)?;
        if self.bodies_bytes < self.body_bytes {
            let least = self.body_bytes;
            return Err(Error::invalid_input(format!(
                "setting `bodies_bytes` must be at least {least}, as `body_bytes` is"
            )));
        }
        Ok(())
    }
}

/// The whole configuration.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where things are and how to speak.
    pub surface: Surface,
    /// Capacities, limits and defaults of the running service.
    pub settings: Settings,
    /// The flags that were given for whoever opens the store, as they were written: a service that runs has its own.
    pub given_to_store: Vec<String>,
    /// Every setting and its source, in the order of their keys.
    pub listing: Vec<Setting>,
}

/// Flags, the strongest source. What is `None` was not given.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Flags {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reranker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_anyone: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blend_uncalibrated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// `KEY=VALUE` of any setting.
    #[serde(skip)]
    pub set: Vec<String>,
}

/// Settings of the command itself, and those that it compares with the service's.
const OF_THE_COMMAND: [&str; 6] = ["data", "model", "offline", "log", "log_format", "log_steps"];

impl Flags {
    fn given_to_store(&self) -> Vec<String> {
        let flags = [
            ("--adapter", self.adapter.is_some()),
            ("--embedder", self.embedder.is_some()),
            ("--reranker", self.reranker.is_some()),
            ("--engine", self.engine.is_some()),
            ("--device", self.device.is_some()),
            ("--threads", self.threads.is_some()),
            ("--numa", self.numa.is_some()),
            ("--weights", self.weights.is_some()),
            ("--compute", self.compute.is_some()),
            ("--kernels", self.kernels.is_some()),
            ("--blend-uncalibrated", self.blend_uncalibrated.is_some()),
        ];
        let flags = flags.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| (*flag).to_owned());
        let keys = self.set.iter().map(|assignment| assignment.split('=').next().unwrap_or_default().trim());
        flags.chain(keys.filter(|key| !OF_THE_COMMAND.contains(key)).map(|key| format!("--set {key}"))).collect()
    }
}

impl Config {
    /// Reads every source. `file` is that of `--config`.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self> {
        Self::read(file, PREFIX, flags)
    }

    /// As [`load`](Self::load), with variables of another prefix.
    fn read(file: Option<&Path>, prefix: &str, flags: &Flags) -> Result<Self> {
        sources::check_texts(prefix, flags)?;
        let file = file.map(File::read).transpose()?;
        let all = |half| sources::all(file.as_ref(), prefix, flags, half);
        let (of_surface, of_settings) = (all(Half::Surface)?, all(Half::Settings)?);
        let (surface, settings): (Surface, Settings) = (extract(&of_surface)?, extract(&of_settings)?);
        let mut listing = listing::of(&surface, &Surface::default(), &of_surface, prefix);
        listing.extend(listing::of(&settings, &Settings::default(), &of_settings, prefix));
        listing.sort_by(|a, b| a.key.cmp(&b.key));
        // Which folder that is says more than whose it is.
        if let Some(data) = listing.iter_mut().find(|setting| setting.key == "data")
            && let Ok(path) = crate::data_folder::default_path()
        {
            data.default_text = Some(path.display().to_string());
        }
        let config = Self { surface, settings, given_to_store: flags.given_to_store(), listing };
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<()> {
        self.surface.validate()?;
        self.settings.validate()?;
        if self.settings.upstream().is_set() && (self.surface.model.is_some() || self.surface.adapter.is_some()) {
            let message = "settings `model` and `adapter` are of this process's model, and `engine` names one elsewhere that answers: leave one \
                           out; what that engine is to answer with is `engine_model`";
            return Err(Error::invalid_input(message));
        }
        Ok(())
    }

    /// The data folder's path.
    pub fn data(&self) -> Result<PathBuf> {
        self.surface.data.clone().map_or_else(crate::data_folder::default_path, Ok)
    }
}

fn extract<T: serde::de::DeserializeOwned>(sources: &Figment) -> Result<T> {
    sources.extract().map_err(|error| fault::explain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the variables of whoever runs the tests.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Config> {
        Config::read(file, "RAGSTONE_CONFIG_TEST_", flags)
    }

    pub fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn defaults_are_valid() {
        let config = load(None, &Flags::default()).unwrap();
        assert_eq!(config.surface, Surface::default());
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = file("listen = \"127.0.0.1:1\"\ntop_k = 7\nhost_bytes = 5\n[prompt]\nsystem = \"Hello.\"\n");
        let flags = Flags {
            listen: Some("127.0.0.1:2".into()),
            set: vec!["host_bytes=6".into(), "prompt.question=Q {question}".into(), "prompt.date=2026-11-22".into()],
            ..Flags::default()
        };
        let config = load(Some(file.path()), &flags).unwrap();
        assert_eq!(config.surface.listen, "127.0.0.1:2");
        assert_eq!((config.settings.top_k, config.settings.host_bytes), (Some(7), 6));
        assert_eq!((&*config.settings.prompt.system, &*config.settings.prompt.question), ("Hello.", "Q {question}"));
        assert_eq!(String::from(config.settings.prompt.date), "2026-11-22");
        let flags = Flags { set: vec!["prompt.date=tomorrow".into()], ..Flags::default() };
        let error = load(None, &flags).unwrap_err().to_string();
        assert!(error.contains("prompt.date") && error.contains("\"today\""), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_a_file_like_any() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"top_k = 7\nkeys = \"required\"\n").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let config = load(Some(Path::new(&path)), &Flags::default()).unwrap();
        assert_eq!((config.settings.top_k, config.surface.keys), (Some(7), KeyMode::Required));
        let source = |key: &str| config.listing.iter().find(|setting| setting.key == key).unwrap().source.clone();
        assert_eq!((source("top_k"), source("keys")), (Some(path.clone()), Some(path)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_whose_name_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let data = std::ffi::OsString::from_vec(b"/tmp/\xff".to_vec());
        let error = load(None, &Flags { data: Some(data.into()), ..Flags::default() }).unwrap_err().to_string();
        assert!(error.contains("--data") && error.contains("UTF-8"), "{error}");
    }

    #[test]
    fn a_text_keeps_its_blanks_and_is_no_number() {
        let set =
            ["embed_query_prompt=query: ", "embed_passage_prompt=\"passage: \"", "prompt.system=2026\n", "model=demo"];
        let flags = Flags { set: set.map(str::to_owned).into(), ..Flags::default() };
        let config = load(None, &flags).unwrap();
        let Settings { embed_query_prompt, embed_passage_prompt, prompt, .. } = config.settings;
        assert_eq!(
            (embed_query_prompt.as_deref(), embed_passage_prompt.as_deref()),
            (Some("query: "), Some("passage: "))
        );
        assert_eq!(&*prompt.system, "2026\n");
        assert_eq!(config.surface.model.as_deref(), Some("demo"));
    }

    #[test]
    fn sizes_take_units_in_every_source() {
        let file = file("host_bytes = \"512MiB\"\nbody_bytes = \"1MB\"\ndisk_bytes = 7\n");
        let flags = Flags { set: vec!["device_bytes=2G".into()], ..Flags::default() };
        let config = load(Some(file.path()), &flags).unwrap();
        let Settings { device_bytes, host_bytes, disk_bytes, .. } = config.settings;
        assert_eq!((device_bytes, host_bytes, disk_bytes), (Some(2 << 30), 512 << 20, 7));
        assert_eq!(config.surface.body_bytes, 1_000_000);
        for (wrong, word) in [("host_bytes=2X", "GiB"), ("host_bytes=-1", "below 0"), ("disk_bytes=true", "512MiB")] {
            let flags = Flags { set: vec![wrong.into()], ..Flags::default() };
            let error = load(None, &flags).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("_bytes`"), "{error}");
        }
    }

    #[test]
    fn flags_for_whoever_opens_the_store_are_known_by_name() {
        let flags = Flags {
            set: ["top_k = 3", "log=debug", "model=m", "prompt.system=Hi"].map(str::to_owned).into(),
            threads: Some(1),
            data: Some("/d".into()),
            ..Flags::default()
        };
        assert_eq!(flags.given_to_store(), ["--threads", "--set top_k", "--set prompt.system"]);
        assert!(Flags { offline: Some(true), ..Flags::default() }.given_to_store().is_empty());
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_named_with_their_place() {
        for (text, expected) in [
            ("top_kk = 1", "`top_kk`"),
            ("prompt.sistem = \"x\"", "`prompt.sistem`"),
            ("top_k = \"many\"", "`top_k`"),
            ("offline = 3", "`offline`"),
            ("recompute_ratio = 1.5", "`recompute_ratio`"),
            ("top_k = 0", "`top_k`"),
            ("body_bytes = 0", "`body_bytes`"),
            ("threads = 100000", "`threads`"),
            ("kernels = \"sse\"", "avx512bf16"),
            ("weights = \"q3\"", "`weights`"),
            ("numa = \"on\"", "`numa`"),
            ("engine = \"localhost\"", "`engine`"),
            ("engine_model = \"m\"", "`engine_model`"),
            ("engine = \"http://a\"\nmodel = \"m\"", "`engine_model`"),
        ] {
            let file = file(text);
            let error = load(Some(file.path()), &Flags::default()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let file = file("top_kk = 1");
        let error = load(Some(file.path()), &Flags::default()).unwrap_err().to_string();
        assert!(error.contains(&*file.path().file_name().unwrap().to_string_lossy()), "{error}");
        assert!(error.contains("did you mean `top_k`?"), "{error}");
    }

    #[test]
    fn a_key_that_is_nearly_one_is_answered_with_that_one_and_another_with_all() {
        for (wrong, near) in [
            ("kez", "keys"),
            ("max-queued", "max_queued"),
            ("prompt.sistem", "prompt.system"),
            ("Host_byte", "host_bytes"),
            ("systm", "prompt.system"),
            ("listne", "listen"),
        ] {
            let flags = Flags { set: vec![format!("{wrong}=1")], ..Flags::default() };
            let error = load(None, &flags).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean `{near}`?")), "{wrong}: {error}");
            assert!(error.contains(&format!("in --set {wrong}")), "{error}");
        }
        let flags = Flags { set: vec!["zzz=1".into()], ..Flags::default() };
        let error = load(None, &flags).unwrap_err().to_string();
        assert!(error.contains(" top_k, ") && error.contains("listen"), "{error}");
    }

    #[test]
    fn a_missing_file_and_a_bare_set_are_errors() {
        let error = load(Some(Path::new("/nowhere/ragstone.toml")), &Flags::default()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ragstone.toml"));
        let flags = Flags { set: vec!["top_k".into()], ..Flags::default() };
        assert!(load(None, &flags).unwrap_err().to_string().contains("KEY=VALUE"));
    }
}
