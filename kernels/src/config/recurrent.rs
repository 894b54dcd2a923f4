//! Families that keep a state instead of keys and values. They are known by name so that the refusal can say why.

use crate::error::Error;

/// Beginnings of class names and `model_type`s, as [`plain`] spells them; who they are; what to take instead.
const FAMILIES: [(&str, &str); 22] = [
    ("qwen3next", "Qwen3 or Qwen3-MoE"),
    ("qwen35", "Qwen3 or Qwen3-MoE"),
    ("mamba", "Llama, Qwen3 or SmolLM3"),
    ("falconmamba", "Llama, Qwen3 or SmolLM3"),
    ("falconh1", "Llama, Qwen3 or SmolLM3"),
    ("jamba", "Mixtral or Qwen3-MoE"),
    ("bamba", "Granite 3.3 or Llama"),
    ("zamba", "Llama, Qwen3 or SmolLM3"),
    ("granitehybrid", "a Granite 3.3, or the folder of a Granite 4.0 without `h` in its name"),
    ("nemotronh", "Llama or Qwen3"),
    ("lfm2", "SmolLM3, Qwen3 or Llama"),
    ("rwkv", "Llama, Qwen3 or SmolLM3"),
    ("arwkv", "Llama, Qwen3 or SmolLM3"),
    ("recurrentgemma", "Gemma 3"),
    ("griffin", "Gemma 3"),
    ("kimilinear", "Qwen3-MoE"),
    ("xlstm", "Llama, Qwen3 or SmolLM3"),
    ("plamo2", "Llama, Qwen3 or SmolLM3"),
    ("retnet", "Llama, Qwen3 or SmolLM3"),
    ("olmohybrid", "Llama, Qwen3 or SmolLM3"),
    ("minimaxtext01", "Mixtral or Qwen3-MoE"),
    ("bailingmoelinear", "Qwen3-MoE"),
];

/// The refusal of a family by its class, its `model_type` or its architecture in a GGUF file, if it keeps a state.
pub(crate) fn refuse(name: &str) -> Option<Error> {
    let plain = plain(name);
    FAMILIES.iter().find(|(begin, _)| plain.starts_with(begin)).map(|(_, instead)| refusal(name, instead))
}

pub(super) fn refusal(name: &str, instead: &str) -> Error {
    Error::unsupported(format!(
        "{name} is not supported: some or all of its layers keep a recurrent state instead of keys and values. Such a state is of everything \
         before it at once, so that a passage's cannot be stored and used again after another text; take a model whose layers are all \
         attention, such as {instead}"
    ))
}

/// Lower-case letters and digits alone: `Qwen3_5MoeForCausalLM`, `qwen3_5_moe` and `qwen35moe` begin alike.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn every_spelling_is_known_and_families_of_attention_are_not() {
        let recurrent = [
            "Qwen3NextForCausalLM",
            "qwen3next",
            "Qwen3_5ForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "qwen3_5_text",
            "qwen35moe",
            "MambaForCausalLM",
            "Mamba2ForCausalLM",
            "falcon_h1",
            "falcon-h1",
            "JambaForCausalLM",
            "granitehybrid",
            "NemotronHForCausalLM",
            "nemotron_h_moe",
            "Lfm2ForCausalLM",
            "lfm2moe",
            "RwkvForCausalLM",
            "rwkv7",
            "arwkv7",
            "RecurrentGemmaForCausalLM",
            "kimi-linear",
            "plamo2",
        ];
        for name in recurrent {
            let error = refuse(name).unwrap_or_else(|| panic!("{name} keeps a state"));
            assert_eq!(error.kind(), ErrorKind::UnsupportedModel);
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("recurrent state") && text.contains("such as"), "{text}");
        }
        for name in ["Qwen3ForCausalLM", "qwen3moe", "GraniteForCausalLM", "NemotronForCausalLM", "llama", "plamo", ""]
        {
            assert!(refuse(name).is_none(), "{name}");
        }
    }
}
