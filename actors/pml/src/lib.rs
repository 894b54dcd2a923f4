//! Prompt Markup Language (Prompt Cache, Gim et al., section 3.2): prompts made of modules that are stated once, in a schema, each at
//! positions of its own.
//!
//! ```text
//! schema.xml -document-> elements -schema-> Schema -layout-> Layout: every module's tokens and positions
//! prompt.xml -document-> elements -prompt-> Prompt -select-> Selected: the modules that it imports, its arguments and its text, by position
//! program.jinja -program-> Schema, and for arguments its Prompt; Content and Picks build both in Rust; -write-> XML again
//! Selected -compile-> segments: what is taken from the store, and behind what it is computed where it is not there
//! ```
//!
//! All of it is pure. Members of a union begin at one position, a parameter reserves positions for its argument, and modules that a prompt
//! does not import leave gaps; so every module has the same positions in every prompt of the schema.

mod build;
mod compile;
mod document;
mod layout;
mod program;
mod prompt;
mod roles;
mod schema;
mod select;
mod write;

pub use self::build::{Choice, Content, Picks};
pub use self::compile::compile;
pub use self::compile::modules;
pub use self::document::MAX_DOCUMENT_BYTES;
pub use self::layout::{Block, Layout, Part};
pub use self::program::Program;
pub use self::prompt::Prompt;
pub use self::roles::Roles;
pub use self::schema::{GivenSources, Item, Module, Parameter, Role, Schema, Sources, Union};
pub use self::select::{Placed, PlacedFrom, Selected, select};

use ragstone_kernels::tokenizer::Tokenizer;

use ragstone_env::Result;

/// Turns text into tokens: a model's tokenizer, or what a test counts with.
pub trait Encode {
    /// Tokens of text that nobody vouches for: control tokens in it stay text.
    ///
    /// # Errors
    /// If the text cannot be tokenized.
    fn words(&self, text: &str) -> Result<Vec<u32>>;

    /// Tokens of a chat template's own text.
    ///
    /// # Errors
    /// As [`words`](Self::words).
    fn control(&self, text: &str) -> Result<Vec<u32>>;

    /// The token that stands for what an argument will take the place of.
    fn placeholder(&self) -> u32;
}

impl Encode for Tokenizer {
    fn words(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_text(text)
    }

    fn control(&self, text: &str) -> Result<Vec<u32>> {
        self.encode(text, false)
    }

    fn placeholder(&self) -> u32 {
        // The paper takes <unk>; a vocabulary of bytes has none, and a space is as little.
        let space = || self.encode_text(" ").ok().and_then(|ids| ids.first().copied());
        self.token_id("<unk>").or_else(space).unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/driver.rs"]
mod fuzz;
#[cfg(test)]
pub(crate) mod tests;
