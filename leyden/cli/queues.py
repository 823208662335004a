"""``leyden queues``: what waits and runs in each queue of a store, and how much of it may."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated

import typer

from leyden.errors import UsageError
from leyden.types import Queue, Unset

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="List queues; pause, resume and limit them.")

Name = Annotated[str, typer.Argument(help="The queue's name.")]
StoreURL = Annotated[str, typer.Option("--store", envvar="LEYDEN_STORE", help="URL of the store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_STORE = "http://127.0.0.1:4747"
FORMAT = 1


@app.command("list")
def list_(store: StoreURL = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the queues that hold rollouts, and those that were paused or limited once."""
    queues = asyncio.run(_list(store))
    if as_json:
        print(json.dumps({"format": FORMAT, "queues": [queue.model_dump(mode="json") for queue in queues]}, indent=2))
        return
    for queue in queues:
        print(_line(queue))
    if not queues:
        print("no queue holds anything", file=sys.stderr)


@app.command()
def pause(name: Name, store: StoreURL = DEFAULT_STORE) -> None:
    """Give nothing more of a queue out; what runs goes on."""
    _set(store, name, paused=True)


@app.command()
def resume(name: Name, store: StoreURL = DEFAULT_STORE) -> None:
    """Give a paused queue out again."""
    _set(store, name, paused=False)


@app.command()
def limit(
    name: Name,
    n: Annotated[str, typer.Argument(help="How many of its rollouts run at once, over all runners; none: as many as can.")],
    store: StoreURL = DEFAULT_STORE,
) -> None:
    """Limit how many rollouts of a queue run at once."""
    if n != "none" and not (n.isdecimal() and int(n) > 0):
        raise UsageError(f"{n!r} is no limit", f"for instance: leyden queues limit {name} 8, or: leyden queues limit {name} none")
    _set(store, name, max_running=None if n == "none" else int(n))


def _set(url: str, name: str, paused: bool | None = None, max_running: int | Unset | None = Unset.UNSET) -> None:
    from leyden.server.client import StoreClient

    async def change() -> Queue:
        async with StoreClient(url) as store:
            return await store.set_queue(name, paused, max_running)

    print(_line(asyncio.run(change())), file=sys.stderr)


async def _list(url: str) -> list[Queue]:
    from leyden.server.client import StoreClient

    async with StoreClient(url) as store:
        return await store.list_queues()


def _line(queue: Queue) -> str:
    counts = queue.counts
    limit = f" of {queue.max_running}" if queue.max_running is not None else ""
    waiting = f"{counts.queued} queued" + (f", {counts.scheduled} scheduled" if counts.scheduled else "")
    ended = f"{counts.succeeded} succeeded, {counts.failed} failed" + (f" ({counts.lost} lost)" if counts.lost else "")
    return f"{queue.name}  {'paused' if queue.paused else 'open'}  {waiting}  {counts.running}{limit} running  {ended}"
