"""`RagstoneTier`: see README.md for what it does, and for what it does not.

vLLM calls every method here from its scheduler's thread; none of them waits for the daemon. The link's thread answers by queues that the scheduler empties.
"""

import hashlib
import json
import logging
import os
import queue
import time
from dataclasses import dataclass, field

import vllm
from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadingCounterMetadata, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ragstone_kv import Link, Mark, Region, has_weights, instruction_set, weights_digest
from ragstone_kv import clear_leftovers as remove_leftovers

log = logging.getLogger("vllm.ragstone")

TESTED = ((0, 30), (0, 33))
METRICS = {
    "breaks": "Connections to the store that ended, because it was gone, refused or took too long.",
    "deadlines": "Jobs that the store did not end in time.",
    "not_loaded": "Blocks that the store had and could not give; they were computed.",
}


@dataclass
class _Known:
    """What is known of a block, as long as a request asks for it."""

    result: LookupResult = LookupResult.RETRY
    requests: set = field(default_factory=set)


class RagstoneTier(SecondaryTierManager):
    """Blocks in `ragstone kv-serve`.

    socket: its socket. weights: the folder of the model's files, if `--model` is none. revision: what `--revision` says, where the hub's cache has several of the model.
    tenant: whose blocks; tenants share nothing. variant: anything that changes KV and is not in the files, such as `--hf-overrides`. staging_bytes: memory in /dev/shm for
    blocks on their way in. deadline_s: how long a job may take, and a second more for each 50 MB of it and of those before it. lookup_s: how long a request waits to hear what
    is stored. clear_leftovers: remove regions in /dev/shm that engines with this tier left when they were killed.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec,
        primary_kv_view,
        tier_type,
        backpressure_detector=None,
        *,
        socket,
        weights=None,
        revision=None,
        tenant="",
        variant="",
        staging_bytes=64 << 20,
        deadline_s=10.0,
        lookup_s=1.0,
        digest_cache=None,
        clear_leftovers=True,
        locality=None,
    ):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config = offloading_spec.config
        if clear_leftovers:
            remove_leftovers()
        _check_version(vllm.__version__)
        rows, stride = len(primary_kv_view), self._block_size_bytes
        # A view of rows cannot be indexed by row; one of bytes can be cut.
        self._rows = primary_kv_view.cast("B")
        folder, region = weights or _folder_of(config.model.name, revision, _model_config(offloading_spec)), region_path(offloading_spec)
        self._known, self._of_request, self._to_ask, self._loading = {}, {}, [], {}
        self._answers, self._finished = queue.SimpleQueue(), queue.SimpleQueue()
        self._last_stored, self._asked, self._jobs, self._reported = {}, 0, 0, {}
        self._not_loaded, self._mark = 0, _mark(region)
        self._link = Link(
            socket,
            lambda: namespace_of(config, folder, tenant, variant, digest_cache),
            stride,
            Region(region, rows, stride),
            staging_rows=max(1, min(rows, staging_bytes // stride)),
            deadline_s=deadline_s,
            lookup_s=lookup_s,
        )

    # Look-ups: a batch a step, answered in a later one.

    def lookup(self, key, req_context):
        self._take_answers()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
            self._to_ask.append(key)
        known.requests.add(req_context.req_id)
        self._of_request.setdefault(req_context.req_id, set()).add(key)
        return known.result

    def on_schedule_end(self, context):
        self._take_answers()
        keys, self._to_ask = [key for key in self._to_ask if key in self._known], []
        if keys:
            self._asked += 1
            self._link.has(keys, lambda has: self._answers.put((keys, has)))

    def _take_answers(self):
        while True:
            try:
                keys, has = self._answers.get_nowait()
            except queue.Empty:
                return
            self._asked -= 1
            for key, is_there in zip(keys, has):
                known = self._known.get(key)
                if known is not None and known.result is LookupResult.RETRY:
                    known.result = LookupResult.HIT if is_there else LookupResult.MISS

    def on_new_request(self, req_context):
        return RequestOffloadingContext()

    def on_request_finished(self, req_context):
        self._last_stored.pop(req_context.req_id, None)
        unused = []
        for key in self._of_request.pop(req_context.req_id, ()):
            known = self._known.get(key)
            if known is None:
                continue
            known.requests.discard(req_context.req_id)
            if not known.requests:
                del self._known[key]
                if known.result is LookupResult.HIT:
                    unused.append(key)
        if unused:
            self._link.release(unused)

    # Jobs.

    def submit_store(self, job_metadata):
        job, begun = job_metadata, time.monotonic()
        keys = list(job.keys)
        request = getattr(job.req_context, "req_id", None)
        after = self._last_stored.get(request)
        if request is not None and keys:
            self._last_stored[request] = keys[-1]
        self._jobs += 1

        def done(stored):
            spent = time.monotonic() - begun
            self._finished.put(JobResult(job.job_id, all(stored), None, spent, sum(stored) * self._block_size_bytes))

        self._link.store(keys, [int(row) for row in job.chunk_ids], done, after=after)

    def submit_load(self, job_metadata):
        job, begun = job_metadata, time.monotonic()
        keys, rows = list(job.keys), [int(row) for row in job.chunk_ids]
        size = self._block_size_bytes
        self._jobs += 1

        def take(at, block):
            self._rows[rows[at] * size : (rows[at] + 1) * size] = block

        def done(loaded):
            spent, whole = time.monotonic() - begun, all(loaded)
            came = [key for key, has in zip(keys, loaded) if has]
            self._finished.put(JobResult(job.job_id, whole, None if whole else came, spent, len(came) * size))

        self._loading[job.job_id] = keys
        self._link.load(keys, take, done)

    def get_finished_jobs(self):
        found = []
        while True:
            try:
                result = self._finished.get_nowait()
            except queue.Empty:
                return found
            self._jobs -= 1
            keys = self._loading.pop(result.job_id, None)
            if keys is not None:
                came = set(keys if result.success else result.successful_keys or ())
                for key in keys:
                    known = self._known.get(key)
                    if key not in came:
                        self._not_loaded += 1
                        if known is not None:
                            # Else the scheduler would ask for it again and again.
                            known.result = LookupResult.MISS
            found.append(result)

    def has_pending_work(self):
        return self._jobs > 0 or self._asked > 0 or bool(self._to_ask)

    def drain_jobs(self):
        # Every job has a deadline, so that this ends.
        self._link.wait()

    def shutdown(self):
        self._link.close()
        self._rows.release()
        if self._mark is not None:
            self._mark.close()

    # What people watch.

    @classmethod
    def build_metric_definitions(cls, extra_config):
        return {f"vllm:ragstone_{name}": OffloadingCounterMetadata(documentation=text, labelnames=("tier",)) for name, text in METRICS.items()}

    def get_stats(self):
        now = {"breaks": self._link.counts["breaks"], "deadlines": self._link.counts["deadlines"], "not_loaded": self._not_loaded}
        new = {name: count - self._reported.get(name, 0) for name, count in now.items()}
        self._reported = now
        return _stats({name: count for name, count in new.items() if count}, self.tier_type)


def namespace_of(config, folder, tenant, variant, digest_cache=None):
    """What shapes the bytes of a row: docs/kv-protocol.md. A row has the parts of all ranks, so that its rank is 0 of 1 and the topology is part of the layout."""
    parallel, cache = config.parallel, config.cache
    layout = {
        "name": getattr(config, "kv_cache_layout", None),
        "canonical": getattr(config, "canonical_layout", False),
        "replicated": getattr(config, "replicated_layout", False),
        "topology": [parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "variant": variant,
    }
    groups = {
        "tokens_per_hash": cache.tokens_per_hash,
        "blocks_per_chunk": cache.blocks_per_chunk,
        "bytes_per_block": config.worker_kv_bytes_per_block,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
    }
    groups = json.dumps(groups, sort_keys=True)
    return {
        "weights": weights_digest(folder, digest_cache),
        "dtype": str(config.model.dtype),
        "layout": json.dumps(layout, sort_keys=True),
        # Models of a hundred layers have long lists of names.
        "groups": "sha256:" + hashlib.sha256(groups.encode()).hexdigest(),
        "parallel_rank": 0,
        "parallel_size": 1,
        "isa": instruction_set() if _is_cpu() else "",
        "tenant": tenant,
        "engine": "vllm",
        "engine_version": vllm.__version__,
    }


def region_path(spec):
    """The file behind vLLM's host region."""
    region = getattr(spec, "_scheduler_mmap", None)
    return getattr(region, "mmap_path", None) or f"/dev/shm/vllm_offload_{spec.config.engine_id}.mmap"


