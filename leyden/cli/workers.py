"""``leyden workers``: which runner processes a store knows, and which of them live."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from leyden.cli.printing import DEFAULT_STORE, AsJson, StoreURL, ask_store, duration, length, moment, print_json, print_table, say

ALIVE = 60.0  # seconds without a beat, and a worker is counted as gone


def run(
    alive: Annotated[str | None, typer.Option(help="Only those that beat within this time, e.g. 60s.", metavar="TIME")] = None,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List runner processes: id, name, host and pid, what it runs of what it could, since when, how it is."""
    within = None if alive is None else duration(alive)
    found = ask_store(store, lambda client: client.list_workers(within))
    if as_json:
        return print_json(workers=[worker.model_dump(mode="json") for worker in found])
    rows = []
    for worker in found:
        silent = time.time() - worker.last_seen_at / 1e6
        state = "stopped" if worker.stopped_at is not None else "alive" if silent < ALIVE else f"silent for {length(silent)}"
        where = "" if worker.host is None else f"{worker.host}:{worker.pid}"
        rows.append((worker.id, worker.name, where, f"{worker.running} of {worker.capacity}", moment(worker.started_at), state))
    print_table(("id", "name", "process", "runs", "since", "state"), rows)
    if not found:
        say("no runner has come to this store; start some with: leyden runners MODULE:AGENT")
