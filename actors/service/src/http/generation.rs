//! What chat and plain completions have in common: sampling, streaming, and ragstone's extension.

use std::sync::Arc;
use std::time::Duration;

use ragstone_actors::{Context, MAX_ANSWERS, MAX_CANDIDATES, MAX_ROUND_TOKENS, MAX_ROUNDS, Reuse, check_tenant};
use ragstone_corpus::{Filter, Qualified, qualified};
use ragstone_env::Env;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::generation::GenerationDefaults;
use ragstone_kernels::sampling::{BeamSearch, EarlyStopping, MAX_LOGPROBS, SamplingParams};
use serde_json::{Map, Value};

use super::fields::{Fields, is_nothing};
use super::format::Format;
use super::identity::Visitor;
pub use super::known_fields::is_known;
use super::known_fields::{HINTS, OWN_PASSED_ON, PASSED_ON, REFUSED};
use super::unsaid::Defaults;
pub use crate::api::chat::Extension;
use crate::api::chat::{LogitBias, StreamOptions};
use crate::api::embeddings::OneOrMany;
use crate::error::{Error, ErrorKind, Result};
use crate::http::state::State;

/// Sampling, streaming and the extension of one request.
#[derive(Debug)]
pub struct Generation {
    pub sampling: SamplingParams,
    /// Answers that are generated.
    pub answers: usize,
    /// The best of them that are returned: fewer only where `best_of` asks for it.
    pub choices: usize,
    /// Most tokens of a draft, where the request says.
    pub drafts: Option<usize>,
    pub stream: bool,
    /// Send the token counts in a chunk of their own.
    pub include_usage: bool,
    pub extension: Extension,
    pub deadline: Duration,
    /// What the answer must conform to, and the field that says so.
    pub format: Option<Format>,
    /// What the request says of all that, as it is written, where an engine elsewhere answers.
    pub said: Option<Arc<Map<String, Value>>>,
}

impl Extension {
    /// The request's tenant and the full name of its collection, which whoever sent it may name.
    ///
    /// # Errors
    /// `Forbidden`.
    pub fn settle(&mut self, visitor: &Visitor) -> Result<String> {
        self.collection = visitor.collection_if(self.collection.take())?;
        visitor.tenant(self.tenant.take(), "ragstone.tenant")
    }

    /// Where passages come from; `None` for a plain conversation.
    pub fn context(&mut self) -> Option<Context> {
        (self.collection.is_some() || !self.documents.is_empty()).then(|| Context {
            collection: self.collection.take(),
            top_k: self.top_k,
            filter: self.filter.take(),
            min_similarity: self.min_similarity,
            on_nothing_found: self.on_nothing_found,
            rounds: self.rounds,
            round_tokens: self.round_tokens,
            rerank: self.rerank,
            speculate: self.speculate,
            arrange: self.arrange,
            documents: std::mem::take(&mut self.documents),
        })
    }

