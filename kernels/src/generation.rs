//! How a model's makers say that its answers are chosen: `generation_config.json` of a folder, `general.sampling.…` of a GGUF file
//! (llama.cpp's converter writes the one from the other).

use std::path::Path;

use crate::error::Result;
use crate::tokenizer::read_json;

/// What they name, in the words and units of [`SamplingParams`](crate::sampling::SamplingParams); `None` where they are silent, or say
/// what no request could.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerationDefaults {
    /// `None`: the likeliest token is taken.
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<usize>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`, which may be missing. As transformers has it, nothing is drawn unless `do_sample` is true, also
    /// where the file names a temperature; one that is not named is 1 then.
    ///
    /// # Errors
    /// `InvalidModel` for a file that is no JSON.
    pub fn from_folder(model: &Path) -> Result<Self> {
        let config = read_json(&model.join("generation_config.json"))?.unwrap_or_default();
        let draws = config["do_sample"] == true;
        let number = |key: &str| config[key].as_f64();
        Ok(Self::checked(|key| match key {
            "repetition_penalty" => number(key),
            "temperature" => draws.then(|| number(key).unwrap_or(1.0)),
            _ => number(key).filter(|_| draws),
        }))
    }

    /// The same of a GGUF file; `number` gives its values. A file that says among which tokens is drawn, and not how, means a temperature
    /// of 1: the converter leaves out what transformers has by default.
    pub(crate) fn from_gguf(number: impl Fn(&str) -> Option<f64>) -> Self {
        let key = |key: &str| match key {
            "temperature" => "general.sampling.temp".to_owned(),
            "repetition_penalty" => "general.sampling.penalty_repeat".to_owned(),
            other => format!("general.sampling.{other}"),
        };
        let draws = ["top_k", "top_p", "min_p"].iter().any(|name| number(&key(name)).is_some());
        Self::checked(|name| number(&key(name)).or_else(|| (name == "temperature" && draws).then_some(1.0)))
    }

    /// Files come from elsewhere: only what a request could say counts.
    fn checked(named: impl Fn(&str) -> Option<f64>) -> Self {
        let within = |key: &str, least: f64, most: f64| named(key).filter(|value| (least..=most).contains(value));
        Self {
            temperature: within("temperature", 0.0, 2.0).map(|value| value as f32),
            top_p: within("top_p", 0.0, 1.0).filter(|value| *value > 0.0).map(|value| value as f32),
            top_k: within("top_k", 0.0, f64::from(u32::MAX)).map(|value| value as usize),
            min_p: within("min_p", 0.0, 1.0).map(|value| value as f32),
            repetition_penalty: within("repetition_penalty", 0.01, 100.0).map(|value| value as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of_json(config: &Value) -> GenerationDefaults {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generation_config.json"), config.to_string()).unwrap();
        GenerationDefaults::from_folder(folder.path()).unwrap()
    }

    #[test]
    fn a_folder_draws_where_its_makers_say_so() {
        let nothing = GenerationDefaults::default();
        let config =
            json!({ "do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05 });
        let qwen = GenerationDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.05),
        };
        assert_eq!(of_json(&config), qwen);
        let gemma = GenerationDefaults { temperature: Some(1.0), top_k: Some(64), ..nothing };
        assert_eq!(of_json(&json!({ "do_sample": true, "top_k": 64 })), gemma);
        for greedy in
            [json!({ "temperature": 0.9, "top_p": 0.6 }), json!({ "do_sample": false, "temperature": 0.9 }), json!({})]
        {
            assert_eq!(of_json(&greedy), nothing, "{greedy}");
        }
        let penalty = GenerationDefaults { repetition_penalty: Some(1.2), ..nothing };
        assert_eq!(of_json(&json!({ "repetition_penalty": 1.2 })), penalty);
        let wrong = json!({ "do_sample": true, "temperature": 9, "top_p": 0, "top_k": -1, "min_p": "x", "repetition_penalty": 0 });
        assert_eq!(of_json(&wrong), nothing);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(GenerationDefaults::from_folder(folder.path()).unwrap(), nothing);
        std::fs::write(folder.path().join("generation_config.json"), "{").unwrap();
        assert!(
            GenerationDefaults::from_folder(folder.path()).unwrap_err().to_string().contains("generation_config.json")
        );
    }

    #[test]
    fn a_gguf_file_says_the_same_in_its_own_words() {
        let of = |pairs: &[(&str, f64)]| {
            GenerationDefaults::from_gguf(|key| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
        };
        let nothing = GenerationDefaults::default();
        assert_eq!(of(&[]), nothing);
        let penalty = GenerationDefaults { repetition_penalty: Some(1.05), ..nothing };
        assert_eq!(of(&[("general.sampling.penalty_repeat", 1.05)]), penalty, "which draws nothing");
        let named =
            [("general.sampling.temp", 0.6), ("general.sampling.top_k", 20.0), ("general.sampling.top_p", 0.95)];
        let qwen = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), top_p: Some(0.95), ..nothing };
        assert_eq!(of(&named), qwen);
        let gemma = GenerationDefaults { temperature: Some(1.0), top_k: Some(64), ..nothing };
        assert_eq!(of(&[("general.sampling.top_k", 64.0)]), gemma);
    }
}
