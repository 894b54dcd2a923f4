"""Tries ragstone on a GPU, step by step, in the order of what the steps teach. `ops/gpu-check` and the kit's `run` start it.

    python3 check.py --out DIR [--program PATH] [--small PATH] [--device cuda] [--model FOLDER] [--set FILE] [--python PATH] [--install]
                     [--only STEPS] [--minutes N] [--quick]

--small is `ragstone-gpu`, the kernels alone; --program is `ragstone`. What both can do the small one does. Each step has a bound of its own, and
each leaves its part in report.md and report.json when it ends, and the archive DIR.tar.gz as it is by then: a run that is cut off has all up to
there. Needs Python 3.10 and nothing else. Ends with 1 where a step failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import report

HERE = Path(__file__).resolve().parent
KINDS = ("gpu", "parity", "golden", "bench")
# Seconds of a step: more than it takes on a GPU of 2022 or later, and so few that one that hangs leaves time for the others.
LIMITS = {"gpu": 90, "parity-quick": 90, "parity": 150, "kernels": 90, "model": 90, "golden": 90, "golden-transformers": 150, "ttft": 120, "tiers": 60}
# A family of kernels that hangs is to leave time for the others.
FAMILY_SECONDS = {"parity-quick": 20, "parity": 45}
# Fewer seconds than these are not begun.
LEAST_SECONDS = 5
NEAR = ["--only", "exact_device,exact_host,exact_disk,reuse_host,blend_host,blend_disk"]


class Stopped(Exception):
    """The run was told to end."""


class Run:
    """What runs, and what ran."""

    def __init__(self, given: argparse.Namespace):
        self.given = given
        self.out = Path(given.out)
        self.deadline = time.monotonic() + 60 * given.minutes if given.minutes else None
        self.steps: list[dict] = []
        self.child: subprocess.Popen | None = None
        # Whose settings these are is not to matter, and nothing of the user's own data is touched.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RAGSTONE_")}
        self.environment["RAGSTONE_DATA"] = str(self.out / "data")
        for name in ("TERM", "INT", "HUP"):
            signal.signal(getattr(signal, f"SIG{name}"), self.stop)

    def stop(self, *_) -> None:
        raise Stopped

    def left(self) -> float:
        return self.deadline - time.monotonic() if self.deadline else float("inf")

    def note(self, **step) -> None:
        """Keeps what is known of the last step, and writes the report of all."""
        self.steps[-1] |= step
        partial = self.out / "steps.json.new"
        partial.write_text(json.dumps(self.steps, indent=1))
        partial.replace(self.out / "steps.json")
        report.write(self.out)
        if self.steps[-1]["status"] != "running":
            self.archive()

    def skip(self, name: str, why: str) -> None:
        say(f"{name} is left out: {why}")
        self.steps.append({"step": name})
        self.note(status="skipped", seconds=0, command="", why=why)

    def step(self, name: str, command: list, limit: float) -> None:
        """Runs a command: its JSON goes to NAME.json, what it says to NAME.log."""
        limit = min(limit, self.left())
        if limit < LEAST_SECONDS:
            self.skip(name, "no time is left")
            return
        begun, status, why = time.monotonic(), "running", ""
        self.steps.append({"step": name, "status": status, "seconds": 0, "command": " ".join(map(str, command))})
        try:
            self.note()
            say(name)
            status = self.run(name, command, limit)
            if status is None:
                status, why = "cut off", f"it was ended after {limit:.0f} s"
        except Stopped:
            status, why = "cut off", "the run was told to end"
            raise
        except OSError as error:
            status, why = 127, str(error)
        finally:
            self.end_child()
            self.note(status=status, seconds=round(time.monotonic() - begun, 1), why=why)
        if status != 0:
            log = (self.out / f"{name}.log").read_text(errors="replace").strip().splitlines()
            print("\n".join(log[-3:] or [why]), file=sys.stderr)

    def run(self, name: str, command: list, limit: float) -> int | None:
        """The command's status; None where it did not end in time."""
        with open(self.out / f"{name}.json", "wb") as out, open(self.out / f"{name}.log", "wb") as log:
            # In a group of its own, so that what it started can be ended with it.
            self.child = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self.environment, start_new_session=True
            )  # fmt: skip
            try:
                return self.child.wait(limit)
            except subprocess.TimeoutExpired:
                return None

    def end_child(self) -> None:
        """Ends what runs, and all that it started. A driver that waits for its GPU may hold a process: it is not waited for."""
        if self.child is None:
            return
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            say("a process cannot be ended: the driver holds it")
        self.child = None

    def archive(self) -> None:
        """All that is there so far, beside the folder."""
        partial = self.out.with_name(self.out.name + ".tar.gz.new")
        with tarfile.open(partial, "w:gz") as archive:
            keep = lambda entry: None if entry.name.startswith(f"{self.out.name}/data") else entry
            archive.add(self.out, self.out.name, filter=keep)
        partial.replace(self.out.with_name(self.out.name + ".tar.gz"))


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def has_torch(python: str) -> bool:
    try:
        return subprocess.run([python, "-I", "-c", "import torch, transformers"], capture_output=True, timeout=90).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def torch_python(run: Run) -> str | None:
    """A Python that has torch and transformers. They are fetched only where that was asked for: without a network pip waits for minutes."""
    if run.given.python:
        return run.given.python
    folders = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")] + ["/opt/conda", "/opt/venv", "/usr/local"]
    venv = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ragstone/gpu-check"
    candidates = [sys.executable, *(f"{folder}/bin/python3" for folder in folders if folder), str(venv / "bin/python")]
    for python in dict.fromkeys(candidates):
        if (python == sys.executable or Path(python).exists()) and has_torch(python):
            return python
    if not run.given.install or importlib.util.find_spec("venv") is None:
        return None
    pip = [venv / "bin/python", "-I", "-m", "pip", "install", "--quiet", "--requirement", HERE / "requirements.txt"]
    limit = min(run.left(), 1800)
    try:
        subprocess.run([sys.executable, "-I", "-m", "venv", venv], check=True, timeout=limit)
        subprocess.run(list(map(str, pip)), check=True, timeout=limit)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"torch and transformers could not be installed: {error}")
        return None
    return str(venv / "bin/python")


