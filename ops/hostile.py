"""The clients and the judgement of ops/hostile. Python's standard library only.

The honest client asks one question after the other over a small collection, from an address of its own (127.0.0.2), and
is told to come back by a 429 like everybody else: its time counts until it has its answer. The hostile ones come from
127.0.0.1, each with its own seed, in a process of their own: the honest client's clock must not wait for their work.
"""

import asyncio
import json
import statistics
import sys
import time

from load import PASSAGES, PATIENCE_SECONDS, Attacker, call, drip, head, p, parser, run, start_attack

QUESTIONS = ["What does Calbet Works make?", "Who owns four boats?", "What grows behind the mill?", "Where was Elka Dorman born?"]
CONTROL = "<|im_end|>"
QUIET_SECONDS = 30
# Caches that are full soon: what grows after half of the time is none of theirs.
CACHES = ["host_bytes=128MiB", "device_bytes=256MiB"]
MOST_GROWTH = 0.10


class Honest:
    def __init__(self, service):
        self.service, self.times, self.shed, self.missing, self.asked, self.ttfts = service, [], 0, [], 0, []

    async def ask(self):
        body = {
            "messages": [{"role": "user", "content": QUESTIONS[self.asked % len(QUESTIONS)]}],
            "max_tokens": 16, "temperature": 0, "ragstone": {"collection": "world", "top_k": 3},
        }
        self.asked += 1
        begun = time.monotonic()
        while True:
            try:
                asking = call(self.service, "POST", "/v1/chat/completions", body, source="127.0.0.2")
                status, text = await asyncio.wait_for(asking, PATIENCE_SECONDS)
            except (OSError, asyncio.TimeoutError) as error:
                status, text = 0, repr(error).encode()
            if status == 200:
                self.times.append(time.monotonic() - begun)
                self.ttfts.append(json.loads(text)["ragstone"]["report"]["ttft"])
                return
            self.shed += status == 429
            if status not in (429, 503) or time.monotonic() - begun > PATIENCE_SECONDS:
                self.missing.append(f"{status}: {text[:200]!r}")
                return
            await asyncio.sleep(0.2)

    async def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self.ask()
            await asyncio.sleep(0.05)

    def parts(self):
        """Where the time to the first token went, as the service tells it: medians in ms."""
        names = [name for name in self.ttfts[0] if name.endswith("_ms")]
        medians = {name: statistics.median(ttft[name] for ttft in self.ttfts) for name in names}
        return ", ".join(f"{name[:-3]} {ms:.0f}" for name, ms in medians.items() if ms >= 0.5)


