"""What ops/deploy/check shows of a proxy with the files of this folder. Python's standard library only."""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import time

from fleet import KEY, SPREAD_KEY, Bucket, Client, Envoy, HAProxy, Load, end_all, fail, fake_node, get, real_node, wait_until

COLLECTIONS = 60
CLIENTS = 6
HELD = 12
UPLOAD_BYTES = 12 << 20
QUESTION = {"messages": [{"role": "user", "content": "What is made by Callux Motors?"}], "max_tokens": 16, "temperature": 0}


class Check:
    def __init__(self, proxy, nodes, real):
        self.proxy, self.nodes, self.real = proxy, nodes, real
        self.body = {**QUESTION, "ragstone": {"collection": "world"}} if real else QUESTION
        self.client = Client(proxy)
        self.rows = []

    def say(self, what, figures):
        self.rows.append((what, figures))
        print(f"  {what}: {figures}", flush=True)

    def node_of(self, collection, client=None):
        answer = (client or self.client).ask(collection, self.body)
        if not answer.ok():
            fail(f"a question is answered: {answer.status} {answer.text[:300]!r}")
        return answer.node

    def one_node_for_a_collection(self):
        nodes = {self.node_of("handbook") for _ in range(10)}
        path = "/v1/collections/world/search"
        by_header = self.node_of("world")
        by_path = self.client.request("POST", path, json.dumps({"query": "Callux"}).encode()).node
        if len(nodes) != 1 or by_header != by_path:
            fail(f"a collection has one node: {nodes}; by the header {by_header}, by the path {by_path}")
        self.say("10 questions about one collection", "one node; a search with the collection in its path: the header's node")

    def many_over_all(self):
        placed = {f"c{number}": self.node_of(f"c{number}") for number in range(COLLECTIONS)}
        counts = self.counts(placed.values())
        if min(counts.values()) == 0 or len(counts) != len(self.nodes):
            fail(f"{COLLECTIONS} collections are spread over all nodes: {counts}")
        self.say(f"{COLLECTIONS} collections", self.shown(counts))
        return placed

    def counts(self, nodes):
        counts = {node.name: 0 for node in self.nodes}
        for node in nodes:
            counts[node] = counts.get(node, 0) + 1
        return counts

    @staticmethod
    def shown(counts):
        return "/".join(str(count) for _, count in sorted(counts.items()))

    def without_a_collection(self):
        by_key = {self.node_of(None) for _ in range(6)}
        if len(by_key) != 1:
            fail(f"questions without a collection go by their key: {by_key}")
        if self.proxy.name == "haproxy":
            spread = Client(self.proxy, SPREAD_KEY)
            counts = self.counts(self.node_of(None, spread) for _ in range(COLLECTIONS))
        else:
            # Envoy has no name for nobody: what asks for the page has neither collection nor key.
            nobody = Client(self.proxy, None)
            counts = self.counts(nobody.request("GET", "/openapi.json").node for _ in range(COLLECTIONS))
        if min(counts.values()) == 0 or len(counts) != len(self.nodes):
            fail(f"without collection and team they are spread: {counts}")
        self.say("no collection", f"the key's node; with neither {self.shown(counts)}")

    def keys(self):
        told = {name: Client(self.proxy, key).ask("handbook", self.body).status for name, key in (("none", None), ("wrong", "rag_wrong"))}
        page = Client(self.proxy, None).request("GET", "/openapi.json").status
        refused = {401} if self.proxy.name == "haproxy" else {403}
        if set(told.values()) != refused or page != 200:
            fail(f"only who has a key is let in: {told}, the page {page}")
        if self.proxy.name != "haproxy":
            return self.say("no key, a wrong key", "403")
        # As the runbook takes a key back while the proxy runs.
        name = f"{self.proxy.work}/keys.map"
        self.proxy.order(f"del map {name} {SPREAD_KEY}")
        gone = Client(self.proxy, SPREAD_KEY).ask("handbook", self.body).status
        self.proxy.order(f"add map {name} {SPREAD_KEY} -")
        back = Client(self.proxy, SPREAD_KEY).ask("handbook", self.body).status
        if (gone, back) != (401, 200):
            fail(f"a key that was taken back is refused: {gone}, given again {back}")
        self.say("no key, a wrong key, one taken back while it runs", "401")

    def http2(self):
        """As many clients speak; an answer that comes before the body was read is another thing there."""

        def curl(key, sent=("--data", json.dumps(self.body))):
            given = ["--cacert", str(self.proxy.certificate), "--header", "content-type: application/json", "--header", f"authorization: Bearer {key}"]
            shown = ["--output", f"{self.proxy.work}/answer", "--write-out", "%{http_version} %{http_code}", *sent]
            url = f"https://127.0.0.1:{self.proxy.port}/v1/chat/completions"
            return subprocess.run(["curl", "--silent", "--http2", *given, *shown, url], capture_output=True, text=True).stdout

        is_haproxy = self.proxy.name == "haproxy"
        # Debian's curl gives up where Envoy answers before it has sent all.
        told = curl(KEY), curl("rag_wrong") if is_haproxy else curl("rag_wrong", ())
        refused = "2 401" if is_haproxy else "2 403"
        if told != ("2 200", refused):
            fail(f"curl is answered, and refused, over HTTP/2: {told}")
        self.say("over HTTP/2", "answered; with a wrong key refused")

    def upload(self):
        path = "/v1/collections/uploads/files/large.md"
        # Nobody's words twice: a real node would take a minute to embed twelve megabytes, so it gets what it refuses when it has read it.
        answer = self.client.request("PUT", path.replace(".md", ".pdf"), b"%" * UPLOAD_BYTES)
        read = answer.status == 400 if self.real else json.loads(answer.text).get("bytes") == UPLOAD_BYTES
        if not read:
            fail(f"12 MiB reach a node: {answer.status} {answer.text[:300]!r}")
        self.say("a body of 12 MiB", "reaches the node")

    def token_by_token(self):
        if self.real:
            return self.tokens_of_a_real_node()
        node = next(one for one in self.nodes if one.name == self.node_of("stream"))
        body = json.dumps({**self.body, "stream": True, "in_steps": True}).encode()
        get(f"http://{node.address}/step", "POST", b"")
        response = self.client.open("POST", "/v1/chat/completions", body, {"x-ragstone-collection": "stream"})
        tokens = 0
        while (line := response.readline()) and b"[DONE]" not in line:
            if line.startswith(b"data:"):
                tokens += 1
                # The node sends the next one when this one is here: a proxy that collected them would wait for ever.
                get(f"http://{node.address}/step", "POST", b"")
        response.read()
        if tokens != 5:
            fail(f"a stream has its five tokens: {tokens}")
        self.say("a stream", "each token is here before the node sends the next")

    def tokens_of_a_real_node(self):
        question = "Who keeps more cats, Lodor Nevgan or Jovin Falgan?"
        body = {**self.body, "messages": [{"role": "user", "content": question}], "max_tokens": 64, "stream": True}
        response = self.client.open("POST", "/v1/chat/completions", json.dumps(body).encode(), {"x-ragstone-collection": "stream"})
        begun, times = time.monotonic(), []
        while (line := response.readline()) and b"[DONE]" not in line:
            if line.startswith(b"data:"):
                times.append((time.monotonic() - begun) * 1000)
        response.read()
        apart = len({round(moment, 1) for moment in times})
        if apart < 2:
            fail(f"tokens come as the node has them: {len(times)} events at {apart} moments")
        self.say("a stream", f"{len(times)} events at {apart} moments, {times[0]:.0f} to {times[-1]:.0f} ms after the head")

    def bounded(self):
        """Everybody asks about one collection."""
        if self.real:
            return
        body, loads = {**self.body, "hold": True}, []
        for number in range(HELD):
            # One after the other: what comes at the same moment is not counted yet.
            loads.append(Load(self.proxy, 1, lambda *_: ("hot", body)))
            wait_until(lambda: sum(self.held()) == number + 1, "a question is at a node")
        counts = self.held()
        for load in loads:
            load.stopping.set()
        for node in self.nodes:
            get(f"http://{node.address}/release", "POST", b"")
        for load in loads:
            load.end()
        for node in self.nodes:
            get(f"http://{node.address}/keep", "POST", b"")
        # Envoy does not count the question that it places.
        most = math.ceil(1.5 * HELD / len(self.nodes)) + (self.proxy.name == "envoy")
        if max(counts) > most:
            fail(f"no node has more than {most} of {HELD} questions: {counts}")
        self.say(f"{HELD} questions at once about one collection", f"{'/'.join(map(str, counts))} (at most {most})")

    def held(self):
        return [json.loads(get(f"http://{node.address}/seen")[1])["held"] for node in self.nodes]

    def killed(self, placed):
        """A node that dies loses what is in flight at most."""
        node = self.nodes[1]
        load = self.load()
        load.wait_for(10 * CLIENTS)
        with load.lock:
            node.process.kill()
            at, under_way = time.monotonic(), list(load.under_way.values())
        node.process.wait()
        load.wait_for(20 * CLIENTS)
        done = load.end()
        lost = [(begun, answer) for begun, _, answer in done if not answer.ok()]
        late = [(answer.status, answer.text[:200]) for begun, answer in lost if begun > at]
        if late or len(lost) > len(under_way):
            fail(f"only questions in flight are lost: {len(lost)} of {len(done)}, {len(late)} of them begun later: {late}")
        others = {name: self.node_of(name) for name in placed}
        moved = sum(others[name] != where for name, where in placed.items() if where != node.name)
        if node.name in others.values():
            fail("the dead node is asked no more")
        self.say(
            "a node killed under load",
            f"{len(lost)} of {len(done)} questions lost ({len(under_way)} were in flight); {moved} of "
            f"{sum(where != node.name for where in placed.values())} other collections moved",
        )
        node.start()
        self.proxy.wait_until_ready()
        back = sum(self.node_of(name) == where for name, where in placed.items())
        if back != len(placed):
            fail(f"each collection is back at its node: {back} of {len(placed)}")
        self.say("the node is back", f"{back} of {len(placed)} collections are where they were")

    def load(self):
        return Load(self.proxy, CLIENTS, lambda client, asked: (f"c{(client * 7 + asked) % COLLECTIONS}", self.body))

    def drained(self):
        """A node that is asked to end loses nothing."""
        node = self.nodes[2]
        load = self.load()
        load.wait_for(10 * CLIENTS)
        begun = time.monotonic()
        status = node.end()
        took = time.monotonic() - begun
        load.wait_for(20 * CLIENTS)
        done = load.end()
        lost = [(answer.status, answer.text[:200]) for _, _, answer in done if not answer.ok()]
        if lost or status != 0:
            fail(f"a node that drains loses nothing: {len(lost)} of {len(done)}: {lost[:3]}; exit status {status}")
        self.say("a node ended (SIGTERM) under load", f"{len(lost)} of {len(done)} questions lost; it ended after {took:.1f} s")
        node.start()
        self.proxy.wait_until_ready()

    def reloaded(self):
        if self.proxy.name != "haproxy":
            return
        load = self.load()
        load.wait_for(10 * CLIENTS)
        self.proxy.reload()
        load.wait_for(20 * CLIENTS)
        done = load.end()
        lost = [(answer.status, answer.text[:200]) for _, _, answer in done if not answer.ok()]
        if lost:
            fail(f"a proxy that reads its file again loses nothing: {len(lost)} of {len(done)}: {lost[:3]}")
        self.say("the proxy reloaded (SIGUSR2) under load", f"0 of {len(done)} questions lost")

    def all(self):
        begun = time.monotonic()
        self.one_node_for_a_collection()
        placed = self.many_over_all()
        self.without_a_collection()
        self.keys()
        self.http2()
        self.token_by_token()
        self.upload()
        self.bounded()
        self.killed(placed)
        self.drained()
        self.reloaded()
        print(f"  ({time.monotonic() - begun:.0f} s)")
        return self.rows


