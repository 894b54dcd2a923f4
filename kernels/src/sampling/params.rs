//! What a caller may say about how an answer is chosen.

use std::sync::Arc;

use super::beams::BeamSearch;
use crate::error::{Error, Result};
use crate::grammar::GrammarSpec;

/// The most alternatives that a caller may ask for beside each token.
pub const MAX_LOGPROBS: u8 = 20;
/// The most token ids that a caller may name in one list.
const MAX_TOKEN_IDS: usize = 1024;
/// The most texts that may end an answer, and the bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

/// How tokens of one answer are chosen, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 takes the most likely token.
    pub temperature: f32,
    /// The smallest set of most likely tokens that holds this much probability; 1 keeps all, 0 the likeliest.
    pub top_p: f32,
    /// The most likely tokens that are kept; 0 keeps all.
    pub top_k: usize,
    /// Tokens less likely than this share of the likeliest one's probability are dropped; 0 keeps all.
    pub min_p: f32,
    /// Divides the logits above 0 of tokens that stand in the prompt or the answer, and multiplies those below (CTRL,
    /// arXiv:1909.05858); 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time it stands in the answer; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it stands in the answer; 0 changes nothing.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Of the random stream. The caller draws one where the request names none: this crate has no randomness.
    pub seed: u64,
    /// The longest answer in tokens.
    pub max_tokens: usize,
    /// No end token is chosen before the answer has this many tokens.
    pub min_tokens: usize,
    /// Go on behind the model's own end tokens.
    pub ignore_eos: bool,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Whether control tokens show in the answer's text.
    pub show_control: bool,
    /// Alternatives to report beside each token; `None` reports no log-probabilities.
    pub logprobs: Option<u8>,
    /// Alternatives to report beside each of the prompt's tokens but the first, with what the model thought of that; `None` reports
    /// nothing of the prompt, and then what is stored of it may be reused.
    pub prompt_logprobs: Option<u8>,
    /// Tokens to report beside each token in the place of the likeliest ones.
    pub logprob_token_ids: Vec<u32>,
    /// What the answer must conform to.
    pub grammar: Option<Arc<GrammarSpec>>,
    /// The answers are the best of a beam search that is as wide as there are answers; nothing is drawn then.
    pub beams: Option<BeamSearch>,
}

impl Default for SamplingParams {
    /// Greedy, 256 tokens.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            max_tokens: 256,
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            show_control: false,
            logprobs: None,
            prompt_logprobs: None,
            logprob_token_ids: Vec::new(),
            grammar: None,
            beams: None,
        }
    }
}

impl SamplingParams {
    /// Checks the ranges; the message names the parameter as the HTTP surface spells it.
    pub fn validate(&self) -> Result<()> {
        // With wider ones a logit may leave what f32 can hold.
        for (name, value, least, most) in [
            ("temperature", self.temperature, 0.0, 2.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::invalid_field(name, format!("{name} is {value}; use {least} to {most}")));
            }
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            let message = format!("logit_bias of token {id} is {bias}; use -100 to 100");
            return Err(Error::invalid_field("logit_bias", message));
        }
        for (name, count) in [("logit_bias", self.logit_bias.len()), ("stop_token_ids", self.stop_token_ids.len())] {
            if count > MAX_TOKEN_IDS {
                let message = format!("{name} names {count} tokens; use at most {MAX_TOKEN_IDS}");
                return Err(Error::invalid_field(name, message));
            }
        }
        for (name, count) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(count) = count.filter(|count| *count > MAX_LOGPROBS) {
                let message = format!("{count} {name} asked for; use at most {MAX_LOGPROBS}");
                return Err(Error::invalid_field(name, message));
            }
        }
        if self.grammar.is_some() && self.ignore_eos {
            return Err(Error::invalid_input("ignore_eos and a grammar contradict each other; leave one out"));
        }
        if let Some(search) = &self.beams {
            self.validate_beams(search)?;
        }
        self.validate_stop()
    }

    fn validate_beams(&self, search: &BeamSearch) -> Result<()> {
        if self.temperature > 0.0 || self.top_k != 0 || self.top_p < 1.0 || self.min_p > 0.0 {
            let message =
                "a beam search draws nothing: leave temperature, top_p, top_k and min_p out, or set temperature to 0";
            return Err(Error::invalid_input(message));
        }
        if self.max_tokens == 0 {
            return Err(Error::invalid_input("a beam search needs max_tokens of at least 1"));
        }
        if self.grammar.is_some() {
            return Err(Error::invalid_input("a beam search cannot follow a grammar; leave one of them out"));
        }
        search.validate()
    }

    /// Checks the stop texts alone: each is searched for behind every token.
    pub fn validate_stop(&self) -> Result<()> {
        if self.stop.len() > MAX_STOPS {
            let count = self.stop.len();
            return Err(Error::invalid_input(format!("stop has {count} texts; use at most {MAX_STOPS}")));
        }
        match self.stop.iter().map(String::len).find(|bytes| *bytes > MAX_STOP_BYTES) {
            Some(bytes) => {
                Err(Error::invalid_input(format!("a text of stop has {bytes} bytes; use at most {MAX_STOP_BYTES}")))
            }
            None => Ok(()),
        }
    }
}
