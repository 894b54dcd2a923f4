//! The fields that chat and plain completions have in common, by name.

/// What both endpoints take for the service itself.
pub const TAKEN_HERE: &[&str] = &[
    "model",
    "ragstone",
    "stream",
    "stream_options",
    "speculative.n_max",
    "n",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "function_call",
    "modalities",
    "tools",
    "web_search_options",
    "moderation",
    "add_generation_prompt",
    "continue_final_message",
    "prompt_logprobs",
];

/// What both endpoints take for whoever computes the answer; an engine elsewhere is told it as it was written.
pub const PASSED_ON: &[&str] = &[
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

/// Those that are passed on as well of what one endpoint takes alone, or in its own way.
pub const OWN_PASSED_ON: &[&str] = &["logprobs", "top_logprobs", "chat_template_kwargs", "reasoning_effort"];

/// Bookkeeping and hints: without effect on the answer.
pub const HINTS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
];

/// With them the answer would be another one: refused unless they ask for nothing.
pub const REFUSED: &[&str] =
    &["functions", "audio", "bad_words", "allowed_token_ids", "chat_template", "grammar", "json_schema"];

/// Whether both endpoints know a field, or the one whose `own` fields these are. Others are ignored, and named in a header.
pub fn is_known(name: &str, own: &[&str]) -> bool {
    [TAKEN_HERE, PASSED_ON, HINTS, REFUSED, own].iter().any(|names| names.contains(&name))
}
