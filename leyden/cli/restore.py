"""``leyden restore FILE``: a store made of a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leyden.cli.printing import AsJson, print_json, say


def run(
    file: Annotated[Path, typer.Argument(help="The backup.")],
    database: Annotated[str, typer.Option(help="A file that is not there yet, or an empty database: postgresql://…", metavar="FILE|URL")],
    pg_restore: Annotated[str | None, typer.Option(help="PostgreSQL: the pg_restore to use.", metavar="PATH")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a backup and make a new database of it. What is there is never replaced."""
    from leyden.server.backup import restore
    from leyden.server.databases import shown

    restore(file, database, pg_restore)
    if as_json:
        return print_json(database=shown(database))
    say(f"restored; start it with: store --database {shown(database)}")
