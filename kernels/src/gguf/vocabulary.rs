//! The tokenizer that a GGUF file's metadata state, as the `tokenizer.json` that the same model has as a folder, and its chat template.

mod pieces;

use serde_json::{Map, Value, json};

use super::Gguf;
use crate::chat::{ChatTemplate, SOURCE_BYTES};
use crate::error::{Error, Result};
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// Bytes of a token's spelling. Published ones have 256 at most.
const MOST_TOKEN_BYTES: usize = 1 << 10;

/// Kinds of tokens, as the file numbers them.
const NORMAL: f64 = 1.0;
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;
const BYTE: f64 = 6.0;

/// Control tokens that end an answer, whatever `eos_token_id` says: llama.cpp's list, for the architectures that are read.
const ENDS: [&str; 8] =
    ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "</s>", "<end_of_turn>"];

/// How `tokenizer.ggml.pre` cuts a text into words before they are merged.
struct PreTokenizer {
    /// llama.cpp's names of it.
    names: &'static [&'static str],
    /// Words, in the dialect of tokenizer.json; none for GPT-2's own.
    words: Option<&'static str>,
    digits_apart: bool,
    is_normalized: bool,
    /// A word that is one token is not merged from its parts.
    ignore_merges: bool,
    adds_bos: bool,
}

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const PRE_TOKENIZERS: [PreTokenizer; 6] = [
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        words: Some(LLAMA_3),
        digits_apart: false,
        is_normalized: false,
        ignore_merges: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        words: Some(QWEN_2),
        digits_apart: false,
        is_normalized: true,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        words: Some(TEKKEN),
        digits_apart: false,
        is_normalized: false,
        ignore_merges: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["gpt-4o"],
        words: Some(GPT_4O),
        digits_apart: false,
        is_normalized: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        // Granite's, too.
        names: &["smollm", "refact"],
        words: None,
        digits_apart: true,
        is_normalized: false,
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-2"],
        words: None,
        digits_apart: false,
        is_normalized: false,
        ignore_merges: false,
        adds_bos: false,
    },
];

/// What both kinds of tokenizers have.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<f64>,
    adds_bos: bool,
    bos: Option<u32>,
}

