"""vLLM with ragstone's tier: the rows of issue 48, each against the same vLLM without a tier. `ops/vllm-check` prepares what it needs.

    check.py --program RAGSTONE --model MODEL --other OTHER_WEIGHTS --out TABLE [--prompts 200]
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent / "clients"
BLOCK, ANSWER = 128, 8
LONG = 4096


def prompt(seed, tokens):
    draw = random.Random(seed)
    return [draw.randrange(10, 250) for _ in range(tokens)]


def post(port, path, body=None, timeout=600):
    data = json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return reply.read()


class Engine:
    """A server of vLLM: with the tier if a socket is given, with other tiers, or with no offloading; `more` are arguments."""

    def __init__(self, place, model, socket_path=None, tier=None, more=()):
        self.place = place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16", "--max-model-len", str(LONG + 256)]
        command += ["--enable-prefix-caching", "--enforce-eager", "--max-num-seqs", "4", *more]
        if tier is None and socket_path:
            # Patient: this is about bytes, and the machine may be busy with something else.
            patience = {"lookup_s": 30, "deadline_s": 60}
            tier = [{"type": "RagstoneTier", "module_path": "ragstone_vllm", "socket": str(socket_path), "digest_cache": str(place / "weights.json"), **patience}]
        if tier is not None:
            extra = {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec", "cpu_bytes_to_use": 256 << 20, "secondary_tiers": tier}
            config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
            command += ["--kv-transfer-config", json.dumps(config)]
        environment = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(place / "vllm"),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(CLIENTS / "kv"), str(CLIENTS / "vllm")]),
        }
        self.log = open(place / f"engine-{self.port}.log", "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _wait_until_it_serves(self):
        begun = time.monotonic()
        while True:
            if self.process.poll() is not None or time.monotonic() - begun > 600:
                sys.exit(f"vLLM did not start; see {self.log.name}\n" + Path(self.log.name).read_text()[-4000:])
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except OSError:
                time.sleep(0.5)

    def ask(self, tokens, answer=ANSWER):
        """The answer's tokens, and how long it took."""
        begun = time.perf_counter()
        body = {"model": "m", "prompt": tokens, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        reply = json.loads(post(self.port, "/v1/completions", body))
        return reply["choices"][0]["token_ids"], time.perf_counter() - begun

    def ask_all(self, prompts):
        return [self.ask(tokens)[0] for tokens in prompts]

    def forget(self):
        """vLLM's own caches, in the device and in host memory; that takes until no block is in use."""
        while not json.loads(post(self.port, "/reset_prefix_cache?reset_external=true"))["success"]:
            time.sleep(0.1)

    def stop(self, how=signal.SIGINT):
        if self.process.poll() is None:
            os.killpg(self.process.pid, how) if how == signal.SIGKILL else self.process.send_signal(how)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


class Daemon:
    def __init__(self, program, place, data, *arguments):
        self.command = [program, "kv-serve", "--socket", str(place / "kv.sock"), "--data-dir", str(place / data), *arguments]
        self.socket = place / "kv.sock"
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert "listening" in self.process.stdout.readline()

    def stop(self):
        self.process.stdin.close()
        if "kv_serve" not in Path(self.command[0]).name:
            self.process.terminate()
        self.process.wait(120)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def status(self):
        import struct

        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(self.socket))
            body = json.dumps({"op": "status", "id": 1}).encode()
            stream.sendall(struct.pack("<I", len(body)) + body)
            read = stream.makefile("rb")
            return json.loads(read.read(struct.unpack("<I", read.read(4))[0]))["status"]

    def count(self, name):
        return sum(one[name] for one in self.status()["namespaces"])

    def settle(self):
        """Until nothing is on its way to disk and bucket."""
        while True:
            store = self.status()["store"]
            if store["to_disk"]["entries"] + store["to_object"]["entries"] == 0:
                return
            time.sleep(0.05)


class Table:
    def __init__(self, out):
        self.out, self.rows, self.failed = out, [], False

    def add(self, what, expected, found, good):
        self.rows.append(f"| {what} | {expected} | {found} | {'yes' if good else '**no**'} |")
        self.failed |= not good
        print(self.rows[-1], flush=True)
        Path(self.out).write_text("| what | must be | is | good |\n|---|---|---|---|\n" + "\n".join(self.rows) + "\n")


def settle(engine, daemon):
    """Stores go on after an answer: until the daemon has heard of no new one for a while."""
    before = -1
    while (now := daemon.count("stored")) != before:
        before = now
        time.sleep(0.5)
    daemon.settle()


