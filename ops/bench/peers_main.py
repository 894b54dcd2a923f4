"""ops/bench/peers: ragstone and outside engines, measured in one run.

Installs PyTorch, transformers and llama.cpp (compiled for this processor) into a throw-away environment, and vLLM's CPU
build into one of its own if --engines names it, makes random-weight models in the formats that each needs, checks that
the engines compute the same, and measures them interleaved: in every round each engine measures each case once, in
rotating order, and only one computes at a time. Results are medians with the least and the greatest; ratios are taken
within rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import peers_report
from peers_engines import ALL_KINDS, FILE_KINDS, KINDS, EngineFailed, Kind, Ragstone, Worker, kernel_case
from peers_environment import Environment, Unusable, say
from peers_machine import busy_seconds, commit, machine, memory_bytes, physical_cores, process_seconds
from peers_series import Case, Measured
from peers_shapes import ATTENTION_SHAPES, BYTES_PER_WEIGHT, LINEAR_SHAPES, MODELS, LinearShape
from peers_vllm import VLLM_MEMORY_BYTES, VllmEnvironment, require_platform

ROOT = Path(__file__).resolve().parents[2]
CASES = ["linear", "attention", "prefill", "decode"]
READ_BYTES = 512 << 20

# Engines that compute the same are far nearer than this (0.999 with 8-bit weights); a wrong permutation is far off.
LEAST_COSINE = 0.98
# Random weights lose a tenth of their size by 4 bits.
LEAST_COSINE_OF_FOUR_BITS = 0.9

# llama.cpp's settings are tried at sizes up to this; longer ones take what was found for the nearest.
LONGEST_TRIAL = 4096


def ragstone_version(program: Path | None) -> dict[str, str]:
    """What it says of itself."""
    if program is None:
        return {}
    said = subprocess.run([program, "--version"], capture_output=True, text=True)
    return {"ragstone": said.stdout.strip().removeprefix("ragstone ") or "unknown"}


class OneLine(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help\n")


def choice(allowed: list[str]):
    """A parser of comma-separated names out of `allowed`; "all" is all of them."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(allowed if text == "all" else text.split(",")))
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(allowed)}")
        return names

    return parse


def sizes(least: int):
    """A parser of comma-separated numbers of tokens, each at least `least`."""

    def parse(text: str) -> list[int]:
        try:
            numbers = sorted({int(part) for part in text.split(",")})
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, such as 512,2048") from None
        longest = min(shape.positions for shape in MODELS.values()) - 1024
        if numbers[0] < least or numbers[-1] > longest:
            raise argparse.ArgumentTypeError(f"numbers of tokens are {least} to {longest}")
        return numbers

    return parse


def linear_shape(text: str) -> LinearShape:
    """A parser of ROWSxINxOUT."""
    try:
        shape = LinearShape.parse(text)
    except ValueError:
        shape = LinearShape(0, 0, 0)
    if min(shape.rows, shape.inputs, shape.outputs) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write ROWSxINxOUT, such as 512x1024x2816")
    return shape


