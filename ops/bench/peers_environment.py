"""The throw-away environment: a virtual environment with the pinned engines, and the models.

    DIR/made-for.json    what it was made for; another pin or another processor, and it is made again
    DIR/venv             the engines but vLLM, which peers_vllm.py installs; llama.cpp compiled for this processor
    DIR/models/NAME      what peers_models.py writes, with a file `made` when whole
    DIR/ragstone-data    ragstone's data folder: its benchmarks leave the user's own alone
    DIR/log              what pip and the engines printed
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from peers_machine import cpu_flags

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "peers_requirements.txt"
MODEL_SOURCES = [HERE / "peers_models.py", HERE / "peers_shapes.py"]

# As fast as llama.cpp gets on a CPU: this machine's instructions, its own matrix kernels, OpenMP.
CMAKE_ARGUMENTS = "-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF"

# Free space that a new environment (PyTorch's default build brings its GPU libraries) and one model need.
ENVIRONMENT_BYTES = 9 << 30
MODEL_BYTES = 8 << 30


class Unusable(Exception):
    """Something the user has to do first; the message says what."""


class Environment:
    """Folder `folder`, held by one run at a time, with what `requirements` pins."""

    def __init__(self, folder: Path, requirements: Path = REQUIREMENTS):
        self.folder, self.requirements = folder, requirements
        self.python = folder / "venv" / "bin" / "python"
        self.log = folder / "log"

    def hold(self) -> None:
        """Waits until no other run uses the environment: two would also spoil each other's times."""
        if self.folder.exists() and any(self.folder.iterdir()) and not self.is_ours():
            raise Unusable(f"{self.folder} holds other files: give --env a new or empty folder")
        self.log.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.log / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run uses this environment: waiting for it to end")
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def is_ours(self) -> bool:
        """A folder that this script made, and so may remove."""
        return (self.folder / "log" / "lock").exists() or (self.folder / "made-for.json").exists()

    def clean(self) -> None:
        """Removes the environment."""
        if not self.folder.exists():
            say(f"{self.folder} is not there: nothing to remove")
            return
        self.hold()
        shutil.rmtree(self.folder)
        say(f"removed {self.folder}")

    def install(self) -> None:
        """Installs the engines, unless they are there for the same pins and the same processor."""
        wanted = {
            "requirements": hashlib.sha256(self.requirements.read_bytes()).hexdigest(),
            "cmake": CMAKE_ARGUMENTS,
            "python": sys.version.split()[0],
            "cpu_flags": cpu_flags(),
        }
        stated = self.folder / "made-for.json"
        done = self.folder / "venv" / "installed"
        if stated.exists() and json.loads(stated.read_text()) != wanted:
            say("the environment was made for other versions or another processor: making it again")
            shutil.rmtree(self.folder / "venv", ignore_errors=True)
        if done.exists():
            return
        self.need_space(ENVIRONMENT_BYTES)
        if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
            raise Unusable("llama.cpp needs a C++ compiler: run ops/setup, then this again")
        stated.write_text(json.dumps(wanted, indent=2))
        compiled = "; compiling llama.cpp takes minutes" if "llama-cpp-python" in self.requirements.read_text() else ""
        say(f"installing the engines into {self.folder} (once; several GB{compiled})")
        venv = subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], capture_output=True, text=True)
        if venv.returncode != 0:
            raise Unusable("python3 cannot make a virtual environment: run ops/setup (python3-venv), then this again")
        pip = [self.python, "-m", "pip", "install", "--verbose", "--disable-pip-version-check", "--no-input"]
        # pip's cache may hold a llama.cpp that was compiled for another processor.
        command = [*pip, "--no-cache-dir", "--requirement", self.requirements]
        settings = {
            "CMAKE_ARGS": CMAKE_ARGUMENTS,
            "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1)),
        }
        log = self.log / "install.log"
        if run_logged("pip", command, log, settings, pip_step) != 0:
            raise Unusable(f"pip failed: {last_error(log)}; its log is {log}. {advice(log)}")
        done.touch()

    def model(self, name: str) -> Path:
        """The folder of a model of random weights, which is made unless it is there."""
        return self.made(name, [name], "")

    def file(self, file: Path) -> Path:
        """The folder of a trained model's GGUF file, likewise."""
        return self.made(f"file-{file.stem}", ["--file", file], f"{file} {file.stat().st_size}")

    def made(self, name: str, arguments: list, of: str) -> Path:
        """A folder that peers_models.py makes of these arguments, and makes again when `of` is another."""
        folder = self.folder / "models" / name
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in MODEL_SOURCES) + of.encode()).hexdigest()
        made = folder / "made"
        if made.exists() and made.read_text() == digest:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        self.need_space(MODEL_BYTES)
        folder.mkdir(parents=True)
        log = self.log / f"model-{name}.log"
        command = [self.python, HERE / "peers_models.py", *arguments, folder]
        if run_logged(f"model {name}", command, log, {}, last_line) != 0:
            raise Unusable(f"model {name} could not be made: {last_line(log)}; the log is {log}")
        made.write_text(digest)
        return folder

    def need_space(self, wanted: int) -> None:
        """Refuses to begin what the disk cannot hold."""
        free = shutil.disk_usage(self.folder).free
        if free < wanted:
            room = f"{free / 2**30:.0f} GiB free, {wanted / 2**30:.0f} GiB needed"
            raise Unusable(f"{self.folder}: {room}: make room, or choose another disk with --env")

    def versions(self) -> dict[str, str]:
        """Installed versions of what the pins name."""
        script = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
        names = [line.split("==")[0] for line in self.requirements.read_text().splitlines() if "==" in line]
        return json.loads(subprocess.run([self.python, "-c", script, *names], capture_output=True, check=True).stdout)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def run_logged(title: str, command: list, log: Path, settings: dict[str, str], step) -> int:
    """Runs `command` with its output in `log`, and shows what `step(log)` makes of it and the time so far. Returns the
    exit status."""
    started = time.monotonic()
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | settings,
        )  # fmt: skip
        shown = ""
        try:
            while True:
                try:
                    status = process.wait(timeout=2)
                    break
                except subprocess.TimeoutExpired:
                    pass
                now = step(log)
                if sys.stderr.isatty():
                    print(f"\r\033[K{title}: {now[:90]} ({time.monotonic() - started:.0f} s)", end="", file=sys.stderr)
                elif now != shown:
                    say(f"{title}: {now[:90]} ({time.monotonic() - started:.0f} s)")
                shown = now
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if status == 0:
        say(f"{title}: done in {time.monotonic() - started:.0f} s")
    return status


