"""`RagstoneHiCache`: see README.md for what it does, and for what it does not.

SGLang calls it from threads of its own, which may wait. Its host memory is no file, so that pages go out, too, by way of memory that is shared.
"""

import hashlib
import json
import logging
import os
import threading

import sglang
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from ragstone_kv import Link, Region, Rows, clear_leftovers, instruction_set, weights_digest

log = logging.getLogger("sglang.ragstone")


class RagstoneHiCache(HiCacheStorage):
    """Pages in `ragstone kv-serve`. `extra_config` of `--hicache-storage-backend-extra-config`:

    socket: its socket. weights: the folder of the model's files, if the model's path is none. tenant: whose pages. variant: anything that changes KV and is not in the files.
    rows: pages on their way at once, each way; 64. deadline_s: how long a job may take, and a second more for each 50 MB of it and of those before it; 10.
    """

    def __init__(self, storage_config, kwargs=None):
        self._config, self._extra = storage_config, dict(storage_config.extra_config or {})
        if "socket" not in self._extra:
            raise ValueError("extra config: `socket` is missing, the path that `ragstone kv-serve --socket` got")
        folder = self._extra.get("weights") or storage_config.model_name
        if not folder or not os.path.isdir(folder):
            raise ValueError(f"extra config: `weights` must be the folder of the model's files; {folder} is none")
        self._folder = folder
        # What other ranks have, too, one of them stores.
        self._writes = getattr(storage_config, "is_storage_writer", not storage_config.is_mla_model or storage_config.tp_rank == 0)
        self._link = None
        # The outgoing rows keep their name, and a kill leaves them.
        clear_leftovers()

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        page = mem_pool_host.get_dummy_flat_data_page()
        self._size = page.numel() * page.element_size()
        rows = int(self._extra.get("rows", 64))
        self._out = _Outgoing(rows, self._size)
        self._link = Link(
            self._extra["socket"],
            lambda: self.namespace(),
            self._size,
            Region(self._out.path, rows, self._size),
            staging_rows=rows,
            deadline_s=float(self._extra.get("deadline_s", 10.0)),
        )

    def namespace(self):
        """What shapes the bytes of a page: docs/kv-protocol.md."""
        config, pool = self._config, self.mem_pool_host
        shared = config.is_mla_model  # every rank of a stage has the same
        axes = {
            "tp": [0 if shared else config.tp_rank, config.tp_size],
            "pp": [config.pp_rank, config.pp_size],
            "cp": [getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)],
            "dcp": [getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)],
        }
        layout = {"name": pool.layout, "axes": axes, "split_heads": getattr(config, "should_split_heads", False), "variant": self._extra.get("variant", "")}
        groups = {"layers": getattr(pool, "layer_num", None), "page_size": pool.page_size, "bytes": self._size, "pool": type(pool).__name__}
        return {
            "weights": weights_digest(self._folder, self._extra.get("digest_cache")),
            "dtype": str(pool.dtype),
            "layout": json.dumps(layout, sort_keys=True),
            "groups": json.dumps(groups, sort_keys=True),
            "parallel_rank": 0,
            "parallel_size": 1,
            "isa": instruction_set() if self._extra.get("cpu") else "",
            "tenant": self._extra.get("tenant", ""),
            "engine": "sglang",
            "engine_version": sglang.__version__,
        }

    # Look-ups: what SGLang can use is a prefix without a hole.

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys, extra_info=None):
        has = self._wait(self._link.has, [_name(key) for key in keys])
        return next((at for at, is_there in enumerate(has) if not is_there), len(has))

    # Pages by their place in host memory.

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        pool, places = self.mem_pool_host, self._places(keys, host_indices)

        def take(at, block):
            page = pool.get_dummy_flat_data_page()
            _writable(page)[:] = block
            pool.set_from_flat_data_page(places[at], page)

        return self._load(keys, take)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        if not self._writes:
            return [True] * len(keys)
        places = self._places(keys, host_indices)
        before = (getattr(extra_info, "prefix_keys", None) or [None])[-1]
        return self._store(keys, lambda at: self.mem_pool_host.get_data_page(places[at], flat=True), before)

    def _places(self, keys, host_indices):
        size = self.mem_pool_host.page_size
        return [int(host_indices[at * size]) for at in range(len(keys))]

    # Pages as tensors.

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        targets = target_locations or [None] * len(keys)

        def take(at, block):
            _writable(targets[at])[:] = block

        loaded = self._load(keys, take)
        return [target if has else None for target, has in zip(targets, loaded)]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        return not self._writes or all(self._store(keys, lambda at: values[at]))

    def clear(self):
        """Nothing: the store is others', too. `ragstone kv-serve evict` removes a namespace."""
        log.warning("the store is not cleared; `ragstone kv-serve evict` removes a namespace")

    def close(self):
        if self._link is not None:
            self._link.close()
            self._out.close()

    def _load(self, keys, take):
        return self._wait(lambda names, done: self._link.load(names, take, done), [_name(key) for key in keys])

    def _store(self, keys, page_of, before=None):
        stored, after = [], None if before is None else _name(before)
        for begin in range(0, len(keys), self._out.rows):
            names = [_name(key) for key in keys[begin : begin + self._out.rows]]
            rows = self._out.take(len(names))
            try:
                for at, row in enumerate(rows):
                    self._out.row(row)[:] = _bytes_of(page_of(begin + at))
                stored += self._wait(lambda names, done: self._link.store(names, rows, done, after=after), names)
            except ValueError:  # closed meanwhile: its rows are gone
                return stored + [False] * (len(keys) - len(stored))
            finally:
                self._out.give_back(rows)
            after = names[-1]
        return stored

    def _wait(self, ask, names):
        """Every job has a deadline of its own, so that this ends."""
        if self._link is None or not names:
            return [False] * len(names)
        ended, results = threading.Event(), []

        def done(found):
            results.extend(found)
            ended.set()

        ask(names, done)
        ended.wait()
        return results


class _Outgoing(Rows):
    """Rows that we write and the daemon reads. A row is used again only when its job was reported: a daemon that is late by then finds the connection closed."""

    def __init__(self, rows, stride):
        super().__init__(rows, stride)
        self._free, self._changed = list(range(rows)), threading.Condition()

    def take(self, count):
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            return [self._free.pop() for _ in range(count)]

    def give_back(self, rows):
        with self._changed:
            self._free.extend(rows)
            self._changed.notify_all()


def _name(key):
    """Keys are chains of digests, with a suffix at times."""
    return hashlib.sha256(key.encode()).digest()


def _writable(tensor):
    """The bytes of a tensor that is written. Of one that is not contiguous there is only a copy: a miss."""
    if tensor is None or not tensor.is_contiguous():
        raise ValueError("pages go into contiguous tensors only")
    return _bytes_of(tensor)


def _bytes_of(tensor):
    import torch

    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return memoryview(tensor.view(-1).view(torch.uint8).numpy()).cast("B")
