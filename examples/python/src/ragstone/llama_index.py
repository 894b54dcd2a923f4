"""A retriever for LlamaIndex; wants `llama-index-core` (pip install ragstone[llama-index])."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from .client import Client


class RagstoneRetriever(BaseRetriever):
    """Passages of a collection as LlamaIndex's nodes."""

    def __init__(self, client: Client, collection: str = "default", top_k: int = 5, mode: str | None = None, **options: Any) -> None:
        self._client, self._collection, self._top_k, self._mode = client, collection, top_k, mode
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str
        found = self._client.search(query, collection=self._collection, top_k=self._top_k, mode=self._mode)
        nodes = []
        for passage in found:
            own = {name: getattr(passage, name) for name in ("document", "collection", "ordinal", "title", "source")}
            node = TextNode(id_=f"{passage.document}#{passage.ordinal}", text=passage.text, metadata={**passage.metadata, **own})
            nodes.append(NodeWithScore(node=node, score=passage.score))
        return nodes