class Steps:
    """The steps, by what they teach."""

    def __init__(self, run: Run):
        self.run, self.given = run, run.given
        self.program, self.small = run.given.program, run.given.small
        self.device = ["--device", run.given.device]

    def bench(self, name: str, *arguments, limit: str | None = None, whole: bool = False) -> None:
        """A benchmark; by the small program where it has it."""
        command = [self.small] if self.small and not whole else [self.program, "bench"]
        kind = name.split("-")[0]
        self.run.step(name, [*command, *arguments, *self.device, "--json"], LIMITS[limit or kind])

    def gpu(self) -> None:
        command = [self.small, "device"] if self.small else [self.program, "doctor"]
        self.run.step("gpu", [*command, *self.device, "--json"], LIMITS["gpu"])

    def parity(self, quick: bool) -> None:
        name = "parity-quick" if quick else "parity"
        # A whole model takes a stand-in for the driver as long as all else.
        few = ["--only", "values,rows,positions,products,experts,quantized,attention,reuse"] if self.given.quick else []
        self.bench(name, "parity", *(["--quick"] if quick else []), *few, "--limit", FAMILY_SECONDS[name], limit=name)

    def model(self, name: str, shape: str, context: int, *more, runs: int = 5) -> None:
        self.bench(name, "model", "--shape", shape, "--runs", runs, "--prefill", f"512,{context}", "--context", f"0,{context}", *more)

    def q8(self, name: str, shape: str, context: int, runs: int = 5) -> None:
        self.model(name, shape, context, "--weights", "q8", runs=runs)

    def golden(self) -> None:
        few = ["--questions", 2, "--tokens", 4] if self.given.quick else []
        asked = ["--model", self.given.model, "--set", self.given.set, *few]
        if self.small:
            self.run.step("golden", [self.small, "golden", *asked, *self.device, "--json"], LIMITS["golden"])
        if not self.program:
            return
        python = torch_python(self.run)
        if python is None:
            self.run.skip("golden-transformers", "no Python here has torch and transformers: give --python one that has, or --install fetches them (5 GB)")
            return
        reference = ["--reference", "cpu"] if self.given.quick else []
        command = [python, HERE / "golden.py", "--ragstone", self.program, *self.device, *asked, *reference]
        self.run.step("golden-transformers", command, LIMITS["golden-transformers"])

    def ttft(self, name: str, shape: str, tokens: int, *more, passages: int = 8, runs: int = 5) -> None:
        if self.program:
            self.bench(name, "ttft", "--shape", shape, "--tokens", tokens, "--passages", passages, "--runs", runs, "--chunk", 2048, *more, whole=True)

    def tiers(self, name: str, shape: str, *more) -> None:
        if self.program:
            self.bench(name, "tiers", "--shape", shape, *more, whole=True)

    def quick(self, wanted) -> None:
        """Tiny shapes: tries the steps themselves, also on the stand-in for the driver."""
        if wanted("gpu"):
            self.gpu()
        if wanted("parity"):
            self.parity(quick=True)
        if wanted("golden"):
            self.golden()
        if wanted("bench"):
            self.bench("kernels", "kernels", "--runs", 1, "--shape", "16x64x64", "--shape", "70x64x64", "--tokens", 64)
            self.model("model-tiny", "tiny", 256, runs=1)
            self.q8("model-tiny-q8", "tiny", 256, runs=1)
            self.ttft("ttft-tiny-256", "tiny", 256, passages=2, runs=1)
            self.tiers("tiers-tiny", "tiny", "--runs", 1, "--tokens", 32, "--entries", 2)

    def all(self, wanted) -> None:
        """In the order of what they teach."""
        if wanted("gpu"):
            self.gpu()
        if wanted("parity"):
            self.parity(quick=True)
            self.parity(quick=False)
        if wanted("bench"):
            self.bench("kernels", "kernels", "--runs", 3)
            self.model("model-qwen-7b", "qwen-7b", 4096)
        if wanted("golden"):
            self.golden()
        if wanted("bench"):
            self.model("model-qwen-0.5b", "qwen-0.5b", 4096)
            self.ttft("ttft-qwen-7b-4096", "qwen-7b", 4096, *NEAR)
            self.tiers("tiers-qwen-7b", "qwen-7b", "--runs", 5)
            self.ttft("ttft-qwen-0.5b-4096", "qwen-0.5b", 4096, *NEAR)
            self.q8("model-qwen-7b-q8", "qwen-7b", 4096)
            self.model("model-qwen-7b-16k", "qwen-7b", 16384, runs=3)
            self.ttft("ttft-qwen-7b-16384", "qwen-7b", 16384, *NEAR, runs=3)
            self.ttft("ttft-buckets", "qwen-0.5b", 4096)


