"""ops/eval/noise: how far ragstone's and llama.cpp's log-probabilities are from transformers' in f32, over the same GGUF file.

The texts are the 40 longest paragraphs of examples/house's Markdown. At each position of each, the five tokens that transformers (the
file unpacked to f32) has for likeliest are compared: the mean of |log-probability - transformers'|. What differs is how an engine rounds
activations, K and V. An interval is of two standard errors over the paragraphs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "ops" / "bench"))

from peers_environment import Environment, Unusable, say  # noqa: E402
from peers_machine import commit, machine, physical_cores  # noqa: E402
from peers_main import find_ragstone  # noqa: E402

PARAGRAPHS = 40
# Alternatives that ragstone tells of a token, at most.
MOST_ALTERNATIVES = 20
START_SECONDS = 600


def paragraphs() -> list[str]:
    """The longest ones, in one line each."""
    texts = [file.read_text() for file in sorted((ROOT / "examples" / "house" / "papers").rglob("*.md"))]
    blocks = [block.strip() for text in texts for block in text.split("\n\n")]
    prose = [" ".join(block.split()) for block in blocks if block and block[0] not in "#|-*>`"]
    return sorted(prose, key=lambda text: (-len(text), text))[:PARAGRAPHS]


def reference(environment: Environment, model: Path, texts: list[str], threads: int) -> dict:
    """Token ids, transformers' five likeliest tokens at each position, and llama.cpp's log-probabilities of those."""
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "asked.json", Path(folder) / "told.json"
        asked.write_text(json.dumps(texts))
        log = environment.log / "noise.log"
        with open(log, "w") as output:
            command = [environment.python, HERE / "noise_reference.py", model, asked, told, str(threads)]
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        if done.returncode != 0:
            raise Unusable(f"{model.name}: transformers or llama.cpp failed; the log is {log}")
        return json.loads(told.read_text())


@contextlib.contextmanager
def served(program: Path, model: Path, threads: int, flags: list[str]):
    """ragstone's address while it serves a model."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--data", folder, "serve", "--model", model, "--listen", "127.0.0.1:0", "--threads", str(threads)]
        command += ["--set", "calibrate_when_idle=false", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            address = line.strip().removeprefix("listening on ")
            if not address:
                raise Unusable(f"ragstone did not start: {process.stderr.read().strip()[-300:]}")
            begun = time.monotonic()
            while not is_ready(address):
                if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                    raise Unusable(f"ragstone does not become ready with {model}")
                time.sleep(0.2)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz") as answer:
            return answer.status == 200
    except OSError:
        return False


def of_ragstone(address: str, ids: list[int], wanted: list[list[int]]) -> list[list[float]]:
    """Log-probabilities of the wanted tokens after each token but the last. One that is not among those told counts as the last told."""
    body = {"prompt": ids, "max_tokens": 0, "prompt_logprobs": MOST_ALTERNATIVES}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        told = json.load(answer)["choices"][0]["prompt_logprobs"]
    found = []
    for tokens, position in zip(wanted, told[1:], strict=True):
        # The prompt's own token stands among them even where it is unlikely.
        likely = {int(token): one["logprob"] for token, one in position.items() if one["rank"] <= MOST_ALTERNATIVES}
        found.append([likely.get(token, min(likely.values())) for token in tokens])
    return found


def difference(ours: list[list[float]], exact: list[list[float]]) -> float:
    return statistics.fmean(abs(a - b) for row, other in zip(ours, exact) for a, b in zip(row, other))


def spread(values: list[float]) -> dict[str, float]:
    """Mean and two standard errors."""
    return {"mean": statistics.fmean(values), "interval": 2 * statistics.stdev(values) / len(values) ** 0.5}


def measure(given: argparse.Namespace, environment: Environment, program: Path, model: Path) -> dict:
    say(f"{model.name}: transformers and llama.cpp")
    told = reference(environment, model, paragraphs(), given.threads)
    say(f"{model.name}: ragstone")
    ours = []
    with served(program, model, given.threads, given.flag) as address:
        for one in told:
            ours.append(difference(of_ragstone(address, one["ids"], one["top"]), one["reference"]))
    theirs = [difference(one["llama.cpp"], one["reference"]) for one in told]
    return {
        "file": model.name,
        "positions": sum(len(one["top"]) for one in told),
        "ragstone": spread(ours),
        "llama.cpp": spread(theirs),
        "ragstone - llama.cpp": spread([a - b for a, b in zip(ours, theirs)]),
    }


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragstone" / "peers"
    parser = argparse.ArgumentParser(prog="ops/eval/noise", description=__doc__.split("\n\n", 1)[1])
    add = parser.add_argument
    add("model", type=Path, nargs="+", metavar="FILE.gguf", help="a model whose file transformers and llama.cpp read too")
    add("--ragstone", type=Path, metavar="PATH", help="its program; without it, built as ops/run builds it")
    add("--flag", action="append", default=[], metavar="FLAG", help="of `ragstone serve`; can be repeated, as --flag=--kernels --flag=avx2")
    add("--threads", type=int, default=physical_cores(), metavar="N", help="of every engine (%(default)s)")
    add("--env", type=Path, default=cache, metavar="DIR", help="the environment of ops/bench/peers (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="everything")
    given = parser.parse_args()
    environment = Environment(given.env.expanduser().resolve())
    environment.hold()
    environment.install()
    program = find_ragstone(given)
    found = [measure(given, environment, program, model.resolve()) for model in given.model]
    print(f"commit {commit(ROOT)}, {machine(given.threads)['cpu']}")
    print("mean |difference| from transformers in f32, of the five likeliest tokens' log-probabilities")
    for one in found:
        print(f"{one['file']} ({one['positions']} positions)")
        for name in ("ragstone", "llama.cpp", "ragstone - llama.cpp"):
            print(f"  {name:<21} {one[name]['mean']:7.4f} ± {one[name]['interval']:.4f}")
    if given.json:
        given.json.write_text(json.dumps({"commit": commit(ROOT), "machine": machine(given.threads), "files": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as why:
        print(f"ops/eval/noise: {why}", file=sys.stderr)
        sys.exit(1)
