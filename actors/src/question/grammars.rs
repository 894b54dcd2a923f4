//! Compiled grammars: clients send the same schema again and again, and compiling one takes milliseconds.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ragstone_kernels::grammar::{Constraint, GrammarCompiler, GrammarSpec};
use ragstone_kernels::tokenizer::Tokenizer;

use crate::error::{Error, ErrorKind, Result};

/// Grammars that are remembered; each may take some megabytes.
const REMEMBERED: usize = 16;

/// The compiler, made when somebody asks for the first grammar, and what it compiled last.
pub(crate) struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocabulary: usize,
    compiler: OnceLock<Result<GrammarCompiler, String>>,
    /// By their digests; used last stands last.
    known: Mutex<Vec<([u8; 32], Arc<Constraint>)>>,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocabulary: usize) -> Self {
        Self { tokenizer, vocabulary, compiler: OnceLock::new(), known: Mutex::new(Vec::new()) }
    }

    /// One that was compiled before. Each answer takes a copy, which costs as much as some tokens do.
    pub(crate) fn known(&self, digest: &[u8; 32]) -> Option<Arc<Constraint>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|(other, _)| other == digest)?;
        known[at..].rotate_left(1);
        known.last().map(|(_, constraint)| constraint.clone())
    }

    /// Compiles one. BLOCKS, the first time for about a second a million tokens of the vocabulary.
    pub(crate) fn compile(&self, spec: &GrammarSpec, digest: [u8; 32]) -> Result<Arc<Constraint>> {
        // Somebody else may have waited for the same turn with the same grammar.
        if let Some(known) = self.known(&digest) {
            return Ok(known);
        }
        let compiler = self
            .compiler
            .get_or_init(|| GrammarCompiler::new(&self.tokenizer, self.vocabulary).map_err(|error| error.to_string()));
        let compiler = compiler.as_ref().map_err(|error| Error::new(ErrorKind::Internal, error.clone()))?;
        let constraint = Arc::new(compiler.compile(spec)?);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push((digest, constraint.clone()));
        Ok(constraint)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_was_compiled_is_found_again_and_what_was_used_longest_ago_is_forgotten() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/tests/fixtures/tokenizers/byte_level");
        let tokenizer = Arc::new(Tokenizer::from_folder(&folder).unwrap());
        let vocabulary = (0..).find(|id| tokenizer.token(*id).is_none()).unwrap() as usize;
        let grammars = Grammars::new(tokenizer, vocabulary);
        let spec = |number: usize| GrammarSpec::Regex(format!("a{{{}}}", number + 1));
        let compile = |number| grammars.compile(&spec(number), spec(number).digest()).unwrap();
        let first = compile(0);
        assert!(Arc::ptr_eq(&first, &compile(0)), "compiled once");
        for number in 1..REMEMBERED {
            compile(number);
        }
        // Used now, so that the second one is the oldest.
        assert!(grammars.known(&spec(0).digest()).is_some_and(|known| Arc::ptr_eq(&known, &first)));
        compile(REMEMBERED);
        let known = |number| grammars.known(&spec(number).digest()).is_some();
        assert!(known(0) && !known(1) && known(2) && known(REMEMBERED));
    }
}
