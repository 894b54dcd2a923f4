"""The shapes that are measured, and what each costs: floating-point operations, bytes read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped heads and a gated MLP, as `config.json` describes it."""

    name: str
    title: str
    model_type: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    positions: int
    tied: bool
    qkv_bias: bool

    def matrix_weights(self) -> int:
        """Weights of all matrices that one decoded token reads: every linear layer and the head."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (query + 2 * kv) + query * self.hidden
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocab * self.hidden

    def kv_bytes(self, tokens: float, bytes_each: float = 2.0) -> float:
        """Bytes of K and V of `tokens` tokens over all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * tokens * bytes_each

    def decode_bytes(self, context: int, new_tokens: int, bytes_per_weight: float) -> float:
        """Bytes that one token's decoding must read from memory: every weight once, and the KV cache as it stands
        halfway through `new_tokens` tokens behind `context`."""
        return self.matrix_weights() * bytes_per_weight + self.kv_bytes(context + new_tokens / 2)


QWEN = ModelShape(
    name="qwen", title="Qwen2.5-0.5B's shape", model_type="qwen2", vocab=151936, hidden=896, intermediate=4864,
    layers=24, heads=14, kv_heads=2, head_dim=64, rms_norm_eps=1e-6, rope_theta=1e6, positions=32768, tied=True,
    qkv_bias=True,
)  # fmt: skip
TINYLLAMA = ModelShape(
    name="tinyllama", title="TinyLlama-1.1B's shape", model_type="llama", vocab=32000, hidden=2048, intermediate=5632,
    layers=22, heads=32, kv_heads=4, head_dim=64, rms_norm_eps=1e-5, rope_theta=1e4, positions=32768, tied=False,
    qkv_bias=False,
)  # fmt: skip
def word(token: int) -> str:
    """The text of a token of these models; words stand between spaces."""
    return f"w{token}"


MODELS = {shape.name: shape for shape in (QWEN, TINYLLAMA)}

# Bytes a weight takes in memory, by the format an engine keeps it in; Q8_0 has a 2-byte scale for 32 weights, ragstone's
# q8 one scale for a whole row. Of Q4_K_M and of what has an 8-bit head the mean over TinyLlama's shape, without the
# embedding table, of which a token reads one row. "native" is Q4_K_M in ragstone's memory.
BYTES_PER_WEIGHT = {
    "f32": 4.0,
    "bf16": 2.0,
    "q8_0": 34.0 / 32.0,
    "q8": 1.0,
    "q4_k_m": 4.88 / 8.0,
    "native": 5.09 / 8.0,
    "q4": 4.84 / 8.0,
}


@dataclass(frozen=True)
class LinearShape:
    """`rows` vectors of `inputs` values, times a matrix, to `outputs` values."""

    rows: int
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.inputs}x{self.outputs}"

    @staticmethod
    def parse(text: str) -> "LinearShape":
        """From ROWSxINxOUT; raises ValueError."""
        rows, inputs, outputs = (int(part) for part in text.split("x"))
        return LinearShape(rows, inputs, outputs)

    def flops(self) -> float:
        """Floating-point operations of one product."""
        return 2.0 * self.rows * self.inputs * self.outputs


@dataclass(frozen=True)
class AttentionShape:
    """The last `rows` queries of a sequence of `tokens`, in one layer of Qwen2.5-0.5B's shape."""

    rows: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.rows} of {self.tokens}"

    @staticmethod
    def parse(text: str) -> "AttentionShape":
        """From its text."""
        rows, tokens = (int(part) for part in text.split(" of "))
        return AttentionShape(rows, tokens)

    def flops(self) -> float:
        """Floating-point operations of the products with K and V, of visible keys only."""
        visible = sum(range(self.tokens - self.rows + 1, self.tokens + 1))
        return 4.0 * visible * QWEN.heads * QWEN.head_dim


# What `ragstone bench kernels` measures: a chunk of a prefill, the chosen rows of a blend, a decode step.
ATTENTION_SHAPES = [AttentionShape(rows, 4096) for rows in (512, 77, 1)]
LINEAR_SHAPES = [LinearShape.parse(text) for text in ("512x1024x2816", "2048x2048x5632", "192x896x4864", "1x2048x5632")]