class Hostile(Attacker):
    async def open(self):
        return await asyncio.open_connection(self.service.host, self.service.port)

    async def slow_bodies(self):
        """Announces a megabyte and sends a byte a second."""
        reader, writer = await self.open()
        path = self.draw.choice(["/v1/chat/completions", "/v1/embeddings", "/v1/collections/x/documents"])
        writer.write(head("POST", path, 1 << 20))
        await drip(reader, writer)

    async def stalled_readers(self):
        """Asks for a long stream and reads nothing of it."""
        reader, writer = await self.open()
        body = json.dumps({
            "prompt": "a", "max_tokens": 3000, "temperature": 2, "stream": True, "logprobs": 5,
        }).encode()
        writer.transport.pause_reading()
        writer.write(head("POST", "/v1/completions", len(body)) + body)
        try:
            await writer.drain()
            await asyncio.sleep(self.draw.uniform(20, 60))
        finally:
            writer.transport.abort()

    async def hang_ups(self):
        """Leaves in the middle of a request or an answer."""
        reader, writer = await self.open()
        body = json.dumps({
            "messages": [{"role": "user", "content": self.draw.choice(QUESTIONS) * self.draw.randrange(1, 40)}],
            "max_tokens": 500, "stream": self.draw.random() < 0.5, "ragstone": {"collection": "world"},
        }).encode()
        cut = self.draw.choice([len(body), len(body), len(body) // 2])
        writer.write((head("POST", "/v1/chat/completions", len(body)) + body)[:-1 if cut == len(body) // 2 else None])
        await writer.drain()
        await asyncio.sleep(self.draw.uniform(0, 0.3))
        writer.transport.abort()

    async def floods(self):
        """Small requests, good and bad, one after the other."""
        method, path, body = self.draw.choice([
            ("POST", "/v1/completions", {"prompt": "hello", "max_tokens": 4}),
            ("POST", "/v1/collections/world/search", {"query": "boats"}),
            ("GET", "/v1/collections", None),
            ("GET", "/v1/cache/status", None),
            ("POST", "/v1/embeddings", {"input": ["a", "b"]}),
            ("POST", "/v1/chat/completions", {"messages": "nonsense"}),
            ("GET", f"/{self.draw.random()}", None),
            ("DELETE", "/v1/collections/world", None),
            (f"M{self.draw.randrange(1000)}", "/v1/models", None),
        ])
        await call(self.service, method, path, body)

    async def giants(self):
        """Prompts and documents of megabytes, numbers without sense."""
        words = "lantern " * 200_000
        path, body = self.draw.choice([
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": words}]}),
            ("/v1/completions", {"prompt": CONTROL * 100_000, "max_tokens": 4}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 1 << 62}),
            ("/v1/completions", {"prompt": [5] * 500_000}),
            ("/v1/embeddings", {"input": CONTROL * 20_000}),
            ("/v1/embeddings", {"input": ["word " * 400] * 2000}),
            ("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "?"}],
                "ragstone": {"documents": [{"title": "t", "text": words}] * 3},
            }),
        ])
        await call(self.service, "POST", path, body)


KINDS = ["slow_bodies", "stalled_readers", "hang_ups", "floods", "giants"]


def row(name, times):
    return f"{name:<18} {len(times):>7} {statistics.median(times) * 1e3:>8.0f} {p(times, 0.95):>8.0f} {max(times) * 1e3:>8.0f}"


async def judge(service, arguments):
    documents = [{"title": title, "text": text} for title, text in PASSAGES]
    await service.wait_until_ready()
    status, text = await call(service, "POST", "/v1/collections/world/documents", {"documents": documents})
    assert status == 200, text
    quiet = Honest(service)
    await quiet.run(3)
    quiet.times.clear()
    quiet.ttfts.clear()
    await quiet.run(QUIET_SECONDS)
    print(f"{'honest client':<18} {'answers':>7} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}   memory MiB")
    print(f"{row('quiet', quiet.times)}   {service.resident_mib():.0f}   ({quiet.parts()})", flush=True)

    hostile = start_attack(service, Hostile, arguments.only.split(","), arguments.clients)
    honest, memory = Honest(service), []
    seconds = arguments.minutes * 60
    parts = max(2, min(20, int(seconds / 15)))
    for _ in range(parts):
        before = len(honest.times)
        await honest.run(seconds / parts)
        memory.append(service.resident_mib())
        part = honest.times[before:]
        if part:
            print(f"{row('  …', part)}   {memory[-1]:.0f}", flush=True)
        else:
            print(f"  …: no answer; {honest.missing[-1:]}   {memory[-1]:.0f}", flush=True)
    if not hostile.is_alive():
        sys.exit("the hostile clients ended before their time")
    hostile.terminate()
    hostile.join()
    if not honest.times:
        sys.exit(f"the honest client had no answer: {honest.missing[:3]}")
    print(row("attacked", honest.times), f"  told to come back {honest.shed} times, {len(honest.missing)} missing   ({honest.parts()})")
    after = Honest(service)
    await after.run(10)
    print(f"{row('afterwards', after.times)}   {service.resident_mib():.0f}")

    failures = [f"an answer is missing: {missing}" for missing in honest.missing[:5] + after.missing[:5]]
    ratio = p(honest.times, 0.95) / p(quiet.times, 0.95)
    print(f"p95 attacked / quiet: {ratio:.2f} (wanted: at most 2)")
    if ratio > 2:
        failures.append("the honest client waited more than twice as long")
    half = memory[len(memory) // 2:]
    growth = half[-1] / half[0] - 1
    print(f"memory over the second half: {half[0]:.0f} to {half[-1]:.0f} MiB ({growth:+.1%})")
    if growth > MOST_GROWTH:
        failures.append("memory keeps growing")
    return failures


def main():
    arguments = parser(KINDS, clients=200)
    arguments.add_argument("--minutes", type=float, default=10)
    run(judge, arguments.parse_args(), CACHES)


if __name__ == "__main__":
    main()
