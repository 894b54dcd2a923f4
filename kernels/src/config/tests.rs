use std::fs;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::*;
use crate::error::ErrorKind;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models")
}

fn base(class: &str) -> Value {
    json!({
        "architectures": [class], "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
        "num_hidden_layers": 4, "num_key_value_heads": 2, "vocab_size": 100, "hidden_act": "silu",
        "max_position_embeddings": 1000, "rms_norm_eps": 1e-5
    })
}

fn with(class: &str, changes: Value) -> Result<ModelConfig> {
    let mut config = base(class);
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string())
}

fn refusal(class: &str, changes: Value) -> (ErrorKind, String) {
    let error = with(class, changes).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn rotary_frequencies_agree_with_transformers() {
    let names =
        ["llama_mha", "rope_linear", "rope_llama3", "rope_yarn", "rope_yarn_mscale", "phi3_partial", "phi3_longrope"];
    for name in names {
        let folder = fixtures().join(name);
        let config = ModelConfig::from_folder(&folder).unwrap();
        let bytes = fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let read = |tensor: &str| -> Vec<f32> {
            let data = expected.tensor(tensor).unwrap().data().to_vec();
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let (frequencies, factor) = config.rope().unwrap().inverse_frequencies(config.rotated);
        let reference = read("inv_freq");
        assert_eq!(frequencies.len(), reference.len(), "{name}");
        for (i, (ours, theirs)) in frequencies.iter().zip(&reference).enumerate() {
            assert!((ours / theirs - 1.0).abs() < 5e-7, "{name}: frequency {i} is {ours}, expected {theirs}");
        }
        assert!((factor - read("attention_factor")[0]).abs() < 1e-6, "{name}: {factor}");
    }
}

#[test]
fn both_spellings_of_rotary_parameters_and_dtype_are_one() {
    let four = json!({
        "rope_theta": 5e5, "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}
    });
    let five = json!({
        "dtype": "bfloat16", "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500, "rope_theta": 5e5
        }
    });
    let config = with("Qwen2ForCausalLM", four).unwrap();
    assert_eq!(config, with("Qwen2ForCausalLM", five).unwrap());
    assert_eq!(config.torch_dtype, WeightDtype::Bf16);
    assert_eq!(config.max_positions, 2000);
    assert!((config.rope().unwrap().theta - 5e5).abs() < 1e-9);
}

#[test]
fn shapes_and_flags_follow_the_architecture() {
    let llama = with("LlamaForCausalLM", json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert_eq!((llama.head_dim, llama.query_dim(), llama.kv_dim()), (8, 64, 16));
    assert!(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
    let qwen2 = with("Qwen2ForCausalLM", json!({"tie_word_embeddings": true})).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.o_bias && qwen2.tie_embeddings);
    let qwen3 = with("Qwen3ForCausalLM", json!({})).unwrap();
    assert!(qwen3.qk_norm && !qwen3.qkv_bias);
    assert_eq!(qwen3.head_dim, 128, "the class default, not hidden / heads");
    let mistral = with("MistralForCausalLM", json!({"num_key_value_heads": null})).unwrap();
    assert_eq!(mistral.kv_heads, 8);
    let unnamed = with("", json!({"architectures": null, "model_type": "llama"})).unwrap();
    assert_eq!(unnamed.architecture, Architecture::Llama);
}

#[test]
fn bloom_and_gpt_2_say_it_in_their_own_words() {
    let bloom = json!({
        "architectures": ["BloomForCausalLM"], "n_embed": 96, "num_attention_heads": 6, "n_layer": 3, "vocab_size": 100,
        "layer_norm_epsilon": 1e-3, "seq_length": 300
    });
    let read = |config: &Value| ModelConfig::from_json(&config.to_string());
    let config = read(&bloom).unwrap();
    assert_eq!((config.hidden_size, config.heads, config.kv_heads, config.head_dim, config.layers), (96, 6, 6, 16, 3));
    assert_eq!((config.intermediate_size, config.max_positions, config.positions), (384, 300, Positions::Alibi));
    assert!(config.tie_embeddings && config.embedding_norm && config.qkv_bias && config.o_bias && config.mlp_bias);
    assert!((config.norm_eps - 1e-3).abs() < 1e-9 && config.norm == NormKind::Layer);
    let gpt2 = json!({
        "model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 3, "vocab_size": 100, "n_positions": 256, "n_inner": 40
    });
    let config = read(&gpt2).unwrap();
    assert_eq!((config.hidden_size, config.heads, config.layers, config.intermediate_size), (96, 6, 3, 40));
    assert_eq!((config.max_positions, config.positions), (256, Positions::Learned));
    assert!(config.tie_embeddings && !config.embedding_norm && config.feed_forward == FeedForwardKind::Plain);
    let refused = [
        (&bloom, "apply_residual_connection_post_layernorm", json!(true), ErrorKind::UnsupportedModel),
        (&bloom, "n_embed", json!(97), ErrorKind::InvalidModel),
        (&bloom, "layer_norm_epsilon", json!(-1), ErrorKind::InvalidModel),
        (&gpt2, "scale_attn_weights", json!(false), ErrorKind::UnsupportedModel),
        (&gpt2, "scale_attn_by_inverse_layer_idx", json!(true), ErrorKind::UnsupportedModel),
        (&gpt2, "add_cross_attention", json!(true), ErrorKind::UnsupportedModel),
        (&gpt2, "activation_function", json!("relu"), ErrorKind::UnsupportedModel),
        (&gpt2, "n_positions", json!(null), ErrorKind::InvalidModel),
        (&gpt2, "n_layer", json!(0), ErrorKind::InvalidModel),
    ];
    for (config, key, value, kind) in refused {
        let mut config = config.clone();
        config[key] = value;
        let error = read(&config).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(if key == "n_embed" { "97" } else { key }), "{error}");
    }
}

#[test]
fn experts_are_those_of_each_class() {
    let qwen3 = |changes: Value| {
        let mut all = json!({
            "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "attention_bias": true, "head_dim": 16
        });
        changes.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        with("Qwen3MoeForCausalLM", all)
    };
    let config = qwen3(json!({})).unwrap();
    let experts = config.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_row, experts.intermediate_size, experts.is_normalized), (8, 3, 24, false));
    assert!(config.qk_norm && config.qkv_bias && experts.dense_layers.is_empty() && config.experts_of(3).is_some());
    assert_eq!(config.inner_features(), 72);
    let sparse = json!({"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": true});
    let config = qwen3(sparse).unwrap();
    let experts = config.experts.clone().unwrap();
    assert!(experts.is_normalized && experts.dense_layers == [0, 2, 3], "{experts:?}");
    assert!(config.experts_of(0).is_none() && config.experts_of(1).is_some());
    assert_eq!(qwen3(json!({"sliding_window": 9, "use_sliding_window": true})).unwrap().windows, [Some(9); 4]);
    assert_eq!(qwen3(json!({"sliding_window": 9})).unwrap().windows, [None; 4]);

    let mixtral = |changes: Value| with("MixtralForCausalLM", changes);
    let config = mixtral(json!({"rms_norm_eps": null})).unwrap();
    let experts = config.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_row, experts.intermediate_size, experts.is_normalized), (8, 2, 96, true));
    assert_eq!((config.windows.clone(), config.qk_norm, config.qkv_bias), (vec![None; 4], false, false));
    assert!((config.rope().unwrap().theta - 1e6).abs() < 1e-9 && (config.norm_eps - 1e-5).abs() < 1e-12);
    assert_eq!(mixtral(json!({"sliding_window": 9})).unwrap().windows, [Some(9); 4]);

    let granite = with("GraniteMoeForCausalLM", json!({"num_local_experts": 5, "logits_scaling": 4})).unwrap();
    let experts = granite.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_row, experts.is_normalized, granite.logits_scale), (5, 2, true, 0.25));

    let olmoe = |changes: Value| {
        let mut all = json!({"num_experts": 6, "num_experts_per_tok": 2});
        changes.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        with("OlmoeForCausalLM", all)
    };
    let config = olmoe(json!({})).unwrap();
    let experts = config.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_row, experts.intermediate_size, experts.is_normalized), (6, 2, 96, false));
    assert!(config.qk_norm && config.qk_norm_of_rows && config.input_norms && !config.output_norms);
    assert!(olmoe(json!({"clip_qkv": 8.0})).unwrap_err().to_string().contains("clip_qkv"));
    let olmo2 = with("Olmo2ForCausalLM", json!({})).unwrap();
    assert!(
        olmo2.qk_norm && olmo2.qk_norm_of_rows && !olmo2.input_norms && olmo2.output_norms && olmo2.experts.is_none()
    );

    let refused = [
        (qwen3(json!({"num_experts_per_tok": 9})), "num_experts_per_tok"),
        (qwen3(json!({"num_experts": null})), "num_experts"),
        (qwen3(json!({"num_experts": 1 << 20})), "num_experts"),
        (qwen3(json!({"moe_intermediate_size": 0})), "moe_intermediate_size"),
        (qwen3(json!({"decoder_sparse_step": 0})), "decoder_sparse_step"),
        (qwen3(json!({"mlp_only_layers": 3})), "mlp_only_layers"),
        (mixtral(json!({"num_local_experts": 1})), "num_experts_per_tok"),
    ];
    for (result, key) in refused {
        let error = result.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidModel && error.to_string().contains(key), "{error}");
    }
}

