"""What ops/hostile and ops/tenants share: the service that is tried, requests over bare sockets, and clients that attack from a process of
their own. Python's standard library only.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile

PASSAGES = [
    ("Calbet Works", "Calbet Works makes copper lanterns in the town of Orvik. Its director is Elka Dorman."),
    ("Garden letter", "The garden behind the mill grows blue poppies, and the miller waters them at night."),
    ("Harbour report", "Nine boats lay in the harbour of Tarn this week; three of them carried salt."),
    ("Elka Dorman", "Elka Dorman was born in Tarn, plays the lute, and owns four boats."),
]
# An answer that takes longer is missing.
PATIENCE_SECONDS = 60


class Service:
    def __init__(self, ragstone, data, settings):
        command = [ragstone, "serve", "--data", data, "--listen", "127.0.0.1:0"]
        for setting in settings:
            command += ["--set", setting]
        self.data = data
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline().strip()
        if not line:
            sys.exit("the service did not start; run `ragstone serve` to see why")
        self.host, port = re.search(r"http://(.*):(\d+)", line).groups()
        self.port = int(port)

    async def wait_until_ready(self):
        while (await call(self, "GET", "/readyz"))[0] != 200:
            await asyncio.sleep(0.1)

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) / 1024

    def has_ended(self):
        return self.process.poll() is not None


def head(method, path, length, extra=""):
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{extra}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


async def call(service, method, path, body=None, headers="", source="127.0.0.1"):
    """Status and text of one request on a connection of its own. A body of bytes is sent as it is, anything else as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(service.host, service.port, local_addr=(source, 0))
    try:
        writer.write(head(method, path, len(data), f"Connection: close\r\n{headers}") + data)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return (int(top.split(b" ", 2)[1]) if top.startswith(b"HTTP/") else 0), rest


def bearer(key):
    return f"Authorization: Bearer {key}\r\n"


async def drip(reader, writer):
    """Sends a byte a second until there is an answer."""
    try:
        while not reader.at_eof():
            writer.write(b" ")
            await writer.drain()
            try:
                await asyncio.wait_for(reader.read(1000), 1)
                return
            except asyncio.TimeoutError:
                pass
    finally:
        writer.close()


class Attacker:
    """A client that does one thing, named by a method of its class, again and again."""

    def __init__(self, service, kind, number):
        self.service, self.attack, self.draw = service, getattr(self, kind), random.Random(f"{kind}.{number}")

    async def run(self):
        while True:
            try:
                await self.attack()
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                pass
            await asyncio.sleep(self.draw.uniform(0, 0.05))


def attack(host, port, attacker, kinds, clients, arguments):
    """What the process of the attackers runs. It stands for other machines: the service's processors are not its to take."""
    os.nice(19)
    service = argparse.Namespace(host=host, port=port)

    async def all_of_them():
        await asyncio.gather(*(attacker(service, kinds[n % len(kinds)], n, *arguments).run() for n in range(clients)))

    asyncio.run(all_of_them())


def start_attack(service, attacker, kinds, clients, *arguments):
    """Starts so many `attacker`s, a class of the running program, in a process of their own: the honest clients' clock must not wait for
    their work."""
    everything = (service.host, service.port, attacker, kinds, clients, arguments)
    process = multiprocessing.get_context("spawn").Process(target=attack, args=everything, daemon=True)
    process.start()
    return process


def p(times, share):
    """A percentile, in milliseconds."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1e3


def parser(kinds, clients):
    """The arguments that both take."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ragstone", required=True)
    arguments.add_argument("--clients", type=int, default=clients, help="hostile connections")
    arguments.add_argument("--only", default=",".join(kinds), help="some of the kinds, parted by commas")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return arguments


def run(judge, arguments, settings):
    """Starts a service in a folder of its own, and ends with what `judge`, a coroutine over it, finds wrong."""
    # The service must not outlive its tormentor.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as data:
        service = Service(arguments.ragstone, data, settings + arguments.set)
        try:
            failures = asyncio.run(judge(service, arguments))
            if service.has_ended():
                failures.append("the service ended")
        finally:
            service.process.terminate()
            service.process.wait()
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)
