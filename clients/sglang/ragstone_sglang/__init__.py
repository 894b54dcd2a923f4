"""A storage backend of SGLang's HiCache that keeps pages in ragstone's store."""

from .storage import RagstoneHiCache

__all__ = ["RagstoneHiCache"]
