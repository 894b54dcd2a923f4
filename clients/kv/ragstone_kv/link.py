"""A connection to the daemon that never blocks who uses it, and never hands on a wrong byte.

One thread does everything: it connects, asks, reads answers, copies what was loaded, and gives up what takes too long. Three rules keep the engine's memory right
whatever the daemon does (it may be stopped at any instruction, and go on an hour later):

- A store that takes too long: the connection is shut down first, and only then reported as failed. The daemon looks, after it has copied a row, whether the connection
  is still there. So a row that the engine uses again is never taken for the block that it held. Closing alone is not enough: a process that was forked meanwhile has the
  same socket, and the daemon would see no end.
- A load goes into staging memory of this connection, and is copied from there by this thread, if nobody has given it up. So a late daemon writes into nobody's rows.
- Whatever fails, or is looked for too long, is a miss. After a failure the link waits before it connects again, longer each time, and everything asked meanwhile is a miss at once.
"""

import collections
import json
import logging
import os
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from .memory import FOLDER, Rows

log = logging.getLogger("ragstone_kv")

VERSION = 1
MOST_MESSAGE = 1 << 20
# Keys in a message: far below the daemon's bound, so that look-ups come between long jobs.
PART = 512
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
CONNECT_S = 2.0


@dataclass(frozen=True)
class Region:
    """The engine's memory, as a file: rows of `stride` bytes."""

    path: str
    rows: int
    stride: int


@dataclass
class _Job:
    """What was asked for, in one or more messages."""

    kind: str
    keys: list
    done: object
    deadline: float = 0.0
    rows: list = field(default_factory=list)
    take: object = None
    after: bytes | None = None
    results: list = field(default_factory=list)
    left: int = 0
    moved: int = 0  # bytes that it moves
    ended: bool = False
    told: bool = False  # that who takes its blocks failed


@dataclass(eq=False)
class _Part:
    """One message of a job."""

    job: _Job
    begin: int
    end: int
    slots: list = field(default_factory=list)


