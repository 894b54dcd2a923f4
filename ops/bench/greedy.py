#!/usr/bin/env python3
"""One greedy tenant beside nine others: what it does to their times. Python's standard library only.

    ops/bench/greedy.py --ragstone PROGRAM [--rounds N] [--seconds N] [--clients N] [--only KIND[,KIND]] [--set KEY=VALUE]...

Nine tenants with keys ask and search their own collections, one client each with pauses between; the tenth keeps `--clients` connections
busy with one kind of request. Rounds without and with it take turns, so that what else the machine does is in both. Prints each round,
and the ratio of the others' p95 with it to that without, of all rounds together; fails where it is more than two, or an answer is missing.
The greedy one's client runs at nice 19: it stands for another machine.
"""

import asyncio
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from load import PASSAGES, PATIENCE_SECONDS, Attacker, bearer, call, p, parser, run, start_attack  # noqa: E402

OTHERS = 9
MOST_RATIO = 2.0
QUESTIONS = ["What does Calbet Works make?", "Who owns four boats?", "What grows behind the mill?", "Where was Elka Dorman born?"]
WORDS = "copper lantern mill garden harbour boat salt poppy lute river bridge winter letter director town miller".split()
CHAT, SEARCH = "/v1/chat/completions", "/v1/collections/notes/search"
OPERATIONS = ["ask", "search"]
# Between two requests of one of the others, in seconds.
PAUSE = (0.5, 1.5)


def asked(text, tokens):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "ragstone": {"collection": "notes"}}


class Others:
    """The nine, and what their requests took. Being told to come back counts as waiting."""

    def __init__(self, service, keys):
        self.service, self.keys, self.times = service, keys, {name: [] for name in OPERATIONS}
        self.missing, self.shed = [], 0

    async def timed(self, name, path, body, key):
        begun = time.monotonic()
        while True:
            try:
                status, text = await asyncio.wait_for(call(self.service, "POST", path, body, bearer(key)), PATIENCE_SECONDS)
            except (OSError, asyncio.TimeoutError) as error:
                status, text = 0, repr(error).encode()
            if status == 200:
                return self.times[name].append(time.monotonic() - begun)
            self.shed += status in (429, 503)
            if status not in (429, 503) or time.monotonic() - begun > PATIENCE_SECONDS:
                return self.missing.append(f"{name}: {status}: {text[:200]!r}")
            await asyncio.sleep(0.1)

    async def client(self, number, until):
        draw = random.Random(number)
        while time.monotonic() < until:
            await asyncio.sleep(draw.uniform(*PAUSE))
            question = draw.choice(QUESTIONS)
            if draw.random() < 0.5:
                await self.timed("ask", CHAT, asked(question, 16), self.keys[number])
            else:
                await self.timed("search", SEARCH, {"query": question, "top_k": 3}, self.keys[number])

    async def run(self, seconds):
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(number, until) for number in range(len(self.keys))))
        return self


class Greedy(Attacker):
    """The tenth: as much as it is let of one kind of request."""

    def __init__(self, service, kind, number, key):
        super().__init__(service, kind, number)
        self.key = key

    def words(self, count):
        return " ".join(self.draw.choice(WORDS) for _ in range(count))

    async def send(self, path, body):
        await call(self.service, "POST", path, body, bearer(self.key))

    async def questions(self):
        """Long questions over passages, each another one, with long answers."""
        await self.send(CHAT, asked(self.words(150), 64))

    async def prompts(self):
        """Long prompts without passages, which have to be computed."""
        await self.send(CHAT, {"messages": [{"role": "user", "content": self.words(300)}], "max_tokens": 4})

    async def searches(self):
        await self.send(SEARCH, {"query": self.words(100), "top_k": 50})

    async def embeddings(self):
        await self.send("/v1/embeddings", {"input": [self.words(100) for _ in range(64)]})


KINDS = ["questions", "prompts", "searches", "embeddings"]


def row(name, times):
    cells = [f"{p(times[name], 0.5):>7.0f} {p(times[name], 0.95):>7.0f} ({len(times[name])})" if times[name] else f"{'-':>15}" for name in OPERATIONS]
    return f"{name:<22}" + "  ".join(cells)


async def judge(service, arguments):
    await service.wait_until_ready()
    with open(os.path.join(service.data, "service.json"), encoding="utf-8") as record:
        owner = f"X-Ragstone-Token: {json.load(record)['token']}\r\n"
    keys = []
    for number in range(OTHERS + 1):
        status, text = await call(service, "POST", "/v1/keys", {"name": f"k{number}", "role": "write", "tenant": f"t{number}"}, owner)
        assert status == 200, text
        keys.append(json.loads(text)["key"])
        documents = [{"title": title, "text": text} for title, text in PASSAGES]
        status, text = await call(service, "POST", "/v1/collections/notes/documents", {"documents": documents}, bearer(keys[-1]))
        assert status == 200, text
    greedy, others = keys[0], keys[1:]
    await Others(service, others).run(5)
    print(f"{'the others, ms':<22}" + "  ".join(f"{name + ' p50':>7} {'p95':>7} (n)" for name in OPERATIONS))
    failures = []
    for kind in arguments.only.split(","):
        alone, beside = ({name: [] for name in OPERATIONS} for _ in range(2))
        for number in range(arguments.rounds):
            quiet = await Others(service, others).run(arguments.seconds)
            process = start_attack(service, Greedy, [kind], arguments.clients, greedy)
            await asyncio.sleep(1)
            attacked = await Others(service, others).run(arguments.seconds)
            if not process.is_alive():
                failures.append(f"{kind}: the greedy tenant's client ended before its time")
            process.terminate()
            process.join()
            await asyncio.sleep(2)
            print(f"{row(f'alone {number}', quiet.times)}\n{row(f'{kind} {number}', attacked.times)}   told to come back {attacked.shed} times", flush=True)
            for name in OPERATIONS:
                alone[name] += quiet.times[name]
                beside[name] += attacked.times[name]
            failures += [f"{kind}: an answer is missing: {missing}" for missing in (quiet.missing + attacked.missing)[:3]]
        for name in OPERATIONS:
            if not alone[name] or not beside[name]:
                failures.append(f"{kind}: no {name} was answered")
                continue
            ratios = [p(beside[name], share) / p(alone[name], share) for share in (0.5, 0.95)]
            print(f"{kind}: {name} takes {ratios[0]:.2f} times as long at p50 and {ratios[1]:.2f} at p95", flush=True)
            if ratios[1] > MOST_RATIO:
                failures.append(f"{kind}: the p95 of {name} is {ratios[1]:.2f} times that without the greedy tenant (wanted: at most {MOST_RATIO:g})")
    return failures


def main():
    arguments = parser(KINDS, clients=32)
    arguments.add_argument("--rounds", type=int, default=2, help="of each kind")
    arguments.add_argument("--seconds", type=float, default=15, help="of a round without, and of one with")
    run(judge, arguments.parse_args(), ["keys=required", "calibrate_when_idle=false"])


if __name__ == "__main__":
    main()
