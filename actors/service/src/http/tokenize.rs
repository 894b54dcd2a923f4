//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`: the language model's tokenizer, in vLLM's and llama.cpp's forms.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use ragstone_actors::{Caller, Input, Ragstone};
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::tokenizer::Tokenizer;
use serde_json::Value;

use super::body::Incoming;
use super::chat;
use super::fields::Fields;
use super::generation::check_model;
use crate::api::chat::RequestMessage;
use crate::api::tokenize::{DetokenizeRequest, Detokenized, Token, TokenText, Tokenized, TokenizerInfo};
use crate::error::{Error, Result};
use crate::http::error::Answered;
use crate::http::state::{Opened, State, caller};

/// What is known; other fields are ignored, and named in a header.
const TOKENIZE: &[&str] = &[
    "model",
    "prompt",
    "content",
    "messages",
    "tools",
    "add_special_tokens",
    "add_special",
    "parse_special",
    "continue_final_message",
    "add_generation_prompt",
    "return_token_strs",
    "with_pieces",
];
const DETOKENIZE: &[&str] = &["model", "tokens"];

/// A text's bytes. Tokenizing takes some hundred bytes of memory for each of them.
const MOST_TEXT_BYTES: usize = 1 << 20;

/// What is to be read, and how.
enum Wanted {
    Text { text: String, special: bool, control: bool },
    Chat { messages: Vec<ChatMessage>, tools: Vec<Value> },
}

/// What is to be told beside the ids.
#[derive(Clone, Copy)]
struct Form {
    /// llama.cpp's answer has nothing but tokens.
    is_bare: bool,
    pieces: bool,
    spelled: bool,
}

/// The token ids of a text or a conversation.
pub async fn tokenize(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| TOKENIZE.contains(&name));
    Ok(ignored.note(tokenized(&state, caller(&request), opened, fields).await))
}

async fn tokenized(state: &State, asks: Caller, opened: &Opened, mut fields: Fields) -> Answered {
    opened.ragstone.check_own_model()?;
    check_model(&mut fields, &opened.model_id)?;
    let form = Form {
        is_bare: fields.has("content"),
        pieces: fields.take("with_pieces")?.unwrap_or(false),
        spelled: fields.take("return_token_strs")?.unwrap_or(false),
    };
    let wanted = wanted(&mut fields)?;
    fields.finish()?;
    let (ragstone, context) = (opened.ragstone.clone(), opened.context);
    let deadline = Duration::from_secs(state.settings.deadline_s);
    let read = async move {
        let ids = ids(&ragstone, wanted, asks, deadline).await?;
        let tokenizer = ragstone.tokenizer().clone();
        ragstone.read(asks, deadline, move || Ok(told(ids, form, context, &tokenizer))).await
    };
    Ok(HttpResponse::Ok().json(state.on_runtime(read).await??))
}

/// How many tokens the prompt of a conversation has.
pub async fn count(state: &State, asks: Caller, opened: &Opened, mut fields: Fields) -> Result<usize> {
    opened.ragstone.check_own_model()?;
    let wanted = wanted(&mut fields)?;
    fields.finish()?;
    let ragstone = opened.ragstone.clone();
    let deadline = Duration::from_secs(state.settings.deadline_s);
    let read = async move { ids(&ragstone, wanted, asks, deadline).await };
    Ok(state.on_runtime(read).await??.len())
}

fn wanted(fields: &mut Fields) -> Result<Wanted> {
    let (prompt, content) = (fields.take::<String>("prompt")?, fields.take::<String>("content")?);
    let messages = fields.take::<Vec<RequestMessage>>("messages")?;
    let (special_of_prompt, special_of_content) = (fields.take("add_special_tokens")?, fields.take("add_special")?);
    let control = fields.take("parse_special")?.unwrap_or(true);
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let (field, text, special) = match (prompt, content, messages) {
        (Some(text), None, None) => ("prompt", text, special_of_prompt.unwrap_or(true)),
        (None, Some(text), None) => ("content", text, special_of_content.unwrap_or(false)),
        (None, None, Some(messages)) => {
            return Ok(Wanted::Chat { messages: chat::conversation(fields, messages)?, tools });
        }
        _ => return Err(Error::invalid_field("prompt", "send one of `prompt`, `content` and `messages`")),
    };
    fields.ignore(&["continue_final_message", "add_generation_prompt"]);
    if text.len() > MOST_TEXT_BYTES {
        let message = format!("`{field}` has {} bytes; send {MOST_TEXT_BYTES} at most at once", text.len());
        return Err(Error::invalid_field(field, message));
    }
    Ok(Wanted::Text { text, special, control })
}

