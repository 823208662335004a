"""``leyden queues``: what waits and runs in each queue of a store, and how much of it may."""

from __future__ import annotations

from typing import Annotated

import typer

from leyden.cli.printing import DEFAULT_STORE, AsJson, ListsByDefault, StoreURL, ask_store, print_json, print_table, say
from leyden.errors import UsageError
from leyden.types import Queue, Unset

app = typer.Typer(add_completion=False, rich_markup_mode=None, cls=ListsByDefault, help="List queues; pause, resume and limit them.")

Name = Annotated[str, typer.Argument(help="The queue's name.")]


@app.command("list")
def list_(store: StoreURL = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the queues that hold rollouts, and those that were paused or limited once."""
    queues = ask_store(store, lambda client: client.list_queues())
    if as_json:
        return print_json(queues=[queue.model_dump(mode="json") for queue in queues])
    columns = ("queue", "", "limit", "queued", "scheduled", "running", "succeeded", "failed", "lost of these", "cancelled")
    print_table(columns, [_row(queue) for queue in queues])
    if not queues:
        say("no queue holds anything")


@app.command()
def pause(name: Name, store: StoreURL = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Give nothing more of a queue out; what runs goes on."""
    _set(store, name, as_json, paused=True)


@app.command()
def resume(name: Name, store: StoreURL = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Give a paused queue out again."""
    _set(store, name, as_json, paused=False)


@app.command()
def limit(
    name: Name,
    n: Annotated[str, typer.Argument(help="How many of its rollouts run at once, over all runners; none: as many as can.")],
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Limit how many rollouts of a queue run at once."""
    if n != "none" and not (n.isdecimal() and int(n) > 0):
        raise UsageError(f"{n!r} is no limit", f"for instance: leyden queues limit {name} 8, or: leyden queues limit {name} none")
    _set(store, name, as_json, max_running=None if n == "none" else int(n))


def _set(url: str, name: str, as_json: bool, paused: bool | None = None, max_running: int | Unset | None = Unset.UNSET) -> None:
    queue = ask_store(url, lambda client: client.set_queue(name, paused, max_running))
    if as_json:
        return print_json(queue=queue.model_dump(mode="json"))
    most = "any number" if queue.max_running is None else f"at most {queue.max_running}"
    say(f"{queue.name} is {'paused' if queue.paused else 'open'}; {most} of it may run at once, {queue.counts.running} do")


def _row(queue: Queue) -> tuple[object, ...]:
    counts = queue.counts
    state = "paused" if queue.paused else "open"
    ended = (counts.succeeded, counts.failed, counts.lost, counts.cancelled)
    return (queue.name, state, queue.max_running or "none", counts.queued, counts.scheduled, counts.running, *ended)
