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
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from leyden.errors import Conflict, DiskError, NotFound, Unavailable, UsageError
from leyden.server.adhoc import connect, open_file
from leyden.server.databases import is_url, parameters, parse_url, shown
from leyden.server.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import psycopg

_DUMP_BEGINS = b"PGDMP"


def backup(database: str, target: Path, pg_dump: str | None = None) -> int:
    """Copy ``database`` (a file, or ``postgresql://…``) into the new file ``target``; returns its bytes. It may run and write meanwhile.

    Raises ``Conflict`` if ``target`` exists, ``UsageError`` for what is no store, ``DiskError`` if there is no room.
    """
    if target.exists():
        raise Conflict(f"{target} exists", "a backup never replaces a file: choose another name, or remove it")
    with _partial(target) as partial:
        if is_url(database):
            _dump(database, partial, pg_dump)
        else:
            _copy_snapshot(Path(database), partial)
            check_file(partial, Path(database))
        _settle(partial, target)
    return target.stat().st_size


def restore(source: Path, database: str, pg_restore: str | None = None) -> None:
    """Make the backup ``source`` into the new file, or the empty PostgreSQL database, ``database``. What is there is never replaced.

    Raises ``NotFound`` without a backup, ``UsageError`` for one that is damaged, no store's, or of a newer Leyden; ``Conflict`` if the
    place is taken.
    """
    if not source.is_file():
        raise NotFound(f"there is no file {source}", "make one with: leyden backup FILE")
    of_postgres = _begins_with(source, _DUMP_BEGINS)
    if of_postgres != is_url(database):
        kind, place = ("PostgreSQL", "--database postgresql://…") if of_postgres else ("a SQLite file", "--database FILE")
        raise UsageError(f"{source} is a backup of {kind}", f"restore it with {place}")
    if of_postgres:
        _restore_dump(source, database, pg_restore)
    else:
        _restore_file(source, Path(database))


def check_file(path: Path, copy_of: Path | None = None) -> None:
    """Raises ``UsageError``, by the name that people know it by, unless it is a whole database that this Leyden can open."""
    name = copy_of or path
    with closing(open_file(path)) as conn:
        try:
            said = conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
            broken = conn.execute("PRAGMA foreign_key_check").fetchone()
            (version,) = conn.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{name} is damaged: {error}", "use another backup") from error
    if said != "ok" or broken is not None:
        raise UsageError(
            f"{name} is damaged: {said if said != 'ok' else f'a row of {broken[0]} names what is not there'}", "use another backup"
        )
    _check_version(name, version)


def _check_version(path: Path | str, version: int) -> None:
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
    with _partial(target) as partial:
        shutil.copyfile(source, partial)
        check_file(partial, source)
        _settle(partial, target)


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """An empty file beside ``target``, for its owner alone and for this while."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # of a process of that number which was killed
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        yield partial
    except OSError as error:
        raise DiskError(f"{target} could not be written: {error.strerror}", f"see that {target.parent} has room for it") from error
    finally:
        partial.unlink(missing_ok=True)


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


def _dump(database: str, partial: Path, pg_dump: str | None) -> None:
    program = _program("pg_dump", pg_dump)
    with closing(connect(database)) as conn:
        schema, version = _store_in(conn)
    if schema is None or version is None:
        raise UsageError(f"{shown(database)} holds no store", "name the store's database, and its schema: ?options=-csearch_path%3DSCHEMA")
    _check_version(shown(database), version)
    place, environment = _connection(database)
    _run(program, ["--format=custom", f"--file={partial}", f"--schema={_quoted(schema)}", f"--dbname={place}"], environment)


def _restore_dump(source: Path, database: str, pg_restore: str | None) -> None:
    program = _program("pg_restore", pg_restore)
    versions = _stores_of_dump(_run(program, ["--data-only", "--table=meta", "--file=-", str(source)], {}))
    if not versions:
        raise UsageError(f"{source} is not a backup of a store", "make one with: leyden backup FILE --database postgresql://…")
    with closing(connect(database)) as conn:
        schema, exists = _schema_of(conn)
        if schema not in versions:
            (first, *_) = sorted(versions)
            raise UsageError(
                f"{source} is of the schema {first}, and {shown(database)} means the schema {schema}",
                f"make the schema {first} there and add ?options=-csearch_path%3D{quote(first)} to the URL",
            )
        _check_version(source, versions[schema])
        taken = conn.execute(_RELATIONS, (schema,)).fetchone()
    if taken is not None:
        raise Conflict(f"the schema {schema} of {shown(database)} is not empty: it has {taken[0]}", "restore into an empty database")
    place, environment = _connection(database)
    # In one transaction, and nothing is dropped. With --schema the schema itself is left out: it is there.
    only = [f"--schema={schema}"] if exists else []
    arguments = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", *only, f"--dbname={place}", str(source)]
    _run(program, arguments, environment)
    with closing(connect(database)) as conn:
        if _store_in(conn) != (schema, versions[schema]):
            raise Unavailable(f"{source} was restored, but {shown(database)} does not show it", "see which schemas its search_path names")


_RELATIONS = """
    SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s
    AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e') LIMIT 1
"""


def _schema_of(conn: psycopg.Connection) -> tuple[str, bool]:
    """The schema a store there would use, and whether it exists; if none of them does, the one that is named first."""
    row = conn.execute("SELECT current_schema(), current_setting('search_path')").fetchone()
    assert row is not None
    schema, path = row
    if schema is not None:
        return schema, True
    return path.split(",")[0].strip().strip('"'), False


def _store_in(conn: psycopg.Connection) -> tuple[str | None, int | None]:
    """The schema where the store's tables lie, and their version; None without one."""
    tables = conn.execute("SELECT to_regclass('meta'), to_regclass('rollouts'), current_schema()").fetchone()
    assert tables is not None
    if None in tables:
        return None, None
    row = conn.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone() if _is_ours(conn) else None
    return tables[2], None if row is None else int(row[0])


def _is_ours(conn: psycopg.Connection) -> bool:
    columns = conn.execute("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('meta') AND attnum > 0").fetchall()
    return {("key",), ("value",)} <= set(columns)


def _stores_of_dump(data: str) -> dict[str, int]:
    """The versions of the stores in it, by schema."""
    found: dict[str, int] = {}
    schema = ""
    for line in data.splitlines():
        if begins := re.match(r'COPY ("(?:[^"]|"")+"|[^".]+)\.meta \(', line):
            schema = begins[1][1:-1].replace('""', '"') if begins[1].startswith('"') else begins[1]
        elif row := re.fullmatch(r"schema_version\t\\\\x([0-9a-f]+)", line):
            found[schema] = int(bytes.fromhex(row[1]))
    return found


def _connection(database: str) -> tuple[str, Mapping[str, str]]:
    """What says where, and the password for the environment: arguments are there for everybody to see."""
    from psycopg.conninfo import make_conninfo

    given = parameters(parse_url(database))
    password = given.pop("password", None)
    return make_conninfo(**given), {} if password is None else {"PGPASSWORD": password}


def _quoted(name: str) -> str:
    """As a pattern of pg_dump's, which matches that name alone."""
    return '"' + name.replace('"', '""') + '"'


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