def count(text: str) -> int:
    """A parser of a number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def arguments() -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragstone" / "peers"
    default_engines = [kind.name for kind in KINDS.values() if kind.default]
    parser = OneLine(
        prog="ops/bench/peers", description=__doc__.split("\n\n", 1)[1], allow_abbrev=False,
        epilog="Installing takes about 6 GB and a few minutes, once, vLLM as much again; a model about 5 GB. pip's own "
        "settings (PIP_INDEX_URL, pip.conf) apply. A whole run with both models takes an hour on two cores; --quick, "
        "minutes.",
    )  # fmt: skip
    add = parser.add_argument
    add("--models", type=choice(list(MODELS)), metavar="LIST",
        help=f"of {', '.join(MODELS)}; without it, all")  # fmt: skip
    add("--gguf", type=Path, action="append", default=[], metavar="FILE",
        help="a trained model's file, in llama.cpp and ragstone; can be repeated; with it no other model unless named, and no kernels")  # fmt: skip
    add("--engines", type=choice(list(KINDS)), default=default_engines, metavar="LIST",
        help=f"of {', '.join(KINDS)}; all; without it, those without -f32 and vllm")  # fmt: skip
    add("--cases", type=choice(CASES), metavar="LIST", help=f"of {', '.join(CASES)}; without it, all")
    add("--prefill", type=sizes(16), metavar="LIST", help="prompts, tokens (512,2048,4096,8192)")
    add("--context", type=sizes(0), metavar="LIST", help="tokens before those decoded (0,4096)")
    add("--new-tokens", type=count, metavar="N", help="tokens decoded (32)")
    add("--shape", type=linear_shape, action="append", metavar="ROWSxINxOUT",
        help=f"a linear layer; can be repeated ({', '.join(map(str, LINEAR_SHAPES))})")  # fmt: skip
    add("--rounds", type=count, metavar="N", help="samples of each case (3)")
    add("--threads", type=count, default=physical_cores(), metavar="N",
        help="of every engine (the physical cores that this process may use: %(default)s)")  # fmt: skip
    add("--quick", action="store_true", help="few and small: 2 rounds, one model, 256 and 512 tokens, unless given")
    add("--ragstone", type=Path, metavar="PATH", help="its program; without it, built as ops/run builds it")
    add("--env", type=Path, default=cache, metavar="DIR", help="the environment (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="everything, with every sample")
    add("--clean", action="store_true", help="remove the environment and end")
    given = parser.parse_args()
    for file in given.gguf:
        if not file.is_file():
            parser.error(f"--gguf {file}: no such file")
    given.gguf = [file.resolve() for file in given.gguf]
    quick = given.quick
    if given.models is None:
        given.models = [] if given.gguf else list(MODELS)[: 1 if quick else None]
    given.cases = given.cases or (["prefill", "decode"] if given.gguf else CASES)
    given.prefill = given.prefill or ([256, 512] if quick else [512, 2048, 4096, 8192])
    given.context = given.context or ([0, 256] if quick else [0, 4096])
    given.new_tokens = given.new_tokens or (8 if quick else 32)
    given.shape = given.shape or (LINEAR_SHAPES[:1] + LINEAR_SHAPES[3:] if quick else LINEAR_SHAPES)
    given.rounds = given.rounds or (2 if quick else 3)
    if given.json and not given.json.resolve().parent.is_dir():
        parser.error(f"--json {given.json}: its folder is not there")
    return given


def find_ragstone(given: argparse.Namespace) -> Path:
    """The program that was given, or the one that `ops/run` builds."""
    if given.ragstone:
        program = given.ragstone.resolve()
        if not os.access(program, os.X_OK) or program.is_dir():
            raise Unusable(f"--ragstone {given.ragstone} is no program")
        return program
    say("building ragstone (the first time takes 20 to 40 minutes on two cores; later runs, seconds)")
    script = '. "$0" && cargo build --package ragstone >&2 && printf %s "$CARGO_TARGET_DIR/debug/ragstone"'
    built = subprocess.run(["bash", "-c", script, ROOT / "ops" / "environment"], stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        raise Unusable("ragstone did not build; its message stands above (ops/setup installs what a build needs)")
    return Path(built.stdout)


class Clock:
    """What is left to do, by how long the same took before."""

    def __init__(self) -> None:
        self.took: dict[tuple[str, Case], float] = {}

    def start(self, pid: int | None) -> None:
        """Before a measurement that process `pid`, or a child, makes."""
        self.started, self.busy, self.used = time.monotonic(), busy_seconds(), process_seconds(pid)

    def finish(self, engine: str, case: Case, pid: int | None) -> float:
        """After it; returns how many processors others kept busy meanwhile."""
        self.took[engine, case] = max(time.monotonic() - self.started, 0.001)
        others = (busy_seconds() - self.busy) - (process_seconds(pid) - self.used)
        return round(max(others, 0.0) / self.took[engine, case], 2)

    def left(self, ahead: list[tuple[str, Case]]) -> str:
        """An estimate, once every measurement ahead has been seen."""
        if not all(step in self.took for step in ahead):
            return ""
        seconds = sum(self.took[step] for step in ahead)
        return f", about {seconds:.0f} s left here" if seconds < 120 else f", about {seconds / 60:.0f} min left here"


class Run:
    """One run of the script."""

    def __init__(
        self, given: argparse.Namespace, environment: Environment, ragstone: Path | None, vllm: VllmEnvironment | None
    ):
        self.given, self.environment, self.ragstone, self.vllm = given, environment, ragstone, vllm
        self.measured = Measured()
        self.failed: list[dict] = []
        self.agreement: list[dict] = []
        self.engines: list[dict] = []
        self.ceilings: list[dict] = []
        self.interrupted = False

    def open(self, kind: Kind, model: str = "", folder: Path | None = None, plain: bool = False) -> Worker | Ragstone:
        """Starts an engine."""
        given = self.given
        if kind.is_ragstone:
            data = self.environment.folder / "ragstone-data"
            return Ragstone(self.ragstone, kind, data, given.threads, given.new_tokens, folder)
        flags = ["--plain"] if plain else []
        if folder:
            longest = max([*given.prefill, *(context + given.new_tokens for context in given.context)])
            flags += ["--model", str(folder), "--positions", str(longest)]
        log = self.environment.log / f"{kind.name}{'-' + model if model else ''}.log"
        python, variables = self.environment.python, {}
        if kind.is_vllm:
            python, variables = self.vllm.python, self.vllm.variables(given.threads)
        return Worker(python, kind, log, flags, given.threads, given.new_tokens, variables)

    def fail(self, kind: Kind, model: str, why: Exception, retried: bool = False) -> None:
        say(f"{kind.name} {model}: {why}")
        self.failed.append({"engine": kind.name, "model": model, "why": str(why), "retried": retried})

    def kernels(self, kind: str) -> None:
        """Linear layers, or attention."""
        shapes = self.given.shape if kind == "linear" else ATTENTION_SHAPES
        cases = [kernel_case(shape) for shape in shapes]
        opened: dict[str, Worker | Ragstone] = {}
        for name in self.given.engines:
            if kind not in KINDS[name].cases:
                continue
            try:
                opened[name] = self.open(KINDS[name])
                if name == "pytorch" and not any(engine["engine"] == name for engine in self.engines):
                    self.engines.append({"engine": name, "model": "", "settings": "", **opened[name].ask("info")})
            except EngineFailed as why:
                self.fail(KINDS[name], "", why)
        self.rounds(opened, cases, "")

    def model(self, name: str) -> None:
        """A model of random weights, by the engines that were named."""
        given = self.given
        kinds = [KINDS[engine] for engine in given.engines if "prefill" in KINDS[engine].cases]
        need = sum(MODELS[name].matrix_weights() * BYTES_PER_WEIGHT[kind.weights] * 1.3 + 1e9 for kind in kinds)
        need += sum(VLLM_MEMORY_BYTES for kind in kinds if kind.is_vllm)
        if 0 < memory_bytes("MemAvailable") < need:
            free = f"{memory_bytes('MemAvailable') / 2**30:.0f} of {need / 2**30:.0f} GiB are free"
            raise Unusable(f"{name} in all engines at once: {free}: name fewer with --engines")
        self.whole_model(name, kinds, self.environment.model(name))

    def file(self, file: Path) -> None:
        """A trained model's file."""
        self.whole_model(file.stem, list(FILE_KINDS.values()), self.environment.file(file))

    def whole_model(self, name: str, kinds: list[Kind], folder: Path) -> None:
        """One model's prefill and decode, and beside a decode what it is bound by: the memory's read."""
        given = self.given
        cases = [Case("prefill", str(tokens), tokens, name) for tokens in given.prefill if "prefill" in given.cases]
        if "decode" in given.cases:
            cases += [Case("decode", str(context), given.new_tokens, name) for context in given.context]
        if not cases or not kinds:
            return
        opened: dict[str, Worker | Ragstone] = {}
        try:
            if "decode" in given.cases:
                cases.append(Case("read", f"{READ_BYTES >> 20} MiB", READ_BYTES, name))
                opened["pytorch"] = self.open(KINDS["pytorch"])
            for kind in kinds:
                if engine := self.prepare(kind, name, folder):
                    opened[kind.name] = engine
        except BaseException:
            for engine in opened.values():
                engine.close()
            raise
        self.rounds(opened, cases, name)

    def prepare(self, kind: Kind, model: str, folder: Path) -> Worker | Ragstone | None:
        """Opens an engine, checks what it computes, and lets it find its settings; None if it failed. A llama.cpp that
        crashes is tried once more without repacked weights."""
        for plain in (False, True):
            say(f"{kind.name} {model}: loading, checking, warming up" + (" (weights as in the file)" if plain else ""))
            engine = None
            try:
                engine = self.open(kind, model, folder, plain)
                self.check_and_warm(engine, kind, model)
                return engine
            except EngineFailed as why:
                again = why.crashed and kind.name.startswith("llama.cpp") and not plain
                self.fail(kind, model, why, retried=again)
                if engine:
                    engine.close()
                if not again:
                    return None
            except BaseException:
                if engine:
                    engine.close()
                raise
        return None

    def check_and_warm(self, engine: Worker | Ragstone, kind: Kind, model: str) -> None:
        """The check and the settings, for the report."""
        given = self.given
        if not kind.is_ragstone:
            found = engine.ask("check")
            self.agreement.append({"model": model, "engine": kind.name, **found})
            least = LEAST_COSINE_OF_FOUR_BITS if kind.weights == "q4_k_m" else LEAST_COSINE
            if found["cosine_least"] < least:
                cosine = f"a cosine of {found['cosine_least']:.3f}"
                raise EngineFailed(f"its logits are not transformers' in f32 ({cosine}): its times would mean nothing")
        prefill = [tokens for tokens in given.prefill if tokens <= LONGEST_TRIAL] or given.prefill[:1]
        context = sorted({min(tokens, LONGEST_TRIAL) for tokens in given.context})
        trials = {
            "prefill": prefill if "prefill" in given.cases else [],
            "context": context if "decode" in given.cases else [],
        }
        warmed = engine.ask("warm", **trials)
        self.engines.append({"engine": kind.name, "model": model, **warmed, **engine.ask("info")})

    def rounds(self, opened: dict[str, Worker | Ragstone], cases: list[Case], model: str) -> None:
        """Measures every case by every engine, `--rounds` times, and closes the engines."""
        names = list(opened)
        steps = [
            (round, name, case)
            for round in range(self.given.rounds)
            for index, case in enumerate(cases)
            for name in rotated(names, round + index)
            if case.kind in ALL_KINDS[name].cases
        ]
        clock = Clock()
        try:
            for index, (round, name, case) in enumerate(steps):
                if name not in opened:
                    continue
                ahead = [(name, case) for _, name, case in steps[index:] if name in opened]
                title = f"{model + ' ' if model else ''}round {round + 1}/{self.given.rounds}"
                clock.start(opened[name].pid)
                try:
                    samples = list(opened[name].measure(case))
                except EngineFailed as why:
                    self.fail(ALL_KINDS[name], model, why)
                    opened.pop(name).close()
                    continue
                others = clock.finish(name, case, opened[name].pid)
                for sample in samples:
                    self.measured.add(case, sample.series, round, sample.seconds, sample.details, others)
                best = min((sample.seconds for sample in samples), default=0)
                estimate = clock.left(ahead[1:])
                say(f"[{index + 1}/{len(steps)}] {title}: {name} {case}: {best * 1000:,.1f} ms{estimate}")
        finally:
            for engine in opened.values():
                self.ceilings += engine.ceilings if isinstance(engine, Ragstone) else []
                engine.close()

    def report(self, started: str) -> dict:
        """Everything, for --json."""
        given = self.given
        vllm = self.vllm.versions() if self.vllm else {}
        return {
            "schema": 1,
            "started": started,
            "commit": commit(ROOT),
            "arguments": sys.argv[1:],
            "interrupted": self.interrupted,
            "rounds": given.rounds,
            "new_tokens": given.new_tokens,
            "models": given.models + [file.stem for file in given.gguf],
            "versions": self.environment.versions() | vllm | ragstone_version(self.ragstone),
            "machine": machine(given.threads),
            "engines": self.engines,
            "agreement": self.agreement,
            "failed": self.failed,
            "ceilings": self.ceilings,
            "series": [peers_report.series_as_json(series) for series in self.measured.series.values()],
        }


