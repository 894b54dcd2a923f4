"""The tenants and the judgement of ops/tenants. Python's standard library only.

The honest tenants search their own collections, add a document now and then and delete it again, a few at a time. Being told to come
back counts as waiting: a time ends with an answer. The hostile tenant has one key, and sends from a process of its own.
"""

import asyncio
import io
import json
import os
import random
import time
import zipfile

from load import PASSAGES, PATIENCE_SECONDS, Attacker, bearer, call, drip, head, p, parser, run, start_attack

# Honest clients at once.
CLIENTS = 4
# Of how many searches one is followed by an addition and a deletion.
CHANGE_EVERY = 4
QUERIES = ["copper lanterns", "blue poppies", "salt in the harbour", "four boats"]
DOCUMENTS = "/v1/collections/notes/documents"
MOST_RATIO = 3.0
OPERATIONS = ["search", "delete", "add"]


def docx(paragraphs):
    """A file of some kilobytes that unpacks to a text of so many paragraphs."""
    text = "".join(f"<w:p><w:r><w:t>The mill of Orvik number {n} grinds rye and wheat.</w:t></w:r></w:p>" for n in range(paragraphs))
    document = f'<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{text}</w:body></w:document>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", document)
    return file.getvalue()


class Tenants:
    """Honest ones, and what their requests took."""

    def __init__(self, service, keys):
        self.service, self.keys = service, keys
        self.times = {name: [] for name in OPERATIONS}
        self.missing, self.shed, self.number = [], 0, 0

    async def timed(self, name, method, path, body, key):
        begun = time.monotonic()
        while True:
            try:
                asking = call(self.service, method, path, body, bearer(key))
                status, text = await asyncio.wait_for(asking, PATIENCE_SECONDS)
            except (OSError, asyncio.TimeoutError) as error:
                status, text = 0, repr(error).encode()
            if status == 200:
                self.times[name].append(time.monotonic() - begun)
                return
            self.shed += status in (429, 503)
            if status not in (429, 503) or time.monotonic() - begun > PATIENCE_SECONDS:
                self.missing.append(f"{name}: {status}: {text[:200]!r}")
                return
            await asyncio.sleep(0.1)

    async def client(self, number, until):
        draw = random.Random(number)
        while time.monotonic() < until:
            key = draw.choice(self.keys)
            body = {"query": draw.choice(QUERIES), "top_k": 3}
            await self.timed("search", "POST", "/v1/collections/notes/search", body, key)
            if draw.randrange(CHANGE_EVERY) == 0:
                self.number += 1
                name = f"d{self.number}"
                document = {"id": name, "title": "Note", "text": f"Note {name} of the mill."}
                await self.timed("add", "POST", DOCUMENTS, {"documents": [document]}, key)
                await self.timed("delete", "DELETE", f"{DOCUMENTS}/{name}", None, key)
            await asyncio.sleep(draw.uniform(0.02, 0.08))

    async def run(self, seconds):
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(number, until) for number in range(CLIENTS)))
        return self


class Hostile(Attacker):
    """One tenant's worst."""

    def __init__(self, service, kind, number, key):
        super().__init__(service, kind, number)
        self.key, self.number = key, number * 1_000_000

    def next(self):
        self.number += 1
        return self.number

    async def send(self, method, path, body):
        return await call(self.service, method, path, body, bearer(self.key))

    async def uploads(self):
        """Files that unpack to megabytes of text, which take hours to embed."""
        await self.send("PUT", f"/v1/collections/heavy/files/{self.next()}.docx", docx(100_000))

    async def upserts(self):
        """Many documents whose metadata is as large as it may be."""
        metadata = {"a": [self.draw.randrange(10) for _ in range(3000)]}
        documents = [{"id": f"u{self.next()}", "title": "t" * 200, "text": "!?;:,. " * 4000, "metadata": metadata} for _ in range(8)]
        await self.send("POST", "/v1/collections/heavy/documents", {"documents": documents})

    async def collections(self):
        """Collections made and removed, one after the other."""
        name = f"/v1/collections/c{self.next()}"
        await self.send("POST", f"{name}/documents", {"documents": [{"text": f"The heron {self.number}."}]})
        await self.send("DELETE", name, None)

    async def deletions(self):
        """Documents replaced and deleted again and again."""
        path = "/v1/collections/heavy/documents"
        await self.send("POST", path, {"documents": [{"id": "x", "text": f"The heron {self.next()}."}]})
        await self.send("DELETE", f"{path}/x", None)

    async def schemas(self):
        """Prompt schemas of many modules, kept and forgotten."""
        modules = "".join(f'<module name="m{n}">The boat {n} of {self.next()}.</module>' for n in range(200))
        await self.send("POST", "/v1/pml/schemas", {"schema": f'<schema name="s">{modules}</schema>'})
        await self.send("DELETE", "/v1/pml/schemas/s", None)

    async def programs(self):
        """Prompts of many elements."""
        await self.send("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": '<prompt schema="a">' + "<b/>" * 19_000 + "</prompt>"}], "max_tokens": 4,
            "ragstone": {"pml": {"schema": '<schema name="a"><module name="b">A boat.</module></schema>'}},
        })

    async def grammars(self):
        """Formats that take long to compile."""
        names = [f"p{n}" for n in range(450)]
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
        await self.send("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "?"}], "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        })

    async def searches(self):
        """Wide searches with large filters."""
        wanted = {"type": "not", "filter": {"type": "in", "key": "a", "value": [f"v{n}" for n in range(1000)]}}
        await self.send("POST", "/v1/collections/heavy/search", {"query": "mill " * 200, "top_k": 1000, "filter": wanted})

    async def slow_bodies(self):
        """Announces a megabyte and sends a byte a second."""
        reader, writer = await asyncio.open_connection(self.service.host, self.service.port)
        writer.write(head("POST", "/v1/collections/heavy/documents", 1 << 20, bearer(self.key)))
        await drip(reader, writer)


