"""The clients against a fake daemon, and against the real one where RAGSTONE names the program."""

import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import uuid
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kv"), str(HERE.parent / "vllm"), str(HERE.parent / "sglang")]

import fake  # noqa: E402

fake.install_vllm()
fake.install_sglang()

from ragstone_kv import Link, Region, clear_leftovers, weights_digest  # noqa: E402
from ragstone_kv.identity import instruction_set  # noqa: E402
from ragstone_sglang import RagstoneHiCache  # noqa: E402
from ragstone_vllm import RagstoneTier, tier as tier_module  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult  # noqa: E402

ROWS, STRIDE = 8, 4096
PROGRAM = os.environ.get("RAGSTONE")


def block(number):
    return bytes((at * 7 + number) % 256 for at in range(STRIDE))


def key(number):
    return number.to_bytes(32, "big") + b"\0\0\0\1"


def until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.002)


class Place(unittest.TestCase):
    """A folder with a model, a region, a daemon."""

    real = False

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kv")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.socket = str(self.dir / "s")
        self.model = self.dir / "model"
        self.model.mkdir()
        (self.model / "model.safetensors").write_bytes(b"weights")
        (self.model / "config.json").write_text("{}")
        self.start()
        self.addCleanup(self.stop)

    def start(self):
        if not self.real:
            self.daemon = fake.Daemon(self.socket) if not hasattr(self, "daemon") else self.daemon
            return
        command = [PROGRAM, "kv-serve", "--socket", self.socket, "--data-dir", str(self.dir / "data"), "--disk-bytes", "64MiB"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertIn("listening", self.process.stdout.readline())

    def stop(self):
        if self.real:
            self.process.stdin.close()
            if "kv_serve" not in Path(PROGRAM).name:  # the example ends when its input does
                self.process.terminate()
            self.process.wait(60)
            self.process.stdout.close()
        else:
            self.daemon.kill()

    def restart(self):
        self.stop()
        if self.real:
            self.start()
        else:
            self.daemon.restart()

    def region(self, name="region"):
        path = self.dir / name
        path.write_bytes(bytes(ROWS * STRIDE))
        with open(path, "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        self.addCleanup(lambda: (mapped.flush(),))
        return str(path), mapped


class LinkTests(Place):
    def link(self, name="region", **settings):
        path, self.memory = self.region(name)
        namespace = {name: "x" for name in ("dtype", "layout", "groups", "isa", "tenant", "engine", "engine_version")}
        namespace.update(weights="ab" * 32, parallel_rank=0, parallel_size=1)
        settings = {"staging_rows": 3, "deadline_s": 60.0, "lookup_s": 1.0 if "deadline_s" in settings else 60.0, **settings}
        link = Link(self.socket, lambda: namespace, STRIDE, Region(path, ROWS, STRIDE), **settings)
        self.addCleanup(link.close)
        until(lambda: link._namespace is not None)
        return link

    def ask(self, ask, *arguments, **named):
        ended, results = threading.Event(), []
        ask(*arguments, lambda found: (results.extend(found), ended.set()), **named)
        self.assertTrue(ended.wait(60))
        return results

    def put(self, numbers):
        for row, number in enumerate(numbers):
            self.memory[row * STRIDE : (row + 1) * STRIDE] = block(number)
        return [key(number) for number in numbers], list(range(len(numbers)))

    def loaded(self, link, numbers):
        came = {}
        has = self.ask(link.load, [key(number) for number in numbers], lambda at, view: came.__setitem__(at, bytes(view)))
        self.assertEqual(came, {at: block(numbers[at]) for at, is_there in enumerate(has) if is_there})
        return has

    def test_what_is_stored_comes_back_more_than_fit_into_staging_at_once(self):
        link = self.link()
        self.assertEqual(self.ask(link.store, *self.put(range(8))), [True] * 8)
        self.assertEqual(self.ask(link.has, [key(3), key(99)]), [True, False])
        self.assertEqual(self.loaded(link, [7, 99, 1, 2, 3, 4, 5, 6]), [True, False] + [True] * 6)
        link.release([key(1)])
        self.assertTrue(link.wait(60))

    def test_a_daemon_that_comes_back_is_found_again(self):
        link = self.link()
        self.ask(link.store, *self.put([1]))
        self.restart()
        # The first to notice may fail; then there is a pause; none of it is an error.
        until(lambda: self.loaded(link, [1]) == [True])
        self.assertGreater(link.counts["breaks"], 0)

    def test_nothing_stays_in_shared_memory(self):
        before = set(os.listdir("/dev/shm"))
        link = self.link()
        self.ask(link.store, *self.put([1]))
        self.assertLessEqual(set(os.listdir("/dev/shm")), before)


class FakeLinkTests(LinkTests):
    def test_a_store_that_takes_too_long_is_reported_after_the_connection_ended(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0], deadline_s=5.0)
        self.ask(link.store, *self.put([1]))
        self.daemon.go.clear()
        results, states = [], []
        link.store(*self.put([2]), lambda found: (states.append(link.is_up), results.extend(found)))
        until(lambda: len(self.daemon.requests) == 2)
        clock[0] = 100.0
        link._wake()
        self.assertTrue(link.wait(60))
        self.assertEqual((results, states, link.counts["deadlines"]), ([False], [False], 1))
        self.daemon.go.set()
        clock[0] = 200.0
        self.assertEqual(self.loaded(link, [1]), [True])

    def test_a_forked_process_does_not_keep_a_connection_open_that_was_given_up(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0], deadline_s=5.0)
        self.ask(link.store, *self.put([1]))
        held = os.dup(link._socket.fileno())  # as a process that was forked has it
        self.addCleanup(os.close, held)
        self.daemon.go.clear()
        states, ends = [], select.poll()
        ends.register(self.daemon._clients[-1], select.POLLRDHUP)
        self.assertEqual(ends.poll(0), [])
        link.store(*self.put([2]), lambda found: states.append(bool(ends.poll(0))))
        until(lambda: len(self.daemon.requests) == 2)
        clock[0] = 100.0
        link._wake()
        self.assertTrue(link.wait(60))
        self.assertEqual(states, [True], "the daemon sees the end before the store is reported")
        self.daemon.go.set()

    def test_a_callback_that_raises_costs_its_block(self):
        link = self.link()
        self.ask(link.store, *self.put([1, 2, 3]))

        def take(at, _):
            if at != 1:
                raise RuntimeError("no room")

        with self.assertLogs("ragstone_kv", "ERROR") as logs:
            self.assertEqual(self.ask(link.load, [key(1), key(2), key(3)], take), [False, True, False])
        self.assertEqual((len(logs.records), link.is_up, link.wait(0)), (1, True, True))
        self.assertEqual(self.loaded(link, [1, 2, 3]), [True] * 3)

    def test_whatever_a_daemon_answers_every_job_ends(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0])
        for op, answers in (
            ("hello", ([], None, {"re": "hello", "namespace": "", "limits": None}, {"re": "hello", "namespace": 1, "limits": {"jobs": 1}})),
            ("load", ([], {"re": "load", "id": []}, {"re": "load", "id": 99}, {"re": "load"})),
        ):
            for answer in answers:
                self.daemon.garbage = {op: answer}
                clock[0] = link._retry_at
                breaks = link.counts["breaks"]
                self.assertEqual(self.ask(link.load, [key(1)], lambda *_: None), [False], answer)
                self.assertTrue(link.wait(60))
                self.assertEqual(link.counts["breaks"], breaks + 1, answer)
        self.daemon.garbage = {}
        clock[0] = link._retry_at
        self.assertEqual(self.ask(link.store, *self.put([1])), [True])

    def test_a_job_has_time_for_those_before_it(self):
        link = self.link(clock=lambda: 0.0, deadline_s=5.0)
        self.ask(link.store, *self.put([1]))
        self.assertTrue(link.wait(60))
        self.daemon.go.clear()
        link._block = 100_000_000  # two seconds each
        for number in (1, 2, 3):
            link.load([key(number)], lambda *_: None, lambda _: None)
        until(lambda: len(link._parts) == 3)
        self.assertEqual([part.job.deadline for part in link._parts.values()], [7.0, 9.0, 11.0])
        self.daemon.go.set()
        self.assertTrue(link.wait(60))
        self.assertEqual(link._moving, 0)

    def test_what_cannot_be_asked_is_a_miss(self):
        link = self.link()
        self.assertEqual(self.ask(link.load, ["no bytes"], lambda *_: None), [False])
        self.assertTrue(link.wait(60))

    def test_what_is_asked_of_a_closed_link_is_a_miss(self):
        link = self.link()
        self.ask(link.store, *self.put([1]))
        link.close()
        self.assertEqual(self.ask(link.has, [key(1)]), [False])
        self.assertEqual(self.ask(link.store, *self.put([1])), [False])
        self.assertTrue(link.wait(0))

    def test_a_late_load_reaches_nobody(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0], deadline_s=5.0)
        self.ask(link.store, *self.put([1]))
        self.daemon.go.clear()
        came, results = [], []
        link.load([key(1)], lambda at, view: came.append(at), results.extend)
        until(lambda: len(self.daemon.requests) == 2)
        clock[0] = 100.0
        link._wake()
        self.assertTrue(link.wait(60))
        self.daemon.go.set()
        clock[0] = 200.0
        self.assertEqual(self.ask(link.has, [key(1)]), [True])
        self.assertEqual((came, results), ([], [False]))

    def test_what_failed_with_its_connection_is_not_sent_over_the_next(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0])
        self.ask(link.store, *self.put(range(6)))
        self.daemon.go.clear()
        came, results = [], []
        # More than fit into staging at once: the second half waits for the first.
        link.load([key(number) for number in range(6)], lambda at, view: came.append(at), results.extend)
        until(lambda: len(self.daemon.requests) == 2)
        link._flush = lambda: link._break("a broken pipe")
        self.assertEqual(self.ask(link.has, [key(1)]), [False])
        self.assertTrue(link.wait(60))
        del link._flush
        self.daemon.go.set()
        clock[0] = 100.0
        self.assertEqual(self.ask(link.has, [key(1)]), [True])
        self.assertEqual((came, results), ([], [False] * 6))
        self.assertEqual([request["op"] for request in self.daemon.requests].count("load"), 1)

    def test_a_slow_look_up_is_a_miss_and_a_stuck_daemon_is_left(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0], deadline_s=5.0)
        self.ask(link.store, *self.put([1]))
        self.daemon.go.clear()
        results = []
        link.has([key(1)], results.extend)
        until(lambda: len(self.daemon.requests) == 2)
        clock[0] = 1.5
        link._wake()
        self.assertTrue(link.wait(60))
        self.assertEqual((results, link.is_up), ([False], True))
        self.daemon.go.set()
        self.assertEqual(self.ask(link.has, [key(1)]), [True])
        self.daemon.go.clear()
        link.has([key(1)], results.extend)
        until(lambda: len(self.daemon.requests) == 4)
        for clock[0] in (10.0, 20.0):
            link._wake()
            self.assertTrue(link.wait(60))
        until(lambda: not link.is_up)
        self.assertEqual(results, [False, False])
        self.daemon.go.set()

    def test_while_the_daemon_is_gone_everything_is_a_miss_at_once_and_pauses_grow(self):
        clock = [0.0]
        link = self.link(clock=lambda: clock[0])
        self.daemon.kill()
        pauses = []
        for _ in range(9):
            self.assertEqual(self.ask(link.has, [key(1)]), [False])
            breaks = link.counts["breaks"]
            self.assertEqual(self.ask(link.store, *self.put([1])), [False])
            self.assertEqual(link.counts["breaks"], breaks, "it is not tried again before the pause is over")
            pauses.append(link._retry_at - clock[0])
            clock[0] = link._retry_at
        self.assertEqual(pauses, [0.5, 1, 2, 4, 8, 16, 30, 30, 30])
        self.daemon.restart()
        self.assertEqual(self.ask(link.store, *self.put([1])), [True])

    def test_partial_loads_and_refusals(self):
        link = self.link()
        self.ask(link.store, *self.put([1, 2, 3]))
        self.daemon.lose = {key(2).hex()}
        self.assertEqual(self.loaded(link, [1, 2, 3]), [True, False, True])
        self.daemon.refuse = "busy"
        self.assertEqual(self.loaded(link, [1]), [False])
        self.assertTrue(link.is_up)
        self.daemon.refuse = "protocol"
        self.assertEqual(self.loaded(link, [1]), [False])
        self.assertFalse(link.is_up)

    def test_a_store_says_what_stands_before(self):
        link = self.link()
        self.ask(link.store, *self.put([1, 2]), after=key(0))
        self.assertEqual(self.daemon.requests[-1]["after"], key(0).hex())

    def test_no_identity_no_store(self):
        def fail():
            raise OSError("unreadable")

        with self.assertLogs("ragstone_kv", "ERROR"):
            link = Link(self.socket, fail, STRIDE, Region(self.region()[0], ROWS, STRIDE))
            link._identity.join()
        self.addCleanup(link.close)
        self.assertEqual(self.ask(link.has, [key(1)]), [False])
        self.assertEqual(self.daemon.hellos, [])


