"""Nodes and a proxy on loopback, on ports that are free, for ops/deploy/check and ops/cluster-demo; and clients that ask them. Python's
standard library only.
"""

import atexit
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
# Nothing here takes longer on a slow machine.
PATIENCE_SECONDS = 60
KEY, SPREAD_KEY = "rag_of_a_team", "rag_of_nobody"


STARTED = []


def start(command, **more):
    """A process that ends with this one, however that ends."""
    STARTED.append(subprocess.Popen(command, **more))
    return STARTED[-1]


@atexit.register
def end_all():
    for process in STARTED:
        process.kill()
        process.wait()


# So that `timeout` and Ctrl-C leave nothing behind.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))


def fail(message):
    sys.exit(f"NOT SO: {message}")


def wait_until(holds, what):
    until = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > until:
            fail(f"{what}, in {PATIENCE_SECONDS} seconds")
        time.sleep(0.05)


def get(url, method="GET", body=None, headers=None):
    """Status and text of a request that goes to a process directly."""
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, repr(error).encode()


class Node:
    """One node: a process, the address of its questions and that of its health. It keeps both when it is started again."""

    def __init__(self, name, command, work, variables=None):
        self.name, self.command, self.work, self.variables = name, command, work, variables or {}
        self.process = None
        self.address = self.health = None
        self.start()

    def start(self):
        with open(self.work / f"{self.name}.log", "a", encoding="utf-8") as log:
            environment = {**os.environ, **self.variables}
            self.process = start(self.command(self), stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        line = self.process.stdout.readline().strip()
        if not line:
            fail(f"node {self.name} did not start: {self.log()}")
        self.address, self.health = self.addresses(line)
        # What it prints later must not fill the pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        wait_until(lambda: get(f"http://{self.health}/readyz")[0] == 200, f"node {self.name} is ready")

    def addresses(self, line):
        return line.split()

    def log(self):
        return (self.work / f"{self.name}.log").read_text(encoding="utf-8")[-2000:]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """As Kubernetes and systemd end it; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


class RealNode(Node):
    """`ragstone serve` on a data folder of its own."""

    def addresses(self, line):
        record = json.loads((self.work / self.name / "service.json").read_text(encoding="utf-8"))
        self.token = record["token"]
        return [record[name].removeprefix("http://") for name in ("address", "health")]


def fake_node(name, work):
    def command(node):
        ports = [address.rsplit(":", 1)[1] for address in (node.address, node.health) if address]
        return [sys.executable, str(HERE / "fake_node.py"), *ports]

    return Node(name, command, work)


def real_node(name, work, ragstone, settings, variables=None):
    def command(node):
        # Started again, it listens where the proxy knows it.
        addresses = ["--listen", node.address or "127.0.0.1:0", "--set", f"health_listen={node.health or '127.0.0.1:0'}"]
        sets = [word for setting in settings for word in ("--set", setting)]
        return [ragstone, "serve", "--data", str(work / name), *addresses, *sets]

    return RealNode(name, command, work, variables)


class Bucket:
    """An S3 server with an empty bucket, and the variables that lead nodes there."""

    def __init__(self, python):
        server = str(HERE.parents[1] / "tests/s3_server.py")
        process = start([python, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = process.stdout.readline().strip() or fail("the S3 server did not start")
        self.variables = {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT": self.endpoint,
        }


def certificate(folder):
    """For the proxy's TLS, as Kubernetes lays it out."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")],
        check=True, stderr=subprocess.DEVNULL,
    )
    return folder / "tls.crt"


def replaced(text, pattern, by, at_least=1):
    """What a check changes of a file that is tried as it stands must be there."""
    changed, times = re.subn(pattern, lambda _: by, text, flags=re.MULTILINE)
    if times < at_least:
        fail(f"the proxy's file has no {pattern!r} any more: change it here, too")
    return changed


