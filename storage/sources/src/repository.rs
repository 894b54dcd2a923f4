//! A Git repository, as its newest commit has it. `git` itself fetches it, with whatever keys its user has.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ragstone_documents::{FoundFile, find_files};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::{Fetched, FetchedFile, Memory, Wanted, memory, refused, unreachable};
use ragstone_env::{Error, Result};

/// A clone that takes longer has broken off.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Of what `git` says.
const MOST_SAID: u64 = 1 << 20;
/// Of that, for people.
const MAX_REASON_CHARS: usize = 300;
/// What stands in the place of a file that Git LFS keeps begins so, and is no larger.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
const MAX_POINTER_BYTES: u64 = 1024;

/// One that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// As `git` takes it.
    url: String,
    /// A branch or a tag; else the one that its owner wants to be seen.
    reference: Option<String>,
    /// What the paths of its files stand behind, in their sources.
    pub(super) base: String,
}

impl Repository {
    /// `git@host:owner/name`, `ssh://…`, `https://….git`, or any address behind `git+`; a branch may stand behind a `#`.
    pub(super) fn of(text: &str) -> Result<Self> {
        let (url, reference) = text.split_once('#').map_or((text, None), |(url, reference)| (url, Some(reference)));
        let url = url.strip_prefix("git+").unwrap_or(url).trim_end_matches('/');
        let page = match (url.split_once("://"), url.strip_prefix("git@")) {
            (Some((scheme @ ("http" | "https" | "ssh" | "file"), rest)), _) => {
                let (user, place) = rest.split_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
                let is_of_user = user.is_some_and(|user| !user.contains('/'));
                if is_of_user && (scheme != "ssh" || user.is_some_and(|user| user.contains(':'))) {
                    return Err(refused("an address with a name or a password in it would be kept with them; let git keep them (git help credentials)".to_owned()));
                }
                let place = if is_of_user { place } else { rest };
                match scheme {
                    "ssh" => format!("https://{place}"),
                    _ => format!("{scheme}://{place}"),
                }
            }
            (None, Some(rest)) => format!("https://{}", rest.replacen(':', "/", 1)),
            _ => {
                return Err(refused(format!(
                    "{text} is no address of a repository: https, ssh, and git@host:owner/name are"
                )));
            }
        };
        // `git` takes what begins with a hyphen as an option.
        let is_name = |reference: &str| {
            !reference.is_empty() && !reference.starts_with('-') && !reference.contains(char::is_whitespace)
        };
        if let Some(reference) = reference.filter(|reference| !is_name(reference)) {
            return Err(refused(format!("{reference} is no name of a branch")));
        }
        let reference = reference.map(str::to_owned);
        let base = base(page.trim_end_matches(".git"), reference.as_deref());
        Ok(Self { url: url.to_owned(), reference, base })
    }

    pub(super) async fn fetch(&self, wanted: Wanted<'_>) -> Result<Fetched> {
        let commit = self.newest().await?;
        if let Some(known) = known(wanted.memory, &commit, &wanted.stored) {
            return Ok(known);
        }
        let folder = wanted.folder.join("files");
        let mut arguments = vec!["clone", "--quiet", "--depth=1", "--no-tags", "--single-branch"];
        arguments.extend(self.reference.iter().flat_map(|reference| ["--branch", reference.as_str()]));
        arguments.extend(["--", &self.url]);
        self.git(&arguments, Some(&folder)).await?;
        let walked = folder.clone();
        let walk = tokio::task::spawn_blocking(move || {
            let mut found = find_files(&[walked])?;
            let (pointers, files) = std::mem::take(&mut found.files).into_iter().partition(is_pointer);
            found.files = files;
            found.files.iter().for_each(|file| forget_time(&file.path));
            Ok::<(_, Vec<FoundFile>), Error>((found, pointers))
        });
        let (found, pointers) = walk.await.map_err(|error| Error::internal(error.to_string()))??;
        let source = |path: &Path| {
            let within = path.strip_prefix(&folder).unwrap_or(path);
            let parts: Vec<_> = within.iter().map(|part| ragstone_documents::shown(part.as_ref())).collect();
            // Behind a `#` stands the place of one of a file's documents.
            format!("{}{}", self.base, parts.join("/").replace('#', "%23"))
        };
        let files: Vec<FetchedFile> = found
            .files
            .iter()
            .map(|file| FetchedFile { source: source(&file.path), path: file.path.clone() })
            .collect();
        let mut gone = wanted.stored;
        for file in &files {
            gone.remove(&file.source);
        }
        let mut left_out: Vec<_> = found.unreadable.iter().map(|(path, why)| (source(path), why.clone())).collect();
        left_out.extend(pointers.iter().map(|file| {
            let why = "kept in Git LFS, which is not fetched; clone the repository with git lfs, and ingest the file";
            (source(&file.path), why.to_owned())
        }));
        for (file, _) in &left_out {
            gone.remove(file);
        }
        let there = files.iter().map(|file| &file.source).chain(left_out.iter().map(|(file, _)| file));
        wanted.memory.pages = there.map(|file| (file.clone(), memory::Page::default())).collect();
        wanted.memory.commit = Some(commit);
        Ok(Fetched { files, unchanged: 0, gone, left_out, left_alone: found.left_alone })
    }

