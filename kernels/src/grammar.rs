//! Answers that conform to a JSON schema, a regular expression or a grammar: which tokens may come next, by `llguidance` (an Earley
//! parser over derivatives of regular expressions, walked along a trie of the vocabulary).

mod bounds;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

pub use self::bounds::STACK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::tokenizer::Tokenizer;

/// Bytes of a schema, an expression or a grammar.
pub const MAX_GRAMMAR_BYTES: usize = 64 << 10;
/// Symbols of a compiled grammar.
const MAX_GRAMMAR_SYMBOLS: usize = 100_000;
/// What may come next, in rules of the grammar: an object whose properties are all optional may begin with each of them.
const MAX_ROW_ITEMS: usize = 10_000;
/// The same for all tokens of one mask.
const MAX_MASK_ITEMS: usize = 100_000;
/// States of the compiled expressions, which take one to two kB each.
const MAX_LEXER_STATES: usize = 20_000;
/// Between two tokens of JSON: nothing, one space, or a new line and its indentation. Unbounded white space is what a model that is
/// lost in it never leaves.
pub(crate) const JSON_SPACE: &str = r"[ ]|\n[ ]{0,32}";

/// What an answer must conform to.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSpec {
    /// JSON that fits this schema.
    JsonSchema(Value),
    /// A text that this expression matches as a whole, in the syntax of Rust's `regex`.
    Regex(String),
    /// A text that this grammar derives, in `llguidance`'s variant of Lark.
    Lark(String),
    /// JSON that fits a schema, within a few rules of our own that name it `json`.
    Calls {
        /// In Lark.
        rules: String,
        schema: Value,
    },
}

impl GrammarSpec {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({ "type": "object" }))
    }

    /// A hash of what it says: two with one hash are the same. The order of an object's properties counts, as answers have it.
    pub fn digest(&self) -> [u8; 32] {
        let (kind, text, schema) = match self {
            Self::JsonSchema(schema) => (0, "", schema.to_string()),
            Self::Regex(text) => (1, text.as_str(), String::new()),
            Self::Lark(text) => (2, text.as_str(), String::new()),
            Self::Calls { rules, schema } => (3, rules.as_str(), schema.to_string()),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[kind]).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        hasher.update(schema.as_bytes()).finalize().into()
    }

    fn top_level(&self) -> Result<TopLevelGrammar> {
        bounds::check(self)?;
        Ok(match self {
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Calls { rules, schema } => TopLevelGrammar::from_lark(format!("{rules}\njson: %json {schema}\n")),
            Self::JsonSchema(schema) => {
                let Value::Object(mut schema) = schema.clone() else {
                    return Err(Error::invalid_input("a JSON schema must be an object"));
                };
                schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": JSON_SPACE }));
                TopLevelGrammar::from_json_schema(Value::Object(schema))
            }
        })
    }
}

/// Compiles grammars for one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocabulary: u32,
    ends: Arc<[u32]>,
}

impl GrammarCompiler {
    /// `vocabulary` is the length of a row of logits. Takes some 100 ms for 100,000 tokens.
    ///
    /// # Errors
    /// `Internal`.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Result<Self> {
        let failed = |error: &dyn fmt::Display| {
            Error::new(ErrorKind::Internal, format!("the vocabulary cannot be used for grammars: {error}"))
        };
        let size = u32::try_from(vocabulary).map_err(|error| failed(&error))?;
        let mut words: Vec<Vec<u8>> = (0..size).map(|id| tokenizer.token_bytes(id)).collect();
        let special = |name: Vec<u8>| [vec![TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
        for id in tokenizer.control_ids().into_iter().chain(tokenizer.eos_ids().iter().copied()) {
            if let Some(word) = words.get_mut(id as usize)
                && word.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER)
            {
                *word = special(std::mem::take(word));
            }
        }
        // A model has several end tokens, or none: one that no model has stands for them all.
        words.push(special(b"<|end of the answer|>".to_vec()));
        let info = TokRxInfo::new(size + 1, size);
        let env = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&(env as _), InferenceCapabilities::default(), &slices)
            .map_err(|error| failed(&error))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_grammar_size = MAX_GRAMMAR_SYMBOLS;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_items_in_row = MAX_ROW_ITEMS;
        limits.step_max_items = MAX_MASK_ITEMS;
        limits.verbose_errors = false;
        Ok(Self { factory, vocabulary: size, ends: tokenizer.eos_ids().into() })
    }

    /// Compiles a grammar, up to the mask of its first token. For a thread with a stack of [`STACK_BYTES`].
    ///
    /// # Errors
    /// `InvalidInput` for one that is wrong, too large, or uses what is not supported: says what.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Constraint> {
        let grammar = spec.top_level()?;
        let wrong = |why: String| Error::invalid_input(why.lines().next().unwrap_or_default().to_owned());
        let parser = catch_unwind(AssertUnwindSafe(|| {
            self.factory.create_parser_from_init_default(GrammarInit::Serialized(grammar))
        }));
        let parser = parser.map_err(|_| wrong("it is not understood".into()))?.map_err(|e| wrong(format!("{e:#}")))?;
        let mut state = State { matcher: Matcher::new(Ok(parser)), mask: None };
        let mask = state.mask().map_err(|error| wrong(error.to_string()))?;
        if mask.is_zero() {
            return Err(wrong("nothing conforms to it".into()));
        }
        let state = Arc::new(Mutex::new(state));
        Ok(Constraint { state, vocabulary: self.vocabulary, ends: self.ends.clone() })
    }
}

