use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use super::Gguf;
use super::blocks::BlockType;
use super::header::{Header, Value};
use crate::ErrorKind;
use crate::linear::Linear;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf").join(name)
}

fn refusal(bytes: &[u8]) -> (ErrorKind, String) {
    let error = Header::read(bytes).expect_err("the file should be refused");
    (error.kind(), error.to_string())
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes(), key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = [&(name.len() as u64).to_le_bytes(), name.as_bytes(), &(dims.len() as u32).to_le_bytes()].concat();
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

/// A file of these pairs and tensors, and `data` bytes after them.
fn file(pairs: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    pairs.iter().chain(tensors).for_each(|part| bytes.extend(part));
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

#[test]
fn blocks_are_unpacked_as_gguf_py_does() {
    let bytes = std::fs::read(fixture("blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let names = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"];
    let numbers = [2, 3, 6, 7, 8, 10, 11, 12, 13, 14];
    for (name, number) in names.into_iter().zip(numbers) {
        let (packed, values) = (tensors.tensor(&format!("{name}.bytes")), tensors.tensor(&format!("{name}.values")));
        let (packed, values) = (packed.unwrap(), values.unwrap());
        assert_eq!((values.dtype(), values.shape()), (Dtype::F32, &[3, 512][..]));
        let expected: Vec<f32> = values.data().as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        // At an address of its own: in the fixture it may be an odd one.
        let packed = packed.data().to_vec();
        let kind = BlockType::of(number).unwrap();
        assert!(kind.is_quantized() && BlockType::names().contains(name));
        let found = kind.to_f32(&packed, 512, |row| row);
        let difference = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Both multiply scales in f32, not always in the same order.
        assert!(difference < 1e-6 && found.iter().any(|value| value.abs() > 0.02), "{name}: {difference}");
        let backwards = kind.to_f32(&packed, 512, |row| 2 - row);
        assert!(backwards[..512] == found[1024..] && backwards[512..1024] == found[512..1024], "{name}");
        let rounded = kind.to_bf16(&packed, 512, |row| row);
        assert!(rounded.iter().zip(&found).all(|(bits, value)| *bits == crate::dtype::bf16_bits(*value)), "{name}");
    }
}

/// What panels make of blocks: the file's values, or of Q2_K, which has least values for 16 weights, what 8 bits with a scale for 32 leave of
/// them.
#[test]
fn blocks_stay_as_they_are_in_panels() {
    let bytes = std::fs::read(fixture("blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let kinds = [
        ("Q4_0", 2, 4.5, true),
        ("Q4_1", 3, 5.0, true),
        ("Q5_0", 6, 6.5, true),
        ("Q5_1", 7, 7.0, true),
        ("Q8_0", 8, 8.5, true),
        ("Q2_K", 10, 8.5, false),
        ("Q3_K", 11, 4.625, true),
        ("Q4_K", 12, 4.75, true),
        ("Q5_K", 13, 6.75, true),
        ("Q6_K", 14, 6.625, true),
    ];
    for (name, number, bits, is_kept) in kinds {
        let packed = tensors.tensor(&format!("{name}.bytes")).unwrap().data().to_vec();
        let kind = BlockType::of(number).unwrap();
        assert!((super::grouping(name).unwrap().bits_per_weight() - bits).abs() < 1e-9, "{name}");
        // In another order than the file's.
        let from = |row: usize| [2, 0, 1][row];
        let values = kind.to_f32(&packed, 512, from);
        let rows = kind.grouped(&packed, 512, from).unwrap();
        let linear = Linear::grouped(3, 512, &rows, None);
        for (row, values) in values.chunks(512).enumerate() {
            let mut found = vec![0.0; 512];
            linear.weight_row(row, &mut found);
            for (group, values) in found.chunks(32).zip(values.chunks(32)) {
                let greatest = values.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                let most = if is_kept { 1e-6 } else { 0.51 / 127.0 } * greatest;
                let difference = group.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(difference <= most, "{name}: {difference} of {greatest}");
            }
        }
    }
    assert!(BlockType::F16.grouped(&[0; 64], 32, |row| row).is_none());
}

#[test]
fn values_of_every_kind_are_read() {
    let pairs = [
        pair("a", 0, &[200]),
        pair("b", 1, &[200]),
        pair("c", 2, &[1, 2]),
        pair("d", 3, &[0xFF, 0xFF]),
        pair("e", 4, &7u32.to_le_bytes()),
        pair("f", 5, &(-7i32).to_le_bytes()),
        pair("g", 6, &1.5f32.to_le_bytes()),
        pair("h", 7, &[1]),
        pair("i", 8, &[&2u64.to_le_bytes()[..], b"hi"].concat()),
        pair("j", 9, &[&4u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0; 8]].concat()),
        pair("k", 10, &u64::MAX.to_le_bytes()),
        pair("l", 11, &i64::MIN.to_le_bytes()),
        pair("m", 12, &(-0.5f64).to_le_bytes()),
    ];
    let header = Header::read(&file(&pairs, &[], 0)).unwrap();
    let expected = [
        ("a", 200),
        ("b", -56),
        ("c", 513),
        ("d", -1),
        ("e", 7),
        ("f", -7),
        ("k", i128::from(u64::MAX)),
        ("l", i128::from(i64::MIN)),
    ];
    for (key, value) in expected {
        assert_eq!(header.values[key], Value::Integer(value), "{key}");
    }
    assert_eq!([&header.values["g"], &header.values["m"]], [&Value::Float(1.5), &Value::Float(-0.5)]);
    assert_eq!(header.values["h"], Value::Bool(true));
    assert!(matches!(&header.values["i"], Value::String(range) if range.len() == 2));
    assert!(matches!(&header.values["j"], Value::List { kind: 4, len: 2, bytes } if bytes.len() == 8));
}

#[test]
fn tensors_lie_where_the_file_says_if_that_is_in_it() {
    let header = Header::read(&file(&[], &[tensor("a", &[32, 3], 8, 0), tensor("b", &[5], 0, 128)], 148)).unwrap();
    assert_eq!(header.tensors["a"].shape, [3, 32]);
    assert_eq!(header.tensors["a"].bytes.len(), 3 * 34);
    assert_eq!(header.tensors["b"].bytes.start - header.tensors["a"].bytes.start, 128);
    let refused: [(Vec<u8>, ErrorKind, &str); 9] = [
        (tensor("b", &[5], 0, 160), ErrorKind::InvalidModel, "truncated: tensor b"),
        (tensor("b", &[5], 0, u64::MAX - 31), ErrorKind::InvalidModel, "truncated: tensor b"),
        (tensor("b", &[5], 0, 4), ErrorKind::InvalidModel, "multiple of 32"),
        (tensor("b", &[1 << 40, 1 << 40], 0, 0), ErrorKind::InvalidModel, "shape"),
        (tensor("b", &[1 << 62], 0, 0), ErrorKind::InvalidModel, "truncated"),
        (tensor("b", &[5], 8, 0), ErrorKind::InvalidModel, "shape [5]"),
        (tensor("b", &[0], 0, 0), ErrorKind::InvalidModel, "shape [0]"),
        (tensor("b", &[1; 5], 0, 0), ErrorKind::InvalidModel, "5 dimensions"),
        (tensor("b", &[256], 23, 0), ErrorKind::UnsupportedModel, "type IQ4_XS, which is not supported"),
    ];
    for (tensor, kind, words) in refused {
        let (found, text) = refusal(&file(&[], &[tensor], 148));
        assert!(found == kind && text.contains(words), "{words}: {text}");
    }
    let (_, text) = refusal(&file(&[], &[tensor("b", &[256], 99, 0)], 148));
    assert!(text.contains("type 99") && text.contains("Q4_K, Q5_K or Q6_K"), "{text}");
    let twice = [tensor("b", &[5], 0, 0), tensor("b", &[5], 0, 0)];
    assert!(refusal(&file(&[], &twice, 148)).1.contains("two tensors b"));
}

#[test]
fn absurd_numbers_are_refused_before_anything_is_reserved() {
    let huge = u64::MAX.to_le_bytes();
    let list = |kind: u32, len: &[u8]| pair("a", 9, &[&kind.to_le_bytes()[..], len].concat());
    let refused: [(Vec<u8>, &str); 11] = [
        (b"GGU".to_vec(), "truncated"),
        (b"PK\x03\x04....".to_vec(), "does not begin with \"GGUF\""),
        ([b"GGUF\x03\0\0\0", &huge[..], &huge].concat(), "announces"),
        (file(&[pair("a", 8, &huge)], &[], 0), "truncated"),
        (file(&[list(4, &huge)], &[], 0), "truncated"),
        (file(&[list(8, &huge)], &[], 0), "truncated"),
        (file(&[list(9, &huge)], &[], 0), "neither number nor text"),
        (file(&[pair("a", 13, &[0; 8])], &[], 0), "kind 13"),
        (file(&[pair("a", 7, &[2])], &[], 0), "neither true nor false"),
        (file(&[pair("a", 0, &[2]), pair("a", 0, &[2])], &[], 0), "two values of `a`"),
        (file(&[pair("general.alignment", 4, &[0; 4])], &[], 0), "general.alignment"),
    ];
    for (bytes, words) in refused {
        let (kind, text) = refusal(&bytes);
        assert!(kind == ErrorKind::InvalidModel && text.contains(words), "{words}: {text}");
    }
    let mut bytes = file(&[pair("abc", 0, &[2])], &[], 0);
    let at = bytes.windows(3).position(|three| three == b"abc").unwrap();
    bytes[at + 1] = 0xFF;
    assert!(refusal(&bytes).1.contains("no UTF-8"));
    for (version, words) in [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")] {
        let mut bytes = file(&[], &[], 0);
        bytes[4..8].copy_from_slice(&u32::to_le_bytes(version));
        let (kind, text) = refusal(&bytes);
        assert!(kind == ErrorKind::UnsupportedModel && text.contains(words), "{text}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for name in ["yarn.gguf", "tokenizers/qwen2.gguf"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        let header = Header::read(&whole).unwrap();
        // Behind the last tensor there is padding, and behind metadata without tensors, too.
        let end = header.tensors.values().map(|tensor| tensor.bytes.end).max();
        let end = end.unwrap_or(whole.len() - 32);
        for length in (0..end).step_by(7).chain([end - 1]) {
            assert!(Header::read(&whole[..length]).is_err(), "{name} cut to {length}");
        }
    }
}

#[test]
fn names_are_hugging_face_s() {
    let names = |file: &str, pairs: &[(&str, &str, Option<usize>)]| {
        let file = Gguf::open(&fixture(file)).unwrap();
        for (hf, ggml, expert) in pairs {
            assert_eq!(file.ggml_name(hf), Some(((*ggml).to_owned(), *expert)), "{hf}");
            assert!(file.is_known(ggml), "{ggml}");
        }
        file
    };
    let llama = names(
        "llama_biases.gguf",
        &[
            ("model.embed_tokens.weight", "token_embd.weight", None),
            ("lm_head.weight", "output.weight", None),
            ("rope_freqs.weight", "rope_freqs.weight", None),
            ("model.norm.weight", "output_norm.weight", None),
            ("model.layers.11.self_attn.q_proj.bias", "blk.11.attn_q.bias", None),
            ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", None),
        ],
    );
    assert_eq!(llama.ggml_name("model.layers.0.mlp.router.weight"), None);
    assert_eq!(llama.ggml_name("model.layers.0.mlp.experts.1.up_proj.weight"), None);
    for other in
        ["blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "blk.0.attn_q.scale", "blk.0.attn_q.weight.x", "v.blk"]
    {
        assert!(!llama.is_known(other), "{other}");
    }
    let qwen3_moe = names(
        "qwen3_moe.gguf",
        &[
            ("model.layers.1.mlp.gate.weight", "blk.1.ffn_gate_inp.weight", None),
            ("model.layers.1.mlp.experts.7.down_proj.weight", "blk.1.ffn_down_exps.weight", Some(7)),
        ],
    );
    assert_eq!(qwen3_moe.ggml_name("model.layers.1.mlp.experts.x.down_proj.weight"), None);
    let up = "blk.0.ffn_up_exps.weight";
    names("mixtral.gguf", &[("model.layers.0.block_sparse_moe.experts.2.w3.weight", up, Some(2))]);
    names("phi3_partial.gguf", &[("model.layers.0.self_attn.qkv_proj.weight", "blk.0.attn_qkv.weight", None)]);
    names(
        "gemma3_usual.gguf",
        &[
            ("model.layers.0.post_attention_layernorm.weight", "blk.0.post_attention_norm.weight", None),
            ("model.layers.0.pre_feedforward_layernorm.weight", "blk.0.ffn_norm.weight", None),
            ("model.layers.0.post_feedforward_layernorm.weight", "blk.0.post_ffw_norm.weight", None),
        ],
    );
}

#[test]
fn queries_and_keys_are_reordered_where_pairs_stand_together() {
    let llama = Gguf::open(&fixture("llama_biases.gguf")).unwrap();
    let rows = |file: &Gguf, name: &str| (0..16).map(file.row_in_file(name)).collect::<Vec<_>>();
    let reordered = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];
    assert_eq!(rows(&llama, "model.layers.0.self_attn.q_proj.weight"), reordered);
    assert_eq!(rows(&llama, "model.layers.1.self_attn.k_proj.bias"), reordered);
    assert_eq!(rows(&llama, "model.layers.0.self_attn.v_proj.weight"), (0..16).collect::<Vec<_>>());
    let qwen = Gguf::open(&fixture("qwen3.gguf")).unwrap();
    assert_eq!(rows(&qwen, "model.layers.0.self_attn.q_proj.weight"), (0..16).collect::<Vec<_>>());
}

#[test]
fn a_file_is_known_by_its_name_or_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    assert!(Gguf::is_one(&path("a.GGUF", b"")) && Gguf::is_one(&path("sha256-1234", b"GGUF\x03")));
    assert!(
        !Gguf::is_one(&path("a.bin", b"GGU"))
            && !Gguf::is_one(folder.path())
            && !Gguf::is_one(Path::new("/nowhere.gguf"))
    );
    assert!(Gguf::open(&path("a.gguf", b"")).unwrap_err().to_string().contains("a.gguf"));
}