class Proxy:
    """HAProxy or Envoy with the file of this folder, whose addresses alone are others."""

    def __init__(self, work, nodes):
        self.work, self.nodes = work, nodes
        self.certificate = certificate(work / "tls")
        self.process = None

    def run(self, command, **more):
        self.log = open(self.work / f"{self.name}.log", "w+", encoding="utf-8")
        self.process = start(command, stdout=self.log, stderr=subprocess.STDOUT, **more)
        # Asked to end, HAProxy takes its workers along.
        atexit.register(self.end)

    def wait_until_ready(self):
        """Until it asks every node."""
        asked, seen = Client(self, None), set()

        def all_seen():
            if self.process.poll() is not None:
                self.log.seek(0)
                fail(f"{self.name} ended: {self.log.read()[-2000:]}")
            # It goes round the nodes, as nothing says where it belongs.
            answer = asked.request("GET", "/openapi.json")
            if answer.status == 200:
                seen.add(answer.node)
            return len(seen) == len(self.nodes)

        wait_until(all_seen, f"{self.name} asks every node")
        asked.close()

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


class HAProxy(Proxy):
    name = "haproxy"

    def __init__(self, work, nodes, change=lambda text: text):
        super().__init__(work, nodes)
        program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        if not program:
            sys.exit("haproxy is missing: apt install haproxy")
        # It is given sockets that listen already, so that nobody else takes the ports.
        listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port = listening[0].getsockname()[1]
        (work / "keys.map").write_text(f"{KEY} team\n{SPREAD_KEY} -\n", encoding="utf-8")
        text = (HERE / "haproxy.cfg").read_text(encoding="utf-8")
        text = replaced(text, r"^    bind :8443 ", f"    bind fd@{listening[0].fileno()} ")
        text = replaced(text, r"^    bind :8404$", f"    bind fd@{listening[1].fileno()}")
        text = replaced(text, "/etc/haproxy/tls/", f"{work}/tls/")
        text = replaced(text, "/etc/haproxy/keys/", f"{work}/", 2)
        text = replaced(text, "/run/haproxy/", f"{work}/")
        text = replaced(text, r"^    server .*\n", "", 2)
        # Every node's health has a port of its own here, and no name.
        text = replaced(text, "check port 7412 ", "check ")
        text = replaced(text, " resolvers names init-addr last,libc,none", "")
        ports = [(node, node.health.rsplit(":", 1)[1]) for node in nodes]
        servers = "".join(f"    server {node.name} {node.address} port {port}\n" for node, port in ports)
        text = replaced(text, r"^resolvers names$", f"{servers}\nresolvers names")
        config = work / "haproxy.cfg"
        config.write_text(change(text), encoding="utf-8")
        self.run([program, "-W", "-db", "-f", str(config)], pass_fds=[one.fileno() for one in listening])
        for one in listening:
            one.close()
        self.wait_until_ready()

    def reload(self):
        """As `systemctl reload haproxy` does; until the new worker is there."""

        def worker():
            return re.findall(r"^Pid: (\d+)$", self.order("show info"), flags=re.MULTILINE)

        before = worker()
        self.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: worker() not in ([], before), "HAProxy has read its file again")

    def order(self, line):
        """One command of HAProxy's administration."""
        with socket.socket(socket.AF_UNIX) as admin:
            try:
                admin.connect(str(self.work / "admin.sock"))
                admin.sendall(f"{line}\n".encode())
                return b"".join(iter(lambda: admin.recv(65536), b"")).decode()
            except OSError:
                # One worker has gone, the other is not there yet.
                return ""