def unpacked(path: str | None) -> str | None:
    """A program; one that is packed as PATH.xz is unpacked first."""
    if path is None:
        return None
    program = Path(path).resolve()
    packed = program.with_name(program.name + ".xz")
    if not program.exists() and packed.exists():
        say(f"unpacking {program.name}")
        with lzma.open(packed) as read, open(program, "wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
        program.chmod(0o755)
    if not os.access(program, os.X_OK) or not program.is_file():
        raise SystemExit(f"check.py: {program} is no program")
    return str(program)


def unpack_machine_code() -> None:
    """The kernels as machine code, which the kit has packed: beside the program, where that looks for it."""
    packed = HERE / "cubins.tar.xz"
    if not packed.exists() or (HERE / "cubins").exists():
        return
    try:
        with tarfile.open(packed) as archive:
            archive.extractall(HERE)
    except (OSError, tarfile.TarError, lzma.LZMAError) as error:
        say(f"the driver will compile the kernels: their machine code cannot be unpacked ({error})")


def prepare(out: Path) -> Path:
    """An empty folder, or one that an earlier run left."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    if any(out.iterdir()):
        if not (out / "steps.json").exists():
            raise SystemExit(f"check.py: {out} holds other files: give --out a new or empty folder")
        for old in [*out.glob("*.json"), *out.glob("*.log"), *out.glob("report.md")]:
            old.unlink()
    return out


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    in_tree = HERE.parents[1] / "ops/demo-model/checkpoint"
    add("--out", default="gpu-check", help="where report.md, report.json and each step's output go (gpu-check)")
    add("--program", help="ragstone")
    add("--small", help="ragstone-gpu")
    add("--device", default="cuda", help="cuda, or cuda:1 for the second GPU (cuda)")
    add("--model", default=str(in_tree if in_tree.exists() else HERE / "model"), help="a model to compare answers of (the demo model)")
    add("--set", default=str(HERE / "questions.json"), help="questions with their passages")
    add("--python", help="a Python that has torch and transformers")
    add("--install", action="store_true", help="fetch torch and transformers, 5 GB, where no Python has them")
    add("--only", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    add("--minutes", type=float, help="ends after so many minutes: what does not fit is left out")
    add("--quick", action="store_true", help="tiny shapes: tries the steps themselves")
    given = parser.parse_args()
    given.only = given.only.replace(" ", "").split(",")
    for kind in given.only:
        if kind not in KINDS:
            parser.error(f"--only knows {', '.join(KINDS)}, and not {kind}")
    if given.minutes is not None and given.minutes <= 0:
        parser.error("--minutes needs a number above 0")
    if not Path(given.set).exists():
        given.set = str(HERE.parents[1] / "examples/world/held-out.json")
    unpack_machine_code()
    given.program, given.small = unpacked(given.program), unpacked(given.small)
    if not given.program and not given.small:
        parser.error("give --small the path of ragstone-gpu, or --program that of ragstone")
    given.out = prepare(Path(given.out))
    return given


def main() -> int:
    given = arguments()
    run = Run(given)
    steps = Steps(run)
    try:
        (steps.quick if given.quick else steps.all)(lambda kind: kind in given.only)
        was_stopped = False
    except Stopped:
        was_stopped = True
        say("told to end")
    # What comes now is short, and worth more than to end at once.
    for name in ("TERM", "INT", "HUP"):
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    shutil.rmtree(run.out / "data", ignore_errors=True)
    passed = report.write(run.out)
    print(report.verdict(run.out), run.out / "report.md")
    run.archive()
    say(f"to send: {run.out}.tar.gz")
    return 0 if passed and not was_stopped else 1


if __name__ == "__main__":
    sys.exit(main())