class IdentityTests(Place):
    def digest(self, folder=None):
        return weights_digest(folder or self.model, self.dir / "cache.json")

    def test_content_counts_and_names_and_places_do_not(self):
        first = self.digest()
        self.assertEqual(self.digest(), first)
        other = self.dir / "elsewhere"
        other.mkdir()
        (other / "pytorch_model.bin").write_bytes(b"weights")
        (other / "config.json").write_text("{}")
        self.assertEqual(self.digest(other), first)
        (other / "tokenizer.json").write_text("{}")
        self.assertEqual(self.digest(other), first)
        (other / "config.json").write_text('{"rope": 1}')
        self.assertNotEqual(self.digest(other), first)

    def test_other_weights_at_the_same_path_are_seen_though_size_and_time_are_the_same(self):
        first, path = self.digest(), self.model / "model.safetensors"
        at = path.stat()
        path.write_bytes(b"WEIGHTS")
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
        self.assertNotEqual(self.digest(), first)

    def test_a_state_is_read_once(self):
        self.digest()
        cache = json.loads((self.dir / "cache.json").read_text())
        self.assertEqual(len(cache), 2)
        for stamps in cache.values():
            for stamp in stamps:
                stamps[stamp] = "remembered"
        (self.dir / "cache.json").write_text(json.dumps(cache))
        remembered = self.digest()
        (self.dir / "cache.json").write_text("damaged")
        self.assertNotEqual(self.digest(), remembered)

    def test_a_folder_without_weights_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no weights"):
            self.digest(self.dir)

    def test_instruction_sets(self):
        path = self.dir / "cpuinfo"
        for flags, name in (("fpu avx2", "avx2"), ("avx2 avx512f", "avx512"), ("avx2 avx512f amx_tile", "amx"), ("fpu", "")):
            path.write_text(f"processor: 0\nflags\t\t: {flags}\n")
            self.assertEqual(instruction_set(str(path)), name)
        self.assertEqual(instruction_set(str(self.dir / "none")), "")


