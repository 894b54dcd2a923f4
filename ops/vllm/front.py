"""ragstone in front of vLLM (`ragstone serve --engine`): the same answers as vLLM's own to the same messages, what its prefix cache saves, and what the
order of passages adds to that. `ops/engine-check` prepares what it needs.

    front.py --program RAGSTONE --model FOLDER --corpus FOLDER --questions FILE --out TABLE [--count 40]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from check import Engine, Table

SYSTEM = "Answer each question from the passages."
TOP_K = 4


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Front:
    """A service whose answers vLLM makes."""

    def __init__(self, program, data, engine):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAGSTONE_") or name == "RAGSTONE_EMBEDDER"}
        command = [program, "serve", "--engine", engine, "--listen", "127.0.0.1:0", "--data", str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.address = self.process.stdout.readline().strip().removeprefix("listening on ")
        while "ready" not in (line := self.process.stdout.readline()):
            if not line:
                sys.exit("ragstone did not start")

    def ask(self, question, **extension):
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24, "temperature": 0}
        return post(self.address, "/v1/chat/completions", {**body, "ragstone": {"collection": "papers", "top_k": TOP_K, **extension}})

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def text(answer):
    return answer["choices"][0]["message"]["content"]


def direct(engine, question, answer):
    """vLLM's own answer to what the service sent it."""
    passages = "".join(f"Passage: {hit['title']} | {hit['text']}\n" for hit in answer["ragstone"]["citations"])
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{passages}Question: {question}\nAnswer:"}]
    body = {"model": "m", "messages": messages, "max_tokens": 24, "temperature": 0}
    return post(f"http://127.0.0.1:{engine.port}", "/v1/chat/completions", body)[1]


def share(answers):
    """The part of the prompts' tokens that was in the engine's cache."""
    usages = [answer["usage"] for answer in answers]
    return sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) / sum(usage["prompt_tokens"] for usage in usages)


def waited(answers):
    """The median time to the first token without the search, in milliseconds."""
    return statistics.median(answer["ragstone"]["report"]["ttft"]["compute_ms"] for answer in answers)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    options = argparse.ArgumentParser()
    for name in ("program", "model", "corpus", "questions", "out"):
        options.add_argument("--" + name, required=True)
    options.add_argument("--count", type=int, default=40)
    options = options.parse_args()
    place = Path(tempfile.mkdtemp(prefix="rve"))
    table = Table(options.out)
    questions = [one["question"] for one in json.loads(Path(options.questions).read_text())][: options.count]

    engine = Engine(place, options.model, more=["--enable-prompt-tokens-details"])
    front = None
    try:
        front = Front(options.program, place / "data", f"http://127.0.0.1:{engine.port}")
        subprocess.run([options.program, "ingest", options.corpus, "--collection", "papers", "--data", str(place / "data")], check=True, stdout=subprocess.DEVNULL)
        answers = [front.ask(question, arrange=False) for question in questions]
        good = [answer for status, answer in answers if status == 200]
        table.add(f"{len(questions)} questions are answered", len(questions), len(good), len(good) == len(questions))
        own = [direct(engine, question, answer) for question, (_, answer) in zip(questions, answers)]
        again = [front.ask(question, arrange=False)[1] for question in questions]
        same = sum(text(one) == text(other) for one, other in zip(own, again))
        table.add("with the text of vLLM's own answer to the same messages, both with these in its cache", len(questions), same, same == len(questions))
        # A prompt in its cache is computed in other pieces, whose sums differ in the last bits of bf16.
        same = sum(text(one) == text(other) for (_, one), other in zip(answers, again))
        table.add("the same as before they were in its cache", "most", same, same >= 0.9 * len(questions))
        table.add("asked again: part of the prompts in vLLM's cache", "at least 0.9", f"{share(again):.2f}", share(again) >= 0.9)

        # A tenant's prefixes are its own, so each of these begins with an empty cache.
        by_rank = [front.ask(question, tenant="by-rank", arrange=False)[1] for question in questions]
        arranged = [front.ask(question, tenant="arranged", arrange=True)[1] for question in questions]
        table.add("another tenant finds nothing: cached tokens of its first prompt", 0, by_rank[0]["usage"]["prompt_tokens_details"]["cached_tokens"], by_rank[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0)
        table.add("part of the prompts in the cache, passages by rank", "", f"{share(by_rank):.3f}", True)
        table.add("the same, arranged", "more", f"{share(arranged):.3f}", share(arranged) > share(by_rank))
        table.add("median wait for vLLM's first token, by rank; arranged; asked again", "", f"{waited(by_rank):.0f}; {waited(arranged):.0f}; {waited(again):.0f} ms", True)

        engine.stop(signal.SIGKILL)
        status, answer = front.ask(questions[0])
        table.add("vLLM killed: a question", "503", f"{status}: {answer['error']['message'][:120]}", status == 503)
        status, _ = post(front.address, "/v1/collections/papers/search", {"query": questions[0]})
        table.add("vLLM killed: a search", "200", status, status == 200)
    finally:
        if front:
            front.stop()
        engine.stop(signal.SIGKILL)
    sys.exit(table.failed)


if __name__ == "__main__":
    main()
