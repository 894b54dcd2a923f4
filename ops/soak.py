"""The load and the judgement of ops/soak. Python's standard library only."""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

COLLECTIONS = ["north", "south", "west"]
DOCUMENTS = 120
THREADS = 3
SAMPLE_SECONDS = 5
# Beyond the first quarter, in which caches fill up.
MOST_GROWTH = 0.05
# Small against what the documents take: every tier evicts all the time.
TIERS = {"device_bytes": 24 << 20, "host_bytes": 4 << 20, "disk_bytes": 12 << 20}


class Service:
    def __init__(self, ragstone, data, settings):
        self.ragstone, self.data = ragstone, data
        command = [ragstone, "serve", "--data", data, "--listen", "127.0.0.1:0"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().removeprefix("listening on ").strip()
        if not self.address:
            sys.exit("the service did not start; its message stands above")
        with open(f"{data}/service.json", encoding="utf-8") as record:
            self.token = json.load(record)["token"]

    def call(self, method, path, body=None):
        """Status and JSON. 429 is an answer like any other: the service sheds load."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "x-ragstone-token": self.token}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def metrics(self):
        with urllib.request.urlopen(self.address + "/metrics", timeout=60) as response:
            text = response.read().decode()
        found = re.findall(r'^(ragstone_tier_\w+)\{tier="(\w+)"\} (\S+)$', text, re.MULTILINE)
        return {(name, tier): float(value) for name, tier, value in found}

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10

    def command(self, *arguments):
        done = subprocess.run([self.ragstone, *arguments, "--data", self.data, "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"ragstone {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def text_of(number, version):
    draw = random.Random(f"{number}.{version}")
    names = [draw.choice("BDKLMNRST") + draw.choice("aeiou") + draw.choice(["rin", "vek", "dol", "sha"]) for _ in range(6)]
    return (
        f"{names[0]} Works in the town of {names[1]} makes {draw.choice(['lanterns', 'ropes', 'bells'])}. "
        f"Its director is {names[2]} {names[3]}, who was born in {names[4]} and employs {draw.randrange(5, 900)} people. "
        f"It was founded in {draw.randrange(1700, 1990)} beside the river {names[5]}."
    )


class Load:
    """What the threads do, and what went wrong."""

    def __init__(self, service, seed, until):
        self.service, self.seed, self.until = service, seed, until
        self.lock = threading.Lock()
        self.done, self.failures = {}, []

    def run(self, thread):
        draw = random.Random(f"{self.seed}.{thread}")
        while time.monotonic() < self.until and len(self.failures) < 10:
            name = draw.choices(
                ["ask", "update", "delete", "evict", "list", "verify"], [80, 6, 3, 5, 4, 2]
            )[0]
            try:
                status = getattr(self, name)(draw)
            except Exception as error:  # whatever it is, it is the soak's finding
                status = repr(error)
            with self.lock:
                self.done[name] = self.done.get(name, 0) + 1
                if status not in (200, 404, 429, 503):
                    self.failures.append(f"{name}: {status}")

    def ask(self, draw):
        number = draw.randrange(DOCUMENTS)
        question = f"Who is the director of {text_of(number, 0).split()[0]} Works?"
        reuse = draw.choices(["auto", "exact", "off", {"ratio": 0.3}], [6, 3, 1, 2])[0]
        body = {
            "messages": [{"role": "user", "content": question}], "max_tokens": draw.randrange(1, 12), "temperature": 0,
            "ragstone": {"collection": draw.choice(COLLECTIONS), "top_k": draw.randrange(1, 6), "reuse": reuse, "on_nothing_found": "as_usual"},
        }
        status, answer = self.service.call("POST", "/v1/chat/completions", body)
        return status if status in (200, 429, 503) else answer

    def update(self, draw):
        number = draw.randrange(DOCUMENTS)
        document = {"id": f"d{number}", "title": f"Report {number}", "text": text_of(number, draw.randrange(100))}
        path = f"/v1/collections/{draw.choice(COLLECTIONS)}/documents"
        return self.service.call("POST", path, {"documents": [document]})[0]

    def delete(self, draw):
        path = f"/v1/collections/{draw.choice(COLLECTIONS)}/documents/d{draw.randrange(DOCUMENTS)}"
        return self.service.call("DELETE", path)[0]

    def evict(self, draw):
        self.service.command("cache", "evict", "--tier", draw.choice(["host", "disk"]), "--older-than", "60s")
        return 200

    def list(self, _):
        return self.service.call("GET", "/v1/collections")[0]

    def verify(self, _):
        report = self.service.command("cache", "verify")
        return 200 if not report["damaged"] else f"damaged: {report['damaged']}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ragstone", required=True)
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--set", action="append", default=[])
    arguments = arguments.parse_args()
    settings = dict(TIERS, **dict(assignment.split("=", 1) for assignment in arguments.set))
    with tempfile.TemporaryDirectory() as data:
        service = Service(arguments.ragstone, data, settings)
        try:
            return soak(service, arguments)
        finally:
            service.process.terminate()
            service.process.wait()


def soak(service, arguments):
    while service.call("GET", "/readyz")[0] != 200:
        time.sleep(0.2)
    for collection in COLLECTIONS:
        documents = [{"id": f"d{n}", "title": f"Report {n}", "text": text_of(n, 0)} for n in range(DOCUMENTS)]
        status, answer = service.call("POST", f"/v1/collections/{collection}/documents", {"documents": documents})
        if status != 200:
            sys.exit(f"the documents were not taken: {answer}")
    begun = time.monotonic()
    load = Load(service, arguments.seed, begun + 60 * arguments.minutes)
    threads = [threading.Thread(target=load.run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    samples, excess = [], {"host": 0, "disk": 0}
    entry = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(SAMPLE_SECONDS)
        metrics = service.metrics()
        samples.append(service.resident_bytes())
        for tier in excess:
            bytes_, bound, entries = (metrics[(f"ragstone_tier_{name}", tier)] for name in ("bytes", "capacity_bytes", "entries"))
            excess[tier] = max(excess[tier], bytes_ - bound)
            entry = max(entry, bytes_ / entries if entries else 0)
        minute = (time.monotonic() - begun) / 60
        print(f"\r{minute:5.1f} min  {samples[-1] >> 20} MiB  {sum(load.done.values())} requests", end="", flush=True)
    print()
    final = service.command("cache", "verify")
    return judge(load, samples, excess, entry, final, service.metrics())


def judge(load, samples, excess, entry, final, metrics):
    quarter = max(1, len(samples) // 4)
    early, late = statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:])
    growth = late / early - 1
    evicted = {tier: metrics.get(("ragstone_tier_evicted_total", tier)) for tier in excess}
    report = {
        "requests": load.done, "failures": load.failures, "resident_mib_second_quarter": early / 2**20,
        "resident_mib_last_quarter": late / 2**20, "growth": growth, "most_bytes_above_bound": excess,
        "mean_entry_bytes": entry, "evicted": evicted, "verified_entries": final["entries"], "damaged": final["damaged"],
    }
    print(json.dumps(report, indent=2))
    findings = [
        (bool(load.failures), "requests failed"),
        (growth > MOST_GROWTH, f"memory grew by {growth:.1%}"),
        (any(bytes_ > 2 * entry for bytes_ in excess.values()), "a tier exceeded its bound by more than an entry"),
        (bool(final["damaged"]), "damage was found"),
        (not all(evicted.values()), "nothing was evicted: the tiers were too large to show anything"),
    ]
    for is_so, what in findings:
        if is_so:
            print(f"FAILED: {what}")
    return 1 if any(is_so for is_so, _ in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
