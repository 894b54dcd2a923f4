"""What goes in and what comes out. Fields that a newer service adds are left out here, and stay in `raw` where there is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Mapping, TypedDict

#: What a service may reuse for a prompt: everything as it was calibrated, exact KV alone, nothing, or blended with this ratio.
Reuse = Literal["auto", "exact", "off"] | Mapping[Literal["ratio"], float]


class Message(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Document:
    """A document as it is added. Without an id it is known by its source, or by title and text."""

    text: str
    id: str | None = None
    title: str = ""
    source: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the service takes it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}


@dataclass(frozen=True)
class Passage:
    """A passage that a search found, or one of a document's (then without a score)."""

    document: str
    collection: str
    #: Its place in its document, from 0.
    ordinal: int
    title: str
    text: str
    source: str | None
    metadata: dict[str, Any]
    score: float | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any], score: float | None = None) -> Passage:
        return cls(
            document=value["document_id"],
            collection=value["collection"],
            ordinal=value["ordinal"],
            title=value["title"],
            text=value["text"],
            source=value.get("source"),
            metadata=dict(value.get("metadata") or {}),
            score=score,
        )


@dataclass(frozen=True)
class Citation:
    """A passage that stood in the prompt."""

    #: Its place in the prompt, from 1.
    number: int
    #: Empty for passages that came with the request.
    document: str
    title: str
    text: str
    source: str | None
    score: float | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Citation:
        return cls(
            number=value["number"],
            document=value["document_id"],
            title=value["title"],
            text=value["text"],
            source=value.get("source"),
            score=value.get("score"),
        )


@dataclass(frozen=True)
class Usage:
    """Tokens of prompt and answer."""

    prompt_tokens: int
    completion_tokens: int
    #: Of the prompt, taken from stored KV bit for bit.
    cached_tokens: int
    #: Of the prompt, taken from KV that was computed elsewhere, and corrected in part.
    blended_tokens: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Usage:
        details = value.get("prompt_tokens_details") or {}
        return cls(
            prompt_tokens=value["prompt_tokens"],
            completion_tokens=value["completion_tokens"],
            cached_tokens=details.get("cached_tokens", 0),
            blended_tokens=details.get("blended_tokens", 0),
        )


@dataclass(frozen=True)
class Answer:
    """What the model wrote, and from what."""

    text: str
    #: `stop` or `length`.
    finish_reason: str
    model: str
    citations: list[Citation]
    usage: Usage
    #: The whole report: where each token's KV came from, loads, times (docs/http.md).
    report: dict[str, Any]


@dataclass(frozen=True)
class Collection:
    name: str
    documents: int
    passages: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Collection:
        return cls(value["name"], value["documents"], value["passages"])


@dataclass(frozen=True)
class DocumentInfo:
    """A stored document without its text."""

    id: str
    title: str
    source: str | None
    passages: int
    metadata: dict[str, Any]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DocumentInfo:
        return cls(value["id"], value["title"], value.get("source"), value["passages"], dict(value.get("metadata") or {}))


@dataclass(frozen=True)
class StoredDocument:
    """A stored document with its passages in order."""

    id: str
    title: str
    source: str | None
    metadata: dict[str, Any]
    passages: list[Passage]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StoredDocument:
        passages = [Passage.from_json(passage) for passage in value["passages"]]
        return cls(value["id"], value["title"], value.get("source"), dict(value.get("metadata") or {}), passages)


@dataclass(frozen=True)
class Added:
    """What adding documents did."""

    documents_added: int
    documents_replaced: int
    documents_unchanged: int
    #: Documents without words: not kept.
    documents_empty: int
    passages_added: int
    passages_removed: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Added:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Ingest:
    """An ingest that is not finished."""

    id: int
    collection: str
    #: What was named to it; empty for whoever is neither the owner nor an admin.
    paths: list[str]
    #: When it was asked for first, in milliseconds since 1970.
    created_unix_ms: int
    #: `running`, `waiting`, `interrupted`, `failed` or `parked`.
    state: str
    #: The most files that one start got done.
    files_done: int
    #: Files that there are, once the start that runs has found them.
    files_total: int | None
    #: Why it failed, for the owner and admins.
    error: str | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ingest:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Tier:
    """What one tier of the cache holds, and how often it was of use since the service started."""

    entries: int
    bytes: int
    #: 0: no bound.
    capacity_bytes: int
    hits: int
    misses: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tier:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class CacheStatus:
    """The tiers that there are, by name: `device`, `host`, `disk`, `object`."""

    model: str
    tiers: dict[str, Tier]
    #: The service's whole answer.
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CacheStatus:
        store = value["store"]
        tiers = {"device": value["device"]["cache"], **{name: store.get(name) for name in ("host", "disk", "object")}}
        return cls(
            model=value["model"]["id"],
            tiers={name: Tier.from_json(tier) for name, tier in tiers.items() if tier},
            raw=dict(value),
        )