def tail(log: Path) -> list[str]:
    """The last lines of a log."""
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        return file.read().decode(errors="replace").splitlines()


def last_line(log: Path) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(tail(log)) if line.strip()), "starting")


def last_error(log: Path) -> str:
    """The error that is nearest to the cause: pip's own lines come after the compiler's."""
    lines = [line.strip() for line in tail(log)]
    for pattern in (r"(CMake Error|fatal error:|FAILED:|No space left)", r"ERROR:"):
        for line in lines:
            if re.search(pattern, line):
                return line[:200]
    return last_line(log)[:200]


def pip_step(log: Path) -> str:
    """What pip does now: a download, or the compiler's count."""
    for line in reversed(tail(log)):
        text = line.strip()
        if found := re.match(r"\[(\d+)/(\d+)\]", text):
            # Tens, so that a log that is no terminal is not flooded.
            return f"compiling llama.cpp, {int(found[1]) * 10 // int(found[2]) * 10} %"
        if text.startswith(("Collecting", "Downloading", "Installing", "Building wheel", "Preparing metadata")):
            return text
    return "starting"


def advice(log: Path) -> str:
    """What to do about a failed installation."""
    text = "\n".join(tail(log))
    if "llama-cpp-python" in text and re.search(r"CMake|Failed building wheel|FAILED:", text):
        return "llama.cpp needs cmake and a C++ compiler: run ops/setup, then this again"
    if "No space left" in text:
        return "Make room, or choose another disk with --env"
    return "Check that pip reaches its package index (PIP_INDEX_URL, pip.conf), then run this again"