    /// Takes qualifiers out of what the user said last, and makes filters of them, where that is asked for.
    ///
    /// # Errors
    /// `InvalidInput`, which says what is wrong with one.
    pub fn take_qualifiers(&mut self, messages: &mut [ChatMessage]) -> Result<()> {
        if !self.qualifiers {
            return Ok(());
        }
        let Some(last) = messages.iter_mut().rev().find(|message| message.role == "user") else { return Ok(()) };
        let Qualified { query, filter } =
            qualified(&last.content).map_err(|error| Error::invalid_field("messages", error.to_string()))?;
        last.content = query;
        let filters = self.filter.take().into_iter().chain(filter).collect();
        self.filter =
            Filter::all_of(filters).map_err(|error| Error::invalid_field("ragstone.filter", error.to_string()))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        check_tenant(self.tenant.as_deref().unwrap_or_default())
            .map_err(|error| Error::invalid_field("ragstone.tenant", error.to_string()))?;
        if let Reuse::Ratio(ratio) = self.reuse
            && !(0.0..=1.0).contains(&ratio)
        {
            return Err(Error::invalid_field("ragstone.reuse.ratio", format!("`ratio` is {ratio}; use 0.0 to 1.0")));
        }
        if self.top_k == Some(0) {
            return Err(Error::invalid_field("ragstone.top_k", "`top_k` must be at least 1"));
        }
        for (name, value, most) in
            [("rounds", self.rounds, MAX_ROUNDS), ("round_tokens", self.round_tokens, MAX_ROUND_TOKENS)]
        {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(Error::invalid_field(
                    format!("ragstone.{name}"),
                    format!("`{name}` is {value}; use 1 to {most}"),
                ));
            }
        }
        if let Some(count) = self.rerank.filter(|count| *count > MAX_CANDIDATES) {
            return Err(Error::invalid_field(
                "ragstone.rerank",
                format!("`rerank` is {count}; use at most {MAX_CANDIDATES}"),
            ));
        }
        if self.rerank.is_some_and(|count| count > 0) && self.collection.is_none() {
            return Err(Error::invalid_field(
                "ragstone.rerank",
                "`rerank` orders what a search finds; name a collection",
            ));
        }
        if self.filter.is_some() && self.collection.is_none() {
            return Err(Error::invalid_field(
                "ragstone.filter",
                "`filter` chooses among what a search finds; name a collection",
            ));
        }
        let about_search = [
            ("qualifiers", self.qualifiers),
            ("min_similarity", self.min_similarity.is_some()),
            ("on_nothing_found", self.on_nothing_found.is_some()),
        ];
        if let Some((name, _)) = about_search.iter().find(|(_, is_there)| *is_there && self.collection.is_none()) {
            let message = format!("`{name}` is about what a search finds; name a collection");
            return Err(Error::invalid_field(format!("ragstone.{name}"), message));
        }
        if self.rounds.is_some_and(|rounds| rounds > 1) && self.collection.is_none() {
            return Err(Error::invalid_field("ragstone.rounds", "`rounds` searches a collection again; name one"));
        }
        if self.deadline_s == Some(0) {
            return Err(Error::invalid_field("ragstone.deadline_s", "`deadline_s` must be at least 1"));
        }
        Ok(())
    }
}

impl Generation {
    /// Takes the fields that both endpoints know. The caller adds `logprobs` and takes the rest.
    pub fn take(fields: &mut Fields, state: &State, default_max_tokens: usize) -> Result<Self> {
        let limit = Duration::from_secs(state.settings.deadline_s);
        let model = state.loaded().map(|opened| opened.ragstone.generation_defaults()).unwrap_or_default();
        let said =
            state.settings.upstream().is_set().then(|| Arc::new(fields.said(&[PASSED_ON, OWN_PASSED_ON].concat())));
        Ok(Self { said, ..Self::take_within(limit, fields, &state.env, default_max_tokens, &model)? })
    }

    /// As [`take`](Self::take), where no request may take longer than `limit`.
    pub(super) fn take_within(
        limit: Duration,
        fields: &mut Fields,
        env: &Env,
        default_max_tokens: usize,
        model: &GenerationDefaults,
    ) -> Result<Self> {
        Self::refuse_unsupported(fields)?;
        let max_tokens = match most_tokens(fields, "max_completion_tokens")? {
            Some(count) => {
                fields.ignore(&["max_tokens"]);
                Some(count)
            }
            None => most_tokens(fields, "max_tokens")?,
        };
        let (choices, answers) = choices(fields)?;
        // As llama.cpp names it; what the answer is does not depend on it.
        let drafts = fields.take("speculative.n_max")?;
        let format = Format::take(fields)?;
        let extension: Extension = fields.take("ragstone")?.unwrap_or_default();
        extension.check()?;
        let (beams, unsaid) = (beams(fields)?, Defaults::of(extension.sampling, model));
        let unsaid = if beams.is_some() { unsaid.without_drawing() } else { unsaid };
        let mut sampling = sampling(fields, max_tokens.unwrap_or(default_max_tokens), unsaid, || env.random_u64())?;
        sampling.beams = beams;
        sampling.grammar = format.as_ref().map(|format| format.spec.clone());
        let stream = fields.take("stream")?.unwrap_or(false);
        if stream && sampling.prompt_logprobs.is_some() {
            let message = "`prompt_logprobs` come with a whole answer; leave `stream` out";
            return Err(Error::invalid_field("prompt_logprobs", message));
        }
        if stream && sampling.beams.is_some() {
            return Err(Error::invalid_field(
                "stream",
                "a beam search knows its answers at its end; leave `stream` out",
            ));
        }
        let options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let deadline = extension.deadline_s.map_or(limit, |seconds| Duration::from_secs(seconds).min(limit));
        Ok(Self {
            sampling,
            answers,
            choices,
            drafts,
            stream,
            include_usage: stream && options.include_usage == Some(true),
            extension,
            deadline,
            format,
            said: None,
        })
    }

