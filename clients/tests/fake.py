"""A daemon of a few lines, which can be told to misbehave; and vLLM and SGLang as far as the clients know them."""

import json
import os
import socket
import struct
import sys
import threading
import types
from abc import ABC
from dataclasses import dataclass, field
from enum import Enum, auto


class Daemon:
    """Blocks in a dictionary. Answers wait for `go`; `refuse` answers every job with an error, `garbage` each operation with what it has for it."""

    def __init__(self, path):
        self.path, self.blocks, self.hellos, self.requests = path, {}, [], []
        self.go, self.refuse, self.lose, self.garbage = threading.Event(), None, set(), {}
        self.go.set()
        self._start()

    def _start(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._clients = []
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            self._clients.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def kill(self):
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is dead
        self._listener.close()
        for client in self._clients:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            client.close()

    def restart(self):
        self._start()

    def _serve(self, client):
        try:
            hello = _read(client)
            assert hello["op"] == "hello" and hello["version"] == 1, hello
            files = {name: os.open(hello[name]["path"], os.O_RDWR) for name in ("region", "staging")}
            self.hellos.append(hello)
            _write(client, self.garbage["hello"] if "hello" in self.garbage else {"re": "hello", "version": 1, "namespace": "00" * 32, "limits": {"message_bytes": 1 << 20, "keys": 4096, "jobs": 4}})
            store = self.blocks.setdefault(json.dumps(hello["namespace"], sort_keys=True), {})
            while True:
                request = _read(client)
                self.requests.append(request)
                self.go.wait()
                garbage = request["op"] in self.garbage
                _write(client, self.garbage[request["op"]] if garbage else self._answer(request, hello, files, store))
        except (OSError, EOFError):
            pass

    def _answer(self, request, hello, files, store):
        op, answer = request["op"], {"re": request["op"], "id": request["id"]}
        if self.refuse and op in ("store", "load"):
            return {"re": "error", "id": request["id"], "kind": self.refuse, "message": "no"}
        size = hello["block_bytes"]
        if op == "has":
            answer["has"] = [key in store for key in request["keys"]]
        elif op == "store":
            for key, row in zip(request["keys"], request["rows"]):
                store[key] = os.pread(files["region"], size, row * hello["region"]["stride"])
            answer["stored"] = ["accepted"] * len(request["keys"])
        elif op == "load":
            answer["loaded"] = []
            for key, row in zip(request["keys"], request["rows"]):
                has = key in store and key not in self.lose
                if has:
                    os.pwrite(files["staging"], store[key], row * hello["staging"]["stride"])
                answer["loaded"].append(has)
        elif op == "release":
            answer["released"] = len(request["keys"])
        return answer


def _read(client):
    def exactly(count):
        found = b""
        while len(found) < count:
            piece = client.recv(count - len(found))
            if not piece:
                raise EOFError
            found += piece
        return found

    return json.loads(exactly(struct.unpack("<I", exactly(4))[0]))


def _write(client, message):
    body = json.dumps(message).encode()
    client.sendall(struct.pack("<I", len(body)) + body)


def install_vllm(version="0.32.0"):
    """The parts of vLLM that the tier imports."""

    class LookupResult(Enum):
        MISS = auto()
        HIT = auto()
        HIT_PENDING = auto()
        RETRY = auto()

    class Medium(Enum):
        CPU = "CPU"
        STORAGE = "STORAGE"

    @dataclass(frozen=True)
    class OffloadingCounterMetadata:
        documentation: str
        labelnames: tuple = ()

    @dataclass
    class RequestOffloadingContext:
        policy: str = "chunk_level"

    @dataclass
    class JobResult:
        job_id: int
        success: bool
        successful_keys: object = None
        transfer_time: float | None = None
        transfer_bytes: int | None = None

    class SecondaryTierManager(ABC):
        def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
            self._offloading_spec, self._primary_kv_view, self.tier_type = offloading_spec, primary_kv_view, tier_type
            self._block_size_bytes = primary_kv_view.strides[0]

    class OffloadingConnectorStats:
        def __init__(self):
            self.counters = {}

        def increase_counter(self, name, value=1, labelvalues=()):
            self.counters[name] = self.counters.get(name, 0) + value

    modules = {
        "vllm": {"__version__": version},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_cpu=lambda: True)},
        "vllm.v1": {},
        "vllm.v1.kv_offload": {},
        "vllm.v1.kv_offload.base": {
            "LookupResult": LookupResult,
            "Medium": Medium,
            "OffloadingCounterMetadata": OffloadingCounterMetadata,
            "RequestOffloadingContext": RequestOffloadingContext,
        },
        "vllm.v1.kv_offload.tiering": {},
        "vllm.v1.kv_offload.tiering.base": {"JobResult": JobResult, "SecondaryTierManager": SecondaryTierManager},
        "vllm.distributed": {},
        "vllm.distributed.kv_transfer": {},
        "vllm.distributed.kv_transfer.kv_connector": {},
        "vllm.distributed.kv_transfer.kv_connector.v1": {},
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading": {},
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": {"OffloadingConnectorStats": OffloadingConnectorStats},
    }
    _install(modules)


class Tensor:
    """As much of a tensor as the SGLang client uses: flat bytes."""

    def __init__(self, data, contiguous=True):
        self.data, self._is_contiguous = data, contiguous

    def numel(self):
        return len(self.data)

    def element_size(self):
        return 1

    def is_contiguous(self):
        return self._is_contiguous

    def contiguous(self):
        return Tensor(bytearray(self.data))

    def view(self, _):
        return self

    def numpy(self):
        return self.data


def install_sglang():
    class HiCacheStorage(ABC):
        def register_mem_pool_host(self, mem_pool_host):
            self.mem_pool_host = mem_pool_host

    modules = {
        "torch": {"uint8": "uint8"},
        "sglang": {"__version__": "0.5.23"},
        "sglang.srt": {},
        "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.hicache_storage": {"HiCacheStorage": HiCacheStorage},
    }
    _install(modules)


def _install(modules):
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        sys.modules[name] = module


@dataclass
class Job:
    job_id: int
    keys: list
    chunk_ids: list
    req_context: object = None
    is_promotion: bool = False


@dataclass
class Request:
    req_id: str
    state: dict = field(default_factory=dict)
