"""``leyden rollouts``: what lies in a store's queue and what has become of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.cli.printing import (
    DEFAULT_STORE,
    AsJson,
    ListsByDefault,
    StoreURL,
    Yes,
    ask_store,
    confirmed,
    find_rollout,
    instant,
    length,
    moment,
    print_json,
    print_table,
    say,
)
from leyden.errors import UsageError
from leyden.types import FailureKind, Mode, Rollout, RolloutState

if TYPE_CHECKING:
    from leyden.server.client import StoreClient

app = typer.Typer(
    cls=ListsByDefault, add_completion=False, rich_markup_mode=None, help="List rollouts, show, count, cancel them and queue them again."
)

PAGE = 1000
NOTHING = "no rollout is like that"

Run = Annotated[str | None, typer.Option("--run", help="Of this run.", metavar="RUN")]
Iteration = Annotated[int | None, typer.Option(help="Of this iteration.")]
OfMode = Annotated[Mode | None, typer.Option("--mode", help="For training, tuning or measuring.")]
Queue = Annotated[str | None, typer.Option(help="In this queue.", metavar="QUEUE")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, or how they begin.", metavar="ID")]


@app.command("list")
def list_(
    run: Run = None,
    iteration: Iteration = None,
    mode: OfMode = None,
    state: Annotated[RolloutState | None, typer.Option(help="In this state.")] = None,
    queue: Queue = None,
    group: Annotated[str | None, typer.Option(help="Of this group.", metavar="GROUP")] = None,
    failure: Annotated[FailureKind | None, typer.Option(help="Final with this kind of failure.")] = None,
    since: Annotated[str | None, typer.Option(help="Queued since then: 2h (ago), or 2026-11-30T09:00.", metavar="TIME")] = None,
    until: Annotated[str | None, typer.Option(help="Queued before then.", metavar="TIME")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Instead of the newest.")] = False,
    limit: Annotated[int, typer.Option(help="How many.", min=1)] = 50,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List rollouts, newest first: id, state, tries, mode, run and iteration, when queued, how long it took, what went wrong."""
    filters = {"run_id": run, "iteration": iteration, "mode": mode, "state": state, "queue": queue, "group": group, "failure": failure}
    filters |= {"created_from": instant(since), "created_to": instant(until), "newest_first": not oldest_first}

    async def print_all(client: StoreClient) -> bool:
        empty = True
        async for page in _pages(client, filters, None):
            _print(page)
            empty = False
        return empty

    async def collect(client: StoreClient) -> list[Rollout]:
        return [rollout async for page in _pages(client, filters, None if all_ else limit + 1) for rollout in page]

    if all_ and not as_json:
        if ask_store(store, print_all):
            say(NOTHING)
        return
    found = ask_store(store, collect)
    more = not all_ and len(found) > limit
    found = found[:limit] if more else found
    if as_json:
        return print_json(rollouts=[rollout.model_dump(mode="json") for rollout in found], more=more)
    _print(found)
    if more:
        say(f"the first {limit}; see more with --limit N or --all")
    elif not found:
        say(NOTHING)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(help="A rollout's id, how it begins, or @latest.", metavar="ID")],
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show one rollout: its task, its attempts, its rewards, its last error."""

    async def look(client: StoreClient) -> dict[str, Any]:
        rollout_id = await find_rollout(client, id_)
        rollout, attempts = await client.get_rollout(rollout_id), await client.list_attempts(rollout_id)
        rewards = [reward for attempt in attempts for reward in await client.list_rewards([rollout_id], attempt.number)]
        return {"rollout": rollout, "attempts": attempts, "rewards": rewards}

    found = ask_store(store, look)
    if as_json:
        return print_json(**_dumped(found))
    rollout: Rollout = found["rollout"]
    shown = rollout.model_dump(mode="json", exclude={"config", "episode", "revision"}, exclude_none=True)
    shown |= {name: moment(shown[name]) for name in ("created_at", "finished_at", "available_at") if name in shown}
    print_table(
        ("", ""),
        [
            (name, value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False))
            for name, value in shown.items()
            if value != {}
        ],
    )
    print()
    print_table(
        ("attempt", "state", "worker", "began", "took", "error"),
        [
            (
                item.number,
                item.state if item.failure is None else f"{item.state} ({item.failure})",
                item.worker_id,
                moment(item.started_at),
                "" if item.ended_at is None else length((item.ended_at - item.started_at) / 1e6),
                _first_line(item.error),
            )
            for item in found["attempts"]
        ],
    )
    if found["rewards"]:
        print()
        print_table(
            ("attempt", "reward", "value", "from", "at"),
            [(item.attempt, item.name, f"{item.value:g}", item.source, item.position) for item in found["rewards"]],
        )


@app.command()
def counts(
    run: Run = None,
    iteration: Iteration = None,
    mode: OfMode = None,
    queue: Queue = None,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Count rollouts by state, of all or of a run; nothing is scanned for it."""
    found = ask_store(store, lambda client: client.count(run, iteration, mode, queue))
    counted = found.model_dump(mode="json")
    if as_json:
        return print_json(counts=counted)
    print_table(("state", "n"), [(state, n) for state, n in counted.items() if isinstance(n, int)])


