"""Files of shared memory: our own, and what a killed engine left.

A file of ours is locked (`flock`) as long as a process lives that has to do with it. The kernel gives locks back however a process ends, and they hold between
containers that share the folder: who gets the lock of a file knows that its owner is dead.
"""

import fcntl
import glob
import json
import logging
import mmap
import os
import uuid

log = logging.getLogger("ragstone_kv")

FOLDER = "/dev/shm"
OURS = "ragstone_kv_"


class SharedFile:
    """A locked file of this process's own."""

    def __init__(self, folder=FOLDER):
        while True:
            self.path = os.path.join(folder, f"{OURS}{os.getpid()}_{uuid.uuid4().hex}")
            self.handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.stat(self.path)
                return
            except OSError:  # who clears leftovers was quicker
                self.close()

    def unlink(self):
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def close(self):
        self.unlink()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class Rows(SharedFile):
    """Rows of shared memory. Those that the daemon writes are new for each connection: one that is stuck and wakes up late writes where nobody looks any more."""

    def __init__(self, rows, stride, folder=FOLDER):
        super().__init__(folder)
        self.rows, self.stride = rows, stride
        try:
            os.posix_fallocate(self.handle, 0, rows * stride)  # full memory is an error here, not a signal later
            self._map = mmap.mmap(self.handle, rows * stride)
        except BaseException:
            super().close()
            raise
        self._view = memoryview(self._map)

    def row(self, row):
        return self._view[row * self.stride : (row + 1) * self.stride]

    def close(self):
        super().close()
        try:
            self._view.release()
            self._map.close()
        except BufferError:
            pass  # somebody still looks at a row: it goes with him


class Mark(SharedFile):
    """Says which region an engine has, so that it can be removed when the engine is dead. vLLM keeps the name of its region, and a `kill -9` leaves it."""

    def __init__(self, region, folder=FOLDER):
        super().__init__(folder)
        at = os.stat(region)
        os.write(self.handle, json.dumps({"region": region, "device": at.st_dev, "inode": at.st_ino}).encode())


def clear_leftovers(folder=FOLDER):
    """Removes the files of dead processes of this user that had marked them. Gives their paths."""
    gone = []
    for path in glob.glob(os.path.join(glob.escape(folder), OURS + "*")):
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_uid != os.geteuid():
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone += _remove_region(os.read(handle, 4096))
            os.unlink(path)
            gone.append(path)
            log.warning("removed %s, which a dead engine left", path)
        except OSError:
            continue  # its owner lives, or somebody else was quicker
        finally:
            os.close(handle)
    return gone


def _remove_region(mark):
    """The region that a mark names, if it is still that file."""
    try:
        mark = json.loads(mark)
        region, at = mark["region"], os.lstat(mark["region"])
        if (at.st_dev, at.st_ino, at.st_uid) == (mark["device"], mark["inode"], os.geteuid()):
            os.unlink(region)
            return [region]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []
