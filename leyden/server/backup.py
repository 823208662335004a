"""A copy of a whole store, taken while it runs, and a store made of one.

A backup holds everything that was acknowledged before it began, and nothing of what was half done: SQLite's is one snapshot written out
(``VACUUM INTO``), PostgreSQL's is one of ``pg_dump``. Both come into being under another name: a file of the given name is whole.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from leyden.errors import Conflict, DiskError, NotFound, Unavailable, UsageError
from leyden.server.adhoc import open_file
from leyden.server.schema import SCHEMA_VERSION

_DUMP_BEGINS = b"PGDMP"


def backup(database: str, target: Path, pg_dump: str | None = None) -> int:
    """Copy ``database`` (a file, or ``postgresql://…``) into the new file ``target``; returns its bytes. It may run and write meanwhile.

    Raises ``Conflict`` if ``target`` exists, ``UsageError`` for what is no store, ``DiskError`` if there is no room.
    """
    if target.exists():
        raise Conflict(f"{target} exists", "a backup never replaces a file: choose another name, or remove it")
    partial = _partial(target)
    try:
        if "://" in database:
            arguments, environment = _connection(database)
            _run(_program("pg_dump", pg_dump), ["--format=custom", f"--file={partial}", *arguments], environment)
        else:
            _copy_snapshot(Path(database), partial)
            check_file(partial)
        _settle(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def restore(source: Path, database: str, pg_restore: str | None = None) -> None:
    """Make the backup ``source`` into the new file, or the empty PostgreSQL database, ``database``. What is there is never replaced.

    Raises ``NotFound`` without a backup, ``UsageError`` for one that is damaged, no store's, or of a newer Leyden; ``Conflict`` if the
    place is taken.
    """
    if not source.is_file():
        raise NotFound(f"there is no file {source}", "make one with: leyden backup FILE")
    of_postgres = _begins_with(source, _DUMP_BEGINS)
    if of_postgres != ("://" in database):
        kind, place = ("PostgreSQL", "--database postgresql://…") if of_postgres else ("a SQLite file", "--database FILE")
        raise UsageError(f"{source} is a backup of {kind}", f"restore it with {place}")
    if of_postgres:
        _restore_dump(source, database, pg_restore)
    else:
        _restore_file(source, Path(database))


def check_file(path: Path) -> None:
    """Raises ``UsageError`` unless it is a whole database that this Leyden can open."""
    with closing(open_file(path)) as conn:
        try:
            said = conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
            broken = conn.execute("PRAGMA foreign_key_check").fetchone()
            (version,) = conn.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{path} is damaged: {error}", "use another backup") from error
    if said != "ok" or broken is not None:
        raise UsageError(
            f"{path} is damaged: {said if said != 'ok' else f'a row of {broken[0]} names what is not there'}", "use another backup"
        )
    _check_version(path, version)


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} was written by a newer Leyden (schema {version}; this one knows {SCHEMA_VERSION})", "pip install -U leyden"
        )


# -- SQLite ------------------------------------------------------------------------------------------------------------


def _copy_snapshot(path: Path, partial: Path) -> None:
    with closing(open_file(path)) as conn:
        try:
            conn.execute("VACUUM INTO ?", (str(partial),))
        except sqlite3.DatabaseError as error:
            raise DiskError(f"the backup could not be written: {error}", f"see that {partial.parent} has room for it") from error


def _restore_file(source: Path, target: Path) -> None:
    taken = next((name for name in (target, Path(f"{target}-wal"), Path(f"{target}-journal")) if name.exists()), None)
    if taken is not None:
        raise Conflict(f"{taken} exists", "a restore never replaces a database: choose another name")
    check_file(source)
    partial = _partial(target)
    try:
        shutil.copyfile(source, partial)
        check_file(partial)
        _settle(partial, target)
    except OSError as error:
        raise DiskError(f"{target} could not be written: {error.strerror}", f"see that {target.parent} has room for it") from error
    finally:
        partial.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.{os.getpid()}.partial")


def _settle(partial: Path, target: Path) -> None:
    """On disk first, then under its name."""
    _sync(partial)
    if target.exists():
        raise Conflict(f"{target} exists", "it came while this was written: choose another name")
    partial.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def _restore_dump(source: Path, database: str, pg_restore: str | None) -> None:
    program = _program("pg_restore", pg_restore)
    version = _version_of_dump(_run(program, ["--data-only", "--table=meta", "--file=-", str(source)], {}))
    if version is None:
        raise UsageError(f"{source} is not a backup of a store", "make one with: leyden backup FILE --database postgresql://…")
    _check_version(source, version)
    (place, *_), environment = _connection(database)
    # In one transaction, and nothing is dropped: a database that holds a store already fails at its first table.
    _run(program, ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", place, str(source)], environment)


def _version_of_dump(data: str) -> int | None:
    found = re.search(r"^schema_version\t\\\\x([0-9a-f]+)$", data, re.MULTILINE)
    return int(bytes.fromhex(found[1])) if found else None


def _connection(database: str) -> tuple[list[str], Mapping[str, str]]:
    """Arguments that say where, and the password in the environment: arguments are there for everybody to see."""
    try:
        url = make_url(database)
    except ArgumentError as error:
        raise UsageError(f"{database!r} is not the URL of a database", "write it as postgresql://USER:PASSWORD@HOST:5432/NAME") from error
    schema = _schema(url)
    place = url.set(drivername="postgresql", password=None).render_as_string()
    environment = {} if url.password is None else {"PGPASSWORD": str(url.password)}
    return [f"--dbname={place}", *([f"--schema={schema}"] if schema else [])], environment


def _schema(url: URL) -> str | None:
    """The one that the URL's search_path names first."""
    options = url.query.get("options", "")
    _, named, path = str(options).replace(" ", "").partition("search_path=")
    return path.split(",")[0].split("-c")[0] if named else None


def _program(name: str, given: str | None) -> str:
    found = shutil.which(given or name)
    if found is None:
        raise NotFound(
            f"there is no {given or name}", f"install PostgreSQL's client programs, or say where it is: --{name.replace('_', '-')} PATH"
        )
    return found


def _run(program: str, arguments: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode == 0:
        return done.stdout
    lines = [line.removeprefix(f"{Path(program).name}: ").removeprefix("error: ") for line in done.stderr.splitlines()]
    name = Path(program).name
    if any("version mismatch" in line for line in lines):
        raise UsageError(
            f"{name}: {lines[-1].removeprefix('detail: ')}", f"name one of the server's version: --{name.replace('_', '-')} PATH"
        )
    if any("already exists" in line for line in lines):
        raise Conflict(f"{name}: {lines[0]}", "restore into an empty database")
    raise Unavailable(f"{name}: {lines[0] if lines else f'exit status {done.returncode}'}", "nothing was changed")
