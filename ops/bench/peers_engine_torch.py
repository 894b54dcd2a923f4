"""PyTorch's linear layer and attention, and transformers' models, as `peers_worker.py` serves them."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
import transformers
from peers_shapes import QWEN, AttentionShape
from peers_worker import agreement, random_tokens
from safetensors.torch import load_file

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}

# A model's layers follow one another, so the weights of each come from memory and not from a cache: the matrices that a
# cold measurement of a linear layer cycles through fill at least this many bytes.
COLD_BYTES = 256 << 20
MIN_SECONDS = 0.3
MIN_CALLS = 3


def use_threads(threads: int) -> None:
    """The same number of threads for everything that follows."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)


class PyTorch:
    """`torch.nn.functional.linear`, `scaled_dot_product_attention`, and a plain read of memory."""

    def __init__(self, threads: int):
        use_threads(threads)
        self.block: torch.Tensor | None = None
        self.matrices: dict[tuple[str, str, bool], tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def info(self) -> dict:
        return {
            "info": {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                "onednn": torch.backends.mkldnn.is_available(),
            }
        }

    @torch.inference_mode()
    def linear(self, shape: str, dtype: str, cold: bool) -> dict:
        """Median seconds of one call, without a bias: of one matrix again and again, or of one that no cache holds."""
        rows, inputs, outputs = (int(part) for part in shape.split("x"))
        generator = torch.Generator().manual_seed(7)
        if (shape, dtype, cold) not in self.matrices:
            self.matrices = {}  # One at a time: they are large.
            copies = -(-COLD_BYTES // (inputs * outputs * DTYPES[dtype].itemsize)) if cold else 1
            draw = lambda *size: torch.randn(*size, generator=generator).to(DTYPES[dtype])
            weight = draw(outputs, inputs)
            self.matrices[shape, dtype, cold] = draw(rows, inputs), [weight.clone() for _ in range(copies)]
        x, weights = self.matrices[shape, dtype, cold]
        torch.nn.functional.linear(x, weights[-1])
        times: list[float] = []
        while len(times) < MIN_CALLS or sum(times) < MIN_SECONDS:
            weight = weights[len(times) % len(weights)]
            started = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            times.append(time.perf_counter() - started)
        return {"seconds": statistics.median(times), "calls": len(times), "weight_copies": len(weights)}

    @torch.inference_mode()
    def attention(self, shape: str, dtype: str) -> dict:
        """Median seconds of one call, with grouped heads and a mask as transformers has it."""
        size = AttentionShape.parse(shape)
        generator = torch.Generator().manual_seed(7)
        draw = lambda heads, rows: torch.randn(1, heads, rows, QWEN.head_dim, generator=generator).to(DTYPES[dtype])
        q, k, v = draw(QWEN.heads, size.rows), draw(QWEN.kv_heads, size.tokens), draw(QWEN.kv_heads, size.tokens)
        mask = torch.ones(size.rows, size.tokens, dtype=torch.bool).tril(diagonal=size.tokens - size.rows)
        # A single query sees everything: then transformers has no mask.
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask if size.rows > 1 else None, enable_gqa=True
        )
        attend()
        times: list[float] = []
        while len(times) < MIN_CALLS or sum(times) < MIN_SECONDS:
            started = time.perf_counter()
            attend()
            times.append(time.perf_counter() - started)
        return {"seconds": statistics.median(times), "calls": len(times)}

    @torch.inference_mode()
    def read(self, bytes: int) -> dict:
        """Best of five sums over a block of memory: what the memory gives, not what a sum usually takes."""
        if self.block is None or self.block.numel() * 4 != bytes:
            self.block = torch.ones(bytes // 4, dtype=torch.float32)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            self.block.sum()
            times.append(time.perf_counter() - started)
        return {"seconds": min(times)}


class Transformers:
    """A causal language model in `dtype`, with scaled-dot-product attention and a dynamic cache."""

    def __init__(self, model: Path, dtype: str, threads: int):
        use_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        started = time.perf_counter()
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(model / "hf", dtype=DTYPES[dtype], attn_implementation="sdpa").eval()
        self.load_seconds = time.perf_counter() - started
        self.reference = model / "reference.safetensors"
        self.caches: dict[int, transformers.DynamicCache] = {}

    def info(self) -> dict:
        return {
            "info": {
                "transformers": transformers.__version__,
                "torch": torch.__version__,
                "dtype": str(self.model.dtype).removeprefix("torch."),
                "attention": self.model.config._attn_implementation,
                "threads": torch.get_num_threads(),
                "load_seconds": self.load_seconds,
            }
        }

    def tokens(self, count: int) -> torch.Tensor:
        return torch.tensor([random_tokens(count, self.model.config.vocab_size)])

    @torch.inference_mode()
    def check(self) -> dict:
        reference = load_file(self.reference)
        logits = self.model(reference["tokens"][None], use_cache=False).logits[0, reference["positions"]]
        return agreement(reference["logits"].numpy(), logits.float().numpy())

    def warm(self, prefill: list[int], context: list[int]) -> dict:
        self.prefill(min(512, *prefill) if prefill else 64)
        self.decode(min(context, default=0), 2)
        settings = {"prefill": "sdpa, logits of the last token", "decode": "sdpa, dynamic cache"}
        return {"settings": settings, "trials": []}

    @torch.inference_mode()
    def prefill(self, tokens: int) -> dict:
        """Seconds from ids to the last token's logits, with the KV cache kept."""
        ids = self.tokens(tokens)
        cache = transformers.DynamicCache(config=self.model.config)
        started = time.perf_counter()
        self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return {"seconds": time.perf_counter() - started}

    @torch.inference_mode()
    def decode(self, context: int, new_tokens: int) -> dict:
        """Seconds for `new_tokens` tokens, one at a time, behind `context` tokens."""
        if context not in self.caches:
            self.caches[context] = transformers.DynamicCache(config=self.model.config)
            if context > 0:
                ids = self.tokens(context)
                self.model(ids, past_key_values=self.caches[context], use_cache=True, logits_to_keep=1)
        cache = self.caches[context]
        ids = self.tokens(new_tokens)
        started = time.perf_counter()
        for index in range(new_tokens):
            self.model(ids[:, index : index + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - started
        if context > 0:
            cache.crop(-new_tokens)  # What a negative number counts is removed.
            if cache.get_seq_length() != context:
                raise RuntimeError(f"the cache holds {cache.get_seq_length()} tokens and not {context}")
        else:
            del self.caches[0]
        return {"seconds": seconds}