class Link:
    """`identify()` gives the namespace, as docs/kv-protocol.md has it; it may take long, and is called once, in a thread of its own.

    Callbacks run in the link's thread; once it is closed, in that of who asks. `done(results)` is called exactly once for each call: a list with a bool for each key.
    """

    def __init__(self, path, identify, block_bytes, region, *, staging_rows=64, deadline_s=10.0, lookup_s=1.0, folder=FOLDER, clock=time.monotonic):
        self._path, self._block, self._region = os.path.abspath(path), block_bytes, region
        self._staging_rows, self._deadline_s, self._lookup_s = staging_rows, deadline_s, lookup_s
        self._folder, self._clock = folder, clock
        self._namespace, self._identity = None, threading.Thread(target=self._identify, args=(identify,), daemon=True)
        self._inbox, self._lock = collections.deque(), threading.Lock()
        self._open, self._moving = 0, 0  # jobs that are not reported yet, and their bytes
        self._idle = threading.Condition(self._lock)
        self._closing, self._ended = False, False
        # Of the thread alone:
        self._socket, self._staging, self._pause, self._retry_at = None, None, FIRST_PAUSE_S, 0.0
        self._in, self._out = bytearray(), bytearray()
        self._parts, self._waiting, self._free, self._next, self._most_jobs = {}, collections.deque(), [], 0, 1
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self.counts = collections.Counter()
        self._thread = threading.Thread(target=self._run, name="ragstone-kv", daemon=True)
        self._identity.start()
        self._thread.start()

    # What an engine calls, from any thread.

    def has(self, keys, done):
        """Which blocks are stored; those are kept for a minute."""
        self._submit(_Job("has", list(keys), done))

    def store(self, keys, rows, done, after=None):
        """Stores rows of the region, which must not change until `done`. Keys in the order of the chain, `after` before the first."""
        self._submit(_Job("store", list(keys), done, rows=[int(row) for row in rows], after=after))

    def load(self, keys, take, done):
        """Loads blocks: `take(index, bytes)` for each that came, before `done`. The bytes are valid during the call only; a block whose `take` raises is a miss."""
        self._submit(_Job("load", list(keys), done, take=take))

    def release(self, keys):
        """What `has` keeps is not needed."""
        self._submit(_Job("release", list(keys), lambda _: None))

    @property
    def is_up(self):
        return self._socket is not None

    def wait(self, timeout=None):
        """Until everything that was asked has been reported; whether it has."""
        with self._idle:
            return self._idle.wait_for(lambda: self._open == 0, timeout)

    def close(self, timeout=5.0):
        """Lets jobs end, for `timeout` at most; those that do not have failed."""
        self.wait(timeout)
        self._closing = True
        self._wake()
        self._thread.join()

    def _submit(self, job):
        job.moved = len(job.keys) * self._block if job.kind in ("store", "load") else 0
        job.results = [False] * len(job.keys)
        with self._lock:
            self._open += 1
            self._moving += job.moved
            # A slow disk moves 50 MB/s, and what was asked for before has its turn first.
            job.deadline = self._clock() + (self._lookup_s if job.kind == "has" else self._deadline_s + self._moving / 50e6)
            is_late = self._ended
            if not is_late:
                self._inbox.append(job)
        if is_late:
            self._end(job)
        else:
            self._wake()

    def _wake(self):
        try:
            self._wake_out.send(b"x")
        except (BlockingIOError, OSError):
            pass  # it is awake

    # The thread.

    def _identify(self, identify):
        try:
            self._namespace = identify()
        except Exception:
            log.exception("the model's identity is unknown; nothing is stored and nothing is found")
        self._wake()

    def _run(self):
        while True:
            try:
                self._turn()
            except Exception as error:  # a fault of the daemon's, or ours: never the engine's
                log.exception("the link to the store failed")
                self._break(f"{error}")
            if self._closing:
                break
        self._break("closed")
        with self._lock:
            self._ended = True  # from now on nothing comes in
        self._take_in()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _turn(self):
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._wake_in:
                try:
                    while self._wake_in.recv(4096):
                        pass
                except BlockingIOError:
                    pass
            elif key.fileobj is self._socket:
                if events & selectors.EVENT_READ:
                    self._receive()
                if events & selectors.EVENT_WRITE and self._socket is not None:
                    self._flush()
        self._take_in()
        self._give_up(self._clock())
        self._send_waiting()

    def _give_up(self, now):
        late = [part.job for part in (*self._parts.values(), *self._waiting) if part.job.deadline <= now]
        for job in late:
            self.counts["deadlines"] += not job.ended
            if job.kind == "has" and not job.ended:
                # A slow bucket, say. Nobody's memory is at stake: a miss, and the answer may come when it likes.
                self._end(job)
                job.deadline = now + self._deadline_s
        if any(job.deadline <= now for job in late):
            self._break("a job took too long")

    def _patience(self):
        jobs = [part.job.deadline for part in (*self._parts.values(), *self._waiting)]
        return max(0.0, min(jobs) - self._clock()) if jobs else None

    def _take_in(self):
        while self._inbox:
            job = self._inbox.popleft()
            if not job.keys or self._closing or not self._ready():
                self._end(job)
                continue
            size = PART if job.kind != "load" else min(PART, self._staging_rows)
            parts = [_Part(job, at, min(at + size, len(job.keys))) for at in range(0, len(job.keys), size)]
            job.left = len(parts)
            self._waiting.extend(parts)

    def _ready(self):
        if self._socket is not None:
            return True
        if self._namespace is None or self._clock() < self._retry_at:
            return False
        try:
            self._connect()
            return True
        except Exception as error:  # a daemon may answer anything
            self._break(f"{error}")
            return False

    def _connect(self):
        self._staging = Rows(self._staging_rows, self._block, self._folder)
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(CONNECT_S)
            stream.connect(self._path)
            region, staging = self._region, self._staging
            hello = {
                "op": "hello",
                "version": VERSION,
                "namespace": self._namespace,
                "block_bytes": self._block,
                "region": {"path": region.path, "rows": region.rows, "stride": region.stride},
                "staging": {"path": staging.path, "rows": staging.rows, "stride": staging.stride},
            }
            stream.sendall(_frame(hello))
            reply = json.loads(_exactly(stream, struct.unpack("<I", _exactly(stream, 4))[0]))
            if reply.get("re") != "hello":
                raise ValueError(f"the daemon refused: {reply.get('message', reply)}")
            self._most_jobs = int(reply["limits"]["jobs"])
            stream.setblocking(False)
        except BaseException:
            stream.close()
            raise
        self._staging.unlink()
        self._socket, self._free = stream, list(range(self._staging_rows))
        self._in.clear()
        self._out.clear()
        self._selector.register(stream, selectors.EVENT_READ)
        log.info("connected to the store at %s, namespace %s", self._path, reply["namespace"][:12])

    def _break(self, why):
        """The connection ends, before anything is reported: see the first rule."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            try:
                # A process that was forked has the socket, too: the daemon sees its end only so.
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the daemon was quicker
            self._socket.close()
            self._socket = None
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        if not self._closing:
            self.counts["breaks"] += 1
            self._retry_at = self._clock() + self._pause
            log.warning("no connection to the store: %s; misses for %.1f s", why, self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        jobs = {id(part.job): part.job for part in (*self._parts.values(), *self._waiting)}
        self._parts.clear()
        self._waiting.clear()
        for job in jobs.values():
            self._end(job)

    def _end(self, job):
        if job.ended:
            return
        job.ended = True
        try:
            job.done(list(job.results))
        except Exception:
            log.exception("what was to hear of a result failed")
        with self._idle:
            self._open -= 1
            self._moving -= job.moved
            self._idle.notify_all()

    def _send_waiting(self):
        jobs = sum(part.job.kind in ("store", "load") for part in self._parts.values())
        blocked = False
        for part in list(self._waiting):
            if self._socket is None:
                return  # what waited has failed with it
            is_job, count = part.job.kind in ("store", "load"), part.end - part.begin
            # Look-ups overtake; jobs stay in their order.
            if is_job and (blocked or jobs >= self._most_jobs or (part.job.kind == "load" and len(self._free) < count)):
                blocked = True
                continue
            jobs += is_job
            self._waiting.remove(part)
            self._send(part)

    def _send(self, part):
        job, self._next = part.job, self._next + 1
        self._parts[self._next] = part  # first: whatever fails below, its job ends
        request = {"op": job.kind, "id": self._next, "keys": [key.hex() for key in job.keys[part.begin : part.end]]}
        if job.kind == "has":
            request["pin"] = True
        elif job.kind == "store":
            request["rows"] = job.rows[part.begin : part.end]
            after = job.after if part.begin == 0 else job.keys[part.begin - 1]
            if after is not None:
                request["after"] = after.hex()
        elif job.kind == "load":
            part.slots = [self._free.pop() for _ in range(part.begin, part.end)]
            request["rows"] = part.slots
        self._out += _frame(request)
        self._flush()

    def _flush(self):
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            return self._break(f"{error}")
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._socket, events)

    def _receive(self):
        try:
            piece = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            return self._break(f"{error}")
        if not piece:
            return self._break("the daemon is gone")
        self._in += piece
        while self._socket is not None and len(self._in) >= 4:
            length = struct.unpack_from("<I", self._in)[0]
            if not 0 < length <= MOST_MESSAGE:
                return self._break("the daemon speaks another language")
            if len(self._in) < 4 + length:
                return
            try:
                reply = json.loads(bytes(self._in[4 : 4 + length]))
            except ValueError:
                reply = None
            if not isinstance(reply, dict):
                return self._break("the daemon speaks another language")
            del self._in[: 4 + length]
            self._answered(reply)

    def _answered(self, reply):
        # It stays among the parts until it was applied: whatever fails, its job ends.
        part = self._parts.get(reply.get("id"))
        if reply.get("re") == "error":
            log.warning("the store says: %s", reply.get("message"))
            self.counts["errors"] += 1
            if reply.get("kind") == "protocol" or part is None:
                return self._break("the daemon refused a request")
        elif part is None:
            return self._break("the daemon answered what was not asked")
        self._pause = FIRST_PAUSE_S
        self._apply(part, reply)
        del self._parts[reply["id"]]
        self._free.extend(part.slots)
        part.job.left -= 1
        if part.job.left == 0:
            self._end(part.job)

    def _apply(self, part, reply):
        job, count = part.job, part.end - part.begin
        if job.ended:
            return  # its rows are somebody else's now
        if job.kind == "has":
            results = reply.get("has")
        elif job.kind == "store":
            results = [one in ("present", "accepted") for one in reply.get("stored", ())]
        elif job.kind == "load":
            results = reply.get("loaded")
        else:
            return
        if reply.get("re") != job.kind or results is None or len(results) != count:
            return  # misses
        for at, has in enumerate(results):
            is_there = has is True
            if is_there and job.kind == "load":
                is_there = _taken(job, part.begin + at, self._staging.row(part.slots[at]))
            job.results[part.begin + at] = is_there


def _taken(job, at, block):
    """Hands a block on; whether it was taken."""
    try:
        job.take(at, block)
        return True
    except Exception:
        if not job.told:
            log.exception("what was to take a block failed; such blocks are misses")
        job.told = True
        return False


def _frame(message):
    body = json.dumps(message).encode()
    return struct.pack("<I", len(body)) + body


def _exactly(stream, count):
    if count > MOST_MESSAGE:
        raise ValueError("the daemon speaks another language")
    found = bytearray()
    while len(found) < count:
        piece = stream.recv(count - len(found))
        if not piece:
            raise OSError("the daemon ended the connection")
        found += piece
    return bytes(found)