impl Gguf {
    /// The tokenizer, and what begins and ends a text.
    ///
    /// # Errors
    /// `InvalidModel` for metadata that are damaged, `UnsupportedModel` for a kind of tokenizer that this version does not know.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        self.tokenizer_and_json().map(|(tokenizer, _)| tokenizer)
    }

    /// The tokenizer with what [`Gguf::tokenizer_json`] gives.
    ///
    /// # Errors
    /// As [`Gguf::tokenizer`].
    pub(crate) fn tokenizer_and_json(&self) -> Result<(Tokenizer, Vec<u8>)> {
        let json = self.tokenizer_json()?;
        let tokenizer = Tokenizer::from_json(&json, self.special_tokens()?, &self.path)?;
        Ok((tokenizer, json))
    }

    /// The `tokenizer.json` that the metadata stand for.
    ///
    /// # Errors
    /// As [`Gguf::tokenizer`].
    pub fn tokenizer_json(&self) -> Result<Vec<u8>> {
        self.stated_tokenizer().map(|tokenizer| tokenizer.to_string().into_bytes()).map_err(|error| self.named(error))
    }

    /// The template in `tokenizer.chat_template`, with that in `tokenizer.chat_template.tool_use` for conversations with tools; `None` when the
    /// model has none.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_folder`].
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let key = "tokenizer.chat_template";
        let Some(source) = self.template_text(key).map_err(|error| self.named(error))? else { return Ok(None) };
        let tool_use = self.template_text("tokenizer.chat_template.tool_use").map_err(|error| self.named(error))?;
        let origin = format!("`{key}` in {}", self.path.display());
        let template = ChatTemplate::named(source.to_owned(), self.special_tokens()?, origin)?;
        Ok(Some(template.with_tool_use(tool_use)))
    }

    fn template_text(&self, key: &str) -> Result<Option<&str>> {
        match self.string(key)? {
            Some(source) if source.len() as u64 > SOURCE_BYTES => {
                Err(Error::invalid_model(format!("`{key}` has {} bytes, as none has", source.len())))
            }
            source => Ok(source),
        }
    }

    fn special_tokens(&self) -> Result<SpecialTokens> {
        self.read_special_tokens().map_err(|error| self.named(error))
    }

    fn read_special_tokens(&self) -> Result<SpecialTokens> {
        let (vocabulary, _) = self.vocabulary()?;
        let id = |name: &str| self.token_id(name, &vocabulary.tokens);
        let text = |id: Option<u32>| id.map(|id| vocabulary.tokens[id as usize].to_owned());
        let eos = id("eos")?;
        let mut eos_ids: Vec<u32> = [eos, id("eot")?, id("eom")?].into_iter().flatten().collect();
        let ends = vocabulary.tokens.iter().zip(&vocabulary.kinds).zip(0..);
        eos_ids.extend(ends.filter(|((token, kind), _)| **kind == CONTROL && ENDS.contains(*token)).map(|(_, id)| id));
        Ok(SpecialTokens {
            bos: text(vocabulary.bos),
            eos: text(eos),
            unk: text(id("unknown")?),
            pad: text(id("padding")?),
            add_bos: Some(vocabulary.adds_bos),
            eos_ids,
        })
    }

    /// The id under `tokenizer.ggml.NAME_token_id`.
    fn token_id(&self, name: &str, tokens: &[&str]) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match self.integer(&key)? {
            Some(id) if id < tokens.len() as u64 => Ok(Some(id as u32)),
            // Some converters write the greatest number for none.
            Some(id) if id == u64::from(u32::MAX) => Ok(None),
            Some(id) => {
                let count = tokens.len();
                Err(Error::invalid_model(format!("`{key}` is {id}, outside the {count} tokens; fetch the file again")))
            }
            None => Ok(None),
        }
    }

    /// The tokens, and how texts are cut; none for SentencePiece, which does not cut them.
    fn vocabulary(&self) -> Result<(Vocabulary<'_>, Option<&'static PreTokenizer>)> {
        let lacks = |key: &str| Error::invalid_model(format!("it lacks `{key}`; is it a language model's whole file?"));
        let key = "tokenizer.ggml.tokens";
        let tokens = self.strings(key)?.ok_or_else(|| lacks(key))?;
        if let Some(long) = tokens.iter().find(|token| token.len() > MOST_TOKEN_BYTES) {
            return Err(Error::invalid_model(format!(
                "a token has {} bytes, as none has; fetch the file again",
                long.len()
            )));
        }
        let key = "tokenizer.ggml.model";
        let pre_tokenizer = match self.string(key)?.ok_or_else(|| lacks(key))? {
            "llama" => None,
            "gpt2" => Some(self.pre_tokenizer()?),
            other => {
                return Err(Error::unsupported(format!(
                    "its tokenizer is of kind {other:?}, which is not supported; take a file with gpt2 or llama, or the model's \
                     folder with tokenizer.json"
                )));
            }
        };
        let key = "tokenizer.ggml.token_type";
        let mut kinds = self.numbers(key)?.unwrap_or_else(|| vec![NORMAL; tokens.len()]);
        if kinds.len() != tokens.len() {
            let (kinds, tokens) = (kinds.len(), tokens.len());
            return Err(Error::invalid_model(format!(
                "`{key}` has {kinds} entries for {tokens} tokens; fetch the file again"
            )));
        }
        let bos = self.token_id("bos", &tokens)?;
        for id in [bos, self.token_id("eos", &tokens)?, self.token_id("eot", &tokens)?].into_iter().flatten() {
            // Whatever a converter made of them: text must not become one.
            kinds[id as usize] = CONTROL;
        }
        let adds_bos = match self.flag("tokenizer.ggml.add_bos_token")? {
            Some(adds) => adds,
            None => pre_tokenizer.is_none_or(|pre| pre.adds_bos),
        };
        Ok((Vocabulary { tokens, kinds, adds_bos, bos }, pre_tokenizer))
    }

    fn pre_tokenizer(&self) -> Result<&'static PreTokenizer> {
        let stated = self.string("tokenizer.ggml.pre")?;
        let found = PRE_TOKENIZERS.iter().find(|known| stated.is_some_and(|stated| known.names.contains(&stated)));
        found.ok_or_else(|| {
            let known: Vec<&str> = PRE_TOKENIZERS.iter().map(|known| known.names[0]).collect();
            let stated = stated.map_or_else(|| "not stated".to_owned(), |stated| format!("{stated:?}"));
            Error::unsupported(format!(
                "how its tokenizer cuts words (`tokenizer.ggml.pre`) is {stated}, which is not supported; take a file with {}, or \
                 the model's folder with tokenizer.json",
                known.join(", ")
            ))
        })
    }

    fn stated_tokenizer(&self) -> Result<Value> {
        for key in ["tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"] {
            let is_set = self.header.values.get(key).is_some_and(|value| *value != super::Value::Bool(false));
            if is_set {
                return Err(Error::unsupported(format!(
                    "its tokenizer normalises texts (`{key}`), which is not supported in GGUF files; take the model's folder"
                )));
            }
        }
        let (vocabulary, pre_tokenizer) = self.vocabulary()?;
        match pre_tokenizer {
            Some(pre_tokenizer) => self.byte_level(&vocabulary, pre_tokenizer),
            None => self.sentence_pieces(&vocabulary),
        }
    }

    /// GPT-2's kind: bytes are spelled as printable characters.
    fn byte_level(&self, vocabulary: &Vocabulary<'_>, pre_tokenizer: &PreTokenizer) -> Result<Value> {
        let key = "tokenizer.ggml.merges";
        let merges = self.strings(key)?;
        let merges = merges.ok_or_else(|| Error::invalid_model(format!("it lacks `{key}`; fetch the file again")))?;
        let pair = |merge: &&str| merge.split_once(' ').map(|(left, right)| json!([left, right]));
        let pairs: Option<Vec<Value>> = merges.iter().map(pair).collect();
        let pairs = pairs.ok_or_else(|| {
            Error::invalid_model(format!("`{key}` has an entry without a space; fetch the file again"))
        })?;
        let mut steps = Vec::new();
        if let Some(words) = pre_tokenizer.words {
            steps.push(json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false}));
        }
        if pre_tokenizer.digits_apart {
            steps.push(json!({"type": "Digits", "individual_digits": true}));
        }
        let uses_own_words = pre_tokenizer.words.is_none();
        steps.push(byte_level_step(uses_own_words));
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": vocabulary.added_tokens(),
            "normalizer": if pre_tokenizer.is_normalized { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": vocabulary.post_processor(),
            "decoder": byte_level_step(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": pre_tokenizer.ignore_merges,
                "vocab": vocabulary.ids(), "merges": pairs,
            },
        }))
    }

    /// SentencePiece's kind: spaces are spelled `▁`, and bytes that no piece has `<0x0A>`.
    fn sentence_pieces(&self, vocabulary: &Vocabulary<'_>) -> Result<Value> {
        let key = "tokenizer.ggml.scores";
        let scores = self.numbers(key)?.filter(|scores| scores.len() == vocabulary.tokens.len());
        let scores = scores.ok_or_else(|| {
            Error::invalid_model(format!(
                "it lacks `{key}`, or has another number of them than of tokens; fetch the file again"
            ))
        })?;
        let merges = pieces::merges(&vocabulary.tokens, &vocabulary.kinds, &scores);
        let space = "\u{2581}";
        let adds_space = self.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": space})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": space}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if adds_space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": space}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = vocabulary.tokens.iter().zip(&vocabulary.kinds).find(|(_, kind)| **kind == UNKNOWN);
        let has_bytes = vocabulary.kinds.iter().filter(|kind| **kind == BYTE).count() == 256;
        if !has_bytes && unknown.is_none() {
            return Err(Error::invalid_model(
                "its tokenizer has neither a token for every byte nor one for what is unknown; fetch the file again",
            ));
        }
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": vocabulary.added_tokens(),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": vocabulary.post_processor(),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": unknown.map(|(token, _)| token), "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": has_bytes, "ignore_merges": false,
                "vocab": vocabulary.ids(), "merges": merges,
            },
        }))
    }
}