class LeftoverTests(Place):
    def leave(self, kill):
        """A process that marks a region; its region."""
        region = self.dir / f"vllm_offload_{kill}.mmap"
        region.write_bytes(bytes(4096))
        code = f"import sys, time; sys.path[:0] = [{str(HERE.parent / 'kv')!r}]; from ragstone_kv import Mark, Rows; "
        code += f"mark = Mark({str(region)!r}, {str(self.dir)!r}); rows = Rows(2, 4096, {str(self.dir)!r}); print('up', flush=True); time.sleep(600)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.stdout.close()
        self.addCleanup(lambda: (process.kill(), process.wait()))
        if kill:
            process.kill()
            process.wait()
        return region

    def test_only_what_dead_engines_left_goes(self):
        dead, alive = self.leave(True), self.leave(False)
        other = self.dir / "vllm_offload_of_another_tier.mmap"
        other.write_bytes(bytes(4096))
        gone = clear_leftovers(str(self.dir))
        self.assertEqual(len(gone), 3, gone)
        self.assertEqual((dead.exists(), alive.exists(), other.exists()), (False, True, True))
        self.assertEqual(clear_leftovers(str(self.dir)), [])

    def test_a_name_that_another_file_has_by_now_stays(self):
        dead = self.leave(True)
        dead.rename(self.dir / "moved")
        dead.write_bytes(b"another engine's")
        clear_leftovers(str(self.dir))
        self.assertEqual(dead.read_bytes(), b"another engine's")


