"""ops/bench/rag: time to first token of questions over passages that were met before, in another order each time.

Installs vLLM's CPU build, llama.cpp's server and transformers into a throw-away environment, makes a model of random
weights (Qwen2.5-0.5B's shape) that all of them load, and asks each engine the same questions, one engine after the
other: some that meet every passage of a corpus, then questions over passages drawn from it, in orders that are new. One
client asks all, over HTTP, and takes the time to the first streamed token. Engines that have a prefix cache use it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import rag_report
from peers_environment import Unusable, say
from peers_machine import busy_seconds, commit, cpu_flags, machine, physical_cores
from peers_main import OneLine, choice, count, find_ragstone, ragstone_version, sizes
from peers_shapes import QWEN
from rag_client import Failed
from rag_engines import ENGINES, Run, Server, open_engine
from rag_environment import ROOT, RagEnvironment
from rag_report import Engine, Sample
from rag_workload import Workload

# Beside the prompt: the answer, and what an engine wants spare.
SPARE_POSITIONS = 64


def default_engines() -> list[str]:
    """Those that compute in bf16 where the processor multiplies it, else those in f32: bf16 would be emulated."""
    has_bf16 = {"amx_bf16", "avx512_bf16"} & set(cpu_flags())
    return ["llama.cpp", "vllm", "transformers", "ragstone"] if has_bf16 else [
        "llama.cpp", "vllm-f32", "transformers-f32", "ragstone"
    ]  # fmt: skip


def share(text: str) -> float:
    """A parser of a share."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