impl Vocabulary<'_> {
    /// Every token but those that only fill the embedding table up.
    fn ids(&self) -> Map<String, Value> {
        let tokens = self.tokens.iter().zip(&self.kinds).zip(0..);
        let used = tokens.filter(|((_, kind), _)| **kind != UNUSED);
        used.map(|((token, _), id): (_, u32)| ((*token).to_owned(), id.into())).collect()
    }

    /// Tokens that are found in a text before anything is cut or merged.
    fn added_tokens(&self) -> Vec<Value> {
        let tokens = self.tokens.iter().zip(&self.kinds).zip(0..);
        let added =
            tokens.filter(|((token, kind), _)| [UNKNOWN, CONTROL, USER_DEFINED].contains(*kind) && !token.is_empty());
        let object = |((token, kind), id): ((&&str, &f64), u32)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": *kind != USER_DEFINED,
            })
        };
        added.map(object).collect()
    }

    /// Puts the BOS in front of a text, where this model wants one.
    fn post_processor(&self) -> Value {
        let bos = self.bos.filter(|_| self.adds_bos);
        let Some((id, token)) = bos.map(|id| (id, self.tokens[id as usize])) else { return Value::Null };
        let first = json!({"SpecialToken": {"id": token, "type_id": 0}});
        json!({
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
        })
    }
}

fn byte_level_step(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}