    /// The commit that is fetched now.
    async fn newest(&self) -> Result<String> {
        // Whole names: a name alone means all that end so.
        let names = match &self.reference {
            None => vec!["HEAD".to_owned()],
            Some(reference) => vec![format!("refs/heads/{reference}"), format!("refs/tags/{reference}")],
        };
        let mut arguments = vec!["ls-remote", "--quiet", "--exit-code", "--", &self.url];
        arguments.extend(names.iter().map(String::as_str));
        let told = self.git(&arguments, None).await?;
        let lines = told.lines().filter_map(|line| line.split_once('\t'));
        let commit = lines.into_iter().find(|(_, name)| names.iter().any(|wanted| wanted == name));
        commit
            .map(|(commit, _)| commit.to_owned())
            .ok_or_else(|| unreachable(format!("cannot fetch {self}: it has no such branch")))
    }

    async fn git(&self, arguments: &[&str], into: Option<&Path>) -> Result<String> {
        let mut command = Command::new("git");
        // No hook of a template, no program that an address names.
        command.args(["-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never"]);
        // Nor requests to wherever a server or a file of the repository says.
        command.args(["-c", "http.followRedirects=false"]).env("GIT_LFS_SKIP_SMUDGE", "1");
        command.args(arguments).args(into).stdin(Stdio::null()).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // Nobody is there to be asked for a password.
        command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
        if std::env::var_os("GIT_SSH_COMMAND").is_none() {
            command.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes");
        }
        let ran = match tokio::time::timeout(PATIENCE, output(command)).await {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(refused(format!("cannot fetch {self}: git is not installed")));
            }
            Ok(ran) => ran.map_err(|error| unreachable(format!("cannot fetch {self}: git: {error}")))?,
            Err(_) => {
                return Err(unreachable(format!(
                    "cannot fetch {self}: not whole within {} min",
                    PATIENCE.as_secs() / 60
                )));
            }
        };
        let (status, told, said) = ran;
        if status.success() {
            return Ok(told);
        }
        let why = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it has no such branch");
        let why: String = why.chars().filter(|c| !c.is_control()).take(MAX_REASON_CHARS).collect();
        Err(unreachable(format!("cannot fetch {self}: {why}")))
    }
}

/// What comes of a repository whose newest commit is the one that was fetched last. What it no longer has is gone each time: at the first
/// nobody may have wanted it removed.
fn known(memory: &Memory, commit: &str, stored: &HashSet<String>) -> Option<Fetched> {
    if stored.is_empty() || memory.pages.is_empty() || memory.commit.as_deref() != Some(commit) {
        return None;
    }
    let gone: HashSet<String> = stored.iter().filter(|file| !memory.pages.contains_key(*file)).cloned().collect();
    Some(Fetched { unchanged: stored.len() - gone.len(), gone, ..Fetched::default() })
}

