"""A Llama-like model with a low-rank adapter, as a function of weights: passages are read once, in a full prompt or as the store has
them, and several questions are answered over them, each of which sees the passages and itself alone.

Written out here, since the mask and the two rotations of a key (where it was read, where it is used) are not transformers' own.
"""

import math

import torch
import torch.nn.functional as F

PARTS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


class Model:
    """Weights of transformers' model in `dtype`, which stay as they are, and an adapter in f32, which is trained."""

    def __init__(self, source, rank, alpha, seed, dtype=torch.bfloat16):
        config = source.config
        self.config, self.rank, self.scale, self.dtype = config, rank, alpha / rank, dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        weights = {name: tensor.detach() for name, tensor in source.state_dict().items()}
        self.embedding = weights["model.embed_tokens.weight"].to(dtype)
        self.head = weights["lm_head.weight"].to(dtype) if "lm_head.weight" in weights else self.embedding
        self.last_norm = weights["model.norm.weight"].float()
        theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
        self.frequencies = theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        generator = torch.Generator().manual_seed(seed)
        self.layers, self.adapter = [], {}
        for at in range(config.num_hidden_layers):
            prefix = f"model.layers.{at}."
            layer = {name: weights[f"{prefix}{name}.weight"].float() for name in ("input_layernorm", "post_attention_layernorm")}
            for group, names in PARTS.items():
                for name in names:
                    weight = weights[f"{prefix}{group}.{name}.weight"]
                    layer[name] = weight.to(dtype)
                    a = torch.randn(rank, weight.shape[1], generator=generator) / math.sqrt(weight.shape[1])
                    b = torch.zeros(weight.shape[0], rank)
                    key = f"{prefix}{group}.{name}"
                    self.adapter[f"{key}.lora_A.weight"] = a.requires_grad_()
                    self.adapter[f"{key}.lora_B.weight"] = b.requires_grad_()
                    layer[name, "low"] = (self.adapter[f"{key}.lora_A.weight"], self.adapter[f"{key}.lora_B.weight"])
            self.layers.append(layer)
        self.with_adapter = True

    def linear(self, layer, name, x):
        y = F.linear(x, layer[name])
        if not self.with_adapter:
            return y
        a, b = layer[name, "low"]
        return y + F.linear(F.linear(x, a.to(self.dtype)), (b * self.scale).to(self.dtype))

    def norm(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.epsilon).to(self.dtype)

    def rotation(self, positions):
        angles = positions[:, None].float() * self.frequencies[None]
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def forward(self, ids, read, count):
        """Hidden states of the `count` last tokens of `ids`. `read` says how each token of the rest is read, and used by these.

        `read`: `stored` positions and mask among those that are read; `kept`, their indices that are used; `placed`, all positions
        that the last tokens see: the kept ones', then their own; `mask` of the last tokens over both.
        """
        x = self.embedding[ids].float()
        stored, placed = self.rotation(read["stored"]), self.rotation(read["placed"])
        begin, kept = len(ids) - count, read["kept"]
        own = (placed[0][-count:], placed[1][-count:])
        for layer in self.layers:
            y = self.norm(x, layer["input_layernorm"])
            q, k, v = (
                self.linear(layer, name, y).view(len(ids), -1, self.head_dim).transpose(0, 1) for name in ("q_proj", "k_proj", "v_proj")
            )
            (q_read, q_last), (k_read, k_last), (v_read, v_last) = (part.split([begin, count], 1) for part in (q, k, v))
            first = attention(rotated(q_read, stored), rotated(k_read, stored), v_read, read["stored_mask"])
            used = torch.cat([k_read[:, kept], k_last], 1)
            second = attention(rotated(q_last, own), rotated(used, placed), torch.cat([v_read[:, kept], v_last], 1), read["mask"])
            y = torch.cat([first, second], 1).transpose(0, 1).reshape(len(ids), -1)
            x = x + self.linear(layer, "o_proj", y).float()
            y = self.norm(x, layer["post_attention_layernorm"])
            y = F.silu(self.linear(layer, "gate_proj", y)) * self.linear(layer, "up_proj", y)
            x = x + self.linear(layer, "down_proj", y).float()
        return self.norm(x[begin:], self.last_norm)

    def logits(self, hidden):
        return F.linear(hidden, self.head).float()


def rotated(x, rotation):
    cos, sin = rotation
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def attention(q, k, v, mask):
    if q.shape[1] == 0:
        return q
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None, None], enable_gqa=True)[0]


def full_prompt(system, passages, branches):
    """Everything in order; each of `branches` (token ids) sees system prompt, passages and itself."""
    before = [token for part in [system, *passages] for token in part]
    count = len(before)
    return _join(
        before, torch.arange(count), torch.ones(count, count, dtype=torch.bool).tril(), torch.arange(count), torch.arange(count), branches
    )


def reused(system, primer, passages, branches, first_is_exact):
    """Passages as the store has them: each computed after system prompt and primer, without the others, then moved to its place."""
    before = [*system, *(token for part in primer for token in part)]
    begin = len(before)
    ids, stored, kept, placed = list(before), list(range(begin)), list(range(len(system))), list(range(len(system)))
    spans = []
    for at, passage in enumerate(passages):
        exact = first_is_exact and at == 0
        spans.append((len(ids), len(ids) + len(passage), len(system) if exact else begin))
        stored += range(spans[-1][2], spans[-1][2] + len(passage))
        kept += range(len(ids), len(ids) + len(passage))
        placed += range(len(placed), len(placed) + len(passage))
        ids += passage
    mask = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    mask[:begin, :begin] = torch.ones(begin, begin, dtype=torch.bool).tril()
    for low, high, prefix in spans:
        mask[low:high, :prefix] = True
        mask[low:high, low:high] = torch.ones(high - low, high - low, dtype=torch.bool).tril()
    return _join(ids, torch.tensor(stored), mask, torch.tensor(kept), torch.tensor(placed), branches)


def _join(before, stored, stored_mask, kept, placed, branches):
    count = sum(map(len, branches))
    mask = torch.zeros(count, len(kept) + count, dtype=torch.bool)
    mask[:, : len(kept)] = True
    positions, at = [placed], 0
    for branch in branches:
        size = len(branch)
        mask[at : at + size, len(kept) + at : len(kept) + at + size] = torch.ones(size, size, dtype=torch.bool).tril()
        positions.append(torch.arange(len(kept), len(kept) + size))
        at += size
    ids = torch.tensor(before + [token for branch in branches for token in branch])
    return ids, {"stored": stored, "stored_mask": stored_mask, "kept": kept, "placed": torch.cat(positions), "mask": mask}, count