#[test]
fn granite_and_opt_say_it_in_their_own_words() {
    let factors = json!({
        "embedding_multiplier": 12, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 8.0
    });
    let config = with("GraniteForCausalLM", factors.clone()).unwrap();
    assert_eq!((config.embedding_scale, config.attention_scale), (12.0, 0.0078125));
    assert_eq!((config.residual_scale, config.logits_scale), (0.22, 0.125));
    let usual = with("GraniteForCausalLM", json!({})).unwrap();
    assert_eq!([usual.embedding_scale, usual.attention_scale, usual.residual_scale, usual.logits_scale], [1.0; 4]);
    for (key, value) in
        [("logits_scaling", json!(0)), ("residual_multiplier", json!(-1)), ("attention_multiplier", json!("x"))]
    {
        let mut changes = factors.clone();
        changes[key] = value;
        let (kind, text) = refusal("GraniteForCausalLM", changes);
        assert!(kind == ErrorKind::InvalidModel && text.contains(key), "{text}");
    }

    let dense = |changes: Value| {
        let mut all = json!({
            "num_local_experts": 0, "shared_intermediate_size": 72, "layer_types": vec!["attention"; 4],
            "position_embedding_type": "rope", "logits_scaling": 4
        });
        changes.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        with("GraniteMoeHybridForCausalLM", all)
    };
    let config = dense(json!({})).unwrap();
    assert_eq!((config.intermediate_size, config.logits_scale, config.windows), (72, 0.25, vec![None; 4]));
    let refused = [
        (json!({"layer_types": ["mamba", "mamba", "attention", "mamba"]}), "recurrent state"),
        (json!({"layer_types": null}), "recurrent state"),
        (json!({"num_local_experts": 8}), "num_local_experts"),
        (json!({"position_embedding_type": null}), "position_embedding_type"),
    ];
    for (changes, part) in refused {
        let error = dense(changes).unwrap_err();
        assert!(error.kind() == ErrorKind::UnsupportedModel && error.to_string().contains(part), "{error}");
    }

    let opt = |changes: Value| {
        with("OPTForCausalLM", {
            let mut all = json!({"ffn_dim": 40, "bos_token_id": 2, "eos_token_id": 2});
            changes.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
            all
        })
    };
    let config = opt(json!({"enable_bias": false})).unwrap();
    assert_eq!((config.intermediate_size, config.positions_skipped, config.max_positions), (40, 2, 1000));
    assert_eq!((config.feed_forward, config.norm), (FeedForwardKind::PlainRelu, NormKind::Layer));
    assert!(!config.qkv_bias && !config.mlp_bias && config.tie_embeddings && !config.positions.can_move());
    let refused = [
        (json!({"do_layer_norm_before": false}), "do_layer_norm_before"),
        (json!({"word_embed_proj_dim": 32}), "word_embed_proj_dim"),
        (json!({"activation_function": "gelu"}), "gelu"),
        (json!({"layer_norm_elementwise_affine": false}), "layer_norm_elementwise_affine"),
        (json!({"_remove_final_layer_norm": true}), "_remove_final_layer_norm"),
    ];
    for (changes, part) in refused {
        let error = opt(changes).unwrap_err();
        assert!(error.kind() == ErrorKind::UnsupportedModel && error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_keeps_a_recurrent_state_is_refused_with_the_reason() {
    for class in ["Qwen3NextForCausalLM", "Mamba2ForCausalLM", "Lfm2ForCausalLM", "NemotronHForCausalLM"] {
        let (kind, text) = refusal(class, json!({}));
        assert!(
            kind == ErrorKind::UnsupportedModel && text.contains(class) && text.contains("recurrent state"),
            "{text}"
        );
    }
    let (_, text) = refusal("", json!({"architectures": null, "model_type": "qwen3_5_text"}));
    assert!(text.contains("qwen3_5_text") && text.contains("Qwen3-MoE"), "{text}");
}

#[test]
fn layers_and_heads_may_be_turned_in_part() {
    let smollm3 = |changes: Value| with("SmolLM3ForCausalLM", changes);
    let config = smollm3(json!({"no_rope_layers": [1, 0, 1, 0]})).unwrap();
    assert_eq!((config.unrotated, config.rotated, config.tie_embeddings), (vec![1, 3], 8, true));
    assert_eq!(smollm3(json!({})).unwrap().unrotated, [3], "every fourth");
    let window = json!({"sliding_window": 9, "use_sliding_window": true});
    assert_eq!(smollm3(window).unwrap().windows, [None, None, None, Some(9)]);
    let few = smollm3(json!({"no_rope_layers": [1]})).unwrap_err();
    assert!(few.kind() == ErrorKind::InvalidModel && few.to_string().contains("no_rope_layers"), "{few}");
    let phi3 = |changes: Value| with("Phi3ForCausalLM", changes);
    let config = phi3(json!({"partial_rotary_factor": 0.75, "sliding_window": null})).unwrap();
    assert_eq!((config.rotated, config.head_dim, config.windows, config.qkv_bias), (6, 8, vec![None; 4], false));
    assert_eq!(phi3(json!({"sliding_window": 9})).unwrap().windows, [Some(9); 4]);
    let long = |factors: usize, part: f64| {
        let scaling =
            json!({"type": "longrope", "short_factor": vec![1.5; factors], "long_factor": vec![3.0; factors]});
        phi3(json!({"rope_scaling": scaling, "original_max_position_embeddings": 100, "partial_rotary_factor": part}))
    };
    assert_eq!(long(3, 0.75).unwrap().max_positions, 100, "of longer prompts every frequency is another");
    for (factors, part) in [(4, 0.75), (3, 1.5), (3, 0.0), (3, 0.1)] {
        assert_eq!(long(factors, part).unwrap_err().kind(), ErrorKind::InvalidModel, "{factors} {part}");
    }
}

#[test]
fn windows_follow_each_class() {
    let windows = |class, changes| with(class, changes).unwrap().windows;
    assert_eq!(windows("LlamaForCausalLM", json!({"sliding_window": 9})), [None; 4]);
    assert_eq!(windows("MistralForCausalLM", json!({"sliding_window": 9})), [Some(9); 4]);
    assert_eq!(windows("MistralForCausalLM", json!({"sliding_window": null})), [None; 4]);
    assert_eq!(windows("MistralForCausalLM", json!({})), [Some(4096); 4], "the class default");
    let off = json!({"sliding_window": 9, "use_sliding_window": false, "max_window_layers": 0});
    assert_eq!(windows("Qwen2ForCausalLM", off), [None; 4]);
    let on = json!({"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(windows("Qwen2ForCausalLM", on), [None, None, None, Some(9)]);
    let named = json!({
        "sliding_window": 9, "use_sliding_window": true, "max_window_layers": 0,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    });
    let config = with("Qwen3ForCausalLM", named).unwrap();
    assert_eq!(config.windows, [None, Some(9), None, Some(9)]);
    assert_eq!((config.window(1), config.window(99)), (Some(9), None));
}

#[test]
fn token_ids_come_as_one_or_many() {
    let config = with("LlamaForCausalLM", json!({"bos_token_id": 1, "eos_token_id": [2, 3]})).unwrap();
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2, 3]));
    let config = with("LlamaForCausalLM", json!({"bos_token_id": null, "eos_token_id": 7})).unwrap();
    assert_eq!((config.bos_token_id, config.eos_token_ids), (None, vec![7]));
}

#[test]
fn an_unknown_architecture_is_named_with_the_known_ones() {
    let (kind, text) = refusal("GemmaForCausalLM", json!({"model_type": "gemma"}));
    assert_eq!(kind, ErrorKind::UnsupportedModel);
    for name in ["GemmaForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        assert!(text.contains(name), "{text}");
    }
    // A class of its own that shares a model_type is not the model_type's usual class.
    let (kind, _) = refusal("LlamaForSequenceClassification", json!({"model_type": "llama"}));
    assert_eq!(kind, ErrorKind::UnsupportedModel);
}

#[test]
fn what_would_compute_something_else_is_refused() {
    let scaling = |kind: &str| json!({"rope_scaling": {"rope_type": kind, "factor": 2.0}});
    let cases = [
        (json!({"hidden_act": "gelu"}), "gelu"),
        (scaling("dynamic"), "dynamic"),
        (scaling("ntk"), "ntk"),
        (json!({"partial_rotary_factor": 0.5}), "a part of each head"),
        (json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}), "layer type"),
        (json!({"quantization_config": {"quant_method": "awq"}}), "quantized"),
        (json!({"torch_dtype": "float8_e4m3fn"}), "float8_e4m3fn"),
        (json!({"layer_types": vec!["chunked_attention"; 4]}), "chunked_attention"),
    ];
    for (changes, part) in cases {
        let (kind, text) = refusal("LlamaForCausalLM", changes);
        assert_eq!(kind, ErrorKind::UnsupportedModel, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

fn llama3(low: f64, high: f64) -> Value {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": 500
    });
    json!({ "rope_scaling": scaling })
}

fn yarn(key: &str, value: Value) -> Value {
    let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000});
    scaling[key] = value;
    json!({ "rope_scaling": scaling })
}

