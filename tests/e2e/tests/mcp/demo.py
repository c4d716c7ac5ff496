"""What a model would do, without one: an editor for several people, a new look, and back.

Everything in the sandbox is done by MCP tools; two browsers are the people.
"""

from pathlib import Path

import anyio
from browser import Browser, Driver
from session import call, session

HERE = Path(__file__).parent
OLD, NEW = ("Old look", "rgb(255, 255, 255)"), ("New look", "rgb(32, 32, 64)")


def look(title, colour):
    page = (HERE / "look.html").read_text()
    return page.replace("TITLE", title).replace("COLOUR", colour)


async def build(client):
    await call(client, "create_sandbox", name="editor")
    server = (HERE / "editor_server.py").read_text()
    await call(client, "write_file", sandbox="editor", path="app/server.py", content=server)
    await call(client, "write_file", sandbox="editor", path="app/look.html", content=look(*OLD))
    started = await call(
        client, "run_command", sandbox="editor", argv=["python3", "app/server.py"], background=True
    )
    heard = await call(
        client, "read_output", sandbox="editor", process_id=started["process_id"], wait_s=50
    )
    assert heard["output"] == "serving\n", heard
    exposed = await call(client, "expose_port", sandbox="editor", port=8000)
    assert exposed["open"], exposed
    return exposed["url"]


def work_together(one, other, look, before, words):
    """One types, the other sees it, and answers."""
    for writer, added in zip((one, other), words):
        writer.type(added)
        before += added
        for each in (one, other):
            each.await_sight(*look, before)
    return before


async def main():
    async with session("stdio") as client:
        url = await build(client)
        with Driver() as driver:
            people = Browser(driver, "Ada"), Browser(driver, "Grace")
            for person in people:
                person.open(url)
            text = work_together(*people, OLD, "", ("hello ", "hi "))
            await call(client, "snapshot", sandbox="editor", name="old-look")
            await call(
                client, "write_file", sandbox="editor", path="app/look.html", content=look(*NEW)
            )
            for person in people:
                person.await_sight(*NEW, text)
            work_together(*people, NEW, text, ("lost ", "gone "))
            await call(client, "rollback", sandbox="editor", snapshot="old-look")
            # Neither page was touched: both lost their connection and found the old state.
            for person in people:
                person.await_sight(*OLD, text)
            work_together(*people, OLD, text, ("again ", "yes"))
            for person in people:
                person.close()
        await call(client, "destroy_sandbox", sandbox="editor")


anyio.run(main)
