//! The configuration that a GGUF file's metadata state, by way of the `config.json` that the same model has as a folder: what that is
//! checked for holds here, too.

use serde_json::{Map, Value, json};

use super::family::{self, FileFamily, LONG_FACTORS, SHORT_FACTORS};
use super::{Gguf, ROPE_FACTORS};
use crate::config::{Architecture, ModelConfig, Positions, RopeScaling, WeightDtype};
use crate::error::{Error, Result};
use crate::weights::TensorSource;

/// Values of metadata that stand for a forward that this program does not make, and the value that stands for none.
const OTHER_FORWARDS: [(&str, f64); 19] = [
    ("expert_count", 0.0),
    ("expert_shared_count", 0.0),
    ("expert_group_count", 0.0),
    ("expert_weights_scale", 1.0),
    // A softmax.
    ("expert_gating_func", 1.0),
    ("leading_dense_block_count", 0.0),
    ("interleave_moe_layer_step", 1.0),
    ("nextn_predict_layers", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.causal", 1.0),
    ("attention.scale", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 0.0),
    ("embedding_scale", 0.0),
    ("residual_scale", 0.0),
    ("rope.dimension_sections", 0.0),
];

/// The same of rotary scaling, where 1 and 0 stand for what is usual.
const ROPE_DEFAULTS: [(&str, f64); 5] = [
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.alpha", 0.0),
];

impl Gguf {
    /// What the model is.
    ///
    /// # Errors
    /// `InvalidModel` where the metadata contradict themselves or the tensors, `UnsupportedModel` for what would change the forward.
    pub fn config(&self) -> Result<ModelConfig> {
        self.read_config().map_err(|error| self.named(error))
    }

    /// The `config.json` that the metadata stand for: of the model's fingerprint.
    ///
    /// # Errors
    /// As [`Gguf::config`].
    pub fn config_json(&self) -> Result<String> {
        self.stated_config().map(|config| config.to_string()).map_err(|error| self.named(error))
    }

    pub(super) fn read_family(&self) -> Result<&'static FileFamily> {
        if self.integer("split.count")?.is_some_and(|files| files > 1) {
            return Err(Error::unsupported(
                "it is one part of a model; join the parts with llama.cpp's `llama-gguf-split --merge`, and give the whole file",
            ));
        }
        let name = self.string("general.architecture")?;
        let name =
            name.ok_or_else(|| Error::invalid_model("it lacks `general.architecture`; is it a language model?"))?;
        // A list of counts, one a layer, is refused with the rest of the configuration.
        let experts = self.integer(&format!("{name}.expert_count")).unwrap_or_default();
        family::find(name, experts.is_some_and(|experts| experts > 0))
    }

    /// A key of the file's architecture.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    pub(super) fn needed(&self, key: &str) -> Result<u64> {
        let key = self.key(key);
        self.integer(&key)?.ok_or_else(|| Error::invalid_model(format!("it lacks `{key}`; fetch the file again")))
    }

    pub(super) fn read_head_dim(&self) -> Result<usize> {
        let heads = self.needed("attention.head_count")?;
        let key_length = match self.integer(&self.key("attention.key_length"))? {
            Some(length) => length,
            None => self.needed("embedding_length")?.checked_div(heads).unwrap_or(0),
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            let key = self.key(key);
            let is_turned_in_part = self.family.architecture == Architecture::Phi3 && key.ends_with("dimension_count");
            if let Some(other) = self.integer(&key)?.filter(|other| *other != key_length && !is_turned_in_part) {
                return Err(Error::unsupported(format!(
                    "`{key}` is {other}, but a key has {key_length} elements; heads of which only a part is rotated, or whose \
                     values are of another length, are not supported"
                )));
            }
        }
        // Greater ones, and zero, are refused with the rest of the configuration.
        Ok(key_length.clamp(1, 1 << 20) as usize)
    }

    /// A tensor that nothing here computes with would change every answer.
    pub(super) fn refuse_unknown_tensors(&self) -> Result<()> {
        match self.header.tensors.keys().find(|name| !self.is_known(name)) {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!(
                "it has a tensor {name}, which this version does not compute with; take another model, or its safetensors"
            ))),
        }
    }

    fn refuse_other_forwards(&self) -> Result<()> {
        let all = OTHER_FORWARDS.into_iter().chain(ROPE_DEFAULTS);
        for (key, usual) in all.filter(|(key, _)| !self.family.own_keys.contains(key)) {
            let key = self.key(key);
            let is_usual = match self.header.values.get(&key) {
                None => true,
                Some(super::Value::Bool(flag)) => f64::from(u8::from(*flag)) == usual,
                Some(super::Value::List { .. } | super::Value::String(_)) => false,
                Some(_) => self.number(&key)? == Some(usual),
            };
            if !is_usual {
                return Err(Error::unsupported(format!(
                    "it sets `{key}`, which is not supported in GGUF files; take another model, or its safetensors"
                )));
            }
        }
        Ok(())
    }

    fn stated_config(&self) -> Result<Value> {
        self.refuse_other_forwards()?;
        let embedding = self.header.tensors.get("token_embd.weight");
        let vocabulary = embedding.and_then(|tensor| tensor.shape.first());
        let vocabulary = vocabulary
            .ok_or_else(|| Error::invalid_model("it lacks the tensor token_embd.weight; fetch the file again"))?;
        let epsilon = self.key("attention.layer_norm_rms_epsilon");
        let epsilon = self
            .number(&epsilon)?
            .ok_or_else(|| Error::invalid_model(format!("it lacks `{epsilon}`; fetch the file again")))?;
        let heads = self.needed("attention.head_count")?;
        let mut config = json!({
            "architectures": [self.family.architecture.class_name()],
            "vocab_size": vocabulary,
            "hidden_size": self.needed("embedding_length")?,
            "intermediate_size": self.needed("feed_forward_length")?,
            "num_hidden_layers": self.needed("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": self.integer(&self.key("attention.head_count_kv"))?.unwrap_or(heads),
            "head_dim": self.head_dim,
            "rms_norm_eps": epsilon,
            "max_position_embeddings": self.needed("context_length")?,
            "tie_word_embeddings": !self.header.tensors.contains_key("output.weight"),
            "rope_parameters": self.rope(10_000.0)?,
        });
        for (key, value) in self.own_config()? {
            config[key] = value;
        }
        // Some converters write the greatest number for none.
        if let Some(bos) = self.integer("tokenizer.ggml.bos_token_id")?.filter(|bos| *bos != u64::from(u32::MAX)) {
            config["bos_token_id"] = bos.into();
        }
        Ok(config)
    }

    /// Rotary parameters, without those of Phi-3 alone.
    pub(super) fn rope(&self, default_theta: f64) -> Result<Value> {
        let mut rope = Map::new();
        rope.insert("rope_theta".into(), self.number(&self.key("rope.freq_base"))?.unwrap_or(default_theta).into());
        let kind = self.string(&self.key("rope.scaling.type"))?.map(str::to_owned);
        // Files of 2023 have a factor without a kind.
        let old = self.number(&self.key("rope.scale_linear"))?.filter(|factor| *factor != 1.0);
        let factor = self.number(&self.key("rope.scaling.factor"))?.or(old);
        match (kind.as_deref(), factor) {
            (None | Some("none"), None | Some(1.0)) => {}
            (Some("longrope"), _) if self.header.tensors.contains_key(SHORT_FACTORS) => {}
            (None | Some("linear"), factor) => {
                rope.insert("rope_type".into(), "linear".into());
                rope.insert("factor".into(), factor.unwrap_or(1.0).into());
            }
            (Some("yarn"), factor) => {
                rope.insert("rope_type".into(), "yarn".into());
                rope.insert("factor".into(), factor.unwrap_or(1.0).into());
                let original = self.integer(&self.key("rope.scaling.original_context_length"))?;
                rope.insert("original_max_position_embeddings".into(), original.into());
                for (stated, key) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                    if let Some(value) = self.number(&self.key(&format!("rope.scaling.{key}")))? {
                        rope.insert(stated.into(), value.into());
                    }
                }
            }
            (Some(other), _) => {
                return Err(Error::unsupported(format!(
                    "rotary scaling of type {other} is not supported; take a file with none, linear, yarn or {ROPE_FACTORS}"
                )));
            }
        }
        Ok(rope.into())
    }

    fn read_config(&self) -> Result<ModelConfig> {
        let mut config = ModelConfig::from_json(&self.stated_config()?.to_string())?;
        let has = |name: &str| self.header.tensors.contains_key(name);
        config.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
        config.o_bias = has("blk.0.attn_output.bias");
        config.mlp_bias = has("blk.0.ffn_gate.bias");
        // The converter adds the one.
        config.norm_weights_less_one = false;
        config.torch_dtype = self.weight_dtype();
        let has_long_factors = [SHORT_FACTORS, LONG_FACTORS].map(has);
        if has_long_factors != [self.family.architecture == Architecture::Phi3 && has_long_factors[0]; 2] {
            return Err(Error::unsupported(format!(
                "it has {SHORT_FACTORS} or {LONG_FACTORS} where its architecture has none, or one without the other; take another file"
            )));
        }
        if let Positions::Rotary(rope) = &mut config.positions
            && has(ROPE_FACTORS)
        {
            if rope.scaling != RopeScaling::None {
                return Err(Error::unsupported(format!("it scales rotary frequencies twice, by {ROPE_FACTORS}, too")));
            }
            let factors = self.tensor(ROPE_FACTORS, &[config.head_dim / 2])?.into_f32();
            rope.scaling = RopeScaling::Factors { factors };
        }
        self.refuse_half_biases(&config)?;
        config.validate()?;
        Ok(config)
    }

    /// A bias that only some layers have would be left out elsewhere.
    fn refuse_half_biases(&self, config: &ModelConfig) -> Result<()> {
        let used = |part: &str| match part {
            "attn_q" | "attn_k" | "attn_v" | "attn_qkv" => config.qkv_bias,
            "attn_output" => config.o_bias,
            "ffn_gate" | "ffn_up" | "ffn_down" => config.mlp_bias,
            _ => false,
        };
        let layer = |name: &str| name.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok());
        let unused = self.header.tensors.keys().find(|name| {
            let mut parts = name.split('.').skip(2);
            let is_unused_bias = parts.next().is_some_and(|part| !used(part)) && parts.next() == Some("bias");
            let is_beyond = name.starts_with("blk.") && layer(name).is_none_or(|layer| layer >= config.layers);
            let is_unused_norm = name.ends_with("_q_norm.weight") && !config.qk_norm;
            is_unused_bias || is_beyond || is_unused_norm
        });
        match unused {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!(
                "it has a tensor {name} that a {} model of {} layers does not have; take another file",
                self.family.name, config.layers
            ))),
        }
    }

    /// That of the matrices: norms are f32 whatever those are.
    fn weight_dtype(&self) -> WeightDtype {
        // Those of routers are f32, too.
        let is_matrix = |name: &str, shape: &[usize]| shape.len() > 1 && !name.contains(".ffn_gate_inp.");
        let all = || self.header.tensors.iter();
        let matrices = || all().filter(|(name, tensor)| is_matrix(name, &tensor.shape)).map(|(_, tensor)| tensor);
        if matrices().any(|tensor| tensor.kind.is_quantized()) {
            return WeightDtype::Quantized;
        }
        let all = |kind| matrices().all(|tensor| tensor.kind == kind);
        match () {
            () if all(super::BlockType::F16) => WeightDtype::F16,
            () if all(super::BlockType::BF16) => WeightDtype::Bf16,
            () => WeightDtype::F32,
        }
    }
}