    /// Makes the answer conform to `format`.
    pub fn set_format(&mut self, format: Format) {
        self.sampling.grammar = Some(format.spec.clone());
        self.format = Some(format);
    }

    fn refuse_unsupported(fields: &mut Fields) -> Result<()> {
        fields.ignore(HINTS);
        for name in REFUSED {
            fields.refuse_unless(name, is_nothing)?;
        }
        for name in ["web_search_options", "moderation"] {
            fields.refuse_unless(name, |_| false)?;
        }
        fields.refuse_unless("function_call", |value| matches!(value.as_str(), Some("none" | "auto")))?;
        fields.refuse_unless("modalities", |value| *value == serde_json::json!(["text"]))
    }
}

/// A bound on an answer's tokens. Clients of Ollama and llama.cpp send -1 for none: it is as long as the context has room.
fn most_tokens(fields: &mut Fields, name: &str) -> Result<Option<usize>> {
    let Some(value) = fields.take_value(name) else { return Ok(None) };
    match (value.as_i64(), value.as_u64()) {
        (Some(-1), _) => Ok(Some(u32::MAX as usize)),
        (_, Some(count)) => Ok(Some(usize::try_from(count).unwrap_or(usize::MAX))),
        _ => Err(Error::invalid_field(
            name,
            format!("`{name}` is {value}; send a whole number of tokens, or -1 for no bound"),
        )),
    }
}

/// `n`, the choices that are returned, and `best_of`, the answers that they are chosen from.
fn choices(fields: &mut Fields) -> Result<(usize, usize)> {
    let count = fields.take::<usize>("n")?.unwrap_or(1);
    if !(1..=MAX_ANSWERS).contains(&count) {
        return Err(Error::invalid_field("n", format!("`n` is {count}; use 1 to {MAX_ANSWERS}")));
    }
    let best_of = fields.take::<usize>("best_of")?.unwrap_or(count);
    if !(count..=MAX_ANSWERS).contains(&best_of) {
        let message = format!("`best_of` is {best_of}; use at least `n` ({count}), {MAX_ANSWERS} at most");
        return Err(Error::invalid_field("best_of", message));
    }
    Ok((count, best_of))
}

/// A beam search, as vLLM names it, with transformers' rules.
fn beams(fields: &mut Fields) -> Result<Option<BeamSearch>> {
    let wanted = fields.take::<bool>("use_beam_search")?.unwrap_or(false);
    let length_penalty = fields.take::<f32>("length_penalty")?;
    let early_stopping = match fields.take_value("early_stopping") {
        None | Some(Value::Bool(false)) => EarlyStopping::Heuristic,
        Some(Value::Bool(true)) => EarlyStopping::Immediate,
        Some(Value::String(text)) if text == "never" => EarlyStopping::Never,
        Some(other) => {
            let message = format!("`early_stopping` is {other}; use true, false or \"never\"");
            return Err(Error::invalid_field("early_stopping", message));
        }
    };
    Ok(wanted.then_some(BeamSearch { length_penalty: length_penalty.unwrap_or(1.0), early_stopping }))
}

/// How tokens are chosen, and when the answer ends. `random` gives the seed where neither the request nor `unsaid` has one.
fn sampling(
    fields: &mut Fields,
    max_tokens: usize,
    unsaid: Defaults,
    random: impl FnOnce() -> u64,
) -> Result<SamplingParams> {
    let stop = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    };
    if stop.iter().any(String::is_empty) {
        return Err(Error::invalid_field("stop", "`stop` must not hold an empty string"));
    }
    let seed = match fields.take::<serde_json::Number>("seed")? {
        Some(seed) => seed
            .as_u64()
            .or_else(|| seed.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| Error::invalid_field("seed", format!("`seed` is {seed}; use a whole number of 64 bits")))?,
        None => unsaid.seed.unwrap_or_else(random),
    };
    let top_k = match fields.take::<i64>("top_k")? {
        // Other servers write -1 for "all".
        Some(count) => usize::try_from(count.max(0)).unwrap_or(usize::MAX),
        None => unsaid.top_k,
    };
    let sampling = SamplingParams {
        temperature: fields.take("temperature")?.unwrap_or(unsaid.temperature),
        top_p: fields.take("top_p")?.unwrap_or(unsaid.top_p),
        top_k,
        min_p: fields.take("min_p")?.unwrap_or(unsaid.min_p),
        repetition_penalty: fields.take("repetition_penalty")?.unwrap_or(unsaid.repetition_penalty),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(0.0),
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(0.0),
        logit_bias: fields.take("logit_bias")?.map_or(Ok(Vec::new()), biases)?,
        seed,
        max_tokens,
        min_tokens: fields.take("min_tokens")?.unwrap_or(0),
        ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        stop,
        stop_token_ids: fields.take("stop_token_ids")?.unwrap_or_default(),
        show_control: !fields.take("skip_special_tokens")?.unwrap_or(true),
        logprobs: None,
        prompt_logprobs: fields
            .take::<u64>("prompt_logprobs")?
            .map(|count| alternatives("prompt_logprobs", count, MAX_LOGPROBS))
            .transpose()?,
        logprob_token_ids: Vec::new(),
        grammar: None,
        beams: None,
    };
    sampling.validate_stop().map_err(|error| Error::invalid_field("stop", error.to_string()))?;
    sampling.validate()?;
    Ok(sampling)
}

