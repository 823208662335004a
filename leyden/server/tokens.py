"""Bearer tokens: who may do what with a store. A token's secret is shown once, where it is made; a store only ever has its hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from leyden.types import Id, Record

TokenId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{8}$")]
# It begins with sk-: so does what the store strikes out of spans (``codec``), and what scanners of code and logs look for.
_TEXT = re.compile(r"sk-leyden-([0-9a-f]{8})-[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a token may do. ``ADMIN`` may do everything."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    INGEST = "ingest"
    READ = "read"
    RESOURCES = "resources"
    ADMIN = "admin"


class NewToken(Record):
    """``hash``: the SHA-256 of the token's text, in hex."""

    id: TokenId
    name: Id
    scopes: tuple[Scope, ...] = Field(min_length=1, max_length=len(Scope))
    hash: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class Token(Record):
    """A token as it is listed. The id is a part of its text, so that one that was found somewhere can be revoked."""

    id: TokenId
    name: str
    scopes: tuple[Scope, ...]
    created_at: int
    revoked_at: int | None = None


@dataclass(frozen=True)
class StoredToken:
    """What it takes to recognise one."""

    id: str
    hash: str
    scopes: frozenset[Scope]
    revoked: bool

    def is_of(self, text: str) -> bool:
        return hmac.compare_digest(hash_of(text), self.hash)


def mint(name: str, scopes: tuple[Scope, ...]) -> tuple[NewToken, str]:
    """A new token and its text, which nobody will be able to show again."""
    token_id = secrets.token_hex(4)
    text = f"sk-leyden-{token_id}-{secrets.token_urlsafe(32)}"
    return NewToken(id=token_id, name=name, scopes=scopes, hash=hash_of(text)), text


def hash_of(text: str) -> str:
    """A plain SHA-256: of 256 random bits there is nothing to guess, which is what slow hashes are for."""
    return hashlib.sha256(text.encode()).hexdigest()


def id_in(text: str) -> str | None:
    """The id in a token's text; None for what is no token."""
    match = _TEXT.fullmatch(text)
    return match[1] if match else None
