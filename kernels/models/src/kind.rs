//! What a model is for, by its `config.json` and the names of its files.

use serde::Serialize;
use serde_json::Value;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Answers.
    LanguageModel,
    /// Turns texts into vectors.
    Embedder,
    /// A cross-encoder: says how well a text answers a question.
    Reranker,
    /// Nothing that ragstone has a use for.
    Other,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::LanguageModel => "language model",
            Self::Embedder => "embedder",
            Self::Reranker => "reranker",
            Self::Other => "other",
        }
    }
}

/// What a `config.json` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub kind: Kind,
    /// Such as `LlamaForCausalLM`.
    pub architecture: Option<String>,
    /// Of the weights, such as `BF16`.
    pub dtype: Option<String>,
}

/// Reads a `config.json`; `has` says which other files there are.
pub fn describe(config: &Value, has: impl Fn(&str) -> bool) -> Described {
    let text = |value: &Value| Some(value.as_str()?.chars().filter(|c| !c.is_control()).take(100).collect::<String>());
    let architecture = text(&config["architectures"][0]);
    let class = architecture.as_deref().unwrap_or_default();
    // Decoders that embed have the class of those that answer.
    let is_sentence_encoder =
        ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"].iter().any(|name| has(name));
    let is_bert = matches!(config["model_type"].as_str(), Some("bert" | "roberta" | "xlm-roberta"));
    let kind = if class.ends_with("ForSequenceClassification") {
        Kind::Reranker
    } else if is_sentence_encoder || (is_bert && !class.contains("For")) {
        Kind::Embedder
    } else if class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel") {
        Kind::LanguageModel
    } else {
        Kind::Other
    };
    let dtype = text(&config["dtype"]).or_else(|| text(&config["torch_dtype"]));
    let dtype = dtype.map(|dtype| match dtype.trim_start_matches("torch.") {
        "float32" | "float" => "F32".to_owned(),
        "float16" | "half" => "F16".to_owned(),
        "bfloat16" => "BF16".to_owned(),
        other => other.to_owned(),
    });
    Described { kind, architecture, dtype }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_is_known_by_its_class_and_its_files() {
        for (class, model_type, files, kind) in [
            ("Qwen2ForCausalLM", "qwen2", &[][..], Kind::LanguageModel),
            ("GPT2LMHeadModel", "gpt2", &[], Kind::LanguageModel),
            ("Qwen3ForCausalLM", "qwen3", &["modules.json"], Kind::Embedder),
            ("BertModel", "bert", &[], Kind::Embedder),
            ("BertForMaskedLM", "bert", &[], Kind::Other),
            ("XLMRobertaForSequenceClassification", "xlm-roberta", &[], Kind::Reranker),
            ("WhisperForConditionalGeneration", "whisper", &[], Kind::Other),
        ] {
            let config = json!({ "architectures": [class], "model_type": model_type, "torch_dtype": "bfloat16" });
            let found = describe(&config, |name| files.contains(&name));
            assert_eq!((found.kind, found.dtype.as_deref()), (kind, Some("BF16")), "{class}");
        }
        let nothing = Described { kind: Kind::Other, architecture: None, dtype: None };
        assert_eq!(describe(&json!([]), |_| false), nothing);
    }
}
