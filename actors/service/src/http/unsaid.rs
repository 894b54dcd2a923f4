//! What holds of sampling where a request says nothing.

use ragstone_kernels::generation::GenerationDefaults;

use crate::api::chat::Unsaid;

/// The values of fields that are not there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub min_p: f32,
    pub repetition_penalty: f32,
    /// `None`: one is drawn.
    pub seed: Option<u64>,
}

impl Defaults {
    const OPENAI: Self =
        Self { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0, seed: None };

    /// Those of a request; `model` is what its makers say.
    pub fn of(unsaid: Unsaid, model: &GenerationDefaults) -> Self {
        match unsaid {
            Unsaid::OpenAi => Self::OPENAI,
            Unsaid::Model => Self {
                temperature: model.temperature.unwrap_or(0.0),
                top_p: model.top_p.unwrap_or(1.0),
                top_k: model.top_k.unwrap_or(0),
                min_p: model.min_p.unwrap_or(0.0),
                // None of our own: it counts the prompt, where the answer stands (docs/decisions/0099).
                repetition_penalty: model.repetition_penalty.unwrap_or(1.0),
                // Whoever asks a knowledge base twice should not get two answers.
                seed: Some(0),
            },
        }
    }

    /// The same where nothing is drawn, which a beam search wants.
    pub fn without_drawing(self) -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, ..self }
    }
}
