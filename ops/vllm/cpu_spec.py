"""Lets vLLM's tiered offloading run on its CPU backend, which refuses it: for `ops/vllm-check` alone.

Workers of vLLM copy blocks between a GPU and host memory; here both are host memory, and the copy is a copy.
"""

import time

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    def __init__(self, caches, region):
        self._region, self._done = region, []
        self._pairs = [(one.tensor, region.create_next_worker_view(one.page_size_bytes), one.page_size_bytes) for one in caches.tensors]

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, [(host[int(to), :page], device[int(of), :page]) for device, host, page, of, to in self._all(src_spec, dst_spec)])

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, [(device[int(of), :page], host[int(to), :page]) for device, host, page, of, to in self._all(dst_spec, src_spec)])

    def _all(self, device_spec, host_spec):
        for device, host, page in self._pairs:
            for of, to in zip(device_spec.block_ids, host_spec.block_ids):
                yield device, host, page, of, to

    def _copy(self, job_id, pairs):
        begun = time.perf_counter()
        for to, of in pairs:
            to.copy_(of)
        self._done.append(TransferResult(job_id, True, sum(of.numel() for _, of in pairs), time.perf_counter() - begun))
        return True

    def get_finished(self):
        done, self._done = self._done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._pairs.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            # A first request that is served from a tier runs the attention kernel before anything has asked Linux for the tiles of AMX: the worker would die of SIGILL.
            torch.cpu._init_amx()
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyingWorker(kv_caches, region)
        return self._worker
