"""Which database a name means."""

from __future__ import annotations

from pathlib import Path

from leyden.errors import EXTRAS, MissingExtra, UsageError
from leyden.server.database import Database
from leyden.server.sqlite import SQLiteFile


def open_database(name: str | Path) -> Database:
    """``postgresql://…``, or the path of a SQLite file. Raises ``UsageError`` for anything that looks like another kind of database."""
    scheme, separator, _ = str(name).partition("://")
    if not separator:
        return SQLiteFile(Path(name))
    if scheme not in ("postgresql", "postgres"):
        raise UsageError(f"{scheme}:// is no database of a store", "give --database a file, or postgresql://USER@HOST/NAME")
    try:
        from leyden.server.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise MissingExtra("psycopg", EXTRAS["psycopg"]) from error
    return PostgresDatabase(str(name))
