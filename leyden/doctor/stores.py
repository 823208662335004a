"""A store, at its URL or as a database file: is it one of ours, and of this version?"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from leyden.doctor.finding import Finding, ok, problem, warning
from leyden.doctor.ports import health_of


def check_store(store: str) -> Finding:
    return _check_url(store) if "://" in store else _check_file(Path(store))


def _check_url(url: str) -> Finding:
    health = health_of(url)
    if health is None:
        return problem("store", f"no store answers at {url}", "start one: store --port 4747")
    if health.get("name") != "leyden-store":
        return problem("store", f"what answers at {url} is not a store of Leyden", "start one on another port: store --port 4748")
    theirs, ours = health.get("version"), _our_version()
    if theirs != ours:
        return problem(
            "store", f"{url} runs Leyden {theirs}, this is {ours}", f"pip install leyden=={theirs}, or update the store's machine"
        )
    return ok("store", f"{url} runs Leyden {theirs}, as here")


def _check_file(path: Path) -> Finding:
    from leyden.server.schema import SCHEMA_VERSION  # loads SQLAlchemy

    if not path.is_file():
        return problem("store", f"no database at {path}", f"make one: store --database {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as conn:
            schema = conn.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        return problem("store", f"{path} cannot be read: {error}", "choose another file with --database")
    holder = _holder(path)
    where = f"{path}, schema {schema}" + (f", open in process {holder}" if holder else ", not open anywhere")
    if schema == SCHEMA_VERSION:
        return ok("store", where)
    if schema == 0:
        return problem("store", f"{path} is a database, but not one of Leyden's", "choose another file with --database")
    if schema > SCHEMA_VERSION:
        return problem("store", f"{where}: written by a newer Leyden (this one knows {SCHEMA_VERSION})", "pip install -U leyden")
    return warning(
        "store", f"{where}: written by an older Leyden (this one writes {SCHEMA_VERSION})", "open it with the Leyden that wrote it"
    )


def _holder(path: Path) -> str | None:
    """The pid of the process that has the database open, as its lock file says (``server/sqlite.py``)."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    else:
        return None
    finally:
        os.close(fd)


def _our_version() -> str:
    try:
        return version("leyden")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
