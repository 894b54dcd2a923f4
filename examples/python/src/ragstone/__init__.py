"""Client of a running ragstone: questions, search, documents, and what the cache holds."""

from .client import AnswerStream, Client
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
    StoredDocument,
    Tier,
    Usage,
)

__all__ = [
    "Added",
    "Answer",
    "AnswerStream",
    "CacheStatus",
    "Citation",
    "Client",
    "Collection",
    "Document",
    "DocumentInfo",
    "Ingest",
    "Error",
    "Message",
    "Overloaded",
    "Passage",
    "StoredDocument",
    "Tier",
    "Unreachable",
    "Usage",
]
