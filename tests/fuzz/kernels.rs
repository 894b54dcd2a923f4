//! What holds of every model folder, whatever its files say. Each function takes a file's bytes, panics where its property
//! does not hold, and says whether the file was understood.

use std::sync::LazyLock;

use ragstone_kernels::chat::{ChatMessage, ChatTemplate, Date};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::files::ModelFiles;
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::tokenizer::{SpecialTokens, Tokenizer};

/// `config.json`: refused with a reason, or its sizes fit together and can be multiplied.
pub fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match ModelConfig::from_json(text) {
        Ok(config) => {
            assert_eq!(config.windows.len(), config.layers, "a window a layer");
            assert!(config.heads >= config.kv_heads && config.heads.is_multiple_of(config.kv_heads));
            assert!(config.head_dim >= 2 && config.head_dim.is_multiple_of(2));
            for sizes in [
                [config.vocab_size, config.hidden_size, 4],
                [config.intermediate_size, config.hidden_size, 4],
                [config.query_dim(), config.hidden_size, 4],
                [config.kv_dim(), config.max_positions, 4],
            ] {
                let bytes = sizes.into_iter().try_fold(1usize, usize::checked_mul);
                assert!(bytes.is_some_and(|bytes| bytes > 0), "{sizes:?} cannot be multiplied");
            }
            assert!(config.norm_eps.is_finite());
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A chat template: refused with a reason, or the same messages give the same text.
pub fn template(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else { return false };
    let Ok(template) = ChatTemplate::new(source.to_owned(), tokens()) else { return false };
    let messages = [("system", "Be brief."), ("user", "How many boats?"), ("assistant", "Nine."), ("user", "Whose?")];
    let messages = messages.map(|(role, content)| ChatMessage::new(role, content));
    let render = |messages| template.render(messages, true, date()).map_err(|error| error.to_string());
    let rendered = render(&messages);
    assert_eq!(rendered, render(&messages));
    // Some know no system prompt.
    rendered.is_ok() || render(&messages[1..]).is_ok()
}

/// What a user says, in a template of the usual kind: it is rendered, and stands in the prompt as it was said.
pub fn message(bytes: &[u8]) -> bool {
    static TEMPLATE: LazyLock<ChatTemplate> = LazyLock::new(|| {
        let source = "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}";
        ChatTemplate::new(source.to_owned(), tokens()).expect("a valid template")
    });
    let said = String::from_utf8_lossy(bytes);
    let messages = [ChatMessage::new("user", said.as_ref())];
    let rendered = TEMPLATE.render(&messages, false, date()).expect("a template that refuses nothing");
    assert_eq!(rendered, format!("<s><|user|>{said}<|end|>"));
    true
}

/// A passage's text: its ids are of the vocabulary, none of them is a control token's, and it comes back; what the tokenizer
/// normalises, it normalises once.
pub fn text(bytes: &[u8]) -> bool {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let folder = std::path::Path::new(super::FIXTURES).join("tokenizers/byte_level");
        Tokenizer::from_folder(&folder).expect("a valid tokenizer")
    });
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let ids = TOKENIZER.encode_text(text).expect("every text has ids");
    let decoded = TOKENIZER.decode(&ids).expect("ids of the vocabulary");
    let mut stream = TOKENIZER.stream(false);
    let mut streamed: String = ids.iter().map(|id| stream.push(*id).expect("an id of the vocabulary")).collect();
    streamed += &stream.finish().expect("an end");
    assert_eq!(streamed, decoded);
    // Decoding leaves control tokens out: had the text become one, it would be gone.
    if text.is_ascii() {
        assert_eq!(decoded, text);
    }
    let again = TOKENIZER.encode_text(&decoded).expect("every text has ids");
    assert_eq!(TOKENIZER.decode(&again).expect("ids of the vocabulary"), decoded);
    true
}

/// A GGUF file: refused with a reason, or its configuration, its tokenizer, its template and its weights are, or each makes sense.
pub fn gguf(bytes: &[u8]) -> bool {
    let path = std::env::temp_dir().join(format!("ragstone-fuzz-{}.gguf", std::process::id()));
    std::fs::write(&path, bytes).expect("a folder for what is temporary");
    let Ok(files) = ModelFiles::open(&path) else { return false };
    let config = files.config();
    if let Ok(config) = &config {
        assert!(config.heads.is_multiple_of(config.kv_heads) && config.windows.len() == config.layers);
        if let Ok(model) = Model::from_files(&files, LoadOptions::default()) {
            assert_eq!(model.config(), config);
        }
    }
    let tokenizer = files.tokenizer();
    if let Ok(tokenizer) = &tokenizer {
        let ids = tokenizer.encode_text("How many boats?<|im_end|></s>").expect("every text has ids");
        tokenizer.decode(&ids).expect("ids of the vocabulary");
    }
    let template = files.chat_template().is_ok_and(|template| template.is_some());
    config.is_ok() || tokenizer.is_ok() || template
}

fn tokens() -> SpecialTokens {
    SpecialTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..SpecialTokens::default() }
}

fn date() -> Date {
    Date::from_unix_ms(1_700_000_000_000)
}