/// Where one answer stands in its grammar. A clone goes on independently.
pub struct Constraint {
    state: Arc<Mutex<State>>,
    vocabulary: u32,
    ends: Arc<[u32]>,
}

struct State {
    matcher: Matcher,
    /// Of the next token, once it is computed.
    mask: Option<SimpleVob>,
}

impl State {
    fn mask(&mut self) -> Result<&SimpleVob> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.matcher.compute_mask_or_eos().map_err(|error| too_much(&error))?,
        };
        Ok(self.mask.insert(mask))
    }
}

fn too_much(error: &dyn fmt::Display) -> Error {
    let why = error.to_string();
    let why = why.lines().next().unwrap_or_default();
    Error::invalid_input(format!("the answer's grammar cannot be followed further; ask for less at once: {why}"))
}

impl Constraint {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes impossible, in a row of logits, what must not come next.
    ///
    /// # Errors
    /// `InvalidInput` where that takes too much to find out.
    pub fn mask(&self, logits: &mut [f32]) -> Result<()> {
        let mut state = self.state();
        let mask = state.mask()?;
        let may_end = mask.is_allowed(self.vocabulary);
        for (id, logit) in logits.iter_mut().enumerate() {
            let id = id as u32;
            let is_allowed = id < self.vocabulary && mask.is_allowed(id);
            let is_end = may_end && self.ends.contains(&id);
            if !(is_allowed || is_end) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Goes on behind a token. The next mask is computed beside whatever comes next, which is a pass over the weights.
    ///
    /// # Errors
    /// `Internal` for a token that was not allowed, `InvalidInput` where it takes too much to find out what may follow it.
    pub fn note(&mut self, id: u32) -> Result<()> {
        if self.ends.contains(&id) {
            return Ok(());
        }
        let mut state = self.state();
        let was_allowed = state.mask.take().is_some_and(|mask| mask.is_allowed(id));
        state.matcher.consume_token(id).map_err(|error| match was_allowed {
            true => too_much(&error),
            false => Error::new(
                ErrorKind::Internal,
                format!("token {id} does not fit the answer's grammar ({error}); report this"),
            ),
        })?;
        if !state.matcher.is_stopped() {
            let ahead = self.state.clone();
            rayon::spawn(move || {
                // What fails now fails again where the mask is asked for.
                let _ = ahead.lock().unwrap_or_else(PoisonError::into_inner).mask();
            });
        }
        Ok(())
    }

    /// Whether the text so far conforms, and nothing can follow it.
    pub fn is_complete(&self) -> bool {
        let matcher = &self.state().matcher;
        matcher.is_stopped() && !matcher.is_error()
    }

    /// Whether the text so far conforms.
    pub fn conforms(&self) -> bool {
        self.state().matcher.is_accepting().unwrap_or(false)
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        let state = self.state();
        let own = State { matcher: state.matcher.deep_clone(), mask: state.mask.clone() };
        let state = Arc::new(Mutex::new(own));
        Self { state, vocabulary: self.vocabulary, ends: self.ends.clone() }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("is_complete", &self.is_complete()).finish_non_exhaustive()
    }
}
