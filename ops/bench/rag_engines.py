"""The engines: each a server on loopback, started with what its own documents say is fast, and asked by `rag_client.py`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from peers_environment import Unusable, last_line, say
from peers_machine import TICK, usable_cpus
from peers_vllm import preload, tcmalloc
from rag_client import Answer, Failed, ask, request
from rag_environment import HERE, RagEnvironment
from rag_workload import QUESTION_TOKENS, Question, text

# vLLM compiles at its first start.
START_SECONDS = 900
SETTLE_SECONDS = 600
STOP_SECONDS = 30

# Room for KV that the engines may keep: all of a corpus's, several times.
CACHE_GIB = 4


@dataclass(frozen=True)
class Run:
    """What all engines are started with."""

    environment: RagEnvironment
    model: Path  # What peers_models.py made.
    threads: int
    positions: int  # Tokens of the longest prompt, and some.
    ratio: float  # That ragstone recomputes of what it blends.
    ragstone: Path | None  # Its program.


class Server:
    """An engine's process. `ways` are the series that its answers belong to, with what ragstone is asked for."""

    name = ""
    ways: tuple[tuple[str, str | None], ...] = ()
    keeps = True  # Whether it keeps KV from one request to the next.
    path = "/v1/completions"
    health = "/health"

    def __init__(self, run: Run):
        self.run = run
        self.port = free_port()
        self.log = run.environment.log / f"{self.name}.log"
        self.process: subprocess.Popen | None = None

    def command(self) -> list:
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        return {}

    def setting(self) -> str:
        """How it computes, for the report."""
        raise NotImplementedError

    def start(self) -> float:
        """Starts it, and waits until it answers. Seconds."""
        begun = time.monotonic()
        command = [str(part) for part in self.command()]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | self.variables(),
            )  # fmt: skip
        while time.monotonic() - begun < START_SECONDS:
            if self.process.poll() is not None:
                raise Failed(f"it ended with status {self.process.returncode}: {last_line(self.log)}; log: {self.log}")
            if self.is_ready():
                return time.monotonic() - begun
            time.sleep(0.2)
        raise Failed(f"it did not answer within {START_SECONDS} s; its log is {self.log}")

    def is_ready(self) -> bool:
        try:
            return request(self.port, "GET", self.health).status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """Ends it, and whatever it started."""
        if self.process is None:
            return
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sent)
                self.process.wait(timeout=STOP_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def ask(self, question: Question, way: str | None) -> Answer:
        """The first token of its answer."""
        return ask(self.port, self.path, self.body(question, way), self.token_of, self.counts_of)

    def body(self, question: Question, way: str | None) -> dict:
        return {
            "model": "model", "prompt": question.ids(), "max_tokens": 1, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip

    @staticmethod
    def token_of(event: dict) -> str:
        return next((choice.get("text") or "" for choice in event.get("choices", [])), "")

    @staticmethod
    def counts_of(event: dict) -> tuple[int, int | None] | None:
        if usage := event.get("usage"):
            return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return None

    def settle(self) -> dict:
        """Waits until it has nothing to do; what the report should say about that."""
        return {}

    def busy_seconds(self) -> float:
        """Processor seconds of all processes of its session."""
        used = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid:
                used += (int(fields[11]) + int(fields[12])) / TICK
        return used


class Llama(Server):
    """llama.cpp's server, one slot: its prompt cache keeps the longest common beginning."""

    name = "llama.cpp"
    ways = (("llama.cpp", None),)
    path = "/completion"  # Counts what was cached, and takes token ids as the others do.

    def __init__(self, run: Run):
        super().__init__(run)
        self.program = run.environment.llama_server()

    def command(self) -> list:
        threads, room = self.run.threads, -(-self.run.positions // 256) * 256
        return [
            self.program, "--model", self.run.model / "bf16.gguf", "--host", "127.0.0.1", "--port", self.port,
            "--ctx-size", room, "--parallel", 1, "--threads", threads, "--threads-batch", threads,
            "--cache-ram", CACHE_GIB << 10,
        ]  # fmt: skip

    def setting(self) -> str:
        return "bf16 GGUF, f16 KV, one slot, prompt cache; its defaults otherwise"

    def body(self, question: Question, way: str | None) -> dict:
        return {
            "prompt": question.ids(), "n_predict": 1, "temperature": 0, "ignore_eos": True, "cache_prompt": True,
            "stream": True,
        }  # fmt: skip

    @staticmethod
    def token_of(event: dict) -> str:
        return event.get("content") or ""

    @staticmethod
    def counts_of(event: dict) -> tuple[int, int | None] | None:
        return (event["tokens_evaluated"], event.get("timings", {}).get("cache_n")) if event.get("stop") else None


class LlamaReuse(Llama):
    """The same, moving cached chunks to where the prompt has them, as they are: nothing is recomputed, and only chunks that
    follow one another in both orders are found."""

    name = "llama.cpp-reuse"
    ways = (("llama.cpp-reuse", None),)

    def command(self) -> list:
        return [*super().command(), "--cache-reuse", QUESTION_TOKENS]

    def setting(self) -> str:
        return f"{super().setting()}; --cache-reuse {QUESTION_TOKENS}, which does not recompute"


class Vllm(Server):
    """vLLM's CPU build, with prefix caching."""

    dtype = ""

    def __init__(self, run: Run):
        super().__init__(run)
        run.environment.vllm()

    def command(self) -> list:
        return [
            self.run.environment.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.run.model / "hf",
            "--served-model-name", "model", "--dtype", self.dtype, "--enable-prefix-caching", "--max-model-len",
            self.run.positions, "--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", self.port,
        ]  # fmt: skip

    def variables(self) -> dict[str, str]:
        folder = self.run.environment.folder
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(usable_cpus())[: self.run.threads])),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
            "LD_PRELOAD": preload(folder, folder / "venv"),
        }

    def setting(self) -> str:
        allocator = "tcmalloc" if tcmalloc(self.run.environment.folder / "lib") else "the C library's allocator"
        return f"{self.dtype}, prefix caching, {allocator} and Intel's OpenMP; its defaults otherwise"


