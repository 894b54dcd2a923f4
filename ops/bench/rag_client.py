"""The client that every engine is asked by: a streamed answer of one token, and when that token came."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass

# An answer that takes longer is none.
ANSWER_SECONDS = 900


class Failed(Exception):
    """An engine that refused, broke off or said nothing."""


@dataclass(frozen=True)
class Answer:
    """One answer."""

    seconds: float  # From sending the request to the first token.
    token: str
    prompt_tokens: int | None  # As the engine counted them.
    cached_tokens: int | None  # Of these, those whose KV it had; None where it does not say.


def request(port: int, method: str, path: str, body: dict | None = None, headers: dict | None = None):
    """The answer's status and stream. A connection of its own, on loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    given = {"content-type": "application/json", "connection": "close", **(headers or {})}
    connection.request(method, path, None if body is None else json.dumps(body), given)
    return connection.getresponse()


def events(stream) -> "list[dict]":
    """The JSON of server-sent events, as they come."""
    for line in stream:
        name, _, data = line.decode().strip().partition(":")
        if name == "data" and data.strip() != "[DONE]":
            yield json.loads(data)


def ask(port: int, path: str, body: dict, token_of, counts_of) -> Answer:
    """Sends a request. `token_of` gets a token's text out of an event ("" if it has none), `counts_of` the prompt's tokens
    and those cached (None: it has none)."""
    started = time.perf_counter()
    try:
        stream = request(port, "POST", path, body)
        if stream.status != 200:
            raise Failed(f"{path}: status {stream.status}: {stream.read(500).decode(errors='replace')}")
        seconds, token, counts = None, "", (None, None)
        for event in events(stream):
            if seconds is None and token_of(event):
                seconds, token = time.perf_counter() - started, token_of(event).strip()
            counts = counts_of(event) or counts
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise Failed(f"{path}: {error!r}") from None
    if seconds is None:
        raise Failed(f"{path}: it answered without a token")
    return Answer(seconds, token, *counts)
