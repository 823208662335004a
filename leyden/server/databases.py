"""Which database a name means, and how it is shown: without its passwords."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from leyden.errors import EXTRAS, MissingExtra, UsageError
from leyden.server.database import Database
from leyden.server.sqlite import SQLiteFile

_HINT = "write it as postgresql://USER:PASSWORD@HOST:5432/NAME, and @ : / ? in a password as %40 %3A %2F %3F"


def open_database(name: str | Path) -> Database:
    """``postgresql://…``, or the path of a SQLite file. Raises ``UsageError`` for anything that looks like another kind of database."""
    if not is_url(name):
        return SQLiteFile(Path(name))
    parse_url(str(name))
    try:
        from leyden.server.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise MissingExtra("psycopg", EXTRAS["psycopg"]) from error
    return PostgresDatabase(str(name))


def is_url(name: str | Path) -> bool:
    return "://" in str(name)


def parse_url(name: str) -> URL:
    """Raises ``UsageError`` for what is no URL of PostgreSQL, or one that libpq may read otherwise than it is meant."""
    scheme = name.partition("://")[0]
    if scheme not in ("postgresql", "postgres"):
        raise UsageError(f"{scheme}:// is no database of a store", "give --database a file, or postgresql://USER@HOST/NAME")
    try:
        url = make_url(name)
        ports = [url.port or 5432, *map(int, _each(url, "port"))]
    except (ArgumentError, ValueError):  # the latter for a port that is no number; what they say has the password in it
        raise UsageError(f"{shown(name)} is not the URL of a database", _HINT) from None
    if not all(0 < port < 65536 for port in ports) or any("@" in str(part or "") for part in (url.host, url.database)):
        raise UsageError(f"{shown(name)} is not the URL of a database", _HINT)
    return url.set(drivername="postgresql")


def parameters(url: URL) -> dict[str, str]:
    """What libpq is told of ``url``, by libpq's names."""
    given = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database}
    found = {name: str(value) for name, value in given.items() if value}
    return found | {name: value if isinstance(value, str) else ",".join(value) for name, value in url.query.items()}


def shown(name: str | Path) -> str:
    """A database as it may be printed: *** stands for each password, also where the URL is a wrong one."""
    scheme, separator, rest = str(name).partition("://")
    if not separator:
        return scheme
    user, at, place = rest.rpartition("@")
    if match := re.match("[^:?]*(?=[:?])", user):
        user = f"{match[0]}:***"
    place = re.sub(r"^([^/?:\[]*):(?![0-9]+([/?,]|$))[^/?]*", r"\1:***", place)  # no port: perhaps USER:PASSWORD without @HOST
    place = re.sub("([?&])([^=&]*)=[^&]*", _without_secret, place)
    return f"{scheme}://{user}{at}{place}"


def _without_secret(match: re.Match[str]) -> str:
    name = unquote(match[2]).lower()
    return f"{match[1]}{match[2]}=***" if "password" in name or "secret" in name else match[0]


def _each(url: URL, name: str) -> list[str]:
    value = url.query.get(name, ())
    return value.split(",") if isinstance(value, str) else list(value)
