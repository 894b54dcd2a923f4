//! Tips for whoever types what other programs call it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const LISTEN: &str = "ragstone serve --listen 127.0.0.1:PORT takes address and port together";

/// Flags of other services, and what is meant by `ragstone serve`.
const FLAGS: &[(&str, &str)] =
    &[("--port", LISTEN), ("--host", LISTEN), ("--bind", LISTEN), ("--addr", LISTEN), ("--address", LISTEN)];

const ASK: &str = "ragstone ask QUESTION answers over your documents";
const FETCH: &str = "ragstone models fetch ID fetches a model";
const DELETE: &str = "ragstone documents delete ID|PATH removes documents, ragstone collections delete NAME a collection, ragstone models remove ID a model";
const INGEST: &str = "ragstone ingest PATH reads documents";
const LIST: &str = "ragstone documents list, ragstone collections list and ragstone models list say what is there";

/// Commands of other programs, and some that there are only below others.
const COMMANDS: &[(&str, &str)] = &[
    ("run", ASK),
    ("chat", ASK),
    ("query", ASK),
    ("pull", FETCH),
    ("download", FETCH),
    ("rm", DELETE),
    ("remove", DELETE),
    ("delete", DELETE),
    ("add", INGEST),
    ("import-docs", INGEST),
    ("ps", LIST),
    ("list", LIST),
    ("ls", LIST),
    ("stop", "Ctrl-C ends ragstone serve; systemctl stop ragstone one that systemd runs"),
    ("version", "ragstone --version"),
    (
        "export",
        "ragstone cache export FOLDER|URL copies stored KV; to keep the documents themselves, copy the data folder while no service runs",
    ),
    ("import", "ragstone ingest PATH reads documents; ragstone cache import FOLDER|URL takes stored KV back"),
];

/// The error of wrong arguments, with a tip in place of the argument parser's own guess where we know what is meant.
pub fn with_tip(mut error: clap::Error, arguments: &[String], program: &clap::Command) -> clap::Error {
    let (kind, tips) = match error.kind() {
        // Of a client's command such a flag means something else.
        ErrorKind::UnknownArgument if arguments.iter().any(|argument| argument == "serve") => {
            (ContextKind::InvalidArg, FLAGS)
        }
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, COMMANDS),
        _ => return error,
    };
    let Some(ContextValue::String(wrong)) = error.get(kind) else { return error };
    let name = wrong.split('=').next().unwrap_or_default();
    // Below a command it means something of that one's own.
    let mut before = arguments.iter().take_while(|argument| *argument != wrong);
    if kind == ContextKind::InvalidSubcommand && before.any(|argument| program.find_subcommand(argument).is_some()) {
        return error;
    }
    let Some((_, tip)) = tips.iter().find(|(known, _)| *known == name) else { return error };
    for guess in [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand] {
        error.remove(guess);
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).to_owned().into()]));
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn said(arguments: &[&str]) -> String {
        let parsed = Cli::described().try_get_matches_from([&["ragstone"], arguments].concat());
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        with_tip(parsed.unwrap_err(), &arguments, &Cli::described()).to_string()
    }

    #[test]
    fn what_is_called_otherwise_elsewhere_has_a_tip() {
        for arguments in [&["serve", "--port", "80"][..], &["serve", "--port=80"], &["serve", "--host", "::"]] {
            let said = said(arguments);
            assert!(said.contains("unexpected argument") && said.contains("tip: ragstone serve --listen"), "{said}");
            assert_eq!(said.matches("tip:").count(), 1, "{said}");
        }
        for (command, real) in [
            ("export", "ragstone cache export"),
            ("import", "ragstone ingest PATH"),
            ("run", "ragstone ask"),
            ("pull", "ragstone models fetch"),
            ("rm", "ragstone documents delete"),
            ("add", "ragstone ingest"),
            ("ls", "ragstone documents list, ragstone collections list"),
            ("stop", "Ctrl-C"),
            ("version", "ragstone --version"),
            ("import-docs", "ragstone ingest"),
        ] {
            let said = said(&[command, "x"]);
            assert!(said.contains(command) && said.contains(&format!("tip: {real}")), "{said}");
            assert_eq!(said.matches("tip:").count(), 1, "{said}");
        }
        let said_by_ask = said(&["ask", "--host", "::", "Who?"]);
        assert!(said_by_ask.contains("unexpected argument") && !said_by_ask.contains("--listen"), "{said_by_ask}");
        let below = said(&["collections", "rm", "x"]);
        assert!(below.contains("unrecognized") && !below.contains("documents delete"), "{below}");
        // What is misspelled keeps the parser's own guess.
        let said = said(&["serve", "--lisen", "::"]);
        assert!(said.contains("--listen") && !said.contains("together"), "{said}");
    }
}
