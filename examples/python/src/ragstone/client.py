"""The client: a method a path of docs/http.md."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .errors import Error, Overloaded, Unreachable
from .types import (
    Added,
    Answer,
    CacheStatus,
    Citation,
    Collection,
    Document,
    DocumentInfo,
    Ingest,
    Message,
    Passage,
    Reuse,
    StoredDocument,
    Usage,
)


class Client:
    """A running service.

    Args:
        base_url: Where it listens.
        api_key: Sent as a bearer token, where the service has keys.
        owner_token: The token of the data folder's `service.json`; what deletes wants it.
        timeout: Seconds that a connection may stay silent.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:7411",
        *,
        api_key: str | None = None,
        owner_token: str | None = None,
        timeout: float = 120.0,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no address; write it like http://127.0.0.1:7411")
        self.base_url = base_url.rstrip("/")
        self._scheme, self._host, self._port, self._path = parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"accept": "application/json, text/event-stream"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        if owner_token is not None:
            self._headers["x-ragstone-token"] = owner_token

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    # Answers

    def chat(self, messages: str | Sequence[Message], **options: Any) -> Answer:
        """Answers a question or a conversation. `options` are those of `chat_stream`."""
        stream = self.chat_stream(messages, **options)
        for _ in stream:
            pass
        return stream.answer

    def chat_stream(
        self,
        messages: str | Sequence[Message],
        *,
        collection: str | None = None,
        top_k: int | None = None,
        rerank: int | None = None,
        documents: Iterable[Document] = (),
        reuse: Reuse | None = None,
        tenant: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        **fields: Any,
    ) -> AnswerStream:
        """Answers as the model writes.

        Args:
            messages: A question, or the turns of a conversation.
            collection: Where passages are searched; none without it.
            top_k: How many of them.
            rerank: How many are found and put in order first; 0: none.
            documents: Passages that come with the request.
            reuse: Which stored KV may be used.
            tenant: Whose KV this is.
            max_tokens: The longest answer.
            temperature: 0 always takes the likeliest token.
            fields: Further ones of the request, as OpenAI names them.
        """
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        given = [{"title": document.title, "text": document.text} for document in documents]
        extension = {"collection": collection, "top_k": top_k, "rerank": rerank, "documents": given or None, "reuse": reuse, "tenant": tenant}
        body = {
            **fields,
            "messages": turns,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "ragstone": _without_none(extension),
        }
        return self._stream("/v1/chat/completions", body)

    def complete(self, prompt: str | Sequence[int], *, max_tokens: int | None = None, temperature: float = 0.0, **fields: Any) -> Answer:
        """Goes on with a text, or with token ids."""
        body = {**fields, "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature}
        stream = self._stream("/v1/completions", body)
        for _ in stream:
            pass
        return stream.answer

    def models(self) -> list[str]:
        """The names of the language model, the embedding model and the cross-encoder, where there is one."""
        return [model["id"] for model in self._json("GET", "/v1/models")["data"]]

    # Documents

    def search(self, query: str, *, collection: str = "default", top_k: int | None = None, mode: str | None = None,
               rerank: int | None = None) -> list[Passage]:
        """The passages that answer a query best, best first. `mode`: `fused` (the default), `vector` or `full_text`. `rerank`: how many
        are found and put in order first."""
        body = _without_none({"query": query, "top_k": top_k, "mode": mode, "rerank": rerank})
        found = self._json("POST", f"/v1/collections/{_part(collection)}/search", body)
        return [Passage.from_json(hit["passage"], hit["score"]) for hit in found["data"]]

    def add(self, documents: Iterable[Document], *, collection: str = "default") -> Added:
        """Adds documents, or replaces those whose ids are there."""
        body = {"documents": [document.to_json() for document in documents]}
        return Added.from_json(self._json("POST", f"/v1/collections/{_part(collection)}/documents", body))

    def collections(self) -> list[Collection]:
        """All collections."""
        return [Collection.from_json(one) for one in self._json("GET", "/v1/collections")["data"]]

    def documents(self, *, collection: str = "default", page: int = 100) -> Iterator[DocumentInfo]:
        """A collection's documents by id, fetched page by page."""
        offset = 0
        while True:
            query = urlencode({"offset": offset, "limit": page})
            listed = self._json("GET", f"/v1/collections/{_part(collection)}/documents?{query}")
            yield from (DocumentInfo.from_json(one) for one in listed["data"])
            if not listed["has_more"]:
                return
            offset += len(listed["data"])

    def document(self, id: str, *, collection: str = "default") -> StoredDocument:
        """One document with its passages."""
        return StoredDocument.from_json(self._json("GET", f"/v1/collections/{_part(collection)}/documents/{_part(id)}"))

    def delete_document(self, id: str, *, collection: str = "default") -> None:
        """Removes a document and its KV. Wants the owner's token, or a key that may."""
        self._json("DELETE", f"/v1/collections/{_part(collection)}/documents/{_part(id)}")

    def delete_collection(self, collection: str) -> None:
        """Removes a collection and its KV. Wants the owner's token, or a key that may."""
        self._json("DELETE", f"/v1/collections/{_part(collection)}")

    def ingests(self) -> list[Ingest]:
        """Ingests that are not finished, the oldest first; a key sees those into its tenant's collections."""
        return [Ingest.from_json(one) for one in self._json("GET", "/v1/ingests")["data"]]

    def cancel_ingest(self, id: int) -> None:
        """Ends an ingest for good; what it stored stays. Wants the owner's token, or a key that may."""
        self._json("DELETE", f"/v1/ingests/{id}")

    # The store

    def cache_status(self) -> CacheStatus:
        """What the tiers of the cache hold."""
        return CacheStatus.from_json(self._json("GET", "/v1/cache/status"))

    # HTTP

    def _stream(self, path: str, body: dict[str, Any]) -> AnswerStream:
        body = _without_none({**body, "stream": True, "stream_options": {"include_usage": True}})
        return AnswerStream(self._send("POST", path, body))

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        response = self._send(method, path, body)
        try:
            return json.loads(response.read())
        except (OSError, HTTPException) as error:
            raise Unreachable(f"the connection to {self.base_url} was lost: {error}") from error
        finally:
            response.close()

    def _send(self, method: str, path: str, body: Any) -> HTTPResponse:
        kind = HTTPSConnection if self._scheme == "https" else HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        headers, data = dict(self._headers), None
        # One request: the response closes the connection when it has been read.
        headers["connection"] = "close"
        if body is not None:
            headers["content-type"], data = "application/json", json.dumps(body).encode()
        try:
            connection.request(method, self._path + path, data, headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unreachable(f"nobody answers at {self.base_url}: {error}; is the service running?") from error
        if 200 <= response.status < 300:
            return response
        try:
            text = response.read()
        except (OSError, HTTPException):
            text = b""
        finally:
            response.close()
        raise _error(text, response.status, response.getheader("retry-after"))


class AnswerStream:
    """The pieces of an answer's text as they come; `answer` is the whole of it once there are no more.

    Closing it, or leaving its `with` block, ends the answer.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._pieces: list[str] = []
        self._answer: Answer | None = None
        self._events = self._read()

    def __iter__(self) -> Iterator[str]:
        return self._events

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up: the service stops writing."""
        self._events.close()
        self._response.close()

    @property
    def answer(self) -> Answer:
        """The whole answer."""
        if self._answer is None:
            raise Error("the answer has not ended; read its pieces first")
        return self._answer

    def _read(self) -> Generator[str, None, None]:
        ending: dict[str, Any] = {}
        usage: dict[str, Any] | None = None
        try:
            for chunk in _events(self._response):
                if chunk.get("usage"):
                    usage = chunk["usage"]
                for choice in chunk["choices"][:1]:
                    piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                    if piece:
                        self._pieces.append(piece)
                        yield piece
                    if choice["finish_reason"] is not None:
                        ending = {**chunk, "finish_reason": choice["finish_reason"]}
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable(f"the answer broke off: {error}") from error
        finally:
            self._response.close()
        if not ending or usage is None:
            raise Unreachable("the answer broke off; ask again")
        extension = ending.get("ragstone") or {}
        self._answer = Answer(
            text="".join(self._pieces),
            finish_reason=ending["finish_reason"],
            model=ending["model"],
            citations=[Citation.from_json(citation) for citation in extension.get("citations") or []],
            usage=Usage.from_json(usage),
            report=extension.get("report") or {},
        )


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of server-sent events, up to `[DONE]`."""
    for line in response:
        data = line.decode().strip()
        if not data.startswith("data:"):
            continue
        data = data.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise _error(data.encode(), None, None)
        yield event


def _error(text: bytes, status: int | None, retry_after: str | None) -> Error:
    try:
        error = json.loads(text)["error"]
        message, code, param = error["message"], error.get("code"), error.get("param")
    except (ValueError, TypeError, KeyError):
        message, code, param = f"the service answered with status {status}", None, None
    if status in (429, 503):
        overloaded = Overloaded(message, status, code, param)
        try:
            overloaded.retry_after_s = float(retry_after or 1)
        except ValueError:
            pass
        return overloaded
    return Error(message, status, code, param)


def _part(name: str) -> str:
    return quote(name, safe="")


def _without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}
