"""The engines as the driver sees them: worker processes in the peers' environment, and ragstone's own program."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

from peers_series import Case
from peers_shapes import AttentionShape, LinearShape

HERE = Path(__file__).resolve().parent

# A prompt that ragstone computes before the one that counts; a worker lives on between requests.
WARM_TOKENS = 64

# A request that takes longer than this is stuck.
REQUEST_SECONDS = 3600

# Up to so many rows, `ragstone bench kernels` cycles through many copies of a layer.
FEW_ROWS = 12


class EngineFailed(Exception):
    """An engine that crashed, refused or hung; the run goes on without it."""

    def __init__(self, why: str, crashed: bool = False):
        super().__init__(why)
        self.crashed = crashed


@dataclass(frozen=True)
class Kind:
    """An engine that `--engines` can name. `weights` is a key of BYTES_PER_WEIGHT."""

    name: str
    weights: str
    cases: tuple[str, ...]
    default: bool = True
    ragstone: tuple[str, ...] = ()  # Flags of `ragstone bench model`.
    files: str = "hf"  # What ragstone loads.

    @property
    def is_ragstone(self) -> bool:
        return self.name.startswith("ragstone")

    @property
    def is_vllm(self) -> bool:
        return self.name.startswith("vllm")


WHOLE_MODEL = ("prefill", "decode")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("pytorch", "bf16", ("linear", "attention", "read")),
        Kind("transformers", "bf16", WHOLE_MODEL),
        Kind("transformers-f32", "f32", WHOLE_MODEL, default=False),
        Kind("llama.cpp-bf16", "bf16", WHOLE_MODEL),
        Kind("llama.cpp-q8", "q8_0", WHOLE_MODEL),
        Kind("llama.cpp-q4", "q4_k_m", WHOLE_MODEL),
        Kind("vllm", "bf16", WHOLE_MODEL, default=False),
        Kind("vllm-f32", "f32", WHOLE_MODEL, default=False),
        Kind(
            "ragstone", "bf16", ("linear", "attention", *WHOLE_MODEL), ragstone=("--weights", "bf16", "--compute", "bf16")
        ),
        Kind("ragstone-q8", "q8", WHOLE_MODEL, ragstone=("--weights", "q8")),
        Kind("ragstone-q4", "q4", WHOLE_MODEL, ragstone=("--weights", "q4")),
        Kind("ragstone-gguf", "native", WHOLE_MODEL, files="q4_k_m.gguf"),
        Kind("ragstone-f32", "bf16", WHOLE_MODEL, False, ragstone=("--weights", "bf16", "--compute", "f32")),
    )
}

# What a file that somebody names is measured by: the engines that compute its own blocks.
FILE_KINDS = {
    kind.name: kind
    for kind in (
        Kind("llama.cpp-file", "file", WHOLE_MODEL),
        Kind("ragstone-file", "file", WHOLE_MODEL, files="file.gguf"),
    )
}
ALL_KINDS = KINDS | FILE_KINDS


@dataclass
class Sample:
    """One time. `series` names what was timed where an engine has several ways."""

    case: Case
    series: str
    seconds: float
    details: dict = field(default_factory=dict)


class Worker:
    """A `peers_worker.py`."""

    def __init__(
        self, python: Path, kind: Kind, log: Path, arguments: list[str], threads: int, new_tokens: int,
        variables: dict[str, str],
    ):  # fmt: skip
        self.kind, self.log, self.new_tokens = kind, log, new_tokens
        self.output = open(log, "w")
        command = [python, HERE / "peers_worker.py", "--engine", kind.name, "--threads", threads, *arguments]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",  # Everything it needs is in a folder.
            **variables,
        }
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.output, env=environment,
        )  # fmt: skip
        self.pid: int | None = self.process.pid
        self.pending = b""
        try:
            self.answer("start")
        except BaseException:
            self.close()
            raise

    def ask(self, op: str, **request) -> dict:
        """Sends a request and waits for its answer."""
        try:
            self.process.stdin.write(json.dumps({"op": op, **request}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # The answer says why.
        return self.answer(op)

    def answer(self, op: str) -> dict:
        """The next line of the worker."""
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], REQUEST_SECONDS)
            if not ready:
                self.process.kill()
                raise EngineFailed(f"{op}: no answer within {REQUEST_SECONDS} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise EngineFailed(f"{op}: {self.end()}; its log is {self.log}", crashed=True)
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{op}: {answer['error']}; its log is {self.log}")
        return answer

    def end(self) -> str:
        """How the process ended."""
        status = self.process.wait()
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def measure(self, case: Case) -> Iterator[Sample]:
        """Measures one case once."""
        if case.kind == "linear":
            # The weights of a few rows come from memory in a model: both programs cycle through more than a cache holds.
            cold = LinearShape.parse(case.size).rows <= FEW_ROWS
            for dtype in ("bf16", "f32"):
                answer = self.ask("linear", shape=case.size, dtype=dtype, cold=cold)
                yield Sample(case, f"{self.kind.name} {dtype}", answer.pop("seconds"), answer)
        elif case.kind == "attention":
            for dtype in ("bf16", "f32"):
                answer = self.ask("attention", shape=case.size, dtype=dtype)
                yield Sample(case, f"{self.kind.name} {dtype}", answer.pop("seconds"), answer)
        elif case.kind == "prefill":
            yield Sample(case, self.kind.name, self.ask("prefill", tokens=int(case.size))["seconds"])
        elif case.kind == "decode":
            answer = self.ask("decode", context=int(case.size), new_tokens=self.new_tokens)
            yield Sample(case, self.kind.name, answer["seconds"])
        elif case.kind == "read":
            yield Sample(case, self.kind.name, self.ask("read", bytes=int(case.work))["seconds"])

    def close(self) -> None:
        """Ends the process."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # It crashed with a request unread.
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.output.close()


