"""Uses a running ragstone through examples/python, installed: python python_client.py ADDRESS TOKEN"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import ragstone
from ragstone import Client, Document, Error, Overloaded, Unreachable

address, token = sys.argv[1:]
client = Client(address)


def fails(kind, call, *arguments, **options):
    try:
        done = call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"{done} instead of {kind.__name__}")


# Documents, with ids that need escaping, over several pages.
documents = [Document(f"Lantern {number} burns red.", id=f"a/b {number}?#ä", title=f"Lantern {number}", metadata={"n": number}) for number in range(5)]
added = client.add(documents, collection="lanterns")
assert (added.documents_added, added.passages_added) == (5, 5), added
assert client.add(documents[:1], collection="lanterns").documents_unchanged == 1
assert ragstone.Collection("lanterns", 5, 5) in client.collections(), client.collections()
listed = list(client.documents(collection="lanterns", page=2))
assert [info.id for info in listed] == [document.id for document in documents], listed
assert listed[3].metadata == {"n": 3} and listed[3].passages == 1, listed
stored = client.document("a/b 2?#ä", collection="lanterns")
assert stored.title == "Lantern 2" and stored.passages[0].text == "Lantern 2 burns red.", stored
assert client.add([Document("  ")], collection="lanterns").documents_empty == 1

# Search.
found = client.search("lantern 4", collection="lanterns", top_k=2, mode="full_text")
assert found[0].document == "a/b 4?#ä" and found[0].score > 0 and len(found) == 2, found

# Answers, whole and streamed.
question = "What does Calbet Works make?"
options = dict(collection="world", top_k=2, max_tokens=12)
whole = client.chat(question, **options)
assert whole.finish_reason in ("stop", "length") and whole.model == client.models()[0], whole
assert len(whole.citations) == 2 and whole.citations[0].number == 1 and whole.citations[0].document, whole
stream = client.chat_stream([{"role": "user", "content": question}], **options)
fails(Error, lambda: stream.answer)
assert "".join(stream) == whole.text == stream.answer.text
assert stream.answer.usage.cached_tokens + stream.answer.usage.blended_tokens > 0, stream.answer.usage
assert stream.answer.usage.completion_tokens == whole.usage.completion_tokens
assert sum(whole.report["tokens"].values()) == whole.usage.prompt_tokens, whole.report
inline = client.chat("What burns red?", documents=documents[:1], max_tokens=4, reuse="off")
assert inline.citations[0].document == "" and inline.usage.cached_tokens == 0, inline
completed = client.complete([5, 6, 7], max_tokens=5, ignore_eos=True)
assert completed.usage.completion_tokens == 5 and completed.text, completed
with client.chat_stream(question, **options) as left:
    next(iter(left))

# The store.
status = client.cache_status()
assert status.model == whole.model and {"device", "host", "disk"} <= set(status.tiers), status
assert status.tiers["host"].entries > 0, status.tiers

# Errors say what the service said.
error = fails(Error, client.search, "x", collection="nowhere")
assert (error.status, error.code) == (404, "not_found") and "nowhere" in error.message, vars(error)
error = fails(Error, client.search, "x", collection="world", top_k=0)
assert (error.status, error.param) == (400, "top_k"), vars(error)
error = fails(Error, client.chat, question, **options, frequency_penalty=99)
assert "frequency_penalty" in str(error), error
assert fails(Error, client.delete_document, "a/b 0?#ä", collection="lanterns").status == 403
fails(Unreachable, Client("http://127.0.0.1:1").models)
fails(ValueError, Client, "127.0.0.1:7411")

# What deletes wants the owner's token.
owner = Client(address, owner_token=token)
assert owner.ingests() == [], owner.ingests()
error = fails(Error, owner.cancel_ingest, 7)
assert (error.status, error.code) == (404, "not_found"), vars(error)
one = {"id": 7, "collection": "c", "paths": ["/a"], "created_unix_ms": 1, "state": "running", "files_done": 3, "files_total": 9, "error": None, "newer": 1}
assert ragstone.Ingest.from_json(one).files_total == 9
owner.delete_document("a/b 0?#ä", collection="lanterns")
assert len(list(client.documents(collection="lanterns"))) == 4


class Elsewhere(BaseHTTPRequestHandler):
    """Sees what is sent, and answers as a busy service, or one that is no ragstone."""

    seen = []

    def do_GET(self):
        Elsewhere.seen.append(dict(self.headers.items()))
        busy = self.path == "/behind/v1/models"
        self.send_response(429 if busy else 500)
        self.send_header("retry-after", "2.5")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": "full"}}).encode() if busy else b"<html>")

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Elsewhere)
threading.Thread(target=server.serve_forever, daemon=True).start()
keyed = Client(f"http://127.0.0.1:{server.server_port}/behind/", api_key="k-1")
error = fails(Overloaded, keyed.models)
assert error.retry_after_s == 2.5 and str(error) == "full", vars(error)
assert Elsewhere.seen[0]["authorization"] == "Bearer k-1", Elsewhere.seen
assert fails(Error, keyed.collections).status == 500
assert "k-1" not in repr(keyed)

# LangChain and LlamaIndex.
from ragstone.langchain import RagstoneRetriever as LangChain

chain = LangChain(client=client, collection="lanterns", top_k=2)
documents = chain.invoke("lantern 3")
assert len(documents) == 2 and documents[0].metadata["collection"] == "lanterns", documents
best = next(document for document in documents if document.page_content == "Lantern 3 burns red.")
assert best.metadata["document"] == "a/b 3?#ä" and best.metadata["n"] == 3 and best.metadata["score"] > 0, best
assert asyncio.run(chain.ainvoke("lantern 3")) == documents

from llama_index.core.schema import QueryBundle
from ragstone.llama_index import RagstoneRetriever as LlamaIndex

index = LlamaIndex(client, collection="lanterns", top_k=2)
nodes = index.retrieve("lantern 3")
assert [node.node.text for node in nodes] == [document.page_content for document in documents], nodes
assert nodes[0].score > 0 and nodes[0].node.metadata["document"].startswith("a/b "), nodes
assert index.retrieve(QueryBundle("lantern 3"))[0].node.id_ == nodes[0].node.id_
print("ok")