def rotated(names: list[str], by: int) -> list[str]:
    """The list, beginning elsewhere."""
    start = by % len(names) if names else 0
    return names[start:] + names[:start]


def main() -> int:
    given = arguments()
    environment = Environment(given.env.expanduser().resolve())
    if given.clean:
        environment.clean()
        return 0
    started = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    is_whole = bool(set(given.cases) & {"prefill", "decode"})
    models, files = (given.models, given.gguf) if is_whole else ([], [])
    vllm = VllmEnvironment(environment) if models and any(KINDS[name].is_vllm for name in given.engines) else None
    if vllm:
        require_platform()  # Before what takes long.
    wants_ragstone = bool(files) or any(KINDS[name].is_ragstone for name in given.engines)
    ragstone = find_ragstone(given) if wants_ragstone else None
    environment.hold()
    environment.install()
    if vllm:
        vllm.install()
    for model in models:
        environment.model(model)
    for file in files:
        environment.file(file)
    busy = os.getloadavg()[0]
    if busy > 0.5 * given.threads:
        say(f"note: other work runs here (load {busy:.1f}); times will vary")
    run = Run(given, environment, ragstone, vllm)
    try:
        for kind in ("linear", "attention"):
            if kind in given.cases:
                run.kernels(kind)
        for model in models:
            run.model(model)
        for file in files:
            run.file(file)
    except KeyboardInterrupt:
        say("interrupted: reporting what is there")
        run.interrupted = True
    report = run.report(started)
    bandwidth = peers_report.read_bandwidth(run.measured, run.ceilings)
    found = peers_report.ratios(run.measured, report["models"], bandwidth, given.new_tokens, report["machine"]["amx"])
    report["read_bytes_per_second"] = bandwidth
    report["ratios"] = [ratio.as_json() for ratio in found]
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
        say(f"wrote {given.json}")
    print(peers_report.text(report, run.measured, found, bandwidth))
    if run.interrupted:
        return 130
    return 1 if any(not entry["retried"] for entry in run.failed) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as why:
        print(f"ops/bench/peers: {why}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