def fleet(work, real, bucket):
    """Three nodes, and where they are real, documents in each."""
    if not real:
        return [fake_node(f"ragstone-{number}", work) for number in range(3)]
    settings = ["object_url=s3://bucket/ragstone", "kv_admission=always", "host_bytes=64MiB", "device_bytes=64MiB", "threads=1"]
    nodes = [real_node(f"ragstone-{number}", work, real, settings, bucket.variables) for number in range(3)]
    corpus = pathlib.Path(__file__).resolve().parents[2] / "examples/world/corpus"
    documents = [{"id": path.name, "title": path.stem, "text": path.read_text(encoding="utf-8")} for path in sorted(corpus.glob("*.txt"))]
    for node in nodes:
        body = json.dumps({"documents": documents}).encode()
        status, text = get(f"http://{node.address}/v1/collections/world/documents", "POST", body, {"content-type": "application/json"})
        if status != 200:
            fail(f"documents are added: {status} {text[:300]!r}")
    return nodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--envoy", help="its program")
    parser.add_argument("--haproxy", action="store_true")
    parser.add_argument("--ragstone", help="its program: nodes are real ones")
    parser.add_argument("--s3", help="an interpreter that has moto: real nodes share its bucket")
    given = parser.parse_args()
    kinds = [HAProxy] * given.haproxy + [lambda *some: Envoy(*some, given.envoy)] * bool(given.envoy)
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        nodes = fleet(work, given.ragstone, Bucket(given.s3) if given.ragstone else None)
        for kind in kinds:
            proxy = kind(work, nodes)
            print(f"\n== {proxy.name}, three {'real' if given.ragstone else 'fake'} nodes", flush=True)
            tables[proxy.name] = Check(proxy, nodes, bool(given.ragstone)).all()
            proxy.end()
        end_all()
    for name, rows in tables.items():
        print(f"\n| {name} | |\n|---|---|")
        for what, figures in rows:
            print(f"| {what} | {figures} |")


if __name__ == "__main__":
    main()
