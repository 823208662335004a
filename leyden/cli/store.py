"""``leyden store``: serve a store on this machine."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from leyden.process import watch_parent


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def run(
    port: Annotated[int, typer.Option(help="0: any free one.")] = 4747,
    host: Annotated[str, typer.Option(help="Another than this machine's own needs a token: see leyden token.")] = "127.0.0.1",
    database: Annotated[
        str | None,
        typer.Option(envvar="LEYDEN_DATABASE", help="SQLite file, or postgresql://USER@HOST/NAME; default: leyden.db in this directory."),
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep everything in a temporary file instead.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what it does.")] = False,
    log_format: Annotated[LogFormat, typer.Option(help="json: one object a line, for what collects logs.")] = LogFormat.TEXT,
    ready_file: Annotated[str | None, typer.Option(help="Written as JSON once the store listens: url, port, pid, nonce, database.")] = None,
) -> None:
    """Serve a store until Ctrl+C."""
    import uvloop

    from leyden.errors import UsageError
    from leyden.server import logs
    from leyden.server.serving import Listening, serve

    if ephemeral and database is not None:
        raise UsageError("a store is either ephemeral or in a database file", "leave out --ephemeral or --database")
    watch_parent()
    as_json = log_format is LogFormat.JSON
    logs.configure(as_json, verbose)

    def announce(listens: Listening) -> None:
        if as_json:
            logs.LIFE.info("listening on %s, database %s", listens.url, listens.database)
        else:
            print(f"store: {listens.url}  database {listens.database}  (Ctrl+C stops it)", file=sys.stderr, flush=True)

    where = None if ephemeral else database or "leyden.db"
    signum = uvloop.run(serve(host, port, where, announce, Path(ready_file) if ready_file else None))
    if as_json:
        logs.LIFE.info("stopped by %s", signum.name)
    raise SystemExit(128 + signum)
