//! What an engine says it serves.

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};

/// Who made the engine: what it takes beside OpenAI's own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    Vllm,
    Sglang,
    LlamaCpp,
    /// Another ragstone.
    Ragstone,
    /// OpenAI's own service, or one that nobody here knows: it gets OpenAI's fields alone.
    Other,
}

impl Make {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::LlamaCpp => "llama.cpp",
            Self::Ragstone => "ragstone",
            Self::Other => "an engine of an unknown make: it is sent OpenAI's fields alone",
        }
    }

    fn of(owner: &str) -> Self {
        match owner {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "llamacpp" => Self::LlamaCpp,
            "ragstone" => Self::Ragstone,
            _ => Self::Other,
        }
    }
}

/// The model that is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub id: String,
    pub make: Make,
    /// Tokens of prompt and answer together, where it says so.
    pub context: Option<usize>,
}

impl Served {
    /// Of an engine that has not said anything yet.
    pub fn unknown(id: &str) -> Self {
        Self { id: id.to_owned(), make: Make::Other, context: None }
    }

    /// Of two engines that serve it: what both take.
    pub fn with(self, other: &Self) -> Self {
        let make = if self.make == other.make { self.make } else { Make::Other };
        let context = match (self.context, other.context) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (known, None) | (None, known) => known,
        };
        Self { make, context, ..self }
    }

    /// The one that is wanted of those that are listed.
    ///
    /// # Errors
    /// `NotFound`, and `InvalidInput` where there are several and none is named.
    pub fn choose(listed: &Value, wanted: Option<&str>, base: &str) -> Result<Self> {
        let all: Vec<Self> = listed["data"].as_array().into_iter().flatten().filter_map(Self::read).collect();
        let names = || all.iter().map(|served| served.id.as_str()).take(20).collect::<Vec<_>>().join(", ");
        match wanted {
            Some(wanted) => match all.iter().find(|served| served.id == wanted) {
                Some(found) => Ok(found.clone()),
                // Some gateways list nothing.
                None if all.is_empty() => Ok(Self::unknown(wanted)),
                None => {
                    let message =
                        format!("the engine at {base} does not serve `{wanted}`; `engine_model` may be: {}", names());
                    Err(Error::new(ErrorKind::NotFound, message))
                }
            },
            None => match all.as_slice() {
                [one] => Ok(one.clone()),
                [] => {
                    let message = format!("the engine at {base} lists no models: name one in `engine_model`");
                    Err(Error::new(ErrorKind::NotFound, message))
                }
                _ => Err(Error::invalid_input(format!(
                    "the engine at {base} serves several models: name one in `engine_model`: {}",
                    names()
                ))),
            },
        }
    }

    /// One of the list; not models that only embed or rerank, where that is said.
    fn read(entry: &Value) -> Option<Self> {
        let make = Make::of(entry["owned_by"].as_str().unwrap_or_default());
        let context = match make {
            Make::Ragstone => {
                // Its embedding model and reranker have no context.
                Some(entry["ragstone"]["context"].as_u64()?)
            }
            _ => ["max_model_len", "context_length", "context_window"].iter().find_map(|name| entry[*name].as_u64()),
        };
        // llama.cpp.
        let context = context.or_else(|| entry["meta"]["n_ctx"].as_u64());
        Some(Self { id: entry["id"].as_str()?.to_owned(), make, context: context.map(|tokens| tokens as usize) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_only_model_is_taken_and_of_several_the_one_that_is_named() {
        let vllm = json!({ "object": "list", "data": [{ "id": "m", "owned_by": "vllm", "max_model_len": 8192 }] });
        let m = Served { id: "m".into(), make: Make::Vllm, context: Some(8192) };
        assert_eq!(Served::choose(&vllm, None, "u").unwrap(), m);
        assert_eq!(Served::choose(&vllm, Some("m"), "u").unwrap(), m);
        let error = Served::choose(&vllm, Some("n"), "u").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("may be: m"), "{error}");
        let two = json!({ "data": [{ "id": "a" }, { "id": "b", "owned_by": "openai" }] });
        assert!(Served::choose(&two, None, "u").unwrap_err().to_string().contains("a, b"));
        assert_eq!(Served::choose(&two, Some("b"), "u").unwrap().make, Make::Other);
        assert_eq!(Served::choose(&json!({}), Some("x"), "u").unwrap(), Served::unknown("x"));
        assert!(Served::choose(&json!({ "data": [] }), None, "u").is_err());
    }

    #[test]
    fn several_engines_are_sent_what_all_of_them_take() {
        let of = |make, context| Served { id: "m".into(), make, context };
        let both = of(Make::Vllm, Some(8192)).with(&of(Make::Vllm, Some(4096)));
        assert_eq!((both.make, both.context), (Make::Vllm, Some(4096)));
        assert_eq!(of(Make::Vllm, None).with(&of(Make::Sglang, Some(1))), of(Make::Other, Some(1)));
    }

    #[test]
    fn of_a_ragstone_its_embedding_model_is_no_choice() {
        let listed = json!({ "data": [
            { "id": "SmolLM2", "owned_by": "ragstone", "ragstone": { "context": 8192 } },
            { "id": "all-MiniLM-L6-v2", "owned_by": "ragstone" }
        ] });
        let served = Served::choose(&listed, None, "u").unwrap();
        assert_eq!((&*served.id, served.make, served.context), ("SmolLM2", Make::Ragstone, Some(8192)));
    }
}