fn harmful() -> Vec<Value> {
    vec![
        json!(null),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(-1),
        json!(1e-300),
        json!(1e300),
        json!(-0.0),
        json!(0.5),
        json!(1.0000000000000002),
        json!(1u64 << 24),
        json!(1u64 << 26),
        json!(u32::MAX),
        json!(1u64 << 60),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!([]),
        json!([4294967295u32]),
        json!({}),
        json!(true),
    ]
}

/// Every key of every kind of file takes every value that could hurt: an error or a model that can be used, at once.
#[test]
fn no_value_of_any_key_hurts() {
    let values = harmful();
    let extra = json!({
        "sliding_window": 9, "use_sliding_window": true, "max_window_layers": 2, "head_dim": 8, "eos_token_id": 2,
        "bos_token_id": 1, "rope_theta": 1e4, "torch_dtype": "float32", "attention_bias": false, "num_experts": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,
        "decoder_sparse_step": 2, "mlp_only_layers": [3], "logits_scaling": 8.0, "residual_multiplier": 0.2,
    });
    let (llama3, yarn) = (llama3(1.0, 4.0), yarn("beta_fast", json!(32.0)));
    let rotary = [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
        "Phi3ForCausalLM",
        "GraniteForCausalLM",
        "Qwen3MoeForCausalLM",
        "MixtralForCausalLM",
        "Olmo2ForCausalLM",
        "OlmoeForCausalLM",
        "GraniteMoeForCausalLM",
    ];
    for class in rotary {
        for scaling in [&llama3["rope_scaling"], &yarn["rope_scaling"], &json!({"type": "linear", "factor": 2.0})] {
            let mut whole = base(class);
            extra.as_object().unwrap().iter().for_each(|(key, value)| whole[key] = value.clone());
            whole["rope_scaling"] = scaling.clone();
            assert!(ModelConfig::from_json(&whole.to_string()).is_ok(), "{class} {scaling}");
            let keys: Vec<String> = whole.as_object().unwrap().keys().cloned().collect();
            let of_scaling: Vec<String> = scaling.as_object().unwrap().keys().cloned().collect();
            for value in &values {
                for key in &keys {
                    let mut config = whole.clone();
                    config[key] = value.clone();
                    is_refused_or_usable(&config);
                }
                for key in of_scaling.iter().map(String::as_str).chain(["mscale", "mscale_all_dim", "attention_factor"])
                {
                    let mut config = whole.clone();
                    config["rope_scaling"][key] = value.clone();
                    if key == "mscale" {
                        config["rope_scaling"]["mscale_all_dim"] = json!(-3.0);
                    }
                    is_refused_or_usable(&config);
                }
            }
        }
    }
}