def arguments() -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragstone" / "rag"
    parser = OneLine(
        prog="ops/bench/rag", description=__doc__.split("\n\n", 1)[1], allow_abbrev=False,
        epilog="Installing takes about 10 GB, and half an hour on two cores for llama.cpp's server; once. An engine that "
        "cannot be installed or started is reported with the reason. pip's own settings (PIP_INDEX_URL, pip.conf) apply.",
    )  # fmt: skip
    add = parser.add_argument
    add("--tokens", type=sizes(512), default=[4096], metavar="LIST", help="prompts, tokens (4096)")
    add("--passages", type=count, default=8, metavar="N", help="of a question (8)")
    add("--corpus", type=count, default=12, metavar="N", help="passages to draw from (12)")
    add("--questions", type=count, default=5, metavar="N", help="measured questions of each engine and size (5)")
    add("--seed", type=int, default=1, help="of the corpus and the questions (1)")
    add("--engines", type=choice(list(ENGINES)), metavar="LIST",
        help=f"of {', '.join(ENGINES)}, in this order; without it ({','.join(default_engines())}): in f32 where this "
        "processor has no products of bf16")  # fmt: skip
    add("--recompute-ratio", type=share, default=0.15, metavar="SHARE",
        help="of blended tokens that ragstone recomputes, at the least; random weights have no calibration (0.15)")  # fmt: skip
    add("--threads", type=count, default=physical_cores(), metavar="N",
        help="of every engine (the physical cores that this process may use: %(default)s)")  # fmt: skip
    add("--ragstone", type=Path, metavar="PATH", help="its program; without it, built as ops/run builds it")
    add("--env", type=Path, default=cache, metavar="DIR", help="the environment (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="everything, with every sample")
    add("--install", action="store_true", help="install, make the model and end")
    add("--clean", action="store_true", help="remove the environment and end")
    given = parser.parse_args()
    given.engines = given.engines or default_engines()
    if given.corpus < given.passages:
        parser.error(f"--corpus {given.corpus}: a question has {given.passages} different passages")
    if given.json and not given.json.resolve().parent.is_dir():
        parser.error(f"--json {given.json}: its folder is not there")
    return given


class Measurement:
    """One engine after the other."""

    def __init__(self, given: argparse.Namespace, run: Run):
        self.given, self.run = given, run
        self.engines: list[Engine] = []
        self.samples: list[Sample] = []
        self.interrupted = False

    def measure(self, name: str) -> None:
        """Starts an engine and asks it everything; a failure is part of the report."""
        engine = Engine(name)
        self.engines.append(engine)
        server = None
        try:
            server = open_engine(name, self.run)
            if self.given.install:
                return
            say(f"{name}: starting")
            engine.setting, engine.start_seconds = server.setting(), server.start()
            for tokens in self.given.tokens:
                self.questions(server, engine, tokens)
        except Failed as why:
            say(f"{name}: {why}")
            engine.failed = str(why)
        finally:
            if server:
                server.stop()

    def questions(self, server: Server, engine: Engine, tokens: int) -> None:
        """Meets the corpus, then asks in new orders."""
        given = self.given
        workload = Workload(QWEN, tokens, given.passages, given.corpus, given.seed)
        first, shuffled = workload.first(), workload.shuffled(given.questions)
        if server.keeps:
            for number, question in enumerate(first):
                self.sample(server, server.ways[0], tokens, "first", number, question)
        else:  # What keeps nothing need not be told; a short prompt warms it up.
            server.ask(replace(first[0], passages=first[0].passages[:1]), server.ways[0][1])
        engine.settled[tokens] = server.settle()
        for number, question in enumerate(shuffled):
            for way in server.ways:
                self.sample(server, way, tokens, "shuffled", number, question)
                server.settle()

    def sample(self, server: Server, way: tuple, tokens: int, phase: str, number: int, question) -> None:
        series, asked = way
        started, busy, used = time.monotonic(), busy_seconds(), server.busy_seconds()
        answer = server.ask(question, asked)
        took = time.monotonic() - started
        others = (busy_seconds() - busy) - (server.busy_seconds() - used)
        sample = Sample(series, tokens, phase, number, answer, round(max(others, 0.0) / took, 2))
        self.samples.append(sample)
        cached = "" if answer.cached_tokens is None else f", {answer.cached_tokens} cached"
        say(f"{series}: {phase} question {number + 1}, {answer.prompt_tokens} tokens{cached}: {answer.seconds:.2f} s")

    def report(self, started: str) -> dict:
        """Everything, for --json."""
        given = self.given
        return {
            "schema": 1,
            "started": started,
            "commit": commit(ROOT),
            "arguments": sys.argv[1:],
            "interrupted": self.interrupted,
            "questions": given.questions,
            "passages": given.passages,
            "corpus": given.corpus,
            "seed": given.seed,
            "recompute_ratio": given.recompute_ratio,
            "versions": self.run.environment.versions() | ragstone_version(self.run.ragstone),
            "machine": machine(given.threads),
            "engines": [engine.as_json() for engine in self.engines],
            "series": rag_report.series_as_json(self.samples),
            "ratios": rag_report.ratios(self.samples),
            "same_first_token": rag_report.same_first_token(self.samples),
            "samples": [sample.as_json() for sample in self.samples],
        }


def main() -> int:
    given = arguments()
    environment = RagEnvironment(given.env.expanduser().resolve())
    if given.clean:
        environment.clean()
        return 0
    started = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    ragstone = find_ragstone(given) if "ragstone" in given.engines else None
    environment.hold()
    environment.install()
    positions = max(given.tokens) + SPARE_POSITIONS
    model = environment.model(QWEN.name)
    run = Run(environment, model, given.threads, positions, given.recompute_ratio, ragstone)
    measurement = Measurement(given, run)
    try:
        if not given.install:
            # Before anything is measured: compilers would disturb it.
            for name in given.engines:
                prepare(name, run)
        if (busy := os.getloadavg()[0]) > 0.5 * given.threads:
            say(f"note: other work runs here (load {busy:.1f}); times will vary")
        for name in given.engines:
            measurement.measure(name)
    except KeyboardInterrupt:
        say("interrupted: reporting what is there")
        measurement.interrupted = True
    report = measurement.report(started)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
        say(f"wrote {given.json}")
    print(rag_report.text(report))
    if measurement.interrupted:
        return 130
    return 1 if any(engine.failed for engine in measurement.engines) else 0


def prepare(name: str, run: Run) -> None:
    """Installs what an engine needs; what fails is reported when its turn comes."""
    try:
        open_engine(name, run)
    except Failed:
        pass


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as why:
        print(f"ops/bench/rag: {why}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