@app.command()
def cancel(
    ids: Ids = None,
    run: Run = None,
    group: Annotated[str | None, typer.Option(help="Of this group.", metavar="GROUP")] = None,
    yes: Yes = False,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Cancel rollouts that are not final: by id, of a run, of a group. A running agent learns it within one heartbeat."""
    if not ids and run is None and group is None:
        raise UsageError("nothing to cancel is named", "leyden rollouts cancel ID …, --run RUN or --group GROUP")
    what = ", ".join([*(ids or ()), *([f"run {run}"] if run else ()), *([f"group {group}"] if group else ())])
    if not confirmed(f"cancel {what}?", yes):
        raise typer.Exit(1)

    async def go(client: StoreClient) -> int:
        return await client.cancel([await find_rollout(client, prefix) for prefix in ids or ()], run, group)

    count = ask_store(store, go)
    if as_json:
        return print_json(cancelled=count)
    say(f"{count} rollouts are cancelled")


@app.command()
def requeue(
    ids: Annotated[list[str], typer.Argument(help="Ids, or how they begin.", metavar="ID")],
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Queue final rollouts again: each gets a new attempt, and its tries are counted anew."""

    async def go(client: StoreClient) -> list[Rollout]:
        return await client.requeue([await find_rollout(client, prefix) for prefix in ids])

    queued = ask_store(store, go)
    if as_json:
        return print_json(rollouts=[rollout.model_dump(mode="json") for rollout in queued])
    say(f"{len(queued)} rollouts are queued again")


async def _pages(client: StoreClient, filters: dict[str, Any], most: int | None) -> AsyncIterator[list[Rollout]]:
    """At most ``most`` rollouts; None: all."""
    after: str | None = None
    while most is None or most > 0:
        wanted = PAGE if most is None else min(PAGE, most)
        page = await client.list_rollouts(**filters, after=after, limit=wanted)
        if page:
            yield page
        if len(page) < wanted:
            return
        after = page[-1].id
        most = None if most is None else most - len(page)


def _print(found: Sequence[Rollout]) -> None:
    print_table(("id", "state", "tries", "mode", "run", "queued at", "took", "failure"), [_row(rollout) for rollout in found])


def _row(rollout: Rollout) -> tuple[Any, ...]:
    place = "" if rollout.run_id is None else rollout.run_id if rollout.iteration is None else f"{rollout.run_id}/{rollout.iteration}"
    took = "" if rollout.finished_at is None else length((rollout.finished_at - rollout.created_at) / 1e6)
    failure = f"{rollout.failure}: {_first_line(rollout.error)}".rstrip(": ") if rollout.failure else ""
    return rollout.id, rollout.state, rollout.attempt, rollout.mode, place, moment(rollout.created_at), took, failure


def _first_line(text: str | None) -> str:
    """The last line of a traceback says what it was; the first of anything else."""
    lines = (text or "").strip().splitlines() or [""]
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:120]


def _dumped(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [item.model_dump(mode="json") for item in value] if isinstance(value, list) else value.model_dump(mode="json")
        for name, value in found.items()
    }
