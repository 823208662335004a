"""The store's calls about its tokens, and the same on a database that no store has open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from leyden.errors import Unavailable
from leyden.server.databases import is_url, open_database
from leyden.server.executor import Executor
from leyden.server.operations import tokens as token_ops
from leyden.server.tokens import NewToken, StoredToken, Token
from leyden.server.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class TokenStore:
    """A part of ``SQLStore``."""

    _executor: Executor

    async def add_token(self, new: NewToken) -> Token:
        return await self._executor.write(token_ops.add, new)

    async def revoke_token(self, token_id: str) -> Token:
        return await self._executor.write(token_ops.revoke, token_id)

    async def list_tokens(self) -> list[Token]:
        return await self._executor.read(token_ops.listing)

    async def stored_tokens(self) -> list[StoredToken]:
        return await self._executor.read(token_ops.stored)


def in_database(database: str | Path, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one operation of ``operations.tokens`` in ``database``, which is made if it is not there.

    A PostgreSQL database may have stores on it; a SQLite file must not: raises ``UsageError`` where it is open elsewhere.
    """
    opened = open_database(database)
    try:
        with opened.open_writer() as conn, conn.begin():
            start = opened.start(conn)
            return operation(Transaction(conn, start.now, start.revision, opened.secret), *args, **kwargs)
    except DBAPIError as error:
        raise Unavailable(f"{opened.label} cannot be used: {opened.describe(error)}", "look after the database") from error
    finally:
        opened.close()


def tokens_of(database: str | Path | None) -> list[Token]:
    """Those of ``database``. A file that is not there (or None: one that will be temporary) has none, and is not made."""
    if database is None or (not is_url(database) and not Path(database).is_file()):
        return []
    return in_database(database, token_ops.listing)