async fn ids(ragstone: &Ragstone, wanted: Wanted, asks: Caller, deadline: Duration) -> Result<Vec<u32>> {
    match wanted {
        Wanted::Chat { messages, tools } => {
            ragstone.prompt_tokens(Input::Chat { messages, tools, thinks: None, context: None }, asks, deadline).await
        }
        Wanted::Text { text, special, control } => {
            let tokenizer = ragstone.tokenizer().clone();
            let encode = move || match control {
                true => tokenizer.encode(&text, special),
                false => {
                    let begin = tokenizer.bos_id().filter(|_| special);
                    Ok(begin.into_iter().chain(tokenizer.encode_text(&text)?).collect())
                }
            };
            ragstone.read(asks, deadline, encode).await
        }
    }
}

fn told(ids: Vec<u32>, form: Form, context: usize, tokenizer: &Tokenizer) -> Tokenized {
    let spell = |id: &u32| tokenizer.token(*id).unwrap_or_default();
    let piece = |id: u32| {
        let text = String::from_utf8(tokenizer.token_bytes(id));
        let piece = text.map_or_else(|error| TokenText::Bytes(error.into_bytes()), TokenText::Text);
        Token::Piece { id, piece }
    };
    Tokenized {
        count: (!form.is_bare).then_some(ids.len()),
        max_model_len: (!form.is_bare).then_some(context),
        token_strs: form.spelled.then(|| ids.iter().map(spell).collect()),
        tokens: ids.into_iter().map(|id| if form.pieces { piece(id) } else { Token::Id(id) }).collect(),
    }
}

/// The text of token ids.
pub async fn detokenize(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_room(caller(&request))?;
    let mut fields = Fields::read(incoming).await?;
    let ignored = fields.ignore_unknown(|name| DETOKENIZE.contains(&name));
    Ok(ignored.note(detokenized(&state, caller(&request), opened, fields).await))
}

async fn detokenized(state: &State, asks: Caller, opened: &Opened, mut fields: Fields) -> Answered {
    opened.ragstone.check_own_model()?;
    check_model(&mut fields, &opened.model_id)?;
    let DetokenizeRequest { tokens, .. } = fields.take_all()?;
    fields.finish()?;
    let tokenizer = opened.ragstone.tokenizer().clone();
    let (ragstone, deadline) = (opened.ragstone.clone(), Duration::from_secs(state.settings.deadline_s));
    let decode = move || match tokens.iter().find(|id| tokenizer.token(**id).is_none()) {
        None => tokenizer.decode_with_control(&tokens),
        Some(id) => {
            let message = format!("`tokens` names {id}, which the model's vocabulary does not have");
            Err(Error::invalid_field("tokens", message))
        }
    };
    let text = state.on_runtime(async move { ragstone.read(asks, deadline, decode).await }).await??;
    Ok(HttpResponse::Ok().json(Detokenized { prompt: text.clone(), content: text }))
}

/// The special tokens and the chat template.
pub async fn info(state: web::Data<State>) -> Answered {
    let opened = state.opened()?;
    opened.ragstone.check_own_model()?;
    Ok(HttpResponse::Ok().json(facts(opened)))
}

/// The same, as they are.
pub fn facts(opened: &Opened) -> TokenizerInfo {
    let tokenizer = opened.ragstone.tokenizer();
    let special = tokenizer.special_tokens();
    // Some models name their end by its id alone.
    let end = || tokenizer.eos_ids().first().and_then(|id| tokenizer.token(*id));
    TokenizerInfo {
        bos_token: special.bos.clone(),
        eos_token: special.eos.clone().or_else(end),
        unk_token: special.unk.clone(),
        pad_token: special.pad.clone(),
        add_bos_token: tokenizer.bos_id().is_some(),
        chat_template: opened.ragstone.chat_template_source(),
        model_max_length: opened.context,
    }
}
