"""One engine, loaded once, that answers requests until its standard input ends. Runs in the peers' environment or vLLM's:

    python peers_worker.py --engine NAME --threads N [--model FOLDER] [--positions N] [--plain]

A request is one JSON object a line, and so is its answer; `seconds` is wall time of the work alone:

    {"op": "info"}                                            {"info": {...}}
    {"op": "check"}                                           {"cosine_least": 0.9998, "top1": 1.0, "positions": 8}
    {"op": "warm", "prefill": [512], "context": [0]}          {"settings": {...}, "trials": [...]}
    {"op": "prefill", "tokens": 512}                          {"seconds": 1.2}
    {"op": "decode", "context": 4096, "new_tokens": 32}       {"seconds": 3.4}
    {"op": "linear", "shape": "1x2048x5632", "dtype": "bf16", "cold": true}
                                                              {"seconds": 0.0005, "calls": 300, "weight_copies": 12}
    {"op": "attention", "shape": "512 of 4096", "dtype": "bf16"}
                                                              {"seconds": 0.04, "calls": 8}
    {"op": "read", "bytes": 536870912}                        {"seconds": 0.01}

A request that fails is answered {"error": "..."}. Whatever a library prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Protocol


class Engine(Protocol):
    """What a worker serves; engines leave out what they cannot do."""

    def info(self) -> dict: ...
    def check(self) -> dict: ...
    def warm(self, prefill: list[int], context: list[int]) -> dict: ...
    def prefill(self, tokens: int) -> dict: ...
    def decode(self, context: int, new_tokens: int) -> dict: ...


def random_tokens(count: int, vocab: int) -> list[int]:
    """The same ids in every engine."""
    draw = random.Random(7)
    return [draw.randrange(3, vocab) for _ in range(count)]


def agreement(expected, logits) -> dict:
    """How near logits [positions, vocab] are to the reference's: the least cosine, and the share of positions where the
    same token is first. Takes numpy arrays of f32."""
    import numpy

    if not numpy.isfinite(logits).all():
        return {"cosine_least": 0.0, "top1": 0.0, "positions": len(expected)}
    norms = numpy.linalg.norm(expected, axis=1) * numpy.linalg.norm(logits, axis=1)
    cosines = (expected * logits).sum(axis=1) / norms
    top1 = (expected.argmax(axis=1) == logits.argmax(axis=1)).mean()
    return {"cosine_least": float(cosines.min()), "top1": float(top1), "positions": len(expected)}


def make(name: str, arguments: argparse.Namespace) -> Engine:
    """Loads the engine; imports only what it needs."""
    if name == "pytorch":
        from peers_engine_torch import PyTorch

        return PyTorch(arguments.threads)
    if name in ("transformers", "transformers-f32"):
        from peers_engine_torch import Transformers

        return Transformers(arguments.model, "bf16" if name == "transformers" else "f32", arguments.threads)
    if name.startswith("llama.cpp-"):
        from peers_engine_llama import LlamaCpp

        file = {"bf16": "bf16.gguf", "q8": "q8_0.gguf", "q4": "q4_k_m.gguf", "file": "file.gguf"}[name.removeprefix("llama.cpp-")]
        return LlamaCpp(arguments.model, file, arguments.threads, arguments.positions, repack=not arguments.plain)
    if name in ("vllm", "vllm-f32"):
        from peers_engine_vllm import Vllm

        dtype = "bfloat16" if name == "vllm" else "float32"
        return Vllm(arguments.model, dtype, arguments.threads, arguments.positions)
    raise SystemExit(f"no engine {name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--model", type=Path, help="folder that peers_models.py made")
    parser.add_argument("--positions", type=int, default=1024, help="tokens that the longest request holds")
    parser.add_argument("--plain", action="store_true", help="llama.cpp: leave the weights in the file's layout")
    arguments = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    say = lambda value: print(json.dumps(value), file=answers, flush=True)
    try:
        engine = make(arguments.engine, arguments)
    except Exception as error:  # The driver reports it, whatever it is.
        say({"error": f"{type(error).__name__}: {error}"})
        raise
    say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            say(getattr(engine, request.pop("op"))(**request))
        except Exception as error:
            print(f"{line.strip()}: {error!r}", file=sys.stderr)
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