def damage(bucket):
    """Flips a bit in the half of all objects, and truncates the other half."""
    files = sorted(path for path in bucket.rglob("*") if path.is_file())
    for at, path in enumerate(files):
        data = bytearray(path.read_bytes())
        if at % 2:
            data[len(data) * 3 // 4] ^= 4
        else:
            del data[len(data) // 2 :]
        path.write_bytes(data)
    return len(files)


def main():
    # Ends what it started, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    options = argparse.ArgumentParser()
    for name in ("program", "model", "other", "out"):
        options.add_argument("--" + name, required=True)
    options.add_argument("--prompts", type=int, default=200)
    options.add_argument("--quick", action="store_true", help="no times, and no second vLLM: for a machine that is busy")
    options = options.parse_args()
    table, place = Table(options.out), Path(tempfile.mkdtemp(prefix="rvc"))
    model, bucket = place / "model", place / "bucket"
    shutil.copytree(options.model, model)
    prompts = [prompt(seed, 1024 + 1) for seed in range(2 if options.quick else 4)]
    many = [prompt(1000 + seed, 512 + 1) for seed in range(options.prompts)]
    blocks = sum((len(tokens) - 1) // BLOCK for tokens in prompts)
    running = []
    try:
        check(options, table, place, model, bucket, prompts, many, blocks, running)
    finally:
        for one in running:
            one.stop() if isinstance(one, Engine) else one.kill()
    print(Path(options.out).read_text())
    if not table.failed:
        shutil.rmtree(place)
    sys.exit(table.failed)


def check(options, table, place, model, bucket, prompts, many, blocks, running):
    none = Engine(place, model)
    running.append(none)
    truth, truth_of_many = none.ask_all(prompts), none.ask_all(many)
    none.stop()
    running.remove(none)

    daemon = Daemon(options.program, place, "data", "--object-url", f"file://{bucket}")
    running.append(daemon)
    engine = Engine(place, model, daemon.socket)
    running.append(engine)

    def hits(what, engine, expected=blocks, fresh=True):
        before = daemon.count("loaded")
        found = engine.ask_all(prompts)
        loaded = daemon.count("loaded") - before
        table.add(what, f"{expected} of {blocks} blocks, same tokens", f"{loaded}, {'same' if found == truth else 'OTHER'}", loaded == expected and found == truth)

    hits("first: nothing is stored", engine, 0)
    settle(engine, daemon)
    engine.forget()
    hits("vLLM's own caches reset", engine)
    if not options.quick:
        times_and_another(table, place, model, daemon, engine, hits, running)

    daemon.stop()
    daemon.start()
    engine.forget()
    wait_for(engine, daemon)
    hits("daemon restarted", engine)
    daemon.stop()
    shutil.rmtree(place / "data")
    daemon.start()
    engine.forget()
    wait_for(engine, daemon)
    hits("daemon with an empty disk, and the bucket", engine)

    engine.stop(signal.SIGKILL)
    running.remove(engine)
    left = leftovers()
    engine = Engine(place, model, daemon.socket)
    running.append(engine)
    still = [path for path in left if os.path.exists(path)]
    table.add("regions that kill -9 left in /dev/shm", "removed by the next start", f"{len(left)} were left, {len(still)} are", len(left) > 0 and not still)
    hits("vLLM killed (-9) and restarted", engine)

    daemon.stop()
    shutil.rmtree(place / "data")
    count = damage(bucket)
    daemon.start()
    engine.forget()
    wait_for(engine, daemon)
    hits(f"{count} objects flipped or truncated, empty disk", engine, 0)
    settle(engine, daemon)

    failed = other = 0
    for at in range(20):
        daemon.kill()
        engine.forget()
        try:
            other += engine.ask(prompts[at % len(prompts)])[0] != truth[at % len(prompts)]
        except OSError:
            failed += 1
        daemon.start()
        try:
            other += engine.ask(prompts[(at + 1) % len(prompts)])[0] != truth[(at + 1) % len(prompts)]
        except OSError:
            failed += 1
    table.add("daemon killed 20 times, 40 questions", "none failed, same tokens", f"{failed} failed, {other} others", not failed and not other)
    bytes_of_block = next(one["disk_bytes"] // one["blocks"] for one in daemon.status()["namespaces"] if one["blocks"])
    daemon.stop()
    running.remove(daemon)
    bound = 50 * bytes_of_block
    daemon = Daemon(options.program, place, "bounded", "--host-bytes", str(bytes_of_block * 8), "--disk-bytes", str(bound))
    running.append(daemon)
    found = []
    for at, tokens in enumerate(many):
        found.append(engine.ask(tokens)[0])
        if at % 4 == 3:  # some of them again, from whatever is still there
            engine.forget()
            found[at - 1] = engine.ask(many[at - 1])[0]
    settle(engine, daemon)
    disk = daemon.status()["store"]["disk"]
    same = sum(a == b for a, b in zip(found, truth_of_many))
    good = same == len(many) and disk["entries"] <= 50 and disk["bytes"] <= bound
    table.add(f"bounded to 50 blocks, {len(many)} prompts of 4", "the tokens of no store; at most 50 blocks", f"{same} the same; {disk['entries']} blocks, {disk['evicted']} evicted, {daemon.count('loaded')} loaded", good)
    daemon.stop()
    running.remove(daemon)
    daemon = Daemon(options.program, place, "data", "--object-url", f"file://{bucket}")
    running.append(daemon)

    engine.stop()
    running.remove(engine)

    shutil.copy(Path(options.other) / "model.safetensors", model / "model.safetensors")
    none = Engine(place, model)
    running.append(none)
    truth_of_other = none.ask_all(prompts)
    none.stop()
    running.remove(none)
    engine = Engine(place, model, daemon.socket)
    running.append(engine)
    before = daemon.count("loaded"), daemon.count("hits")
    found = engine.ask_all(prompts)
    new = daemon.count("loaded") - before[0], daemon.count("hits") - before[1]
    good = new == (0, 0) and found == truth_of_other and truth_of_other != truth
    table.add("other weights at the same path", "nothing hits, the other weights' tokens", f"{new[1]} hits, {new[0]} loaded, {'theirs' if found == truth_of_other else 'OTHER'}", good)
    engine.stop()
    running.remove(engine)


def times_and_another(table, place, model, daemon, engine, hits, running):
    known_in_time(table, engine, daemon)
    without = Engine(place, model, tier=[])
    running.append(without)
    lost_when_nothing_hits(table, engine, without)
    without.stop()
    running.remove(without)
    files = Engine(place, model, tier=[{"type": "fs", "root_dir": str(place / "fs")}])
    running.append(files)
    known_in_time(table, files, None, "vLLM's own fs tier (no checksum, no bound, no identity of weights): ")
    files.stop()
    running.remove(files)

    second = Engine(place, model, daemon.socket)
    running.append(second)
    hits("a second vLLM beside the first", second)
    second.stop(signal.SIGKILL)
    running.remove(second)


def known_in_time(table, engine, daemon, which=""):
    """Cold and known, each prompt in turn, so that both see the machine as it is just then."""
    ratios, cold, known = [], [], []
    for at in range(7):
        tokens = prompt(7000 + at, LONG)
        cold.append(engine.ask(tokens, 1)[1])
        settle(engine, daemon) if daemon else time.sleep(3)
        engine.forget()
        known.append(engine.ask(tokens, 1)[1])
        ratios.append(known[-1] / cold[-1])
    ratio, times = statistics.median(ratios), f"{statistics.median(known) * 1e3:.0f} of {statistics.median(cold) * 1e3:.0f} ms"
    bound = "for comparison" if which else "known at most 0.15 of cold"
    table.add(f"{which}time to first token, {LONG} tokens, 7 prompts", bound, f"{times}; ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", bool(which) or ratio <= 0.15)


def lost_when_nothing_hits(table, engine, without):
    """The same vLLM with its own offloading to host memory, with and without the tier, in turn."""
    ratios = []
    for at in range(21):
        tokens, pair = prompt(8000 + at, LONG), [engine, without]
        times = {one: one.ask(tokens, 1)[1] for one in (pair if at % 2 else reversed(pair))}
        ratios.append(times[engine] / times[without])
        time.sleep(1)  # what was stored is on its way
    lost = statistics.median(ratios) - 1
    quarters = statistics.quantiles(ratios, n=4)
    table.add("the same, nothing hits, beside vLLM's offloading without a tier, 21 pairs", "at most 3 % lost", f"{lost:+.1%} (quartiles {quarters[0] - 1:+.1%}, {quarters[2] - 1:+.1%})", lost <= 0.03)


def wait_for(engine, daemon):
    """Until the engine has found the daemon again: it pauses after a failure."""
    probe = 0
    while daemon.count("hits") + daemon.count("misses") == 0:
        engine.ask(prompt(90_000 + probe, 2 * BLOCK + 1), 1)
        probe += 1
        time.sleep(0.3)


def leftovers():
    return [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if re.match(r"vllm_offload_.*\.mmap$", name) and not mapped(f"/dev/shm/{name}")]


def mapped(path):
    inode = str(os.stat(path).st_ino)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if any(line.split()[4] == inode and path in line for line in maps.read_text().splitlines()):
                return True
        except OSError:
            continue
    return False


if __name__ == "__main__":
    main()
