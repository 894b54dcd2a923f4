"""The language model in plain PyTorch, in the Llama shape, and its export to a Hugging Face folder."""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

DEMO = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 32, "rope_theta": 1000000.0, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096}
# The bundled model's shape, and those of two that calibration is tried on (see README.md).
SHAPES = {"demo": DEMO,
          "deep": DEMO | {"num_hidden_layers": 7},
          "wide": DEMO | {"num_hidden_layers": 4, "head_dim": 64, "rope_theta": 10000.0}}


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.split, self.dim, self.groups = (heads, kv, kv), dim, heads // kv
        self.qkv = nn.Linear(hidden, (heads + 2 * kv) * dim, bias=False)
        self.out = nn.Linear(heads * dim, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.norm1, self.norm2 = (nn.RMSNorm(hidden, eps=c["rms_norm_eps"]) for _ in range(2))
        for matrix in (self.out, self.down):
            nn.init.zeros_(matrix.weight)

    def forward(self, x, cos, sin, mask):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, -1, self.dim).transpose(1, 2).split(self.split, 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # by hand: several times faster than scaled_dot_product_attention's backward on a CPU at this size
        grouped = (rows * self.split[1], self.groups * length, self.dim)
        scores = q.reshape(grouped) @ k.flatten(0, 1).mT * self.dim ** -0.5
        shares = (scores.view(rows, -1, length, length) + mask).softmax(-1, dtype=scores.dtype)
        mixed = shares.view(grouped[0], -1, length) @ v.flatten(0, 1)
        mixed = mixed.view(rows, -1, length, self.dim)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Model(nn.Module):
    """forward(ids [rows, length], positions, mask [rows, 1, length, length] bool, chosen) -> logits of `chosen` places."""

    def __init__(self, shape):
        """`shape`: one of SHAPES with `vocab_size`, or a config.json that `export` wrote."""
        super().__init__()
        self.config = c = dict(shape)
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed.weight, std=0.1)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        nn.init.constant_(self.norm.weight, 0.3)  # the embedding is tied: a token must not start by predicting itself
        inverse = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angles = torch.arange(c["max_position_embeddings"]).float()[:, None] * inverse
        self.register_buffer("cos", angles.cos(), False)
        self.register_buffer("sin", angles.sin(), False)

    def forward(self, ids, positions, mask, chosen=None):
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.embed(ids)
        mask = torch.zeros(mask.shape, device=x.device, dtype=torch.bfloat16).masked_fill(~mask, -1e4)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        x = x.flatten(0, 1)[chosen] if chosen is not None else x
        return F.linear(self.norm(x), self.embed.weight)


def export(model, folder):
    """Writes config.json, generation_config.json, tokenizer_config.json and bf16 weights beside tokenizer.json."""
    folder, c = Path(folder), model.config
    heads, kv, dim = (c[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    tensors = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        attention = zip("qkv", layer.qkv.weight.split((heads * dim, kv * dim, kv * dim)))
        inner = dict(zip(("gate", "up"), layer.gate_up.weight.chunk(2)), down=layer.down.weight)
        parts = {f"self_attn.{n}_proj": w for n, w in attention} | {f"mlp.{n}_proj": w for n, w in inner.items()}
        parts |= {"self_attn.o_proj": layer.out.weight, "input_layernorm": layer.norm1.weight,
                  "post_attention_layernorm": layer.norm2.weight}
        tensors |= {f"model.layers.{i}.{name}.weight": w for name, w in parts.items()}
    tensors = {n: t.detach().to("cpu", torch.bfloat16).contiguous().clone() for n, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    _write(folder / "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
           "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16", **ids, **c})
    _write(folder / "generation_config.json", {"do_sample": False, "max_new_tokens": 16, "repetition_penalty": 1.0, **ids})
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
           "eos_token": "</s>", "pad_token": "<pad>", "model_max_length": c["max_position_embeddings"],
           "add_bos_token": False, "clean_up_tokenization_spaces": False})


def _write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")
