"""Uses ragstone through the official MCP client: python mcp_client.py MODE WHAT SERVICE [COMMAND…]

MODE is how the client begins: `auto` (the newest revision) or `legacy` (the handshake of older ones). WHAT is `everything` or
`cancel`. SERVICE is the running service's address; with COMMAND, that is started and spoken to over its standard input and output.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request

from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

mode, what, service, *command = sys.argv[1:]


def connect():
    server = StdioServerParameters(command=command[0], args=command[1:]) if command else f"{service}/mcp"
    return Client(server, mode=mode, read_timeout_seconds=120)


def post(path, body):
    """The status of a plain request."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(service + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


async def eventually(status):
    """Asks for a token until the service answers with this status."""
    for _ in range(600):
        if await asyncio.to_thread(post, "/v1/completions", {"prompt": "a", "max_tokens": 1}) == status:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"no {status}")


async def holding(ask):
    """A task that asks, once it holds the only place: what looks whether it does may take the place first, and it is refused."""
    for _ in range(600):
        asking = asyncio.create_task(ask())
        while not asking.done():
            if await asyncio.to_thread(post, "/v1/completions", {"prompt": "a", "max_tokens": 1}) == 429:
                return asking
            await asyncio.sleep(0.05)
    raise AssertionError("it was refused every time")


async def fails(client, tool, arguments, *words):
    """A tool's own error: it has a text that the model can act upon."""
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert result.is_error, (tool, arguments, text)
    for word in words:
        assert word in text, (word, text)


async def refused(call, *words):
    """An error of the protocol."""
    try:
        result = await call
    except MCPError as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return
    raise AssertionError(result)


async def everything():
    async with connect() as client:
        assert client.server_info.name == "ragstone", client.server_info
        assert "status" in client.instructions
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "ask", "add", "status"}, tools
        assert tools["search"].input_schema["properties"]["top_k"]["maximum"] == 50
        assert tools["search"].annotations.read_only_hint and not tools["add"].annotations.read_only_hint

        # Add, change, look.
        added = await client.call_tool("add", {"collection": "own", "id": "roof/1 a", "title": "Roof", "text": "We take slate. Mara pays."})
        assert not added.is_error and added.structured_content["outcome"] == "added", added
        again = await client.call_tool("add", {"collection": "own", "id": "roof/1 a", "title": "Roof", "text": "We take tiles."})
        assert again.structured_content["outcome"] == "replaced", again
        named = await client.call_tool("add", {"collection": "own", "text": "The garden has blue poppies."})
        status = (await client.call_tool("status", {})).structured_content
        assert {"name": "own", "documents": 2, "passages": 2} in status["collections"], status
        assert status["model"] == "ragstone-demo" and status["tiers"], status

        # Search.
        found = await client.call_tool("search", {"query": "what is on the roof", "collection": "own", "top_k": 1})
        passage = found.structured_content["passages"][0]
        assert passage["document"] == "roof/1 a" and passage["text"] == "We take tiles.", passage
        assert "We take tiles." in found.content[0].text and "roof/1 a" in found.content[0].text

        # Ask, twice: the second time there is something to reuse. Progress tells the answer as it comes.
        question = {"question": "What does Calbet Works make?", "collection": "world", "top_k": 2, "max_tokens": 12}
        news = []

        async def progress(done, total, message):
            news.append((done, total, message))

        first = (await client.call_tool("ask", question, progress_callback=progress)).structured_content
        second = await client.call_tool("ask", question)
        assert second.structured_content["answer"] == first["answer"], (first, second)
        assert second.structured_content["cached_tokens"] > 0, second
        assert len(first["citations"]) == 2 and first["prompt_tokens"] > 0, first
        assert "Sources:\n[1] " in second.content[0].text, second
        assert "".join(message for _, _, message in news).strip() == first["answer"], (news, first)
        assert [done for done, _, _ in news] == sorted({done for done, _, _ in news}), news
        assert all(done <= total for done, total, _ in news), news

        # Documents are resources; what search and citations name can be read.
        resources, cursor = [], None
        while True:
            page = await client.list_resources(cursor=cursor)
            resources += page.resources
            cursor = page.next_cursor
            if cursor is None:
                break
        uris = [str(resource.uri) for resource in resources]
        assert passage["uri"] in uris and named.structured_content["uri"] in uris, (passage, uris)
        for citation in first["citations"]:
            assert citation["uri"] in uris, (citation, uris)
        read = await client.read_resource(passage["uri"])
        assert read.contents[0].text == "We take tiles.", read
        templates = (await client.list_resource_templates()).resource_templates
        assert templates[0].uri_template == "ragstone://{collection}/{document}", templates

        # What a model can mend is a tool's error, and says how.
        await fails(client, "search", {"query": "x", "collection": "nowhere"}, "nowhere")
        await fails(client, "search", {"query": "x", "collection": "no name"}, "cannot name a collection")
        await fails(client, "search", {"query": "x", "top_k": 51}, "`top_k` is 51", "1 to 50")
        await fails(client, "search", {"query": "x", "top_k": "many"}, "`search`", "invalid type")
        await fails(client, "search", {"query": "  "}, "`query` is empty")
        await fails(client, "search", {"query": "x", "colection": "own"}, "unknown field `colection`")
        await fails(client, "search", {}, "missing field `query`")
        await fails(client, "ask", {"question": 5}, "invalid type")
        await fails(client, "ask", {"question": "x" * 2001}, "use at most 2000")
        await fails(client, "add", {"text": "x", "id": "a\nb"}, "control characters")
        await fails(client, "add", {"text": "x" * 1_000_001}, "use at most 1000000", "as several")
        # The rest is the protocol's.
        await refused(client.call_tool("drop_everything", {}), "drop_everything")
        await refused(client.read_resource("ragstone://own/gone"), "gone")
        await refused(client.read_resource("file:///etc/passwd"), "ragstone://COLLECTION/DOCUMENT")
        await refused(client.list_resources(cursor="what"), "no cursor")

    # Two at once, each with several calls at once.
    async with connect() as one, connect() as two:
        calls = [client.call_tool("ask", question) for client in (one, two) for _ in range(4)]
        answers = {answer.structured_content["answer"] for answer in await asyncio.gather(*calls)}
        assert answers == {first["answer"]}, answers


async def cancel():
    """A question whose search takes for ever holds the only place; once it is taken back, the place is free."""
    question = {"question": "What does Calbet Works make?", "collection": "world"}
    async with connect() as client:
        asking = await holding(lambda: client.call_tool("ask", question))
        asking.cancel()
        await eventually(200)
        # The connection goes on.
        assert not (await client.call_tool("status", {})).is_error

    # One that goes away takes back what it asked, too.
    async def leave():
        async with connect() as client:
            await client.call_tool("ask", question)

    leaving = await holding(leave)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await eventually(200)


asyncio.run({"everything": everything, "cancel": cancel}[what]())
print("ok")