def _model_config(spec):
    """vLLM's own of the model, where a tier can have it: to 0.33 its configuration says neither revision nor download folder."""
    return getattr(getattr(spec, "vllm_config", None), "model_config", None)


def _folder_of(model, revision, model_config):
    """The files that vLLM has loaded: never those of another revision, whose KV would be taken for this one's."""
    if os.path.isdir(model):
        return model
    if revision is None:
        revision = getattr(model_config, "revision", None)
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(model, revision=revision, local_files_only=True)
    except Exception as error:
        raise ValueError(f"where are the files of {model}? Set `weights` of the tier to their folder, or `revision` to what --revision says") from error
    if revision is None and model_config is None and _others(folder):
        raise ValueError(f"the hub's cache has several revisions of {model}: set `revision` of the tier to what --revision says (`main` without it), or `weights` to the files' folder")
    return folder


def _others(folder):
    """Other revisions with weights beside one, as the hub's cache has them: a folder each."""
    above, name = os.path.split(os.path.normpath(folder))
    return [other for other in os.listdir(above) if other != name and has_weights(os.path.join(above, other))]


def _mark(region):
    try:
        return Mark(region)
    except OSError as error:
        log.warning("a kill would leave %s: %s", region, error)
        return None


def _is_cpu():
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _check_version(text):
    try:
        version = tuple(int(part) for part in text.split(".")[:2])
    except ValueError:
        return
    if not TESTED[0] <= version <= TESTED[1]:
        log.warning("vLLM %s: this tier was written for %d.%d to %d.%d; its interface may have changed", text, *TESTED[0], *TESTED[1])


def _stats(new, tier):
    if not new:
        return None
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats = OffloadingConnectorStats()
        for name, count in new.items():
            stats.increase_counter(f"vllm:ragstone_{name}", count, (tier,))
        return stats
    except Exception:  # an interface that changes; counts are not worth a request
        return None
