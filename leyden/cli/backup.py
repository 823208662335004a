"""``leyden backup FILE``: a copy of a store, which may run meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leyden.cli.printing import AsJson, print_json, say
from leyden.cli.sql import DATABASE, Database


def run(
    file: Annotated[Path, typer.Argument(help="The file to make.")],
    database: Database = DATABASE,
    pg_dump: Annotated[str | None, typer.Option(help="PostgreSQL: the pg_dump to use, of the server's version.", metavar="PATH")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store into one file: everything acknowledged before it began, and nothing half done."""
    from leyden.server.backup import backup

    size = backup(database, file, pg_dump)
    if as_json:
        return print_json(file=str(file), bytes=size)
    say(f"{file}: {size / 1e6:.1f} MB; make a store of it with: leyden restore {file} --database NEW")
