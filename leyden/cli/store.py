"""``leyden store``: serve a store on this machine."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from leyden.process import watch_parent


def run(
    port: Annotated[int, typer.Option(help="0: any free one.")] = 4747,
    host: Annotated[str, typer.Option(help="This machine only: there is no authentication.")] = "127.0.0.1",
    database: Annotated[
        str | None,
        typer.Option(envvar="LEYDEN_DATABASE", help="SQLite file, or postgresql://USER@HOST/NAME; default: leyden.db in this directory."),
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep everything in a temporary file instead.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what it does.")] = False,
    ready_file: Annotated[str | None, typer.Option(help="Written as JSON once the store listens: url, port, pid, nonce, database.")] = None,
) -> None:
    """Serve a store until Ctrl+C."""
    import uvloop

    from leyden.errors import UsageError
    from leyden.server.serving import Listening, serve

    if ephemeral and database is not None:
        raise UsageError("a store is either ephemeral or in a database file", "leave out --ephemeral or --database")
    watch_parent()
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def announce(listens: Listening) -> None:
        print(f"store: {listens.url}  database {listens.database}  (Ctrl+C stops it)", file=sys.stderr, flush=True)

    where = None if ephemeral else database or "leyden.db"
    signum = uvloop.run(serve(host, port, where, announce, Path(ready_file) if ready_file else None))
    raise SystemExit(128 + signum)