#[test]
fn no_value_of_any_key_of_bloom_gpt_2_and_opt_hurts() {
    let values = harmful();
    let plain = json!({
        "n_embed": 64, "n_embd": 64, "n_head": 8, "n_layer": 4, "n_positions": 100, "n_inner": 96, "layer_norm_epsilon": 1e-5,
        "seq_length": 100, "activation_function": "gelu_new", "vocab_size": 100, "tie_word_embeddings": true,
        "hidden_size": 64, "ffn_dim": 96, "num_attention_heads": 8, "num_hidden_layers": 4, "max_position_embeddings": 100,
        "word_embed_proj_dim": 64, "enable_bias": true
    });
    for class in ["BloomForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"] {
        let mut whole = plain.clone();
        whole["architectures"] = json!([class]);
        if class == "OPTForCausalLM" {
            whole["activation_function"] = json!("relu");
        }
        assert!(ModelConfig::from_json(&whole.to_string()).is_ok(), "{class}");
        for key in plain.as_object().unwrap().keys() {
            for value in &values {
                let mut config = whole.clone();
                config[key] = value.clone();
                is_refused_or_usable(&config);
            }
        }
    }
}

fn is_refused_or_usable(config: &Value) {
    let read = match ModelConfig::from_json(&config.to_string()) {
        Ok(read) => read,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::InvalidModel | ErrorKind::UnsupportedModel), "{error}");
            return;
        }
    };
    let rope = crate::rope::Rope::new(&read);
    for position in [0, 1, (read.max_positions - 1) as u32, u32::MAX] {
        let mut head = vec![1.0; read.head_dim];
        rope.rotate(&mut head, position);
        assert!(head.iter().all(|value| value.is_finite()), "{config} at {position}");
    }
    assert_eq!(read.windows.len(), read.layers);
}

