"""A node without a model, for ops/deploy/check: it says when it is ready, answers, and ends as a node does. What a proxy does can be seen of
it in steps instead of times: a stream waits for `POST /step` before each token, and a question with "hold" until `POST /release`.

Prints the address of questions and that of health, and runs until SIGTERM. Started again, it is given its ports.
"""

import json
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What an answer takes, so that some are in flight when the node is killed.
ANSWER_SECONDS = 0.03
# A node ends what it has begun, for so long.
GRACE_SECONDS = 10


class Node:
    def __init__(self):
        self.stopping = False
        self.changed = threading.Condition()
        self.in_flight, self.held, self.released, self.asked = 0, 0, False, 0
        self.steps = threading.Semaphore(0)

    def count(self, by):
        with self.changed:
            self.in_flight += by
            self.changed.notify_all()

    def hold(self):
        with self.changed:
            self.held += 1
            self.changed.wait_for(lambda: self.released, timeout=60)
            self.held -= 1

    def release(self, held):
        with self.changed:
            self.released = not held
            self.changed.notify_all()


NODE = Node()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Heads and bodies in packets of their own would wait for each other.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def body(self):
        left, parts = int(self.headers.get("content-length") or 0), []
        while left > 0 and (part := self.rfile.read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def do_GET(self):
        if self.path == "/readyz":
            self.answer(503 if NODE.stopping else 200, {})
        elif self.path == "/seen":
            self.answer(200, {"held": NODE.held, "asked": NODE.asked})
        else:
            self.answer(200, {})

    def do_POST(self):
        body = self.body()
        if self.path == "/step":
            NODE.steps.release()
            self.answer(200, {})
        elif self.path in ("/release", "/keep"):
            NODE.release(held=self.path == "/keep")
            self.answer(200, {})
        elif NODE.stopping:
            self.answer(503, {"error": {"code": "unavailable"}})
        else:
            NODE.count(1)
            try:
                self.ask(json.loads(body or b"{}"))
            finally:
                NODE.count(-1)

    def do_PUT(self):
        self.answer(200, {"bytes": len(self.body())})

    def ask(self, body):
        NODE.asked += 1
        if body.get("hold"):
            NODE.hold()
        if not body.get("stream"):
            time.sleep(ANSWER_SECONDS)
            return self.answer(200, {"choices": [{"message": {"content": "words"}}]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = ['{"choices": [{"delta": {"content": "word"}}]}'] * 5 + ["[DONE]"]
        for event in events:
            if body.get("in_steps"):
                NODE.steps.acquire(timeout=60)
            else:
                time.sleep(ANSWER_SECONDS / len(events))
            text = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """Clients and proxies hang up."""


def main():
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ports = [int(port) for port in sys.argv[1:]] or [0, 0]
    servers = [Server(("127.0.0.1", port), Handler) for port in ports]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(*(f"127.0.0.1:{server.server_port}" for server in servers), flush=True)
    stop.wait()
    NODE.stopping = True
    with NODE.changed:
        NODE.changed.wait_for(lambda: NODE.in_flight == 0, timeout=GRACE_SECONDS)


if __name__ == "__main__":
    main()