class TierTests(Place):
    def setUp(self):
        super().setUp()
        self.path, self.memory = self.region()
        self.context = SimpleNamespace(new_req_ids=(), preempted_req_ids=())

    def spec(self, **changes):
        group = SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a", "b"))
        config = {
            "model": SimpleNamespace(name=str(self.model), dtype="bfloat16"),
            "parallel": SimpleNamespace(world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1),
            "cache": SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
            "worker_kv_bytes_per_block": STRIDE,
            "groups": (group,),
            "kv_cache_layout": "LBHNC",
            "engine_id": "e",
            **changes,
        }
        return SimpleNamespace(config=SimpleNamespace(**config), _scheduler_mmap=SimpleNamespace(mmap_path=self.path))

    def tier(self, spec=None, **settings):
        settings = {"socket": self.socket, "digest_cache": str(self.dir / "cache.json"), "clear_leftovers": False, "staging_bytes": 3 * STRIDE, **settings}
        view = memoryview(self.memory).cast("b", (ROWS, STRIDE))
        tier = RagstoneTier(spec or self.spec(), view, "ragstone", None, **settings)
        self.addCleanup(tier.shutdown)
        until(lambda: tier._link._namespace is not None)
        return tier

    def step(self, tier):
        tier.on_schedule_end(self.context)
        return list(tier.get_finished_jobs())

    def known(self, tier, numbers, request="r"):
        """As the scheduler asks: all of a step, until none is to be asked again."""
        context = fake.Request(request)
        while True:
            found = [tier.lookup(key(number), context) for number in numbers]
            if LookupResult.RETRY not in found:
                return [result is LookupResult.HIT for result in found]
            self.step(tier)

    def finished(self, tier, job_id):
        results = []
        until(lambda: results.extend(self.step(tier)) or results)
        self.assertEqual([result.job_id for result in results], [job_id])
        return results[0]

    def store(self, tier, numbers, job_id=1, request="r"):
        for row, number in enumerate(numbers):
            self.memory[row * STRIDE : (row + 1) * STRIDE] = block(number)
        job = fake.Job(job_id, [key(number) for number in numbers], list(range(len(numbers))), fake.Request(request))
        tier.submit_store(job)
        return self.finished(tier, job_id)

    def load(self, tier, numbers, job_id=2):
        self.memory[:] = bytes(len(self.memory))
        rows = list(range(ROWS - 1, ROWS - 1 - len(numbers), -1))
        tier.submit_load(fake.Job(job_id, [key(number) for number in numbers], rows, fake.Request("r"), True))
        result = self.finished(tier, job_id)
        came = [key(number) for number in numbers] if result.success else result.successful_keys
        for number, row in zip(numbers, rows):
            expected = block(number) if key(number) in came else bytes(STRIDE)
            self.assertEqual(self.memory[row * STRIDE : (row + 1) * STRIDE], expected)
        return result

    def test_blocks_are_found_and_come_back(self):
        tier = self.tier()
        self.assertEqual(self.known(tier, [1, 2], "first"), [False, False])
        tier.on_request_finished(fake.Request("first"))
        self.assertTrue(self.store(tier, [1, 2, 3, 4, 5]).success)
        self.assertEqual(self.known(tier, [1, 2, 9], "second"), [True, True, False])
        result = self.load(tier, [5, 4, 3, 2, 1])
        self.assertEqual((result.success, result.transfer_bytes), (True, 5 * STRIDE))
        self.assertFalse(tier.has_pending_work())

    def test_other_weights_at_the_same_path_find_nothing(self):
        self.store(self.tier(), [1])
        self.assertEqual(self.known(self.tier(), [1]), [True])
        (self.model / "model.safetensors").write_bytes(b"other weights")
        self.assertEqual(self.known(self.tier(), [1]), [False])

    def test_after_a_restart_of_either_side_blocks_are_hit(self):
        tier = self.tier()
        self.store(tier, [1, 2])
        self.restart()

        def found():
            has = self.known(tier, [1, 2], "again")
            tier.on_request_finished(fake.Request("again"))
            return has == [True, True]

        until(found)
        self.assertEqual(self.known(self.tier(), [1, 2]), [True, True])


