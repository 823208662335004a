"""``leyden runners module:agent``: runner processes for a store."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    agent: Annotated[str, typer.Argument(help="module:agent, or path/to/file.py:agent.")],
    n: Annotated[int, typer.Option("-n", help="Processes.")] = 4,
    concurrency: Annotated[int, typer.Option(help="Rollouts at once in each process.")] = 16,
    store: Annotated[str, typer.Option(envvar="LEYDEN_STORE", help="URL of the store.")] = "http://127.0.0.1:4747",
    lease: Annotated[float, typer.Option(help="Seconds after which a lost runner's rollouts are claimed again.")] = 60.0,
    queue: Annotated[list[str] | None, typer.Option(help="A queue to claim from; default: the one named default. Repeat it.")] = None,
    grace: Annotated[float, typer.Option(help="Seconds to finish what is held at SIGTERM.")] = 10.0,
    pass_env: Annotated[list[str] | None, typer.Option(help="A variable to pass on although it looks like a secret. Repeat it.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run an agent for a store until Ctrl+C: the first finishes what is held, the second hands it back and ends now."""
    from leyden.runners import PoolConfig, spawn_runners
    from leyden.types import DEFAULT_QUEUE

    queues = tuple(queue or (DEFAULT_QUEUE,))
    config = PoolConfig(agent, store, n, concurrency, lease, grace, debug=debug, queues=queues, pass_env=tuple(pass_env or ()))
    raise typer.Exit(spawn_runners(config))
