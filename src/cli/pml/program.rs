//! `ragstone pml compile`, and what commands that take programs share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ragstone_pml::{Program, Prompt};
use ragstone_terminal::output;
use serde_json::{Value, json};

use super::{Beside, document, named, read_bounded};
use crate::error::{Error, Result};

/// The longest file of lists, in bytes.
const MOST_LIST_BYTES: u64 = 8 << 20;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A program: {# program NAME …
    #[arg(value_name = "PROGRAM")]
    program: PathBuf,
    #[command(flatten)]
    given: Given,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a program is given.
#[derive(Debug, clap::Args)]
pub struct Given {
    /// An argument of a program; with any, its prompt is made. Again for each
    #[arg(long = "arg", value_name = "NAME=VALUE")]
    arguments: Vec<String>,
    /// Lists that a program loops over, a JSON object: {"files": […]}
    #[arg(long, value_name = "FILE")]
    lists: Option<PathBuf>,
}

impl Given {
    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.arguments.is_empty() && self.lists.is_none()
    }

    fn lists(&self) -> Result<BTreeMap<String, Value>> {
        let Some(path) = &self.lists else { return Ok(BTreeMap::new()) };
        let unreadable = |why: String| Error::invalid_input(format!("{} cannot be read: {why}", path.display()));
        let text = read_bounded(path, MOST_LIST_BYTES).map_err(unreadable)?;
        serde_json::from_str(&text)
            .map_err(|error| named(path, &format!("it is no JSON object of lists, {{\"name\": […]}}: {error}")))
    }

    fn arguments(&self) -> Result<BTreeMap<String, String>> {
        let mut arguments = BTreeMap::new();
        for given in &self.arguments {
            let Some((name, value)) = given.split_once('=') else {
                return Err(Error::invalid_input(format!("--arg {given}: an argument is given as NAME=VALUE")));
            };
            if arguments.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(Error::invalid_input(format!("--arg {name} is given twice")));
            }
        }
        Ok(arguments)
    }

    /// The program in the file `path`, whose text this is.
    pub fn compile(&self, path: &Path, text: &str) -> Result<Program> {
        Program::compile(text, &self.lists()?, &Beside(path)).map_err(|error| named(path, &error))
    }

    /// The prompt that the arguments select.
    pub fn prompt(&self, path: &Path, program: &Program) -> Result<Prompt> {
        program
            .prompt(&self.arguments()?)
            .map_err(|error| named(path, &format!("{error}; give arguments by --arg NAME=VALUE")))
    }
}

/// Whether a document is a program: neither a schema nor a prompt begins so.
pub fn is_program(text: &str) -> bool {
    text.starts_with("{#")
}

/// Prints a program's schema, and its prompt where arguments are given.
pub fn compile(args: &Args) -> Result<()> {
    let program = args.given.compile(&args.program, &document(&args.program)?)?;
    let prompt = match args.given.arguments.is_empty() {
        true => None,
        false => Some(args.given.prompt(&args.program, &program)?.to_xml()),
    };
    let schema = program.schema().to_xml();
    if args.json {
        let arguments: BTreeMap<&str, String> = program.arguments().collect();
        return output::json(&json!({ "schema": schema, "arguments": arguments, "prompt": prompt }));
    }
    output::line(&schema)?;
    prompt.map_or(Ok(()), |prompt| output::line(&prompt))
}
