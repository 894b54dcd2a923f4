"""Speaks with ragstone's store of KV (`ragstone kv-serve`; docs/kv-protocol.md). Standard library only."""

from .identity import has_weights, instruction_set, weights_digest
from .link import Link, Region
from .memory import Mark, Rows, clear_leftovers

__all__ = ["Link", "Mark", "Region", "Rows", "clear_leftovers", "has_weights", "instruction_set", "weights_digest"]
