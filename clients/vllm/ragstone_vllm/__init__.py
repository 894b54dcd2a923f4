"""A secondary tier of vLLM's KV offloading that keeps blocks in ragstone's store."""

from .tier import RagstoneTier

__all__ = ["RagstoneTier"]
