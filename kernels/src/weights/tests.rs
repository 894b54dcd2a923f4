use std::fs;
use std::path::PathBuf;

use safetensors::tensor::{TensorView, serialize_to_file};
use tempfile::TempDir;

use super::*;
use crate::error::ErrorKind;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models")
}

fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()))
        .collect();
    serialize_to_file(views, None, path).unwrap();
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn u16_bytes(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn small() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [
        ("single", Dtype::F32, &[2usize, 2][..], f32_bytes(&[1.0, -2.0, 0.5, 3.0])),
        ("brain", Dtype::BF16, &[3], u16_bytes(&[0x3f80, 0xc000, 0x3f00])),
        ("half", Dtype::F16, &[3], u16_bytes(&[0x3c00, 0xc000, 0x3555])),
        ("model.norm.weight", Dtype::F32, &[1], f32_bytes(&[7.0])),
        ("norm2.weight", Dtype::F32, &[1], f32_bytes(&[8.0])),
        ("integers", Dtype::I64, &[1], vec![0; 8]),
    ];
    write(&folder.path().join(SINGLE), &tensors);
    folder
}

#[test]
fn element_types_keep_their_values() {
    let folder = small();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.files(), [folder.path().join(SINGLE)]);
    assert_eq!(checkpoint.tensor_f32("single", &[2, 2]).unwrap(), [1.0, -2.0, 0.5, 3.0]);
    let brain = checkpoint.tensor("brain", &[3]).unwrap();
    assert_eq!(brain, Tensor::Bf16(vec![0x3f80, 0xc000, 0x3f00].into()));
    assert_eq!(brain.into_f32(), [1.0, -2.0, 0.5]);
    let Tensor::F32(half) = checkpoint.tensor("half", &[3]).unwrap() else { panic!("f16 is widened") };
    assert_eq!(half[..2], [1.0, -2.0]);
    assert!((half[2] - 1.0 / 3.0).abs() < 1e-3);
    assert_eq!(checkpoint.size_in_bytes(), 16 + 6 + 6 + 4 + 4 + 8);
}

#[test]
fn a_bare_decoder_s_names_are_found() {
    let folder = small();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.tensor_f32("model.norm.weight", &[1]).unwrap(), [7.0]);
    assert_eq!(checkpoint.tensor_f32("model.norm2.weight", &[1]).unwrap(), [8.0]);
    assert!(!checkpoint.contains("norm.weight"));
}

#[test]
fn wrong_tensors_are_named_with_their_file() {
    let folder = small();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let missing = checkpoint.tensor("model.layers.3.mlp.up_proj.weight", &[1]).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidModel);
    assert!(missing.to_string().contains("model.layers.3.mlp.up_proj.weight is missing"));
    let shape = checkpoint.tensor("single", &[4, 1]).unwrap_err().to_string();
    assert!(shape.contains("[2, 2]") && shape.contains("[4, 1]") && shape.contains(SINGLE), "{shape}");
    let dtype = checkpoint.tensor("integers", &[1]).unwrap_err();
    assert_eq!(dtype.kind(), ErrorKind::UnsupportedModel);
    assert!(dtype.to_string().contains("I64"));
}

#[test]
fn shards_are_one_checkpoint() {
    let folder = fixtures().join("qwen3");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    assert_eq!(checkpoint.files().len(), 3);
    assert!(checkpoint.files().is_sorted());
    let config = crate::config::ModelConfig::from_folder(&folder).unwrap();
    let shape = [config.vocab_size, config.hidden_size];
    assert_eq!(checkpoint.tensor("model.embed_tokens.weight", &shape).unwrap().len(), shape[0] * shape[1]);
    assert!(checkpoint.contains("model.layers.1.self_attn.k_norm.weight"));
}

/// A copy of the sharded fixture to damage.
fn sharded() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixtures().join("qwen3")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn refusal(folder: &Path) -> String {
    let error = Checkpoint::open(folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidModel);
    error.to_string()
}

#[test]
fn a_missing_shard_is_named() {
    let folder = sharded();
    fs::remove_file(folder.path().join("model-00002-of-00003.safetensors")).unwrap();
    let text = refusal(folder.path());
    assert!(text.contains("model-00002-of-00003.safetensors") && text.contains("missing"), "{text}");
}

#[test]
fn an_index_that_does_not_fit_its_shards_is_refused() {
    let folder = sharded();
    let index = folder.path().join(INDEX);
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replacen("model.norm.weight", "model.norm.bias", 1)).unwrap();
    assert!(refusal(folder.path()).contains("model.norm.bias"));
    fs::write(&index, text.replacen("\"model-00001-of-00003.safetensors\"", "\"../../secret\"", 1)).unwrap();
    assert!(refusal(folder.path()).contains("not a file name"));
    fs::write(&index, &text[..text.len() / 2]).unwrap();
    assert!(refusal(folder.path()).contains(INDEX));
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let folder = small();
    let path = folder.path().join(SINGLE);
    let whole = fs::read(&path).unwrap();
    for length in [0, 5, 8, 60, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let text = refusal(folder.path());
        assert!(text.contains("truncated: fetch it again") && text.contains(SINGLE), "{length} bytes: {text}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SINGLE);
    fs::write(&path, b"<html><body>404 Not Found</body></html> and a good deal more of it").unwrap();
    assert!(refusal(folder.path()).contains("fetch it again"));
    let mut bytes = 16u64.to_le_bytes().to_vec();
    bytes.extend(b"{\"not json at all");
    fs::write(&path, bytes).unwrap();
    assert!(refusal(folder.path()).contains("not a valid safetensors file"));
}

#[test]
fn an_empty_folder_and_a_pickle_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains(SINGLE));
    fs::write(folder.path().join("pytorch_model.bin"), b"").unwrap();
    assert!(refusal(folder.path()).contains("save_pretrained"));
}