fn biases(given: LogitBias) -> Result<Vec<(u32, f32)>> {
    let id = |(name, bias): (String, f32)| {
        let wrong = || {
            Error::invalid_field("logit_bias", format!("`logit_bias` names `{}`; use token ids", name.escape_default()))
        };
        Ok((name.parse().map_err(|_| wrong())?, bias))
    };
    match given {
        LogitBias::Map(map) => map.into_iter().map(id).collect(),
        LogitBias::Pairs(pairs) => Ok(pairs),
    }
}

/// Checks that the request means this service's model; `None` and `default` do.
pub fn check_model(fields: &mut Fields, own: &str) -> Result<()> {
    match fields.take::<String>("model")? {
        None => Ok(()),
        Some(name) if name == own || name == "default" => Ok(()),
        Some(name) => Err(Error::of_field(
            ErrorKind::NotFound,
            "model",
            format!("model `{name}` is not served here; use `{own}`"),
        )),
    }
}

/// `logprobs` of a plain completion, `top_logprobs` of a chat: how many alternatives.
pub fn alternatives(name: &str, count: u64, most: u8) -> Result<u8> {
    u8::try_from(count)
        .ok()
        .filter(|count| *count <= most)
        .ok_or_else(|| Error::invalid_field(name, format!("`{name}` is {count}; use at most {most}")))
}