class Envoy(Proxy):
    name = "envoy"

    def __init__(self, work, nodes, program):
        super().__init__(work, nodes)
        text = (HERE / "envoy.yaml").read_text(encoding="utf-8")
        text = replaced(text, r"address: 0.0.0.0, port_value: 84\d\d", "address: 127.0.0.1, port_value: 0", 2)
        text = replaced(text, "/etc/envoy/tls/", f"{work}/tls/", 2)
        text = replaced(text, "replace-me", KEY, 2)
        text = replaced(text, r"^ +- \{endpoint: .*\n", "", 2)
        text = text.rstrip("\n") + "\n"
        for node in nodes:
            (host, port), health = node.address.rsplit(":", 1), node.health.rsplit(":", 1)[1]
            text += (
                f"              - {{endpoint: {{address: {{socket_address: {{address: {host}, port_value: {port}}}}}, health_check_config: "
                f"{{port_value: {health}}}}}, metadata: {{filter_metadata: {{envoy.lb: {{hash_key: {node.name}}}}}}}}}\n"
            )
        text += "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n"
        config, admin = work / "envoy.yaml", work / "envoy-admin"
        config.write_text(text, encoding="utf-8")
        self.run([program, "--config-path", str(config), "--admin-address-path", str(admin), "--concurrency", "2", "--log-level", "warning", "--use-dynamic-base-id"])
        wait_until(lambda: self.process.poll() is not None or admin.exists() and admin.read_text(), "envoy says where it listens")
        if self.process.poll() is None:
            self.port = self.listens_at(f"http://{admin.read_text()}/listeners?format=json")
        self.wait_until_ready()

    @staticmethod
    def listens_at(url):
        found = []

        def listens():
            status, text = get(url)
            for one in json.loads(text)["listener_statuses"] if status == 200 else []:
                if one["name"] == "questions":
                    found.append(one["local_address"]["socket_address"]["port_value"])
            return found

        wait_until(listens, "envoy listens")
        return found[0]


class Answer:
    """What a client got: status, the node that answered, text and events; `whole` where nothing was cut off."""

    def __init__(self, status, node, text, whole):
        self.status, self.node, self.text, self.whole = status, node, text, whole

    def ok(self):
        return self.whole and self.status == 200


class Client:
    """Asks through the proxy, over TLS, on a connection that it keeps."""

    def __init__(self, proxy, key=KEY):
        self.proxy, self.key = proxy, key
        self.context = ssl.create_default_context(cafile=str(proxy.certificate))
        self.connection = None

    def open(self, method, path, body=None, headers=None):
        """The response, of which only the head was read."""
        if self.connection is None:
            self.connection = http.client.HTTPSConnection("127.0.0.1", self.proxy.port, timeout=PATIENCE_SECONDS, context=self.context)
        sent = {"content-type": "application/json", **(headers or {})}
        if self.key:
            sent["authorization"] = f"Bearer {self.key}"
        self.connection.request(method, path, body=body, headers=sent)
        return self.connection.getresponse()

    def request(self, method, path, body=None, headers=None):
        status, node, text = 0, None, b""
        try:
            response = self.open(method, path, body, headers)
            status, node = response.status, response.headers.get("x-ragstone-node")
            text = response.read()
            is_stream = "event-stream" in response.headers.get("content-type", "")
            return Answer(status, node, text, whole=not is_stream or b"[DONE]" in text)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Answer(status, node, text or repr(error).encode(), whole=False)

    def ask(self, collection=None, body=None, stream=False):
        headers = {"x-ragstone-collection": collection} if collection else {}
        return self.request("POST", "/v1/chat/completions", json.dumps({**(body or {}), "stream": stream}).encode(), headers)

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None


class Load:
    """Clients that ask one question after the other, every second of them streamed, until they are told to stop."""

    def __init__(self, proxy, clients, question, streams=True):
        """`question`: of the client's number and the question's, its collection and body."""
        self.streams = streams
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        # Begin, end, and answer of every question; when those that are under way began.
        self.done, self.under_way = [], {}
        self.threads = [threading.Thread(target=self.run, args=(proxy, number, question), daemon=True) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, proxy, number, question):
        client, asked = Client(proxy), 0
        while not self.stopping.is_set():
            collection, body = question(number, asked)
            begun = time.monotonic()
            with self.lock:
                self.under_way[number] = begun
            answer = client.ask(collection, body, stream=self.streams and asked % 2 == 1)
            with self.lock:
                del self.under_way[number]
                self.done.append((begun, time.monotonic(), answer))
            asked += 1
        client.close()

    def wait_for(self, more):
        """Until so many more questions were answered."""
        target = len(self.done) + more
        wait_until(lambda: len(self.done) >= target, f"{more} more questions are answered")

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return self.done