class FakeTierTests(TierTests):
    def test_a_look_up_is_one_message_a_step_and_none_waits(self):
        tier = self.tier()
        self.daemon.go.clear()
        for number in range(40):
            self.assertIs(tier.lookup(key(number), fake.Request("r")), LookupResult.RETRY)
        self.assertTrue(tier.has_pending_work())
        self.step(tier)
        until(lambda: self.daemon.requests)
        self.assertIs(tier.lookup(key(1), fake.Request("r")), LookupResult.RETRY)
        self.daemon.go.set()
        self.assertEqual(self.known(tier, range(40)), [False] * 40)
        self.assertEqual([len(request["keys"]) for request in self.daemon.requests], [40])

    def test_what_could_not_be_loaded_is_not_asked_for_again(self):
        tier = self.tier()
        self.store(tier, [1, 2, 3])
        self.daemon.lose = {key(2).hex()}
        self.assertEqual(self.known(tier, [1, 2, 3]), [True] * 3)
        result = self.load(tier, [1, 2, 3])
        self.assertEqual((result.success, result.successful_keys), (False, [key(1), key(3)]))
        self.assertEqual(self.known(tier, [1, 2, 3]), [True, False, True])
        self.assertEqual(tier.get_stats().counters, {"vllm:ragstone_not_loaded": 1})
        self.assertIsNone(tier.get_stats())

    def test_what_was_found_and_not_used_is_released(self):
        tier = self.tier()
        self.store(tier, [1])
        self.known(tier, [1, 2], "a")
        tier.on_request_finished(fake.Request("a"))
        until(lambda: self.daemon.requests[-1]["op"] == "release")
        self.assertEqual(self.daemon.requests[-1]["keys"], [key(1).hex()])
        self.assertEqual((tier._known, tier._of_request), ({}, {}))

    def test_a_request_s_stores_are_one_chain(self):
        tier = self.tier()
        for numbers, job_id in (([1, 2], 1), ([3], 2)):
            self.store(tier, numbers, job_id)
        self.assertEqual(self.daemon.requests[-1]["after"], key(2).hex())
        tier.on_request_finished(fake.Request("r"))
        self.store(tier, [4], 3)
        self.assertNotIn("after", self.daemon.requests[-1])

    def test_a_dead_daemon_costs_nothing_but_misses(self):
        tier = self.tier()
        self.daemon.kill()
        self.assertEqual(self.known(tier, [1]), [False])
        self.assertFalse(self.store(tier, [1]).success)
        self.assertFalse(self.load(tier, [1]).success)
        tier.drain_jobs()

    def test_what_shapes_kv_is_in_the_namespace(self):
        group = SimpleNamespace(group_id=0, tokens_per_block=32, layer_names=("a", "b"))
        parallel = SimpleNamespace(world_size=2, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1)
        base = self.spec()
        changed = [
            self.spec(model=SimpleNamespace(name=str(self.model), dtype="float16")),
            self.spec(parallel=parallel),
            self.spec(groups=(group,)),
            self.spec(kv_cache_layout="BLHNC"),
            self.spec(canonical_layout=True),
            self.spec(worker_kv_bytes_per_block=2 * STRIDE),
            self.spec(cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=2)),
        ]
        cache = str(self.dir / "cache.json")
        named = [tier_module.namespace_of(spec.config, self.model, "", "", cache) for spec in [base, *changed]]
        named.append(tier_module.namespace_of(base.config, self.model, "alice", "", cache))
        named.append(tier_module.namespace_of(base.config, self.model, "", "rope 8", cache))
        self.assertEqual(len({json.dumps(one) for one in named}), len(named))
        self.assertEqual(set(named[0]), set(RUST_FIELDS))

    def test_metrics_have_names(self):
        self.assertIn("vllm:ragstone_breaks", RagstoneTier.build_metric_definitions({}))

    def test_a_model_that_is_no_folder_wants_the_setting(self):
        with self.assertRaisesRegex(ValueError, "weights"):
            self.tier(self.spec(model=SimpleNamespace(name="nobody/nothing", dtype="x")))

    def test_one_revision_never_gets_what_another_stored(self):
        snapshots = self.dir / "models--org--m" / "snapshots"

        def cache(revision, weights):
            (snapshots / revision).mkdir(parents=True)
            (snapshots / revision / "config.json").write_text("{}")
            if weights:
                (snapshots / revision / "model.safetensors").write_bytes(weights)

        def download(model, revision=None, local_files_only=False):
            folder = snapshots / (revision or "main")
            if model != "org/m" or not local_files_only or not folder.is_dir():
                raise FileNotFoundError(folder)
            return str(folder)

        with unittest.mock.patch.dict(sys.modules, {"huggingface_hub": SimpleNamespace(snapshot_download=download)}):
            spec = self.spec(model=SimpleNamespace(name="org/m", dtype="bfloat16"))
            cache("main", b"main's")
            cache("half", b"")  # only its settings
            self.store(self.tier(spec), [1])
            self.assertEqual(self.known(self.tier(spec), [1]), [True])
            cache("v1", b"another's")
            with self.assertRaisesRegex(ValueError, "several revisions"):
                self.tier(spec)
            self.assertEqual(self.known(self.tier(spec, revision="v1"), [1]), [False])
            self.assertEqual(self.known(self.tier(spec, revision="main"), [1]), [True])
            with self.assertRaisesRegex(ValueError, "revision"):
                self.tier(spec, revision="v2")
            # Where vLLM says what it loaded, nobody else needs to.
            for revision, is_there in (("v1", False), (None, True)):
                spec.vllm_config = SimpleNamespace(model_config=SimpleNamespace(revision=revision))
                self.assertEqual(self.known(self.tier(spec), [1]), [is_there])