class VllmBf16(Vllm):
    name, dtype = "vllm", "bfloat16"
    ways = (("vllm", None),)


class VllmF32(Vllm):
    name, dtype = "vllm-f32", "float32"
    ways = (("vllm-f32", None),)


class Transformers(Server):
    """transformers behind a small server of ours; it has no cache from one request to the next."""

    keeps = False
    dtype = ""

    def command(self) -> list:
        return [
            self.run.environment.python, HERE / "rag_transformers.py", "--model", self.run.model, "--dtype",
            self.dtype, "--threads", self.run.threads, "--port", self.port,
        ]  # fmt: skip

    def setting(self) -> str:
        return f"{self.dtype}, sdpa, logits of the last token; no prefix cache"


class TransformersBf16(Transformers):
    name, dtype = "transformers", "bf16"
    ways = (("transformers", None),)


class TransformersF32(Transformers):
    name, dtype = "transformers-f32", "f32"
    ways = (("transformers-f32", None),)


class Ragstone(Server):
    """`ragstone serve` on a data folder of its own. Asked thrice: blending, reusing what is exact, and computing all."""

    name = "ragstone"
    ways = (("ragstone", "auto"), ("ragstone, exact only", "exact"), ("ragstone, computing all", "off"))
    path = "/v1/chat/completions"
    health = "/readyz"

    def __init__(self, run: Run):
        super().__init__(run)
        self.data = run.environment.folder / "ragstone-data"

    def command(self) -> list:
        given = [
            f"recompute_ratio={self.run.ratio}", "calibrate_when_idle=false",
            f"host_bytes={CACHE_GIB}GiB", 'prompt.passage="{text}"', 'prompt.question="{question}"',
        ]  # fmt: skip
        flags = [flag for setting in given for flag in ("--set", setting)]
        return [
            self.run.ragstone, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", self.data, "--model",
            self.run.model / "hf", "--threads", self.run.threads, "--blend-uncalibrated", *flags,
        ]  # fmt: skip

    def start(self) -> float:
        """With nothing stored: what an earlier run kept would be found."""
        shutil.rmtree(self.data, ignore_errors=True)
        return super().start()

    def setting(self) -> str:
        return f"cacheblend at {self.run.ratio:g} of what is blended, exact where it can be"

    def body(self, question: Question, way: str | None) -> dict:
        documents = [{"title": "", "text": text(passage)} for passage in question.passages]
        return {
            "messages": [
                {"role": "system", "content": text(question.system)},
                {"role": "user", "content": text(question.question)},
            ],
            "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "ragstone": {"documents": documents, "reuse": way},
        }  # fmt: skip

    @staticmethod
    def token_of(event: dict) -> str:
        return next((choice.get("delta", {}).get("content") or "" for choice in event.get("choices", [])), "")

    def settle(self) -> dict:
        """Until the passages that were met have entries of their own, and all that was filed is on disk."""
        begun = time.monotonic()
        while time.monotonic() - begun < SETTLE_SECONDS:
            status = json.loads(request(self.port, "GET", "/v1/cache/status").read())
            device = status["device"]
            free = device["free_blocks"] + device["cached_blocks"] >= device["blocks"]
            if free and status["background"] == 0 and status["store"]["to_disk"]["entries"] == 0:
                return {"background_seconds": time.monotonic() - begun, "model": status["model"]["id"]}
            time.sleep(0.1)
        say(f"{self.name}: still busy after {SETTLE_SECONDS} s; going on")
        return {"background_seconds": None}


ENGINES = {
    engine.name: engine
    for engine in (Llama, LlamaReuse, VllmBf16, VllmF32, TransformersBf16, TransformersF32, Ragstone)
}


def free_port() -> int:
    """A port of the system's choice. Another program may take it before the engine does, which then does not start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def open_engine(name: str, run: Run) -> Server:
    """Installs what an engine needs; Failed with the reason where that is not possible."""
    try:
        return ENGINES[name](run)
    except Unusable as why:
        raise Failed(str(why)) from None
