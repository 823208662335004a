"""Bearer tokens, as their hashes. A revoked one stays: a store that had tokens once never opens again."""

from __future__ import annotations

from sqlalchemy import Row, insert, select, update

from leyden.errors import Conflict, NotFound
from leyden.server.schema import tokens
from leyden.server.tokens import NewToken, Scope, StoredToken, Token
from leyden.server.transaction import Transaction


def add(tx: Transaction, new: NewToken) -> Token:
    """The same again changes nothing. Raises ``Conflict`` for another token under a used id."""
    row = _row(tx, new.id)
    scopes = _written(new.scopes)
    if row is None:
        tx.conn.execute(insert(tokens).values(id=new.id, name=new.name, hash=new.hash, scopes=scopes, created_at=tx.now))
    elif (row.name, row.hash, row.scopes) != (new.name, new.hash, scopes):
        raise Conflict(f"there is another token {new.id}", "make one anew: it gets another id")
    return get(tx, new.id)


def revoke(tx: Transaction, token_id: str) -> Token:
    tx.conn.execute(update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=tx.now))
    return get(tx, token_id)


def get(tx: Transaction, token_id: str) -> Token:
    row = _row(tx, token_id)
    if row is None:
        raise NotFound(f"there is no token {token_id}", "see which there are: leyden token list")
    return _token(row)


def listing(tx: Transaction) -> list[Token]:
    return [_token(row) for row in tx.conn.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))]


def stored(tx: Transaction) -> list[StoredToken]:
    """All of them: they are few."""
    return [
        StoredToken(row.id, row.hash, frozenset(_read(row.scopes)), row.revoked_at is not None) for row in tx.conn.execute(select(tokens))
    ]


def _row(tx: Transaction, token_id: str) -> Row[tuple[object, ...]] | None:
    return tx.conn.execute(select(tokens).where(tokens.c.id == token_id)).first()


def _token(row: Row[tuple[object, ...]]) -> Token:
    return Token(id=row.id, name=row.name, scopes=_read(row.scopes), created_at=row.created_at, revoked_at=row.revoked_at)


def _written(scopes: tuple[Scope, ...]) -> str:
    return " ".join(scope for scope in Scope if scope in scopes)


def _read(scopes: str) -> tuple[Scope, ...]:
    return tuple(map(Scope, scopes.split()))
