"""What ops/cluster-demo shows. Python's standard library only."""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

from fleet import Bucket, HAProxy, Load, end_all, fail, get, real_node, wait_until

NODES, CLIENTS = 4, 6
# A node's memory has room for a part of what all collections take.
COLLECTIONS, DOCUMENTS = 16, 6
TIERS = ["device_bytes=6MiB", "host_bytes=8MiB", "disk_bytes=4MiB"]
WARMING, MEASURED = 200, 200
DELETIONS = 20
# Three times `corpus_interval_ms`: a node that could not look for so long what others deleted answers nothing.
GONE_SECONDS = 3
SEED = 47
WORLD = pathlib.Path(__file__).resolve().parents[2] / "examples/world"


def say(text):
    print(f"\n== {text}", flush=True)


def post(node, path, body, method="POST"):
    headers = {"content-type": "application/json", "x-ragstone-token": node.token}
    status, text = get(f"http://{node.address}{path}", method, json.dumps(body).encode(), headers)
    if status != 200:
        fail(f"{method} {path} at {node.name} is answered: {status} {text[:300]!r}")
    return json.loads(text)


def texts():
    """Documents of sentences that the demo model knows, in orders of their own: no two have KV in common."""
    draw = random.Random(SEED)
    sentences = [sentence for path in sorted((WORLD / "corpus").glob("*.txt")) for sentence in re.findall(r"[^.]+\.", path.read_text(encoding="utf-8"))]
    return {
        f"c{collection:02}": [
            {"id": f"d{number}", "title": f"Paper {number}", "text": "".join(draw.sample(sentences, 12)).strip()} for number in range(DOCUMENTS)
        ]
        for collection in range(COLLECTIONS)
    }


def question(collection, words, **more):
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": 8, "temperature": 0}
    return {**body, "ragstone": {"collection": collection, "top_k": 4, "on_nothing_found": "as_usual", **more}}