#[test]
fn a_damaged_file_says_which_key() {
    let cases = [
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"hidden_size": "64"}), "hidden_size"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers"),
        (json!({"vocab_size": 1u64 << 40}), "vocab_size"),
        (json!({"vocab_size": -5}), "vocab_size"),
        (json!({"num_hidden_layers": 1 << 20}), "num_hidden_layers"),
        (json!({"num_attention_heads": 1 << 20}), "num_attention_heads"),
        (json!({"num_key_value_heads": u64::MAX}), "num_key_value_heads"),
        (json!({"intermediate_size": 1u64 << 60}), "intermediate_size"),
        (json!({"head_dim": 1 << 20}), "head_dim"),
        (json!({"hidden_size": 1 << 22, "num_attention_heads": 8}), "head_dim"),
        (json!({"max_position_embeddings": 1u64 << 60}), "max_position_embeddings"),
        (json!({"rms_norm_eps": -1.0}), "rms_norm_eps"),
        (json!({"rope_theta": 1e300}), "rope_theta"),
        (json!({"rope_theta": -1e4}), "rope_theta"),
        (json!({"rope_scaling": {"type": "linear", "factor": 1e300}}), "factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": 1e6}}), "factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": -8.0}}), "factor"),
        (llama3(0.0, 4.0), "low_freq_factor"),
        (llama3(-1.0, 4.0), "low_freq_factor"),
        (llama3(4.0, 4.0), "high_freq_factor"),
        (llama3(1.0, 1e300), "high_freq_factor"),
        (yarn("original_max_position_embeddings", json!(1u64 << 60)), "original_max_position_embeddings"),
        (yarn("factor", json!(1e5)), "factor"),
        (yarn("beta_fast", json!(-1)), "beta_fast"),
        (yarn("beta_slow", json!(1e300)), "beta_slow"),
        (yarn("attention_factor", json!(-1.0)), "rope_parameters"),
        (yarn("attention_factor", json!(1e300)), "rope_parameters"),
        (json!({"eos_token_id": [2, 100]}), "eos_token_id"),
        (json!({"bos_token_id": u32::MAX}), "bos_token_id"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        (json!({"head_dim": 7}), "head_dim"),
        (json!({"rope_theta": 0.0}), "rope_theta"),
        (json!({"rope_scaling": {"type": "linear"}}), "factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "factor"),
        (json!({"tie_word_embeddings": "yes"}), "tie_word_embeddings"),
        (json!({"eos_token_id": "</s>"}), "eos_token_id"),
    ];
    for (changes, key) in cases {
        let (kind, text) = refusal("LlamaForCausalLM", changes);
        assert_eq!(kind, ErrorKind::InvalidModel, "{text}");
        assert!(text.contains(key), "{text}");
    }
    let sliding = json!({"layer_types": vec!["sliding_attention"; 4], "use_sliding_window": false});
    assert!(refusal("Qwen2ForCausalLM", sliding).1.contains("sliding_window"));
    let few = json!({"layer_types": ["full_attention"]});
    assert!(refusal("Qwen2ForCausalLM", few).1.contains("layer_types"));
    for text in ["", "[]", "{", "{}", "\u{feff}{}"] {
        assert_eq!(ModelConfig::from_json(text).unwrap_err().kind(), ErrorKind::InvalidModel, "{text:?}");
    }
}

#[test]
fn a_folder_without_a_configuration_says_what_belongs_there() {
    let folder = tempfile::tempdir().unwrap();
    let error = ModelConfig::from_folder(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidModel);
    assert!(error.to_string().contains("config.json"));
}

#[test]
fn a_configuration_survives_being_written_and_read() {
    let config = ModelConfig::from_folder(&fixtures().join("rope_yarn")).unwrap();
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<ModelConfig>(&text).unwrap(), config);
}