RUST_FIELDS = ["weights", "dtype", "layout", "groups", "parallel_rank", "parallel_size", "isa", "tenant", "engine", "engine_version"]


class Pool:
    """SGLang's host memory, pages of one token."""

    page_size, layout, dtype, layer_num = 2, "page_first", "bfloat16", 3

    def __init__(self):
        self.pages = {}

    def get_dummy_flat_data_page(self):
        return fake.Tensor(bytearray(STRIDE))

    def get_data_page(self, index, flat=True):
        return fake.Tensor(bytearray(self.pages[index]))

    def set_from_flat_data_page(self, index, page):
        self.pages[index] = bytes(page.data)


class HiCacheTests(Place):
    def storage(self, **changes):
        extra = {"socket": self.socket, "rows": 3, "digest_cache": str(self.dir / "cache.json"), "deadline_s": 60, **changes.pop("extra", {})}
        config = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "is_mla_model": False, "model_name": str(self.model), "extra_config": extra, **changes}
        storage = RagstoneHiCache(SimpleNamespace(**config), {})
        storage.register_mem_pool_host(Pool())
        self.addCleanup(storage.close)
        until(lambda: storage._link._namespace is not None)
        return storage

    def test_pages_by_place(self):
        storage = self.storage()
        keys, places = [f"page-{number}" for number in range(7)], [2 * number + at for number in range(7) for at in (0, 1)]
        storage.mem_pool_host.pages = {2 * number: block(number) for number in range(7)}
        self.assertEqual(storage.batch_set_v1(keys, places), [True] * 7)
        self.assertEqual(storage.batch_exists([*keys[:3], "other", *keys[3:]]), 3)
        other = self.storage()
        self.assertEqual(other.batch_get_v1([*keys, "other"], [*places, 90, 91]), [True] * 7 + [False])
        self.assertEqual(other.mem_pool_host.pages, storage.mem_pool_host.pages)

    def test_pages_as_tensors(self):
        storage = self.storage()
        self.assertTrue(storage.set("a", fake.Tensor(bytearray(block(1)))))
        self.assertTrue(storage.exists("a"))
        target = fake.Tensor(bytearray(STRIDE))
        self.assertIs(storage.get("a", target), target)
        self.assertEqual(bytes(target.data), block(1))
        self.assertEqual(storage.batch_get(["b", "a"], [fake.Tensor(bytearray(STRIDE)), target]), [None, target])

    def test_a_target_that_cannot_be_written_is_a_miss(self):
        storage = self.storage()
        self.assertTrue(storage.set("a", fake.Tensor(bytearray(block(1)), contiguous=False)))
        scattered = fake.Tensor(bytearray(STRIDE), contiguous=False)
        short = fake.Tensor(bytearray(STRIDE - 1))
        target = fake.Tensor(bytearray(STRIDE))
        with self.assertLogs("ragstone_kv", "ERROR"):
            self.assertEqual(storage.batch_get(["a"] * 4, [scattered, short, None, target]), [None, None, None, target])
            self.assertIsNone(storage.get("a"))
            self.assertEqual(storage.batch_get(["a", "b"]), [None, None])
        self.assertEqual((bytes(scattered.data), bytes(target.data)), (bytes(STRIDE), block(1)))

    def test_a_closed_backend_keeps_nobody_waiting(self):
        storage = self.storage()
        storage.set("a", fake.Tensor(bytearray(block(1))))
        storage.close()
        self.assertEqual(storage.batch_exists(["a"]), 0)
        self.assertEqual(storage.batch_get(["a"], [fake.Tensor(bytearray(STRIDE))]), [None])

    def test_what_a_killed_backend_left_is_removed_by_the_next(self):
        alive = self.storage()
        left = Path("/dev/shm") / f"ragstone_kv_0_{uuid.uuid4().hex}"
        left.write_bytes(bytes(STRIDE))
        self.addCleanup(lambda: left.unlink(missing_ok=True))
        with self.assertLogs("ragstone_kv", "WARNING"):
            self.storage()
        self.assertEqual((left.exists(), os.path.exists(alive._out.path)), (False, True))

    def test_ranks_do_not_share_and_replicas_do(self):
        first = self.storage(tp_size=2)
        first.set("a", fake.Tensor(bytearray(block(1))))
        self.assertFalse(self.storage(tp_size=2, tp_rank=1).exists("a"))
        replica = {"tp_size": 2, "is_mla_model": True}
        self.storage(**replica).set("a", fake.Tensor(bytearray(block(1))))
        second = self.storage(tp_rank=1, **replica)
        self.assertTrue(second.exists("a"))
        self.assertEqual(second.batch_set_v1(["b"], [0, 1]), [True], "the first rank stores it")
        self.assertFalse(second.exists("b"))

    def test_a_gone_daemon_is_a_miss(self):
        storage = self.storage()
        storage.mem_pool_host.pages = {0: block(1)}
        self.assertEqual(storage.batch_set_v1(["a"], [0, 1]), [True])
        self.stop()
        until(lambda: storage.batch_exists(["a"]) == 0)
        self.assertEqual(storage.batch_get_v1(["a"], [0, 1]), [False])
        self.assertEqual(storage.batch_set_v1(["a"], [0, 1]), [False])
        self.start() if self.real else self.daemon.restart()

    def test_settings_that_are_missing_are_named(self):
        for changes, name in (({"extra": {"socket": None}}, None), ({"model_name": "some/model"}, "weights")):
            if name:
                with self.assertRaisesRegex(ValueError, name):
                    self.storage(**changes)
        with self.assertRaisesRegex(ValueError, "socket"):
            RagstoneHiCache(SimpleNamespace(extra_config={}, model_name=""), {})


def load_tests(loader, _, __):
    """Everything against the fake; what needs no misbehaviour against the real one, too."""
    cases = [FakeLinkTests, FakeTierTests, HiCacheTests, IdentityTests, LeftoverTests]
    if PROGRAM:
        cases += [type("Real" + case.__name__, (case,), {"real": True}) for case in (LinkTests, TierTests, HiCacheTests)]
    suite = unittest.TestSuite()
    for case in cases:
        suite.addTests(loader.loadTestsFromTestCase(case))
    return suite


if __name__ == "__main__":
    unittest.main()
