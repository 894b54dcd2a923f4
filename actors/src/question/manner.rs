//! How a model is asked where neither request nor settings say it: small ones read few passages, the best one last, right before the
//! question (docs/decisions/0099).

use ragstone_kernels::config::ModelConfig;

/// Passages that a question is answered from.
const PASSAGES: usize = 5;
const PASSAGES_OF_SMALL: usize = 2;
/// Weights of models that count as small: measured at 135 and 270 million. Those below are the demo model's size, which knows its own
/// prompts.
const SMALL: std::ops::RangeInclusive<u64> = 50_000_000..=500_000_000;

/// How a model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Passages of a search that it reads.
    pub passages: usize,
    /// Whether the best one stands last.
    pub is_best_last: bool,
    /// Whether it goes round in circles, so that an answer is ended where it begins to, if the request leaves that to the model.
    pub circles: bool,
}

impl Manner {
    /// That of a model, `None` for one of which nothing is known here, as an engine elsewhere has it; `top_k` is what the settings say.
    pub fn of(model: Option<&ModelConfig>, top_k: Option<usize>) -> Self {
        let is_small = model.is_some_and(|model| model.experts.is_none() && SMALL.contains(&weights(model)));
        let passages = if is_small { PASSAGES_OF_SMALL } else { PASSAGES };
        Self { passages: top_k.unwrap_or(passages), is_best_last: is_small, circles: is_small }
    }
}

/// The weights of the matrices, about.
fn weights(model: &ModelConfig) -> u64 {
    let [vocabulary, hidden, inner, layers, heads, kv_heads, head_dim] = [
        model.vocab_size,
        model.hidden_size,
        model.intermediate_size,
        model.layers,
        model.heads,
        model.kv_heads,
        model.head_dim,
    ]
    .map(|size| size as u64);
    let attention = 2 * hidden * head_dim * (heads + kv_heads);
    let embeddings = vocabulary * hidden * if model.tie_embeddings { 1 } else { 2 };
    embeddings + layers * (attention + 3 * hidden * inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manner(config: serde_json::Value, top_k: Option<usize>) -> Manner {
        Manner::of(Some(&ModelConfig::from_json(&config.to_string()).unwrap()), top_k)
    }

    #[test]
    fn small_models_read_two_passages_and_the_best_last() {
        let llama = |hidden: u32, inner: u32, layers: u32| {
            json!({
                "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
                "num_hidden_layers": layers, "num_attention_heads": hidden / 64, "num_key_value_heads": hidden / 64, "vocab_size": 49152,
                "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
            })
        };
        let (small, large, demo) = (llama(576, 1536, 30), llama(2048, 8192, 24), llama(64, 128, 2));
        let as_before = Manner { passages: 5, is_best_last: false, circles: false };
        assert_eq!(manner(small.clone(), None), Manner { passages: 2, is_best_last: true, circles: true });
        assert_eq!(manner(small, Some(5)).passages, 5, "who says so has five");
        assert_eq!(manner(large.clone(), None), as_before);
        assert_eq!(manner(large, Some(7)).passages, 7);
        assert_eq!(manner(demo, None), as_before);
        assert_eq!(Manner::of(None, None), as_before);
    }
}
