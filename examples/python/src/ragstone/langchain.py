"""A retriever for LangChain; wants `langchain-core` (pip install ragstone[langchain])."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from .client import Client


class RagstoneRetriever(BaseRetriever):
    """Passages of a collection as LangChain's documents."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Client
    collection: str = "default"
    top_k: int = 5
    #: `fused`, `vector` or `full_text`; the service's default where left out.
    mode: str | None = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = self.client.search(query, collection=self.collection, top_k=self.top_k, mode=self.mode)
        return [Document(page_content=passage.text, metadata=_metadata(passage), id=f"{passage.document}#{passage.ordinal}") for passage in found]


def _metadata(passage: Any) -> dict[str, Any]:
    own = {name: getattr(passage, name) for name in ("document", "collection", "ordinal", "title", "source", "score")}
    # The document's own metadata never hides where a passage came from.
    return {**passage.metadata, **own}