/// Text of a message, which clients send as a string or as parts.
pub fn text_of(content: Value, param: &str) -> Result<String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => parts
            .into_iter()
            .map(|part| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (kind, _) => {
                    let kind = kind.unwrap_or("?");
                    Err(Error::invalid_field(param, format!("content of type `{kind}` is not supported; send text")))
                }
            })
            .collect(),
        _ => Err(Error::invalid_field(param, format!("`{param}` must be a string or a list of text parts"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::known_fields::TAKEN_HERE;
    use super::*;
    use crate::api::chat::Unsaid;

    /// What a request of `body` to a model with these defaults takes.
    fn taken(body: &str, model: &GenerationDefaults) -> SamplingParams {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let limit = Duration::from_secs(1);
        Generation::take_within(limit, &mut fields, &Env::seeded(1, 0), 7, model).unwrap().sampling
    }

    #[test]
    fn the_model_is_asked_where_the_request_says_so_and_says_nothing_else() {
        let makers = GenerationDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.05),
        };
        let base = SamplingParams { max_tokens: 7, seed: 0, ..SamplingParams::default() };
        let as_made =
            SamplingParams { temperature: 0.7, top_p: 0.8, top_k: 20, repetition_penalty: 1.05, ..base.clone() };
        let asked = r#""ragstone": {"sampling": "model"}"#;
        assert_eq!(taken(&format!("{{{asked}}}"), &makers), as_made);
        // Makers who say nothing: the likeliest token, and no penalty.
        let silent = GenerationDefaults::default();
        assert_eq!(taken(&format!("{{{asked}}}"), &silent), base);
        // What the request says counts.
        let said = format!(r#"{{{asked}, "temperature": 0, "repetition_penalty": 1, "top_k": -1, "seed": 5}}"#);
        let expected =
            SamplingParams { temperature: 0.0, repetition_penalty: 1.0, top_k: 0, seed: 5, ..as_made.clone() };
        assert_eq!(taken(&said, &makers), expected);
        let beams = SamplingParams { beams: taken(r#"{"use_beam_search": true}"#, &makers).beams, ..as_made.clone() };
        let beams = SamplingParams { temperature: 0.0, top_p: 1.0, top_k: 0, ..beams };
        assert_eq!(taken(&format!(r#"{{{asked}, "use_beam_search": true}}"#), &makers), beams);
        // OpenAI's clients get OpenAI's defaults, whatever the model.
        let openai = SamplingParams { temperature: 1.0, top_p: 1.0, top_k: 0, repetition_penalty: 1.0, ..as_made };
        let drawn = taken("{}", &makers);
        assert_eq!(SamplingParams { seed: 0, ..drawn.clone() }, openai);
        assert_ne!(drawn.seed, 0);
    }

    fn sampled(body: &str) -> Result<SamplingParams> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let unsaid = Defaults::of(Unsaid::OpenAi, &GenerationDefaults::default());
        let params = sampling(&mut fields, 7, unsaid, || 1);
        params.and_then(|params| fields.finish().map(|()| params))
    }

    #[test]
    fn fields_of_other_servers_are_read() {
        let defaults = SamplingParams { temperature: 1.0, seed: 1, max_tokens: 7, ..SamplingParams::default() };
        assert_eq!(sampled("{}").unwrap(), defaults);
        for (body, expected) in [
            (r#"{"top_k": -1}"#, defaults.clone()),
            (r#"{"top_k": 9223372036854775807}"#, SamplingParams { top_k: i64::MAX as usize, ..defaults.clone() }),
            (r#"{"seed": -1}"#, SamplingParams { seed: u64::MAX, ..defaults.clone() }),
            (r#"{"seed": 18446744073709551615}"#, SamplingParams { seed: u64::MAX, ..defaults.clone() }),
            (
                r#"{"logit_bias": {"5": -100, "6": 1.5}}"#,
                SamplingParams { logit_bias: vec![(5, -100.0), (6, 1.5)], ..defaults.clone() },
            ),
            (r#"{"top_p": 0}"#, SamplingParams { top_p: 0.0, ..defaults.clone() }),
            (r#"{"logit_bias": [[5, 1]]}"#, SamplingParams { logit_bias: vec![(5, 1.0)], ..defaults.clone() }),
            (
                r#"{"ignore_eos": true, "min_tokens": 3, "stop_token_ids": [9], "skip_special_tokens": false}"#,
                SamplingParams {
                    ignore_eos: true,
                    min_tokens: 3,
                    stop_token_ids: vec![9],
                    show_control: true,
                    ..defaults.clone()
                },
            ),
        ] {
            assert_eq!(sampled(body).unwrap(), expected, "{body}");
        }
    }

    /// Taken to be refused, or without effect.
    const UNSAID: &[&str] = &["function_call", "modalities", "web_search_options", "moderation"];

    #[test]
    fn the_described_fields_are_those_that_are_taken() {
        let document = crate::api::openapi::document();
        for (name, own) in [
            ("ChatRequest", &["messages", "logprobs", "top_logprobs", "chat_template_kwargs", "reasoning_effort"][..]),
            ("CompletionRequest", &["prompt", "logprobs", "echo"]),
        ] {
            let described = document["components"]["schemas"][name]["properties"].as_object().unwrap();
            let mut described: Vec<&str> = described.keys().map(String::as_str).collect();
            let taken = TAKEN_HERE.iter().chain(PASSED_ON).filter(|name| !UNSAID.contains(name));
            let mut taken: Vec<&str> = taken.chain(own).copied().collect();
            described.sort_unstable();
            taken.sort_unstable();
            assert_eq!(described, taken, "{name}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (body, words) in [
            (r#"{"logit_bias": {"x": 1}}"#, "`x`"),
            (r#"{"logit_bias": {"-1": 1}}"#, "`-1`"),
            (r#"{"logit_bias": {"99999999999": 1}}"#, "`99999999999`"),
            (r#"{"logit_bias": {"1": 1e300}}"#, "logit_bias"),
            (r#"{"repetition_penalty": 1e300}"#, "repetition_penalty"),
            (r#"{"top_k": 9223372036854775808}"#, "top_k"),
            (r#"{"seed": 36893488147419103232}"#, "seed"),
            (r#"{"stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]}"#, "at most 16"),
            (r#"{"stop_token_ids": [-1]}"#, "stop_token_ids"),
        ] {
            let error = sampled(body).unwrap_err();
            assert!(error.to_string().contains(words), "{body}: {error}");
        }
    }
}
