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
    /// Used last stands last.
    known: Mutex<Vec<(Arc<GrammarSpec>, Constraint)>>,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, vocabulary: usize) -> Self {
        Self { tokenizer, vocabulary, compiler: OnceLock::new(), known: Mutex::new(Vec::new()) }
    }

    /// One that was compiled before, for one answer.
    pub(crate) fn known(&self, spec: &GrammarSpec) -> Option<Constraint> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|(other, _)| **other == *spec)?;
        let found = known.remove(at);
        let constraint = found.1.clone();
        known.push(found);
        Some(constraint)
    }

    /// Compiles one. BLOCKS, the first time for about a second a million tokens of the vocabulary.
    pub(crate) fn compile(&self, spec: &Arc<GrammarSpec>) -> Result<Constraint> {
        if let Some(known) = self.known(spec) {
            return Ok(known);
        }
        let compiler = self
            .compiler
            .get_or_init(|| GrammarCompiler::new(&self.tokenizer, self.vocabulary).map_err(|error| error.to_string()));
        let compiler = compiler.as_ref().map_err(|error| Error::new(ErrorKind::Internal, error.clone()))?;
        let constraint = compiler.compile(spec)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push((spec.clone(), constraint.clone()));
        Ok(constraint)
    }
}