class Ragstone:
    """The program's `bench` commands; each call is a process of its own that loads the model again, untimed."""

    def __init__(self, program: Path, kind: Kind, data: Path, threads: int, new_tokens: int, model: Path | None):
        self.program, self.kind, self.data, self.model = program, kind, data, model
        self.threads, self.new_tokens = threads, new_tokens
        self.pid: int | None = None  # Each call is a process of its own.
        self.ceilings: list[dict] = []
        self.load_seconds: list[float] = []
        self.stated: dict = {}

    def ask(self, op: str, **_) -> dict:
        """Answers as a worker does; ragstone's agreement with transformers is a matter of its own tests."""
        if op == "info":
            return {"info": {**self.stated, "load_seconds": self.load_seconds[0] if self.load_seconds else None}}
        if op == "warm":
            self.bench_model(prefill=256, context=0)  # Reads the files once, and shows early what does not work.
            return {"settings": " ".join(self.kind.ragstone), "trials": []}
        raise EngineFailed(f"{op}: not asked of ragstone")

    def measure(self, case: Case) -> Iterator[Sample]:
        """Measures one case once; a linear layer and attention by the path in use."""
        if case.kind in ("linear", "attention"):
            tokens = str(AttentionShape.parse(case.size).tokens) if case.kind == "attention" else ""
            sizes = ("--tokens", tokens) if tokens else ("--shape", case.size)
            report = self.bench("kernels", "--only", case.kind, *sizes)
            self.ceilings.append(report.get("ceilings", {}))
            for result in report["results"]:
                if result["kernel"] == case.kind and result["shape"] == case.size:
                    details = {name: result[name] for name in ("path", "precision", "of_ceiling")}
                    series = f"ragstone {result['path']} {result['precision']}"
                    yield Sample(case, series, result["seconds"]["median"], details)
        elif case.kind == "prefill":
            report = self.bench_model(prefill=int(case.size), context=0)
            found = [entry for entry in report["prefill"] if entry["tokens"] == int(case.size)][-1]
            yield Sample(case, self.kind.name, found["seconds"]["median"])
        elif case.kind == "decode":
            report = self.bench_model(prefill=256, context=int(case.size))
            found = next(entry for entry in report["decode"] if entry["context"] == int(case.size))
            # Its number of tokens is its own.
            seconds = found["seconds"]["median"] * self.new_tokens / found["new_tokens"]
            yield Sample(case, self.kind.name, seconds, {"new_tokens": found["new_tokens"]})

    def bench_model(self, prefill: int, context: int) -> dict:
        """`ragstone bench model` for one prompt length and one context: it has no way to leave one out, and a small one
        costs little. A short prompt before the long one warms the process up."""
        sizes = ("--prefill", f"{WARM_TOKENS},{prefill}", "--context", str(context))
        report = self.bench("model", "--model", str(self.model / self.kind.files), *self.kind.ragstone, *sizes)
        self.load_seconds.append(report["load_seconds"])
        self.stated = {name: report.get(name) for name in ("weights", "compute", "kv_dtype")}
        return report

    def bench(self, command: str, *arguments: str) -> dict:
        """Runs one of the program's benchmarks once and reads its report."""
        line = [str(self.program), "bench", command, *arguments]
        line += ["--runs", "1", "--threads", str(self.threads), "--json", "--data", str(self.data)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=REQUEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"bench {command}: no answer within {REQUEST_SECONDS} s") from None
        except OSError as error:
            raise EngineFailed(f"{self.program}: {error.strerror}") from None
        if done.returncode != 0:
            said = next((text for text in done.stderr.splitlines() if text.strip()), f"status {done.returncode}")
            raise EngineFailed(f"ragstone bench {command}: {said}")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise EngineFailed(f"ragstone bench {command}: its report is no JSON ({error})") from None

    def close(self) -> None:
        """Nothing runs between calls."""


def kernel_case(shape: LinearShape | AttentionShape) -> Case:
    """The case of one kernel."""
    kind = "linear" if isinstance(shape, LinearShape) else "attention"
    return Case(kind, str(shape), shape.flops())