class Demo:
    def __init__(self, work, ragstone, bucket):
        self.work, self.ragstone, self.table = work, ragstone, []
        known = subprocess.run([ragstone, "settings", "--json"], check=True, capture_output=True, text=True).stdout
        self.one_corpus = '"corpus_url"' in known
        settings = ["object_url=s3://bucket/kv", "kv_admission=always", "threads=1", *TIERS]
        if self.one_corpus:
            settings.append("corpus_url=s3://bucket/corpus")
        self.nodes = []
        for number in range(NODES):
            self.nodes.append(real_node(f"ragstone-{number}", work, ragstone, settings, bucket.variables))
        self.asked = [one["question"] for one in json.loads((WORLD / "questions.json").read_text(encoding="utf-8"))]

    def add(self):
        """With one corpus a document is added once; otherwise every node has its own."""
        documents = texts()

        def add_to(node):
            for collection, some in documents.items():
                post(node, f"/v1/collections/{collection}/documents", {"documents": some})

        with concurrent.futures.ThreadPoolExecutor() as at_once:
            list(at_once.map(add_to, self.nodes[:1] if self.one_corpus else self.nodes))
        for node in self.nodes:
            wait_until(lambda: self.passages(node) == COLLECTIONS * DOCUMENTS, f"{node.name} finds all documents")
        where = "once, at the first node: all find them" if self.one_corpus else "at every node (this program does not know `corpus_url`)"
        print(f"  {COLLECTIONS * DOCUMENTS} documents in {COLLECTIONS} collections, added {where}")

    @staticmethod
    def passages(node):
        status, text = get(f"http://{node.address}/v1/collections")
        return sum(one["documents"] for one in json.loads(text)["data"]) if status == 200 else 0

    def one_answers_as_the_other(self):
        first, *others = self.nodes
        asked = [(f"c{number:02}", self.asked[number % len(self.asked)]) for number in range(12)]

        def ask(node, collection, words):
            return post(node, "/v1/chat/completions", question(collection, words, reuse="exact"))

        answers = [ask(first, *one) for one in asked]
        self.uploaded(first)
        tokens = collections.Counter()
        for node in others:
            for one, answer in zip(asked, answers):
                same = ask(node, *one)
                if same["choices"][0]["message"]["content"] != answer["choices"][0]["message"]["content"]:
                    fail(f"{node.name} answers {one} as {first.name} does")
                tokens.update(came_from(same))
        if tokens["bucket"] == 0:
            fail(f"the others load from the bucket: {dict(tokens)}")
        share = tokens["bucket"] / tokens.total()
        self.row("12 questions at each node", f"the same {len(asked) * len(self.nodes)} answers; {share:.0%} of the others' prompts came from the bucket")

    def uploaded(self, node):
        def nothing_waits():
            store = post(node, "/v1/cache/status", {}, "GET")["store"]
            return store["object"]["entries"] > 0 and store["to_object"]["entries"] == 0

        wait_until(nothing_waits, f"{node.name} has written to the bucket")

    def routing(self, name, nodes, change):
        """The same questions from nothing but a full bucket; what the second half of them met."""
        for node in self.nodes:
            for tier in ("device", "host", "disk"):
                post(node, "/v1/cache/evict", {"all": True, "tier": tier})
        proxy = HAProxy(self.folder(), nodes, change)
        draw = random.Random(SEED)
        # Some collections are asked about more often than others.
        weights = [1 / (rank + 1) ** 0.5 for rank in range(COLLECTIONS)]
        drawn = [(f"c{draw.choices(range(COLLECTIONS), weights)[0]:02}", draw.choice(self.asked)) for _ in range(2 * (WARMING + MEASURED))]

        def ask(client, number):
            collection, words = drawn[(number * CLIENTS + client) % len(drawn)]
            return collection, question(collection, words)

        load = Load(proxy, CLIENTS, ask, streams=False)
        load.wait_for(WARMING)
        begun, before = time.monotonic(), len(load.done)
        load.wait_for(MEASURED)
        took, done = time.monotonic() - begun, load.done[before : before + MEASURED]
        load.end()
        proxy.end()
        failed = [(answer.status, answer.text[:200]) for _, _, answer in done if not answer.ok()]
        if failed:
            fail(f"every question is answered: {failed[:3]}")
        tokens = collections.Counter()
        for _, _, answer in done:
            tokens.update(came_from(json.loads(answer.text)))
        shares = {origin: tokens[origin] / tokens.total() for origin in ("memory", "disk", "bucket", "computed")}
        shown = ", ".join(f"{origin} {share:.0%}" for origin, share in shares.items())
        self.row(name, f"prompts' tokens from {shown}; {MEASURED / took:.0f} questions/s")
        return shares["memory"]

    def folder(self):
        """For one proxy's files."""
        return pathlib.Path(tempfile.mkdtemp(dir=self.work))

    def hit_rates(self):
        # Everything is in the bucket, as after a day: a question that reads all documents of a collection leaves their KV there.
        for number in range(COLLECTIONS):
            post(self.nodes[number % NODES], "/v1/chat/completions", question(f"c{number:02}", self.asked[0], top_k=DOCUMENTS))
        for node in self.nodes:
            self.uploaded(node)
        by_collection = self.routing("by collection, four nodes", self.nodes, lambda text: text)
        at_random = self.routing("at random, four nodes", self.nodes, lambda text: text.replace("balance hash var(txn.goes_by)", "balance random"))
        self.routing("one node", self.nodes[:1], lambda text: text)
        if by_collection <= at_random:
            fail(f"by collection more comes from memory than at random: {by_collection:.0%}, {at_random:.0%}")

    def killed(self):
        proxy = HAProxy(self.folder(), self.nodes)

        def ask(client, number):
            collection = f"c{(client * 5 + number) % COLLECTIONS:02}"
            return collection, question(collection, self.asked[number % len(self.asked)])

        load = Load(proxy, CLIENTS, ask)
        load.wait_for(60)
        with load.lock:
            self.nodes[1].process.kill()
            at, under_way = time.monotonic(), len(load.under_way)
        self.nodes[1].process.wait()
        load.wait_for(120)
        done = load.end()
        lost = [begun for begun, _, answer in done if not answer.ok()]
        if len(lost) > under_way or any(begun > at for begun in lost):
            fail(f"only what was in flight is lost: {len(lost)} of {len(done)}, {under_way} in flight")
        begun = time.monotonic()
        self.nodes[1].start()
        proxy.wait_until_ready()
        took = time.monotonic() - begun
        proxy.end()
        self.row("a node killed (SIGKILL) under load", f"{len(lost)} of {len(done)} questions lost, {under_way} were in flight; asked again {took:.1f} s after its start")

    def deleted(self):
        """A document that one node deleted is found nowhere after the stated time."""
        if not self.one_corpus:
            print("  skipped: this program does not know `corpus_url`; each node has a corpus of its own")
            return self.table.append(("deletions seen elsewhere", "not tried: no `corpus_url`"))
        first, *others = self.nodes
        marked = [{"id": f"gone-{number}", "text": f"The secret word of paper {number} is swordfish."} for number in range(DELETIONS)]
        post(first, "/v1/collections/gone/documents", {"documents": marked})
        for node in others:
            wait_until(lambda: self.found(node) == DELETIONS, f"{node.name} finds what was added")
        slowest = 0.0
        for number in range(DELETIONS):
            post(first, f"/v1/collections/gone/documents/gone-{number}", {}, "DELETE")
            begun = time.monotonic()
            for node in others:
                wait_until(lambda: self.found(node) <= DELETIONS - 1 - number, f"{node.name} finds a deleted document no more")
            slowest = max(slowest, time.monotonic() - begun)
        for node in others:
            wait_until(lambda: self.found(node) == 0, f"{node.name} answers, and finds none")
        if slowest > GONE_SECONDS:
            fail(f"a deletion is seen everywhere within {GONE_SECONDS} s: {slowest:.1f} s")
        return self.row(f"{DELETIONS} deletions at one node", f"gone at all {NODES} after {slowest:.1f} s at most")

    @staticmethod
    def found(node):
        body = {"query": "swordfish", "top_k": DELETIONS + 1}
        status, text = get(f"http://{node.address}/v1/collections/gone/search", "POST", json.dumps(body).encode(), {"content-type": "application/json"})
        return len(json.loads(text)["data"]) if status == 200 else -1

    def row(self, what, figures):
        print(f"  {what}: {figures}", flush=True)
        self.table.append((what, figures))


def came_from(answer):
    """How many tokens of the prompt came from where."""
    places = {"device": "memory", "host": "memory", "disk": "disk", "object": "bucket", None: "computed"}
    tokens = collections.Counter()
    for segment in answer["ragstone"]["report"]["segments"]:
        tokens[places[segment["tier"]]] += segment["tokens"]
    return tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ragstone", required=True)
    parser.add_argument("--s3", required=True, help="an interpreter that has moto")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        say("an S3 server with an empty bucket, and four nodes with data folders of their own")
        demo = Demo(pathlib.Path(folder), given.ragstone, Bucket(given.s3))
        demo.add()
        say("what one node computed, the others load, and they answer the same")
        demo.one_answers_as_the_other()
        say(f"HAProxy in front: {CLIENTS} clients, {COLLECTIONS} collections, of which a node's memory has a part")
        demo.hit_rates()
        say("a node is killed under load")
        demo.killed()
        say("a document that is deleted at one node")
        demo.deleted()
        end_all()
    print(f"\n| what | seen in {time.monotonic() - begun:.0f} s |\n|---|---|")
    for what, figures in demo.table:
        print(f"| {what} | {figures} |")


if __name__ == "__main__":
    main()