/// Whether a file only says where Git LFS keeps it.
fn is_pointer(file: &FoundFile) -> bool {
    let mut begin = [0; POINTER.len()];
    file.bytes < MAX_POINTER_BYTES
        && std::fs::File::open(&file.path).and_then(|mut file| file.read_exact(&mut begin)).is_ok()
        && begin == POINTER
}

/// A clone's files are as old as the clone: with that time all documents would be others after each commit.
fn forget_time(file: &Path) {
    let opened = std::fs::File::options().write(true).open(file);
    let _ = opened.and_then(|file| file.set_modified(std::time::UNIX_EPOCH));
}

/// What a program came to, and what it said, up to a bound: a server may say as much as it likes.
async fn output(mut command: Command) -> std::io::Result<(ExitStatus, String, String)> {
    let mut child = command.spawn()?;
    let (told, said) = (child.stdout.take(), child.stderr.take());
    let (told, said) = tokio::join!(some(told), some(said));
    Ok((child.wait().await?, told, said))
}

async fn some(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What breaks off is seen by how the program ends.
        let _ = from.take(MOST_SAID).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        self.reference.iter().try_for_each(|reference| write!(f, "#{reference}"))
    }
}

/// Where a repository's files are seen: on forges that are known, an address that a browser opens.
fn base(page: &str, reference: Option<&str>) -> String {
    let seen = reference.unwrap_or("HEAD").replace('#', "%23");
    let host = page.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    match host {
        "github.com" => format!("{page}/blob/{seen}/"),
        _ if host == "gitlab.com" || host.starts_with("gitlab.") => format!("{page}/-/blob/{seen}/"),
        // No page of a site, and each branch its own.
        _ => format!("git+{page}@{seen}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_known_commit_has_not_is_gone_each_time() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<String>>();
        let page = |name: &str| (name.to_owned(), memory::Page::default());
        let pages = ["a", "empty"].map(page).into_iter().collect();
        let mut memory = Memory { commit: Some("c".into()), pages, ..Memory::default() };
        let fetched = known(&memory, "c", &names(&["a", "b"])).unwrap();
        assert_eq!((fetched.unchanged, fetched.gone), (1, names(&["b"])));
        assert!(known(&memory, "d", &names(&["a"])).is_none() && known(&memory, "c", &names(&[])).is_none());
        // As it was noted before the files were: nothing is known to be gone.
        memory.pages.clear();
        assert!(known(&memory, "c", &names(&["a"])).is_none());
    }

    #[test]
    fn what_git_lfs_keeps_is_known_by_what_stands_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let is = |text: &str| {
            let path = folder.path().join("x.csv");
            std::fs::write(&path, text).unwrap();
            is_pointer(&FoundFile { path, within: None, bytes: text.len() as u64, source: None })
        };
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n";
        assert!(is(pointer));
        assert!(!is("") && !is("version,size\n1,2\n") && !is(&format!("{pointer}{}", "x".repeat(1024))));
    }

    #[test]
    fn repositories_are_named_in_many_ways() {
        for (text, url, base) in [
            ("https://github.com/o/n", "https://github.com/o/n", "https://github.com/o/n/blob/HEAD/"),
            ("https://github.com/o/n.git#v1", "https://github.com/o/n.git", "https://github.com/o/n/blob/v1/"),
            ("git@gitlab.com:o/n.git", "git@gitlab.com:o/n.git", "https://gitlab.com/o/n/-/blob/HEAD/"),
            ("ssh://git@a.example/o/n", "ssh://git@a.example/o/n", "git+https://a.example/o/n@HEAD/"),
            ("git+https://a.example/n/#a#b", "https://a.example/n", "git+https://a.example/n@a%23b/"),
            ("git+file:///srv/n.git", "file:///srv/n.git", "git+file:///srv/n@HEAD/"),
        ] {
            let repository = Repository::of(text).unwrap();
            assert_eq!((repository.url.as_str(), repository.base.as_str()), (url, base), "{text}");
        }
        for bad in [
            "git+ext::sh -c x",
            "git+-x",
            "https://a.example/n.git#-x",
            "https://ida:pw@a.example/n.git",
            "ssh://a:b@a.example/n",
        ] {
            assert!(Repository::of(bad).is_err(), "{bad}");
        }
    }
}
