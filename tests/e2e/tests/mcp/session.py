"""A session of the official Python client with Pando, over any of its ways."""

import contextlib
import json
import os
import time
import urllib.request

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

URL = os.environ["PANDO_URL"]
PROGRAM = os.environ["PANDO_PROGRAM"]
KEY = os.environ["KEY"]

# How long a call may take here before the client gives up: far more than it ever should.
CALL_S = 120


@contextlib.asynccontextmanager
async def session(way):
    """`stdio`, `http` (without a session: 2026-07-28) or `http-session` (revisions before)."""
    async with contextlib.AsyncExitStack() as stack:
        if way == "stdio":
            env = {name: os.environ[name] for name in ("PANDO_URL", "PANDO_STATE_DIR")}
            server = StdioServerParameters(command=PROGRAM, args=["mcp"], env=env)
            transport = stdio_client(server)
        else:
            http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=CALL_S)
            transport = streamable_http_client(
                f"{URL}/mcp", http_client=await stack.enter_async_context(http)
            )
        mode = "legacy" if way == "http-session" else "auto"
        client = Client(transport, mode=mode, read_timeout_seconds=CALL_S)
        yield await stack.enter_async_context(client)


def text(result):
    """All text of a result."""
    return "\n".join(block.text for block in result.content)


async def call(client, tool, **arguments):
    """Calls a tool that must succeed; its data."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, f"{tool} {arguments}: {text(result)}"
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


async def refused(client, tool, *words, **arguments):
    """Calls a tool that must fail as a tool, in these words."""
    result = await client.call_tool(tool, arguments)
    said = text(result)
    assert result.is_error, f"{tool} {arguments} succeeded: {said}"
    for word in words:
        assert word in said, f"{tool} {arguments}: no `{word}` in: {said}"
    return said


def ask(path):
    request = urllib.request.Request(URL + path, headers={"X-API-Key": KEY})
    return urllib.request.urlopen(request, timeout=CALL_S)


async def get(path):
    """What the daemon itself says there."""
    def read():
        with ask(path) as answer:
            return answer.read().decode()

    return await anyio.to_thread.run_sync(read)


async def event(kind, detail):
    """Waits until the daemon's journal has such an event, or finds it there."""
    def follow():
        deadline = time.monotonic() + CALL_S
        with ask(f"/v1/events?follow=true&kind={kind}") as lines:
            # A quiet stream has a comment every while.
            for line in lines:
                if line.startswith(b"data:") and detail in json.loads(line[5:])["detail"]:
                    return
                assert time.monotonic() < deadline, f"no {kind} with `{detail}`"
        raise AssertionError("the journal broke off")

    await anyio.to_thread.run_sync(follow)