#[test]
fn unaligned_bytes_are_read_all_the_same() {
    let mut bytes = vec![0u8];
    bytes.extend(f32_bytes(&[1.5, -2.5]));
    assert_eq!(cast(&bytes[1..], f32::from_le_bytes)[..], [1.5, -2.5]);
}

/// A file of this header, and `data` bytes behind it.
fn with_header(folder: &Path, header_bytes: u64, header: &str, data: usize) {
    let bytes = [&header_bytes.to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat();
    std::fs::write(folder.join(SINGLE), bytes).unwrap();
}

#[test]
fn a_header_that_lies_is_refused() {
    let tensor = |shape: &str, begin: u64, end: u64| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
    };
    let overlapping = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    for (header, data) in [
        (tensor("[2]", 0, 8), 4),
        (tensor("[2]", 0, 1 << 40), 8),
        (tensor("[2]", 8, 0), 8),
        (tensor("[2]", 4, 12), 12),
        (tensor("[4]", 0, 8), 8),
        (tensor("[4611686018427387904, 4]", 0, 0), 0),
        (tensor("[18446744073709551615, 18446744073709551615]", 0, 4), 4),
        (tensor("[-1]", 0, 4), 4),
        (overlapping.to_owned(), 8),
        ("{".repeat(100_000), 0),
        ("[]".to_owned(), 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        with_header(folder.path(), header.len() as u64, &header, data);
        assert!(refusal(folder.path()).contains(SINGLE), "{header}");
    }
    for header_bytes in [0, 1, 100_000_001, 1 << 40, u64::MAX - 7, u64::MAX] {
        let folder = tempfile::tempdir().unwrap();
        with_header(folder.path(), header_bytes, &tensor("[1]", 0, 4), 4);
        assert!(refusal(folder.path()).contains(SINGLE), "{header_bytes}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(SINGLE), []).unwrap();
    refusal(folder.path());
}

#[test]
fn an_index_names_files_beside_it_only() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::copy(small().path().join(SINGLE), outside.path().join("out.safetensors")).unwrap();
    let folder = tempfile::tempdir_in(outside.path()).unwrap();
    let absolute = outside.path().join("out.safetensors").display().to_string();
    for name in ["../out.safetensors", &absolute, "..", ".", "", "a/../../out.safetensors", "./x", "x/", "a\0b"] {
        let index = serde_json::json!({ "weight_map": { "single": name } }).to_string();
        std::fs::write(folder.path().join(INDEX), index).unwrap();
        refusal(folder.path());
    }
    // A link is the owner's own doing: the hub's cache is made of them.
    std::os::unix::fs::symlink(&absolute, folder.path().join("link.safetensors")).unwrap();
    std::fs::write(folder.path().join(INDEX), r#"{"weight_map":{"single":"link.safetensors"}}"#).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().contains("single"));
}

#[test]
fn the_head_alone_says_what_the_whole_file_says() {
    let folder = small();
    let bytes = fs::read(folder.path().join(SINGLE)).unwrap();
    let length = head_length(&bytes[..HEAD_BYTES as usize]).unwrap() as usize;
    let shapes = shapes_of_head(&bytes[HEAD_BYTES as usize..][..length]).unwrap();
    assert_eq!(shapes, Checkpoint::open(folder.path()).unwrap().shapes());
    assert_eq!(shapes.iter().find(|tensor| tensor.name == "single").unwrap().elements(), 4);
    assert_eq!((main_dtype(&shapes).as_str(), main_dtype(&[]).as_str()), ("F32", ""));
    for bad in [&b"short"[..], &[0; 8], &[0xff; 8]] {
        assert!(head_length(bad).is_err(), "{bad:?}");
    }
    for bad in [&b"{"[..], b"[]", br#"{"a":{"dtype":"F32"}}"#, br#"{"a":{"dtype":"F32","shape":[-1]}}"#] {
        assert!(shapes_of_head(bad).is_err(), "{}", bad.escape_ascii());
    }
}

/// What follows is not even looked at: a head is refused before anything of it is made.
#[test]
fn a_head_takes_no_more_memory_than_its_text() {
    let long = "1,".repeat(1_000_000);
    for (begins, words) in [
        (r#"{"a":["#, "invalid type"),
        (r#"{"a":{"dtype":["#, "invalid type"),
        (r#"{"a":{"dtype":"F32","shape":["#, "more than 8 dimensions"),
    ] {
        let error = shapes_of_head(format!("{begins}{long}").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("\"a\"") && error.contains(words), "{error}");
    }
    let json = format!(r#"{{"__metadata__":{{"a":[{long}1]}},"b":{{"dtype":"F32","shape":[2,3],"more":[{long}1]}}}}"#);
    let tensor = TensorShape { name: "b".into(), dtype: "F32".into(), shape: vec![2, 3] };
    assert_eq!(shapes_of_head(json.as_bytes()).unwrap(), [tensor]);
    let named = format!(r#"{{"{}":1}}"#, "n".repeat(1_000_000));
    assert!(shapes_of_head(named.as_bytes()).unwrap_err().to_string().len() < 500);
    let huge = |dtype: &str| TensorShape { name: String::new(), dtype: dtype.into(), shape: vec![usize::MAX, 2] };
    assert_eq!(main_dtype(&[huge("BF16"), huge("BF16")]), "BF16");
}
