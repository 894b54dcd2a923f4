"""Makes a random-weight model in every format that the engines read. Runs in the peers' environment:

    python peers_models.py NAME FOLDER
    python peers_models.py --file FILE.gguf FOLDER      of a trained model: FOLDER/file.gguf, a link, and reference.safetensors

    FOLDER/hf/                    config.json, model.safetensors (bf16) and a tokenizer: transformers, vLLM and ragstone
    FOLDER/bf16.gguf, q8_0.gguf, q4_k_m.gguf   the same weights: llama.cpp, and ragstone's native blocks
    FOLDER/reference.safetensors  tokens, and transformers' logits in f32 at a few positions, to check engines by

The time does not depend on what the weights are, but the check does: they are large enough that every part of the
forward pass shows in the logits, so that a wrong permutation or a missing bias is seen. Each token is a word
(`peers_shapes.word`), so that a text has as many tokens as words in whatever engine.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import gguf
import torch
import transformers
from peers_shapes import MODELS, ModelShape, word
from safetensors.torch import save_file

SEED = 20260703
CHECK_TOKENS = 64
CHECK_POSITIONS = list(range(7, CHECK_TOKENS, 8))
BOS, EOS = 1, 2

# Names of one layer's tensors: Hugging Face's, llama.cpp's.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def hf_config(shape: ModelShape) -> transformers.PretrainedConfig:
    """The shape as transformers' configuration."""
    kind = {"qwen2": transformers.Qwen2Config, "llama": transformers.LlamaConfig}[shape.model_type]
    return kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )


@torch.no_grad()
def randomize(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Sets every parameter to noise, rounded to bf16, so that all formats start from the same values."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.2 * noise
        elif "embed_tokens" in name:
            value = 0.5 * noise
        else:
            value = noise / math.sqrt(parameter.shape[1])
        parameter.copy_(value.to(torch.bfloat16))


def llama_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k as GGUF's llama architecture wants them: rotary pairs beside each other, instead of half a head
    apart. (Its qwen2 architecture takes Hugging Face's order.)"""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(shape: ModelShape, weights: dict[str, torch.Tensor]):
    """GGUF's name and the f32 tensor of every weight."""
    for name, weight in weights.items():
        stem, _, suffix = name.rpartition(".")
        if stem in OTHER_NAMES:
            target = OTHER_NAMES[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{LAYER_NAMES[part]}"
            if shape.model_type == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                weight = llama_order(weight, shape.heads if part == "self_attn.q_proj" else shape.kv_heads)
        yield f"{target}.{suffix}", weight.float().contiguous()


def write_gguf(path: Path, shape: ModelShape, weights: dict[str, torch.Tensor], kind: str) -> None:
    """Writes the model with its matrices as `kind` ("bf16" or "q8_0"); norms and biases stay f32, as llama.cpp's own converter
    leaves them."""
    matrix = gguf.GGMLQuantizationType[kind.upper()]
    file_type = gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"]
    writer = gguf.GGUFWriter(path, shape.model_type)
    writer.add_name(f"random weights, {shape.title}")
    writer.add_file_type(file_type)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    # What llama.cpp's server wants to write tokens as text. Ids go in: its own tokenizing is never asked for.
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"▁{word(id)}" for id in range(shape.vocab)])
    writer.add_token_scores([0.0] * shape.vocab)
    writer.add_token_types([gguf.TokenType.NORMAL] * shape.vocab)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    for name, weight in gguf_tensors(shape, weights):
        dtype = matrix if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(folder: Path, shape: ModelShape) -> None:
    """Writes a tokenizer of words between white space, with nothing around a text."""
    vocabulary = {word(id): id for id in range(shape.vocab)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": word(0)},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": word(0), "model_max_length": shape.positions}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))


@torch.inference_mode()
def write_reference(path: Path, vocab: int, model: torch.nn.Module, generator: torch.Generator) -> None:
    """Writes tokens [n] and f32 logits [positions, vocab]."""
    tokens = torch.randint(3, vocab, (CHECK_TOKENS,), generator=generator)
    logits = model(tokens[None], use_cache=False).logits[0, CHECK_POSITIONS].float().contiguous()
    positions = torch.tensor(CHECK_POSITIONS)
    save_file({"tokens": tokens, "positions": positions, "logits": logits}, path)


def quantize(source: Path, target: Path) -> None:
    """llama.cpp's Q4_K_M of a file: the mixture of Q4_K and Q6_K that people fetch."""
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), settings) != 0:
        raise SystemExit(f"llama.cpp did not quantize {source}")


def make(shape: ModelShape, folder: Path) -> None:
    """Makes all files of one model."""
    say = lambda text: print(text, file=sys.stderr, flush=True)
    generator = torch.Generator().manual_seed(SEED)
    say("drawing weights")
    model = transformers.AutoModelForCausalLM.from_config(hf_config(shape), dtype=torch.float32).eval()
    randomize(model, generator)
    model.tie_weights()
    say("computing the reference in f32")
    write_reference(folder / "reference.safetensors", shape.vocab, model, generator)
    model.to(torch.bfloat16)
    say("writing safetensors")
    model.save_pretrained(folder / "hf", max_shard_size="100GB")
    (folder / "hf" / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder / "hf", shape)
    weights = dict(model.named_parameters())  # A tied head is in it once.
    weights = {name: weight.detach() for name, weight in weights.items()}
    for kind in ("bf16", "q8_0"):
        say(f"writing {kind}.gguf")
        write_gguf(folder / f"{kind}.gguf", shape, weights, kind)
    say("writing q4_k_m.gguf")
    quantize(folder / "bf16.gguf", folder / "q4_k_m.gguf")


def link(file: Path, folder: Path) -> None:
    """Links a file, and has transformers compute its reference."""
    print("computing the reference in f32", file=sys.stderr, flush=True)
    read = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED)
    write_reference(folder / "reference.safetensors", model.config.vocab_size, model, generator)
    (folder / "file.gguf").symlink_to(file)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    if sys.argv[1] == "--file":
        link(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        make(MODELS[sys.argv[1]], Path(sys.argv[2]))
