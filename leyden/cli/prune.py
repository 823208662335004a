"""``leyden prune``: delete rollouts that ended long ago, with everything recorded about them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.cli.printing import DEFAULT_STORE, AsJson, StoreURL, Yes, ask_store, confirmed, duration, print_json, say
from leyden.types import RolloutState

if TYPE_CHECKING:
    from leyden.server.client import StoreClient
    from leyden.server.queries import Prune

NOTHING = "there is nothing to delete: nothing is that old and final, unless it is of a run that is running"


def run(
    older_than: Annotated[str, typer.Option(help="Ended so long ago, e.g. 30d.", metavar="TIME")],
    state: Annotated[RolloutState | None, typer.Option(help="Only those that ended so.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Only of this run.", metavar="RUN")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    yes: Yes = False,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Delete final rollouts with their attempts, spans, generations and rewards, and what nothing names any more.

    Nothing that waits or runs is touched, nor anything of a run that is running. A store goes on meanwhile.
    """
    from leyden.server.queries import Prune, asked

    query = asked(Prune, {"older_than": duration(older_than), "state": state, "run_id": run, "dry_run": True})
    would = ask_store(store, lambda client: client.prune(query)).model_dump(exclude={"more"})
    if dry_run or not any(would.values()):
        if as_json:
            return print_json(dry_run=dry_run, deleted=would)
        return say(f"would delete {_listed(would)}" if any(would.values()) else NOTHING)
    if not confirmed(f"delete {_listed(would)}?", yes):
        raise typer.Exit(1)
    deleted = ask_store(store, lambda client: _go_on(client, query.model_copy(update={"dry_run": False}), would["rollouts"]))
    if as_json:
        return print_json(dry_run=False, deleted=deleted)
    say(f"deleted {_listed(deleted)}")


async def _go_on(client: StoreClient, query: Prune, of: int) -> dict[str, int]:
    deleted: Counter[str] = Counter()
    more = True
    while more:
        part = await client.prune(query)
        deleted.update(part.model_dump(exclude={"more"}))
        more = part.more
        if sys.stderr.isatty():
            say(f"  {deleted['rollouts']} of {of} rollouts")
    return dict(deleted)


def _listed(numbers: dict[str, Any]) -> str:
    return ", ".join(f"{n} {what}" for what, n in numbers.items() if n) or "nothing"
