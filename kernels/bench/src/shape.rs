//! Shapes of models, for random weights: times do not depend on what the weights are.

use ragstone_kernels::config::ModelConfig;

use crate::error::Result;

/// Qwen2.5-0.5B's.
pub const QWEN_05B: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
    "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// Qwen2.5-7B's.
const QWEN_7B: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 152064,
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
    "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// A model that computes in no time: for tests of the benchmarks themselves.
const TINY: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32768, "tie_word_embeddings": true,
    "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// What a random model looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Qwen2.5-0.5B's
    #[value(name = "qwen-0.5b")]
    Qwen05b,
    /// Qwen2.5-7B's: 15 GB of weights
    #[value(name = "qwen-7b")]
    Qwen7b,
    /// A model that takes no time, to try the command
    Tiny,
}

impl Shape {
    /// Its `config.json`.
    pub fn json(self) -> &'static str {
        match self {
            Self::Qwen05b => QWEN_05B,
            Self::Qwen7b => QWEN_7B,
            Self::Tiny => TINY,
        }
    }

    /// The same, read.
    ///
    /// # Errors
    /// None: ours can be read.
    pub fn config(self) -> Result<ModelConfig> {
        ModelConfig::from_json(self.json())
    }
}