KINDS = ["uploads", "upserts", "collections", "deletions", "schemas", "programs", "grammars", "searches", "slow_bodies"]


def row(name, tenants):
    cells = []
    for operation in OPERATIONS:
        times = tenants.times[operation]
        cells.append(f"{p(times, 0.5):>7.0f} {p(times, 0.99):>7.0f}" if times else f"{'-':>7} {'-':>7}")
    return f"{name:<20} {len(tenants.times['search']):>8} " + "  ".join(cells)


async def owner_post(service, token, path, body):
    status, text = await call(service, "POST", path, body, f"X-Ragstone-Token: {token}\r\n")
    assert status == 200, text
    return json.loads(text)


async def judge(service, arguments):
    await service.wait_until_ready()
    with open(os.path.join(service.data, "service.json"), encoding="utf-8") as record:
        token = json.load(record)["token"]
    keys = []
    for number in range(arguments.tenants):
        wanted = {"name": f"k{number}", "role": "write", "tenant": f"t{number}"}
        keys.append((await owner_post(service, token, "/v1/keys", wanted))["key"])
    hostile, honest = keys[0], keys[1:]
    documents = [{"title": title, "text": text} for title, text in PASSAGES]
    for key in honest:
        status, text = await call(service, "POST", DOCUMENTS, {"documents": documents}, bearer(key))
        assert status == 200, text
    await Tenants(service, honest).run(5)
    print(f"{'others, ms':<20} {'searches':>8} " + "  ".join(f"{name + ' p50':>7} {'p99':>7}" for name in OPERATIONS) + "   memory MiB")
    failures = []
    for kind in arguments.only.split(","):
        # Right before, so that what else the machine does is the same.
        quiet = await Tenants(service, honest).run(arguments.seconds)
        print(f"{row('quiet', quiet)}   {service.resident_mib():.0f}", flush=True)
        process = start_attack(service, Hostile, [kind], arguments.clients, hostile)
        attacked = await Tenants(service, honest).run(arguments.seconds)
        if not process.is_alive():
            failures.append(f"{kind}: the hostile clients ended before their time")
        process.terminate()
        process.join()
        ratios = {name: p(attacked.times[name], 0.99) / p(quiet.times[name], 0.99) for name in OPERATIONS if attacked.times[name] and quiet.times[name]}
        told = ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items())
        print(f"{row(kind, attacked)}   {service.resident_mib():.0f}   p99 times the quiet: {told}; told to come back {attacked.shed} times", flush=True)
        failures += [f"{kind}: an answer is missing: {missing}" for missing in (quiet.missing + attacked.missing)[:3]]
        failures += [
            f"{kind}: the p99 of {name} is {ratios[name]:.1f} times the quiet one (wanted: at most {MOST_RATIO:g})"
            for name in ["search", "delete"] if ratios.get(name, 0) > MOST_RATIO
        ]
        if service.has_ended():
            failures.append(f"{kind} was the last kind")
            break
        # What the hostile clients left behind ends first.
        await asyncio.sleep(3)
    return failures


def main():
    arguments = parser(KINDS, clients=20)
    arguments.add_argument("--seconds", type=float, default=30, help="of the quiet time and of each kind")
    arguments.add_argument("--tenants", type=int, default=100)
    run(judge, arguments.parse_args(), ["keys=required", "calibrate_when_idle=false"])


if __name__ == "__main__":
    main()
