"""llama.cpp through its C interface, as `peers_worker.py` serves it: no sampling, and only the last token's logits."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy
from peers_worker import agreement, random_tokens
from safetensors.numpy import load_file

SEQUENCE = 0


@dataclass(frozen=True)
class Setting:
    """How a context computes."""

    flash: bool
    ubatch: int

    def __str__(self) -> str:
        return f"flash attention {'on' if self.flash else 'off'}, micro-batch {self.ubatch}"


SETTINGS = [Setting(flash, ubatch) for flash in (False, True) for ubatch in (512, 2048)]


class Context:
    """A `llama_context` with its KV cache (f16, llama.cpp's default)."""

    def __init__(self, model, setting: Setting, threads: int, positions: int):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = -(-positions // 256) * 256
        parameters.n_batch = parameters.n_ctx
        parameters.n_ubatch = min(setting.ubatch, parameters.n_ctx)
        parameters.n_threads = parameters.n_threads_batch = threads
        flash = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if setting.flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = flash
        self.handle = llama_cpp.llama_init_from_model(model, parameters)
        if not self.handle:
            raise RuntimeError(f"llama.cpp makes no context with {setting}")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.held = 0

    def truncate(self, tokens: int) -> None:
        """Forgets what stands behind the first `tokens` tokens."""
        if tokens == 0:
            llama_cpp.llama_memory_clear(self.memory, True)
        elif not llama_cpp.llama_memory_seq_rm(self.memory, SEQUENCE, tokens, -1):
            raise RuntimeError(f"llama.cpp cannot truncate its cache to {tokens} tokens")
        self.held = tokens

    def decode(self, ids: ctypes.Array) -> None:
        """Computes `ids` behind what is held, and the logits of the last one."""
        batch = llama_cpp.llama_batch_get_one(ids, len(ids))
        status = llama_cpp.llama_decode(self.handle, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode of {len(ids)} tokens returned {status}")
        llama_cpp.llama_synchronize(self.handle)
        self.held += len(ids)

    def logits(self, index: int, vocab: int) -> numpy.ndarray:
        """Of the batch's token `index` (-1: the last), f32 [vocab]."""
        pointer = llama_cpp.llama_get_logits_ith(self.handle, index)
        return numpy.ctypeslib.as_array(pointer, (vocab,)).copy()

    def close(self) -> None:
        llama_cpp.llama_free(self.handle)


class LlamaCpp:
    """One GGUF file. The settings that prove fastest in `warm` are the ones measured."""

    def __init__(self, model: Path, file: str, threads: int, positions: int, repack: bool):
        self.threads, self.positions, self.repack, self.file = threads, positions, repack, file
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = repack
        started = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(str(model / file).encode(), parameters)
        self.load_seconds = time.perf_counter() - started
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {file}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.reference = model / "reference.safetensors"
        self.prefill_settings: dict[int, Setting] = {}
        self.decode_settings: dict[int, Setting] = {}
        self.contexts: dict[tuple[str, Setting], Context] = {}

    def info(self) -> dict:
        return {
            "info": {
                "llama_cpp_python": llama_cpp.__version__,
                "system": llama_cpp.llama_print_system_info().decode().strip(" |\n"),
                "file": self.file,
                "extra_buffer_types": self.repack,
                "kv_dtype": "f16",
                "threads": self.threads,
                "load_seconds": self.load_seconds,
            }
        }

    def ids(self, count: int) -> ctypes.Array:
        return (llama_cpp.llama_token * count)(*random_tokens(count, self.vocab))

    def context(self, use: str, setting: Setting) -> Context:
        """Prefill and decode have a context each: a decode's cache survives the prefills between."""
        if (use, setting) not in self.contexts:
            self.contexts[use, setting] = Context(self.model, setting, self.threads, self.positions)
        return self.contexts[use, setting]

    def check(self) -> dict:
        reference = load_file(self.reference)
        tokens = reference["tokens"]
        context = Context(self.model, SETTINGS[0], self.threads, len(tokens))
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = int(token)
            batch.pos[index] = index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = SEQUENCE
            batch.logits[index] = index in reference["positions"]
        status = llama_cpp.llama_decode(context.handle, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = numpy.stack([context.logits(int(position), self.vocab) for position in reference["positions"]])
        llama_cpp.llama_batch_free(batch)
        context.close()
        return agreement(reference["logits"], logits)

    def warm(self, prefill: list[int], context: list[int]) -> dict:
        """Tries every setting on the prompt lengths and contexts given, and keeps the fastest for each."""
        trials = []
        self.time_prefill(64, SETTINGS[0])  # Reads the whole file once.
        for tokens in prefill:
            tries = range(2 if tokens <= 1024 else 1)
            timed = {setting: min(self.time_prefill(tokens, setting) for _ in tries) for setting in SETTINGS}
            self.prefill_settings[tokens] = min(timed, key=timed.__getitem__)
            trials += [{"prefill": tokens, "setting": str(key), "seconds": value} for key, value in timed.items()]
        for held in context:
            timed = {}
            for setting in SETTINGS[::2]:  # The micro-batch is of no matter to one token.
                self.time_decode(held, 2, setting)
                timed[setting] = min(self.time_decode(held, 8, setting) for _ in range(3))
            self.decode_settings[held] = min(timed, key=timed.__getitem__)
            trials += [{"decode": held, "setting": str(key), "seconds": value} for key, value in timed.items()]
        kept = {("prefill", setting) for setting in self.prefill_settings.values()}
        kept |= {("decode", setting) for setting in self.decode_settings.values()}
        for key in self.contexts.keys() - kept:
            self.contexts.pop(key).close()
        chosen = {
            "prefill": {str(key): str(setting) for key, setting in self.prefill_settings.items()},
            "decode": {str(key): str(setting) for key, setting in self.decode_settings.items()},
        }
        return {"settings": chosen, "trials": trials}

    def time_prefill(self, tokens: int, setting: Setting) -> float:
        context = self.context("prefill", setting)
        context.truncate(0)
        ids = self.ids(tokens)
        started = time.perf_counter()
        context.decode(ids)
        return time.perf_counter() - started

    def time_decode(self, held: int, new_tokens: int, setting: Setting) -> float:
        context = self.context("decode", setting)
        if context.held != held or held == 0:
            context.truncate(0)
            if held > 0:
                context.decode(self.ids(held))
        singles = [(llama_cpp.llama_token * 1)(token) for token in self.ids(new_tokens)]
        started = time.perf_counter()
        for single in singles:
            context.decode(single)
        seconds = time.perf_counter() - started
        context.truncate(held)
        return seconds

    def prefill(self, tokens: int) -> dict:
        """Seconds from ids to the last token's logits."""
        return {"seconds": self.time_prefill(tokens, self.chosen(self.prefill_settings, tokens))}

    def decode(self, context: int, new_tokens: int) -> dict:
        """Seconds for `new_tokens` tokens, one at a time, behind `context` tokens."""
        return {"seconds": self.time_decode(context, new_tokens, self.chosen(self.decode_settings, context))}

    @staticmethod
    def chosen(settings: dict[int, Setting], size: int) -> Setting:
        """What was found for the nearest size that was tried."""
        if not settings:
            return SETTINGS[0]
        return settings[min(settings, key=lambda tried: abs(tried - size))]
