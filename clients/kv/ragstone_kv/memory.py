"""Files of shared memory: one of our own, and what killed engines left."""

import glob
import mmap
import os
import time
import uuid

FOLDER = "/dev/shm"
OURS = "ragstone_kv_"
# What a `kill -9` leaves: vLLM keeps the path of its region as long as it runs.
LEFT = ("vllm_offload_*.mmap", OURS + "*")
LEAST_AGE_S = 60


class Staging:
    """Rows that the daemon writes and we read. Each connection has its own: a daemon that is stuck and wakes up late writes where nobody looks any more."""

    def __init__(self, rows, stride, folder=FOLDER):
        self.rows, self.stride = rows, stride
        self.path = os.path.join(folder, f"{OURS}{os.getpid()}_{uuid.uuid4().hex}")
        handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(handle, rows * stride)
            self._map = mmap.mmap(handle, rows * stride, prot=mmap.PROT_READ)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(handle)
        self.view = memoryview(self._map)

    def unlink(self):
        """Once the daemon has opened it nobody needs its name, and a kill leaves nothing."""
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def close(self):
        self.unlink()
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # somebody still looks at a row: it goes with him


def clear_leftovers(folder=FOLDER, now=None):
    """Removes regions whose engine is dead: of this user, older than a minute, mapped and opened by no process. Gives their paths.

    Processes of other containers are not seen. Where containers share the folder, do not call it.
    """
    now = time.time() if now is None else now
    found = []
    for pattern in LEFT:
        for path in glob.glob(os.path.join(folder, pattern)):
            try:
                at = os.lstat(path)
            except OSError:
                continue
            if at.st_uid == os.geteuid() and now - max(at.st_mtime, at.st_ctime) > LEAST_AGE_S:
                found.append((path, at))
    if not found:
        return []
    used = _used()
    if used is None:
        return []
    gone = []
    for path, at in found:
        if (at.st_dev, at.st_ino) in used:
            continue
        try:
            os.unlink(path)
            gone.append(path)
        except OSError:
            pass
    return gone


def _used():
    """(device, inode) of every file that a process of this user has mapped or open; `None` if one of them cannot be asked."""
    used = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid() and os.geteuid() != 0:
                continue
            with open(f"/proc/{pid}/maps") as maps:
                for line in maps:
                    fields = line.split(maxsplit=5)
                    major, minor = fields[3].split(":")
                    used.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
            for handle in os.listdir(f"/proc/{pid}/fd"):
                try:
                    at = os.stat(f"/proc/{pid}/fd/{handle}")
                    used.add((at.st_dev, at.st_ino))
                except OSError:
                    continue
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
    return used
